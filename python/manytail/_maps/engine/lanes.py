"""Lanes: which call is next, as far as keys and priorities say.

Each key has a lane. A lane has a slot for each of its calls that runs, rests until its next attempt, or waits in
`again`: at most `per_key`. What may start in a lane:

    again    calls that have a slot, because they were called before: their next attempt is due. They go before new
             items of their priority
    waiting  items without a slot. They may start while the lane has a free slot

Both are in input order; with priorities the most urgent item is first, unless calls of a key are to start in input
order (in_order). A lane has the priority of its first call. A lane that has something to start, and does not rest, is
in the ring of that priority. `next` takes the first lane of the most urgent ring. When it has started `weight` calls,
it goes to the ring's end: so lanes are served round robin, by weight.

Threads. The reader calls `assign`, which runs code of the user's keys, and writes only `_lanes`, `_limit` and
`Lane.assigned`. The scheduler calls everything else.

Invariants
    a lane is in exactly one ring, once, iff it does not rest and has a call that may start
    lane.held <= per_key
    lane.assigned - lane.emitted   items that are not emitted; a lane without any, that does not rest and is not
                                   pinned, may be forgotten
Cost: constant for each call and lane without priorities, else logarithmic in what waits; nothing idle is looked at.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from .item import Call, Item, Lane

IDLE_LIMIT = 4_096  # lanes that are kept without items, for keys that come again
SPREAD, LONGEST_SPREAD = 0.1, 1.0  # over which part of a pause the starts after it are spread; seconds at most
STEPS = 16  # starts in that time, or as many as calls may run at once, if that is more


class Fifo(deque[Any]):
    """Calls in the order in which they came."""

    add = deque.append
    add_first = deque.appendleft
    take = deque.popleft

    def first(self) -> Any:
        return self[0]

    def drain(self) -> list[Any]:
        calls = list(self)
        self.clear()
        return calls


class Urgent:
    """Calls by priority; of equal ones, in the order in which they came."""

    __slots__ = ("_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Any]] = []
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, call: Call) -> None:
        heappush(self._heap, (call.priority, next(self._numbers), call))

    def add_first(self, call: Call) -> None:
        """Before those of its priority."""
        heappush(self._heap, (call.priority, -next(self._numbers), call))

    def first(self) -> Any:
        return self._heap[0][2]

    def take(self) -> Any:
        return heappop(self._heap)[2]

    def drain(self) -> list[Any]:
        calls = [entry[2] for entry in sorted(self._heap)]
        self._heap.clear()
        return calls


class Spread:
    """Starts of a lane after a pause: one each `step`, until `end`. The calls that waited for the end of the pause
    would else meet at once the server that has asked for it."""

    __slots__ = ("end", "step")

    def __init__(self, begin: float, until: float, calls: int) -> None:
        seconds = min(SPREAD * (until - begin), LONGEST_SPREAD)
        self.end, self.step = until + seconds, seconds / max(calls, STEPS)


class Lanes:
    def __init__(
        self,
        *,
        keyed: bool = False,
        prioritised: bool = False,
        in_order: bool = False,
        per_key: int | None = None,
        weight_of: Callable[[Item], int] | None = None,
        shows: Callable[[Hashable], str] | None = None,
        prepare: Callable[[Lane], None] | None = None,
        forget: Callable[[Lane], None] | None = None,
    ) -> None:
        """weight_of: the weight of an item's lane. shows: makes `Lane.shown` of its key; may run the user's code.
        prepare, forget: called with each lane that is made and forgotten; the first may run the user's code."""
        self._shows, self._prepare, self._forget = shows, prepare, forget
        self._keyed, self._prioritised = keyed, prioritised
        self._levelled = keyed and prioritised  # whether lanes have priorities; a lone one orders its calls itself
        self._queue: Callable[[], Any] = Urgent if prioritised and not in_order else Fifo
        self._per_key = math.inf if per_key is None else per_key
        self._weight_of = weight_of
        self._lanes: dict[Hashable, Lane] = {}
        self._limit = IDLE_LIMIT
        self._ring: deque[list[Lane | None]] = deque()  # an entry that has no lane is void
        self._rings: dict[float, deque[list[Lane | None]]] = {}  # instead of it, where lanes have priorities
        self._levels: list[float] = []  # a heap: the keys of `_rings`
        self._resting: list[tuple[float, int, Lane]] = []  # a heap: when lanes that rest are to be looked at
        self._numbers = count()
        self.waiting = 0  # calls in lanes
        self.lone: Lane | None = None  # where there is only one
        if not keyed:
            self.lone = self._lanes[None] = self.new()

    # ------------------------------------------------------------------------------------------------ the reader's
    def assign(self, item: Item) -> None:
        """Give the item its lane. Runs `__hash__` and `__eq__` of the user's keys."""
        lane = self.lone
        if lane is None:
            key = item.key if self._keyed else None
            lane = self._lanes.get(key)
            if lane is None:
                if len(self._lanes) >= self._limit:
                    self._forget_idle()
                lane = self._lanes[key] = self._prepared(item)
        lane.assigned += 1
        item.lane = lane

    def _prepared(self, item: Item) -> Lane:
        """A new lane for the item."""
        lane = self.new(item.key, 1 if self._weight_of is None else self._weight_of(item))
        if self._shows is not None and self._keyed:
            lane.shown = self._shows(item.key)
        if self._prepare is not None:
            self._prepare(lane)
        return lane

    def new(self, key: Hashable = None, weight: int = 1) -> Lane:
        """A lane that `assign` does not find: of an item without a usable key, which is not called."""
        return Lane(self._queue(), self._queue(), key, weight)

    def _forget_idle(self) -> None:
        """Amortised constant time per lane: the next call comes when their number has doubled."""
        for key, lane in list(self._lanes.items()):
            if self.is_idle(lane):
                del self._lanes[key]
                if self._forget is not None:
                    self._forget(lane)
        self._limit = max(IDLE_LIMIT, 2 * len(self._lanes))

    @staticmethod
    def is_idle(lane: Lane) -> bool:
        """Whether it may be forgotten. A lane begins to rest before its last item is emitted: `rests` is read last."""
        return lane.assigned == lane.emitted and not (lane.rests or lane.pinned)

    # ------------------------------------------------------------------------------------------------ calls come
    def admit(self, calls: Sequence[Call]) -> None:
        """New items, or batches of them."""
        self.waiting += len(calls)
        if self._queue is Fifo and self.lone is not None:
            self.lone.waiting.extend(calls)
            self._update(self.lone)
            return
        for call in calls:
            lane = call.lane
            lane.waiting.add(call)
            if lane.entry is None or self._levelled:
                self._update(lane)

    def again(self, call: Call) -> None:
        """A call with a slot may start again: the last of those of its priority."""
        self.waiting += 1
        call.lane.again.add(call)
        self._update(call.lane)

    def put_back(self, call: Call, began: bool) -> None:
        """A call with a slot did not start: it is the first of its priority. began: it was called before. If not, it
        loses its slot: what was called before goes first."""
        self.waiting += 1
        lane = call.lane
        if began:
            lane.again.add_first(call)
        else:
            lane.held -= 1
            lane.waiting.add_first(call)
        self._update(lane)

    def readmit(self, call: Call) -> None:
        """A call without a slot comes before new items of its priority."""
        self.waiting += 1
        call.lane.waiting.add_first(call)
        self._update(call.lane)

    def finished(self, lane: Lane) -> None:
        """A slot is free."""
        lane.held -= 1
        if lane.entry is None and lane.waiting:
            self._update(lane)

    # ------------------------------------------------------------------------------------------------ calls start
    def next(self) -> Lane | None:
        """The lane whose turn it is, or None."""
        if not self._levelled:
            return self._first(self._ring)
        while self._levels:
            level = self._levels[0]
            lane = self._first(self._rings[level])
            if lane is not None:
                return lane
            del self._rings[heappop(self._levels)]
        return None

    @staticmethod
    def _first(ring: deque[list[Lane | None]]) -> Lane | None:
        while ring:
            lane = ring[0][0]
            if lane is not None:
                return lane
            ring.popleft()
        return None

    def first(self, lane: Lane) -> Call:
        """The next call of a lane in the ring."""
        call: Call = lane.again.first() if self._goes_again(lane) else lane.waiting.first()
        return call

    def take(self, lane: Lane) -> Call:
        """Take out the next call of the lane that `next` returned. It has a slot from here on."""
        self.waiting -= 1
        call: Call
        if lane.again and self._goes_again(lane):
            call = lane.again.take()
        else:
            call = lane.waiting.take()
            lane.held += 1
        lane.turns -= 1
        if lane.turns <= 0:
            lane.turns = lane.weight
            self._leave(lane)
            self._update(lane)
        elif self._levelled or not (lane.again or (lane.waiting and lane.held < self._per_key)):
            self._update(lane)
        return call

    def take_all(self) -> list[Call]:
        """Where there is one lane that has no limits: take out everything that may start."""
        lane = self.lone
        assert lane is not None
        if lane.rests:
            return []
        calls: list[Call] = [*lane.again, *lane.waiting] if lane.again else list(lane.waiting)
        lane.again.clear()
        lane.waiting.clear()
        self.waiting = 0
        self._leave(lane)
        return calls

    def _goes_again(self, lane: Lane) -> bool:
        """Whether the next call is one of `again`."""
        again, waiting = lane.again, lane.waiting
        if not again:
            return False
        if not self._prioritised or not waiting or lane.held >= self._per_key or self._queue is Fifo:
            return True
        return bool(again.first().priority <= waiting.first().priority)

    # ------------------------------------------------------------------------------------------------ the rings
    def _update(self, lane: Lane) -> None:
        """Put the lane into its ring, or take it out."""
        may = not lane.rests and (lane.again or (lane.waiting and lane.held < self._per_key))
        if not may:
            self._leave(lane)
        elif not self._levelled:
            if lane.entry is None:
                lane.entry = [lane]
                self._ring.append(lane.entry)
        else:
            level = self.first(lane).priority
            if lane.entry is None or lane.level != level:
                self._leave(lane)
                self._enter(lane, level)

    def _enter(self, lane: Lane, level: float) -> None:
        ring = self._rings.get(level)
        if ring is None:
            ring = self._rings[level] = deque()
            heappush(self._levels, level)
        lane.entry, lane.level = [lane], level
        ring.append(lane.entry)

    @staticmethod
    def _leave(lane: Lane) -> None:
        if lane.entry is not None:
            lane.entry[0] = None
            lane.entry = None

    # ------------------------------------------------------------------------------------------------ rests
    def pause(self, lane: Lane, until: float, now: float, calls: int, spreads: bool) -> None:
        """Nothing of the lane starts before `until`; then starts are spread. calls: that may run at once."""
        if until > max(lane.paused_until, now):
            lane.spread = Spread(now, until, calls) if spreads else None
            lane.paused_until = until
            self.rest(lane, max(until, lane.rest_until))

    def started(self, lane: Lane, now: float) -> None:
        """A call of a lane with a spread has started: the next one comes later."""
        if now + lane.spread.step < lane.spread.end:
            lane.paused_until = now + lane.spread.step
            self.rest(lane, lane.paused_until)
        else:
            lane.spread = None

    def rest(self, lane: Lane, until: float) -> None:
        """Nothing of the lane starts before `until`. inf: until `wake`."""
        lane.rests, lane.rest_until = True, until
        if until < math.inf:
            heappush(self._resting, (until, next(self._numbers), lane))
        self._leave(lane)

    def wake(self, lane: Lane, now: float) -> None:
        """The lane need not rest any longer, unless it pauses."""
        if lane.paused_until > now:
            self.rest(lane, lane.paused_until)
        else:
            lane.rests, lane.rest_until = False, -math.inf
            self._update(lane)

    @property
    def wake_at(self) -> float:
        return self._resting[0][0] if self._resting else math.inf

    def tick(self, now: float) -> None:
        """End the rests whose time has come."""
        while self._resting and self._resting[0][0] <= now:
            lane = heappop(self._resting)[2]
            if lane.rests and lane.rest_until <= now:
                self.wake(lane, now)

    # ------------------------------------------------------------------------------------------------ the end
    def drain(self, lanes: Iterable[Lane] | None = None) -> list[Call]:
        """Take out every call of these lanes (None: of all). Those of `again` keep their slot."""
        calls: list[Call] = []
        for lane in self._lanes.copy().values() if lanes is None else lanes:
            calls += lane.again.drain()
            calls += lane.waiting.drain()
            self._leave(lane)
        self.waiting -= len(calls)
        return calls

    def lines(self) -> list[deque[Item]]:
        """order="key": the items of each lane that are not emitted, in input order."""
        return [lane.line for lane in self._lanes.copy().values()]
