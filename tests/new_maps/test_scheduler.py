"""The scheduler in situations that random worlds seldom meet."""

import math
from collections import deque

from manytail._maps.engine.events import Failed
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


def test_a_map_that_ends_asks_for_no_step_at_its_deadline():
    """A step that is due in the past would be made again and again until the last call has ended."""
    scheduler = Scheduler(Rules(workers=2, deadline=5.0), Lanes())
    first, _slow = begun(scheduler, 2, now=0.0)
    failed = Failed(first, Verdict(Kind.FAIL, error=ValueError()))
    assert scheduler.step(deque([failed]), 1.0).wake_at == math.inf
    assert scheduler.step(deque([0]), 9.0).wake_at == math.inf
    assert not scheduler.ended


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
