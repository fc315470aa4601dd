"""Fixtures of the work pool's and the executor's tests."""
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.threads import DEADLINE, LONG, Hang, wait_until

from manytail.executor import KeyedExecutor


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "thread_unsafe: touches what the whole process shares (signals, the switch interval, fork, many threads)",
    )


class Gate:
    """Calls that say that they have begun, and end when they are let go: gate() blocks its worker, gate.open() lets all go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.number = 0
        self._open = threading.Event()

    def __call__(self, result: Any = None) -> Any:
        self.number += 1
        self.begun.release()
        if not self._open.wait(LONG):
            raise Hang("the gate was never opened")
        return result

    def wait_begun(self, calls: int = 1) -> None:
        for _ in range(calls):
            if not self.begun.acquire(timeout=DEADLINE):
                raise Hang(f"only {self.number} calls began")

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def executor(gate: Gate) -> Iterator[KeyedExecutor]:
    """Two workers. The gate is opened before it is shut down."""
    executor = KeyedExecutor(2)
    yield executor
    gate.open()
    executor.shutdown()


@pytest.fixture
def single(gate: Gate) -> Iterator[KeyedExecutor]:
    """One worker, so that the order of calls is the order of turns."""
    executor = KeyedExecutor(1)
    yield executor
    gate.open()
    executor.shutdown()


@pytest.fixture
def held(single: KeyedExecutor, gate: Gate) -> KeyedExecutor:
    """The same, its worker held by a call that waits for gate.open()."""
    single.submit(gate)
    gate.wait_begun()
    return single


@pytest.fixture
def wait_submitters() -> Callable[[KeyedExecutor, int], None]:
    """Until so many threads wait for a place."""

    def wait(executor: KeyedExecutor, n: int) -> None:
        pool = executor._workers.pool
        wait_until(lambda: pool.submitters_waiting == n, f"{n} waiting submitters, not {pool.submitters_waiting}")

    return wait
