"""The model of batches: which items one call gets, when it may start, and what follows for each of them.

Here a call is a `Unit` of records. The scheduler may choose which batches to form, within the contract. So the model
does not predict slots and the round robin of keys. It checks what is promised of each call and of each item.
"""

from __future__ import annotations

from itertools import count
from typing import Any, NamedTuple

from manytail import DeadlineExceeded

from .lanes import Lane, Record
from .limits import NEARLY, GatedModel
from .settings import Settings


class Unit:
    """The records of one call."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        first = records[0]
        self.lane, self.key, self.priority, self.number = first.lane, first.key, first.priority, first.number

    @property
    def cost(self) -> float:
        return sum(record.cost for record in self.records)

    @property
    def tried(self) -> Tried:
        return Tried(self.records[0].tries, 0.0, repr(self))

    def __repr__(self) -> str:
        return "+".join(map(repr, self.records))


class Tried(NamedTuple):
    """What the verdict on one item of a call depends on."""

    attempts: int
    deferred: float
    name: str
    deferrals: int = 0

    def __repr__(self) -> str:
        return self.name


class Outcome(NamedTuple):
    """How a call ended for one of its items."""

    kind: str  # "result", "retry", "defer", "fail" or "over"
    seconds: float = 0.0
    error: Any = None
    result: Any = None
    pause: float = 0.0  # of its key


class BatchModel(GatedModel):
    """A map with `batch`."""

    def __init__(self, settings: Settings, worker_window: int) -> None:
        super().__init__(settings, worker_window * settings.group)
        self.parts = count(1)
        self.disturbed = True

    # ------------------------------------------------------------------------------------------------ items come
    def arrived(self, records: list[Record], now: float) -> None:
        for record in records:
            record.arrived_at = now
        super().arrived(records, now)

    def enter(self, record: Record) -> None:
        record.state = "ready"

    def touch(self, lane: Lane) -> None:
        """Which item of a key starts next is not predicted."""

    def withdraw(self, record: Record) -> None:
        self.demand(record.state == "ready", f"{record} is taken out while it is {record.state}")

    def come_back(self, record: Record) -> None:
        record.state, record.again = "ready", True

    # ------------------------------------------------------------------------------------------------ a start
    def start(self, unit: Any, now: float) -> None:
        settings, lane, records = self.settings, unit.lane, unit.records
        self.demand(self.open, f"{unit} starts although the map was halted, or after the deadline")
        self.demand(len(records) <= settings.group, f"{unit} has more than {settings.group} items")
        self.demand(lane.until <= now, f"{unit} starts although its key is deferred until {lane.until}")
        self.demand(not settings.per_key or lane.running < settings.per_key, f"{unit} starts beyond per_key")
        self.check_spread(unit, now)
        for record in records:
            self.demand(record.state == "ready" and record.due <= now, f"{record} starts while it is {record.state}")
            self.demand(
                record.lane is lane and (self.in_order or record.priority == unit.priority), f"{unit} has several keys"
            )
            self.demand(record.part == records[0].part, f"{unit} has items of several parts")
            self.demand(record.again == records[0].again, f"{unit} mixes new items with others")
            self.demand(record.tries <= settings.retries, f"{record} is called more often than retries + 1 times")
        if not records[0].again:
            self._check_new(unit, now)
        for record in records:
            record.state, record.again = "taken", True
            record.tries += 1
            record.attempts += 1
        lane.running += 1
        self.taken += 1

    def _check_new(self, unit: Any, now: float) -> None:
        """New items are called in input order, and none before its batch is full or has waited."""
        settings, records = self.settings, unit.records
        # Items of the batch may have been answered, or its halves are called because it does not fit.
        chosen = bool(settings.dedup) or settings.budget is not None or settings.concurrency is not None
        numbers = [record.number for record in records]
        self.demand(numbers == sorted(numbers), f"{unit} is not in input order")
        if chosen:
            return
        for other in self.flying:
            comparable = other.lane is unit.lane and (self.in_order or other.priority == unit.priority)
            if comparable and other.number < numbers[-1] and not other.again:
                self.demand(other in records, f"{unit} overtakes {other}")
        waited = now - records[0].arrived_at >= settings.linger - NEARLY
        released = waited or self.ended or records[0].due == -1.0
        self.demand(released or len(records) == settings.group, f"{unit} does not wait for others")

    def dispatch_begins(self, now: float) -> None:
        super().dispatch_begins(now)
        if self.in_flight >= self.window:
            for record in self.flying:
                record.due = max(record.due, -1.0)  # its batch waits for no more items: the window is full

    def nothing_waits(self, now: float) -> None:
        settings = self.settings
        for record in self.flying:
            lingers = (
                not record.again and not self.ended and record.due < -1.0 and now - record.arrived_at < settings.linger
            )
            held_back = lingers or record.lane.paused or bool(settings.per_key)
            self.demand(record.state != "ready" or held_back, f"a worker finds nothing, and {record} may start")

    def check_equal(self, unit: Any) -> None:
        for record in unit.records:
            super().check_equal(record)

    def go_back(self, unit: Any) -> None:
        for record in unit.records:
            record.state = "ready"
            record.tries -= 1
            record.attempts -= 1
        if self.expired:
            for record in unit.records:
                self.together.add(record)
                self.fail(record, DeadlineExceeded)

    def members(self, unit: Any) -> list[Record]:
        return list(getattr(unit, "records", (unit,)))

    # ------------------------------------------------------------------------------------------------ calls end
    def _end(self, unit: Any) -> None:
        del self.begun[unit]
        self.taken -= 1
        self.running.pop(unit, None)
        self.bulk = True

    def failed_batch(self, unit: Any, kind: str, seconds: float, error: Any, stamp: float) -> None:
        """The call raised: the whole batch is tried again, or each half is called on its own."""
        if kind == "retry" and all(self.is_over(record, stamp + seconds) for record in unit.records):
            if len(unit.records) == 1:
                self.returned(unit, [Outcome("fail", error=error)], stamp)
                return
            kind = "split"
        self._end(unit)
        self.at_once.ended(unit, {kind})
        self.spent += unit.cost
        self.count_failure(unit, stamp)
        if self.expired:
            self._fail_all(unit.records)
        elif kind == "retry":
            for record in unit.records:
                self._rest(record, Outcome("retry", seconds, error), stamp)
        elif self.open:
            middle = len(unit.records) // 2
            for half in (unit.records[:middle], unit.records[middle:]):
                part = next(self.parts)
                for record in half:
                    record.state, record.tries, record.part, record.last_error = "ready", 0, part, error

    def _fail_all(self, records: list[Record]) -> None:
        for record in records:
            self.together.add(record)
            self.fail(record, DeadlineExceeded)

    def returned(self, unit: Any, outcomes: list[Outcome], stamp: float) -> None:
        """The call ended with an outcome for each of its items."""
        outcomes = [
            outcome._replace(kind="fail" if outcome.kind == "retry" else "over")
            if outcome.kind in ("retry", "defer") and self.is_over(record, stamp + outcome.seconds)
            else outcome
            for record, outcome in zip(unit.records, outcomes, strict=True)
        ]
        self._end(unit)
        kinds = {outcome.kind for outcome in outcomes}
        self.at_once.ended(unit, kinds)
        if kinds <= {"defer", "over"}:
            self.note_deferral(outcomes[0].error, stamp)
        if "result" in kinds:
            breaker = unit.lane.breaker
            if unit in breaker.counting:
                breaker.counting.remove(unit)
                breaker.failures = 0
                if breaker.probe is unit:
                    breaker.close()
            self.ended_call(unit)
        elif kinds <= {"defer", "over"}:
            self.undo(unit)
        else:
            self.count_failure(unit, stamp)
        parts: dict[tuple[str, float, float], int] = {}
        failed = []
        for record, outcome in zip(unit.records, outcomes, strict=True):
            self.spent += 0.0 if outcome.kind in ("defer", "over") else record.cost
            if outcome.kind == "result":
                record.result = outcome.result
                self.keep_result(record, outcome.result)
                self._complete(record)
            elif outcome.kind in ("fail", "over") or self.expired:
                if outcome.kind == "over" and not self.expired:
                    self.given_up += 1
                    if outcome.pause:
                        self.defer_lane(record.lane, stamp + outcome.pause, stamp)
                failed.append((record, outcome.error if outcome.kind in ("fail", "over") else DeadlineExceeded))
            else:
                record.part = parts.setdefault((outcome.kind, outcome.seconds, outcome.pause), next(self.parts))
                self._rest(record, outcome, stamp)
        self.fails_last = self.failing is None
        for record, error in failed:
            self.together.add(record)
            self.fail(record, error)

    def _rest(self, record: Record, outcome: Outcome, stamp: float) -> None:
        """The item waits until its next attempt."""
        record.state, record.due = "resting", stamp + outcome.seconds
        self.resting += 1
        if outcome.kind == "defer":
            self.deferred += 1
            record.attempts -= 1
            record.tries -= 1
            record.deferred += outcome.seconds
            record.deferrals += 1
            record.last_deferral = outcome.error
            self.defer_lane(record.lane, stamp + outcome.pause, stamp)
        else:
            self.retried += 1
            record.last_error = outcome.error
        self.push_timer(record.due, record)

    # ------------------------------------------------------------------------------------------------ the window
    def check_room(self, room: int, window: int) -> None:
        """How many calls may run is not predicted: the window may double where the contract allows it."""
        closed = self.halted or self.ended
        blocked = self.in_flight - self.resting - self.taken > 0
        may_grow = (
            not closed
            and not self.settings.max_in_flight
            and not self.expired
            and blocked
            and self.in_flight >= self.window
        )
        wanted = {self.window, min(2 * self.window, self.largest)} if may_grow else {self.window}
        self.demand(window in wanted, f"window {window} (expected: {wanted})")
        self.window = window
        full = self.settings.sized and not self.settings.max_in_flight and self.in_flight >= self.base
        allowed = {0} if closed else {window - self.in_flight, 0} if full else {window - self.in_flight}
        self.demand(room in allowed, f"room for {room} (expected: {allowed})")
