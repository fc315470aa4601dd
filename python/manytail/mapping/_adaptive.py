"""How many calls may run at once where `workers` is a pair: found while the map runs. It has no thread, clock or lock:
the gate calls it under the lock of its map.

The number doubles after each round of successes until the server refuses a call for the first time. From then on it
grows by one a round, and each refusal halves it. TCP finds its window so. Maps that share a server get equal shares of
it in the end.

A success counts if all workers were busy before it and the next call started at once. Then that call had waited for a
worker and for nothing else. Other successes do not count, and do not end the round: near a Rate a worker is often idle
for a moment, though the Rate allows more calls at once.

A round is as many successes as calls may run at once. After the first refusal it has at least ROUND
successes, so a server is tried with one call more less often: one that bears four calls at once refuses about one call
in 60.

A refusal halves the number only if its call began after the last halving. Calls that began before tell of the same
excess.
"""

from __future__ import annotations

ROUND = 20  # the least successes of a round, after the first refusal


class Adaptive:
    """The number of calls that may run at once: `allowed`, from `least` to `most`; at first `start`."""

    __slots__ = ("_counted", "_fresh", "_least", "_most", "_were_busy", "allowed", "halvings")

    def __init__(self, least: int, start: int, most: int) -> None:
        self._least, self._most = least, most
        self.allowed = start
        self.halvings = 0  # refusals that halved the number, or found it to be the least
        self._counted = 0  # successes of this round
        self._fresh = 0  # successes since `dispatched`
        self._were_busy = False  # whether all workers were busy at the last `dispatched`

    def succeeded(self) -> None:
        """A call succeeded. Whether it counts is known at the next `dispatched`."""
        self._fresh += 1

    def dispatched(self, running: int) -> bool:
        """All calls that may start have started. Returns whether `allowed` has grown: then more may start."""
        are_busy = running == self.allowed  # after a halving more run than are allowed: no call starts when one ends
        if are_busy and self._were_busy:
            self._counted += self._fresh
        self._were_busy, self._fresh = are_busy, 0
        grows = self._counted >= max(self.allowed, ROUND if self.halvings else 0) and self.allowed < self._most
        if grows:
            self.allowed = min(self.allowed + (1 if self.halvings else self.allowed), self._most)
            self._counted = 0
        return grows

    def asked_too_much(self, halvings: int) -> None:
        """A call was deferred, ran out of time, or is to be tried again. halvings: their number when the call began."""
        if halvings == self.halvings:
            self.allowed = max(self._least, self.allowed // 2)
            self.halvings += 1
            self._counted = 0
