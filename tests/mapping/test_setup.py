"""setup: a resource for each worker thread, or one for the loop of an async fn."""

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
from support.maps import Gate, Way, everywhere, in_loops
from support.threads import DEADLINE, Threads

from manytail import concurrent_map

pytestmark = pytest.mark.thread_unsafe(reason="counts the threads of the process")


class Resources:
    """Notes for each thread what happens there to the resource that a setup of this kind gives."""

    def __init__(self) -> None:
        self.steps: dict[str, list[str]] = {}

    def note(self, what: str) -> None:
        self.steps.setdefault(threading.current_thread().name, []).append(what)

    def of_kind(self, kind: str) -> Any:
        note = self.note

        class Closed:
            def __init__(self) -> None:
                note("enter")

            def close(self) -> None:
                note("exit")

        class ClosedLater(Closed):
            async def aclose(self) -> None:
                await asyncio.sleep(0)
                note("exit")

            def close(self) -> None:
                raise AssertionError("there is an aclose")

        @contextmanager
        def plain() -> Any:
            with_close = Closed()
            yield with_close
            with_close.close()

        @asynccontextmanager
        async def later() -> Any:
            await asyncio.sleep(0)
            with plain() as entered:
                yield entered
                await asyncio.sleep(0)

        async def awaited() -> Any:
            return later()

        return {"close": Closed, "with": plain, "aclose": ClosedLater, "async with": later, "await": awaited}[kind]


def check(mapped: Way, kind: str) -> None:
    """It is made before the first call of its thread, and ends there."""
    noted = Resources()

    def fn(item: int, resource: Any) -> int:
        assert hasattr(resource, "close")
        noted.note("call")
        return item

    setup = noted.of_kind(kind)
    assert mapped(fn, range(2), workers=50, setup=setup) == [0, 1]
    assert 1 <= len(noted.steps) <= (1 if mapped.is_async or mapped.inline else 2)
    for steps in noted.steps.values():
        assert steps == ["enter", *["call"] * (len(steps) - 2), "exit"]
    noted.steps.clear()
    assert mapped(fn, [], setup=setup) == []
    assert noted.steps == {}


@everywhere
@pytest.mark.parametrize("kind", ["close", "with"])
def test_a_resource_is_entered_and_left(mapped: Way, kind: str) -> None:
    check(mapped, kind)


@in_loops
@pytest.mark.parametrize("kind", ["aclose", "async with", "await"])
def test_a_resource_is_entered_and_left_asynchronously(mapped: Way, kind: str) -> None:
    check(mapped, kind)


def test_each_worker_thread_has_its_own() -> None:
    gate, made = Gate(), []

    def setup() -> str:
        made.append(threading.current_thread().name)
        return made[-1]

    def fn(item: int, resource: str) -> int:
        assert resource == threading.current_thread().name
        return gate(item)  # type: ignore[no-any-return]

    with Threads() as threads:
        taking = threads.start(list, concurrent_map(fn, range(20), workers=3, setup=setup))
        gate.wait_for(0, 1, 2)
        gate.opened.set()
        assert taking.result() == list(range(20))
    assert len(made) == len(set(made)) == 3


@everywhere
def test_a_resource_that_cannot_be_closed_fails_the_map(mapped: Way) -> None:
    class Resource:
        def close(self) -> None:
            raise OSError("not committed")

    with pytest.raises(OSError, match="not committed"):
        mapped(lambda item, resource: item, [0], setup=Resource)


class NotingLock:
    """A lock that tells when the thread `watched` finds it taken: `refused`, or `waits`."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.watched: int | None = None
        self.refused, self.waits = threading.Event(), threading.Event()
        self.release = lock.release

    def acquire(self, blocking: bool = True) -> bool:
        taken: bool = self.lock.acquire(False)
        if not taken and threading.get_ident() == self.watched:
            (self.waits if blocking else self.refused).set()
        return taken or (blocking and self.lock.acquire())

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def test_exit_sees_the_failure_that_another_thread_handles() -> None:
    """The thread that holds the lock stops the map before it handles the failure."""
    seen: list[Any] = []
    gate = Gate()

    class Resource:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: Any) -> None:
            seen.append(error[1])
            lock.waits.set()

    def fn(item: int, resource: None) -> float:
        lock.watched = threading.get_ident()
        return 1 / gate(item)  # type: ignore[no-any-return]

    results = concurrent_map(fn, [0], workers=1, setup=Resource)
    runner: Any = results._runner
    lock = runner._lock = NotingLock(runner._lock)
    runner._try_lock = partial(lock.acquire, False)
    with Threads() as threads:
        taking = threads.start(list, results)
        gate.wait_for(0)
        with lock:
            gate.opened.set()
            assert lock.refused.wait(DEADLINE)
            runner.go_on()
            assert lock.waits.wait(DEADLINE)
        runner.settle()
        error = taking.outcome()
    assert isinstance(error, ZeroDivisionError)
    assert seen == [error]
