"""How many calls may run at once where `workers` is a pair: found while the map runs. Pure, like the scheduler.

The number grows by one after each round of successes, and is halved when the other side has too many calls, as TCP
finds its window. So maps that share a server come to equal shares of it.

A success counts if all workers were busy before it, and the next call started at once: it had waited only for a worker.
Other successes do not count, and do not end the round: near a Rate some worker is idle for a moment in every round,
long before all calls run that the Rate allows.

A round is at first as many successes as calls may run at once. After the number was halved once, a round has at least
ROUND successes: a server that is about to refuse is tried out less often, and refuses at most one call in 50 even if it
takes no more than four at once.

A refusal halves the number only if its call began after the last time: other calls of the same round trip tell of the
same excess.
"""

from __future__ import annotations

ROUND = 20  # successes at least, once the number was halved


class Adaptive:
    """The number of calls that may run at once: `allowed`, from `least` to `most`."""

    __slots__ = ("_counted", "_fresh", "_least", "_most", "_were_busy", "allowed", "halvings")

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self.allowed = least
        self.halvings = 0  # how often the number was halved
        self._counted = 0  # successes of this round
        self._fresh = 0  # successes after which no call was started yet
        self._were_busy = False  # all workers, when calls were started last

    def succeeded(self) -> None:
        """A call succeeded."""
        self._fresh += 1

    def dispatched(self, running: int) -> bool:
        """What may start has started. Returns whether one more may run at once than before."""
        are_busy = running == self.allowed  # there are more after the number was halved: no call waits for those
        if are_busy and self._were_busy:
            self._counted += self._fresh
        self._were_busy, self._fresh = are_busy, 0
        grows = self._counted >= max(self.allowed, ROUND if self.halvings else 0) and self.allowed < self._most
        if grows:
            self.allowed += 1
            self._counted = 0
        return grows

    def refused(self, halvings: int) -> None:
        """A call was deferred, ran out of time, or is to be tried again. halvings: so many when it began."""
        if halvings == self.halvings:
            self.allowed = max(self._least, self.allowed // 2)
            self.halvings += 1
            self._counted = 0
