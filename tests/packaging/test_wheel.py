"""The sdist, the wheel made from it, and the ways to install them."""

import json
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path, PurePosixPath

import pytest

import manytail

pytestmark = [pytest.mark.packaging, pytest.mark.thread_unsafe(reason="builds are shared by the session")]

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python" / "manytail"
PLAIN = ["executor", "queue", "_lanes", "_listener", "_timer"]  # in setup.py, too
PLAIN += ["broker/_protocol", "broker/_routing", "broker/_state", "broker/_runtime", "broker/_mailbox"]
PLAIN += ["broker/channel", "broker/connection"]
PLAIN += ["mapping/_ledger", "mapping/_limits"]
MODULES = sorted(path.stem for path in (ROOT / "pyx" / "manytail").glob("*.pyx")) + PLAIN

# Run outside the tree, so that the installed package is imported.
SMOKE = """
import sys
import manytail
from pathlib import Path

queue = manytail.MultiQueue()
tail = queue.add("a", priority=1)
tail.put_many([1, None])
assert [queue.get(), queue.get_with_key()] == [1, ("a", None)]
headers = Path(manytail.get_include())
assert (headers / "manytail" / "atomics.h").is_file(), headers
assert not {"pyspark", "numpy", "pyarrow", "pandas"} & sys.modules.keys()
print(Path(manytail.__file__).parent)
"""


def version() -> str:
    said: dict[str, str] = {}
    exec((PACKAGE / "_version.py").read_text(), said)
    return said["__version__"]


@pytest.fixture(scope="module")
def wheel_names(wheel) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def test_the_sdist_has_the_sources_and_no_generated_c(sdist):
    with tarfile.open(sdist) as archive:
        names = {PurePosixPath(*PurePosixPath(name).parts[1:]).as_posix() for name in archive.getnames()}
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in ("include", "pyx", "python", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".h", ".pyx", ".pxi", ".pxd", ".pyi", ".py") or path.name == "py.typed"
    }
    assert sources <= names
    assert {"setup.py", "pyproject.toml", "Makefile", "wheels.yml", "LICENSE", "README.md", "CHANGELOG.md"} <= names
    assert {
        name
        for name in names
        if name.endswith((".so", ".pyd", ".pyc")) or (name.endswith(".c") and not name.startswith("tests/"))
    } == set()


def test_the_wheel_has_modules_stubs_declarations_and_headers(wheel_names):
    declared = {
        f"manytail/{path.relative_to(PACKAGE).as_posix()}"
        for pattern in ("*.py", "*.pyi", "*.pxd")
        for path in PACKAGE.rglob(pattern)
        if "_maps" not in path.parts  # until it takes the place of `mapping`
    }
    headers = {f"manytail/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "include").rglob("*.h")}
    assert declared <= wheel_names
    assert headers <= wheel_names
    assert {"manytail/py.typed", "manytail/__init__.pxd", "manytail/_multiqueue.pyi"} <= wheel_names
    for module in MODULES:
        assert any(name.startswith(f"manytail/{module}.") and name.endswith((".so", ".pyd")) for name in wheel_names)


def test_the_wheel_has_nothing_else(wheel_names):
    assert {name.split("/")[0] for name in wheel_names} == {"manytail", f"manytail-{version()}.dist-info"}
    assert {name for name in wheel_names if name.endswith((".c", ".pyx", ".pxi", ".pyc")) or "/_maps/" in name} == set()


def test_the_wheel_is_for_one_python_and_says_its_version(wheel, metadata):
    assert metadata["Version"] == version()
    assert "abi3" not in wheel.name
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_core_depends_on_nothing(metadata):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(metadata.get_all("Provides-Extra")) == set(extras) >= {"numpy", "spark", "demo"}
    assert not {"test", "bench"} & set(extras), "what only developers need is a dependency group"
    assert [needed for needed in metadata.get_all("Requires-Dist") if "extra ==" not in needed] == []


def test_the_group_test_has_what_the_extras_that_it_tests_ask_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    assert {*extras["postgres"], *extras["selectors"]} <= set(project["dependency-groups"]["test"])


def test_the_bill_of_materials_is_of_this_wheel_and_recorded(wheel, metadata):
    folder = f"manytail-{version()}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        bill = json.loads(archive.read(f"{folder}/sboms/manytail.cdx.json"))
        record = archive.read(f"{folder}/RECORD").decode()
    component = bill["metadata"]["component"]
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert (component["name"], component["version"]) == (metadata["Name"], metadata["Version"])
    assert component["licenses"] == [{"expression": metadata["License-Expression"]}]
    assert bill["dependencies"] == [{"ref": component["bom-ref"], "dependsOn": []}]
    assert {tool["name"] for tool in bill["metadata"]["tools"]["components"]} == {"cython", "setuptools"}
    assert f"{folder}/sboms/manytail.cdx.json,sha256=" in record


def test_the_wheel_works_outside_the_tree(installed):
    assert Path(installed.python("-c", SMOKE).strip()).is_relative_to(installed.root)


def test_the_doctor_is_content_with_a_bare_installation(installed):
    said = installed.python("-m", "manytail", "doctor", "--seconds", "0")
    assert said.splitlines()[-1] == "All is well."
    assert "pyspark         -      not installed" in said


def test_the_package_of_the_tests_works_outside_the_tree(here, tmp_path):
    assert Path(here.python("-c", SMOKE, cwd=tmp_path).strip()) == Path(manytail.__file__).parent
