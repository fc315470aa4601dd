"""How many rows are where: the window, the input that is read, the output that is held; and what is left when it is over."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.scheduling import Rows, Run, Script, Source, batches, engine, finished, results
from support.threads import Threads, wait_until

from manytail.spark import _task


def test_at_most_workers_calls_run_at_once() -> None:
    script = Script()
    with Run(script, batches(range(50), 50), workers=3, max_in_flight=50) as run:
        script.wait(lambda: len(script.running) == 3)
        script.let_all_go()
        assert run.result() == list(range(50))
    assert script.peak == 3


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
    """One full output batch is held; finished rows behind it stay in flight and the source is left alone."""
    source = Source(batches(range(100), 1))
    output = engine(lambda row: row, workers=2, max_in_flight=8, batch_rows=5).run(iter(source))
    first = [call.result for call in next(output)]
    # One batch was handed out, another fills up, and max_in_flight rows stand behind it: then nothing moves until it is taken.
    wait_until(lambda: source.rows == len(first) + 5 + 8)
    rest = [call.result for calls in output for call in calls]
    assert first + rest == list(range(100))


def test_output_batches_have_at_most_batch_rows() -> None:
    outputs = [len(calls) for calls in engine(lambda row: row, batch_rows=7).run(iter(batches(range(100), 50)))]
    assert sum(outputs) == 100
    assert max(outputs) == 7
    assert outputs.count(7) >= 13


def test_an_output_batch_waits_one_second_for_more_rows() -> None:
    script = Script(0)
    begin = time.monotonic()
    with Run(script, batches(range(2), 2), workers=2, batch_rows=10) as run:
        assert run.wait_values(1) == [0]  # while row 1 still runs
        assert time.monotonic() - begin >= 1.0
        script.let_go(1)
        assert run.result() == [0, 1]


def test_an_output_batch_does_not_wait_when_nothing_else_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_task, "FLUSH_INTERVAL", 1e6)
    source = Source(batches(range(2), 1), hold_before=1)
    with Run(lambda row: row, source, batch_rows=10) as run:
        run.wait_values(1)
        source.go_on.set()
        run.result()
    assert [len(output) for output in run.outputs] == [1, 1]


def test_small_input_batches_do_not_make_small_output_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that has more rows in a moment is no reason to hand out single ones."""
    monkeypatch.setattr(_task, "FLUSH_INTERVAL", 1e6)
    monkeypatch.setattr(_task, "IDLE_GRACE", 1e6)  # this machine may need longer than the usual moment
    outputs = list(engine(lambda row: row, batch_rows=1_000).run(iter(batches(range(1_000), 1))))
    assert [len(output) for output in outputs] == [1_000]


def manytail_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("manytail-")]


def test_no_thread_is_left() -> None:
    finished(lambda row: row, batches(range(100), 10), timeout=50, retries=1)
    assert manytail_threads() == []


def test_no_thread_is_left_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError):
        finished(lambda row: 1 // (row - 50), batches(range(100), 10), timeout=50)
    assert manytail_threads() == []


def test_closing_the_generator_waits_for_running_calls_and_reads_no_further() -> None:
    source = Source(batches(range(100), 1))
    script = Script(*range(4))
    output = engine(script, workers=4, max_in_flight=8, batch_rows=4).run(iter(source))
    assert [call.result for call in next(output)] == [0, 1, 2, 3]
    script.wait_started(8)
    with Threads() as threads:
        closing = threads.start(output.close)
        script.let_all_go()
        closing.result()
    assert manytail_threads() == []
    assert script.running == []
    read = source.rows
    assert read <= 4 + 8 + 4 + 1
    assert len(script.started) <= read


def test_a_failing_source_fails_the_task() -> None:
    def source() -> Iterator[Rows]:
        yield Rows([1, 2])
        raise OSError("the input broke")

    with pytest.raises(OSError, match="the input broke"):
        finished(lambda row: row, source())
    assert manytail_threads() == []


def test_a_system_without_more_threads_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse_third_worker(thread: threading.Thread) -> None:
        if thread.name == "manytail-worker-3":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_third_worker)
    with pytest.raises(RuntimeError, match="can't start new thread") as caught:
        finished(lambda row: row, batches(range(100), 10), workers=8)
    assert caught.value.__notes__ == ["manytail: after 2 worker threads (workers=8)"]
    assert manytail_threads() == []


def test_a_source_that_hangs_does_not_keep_a_failed_task() -> None:
    source = Source(batches(range(2), 1), hold_before=1)

    def fail(row: int) -> None:
        source.asked.wait()
        raise ValueError(row)

    with Run(fail, source, workers=1, max_in_flight=2) as run:
        assert isinstance(run.task.outcome(), ValueError)
        source.go_on.set()
    wait_until(lambda: manytail_threads() == [])


def test_results_do_not_keep_rows_alive() -> None:
    """An idle worker holds neither the row it had nor its result."""
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
    """Row 2 finishes when the worker of row 1 has handled what there was and still holds the lock; nobody else would look for a long time."""
    monkeypatch.setattr(_task, "FLUSH_INTERVAL", 1e6)
    monkeypatch.setattr(_task, "IDLE_GRACE", 1e6)
    script = Script()
    with Run(script, batches(range(3), 3), workers=3, order="completion") as run:
        engine, handle = run.engine.runner, run.engine.runner._handle

        def handle_and_wait() -> None:
            handle()
            if script.running == [2]:
                script.let_go(2)
                wait_until(lambda: engine.scheduler.ready.stats().getters_waiting == 2)  # row 2's worker has tried the lock in vain

        script.wait_started(3)
        script.let_go(0)
        wait_until(lambda: engine.scheduler.ended and len(engine.scheduler.output) == 1 and not engine.look.is_set())
        monkeypatch.setattr(engine, "_handle", handle_and_wait)
        script.let_go(1)
        assert run.result() == [0, 1, 2]


def test_every_row_comes_out_once_under_load() -> None:
    out = results(lambda row: row, batches(range(20_000), 333), workers=16, max_in_flight=64, order="completion", batch_rows=1_000)
    assert sorted(out) == list(range(20_000))
