"""Fixtures of the work pool's and the executor's tests."""
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.threads import DEADLINE, LONG, Hang, wait_until

from manytail.executor import KeyedExecutor, Lane


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.thread_unsafe(reason="fixtures are for one thread; tests start threads"))


class Gate:
    """Calls that report that they have begun and wait: gate() blocks its worker, gate.open() lets all calls end."""

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


def ended(executor: KeyedExecutor, gate: Gate) -> Iterator[KeyedExecutor]:
    """It, and at the end it is shut down with the gate open."""
    yield executor
    gate.open()
    executor.shutdown()


@pytest.fixture
def executor(gate: Gate) -> Iterator[KeyedExecutor]:
    """Two workers."""
    yield from ended(KeyedExecutor(2), gate)


@pytest.fixture
def lane(executor: KeyedExecutor) -> Lane:
    return executor.lane("a")


@pytest.fixture
def single(gate: Gate) -> Iterator[KeyedExecutor]:
    """One worker, so that calls run in the order in which the pool selects them."""
    yield from ended(KeyedExecutor(1), gate)


@pytest.fixture
def held(single: KeyedExecutor, gate: Gate) -> KeyedExecutor:
    """The same. Its worker is blocked by a call that waits for gate.open()."""
    single.submit(gate)
    gate.wait_begun()
    return single


@pytest.fixture
def wait_submitters() -> Callable[[KeyedExecutor, int], None]:
    """Wait until so many threads wait in submit for a free slot."""

    def wait(executor: KeyedExecutor, n: int) -> None:
        pool = executor._workers.pool
        wait_until(lambda: pool.submitters_waiting == n, f"{n} waiting submitters, not {pool.submitters_waiting}")

    return wait
