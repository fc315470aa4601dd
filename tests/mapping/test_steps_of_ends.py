"""Each step of the end of a map does what it is there for: after an interruption, beside another thread, or where no
worker runs."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.threads import DEADLINE, Threads, wait_until

from manytail import Breaker, BreakerOpen, Concurrency, Shared, aconcurrent_map, concurrent_map
from manytail._queue import start_thread
from manytail.mapping import _loop_runner, _map, _threads, _workers

pytestmark = pytest.mark.thread_unsafe(reason="counts the threads of the process, or changes modules")


def threads_of_maps() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("manytail-") and one.ident is not None]


@pytest.fixture(autouse=True)
def _none_stays() -> Iterator[None]:
    wait_until(lambda: not threads_of_maps(), "threads of another test")
    yield
    gc.collect()
    wait_until(lambda: not threads_of_maps(), "threads of maps that have ended")


@pytest.fixture
def interrupted_starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of threads whose next start is interrupted before it begins."""
    names: list[str] = []

    def start(method: Any) -> None:
        thread = method.__self__
        if thread.name in names:
            names.remove(thread.name)
            raise KeyboardInterrupt
        start_thread(method)

    monkeypatch.setattr(_threads, "start_thread", start)
    return names


class Blocking:
    """A function whose calls wait until `over` is set."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.over = threading.Event()

    def __call__(self, item: int, **resource: Any) -> int:
        self.begun.release()
        assert self.over.wait(DEADLINE)
        return item


def test_what_failed_without_a_call_is_told_after_a_stop_too() -> None:
    """The breaker opens and the map is stopped before the user's `fatal` was asked. It is not asked after the stop."""

    def fail(item: int) -> None:
        fn(item)
        raise ValueError(item)

    def stop() -> None:
        fn.over.set()
        wait_until(lambda: runner._events, "the failure to be reported")
        runner._handle()
        results.stop()

    asked: list[BaseException] = []
    fn = Blocking()
    results: Any = concurrent_map(
        fail, range(4), workers=1, key=lambda item: 0, breaker=Breaker(1, reset=600, when_open="fail"),
        errors="return", fatal=lambda error: bool(asked.append(error)),
    )  # fmt: skip
    runner = results._runner
    results._start()
    assert fn.begun.acquire(timeout=DEADLINE)
    runner.locked(stop)
    assert [type(one.error) for one in results] == [ValueError, BreakerOpen, BreakerOpen, BreakerOpen]
    assert [type(one) for one in asked] == [ValueError]
    assert results.stats().failed == 4


def test_a_stopped_map_gives_back_at_once_what_calls_that_have_not_begun_hold() -> None:
    slots, setting_up = Concurrency(1), Blocking()
    options: dict[str, Any] = {"workers": 1, "limits": slots}
    results = concurrent_map(lambda item, resource: item, range(3), setup=lambda: setting_up(0), **options)
    with Threads() as threads:
        taking = threads.start(list, results)
        assert setting_up.begun.acquire(timeout=DEADLINE)  # the first call has the slot, and no worker has taken it
        results.stop()
        assert list(concurrent_map(abs, range(3), **options)) == [0, 1, 2]
        setting_up.over.set()
        assert taking.result() == []


def test_an_interrupted_step_of_the_end_is_taken_up_by_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    fn = Blocking()
    results = concurrent_map(fn, range(9), workers=2)
    results._start()
    assert all(fn.begun.acquire(timeout=DEADLINE) for _ in range(2))
    runner: Any = results._runner

    class Queue:
        def shutdown(self, immediate: bool) -> None:
            monkeypatch.undo()
            raise MemoryError

    monkeypatch.setattr(runner.scheduler, "ready", Queue())
    with pytest.raises(MemoryError):
        results.stop()
    runner.locked(runner.go_on)
    assert runner.stopping
    assert runner.scheduler.ready.is_shutdown
    fn.over.set()
    assert list(results) == [0, 1]


