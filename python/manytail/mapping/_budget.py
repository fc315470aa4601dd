"""The budget: the costs of ended and of running calls together never exceed `limit`."""

from __future__ import annotations

import math
from collections.abc import Iterable


class Budget:
    __slots__ = ("_limit", "_spent")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._spent = 0.0  # by calls that ended; a deferred call costs nothing

    def spend(self, cost: float) -> None:
        self._spent += cost

    def fits(self, cost: float, running: Iterable[float] = ()) -> bool:
        """Whether a call with that cost may start while those calls run."""
        return self._spent + math.fsum(running) + cost <= self._limit
