"""The model of how many calls may run at once: `workers`, or a number that is found between `least` and `workers`."""

from __future__ import annotations

from typing import Any

from .lanes import Violation
from .settings import Settings


class Allowed:
    """How many may run, and what the contract says of each change."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.number = settings.start or settings.least or settings.workers
        self.halvings = 0
        self.begun: dict[Any, int] = {}  # calls: how often the number was halved before
        self.overdue: set[Any] = set()  # calls whose time is over
        self.were_busy = False
        self.fresh = self.counted = 0  # successes: since the last dispatch, and of this round
        # Whether it is known which calls started after which: a dispatch has one step.
        self.is_exact = not settings.dedup and not settings.fatal

    def begin(self, call: Any, busy: int) -> None:
        """The call starts, while so many run."""
        if busy == self.number:
            self._count(busy)
        if busy >= self.number:
            raise Violation(f"{call} starts, and no worker is free")
        self.begun[call] = self.halvings

    def undo(self, call: Any) -> None:
        """The call has not begun, or has ended."""
        self.overdue.discard(call)
        del self.begun[call]

    def ended(self, call: Any, kinds: set[str]) -> None:
        """The call had these results: of its items, if it got a batch."""
        halvings, is_late = self.begun[call], call in self.overdue
        self.undo(call)
        if kinds & {"retry", "defer", "over"} or (is_late and "result" not in kinds):
            if halvings == self.halvings and self.settings.least:
                self.halvings += 1
                self.number = max(self.settings.least, self.number // 2)
                self.counted = 0
        elif "result" in kinds:
            self.fresh += 1

    def dispatched(self, busy: int, shown: int) -> None:
        """What may start has started. shown: how many may run."""
        self._count(busy)
        if not self.is_exact and shown in (self.number - 1, self.number + 1, self.number // 2, 2 * self.number):
            self.number, self.counted = shown, 0
        if shown != self.number:
            raise Violation(f"{shown} calls may run at once (expected: {self.number})")

    def _count(self, busy: int) -> None:
        if busy == self.number and self.were_busy:
            self.counted += self.fresh
        self.were_busy, self.fresh = busy == self.number, 0
        needed = max(self.number, self.settings.round if self.halvings else 0)
        if self.counted >= needed and self.number < self.settings.workers:
            self.number = min(self.number + 1 if self.halvings else 2 * self.number, self.settings.workers)
            self.counted, self.were_busy = 0, False
