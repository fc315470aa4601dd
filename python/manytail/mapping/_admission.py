"""Admission: which items may start. It keeps items in flight in a MultiQueue with a sub-queue per key and priority.

A worker could check a limit only after it has taken an item out of the queue. So limits are enforced on enqueue:

- An item enters its sub-queue only when its key has a free slot (`per_key`). The item keeps the slot until it is
  finished, also while it waits for a retry. Items without a slot wait in their lane, the most urgent first. A more
  urgent item that arrives later takes the slot of one that is ready and not started.
- With `in_order`, calls of one key start in input order although each item has its own priority. Then only the first
  waiting items that share one priority are ready, and the next ones when all of those have started. So the key has the
  priority of its first waiting item.
- A paused lane's sub-queues are disabled: nothing of that key starts.
- Behind this queue there may be a gate (`_gate`). It takes the items out, and may give them back by `retry` before
  their call.

The queue orders ready items: lower priority first, then round robin over keys, by weight.

Threads. The scheduler's owner calls everything here, with two exceptions. Workers take from `queue`. One reader calls
`assign`, because that runs code of the user's keys; it writes only `_lanes`, `_lanes_limit` and `lane.assigned`, which
nothing else writes, and appends to `_retired`.

Invariants
    lane.assigned - lane.emitted  items of the lane that are not emitted; without any, an unpinned lane may be dropped
    lane.held       items that are ready, running or resting; at most per_key where that is set
    lane.unstarted  items that were made ready and never started; all have priority lane.level (in_order only)
    queues[p][1]    items of the lane with priority p that are ready, running or resting
    without_slot    items that wait in their lanes, for a free slot or for the start of items of another priority
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from manytail import Empty, MultiQueue, SubQueue
from manytail._sync import Held

from ._item import Item, Lane, Work

IDLE_LIMIT = 4_096  # lanes that are kept without items in flight, for keys that come again
LAST = math.inf  # the priority of null; compares greater than every int
KEPT_QUEUES = 64  # empty sub-queues that are kept, for priorities that come again
_STEP = 1 << 16  # between the labels of two neighbouring priorities, at first
_EDGE = (1 << 31) - 1  # the largest label: a C int


class Admission:
    """The queue of what may start, and the lanes that feed it."""

    def __init__(
        self,
        *,
        per_key: int,
        keyed: bool,
        prioritised: bool,
        in_order: bool,
        weight_of: Callable[[Item], int] | None = None,
        shows_keys: bool = False,
    ) -> None:
        """shows_keys: lanes have their keys for messages."""
        self.queue: MultiQueue[Hashable, Work] = MultiQueue(
            selection="round_robin" if weight_of is None else "weighted"
        )
        # Whether `started` must be called for each item that a worker took.
        self.reports_starts = prioritised and in_order
        self.without_slot = 0
        self.paused: set[Lane] = set()
        self._keyed = keyed
        self.is_plain = not keyed and not prioritised  # one lane with one sub-queue, no limits
        self._per_key = per_key
        self._weight_of = weight_of
        self.prepare: Callable[[Lane], None] | None = None  # the gate's, of a new lane: may raise, which fails the item
        self.forget: Callable[[Lane], None] | None = None  # the gate's, of a lane that is dropped
        self._shows_keys = shows_keys and keyed
        self._priority_labels = PriorityLabels() if prioritised else None
        self._limited = bool(per_key) or self.reports_starts
        self._by_priority = prioritised and not in_order  # waiting items go by priority, not by input order
        self._lanes: dict[Hashable, Lane] = {}
        self._lanes_limit = IDLE_LIMIT
        self._retired: deque[Lane] = deque()  # dropped by the reader; their sub-queues are removed with the next items
        self._numbers = count()
        self._empty_queues = 0  # sub-queues without items that are ready, running or resting; only with priorities
        self._lone = Lane(None, 1, deque())
        if self.is_plain:
            self._lanes[None] = self._lone
            self._lone.queues[0] = [self.queue.add(self._lone), 0]
            self.put = self._lone.queues[0][0].put  # makes an item ready

    # ------------------------------------------------------------------------------------------------ the reader's
    def assign(self, items: Iterable[Item]) -> None:
        """Give each item its lane. Runs code of the user's keys (`__hash__`, `__eq__`, `__repr__`): call it from one
        thread, without a lock."""
        if self.is_plain:
            lone = self._lone
            for item in items:
                item.lane = lone
            return
        for item in items:
            if self._priority_labels is None:
                item.priority = 0
            self._join_lane(item)

    def lines(self) -> list[deque[Item]]:
        """Of all keys: what has arrived and is not emitted, where each key has its order."""
        return [lane.line for lane in self._all_lanes()]

    def assign_alone(self, item: Item) -> None:
        """Give an item without a usable key its own lane."""
        item.lane = Lane(None, 1, ())
        item.lane.assigned += 1

    def _join_lane(self, item: Item) -> None:
        key = item.key if self._keyed else None
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= self._lanes_limit:
                self._forget_idle()
            lane = self._lanes[key] = self._new_lane(item, key)
        item.lane = lane
        lane.assigned += 1

    def _new_lane(self, item: Item, key: Hashable) -> Lane:
        weight = 1 if self._weight_of is None else self._weight_of(item)
        lane = Lane(key, weight, [] if self._by_priority else deque())
        if self.prepare is not None:
            self.prepare(lane)
        lane.shown = _shown(key) if self._shows_keys else ""
        return lane

    def _all_lanes(self) -> list[Lane]:
        """A copy: the reader may assign at the same time."""
        return list(self._lanes.values())

    def _forget_idle(self) -> None:
        """Drop lanes without items. Amortised constant time per lane: the next call comes when the number of lanes has
        doubled, and is IDLE_LIMIT at least."""
        # A lane is pinned before its last item is emitted, and unpinned later. So `pinned` is read last.
        idle = [lane for lane in self._lanes.values() if lane.assigned == lane.emitted and not lane.pinned]
        for lane in idle:
            del self._lanes[lane.key]
        self._retired.extend(idle)
        self._lanes_limit = max(IDLE_LIMIT, 2 * len(self._lanes))

    # ------------------------------------------------------------------------------------------------ items come and go
    def admit(self, items: Sequence[Work]) -> None:
        """Make as many items ready as limits allow. The others wait in their lanes."""
        while self._retired:
            lane = self._retired.popleft()
            if self._priority_labels is not None:
                self._empty_queues -= len(lane.queues)
            for priority in list(lane.queues):
                self._remove_queue(lane, priority)
            if self.forget is not None:
                self.forget(lane)
        if self.is_plain:
            self._lone.queues[0][0].put_many(items)
        elif not self._limited:
            self._enqueue_runs(items)
        else:
            for item in items:
                self._wait(item)
            for lane in dict.fromkeys([item.lane for item in items]):
                self._fill_by_urgency(lane)

    def retry(self, item: Work) -> None:
        """Make an item ready whose wait is over. It kept its slot, and precedes new items of its key and priority."""
        item.lane.queues[0 if self.is_plain else item.priority][0].put_front(item)

    def readmit(self, item: Work) -> None:
        """Admit again an item that has no slot. It comes before new items of its key and priority."""
        lane = item.lane
        if self.is_plain:
            self._lone.queues[0][0].put_front(item)
        elif not self._limited:
            lane.held += 1
            self._queue(lane, item.priority, 1).put_front(item)
        else:
            self.without_slot += 1
            if self._by_priority:
                heappush(lane.waiting, (item.priority, -next(self._numbers), item))
            else:
                lane.waiting.appendleft(item)
            self._fill_by_urgency(lane)

    def give_back(self, item: Work) -> None:
        """Make an item ready that was taken out and has not started. It comes first, and keeps its slot even if a more
        urgent item comes."""
        self.secure_slot(item)
        self.retry(item)

    def secure_slot(self, item: Work) -> None:
        """From here on no more urgent item can take the slot of this one."""
        if item.lane.unsecured:
            item.lane.unsecured = [other for other in item.lane.unsecured if other[1] is not item]

    def has_ready(self, lane: Lane) -> bool:
        return any(queue.qsize() for queue, _ in lane.queues.values())

    def started(self, lane: Lane) -> None:
        """An item of the lane has started for the first time. Called only where `reports_starts`."""
        lane.unstarted -= 1
        self._fill(lane)

    def finished(self, item: Work) -> None:
        """No further attempt follows: its slot is free."""
        if self.is_plain:
            return
        lane = item.lane
        lane.held -= 1
        entry = lane.queues[item.priority]
        entry[1] -= 1
        if self._priority_labels is not None and not entry[1]:
            self._emptied(lane, item.priority)
        if self._limited:
            self.secure_slot(item)
            self._fill(lane)

    # ------------------------------------------------------------------------------------------------ pauses, the end
    def pause(self, lane: Lane, until: float) -> None:
        """Nothing of the lane starts before `until`, also if it has no item until then."""
        lane.paused_until = max(lane.paused_until, until)
        lane.pinned = True
        self.disable(lane)

    def disable(self, lane: Lane) -> None:
        if lane.open:
            self._close(lane)
        self.paused.add(lane)
        for queue, _ in lane.queues.values():
            queue.enabled = False

    def resume(self, lane: Lane) -> None:
        if lane.open:
            self._close(lane)
        lane.pinned = False
        self.paused.discard(lane)
        for queue, _ in lane.queues.values():
            queue.enabled = True

    def release(self, lane: Lane) -> None:
        """Let the first item of a disabled lane start, if it has one."""
        for priority in sorted(lane.queues):
            queue = lane.queues[priority][0]
            for item in queue:
                if queue.discard(item):
                    if priority not in lane.open:
                        lane.open[priority] = self._add_queue(lane, priority, opened=True)
                    lane.open[priority].put(item)
                    return

    def _close(self, lane: Lane) -> None:
        """Released items that no worker has taken go back, in their order."""
        for priority, queue in lane.open.items():
            for item in reversed(list(queue)):
                if queue.discard(item):
                    self.retry(item)
            self.queue.remove(queue.key)
            if self._priority_labels is not None:
                self._priority_labels.leave(priority, queue)
        lane.open.clear()

    def paused_items(self) -> int:
        """Ready items whose key is paused. 0 without keys, because no other key can start instead."""
        return self._paused() if self._keyed else 0

    def paused_without_keys(self) -> int:
        """The ready items while everything is paused. 0 with keys."""
        return 0 if self._keyed else self._paused()

    def _paused(self) -> int:
        return sum(queue.qsize() for lane in self.paused for queue, _ in lane.queues.values())

    def drain_lane(self, lane: Lane) -> list[Work]:
        """Take out every item of the lane that has not started. Those with a slot give it back."""
        taken = [item for queue, _ in list(lane.queues.values()) for item in list(queue) if queue.discard(item)]
        waiting: list[Work] = [entry[2] for entry in sorted(lane.waiting)] if self._by_priority else list(lane.waiting)
        lane.waiting.clear()
        self.without_slot -= len(waiting)
        if self.reports_starts:
            lane.unstarted -= sum(not item.passed for item in taken)
        for item in taken:
            self.finished(item)
        return taken + waiting

    def drain(self) -> list[Work]:
        """Take out every item that has not started. The slots of the lanes are not valid afterwards."""
        taken: list[Work] = []
        for lane in self._all_lanes():
            for queue, _ in lane.queues.values() if lane in self.paused else ():
                taken += [item for item in list(queue) if queue.discard(item)]
            taken += [entry[2] for entry in lane.waiting] if self._by_priority else lane.waiting
            lane.waiting.clear()
        self.without_slot = 0
        try:
            while True:
                taken += self.queue.get_many(1_024, block=False)
        except Empty:
            return taken

    # ------------------------------------------------------------------------------------------------ sub-queues
    def _queue(self, lane: Lane, priority: float, items: int) -> SubQueue[Hashable, Work]:
        """The sub-queue for that many more items."""
        entry = lane.queues.get(priority)
        if entry is None:
            entry = lane.queues[priority] = [self._add_queue(lane, priority), 0]
        elif not entry[1] and self._priority_labels is not None:
            self._empty_queues -= 1
        entry[1] += items
        return entry[0]  # type: ignore[no-any-return]

    def _add_queue(self, lane: Lane, priority: float, opened: bool = False) -> SubQueue[Hashable, Work]:
        """opened: that of `Lane.open`."""
        enabled = opened or lane not in self.paused
        name = ("open", lane) if opened else lane
        if self._priority_labels is None:
            return self.queue.add(name, weight=lane.weight, enabled=enabled)
        label = self._priority_labels.label(priority)
        queue = self.queue.add((name, priority), priority=label, weight=lane.weight, enabled=enabled)
        self._priority_labels.join(priority, queue)
        return queue

    def _emptied(self, lane: Lane, priority: float) -> None:
        """No item of the sub-queue is ready, running or resting."""
        if self._empty_queues < KEPT_QUEUES:
            self._empty_queues += 1
        else:
            self._remove_queue(lane, priority)

    def _remove_queue(self, lane: Lane, priority: float) -> None:
        queue = lane.queues.pop(priority)[0]
        self.queue.remove(queue.key)
        if self._priority_labels is not None:
            self._priority_labels.leave(priority, queue)

    # ------------------------------------------------------------------------------------------------ what is ready
    def _enqueue_runs(self, items: Sequence[Work]) -> None:
        runs: dict[tuple[Lane, float], list[Work]] = {}
        for item in items:
            runs.setdefault((item.lane, item.priority), []).append(item)
        for (lane, priority), run in runs.items():
            lane.held += len(run)
            self._queue(lane, priority, len(run)).put_many(run)

    def _wait(self, item: Work) -> None:
        waiting = item.lane.waiting
        self.without_slot += 1
        if self._by_priority:
            heappush(waiting, (item.priority, next(self._numbers), item))
        else:
            waiting.append(item)

    def _fill(self, lane: Lane) -> None:
        """Make as many waiting items of this lane ready as limits allow."""
        waiting = lane.waiting
        while waiting and not (self._per_key and lane.held >= self._per_key):
            item: Work = waiting[0][2] if self._by_priority else waiting[0]
            if self.reports_starts and lane.unstarted and item.priority != lane.level:
                return
            if self._by_priority:
                _, number, _ = heappop(waiting)
                lane.unsecured.append((number, item))
            else:
                waiting.popleft()
            self.without_slot -= 1
            lane.level = item.priority
            lane.unstarted += 1
            lane.held += 1
            self._queue(lane, item.priority, 1).put(item)

    def _fill_by_urgency(self, lane: Lane) -> None:
        """Fill free slots. Then move slots from less urgent ready items to more urgent waiting ones."""
        self._fill(lane)
        while self._by_priority and self._take_back_less_urgent(lane):
            self._fill(lane)

    def _take_back_less_urgent(self, lane: Lane) -> bool:
        """Free the slot of a ready item that no worker has taken and that is less urgent than the first waiting one. Of
        the least urgent ones take the last in input order: it is to start after the others. Returns whether there was
        one. Call it when all slots of the key are in use."""
        while lane.waiting and lane.unsecured:
            entry = max(lane.unsecured, key=_least_urgent)
            number, item = entry
            if item.priority <= lane.waiting[0][0]:
                return False
            lane.unsecured.remove(entry)
            if item.attempts == 0 and item.deferred is None and lane.queues[item.priority][0].discard(item):
                self._move_to_waiting(item, number)
                return True
        return False

    def _move_to_waiting(self, item: Work, number: int) -> None:
        lane = item.lane
        heappush(lane.waiting, (item.priority, number, item))
        self.without_slot += 1
        lane.held -= 1
        entry = lane.queues[item.priority]
        entry[1] -= 1
        if not entry[1]:
            self._emptied(lane, item.priority)


class SharedAdmission(Admission):
    """One whose items many threads assign at the same time.

    A lane is found by the hash of its key, in a tuple of those with that hash, which is replaced whole. So the user's
    `__eq__` runs without the lock: what it has compared counts if the tuple is still the same. A lane that is dropped
    is in no tuple. Nor is the lane of a Caller without keys and priorities, so `drain` and `lines` miss it: a Caller
    has no deadline and no order, and calls neither."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lock = threading.RLock()  # of `_table` and `Lane.assigned`; finalizers take it again
        self._table: dict[int, tuple[Lane, ...]] = {}

    def _join_lane(self, item: Item) -> None:
        key = item.key if self._keyed else None
        number, made = hash(key), None
        while True:
            seen = self._table.get(number, ())
            lane = next((one for one in seen if one.key is key or one.key == key), made)
            if lane is None:
                lane = made = self._new_lane(item, key)
            with Held(self._lock):
                if self._table.get(number, ()) is seen:
                    if lane is made:
                        self._table[number] = (*seen, lane)
                    lane.assigned += 1
                    item.lane = lane
                    break
        if made is not None and made is not lane and self.forget is not None:
            self.forget(made)
        if lane is made and len(self._table) > self._lanes_limit:
            self._forget_idle()

    def _forget_idle(self) -> None:
        with Held(self._lock):
            for number, lanes in list(self._table.items()):
                kept = tuple(lane for lane in lanes if lane.assigned != lane.emitted or lane.pinned)
                if len(kept) < len(lanes):
                    self._retired.extend(lane for lane in lanes if lane not in kept)
                    self._table[number] = kept
                    if not kept:
                        del self._table[number]
            self._lanes_limit = max(IDLE_LIMIT, 2 * len(self._table))

    def _all_lanes(self) -> list[Lane]:
        with Held(self._lock):
            return [lane for lanes in self._table.values() for lane in lanes]


