"""CPython's own tests of thread pools pass on KeyedExecutor. They are those of the interpreter that runs this."""
import subprocess
import sys
from pathlib import Path

import pytest
from support.process import environment, skipped_tests
from support.threads import DEADLINE

from .cpython_suite import LEFT_OUT, NO_TESTS

pytestmark = pytest.mark.thread_unsafe(
    reason="its fixtures and executors are for one thread; they start threads of their own"
)

CLASSES = [
    "ThreadPoolExecutorTest",
    "ThreadPoolShutdownTest",
    "ThreadPoolInitializerTest",
    "ThreadPoolFailingInitializerTest",
    "ThreadPoolWaitTests",
    "ThreadPoolAsCompletedTest",
]


@pytest.mark.parametrize("name", CLASSES)
def test_cpythons_own_tests_pass(name):
    script = Path(__file__).with_name("cpython_suite.py")
    ran = subprocess.run(
        [sys.executable, str(script), name],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=10 * DEADLINE,
        check=False,
    )
    if ran.returncode == NO_TESTS:
        pytest.skip(f"{ran.stdout.strip()}; `make test-freethreaded` runs them on one that has")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    skipped = skipped_tests(ran.stderr)
    # CPython skips test_idle_thread_reuse without the GIL.
    assert all(line.split()[0] in {*LEFT_OUT, "test_idle_thread_reuse"} for line in skipped), skipped
