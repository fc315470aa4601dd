"""Small integers for large priorities, in the same order.

A priority column may hold anything up to 64 bits (a deadline in milliseconds, say), and null, which comes last. MultiQueue's priorities are C ints.
So each priority in use gets a label between those of its neighbours; when there is no number left in between, all labels are spread anew, which
the tails in use follow, because a tail's priority may change while it holds items.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import Any

LAST: float = math.inf  # the priority of null; compares right with every int
_STEP = 1 << 16
_EDGE = (1 << 31) - 1


class Levels:
    """The priorities in use, each with the tails that have it."""

    def __init__(self) -> None:
        self._values: list[float] = []  # sorted; ints and LAST
        self._labels: dict[float, int] = {}
        self._tails: dict[float, set[Any]] = {}

    def label(self, value: float) -> int:
        """The label of a priority, which is in use from now on."""
        if value not in self._labels:
            insort(self._values, value)
            self._tails[value] = set()
            found = self._between(bisect_left(self._values, value))
            if found is None:
                self._spread()
            else:
                self._labels[value] = found
        return self._labels[value]

    def join(self, value: float, tail: Any) -> None:
        self._tails[value].add(tail)

    def leave(self, value: float, tail: Any) -> None:
        """That tail is gone; a priority without tails is no longer in use."""
        tails = self._tails[value]
        tails.discard(tail)
        if not tails:
            del self._tails[value], self._labels[value]
            del self._values[bisect_left(self._values, value)]

    def _between(self, position: int) -> int | None:
        """A free number for the value at that position, or None."""
        below = self._labels[self._values[position - 1]] if position else None
        above = self._labels[self._values[position + 1]] if position + 1 < len(self._values) else None
        if below is None and above is None:
            return 0
        if below is None:
            found = above - _STEP  # type: ignore[operator]
        elif above is None:
            found = below + _STEP
        else:
            found = (below + above) // 2
            if found == below:
                return None
        return found if -_EDGE <= found <= _EDGE else None

    def _spread(self) -> None:
        """New labels, the same distance apart, from the middle outwards."""
        count = len(self._values)
        step = max(1, min(_STEP, 2 * _EDGE // (count + 1)))
        for number, value in enumerate(self._values):
            label = (number - count // 2) * step
            self._labels[value] = label
            for tail in self._tails[value]:
                tail.priority = label
