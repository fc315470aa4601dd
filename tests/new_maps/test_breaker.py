"""The breaker of a lane."""

import math
from collections import deque

import pytest

from manytail._maps import Breaker, BreakerOpen, concurrent_map
from manytail._maps.engine.batched import BatchScheduler
from manytail._maps.engine.batches import Batches
from manytail._maps.engine.breaker import BreakerStage
from manytail._maps.engine.equal import EqualStage
from manytail._maps.engine.events import Failed, Returned
from manytail._maps.engine.item import Ended, Item, Kind, Verdict
from manytail._maps.engine.lanes import Lanes
from manytail._maps.engine.scheduler import Rules, Scheduler
from manytail._maps.engine.stages import GO, Refuse, Wait


class Lane:
    """A breaker, and items of one lane."""

    def __init__(self, failures=2, fails=False):
        self.stage, self.woken = BreakerStage(failures, 10.0, fails), []
        self.stage.connect(self.woken.append, None)
        self.lane = Lanes().lone

    def start(self, now=0.0):
        item = Item(0)
        item.lane = self.lane
        return item, self.stage.before(item, now)

    def call(self, ended, now=0.0):
        item, decision = self.start(now)
        assert decision is GO
        self.stage.after(item, ended, now)


def test_it_opens_after_failures_in_a_row():
    lane = Lane()
    for ended in (Ended.FAILED, Ended.SUCCEEDED, Ended.RETRIED, Ended.DEFERRED, Ended.FAILED):
        lane.call(ended)
    assert lane.start()[1] == Wait(10.0, of_lane=True)
    assert lane.lane.pinned


def test_after_its_time_one_probe_starts_and_others_wait_for_its_end():
    lane = Lane()
    lane.call(Ended.FAILED)
    lane.call(Ended.FAILED)
    probe, decision = lane.start(12.0)
    assert decision is GO
    assert lane.start(12.0)[1] == Wait(math.inf, of_lane=True)
    lane.stage.after(probe, Ended.FAILED, 13.0)
    assert lane.woken == [lane.lane]
    assert lane.start(13.0)[1] == Wait(23.0, of_lane=True)
    lane.call(Ended.SUCCEEDED, 23.0)
    assert not lane.lane.pinned
    assert [lane.start(23.0)[1] for _ in range(3)] == [GO] * 3


def test_a_probe_that_was_deferred_or_undone_is_no_probe():
    for end in ("undo", "after"):
        lane = Lane()
        lane.call(Ended.FAILED)
        lane.call(Ended.FAILED)
        probe, _ = lane.start(10.0)
        assert isinstance(lane.start(10.0)[1], Wait)
        if end == "undo":
            lane.stage.undo(probe, 10.0)
        else:
            lane.stage.after(probe, Ended.DEFERRED, 10.0)
        assert lane.woken == [lane.lane]
        assert lane.start(10.0)[1] is GO


def test_calls_that_began_before_it_opened_change_nothing():
    lane = Lane()
    old = [lane.start()[0] for _ in range(4)]
    for item, ended in zip(old, [Ended.FAILED, Ended.FAILED, Ended.SUCCEEDED, Ended.FAILED], strict=True):
        lane.stage.after(item, ended, 0.0)
    assert lane.start(1.0)[1] == Wait(10.0, of_lane=True)


def test_items_of_an_open_breaker_fail_if_it_says_so():
    lane = Lane(fails=True)
    lane.call(Ended.FAILED)
    lane.call(Ended.FAILED)
    decision = lane.start(1.0)[1]
    assert isinstance(decision, Refuse)
    assert str(decision.error) == "breaker: 2 calls in a row failed"


def arrived(scheduler, keys, identities=None):
    items = [Item(number, key, number=number) for number, key in enumerate(keys)]
    for item, identity in zip(items, identities or range(len(items)), strict=True):
        item.identity = str(identity)
        scheduler.lanes.assign(item)
    return items, scheduler.step(deque([items]), 0.0)


RETRY = Verdict(Kind.RETRY, 1.0, OSError())
OPTIONS = {"chooses": True, "raises": False}


def test_items_that_wait_or_rest_fail_at_once_and_those_of_other_keys_do_not():
    scheduler = Scheduler(Rules(workers=3, **OPTIONS), Lanes(keyed=True), [BreakerStage(2, 10.0, True)])
    items, effects = arrived(scheduler, [1, 1, 1, 1, 2])
    assert len(effects.start) == 3
    started = [item for item in effects.start if item.key == 1]
    scheduler.step(deque([Failed(started[0], RETRY)]), 0.0)
    assert scheduler.failures == 0
    assert scheduler.step(deque([Failed(started[1], RETRY)]), 0.0).recall
    failed = [item.number for item in items if item.error is not None]
    assert [item.number for item in started] == failed[:2]
    assert all(type(item.error) is BreakerOpen for item in items if item.error is not None)
    assert scheduler.resting == 0
    assert 4 not in failed


def test_followers_of_an_item_that_fails_are_called():
    stages = [EqualStage(5), BreakerStage(1, 10.0, True)]
    scheduler = Scheduler(Rules(workers=5, **OPTIONS), Lanes(keyed=True), stages)
    (leader, follower), effects = arrived(scheduler, [1, 2], [7, 7])
    assert effects.start == [leader]
    assert scheduler.step(deque([Failed(leader, RETRY)]), 0.0).recall
    assert type(leader.error) is BreakerOpen
    assert scheduler.step(deque([0]), 0.0).start == [follower]


def test_items_of_a_batch_that_lingers_fail_at_once():
    batches = Batches(2, 3_600.0, False)
    scheduler = BatchScheduler(batches, Rules(workers=5, **OPTIONS), Lanes(keyed=True), [BreakerStage(1, 10.0, True)])
    items, effects = arrived(scheduler, [1, 1, 1])
    (batch,) = effects.start
    assert batch.members == items[:2]
    scheduler.step(deque([Returned(batch, [RETRY, RETRY])]), 0.0)
    assert [type(item.error) for item in items] == [BreakerOpen] * 3
    assert batch.lane.held == 0


def test_a_map_whose_breaker_opens_fails_the_items_of_that_key_and_lets_others_go_on():
    def fail(item):
        if item % 2:
            raise OSError(item)
        return item

    outcomes = list(
        concurrent_map(
            fail, range(20), workers=1, key=lambda item: item % 2, errors="return",
            breaker=Breaker(2, reset=3_600, when_open="fail"),
        )
    )  # fmt: skip
    assert [one.result for one in outcomes[::2]] == list(range(0, 20, 2))
    assert [type(one.error) for one in outcomes[1::2]] == [OSError] * 2 + [BreakerOpen] * 8
    assert str(outcomes[-1].error) == "breaker: 2 calls in a row failed, key 1"


@pytest.mark.parametrize("errors", ["return", "drop"])
def test_a_breaker_that_waits_lets_every_item_be_called(errors):
    calls = []

    def fail_once(item):
        calls.append(item)
        if len(calls) <= 2:
            raise OSError(item)
        return item

    results = list(concurrent_map(fail_once, range(5), workers=1, errors=errors, breaker=Breaker(2, reset=0.01)))
    assert len(results) == {"return": 5, "drop": 3}[errors]
    assert calls == list(range(5))
