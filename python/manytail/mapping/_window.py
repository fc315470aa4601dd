"""The window: counts the items in flight, how many there may be, and the bytes of those that are done. The scheduler
counts what arrives, what is held back and what it drops; `fill_buffer` and `took` count the rest.

size       max_in_flight if given; else it starts at 4 x workers x batch and doubles when a worker has nothing to run
           only because the window is full of items that wait for an earlier one, for their key, or for their look-up
in_flight  items arrived - items taken by the consumer - dropped - buffered <= size
held_back  those of them that are done, behind an item that must be emitted earlier
waiting    bytes of what is in flight, where the items are weighed: an automatic window then grows only while these are
           few. Each thread appends what it adds or takes away, and the scheduler's owner sums that up
buffered   only in Spark: the first items of the output, for the output batch that is being filled; at most `buffer`
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from sys import getsizeof
from typing import Any

from ._item import Item
from ._options import Options

WINDOW_LIMIT = 10_000  # items that the automatic window holds at most, unless 4 x workers x batch is more
WAITING_BYTES = 256_000_000  # of what is in flight: with as many the automatic window does not grow
LEAST_BYTES = 4_096  # an item or result that has fewer counts nothing: a full window of them has 40 MB
# Types of values that are not weighed, because these have fewer: a string up to SHORT characters.
LIGHT = frozenset({type(None), bool, int, float, str})
SHORT = 1_000
BUILT_IN = frozenset({str, bytes, bytearray, list, tuple, dict, set})  # types without `nbytes`


def weight_of(value: Any) -> int:
    """The bytes of an item or a result: its `nbytes`, or else what sys.getsizeof says. Runs user code, so it is called
    without a lock; what that raises counts nothing. The class is asked for `nbytes`, because an object may answer to
    every name."""
    try:
        size = value.nbytes if hasattr(type(value), "nbytes") else None
        return size if type(size) is int and size >= 0 else getsizeof(value)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # most likely Ctrl-C
        return 0


class Window:
    """The items in flight of one map."""

    def __init__(
        self,
        options: Options,
        buffer: int = 0,
        sizeof: Callable[[Item], float] | None = None,
        buffer_bytes: float = math.inf,
        window_bytes: float = math.inf,
        weighs: bool = False,
    ) -> None:
        """buffer, buffer_bytes: that many emitted items, or bytes of them, count as taken before they are popped.
        sizeof: returns the bytes of an item and its result. window_bytes: with so many bytes in flight the automatic
        window takes no more than 4 x workers x batch items. weighs: its owner calls `weigh`, and the same holds
        with WAITING_BYTES."""
        self.in_flight = self.held_back = self.buffered = 0
        self.base = 4 * options.workers * options.calls_items
        self.largest_size = max(WINDOW_LIMIT, self.base)
        self.size = options.max_in_flight or self.base
        self.is_automatic = self.grows = options.max_in_flight is None  # grows: `grow` may help
        self.buffer = buffer
        self.buffer_full = False  # its bytes are used up
        self.sizeof = sizeof
        self._buffer_bytes = buffer_bytes
        self._window_bytes = window_bytes
        self.buffered_bytes = 0.0
        self.weighs = weighs and self.is_automatic
        self.is_bounded = False  # so many items may arrive that there are `base` calls to run: it has grown
        self.has_weights = False  # something weighs LEAST_BYTES or more
        self._waiting = 0  # bytes, but for these changes
        self._changes: deque[int] = deque()
        self.held_bytes = self.item_bytes = 0.0  # of items that are held back; of the item that arrived last

    def room(self, to_run: int) -> int:
        """How many items may arrive. to_run: calls that run or may run. Where the items are weighed, a window that has
        grown has no more of these than one that has not: their results may be larger than those before."""
        room = self.size - self.in_flight
        if self.sizeof is None and not self.weighs:
            return room
        if self.is_automatic and self.in_flight >= self.base and self._is_heavy():
            return 0
        return min(room, self.base - to_run) if self.is_bounded else room

    def _is_heavy(self) -> bool:
        if self.sizeof is None:
            return self.waiting_bytes() >= WAITING_BYTES
        return self.bytes_in_flight() >= self._window_bytes

    def grow(self) -> bool:
        """Double the size. False: the items have too many bytes, or would have."""
        if self.sizeof is not None and 2 * self.bytes_in_flight() > self._window_bytes:
            return False
        if self.weighs and self.waiting_bytes() >= WAITING_BYTES:
            return False
        self.size = min(2 * self.size, self.largest_size)
        self.grows = self.size < self.largest_size
        self.is_bounded = self.weighs
        return True

    def weigh(self, item: Item, value: Any) -> None:
        """Count the bytes of the item's value or result. From any thread, without a lock."""
        size = getsizeof(value) if type(value) in BUILT_IN else weight_of(value)
        if size >= LEAST_BYTES:
            item.size = getattr(item, "size", 0) + size
            self.has_weights = True
            self._changes.append(size)

    def left(self, item: Item) -> None:
        """The consumer took the item, or it was dropped: it does not wait any longer."""
        if size := getattr(item, "size", 0):
            self._changes.append(-size)

    def waiting_bytes(self) -> int:
        while self._changes:
            self._waiting += self._changes.popleft()
        return self._waiting

    def bytes_in_flight(self) -> float:
        return self.held_bytes + (self.in_flight - self.held_back) * self.item_bytes

    def weigh_done(self, items: Sequence[Item]) -> None:
        assert self.sizeof is not None
        sizes = list(map(self.sizeof, items))
        self.held_bytes += sum(sizes)
        for item, size in zip(items, sizes, strict=True):
            item.size = size

    def weigh_emitted(self, items: Sequence[Item]) -> None:
        self.held_bytes -= sum([item.size for item in items])

    def fill_buffer(self, items: Sequence[Item]) -> None:
        """Count as taken as many of these as the buffer has room for. They are the first items of the output that are
        not counted so."""
        counted = 0 if self.buffer_full else min(self.buffer - self.buffered, len(items))
        if self.sizeof is not None and counted:
            for number, item in enumerate(islice(items, counted), 1):
                self.buffered_bytes += item.size
                if self.buffered_bytes >= self._buffer_bytes:
                    self.buffer_full, counted = True, number
                    break
        self.buffered += counted
        self.in_flight -= counted

    def took(self, number: int, output: Sequence[Item]) -> None:
        """The consumer popped that many items of the output. The buffer counts the next ones in their place."""
        counted = min(number, self.buffered)  # as taken before
        self.buffered -= counted
        self.in_flight -= number - counted
        if self.buffer:
            sized = islice(output, self.buffered) if self.sizeof is not None else ()
            self.buffered_bytes = sum(item.size for item in sized)
            self.buffer_full = self.buffered_bytes >= self._buffer_bytes
            self.fill_buffer(list(islice(output, self.buffered, self.buffer)))
