"""Batches and equal items in real threads and loops. What they promise about time is in tests/simulation."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from support.maps import Way, asynchronous, everywhere, mapped

from manytail import AsyncCaller, Batch, Caller, Delivery, Retry, Stats

pytestmark = pytest.mark.thread_unsafe(reason="counts the threads of the process")


# ---------------------------------------------------------------------------------------------------- batches
@everywhere
def test_one_bad_row_of_a_thousand_costs_twelve_more_calls(mapped: Way) -> None:
    calls: list[list[int]] = []

    def fn(items: list[int]) -> list[int]:
        calls.append(items)
        if 777 in items:
            raise OSError("777")
        return [2 * item for item in items]

    results = mapped(fn, range(1_000), batch=Batch(50, linger=3_600), workers=8, errors="return")
    assert [one.result for one in results if one.ok] == [2 * item for item in range(1_000) if item != 777]
    assert isinstance(results[777].error, OSError)
    assert len(calls) <= 20 + 12
    assert results[777].attempts == sum(777 in items for items in calls) == 7  # 50, 25, 13 or 12, ..., 1


@everywhere
def test_an_element_that_is_an_exception_fails_its_item_alone(mapped: Way) -> None:
    calls: list[list[int]] = []

    def fn(items: list[int]) -> list[Any]:
        calls.append(items)
        return [OSError(item) if item % 10 == 0 else item for item in items]

    batch = Batch(20, linger=3_600)
    results = mapped(fn, range(100), batch=batch, retry=Retry(1, backoff=0), workers=4, errors="return")
    assert [one.result for one in results if one.ok] == [item for item in range(100) if item % 10]
    failures = [one for one in results if not one.ok]
    assert [(failure.item, failure.error.args, failure.attempts) for failure in failures] == [
        (item, (item,), 2) for item in range(0, 100, 10)
    ]
    # Items that failed alike are called again together.
    assert sorted(len(items) for items in calls) == [2] * 5 + [20] * 5


@pytest.mark.parametrize("result", ["abc", b"abc", {1: 2, 3: 4, 5: 6}, None, 3, [1, 2], {1, 2, 3}])
def test_a_result_that_does_not_fit_fails_all_items_and_is_not_tried_again(result: Any) -> None:
    calls: list[list[int]] = []

    def fn(items: list[int]) -> Any:
        calls.append(items)
        return result

    failures = mapped(fn, range(3), batch=Batch(3, linger=3_600), retry=3, errors="return")
    assert {type(failure.error) for failure in failures} <= {TypeError, ValueError}
    assert all(str(failure.error).startswith("batch: fn returned ") for failure in failures)
    assert calls == [[0, 1, 2]]


def pops(items: list[int]) -> list[int]:
    items.pop()
    return [10 * item for item in items]


def drains(items: list[int]) -> list[int]:
    return [10 * items.pop(0) for _ in range(len(items))]


def grows(items: list[int]) -> list[int]:
    items.append(9)
    return [10 * item for item in items]


def clears(items: list[int]) -> list[int]:
    items.clear()
    return items


def sorts(items: list[int]) -> list[int]:
    items.sort()
    return [10 * item for item in items]


CHANGES: dict[Callable[[list[int]], list[int]], int] = {pops: 2, drains: 3, grows: 4, clears: 0, sorts: 3}


@everywhere
@pytest.mark.parametrize(("fn", "number"), CHANGES.items(), ids=[fn.__name__ for fn in CHANGES])
def test_as_many_results_are_expected_as_fn_got_items_whatever_it_does_to_its_list(
    mapped: Way, fn: Callable[[list[int]], list[int]], number: int
) -> None:
    outcomes = mapped(fn, range(3), batch=Batch(3, linger=3_600), errors="return")
    assert [one.item for one in outcomes] == [0, 1, 2]
    if number == 3:
        assert [one.result for one in outcomes] == [0, 10, 20]
        return
    assert {str(one.error) for one in outcomes} == {
        f"batch: fn returned {number} results (expected: a sequence of 3 results, one for each item)"
    }
    assert {type(one.error) for one in outcomes} == {ValueError}


@everywhere
def test_a_batch_is_called_again_with_the_items_that_it_had(mapped: Way) -> None:
    calls: list[list[int]] = []

    def fn(items: list[int]) -> list[int]:
        calls.append(items.copy())
        items.pop()
        if len(calls) < 3:
            raise OSError
        return [0, 10, 20]

    assert mapped(fn, range(3), batch=Batch(3, linger=3_600), retry=Retry(2, backoff=0)) == [0, 10, 20]
    assert calls == [[0, 1, 2]] * 3


@pytest.mark.parametrize("fn", [pops, drains], ids=["pops", "drains"])
def test_callers_expect_as_many_results_as_fn_got_items(fn: Callable[[list[int]], list[int]]) -> None:
    batch = Batch(3, linger=3_600)
    with Caller(fn, batch=batch) as caller:
        futures = [caller.submit(item) for item in range(3)]
        waited = [future.exception() or future.result() for future in futures]

    async def ask() -> list[Any]:
        async with AsyncCaller(asynchronous(fn), batch=batch) as caller:
            return await asyncio.gather(*(caller(item) for item in range(3)), return_exceptions=True)

    for got in (waited, asyncio.run(ask())):
        assert got == [0, 10, 20] if fn is drains else {type(one) for one in got} == {ValueError}


class Lazy(Sequence[int]):
    """A result that is computed, and fails, when it is read."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        raise ZeroDivisionError(index)


