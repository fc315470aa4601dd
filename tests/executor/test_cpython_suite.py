"""CPython's own tests of thread pools pass on KeyedExecutor."""
from pathlib import Path

import pytest
from support.cpython import run_suite

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
    run_suite(Path(__file__).with_name("cpython_suite.py"), name)
