"""The window: counts the items in flight, how many there may be, and the bytes of those that are done. The scheduler
counts what arrives, what is held back and what it drops; `fill_buffer` and `took` count the rest.

size       max_in_flight if given; else it starts at 4 x workers x batch and doubles when a worker has nothing to run
           only because the window is full of items that wait for an earlier one, for their key, or for their look-up
in_flight  items arrived - items taken by the consumer - dropped - buffered <= size
held_back  those of them that are done, behind an item that must be emitted earlier
buffered   only in Spark: the first items of the output, for the output batch that is being filled; at most `buffer`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice

from ._item import Item
from ._options import Options

WINDOW_LIMIT = 10_000  # items that the automatic window holds at most, unless 4 x workers x batch is more


class Window:
    """The items in flight of one map."""

    def __init__(
        self,
        options: Options,
        buffer: int = 0,
        sizeof: Callable[[Item], float] | None = None,
        buffer_bytes: float = math.inf,
        window_bytes: float = math.inf,
    ) -> None:
        """buffer, buffer_bytes: that many emitted items, or bytes of them, count as taken before they are popped.
        sizeof: returns the bytes of an item and its result. window_bytes: with so many bytes in flight the automatic
        window takes no more than 4 x workers x batch items."""
        self.in_flight = self.held_back = self.buffered = 0
        self._base = 4 * options.workers * options.calls_items
        self.largest_size = max(WINDOW_LIMIT, self._base)
        self.size = options.max_in_flight or self._base
        self.is_automatic = self.grows = options.max_in_flight is None  # grows: `grow` may help
        self.buffer = buffer
        self.buffer_full = False  # its bytes are used up
        self.sizeof = sizeof
        self._buffer_bytes = buffer_bytes
        self._window_bytes = window_bytes
        self.buffered_bytes = 0.0
        self.held_bytes = self.item_bytes = 0.0  # of items that are held back; of the item that arrived last

    def is_heavy(self) -> bool:
        """Whether no item may arrive because of the bytes in flight."""
        return self.is_automatic and self.in_flight >= self._base and self.bytes_in_flight() >= self._window_bytes

    def grow(self) -> bool:
        """Double the size. False: the items would have too many bytes."""
        if self.sizeof is not None and 2 * self.bytes_in_flight() > self._window_bytes:
            return False
        self.size = min(2 * self.size, self.largest_size)
        self.grows = self.size < self.largest_size
        return True

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
