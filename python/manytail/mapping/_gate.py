"""The gate, between the admission's queue and the workers: decides which call starts now, where more than keys and
priorities decides that.

The admission says which call is next, the gate whether it may start now. A call is an item or, with `batch`, a Batch of
items, which is formed before it goes to the admission (`_batches`). A call passes the gate when a worker is free, the
slots of all rates have come (`_rates`), its key's breaker allows it (`_breaker`), no equal item is being called
(`_dedup`), and it fits the budget (`_budget`). Then it is in `ready`, and a worker takes it. Like the scheduler, which
owns it, the gate has no thread, clock, lock or I/O.

    event                    meaning
    admit(items, now)        new items
    dispatch(full, now)      put in `ready` what may start; full: the window is full, so no batch lingers
    late(call, now)          for a worker, before its call, in any thread: whether the start is too late for its slots
    missed(call)             it was too late: the call goes back and takes new slots
    succeeded(item), returned(batch, verdicts, now), failed(call, now), deferred(item)   the call has ended
    recalled(item)           a worker found the recorded result of the item: no call
    failed_for_good(item)    no call of the item follows
    recheck(lane, now)       the time has come at which a call of this key may start
    pause(lane, until)       no call of the key starts before `until`; its calls in `ready` go back
    leased(leases, now)      leases of slots that were asked for have come

    effect                   what the scheduler does
    ready                    a queue of calls for workers
    refused, answered        items that failed, or got the result of an equal item, without a call
    rechecks                 call `recheck` of that lane at that time
    leasing.to_lease         where rates are shared: ask the database for these leases
    wake_at                  call `dispatch` at that time, unless it is called earlier

A key at its limit (per_key_rate, breaker) is disabled in the admission, so that other keys start. While the whole map
is at a limit (rate, cost_rate) nothing is taken out of the admission until the slot has come. So a more urgent item
that arrives in that time goes first.

Shared rates have leased slots (`_leasing`): a call that has none goes back to the front of its key.

Invariants
    starts         calls in `ready` or with a worker: at most `workers`
    lane.pinned    the lane is disabled because of its limits, so the admission must not drop it
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from manytail import MultiQueue

from ._admission import Admission, Lane
from ._batches import Former
from ._breaker import BreakerState
from ._budget import Budget
from ._dedup import Dedup
from ._item import Batch, Item
from ._leasing import LeaseAnswer, Leasing, given_rates, is_joint
from ._options import Options
from ._rates import LATE, JointSlots, LeasedSlots, Slots
from ._types import BreakerOpen, BudgetExceeded


class Start(NamedTuple):
    """What a call got when it passed the gate."""

    cost: float
    period: int  # of its key's breaker
    slots: dict[str, float]  # by the option of each rate

    @property
    def until(self) -> float:
        """After that time the start is too late for its slots."""
        return min(self.slots.values(), default=math.inf) + LATE


def _slots(options: Options, rate: float) -> Slots | LeasedSlots:
    return Slots(rate) if options.shared is None else LeasedSlots(rate)


class LaneLimits:
    """The limits of one key."""

    __slots__ = ("breaker", "is_to_ask", "slots")

    def __init__(self, options: Options) -> None:
        self.slots: Any = JointSlots() if is_joint(options) else None
        if self.slots is None and options.per_key_rate is not None:
            self.slots = _slots(options, options.per_key_rate)
        breaker = options.breaker
        self.breaker = None if breaker is None else BreakerState(breaker.failures, breaker.reset)
        self.is_to_ask = False  # `_leasing`

    @property
    def until(self) -> float:
        """No start before that time. Infinite while a probe runs."""
        slot = -math.inf if self.slots is None else self.slots.next
        return slot if self.breaker is None else max(slot, self.breaker.until)


class Gate:
    """Decides which calls may start now."""

    def __init__(self, options: Options, admission: Admission) -> None:
        self.ready: MultiQueue[None, Item] = MultiQueue()
        self.starts: dict[Item, Start] = {}
        self.wake_at = math.inf
        # Effects, which the scheduler removes.
        self.refused: list[tuple[Item, BaseException]] = []  # no item here or in `answered` holds a slot
        self.answered: list[Item] = []
        self.rechecks: list[tuple[float, Lane]] = []
        self._options = options
        self._admission = admission
        self._ready = self.ready.add(None)
        self._given = given_rates(options)
        self._joint = is_joint(options)
        rates = {name: getattr(options, name) for name in self._given if name != "per_key_rate" and not self._joint}
        self._rates = {name: _slots(options, rate) for name, rate in rates.items()}
        self.leasing = Leasing(options)
        self._leases = options.shared is not None
        self._budget = None if options.budget is None else Budget(options.budget)
        self._unaffordable: list[Item] = []  # they fit the budget only if a running call is deferred and costs nothing
        self._within = math.inf if options.retry.within is None else options.retry.within
        self._dedup = None if options.dedup is None else Dedup(options.dedup)
        self._leaders: list[Item] = []  # followers to be admitted, because their leader has failed
        self._batched = options.batch is not None
        linger = 0.0 if options.batch is None else options.batch.linger
        in_order = options.order == "key" and options.prioritised
        self._former = Former(options.calls_items, linger, in_order)
        self._hurry = False  # the input has ended: no batch lingers
        self._breaks = options.breaker is not None
        self._refuses = options.breaker is not None and options.breaker.when_open == "fail"
        self._limits_lanes = options.per_key_rate is not None or self._breaks or self._joint
        self._changed: dict[Lane, None] = {}  # lanes whose limits may allow a call again

    @property
    def following(self) -> int:
        """Items that wait for an equal item."""
        return 0 if self._dedup is None else self._dedup.following

    @property
    def unsettled(self) -> bool:
        """`dispatch` has more to do."""
        return bool(self._leaders)

    def to_run(self) -> int:
        """Calls that run or may run."""
        return len(self.starts) + self._admission.queue.qsize() + self._admission.paused_calls_of_all()

    def _cost(self, item: Item) -> float:
        return item.cost if self._options.costed else 1.0

    # ------------------------------------------------------------------------------------------------ items come
    def admit(self, items: list[Item], now: float) -> None:
        for item in items:
            item.begun, item.last_error = False, None
        if self._refuses:
            items = [item for item in items if not self._refused(item, now)]
        self._admission.admit(self._former.add(items, now) if self._batched else items)  # type: ignore[arg-type]

    def input_ended(self) -> None:
        self._hurry = True

    def refuses(self, lane: Lane, now: float) -> bool:
        """Whether the waiting items of this key fail at once: its breaker is open, and the options say so."""
        return self._refuses and lane.limits is not None and lane.limits.breaker.is_open(now)

    def _refused(self, item: Item, now: float) -> bool:
        """Refuse the item if its key refuses items. Returns whether it did."""
        refuses = self.refuses(item.lane, now)
        if refuses:
            self.refused.append((item, self.breaker_open(item)))
        return refuses

    def _readmit(self, item: Item) -> None:
        """Admit an item without a slot again."""
        call = Batch([item]) if self._batched else item
        call.begun = False
        self._admission.readmit(call)

    # ------------------------------------------------------------------------------------------------ what starts
    def dispatch(self, full: bool, now: float) -> None:
        self._admit_again(full, now)
        self.wake_at = self._former.due
        queue, workers = self._admission.queue, self._options.workers
        while len(self.starts) < workers:
            if queue.empty():
                for slots in self._rates.values():
                    slots.idle()
                return
            due = self._next_slot(now)
            if due > now:
                self.wake_at = min(self.wake_at, due)
                return
            call = queue.get_nowait()
            if self._leases and not self._lane_has_slot(call.lane, now):
                self._put_back(call, now)
            elif self._choose(call, now):
                if not self._leases or self._has_slots(call, now):
                    self._start(call, now)
                else:
                    self._put_back(call, now)

    def _next_slot(self, now: float) -> float:
        """When the slots of all rates of the map have come. Asks for leases that are needed."""
        for name, slots in self._rates.items():
            slots.waits(now)
            if isinstance(slots, LeasedSlots) and slots.needs_lease(now):
                self.leasing.ask_for_map(name, slots)
        due = max([slots.next for slots in self._rates.values()], default=-math.inf)
        return max(due, self.leasing.map_until)

    # ------------------------------------------------------------------------------------------------ leased slots
    def _cost_of_call(self, call: Item) -> float:
        return sum(map(self._cost, call.members()))

    def _lane_has_slot(self, lane: Lane, now: float) -> bool:
        return self._joint or self._options.per_key_rate is None or self._limits_of(lane).slots.fits(now)

    def _has_slots(self, call: Item, now: float) -> bool:
        cost = self._cost_of_call(call)
        if self._joint:
            return bool(self._limits_of(call.lane).slots.fits(now, cost))
        leased: dict[str, Any] = self._rates
        return all(slots.fits(now, cost if name == "cost_rate" else 1.0) for name, slots in leased.items())

    def _put_back(self, call: Item, now: float) -> None:
        """The call waits for a lease, of its key or of the map. Asks for that of its key, if it is needed."""
        lane = call.lane
        self._admission.retry(call)
        if lane.limits is None or (slots := lane.limits.slots) is None:
            return
        if slots.needs_lease(now) and not self.leasing.ask_for_key(call, slots, self._cost_of_call(call), now):
            lane.pinned = True
            self._admission.disable(lane)
        else:
            self.recheck(lane, now)

    def leased(self, answers: Iterable[LeaseAnswer], now: float) -> None:
        for lane in self.leasing.leased(answers, self._rates):
            self.recheck(lane, now)

    def _limits_of(self, lane: Lane) -> LaneLimits:
        if lane.limits is None:
            lane.limits = LaneLimits(self._options)
        limits: LaneLimits = lane.limits
        return limits

    def _admit_again(self, full: bool, now: float) -> None:
        """Admit what may start because a call has ended or time has passed."""
        for lane in self._changed:
            self.recheck(lane, now)
        self._changed.clear()
        leaders, self._leaders = self._leaders, []
        for item in leaders:
            if not self._refused(item, now):
                self._readmit(item)
        if self._unaffordable:
            self._reconsider()
        if self._former.due < math.inf:
            due = math.inf if full or self._hurry else now
            self._admission.admit(self._former.release(due))  # type: ignore[arg-type]

    def _choose(self, call: Item, now: float) -> bool:
        """Remove from the call the items that get the result of an equal item, whose time for attempts is over, or that
        do not fit the budget. Returns whether any is left."""
        if self._batched:
            self._former.close(call)  # type: ignore[arg-type]
        chosen = call.members()
        if self._dedup is not None:
            chosen = [item for item in chosen if self._is_called(item)]
        if self._within < math.inf:
            chosen = [item for item in chosen if not self._gave_up(item, now)]
        if self._budget is not None:
            chosen = self._affordable(chosen)
        if not chosen:
            self._begin(call)
            self._admission.finished(call)
        elif isinstance(call, Batch):
            call.items = chosen
        return bool(chosen)

    def _is_called(self, item: Item) -> bool:
        assert self._dedup is not None
        if self._dedup.answered(item):
            self.answered.append(item)
            return False
        return self._dedup.leads(item)

    def is_over(self, item: Item, at: float) -> bool:
        """Whether no attempt of the item may start at that time, because its first one started too long ago."""
        return at > item.first_start + self._within

    def _gave_up(self, item: Item, now: float) -> bool:
        """Refuse the item if it was called before and no attempt may start now. Returns whether it did."""
        over = item.attempts > 0 and self.is_over(item, now)
        if over:
            self.refused.append((item, item.last_error))
        return over

    def _start(self, call: Item, now: float) -> None:
        lane, period, members = call.lane, 0, call.members()
        cost = sum(map(self._cost, members))
        taken = {name: slots.take(now, cost if name == "cost_rate" else 1.0) for name, slots in self._rates.items()}
        if self._limits_lanes:
            limits = self._limits_of(lane)
            if self._joint:
                slot: float = limits.slots.take(now)
                taken = dict.fromkeys(self._given, slot)
                self.leasing.granted -= 1
            elif limits.slots is not None:
                taken["per_key_rate"] = limits.slots.take(now)
            if limits.breaker is not None:
                period = limits.breaker.started()
            self.recheck(lane, now)
        self._begin(call)
        self._admission.keep(call)
        self.starts[call] = Start(cost, period, taken)
        for item in members:
            if item.attempts == 0:
                item.first_start = now
        if self._batched:
            for item in members:
                item.attempts += 1
        self._ready.put(call)

    def _begin(self, item: Item) -> None:
        """The call starts, or never will: a call of another priority of its key may be made ready."""
        if not item.begun:
            item.begun = True
            if self._admission.reports_starts:
                self._admission.started(item.lane)

    def late(self, item: Item, now: float) -> bool:
        """Whether the call must not begin: its slots have passed, its key pauses, the breaker has opened, or the time
        for attempts of one of its items is over."""
        start, lane = self.starts[item], item.lane
        if now > start.until or lane.paused_until > now:
            return True
        if self._within < math.inf and any(self.is_over(each, now) for each in self._called_before(item)):
            return True
        return self._breaks and bool(lane.limits.breaker.stops(start.period, now))

    def _called_before(self, call: Item) -> list[Item]:
        """The items of a call in `ready` that had an attempt before. Those of a batch count the attempt to come."""
        return [item for item in call.members() if item.attempts > self._batched]

    def missed(self, call: Item) -> None:
        start = self._end(call)
        self._admission.give_back(call)
        if self._breaks:
            call.lane.limits.breaker.undone(start.period)
        if self._batched:
            for item in call.members():
                item.attempts -= 1

    # ------------------------------------------------------------------------------------------------ calls end
    def succeeded(self, item: Item) -> None:
        start = self._end(item)
        self._spend(start.cost)
        if self._breaks:
            item.lane.limits.breaker.succeeded(start.period)
        self._answer_followers(item)

    def returned(self, batch: Batch, verdicts: Sequence[Any], now: float) -> None:
        """The call of a batch has ended. verdicts: None for each item with a result, else its verdict. For the breaker
        the call succeeded if one of the items that fn got did."""
        start = self._end(batch)
        got = set(batch.to_call())
        called = [(item, verdict) for item, verdict in zip(batch.items, verdicts, strict=True) if item in got]
        self._spend(sum(self._cost(item) for item, verdict in called if not _defers(verdict)))
        if self._breaks:
            breaker = batch.lane.limits.breaker
            if any(verdict is None for _, verdict in called):
                breaker.succeeded(start.period)
            elif all(_defers(verdict) for _, verdict in called):
                breaker.undone(start.period)
            else:
                self._count_failure(batch.lane, start, now)
        for item, verdict in zip(batch.items, verdicts, strict=True):
            if verdict is None:
                self._answer_followers(item)

    def deferred(self, item: Item) -> None:
        """The call costs nothing, and says nothing about its key."""
        start = self._end(item)
        if self._breaks:
            item.lane.limits.breaker.undone(start.period)

    def failed(self, call: Item, now: float) -> None:
        start = self._end(call)
        self._spend(start.cost)
        if self._breaks:
            self._count_failure(call.lane, start, now)

    def _count_failure(self, lane: Lane, start: Start, now: float) -> None:
        if lane.limits.breaker.failed(start.period, now):
            self.recheck(lane, now)
            self._withdraw(lane)

    def split(self, batch: Batch) -> None:
        """Admit the halves of the batch, each as a call. The first one keeps the slot. Both precede new items."""
        middle = len(batch.items) // 2
        first, second = Batch(batch.items[:middle], 0, batch.priority), Batch(batch.items[middle:], 0, batch.priority)
        self._admission.readmit(second)
        first.begun = True
        self._admission.retry(first)

    def failed_for_good(self, item: Item) -> None:
        """The item has failed for good. If others follow it, the first of them is called."""
        if self._dedup is not None and (leader := self._dedup.failed(item)) is not None:
            self._leaders.append(leader)

    def _answer_followers(self, item: Item) -> None:
        if self._dedup is not None:
            self.answered += self._dedup.succeeded(item)

    def recalled(self, item: Item) -> None:
        """The recorded result of the item was found: it costs nothing, and its followers get the result."""
        self.deferred(item)
        self._answer_followers(item)

    def _end(self, item: Item) -> Start:
        """The call has left `ready` and its worker. `dispatch` rechecks its key."""
        if item.lane.limits is not None:
            self._changed[item.lane] = None
        return self.starts.pop(item)

    def _spend(self, cost: float) -> None:
        if self._budget is not None:
            self._budget.spend(cost)

    # ------------------------------------------------------------------------------------------------ keys at a limit
    def pause(self, lane: Lane, until: float) -> None:
        self._admission.pause(lane, until)
        self._withdraw(lane)

    def recheck(self, lane: Lane, now: float) -> None:
        """Disable the lane until all its limits allow a call, or enable it."""
        until, limits = lane.paused_until, lane.limits
        if limits is not None:
            until = max(until, limits.until)
        if until <= now:
            self._admission.resume(lane)
            lane.pinned = limits is not None and limits.is_to_ask
            return
        if limits is not None:
            lane.pinned = True
            if limits.slots is not None:
                (limits.slots.waits if self._admission.has_ready(lane) else limits.slots.idle)(now)
        self._admission.disable(lane)
        if until < lane.recheck_at:
            lane.recheck_at = until
            self.rechecks.append((until, lane))

    def _withdraw(self, lane: Lane) -> None:
        """Calls of the lane that no worker has taken go back, in their order."""
        for item in reversed(list(self.starts)):
            if item.lane is lane and self._ready.discard(item):
                self.missed(item)

    def breaker_open(self, item: Item) -> BreakerOpen:
        assert self._options.breaker is not None
        error = BreakerOpen(f"breaker: {self._options.breaker.failures} calls in a row failed{item.lane.shown}")
        error.__cause__ = item.last_error
        return error

    # ------------------------------------------------------------------------------------------------ the budget
    def _running_costs(self) -> list[float]:
        return [start.cost for start in self.starts.values()]

    def _affordable(self, items: Iterable[Item]) -> list[Item]:
        assert self._budget is not None
        running, chosen = self._running_costs(), []
        for item in items:
            cost = self._cost(item)
            if self._budget.fits(cost, running):
                running.append(cost)
                chosen.append(item)
            elif self._budget.fits(cost):
                self._unaffordable.append(item)
            else:
                self._refuse(item, cost)
        return chosen

    def _reconsider(self) -> None:
        """Items that did not fit the budget fail if they never will, and are admitted again if they fit."""
        assert self._budget is not None
        items, self._unaffordable = self._unaffordable, []
        for item in reversed(items):
            cost = self._cost(item)
            if not self._budget.fits(cost):
                self._refuse(item, cost)
            elif self._budget.fits(cost, self._running_costs()):
                self._readmit(item)
            else:
                self._unaffordable.insert(0, item)

    def _refuse(self, item: Item, cost: float) -> None:
        limit = BudgetExceeded(f"budget: {self._options.budget} leaves less than {cost}, which this item costs")
        self.refused.append((item, limit if item.last_error is None else item.last_error))

    # ------------------------------------------------------------------------------------------------ the end
    def drain_lane(self, lane: Lane) -> list[Item]:
        """Take out the waiting items of a key whose breaker is open. None of them holds a slot afterwards."""
        unaffordable = [item for item in self._unaffordable if item.lane is lane]
        self._unaffordable = [item for item in self._unaffordable if item.lane is not lane]
        calls = [*self._former.drain_lane(lane), *self._admission.drain_lane(lane)]
        for call in calls:
            if isinstance(call, Batch):
                self._former.close(call)
        return unaffordable + self.flat(calls)

    def drain(self) -> list[Item]:
        """Take out every item whose call has not begun."""
        for lane in {call.lane: None for call in self.starts}:
            self._withdraw(lane)
        items = self._unaffordable + self._leaders + ([] if self._dedup is None else self._dedup.drain())
        self._unaffordable, self._leaders = [], []
        return items + self.flat([*self._former.drain(), *self._admission.drain()])

    def flat(self, calls: Iterable[Item]) -> list[Item]:
        """The items of these calls."""
        return [item for call in calls for item in call.members()]


def _defers(verdict: Any) -> bool:
    return verdict is not None and verdict.kind.value == "defer"
