"""CPython's own tests pass: those of `queue` on manytail.queue, and those of what uses `queue` with
`sys.modules["queue"]` replaced."""
import re
from pathlib import Path

import pytest
from support.cpython import run_suite

pytestmark = pytest.mark.thread_unsafe(reason="each test is a process of its own")


def run(*arguments):
    said = run_suite(Path(__file__).with_name("cpython_suite.py"), *arguments)
    return int(re.search(r"^Ran (\d+) test", said, re.MULTILINE)[1])


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
