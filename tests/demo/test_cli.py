"""The command line without Spark: its options, and what it says where the extra is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

import manytail
from manytail.demo import needs

# An interpreter that sees the standard library and manytail, whatever else is installed beside it.
BARE = """
import runpy, sys
sys.path.insert(0, {folder!r})
sys.argv = ["manytail", *{arguments!r}]
runpy.run_module("manytail", run_name="__main__")
"""


@pytest.fixture
def bare(tmp_path):
    """Runs `python -m manytail ...` as it is without any extra."""
    (tmp_path / "manytail").symlink_to(Path(manytail.__file__).parent, target_is_directory=True)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        script = BARE.format(folder=str(tmp_path), arguments=arguments)
        return subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)

    return run


def test_without_the_extra_it_says_what_is_missing_and_the_command_that_brings_it(bare):
    ran = bare("demo")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == needs.advice(sorted(needs.MODULES.values())) + "\n"
    assert f"{sys.executable} -m pip install 'manytail[demo]'" in ran.stderr


def test_without_the_extra_there_is_help(bare):
    for arguments in (["--help"], ["demo", "--help"]):
        ran = bare(*arguments)
        assert ran.returncode == 0
        assert ran.stdout.startswith("usage: python -m manytail")
        assert ran.stderr == ""


def test_with_the_extra_nothing_is_missing():
    assert needs.missing() == []


def test_every_module_of_the_extra_that_the_demo_imports_is_asked_for():
    folder = Path(manytail.__file__).parent / "demo"
    imported = {
        line.split()[1].split(".")[0]
        for path in folder.glob("*.py")
        for line in path.read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    outside = imported - set(sys.stdlib_module_names) - {"manytail", "py4j", ""}  # py4j comes with pyspark
    assert outside <= set(needs.MODULES)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["demo", "--month", "13"], "--month: invalid choice: 13"),
        (["demo", "--month", "2", "--all"], "--all: not allowed with argument --month"),
        (["demo", "--rows", "0"], "--rows: 0: expected 1 or more"),
        (["demo", "--workers", "-3"], "--workers: -3: expected 1 or more"),
        (["demo", "--per-key", "none"], "--per-key: invalid positive value: 'none'"),
        ([], "usage: python -m manytail COMMAND"),
        (["dmeo"], "usage: python -m manytail COMMAND"),
    ],
    ids=str,
)
def test_wrong_options_are_named(bare, arguments, complaint):
    ran = bare(*arguments)
    assert ran.returncode == 2
    assert complaint in ran.stderr
