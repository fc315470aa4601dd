"""Some cases of each fuzzer, in a process of their own: they need its main thread, its signals and its collector."""

import subprocess
import sys

import pytest
from support.counts import count
from support.process import environment

pytestmark = pytest.mark.thread_unsafe(reason="starts a process")

CASES = {
    "maps": count(700, 20_000, "MANYTAIL_FUZZ"),
    "queues": count(500, 20_000, "MANYTAIL_FUZZ"),
    "situations": count(120, 20_000, "MANYTAIL_FUZZ"),
}
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("fuzzer", CASES)
def test_no_case_fails(fuzzer: str, part: int) -> None:
    cases = CASES[fuzzer] // PARTS
    command = [sys.executable, "-m", "fuzz", fuzzer, f"--from={part * cases}", f"--seeds={cases}"]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
