"""The reference model: what must be true of a map, worked out from the contract (mapping.pyi) alone. It shares no
code with the scheduler.

The world tells it each event, in the order in which the scheduler handles them, and hands it what the scheduler
then shows. It predicts exactly: which items are emitted, with which error, how many are in flight, held back or
resting, the window, and what an idle worker must find. Where the contract leaves a choice (which key comes first,
how items that fail together are ordered) it checks that the choice is an allowed one.

    state      the item is
    coming     not in flight yet
    ready      in flight, and no worker has it; it may start if `Lane.best` allows it
    taken      with a worker, until its call's end was handled
    resting    waiting for its next attempt
    done       finished, perhaps held back
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import Any

from manytail import DeadlineExceeded

from .lanes import Error, Lane, Lanes, Record, Violation
from .settings import Settings
from .verdicts import Expected, expected

FIGURES = ("in_flight", "held_back", "resting", "buffered", "finished", "failures", "retried", "deferred", "dropped")


class Model(Lanes):
    """All items, and what the contract says about them."""

    def __init__(self, settings: Settings, worker_window: int) -> None:
        super().__init__(settings)
        self.flying: dict[Record, None] = {}  # arrived and not finished, in input order
        self.line: deque[Record] = deque()  # order="input": arrived and not emitted
        self.emitted: list[Record] = []
        self.checked = 0  # of emitted: found in the output
        self.bulk = False  # items failed together: their order among each other is free
        self.arrivals = self.held_back = self.resting = self.popped = self.took = 0
        self.finished = self.failures = self.retried = self.deferred = self.dropped = 0
        self.window = settings.max_in_flight or worker_window
        self.largest = max(settings.window_limit, worker_window)
        self.ended = False
        self.error: Error = None
        self.failing: Record | None = None
        self.deadline_at = math.inf
        self.timers: list[tuple[float, int, Record | Lane]] = []
        self.numbers = count()
        self.running: dict[Record, float] = {}  # timed calls that are not overdue: when they will be

    # ------------------------------------------------------------------------------------------------ small words
    def demand(self, true: bool, promise: str) -> None:
        if not true:
            raise Violation(promise)

    @property
    def open(self) -> bool:
        return not self.halted and not self.expired

    @property
    def buffered(self) -> int:
        return min(self.settings.buffer, len(self.emitted) - self.took)

    @property
    def in_flight(self) -> int:
        return self.arrivals - self.dropped - self.took - self.buffered

    @property
    def over(self) -> bool:
        return self.ended and not self.flying and not self.held_back and self.popped == self.took == len(self.emitted)

    # ------------------------------------------------------------------------------------------------ the input
    def arrived(self, records: list[Record], now: float) -> None:
        settings = self.settings
        self.demand(len(records) <= self.window - self.in_flight, f"{len(records)} items arrived at a full window")
        if settings.deadline is not None and self.deadline_at == math.inf:
            self.deadline_at = now + settings.deadline
        self.arrivals += len(records)
        for record in records:
            record.lane = self.lane_of(record) if record.error is None else Lane(None, 1)
            self.flying[record] = None
            (self.line if settings.order == "input" else record.lane.line).append(record)
        self.bulk = True
        for record in records:
            if record.error is not None or self.expired:
                self.fail(record, record.error or DeadlineExceeded)
            else:
                self.enter(record)
        for lane in dict.fromkeys(record.lane for record in records):
            self.touch(lane)

    # ------------------------------------------------------------------------------------------------ calls
    def started(self, record: Record, stamp: float) -> None:
        """The start was reported."""
        lane = record.lane
        if record in lane.unreported:
            lane.unreported.remove(record)
            self.touch(lane)
        if self.settings.timed and not self.expired:
            self.running[record] = stamp + (self.settings.timeout or math.inf)

    def call_ended(self, record: Record) -> None:
        """No call of the item runs that counts: it ended, or was abandoned."""
        record.lane.running -= 1

    def succeeded(self, record: Record, result: Any) -> None:
        self._over(record)
        self._free(record)
        record.result = result
        self._complete(record)

    def _over(self, record: Record) -> None:
        self.demand(record.state == "taken", f"the call of {record} ends while it is {record.state}")
        self.taken -= 1
        self.running.pop(record, None)

    def _free(self, record: Record) -> None:
        if self.open:
            record.lane.held -= 1
            self.touch(record.lane)

    def failed(self, record: Record, kind: str, seconds: float, error: Error, stamp: float) -> None:
        self._over(record)
        if kind == "fail" or self.expired:
            self._free(record)
            self.fail(record, error if kind == "fail" else DeadlineExceeded)
            return
        record.state, record.again, record.due = "resting", True, stamp + seconds
        self.resting += 1
        if kind == "defer":
            self.deferred += 1
            record.attempts -= 1
            record.deferred += seconds
            lane = record.lane
            if record.due > lane.until:
                lane.until, lane.paused = record.due, True
                heappush(self.timers, (lane.until, next(self.numbers), lane))
                self.touch(lane)
        else:
            self.retried += 1
        heappush(self.timers, (record.due, next(self.numbers), record))

    # ------------------------------------------------------------------------------------------------ verdicts
    def check_verdict(self, record: Record, error: BaseException, verdict: Any, final: bool) -> Error:
        """Is this what the contract says of a call that ended so? The error with which the item fails, if it does."""
        kind, seconds, found = verdict.kind.value, verdict.seconds, verdict.error
        wanted = Expected("fail", error=error) if final else expected(self.settings, record, error)
        if kind != wanted.kind:
            raise Violation(f"{record} after {error!r}: {kind} (expected: {wanted})")
        if not wanted.low <= seconds <= wanted.high:
            raise Violation(f"{record} waits {seconds} s (expected: {wanted.low} to {wanted.high})")
        if kind == "fail":
            self.check_error(record, wanted.error, found)
            if found.__cause__ is found or (found is not error and found.__cause__ is not error):
                raise Violation(f"{record} fails with {found!r}, caused by {found.__cause__!r} (expected: {error!r})")
        return found if wanted.error is ValueError else wanted.error

    def check_error(self, record: Record, wanted: Error, found: Any) -> None:
        right = type(found) is wanted if isinstance(wanted, type) else found is wanted
        self.demand(right, f"{record} has the error {found!r} (expected: {wanted!r})")

    # ------------------------------------------------------------------------------------------------ time
    def ticked(self, now: float, overdue: list[tuple[Record, BaseException]], slack: float) -> None:
        """`overdue`: what the scheduler wants given up. Calls may be found overdue `slack` too late."""
        expires = self.deadline_at <= now and not self.expired
        if expires:
            self._expire()
        lanes = []
        while self.timers and self.timers[0][0] <= now:
            each = heappop(self.timers)[2]
            if isinstance(each, Lane):
                if each.until <= now:
                    each.paused = False
                    lanes.append(each)
            else:
                self.resting -= 1
                if not self.halted:
                    each.state = "ready"
                    each.lane.again.setdefault(each.priority, []).append(each)
                    lanes.append(each.lane)
        for lane in lanes:
            self.touch(lane)
        self._check_overdue(now, overdue, slack, expires)

    def _expire(self) -> None:
        """The deadline: all that is not running fails. Of a map that was halted before, nothing more is decided."""
        self.expired = self.bulk = True
        self.timers.clear()
        self.resting = 0
        if not self.halted:
            for record in [record for record in self.flying if record.state in ("ready", "resting")]:
                self.fail(record, DeadlineExceeded)
        for lane in self.lanes.values():
            lane.best = None

    def _check_overdue(
        self, now: float, overdue: list[tuple[Record, BaseException]], slack: float, expires: bool
    ) -> None:
        for record, error in overdue:
            due = self.running.pop(record, None)
            self.demand(due is not None, f"{record} is to be given up ({error!r}) though no call of it is timed")
            if type(error) is TimeoutError:
                self.demand(due <= now, f"{record} runs into its timeout before {due}")  # type: ignore[operator]
            else:
                self.demand(type(error) is DeadlineExceeded and expires, f"{record} is to be given up with {error!r}")
        for record, due in self.running.items():
            self.demand(not expires and due + slack > now, f"{record} is not given up: it was overdue at {due}")

    def late_start(self, record: Record, overdue: list[tuple[Record, BaseException]]) -> None:
        """A start that was reported after the deadline is to be given up."""
        found = [type(error) for late, error in overdue if late is record]
        self.demand(found == [DeadlineExceeded], f"{record}, which starts after the deadline, is given up: {found}")

    def next_time(self) -> float:
        """When the timer must ring."""
        times = [self.timers[0][0]] if self.timers else []
        times += self.running.values()
        if not self.expired:
            times.append(self.deadline_at)
        return min(times, default=math.inf)

    # ------------------------------------------------------------------------------------------------ the output
    def fail(self, record: Record, error: Error) -> None:
        record.error = error
        self.failures += 1
        if self.settings.errors != "raise":
            self._complete(record)
            return
        record.state = "done"
        self.flying.pop(record)
        self.halted = True
        if self.error is None:
            self.error, self.failing = error, record

    def _complete(self, record: Record) -> None:
        record.state = "done"
        self.flying.pop(record)
        self.finished += 1
        order = self.settings.order
        if order == "completion":
            if self.failing is None:
                self._emit(record)
            return
        self.held_back += 1
        line = self.line if order == "input" else record.lane.line
        while line and line[0].state == "done" and not (line[0].error is not None and self.settings.errors == "raise"):
            self.held_back -= 1
            self._emit(line.popleft())

    def _emit(self, record: Record) -> None:
        if record.error is not None and self.settings.errors == "drop":
            self.dropped += 1
        else:
            self.emitted.append(record)

    def check_output(self, output: Any) -> list[Record]:
        """The new items at the right end of the output are those that this event finished, in the promised order."""
        fresh = self.emitted[self.checked :]
        self.demand(
            self.popped + len(output) == len(self.emitted), f"output {numbers(output)} (expected to end with {fresh})"
        )
        if fresh:
            found = [output[place - len(fresh)].value for place in range(len(fresh))]
            if self.bulk and self.settings.order != "input":
                keys = (
                    (lambda record: id(record.lane)) if self.settings.order == "key" else (lambda record: record.number)
                )
                right = sorted(found, key=keys) == sorted(fresh, key=keys)  # sorted keeps the order within a key
            else:
                right = found == fresh
            self.demand(right, f"emitted: {found} (expected: {fresh})")
            for place in range(-len(fresh), 0):
                item = output[place]
                self.check_error(item.value, item.value.error, item.error)
                if item.error is None:
                    self.demand(
                        item.result == item.value.result,
                        f"{item.value} has the result {item.result}, not that of its last call",
                    )
            self.emitted[self.checked :] = found
        self.checked = len(self.emitted)
        self.bulk = False
        return fresh

    # ------------------------------------------------------------------------------------------------ the window
    def check_room(self, room: int, window: int) -> None:
        """What `room()` said. The window doubles when a worker has nothing to run only because of order and keys."""
        closed = self.halted or self.ended
        wanted = min(2 * self.window, self.largest) if not closed and self._grows() else self.window
        if window != wanted:
            raise Violation(f"window {window} (expected: {wanted})")
        self.window = window
        if room != (0 if closed else window - self.in_flight):
            raise Violation(f"room for {room}, in flight {self.in_flight}, window {window}, input closed: {closed}")

    def _grows(self) -> bool:
        """The automatic window is full, a worker would stand idle, items wait for order or keys, not for the consumer."""
        if self.settings.max_in_flight or self.in_flight < self.window or self.expired:
            return False
        to_run = self.taken + sum(map(self.startable, self.lanes.values()))
        blocked = self.in_flight - to_run - self.resting
        beyond = len(self.emitted) - self.popped - self.buffered
        return beyond <= 0 and blocked > 0 and to_run < self.settings.workers

    # ------------------------------------------------------------------------------------------------ after each event
    def check_figures(self, scheduler: Any, slack: float) -> None:
        self.demand(scheduler.halted == self.halted, f"halted: {scheduler.halted} (expected: {self.halted})")
        self.demand(scheduler.expired == self.expired, f"expired: {scheduler.expired} (expected: {self.expired})")
        self.demand(self.in_flight <= self.window, f"in flight {self.in_flight}, window {self.window}")
        for name in FIGURES:
            shown, wanted = getattr(scheduler, name), getattr(self, name)
            if shown != wanted:
                raise Violation(f"{name}: {shown} (expected: {wanted})")
        self.check_error_of_map(scheduler)
        if not scheduler.overdue:
            wake_at = self.next_time()
            self.demand(
                scheduler.wake_at <= wake_at + slack, f"wake_at: {scheduler.wake_at} (expected: at most {wake_at})"
            )

    def check_error_of_map(self, scheduler: Any) -> None:
        if self.error is None:
            self.demand(scheduler.error is None, f"the map raises {scheduler.error!r}")
            return
        found = scheduler.failing and scheduler.failing.value
        if found is not self.failing and found is not None and found.error is DeadlineExceeded:
            self.failing = found  # all failed together: which one is named is free
        self.demand(found is self.failing, f"the map fails with {found} (expected: {self.failing})")
        right = type(scheduler.error) is self.error if isinstance(self.error, type) else scheduler.error is self.error
        self.demand(right, f"the map raises {scheduler.error!r} (expected: {self.error!r})")

    # ------------------------------------------------------------------------------------------------ at the end
    def check_end(self, scheduler: Any) -> None:
        """The world is quiet."""
        self.demand(not self.running, f"calls that nobody gives up: {list(self.running)}")
        if self.halted:
            self.demand(not self.taken, f"{self.taken} calls have not ended")
            return
        self.demand(self.ended, "the input was not read to its end")
        self.demand(not self.flying, f"nothing happens any more, and these are not done: {list(self.flying)}")
        self.demand(self.over and scheduler.over, "everything is done, and the map is not over")
        self.demand(len(self.emitted) + self.dropped == self.arrivals, "an item is lost, or emitted twice")
        admission = scheduler.admission
        left: dict[str, Any] = {
            "in flight": scheduler.in_flight + scheduler.buffered,
            "held back": scheduler.held_back,
            "hidden": admission.hidden,
            "ready": admission.queue.qsize(),
            "timers": scheduler._timers,
            "timed calls": scheduler._running,
            "overdue": scheduler.overdue,
            "line": scheduler._line or 0,
        }
        if not self.expired:
            left["paused"] = admission.paused
            left["priorities"] = admission._levels._values if admission._levels else 0
        for name, value in left.items():
            self.demand(not value, f"left at the end: {name}: {value!r}")
        for lane in [*admission._lanes.values(), *admission._retired]:
            self._check_lane(lane)

    def _check_lane(self, lane: Any) -> None:
        self.demand(not lane.waiting and not lane.line, f"items are left in the lane of key {lane.key}")
        if self.settings.keyed or self.settings.prioritised:
            self.demand(lane.assigned == lane.emitted, f"the lane of key {lane.key} counts items that are gone")
        if not self.expired:
            slots = (lane.held, len(lane.ready), sum(entry[1] for entry in lane.queues.values()))
            self.demand(slots == (0, 0, 0), f"slots are held in the lane of key {lane.key}: {slots}")
            self.demand(
                not self.in_order or lane.unstarted == 0, f"items of key {lane.key} never started: {lane.unstarted}"
            )


def numbers(output: Any) -> str:
    return "[" + ", ".join(repr(item.value) for item in output) + "]"
