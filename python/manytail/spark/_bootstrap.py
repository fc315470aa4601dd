"""`bootstrap`: manytail's compiled files for executors that do not have it.

Spark's Python workers cannot import compiled modules from a wheel or a zip file. But `sys.path` has the directory into
which Spark unpacks archives. So the package's directory is sent as an archive that is unpacked as `manytail`. Every
worker of the session imports it like any other package, before it unpickles the functions that refer to it.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import manytail
from manytail import _checks as checks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
_DATE = (1980, 1, 1, 0, 0, 0)  # of every file, so that equal contents make equal archives
# By digest. Kept until the interpreter exits: executors that start later fetch them too.
_archives: dict[str, tempfile.TemporaryDirectory[str]] = {}


def bootstrap(spark: SparkSession, wheel: str | None = None) -> None:
    """Send manytail's compiled package to the executors of this session, and check that one of them can import it.

    Use it on a cluster where you cannot install anything. Call it before the first job that uses manytail. The
    executors need PyArrow, and the same minor version of Python and the same platform as the driver. In production, an
    environment packed with venv-pack starts faster.

    Parameters
    ----------
    spark : SparkSession
        Classic or Connect.
    wheel : str, optional
        The path of a wheel of manytail, if the executors have a different platform. None: the files that the driver has
        imported are sent.

    Raises
    ------
    ValueError, TypeError
        If it is not a wheel, or if it is a wheel for a minor version of Python other than the driver's.
    FileNotFoundError
        If there is no such file.
    RuntimeError
        If an executor cannot import it. The message says why: another minor version of Python, another platform, or an
        older manytail that is installed there.

    Examples
    --------
    >>> bootstrap(spark)  # doctest: +SKIP
    >>> urls.transform(map_concurrent, fetch, "status int").write.parquet("pages")  # doctest: +SKIP
    """
    if not hasattr(spark, "addArtifacts"):
        raise checks.bad_type("spark", spark, "a SparkSession")
    files = _own_files() if wheel is None else _wheel_files(wheel)
    spark.addArtifacts(f"{_archive(files)}#manytail", archive=True)
    _refuse_other_versions(_try_import(spark), _version_of(files))


def _own_files() -> dict[str, bytes]:
    """The files of the driver's package, without those for other interpreters."""
    root = Path(manytail.__file__).parent
    foreign = _foreign_suffixes()
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files if not path.name.endswith(foreign)}


def _foreign_suffixes() -> tuple[str, ...]:
    """The endings of the compiled modules that this interpreter cannot import."""
    own = sysconfig.get_config_var("EXT_SUFFIX")
    suffixes = {path.name[path.name.index(".") :] for path in Path(manytail.__file__).parent.glob("*.cpython-*")}
    return tuple(suffixes - {own})


def _wheel_files(wheel: Any) -> dict[str, bytes]:
    """The package in a wheel."""
    if not isinstance(wheel, str):
        raise checks.bad_type("wheel", wheel, "the path of a wheel, or None")
    _refuse_foreign(wheel)
    if not Path(wheel).is_file():
        raise FileNotFoundError(f"wheel: {wheel!r} (expected: a file)")
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("manytail/") and not name.endswith("/")]
            found = {name.removeprefix("manytail/"): archive.read(name) for name in names}
    except zipfile.BadZipFile as error:
        raise checks.bad_value("wheel", wheel, f"a file that can be read as a wheel; {error}") from error
    if "_version.py" not in found:
        raise checks.bad_value("wheel", wheel, "a wheel with the package manytail in it")
    return found


def _refuse_foreign(wheel: str) -> None:
    """Refuse a wheel for another Python than this one, by its name."""
    parts = Path(wheel).name.removesuffix(".whl").split("-")
    if not wheel.endswith(".whl") or len(parts) < 5 or parts[0] != "manytail":
        expected = "the path of a wheel of manytail, such as manytail-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
        raise checks.bad_value("wheel", wheel, expected)
    abi = f"cp{_PYTHON.replace('.', '')}" + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
    if parts[-2] != abi:
        raise checks.bad_value(
            "wheel", wheel, f"a wheel for {abi}: executors have to have the driver's minor version of Python"
        )


def _version_of(files: dict[str, bytes]) -> str:
    found = re.search(rb'^__version__ = "(.*)"', files["_version.py"], re.MULTILINE)
    return found[1].decode() if found else "without a version"


def _archive(files: dict[str, bytes]) -> str:
    """The path of an archive of these files. The same files have the same path."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
    data = made.getvalue()
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    if digest not in _archives:
        _archives[digest] = tempfile.TemporaryDirectory(prefix="manytail-")
        Path(_archives[digest].name, f"manytail-{digest}.zip").write_bytes(data)
    return str(Path(_archives[digest].name, f"manytail-{digest}.zip"))


def _try_import(spark: SparkSession) -> tuple[str, str]:
    """Version and directory of the manytail that a worker imports."""

    # Pickled by value: a worker may be without this module.
    def imported(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        try:
            import pyarrow

            import manytail
            from manytail import MultiQueue
        except ImportError as error:
            raise type(error)(f"{error} (the executor's Python: {sys.executable}, {sys.version.split()[0]})") from None

        queue = MultiQueue[str, str]()
        queue.add("tail").put(manytail.__version__)
        yield pyarrow.RecordBatch.from_pydict({"version": [queue.get()], "place": [manytail.__file__]})

    try:
        version, place = spark.range(0, 1, 1, 1).mapInArrow(imported, "version string, place string").collect()[0]
    except Exception as error:  # also those of py4j, if a worker could not be started
        said = str(error)
        if "PYTHON_VERSION_MISMATCH" in said:
            version = re.search(r"different version: ([\d.]+)", said)
            found = version[1] if version else "another"
            raise RuntimeError(
                "bootstrap: the executors have another minor version of Python "
                f"(expected: {_PYTHON}, as the driver's {sys.executable} has; found: {found}): "
                "set PYSPARK_PYTHON or spark.pyspark.python to a Python of that version"
            ) from error
        lines = [line.strip() for line in said.splitlines() if "Error" in line or "Exception" in line]
        raise RuntimeError(f"bootstrap: an executor cannot import manytail: {lines[-1] if lines else said}") from error
    return version, place


def _refuse_other_versions(found: tuple[str, str], expected: str) -> None:
    version, place = found
    if version != expected:
        raise RuntimeError(
            f"bootstrap: an executor imports manytail {version} from {place} "
            f"(expected: {expected}, which was sent to it)"
        )
