"""Runs the thread pool tests of the interpreter's own `test` package on KeyedExecutor, in this process.

    python tests/executor/cpython_suite.py CLASS ...

The executor class is replaced before the tests are imported; scripts that they run in other interpreters are changed
likewise. The tests are not copied: a CPython without its `test` package has none (exit status 77).
"""
import concurrent.futures
import importlib
import os
import sys
import unittest
from pathlib import Path

import manytail
from manytail.executor import KeyedExecutor

NO_TESTS = 77
MODULES = ["test_thread_pool", "test_shutdown", "test_init", "test_wait", "test_as_completed"]
PACKAGE = "test.test_concurrent_futures"
# Tests of internals of ThreadPoolExecutor.
LEFT_OUT = {
    "test_thread_names_default": "the default thread name has the class's name in it",
}


def substitute() -> None:
    concurrent.futures.ThreadPoolExecutor = KeyedExecutor
    helper = importlib.import_module("test.support.script_helper")
    run = helper.assert_python_ok

    def assert_python_ok(*args, **env):
        script = args[-1]
        for name in ("ThreadPoolExecutor", "KeyedExecutor"):
            script = script.replace(
                f"from concurrent.futures import {name}", f"from manytail.executor import KeyedExecutor as {name}"
            )
        assert "manytail" in script, f"the script makes no executor of ours:\n{script}"
        path = os.pathsep.join([str(Path(manytail.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
        return run(*args[:-1], script, **env, PYTHONPATH=path)

    helper.assert_python_ok = assert_python_ok


def modules() -> list[object]:
    """The modules of the package test.test_concurrent_futures, or the one module that it is before Python 3.12."""
    try:
        package = importlib.import_module(PACKAGE)
    except ImportError:
        print(f"{sys.executable} has no {PACKAGE}")
        sys.exit(NO_TESTS)
    if not hasattr(package, "__path__"):
        return [package]
    return [importlib.import_module(f"{PACKAGE}.{name}") for name in MODULES]


def suite(names: list[str]) -> unittest.TestSuite:
    found = {name: getattr(module, name) for module in modules() for name in names if hasattr(module, name)}
    assert sorted(found) == sorted(names), f"classes {sorted(found)}, expected {sorted(names)}"
    for case in found.values():
        assert case.executor_type is KeyedExecutor
    cases = [test for case in found.values() for test in unittest.defaultTestLoader.loadTestsFromTestCase(case)]
    for test in cases:
        if test._testMethodName in LEFT_OUT:
            setattr(
                test,
                test._testMethodName,
                unittest.skip(LEFT_OUT[test._testMethodName])(getattr(test, test._testMethodName)),
            )
    return unittest.TestSuite(cases)


if __name__ == "__main__":
    substitute()
    outcome = unittest.TextTestRunner(verbosity=2).run(suite(sys.argv[1:]))
    sys.exit(not outcome.wasSuccessful() or outcome.testsRun == 0)
