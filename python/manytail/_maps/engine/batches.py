"""Batches: items that one call gets together. Here they are formed.

A batch has items of one lane and of one priority. Where the calls of a key start in input order it may mix priorities,
and has that of its first item. It goes into its lane when it is full, when its first item has waited `linger` seconds,
at the input's end, or when the window is full; without `linger` with its first item. In the lane it grows until it
starts, so that a call takes what waits.

Invariants
    _open        the batch of each lane (and priority) that may grow: not full, and not started
    _lingering   batches that are in no lane, and when they are due, in this order
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from ..errors import own_copy
from .item import Batch, Ended, Item, Kind, Lane, Verdict


class Batches:
    """The batches of one map that may grow."""

    __slots__ = ("_in_order", "_linger", "_lingering", "_open", "_size")

    def __init__(self, size: int, linger: float, in_order: bool) -> None:
        """in_order: the calls of a key start in input order."""
        self._size, self._linger, self._in_order = size, linger, in_order
        self._open: dict[Hashable, Batch] = {}
        self._lingering: dict[Batch, float] = {}

    @property
    def due(self) -> float:
        """When `release` must be called; infinite: not at all."""
        return next(iter(self._lingering.values()), math.inf)

    def add(self, items: list[Item], now: float) -> list[Batch]:
        """New items. Returns the batches that go into their lanes."""
        released = []
        for item in items:
            place = self._place(item)
            batch = self._open.get(place)
            if batch is not None:
                batch.members.append(item)
            else:
                batch = self._open[place] = Batch([item])
                if self._linger:
                    self._lingering[batch] = now + self._linger
                else:
                    released.append(batch)
            if len(batch.members) >= self._size:
                del self._open[place]
                if self._lingering.pop(batch, None) is not None:
                    released.append(batch)
        return released

    def release(self, until: float) -> list[Batch]:
        """The batches that are due by then."""
        released = [batch for batch, due in self._lingering.items() if due <= until]
        for batch in released:
            del self._lingering[batch]
        return released

    def close(self, batch: Item | Batch) -> None:
        """The batch has left its lane: no further item joins it."""
        place = self._place(batch)
        if self._open.get(place) is batch:
            del self._open[place]

    def drain(self, lane: Lane | None = None) -> list[Batch]:
        """Take out the batches that are in no lane, of this lane (None: of all)."""
        batches = [batch for batch in self._lingering if lane is None or batch.lane is lane]
        for batch in batches:
            del self._lingering[batch]
            self.close(batch)
        return batches

    def _place(self, call: Item | Batch) -> Hashable:
        """What the items of one batch have in common."""
        return call.lane if self._in_order else (call.lane, call.priority)


def ended_as(verdicts: Sequence[Verdict | None]) -> Ended:
    """How the call of a batch ended: it succeeded if one of its items did."""
    if None in verdicts:
        return Ended.SUCCEEDED
    kinds = {verdict.kind for verdict in verdicts if verdict is not None}
    if kinds == {Kind.DEFER}:
        return Ended.DEFERRED
    return Ended.RETRIED if Kind.RETRY in kinds else Ended.FAILED


def copies(error: BaseException, number: int) -> list[BaseException]:
    """One error for each item that fails: each is raised for another caller, which adds a traceback and a note."""
    return [error, *(own_copy(error) for _ in range(number - 1))]
