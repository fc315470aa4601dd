"""The budget: what finished calls cost, and what running ones do, together never more than `limit`."""

from __future__ import annotations

import math
from collections.abc import Iterable


class Budget:
    __slots__ = ("_limit", "_spent")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._spent = 0.0  # by calls that ended; one that was deferred costs nothing

    def spend(self, cost: float) -> None:
        self._spent += cost

    def fits(self, cost: float, running: Iterable[float] = ()) -> bool:
        """Whether a call may cost that much beside those that run."""
        return self._spent + math.fsum(running) + cost <= self._limit
