"""Rates: the starts of one limit have slots 1/rate apart. The generic cell rate algorithm; the caller passes the time.

A start takes a slot, and happens in the `LATE` seconds from there. So in any t seconds at most 1 + rate * (t + LATE)
calls start. A waiting start gets its slot even if the timer rings late, so that the average is the rate. One that would
be later than LATE takes a new slot. While no start waits, slots are not saved up.

Invariants
    _next    the next slot is there or later: last slot + amount / rate
    _since   since when a start has waited; None: none waits
"""

from __future__ import annotations

import math

LATE = 0.1  # seconds that a start may come after its slot


class Slots:
    """The slots of one limit."""

    __slots__ = ("_interval", "_next", "_since")

    def __init__(self, rate: float) -> None:
        self._interval = 1 / rate
        self._next = -math.inf
        self._since: float | None = None

    @property
    def next(self) -> float:
        """No start before that time."""
        return self._next

    def waits(self, now: float) -> None:
        """A start waits from `now` on."""
        if self._since is None:
            self._since = now

    def idle(self, now: float = 0.0) -> None:
        """No start waits."""
        self._since = None

    def take(self, now: float, amount: float = 1.0) -> float:
        """The slot of a start at `now`, which is not before `next`. The one after it is `amount` / rate later."""
        slot = max(self._next, now if self._since is None else self._since)
        if now - slot > LATE:
            slot = now
        self._next = slot + amount * self._interval
        return slot
