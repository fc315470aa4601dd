"""The state of one broker: queues, consumers, credit, acknowledgements, transactions, times. Pure: no thread, lock,
clock, callback or I/O.

An operation takes the time where that matters (`now`, in seconds of any monotonic clock) and changes the state. What
has to happen outside is left in three lists of VirtualHost: `effects`, to carry out in order; `dead_letters`, to
publish once the change that caused them is complete; and `dropped`, objects to free outside the lock, because freeing a
body may run user code. A ReplyError is raised before anything is changed; only a commit that a queue refused raises at
its end.

An effect is a tuple. Its first item has a callable `target`, which is called with the effect:
    (consumer, delivery tag, redelivered, message, requeues)    deliver the message
    (consumer, CANCELLED)                                       its queue was deleted: the consumer is cancelled
    (channel, 0, message)                                       a mandatory message reached no queue
    (queue,)                                                    call tick(now) at `queue.due`, or never if that is None

The order of the steps is RabbitMQ's, and clients can see it: a message that a consumer can take does not count against
a length limit; with drop-head, a requeue drops from the head before it looks for consumers. Expiry is checked only at
the head.

Invariants: `ready` is the length of a queue's ReadyList. A delivery is ready, or in the `unacked` of one channel, or
settled in its transaction. No consumer that could take a message waits while one is ready, once an operation has ended.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from manytail import EntryQueue, PriorityEntryQueue
from manytail.broker._protocol import (
    BindingArguments,
    Message,
    QueueArguments,
    ReplyError,
    access_refused,
    copied,
    fresh,
    is_text,
    not_found,
    not_implemented,
    precondition_failed,
    resource_locked,
)
from manytail.broker._routing import (
    Destination,
    Exchange,
    ExchangeRequest,
    Exchanges,
    check_same,
    not_default,
    not_reserved,
)

UNLIMITED = 1 << 62
CANCELLED = 1 << 62  # in the place of a delivery tag, and greater than all of them
REPLY_TO = "amq.rabbitmq.reply-to"  # what consumers of replies consume from, and what their requests name


class Delivery:
    """A message in one queue: ready, or unacknowledged on the channel that it was delivered to."""

    __slots__ = ("consumer", "entry", "expires_at", "message", "queue", "redelivered", "requeues")
    entry: Any  # the handle of its entry while it is taken; None after that, and unset before it is first taken
    consumer: Consumer | None  # the one whose credit it uses, while it is unacknowledged; None after a get()

    def __init__(self, message: Message, queue: Queue) -> None:
        self.message = message
        self.queue = queue
        self.redelivered = False
        self.requeues = 0  # how often it was requeued, for x-delivery-limit
        self.expires_at: float | None = None  # set when it has been enqueued

    def end(self) -> None:
        """Remove it from its queue for good."""
        entry, self.entry = self.entry, None
        entry.ack()


class ReadyList:
    """The ready messages of one queue, in order, on an EntryQueue or a PriorityEntryQueue. Taking a message acquires
    its entry, requeueing it releases the entry. A released entry returns to its original place."""

    __slots__ = ("_get", "_levels", "_put", "_subscription")

    def __init__(self, levels: int) -> None:
        """`levels`: 0 for a plain queue, otherwise the number of priorities, 0 to levels - 1."""
        self._levels = levels
        queue: EntryQueue[Delivery] = PriorityEntryQueue(levels=levels, mapping="direct") if levels else EntryQueue()
        self._put: Any = queue.put
        self._subscription = queue.subscribe()
        self._subscription._may_be_forgotten()  # no warning when a broker is freed unclosed
        self._get: Any = self._subscription.get

    def append(self, delivery: Delivery) -> None:
        if self._levels:
            properties = delivery.message.properties
            self._put(delivery, priority=(properties and properties.priority) or 0)
        else:
            self._put(delivery)

    def take(self) -> Delivery:
        """The first one, which then has an entry. Call only while one is ready."""
        entry = self._get(False)
        delivery: Delivery = entry.item
        delivery.entry = entry
        return delivery

    def close(self) -> None:
        """The queue is deleted. Its unacknowledged deliveries cannot be requeued."""
        self._subscription.close()


# ------------------------------------------------------------------------------------------------------------ consumers
class Consumer:
    """A subscription of a channel to a queue, or to replies. ChannelState.consume() sets both; the queue of a consumer
    of replies is set before."""

    __slots__ = (
        *("auto_ack", "channel", "credit", "exclusive", "gone", "order", "parked", "prefetch"),
        *("queue", "tag", "target"),
    )
    channel: ChannelState
    queue: Any  # a Queue, or a ReplyAddress

    def __init__(
        self, tag: str, target: Callable[[Any], object], auto_ack: bool = False, exclusive: bool = False,
        priority: int = 0,
    ) -> None:
        self.tag = tag
        self.target = target
        self.auto_ack = auto_ack
        self.exclusive = exclusive
        self.order = -priority  # lower goes first
        self.credit = self.prefetch = UNLIMITED  # equal while it holds nothing
        self.parked = False  # not in its RoundRobin, because it could not take
        self.gone = False  # cancelled by its client, or its channel is closed: it gets nothing more


class RoundRobin:
    """The consumers of a queue that are not parked: highest priority first, round robin inside one priority.

    A consumer that is found without credit, or whose channel is at its limit, is parked. It joins the end of its ring
    when it can take again, so idle consumers cost nothing."""

    __slots__ = ("_rings", "orders")

    def __init__(self) -> None:
        self._rings: dict[int, deque[Consumer]] = {}
        self.orders: list[int] = []  # negated priorities of the rings, ascending; no ring is empty

    def add(self, consumer: Consumer) -> None:
        """Add a consumer at the end of its ring."""
        consumer.parked = False
        if consumer.order not in self._rings:
            self._rings[consumer.order] = deque()
            insort(self.orders, consumer.order)
        self._rings[consumer.order].append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer, which may be parked."""
        if consumer.order in self._rings and consumer in self._rings[consumer.order]:
            self._rings[consumer.order].remove(consumer)
            if not self._rings[consumer.order]:
                del self._rings[consumer.order]
                self.orders.remove(consumer.order)

    def next(self) -> Consumer | None:
        """The next consumer that can take; it moves to the end of its ring. Those found unable are parked."""
        while self.orders:
            ring = self._rings[self.orders[0]]
            consumer = ring[0]
            if consumer.credit and (not consumer.channel.at_limit or consumer.queue.arguments.quorum):
                if len(ring) > 1:
                    ring.rotate(-1)
                return consumer
            consumer.parked = True
            self.remove(consumer)
        return None


