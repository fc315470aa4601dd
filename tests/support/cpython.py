"""CPython's own tests on our classes: those of the interpreter that runs this, in a process of its own.

Nothing is copied: a CPython without its `test` package has none."""

import importlib
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import pytest

from .process import environment, skipped_tests
from .threads import DEADLINE

NO_TESTS = 77


def module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{sys.executable} has no {name}")
        sys.exit(NO_TESTS)


def run_cases(cases: list[type[unittest.TestCase]], left_out: set[str]) -> int:
    """The exit status of the process that runs their tests."""
    loaded = [test for case in cases for test in unittest.defaultTestLoader.loadTestsFromTestCase(case)]
    kept = [test for test in loaded if test._testMethodName not in left_out]
    outcome = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(kept))
    return int(not outcome.wasSuccessful() or outcome.testsRun == 0)


def run_suite(script: Path, *arguments: str) -> str:
    """What unittest says in such a process."""
    command = [sys.executable, str(script), *arguments]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=10 * DEADLINE, check=False)
    if ran.returncode == NO_TESTS:
        pytest.skip(f"{ran.stdout.strip()}; `make test-freethreaded` runs them on one that has")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    skipped = {line.split()[0] for line in skipped_tests(ran.stderr)}
    assert skipped <= {"test_idle_thread_reuse"}, ran.stderr  # CPython skips that without the GIL
    return ran.stderr
