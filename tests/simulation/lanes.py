"""The model of what may start: slots, pauses, priorities, round robin, and the order within a key.

The model says which items may start. It is a violation if a worker takes another item, or finds none while one of these
is there.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import chain, takewhile
from typing import Any

from .settings import Settings

Error = BaseException | type[BaseException] | None  # the very object, or the type that it must have


class Violation(AssertionError):
    """A promise is broken."""


class Record:
    """One item, as the model knows it."""

    __slots__ = (
        "again", "arrived_at", "attempts", "bytes", "cost", "deferrals", "deferred", "due", "error", "first_start",
        "identity", "key", "known", "lane", "last_deferral", "last_error", "number", "part", "priority", "result",
        "size", "state", "stays", "tries",
    )  # fmt: skip

    def __init__(self, number: int, key: Any, priority: float, size: float, cost: float = 1.0) -> None:
        self.number, self.key, self.priority, self.size, self.cost = number, key, priority, size, cost
        self.arrived_at = math.inf
        self.part = 0  # of batches: items of one part are called together or in smaller parts; 0: any
        self.tries = 0  # attempts of this part
        self.identity = number  # equal items have the same
        self.known = False  # it comes with its recorded result
        self.last_error: BaseException | None = None  # of its last attempt, if another one follows
        self.last_deferral: Any = None  # the error of its last deferred call
        self.bytes = 0.0  # of the item and its result
        self.state = "coming"
        self.attempts = 0  # calls, without deferred ones
        self.first_start = math.inf  # of its first attempt
        self.deferred, self.deferrals = 0.0, 0  # seconds in all; how often
        self.due = -math.inf  # no call before that time
        self.again = False  # it was called before
        self.error: Error = None
        self.stays = False  # its failure ends the map: nothing behind it is emitted
        self.result: Any = None
        self.lane: Lane

    def __repr__(self) -> str:
        key = "" if self.key is None else f"/{self.key}"
        return f"#{self.number}{key}" + (f"@{self.priority}" if self.priority else "")


class KeyBreaker:
    """The failures of one key. Calls that started before it last opened or closed do not count."""

    def __init__(self) -> None:
        self.failures = 0  # in a row
        self.opened = False  # and not closed by a probe
        self.until = -math.inf  # no call before that time
        self.probe: Record | None = None  # its call runs, and no other may start
        self.counting: set[Record] = set()  # records whose running call counts

    def open(self, until: float) -> None:
        self.opened, self.until, self.failures = True, until, 0
        self.probe = None
        self.counting.clear()

    def close(self) -> None:
        self.opened, self.failures, self.probe = False, 0, None
        self.counting.clear()

    def rests(self, now: float) -> bool:
        return self.opened and self.until > now


class Lane:
    """The items of one key."""

    __slots__ = (
        "again", "best", "breaker", "held", "key", "line", "new", "next_start", "ordered", "paused", "running",
        "spread_end", "starts", "step", "unreported", "until", "weight",
    )  # fmt: skip

    def __init__(self, key: Any, weight: int) -> None:
        self.key, self.weight = key, weight
        self.new: dict[float, deque[Record]] = {}  # never called, by priority
        self.ordered: deque[Record] = deque()  # never called, where the calls of a key start in input order
        self.unreported: deque[Record] = deque()  # called for the first time; the start is not reported yet
        self.again: dict[float, list[Record]] = {}  # to be called again, and due
        self.line: deque[Record] = deque()  # order="key": in flight, in input order
        self.held = 0  # slots: items called and not finished
        self.running = 0  # calls under way
        self.until = -math.inf  # no call before that time
        # Starts after the pause are spread until then: so many there were, `step` seconds after one another at least.
        self.spread_end, self.starts, self.step = -math.inf, 0, 0.0
        self.next_start = -math.inf  # of a map with a gate
        self.breaker = KeyBreaker()
        self.paused = False
        self.best: float | None = None  # the priority of what may start next; None: nothing may


class Lanes:
    """All keys."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lanes: dict[Any, Lane] = {}
        self.taken = 0  # items with a worker
        self.halted = self.expired = False
        self.in_order = settings.prioritised and settings.order == "key"
        # Without retries a per_key of at least `workers` has no effect: no more calls of a key run at once, and while
        # one is deferred none starts.
        binds = settings.per_key and (settings.per_key < settings.workers or settings.retries)
        self.per_key: float = settings.per_key if binds else math.inf
        # Round robin, by priority: how often other keys were called while a key could have been; whose turn it is,
        # and its calls in that turn.
        self.waits: dict[float, dict[Any, dict[Any, int]]] = {}
        self.turns: dict[float, tuple[Lane, float]] = {}
        self.mixed = False  # by this event some items left the gate without a call, in an order that is not known
        self.disturbed = False  # an item went back before its call, which the round robin had counted: unchecked since

    def lane_of(self, record: Record) -> Lane:
        lane = self.lanes.get(record.key)
        if lane is None:
            weights = self.settings.weights
            lane = self.lanes[record.key] = Lane(record.key, 1 if weights is None else weights.get(record.key, 1))
        return lane

    def leave(self, record: Record) -> None:
        """The item is not called, and may not start."""
        lane = record.lane
        if record.again:
            lane.again[record.priority].remove(record)
        elif self.in_order:
            lane.ordered.remove(record)
        else:
            lane.new[record.priority].remove(record)

    def enter(self, record: Record) -> None:
        """The item has arrived."""
        record.state = "ready"
        lane = record.lane
        if self.in_order:
            lane.ordered.append(record)
        else:
            lane.new.setdefault(record.priority, deque()).append(record)

    # ------------------------------------------------------------------------------------------------ what may start
    def touch(self, lane: Lane) -> None:
        """The lane has changed: find what may start, and whether it lost its place in the round robin."""
        best = self._best(lane)
        if best != lane.best:
            if lane.best is not None:
                self.waits.get(lane.best, {}).pop(lane.key, None)
                if lane.best in self.turns and self.turns[lane.best][0] is lane:
                    del self.turns[lane.best]
            lane.best = best

    def _best(self, lane: Lane) -> float | None:
        if lane.paused:
            return None
        levels = [priority for priority, records in lane.again.items() if records]
        if lane.held < self.per_key:
            if self.in_order:
                first = lane.ordered[0] if lane.ordered else None
                if first is not None and (not lane.unreported or lane.unreported[0].priority == first.priority):
                    levels.append(first.priority)
            else:
                levels += [priority for priority, records in lane.new.items() if records]
        return min(levels, default=None)

    def startable(self, lane: Lane) -> int:
        """How many items of the lane workers could take one after the other. A map without keys waits for no key."""
        if lane.paused and self.settings.keyed:
            return 0
        if self.in_order:
            first = next(chain(lane.unreported, lane.ordered), None)
            fresh = sum(1 for _ in takewhile(lambda record: record.priority == first.priority, lane.ordered))
        else:
            fresh = sum(map(len, lane.new.values()))
        return sum(map(len, lane.again.values())) + int(min(fresh, self.per_key - lane.held))

    def idle(self) -> None:
        """A worker has found nothing to do."""
        if not self.halted and not self.expired:
            for lane in self.lanes.values():
                if lane.best is not None:
                    raise Violation(f"a worker finds nothing; key {lane.key} has an item of priority {lane.best}")

    # ------------------------------------------------------------------------------------------------ a start
    def start(self, record: Record, now: float) -> None:
        """A worker has taken the item and calls."""
        if self.halted or self.expired:
            raise Violation(f"{record} starts although the map was halted, or after the deadline")
        if record.state != "ready" or record.due > now:
            raise Violation(f"{record} starts while it is {record.state}; due at {record.due}")
        if record.attempts > self.settings.retries:
            raise Violation(f"{record} is called more often than retries + 1 times")
        lane = record.lane
        if lane.until > now:
            raise Violation(f"{record} starts although its key is deferred until {lane.until}")
        self.check_spread(record, now)
        self._check_slots(record, lane)
        self._check_place(record, lane)
        # Where calls of a key start in input order, a retried item waits until the items that are ready have started.
        unclear = self.mixed or (self.in_order and self.disturbed)
        for other in self.lanes.values():
            if other.best is not None and other.best < record.priority and not unclear:
                raise Violation(f"{record} starts before key {other.key}, which has priority {other.best}")
        if self.settings.keyed and not self.settings.nested and not self.disturbed:
            self._check_waits(lane, record.priority)
            self._check_turn(lane, record.priority)
        self._take(record, lane)
        if lane.best is None:  # its turn is over, also if it was not known that it waits
            self.turns.pop(record.priority, None)

    def check_spread(self, record: Any, now: float) -> None:
        lane = record.lane
        if lane.spread_end > now:
            early = lane.until + lane.starts * lane.step - now
            if early > 1e-9:
                raise Violation(f"{record} starts {early} s before its turn after the pause of its key")
            lane.starts += 1

    def _check_slots(self, record: Record, lane: Lane) -> None:
        per_key = self.settings.per_key
        if per_key and lane.running >= per_key:
            raise Violation(f"{record} starts beyond per_key")
        if not record.again and lane.held >= self.per_key:
            raise Violation(f"{record} starts although items that wait for a retry hold all slots of its key")

    def _check_place(self, record: Record, lane: Lane) -> None:
        """Retried items before new ones of their key and priority; new ones in input order."""
        again = lane.again.get(record.priority, [])
        if record.again:
            if record not in again:
                raise Violation(f"{record} starts before its time")
        elif again and not self.disturbed:
            raise Violation(f"{record} overtakes {again}, of the same key and priority, which are called again")
        else:
            first = (lane.ordered if self.in_order else lane.new[record.priority])[0]
            if first is not record and not self.disturbed:
                raise Violation(f"{record} overtakes {first}, of the same key and priority")

    def _check_waits(self, lane: Lane, level: float) -> None:
        """While a key could start, no other key of its priority starts more often than its weight allows."""
        waits = self.waits.setdefault(level, {})
        for other in self.lanes.values():
            if other is not lane and other.best == level:
                calls = waits.setdefault(other.key, {})
                calls[lane.key] = calls.get(lane.key, 0) + 1
                if calls[lane.key] > lane.weight:
                    raise Violation(f"key {lane.key} starts {calls[lane.key]} times while key {other.key} waits")
        waits.pop(lane.key, None)

    def _check_turn(self, lane: Lane, level: float) -> None:
        """A key that always has more items gets as many calls in its turn as its weight says."""
        last, calls = self.turns.get(level, (None, 0.0))
        if last is None:
            calls = math.inf  # the beginning of this turn was not seen: it may end at any time
        elif last is not lane:
            if calls < last.weight:
                raise Violation(f"key {last.key} has a turn of {calls} calls only")
            calls = 1
        elif calls < lane.weight or calls == math.inf:
            calls += 1
        else:
            calls = 1
        self.turns[level] = (lane, calls)

    def _take(self, record: Record, lane: Lane) -> None:
        if record.again:
            lane.again[record.priority].remove(record)
        else:
            lane.held += 1
            if self.in_order:
                lane.ordered.remove(record)
                lane.unreported.append(record)
            else:
                lane.new[record.priority].remove(record)
        record.state = "taken"
        record.attempts += 1
        self.taken += 1
        lane.running += 1
        self.touch(lane)