# --------------------------------------------------------------------------------------------------------------- queues
class Queue(Destination):
    """Ready messages in order, consumers, and the rules of its arguments."""

    __slots__ = (
        *("_active", "_dropping", "_expiring", "_ready_list", "_round_robin", "_unused_at", "arguments"),
        *("auto_delete", "consumers", "deleted", "due", "durable", "host", "owner", "ready", "single_active", "target"),
    )
    is_queue = True

    def __init__(
        self, host: VirtualHost, name: str, durable: bool, auto_delete: bool, owner: object, arguments: QueueArguments
    ) -> None:
        super().__init__(name)
        self.host = host
        self.target = host.queue_target
        self.durable = durable
        self.auto_delete = auto_delete
        self.owner = owner  # the connection that may use an exclusive queue
        self.arguments = arguments
        self.consumers: list[Consumer] = []  # in the order of their registration
        self.deleted = False
        self.single_active = arguments.single_active
        self.ready = 0
        self.due: float | None = None  # when tick() is to be called
        self._unused_at: float | None = None  # when x-expires deletes it, unless it is used
        self._ready_list = ReadyList(arguments.priorities)
        self._round_robin = RoundRobin()
        self._active: Consumer | None = None  # with x-single-active-consumer: the one that gets the messages
        self._dropping = arguments.max_length is not None and arguments.overflow == "drop-head"
        self._expiring = False  # a message with a time to live has been here

    # messages in
    def publish(self, message: Message, now: float) -> bool:
        """False if it is refused: with reject-publish, the limit is looked at first. With drop-head, consumers are. A
        consumer that waits gets it even if its time to live is 0."""
        arguments = self.arguments
        if arguments.max_length is not None and not self._dropping and self.ready >= arguments.max_length:
            if arguments.overflow == "reject-publish-dlx":
                self._dead_letter(message, "maxlen")
            return False
        delivery = Delivery(message, self)
        self._ready_list.append(delivery)
        self.ready += 1
        if self._round_robin.orders:
            self._deliver_ready(now)
        if arguments.ttl is not None or message.properties is not None:
            self._set_expiry(delivery, now)
        if self.ready:
            self._enforce_limits(now)
        return True

    def _set_expiry(self, delivery: Delivery, now: float) -> None:
        lives = [ttl for ttl in (self.arguments.ttl, delivery.message.ttl) if ttl is not None]
        if lives:
            delivery.expires_at = now + min(lives) / 1000
            self._expiring = True

    def requeue(self, deliveries: Iterable[Delivery], now: float) -> None:
        """Requeue unacknowledged deliveries. The caller calls `pump` once it has given back their credit."""
        for delivery in deliveries:
            delivery.redelivered = True
            delivery.requeues += self.arguments.quorum
            limit = self.arguments.delivery_limit
            if self.deleted:
                self.host.end(delivery)
            elif limit is not None and delivery.requeues > limit:
                self.end(delivery, "delivery_limit")
            else:
                self._put_back(delivery)
        if self.ready:
            self._enforce_limits(now)

    def _put_back(self, delivery: Delivery) -> None:
        self.ready += 1
        entry, delivery.entry = delivery.entry, None
        entry.release()

    def _enforce_limits(self, now: float) -> None:
        """x-overflow drop-head, then expiry."""
        if self._dropping:
            limit = self.arguments.max_length or 0
            while self.ready > limit:
                self.ready -= 1
                self.end(self._ready_list.take(), "maxlen")
        if self._expiring and self.ready:
            self._expire(now)

    # messages out
    def take(self, now: float) -> Delivery | None:
        """The first message that has not expired. Expired ones before it and directly behind it become dead letters."""
        delivery = None
        while self.ready and delivery is None:
            delivery = self._take_first(now)
        if self._expiring:
            self._expire(now)
        return delivery

    def _take_first(self, now: float) -> Delivery | None:
        """The first message, unless it has expired."""
        self.ready -= 1
        delivery = self._ready_list.take()
        if delivery.expires_at is None or delivery.expires_at > now:
            return delivery
        self.end(delivery, "expired")
        return None

    def pump(self, now: float) -> None:
        """Deliver while a message is ready and a consumer can take it. Then check the expiry of the new head."""
        self._deliver_ready(now)
        if self._expiring:
            self._expire(now)

    def _deliver_ready(self, now: float) -> None:
        round_robin = self._round_robin
        while self.ready and round_robin.orders:
            consumer = round_robin.next()
            if consumer is None:
                return
            delivery = self._take_first(now)
            if delivery is not None:
                consumer.channel.deliver(consumer, delivery)

    def serve_only(self, consumer: Consumer, now: float) -> bool:
        """`unpark` and `pump` in one, if all other consumers are parked. False: they are not, and nothing was done. The
        consumer joins its ring only if it can still take. After an ack it mostly cannot, because it gets the next
        message at once."""
        if self.single_active or self._round_robin.orders or consumer.gone or self.deleted:
            return False
        while self.ready and consumer.credit:
            delivery = self._take_first(now)
            if delivery is not None:
                consumer.channel.deliver(consumer, delivery)
        if not self.ready:
            self._round_robin.add(consumer)
        if self._expiring:
            self._expire(now)
        return True

    def purge(self) -> int:
        """Drop the ready messages."""
        count = self.ready
        while self.ready:
            self.ready -= 1
            self.host.end(self._ready_list.take())
        return count

    # dead letters
    def end(self, delivery: Delivery, reason: str) -> None:
        """Remove a delivery for good. It becomes a dead letter."""
        self.host.end(delivery)
        self._dead_letter(delivery.message, reason)

    def _dead_letter(self, message: Message, reason: str) -> None:
        exchange = self.arguments.dead_letter_exchange
        if exchange is not None and not self.deleted:
            self.host.dead_letters.append((message, reason, self.name, exchange, self.arguments.dead_letter_key))

    # times
    def _expire(self, now: float) -> None:
        """End expired messages at the head, and set `due` for the next one there."""
        while self.ready:
            delivery = self._take_first(now)
            if delivery is not None:
                self._put_back(delivery)
                if delivery.expires_at is not None:
                    self._wake_at(delivery.expires_at)
                return

    def _wake_at(self, due: float) -> None:
        if self.due is None or due < self.due:
            self.due = due
            self.host.effects.append((self,))

    def used(self, now: float) -> None:
        """x-expires counts from the last use; a queue with consumers is in use."""
        if self.arguments.expires is not None and not self.deleted:
            self._unused_at = now + self.arguments.expires / 1000
            self._wake_at(self._unused_at)

    def tick(self, now: float) -> None:
        """`due` has come, or will soon: an early call does no harm."""
        self.due = None
        if self.deleted:
            return
        if self._unused_at is not None and not self.consumers:
            if self._unused_at <= now:
                self.host.delete_queue(self)
                return
            self._wake_at(self._unused_at)
        self._expire(now)

    # consumers
    def add_consumer(self, consumer: Consumer, now: float) -> None:
        """Add a consumer. The caller calls `pump`."""
        if any(other.exclusive for other in self.consumers):
            access_refused(f"queue {self.name!r} is in exclusive use")
        if consumer.exclusive and self.consumers:
            access_refused(f"queue {self.name!r} has consumers already: no exclusive use of it")
        if consumer.exclusive and self.single_active:
            access_refused(f"queue {self.name!r} has x-single-active-consumer: no exclusive use of it")
        self.consumers.append(consumer)
        if not self.single_active:
            self._round_robin.add(consumer)
        elif self._active is None:
            self._activate(consumer)
        else:
            self.settled()
        self.used(now)

    def remove_consumers(self, consumers: Collection[Consumer], deliveries: Collection[Delivery], now: float) -> None:
        """Remove these consumers, and requeue these deliveries before any other consumer is considered. An auto-delete
        queue is deleted with its last consumer."""
        for consumer in consumers:
            if consumer in self.consumers:
                self.consumers.remove(consumer)
                self._round_robin.remove(consumer)
            if consumer is self._active:
                self._active = None
        if consumers and not self.consumers and self.auto_delete and not self.deleted:
            self.host.delete_queue(self)
        self.requeue(deliveries, now)
        if self.single_active and self._active is None and self.consumers:
            self._activate(self._highest())
        self.pump(now)
        self.used(now)

    def _activate(self, consumer: Consumer) -> None:
        self._active = consumer
        self._round_robin.add(consumer)

    def _highest(self) -> Consumer:
        """The consumer of highest priority, among those the oldest."""
        return min(self.consumers, key=lambda consumer: consumer.order)

    def settled(self) -> None:
        """Single active consumer of a quorum queue: one of higher priority takes over once the active one holds
        nothing."""
        active = self._active
        if active is None or not self.arguments.quorum:
            return
        highest = self._highest()
        if highest.order < active.order and active.credit == active.prefetch:
            self._round_robin.remove(active)
            active.parked = False
            self._activate(highest)

    def unpark(self, consumer: Consumer) -> None:
        """The consumer has credit again, or its channel is below its limit. The caller calls `pump`."""
        if consumer.parked and not consumer.gone and not self.deleted:
            self._round_robin.add(consumer)

    # the end
    def check_access(self, connection: object) -> None:
        if self.owner is not None and self.owner is not connection:
            resource_locked(f"exclusive queue {self.name!r} belongs to another connection")

    def close(self) -> int:
        """Delete it. Returns how many messages were ready. Its consumers are cancelled."""
        self.deleted = True
        if self.due is not None:
            self.due = None
            self.host.effects.append((self,))
        count = self.purge()
        self._ready_list.close()
        consumers, self.consumers, self._active = self.consumers, [], None
        for consumer in consumers:
            self._round_robin.remove(consumer)
            self.host.effects.append((consumer, CANCELLED))
        return count


