"""Maps whose input and output come in batches: back-pressure, and when output batches come."""

import asyncio
import time

import pytest
from support.scheduling import BatchMap, Run, Script, Source, batches, results
from support.threads import wait_until

from manytail.mapping import frames


# ----------------------------------------------------------------------------------------------- workers and the window
@pytest.mark.parametrize("size", [1, 10, 100])
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
    output = BatchMap(lambda row: row, workers=2, max_in_flight=8, batch_rows=5).run(iter(source))
    first = [call.result for call in next(output)]
    # One batch was returned, another one fills up, and max_in_flight rows are behind it. Then nothing moves until it is
    # taken.
    wait_until(lambda: source.rows == len(first) + 5 + 8)
    rest = [call.result for calls in output for call in calls]
    assert first + rest == list(range(100))


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


# -------------------------------------------------------------------------------------------------- output batches


def test_an_output_batch_waits_for_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert frames.FLUSH_INTERVAL == 1.0
    monkeypatch.setattr(frames, "FLUSH_INTERVAL", 0.1)
    script = Script(0)
    begin = time.monotonic()
    with Run(script, batches(range(2), 2), workers=2, batch_rows=10) as run:
        assert run.wait_values(1) == [0]  # while row 1 still runs
        assert time.monotonic() - begin >= 0.1
        script.let_go(1)
        assert run.result() == [0, 1]


def test_an_output_batch_does_not_wait_when_nothing_else_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FLUSH_INTERVAL", 1e6)
    source = Source(batches(range(2), 1), hold_before=1)
    with Run(lambda row: row, source, batch_rows=10) as run:
        run.wait_values(1)
        source.go_on.set()
        run.result()
    assert [len(output) for output in run.outputs] == [1, 1]


def test_small_input_batches_do_not_make_small_output_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that has more rows in a moment must not cause batches of one row."""
    monkeypatch.setattr(frames, "FLUSH_INTERVAL", 1e6)
    monkeypatch.setattr(frames, "IDLE_GRACE", 1e6)  # the machine may need longer than the usual time
    outputs = list(BatchMap(lambda row: row, batch_rows=1_000).run(iter(batches(range(1_000), 1))))
    assert [len(output) for output in outputs] == [1_000]


def test_a_row_that_finishes_while_others_are_handled_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 2 finishes when the worker of row 1 has handled all events and still holds the lock. No other thread would
    look for a long time."""
    monkeypatch.setattr(frames, "FLUSH_INTERVAL", 1e6)
    monkeypatch.setattr(frames, "IDLE_GRACE", 1e6)
    script = Script()
    with Run(script, batches(range(3), 3), workers=3, order="completion") as run:
        script.wait_started(3)
        runner = run.output._runner
        handle = runner._handle

        def handle_and_wait() -> None:
            handle()
            if script.running == [2]:
                script.let_go(2)
                # Row 2's worker has tried the lock, which was held.
                wait_until(lambda: runner.scheduler.ready.stats().getters_waiting == 2)

        script.let_go(0)
        changed, scheduler = runner.output_changed, runner.scheduler
        wait_until(lambda: scheduler.ended and len(scheduler.output) == 1 and not changed.is_set())
        monkeypatch.setattr(runner, "_handle", handle_and_wait)
        script.let_go(1)
        assert run.result() == [0, 1, 2]


def test_the_reader_is_asked_as_soon_as_the_window_has_a_free_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer waits for a full output batch."""
    monkeypatch.setattr(frames, "FLUSH_INTERVAL", 1e6)
    source, script = Source(batches(range(200), 1)), Script()
    with Run(script, source, workers=1, max_in_flight=40) as run:
        for done in range(20):
            wait_until(lambda done=done: source.rows == 40 + done)
            script.wait_started(done + 1)
            script.let_go(done)
        script.let_all_go()
        assert run.result() == list(range(200))


# -------------------------------------------------------------------------------------------------- coroutines
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
