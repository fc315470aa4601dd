"""What ends a map before its input does: too many failures, and errors that are fatal."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.maps import Way, everywhere, mapped
from support.threads import DEADLINE, Threads, wait_until

from manytail import (
    Breaker,
    BreakerOpen,
    Budget,
    BudgetExceeded,
    DeadlineExceeded,
    Retry,
    RetryLater,
    TooManyFailures,
    concurrent_map,
)


@everywhere
@pytest.mark.parametrize("errors", ["return", "drop"])
def test_more_failures_than_max_failures_end_the_map(mapped: Way, errors: str) -> None:
    def fn(item: int) -> int:
        if item % 2:
            raise OSError(item)
        return item

    results: list[Any] = []
    with pytest.raises(TooManyFailures, match="max_failures: 3 items failed") as caught:
        mapped(fn, range(10**6), into=results, errors=errors, max_failures=2, workers=1)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.args == (5,)
    if errors == "drop":
        assert results == [0, 2, 4]
    else:
        assert [(one.item, one.ok) for one in results] == [(0, True), (1, False), (2, True), (3, False), (4, True)]


KINDS: dict[str, Any] = {
    "class": PermissionError,
    "tuple": (KeyError, OSError),
    "callable": lambda error: error.args == (3,),
}


@everywhere
@pytest.mark.parametrize("fatal", KINDS.values(), ids=KINDS)
def test_a_fatal_error_ends_the_map_at_once(mapped: Way, fatal: Any) -> None:
    calls: list[int] = []

    def fn(item: int) -> int:
        calls.append(item)
        if item == 3:
            raise PermissionError(3)
        if item == 1:
            raise ValueError(1)
        return item

    results: list[Any] = []
    with pytest.raises(PermissionError) as caught:
        mapped(fn, range(10**6), into=results, errors="return", retry=Retry(5, PermissionError, backoff=0),
               fatal=fatal, workers=1)  # fmt: skip
    assert calls.count(3) == 1
    assert caught.value.__notes__ == ["manytail: items[3], 3: the item with key None failed after 1 attempt"]
    assert [(one.item, one.ok) for one in results] == [(0, True), (1, False), (2, True)]


@everywhere
def test_a_callable_is_asked_about_a_budget_and_a_breaker(mapped: Way) -> None:
    with pytest.raises(BudgetExceeded):
        mapped(str, range(10), limits=Budget(3), errors="drop", fatal=lambda error: isinstance(error, BudgetExceeded))

    def fail(item: int) -> None:
        raise OSError(item)

    options: dict[str, Any] = {"breaker": Breaker(1, reset=3_600, when_open="fail"), "workers": 1, "errors": "drop"}
    with pytest.raises(BreakerOpen):
        mapped(fail, range(10), fatal=lambda error: isinstance(error, BreakerOpen), **options)


@everywhere
def test_a_callable_is_asked_about_the_deadline_for_items_that_were_not_called(mapped: Way) -> None:
    asked: list[BaseException] = []

    async def hang(item: int) -> None:
        await asyncio.Event().wait()

    def fatal(error: BaseException) -> bool:
        asked.append(error)
        return len(asked) == 5

    results: list[Any] = []
    with pytest.raises(DeadlineExceeded):
        mapped(hang, range(20), into=results, workers=2, deadline=0.05, errors="return", fatal=fatal)
    assert {type(error) for error in asked} == {DeadlineExceeded}
    outcomes = mapped(hang, range(5), workers=2, deadline=0.05, errors="return", fatal=lambda error: False)
    assert [type(one.error) for one in outcomes] == [DeadlineExceeded] * 5


def test_a_callable_is_asked_under_no_lock() -> None:
    """It may wait for another thread that needs the map's lock."""
    got: list[int] = []

    def fatal(error: BaseException) -> bool:
        with Threads() as threads:
            got.append(threads.start(results._runner.locked, int).result())
        return False

    results = concurrent_map(str, range(5), limits=Budget(3), errors="return", fatal=fatal)
    assert [one.ok for one in results] == [True] * 3 + [False] * 2
    assert got == [0, 0]


def test_a_failure_that_the_callable_was_not_asked_about_when_the_map_stops_is_yielded() -> None:
    asking, answer = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield 1
        assert asking.wait(DEADLINE)
        yield 2
        assert answer.wait(DEADLINE)

    def fatal(error: BaseException) -> bool:
        asking.set()
        return not answer.wait(DEADLINE)

    with concurrent_map(str, items(), limits=Budget(0), errors="return", fatal=fatal) as results, Threads() as threads:
        taken = threads.start(list, results)
        wait_until(lambda: results.stats().in_flight == 2)
        results.stop()
        answer.set()
        outcomes = taken.result()
    assert [(one.item, type(one.error)) for one in outcomes] == [(1, BudgetExceeded), (2, BudgetExceeded)]


def test_a_deferral_is_not_fatal_and_a_predicate_that_raises_fails_the_item() -> None:
    deferred: list[int] = []

    def fn(item: int) -> int:
        if not deferred:
            deferred.append(item)
            raise RetryLater(0.001)
        return item

    assert mapped(fn, [1], fatal=Exception) == [1]

    def broken(error: BaseException) -> bool:
        raise LookupError("broken")

    def fail(item: int) -> None:
        raise OSError

    (outcome,) = mapped(fail, [1], errors="return", fatal=broken)
    assert isinstance(outcome.error, LookupError)
    assert isinstance(outcome.error.__cause__, OSError)
