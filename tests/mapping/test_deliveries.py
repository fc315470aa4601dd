"""What a call is told and what it says: Delivery, and the Outcome that says whose result it is."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from support.maps import Gate, Way, asynchronous, everywhere, mapped
from support.threads import DEADLINE

from manytail import (
    AsyncCaller,
    Batch,
    Budget,
    Caller,
    Delivery,
    Limit,
    Outcome,
    Rate,
    Retry,
    RetryLater,
    Stats,
    concurrent_map,
)
from manytail.mapping import _map
from manytail.mapping._idempotency import idempotency_key
from manytail.mapping._types import SpentNames


@everywhere
def test_every_item_has_an_outcome(mapped: Way) -> None:
    def fn(item: int) -> int:
        if item == 1:
            raise OSError("no")
        return 10 * item

    outcomes = mapped(fn, range(3), key=lambda item: -item, errors="return", order="completion", workers=2)
    of = {one.item: one for one in outcomes}
    assert of[0] == Outcome(0, 0, None, 1, 0)
    assert of[2] == Outcome(2, 20, None, 1, -2)
    assert (of[1].result, type(of[1].error), of[1].attempts, of[1].key, of[1].ok) == (None, OSError, 1, -1, False)
    assert of[0].ok


@everywhere
def test_a_retried_call_is_told_its_attempt_its_key_and_the_error_before(mapped: Way) -> None:
    seen: list[tuple[int, Any, Any, str]] = []

    def fn(item: int, delivery: Delivery) -> int:
        seen.append((delivery.attempt, delivery.key, delivery.error, delivery.idempotency_key))
        if len(seen) == 2:
            raise RetryLater(0.001)
        if len(seen) < 5:
            raise OSError(len(seen))
        assert (delivery.task_attempt, repr(delivery)) == (0, "Delivery(attempt=4, task_attempt=0, key='k')")
        return item

    assert mapped(fn, [7], key=lambda item: "k", retry=Retry(3, backoff=0)) == [7]
    assert [(attempt, key, error and error.args) for attempt, key, error, _ in seen] == [
        (1, "k", None), (2, "k", (1,)), (2, "k", (1,)), (3, "k", (3,)), (4, "k", (4,)),
    ]  # fmt: skip
    assert {each[3] for each in seen} == {idempotency_key(7)}


@everywhere
def test_a_batch_gets_one_delivery_with_a_key_for_each_item(mapped: Way) -> None:
    seen: list[tuple[list[int], int, Any, list[str]]] = []

    def fn(items: list[int], delivery: Delivery) -> list[int]:
        seen.append((items, delivery.attempt, delivery.error, list(delivery.idempotency_keys)))
        with pytest.raises(TypeError, match="idempotency_keys"):
            _ = delivery.idempotency_key
        if 2 in items:
            raise OSError(len(seen))
        return items

    outcomes = mapped(fn, range(4), batch=Batch(4, linger=3_600), workers=1, retry=Retry(1, backoff=0), errors="return")
    assert [one.ok for one in outcomes] == [True, True, False, True]
    assert all(keys == list(map(idempotency_key, items)) for items, _, _, keys in seen)
    whole = [(attempt, error and error.args) for items, attempt, error, _ in seen if len(items) == 4]
    assert whole == [(1, None), (2, (1,))]
    (first,) = [each for each in seen if each[0] == [0, 1]]
    assert first[1] == 3
    assert first[2].args == (2,)
    assert outcomes[2].attempts == max(attempt for items, attempt, _, _ in seen if 2 in items)


def test_the_key_is_made_when_it_is_read() -> None:
    def fn(item: Any, delivery: Delivery) -> int:
        with pytest.raises(TypeError, match="of a call without a batch"):
            _ = delivery.idempotency_keys
        if isinstance(item, int):
            return len(delivery.idempotency_key)
        return 0

    assert mapped(fn, [1, object()]) == [32, 0]
    (outcome,) = mapped(lambda item, delivery: delivery.idempotency_key, [object()], errors="return")
    assert isinstance(outcome.error, TypeError)


@pytest.mark.parametrize("batch", [None, Batch(2)])
def test_a_call_may_run_out_of_time_before_its_function_begins(batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, proceed = _map.Plan.delivery, threading.Event()

    def make_late(*arguments: Any) -> Delivery:
        assert proceed.wait(DEADLINE)
        return make(*arguments)

    monkeypatch.setattr(_map.Plan, "delivery", make_late)
    with concurrent_map(lambda item, delivery: item, [1], timeout=0.01, errors="return", batch=batch) as outcomes:
        (outcome,) = outcomes
        proceed.set()
    assert type(outcome.error) is TimeoutError


def test_a_delivery_can_be_made_for_a_test_of_a_function() -> None:
    delivery = Delivery(2, key="k", identify=lambda: "abc")
    assert (delivery.attempt, delivery.key, delivery.idempotency_key, delivery.error) == (2, "k", "abc", None)
    delivery.spent(tokens=3)
    assert delivery.said == {"tokens": 3.0}


# ---------------------------------------------------------------------------------------------------- what a call took
NO_AMOUNTS = {"negative": -1, "nan": float("nan"), "inf": float("inf"), "text": "1", "bool": True, "huge": 10**400}


@pytest.mark.parametrize("amount", NO_AMOUNTS.values(), ids=NO_AMOUNTS)
@pytest.mark.parametrize("named", [False, True])
def test_what_was_spent_is_a_finite_number(amount: Any, named: bool) -> None:
    delivery = Delivery()
    with pytest.raises((TypeError, ValueError), match="finite number >= 0"):
        delivery.spent(tokens=amount) if named else delivery.spent(amount)
    assert delivery.said is None


def test_without_a_name_it_means_the_one_limit_that_was_given_a_cost() -> None:
    for costed in ((), ("a", "b")):
        with pytest.raises(ValueError, match=f"and {len(costed)} limits"):
            Delivery(names=SpentNames(costed)).spent(1)
    delivery = Delivery(names=SpentNames(("a",), ("slots",)))
    delivery.spent(1, b=2)
    delivery.spent(3)
    assert delivery.said == {None: 3.0, "b": 2.0}
    with pytest.raises(ValueError, match="slots"):
        delivery.spent(b=9, slots=1)
    assert delivery.said == {None: 3.0, "b": 2.0}


@everywhere
def test_after_the_call_nothing_can_be_said(mapped: Way) -> None:
    kept: list[Delivery] = []

    def fn(item: int, delivery: Delivery) -> int:
        kept.append(delivery)
        teller = threading.Thread(target=delivery.spent, kwargs={"tokens": item})  # any thread
        teller.start()
        teller.join()
        if item == 1:
            raise OSError
        return item

    mapped(fn, range(3), errors="return")
    for delivery in kept:
        with pytest.raises(RuntimeError, match="the call has ended"):
            delivery.spent(tokens=100)
    assert sorted(one.said["tokens"] for one in kept if one.said) == [0, 1, 2]


def test_an_abandoned_call_keeps_what_it_said_last() -> None:
    gate, ended = Gate(), threading.Event()
    late: list[BaseException] = []

    def fn(item: int, delivery: Delivery) -> None:
        delivery.spent(tokens=5)
        gate(delivery)
        try:
            delivery.spent(tokens=7)
        except RuntimeError as error:
            late.append(error)
        ended.set()

    with concurrent_map(fn, [1], timeout=0.5, errors="return") as results:
        assert isinstance(next(results).error, TimeoutError)
        gate.opened.set()
    assert ended.wait(DEADLINE)
    assert gate.begun[0].said == {"tokens": 5.0}
    assert len(late) == 1


LIMITS: dict[str, tuple[Callable[[], Limit] | None, dict[str, float]]] = {
    "none": (None, {}),
    "plain": (partial(Budget, 9), {}),
    "costed": (partial(Budget, 9, cost=float), {}),
    "named": (partial(Rate, 9, cost=float, name="tokens"), {"tokens": 3.0}),
}


@everywhere
@pytest.mark.parametrize(("make", "counted"), LIMITS.values(), ids=LIMITS)
def test_an_empty_name_is_that_of_no_limit(
    mapped: Way, make: Callable[[], Limit] | None, counted: dict[str, float]
) -> None:
    seen: list[Stats] = []

    def fn(item: int, delivery: Delivery) -> int:
        delivery.spent(**{"": 100})
        return item

    limits = [] if make is None else [make()]
    assert mapped(fn, [1, 2], limits=limits, progress=seen.append) == [1, 2]
    assert seen[-1].spent == {"": 200.0, **counted}
    for limit in limits:
        if isinstance(limit, Budget):
            assert limit.used() == (2 if limit.cost is None else 3)


def test_callers_count_an_empty_name_too() -> None:
    def fn(item: int, delivery: Delivery) -> int:
        delivery.spent(**{"": item})
        return item

    with Caller(fn, workers=2) as caller:
        assert [caller(1), caller.submit(2).result()] == [1, 2]
    assert caller.stats().spent == {"": 3.0}

    async def ask() -> tuple[int, Stats]:
        async with AsyncCaller(asynchronous(fn)) as caller:
            return await caller(3), caller.stats()

    got, stats = asyncio.run(ask())
    assert (got, stats.spent) == (3, {"": 3.0})


def test_a_cancelled_coroutine_has_ended() -> None:
    kept: list[Delivery] = []

    async def fn(item: int, delivery: Delivery) -> None:
        kept.append(delivery)
        delivery.spent(tokens=1)
        await asyncio.sleep(DEADLINE)

    mapped(fn, [1], timeout=0.5, errors="return")
    with pytest.raises(RuntimeError):
        kept[0].spent(tokens=2)
