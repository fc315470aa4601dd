"""An unlock costs the same with 1,000 waiting threads as with 10: it does not walk over those that wait."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support.threads import DEADLINE

HERE = Path(__file__).parent
COMPILER = shutil.which("gcc") or shutil.which("clang")

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="the program is for gcc or clang, which count its steps"),
    pytest.mark.thread_unsafe(reason="one program"),
]


def test_an_unlock_does_not_walk_over_the_waiters(tmp_path):
    program = tmp_path / "lock_cost"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize-coverage=trace-pc"]
    source = HERE / "lock_cost.c"
    subprocess.run([COMPILER, *flags, f"-I{HERE.parents[1] / 'include'}", source, "-o", program], check=True)
    few, many = (float(subprocess.check_output([program, str(waiters)], timeout=DEADLINE)) for waiters in (10, 1000))
    assert 0 < many <= 1.1 * few
