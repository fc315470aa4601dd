"""A queue: ready messages in order, consumers in turn, and the rules of its arguments.

Everything here runs inside the broker's monitor. The order of the steps is the server's and shows in what its clients see: a message that a
consumer can take does not count against a length limit; a message that comes back does, before any consumer is looked at; the dead are looked
for at the head only.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from manytail.broker._arguments import QueueArguments
from manytail.broker._consumers import Consumer, Turns
from manytail.broker._exchanges import Destination
from manytail.broker._messages import Message, Parcel
from manytail.broker._refusals import access_refused, resource_locked
from manytail.broker._store import Store

if TYPE_CHECKING:
    from manytail.broker._timers import Timer
    from manytail.broker._vhost import VirtualHost
    from manytail.broker.connection import Connection

__all__ = ["Queue"]


class Queue(Destination):
    __slots__ = (
        "_active",
        "_dropping",
        "_expiring",
        "_newest",
        "_store",
        "_ttl_timer",
        "_turns",
        "_unused_timer",
        "arguments",
        "auto_delete",
        "consumers",
        "deleted",
        "durable",
        "host",
        "owner",
        "ready",
        "single_active",
    )
    is_queue = True

    def __init__(self, host: VirtualHost, name: str, durable: bool, auto_delete: bool, owner: Connection | None, arguments: QueueArguments) -> None:
        super().__init__(name)
        self.host = host
        self.durable = durable
        self.auto_delete = auto_delete
        self.owner = owner  # the connection that may use an exclusive queue
        self.arguments = arguments
        self.consumers: list[Consumer] = []  # in the order of their registration
        self.deleted = False
        self.single_active = arguments.single_active
        self.ready = 0
        self._store = Store(arguments.priorities)
        self._turns = Turns()
        self._active: Consumer | None = None  # with x-single-active-consumer: the one that the messages go to
        self._newest: Parcel | None = None  # the parcel that is being published
        self._dropping = arguments.max_length is not None and arguments.overflow == "drop-head"
        self._expiring = False  # a parcel with a time to live was here
        self._ttl_timer: Timer | None = None
        self._unused_timer: Timer | None = None
        self.used()

    # ------------------------------------------------------------------ messages in
    def publish(self, message: Message) -> bool:
        """False if the length limit refuses it. Consumers first, then the limit."""
        arguments = self.arguments
        if arguments.max_length is not None and not self._dropping and self.ready >= arguments.max_length:
            if arguments.overflow == "reject-publish-dlx":
                self._bury(message, "maxlen")
            return False
        parcel = Parcel(message, self)
        if arguments.ttl is not None or message.properties is not None:
            self._set_expiry(parcel)
        self._store.append(parcel)
        self.ready += 1
        if self._turns.orders:
            self._newest = parcel
            self.pump()
            self._newest = None
        if self.ready:
            if self._dropping:
                self._drop_heads()
            if self._expiring:
                self.expire()
        return True

    def _set_expiry(self, parcel: Parcel) -> None:
        lives = [ttl for ttl in (self.arguments.ttl, parcel.message.ttl) if ttl is not None]
        if lives:
            parcel.expires_at = time.monotonic() + min(lives) / 1000
            self._expiring = True

    def requeue(self, parcels: Iterable[Parcel]) -> None:
        """Put unacknowledged parcels back to their places. The caller pumps, once credit is given back too."""
        if self.deleted:
            for parcel in parcels:
                parcel.entry.ack()
            return
        for parcel in parcels:
            parcel.redelivered = True
            limit = self.arguments.delivery_limit
            if self.arguments.quorum:
                parcel.returns += 1
                if limit is not None and parcel.returns > limit:
                    parcel.entry.ack()
                    self._bury(parcel.message, "delivery_limit")
                    continue
            self.ready += 1
            parcel.entry.release()
        if self._dropping:
            self._drop_heads()
        if self._expiring and self.ready:
            self.expire()

    # ------------------------------------------------------------------ messages out
    def take(self) -> Parcel | None:
        """The first live one; the dead ones before it are buried."""
        while self.ready:
            self.ready -= 1
            parcel = self._store.take()
            if parcel.expires_at is None or parcel.expires_at > time.monotonic():
                return parcel
            parcel.entry.ack()
            self._bury(parcel.message, "expired")
        return None

    def pump(self) -> None:
        """Hand over while there is something to take and somebody to take it."""
        turns = self._turns
        while self.ready and turns.orders:
            consumer = turns.next()
            if consumer is None:
                return
            parcel = self._take_for_consumer()
            if parcel is not None:
                consumer.ledger.hand_over(consumer, parcel)

    def _take_for_consumer(self) -> Parcel | None:
        """As take, but one of them; a parcel with no time to live at all may go to a consumer that is there when it comes."""
        self.ready -= 1
        parcel = self._store.take()
        if parcel.expires_at is None or parcel is self._newest or parcel.expires_at > time.monotonic():
            return parcel
        parcel.entry.ack()
        self._bury(parcel.message, "expired")
        return None

    def purge(self) -> int:
        """Drop what is ready."""
        count = self.ready
        while self.ready:
            self.ready -= 1
            self._store.take().entry.ack()
        return count

    # ------------------------------------------------------------------ the dead
    def _drop_heads(self) -> None:
        """x-overflow drop-head: the first ones make room."""
        limit = self.arguments.max_length
        while limit is not None and self.ready > limit:
            self.ready -= 1
            parcel = self._store.take()
            parcel.entry.ack()
            self._bury(parcel.message, "maxlen")

    def discard(self, parcel: Parcel) -> None:
        """An unacknowledged one was rejected for good."""
        parcel.entry.ack()
        if not self.deleted:
            self._bury(parcel.message, "rejected")

    def _bury(self, message: Message, reason: str) -> None:
        exchange = self.arguments.dead_letter_exchange
        if exchange is not None:
            self.host.bury(message, reason, self.name, exchange, self.arguments.dead_letter_key)

    def expire(self) -> None:
        """Bury the dead at the head, and come back when the one that is there then has died."""
        if self.deleted:
            return
        while self.ready:
            self.ready -= 1
            parcel = self._store.take()
            if parcel.expires_at is None or parcel.expires_at > time.monotonic():
                self.ready += 1
                parcel.entry.release()
                self._wake_at(parcel.expires_at)
                return
            parcel.entry.ack()
            self._bury(parcel.message, "expired")

    def _wake_at(self, due: float | None) -> None:
        timer = self._ttl_timer
        if due is None or (timer is not None and timer.due <= due):
            return
        if timer is not None:
            timer.cancel()
        self._ttl_timer = self.host.timers.at(due, self._on_timer)

    def _on_timer(self) -> None:
        with self.host.monitor:
            self._ttl_timer = None
            self.expire()

    # ------------------------------------------------------------------ consumers
    def add_consumer(self, consumer: Consumer) -> None:
        """Registered, so that it can be handed messages from now on; the caller pumps."""
        holder = next((other for other in self.consumers if other.exclusive), None)
        if holder is not None:
            access_refused(f"queue {self.name!r} is in exclusive use")
        if consumer.exclusive and self.consumers:
            access_refused(f"queue {self.name!r} has consumers already: no exclusive use of it")
        if consumer.exclusive and self.single_active:
            access_refused(f"queue {self.name!r} has x-single-active-consumer: no exclusive use of it")
        self.consumers.append(consumer)
        if not self.single_active:
            self._turns.add(consumer)
        elif self._active is None:
            self._activate(consumer)
        else:
            self.settled()
        self.used()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Cancelled: what it holds stays with its channel."""
        self.channel_left([consumer], ())

    def channel_left(self, consumers: Collection[Consumer], parcels: Collection[Parcel]) -> None:
        """These consumers end, and these parcels come back before anybody else is looked at. A queue that was to end with its last consumer does."""
        for consumer in consumers:
            if consumer in self.consumers:
                self.consumers.remove(consumer)
                self._turns.remove(consumer)
            if consumer is self._active:
                self._active = None
        if consumers and not self.consumers and self.auto_delete and not self.deleted:
            self.host.delete_queue(self)
        self.requeue(parcels)
        if self.single_active and self._active is None and self.consumers:
            self._activate(self._highest())
        self.pump()
        self.used()

    def _activate(self, consumer: Consumer) -> None:
        self._active = consumer
        self._turns.add(consumer)

    def _highest(self) -> Consumer:
        """Highest priority, then oldest."""
        return min(self.consumers, key=lambda consumer: consumer.order)

    def settled(self) -> None:
        """Single active consumer of a quorum queue: one of higher priority takes over as soon as the active one holds nothing."""
        active = self._active
        if active is None or not self.arguments.quorum:
            return
        highest = self._highest()
        if highest.order < active.order and not active.ledger.holds_for(active):
            self._turns.remove(active)
            active.parked = False
            self._activate(highest)

    def unpark(self, consumer: Consumer) -> None:
        """It has credit again, or its channel is below its limit. The caller pumps."""
        if consumer.parked and consumer in self.consumers:
            self._turns.add(consumer)

    # ------------------------------------------------------------------ who may, and how long
    def check_access(self, connection: Connection) -> None:
        if self.owner is not None and self.owner is not connection:
            resource_locked(f"exclusive queue {self.name!r} belongs to another connection")

    def used(self) -> None:
        """x-expires counts from the last use; a queue with consumers is in use."""
        if self.arguments.expires is None or self.deleted:
            return
        if self._unused_timer is not None:
            self._unused_timer.cancel()
        self._unused_timer = self.host.timers.at(time.monotonic() + self.arguments.expires / 1000, self._on_unused)

    def _on_unused(self) -> None:
        with self.host.monitor:
            timer = self._unused_timer
            if self.deleted or self.consumers or timer is None or timer.due > time.monotonic():
                return
            self.host.delete_queue(self)

    def close(self) -> int:
        """Deleted: how many were ready. Consumers are told."""
        self.deleted = True
        for timer in (self._ttl_timer, self._unused_timer):
            if timer is not None:
                timer.cancel()
        count = self.purge()
        self._store.close()
        consumers, self.consumers = self.consumers, []
        for consumer in consumers:
            self._turns.remove(consumer)
            consumer.channel.cancelled_by_broker(consumer)
        return count


