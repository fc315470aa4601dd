"""The window: how many items may be in flight, and how many are.

    arrived    items that came in
    emitted    of these: put into the output, or dropped there because they failed
    taken      of these: taken out of the output by the consumer, or dropped
    in flight  arrived - taken <= size
    pending    arrived - emitted: in a lane, with a worker, resting, kept by a stage, or done behind an earlier item

size is max_in_flight, or else starts at 4 x workers x batch and doubles, up to WINDOW_LIMIT, when a worker has nothing
to run only because the window is full of items that wait for an earlier one or for their key.

An automatic window does not grow while the items and results in flight have WAITING_BYTES, and takes no more than at
first then. One that has grown takes no more items to be called than at first: their results may be larger than those
before. Workers and readers weigh what is not small (`weigh`); the consumer says what has left (`left`). Both append to
`_changes`, and the scheduler sums up.
"""

from __future__ import annotations

from collections import deque
from sys import getsizeof
from typing import Any

from .item import Item

WINDOW_LIMIT = 10_000  # items that the automatic window holds at most, unless 4 x workers x batch is more
WAITING_BYTES = 256_000_000
LEAST_BYTES = 4_096  # an item or result that has fewer counts nothing: a full window of them has 40 MB
LIGHT = frozenset({type(None), bool, int, float})  # types of values that are not weighed
BUILT_IN = frozenset({str, bytes, bytearray, list, tuple, dict, set})  # types without `nbytes`


def weight_of(value: Any) -> int:
    """The bytes of an item or a result: its `nbytes`, or else what sys.getsizeof says. Runs user code, so it is called
    without a lock; what that raises counts nothing. The class is asked for `nbytes`, because an object may answer to
    every name."""
    try:
        if type(value) not in BUILT_IN and hasattr(type(value), "nbytes"):
            size = value.nbytes
            if type(size) is int and size >= 0:
                return size
        return getsizeof(value)
    except BaseException:
        return 0


class Window:
    __slots__ = (
        "_base", "_bytes", "_changes", "_most", "arrived", "emitted", "grows", "has_weights", "largest", "size",
        "taken", "weighs",
    )  # fmt: skip

    def __init__(self, max_in_flight: int | None, calls_items: int) -> None:
        """calls_items: of how many items calls may be made at once: workers x batch."""
        self._base = 4 * calls_items
        self.size = max_in_flight or self._base
        self.largest = max(WINDOW_LIMIT, self._base)
        self.grows = self.weighs = max_in_flight is None  # grows: whether `grow` may help
        self.arrived = self.emitted = self.taken = 0
        self.has_weights = False  # something had LEAST_BYTES
        self._bytes = 0  # in flight, but for these changes
        self._changes: deque[int] = deque()
        self._most = self.size  # items that may have arrived, as `read_limit` said

    @property
    def in_flight(self) -> int:
        return self.arrived - self.taken

    @property
    def pending(self) -> int:
        return self.arrived - self.emitted

    @property
    def is_full(self) -> bool:
        return self.arrived - self.taken >= self.size or self.arrived >= self._most

    @property
    def untaken(self) -> int:
        """Items in the output."""
        return self.emitted - self.taken

    @property
    def bytes(self) -> int:
        """Of the items and results in flight."""
        while self._changes:
            self._bytes += self._changes.popleft()
        return self._bytes

    def read_limit(self, to_run: int) -> int:
        """So many items may have arrived in all. to_run: items that are called or may be."""
        most = self.taken + self.size
        if self.weighs and self.size > self._base:
            most = min(most, self.arrived + max(0, self._base - to_run))
            if self.has_weights and self.bytes >= WAITING_BYTES:
                most = min(most, max(self.arrived, self.taken + self._base))
        self._most = most
        return most

    def grow(self) -> None:
        if self.has_weights and self.bytes >= WAITING_BYTES:
            return
        self.size = min(2 * self.size, self.largest)
        self.grows = self.size < self.largest

    def weigh(self, item: Item, value: Any) -> None:
        """Count the bytes of the item's value or result. From any thread, without a lock."""
        self.add(item, weight_of(value))

    def add(self, item: Item, size: int) -> None:
        if size >= LEAST_BYTES:
            item.size += size
            self.has_weights = True
            self._changes.append(size)

    def left(self, item: Item) -> None:
        """The item was taken or dropped. Asked only if `has_weights`."""
        if size := item.size:
            self._changes.append(-size)
