"""The scheduler in situations that random worlds seldom meet."""

import math
from collections import deque

from manytail._maps.engine.events import Failed, Recalled
from manytail._maps.engine.item import Item, Kind, Verdict
from manytail._maps.engine.lanes import Lanes
from manytail._maps.engine.scheduler import Rules, Scheduler


def begun(scheduler, number, now):
    """That many items arrive. Returns them, with a call of each in a worker."""
    items = [Item(each, number=each) for each in range(number)]
    lanes = scheduler.lanes
    for item in items:
        lanes.assign(item)
    effects = scheduler.step(deque([items]), now)
    assert effects.start == items
    for item in items:
        item.began = now
    return items


def test_a_map_that_has_failed_waits_for_a_running_call_until_its_deadline():
    scheduler = Scheduler(Rules(workers=2, deadline=5.0), Lanes())
    first, slow = begun(scheduler, 2, now=0.0)
    error = ValueError()
    effects = scheduler.step(deque([Failed(first, Verdict(Kind.FAIL, error=error))]), 1.0)
    assert (effects.wake_at, effects.recall) == (5.0, True)
    assert scheduler.step(deque([Recalled([])]), 1.0).cancel == []
    assert scheduler.step(deque([0]), 5.0).recall
    effects = scheduler.step(deque([Recalled([])]), 5.0)
    assert [call for call, _ in effects.cancel] == [slow]
    assert effects.wake_at == math.inf
    effects = scheduler.step(deque([Failed(slow, Verdict(Kind.FAIL, error=effects.cancel[0][1]))]), 5.0)
    assert effects.ended
    assert scheduler.error is error


def test_timeouts_are_in_the_order_in_which_calls_began():
    """The first call was handed first, and a worker began it before a call that was handed after it."""
    scheduler = Scheduler(Rules(workers=3, timeout=10.0), Lanes())
    (early,) = begun(scheduler, 1, now=0.0)
    (late,) = begun(scheduler, 1, now=8.0)
    early.began = 7.0
    effects = scheduler.step(deque([0]), 10.0)
    assert (effects.cancel, effects.wake_at) == ([], 17.0)
    assert [call for call, _ in scheduler.step(deque([0]), 17.0).cancel] == [early]
    assert [call for call, _ in scheduler.step(deque([0]), 18.0).cancel] == [late]
