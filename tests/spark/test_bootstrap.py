"""`bootstrap`: what it sends, what it refuses, and that a worker imports what it was sent."""

import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import manytail
from manytail.spark import _bootstrap, bootstrap, map_concurrent

ABI = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def test_workers_import_what_was_sent(spark: Any) -> None:
    bootstrap(spark)
    bootstrap(spark)  # changes nothing: the archive is the same
    version, place = _bootstrap._try_import(spark)
    assert version == manytail.__version__
    assert Path(place).parent != Path(manytail.__file__).parent
    rows = spark.range(3).transform(map_concurrent, lambda row: row.id + 1, "next long").collect()
    assert [row.next for row in rows] == [1, 2, 3]


OTHER = shutil.which("python3.13t") or os.path.abspath(Path(sys.prefix, "..", ".venv-ft", "bin", "python"))


@pytest.mark.skipif(not os.path.exists(OTHER), reason="no second Python here")
def test_another_minor_version_of_python(spark: Any, conf: Any) -> None:
    conf("spark.sql.execution.pyspark.python", OTHER)
    expected = rf"another minor version of Python \(expected: {_bootstrap._PYTHON}"
    with pytest.raises(RuntimeError, match=expected) as raised:
        bootstrap(spark)
    assert f"the driver's {sys.executable} has; found: 3." in str(raised.value)


def wheel(directory: Path, *names: str, abi: str = ABI) -> str:
    path = directory / f"manytail-9.9-{abi}-{abi}-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, '__version__ = "9.9"\n')
    return str(path)


def test_the_package_of_a_wheel(tmp_path: Path) -> None:
    files = _bootstrap._wheel_files(
        wheel(tmp_path, "manytail/__init__.py", "manytail/_version.py", "manytail-9.9.dist-info/METADATA")
    )
    assert set(files) == {"__init__.py", "_version.py"}
    assert _bootstrap._version_of(files) == "9.9"
    with zipfile.ZipFile(_bootstrap._archive(files)) as archive:
        assert archive.namelist() == ["__init__.py", "_version.py"]


def test_own_files_are_for_this_interpreter() -> None:
    compiled = [name for name in _bootstrap._own_files() if name.endswith(".so")]
    assert compiled
    assert all(ABI.removeprefix("cp") + "-" in name for name in compiled)


def test_bad_arguments(tmp_path: Path) -> None:
    session: Any = type("Session", (), {"addArtifacts": None})()  # is asked for nothing
    for bad, kind, said in (
        ("no.whl", ValueError, "the path of a wheel of manytail"),
        (3, TypeError, "wheel: 3 of type int"),
        (wheel(tmp_path, "manytail/_version.py", abi="cp39"), ValueError, f"a wheel for {ABI}"),
        (str(tmp_path / f"manytail-1-{ABI}-{ABI}-any.whl"), FileNotFoundError, "expected: a file"),
        (wheel(tmp_path, "other/_version.py"), ValueError, "the package manytail in it"),
    ):
        with pytest.raises(kind, match=said):
            bootstrap(session, bad)  # type: ignore[arg-type]
    (tmp_path / f"manytail-1-{ABI}-{ABI}-any.whl").write_text("no zip file")
    with pytest.raises(ValueError, match="can be read as a wheel"):
        bootstrap(session, str(tmp_path / f"manytail-1-{ABI}-{ABI}-any.whl"))
    with pytest.raises(TypeError, match="spark: None"):
        bootstrap(None)  # type: ignore[arg-type]


def test_a_manytail_that_was_not_sent() -> None:
    with pytest.raises(RuntimeError, match=r"imports manytail 0.0 from .elsewhere. \(expected: 9.9"):
        _bootstrap._refuse_other_versions(("0.0", "'elsewhere'"), "9.9")


def test_an_executor_that_cannot_import_it(spark: Any) -> None:
    class Session:
        """A session whose workers cannot import manytail."""

        def range(self, *bounds: int) -> Any:
            def missing(_: Any) -> Any:
                import manytail_that_is_not_there

                yield pa.RecordBatch.from_pydict(manytail_that_is_not_there)

            df = spark.range(*bounds)
            return type("Frame", (), {"mapInArrow": lambda self, fn, schema: df.mapInArrow(missing, schema)})()

    with pytest.raises(
        RuntimeError, match=r"an executor cannot import manytail: .*No module named 'manytail_that_is_not_there'"
    ):
        _bootstrap._try_import(Session())  # type: ignore[arg-type]
