"""The thread runner as a map over Arrow batches uses it: rows, output batches, and what is left at the end.

tests/simulation checks what the scheduler decides: order, keys, priorities, retries, timeouts, the window's size.
These tests cover the threads that carry it out, back-pressure, and the output batches.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.maps import threads_of_maps
from support.scheduling import Clocked, Rows, Run, Script, Source, batch_map, batches, finished, results
from support.threads import Threads, wait_until

from manytail import Retry
from manytail.arrow import _map
from manytail.mapping import _thread_runner

LONG = 3_600


# ----------------------------------------------------------------------------------------------- workers and the window
def test_all_workers_have_work_when_the_window_is_just_as_large() -> None:
    script = Script()
    with Run(script, batches(range(50), 50), workers=5, max_in_flight=5, order="completion") as run:
        for first in range(0, 50, 5):
            script.wait(lambda first=first: len(script.started) == first + 5)
            script.let_go(*script.running)
        run.result()
    assert script.peak == 5


@pytest.mark.parametrize("size", [1, 10, 64, 100])
def test_backpressure_at_the_source(size: int) -> None:
    """Before the first row is emitted, at most max_in_flight rows and the rest of one batch have been read."""
    source = Source(batches(range(1_000), size))
    script = Script(*range(1, 1_000))
    with Run(script, source, workers=8, max_in_flight=64, order="input") as run:
        script.wait(lambda: len(script.started) == 64 and script.running == [0])
        assert 64 <= source.rows < 64 + size
        assert run.outputs == []
        script.let_go(0)
        assert run.result() == list(range(1_000))


def test_rows_in_flight_wait_while_the_output_is_not_taken() -> None:
    """One full output batch is held. Finished rows behind it stay in flight, and the source is not asked for more."""
    source = Source(batches(range(100), 1))
    output = batch_map(lambda row: row, workers=2, max_in_flight=8, batch_rows=5).run(iter(source))
    first = [call.result for call in next(output)]
    # One batch was returned, another one fills up, and max_in_flight rows are behind it. Then nothing moves until it is
    # taken.
    wait_until(lambda: source.rows == len(first) + 5 + 8)
    rest = [call.result for calls in output for call in calls]
    assert first + rest == list(range(100))


def test_a_slow_row_at_the_head_of_the_order_stops_no_worker() -> None:
    script = Script(*range(1, 1_000))
    with Run(script, batches(range(1_000), 100), workers=4, max_in_flight=None, order="input") as run:
        script.wait(lambda: len(script.started) == 1_000 and script.running == [0])
        assert run.outputs == []
        script.let_go(0)
        assert run.result() == list(range(1_000))
    assert run.batch_map.scheduler.window == 1_024


def test_a_busy_key_stops_no_other() -> None:
    """Key "a" has one slot and a row that hangs; the window fills with its rows, and grows until b's rows are found."""
    script = Script(*range(1, 201))
    rows = Rows(range(201), key=lambda row: "b" if row == 200 else "a")
    with Run(script, [rows], workers=2, max_in_flight=None, order="completion", per_key=1) as run:
        script.wait(lambda: 200 in script.started)
        assert script.started == [0, 200]
        script.let_go(0)
        assert sorted(run.result()) == list(range(201))


def test_a_consumer_that_takes_nothing_does_not_make_it_grow() -> None:
    source = Source(batches(range(1_000), 1))
    output = batch_map(lambda row: row, workers=2, max_in_flight=None, batch_rows=5).run(iter(source))
    first = [call.result for call in next(output)]
    wait_until(lambda: source.rows == len(first) + 5 + 8)  # one output batch, and the window of 4 x workers behind it
    assert first + [call.result for calls in output for call in calls] == list(range(1_000))


@pytest.mark.parametrize("of", ["rows", "results"])
def test_it_does_not_grow_beyond_256_mb(of: str) -> None:
    size = (1 << 20) - 64  # of a row or result, and 16 for the other
    script = Script(*range(1, 1_000))
    source = Source(batches(range(1_000), 1, row_bytes=float(size) if of == "rows" else 8.0))
    result = b"" if of == "rows" else bytes(size)  # one object for all rows, but counted for each

    def fn(row: int) -> bytes:
        script(row)
        return result

    with Run(fn, source, workers=4, max_in_flight=None, order="input") as run:
        script.wait(lambda: len(script.started) == 256 and script.running == [0])
        assert source.rows == 256
        script.let_go(0)
        assert len(run.result()) == 1_000


