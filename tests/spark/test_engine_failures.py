"""What happens to a row whose call fails: attempts, backoff, what comes out, and how a task fails."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.scheduling import Rows, Run, Script, Source, batches, engine, finished, results
from support.threads import wait_until

from manytail.spark._results import Described


class Flaky:
    """Fails the first so many calls of each row."""

    def __init__(self, failures: int, error: Callable[[Any], BaseException] = ValueError) -> None:
        self.calls: Counter[Any] = Counter()
        self._failures = failures
        self._error = error

    def __call__(self, row: Any) -> Any:
        self.calls[row] += 1
        if self.calls[row] <= self._failures:
            raise self._error(row)
        return row


# ---------------------------------------------------------------------------------------------------- attempts
@pytest.mark.parametrize("retries", [0, 1, 3])
def test_at_most_retries_and_one_calls(retries: int) -> None:
    fn = Flaky(100)
    calls = finished(fn, batches(range(5), 2), retries=retries, backoff=0, errors="return")
    assert fn.calls == Counter(dict.fromkeys(range(5), retries + 1))
    assert [call.error for call in calls] == [Described("ValueError", str(row), retries + 1) for row in range(5)]


def test_a_row_that_succeeds_at_last_has_no_error() -> None:
    fn = Flaky(2)
    calls = finished(fn, batches(range(50), 7), retries=2, backoff=0, errors="return")
    assert [call.result for call in calls] == list(range(50))
    assert {call.error for call in calls} == {None}
    assert {call.attempts for call in calls} == {3}


def test_callable_backoff_gets_the_number_of_the_failed_attempt() -> None:
    asked: list[int] = []

    def backoff(attempt: int, error: BaseException) -> float:
        asked.append(attempt)
        return 0

    assert results(Flaky(3), [Rows([0])], retries=5, backoff=backoff) == [0]
    assert asked == [1, 2, 3]


@pytest.mark.parametrize("wrong", [-1, float("nan"), "soon", None])
def test_a_backoff_that_returns_nonsense_fails_the_row(wrong: Any) -> None:
    calls = finished(Flaky(1), [Rows([0])], retries=1, backoff=lambda attempt, error: wrong, errors="return")
    assert calls[0].error is not None
    assert calls[0].error.type == "ValueError"
    assert calls[0].error.message.startswith("backoff: ")


@pytest.mark.parametrize(
    ("error", "retry_on", "calls"),
    [(ValueError, ValueError, 2), (ValueError, (OSError, ValueError), 2), (ValueError, OSError, 1), (ValueError, Exception, 2),
     (KeyboardInterrupt, Exception, 1), (SystemExit, BaseException, 2), (GeneratorExit, SystemExit, 1)],
)  # fmt: skip
def test_only_what_retry_on_names_is_tried_again(error: type[BaseException], retry_on: Any, calls: int) -> None:
    fn = Flaky(100, error)
    out = finished(fn, [Rows([0])], retries=1, backoff=0, retry_on=retry_on, errors="return")
    assert fn.calls[0] == calls
    assert out[0].error is not None
    assert out[0].error.type == error.__name__


def test_never_retry_wins() -> None:
    fn = Flaky(100)
    finished(fn, [Rows([0])], retries=5, backoff=0, never_retry=(ValueError,), errors="return")
    assert fn.calls[0] == 1


def test_a_row_that_waits_for_its_retry_holds_no_worker() -> None:
    fn = Flaky(1, lambda row: ValueError(row))
    script = Script(*range(20))

    def both(row: int) -> int:
        return fn(row) if row == 0 else script(row)

    with Run(both, batches(range(10), 10), workers=1, retries=1, backoff=1, order="completion", max_in_flight=10, batch_rows=1) as run:
        assert run.wait_values(9) == list(range(1, 10))
        assert run.result()[-1] == 0


def test_a_row_that_waits_for_its_retry_keeps_its_place_in_flight() -> None:
    """All rows wait: no further one is read until the first of them is through."""
    source = Source(batches(range(24), 1))
    fn, waiting = Flaky(1), []

    def backoff(attempt: int, error: BaseException) -> float:
        waiting.append(source.rows)
        return 0.2

    assert sorted(results(fn, source, workers=2, max_in_flight=6, retries=1, backoff=backoff, order="completion")) == list(range(24))
    assert max(waiting[:6]) <= 6


def test_a_row_that_waits_for_its_retry_keeps_its_slot() -> None:
    order: list[Any] = []
    fn = Flaky(1)

    def call(row: tuple[str, int]) -> Any:
        order.append(row)
        return fn(row) if row == ("a", 0) else row

    rows = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    out = results(call, [Rows(rows, key=lambda row: row[0])], workers=4, per_key=1, retries=1, backoff=0.3, order="completion")
    assert sorted(out) == rows
    # ("a", 1) started only after ("a", 0) was through, retry included.
    assert [row for row in order if row[0] == "a"] == [("a", 0), ("a", 0), ("a", 1)]


@pytest.mark.parametrize("key", [None, lambda row: row[0]], ids=["no key", "key"])
def test_a_retry_goes_before_new_rows_of_its_key(key: Any) -> None:
    fn, order = Flaky(1), []
    script = Script(("a", 0), ("a", 2), ("a", 3))

    def call(row: tuple[str, int]) -> Any:
        order.append(row)
        return fn(row) if row == ("a", 0) else script(row)

    rows = [("a", number) for number in range(4)]
    with Run(call, [Rows(rows, key=key)], workers=1, max_in_flight=4, retries=1, backoff=0.01, order="completion") as run:
        script.wait_started(1)  # ("a", 1) runs; 2 and 3 stand in the queue
        wait_until(lambda: run.engine.scheduler.ready.qsize() == 3)  # ... and now 0 again
        script.let_all_go()
        run.result()
    assert order == [("a", 0), ("a", 1), ("a", 0), ("a", 2), ("a", 3)]


# ---------------------------------------------------------------------------------------------------- errors="return" and "drop"
def test_one_failing_row_fails_nothing_else() -> None:
    calls = finished(lambda row: 1 // (row - 7), batches(range(100), 9), errors="return")
    assert [call.index for call in calls if call.error] == [7]
    assert [call.result for call in calls if not call.error] == [1 // (row - 7) for row in range(100) if row != 7]


def test_drop_leaves_failed_rows_out_and_counts_them() -> None:
    run = engine(lambda row: 1 // (row % 3) and row, errors="drop", order="input")
    out = [call.result for calls in run.run(iter(batches(range(90), 8))) for call in calls]
    assert out == [1 // (row % 3) and row for row in range(90) if row % 3]
    assert run.scheduler.dropped == 30


def test_all_rows_dropped() -> None:
    assert finished(Flaky(9), batches(range(500), 50), errors="drop", max_in_flight=8) == []


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Outer:
    class Inner(Exception):
        pass


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("x"), "ValueError", "x"),
        (Outer.Inner("y"), f"{__name__}.Outer.Inner", "y"),
        (ValueError("z" * 5_000), "ValueError", "z" * 4_000),
        (ValueError("\ud800ä"), "ValueError", "?ä"),
        (Unprintable(), f"{__name__}.Unprintable", "<no message: str() of it raised RuntimeError>"),
        (SystemExit(3), "SystemExit", "3"),
        (StopIteration(1), "StopIteration", "1"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_type_and_message_of_an_error(error: BaseException, kind: str, message: str) -> None:
    def fail(row: int) -> None:
        raise error

    assert finished(fail, [Rows([0])], errors="return")[0].error == Described(kind, message, 1)


# ---------------------------------------------------------------------------------------------------- errors="raise"
def test_raise_fails_with_the_functions_exception_and_a_note() -> None:
    error = KeyError("gone")

    def fail(row: int) -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        finished(fail, [Rows(["here"], key=lambda row: row)], retries=2, backoff=0)
    assert caught.value is error
    assert caught.value.__notes__ == ["manytail: the row with key 'here' failed after 3 attempts"]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), StopIteration(5)])
def test_raise_wraps_what_is_no_exception(error: BaseException) -> None:
    def fail(row: int) -> None:
        raise error

    with pytest.raises(RuntimeError) as caught:
        finished(fail, [Rows([0])])
    assert caught.value.__cause__ is error
    assert caught.value.__notes__ == ["manytail: the row with key None failed after 1 attempt"]


def test_raise_starts_no_further_call_and_waits_for_running_ones() -> None:
    script = Script()

    def call(row: int) -> int:
        if script(row) == 1:
            raise ValueError(row)
        return row

    with Run(call, batches(range(100), 100), workers=3, max_in_flight=100) as run:
        script.wait(lambda: sorted(script.running) == [0, 1, 2])
        script.let_go(1)
        wait_until(lambda: run.engine.runner.stopping)
        assert run.task.is_alive()  # 0 and 2 still run
        script.let_all_go()
        error = run.task.outcome()
    assert isinstance(error, ValueError)
    assert sorted(script.started) == [0, 1, 2]


def test_the_first_row_to_fail_fails_the_task() -> None:
    """Not the first in input order: row 3 fails while row 0 still runs."""
    script = Script(3)

    def call(row: int) -> None:
        raise ValueError(script(row))

    with Run(call, batches(range(4), 4), workers=4) as run:
        wait_until(lambda: run.engine.runner.stopping)
        script.let_all_go()
        error = run.task.outcome()
    assert isinstance(error, ValueError)
    assert error.args == (3,)


def test_raise_waits_for_the_retries() -> None:
    fn = Flaky(2)
    with pytest.raises(ValueError, match="0"):
        finished(fn, [Rows([0])], retries=1, backoff=0.01)
    assert fn.calls[0] == 2
