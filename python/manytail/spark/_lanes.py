"""Which rows the workers may see: the rows in flight, in one MultiQueue, with a tail per key, or per key and priority.

A worker takes a row out of the queue before anybody could check a limit, so every limit is kept by what is shown, never by what is taken:

- A key's row is put into the queue only while the key has a slot for it (`per_key`). The slot belongs to the row until it is finished for good,
  so a row that waits for its retry keeps it. Rows without a slot wait in their lane, the most urgent first; a more urgent one that comes later
  changes places with one that was shown and not yet taken.
- Where calls of one key start in input order although each row has its own priority (`in_order`), only the first waiting rows that share one
  priority are shown, and the next ones when all of those have been taken. So the key has the priority of its first waiting row.

Invariants, all under the scheduler's lock (this module takes none of its own):
    lane.in_flight = rows of the lane that are not yet in an output batch
    lane.held      = rows that were shown and are not finished; at most per_key where that is set
    lane.unstarted = rows that were shown for the first time and not yet taken; all have priority lane.level (in_order only)
    tails[p][1]    = rows of the lane with priority p that were shown and are not finished
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from manytail import MultiQueue, SubQueue

from ._call import Call
from ._levels import LAST, Levels

IDLE_LIMIT = 4_096  # lanes kept without a row in flight: a key that soon comes back costs nothing


class Lane:
    """One key's rows."""

    __slots__ = ("group", "held", "in_flight", "level", "line", "shown", "tails", "unstarted", "waiting", "weight")

    def __init__(self, group: Hashable, weight: int, waiting: Any) -> None:
        self.group = group
        self.weight = weight
        self.waiting = waiting  # rows that are not shown: a deque, or where priorities decide a heap of (priority, number, row)
        self.line: deque[Call] = deque()  # for ordered="key": rows in input order, until they leave
        self.tails: dict[float, list[Any]] = {}  # priority -> [tail, rows]
        self.shown: list[Call] = []  # where priorities and per_key meet: rows that may still be hidden again
        self.level: float = 0
        self.in_flight = self.held = self.unstarted = 0


