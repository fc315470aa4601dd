"""The reference model: what must be true of a map, derived from the contract (mapping.pyi) alone. It shares no code
with the scheduler.

The world tells it each event, in the order in which the scheduler handles them, and passes it what the scheduler shows
after each. It predicts exactly: which items are emitted, with which error, how many are in flight, held back or
resting, the window, and what an idle worker must find. Where the contract leaves a choice (which key comes first, how
items that fail together are ordered) it checks that the choice is an allowed one.

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

from manytail import DeadlineExceeded, TooManyFailures

from . import functions
from .lanes import Error, Lane, Lanes, Record, Violation
from .settings import Settings
from .verdicts import Expected, expected, kind_of, waits

WINDOW_FIGURES = ("in_flight", "held_back", "buffered")
FIGURES = (
    *WINDOW_FIGURES,
    "resting",
    "finished",
    "failures",
    "retried",
    "deferred",
    "dropped",
    "remembered",
)


class Model(Lanes):
    """All items, and what the contract says about them."""

    def __init__(self, settings: Settings, worker_window: int) -> None:
        super().__init__(settings)
        self.flying: dict[Record, None] = {}  # arrived and not finished, in input order
        self.line: deque[Record] = deque()  # order="input": arrived and not emitted
        self.emitted: list[Record] = []
        self.checked = 0  # of emitted: found in the output
        self.together: set[Record] = set()  # items that failed by the gate or the deadline, in an order that is free
        self.bulk = False  # items failed together: their order among each other is free
        self.arrivals = self.held_back = self.resting = self.popped = self.took = self.buffered = 0
        self.given_up, self.happened, self.deferring_since = 0, -1, 0.0  # of deferrals with nothing else between them
        self.finished = self.failures = self.retried = self.deferred = self.dropped = self.remembered = 0
        self.window = settings.max_in_flight or worker_window
        self.base = worker_window
        self.held_bytes = self.item_bytes = 0.0  # of items that are held back; of the item that arrived last
        self.largest = max(settings.window_limit, worker_window)
        self.ended = False
        self.error: Error = None
        self.failing: Record | None = None
        self.deadline_at = math.inf
        self.timers: list[tuple[float, int, Record | Lane]] = []
        self.numbers = count()
        self.running: dict[Record, float] = {}  # timed calls that are not overdue, and when they will be

    # ------------------------------------------------------------------------------------------------ helpers
    def demand(self, true: bool, promise: str) -> None:
        if not true:
            raise Violation(promise)

    @property
    def open(self) -> bool:
        return not self.halted and not self.expired

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
        self.item_bytes = records[-1].size * (2 if records[-1].known else 1)
        for record in records:
            record.lane = self.lane_of(record) if record.error is None else Lane(None, 1)
            self.flying[record] = None
            (self.line if settings.order == "input" else record.lane.line).append(record)
        self.bulk = True
        for record in records:
            if record.error is not None or self.expired:
                if self.expired:
                    self.together.add(record)
                self.fail(record, record.error or DeadlineExceeded)
            elif not record.known:
                self.enter(record)
        for record in records:
            if record.known and record in self.flying:  # after those that fail
                self.remembered += 1
                self._complete(record)
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
        """No call of the item runs any longer, or it was abandoned."""
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

    def failed(self, record: Record, kind: str, seconds: float, error: Error, stamp: float, pause: float) -> None:
        self._over(record)
        if kind in ("defer", "over"):
            self.note_deferral(error, stamp)
        if kind in ("fail", "over") or self.expired:
            self._free(record)
            if kind == "over" and not self.expired:
                self.given_up += 1
                if pause:
                    self.pause_lane(record.lane, stamp + pause, stamp)
            self.fail(record, error if kind in ("fail", "over") else DeadlineExceeded)
            return
        record.state, record.again, record.due = "resting", True, stamp + seconds
        self.resting += 1
        if kind == "defer":
            self.deferred += 1
            record.attempts -= 1
            record.deferred += seconds
            record.deferrals += 1
            record.last_deferral = error
            self.pause_lane(record.lane, stamp + pause, stamp)
        else:
            self.retried += 1
            record.last_error = error  # type: ignore[assignment]
        heappush(self.timers, (record.due, next(self.numbers), record))

    def note_deferral(self, error: Error, stamp: float) -> None:
        """If nothing but deferrals happened for `defer` seconds, the map ends."""
        happened = self.finished + self.retried - self.given_up
        if happened != self.happened:
            self.happened, self.deferring_since = happened, stamp
        elif stamp - self.deferring_since > self.settings.defer_timeout:
            self.halted = True
            self.error = self.error or error

    def pause_lane(self, lane: Lane, until: float, stamp: float) -> None:
        if until > lane.until:
            spread = [entry for entry in self.timers if entry[2] is lane and entry[0] == lane.spread_end]
            self.timers = sorted(entry for entry in self.timers if entry not in spread)
            lane.until, lane.paused = until, True
            rates = (self.settings.limits[name] for name in ("rate", "cost_rate", "per_key_rate"))
            spreads = all(rate is None for rate in rates)
            seconds = min(self.settings.spread * (until - stamp), 1.0) if spreads else 0.0
            lane.spread_end, lane.starts, lane.step = until + seconds if seconds else -math.inf, 0, seconds / 16
            heappush(self.timers, (until, next(self.numbers), lane))
            self.touch(lane)

    # ------------------------------------------------------------------------------------------------ verdicts
    def check_verdict(self, record: Record, error: BaseException, verdict: Any, final: bool) -> Error:
        """Check the verdict on a call that ended so. Returns the error with which the item fails, or None."""
        kind, found = kind_of(verdict), verdict.error
        seconds, pause = waits(verdict)
        wanted = Expected("fail", error=error) if final else expected(self.settings, record, error, kind)
        if kind != wanted.kind:
            raise Violation(f"{record} after {error!r}: {kind} (expected: {wanted})")
        if not wanted.low <= seconds <= wanted.high:
            raise Violation(f"{record} waits {seconds} s (expected: {wanted.low} to {wanted.high})")
        if kind != "defer" and pause != wanted.pause:
            raise Violation(f"the key of {record} pauses for {pause} s (expected: {wanted.pause})")
        if kind in ("fail", "over"):
            self.check_error(record, wanted.error, found)
            fatal = functions.is_fatal(self.settings, found)
            self.demand(verdict.fatal is fatal, f"{record} fails with {found!r}, fatal: {verdict.fatal}")
            if found.__cause__ is found or (found is not error and found.__cause__ is not error):
                raise Violation(f"{record} fails with {found!r}, caused by {found.__cause__!r} (expected: {error!r})")
        if kind in ("retry", "defer") and found is not error:
            raise Violation(f"{record} is called again after {found!r} (expected: {error!r})")
        return found if wanted.error is ValueError or kind in ("retry", "defer") else wanted.error

    def check_error(self, record: Record, wanted: Error, found: Any) -> None:
        if not (type(found) is wanted if isinstance(wanted, type) else found is wanted):
            raise Violation(f"{record} has the error {found!r} (expected: {wanted!r})")

    # ------------------------------------------------------------------------------------------------ time
    def ticked(self, now: float, overdue: list[tuple[Record, BaseException]], slack: float) -> None:
        """`overdue`: the calls that the scheduler wants to abandon. They may be found `slack` too late."""
        expires = self.deadline_at <= now and not self.expired
        if expires:
            self._expire()
        lanes = []
        while self.timers and self.timers[0][0] <= now:
            each = heappop(self.timers)[2]
            if isinstance(each, Lane):
                self.lane_is_due(each, now)
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

    def lane_is_due(self, lane: Lane, now: float) -> None:
        lane.paused = lane.until > now
        if lane.until <= now < lane.spread_end:  # one after the other, which the round robin does not count
            lane.paused = self.disturbed = True
            heappush(self.timers, (lane.spread_end, next(self.numbers), lane))

    def _expire(self) -> None:
        """The deadline: all items that are not running fail. If the map was halted before, nothing changes."""
        self.expired = self.bulk = True
        self.timers.clear()
        self.resting = 0
        if not self.halted:
            for record in [
                record for record in self.flying if record.state in ("ready", "resting", "follows")
            ]:
                self.together.add(record)
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
        """A start that is reported after the deadline is to be abandoned."""
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
        most = self.settings.max_failures
        too_many = most is not None and self.failures > most
        fatal = functions.is_fatal(self.settings, error)
        if self.settings.errors != "raise" and not too_many and not fatal:
            self._complete(record)
            return
        record.state = "done"
        record.stays = True
        self.flying.pop(record)
        self.halted = True
        if self.error is None:
            self.error, self.failing = TooManyFailures if too_many and not fatal else error, record

    def _complete(self, record: Record) -> None:
        record.state = "done"
        self.flying.pop(record)
        self.finished += 1
        record.bytes = record.size * (2 if record.error is None else 1)  # a result is as large as its item
        order = self.settings.order
        if order == "completion":
            if self.failing is None:
                self._emit(record)
            return
        self.held_back += 1
        self.held_bytes += record.bytes
        line = self.line if order == "input" else record.lane.line
        while line and line[0].state == "done" and not line[0].stays:
            self.held_back -= 1
            self.held_bytes -= line[0].bytes
            self._emit(line.popleft())

    def _emit(self, record: Record) -> None:
        if record.error is not None and self.settings.errors == "drop":
            self.dropped += 1
        else:
            self.emitted.append(record)

    def consumed(self, number: int) -> None:
        """The consumer popped that many items."""
        self.took += number
        self.buffered = max(0, self.buffered - number)
        self._fill_buffer()

    def _fill_buffer(self) -> None:
        """Move the first items of the output into the buffer: at most `buffer`, none once they reach `buffer_bytes`."""
        settings, place = self.settings, self.took + self.buffered
        held = sum(record.bytes for record in self.emitted[self.took : place]) if settings.sized else 0.0
        while place < len(self.emitted) and self.buffered < settings.buffer:
            if settings.sized and held >= settings.buffer_bytes:
                return
            held += self.emitted[place].bytes
            self.buffered += 1
            place += 1

    def check_output(self, output: Any) -> list[Record]:
        """The new items at the right end of the output are those that this event finished, in the promised order."""
        fresh = self.emitted[self.checked :]
        if self.popped + len(output) != len(self.emitted):
            raise Violation(f"the output is {[item.value for item in output]} (expected: {fresh} at its end)")
        if fresh:
            items = [output[place - len(fresh)] for place in range(len(fresh))]
            found = [item.value for item in items]
            if not self._in_order(found, fresh):
                raise Violation(f"emitted: {found} (expected: {fresh})")
            for item in items:
                self._check_outcome(item)
            self.emitted[self.checked :] = found
            self._fill_buffer()
        self.checked = len(self.emitted)
        self.bulk = False
        return fresh

    def _in_order(self, found: list[Record], wanted: list[Record]) -> bool:
        """Items that failed together are in order within their key, or in any order, as `order` says."""
        order = self.settings.order
        if not self.bulk or order == "input":
            return found == wanted
        if order == "completion":
            return set(found) == set(wanted) and len(found) == len(wanted)
        return by_lane(found) == by_lane(wanted)

    def _check_outcome(self, item: Any) -> None:
        record = item.value
        self.check_error(record, record.error, item.error)
        if item.error is None and item.result != record.result:
            raise Violation(f"{record} has the result {item.result}, not that of its last call, {record.result}")

    # ------------------------------------------------------------------------------------------------ the window
    def check_room(self, room: int, window: int) -> None:
        """Check `room()`. The window doubles when a worker has nothing to run only because of order and keys."""
        closed = self.halted or self.ended
        larger = min(2 * self.window, self.largest)
        wanted = larger if not closed and self._grows() else self.window
        spreads = any(lane.spread_end > -math.inf for lane in self.lanes.values()) and not closed
        grows = spreads and self.in_flight >= self.window and not self.settings.max_in_flight
        if window != wanted and not (grows and window in (self.window, larger)):
            raise Violation(f"window {window} (expected: {wanted})")
        self.window = window
        closed = closed or self._bytes_are_used_up()
        if room != (0 if closed else window - self.in_flight):
            raise Violation(f"room for {room}, in flight {self.in_flight}, window {window}, closed: {closed}")

    def _grows(self) -> bool:
        """The automatic window is full, a worker would idle, and items wait for order or keys, not for the consumer."""
        if self.settings.max_in_flight or self.in_flight < self.window or self.expired:
            return False
        if self.settings.sized and 2 * self._bytes() > self.settings.window_bytes:
            return False
        to_run = self.taken + sum(map(self.startable, self.lanes.values()))
        blocked = self.in_flight - to_run - self.resting
        beyond = len(self.emitted) - self.popped - self.buffered
        return beyond <= 0 and blocked > 0 and to_run < self.settings.workers

    def _bytes_are_used_up(self) -> bool:
        """Whether the bytes of the automatic window are used up, beyond the items that it holds at least."""
        settings = self.settings
        if not settings.sized or settings.max_in_flight or self.in_flight < self.base:
            return False
        return self._bytes() >= settings.window_bytes

    def _bytes(self) -> float:
        """Bytes in flight. Those of held items are known; any other item counts as large as the last one."""
        return self.held_bytes + (self.in_flight - self.held_back) * self.item_bytes

    # ------------------------------------------------------------------------------------------------ after each event
    def check_figures(self, scheduler: Any, slack: float) -> None:
        if (scheduler.halted, scheduler.expired) != (self.halted, self.expired):
            shown = (scheduler.halted, scheduler.expired)
            raise Violation(f"halted, expired: {shown} (expected: {(self.halted, self.expired)})")
        if self.in_flight > self.window:
            raise Violation(f"in flight {self.in_flight}, window {self.window}")
        for name in FIGURES:
            shown = getattr(scheduler.window if name in WINDOW_FIGURES else scheduler, name)
            wanted = getattr(self, name)
            if shown != wanted:
                raise Violation(f"{name}: {shown} (expected: {wanted})")
        self.check_error_of_map(scheduler)
        if not scheduler.overdue and scheduler.wake_at > self.next_time() + slack:
            raise Violation(f"wake_at: {scheduler.wake_at} (expected: at most {self.next_time()})")

    def check_error_of_map(self, scheduler: Any) -> None:
        if self.error is None:
            self.demand(scheduler.error is None, f"the map raises {scheduler.error!r}")
            return
        found = scheduler.failing and scheduler.failing.value
        if found is not self.failing and found is not None and self.failing in self.together and found in self.together:
            self.failing = found  # all failed together: which one is named is free
            self.error = self.error if self.error is TooManyFailures else found.error
        if type(scheduler.error) is TooManyFailures:
            cause = scheduler.error.__cause__
            self.demand(cause is scheduler.failing.error, f"too many failures, the last of them {cause!r}")
        self.demand(found is self.failing, f"the map fails with {found} (expected: {self.failing})")
        right = type(scheduler.error) is self.error if isinstance(self.error, type) else scheduler.error is self.error
        self.demand(right, f"the map raises {scheduler.error!r} (expected: {self.error!r})")

    # ------------------------------------------------------------------------------------------------ at the end
    def check_end(self, scheduler: Any) -> None:
        """Called when no event is left."""
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
            "in flight": scheduler.window.in_flight + scheduler.window.buffered,
            "held back": scheduler.window.held_back,
            "without a slot": admission.without_slot,
            "ready": admission.queue.qsize(),
            "timers": scheduler._timers,
            "timed calls": scheduler._running,
            "overdue": scheduler.overdue,
            "line": scheduler._line or 0,
            "bytes": scheduler.window.held_bytes + scheduler.window.buffered_bytes,
        }
        if not self.expired:
            left["paused"] = admission.paused
            left["priorities"] = self._priorities_in_use(admission)
        for name, value in left.items():
            self.demand(not value, f"left at the end: {name}: {value!r}")
        for lane in [*admission._lanes.values(), *admission._retired]:
            self._check_lane(lane)

    def _priorities_in_use(self, admission: Any) -> list[float]:
        """Of sub-queues that count items at the end. The others are empty: so many are kept."""
        if admission._priority_labels is None:
            return []
        queues = [each for lane in (*admission._lanes.values(), *admission._retired) for each in lane.queues.items()]
        empty = sum(not items for _, (_, items) in queues)
        self.demand(empty == admission._empty_queues, f"{empty} empty sub-queues (counted: {admission._empty_queues})")
        values = admission._priority_labels._values
        self.demand(set(values) == {priority for priority, _ in queues}, f"labels of {values}")
        return [priority for priority, (_, items) in queues if items]

    def _check_lane(self, lane: Any) -> None:
        self.demand(not lane.waiting and not lane.line, f"items are left in the lane of key {lane.key}")
        if self.settings.keyed or self.settings.prioritised:
            self.demand(lane.assigned == lane.emitted, f"the lane of key {lane.key} counts items that are gone")
        if not self.expired:
            slots = (lane.held, len(lane.unsecured), sum(entry[1] for entry in lane.queues.values()))
            self.demand(slots == (0, 0, 0), f"slots are held in the lane of key {lane.key}: {slots}")
            self.demand(
                not self.in_order or lane.unstarted == 0, f"items of key {lane.key} never started: {lane.unstarted}"
            )


def by_lane(records: list[Record]) -> dict[int, list[int]]:
    lanes: dict[int, list[int]] = {}
    for record in records:
        lanes.setdefault(id(record.lane), []).append(record.number)
    return lanes