def test_many_keys_come_and_go() -> None:
    """Ten thousand keys, each seen twice far apart: lanes are dropped and made again, and no row is lost."""
    rows = [(number % 10_000, number) for number in range(20_000)]
    run = batch_map(lambda row: row, workers=8, order="key", per_key=1)
    out = [call.result for calls in run.run(iter(batches(rows, 1_000, key=lambda row: row[0]))) for call in calls]
    assert sorted(out) == sorted(rows)
    assert len(run.scheduler.admission._lanes) <= 4_096 + 1


# -------------------------------------------------------------------------------------------------- output batches
def test_output_batches_have_at_most_batch_rows() -> None:
    outputs = [len(calls) for calls in batch_map(lambda row: row, batch_rows=7).run(iter(batches(range(100), 50)))]
    assert sum(outputs) == 100
    assert max(outputs) == 7
    assert outputs.count(7) >= 13


def test_an_output_batch_waits_for_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _map.FLUSH_INTERVAL == 1.0
    monkeypatch.setattr(_map, "FLUSH_INTERVAL", 0.1)
    script = Script(0)
    begin = time.monotonic()
    with Run(script, batches(range(2), 2), workers=2, batch_rows=10) as run:
        assert run.wait_values(1) == [0]  # while row 1 still runs
        assert time.monotonic() - begin >= 0.1
        script.let_go(1)
        assert run.result() == [0, 1]


def test_an_output_batch_does_not_wait_when_nothing_else_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_map, "FLUSH_INTERVAL", 1e6)
    source = Source(batches(range(2), 1), hold_before=1)
    with Run(lambda row: row, source, batch_rows=10) as run:
        run.wait_values(1)
        source.go_on.set()
        run.result()
    assert [len(output) for output in run.outputs] == [1, 1]