def test_what_a_lazy_result_raises_fails_the_call() -> None:
    def fn(items: list[int]) -> Sequence[int]:
        return Lazy() if 1 in items else items

    zero, one, two = mapped(fn, range(3), batch=Batch(3, linger=3_600), errors="return")  # the halves are 0; 1 and 2
    assert (zero.result, type(one.error), two.result) == (0, ZeroDivisionError, 2)


# ---------------------------------------------------------------------------------------------------- equal items
@everywhere
@pytest.mark.parametrize("batch", [1, 7])
def test_equal_items_share_one_call(mapped: Way, batch: int) -> None:
    called: list[int] = []
    seen: list[Stats] = []

    def fn(items: Any) -> Any:
        called.extend(items if batch > 1 else [items])
        return [[item] for item in items] if batch > 1 else [items]

    options: dict[str, Any] = {
        "dedup": 100,
        "progress": seen.append,
        "workers": 16,
        "batch": batch if batch > 1 else None,
    }
    results = mapped(fn, [number % 100 for number in range(10_000)], **options)
    assert results == [[number % 100] for number in range(10_000)]
    assert sorted(called) == list(range(100))
    assert len({id(result) for result in results}) == 100  # the same object
    assert seen[-1].remembered == 9_900


@dataclass
class Order:
    number: int
    lines: dict[str, float]


EQUAL: list[tuple[Any, Any, bool]] = [
    (1, True, False),
    (0.0, -0.0, True),
    (float("nan"), float("nan"), True),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
    ([1, 2], (1, 2), False),
    (Order(1, {"a": 1.0}), Order(1, {"a": 1.0}), True),
]


@pytest.mark.parametrize(("first", "second", "equal"), EQUAL, ids=repr)
def test_items_are_equal_in_type_and_value(first: Any, second: Any, equal: bool) -> None:
    calls: list[Any] = []
    mapped(lambda item: calls.append(item), [first, second], dedup=10, workers=1)
    assert len(calls) == (1 if equal else 2)


def test_item_id_says_what_the_key_is_made_of() -> None:
    keys: list[str] = []

    def fn(item: dict[str, Any], delivery: Delivery) -> int:
        keys.append(delivery.idempotency_key)
        return item["id"]  # type: ignore[no-any-return]

    items = [{"id": 1, "at": object()}, {"id": 1, "at": object()}, {"id": 2, "at": object()}]
    assert mapped(fn, items, dedup=10, item_id=lambda item: item["id"], workers=1) == [1, 1, 2]
    assert len(set(keys)) == len(keys) == 2
    failures = mapped(lambda item: item, items, dedup=10, errors="return")
    assert {type(failure.error) for failure in failures} == {TypeError}
