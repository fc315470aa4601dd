"""Equal items share one call, and no attempt of an item starts after `within`."""

from collections import Counter, deque

import pytest

from manytail._maps import Delivery, Outcome, Retry, RetryLater, concurrent_map
from manytail._maps.engine.events import Failed
from manytail._maps.engine.item import Item, Kind, Verdict
from manytail._maps.engine.lanes import Lanes
from manytail._maps.engine.scheduler import Rules, Scheduler
from manytail._maps.engine.within import WithinStage


def test_equal_items_share_one_call_and_its_result():
    calls = Counter()

    def fn(item):
        calls[item] += 1
        return [item]

    results = concurrent_map(fn, [number % 100 for number in range(5_000)], dedup=100)
    out = list(results)
    assert out == [[number % 100] for number in range(5_000)]
    assert set(calls.values()) == {1}
    assert len({id(one) for one in out}) == 100
    assert results.stats().remembered == 4_900


def test_the_results_of_the_last_calls_are_kept():
    calls = []
    list(concurrent_map(calls.append, [1, 2, 1, 3, 1, 2], dedup=2, workers=1))
    assert calls == [1, 2, 3, 1, 2]


def test_after_a_failure_the_next_equal_item_is_called():
    calls = Counter()

    def fn(item):
        calls[item] += 1
        if calls[item] <= 2:
            raise OSError(item)
        return item

    outcomes = list(concurrent_map(fn, [7] * 5, dedup=1, workers=4, errors="return"))
    assert sorted(one.ok for one in outcomes) == [False, False, True, True, True]
    assert calls == {7: 3}
    assert [one.attempts for one in outcomes if one.ok].count(0) == 2


def test_an_item_without_a_key_fails_and_item_id_gives_it_one():
    odd = object()
    (outcome,) = concurrent_map(lambda item: item, [odd], dedup=1, errors="return")
    assert isinstance(outcome, Outcome)
    with pytest.raises(TypeError, match=r"^dedup: .* or item_id="):
        raise outcome.error
    assert list(concurrent_map(lambda item: 3, [odd], dedup=1, item_id=lambda item: 1)) == [3]


def test_a_delivery_has_the_key_of_its_item():
    def fn(item, delivery: Delivery):
        return delivery.idempotency_key

    with_dedup = list(concurrent_map(fn, [1, True], dedup=1))
    assert with_dedup == list(concurrent_map(fn, [1, True]))
    assert len(set(with_dedup)) == 2


# ---------------------------------------------------------------------------------------------------- within
def test_an_item_whose_next_attempt_would_come_too_late_fails_at_once_with_its_last_error():
    def fail(item):
        raise OSError(item)

    retry = Retry(5, backoff=lambda attempt, error: 3_600.0, within=60)
    with pytest.raises(OSError, match="7"):
        list(concurrent_map(fail, [7], retry=retry))


def test_deferrals_count_for_within():
    def fail(item):
        raise RetryLater(3_600)

    with pytest.raises(RetryLater):
        list(concurrent_map(fail, [7], retry=Retry(0, within=60, defer=1e6)))


@pytest.mark.parametrize(("kind", "attempts"), [(Kind.RETRY, 1), (Kind.DEFER, 0)])
def test_an_item_whose_turn_comes_too_late_fails_with_its_last_error(kind, attempts):
    scheduler = Scheduler(Rules(workers=1, within=10.0, raises=False), Lanes(), [WithinStage(10.0)])
    item, error = Item(0, number=0), OSError()
    scheduler.lanes.assign(item)
    assert scheduler.step(deque([[item]]), 0.0).start == [item]
    item.attempts = 1
    assert scheduler.step(deque([Failed(item, Verdict(kind, 5.0, error))]), 1.0).start == []
    assert scheduler.step(deque([0]), 11.0).start == []
    assert (item.error, item.attempts) == (error, attempts)