class Lanes:
    """The queue, and the lanes that feed it. Only `queue` is used without the scheduler's lock."""

    def __init__(self, *, per_key: int = 0, prioritised: bool = False, in_order: bool = False, weighted: bool = False) -> None:
        self.queue: MultiQueue[Hashable, Call] = MultiQueue(selection="weighted" if weighted else "round_robin")
        self.reports_starts = prioritised and in_order  # whether `started` must be called for each row that a worker took
        self._per_key = per_key
        self._weighted = weighted
        self._levels = Levels() if prioritised else None
        self._limited = bool(per_key) or self.reports_starts
        self._by_priority = prioritised and not in_order  # waiting rows go by priority, not by input order
        self._lanes: dict[Hashable, Lane] = {}
        self._lanes_limit = IDLE_LIMIT
        self._numbers = count()
        self.hidden = 0  # rows that wait for a slot of their key, or for their turn in it
        self._lone = Lane(None, 1, None)
        self._lone_tail: SubQueue[Hashable, Call] | None = None

    # ------------------------------------------------------------------------------------------------ rows come and go
    def admit(self, batch: Any, start: int, stop: int) -> list[Call]:
        """Rows start..stop of the batch come into flight."""
        if batch.keys is None and self._levels is None:
            return self._admit_plain(batch, start, stop)
        calls = [self._make_call(batch, index) for index in range(start, stop)]
        if not self._limited:
            self._show_runs(calls)
            return calls
        for call in calls:
            self._wait(call)
        for lane in dict.fromkeys(call.lane for call in calls):
            self._show(lane)
        return calls

    def _admit_plain(self, batch: Any, start: int, stop: int) -> list[Call]:
        lane = self._lone
        calls = [Call(batch, index, lane) for index in range(start, stop)]
        if self._lone_tail is None:
            self._lone_tail = self.queue.add(None)
        self._lone_tail.put_many(calls)
        return calls

    def _make_call(self, batch: Any, index: int) -> Call:
        lane = self._lane(batch, index)
        lane.in_flight += 1
        call = Call(batch, index, lane)
        call.priority = 0
        if self._levels is not None:
            priority = batch.priorities[index]
            call.priority = LAST if priority is None else priority
        return call

    def _lane(self, batch: Any, index: int) -> Lane:
        group = None if batch.keys is None else batch.keys[index]
        lane = self._lanes.get(group)
        if lane is None:
            if len(self._lanes) >= self._lanes_limit:
                self._forget_idle()
            weight = batch.weight(index) if self._weighted else 1
            lane = self._lanes[group] = Lane(group, weight, [] if self._by_priority else deque())
        return lane

    def retry(self, call: Call) -> None:
        """Its backoff is over: before the new rows of its key, on the slot that it kept."""
        if call.lane is self._lone:
            assert self._lone_tail is not None
            self._lone_tail.put_front(call)
        else:
            call.lane.tails[call.priority][0].put_front(call)

    def started(self, call: Call) -> None:
        """A worker has taken the row; only where `reports_starts`."""
        if call.attempt == 1:
            call.lane.unstarted -= 1
            self._show(call.lane)

    def finished(self, call: Call) -> None:
        """No further attempt: its slot is free."""
        lane = call.lane
        if lane is self._lone:
            return
        lane.held -= 1
        lane.tails[call.priority][1] -= 1
        if self._levels is not None and not lane.tails[call.priority][1]:
            self._remove_tail(lane, call.priority)
        if self._limited:
            if lane.shown:
                lane.shown = [other for other in lane.shown if other is not call]
            self._show(lane)

    def left(self, call: Call) -> None:
        """Its result stands in an output batch."""
        call.lane.in_flight -= 1

    # ------------------------------------------------------------------------------------------------ tails
    def _tail(self, lane: Lane, priority: float, rows: int) -> SubQueue[Hashable, Call]:
        """The tail for that many more rows."""
        entry = lane.tails.get(priority)
        if entry is None:
            entry = lane.tails[priority] = [self._add_tail(lane, priority), 0]
        entry[1] += rows
        tail: SubQueue[Hashable, Call] = entry[0]
        return tail

    def _add_tail(self, lane: Lane, priority: float) -> SubQueue[Hashable, Call]:
        if self._levels is None:
            return self.queue.add(lane.group, weight=lane.weight)
        tail = self.queue.add((lane.group, priority), priority=self._levels.label(priority), weight=lane.weight)
        self._levels.join(priority, tail)
        return tail

    def _remove_tail(self, lane: Lane, priority: float) -> None:
        tail = lane.tails.pop(priority)[0]
        self.queue.remove(tail.key)
        if self._levels is not None:
            self._levels.leave(priority, tail)

    def _forget_idle(self) -> None:
        """Amortised: at least as many rows came in between as lanes are looked at."""
        for group, lane in list(self._lanes.items()):
            if not lane.in_flight:
                for priority in list(lane.tails):
                    self._remove_tail(lane, priority)
                del self._lanes[group]
        self._lanes_limit = max(IDLE_LIMIT, 2 * len(self._lanes))

    # ------------------------------------------------------------------------------------------------ what is shown
    def _show_runs(self, calls: list[Call]) -> None:
        runs: dict[tuple[Lane, float], list[Call]] = {}
        for call in calls:
            runs.setdefault((call.lane, call.priority), []).append(call)
        for (lane, priority), run in runs.items():
            lane.held += len(run)
            self._tail(lane, priority, len(run)).put_many(run)

    def _wait(self, call: Call) -> None:
        waiting = call.lane.waiting
        self.hidden += 1
        if self._by_priority:
            call.number = next(self._numbers)
            heappush(waiting, (call.priority, call.number, call))
            self._hide_less_urgent(call)
        else:
            waiting.append(call)

    def _show(self, lane: Lane) -> None:
        """Show what waits in this lane, as much as may be."""
        waiting = lane.waiting
        while waiting and not (self._per_key and lane.held >= self._per_key):
            call: Call = waiting[0][2] if self._by_priority else waiting[0]
            if self.reports_starts and lane.unstarted and call.priority != lane.level:
                return
            if self._by_priority:
                heappop(waiting)
                lane.shown.append(call)
            else:
                waiting.popleft()
            self.hidden -= 1
            lane.level = call.priority
            lane.unstarted += 1
            lane.held += 1
            self._tail(lane, call.priority, 1).put(call)

    def _hide_less_urgent(self, call: Call) -> None:
        """All slots of its key are used up: take one back from a row that is less urgent than this one and that no worker has taken yet."""
        lane = call.lane
        if lane.held < self._per_key:
            return
        for other in sorted(lane.shown, key=lambda shown: shown.priority, reverse=True):
            if other.priority <= call.priority:
                return
            lane.shown.remove(other)
            if other.attempt == 0 and lane.tails[other.priority][0].discard(other):
                heappush(lane.waiting, (other.priority, other.number, other))
                self.hidden += 1
                lane.held -= 1
                lane.tails[other.priority][1] -= 1
                if not lane.tails[other.priority][1]:
                    self._remove_tail(lane, other.priority)
                return