def test_a_dropped_map_without_workers_has_no_timer(tmp_path: Path) -> None:
    """All results are recorded: no call is made."""
    options: dict[str, Any] = {"workers": 2, "remember": Shared(tmp_path / "run.db", "all"), "deadline": 600}
    assert list(concurrent_map(abs, range(100), **options)) == [*range(100)]
    results = concurrent_map(abs, range(100), **options)
    assert next(results) == 0
    assert "manytail-timer" in threads_of_maps()
    assert not any("worker" in name for name in threads_of_maps())
    del results
    gc.collect()
    wait_until(lambda: not threads_of_maps())


def test_no_call_starts_after_stop_whoever_holds_the_lock() -> None:
    def stop() -> bool:
        results.stop()
        return runner.scheduler.halted

    results = concurrent_map(abs, range(9))
    runner = results._runner
    assert runner.locked(stop)
    results.close()


def test_a_stop_does_not_take_back_the_cancellation_of_a_close() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def fn(item: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def stop_twice() -> None:
        runner.stop(cancel=True)
        results.stop()

    results = concurrent_map(fn, [1])
    runner = results._runner
    results._start()
    assert begun.wait(DEADLINE)
    runner.locked(stop_twice)  # both are handled together
    assert ended.wait(DEADLINE)
    results.close()


class Large:
    def call(self) -> None:
        raise AssertionError("its thread never begins")


def test_a_thread_whose_start_was_interrupted_keeps_nothing_alive(interrupted_starts: list[str]) -> None:
    large = Large()
    thread = _threads.Thread(large.call, "interrupted")
    interrupted_starts.append("interrupted")
    with pytest.raises(KeyboardInterrupt):
        thread.start()
    freed = weakref.ref(large)
    del large
    assert freed() is None
    thread.join()


def test_a_timer_whose_start_was_interrupted_is_started_by_the_end(interrupted_starts: list[str]) -> None:
    """The consumer handles the start of the call, and is interrupted. close() waits for the call, which never returns,
    no longer than its timeout."""

    def read_and_wait_for_the_call() -> None:
        runner.go_on()
        assert fn.begun.acquire(timeout=DEADLINE)

    fn = Blocking()
    results = concurrent_map(fn, [1], timeout=0.01)
    runner = results._runner
    runner.source = _map.Source(results._plan, runner, [1])
    interrupted_starts.append("manytail-timer")
    with pytest.raises(KeyboardInterrupt):
        runner.locked(read_and_wait_for_the_call)
    results.close()
    fn.over.set()


def test_a_loop_whose_thread_never_began_holds_up_no_timer(interrupted_starts: list[str]) -> None:
    async def fn(item: int) -> None:
        raise AssertionError("its loop never begins")

    results = concurrent_map(fn, [1, 2], deadline=600)
    interrupted_starts.append("manytail-loop")
    with pytest.raises(KeyboardInterrupt):
        next(results)
    wait_until(lambda: not threads_of_maps())


def test_aclose_goes_on_where_its_stop_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_and_be_interrupted(runner: Any, cancel: bool) -> None:
        called.append(cancel)
        if len(called) == 1:
            raise KeyboardInterrupt
        stop(runner, cancel)

    async def main() -> None:
        begun = asyncio.Event()

        async def fn(item: int) -> int:
            if item:
                begun.set()
                await asyncio.Event().wait()
            return item

        results = aconcurrent_map(fn, [0, 1], workers=2)
        assert await anext(results) == 0
        await begun.wait()
        monkeypatch.setattr(_loop_runner.LoopRunner, "stop", stop_and_be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            await results.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    called: list[bool] = []
    stop = _loop_runner.LoopRunner.stop
    asyncio.run(main())
    assert called == [True, True]


class Resource:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_an_abandoned_call_that_outlives_its_map_does_not_close_its_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its map has ended: what the resource needs may be gone."""
    monkeypatch.setattr(_workers, "JOIN_TIMEOUT", 0.01)
    made: list[Resource] = []

    def setup() -> Resource:
        made.append(Resource())
        return made[-1]

    fn: Callable[..., int] = Blocking()
    with pytest.raises(TimeoutError):
        list(concurrent_map(fn, [1], setup=setup, timeout=0.01))
    fn.over.set()  # type: ignore[attr-defined]
    wait_until(lambda: not threads_of_maps())
    assert made[0].closed == 0
    assert all(one.closed == 1 for one in made[1:])