# ------------------------------------------------------------------------------------------------------------- replies
class ReplyAddress:
    """What a consumer of REPLY_TO has in the place of a queue. Its name is the routing key by which replies come, and
    holds nothing: a reply is delivered at once, whatever the limits and transactions, or dropped. Tags do not count
    replies, so a reply has the tag that the next delivery will have."""

    __slots__ = ("host", "name")

    def __init__(self, host: VirtualHost, name: str) -> None:
        self.host = host
        self.name = name

    def remove_consumers(self, consumers: Collection[Consumer], deliveries: Collection[Delivery], now: float) -> None:
        for consumer in consumers:
            consumer.channel.replies = None
            del self.host.reply_consumers[self.name]

    def unpark(self, consumer: Consumer) -> None:
        """No limit parks it."""

    def pump(self, now: float) -> None:
        """Nothing waits."""


# ------------------------------------------------------------------------------------------------------------- channels
class ChannelState:
    """One channel: its consumers, its unacknowledged deliveries, its credit, its transaction.

    There are two limits: the credit of each consumer, and `_limit` of the channel. Credit starts at the prefetch, goes
    down with each delivery and up when that is settled. `_volume` counts the deliveries that consumers of classic
    queues hold. While it has reached `_limit`, they get nothing, not even those that need not acknowledge. get() counts
    in neither. When a limit is first set, all that is unacknowledged then counts.

    In a transaction publishes are routed when they are made. At the commit they enter the queues that have these names
    then, and their time to live starts. Acks are checked when they are made. From then on the deliveries are unknown to
    further acks, to recover and to a limit that is first set, but they use credit until the commit."""

    __slots__ = (
        *("_limit", "_publishes", "_settlements", "_tag", "_turn", "_volume", "at_limit", "confirming", "connection"),
        *("consumers", "gone", "host", "last_queue", "prefetch", "replies", "target", "transacted", "unacked"),
    )

    def __init__(self, host: VirtualHost, connection: object, target: Callable[[Any], object]) -> None:
        self.host = host
        self.connection = connection
        self.target = target
        self.consumers: dict[str, Consumer] = {}
        self.unacked: dict[int, Delivery] = {}  # by tag, ascending
        self.prefetch = 0  # of consumers that start later
        self.at_limit = False
        self.confirming = False
        self.transacted = False
        self.replies: ReplyAddress | None = None  # of its consumer of replies
        self.gone = False  # closed
        self.last_queue = ""  # what the empty name means
        self._tag = 0
        self._limit = 0
        self._volume = 0
        self._turn = 0  # how often it fell below its limit: each time another consumer is served first
        # Until the commit: messages with the names of their queues and `mandatory`; what to do with deliveries, by tag.
        self._publishes: list[tuple[Message, list[str], bool]] = []
        self._settlements: list[tuple[str, dict[int, Delivery]]] = []

    def close(self, now: float) -> None:
        """Consumers leave first, so that requeued messages go to others."""
        close_channels([self], now)

    def _leave(self, queues: dict[Any, tuple[list[Consumer], list[Delivery]]]) -> None:
        """Give up everything, and add to `queues` the consumers that leave and the deliveries that go back."""
        if self.gone:
            return
        self.gone = True
        self._take_back()
        unacked, self.unacked = self.unacked, {}
        self.host.dropped += [self._publishes, self.consumers]
        self._publishes = []
        for consumer in self.consumers.values():
            consumer.gone = True
            queues.setdefault(consumer.queue, ([], []))[0].append(consumer)
        self.consumers = {}
        for delivery in unacked.values():
            queues.setdefault(delivery.queue, ([], []))[1].append(delivery)

    # publishing
    def publish(self, message: Message, mandatory: bool, error: ReplyError | None, now: float) -> str:
        """Route it to its queues. "returned": it is mandatory and there was none. "refused": one of them has reached
        its length limit. Otherwise an empty str."""
        exchanges = self.host.exchanges
        if message.exchange not in exchanges.by_name:
            not_found("exchange", message.exchange)
        exchange = exchanges.by_name[message.exchange]
        if exchange.internal:
            access_refused(f"cannot publish to internal exchange {message.exchange!r}")
        properties = message.properties
        if properties is not None and type(properties.reply_to) is str and properties.reply_to == REPLY_TO:
            if self.replies is None:
                precondition_failed("fast reply consumer does not exist")
            properties.reply_to = self.replies.name
        if error is not None:
            raise error
        queues = self.host.route(exchange, message)
        if self.transacted:
            self._publishes.append((message, [queue.name for queue in queues], mandatory))
            return ""
        outcome = ""
        for queue in queues:
            if not queue.publish(message, now):
                outcome = "refused"
        if mandatory and not queues:
            self.host.effects.append((self, 0, message))
            return "returned"
        return outcome

    def confirm(self) -> None:
        if self.transacted:
            precondition_failed("cannot switch from tx to confirm mode")
        self.confirming = True

    # deliveries out
    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        """Deliver one message: assign its tag and its place among the effects before the queue changes further."""
        tag = self._tag = self._tag + 1
        if consumer.auto_ack:
            delivery.end()
        else:
            delivery.consumer = consumer
            self.unacked[tag] = delivery
            consumer.credit -= 1
            if self._limit and not consumer.queue.arguments.quorum:
                self._volume += 1
                self.at_limit = self._volume >= self._limit
        self.host.effects.append((consumer, tag, delivery.redelivered, delivery.message, delivery.requeues))

    def deliver_reply(self, consumer: Consumer, message: Message) -> None:
        self.host.effects.append((consumer, self._tag + 1, False, message, 0))

    def get(self, name: str, auto_ack: bool, now: float) -> tuple[int, bool, Message, int, int] | None:
        """The first message of a queue: delivery tag, redelivered, message, requeues, and how many are left."""
        queue = self.queue(name)
        if queue.single_active and queue.arguments.quorum:
            resource_locked(f"queue {queue.name!r} of type quorum has x-single-active-consumer: no basic.get")
        queue.used(now)
        delivery = queue.take(now)
        if delivery is None:
            return None
        tag = self._tag = self._tag + 1
        if auto_ack:
            delivery.end()
        else:
            delivery.consumer = None
            self.unacked[tag] = delivery
        return tag, delivery.redelivered, delivery.message, delivery.requeues, queue.ready

    # settling
    def settle(self, how: str, tag: int, multiple: bool, now: float) -> None:
        """`how`: ack, reject or requeue. One tag; or all up to a tag that is itself unacknowledged; or all, by (0,
        multiple)."""
        deliveries = self._collect(tag, multiple)
        if self.transacted:
            self._settlements.append((how, deliveries))
        else:
            self._settle(how, list(deliveries.values()), now)

    def _collect(self, tag: int, multiple: bool) -> dict[int, Delivery]:
        unacked = self.unacked
        if multiple and tag == 0:
            self.unacked = {}
            return unacked
        if tag not in unacked:
            precondition_failed(f"unknown delivery tag {tag}")
        if not multiple:
            return {tag: unacked.pop(tag)}
        collected = {}
        for earlier, delivery in unacked.items():
            if earlier > tag:
                break
            collected[earlier] = delivery
        for earlier in collected:
            del unacked[earlier]
        return collected

    def ack_one(self, tag: int, now: float) -> Delivery | None:
        """Acknowledge one delivery outside a transaction; nearly all acks are such. Returns it, or None if the tag is
        unknown. The caller drops it outside the section, because that may free the body."""
        delivery = self.unacked.pop(tag, None)
        if delivery is None:
            return None
        delivery.entry.ack()
        delivery.entry = None
        consumer = delivery.consumer
        if consumer is None:
            return delivery
        consumer.credit += 1
        others_wait = self._limit > 0 or delivery.queue.single_active
        if others_wait or (consumer.parked and not consumer.queue.serve_only(consumer, now)):
            self._give_back((delivery,), (), now)
        return delivery

    def _settle(self, how: str, deliveries: list[Delivery], now: float) -> None:
        by_queue: dict[Queue, list[Delivery]] = {}
        for delivery in deliveries:
            if how == "requeue":
                by_queue.setdefault(delivery.queue, []).append(delivery)
            elif how == "reject":
                delivery.queue.end(delivery, "rejected")
            else:
                self.host.end(delivery)
            if delivery.consumer is not None:
                delivery.consumer.credit += 1
        for queue, back in by_queue.items():
            queue.requeue(back, now)
        self._give_back(deliveries, by_queue, now)

    def _give_back(self, deliveries: Iterable[Delivery], changed: Iterable[Queue], now: float) -> None:
        """Give back what these deliveries use up of the limits, and deliver what these then allow. `changed`: queues
        that may have more to deliver. A volume of 0 stays 0, because it may never have counted these deliveries."""
        queues = dict.fromkeys(changed)
        counted = self._limit > 0 and self._volume != 0
        for delivery in deliveries:
            consumer = delivery.consumer
            if consumer is not None:
                delivery.consumer = None
                if consumer.parked:
                    consumer.queue.unpark(consumer)
                    queues[consumer.queue] = None
                if counted:
                    self._volume -= 1
                if delivery.queue.single_active:
                    delivery.queue.settled()
                    queues[delivery.queue] = None
        if self.at_limit and self._volume < self._limit:
            queues.update(self._below_limit())
        for queue in queues:
            queue.pump(now)

    def recover(self, requeue: bool, now: float) -> None:
        if not requeue:
            not_implemented("requeue=false of basic.recover")
        unacked, self.unacked = self.unacked, {}
        self._settle("requeue", list(unacked.values()), now)

    def requeue_unseen(self, consumer: Consumer, seen: int, now: float) -> None:
        """Requeue the deliveries that a cancelled consumer has not seen: tags above `seen`."""
        tags = [tag for tag, delivery in self.unacked.items() if tag > seen and delivery.consumer is consumer]
        self._settle("requeue", [self.unacked.pop(tag) for tag in tags], now)

    # credit
    def qos(self, size: int, count: int, of_channel: bool, now: float) -> None:
        if size:
            not_implemented(f"prefetch_size!=0 ({size})")
        if not of_channel:
            self.prefetch = count
        limit = count if of_channel else 0
        if limit and not self._limit:
            self._volume = len(self.unacked)
        self._limit = limit
        if 0 < limit <= self._volume:
            self.at_limit = True
        elif self.at_limit:
            for queue in self._below_limit():
                queue.pump(now)

    def _below_limit(self) -> dict[Any, None]:
        """Unpark the consumers that were parked by the limit. Returns their queues; which one comes first changes from
        call to call, so that none starves."""
        self.at_limit = False
        consumers = list(self.consumers.values())
        self._turn += 1
        start = self._turn % len(consumers) if consumers else 0
        queues: dict[Any, None] = {}
        for consumer in consumers[start:] + consumers[:start]:
            consumer.queue.unpark(consumer)
            queues[consumer.queue] = None
        return queues

    def flow(self, active: bool) -> None:
        if not active:
            not_implemented("active=false of channel.flow")

    # consumers
    def consume(self, name: str, consumer: Consumer, error: ReplyError | None, now: float) -> None:
        """Register a consumer, which then gets messages. `error`: of its arguments."""
        if name == REPLY_TO:
            self._consume_replies(consumer)
            return
        queue = self.queue(name)
        if error is not None:
            raise error
        if queue.arguments.quorum and self._limit:
            not_implemented(f"queue {queue.name!r} of type quorum does not support global qos")
        consumer.channel, consumer.queue = self, queue
        if self.prefetch and not consumer.auto_ack:
            consumer.credit = consumer.prefetch = self.prefetch
        queue.add_consumer(consumer, now)
        self.consumers[consumer.tag] = consumer
        queue.pump(now)

    def _consume_replies(self, consumer: Consumer) -> None:
        if not consumer.auto_ack:
            precondition_failed("reply consumer cannot acknowledge")
        if self.replies is not None:
            precondition_failed("reply consumer already set")
        consumer.channel = self
        self.replies = consumer.queue
        self.consumers[consumer.tag] = self.host.reply_consumers[consumer.queue.name] = consumer

    def cancel(self, tag: str, now: float) -> Consumer | None:
        """End a consumer. What it holds stays with the channel."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            consumer.gone = True
            consumer.queue.remove_consumers([consumer], (), now)
        return consumer

    # transactions
    def tx_select(self) -> None:
        if self.confirming:
            precondition_failed("cannot switch from confirm to tx mode")
        self.transacted = True

    def tx_commit(self, now: float) -> None:
        """Everything since the last commit or rollback takes effect. 406 after that: a queue has refused a message."""
        publishes = self._take_publishes()
        settlements, self._settlements = self._settlements, []
        refused = False
        for message, names, mandatory in publishes:
            queues = [self.host.queues[name] for name in names if name in self.host.queues]
            for queue in queues:
                refused |= not queue.publish(message, now)
            if mandatory and not queues:
                self.host.effects.append((self, 0, message))
        for how, deliveries in settlements:
            self._settle(how, list(deliveries.values()), now)
        if refused:
            precondition_failed("partial tx completion")

    def tx_rollback(self) -> None:
        """Publishes are dropped; what was settled is unacknowledged again."""
        self._take_publishes()
        self._take_back()

    def _take_publishes(self) -> list[tuple[Message, list[str], bool]]:
        if not self.transacted:
            precondition_failed("channel is not transactional")
        publishes, self._publishes = self._publishes, []
        self.host.dropped.append(publishes)
        return publishes

    def _take_back(self) -> None:
        """What was settled since the last commit is unacknowledged again."""
        settlements, self._settlements = self._settlements, []
        if settlements:
            for _, deliveries in settlements:
                self.unacked |= deliveries
            self.unacked = dict(sorted(self.unacked.items()))

    # names
    def queue(self, name: str) -> Queue:
        """The queue of that name; for the empty name the one that this channel declared last. 404, 405."""
        return self.host.queue(self._full_name(name), self.connection)

    def _full_name(self, name: str) -> str:
        """The name, or the last queue's if it is empty. 404: this channel has declared none."""
        if not name and not self.last_queue:
            raise ReplyError(404, "NOT_FOUND - no previously declared queue")
        return name or self.last_queue

    def declare_queue(
        self, name: str, generated: bool, passive: bool, durable: bool, exclusive: bool, auto_delete: bool,
        asked: QueueArguments, now: float,
    ) -> tuple[str, int, int]:
        """Its name, how many messages are ready, how many consumers it has."""
        if name == REPLY_TO or name in self.host.reply_consumers:
            self.last_queue = name
            return name, 0, 1
        if passive or name.startswith(REPLY_TO):
            queue = self.host.queue(name, self.connection)
        else:
            queue = self.host.declare_queue(name, generated, self.connection, durable, exclusive, auto_delete, asked)
        queue.used(now)
        self.last_queue = queue.name
        return queue.name, queue.ready, len(queue.consumers)

    def delete_queue(self, name: str, if_unused: bool, if_empty: bool) -> int:
        if self._full_name(name) not in self.host.queues:
            return 0
        queue = self.queue(name)
        for asked, flag in ((if_unused, "if-unused"), (if_empty, "if-empty")):
            if asked and queue.arguments.quorum:
                not_implemented(f"delete of queue {queue.name!r} with {flag}: it is of type quorum")
        if if_unused and queue.consumers:
            precondition_failed(f"queue {queue.name!r} in use")
        if if_empty and queue.ready:
            precondition_failed(f"queue {queue.name!r} not empty")
        return self.host.delete_queue(queue)

    def purge(self, name: str) -> int:
        return self.queue(name).purge()

    def bind_queue(self, name: str, exchange: str, key: str | None, arguments: BindingArguments) -> None:
        queue = self.queue(name)
        self.host.exchanges.bind(exchange, queue, self._key(name, key, queue), arguments)

    def unbind_queue(self, name: str, exchange: str, key: str | None, arguments: BindingArguments) -> None:
        queue = self.queue(name) if self._full_name(name) in self.host.queues else None
        self.host.exchanges.unbind(exchange, queue, "" if queue is None else self._key(name, key, queue), arguments)

    def _key(self, name: str, key: str | None, queue: Queue) -> str:
        """Without a key: the given name. An empty name and an empty key: the name of the last queue."""
        key = name if key is None else key
        return key or ("" if name else queue.name)

    def bind_exchange(self, destination: str, source: str, key: str, arguments: BindingArguments) -> None:
        not_default(destination)
        exchanges = self.host.exchanges
        exchanges.bind(source, exchanges.find(destination), key, arguments)

    def unbind_exchange(self, destination: str, source: str, key: str, arguments: BindingArguments) -> None:
        not_default(destination)
        exchanges = self.host.exchanges
        exchanges.unbind(source, exchanges.by_name.get(destination), key, arguments)

    def declare_exchange(self, request: ExchangeRequest, passive: bool) -> None:
        if passive:
            not_default(request.name)
            self.host.exchanges.find(request.name)
        else:
            self.host.exchanges.declare(request)