def test_small_input_batches_do_not_make_small_output_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that has more rows in a moment must not cause batches of one row."""
    monkeypatch.setattr(_map, "FLUSH_INTERVAL", 1e6)
    monkeypatch.setattr(_map, "IDLE_GRACE", 1e6)  # the machine may need longer than the usual time
    outputs = list(batch_map(lambda row: row, batch_rows=1_000).run(iter(batches(range(1_000), 1))))
    assert [len(output) for output in outputs] == [1_000]


def test_empty_input_and_empty_batches() -> None:
    assert results(lambda row: row, []) == []
    assert results(lambda row: row, [Rows([]), Rows([1]), Rows([]), Rows([2, 3]), Rows([])]) == [1, 2, 3]


# -------------------------------------------------------------------------------------------------- failures
class Flaky:
    """Fails the first calls of each row, as many as `failures`."""

    def __init__(self, failures: int, error: Callable[[Any], BaseException] = ValueError) -> None:
        self.calls: Counter[Any] = Counter()
        self._failures = failures
        self._error = error

    def __call__(self, row: Any) -> Any:
        self.calls[row] += 1
        if self.calls[row] <= self._failures:
            raise self._error(row)
        return row


def test_a_row_that_waits_for_its_retry_holds_no_worker() -> None:
    fn = Flaky(1, lambda row: ValueError(row))
    script = Script(*range(20))

    def both(row: int) -> int:
        return fn(row) if row == 0 else script(row)

    with Clocked(
        both,
        batches(range(10), 10),
        workers=1,
        retry=Retry(1, backoff=60),
        order="completion",
        max_in_flight=10,
        batch_rows=1,
    ) as run:
        assert run.wait_values(9) == list(range(1, 10))
        run.pass_an_hour()
        assert run.result()[-1] == 0


def test_drop_leaves_failed_rows_out_and_counts_them() -> None:
    run = batch_map(lambda row: 1 // (row % 3) and row, errors="drop", order="input")
    out = [call.result for calls in run.run(iter(batches(range(90), 8))) for call in calls]
    assert out == [1 // (row % 3) and row for row in range(90) if row % 3]
    assert run.scheduler.dropped == 30


def test_all_rows_dropped() -> None:
    assert finished(Flaky(9), batches(range(500), 50), errors="drop", max_in_flight=8) == []


def test_raise_fails_with_the_functions_exception_and_a_note() -> None:
    error = KeyError("gone")

    def fail(row: int) -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        finished(fail, [Rows(["here"], key=lambda row: row)], retry=Retry(2, backoff=0))
    assert caught.value is error
    assert caught.value.__notes__ == ["manytail: the row with key 'here' failed after 3 attempts"]


def test_raise_starts_no_further_call_and_waits_for_running_ones() -> None:
    script = Script()

    def call(row: int) -> int:
        if script(row) == 1:
            raise ValueError(row)
        return row

    with Run(call, batches(range(100), 100), workers=3, max_in_flight=100) as run:
        script.wait(lambda: sorted(script.running) == [0, 1, 2])
        script.let_go(1)
        wait_until(lambda: run.batch_map.runner.stopping)
        assert run.task.is_alive()  # 0 and 2 still run
        script.let_all_go()
        error = run.task.outcome()
    assert isinstance(error, ValueError)
    assert sorted(script.started) == [0, 1, 2]


def test_a_failing_source_fails_the_task() -> None:
    def source() -> Iterator[Rows]:
        yield Rows([1, 2])
        raise OSError("the input broke")

    with pytest.raises(OSError, match="the input broke"):
        finished(lambda row: row, source())
    assert threads_of_maps() == []


# -------------------------------------------------------------------------------------------------- the end
def test_no_thread_is_left() -> None:
    finished(lambda row: row, batches(range(100), 10), timeout=50, retry=Retry(1))
    assert threads_of_maps() == []


def test_no_thread_is_left_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError):
        finished(lambda row: 1 // (row - 50), batches(range(100), 10), timeout=50)
    assert threads_of_maps() == []


def test_closing_the_generator_waits_for_running_calls_and_reads_no_further() -> None:
    source = Source(batches(range(100), 1))
    script = Script(*range(4))
    output = batch_map(script, workers=4, max_in_flight=8, batch_rows=4).run(iter(source))
    assert [call.result for call in next(output)] == [0, 1, 2, 3]
    script.wait_started(8)
    with Threads() as threads:
        closing = threads.start(output.close)
        script.let_all_go()
        closing.result()
    assert threads_of_maps() == []
    assert script.running == []
    read = source.rows
    assert read <= 4 + 8 + 4 + 1
    assert len(script.started) <= read


def test_a_source_that_hangs_does_not_keep_a_failed_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread_runner, "JOIN_TIMEOUT", 0.05)
    source = Source(batches(range(2), 1), hold_before=1)

    def fail(row: int) -> None:
        source.asked.wait()
        raise ValueError(row)

    with Run(fail, source, workers=1, max_in_flight=2) as run:
        assert isinstance(run.task.outcome(), ValueError)
        source.go_on.set()
    wait_until(lambda: threads_of_maps() == [])


def test_results_do_not_keep_rows_alive() -> None:
    """An idle worker keeps neither its last row nor its result alive."""
    import weakref

    class Value:
        pass

    seen: list[Any] = []

    def fn(row: int) -> Value:
        value = Value()
        seen.append(weakref.ref(value))
        return value

    source = Source(batches(range(2), 1), hold_before=1)
    with Run(fn, source, workers=1, batch_rows=1) as run:
        run.wait_values(1)
        source.asked.wait()
        run.outputs.clear()
        wait_until(lambda: seen[0]() is None)
        source.go_on.set()
        run.result()


def test_a_row_that_finishes_while_others_are_handled_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 2 finishes when the worker of row 1 has handled all events and still holds the lock. No other thread would
    look for a long time."""
    monkeypatch.setattr(_map, "FLUSH_INTERVAL", 1e6)
    monkeypatch.setattr(_map, "IDLE_GRACE", 1e6)
    script = Script()
    with Run(script, batches(range(3), 3), workers=3, order="completion") as run:
        runner, handle = run.batch_map.runner, run.batch_map.runner._handle

        def handle_and_wait() -> None:
            handle()
            if script.running == [2]:
                script.let_go(2)
                # Row 2's worker has tried the lock, which was held.
                wait_until(lambda: runner.scheduler.ready.stats().getters_waiting == 2)

        script.wait_started(3)
        script.let_go(0)
        changed, scheduler = runner.output_changed, runner.scheduler
        wait_until(lambda: scheduler.ended and len(scheduler.output) == 1 and not changed.is_set())
        monkeypatch.setattr(runner, "_handle", handle_and_wait)
        script.let_go(1)
        assert run.result() == [0, 1, 2]


