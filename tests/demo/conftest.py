"""What the tests of the demo share: its real input, read once, and an interpreter without any extra."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import manytail
from manytail.demo import data

# An interpreter that sees only the standard library and manytail, whatever else is installed.
BARE = """
import runpy, sys
sys.path.insert(0, {folder!r})
sys.argv = ["manytail", *{arguments!r}]
{planted}
runpy.run_module("manytail", run_name="__main__")
"""


@pytest.fixture(scope="session")
def flights() -> pa.Table:
    """Every flight of the year."""
    return data.flights()


@pytest.fixture
def start_bare(tmp_path):
    """Starts `python -m manytail ...` without any extra installed, after lines of Python in the same process."""
    (tmp_path / "manytail").symlink_to(Path(manytail.__file__).parent, target_is_directory=True)

    def start(*arguments: str, planted: str = "") -> subprocess.Popen[str]:
        script = BARE.format(folder=str(tmp_path), arguments=arguments, planted=planted)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", script],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    return start


@pytest.fixture
def bare(start_bare):
    """The same, until it has ended with all processes that it started: they have its standard error."""

    def run(*arguments: str, planted: str = "") -> subprocess.CompletedProcess[str]:
        process = start_bare(*arguments, planted=planted)
        output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    return run
