"""setup: one resource per worker thread, or one per task in the loop of an async function."""

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
from support.scheduling import Rows, Run, Script, batches, finished, results
from support.threads import DEADLINE


class Log:
    """Records what happens to resources, and in which thread."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def note(self, what: str) -> None:
        self.events.append((what, threading.current_thread().name))

    def named(self, what: str) -> list[str]:
        return [thread for event, thread in self.events if event == what]


def test_setup_runs_in_each_worker_thread_before_its_first_call() -> None:
    log, script = Log(), Script()

    def setup() -> str:
        log.note("setup")
        return threading.current_thread().name

    def call(row: int, resource: str) -> int:
        assert resource == threading.current_thread().name
        return script(row)  # type: ignore[no-any-return]

    with Run(call, [Rows(range(20))], workers=3, max_in_flight=20, setup=setup) as run:
        script.wait(lambda: len(script.running) == 3)
        script.let_all_go()
        run.result()
    assert len(log.named("setup")) == len(set(log.named("setup"))) == 3


def test_no_more_setups_than_rows() -> None:
    made: list[int] = []
    assert results(lambda row, resource: row, [Rows([1, 2])], workers=50, setup=lambda: made.append(1)) == [1, 2]
    assert len(made) <= 2


def test_context_managers_are_entered_and_exited_in_their_thread() -> None:
    log = Log()

    @contextmanager
    def setup() -> Any:
        log.note("enter")
        yield "entered"
        log.note("exit")

    out = results(lambda row, resource: (row, resource), batches(range(10), 5), workers=2, setup=setup)
    assert out == [(row, "entered") for row in range(10)]
    assert sorted(log.named("exit")) == sorted(log.named("enter"))
    assert log.events[-1][0] == "exit"


def test_close_is_called_where_there_is_nothing_to_exit() -> None:
    log = Log()

    class Resource:
        def close(self) -> None:
            log.note("close")

    finished(lambda row, resource: row, [Rows(range(10))], workers=2, setup=Resource)
    assert 1 <= len(log.named("close")) <= 2


class NotingLock:
    """A lock that tells when the thread `watched` finds it taken: `refused`, or `waits`."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.watched: int | None = None
        self.refused, self.waits = threading.Event(), threading.Event()

    def acquire(self, blocking: bool = True) -> bool:
        taken: bool = self.lock.acquire(False)
        if not taken and threading.get_ident() == self.watched:
            (self.waits if blocking else self.refused).set()
        return taken or (blocking and self.lock.acquire())

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def test_exit_sees_the_failure_that_another_thread_handles() -> None:
    """The thread that holds the lock stops the map before it handles the failure."""
    seen: list[Any] = []
    begun, go_on = threading.Event(), threading.Event()

    class Resource:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: Any) -> None:
            seen.append(error[1])
            lock.waits.set()

    def call(row: int, resource: None) -> float:
        lock.watched = threading.get_ident()
        begun.set()
        assert go_on.wait(DEADLINE)
        return 1 / row

    run = Run(call, [Rows([0])], workers=1, setup=Resource)
    runner = run.batch_map.runner
    lock = runner._lock = NotingLock(runner._lock)  # type: ignore[assignment]
    runner._try_lock = partial(lock.acquire, False)
    with run:
        assert begun.wait(DEADLINE)
        with lock:
            go_on.set()
            assert lock.refused.wait(DEADLINE)
            runner.go_on()
            assert lock.waits.wait(DEADLINE)
        runner.settle()
        with pytest.raises(ZeroDivisionError) as caught:
            run.result()
    assert seen == [caught.value]


def test_a_failing_exit_fails_the_task() -> None:
    class Resource:
        def close(self) -> None:
            raise OSError("not committed")

    with pytest.raises(OSError, match="not committed"):
        finished(lambda row, resource: row, [Rows([0])], setup=Resource)


# ---------------------------------------------------------------------------------------------------- async functions
def async_results(call: Any, setup: Any) -> list[Any]:
    return results(call, batches(range(10), 5), workers=4, setup=setup, is_async=True)


async def setup_in_the_loop() -> Any:
    return [asyncio.get_running_loop()]  # the loop itself would be closed at the end


def plain_setup_in_the_loop() -> Any:
    return [asyncio.get_running_loop()]


@pytest.mark.parametrize("setup", [setup_in_the_loop, plain_setup_in_the_loop])
def test_an_async_function_has_one_resource_made_inside_its_loop(setup: Any) -> None:
    async def call(row: int, resource: Any) -> tuple[int, bool]:
        return id(resource), asyncio.get_running_loop() is resource[0]

    ((_, inside),) = set(async_results(call, setup))
    assert inside


@pytest.mark.parametrize("kind", ["plain", "async", "awaited"])
def test_context_managers_of_an_async_function_are_entered_and_exited(kind: str) -> None:
    events: list[str] = []

    @contextmanager
    def plain() -> Any:
        events.append("enter")
        yield "entered"
        events.append("exit")

    @asynccontextmanager
    async def manager() -> Any:
        await asyncio.sleep(0)
        with plain() as entered:
            yield entered
            await asyncio.sleep(0)

    async def awaited() -> Any:
        return manager()

    async def call(row: int, resource: str) -> str:
        return resource

    assert async_results(call, {"plain": plain, "async": manager, "awaited": awaited}[kind]) == ["entered"] * 10
    assert events == ["enter", "exit"]


def test_aclose_comes_before_close() -> None:
    events: list[str] = []

    class Both:
        async def aclose(self) -> None:
            await asyncio.sleep(0)
            events.append("aclose")

        def close(self) -> None:
            events.append("close")

    class Plain:
        def close(self) -> None:
            events.append("close")

    async def call(row: int, resource: Any) -> int:
        return row

    async_results(call, Both)
    assert events == ["aclose"]
    async_results(call, Plain)
    assert events == ["aclose", "close"]
