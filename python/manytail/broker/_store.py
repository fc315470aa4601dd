"""The ready messages of one queue, in order, on an EntryQueue or a PriorityEntryQueue.

Each parcel is an entry; taking it acquires the entry, putting it back releases that, so it returns to its original place however long it was
away. What the broker adds it does itself: length limits and times to live count ready messages only, which is not how the queues below count.
"""

from __future__ import annotations

from typing import Any

from manytail import EntryQueue, PriorityEntryQueue
from manytail.broker._messages import Parcel

__all__ = ["Store"]


class Store:
    __slots__ = ("_get", "_put", "_queue", "_subscription", "levels")

    def __init__(self, levels: int) -> None:
        """`levels`: 0 for a plain queue, else how many priorities it tells apart, 0 to levels - 1."""
        self.levels = levels
        self._queue: EntryQueue[Parcel] = PriorityEntryQueue(levels=levels, mapping="direct") if levels else EntryQueue()
        self._put: Any = self._queue.put
        self._subscription = self._queue.subscribe()
        self._subscription._may_be_forgotten()  # of a broker that nobody closed and nobody has any more
        self._get: Any = self._subscription.get

    def append(self, parcel: Parcel) -> None:
        if self.levels:
            properties = parcel.message.properties
            self._put(parcel, priority=(properties and properties.priority) or 0)
        else:
            self._put(parcel)

    def take(self) -> Parcel:
        """The first one, which now has an entry. Only while one is ready."""
        entry = self._get(False)
        parcel: Parcel = entry.item
        parcel.entry = entry
        return parcel

    def close(self) -> None:
        """The queue is deleted. Entries that are still away have nowhere to come back to."""
        self._subscription.close()
