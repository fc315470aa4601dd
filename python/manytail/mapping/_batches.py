"""Forms batches: groups the items that arrive by key and priority.

A batch has items of one key and of one priority. Where the calls of a key start in input order it may mix priorities,
and has that of its first item.

A batch goes to the admission when it is full, when its first item has waited `linger` seconds, at the input's end, or
when the window is full. Without `linger` it goes there with its first item. In the admission it still grows until it
starts, so that a call takes what waits. There is no clock here: the caller passes the time.

Invariants
    _open        the batch of each key (and priority) that may grow: not full and not started
    _lingering   batches that are not in the admission, and when they are due, in this order
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

from ._item import Item, ItemBatch, Work


class BatchFormer:
    """The batches of one map that are not full and not started."""

    def __init__(self, size: int, linger: float, in_order: bool) -> None:
        self._size = size
        self._linger = linger
        self._in_order = in_order
        self._open: dict[Hashable, ItemBatch] = {}
        self._lingering: dict[ItemBatch, float] = {}

    @property
    def due(self) -> float:
        """When `release` must be called; infinite: not at all."""
        return next(iter(self._lingering.values()), math.inf)

    def add(self, items: Iterable[Item], now: float) -> list[ItemBatch]:
        """Add items. Returns the batches that go to the admission."""
        released = []
        for item in items:
            place = self._place(item)
            if place in self._open:
                batch = self._open[place]
                batch.items.append(item)
            else:
                batch = self._open[place] = ItemBatch([item])
                if self._linger:
                    self._lingering[batch] = now + self._linger
                else:
                    released.append(batch)
            if len(batch.items) >= self._size:
                del self._open[place]
                if self._lingering.pop(batch, None) is not None:
                    released.append(batch)
        return released

    def release(self, now: float) -> list[ItemBatch]:
        """The batches that have waited long enough."""
        released = [batch for batch, due in self._lingering.items() if due <= now]
        for batch in released:
            del self._lingering[batch]
        return released

    def close(self, batch: ItemBatch) -> None:
        """The batch starts: no further item joins it."""
        place = self._place(batch)
        if place in self._open and self._open[place] is batch:
            del self._open[place]

    def drain(self) -> list[ItemBatch]:
        """All batches that are not in the admission."""
        batches = list(self._lingering)
        self._lingering.clear()
        return batches

    def drain_lane(self, lane: Hashable) -> list[ItemBatch]:
        """The batches of that lane that are not in the admission."""
        batches = [batch for batch in self._lingering if batch.lane is lane]
        for batch in batches:
            del self._lingering[batch]
            self.close(batch)
        return batches

    def _place(self, item: Work) -> Hashable:
        """What the items of one batch have in common."""
        return item.lane if self._in_order else (item.lane, item.priority)
