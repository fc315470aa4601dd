"""The gate: stands between the admission's queue and the workers where more than keys and priorities decides what starts, and when.

The admission says which item is next; the gate whether it may start now. An item passes when a worker is free, the slots of all rates have come
(`_rates`), its key's breaker lets it (`_breaker`) and the budget has room for it (`_budget`). Then it stands in `ready`, and a worker takes it. Like
the scheduler, which owns it, the gate has no thread, clock, lock or I/O.

    event                    meaning
    admit(items, now)        new items; those whose key fails at once come back in `refused`
    dispatch(now)            let pass what may start; sets `wake_at`: when to ask again, unless something ends before
    late(item, now)          for the worker, before its call, in any thread: whether the start is too late for its slots
    missed(item)             it was: the item takes new ones
    succeeded(item), failed(item, now), deferred(item)   the call has ended
    look(lane, now)          the time has come at which something of this key may start
    pause(lane, until)       nothing of the key starts before `until`; what stands in `ready` of it goes back

A key at its limit (per_key_rate, breaker) is disabled in the admission, so that others go on; the whole map at a limit (rate, cost_rate) holds back
what comes next, and takes nothing out of the admission until the slot has come: so a more urgent item that arrives meanwhile goes first.

Invariants
    starts     items that stand in `ready` or with a worker: at most `workers`
    lane.pinned    the lane is disabled, because of its limits: it must not be forgotten
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from manytail import MultiQueue

from ._admission import Admission, Lane
from ._breaker import Breaker
from ._budget import Budget
from ._options import Options
from ._rates import LATE, Slots
from ._types import BreakerOpen, BudgetExceeded

if TYPE_CHECKING:
    from ._scheduler import Item


class Start(NamedTuple):
    """What an item got when it passed the gate."""

    cost: float
    period: int  # of its key's breaker
    slots: dict[str, float]  # of each rate, by the name of its option

    @property
    def until(self) -> float:
        """The start is too late for its slots after that."""
        return min(self.slots.values(), default=math.inf) + LATE


class LaneLimits:
    """The limits of one key."""

    __slots__ = ("breaker", "slots")

    def __init__(self, options: Options) -> None:
        self.slots = Slots(options.per_key_rate) if options.per_key_rate is not None else None
        self.breaker = Breaker(options.breaker, options.breaker_reset) if options.breaker else None

    @property
    def until(self) -> float:
        """No start before; infinite while a probe runs."""
        slot = -math.inf if self.slots is None else self.slots.next
        return slot if self.breaker is None else max(slot, self.breaker.until)


class Gate:
    """What may start now."""

    def __init__(self, options: Options, admission: Admission) -> None:
        self.ready: MultiQueue[None, Item] = MultiQueue()
        self.starts: dict[Item, Start] = {}
        self.wake_at = math.inf
        # Effects, which the scheduler takes away.
        self.refused: list[tuple[Item, BaseException]] = []  # items that fail without a call; they hold no slot
        self.looks: list[tuple[float, Lane]] = []  # call `look` then
        self._options = options
        self._admission = admission
        self._ready = self.ready.add(None)
        rates = {"rate": options.rate, "cost_rate": options.cost_rate}
        self._rates = {name: Slots(rate) for name, rate in rates.items() if rate is not None}
        self._budget = None if options.budget is None else Budget(options.budget)
        self._unaffordable: list[Item] = []  # for the time being: a running call may be deferred and cost nothing
        self._breaks = options.breaker > 0
        self._refuses = self._breaks and options.breaker_open == "fail"
        self._limits_lanes = options.per_key_rate is not None or options.breaker > 0
        self._changed: dict[Lane, None] = {}  # its limits may let it go on

    @property
    def waiting(self) -> int:
        """Items that wait for the budget."""
        return len(self._unaffordable)

    # ------------------------------------------------------------------------------------------------ items come
    def admit(self, items: list[Item], now: float) -> None:
        for item in items:
            item.begun, item.last_error = False, None
        if self._refuses:
            refused = [item for item in items if self.refuses(item.lane, now)]
            self.refused += [(item, self.breaker_open(item)) for item in refused]
            items = [item for item in items if not self.refuses(item.lane, now)] if refused else items
        self._admission.admit(items)

    def refuses(self, lane: Lane, now: float) -> bool:
        """Whether what waits of this key fails at once."""
        return self._refuses and lane.limits is not None and lane.limits.breaker.is_open(now)

    # ------------------------------------------------------------------------------------------------ what starts
    def dispatch(self, now: float) -> None:
        self.wake_at = math.inf
        for lane in self._changed:
            self.look(lane, now)
        self._changed.clear()
        if self._unaffordable:
            self._reconsider()
        queue, rates = self._admission.queue, self._rates.values()
        while len(self.starts) < self._options.workers:
            if queue.empty():
                for slots in rates:
                    slots.idle()
                return
            for slots in rates:
                slots.waits(now)
            due = max([slots.next for slots in rates], default=-math.inf)
            if due > now:
                self.wake_at = due
                return
            item = queue.get_nowait()
            cost = item.cost if self._options.costed else 1.0
            if self._budget is None or self._budget.fits(cost, self._running_costs()):
                self._start(item, cost, now)
            else:
                self._unaffordable.append(item)
                self._reconsider()

    def _start(self, item: Item, cost: float, now: float) -> None:
        lane, period = item.lane, 0
        taken = {name: slots.take(now, cost if name == "cost_rate" else 1.0) for name, slots in self._rates.items()}
        if self._limits_lanes:
            if lane.limits is None:
                lane.limits = LaneLimits(self._options)
            if lane.limits.slots is not None:
                taken["per_key_rate"] = lane.limits.slots.take(now)
            if lane.limits.breaker is not None:
                period = lane.limits.breaker.started()
            self.look(lane, now)
        self._begin(item)
        self.starts[item] = Start(cost, period, taken)
        self._ready.put(item)

    def _begin(self, item: Item) -> None:
        """It starts, or never will: the next one of its key may."""
        if not item.begun:
            item.begun = True
            if self._admission.reports_starts:
                self._admission.started(item.lane)

    def late(self, item: Item, now: float) -> bool:
        return now > self.starts[item].until

    def missed(self, item: Item) -> None:
        start = self._end(item)
        self._admission.give_back(item)
        if self._breaks:
            item.lane.limits.breaker.undone(start.period)

    # ------------------------------------------------------------------------------------------------ calls end
    def succeeded(self, item: Item) -> None:
        start = self._end(item)
        self._spend(start)
        if self._breaks:
            item.lane.limits.breaker.succeeded(start.period)

    def deferred(self, item: Item) -> None:
        """It costs nothing, and says nothing about its key."""
        start = self._end(item)
        if self._breaks:
            item.lane.limits.breaker.undone(start.period)

    def failed(self, item: Item, now: float) -> None:
        start = self._end(item)
        self._spend(start)
        if self._breaks and item.lane.limits.breaker.failed(start.period, now):
            self.look(item.lane, now)
            self._recall(item.lane)

    def _end(self, item: Item) -> Start:
        """It is no longer in `ready` or with a worker: its key may go on."""
        if item.lane.limits is not None:
            self._changed[item.lane] = None
        return self.starts.pop(item)

    def _spend(self, start: Start) -> None:
        if self._budget is not None:
            self._budget.spend(start.cost)

    # ------------------------------------------------------------------------------------------------ keys at their limit
    def pause(self, lane: Lane, until: float) -> None:
        self._admission.pause(lane, until)
        self._recall(lane)

    def look(self, lane: Lane, now: float) -> None:
        """Disable the lane until all its limits let it go on, or enable it."""
        until, limits = lane.paused_until, lane.limits
        if limits is not None:
            until = max(until, limits.until)
        if until <= now:
            self._admission.resume(lane)
            lane.pinned = False
            return
        if limits is not None:
            lane.pinned = True
            if limits.slots is not None:
                (limits.slots.waits if self._admission.has_ready(lane) else limits.slots.idle)(now)
        self._admission.disable(lane)
        if until < math.inf:
            self.looks.append((until, lane))

    def _recall(self, lane: Lane) -> None:
        """What no worker has taken goes back, in its order."""
        for item in reversed(list(self.starts)):
            if item.lane is lane and self._ready.discard(item):
                self.missed(item)

    def breaker_open(self, item: Item) -> BreakerOpen:
        error = BreakerOpen(f"breaker: {self._options.breaker} calls in a row failed{'' if item.key is None else f', key {item.key!r}'}")
        error.__cause__ = item.last_error
        return error

    # ------------------------------------------------------------------------------------------------ the budget
    def _running_costs(self) -> list[float]:
        return [start.cost for start in self.starts.values()]

    def _reconsider(self) -> None:
        """Items that were not affordable: they fail if they never will be, and try again where there is room."""
        assert self._budget is not None
        items, self._unaffordable = self._unaffordable, []
        for item in reversed(items):
            cost = item.cost if self._options.costed else 1.0
            if not self._budget.fits(cost):
                self._begin(item)
                self._admission.finished(item)
                limit = BudgetExceeded(f"budget: {self._options.budget} leaves less than {cost}, which this item costs")
                self.refused.append((item, item.last_error or limit))
            elif self._budget.fits(cost, self._running_costs()):
                self._admission.retry(item)
            else:
                self._unaffordable.insert(0, item)

    # ------------------------------------------------------------------------------------------------ the end
    def drain_lane(self, lane: Lane) -> list[Item]:
        """Take out what waits of a key, after its breaker has opened. None of these items holds a slot afterwards."""
        unaffordable = [item for item in self._unaffordable if item.lane is lane]
        self._unaffordable = [item for item in self._unaffordable if item.lane is not lane]
        for item in unaffordable:
            self._begin(item)
            self._admission.finished(item)
        return unaffordable + self._admission.drain_lane(lane)

    def drain(self) -> list[Item]:
        """Take out everything whose call has not begun."""
        for lane in {item.lane: None for item in self.starts}:
            self._recall(lane)
        items, self._unaffordable = self._unaffordable, []
        return items + self._admission.drain()
