"""setup.py: misspelled switches stop the build, and `make` prints its help."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.process import run_command

ROOT = Path(__file__).parents[2]


@pytest.mark.packaging
@pytest.mark.parametrize(
    ("switch", "value", "expected"),
    [("MANYTAIL_SANITIZE", "memory", "expected one of thread, address"), ("MANYTAIL_DEBUG", "yes", "expected 1 or 0")],
)
def test_a_wrong_switch_stops_the_build_and_says_what_was_expected(switch, value, expected):
    ran = run_command(sys.executable, "setup.py", "--version", cwd=ROOT, env=os.environ | {switch: value})
    assert ran.returncode != 0
    assert f"{switch}='{value}': {expected}" in ran.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_alone_prints_the_help():
    # Without the variables of the make that runs this test.
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    ran = run_command("make", cwd=ROOT, env=environ)
    listed = {line.split()[0] for line in ran.stdout.splitlines()[1:-1]}
    assert listed >= {"help", "demo", "test", "bench", "lint", "typecheck", "test-freethreaded", "dist", "clean"}


def test_make_says_what_a_machine_lacks(tmp_path):
    """tools/check_machine.py with a compiler that does not exist."""
    environ = os.environ | {"CC": str(tmp_path / "cc")}
    ran = run_command(sys.executable, ROOT / "tools" / "check_machine.py", env=environ)
    assert ran.returncode == 1
    assert "there is no C compiler" in ran.stderr
