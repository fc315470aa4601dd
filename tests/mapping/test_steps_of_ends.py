"""Each step of the end of a map does what it is there for: after an interruption, beside another thread, or where no
worker runs."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.maps import Gate, endless, threads_of_maps
from support.threads import DEADLINE, Threads, wait_until

from manytail import Breaker, BreakerOpen, Concurrency, Shared, aconcurrent_map, concurrent_map
from manytail._sync import start_thread
from manytail.mapping import _loop_runner, _map, _thread_runner, _threads, _workers

pytestmark = [
    pytest.mark.thread_unsafe(reason="counts the threads of the process, or changes modules"),
    pytest.mark.usefixtures("no_thread_stays"),
]


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


def test_what_failed_without_a_call_is_told_after_a_stop_too() -> None:
    """The breaker opens and the map is stopped before the user's `fatal` was asked. It is not asked after the stop."""

    def fail(item: int) -> None:
        gate(item)
        raise ValueError(item)

    def stop() -> None:
        gate.opened.set()
        wait_until(lambda: runner._events, "the failure to be reported")
        runner._handle()
        results.stop()

    asked: list[BaseException] = []
    gate = Gate()
    results: Any = concurrent_map(
        fail, range(4), workers=1, key=lambda item: 0, breaker=Breaker(1, reset=600, when_open="fail"),
        errors="return", fatal=lambda error: bool(asked.append(error)),
    )  # fmt: skip
    runner = results._runner
    results._start()
    gate.wait_for(0)
    runner.locked(stop)
    assert [type(one.error) for one in results] == [ValueError, BreakerOpen, BreakerOpen, BreakerOpen]
    assert [type(one) for one in asked] == [ValueError]
    assert results.stats().failed == 4


def test_a_stopped_map_gives_back_at_once_what_calls_that_have_not_begun_hold() -> None:
    setting_up = Gate()
    options: dict[str, Any] = {"workers": 1, "limits": Concurrency(1)}
    results = concurrent_map(lambda item, resource: item, range(3), setup=lambda: setting_up("setup"), **options)
    with Threads() as threads:
        taking = threads.start(list, results)
        setting_up.wait_for("setup")  # the first call has the slot, and no worker has taken it
        results.stop()
        assert list(concurrent_map(abs, range(3), **options)) == [0, 1, 2]
        setting_up.opened.set()
        assert taking.result() == []


def test_an_interrupted_step_of_the_end_is_taken_up_by_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    results = concurrent_map(gate, range(9), workers=2)
    results._start()
    gate.wait_for(0, 1)
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
    gate.opened.set()
    assert list(results) == [0, 1]


def test_a_dropped_map_without_workers_has_no_timer(tmp_path: Path) -> None:
    """All results are recorded: no call is made."""
    options: dict[str, Any] = {"workers": 2, "remember": Shared(tmp_path / "run.db", "all"), "deadline": 600}
    assert list(concurrent_map(abs, range(100), **options)) == [*range(100)]
    results = concurrent_map(abs, range(100), **options)
    assert next(results) == 0
    assert {"manytail-timer"} <= set(threads_of_maps()) <= {"manytail-timer", "manytail-reader", "manytail-shared"}
    del results
    gc.collect()
    wait_until(lambda: not threads_of_maps())


def test_stop_halts_the_map_at_once_whoever_holds_the_lock() -> None:
    """A worker that sees the map halted begins no call."""

    def stop() -> bool:
        results.stop()
        return runner.scheduler.halted

    results = concurrent_map(abs, range(9))
    runner = results._runner
    assert runner.locked(stop)
    results.close()


def test_a_stop_does_not_take_back_the_cancellation_of_a_close() -> None:
    def stop_twice() -> None:
        runner.stop(cancel=True)
        results.stop()

    fn, begun, ended = endless()
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
        gate.wait_for(1)

    gate = Gate()
    results = concurrent_map(gate, [1], timeout=0.01)
    runner = results._runner
    runner.source = _map.Source(results._plan, runner, [1])
    interrupted_starts.append("manytail-timer")
    with pytest.raises(KeyboardInterrupt):
        runner.locked(read_and_wait_for_the_call)
    results.close()
    gate.opened.set()


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


def test_an_abandoned_call_that_outlives_its_map_is_logged_and_does_not_close_its_resource(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its map has ended: what the resource needs may be gone."""

    class Resource:
        def __init__(self) -> None:
            made.append(self)
            self.closed = 0

        def close(self) -> None:
            self.closed += 1

    monkeypatch.setattr(_workers, "JOIN_TIMEOUT", 0.01)
    made: list[Resource] = []
    gate = Gate()
    with pytest.raises(TimeoutError):
        list(concurrent_map(lambda item, resource: gate(item), [1], setup=Resource, timeout=0.01))
    (left,) = [thread for thread in threading.enumerate() if thread.name.startswith("manytail-")]
    assert left.daemon
    assert caplog.messages == [f"1 calls that ran out of time are still running: {left.name}"]
    gate.opened.set()
    wait_until(lambda: not threads_of_maps())
    assert made[0].closed == 0
    assert all(one.closed == 1 for one in made[1:])


def test_an_input_that_hangs_does_not_keep_a_failed_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a moment to end, once."""
    waits: list[float | None] = []

    class Watched(_threads.Thread):
        def join(self, timeout: float | None = None) -> None:
            if self.name == "manytail-reader":
                waits.append(timeout)
            super().join(timeout)

    monkeypatch.setattr(_thread_runner, "Thread", Watched)
    asked, go_on = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield 0
        asked.set()
        assert go_on.wait(DEADLINE)

    def fn(item: int) -> None:
        assert asked.wait(DEADLINE)
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"), concurrent_map(fn, items(), workers=1) as results:
        list(results)
    assert waits == [_thread_runner.INPUT_TIMEOUT]
    go_on.set()
