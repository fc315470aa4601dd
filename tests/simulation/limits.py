"""The model of what a gate decides: slots of rates, breakers of keys, budget and concurrency.

Besides the events of every map, the world tells it what it sees in the gate: an item is in `ready`, and when the next
slots of each rate come; it went back; it failed without a call. Each of these is checked against the contract: whether
it is allowed, and, when a worker has nothing to do, whether something else was required.

    state      the item is
    taken      in `ready` or with a worker
"""

from __future__ import annotations

import math
from collections import Counter, deque
from heapq import heappush
from typing import Any

from manytail import BreakerOpen, BudgetExceeded, DeadlineExceeded

from .adaptive import Allowed
from .lanes import Error, Lane, Record
from .model import Model
from .settings import Settings

LATE, GRACE = 0.1, 0.05  # seconds that a start, and a slot that is taken, may be behind the slot
NEARLY = 1e-9


class GatedModel(Model):
    """A map with a gate."""

    def __init__(self, settings: Settings, worker_window: int) -> None:
        super().__init__(settings, worker_window)
        self.offered: dict[Record, float] = {}  # in `ready`, and until when they may start
        self.begun: dict[Record, None] = {}  # with a worker
        self.late: dict[Record, float] = {}  # with a worker that took them too late and has not reported it
        self.refused: dict[Record, Error] = {}  # by this event
        self.leaders: dict[int, Record] = {}  # by identity: of equal items the one that is called
        self.following: dict[Record, None] = {}
        self.leads_next: dict[Record, None] = {}  # become leaders when the model next checks what may start
        self.answered: list[Record] = []  # by this event
        self.results: dict[int, Any] = {}  # by identity, the newest last
        self.fresh_results: dict[int, Any] = {}  # of this event: several at once where calls get batches
        self.fails_last = False  # this event finished results, and after them the item that fails the map
        self.spent = 0.0
        # By limit and, for that of a key, the key: from when on it has slots, at the earliest and at the latest.
        self.next_slots: dict[Any, tuple[float, float]] = {}
        self.given_back: Counter[Any] = Counter()  # by what did not begin
        self.begins: dict[Any, list[tuple[float, float]]] = {}  # of the map and of each key: times and costs of starts
        self.changed: dict[Lane, None] = {}  # lanes where something that waited for a call may continue
        self.without_slot: dict[Lane, None] = {}  # lanes that wait for a slot of their key
        self.at_once = Allowed(settings)

    @property
    def busy(self) -> list[Record]:
        return [*self.offered, *self.begun, *self.late]

    # ------------------------------------------------------------------------------------------------ what is seen
    def dispatch_begins(self, now: float) -> None:
        self.leads_next.clear()
        if self.open:
            for lane in self.changed:
                self._resume(lane, now)
            self.changed.clear()

    def offer(self, record: Record, until: float, now: float) -> None:
        """The item has passed the gate."""
        lane, settings = record.lane, self.settings
        self.at_once.begin(record, len(self.busy))
        self.demand(
            not lane.breaker.rests(now), f"{record} starts while its breaker is open until {lane.breaker.until}"
        )
        self.demand(lane.breaker.probe is None, f"{record} starts beside the probe {lane.breaker.probe}")
        self.demand(not self.is_over(record, now), f"{record} starts, too long after its first start")
        for each in self.members(record):
            if each.attempts == 0 and not each.deferrals:
                each.first_start = now
        self.demand(lane.next_start <= now, f"{record} starts before {lane.next_start}, after the pause of its key")
        self.start(record, now)
        if lane.spread_end > now:
            lane.next_start = min(now + lane.step, lane.spread_end)
        if settings.dedup:
            self.check_equal(record)
        if record in lane.unreported:
            lane.unreported.remove(record)
            self.touch(lane)
        self._take_slots(record, until, now)
        running = sum(other.cost for other in self.busy) + record.cost
        for name, limit, total in self._sums(running):
            self.demand(total <= limit, f"{record} starts, which makes {total} of {name} {limit}")
        if settings.breaker:
            lane.breaker.counting.add(record)
            if lane.breaker.opened:
                lane.breaker.probe = record
        self.offered[record] = until
        self.limit(lane, now)

    def is_over(self, record: Record, at: float, counted: int = 0) -> bool:
        """Whether no attempt of the item, or of one of a batch, may start then, because its first one started too long
        before. counted: 1 if its attempts count that one."""
        within = math.inf if self.settings.within is None else self.settings.within
        called = [each for each in self.members(record) if each.attempts > counted or each.deferrals]
        return any(at > each.first_start + within for each in called)

    def members(self, record: Record) -> list[Record]:
        return [record]

    def _sums(self, running: float) -> list[tuple[str, float, float]]:
        """Of budget and concurrency: name, amount, and what is taken."""
        settings = self.settings
        sums = [("budget", settings.budget, self.spent + running), ("concurrency", settings.concurrency, running)]
        return [(name, limit * (1 + NEARLY), total) for name, limit, total in sums if limit is not None]

    def check_equal(self, record: Record) -> None:
        leader = self.leaders.setdefault(record.identity, record)
        self.demand(leader is record, f"{record} is called beside {leader}, which is equal")
        self.demand(
            record.identity not in self.results, f"{record} is called though the result of an equal item is known"
        )

    def _take_slots(self, record: Record, until: float, now: float) -> None:
        """No start is before the slot of each rate. Slots are 1/rate apart, in cost cost/cost_rate."""
        rates = any(self.settings.limits[name] is not None for name in ("rate", "cost_rate", "per_key_rate"))
        self.demand(not rates or until <= now + LATE + NEARLY, f"{record} may start until {until}")
        for name in ("rate", "cost_rate", "per_key_rate"):
            rate = self.settings.limits[name]
            if rate is not None:
                place = name, record.key if name == "per_key_rate" else None
                first, last = self.next_slots.get(place, (-math.inf, -math.inf))
                self.demand(first <= now + NEARLY, f"{record} starts before its slot of {place}, {first}")
                # A slot of long ago is taken only if something was given back.
                first = max(first, now - GRACE - self.given_back[place] / rate)
                taken = self._cost(name, record) / rate
                self.next_slots[place] = first + taken, max(last, now) + taken

    def see_slots(self, after: dict[Any, float]) -> None:
        """From when on rates have slots, after all starts of an event."""
        for place, at in after.items():
            first, last = self.next_slots.get(place, (-math.inf, at))
            said = f"slots of {place} from {at} (expected: {first} to {last})"
            self.demand(first - NEARLY <= at <= last + NEARLY, said)
            self.next_slots[place] = at, at

    def _cost(self, name: str, record: Record) -> float:
        """What it takes of a rate. A batch takes the sum of its items'."""
        return record.cost if name == "cost_rate" else float(len(getattr(record, "records", "1")))

    def comes_late(self, record: Record, now: float) -> None:
        """A worker has taken it and does not begin its call."""
        until = self.late[record] = self.offered.pop(record)
        over = self.is_over(record, now, 1)
        self.demand(now > until - NEARLY or over, f"{record} is not too late for {until}")

    def take_back(self, record: Record, now: float) -> None:
        """The item went back from `ready`, or from its worker because it was too late for its slots."""
        lane = record.lane
        if self.late.pop(record, None) is None:
            del self.offered[record]
            deadline = self.deadline_at <= now
            self.demand(lane.until >= now or lane.breaker.opened or deadline, f"{record} goes back for no reason")
        self.disturbed = True
        self.at_once.undo(record)
        self.taken -= 1
        lane.running -= 1
        for place in self.next_slots:
            if place[1] in (None, record.key):
                self.given_back[place] += self._cost(place[0], record)
        self.undo(record)
        self.go_back(record)

    def go_back(self, record: Record) -> None:
        record.attempts -= 1
        record.state, record.again = "ready", True
        record.lane.again.setdefault(record.priority, []).append(record)
        self.touch(record.lane)
        if self.expired:
            self.fail(record, DeadlineExceeded)

    def shut_down(self) -> None:
        """The map is halted: the items in `ready` are gone."""
        self.taken -= len(self.offered)
        self.offered.clear()

    def begin(self, record: Record, now: float) -> None:
        """Its call begins."""
        until, lane, settings = self.offered.pop(record), record.lane, self.settings
        self.demand(lane.until <= now, f"the call of {record} begins although its key is deferred until {lane.until}")
        self.demand(not lane.breaker.rests(now), f"the call of {record} begins while its breaker is open")
        self.demand(now <= until + NEARLY, f"the call of {record} begins at {now}, which is after {until}")
        over = self.is_over(record, now, 1)
        self.demand(not over, f"an attempt of {record} begins too long after the first one")
        self.begun[record] = None
        for option, key in (("rate", None), ("cost_rate", None), ("per_key_rate", record.key)):
            rate = settings.limits[option]
            if rate is not None:
                starts = self.begins.setdefault((option, key), [])
                starts.append((now, self._cost(option, record)))
                self._check_windows((option, key), rate, starts)

    def _check_windows(self, place: Any, rate: float, starts: list[tuple[float, float]]) -> None:
        """In any t seconds at most 1 + rate * (t + LATE) calls start, and what was given back. In cost, the last call's
        cost is added."""
        now, last = starts[-1]
        total = 0.0
        for begin, cost in reversed(starts[:-1]):
            total += cost
            most = rate * (now - begin + LATE) + self.given_back[place] + NEARLY
            self.demand(total <= most, f"{place}: {total} and {last} start in {now - begin} s")

    def withdraw(self, record: Record) -> None:
        self.leave(record)
        if record.again:
            record.lane.held -= 1
            record.again = False
        self.touch(record.lane)

    def come_back(self, record: Record) -> None:
        """The item goes to the front and needs a slot again."""
        record.state = "ready"
        if self.in_order:
            record.lane.ordered.appendleft(record)
        else:
            record.lane.new.setdefault(record.priority, deque()).appendleft(record)
        self.touch(record.lane)

    def follow(self, record: Record, leader: Record, passed: set[Record]) -> None:
        """It waits for an equal item, without a slot. `passed`: items that this event let through the gate."""
        called = (
            leader in passed
            or leader is self.leaders.get(record.identity)
            or leader.state in ("ready", "refused")
        )
        self.demand(
            called and leader is not record and leader.identity == record.identity, f"{record} follows {leader}"
        )
        self.withdraw(record)
        self.disturbed = self.mixed = True
        record.state = "follows"
        self.following[record] = None

    def lead(self, record: Record) -> None:
        """Its leader has failed, so it is called itself."""
        leader = self.leaders.get(record.identity)
        self.demand(leader is None or leader in self.refused, f"{record} follows {leader} no longer")
        self.leaders[record.identity] = record
        del self.following[record]
        self.come_back(record)
        self.leads_next[record] = None

    def answer(self, record: Record, result: Any) -> None:
        """It gets the result of an equal item."""
        known = [self.results.get(record.identity), self.fresh_results.get(record.identity)]
        self.demand(any(result is one for one in known), f"{record} has the result {result} (expected: one of {known})")
        if record.state == "follows":
            del self.following[record]
        else:
            self.withdraw(record)
            self.disturbed = self.mixed = True
        record.state, record.result = "answered", result
        self.answered.append(record)

    def refuse(self, record: Record, error: Any, now: float) -> None:
        """The item fails without a call."""
        lane, settings = record.lane, self.settings
        if type(error) is BreakerOpen:
            right = settings.breaker_open == "fail" and lane.breaker.rests(now)
            self.demand(right, f"{record} fails with {error!r}, its breaker is open: {lane.breaker.rests(now)}")
            self.demand(
                error.__cause__ is record.last_error,
                f"{record} fails because of {error.__cause__!r} (expected: {record.last_error!r})",
            )
            wanted: Error = error
        elif self.is_over(record, now) and error is (record.last_error or record.last_deferral):
            wanted = error
            self.disturbed = True
        else:
            self.demand(
                any(total > limit for _, limit, total in self._sums(0.0 + record.cost)),
                f"{record} fails with {error!r}",
            )
            never = settings.concurrency is not None and record.cost > settings.concurrency
            spends = settings.budget is not None and self.spent + record.cost > settings.budget
            wanted = (record.last_error or BudgetExceeded) if spends else ValueError
            self.demand(spends or never, f"{record} fails with {error!r}")
            self.disturbed = True
        if self.leaders.get(record.identity) is record:
            del self.leaders[record.identity]  # an equal item may be called by the same event
        self.refused[record] = wanted
        self.mixed = True
        if record.state == "follows":
            del self.following[record]
        elif record.state == "resting":
            self.timers = [entry for entry in self.timers if entry[2] is not record]
            self.timers.sort()
            self.resting -= 1
            lane.held -= 1
        else:
            self.demand(record.state == "ready", f"{record} fails without a call while it is {record.state}")
            self.withdraw(record)
        record.state = "refused"
        self.touch(lane)

    def fail_refused(self) -> None:
        """Complete the items that were answered, then fail those that were refused.

        Followers of a result of a batch are completed even if another item of the batch has failed the map."""
        self.mixed = False
        self.bulk = self.bulk or bool(self.answered)
        failing, self.failing = self.failing, None if self.fails_last else self.failing
        for record in self.answered:
            self.remembered += 1
            self._complete(record)
        self.failing, self.fails_last = failing, False
        self.answered.clear()
        self.fresh_results.clear()
        self.bulk = self.bulk or bool(self.refused)
        for record, error in self.refused.items():
            self.together.add(record)
            self.fail(record, error)
        self.refused.clear()

    def check_gate(self, now: float) -> None:
        """After each event."""
        for record in self.offered:
            right = not record.lane.breaker.opened or record.lane.breaker.probe is record
            self.demand(right, f"{record} stands in `ready`, and its breaker has opened")
        if self.open and self.settings.breaker_open == "fail" and self.settings.breaker:
            for record in self.flying:
                waits = record.state in ("ready", "resting") and record not in self.leads_next
                self.demand(
                    not (waits and record.lane.breaker.rests(now)), f"{record} waits for a breaker that is open"
                )

    def dispatched(self, now: float, wake_at: float, allowed: int) -> None:
        """Check that nothing that could start was held back."""
        if not self.open:
            return
        self.at_once.dispatched(len(self.busy), allowed)
        if len(self.busy) >= allowed or self._may_wait_for_room():
            return
        due = max([at for (_, key), (_, at) in self.next_slots.items() if key is None], default=-math.inf)
        if due <= now - NEARLY:
            self.nothing_waits(now)
        elif any(lane.best is not None for lane in self.lanes.values()):
            self.demand(wake_at <= due + NEARLY, f"the timer rings at {wake_at}, the next slot comes at {due}")

    def _may_wait_for_room(self) -> bool:
        """Whether an item may have to wait for the end of a call."""
        running = sum(other.cost for other in self.busy)
        waiting = [record.cost for record in self.flying if record.state == "ready"]
        full = any(total > limit for cost in waiting for _, limit, total in self._sums(running + cost))
        return bool(self.busy) and (full or (self.settings.group > 1 and bool(self._sums(running))))

    def nothing_waits(self, now: float) -> None:
        """A worker is free, and all slots have come."""
        super().idle()

    def idle(self) -> None:
        """A worker finds nothing: the gate may hold it back, see `dispatched`."""

    # ------------------------------------------------------------------------------------------------ calls end
    def succeeded(self, record: Record, result: Any) -> None:
        del self.begun[record]
        self.at_once.ended(record, {"result"})
        self.spent += record.cost
        breaker = record.lane.breaker
        if record in breaker.counting:
            breaker.counting.remove(record)
            breaker.failures = 0
            if breaker.probe is record:
                breaker.close()
        self.ended_call(record)
        self.keep_result(record, result)
        super().succeeded(record, result)

    def keep_result(self, record: Record, result: Any) -> None:
        if self.settings.dedup:
            del self.leaders[record.identity]
            self.results[record.identity] = self.fresh_results[record.identity] = result
            if len(self.results) > self.settings.dedup:
                del self.results[next(iter(self.results))]

    def failed(self, record: Record, kind: str, seconds: float, error: Error, stamp: float, pause: float) -> None:
        del self.begun[record]
        if kind in ("retry", "defer") and self.is_over(record, stamp + seconds):
            kind = "fail" if kind == "retry" else "over"
        self.at_once.ended(record, {kind})
        if kind in ("defer", "over"):
            self.undo(record)
        else:
            self.spent += record.cost
            self.count_failure(record, stamp)
        super().failed(record, kind, seconds, error, stamp, pause)
        if kind in ("defer", "over") and not self.expired:
            self.limit(record.lane, stamp)

    def fail(self, record: Record, error: Error) -> None:
        if self.leaders.get(record.identity) is record:
            del self.leaders[record.identity]
        super().fail(record, error)

    def count_failure(self, record: Record, stamp: float) -> None:
        breaker = record.lane.breaker
        self.ended_call(record)
        if record not in breaker.counting:
            return
        breaker.counting.remove(record)
        breaker.failures += 1
        if breaker.probe is record or breaker.failures >= self.settings.breaker:
            breaker.open(stamp + self.settings.breaker_reset)
            self.limit(record.lane, stamp)

    def undo(self, record: Record) -> None:
        breaker = record.lane.breaker
        breaker.counting.discard(record)
        if breaker.probe is record:
            breaker.probe = None
        self.ended_call(record)

    def ended_call(self, record: Record) -> None:
        if self.settings.breaker or self.settings.per_key_rate:
            self.changed[record.lane] = None

    # ------------------------------------------------------------------------------------------------ keys at a limit
    def push_timer(self, at: float, what: Record | Lane) -> None:
        heappush(self.timers, (at, next(self.numbers), what))

    def defer_lane(self, lane: Lane, until: float, stamp: float) -> None:
        self.pause_lane(lane, until, stamp)
        self.limit(lane, stamp)

    def check_room(self, room: int, window: int) -> None:
        """Where a limit holds back the next item, the window may grow or not: other items may wait for their keys."""
        held_back = any(limit is not None for limit in self.settings.limits.values())
        if held_back and window == self.window and self._grows():
            closed = self.halted or self.ended or self._bytes_are_used_up()
            self.demand(room == (0 if closed else window - self.in_flight), f"room for {room}, window {window}")
        else:
            super().check_room(room, window)

    def blocked_until(self, lane: Lane) -> float:
        if lane.breaker.probe is not None:
            return math.inf
        return max(lane.until, lane.next_start, lane.breaker.until if lane.breaker.opened else -math.inf)

    def limit(self, lane: Lane, now: float) -> None:
        until = self.blocked_until(lane)
        if until > now and not self.expired:
            lane.paused = True
            if self._slot_of(lane) < until < math.inf:  # else the timer may be that of the slot
                heappush(self.timers, (until, next(self.numbers), lane))
            self.touch(lane)
        if (lane in self.without_slot or self._slot_of(lane) > now) and not self.expired:
            lane.paused = True
            self.without_slot[lane] = None
            self.touch(lane)

    def _slot_of(self, lane: Lane) -> float:
        """When the next slot of the key's own rate comes, at the latest."""
        return self.next_slots.get(("per_key_rate", lane.key), (-math.inf, -math.inf))[1]

    def _resume(self, lane: Lane, now: float) -> None:
        lane.paused = False
        self.limit(lane, now)
        self.touch(lane)

    def ticked(self, now: float, overdue: list[tuple[Record, BaseException]], slack: float) -> None:
        for lane in [lane for lane in self.without_slot if self._slot_of(lane) <= now]:
            del self.without_slot[lane]
            self._resume(lane, now)
        self.at_once.overdue.update(record for record, error in overdue if type(error) is TimeoutError)
        super().ticked(now, overdue, slack)

    def lane_is_due(self, lane: Lane, now: float) -> None:
        self._resume(lane, now)

    # ------------------------------------------------------------------------------------------------ at the end
    def _expire(self) -> None:
        super()._expire()
        if not self.halted:
            self.following.clear()

    def check_end(self, scheduler: Any) -> None:
        gate = scheduler.gate
        if not self.halted:
            left = [*gate.starts, *gate.rechecks, *gate.refused, *gate.answered, *gate.leaders]
            left += [] if gate._dedup is None or self.expired else [*gate._dedup._leaders, *gate._dedup._followers]
            self.demand(not left and gate.ready.empty(), f"left in the gate: {left}")
        super().check_end(scheduler)
