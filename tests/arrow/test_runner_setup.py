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


def test_no_setup_for_an_empty_partition() -> None:
    def setup() -> None:
        raise AssertionError("called")

    assert finished(lambda row, resource: row, [], setup=setup) == []
    assert finished(lambda row, resource: row, [Rows([]), Rows([])], setup=setup) == []


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


def test_a_resource_with_nothing_to_close_is_handed_over() -> None:
    assert results(lambda row, resource: resource, [Rows([0])], setup=lambda: 42) == [42]
    assert results(lambda row, resource: resource, [Rows([0])], setup=lambda: None) == [None]


def test_exit_sees_the_failure_of_the_task() -> None:
    seen: list[Any] = []

    class Resource:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: Any) -> bool:
            seen.append(error[1])
            return True  # must not hide the failure

    with pytest.raises(ZeroDivisionError) as caught:
        finished(lambda row, resource: 1 // row, [Rows([0])], workers=1, setup=Resource)
    assert seen == [caught.value]


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


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failing_setup_fails_the_task(is_async: bool) -> None:
    def setup() -> None:
        raise OSError("no connection")

    async def call(row: int, resource: Any) -> int:
        return row

    with pytest.raises(OSError, match="no connection"):
        finished(call, batches(range(100), 10), setup=setup, is_async=is_async, errors="return")


def test_a_failing_exit_fails_the_task() -> None:
    class Resource:
        def close(self) -> None:
            raise OSError("not committed")

    with pytest.raises(OSError, match="not committed"):
        finished(lambda row, resource: row, [Rows([0])], setup=Resource)


# ---------------------------------------------------------------------------------------------------- async functions
def async_results(call: Any, setup: Any) -> list[Any]:
    return results(call, batches(range(10), 5), workers=4, setup=setup, is_async=True)


def test_an_async_function_has_one_resource_made_inside_its_loop() -> None:
    loops: list[Any] = []

    async def setup() -> str:
        loops.append(asyncio.get_running_loop())
        return "made"

    async def call(row: int, resource: str) -> Any:
        return resource, asyncio.get_running_loop() is loops[0]

    assert async_results(call, setup) == [("made", True)] * 10
    assert len(loops) == 1


def test_a_plain_setup_of_an_async_function_runs_inside_the_loop_too() -> None:
    def setup() -> Any:
        return [asyncio.get_running_loop()]  # the loop itself would be closed at the end

    async def call(row: int, resource: Any) -> bool:
        return asyncio.get_running_loop() is resource[0]

    assert async_results(call, setup) == [True] * 10


@pytest.mark.parametrize("awaited", [False, True])
def test_async_context_managers_are_entered_and_exited(awaited: bool) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def manager() -> Any:
        events.append("enter")
        await asyncio.sleep(0)
        yield "entered"
        await asyncio.sleep(0)
        events.append("exit")

    async def setup() -> Any:
        return manager()

    async def call(row: int, resource: str) -> str:
        return resource

    assert async_results(call, setup if awaited else manager) == ["entered"] * 10
    assert events == ["enter", "exit"]


def test_plain_context_managers_of_an_async_function() -> None:
    events: list[str] = []

    @contextmanager
    def setup() -> Any:
        events.append("enter")
        yield "entered"
        events.append("exit")

    async def call(row: int, resource: str) -> str:
        return resource

    assert async_results(call, setup) == ["entered"] * 10
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
