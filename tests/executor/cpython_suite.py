"""Runs classes of the interpreter's own tests of thread pools on KeyedExecutor: cpython_suite.py CLASS ...

The executor class is replaced before the tests are imported; scripts that they run in other interpreters are changed
likewise.
"""
import concurrent.futures
import os
import sys
from pathlib import Path

from support.cpython import module, run_cases

import manytail
from manytail.executor import KeyedExecutor

MODULES = ["test_thread_pool", "test_shutdown", "test_init", "test_wait", "test_as_completed"]
PACKAGE = "test.test_concurrent_futures"
LEFT_OUT = {"test_thread_names_default"}  # the default thread name has the class's name in it


def substitute() -> None:
    concurrent.futures.ThreadPoolExecutor = KeyedExecutor
    helper = module("test.support.script_helper")
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


def cases(names: list[str]) -> list[type]:
    """Of the package test.test_concurrent_futures, or the one module that it is before Python 3.12."""
    package = module(PACKAGE)
    modules = [module(f"{PACKAGE}.{name}") for name in MODULES] if hasattr(package, "__path__") else [package]
    found = {name: getattr(each, name) for each in modules for name in names if hasattr(each, name)}
    assert sorted(found) == sorted(names), f"classes {sorted(found)}, expected {sorted(names)}"
    assert all(case.executor_type is KeyedExecutor for case in found.values())
    return list(found.values())


if __name__ == "__main__":
    substitute()
    sys.exit(run_cases(cases(sys.argv[1:]), LEFT_OUT))
