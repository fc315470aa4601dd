"""Runs tests of the interpreter's own `test` package against manytail.queue, in this process.

    cpython_suite.py queue CLASS ...            classes of test.test_queue, with manytail.queue as the module under test
    cpython_suite.py users MODULE CLASS ...     classes of another module, with `sys.modules["queue"]` replaced by ours
"""
import importlib.util
import sys
import unittest

from support.cpython import module, run_cases

# Tests of the size in bytes of CPython's own objects.
LEFT_OUT = {"test_simplequeue_sizeof"}


def queue_cases(names: list[str]) -> list[type[unittest.TestCase]]:
    """The mix-ins of test_queue with our module. CPython binds them to its own two modules."""
    from manytail import queue

    support = module("test.support")
    support.set_memlimit("6g")  # otherwise some versions silently skip the tests with many threads
    if importlib.util.find_spec("test.support.isolation"):
        # Otherwise CPython 3.15 runs those tests in another process, which has no class of ours.
        module("test.support.isolation").runningInSubprocess = True
    tests = module("test.test_queue")
    cases = []
    for name in names:
        base = getattr(tests, name)
        bases = (base,) if issubclass(base, unittest.TestCase) else (base, unittest.TestCase)
        cases.append(type(f"Our{name}", bases, {"queue": queue}))
    return cases


def user_cases(name: str, names: list[str]) -> list[type[unittest.TestCase]]:
    from manytail import queue

    for user in ("logging.handlers", "logging.config", "concurrent.futures.thread", "multiprocessing.pool", name):
        assert user not in sys.modules, f"{user} was imported before `queue` was replaced"
    sys.modules["queue"] = queue
    tests = module(name)
    return [getattr(tests, each) for each in names]


if __name__ == "__main__":
    kind, *names = sys.argv[1:]
    sys.exit(run_cases(queue_cases(names) if kind == "queue" else user_cases(names[0], names[1:]), LEFT_OUT))
