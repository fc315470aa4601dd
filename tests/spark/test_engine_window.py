"""The automatic window: it grows when rows that wait for others leave workers without work, and for no other reason."""

import pytest
from support.scheduling import Rows, Run, Script, Source, batches, engine
from support.threads import wait_until


def test_it_starts_at_four_times_workers() -> None:
    assert engine(lambda row: row, workers=5, max_in_flight=0).scheduler.window == 20


def test_a_slow_row_at_the_head_of_the_order_stops_no_worker() -> None:
    script = Script(*range(1, 1_000))
    with Run(script, batches(range(1_000), 100), workers=4, max_in_flight=0, order="input") as run:
        script.wait(lambda: len(script.started) == 1_000 and script.running == [0])
        assert run.outputs == []
        script.let_go(0)
        assert run.result() == list(range(1_000))
    assert run.engine.scheduler.window == 1_024


def test_a_busy_key_stops_no_other() -> None:
    """Key "a" has one slot and a row that hangs; the window fills with its rows, and grows until b's rows are found."""
    script = Script(*range(1, 201))
    rows = Rows(range(201), key=lambda row: "b" if row == 200 else "a")
    with Run(script, [rows], workers=2, max_in_flight=0, order="completion", per_key=1) as run:
        script.wait(lambda: 200 in script.started)
        assert script.started == [0, 200]
        script.let_go(0)
        assert sorted(run.result()) == list(range(201))


def test_a_consumer_that_takes_nothing_does_not_make_it_grow() -> None:
    source = Source(batches(range(1_000), 1))
    output = engine(lambda row: row, workers=2, max_in_flight=0, batch_rows=5).run(iter(source))
    first = [call.result for call in next(output)]
    wait_until(lambda: source.rows == len(first) + 5 + 8)  # one output batch, and the window of 4 x workers behind it
    assert first + [call.result for calls in output for call in calls] == list(range(1_000))


def test_it_grows_to_ten_thousand_rows_and_no_further() -> None:
    source = Source(batches(range(11_000), 100))
    script = Script(*range(1, 11_000))
    with Run(script, source, workers=2, max_in_flight=0, order="input") as run:
        script.wait(lambda: len(script.started) == 10_000 and script.running == [0])
        assert source.rows == 10_000
        script.let_go(0)
        assert run.result() == list(range(11_000))


@pytest.mark.parametrize("of", ["rows", "results"])
def test_it_does_not_grow_beyond_256_mb(of: str) -> None:
    size = (1 << 20) - 64  # of a row or result, and 16 for the other
    script = Script(*range(1, 1_000))
    source = Source(batches(range(1_000), 1, row_bytes=float(size) if of == "rows" else 8.0))
    result = b"" if of == "rows" else bytes(size)  # the same object in every row, but told as often

    def fn(row: int) -> bytes:
        script(row)
        return result

    with Run(fn, source, workers=4, max_in_flight=0, order="input") as run:
        script.wait(lambda: len(script.started) == 256 and script.running == [0])
        assert source.rows == 256
        script.let_go(0)
        assert len(run.result()) == 1_000


def test_rows_that_wait_for_a_retry_do_not_make_it_grow() -> None:
    source = Source(batches(range(100), 1))
    started = Script()

    def fn(row: int) -> None:
        with started._change:
            started.started.append(row)
            started._change.notify_all()
        raise ValueError(row)

    with Run(fn, source, workers=2, max_in_flight=0, order="completion", retries=1, backoff=1e6, errors="drop") as run:
        started.wait_started(8)
        wait_until(lambda: run.engine.scheduler.resting == 8)
        assert source.rows == 8
        run.engine.runner.fail(KeyError("enough"))
        assert isinstance(run.task.outcome(), KeyError)