def close_channels(channels: Iterable[ChannelState], now: float) -> None:
    """Close channels together: what one has unacknowledged is not delivered to another one of them."""
    queues: dict[Any, tuple[list[Consumer], list[Delivery]]] = {}
    for channel in channels:
        channel._leave(queues)
    for queue, (leaving, back) in queues.items():
        queue.remove_consumers(leaving, back, now)


# ------------------------------------------------------------------------------------------------------ the whole of it
class VirtualHost:
    """Exchanges and queues by name, and what the operations leave to be done outside."""

    def __init__(self, queue_target: Callable[[Any], object]) -> None:
        self.queue_target = queue_target
        self.queues: dict[str, Queue] = {}
        self.exchanges = Exchanges(self.queues)
        self.effects: deque[tuple[Any, ...]] = deque()
        self.dead_letters: deque[tuple[Message, str, str, str, str | None]] = deque()
        self.dropped: list[object] = []
        self.reply_consumers: dict[str, Consumer] = {}  # by the name of their ReplyAddress

    def route(self, exchange: Exchange, message: Message) -> Collection[Any]:
        """The queues for a message, each once. To consumers of replies it is delivered, and they count for nothing: a
        mandatory reply is returned besides."""
        if self.reply_consumers and not exchange.name:
            for key in dict.fromkeys((message.key, *message.cc_keys)):
                if key in self.reply_consumers:
                    consumer = self.reply_consumers[key]
                    consumer.channel.deliver_reply(consumer, message)
        return self.exchanges.route(exchange, message)

    def end(self, delivery: Delivery) -> None:
        """Remove a delivery from its queue for good. Its body is freed outside the section."""
        delivery.end()
        self.dropped.append(delivery)

    def queue(self, name: str, connection: object) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            not_found("queue", name)
        queue.check_access(connection)
        return queue

    def declare_queue(
        self, name: str, generated: bool, connection: object, durable: bool, exclusive: bool, auto_delete: bool,
        asked: QueueArguments,
    ) -> Queue:
        durable = durable and not exclusive
        existing = self.queues.get(name)
        if existing is not None:
            existing.check_access(connection)
            if exclusive != (existing.owner is not None):
                resource_locked(f"queue {name!r} is {'not ' * exclusive}exclusive")
            check_same("queue", name, {"durable": durable, "auto_delete": auto_delete}, existing)
        elif not generated:
            not_reserved("queue", name)
        if asked.error is not None:
            raise asked.error
        if existing is not None:
            existing.arguments.check_same(name, asked)
            return existing
        for wrong, what in ((not durable, "non-durable"), (exclusive, "exclusive"), (auto_delete, "auto-delete")):
            if asked.quorum and wrong:
                precondition_failed(f"invalid property {what!r} for queue {name!r} of type quorum")
        queue = self.queues[name] = Queue(self, name, durable, auto_delete, connection if exclusive else None, asked)
        return queue

    def delete_queue(self, queue: Queue) -> int:
        """Returns how many messages were ready."""
        del self.queues[queue.name]
        self.exchanges.forget(queue)
        return queue.close()

    def delete_queues_of(self, connection: object) -> None:
        """Delete the exclusive queues of a connection."""
        for queue in [queue for queue in self.queues.values() if queue.owner is connection]:
            self.delete_queue(queue)

    def publish_dead_letters(self, now: float, wall_clock: float) -> None:
        """Publish until none is left. `wall_clock`: seconds since the epoch, for x-death."""
        time = datetime.fromtimestamp(int(wall_clock), UTC)
        while self.dead_letters:
            message, reason, queue, exchange, key = self.dead_letters.popleft()
            target = self.exchanges.by_name.get(exchange)
            if target is not None:
                dead_letter = _dead_letter(message, reason, queue, exchange, key, time)
                for destination in list(self.route(target, dead_letter)):
                    if not _closes_a_cycle(dead_letter, reason, destination.name):
                        destination.publish(dead_letter, now)


