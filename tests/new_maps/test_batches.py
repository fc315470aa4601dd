"""Batches: when they start, and what a call of several items may return."""

import math
import threading
from collections import deque

import pytest
from support.threads import DEADLINE, Threads

from manytail._maps import Batch, Delivery, Retry, RetryLater, concurrent_map
from manytail._maps.engine.batched import BatchScheduler
from manytail._maps.engine.batches import Batches
from manytail._maps.engine.events import InputEnded, Returned
from manytail._maps.engine.item import Item, Kind, Verdict
from manytail._maps.engine.lanes import Lanes
from manytail._maps.engine.scheduler import Rules


class Engine:
    """A scheduler of batches with `size` and `linger`."""

    def __init__(self, size, linger, workers=1, **lanes):
        rules = Rules(workers=workers, calls_items=size, chooses=bool(lanes), raises=False)
        self.lanes = Lanes(**lanes)
        self.scheduler = BatchScheduler(Batches(size, linger, False), rules, self.lanes)
        self.number = 0

    def arrive(self, number, now, key=None, priority=0):
        items = []
        for _ in range(number):
            items.append(Item(self.number, key, number=self.number))
            items[-1].priority = priority
            self.number += 1
            self.lanes.assign(items[-1])
        return self.step(now, items)

    def step(self, now, *events):
        self.effects = self.scheduler.step(deque(events), now)
        return [[item.number for item in call.items()] for call in self.effects.start]


def test_a_batch_starts_when_it_is_full_or_its_first_item_has_waited():
    engine = Engine(3, 10.0, workers=5)
    assert engine.arrive(2, 0.0) == []
    assert engine.effects.wake_at == 10.0
    assert engine.arrive(2, 1.0) == [[0, 1, 2]]
    assert engine.effects.wake_at == 11.0
    assert engine.step(11.0, 0) == [[3]]
    assert engine.effects.wake_at == math.inf


def test_batches_start_at_the_end_of_the_input_and_when_the_window_is_full():
    engine = Engine(10, 10.0)
    assert engine.arrive(4, 0.0) == []
    assert engine.step(0.0, InputEnded(None)) == [[0, 1, 2, 3]]
    engine = Engine(3, 10.0)
    engine.scheduler.window.size = 2
    assert engine.arrive(2, 0.0) == [[0, 1]]


def test_a_batch_grows_until_it_starts():
    engine = Engine(3, 0.0)
    assert engine.arrive(1, 0.0) == [[0]]
    (call,) = engine.effects.start
    for _ in range(5):
        assert engine.arrive(1, 0.0) == []
    assert engine.step(0.0, Returned(call, [None])) == [[1, 2, 3]]


def test_a_full_batch_does_not_wait_for_one_that_is_more_urgent():
    engine = Engine(2, 10.0, prioritised=True)
    assert engine.arrive(1, 0.0, priority=0) == []
    assert engine.arrive(2, 0.0, priority=5) == [[1, 2]]


def test_items_of_a_batch_have_one_key():
    calls = []
    list(concurrent_map(lambda items: calls.append(items) or items, range(20), key=lambda item: item % 3, batch=4))
    assert all(len({item % 3 for item in items}) == 1 for items in calls)
    assert sorted(item for items in calls for item in items) == list(range(20))


def test_only_items_that_failed_alike_are_called_again_together():
    calls = []

    def fn(items, delivery: Delivery):
        calls.append((items, delivery.attempt))
        assert len(delivery.idempotency_keys) == len(items)
        if len(calls) > 1:
            return items
        return [RetryLater(0.01) if item == 0 else OSError(item) if item < 3 else item for item in items]

    batch = Batch(5, linger=3_600)
    assert list(concurrent_map(fn, range(5), batch=batch, retry=Retry(1, backoff=0.0), workers=1)) == [0, 1, 2, 3, 4]
    assert calls[0] == ([0, 1, 2, 3, 4], 1)
    assert sorted(calls[1:]) == [([0], 1), ([1, 2], 2)]


def test_the_time_of_a_batch_fails_all_its_items_and_splits_nothing():
    released = threading.Event()
    calls = []

    def hang(items):
        calls.append(items)
        assert released.wait(DEADLINE)
        return items

    try:
        outcomes = list(
            concurrent_map(hang, range(3), batch=Batch(3, linger=3_600), retry=2, timeout=0.05, errors="return")
        )
        assert [type(one.error) for one in outcomes] == [TimeoutError] * 3
        assert len({id(one.error) for one in outcomes}) == 3
        assert len(calls) == 1
    finally:
        released.set()


def test_the_first_part_of_a_batch_keeps_its_slot_and_others_wait_for_one():
    engine = Engine(2, 3_600.0, workers=5, keyed=True, per_key=1)
    assert engine.arrive(2, 0.0, key=1) == [[0, 1]]
    (call,) = engine.effects.start
    lane = call.lane
    later = [Verdict(Kind.RETRY, 1.0, OSError()), Verdict(Kind.RETRY, 2.0, OSError())]
    assert engine.step(0.0, Returned(call, later)) == []
    assert lane.held == 1
    assert engine.step(1.0, 0) == [[0]]
    (first,) = engine.effects.start
    assert engine.step(2.0, 0) == []
    assert engine.step(2.0, Returned(first, [None])) == [[1]]
    (second,) = engine.effects.start
    engine.step(2.0, Returned(second, [None]))
    assert lane.held == 0


@pytest.mark.parametrize("linger", [0.0, 3_600.0])
def test_a_batch_of_items_that_are_all_known_makes_no_call(linger):
    calls = []
    with Threads() as threads:
        out = threads.start(
            list,
            concurrent_map(
                lambda items: calls.append(items) or items, [7] * 40, dedup=5, batch=Batch(4, linger=linger)
            ),
        ).result()
    assert out == [7] * 40
    assert calls == [[7]]
