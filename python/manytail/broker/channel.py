"""Channel: what a client calls. pika's BlockingChannel by its names and signatures; the queues and exchanges behind it are in the other files.

Each public call is one section of the broker's monitor. A refusal raised inside it closes the channel or the connection before the call raises.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable, Collection, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from manytail.broker import exceptions
from manytail.broker._consumers import Consumer
from manytail.broker._delivery import Ledger
from manytail.broker._dispatch import Lane, report
from manytail.broker._exchanges import Exchange as BrokerExchange
from manytail.broker._messages import Message, Parcel, carbon_copies, check_expiration, delivered_properties
from manytail.broker._methods import Basic, Exchange, Method, Queue, ReturnedMessage, Tx
from manytail.broker._properties import BasicProperties, copied_from_anything
from manytail.broker._queues import Queue as BrokerQueue
from manytail.broker._refusals import Refused, access_refused, not_implemented, precondition_failed, resource_locked
from manytail.broker._transactions import Transaction
from manytail.broker._validation import require_callable, require_name, require_prefetch, require_string

if TYPE_CHECKING:
    from manytail.broker.connection import Connection

__all__ = ["Channel"]

LOGGER = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


def section(call: F) -> F:
    """A public call that answers: one section of the monitor, on an open channel, whose refusal closes something first."""

    @functools.wraps(call)
    def guarded(self: Channel, *args: Any, **kwargs: Any) -> Any:
        with self._monitor:
            self._check_open()
            try:
                return call(self, *args, **kwargs)
            except Refused as refusal:
                error = self._refused(refusal)
        raise error

    return cast(F, guarded)


def change(call: F) -> F:
    """A section that answers nothing: where it interrupts another section of its own thread, it happens right after that."""
    guarded = section(call)

    @functools.wraps(call)
    def late_or_now(self: Channel, *args: Any, **kwargs: Any) -> None:
        if self._monitor.interrupted():
            self._monitor.after(_reporting, guarded, self, args, kwargs)
        else:
            guarded(self, *args, **kwargs)

    return cast(F, late_or_now)


def _reporting(call: Callable[..., object], channel: Channel, args: Any, kwargs: Any) -> None:
    """The caller of a late change is gone, and its section must not fail for it."""
    try:
        call(channel, *args, **kwargs)
    except Exception as error:
        report(error)


class Channel:
    """A session on a connection: consumers, delivery tags, acknowledgements, confirms or transactions. Every method may be called from any thread;
    callbacks of one channel run one at a time, in the order of the deliveries. Made by Connection.channel()."""

    def __init__(self, connection: Connection, channel_number: int) -> None:
        self._connection = connection
        self._number = channel_number
        self._host = connection._host
        self._monitor = connection._host.monitor
        self._changed = self._monitor.condition()
        self._lane = Lane(connection._dispatch, self._run)
        self.ledger = Ledger(self, self._lane)
        self.consumers: dict[str, Consumer] = {}
        self._closing_reason: Exception | None = None
        self._failure: BaseException | None = None  # what a callback raised
        self._starters = 0  # threads in start_consuming
        self._generator: Consumer | None = None
        self._generator_params: tuple[Any, ...] = ()
        self._confirming = False
        self._transaction: Transaction | None = None
        self._last_queue = ""  # what the empty name stands for
        self._on_return: list[Callable[..., object]] = []
        self._on_cancel: list[Callable[..., object]] = []

    # ------------------------------------------------------------------ what it is
    def __int__(self) -> int:
        return self._number

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._number} {'open' if self.is_open else 'closed'}>"

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if self.is_open:
            self.close()

    @property
    def channel_number(self) -> int:
        return self._number

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def is_open(self) -> bool:
        return self._closing_reason is None

    @property
    def is_closed(self) -> bool:
        return self._closing_reason is not None

    @property
    def consumer_tags(self) -> list[str]:
        return list(self.consumers)

    def _check_open(self) -> None:
        if self._closing_reason is not None:
            raise exceptions.ChannelWrongStateError("Channel is closed.") from self._closing_reason

    # ------------------------------------------------------------------ ending
    def close(self, reply_code: int = 0, reply_text: str = "Normal shutdown") -> None:
        """Requeue what is unacknowledged, cancel the consumers, wait for the callback that is running unless it is the caller.

        ChannelWrongStateError: it is closed."""
        with self._monitor:
            self._check_open()
            self._end(exceptions.ChannelClosedByClient(reply_code, reply_text))
        self._connection._forget(self)
        self._wait_for_callbacks(None)

    def _end(self, reason: Exception) -> None:
        """Closed, for whatever reason: consumers leave first, so that what is requeued goes to others."""
        if self._closing_reason is not None:
            return
        self._closing_reason = reason
        consumers, self.consumers = self.consumers, {}
        unacked = self.ledger.unacked
        if self._transaction is not None:
            unacked = dict(sorted((unacked | self._transaction.settled()).items()))
        self.ledger.unacked = {}
        queues: dict[BrokerQueue, tuple[list[Consumer], list[Parcel]]] = {}
        for consumer in consumers.values():
            consumer.gone = True
            queues.setdefault(consumer.queue, ([], []))[0].append(consumer)
        for parcel in unacked.values():
            queues.setdefault(parcel.queue, ([], []))[1].append(parcel)
        for queue, (leaving, parcels) in queues.items():
            queue.channel_left(leaving, parcels)
        self._generator = None
        self._changed.notify_all()

    def _refused(self, refusal: Refused) -> Exception:
        """The broker said no. The exception to raise; the channel, or for a hard one the connection, is closed."""
        error: Exception
        if refusal.code < 500:
            error = exceptions.ChannelClosedByBroker(refusal.code, refusal.text)
            self._end(error)
            self._monitor.after(self._connection._forget, self)
        else:
            error = exceptions.ConnectionClosedByBroker(refusal.code, refusal.text)
            self._connection._end(error)
        return error

    def _failed(self, error: BaseException) -> None:
        """A callback raised: the channel closes, and whoever waits in start_consuming gets that."""
        with self._monitor:
            told = self._starters > 0
            if self._failure is None:
                self._failure = error
            self._end(exceptions.ChannelClosedByClient(541, f"Closed by an exception of a callback: {error!r}"))
            self._changed.notify_all()
        self._connection._forget(self)
        if not told:
            report(error)

    def _wait_for_callbacks(self, consumer: Consumer | None) -> None:
        if not self._connection._dispatch.inside():
            self._lane.wait_for(consumer)

    # ------------------------------------------------------------------ callbacks
    def _run(self, item: Any) -> None:
        """One event of the lane: a delivery to a consumer, or something to call."""
        consumer, method, message, returns = item
        try:
            if consumer is None:
                if self._closing_reason is None:
                    message(method)
            else:
                consumer.callback(self, method, delivered_properties(message, returns), message.body)
        except BaseException as error:
            self._failed(error)
        self._connection.callback_ended()

    def wake(self) -> None:
        """Who waits in start_consuming or consume looks again."""
        self._changed.notify_all()

    def cancelled_by_broker(self, consumer: Consumer) -> None:
        """Its queue is gone. Told behind the deliveries that were made before."""
        if consumer is self._generator:
            self.consumers.pop(consumer.tag, None)
            consumer.buffer.append(None)
            self._changed.notify_all()
        else:
            self._lane.add((None, consumer, self._tell_cancelled, 0))

    def _tell_cancelled(self, consumer: Consumer) -> None:
        with self._monitor:
            known = self.consumers.pop(consumer.tag, None)
            self._changed.notify_all()
        if known is not None:
            for callback in list(self._on_cancel):
                callback(Method(self._number, Basic.Cancel(consumer.tag, True)))

    def add_on_cancel_callback(self, callback: Callable[[Any], object]) -> None:
        """`callback(frame)` when the queue of a consumer was deleted, in order with the deliveries. frame.method.consumer_tag says whose."""
        self._on_cancel.append(callback)

    def add_on_return_callback(self, callback: Callable[..., object]) -> None:
        """`callback(channel, method, properties, body)` when a mandatory message reached no queue, in order with the deliveries."""
        self._on_return.append(callback)

    # ------------------------------------------------------------------ publishing
    def basic_publish(self, exchange: str, routing_key: str, body: Any, properties: Any = None, mandatory: bool = False) -> None:
        """Route a message to its queues; never waits for a consumer. With confirms: UnroutableError, NackError."""
        if isinstance(body, str):
            body = body.encode()
        if properties is not None:
            properties = copied_from_anything(properties)
        monitor = self._monitor
        if monitor.interrupted():
            monitor.after(_reporting, Channel.basic_publish, self, (exchange, routing_key, body, properties, mandatory), {})
            return
        error: Exception
        with monitor:
            if self._closing_reason is not None:
                self._check_open()
            try:
                target = self._host.exchanges.get(exchange)
                if target is None or target.internal or properties is not None or len(routing_key) > 63:
                    target, message = self._checked(exchange, routing_key, body, properties)
                else:
                    message = Message(body, None, exchange, (routing_key,))
                queues = self._host.route(target, message)
                if self._transaction is not None:
                    self._transaction.publishes.append((message, list(queues), mandatory))
                    return
                refused = False
                for queue in queues:
                    if not queue.publish(message):
                        refused = True
                if not (mandatory or refused):
                    return
                returned = self._return(message) if mandatory and not queues else None
            except Refused as refusal:
                error = self._refused(refusal)
                returned, refused = None, False
            else:
                if not self._confirming or (returned is None and not refused):
                    return
                error = exceptions.NackError([]) if refused else exceptions.UnroutableError([returned])
        raise error

    def _checked(self, exchange: str, routing_key: str, body: Any, properties: BasicProperties | None) -> tuple[BrokerExchange, Message]:
        """The slow part of a publish: what may be refused, and the keys of CC and BCC."""
        require_string(exchange, "exchange")
        require_string(routing_key, "routing_key")
        target = self._host.exchange(exchange)
        if target.internal:
            access_refused(f"cannot publish to internal exchange {exchange!r}")
        if properties is not None:
            check_expiration(properties)
        return target, Message(body, properties, exchange, (routing_key, *carbon_copies(properties)))

    def _return(self, message: Message) -> ReturnedMessage:
        """A mandatory message reached no queue: tell the return callbacks in their turn."""
        method = Basic.Return(312, "NO_ROUTE", message.exchange, message.keys[0])
        for callback in self._on_return:
            self._lane.add((None, method, functools.partial(self._tell_returned, callback, message), 0))
        return ReturnedMessage(method, delivered_properties(message, 0), message.body)

    def _tell_returned(self, callback: Callable[..., object], message: Message, method: Basic.Return) -> None:
        callback(self, method, delivered_properties(message, 0), message.body)

    @section
    def confirm_delivery(self) -> None:
        """From now on basic_publish raises UnroutableError and NackError. Twice is as once; not on a transacted channel (406)."""
        if self._transaction is not None:
            precondition_failed("cannot switch from tx to confirm mode")
        self._confirming = True

    # ------------------------------------------------------------------ settling
    def basic_ack(self, delivery_tag: int = 0, multiple: bool = False) -> None:
        """Done with that delivery; with `multiple`, with all up to it, and (0, multiple) with all. Unknown tag: 406."""
        if not multiple and self._transaction is None:
            try:
                with self._monitor:
                    parcel = self.ledger.unacked.pop(delivery_tag, None)
                    if parcel is not None:
                        self.ledger.ack_one(parcel)
                        return
            except exceptions.ReentrancyError:
                LOGGER.debug("an ack that interrupts another call of its thread is put off")
        self._settle(Ledger.ack, delivery_tag, multiple)

    def basic_nack(self, delivery_tag: int = 0, multiple: bool = False, requeue: bool = True) -> None:
        """Give deliveries back to their places in the queue, or, without `requeue`, to the dead letters. Tags as in basic_ack."""
        self._settle(Ledger.requeue if requeue else Ledger.reject, delivery_tag, multiple)

    def basic_reject(self, delivery_tag: int = 0, requeue: bool = True) -> None:
        """basic_nack of one."""
        if not isinstance(delivery_tag, int):
            raise TypeError(f"delivery_tag must be an integer, but got {delivery_tag!r}")
        self._settle(Ledger.requeue if requeue else Ledger.reject, delivery_tag, False)

    @change
    def _settle(self, how: Callable[[Ledger, Collection[Parcel]], None], tag: int, multiple: bool) -> None:
        parcels = self.ledger.collect(tag, multiple)
        if self._transaction is not None:
            self._transaction.settlements.append((how, parcels))
        else:
            how(self.ledger, parcels.values())

    @section
    def basic_recover(self, requeue: bool = False) -> None:
        """Requeue everything unacknowledged on this channel. requeue=False: 540, as on the server."""
        if not requeue:
            not_implemented("requeue=false of basic.recover")
        parcels = list(self.ledger.unacked.values())
        self.ledger.unacked = {}
        self.ledger.requeue(parcels)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, global_qos: bool = False) -> None:
        """How many unacknowledged deliveries each consumer started from now on may have, or with global_qos this channel; 0: any number.
        Setting the former takes the latter away, as on the server. prefetch_size other than 0: 540."""
        require_prefetch(prefetch_size, prefetch_count)
        self._qos(prefetch_size, prefetch_count, global_qos)

    @section
    def _qos(self, size: int, count: int, global_qos: bool) -> None:
        if size:
            not_implemented(f"prefetch_size!=0 ({size})")
        if not global_qos:
            self.ledger.prefetch = count
        self.ledger.set_limit(count if global_qos else 0)

    @section
    def flow(self, active: bool) -> bool:
        """True. active=False: 540, as on the server; limit the prefetch instead."""
        if not active:
            not_implemented("active=false of channel.flow")
        return True

    # ------------------------------------------------------------------ consuming
    def basic_consume(
        self,
        queue: str,
        on_message_callback: Callable[..., object],
        auto_ack: bool = False,
        exclusive: bool = False,
        consumer_tag: str | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        """Have `on_message_callback(channel, method, properties, body)` called for the messages of a queue, from now on. The consumer tag."""
        require_string(queue, "queue")
        require_callable(on_message_callback, "on_message_callback")
        return self._consume(queue, on_message_callback, auto_ack, exclusive, consumer_tag, arguments).tag

    @section
    def _consume(self, *request: Any) -> Consumer:
        consumer = self._add_consumer(*request)
        consumer.queue.pump()
        return consumer

    def _add_consumer(
        self,
        name: str,
        callback: Callable[..., object] | None,
        auto_ack: bool,
        exclusive: bool,
        tag: str | None,
        arguments: dict[str, Any] | None,
    ) -> Consumer:
        tag = require_string(tag, "consumer_tag") if tag else f"ctag{self._number}.{uuid.uuid4().hex}"
        if tag in self.consumers:
            raise exceptions.DuplicateConsumerTag(tag)
        queue = self._queue(name)
        priority = (arguments or {}).get("x-priority", 0)
        if not isinstance(priority, int) or isinstance(priority, bool):
            precondition_failed(f"invalid arg 'x-priority' for a consumer of queue {queue.name!r}: {priority!r}, expected a whole number")
        if queue.arguments.quorum and self.ledger.limited:
            not_implemented(f"queue {queue.name!r} of type quorum does not support global qos")
        prefetch = self.ledger.prefetch
        consumer = Consumer(self, queue, tag, callback, auto_ack=auto_ack, exclusive=exclusive, priority=priority, prefetch=prefetch)
        queue.add_consumer(consumer)
        self.consumers[tag] = consumer
        return consumer

    def basic_cancel(self, consumer_tag: str) -> Sequence[tuple[Any, Any, Any]]:
        """End a consumer. What it was handed and has not seen is requeued, or returned if it need not acknowledge; what it has seen stays with the
        channel. After this, no callback of it runs or begins, but the caller's own. Unknown tag: nothing happens."""
        with self._monitor:
            self._check_open()
            consumer = self.consumers.pop(consumer_tag, None)
            if consumer is not None:
                self._remove(consumer)
        if consumer is None:
            LOGGER.warning("cancelling unknown consumer %s: cancelled already?", consumer_tag)
            return []
        self._wait_for_callbacks(consumer)
        return self._unseen(consumer)

    def _remove(self, consumer: Consumer) -> None:
        """Its queue hands it nothing more."""
        consumer.gone = True
        if consumer is self._generator:
            self._generator = None
        consumer.queue.remove_consumer(consumer)
        self._changed.notify_all()

    def _unseen(self, consumer: Consumer) -> list[tuple[Any, Any, Any]]:
        """The deliveries that never came to a callback: back to the queue, or to the caller of cancel if that has acknowledged them."""
        if consumer.auto_ack:
            unseen_items = [item for item in consumer.buffer if item is not None]
            return [(method, delivered_properties(message, returns), message.body) for _, method, message, returns in unseen_items]
        seen = self._lane.seen(consumer)
        with self._monitor:
            unacked = self.ledger.unacked
            unseen = [tag for tag, parcel in unacked.items() if tag > seen and parcel.consumer is consumer]
            self.ledger.requeue([unacked.pop(tag) for tag in unseen])
        return []

    def start_consuming(self) -> None:
        """Wait until this channel has no consumers left and their callbacks have ended. Raises what a callback raised, and what the broker closed the
        channel for. ReentrancyError: from a callback, or from another thread of the executor that runs them."""
        if self._connection._dispatch.on_executor():
            raise exceptions.ReentrancyError("start_consuming would wait for itself in a callback, or in a thread of their executor")
        with self._monitor:
            if self._failure is None:
                self._check_open()
            self._starters += 1
            try:
                self._monitor.wait(self._changed, lambda: self._closing_reason is not None or not self.consumers)
            finally:
                self._starters -= 1
        self._lane.wait_idle()
        self._raise_reason()

    def _raise_reason(self) -> None:
        """Why the channel was closed, if not by its client."""
        if self._failure is not None:
            raise self._failure
        if isinstance(self._closing_reason, exceptions.ChannelClosedByBroker | exceptions.ConnectionClosedByBroker):
            raise self._closing_reason

    def stop_consuming(self, consumer_tag: str | None = None) -> None:
        """Cancel that consumer, or all."""
        if consumer_tag:
            self.basic_cancel(consumer_tag)
            return
        if self._generator is not None:
            self.cancel()
        for tag in self.consumer_tags:
            self.basic_cancel(tag)

    def consume(
        self,
        queue: str,
        auto_ack: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
        inactivity_timeout: float | None = None,
        consumer_tag: str | None = None,
    ) -> Generator[tuple[Any, Any, Any], None, None]:
        """Yield (method, properties, body) of the messages of a queue, in the thread of the caller, until cancel() or the end of the queue; and
        (None, None, None) whenever none came for inactivity_timeout seconds. Another consume() with the same parameters goes on with the same
        consumer; with others it raises ValueError."""
        consumer = self._generator_for((queue, auto_ack, exclusive), consumer_tag, arguments)
        while consumer is self._generator:
            if not self._await_buffer(consumer, inactivity_timeout):
                yield None, None, None
                continue
            with self._monitor:
                item = consumer.buffer.popleft() if consumer.buffer else None
                if item is not None:
                    consumer.seen = item[1].delivery_tag
                elif consumer is self._generator:
                    self._generator = None
            if item is not None:
                _, method, message, returns = item
                yield method, delivered_properties(message, returns), message.body
        self._raise_reason()

    @section
    def _generator_for(self, params: tuple[str, bool, bool], tag: str | None, arguments: dict[str, Any] | None) -> Consumer:
        """The consumer of consume(): the one that there is, or a new one."""
        consumer = self._generator
        if consumer is None:
            consumer = self._add_consumer(params[0], None, params[1], params[2], tag, arguments)
            self._generator, self._generator_params = consumer, params
            consumer.queue.pump()
        elif params != self._generator_params:
            raise ValueError(f"consume with {params!r}: this channel consumes with {self._generator_params!r} already; cancel() that first")
        return consumer

    def _await_buffer(self, consumer: Consumer, timeout: float | None) -> bool:
        """Wait for a delivery or the end of that consumer."""
        with self._monitor:
            return self._monitor.wait(self._changed, lambda: consumer.buffer or consumer is not self._generator, timeout)

    def get_waiting_message_count(self) -> int:
        """How many messages consume() would yield without waiting."""
        with self._monitor:
            consumer = self._generator
            return 0 if consumer is None else sum(item is not None for item in consumer.buffer)

    def cancel(self) -> int:
        """End the consumer of consume(); what it has not yielded is requeued. 0."""
        consumer = self._generator
        if consumer is not None:
            self.basic_cancel(consumer.tag)
        return 0

    def basic_get(self, queue: str, auto_ack: bool = False) -> tuple[Any, Any, Any]:
        """(method, properties, body) of the first message, or three times None. Never waits."""
        require_string(queue, "queue")
        taken = self._get(queue, auto_ack)
        if taken is None:
            return None, None, None
        method, parcel = taken
        return method, delivered_properties(parcel.message, parcel.returns), parcel.message.body

    @section
    def _get(self, name: str, auto_ack: bool) -> tuple[Basic.GetOk, Parcel] | None:
        queue = self._queue(name)
        if queue.single_active and queue.arguments.quorum:
            resource_locked(f"queue {queue.name!r} of type quorum has x-single-active-consumer: no basic.get")
        queue.used()
        parcel = queue.take()
        if parcel is None:
            return None
        tag = self.ledger.got(parcel, auto_ack)
        message = parcel.message
        return Basic.GetOk(tag, parcel.redelivered, message.exchange, message.keys[0], queue.ready), parcel

    # ------------------------------------------------------------------ exchanges
    def exchange_declare(
        self,
        exchange: str,
        exchange_type: Any = "direct",
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Method:
        """Make an exchange of type direct, fanout, topic or headers, or find the same (406 if it is another one). passive: 404 if there is none."""
        name = require_name(exchange, "exchange")
        self._exchange_declare(name, exchange_type, passive, durable, auto_delete, internal, dict(arguments or {}))
        return Method(self._number, Exchange.DeclareOk())

    @section
    def _exchange_declare(self, *fields: Any) -> None:
        self._host.declare_exchange(*fields)

    @section
    def exchange_delete(self, exchange: str | None = None, if_unused: bool = False) -> Method:
        """Delete it and its bindings. if_unused: 406 if it has any as source. One that does not exist is deleted already."""
        self._host.delete_exchange(exchange or "", if_unused)
        return Method(self._number, Exchange.DeleteOk())

    @section
    def exchange_bind(self, destination: str, source: str, routing_key: str = "", arguments: dict[str, Any] | None = None) -> Method:
        """Have messages of exchange `source` that match go on to exchange `destination`. 404: one of them does not exist."""
        self._not_default(require_string(destination, "destination"))
        self._host.bind(require_string(source, "source"), self._host.exchange(destination), routing_key, dict(arguments or {}))
        return Method(self._number, Exchange.BindOk())

    @section
    def exchange_unbind(
        self, destination: str | None = None, source: str | None = None, routing_key: str = "", arguments: dict[str, Any] | None = None
    ) -> Method:
        """Take a binding back, if there is one."""
        self._not_default(destination or "")
        self._host.unbind(source or "", self._host.exchanges.get(destination or ""), routing_key, dict(arguments or {}))
        return Method(self._number, Exchange.UnbindOk())

    def _not_default(self, name: str) -> None:
        if not name:
            access_refused("operation not permitted on the default exchange")

    # ------------------------------------------------------------------ queues
    def _queue(self, name: str) -> BrokerQueue:
        """The queue of that name, or the one that this channel declared last for the empty one; 404, 405."""
        return self._host.queue(name or self._last_queue, self._connection)

    def queue_declare(
        self,
        queue: str,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Method:
        """Make a queue, or find the same (406 if it is another one). The empty name: one is made up. passive: 404 if there is none.
        The answer has queue, message_count (ready) and consumer_count."""
        name = require_name(queue, "queue")
        return self._queue_declare(name, passive, durable, exclusive, auto_delete, dict(arguments or {}))

    @section
    def _queue_declare(self, name: str, passive: bool, durable: bool, exclusive: bool, auto_delete: bool, arguments: dict[str, Any]) -> Method:
        if passive:
            queue = self._host.queue(name, self._connection)
            queue.used()
        else:
            queue = self._host.declare_queue(name, self._connection, durable, exclusive, auto_delete, arguments)
        self._last_queue = queue.name
        return Method(self._number, Queue.DeclareOk(queue.name, queue.ready, len(queue.consumers)))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False) -> Method:
        """Delete it; message_count says how many were ready. 406: if_unused and it has consumers, if_empty and it has messages. One that does not
        exist is deleted already."""
        return self._queue_delete(require_string(queue, "queue"), if_unused, if_empty)

    @section
    def _queue_delete(self, name: str, if_unused: bool, if_empty: bool) -> Method:
        count = 0
        if (name or self._last_queue) in self._host.queues:
            queue = self._queue(name)
            if if_unused and queue.consumers:
                precondition_failed(f"queue {queue.name!r} in use")
            if if_empty and queue.ready:
                precondition_failed(f"queue {queue.name!r} not empty")
            count = self._host.delete_queue(queue)
        return Method(self._number, Queue.DeleteOk(count))

    @section
    def queue_purge(self, queue: str) -> Method:
        """Drop what is ready; message_count says how many."""
        return Method(self._number, Queue.PurgeOk(self._queue(require_string(queue, "queue")).purge()))

    @section
    def queue_bind(self, queue: str, exchange: str, routing_key: str | None = None, arguments: dict[str, Any] | None = None) -> Method:
        """Have messages of an exchange that match go to a queue; no routing key: the queue's name. 404: one of them does not exist."""
        found, key = self._to_bind(queue, exchange, routing_key)
        self._host.bind(exchange, found, key, dict(arguments or {}))
        return Method(self._number, Queue.BindOk())

    @section
    def queue_unbind(self, queue: str, exchange: str, routing_key: str | None = None, arguments: dict[str, Any] | None = None) -> Method:
        """Take a binding back, if there is one."""
        require_string(exchange, "exchange")
        if (require_string(queue, "queue") or self._last_queue) in self._host.queues:
            found, key = self._to_bind(queue, exchange, routing_key)
            self._host.unbind(exchange, found, key, dict(arguments or {}))
        else:
            self._host.unbind(exchange, None, "", {})
        return Method(self._number, Queue.UnbindOk())

    def _to_bind(self, queue: str, exchange: str, routing_key: str | None) -> tuple[BrokerQueue, str]:
        """The queue, and the key, for which an empty name together with an empty key means the name of the last queue."""
        require_string(exchange, "exchange")
        found = self._queue(require_string(queue, "queue"))
        key = queue if routing_key is None else require_string(routing_key, "routing_key")
        return found, key or ("" if queue else found.name)

    # ------------------------------------------------------------------ transactions
    @section
    def tx_select(self) -> Method:
        """From now on publishes, acks, nacks and rejects take effect at tx_commit. Not on a channel with confirms (406)."""
        if self._confirming:
            precondition_failed("cannot switch from confirm to tx mode")
        if self._transaction is None:
            self._transaction = Transaction()
        return Method(self._number, Tx.SelectOk())

    @section
    def tx_commit(self) -> Method:
        """Everything since the last commit or rollback takes effect, as one."""
        publishes, settlements = self._selected().take()
        for message, queues, mandatory in publishes:
            for queue in queues:
                if not queue.deleted:
                    queue.publish(message)
            if mandatory and not queues:
                self._return(message)
        for how, parcels in settlements:
            how(self.ledger, parcels.values())
        return Method(self._number, Tx.CommitOk())

    @section
    def tx_rollback(self) -> Method:
        """Publishes are dropped; what was settled is unacknowledged again. Nothing is requeued."""
        _, settlements = self._selected().take()
        for _, parcels in settlements:
            self.ledger.restore(parcels)
        return Method(self._number, Tx.RollbackOk())

    def _selected(self) -> Transaction:
        if self._transaction is None:
            precondition_failed("channel is not transactional")
        return self._transaction


