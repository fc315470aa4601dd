"""Epoch reclamation with native threads, without a sanitizer; `make tsan` and `make asan` run the same driver with one.

Thread churn (10,000 threads), a stalled reader, forks in mid-operation and at rest, nested pins, a bound on garbage.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.threads import DEADLINE

HERE = Path(__file__).parent
SOURCE = HERE / "drive_epoch.c"
SCENARIOS = re.findall(r'\{"(\w+)", \w+, [01]\}', SOURCE.read_text())
COMPILER = shutil.which("gcc") or shutil.which("clang")

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="the driver is for gcc or clang, and POSIX threads"),
    pytest.mark.thread_unsafe(reason="one program for the whole module"),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    program = tmp_path_factory.mktemp("native") / "drive_epoch"
    include = HERE.parents[1] / "include"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-DMT_DELAYS=1", f"-I{include}", f"-I{HERE}"]
    subprocess.run([COMPILER, *flags, SOURCE, "-o", program, "-lpthread"], check=True)
    return program


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_reclamation(driver, scenario):
    ran = subprocess.run(
        [driver, "-r", "5", "-d", str(int(DEADLINE)), scenario],
        capture_output=True,
        text=True,
        timeout=10 * DEADLINE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "no violation" in ran.stdout