# --------------------------------------------------------------------------------------------------------- dead letters
def _dead_letter(message: Message, reason: str, queue: str, exchange: str, key: str | None, time: datetime) -> Message:
    """The message for the dead-letter exchange: with `key` or, if that is None, its old keys; without expiration; with
    this death in x-death."""
    properties = fresh() if message.properties is None else copied(message.properties)
    headers: dict[str, Any] = dict(properties.headers or {})
    _record(headers, message, reason, queue, time)
    if key is not None:
        headers.pop("CC", None)
    properties.headers = headers
    properties.__dict__.pop("expiration", None)
    if key is not None:
        return Message(message.body, properties, exchange, key)
    return Message(message.body, properties, exchange, message.key, message.cc_keys)


def _record(headers: dict[str, Any], message: Message, reason: str, queue: str, time: datetime) -> None:
    """Count this death with earlier ones of the same queue and reason, and put it first."""
    now = {"reason": reason, "queue": queue, "exchange": message.exchange}
    listed = headers.get("x-death")
    deaths: list[dict[str, Any]] = [death for death in listed if type(death) is dict] if type(listed) is list else []
    if not deaths:
        headers |= {f"x-first-death-{name}": value for name, value in now.items()}
    headers |= {f"x-last-death-{name}": value for name, value in now.items()}
    alikes = (each for each in deaths if is_text(each.get("queue"), queue) and is_text(each.get("reason"), reason))
    same = next(alikes, None)
    if same is None:
        copies = [key for key in headers.get("CC") or [] if type(key) is str]
        latest = {"count": 1, "reason": reason, "queue": queue, "time": time, "exchange": message.exchange}
        latest["routing-keys"] = [message.key, *copies]
        if message.properties is not None and message.properties.expiration is not None:
            latest["original-expiration"] = message.properties.expiration
    else:
        latest = {**same, "count": _count_of(same) + 1, "time": time}
    headers["x-death"] = [latest, *(death for death in deaths if death is not same)]


def _count_of(death: Mapping[str, Any]) -> int:
    """The count of an x-death record, which a client may have made up."""
    count = death.get("count", 0)
    return count if type(count) is int else 0


def _closes_a_cycle(dead_letter: Message, reason: str, queue: str) -> bool:
    """Whether the dead letter would return to a queue that it came from before, with no rejection since: it would
    circulate for ever."""
    if reason == "rejected":
        return False
    since: list[dict[str, Any]] = []
    for death in dead_letter.headers["x-death"]:
        since.append(death)
        if is_text(death.get("queue"), queue):
            return not any(is_text(past.get("reason"), "rejected") for past in since)
    return False
