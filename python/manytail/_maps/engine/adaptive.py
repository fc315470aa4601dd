"""How many calls may run at once where `workers` is a range: found while the map runs.

The number doubles after each round of successes until the server refuses a call for the first time. From then on it
grows by one a round, and each refusal halves it: additive increase, multiplicative decrease, as TCP finds its window
(Chiu and Jain, 1989). So maps that share a server end up with equal shares.

    refusal   a call was deferred, ran out of time, or failed and is to be tried again. It halves the number only if its
              call started after the last halving: calls that started before tell of the same excess
    success   counts if all workers were busy before it, and again after the step in which it ended. Then the next call
              had waited for a worker and for nothing else. Others do not count, and do not end a round: near a Rate a
              worker is often idle for a moment, although the Rate allows more calls at once
    round     as many successes as calls may run at once; after the first refusal at least ROUND, so a server is tried
              with one call more less often
"""

from __future__ import annotations

from collections.abc import Iterable

from .item import Batch, Call, Ended, Kind
from .stages import GO, Decision, Released, Stage

ROUND = 20  # the least successes of a round, after the first refusal


class AdaptiveStage(Stage):
    """`allowed` is the number, from `least` to `most`; at first `start`."""

    __slots__ = ("_counted", "_fresh", "_least", "_most", "_refused", "_started", "_were_busy", "allowed", "halvings")

    def __init__(self, least: int, start: int, most: int) -> None:
        super().__init__()
        self._least, self._most = least, most
        self.allowed = start
        self.halvings = 0  # refusals that halved the number, or found it to be the least
        self._started: dict[Call, int] = {}  # of each call that runs: the halvings before it
        self._refused: set[Call] = set()  # those of them whose end will be a refusal
        self._counted = 0  # successes of this round
        self._fresh = 0  # successes in this step
        self._were_busy = False  # whether all workers were busy after the last step

    def before(self, call: Call, now: float) -> Decision:
        self._started[call] = self.halvings
        return GO

    def undo(self, call: Call, now: float) -> None:
        del self._started[call]

    def paused(self, call: Call, until: float, now: float) -> None:
        self._refused.add(call)

    def overdue(self, call: Call) -> None:
        """The call is cancelled because its time is over."""
        self._refused.add(call)

    def after(self, call: Call, ended: Ended, now: float) -> Iterable[Released]:
        before = self._started.pop(call)
        kinds = {one.kind for one in call.verdicts if one is not None} if isinstance(call, Batch) else set()
        refused = call in self._refused or ended in (Ended.RETRIED, Ended.DEFERRED)
        self._refused.discard(call)
        if refused or kinds & {Kind.RETRY, Kind.DEFER}:
            if before == self.halvings:
                self.allowed = max(self._least, self.allowed // 2)
                self.halvings += 1
                self._counted = 0
        elif ended is Ended.SUCCEEDED:
            self._fresh += 1
        return ()

    def grows(self, running: int) -> bool:
        """All calls have started that may. Returns whether `allowed` has grown: then more may start."""
        are_busy = running == self.allowed  # after a halving more run than are allowed: no call starts when one ends
        if are_busy and self._were_busy:
            self._counted += self._fresh
        self._were_busy, self._fresh = are_busy, 0
        grows = self._counted >= max(self.allowed, ROUND if self.halvings else 0) and self.allowed < self._most
        if grows:
            self.allowed = min(self.allowed + (1 if self.halvings else self.allowed), self._most)
            self._counted = 0
        return grows
