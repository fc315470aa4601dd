"""The breaker of a key: after `limit` failed calls in a row no call starts for `reset` seconds, then one, the probe.

    state       calls          next state
    closed      start          after `limit` failures in a row: open
    open        do not start   after `reset` seconds: half open
    half open   only the probe it succeeds: closed; it fails: open; it is deferred: the next call is the probe

A call belongs to the period in which it started. Opening and closing begin a new period. The end of a call from an
older period changes nothing. There is no clock here: the caller passes the time.
"""

from __future__ import annotations

import math


class BreakerState:
    __slots__ = ("_failures", "_limit", "_period", "_probing", "_reset", "_until")

    def __init__(self, limit: int, reset: float) -> None:
        self._limit = limit
        self._reset = reset
        self._failures = 0  # in a row, in this period
        self._until = -math.inf  # open until then; -inf: closed
        self._probing = False
        self._period = 0

    @property
    def until(self) -> float:
        """No call may start before that time. Infinite while the probe runs."""
        return math.inf if self._probing else self._until

    def is_open(self, now: float) -> bool:
        return not self._probing and self._until > now

    def stops(self, period: int, now: float) -> bool:
        """Whether a call of that period must not begin: the breaker has opened since."""
        return period != self._period and self.until > now

    def started(self) -> int:
        """A call starts. Returns its period. If the breaker is half open the call is the probe."""
        self._probing = self._until > -math.inf
        return self._period

    def succeeded(self, period: int) -> None:
        if period == self._period:
            self._failures = 0
            if self._probing:
                self._begin(-math.inf)

    def failed(self, period: int, now: float) -> bool:
        """Returns whether this failure opened it."""
        if period != self._period:
            return False
        self._failures += 1
        if not self._probing and self._failures < self._limit:
            return False
        self._begin(now + self._reset)
        return True

    def undone(self, period: int) -> None:
        """The call was deferred, or did not begin: it counts neither as a success nor as a failure."""
        if period == self._period:
            self._probing = False

    def _begin(self, until: float) -> None:
        self._period += 1
        self._failures = 0
        self._until = until
        self._probing = False