def test_the_reader_is_asked_as_soon_as_the_window_has_a_free_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer waits for a full output batch."""
    monkeypatch.setattr(_map, "FLUSH_INTERVAL", 1e6)
    source, script = Source(batches(range(200), 1)), Script()
    with Run(script, source, workers=1, max_in_flight=40) as run:
        for done in range(20):
            wait_until(lambda done=done: source.rows == 40 + done)
            script.wait_started(done + 1)
            script.let_go(done)
        script.let_all_go()
        assert run.result() == list(range(200))


def test_every_row_comes_out_once_under_load() -> None:
    out = results(
        lambda row: row, batches(range(20_000), 333), workers=16, max_in_flight=64, order="completion", batch_rows=1_000
    )
    assert sorted(out) == list(range(20_000))


# -------------------------------------------------------------------------------------------------- coroutines
def test_at_most_workers_coroutines_are_open_and_they_overlap() -> None:
    running = peak = 0
    all_there: Any = None

    async def call(row: int) -> int:
        nonlocal running, peak, all_there
        all_there = all_there or asyncio.Event()
        running += 1
        peak = max(peak, running)
        if running == 5:
            all_there.set()
        await all_there.wait()
        running -= 1
        return row

    assert results(call, batches(range(50), 10), workers=5, is_async=True) == list(range(50))
    assert peak == 5


def test_all_coroutines_run_in_one_thread_with_one_loop() -> None:
    async def call(row: int) -> Any:
        return threading.current_thread(), asyncio.get_running_loop()

    assert len(set(results(call, batches(range(50), 10), is_async=True))) == 1


def test_coroutines_that_never_wait_let_others_go_on() -> None:
    """Row 0 waits on its loop three times. It must continue while thousands of rows that never wait are called."""
    seen: list[int] = []

    async def call(row: int) -> int:
        if row == 0:
            for _ in range(3):
                await asyncio.sleep(0)
        seen.append(row)
        return row

    out = results(call, batches(range(5_000), 5_000), workers=2, max_in_flight=5_000, is_async=True)
    assert out == list(range(5_000))
    assert seen.index(0) < 100


@pytest.mark.parametrize("way", ["swallows", "raises another"])
def test_a_coroutine_that_takes_its_cancellation_otherwise_has_timed_out_too(way: str) -> None:
    async def call(row: int) -> str:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            if way == "raises another":
                raise ValueError("interrupted") from None
        return "late"

    calls = finished(call, [Rows([0])], timeout=0.05, errors="return", is_async=True)
    assert calls[0].result is None
    assert calls[0].error is not None
    assert calls[0].error.type == "TimeoutError"


def test_raise_waits_for_open_coroutines() -> None:
    ended: list[int] = []
    state: dict[str, Any] = {}

    async def call(row: int) -> int:
        event = state.setdefault("failing", asyncio.Event())
        if row == 2:
            event.set()
            raise ValueError("row 2")
        await event.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        ended.append(row)
        return row

    with pytest.raises(ValueError, match="row 2"):
        finished(call, batches(range(50), 50), workers=3, max_in_flight=50, is_async=True)
    assert sorted(ended) == [0, 1]


def test_no_thread_of_a_loop_is_left() -> None:
    async def call(row: int) -> int:
        return row

    output = batch_map(call, is_async=True, batch_rows=2).run(iter(batches(range(100), 10)))
    next(output)
    output.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("manytail-")]
