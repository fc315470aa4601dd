"""Consumers of a queue, and whose turn it is.

Highest priority first; in turn inside one priority. A consumer that is found out of credit, or whose channel is at its limit, is parked, and
joins the end of its ring when that is over: what is idle is not looked at.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manytail.broker._queues import Queue
    from manytail.broker.channel import Channel

__all__ = ["Consumer", "Turns"]

UNLIMITED = 1 << 62


class Consumer:
    __slots__ = ("auto_ack", "buffer", "callback", "channel", "credit", "exclusive", "gone", "ledger", "order", "parked", "queue", "seen", "tag")

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        callback: Callable[..., object] | None,
        *,
        auto_ack: bool,
        exclusive: bool,
        priority: int,
        prefetch: int,
    ) -> None:
        self.channel = channel
        self.ledger = channel.ledger
        self.queue = queue
        self.tag = tag
        self.callback = callback
        self.buffer: deque[Any] = deque()  # deliveries that have not begun: of Channel.consume, which has no callback, and of auto_ack
        self.seen = 0  # the tag of the last delivery that began; its lane's edge guards it
        self.auto_ack = auto_ack
        self.exclusive = exclusive
        self.order = -priority
        self.credit = prefetch if prefetch and not auto_ack else UNLIMITED
        self.parked = False
        self.gone = False  # cancelled by its client: what its lane still holds is not delivered


class Turns:
    """The consumers that may take, as far as is known."""

    __slots__ = ("_rings", "orders")

    def __init__(self) -> None:
        self._rings: dict[int, deque[Consumer]] = {}
        self.orders: list[int] = []  # negated priorities of the rings that are not empty, ascending

    def add(self, consumer: Consumer) -> None:
        """At the end of its ring."""
        consumer.parked = False
        ring = self._rings.get(consumer.order)
        if ring is None:
            ring = self._rings[consumer.order] = deque()
            insort(self.orders, consumer.order)
        ring.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Whether it stands in a ring or is parked."""
        ring = self._rings.get(consumer.order)
        if ring is not None and consumer in ring:
            ring.remove(consumer)
            if not ring:
                del self._rings[consumer.order]
                self.orders.remove(consumer.order)

    def next(self) -> Consumer | None:
        """The next that can take, at the end of its ring by now; those found unable are parked."""
        while self.orders:
            ring = self._rings[self.orders[0]]
            consumer = ring[0]
            if consumer.credit and not consumer.ledger.at_limit:
                if len(ring) > 1:
                    ring.rotate(-1)
                return consumer
            consumer.parked = True
            self.remove(consumer)
        return None

    def __iter__(self) -> Iterator[Consumer]:
        for order in list(self.orders):
            yield from self._rings[order]
