"""The scheduler of maps over frames: rows come in chunks, and go out many at a time.

A chunk may have more rows than the window has room for. The others wait in `ahead`, and come in as room gets free; no
other chunk is read before.

The consumer takes many rows at a time, and few times. So the next rows of the output, as many as it takes at once, or
as have OUTPUT_BYTES, count as taken when they are emitted.

Invariants
    window.taken <= what the consumer has taken + `_most`; it never decreases
    while `ahead` has rows, the input has not ended for the scheduler
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .batched import BatchScheduler
from .events import Effects, Event, InputEnded
from .item import Item
from .scheduler import Scheduler
from .window import LEAST_BYTES, Window

OUTPUT_BYTES = 64 << 20  # of an output


class ChunkWindow(Window):
    """Rows are weighed whether the window is automatic or not: an output has a limit of bytes."""

    __slots__ = ("_automatic", "_size_of")

    def __init__(self, max_in_flight: int | None, calls_items: int, size_of: Callable[[Item], float]) -> None:
        super().__init__(max_in_flight, calls_items)
        self._automatic, self.weighs, self._size_of = self.weighs, True, size_of

    def read_limit(self, to_run: int) -> int:
        if self._automatic:
            return super().read_limit(to_run)
        self._most = self.taken + self.size
        return self._most

    def weigh(self, item: Item, value: Any) -> None:
        size = int(self._size_of(item)) - item.size
        if size >= LEAST_BYTES:
            self.add(item, size)


class Handlers(dict[type, Callable[[Any], None]]):
    """A row is of a subclass of Item."""

    def __missing__(self, kind: type) -> Callable[[Any], None]:
        self[kind] = self[Item]
        return self[kind]


class ChunkScheduler(Scheduler):
    def gather(self, most: int, size_of: Callable[[Item], float]) -> None:
        """Before the first step. most: the consumer takes so many rows at once."""
        rules = self.rules
        self.window: ChunkWindow = ChunkWindow(rules.max_in_flight, rules.workers * rules.calls_items, size_of)
        self._handlers = Handlers(self._handlers)
        self._most = most
        self.ahead: Any = deque()
        self._over: InputEnded | None = None  # of the input, while rows wait in `ahead`
        self._popped = 0  # rows that the consumer has taken, or that were dropped
        self._bytes_out = 0  # of rows that were emitted
        self._bytes_popped = 0  # of rows that the consumer has taken; the consumer writes it
        self.idle_since: float | None = None  # since then no row is in flight, and the input has none

    def step(self, inbox: deque[Event], now: float) -> Effects:
        effects = super().step(inbox, now)
        window = self.window
        if self.ahead and effects.read > window.arrived:  # what this step has emitted makes room, or a larger window
            inbox.append(0)  # the driver makes another step
        if self.ahead or window.arrived > window.emitted:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now
            effects.shows = True
        effects.shows = effects.shows or self.is_full
        return effects

    # ------------------------------------------------------------------------------------------------ rows come in
    def _read(self, items: list[Item]) -> None:
        if self._counted is not None and items:
            self._counted = type(items[0])
        self.ahead.extend(items)

    def _end_input(self, event: InputEnded) -> None:
        self._over = event

    def _tick(self) -> None:
        """What has ended is emitted, and the next rows come in: all this in the step that starts their calls."""
        super()._tick()
        if self._line is not None:
            self._emit_line(self._line)
        ahead, window = self.ahead, self.window
        if ahead and not self.halted:
            room = window.read_limit(self._to_run()) - window.arrived
            if room > 0:
                self._let_in([ahead.popleft() for _ in range(min(room, len(ahead)))])
        if self._over is not None and not ahead:
            super()._end_input(self._over)
            self._over = None

    def _let_in(self, rows: list[Item]) -> None:
        """Where there is only one lane, the rows get it here: a pass over all rows of a chunk, most of which are in no
        cache of the processor, would take longer."""
        lane = self.lanes.lone
        if lane is not None:
            for row in rows:
                row.lane = lane
        self._arrived(rows)

    # ------------------------------------------------------------------------------------------------ rows go out
    @property
    def is_full(self) -> bool:
        """Whether the rows of the output have the bytes for one."""
        return self._bytes_out - self._bytes_popped >= OUTPUT_BYTES

    def _emit(self, items: list[Item]) -> None:
        window = self.window
        before = window.taken
        super()._emit(items)
        self._popped += window.taken - before  # those that were dropped
        if window.has_weights:
            self._bytes_out += sum([item.size for item in items if item.error is None or not self.rules.drops])
        self._count_taken()

    def _took(self, number: int) -> None:
        self._popped += number
        self._count_taken()

    def _count_taken(self) -> None:
        window = self.window
        counted = self._popped if self.is_full else self._popped + self._most
        window.taken = max(window.taken, min(window.emitted, counted))

    def pop(self, output: deque[Item]) -> Sequence[Item]:
        """Take the rows for an output. In the consumer's thread."""
        window = self.window
        if not window.has_weights:
            return [output.popleft() for _ in range(min(len(output), self._most))]
        rows: list[Item] = []
        size = 0
        while output and len(rows) < self._most and size < OUTPUT_BYTES:
            row = output.popleft()
            rows.append(row)
            if row.size:
                size += row.size
                window.left(row)
        self._bytes_popped += size
        return rows


class ChunkBatchScheduler(ChunkScheduler, BatchScheduler):
    """Calls are batches of rows."""