def _shown(key: Hashable) -> str:
    try:
        return f", key {key!r}"
    except Exception:  # the user's: a message goes without it
        return f", a key of type {type(key).__qualname__}"


def _least_urgent(entry: tuple[int, Work]) -> tuple[float, int]:
    number, item = entry
    return item.priority, number


class PriorityLabels:
    """A C int for each priority in use, in the same order: its label, which is the priority of its sub-queues.

    A priority may have any number of bits, as a deadline in milliseconds has, or be LAST. MultiQueue's priorities are C
    ints. A new priority gets a label between those of its neighbours. When no number is left in between, all labels are
    assigned anew, also to sub-queues with items. This is list labelling, the order-maintenance problem.
    """

    def __init__(self) -> None:
        self._values: list[float] = []  # sorted; ints and LAST
        self._labels: dict[float, int] = {}
        # Of each priority. Dicts as ordered sets: the simulator must get the same order in each run.
        self._queues: dict[float, dict[Any, None]] = {}

    def label(self, value: float) -> int:
        """The label of a priority. From here on the priority is in use."""
        if value not in self._labels:
            insort(self._values, value)
            self._queues[value] = {}
            found = self._between(bisect_left(self._values, value))
            if found is None:
                self._spread()
            else:
                self._labels[value] = found
        return self._labels[value]

    def join(self, value: float, queue: Any) -> None:
        self._queues[value][queue] = None

    def leave(self, value: float, queue: Any) -> None:
        """That sub-queue is removed. A priority without sub-queues is not in use."""
        queues = self._queues[value]
        del queues[queue]
        if not queues:
            del self._queues[value], self._labels[value]
            del self._values[bisect_left(self._values, value)]

    def _between(self, position: int) -> int | None:
        """A free number for the value at that position, or None."""
        below = self._labels[self._values[position - 1]] if position else None
        above = self._labels[self._values[position + 1]] if position + 1 < len(self._values) else None
        if below is None:
            found = 0 if above is None else above - _STEP
        elif above is None:
            found = below + _STEP
        else:
            found = (below + above) // 2
            if found == below:
                return None
        return found if -_EDGE <= found <= _EDGE else None

    def _spread(self) -> None:
        """Assign new labels at equal distances, from the middle outwards.

        Workers may take in between: no label may pass another one. Those that become smaller change first, from the
        smallest on, then those that become larger, from the largest on."""
        total = len(self._values)
        step = max(1, min(_STEP, 2 * _EDGE // (total + 1)))
        new = {value: (number - total // 2) * step for number, value in enumerate(self._values)}
        larger = [value for value in self._values if new[value] > self._labels.get(value, new[value])]
        smaller = [value for value in self._values if new[value] <= self._labels.get(value, new[value])]
        for value in (*smaller, *reversed(larger)):
            self._labels[value] = new[value]
            for queue in self._queues[value]:
                queue.priority = new[value]
