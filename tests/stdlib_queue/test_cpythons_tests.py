"""CPython's own tests pass: those of `queue` on manytail.queue, and those of what uses `queue` with
`sys.modules["queue"]` replaced."""
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.process import environment, skipped_tests
from support.threads import DEADLINE

from .cpython_suite import NO_TESTS

pytestmark = pytest.mark.thread_unsafe(reason="each test is a process of its own")


def run(*arguments):
    script = Path(__file__).with_name("cpython_suite.py")
    command = [sys.executable, str(script), *arguments]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=10 * DEADLINE, check=False)
    if ran.returncode == NO_TESTS:
        pytest.skip(ran.stdout.strip())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    skipped = {line.split()[0] for line in skipped_tests(ran.stderr)}
    assert skipped <= {"test_idle_thread_reuse"}, ran.stderr  # CPython skips that without the GIL
    return int(re.search(r"^Ran (\d+) test", ran.stderr, re.MULTILINE)[1])


@pytest.mark.parametrize(("name", "least"), [
    ("QueueTest", 6), ("LifoQueueTest", 6), ("PriorityQueueTest", 6), ("FailingQueueTest", 1), ("CSimpleQueueTest", 9),
])  # fmt: skip
def test_cpythons_tests_of_queue(name, least):
    """Older versions of CPython have fewer tests. None is skipped."""
    assert run("queue", name) >= least


@pytest.mark.parametrize(("module", "names"), [
    ("test.test_logging", ["QueueHandlerTest", "QueueListenerTest"]),
    ("test.test_concurrent_futures.test_thread_pool", ["ThreadPoolExecutorTest"]),
    ("test.test_concurrent_futures.test_shutdown", ["ThreadPoolShutdownTest"]),
    ("test.test_concurrent_futures.test_init", ["ThreadPoolInitializerTest", "ThreadPoolFailingInitializerTest"]),
])  # fmt: skip
def test_cpythons_tests_of_users_of_queue(module, names):
    assert run("users", module, *names) > 0
