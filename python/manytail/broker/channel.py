"""Channel: the methods that a client calls, with the names and signatures of pika's BlockingChannel.

Each call checks its arguments. It then performs one operation on the state (`_state`) while it holds the broker's lock
(`_runtime`). If the operation raises a ReplyError, the channel or the connection is closed while the lock is still
held; then the call raises. Callbacks run in the channel's lane.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from manytail._values import initialised_repr
from manytail.broker import exceptions
from manytail.broker._protocol import (
    BindingArguments,
    Message,
    QueueArguments,
    ReplyError,
    delivered_properties,
    message_of,
    require_callable,
    require_name,
    require_prefetch,
    require_string,
    require_tag,
    table,
    whole,
)
from manytail.broker._routing import ExchangeRequest
from manytail.broker._runtime import Addressee, Closable, Lane, in_a_callback, report
from manytail.broker._state import CANCELLED, REPLY_TO, ChannelState, Consumer, ReplyAddress
from manytail.broker.spec import Basic, BasicProperties, Exchange, Method, Queue, ReturnedMessage, Tx

__all__ = ["Channel"]

LOGGER = logging.getLogger(__name__)

if TYPE_CHECKING:
    from manytail.broker.connection import Connection

OnMessage: TypeAlias = Callable[["Channel", Basic.Deliver, BasicProperties, Any], object]
OnReturn: TypeAlias = Callable[["Channel", Basic.Return, BasicProperties, Any], object]
OnCancel: TypeAlias = Callable[[Method[Basic.Cancel]], object]

_Deliver = Basic.Deliver
_monotonic = time.monotonic


class Subscriber(Consumer):
    """A consumer with its callback, or with the deliveries that a consume() generator has not yielded."""

    __slots__ = ("buffer", "callback", "seen")

    def __init__(
        self, tag: str, target: Callable[[Any], object], callback: Any, auto_ack: bool, exclusive: bool, priority: int
    ) -> None:
        super().__init__(tag, target, auto_ack, exclusive, priority)
        self.callback = callback
        self.buffer: deque[Any] = deque()  # deliveries that have not begun: of a generator, and with auto_ack
        self.seen = 0  # the tag of the last delivery that began; only RunningItem sets it


class _State(ChannelState, Addressee):
    """A channel is also an addressee of its lane: of returned messages."""


class Channel(Closable):
    """A channel of a connection, with its own consumers and delivery tags. Connection.channel() creates it.

    You may call every method from any thread. The callbacks of a channel run one at a time, in the order of the
    deliveries. As on a RabbitMQ server, an invalid call either closes the channel and raises ChannelClosedByBroker
    (reply codes 403 to 406), or closes the connection and raises ConnectionClosedByBroker (reply codes 530 and 540).
    Calls on a closed channel raise ChannelWrongStateError, except that basic_cancel, stop_consuming and cancel do
    nothing. The queue name "" means the queue that this channel declared last."""

    wrong_state = exceptions.ChannelWrongStateError

    def __init__(self, connection: Any, channel_number: int) -> None:
        self._connection = connection
        self._number = channel_number
        self._runtime = connection._runtime
        self._changed = connection._dispatch.changes()
        self._lane: Lane = connection._dispatch.lane(self._run)
        self._state = _State(self._runtime.host, connection, self._returned)
        self._closing_reason: Exception | None = None
        self._failure: BaseException | None = None  # what a callback raised
        self._starters = 0  # threads in start_consuming
        self._generator: Subscriber | None = None  # the consumer of consume()
        self._generator_params: tuple[Any, ...] = ()
        self._on_return: list[OnReturn] = []
        self._on_cancel: list[OnCancel] = []

    # what it is
    def __int__(self) -> int:
        return self._number

    @initialised_repr
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._number} {'open' if self.is_open else 'closed'}>"

    @property
    def channel_number(self) -> int:
        """The number of the channel on its connection, from 1."""
        return self._number

    @property
    def connection(self) -> Connection:
        """The connection that the channel belongs to."""
        connection: Connection = self._connection
        return connection

    @property
    def consumer_tags(self) -> list[str]:
        """The tags of the consumers of this channel."""
        return list(self._state.consumers)

    # ------------------------------------------------------------------------------------------------- calls and errors
    def _call(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        """One operation of the state in a section, on an open channel."""
        with self._runtime:
            self._check_open()
            try:
                return operation(*arguments)
            except ReplyError as refusal:
                error = self._refused(refusal)
        raise error

    def _call_or_postpone(self, operation: Callable[..., Any], *arguments: Any) -> None:
        """`_call` for a call without an answer. If it interrupts a section of its own thread it is made after that
        section."""
        if self._runtime.interrupted():
            self._runtime.after(self._late, self._call, operation, *arguments)
        else:
            self._call(operation, *arguments)

    def _late(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Make a postponed call. Report its error: the caller has returned, and the interrupted call must not fail."""
        try:
            call(*arguments)
        except Exception as error:
            report(error)

    def _refused(self, refusal: ReplyError) -> Exception:
        """Close the channel or, by a code from 500 on, the connection. Returns the exception to raise. In a section."""
        error: Exception
        if refusal.code < 500:
            error = exceptions.ChannelClosedByBroker(refusal.code, refusal.text)
            self._end(error)
        else:
            error = exceptions.ConnectionClosedByBroker(refusal.code, refusal.text)
            self._connection._end(error)
        return error

    # ---------------------------------------------------------------------------------------------------------- the end
    def close(self, reply_code: int = 0, reply_text: str = "Normal shutdown") -> None:
        """Close the channel: cancel its consumers and requeue its unacknowledged messages. Waits for a running
        callback, unless a callback calls it."""
        reason = exceptions.ChannelClosedByClient(reply_code, reply_text)
        with self._runtime:
            self._check_open()
            self._end(reason)
        self._wait_for_callbacks(None)

    def _end(self, reason: Exception) -> None:
        """Close the channel, for any reason. In a section."""
        if self._closing_reason is None:
            self._closing_reason = reason
            self._generator = None
            self._state.close(_monotonic())
            self._lane.drop(None, self._runtime.host.dropped)
            self._connection._forget(self)
            self._changed.notify()

    def _failed(self, error: BaseException) -> None:
        """A callback raised: close the channel. start_consuming raises the error; if no thread is there, report it."""
        reason = exceptions.ChannelClosedByClient(541, f"Closed by an exception of a callback: {error!r}")
        with self._runtime:
            awaited = self._starters > 0
            if self._failure is None:
                self._failure = error
            self._end(reason)
            self._changed.notify()
        if not awaited:
            report(error)

    def _wait_for_callbacks(self, consumer: Subscriber | None) -> None:
        if not in_a_callback():
            self._lane.wait_for(consumer)

    def _raise_reason(self) -> None:
        """Raise the reason why the channel was closed, unless its client closed it."""
        if self._failure is not None:
            raise self._failure
        reason = self._closing_reason
        by_client = exceptions.ChannelClosedByClient | exceptions.ConnectionClosedByClient
        if reason is not None and not isinstance(reason, by_client):
            raise reason

    # -------------------------------------------------------------------------------------------------------- callbacks
    def _run(self, item: Any) -> None:
        """Run one item of the lane: an effect of the state."""
        addressee = item[0]
        try:
            if addressee is self._state:
                self._notify_returned(item[2])
            elif item[1] is CANCELLED:
                self._notify_cancelled(addressee)
            else:
                _, tag, redelivered, message, requeues = item
                method = _Deliver(addressee.tag, tag, redelivered, message.exchange, message.key)
                addressee.callback(self, method, delivered_properties(message, requeues), message.body)
        except BaseException as error:
            if self._connection._dispatch.in_caller:
                raise
            self._failed(error)
        connection = self._connection
        if not connection._dispatched:  # without the GIL, threads that write it in turn wait for one another
            connection._dispatched = True
        if connection._waiting:
            connection._callback_ended()

    def _notify_cancelled(self, consumer: Subscriber) -> None:
        """The queue of a consumer was deleted. In the lane, so after the callbacks of earlier deliveries."""
        with self._runtime:
            known = self._state.consumers.pop(consumer.tag, None)
            self._changed.notify()
        if known is not None:
            for callback in list(self._on_cancel):
                callback(Method(self._number, Basic.Cancel(consumer.tag, True)))

    def _returned(self, effect: Any) -> None:
        """Carry out the effect (channel, 0, message)."""
        if self._on_return:
            self._lane.add(effect)

    def _notify_returned(self, message: Message) -> None:
        for callback in list(self._on_return):
            callback(self, *_returned_as(message))

    def add_on_cancel_callback(self, callback: OnCancel) -> None:
        """Call `callback(frame)` whenever the queue of a consumer is deleted, after the callbacks of earlier
        deliveries. frame.method.consumer_tag is the tag of that consumer."""
        self._on_cancel.append(callback)

    def add_on_return_callback(self, callback: OnReturn) -> None:
        """Call `callback(channel, method, properties, body)` whenever a message with mandatory=True reaches no queue.
        These calls and the deliveries are made in order."""
        self._on_return.append(callback)

    # ------------------------------------------------------------------------------------------------------- publishing
    def basic_publish(
        self, exchange: str, routing_key: str, body: Any, properties: Any = None, mandatory: bool = False
    ) -> None:
        """Publish a message: the exchange routes it to the matching queues. Never waits for a consumer.

        The exchange "" routes to the queue whose name is the routing key. After confirm_delivery() it raises
        UnroutableError if a message with mandatory=True reaches no queue, and NackError if a full queue refuses it."""
        if isinstance(body, str):
            body = body.encode()
        if properties is None and type(exchange) is str and type(routing_key) is str and len(routing_key) < 64:
            message, refusal = Message(body, None, exchange, routing_key), None
        else:
            message, refusal = message_of(body, properties, exchange, routing_key)
        try:
            self._publish(message, bool(mandatory), refusal)
        except exceptions.ReentrancyError:
            self._runtime.after(self._late, self._publish, message, bool(mandatory), refusal)

    def _publish(self, message: Message, mandatory: bool, refusal: ReplyError | None) -> None:
        with self._runtime:
            if self._closing_reason is not None:
                self._check_open()
            try:
                outcome = self._state.publish(message, mandatory, refusal, _monotonic())
            except ReplyError as refused:
                raise self._refused(refused) from None
        if outcome and self._state.confirming:
            if outcome == "refused":
                raise exceptions.NackError([])
            raise exceptions.UnroutableError([ReturnedMessage(*_returned_as(message))])

    def confirm_delivery(self) -> None:
        """Turn on publisher confirms: from then on, basic_publish may raise UnroutableError and NackError. A second
        call changes nothing. Raises ChannelClosedByBroker (406) after tx_select()."""
        self._call(self._state.confirm)

    # --------------------------------------------------------------------------------------------------------- settling
    def basic_ack(self, delivery_tag: int = 0, multiple: bool = False) -> None:
        """Acknowledge a delivery. With multiple=True, acknowledge it and all earlier ones; delivery_tag=0 then means
        all deliveries. Raises ChannelClosedByBroker (406) for an unknown tag."""
        state = self._state
        if not multiple and type(delivery_tag) is int and not state.transacted:
            try:
                with self._runtime:
                    delivery = state.ack_one(delivery_tag, _monotonic())
            except exceptions.ReentrancyError:
                delivery = None
            if delivery is not None:
                return
        self._settle("ack", delivery_tag, multiple)

    def basic_nack(self, delivery_tag: int = 0, multiple: bool = False, requeue: bool = True) -> None:
        """Reject one or more deliveries: requeue them at their old places, or make them dead letters if requeue=False.
        delivery_tag and multiple work as in basic_ack."""
        self._settle("requeue" if requeue else "reject", delivery_tag, multiple)

    def basic_reject(self, delivery_tag: int = 0, requeue: bool = True) -> None:
        """Reject one delivery: requeue it at its old place, or make it a dead letter if requeue=False."""
        self._settle("requeue" if requeue else "reject", delivery_tag, False)

    def _settle(self, how: str, tag: Any, multiple: Any) -> None:
        self._call_or_postpone(self._state.settle, how, require_tag(tag), bool(multiple), _monotonic())

    def basic_recover(self, requeue: bool = False) -> None:
        """Requeue all unacknowledged messages of this channel. Pass requeue=True: otherwise it raises
        ConnectionClosedByBroker (540), as a server does."""
        self._call(self._state.recover, bool(requeue), _monotonic())

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, global_qos: bool = False) -> None:
        """Limit the number of unacknowledged deliveries to prefetch_count; 0 means no limit.

        The limit applies to each consumer that is started after this call or, with global_qos=True, to the whole
        channel. Setting a limit per consumer removes the limit of the channel, as on a server. Raises
        ConnectionClosedByBroker (540) if prefetch_size is not 0."""
        size, count = require_prefetch(prefetch_size, prefetch_count)
        self._call(self._state.qos, size, count, bool(global_qos), _monotonic())

    def flow(self, active: bool) -> bool:
        """Return True: deliveries always flow. flow(False) raises ConnectionClosedByBroker (540), as on a server; to
        slow deliveries down, use basic_qos."""
        self._call(self._state.flow, bool(active))
        return True

    # -------------------------------------------------------------------------------------------------------- consuming
    def basic_consume(
        self, queue: str, on_message_callback: OnMessage, auto_ack: bool = False, exclusive: bool = False,
        consumer_tag: str | None = None, arguments: Mapping[str, Any] | None = None
    ) -> str:
        """Start a consumer: call `on_message_callback(channel, method, properties, body)` for each message of a queue.
        Returns the consumer tag.

        auto_ack=True: deliveries need no acknowledgement. exclusive=True: the queue may have no other consumer. To
        receive the replies to your own requests, consume from "amq.rabbitmq.reply-to" with auto_ack=True, and publish
        the requests on this channel with that name as `reply_to`."""
        require_callable(on_message_callback, "on_message_callback")
        name = require_string(queue, "queue")
        consumer, refusal = self._subscriber(name, on_message_callback, auto_ack, exclusive, consumer_tag, arguments)
        self._call(self._consume, name, consumer, refusal)
        return consumer.tag

    def _subscriber(
        self, queue: str, callback: Any, auto_ack: bool, exclusive: bool, tag: str | None,
        arguments: Mapping[str, Any] | None,
    ) -> tuple[Subscriber, ReplyError | None]:
        tag = require_string(tag, "consumer_tag") if tag else f"ctag{self._number}.{uuid.uuid4().hex}"
        priority, refusal = table(arguments).get("x-priority", 0), None
        if not whole(priority):
            text = f"invalid arg 'x-priority' for consumer {tag!r}: {priority!r}, expected a whole number"
            priority, refusal = 0, ReplyError(406, f"PRECONDITION_FAILED - {text}")
        consumer = Subscriber(tag, self._lane.add, callback, bool(auto_ack), bool(exclusive), priority)
        if callback is None:
            consumer.target = self._buffer
        elif auto_ack:
            consumer.target = self._buffer_and_add
        if queue == REPLY_TO:
            consumer.queue = ReplyAddress(self._state.host, f"{REPLY_TO}.{secrets.token_urlsafe(16)}")
        return consumer, refusal

    def _consume(self, queue: str, consumer: Subscriber, refusal: ReplyError | None) -> None:
        if consumer.tag in self._state.consumers:
            raise exceptions.DuplicateConsumerTag(consumer.tag)
        self._state.consume(queue, consumer, refusal, _monotonic())

    def _buffer(self, effect: Any) -> None:
        """Carry out an effect for a generator: a delivery, or its end."""
        effect[0].buffer.append(effect)
        self._changed.notify()

    def _buffer_and_add(self, effect: Any) -> None:
        """Carry out an effect for a consumer with auto_ack. basic_cancel returns what is in the buffer."""
        effect[0].buffer.append(effect)
        self._lane.add(effect)

    def basic_cancel(self, consumer_tag: str) -> Sequence[tuple[Basic.Deliver, BasicProperties, Any]]:
        """Cancel a consumer. Messages for which its callback has not begun are requeued; with auto_ack=True they are
        returned instead. Messages that the callback has seen stay unacknowledged on the channel.

        When it returns, no callback of the consumer is running, and none will begin. If a callback calls it, it does
        not wait. Does nothing if the tag is unknown or the channel is closed."""
        tag = require_string(consumer_tag, "consumer_tag")
        with self._runtime:
            consumer = self._cancel(tag)
        if consumer is None:
            LOGGER.warning("cancelling unknown consumer %s: cancelled already?", tag)
            return []
        try:
            self._wait_for_callbacks(consumer)
        finally:  # also if Ctrl-C ends the wait
            seen = self._lane.seen(consumer)
            if not consumer.auto_ack:
                with self._runtime:
                    self._state.requeue_unseen(consumer, seen, _monotonic())
        if not consumer.auto_ack:
            return []
        return [self._delivered(effect) for effect in consumer.buffer if effect[1] != CANCELLED]

    def _cancel(self, tag: str) -> Any:
        consumer = self._state.cancel(tag, _monotonic())
        if consumer is not None:
            if consumer is self._generator:
                self._generator = None
            self._lane.drop(consumer, self._runtime.host.dropped)
            self._changed.notify()
        return consumer

    def _delivered(self, effect: Any) -> tuple[Basic.Deliver, BasicProperties, Any]:
        consumer, tag, redelivered, message, requeues = effect
        method = _Deliver(consumer.tag, tag, redelivered, message.exchange, message.key)
        return method, delivered_properties(message, requeues), message.body

    def start_consuming(self) -> None:
        """Wait until the channel has no more consumers and their callbacks have ended. With a BlockingConnection, the
        callbacks run inside this call.

        Raises the exception that a callback raised, or the one with which the broker closed the channel. Raises
        ReentrancyError if it is called in a callback, or in a thread of the executor that runs callbacks."""
        if self._connection._dispatch.inside():
            raise exceptions.ReentrancyError(
                "start_consuming would wait for itself in a callback, or in a thread of their executor"
            )
        with self._runtime:
            if self._failure is None:
                self._check_open()
            self._starters += 1
        try:
            self._changed.wait_until(lambda: self._closing_reason is not None or not self._state.consumers)
            self._lane.wait_idle()
        finally:
            with self._runtime:
                self._starters -= 1
        self._raise_reason()

    def stop_consuming(self, consumer_tag: str | None = None) -> None:
        """Cancel the consumer with that tag, or all consumers of the channel. start_consuming() then returns."""
        for tag in [consumer_tag] if consumer_tag else self.consumer_tags:
            self.basic_cancel(tag)

    @overload
    def consume(
        self, queue: str, auto_ack: bool = False, exclusive: bool = False, arguments: Mapping[str, Any] | None = None,
        inactivity_timeout: None = None, consumer_tag: str | None = None
    ) -> Generator[tuple[Basic.Deliver, BasicProperties, Any], None, None]: ...
    @overload
    def consume(
        self, queue: str, auto_ack: bool = False, exclusive: bool = False, arguments: Mapping[str, Any] | None = None,
        inactivity_timeout: float | None = None, consumer_tag: str | None = None
    ) -> Generator[tuple[Basic.Deliver | None, Any, Any], None, None]: ...
    def consume(
        self, queue: str, auto_ack: bool = False, exclusive: bool = False, arguments: Mapping[str, Any] | None = None,
        inactivity_timeout: float | None = None, consumer_tag: str | None = None
    ) -> Generator[tuple[Basic.Deliver | None, Any, Any], None, None]:
        """Yield (method, properties, body) for each message of a queue, until cancel() is called or the queue is
        deleted.

        With inactivity_timeout it yields (None, None, None) after that many seconds without a message. A second
        consume() with the same parameters continues with the same consumer; with other parameters it raises
        ValueError."""
        params = (require_string(queue, "queue"), bool(auto_ack), bool(exclusive))
        made, refusal = self._subscriber(params[0], None, auto_ack, exclusive, consumer_tag, arguments)
        consumer: Subscriber = self._call(self._generate, params, made, refusal)
        left = 0  # how many are yielded before callbacks run again
        while consumer is self._generator:
            came = True
            if left <= 0:
                self._connection._dispatch.run_ready()
                came = self._changed.wait_until(
                    lambda: consumer.buffer or consumer is not self._generator, inactivity_timeout
                )
                left = len(consumer.buffer)
            left -= 1
            with self._runtime:
                effect = self._next_of(consumer)
            if effect is not None:
                yield self._delivered(effect)
            elif not came:
                yield None, None, None
        self._raise_reason()

    def _generate(self, params: tuple[Any, ...], made: Subscriber, refusal: ReplyError | None) -> Subscriber:
        """The consumer of consume(): the existing one, or the new one."""
        if self._generator is None:
            self._consume(params[0], made, refusal)
            self._generator, self._generator_params = made, params
        elif params != self._generator_params:
            before = self._generator_params
            text = f"consume with {params!r}: this channel consumes with {before!r} already; cancel() that first"
            raise ValueError(text)
        return self._generator

    def _next_of(self, consumer: Subscriber) -> Any:
        """The next delivery of a generator, which then counts as begun. None: there is none, or the consumer has
        ended."""
        if consumer is not self._generator or not consumer.buffer:
            return None
        effect = consumer.buffer.popleft()
        if effect[1] != CANCELLED:
            consumer.seen = effect[1]
            return effect
        self._generator = None
        self._state.consumers.pop(consumer.tag, None)
        self._changed.notify()
        return None

    def get_waiting_message_count(self) -> int:
        """Return the number of messages that consume() would yield without waiting."""
        with self._runtime:
            consumer = self._generator
            return 0 if consumer is None else sum(effect[1] != CANCELLED for effect in consumer.buffer)

    def cancel(self) -> int:
        """Cancel the consumer that consume() started. Messages that consume() has not yielded are requeued. Returns
        0."""
        consumer = self._generator
        if consumer is not None:
            self.basic_cancel(consumer.tag)
        return 0

    def basic_get(self, queue: str, auto_ack: bool = False) -> tuple[Basic.GetOk | None, Any, Any]:
        """Get one message: return its (method, properties, body), or (None, None, None) if there is none. Never
        waits."""
        taken = self._call(self._state.get, require_string(queue, "queue"), bool(auto_ack), _monotonic())
        if taken is None:
            return None, None, None
        tag, redelivered, message, requeues, left = taken
        method = Basic.GetOk(tag, redelivered, message.exchange, message.key, left)
        return method, delivered_properties(message, requeues), message.body

    # --------------------------------------------------------------------------------------------- exchanges and queues
    def exchange_declare(
        self, exchange: str, exchange_type: Any = "direct", passive: bool = False, durable: bool = False,
        auto_delete: bool = False, internal: bool = False, arguments: Mapping[str, Any] | None = None
    ) -> Method[Exchange.DeclareOk]:
        """Create an exchange of type "direct", "fanout", "topic" or "headers". If it exists already, nothing changes.

        Raises ChannelClosedByBroker (406) if the existing one has different options. passive=True only checks that it
        exists, and raises ChannelClosedByBroker (404) if it does not."""
        name = require_name(exchange, "exchange")
        request = ExchangeRequest(name, exchange_type, bool(durable), bool(auto_delete), bool(internal), arguments)
        self._call(self._state.declare_exchange, request, bool(passive))
        return Method(self._number, Exchange.DeclareOk())

    def exchange_delete(self, exchange: str | None = None, if_unused: bool = False) -> Method[Exchange.DeleteOk]:
        """Delete an exchange and its bindings. Nothing happens if it does not exist. With if_unused=True it raises
        ChannelClosedByBroker (406) if a queue or an exchange is bound to it."""
        self._call(self._state.host.exchanges.delete, require_string(exchange or "", "exchange"), bool(if_unused))
        return Method(self._number, Exchange.DeleteOk())

    def exchange_bind(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> Method[Exchange.BindOk]:
        """Bind one exchange to another: matching messages of `source` are then also routed by `destination`. Raises
        ChannelClosedByBroker (404) if either of them does not exist."""
        names = require_string(destination, "destination"), require_string(source, "source")
        key = require_string(routing_key, "routing_key")
        self._call(self._state.bind_exchange, *names, key, BindingArguments.of(arguments))
        return Method(self._number, Exchange.BindOk())

    def exchange_unbind(
        self, destination: str | None = None, source: str | None = None, routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Method[Exchange.UnbindOk]:
        """Remove the binding of one exchange to another, if it exists."""
        names = (require_string(name or "", "exchange") for name in (destination, source))
        key = require_string(routing_key, "routing_key")
        self._call(self._state.unbind_exchange, *names, key, BindingArguments.of(arguments))
        return Method(self._number, Exchange.UnbindOk())

    def queue_declare(
        self, queue: str, passive: bool = False, durable: bool = False, exclusive: bool = False,
        auto_delete: bool = False, arguments: Mapping[str, Any] | None = None
    ) -> Method[Queue.DeclareOk]:
        """Create a queue. If it exists already, nothing changes. With the name "", the broker generates a name.

        The answer's `method` has the attributes queue (the name), message_count (the number of ready messages) and
        consumer_count. Raises ChannelClosedByBroker (406) if the existing queue has different options. passive=True
        only checks that it exists, and raises ChannelClosedByBroker (404) if it does not."""
        name = require_name(queue, "queue")
        generated = not name and not passive
        if generated:
            name = f"amq.gen-{secrets.token_urlsafe(16)}"
        flags = (generated, bool(passive), bool(durable), bool(exclusive), bool(auto_delete))
        asked = QueueArguments(name, arguments)
        answer = self._call(self._state.declare_queue, name, *flags, asked, _monotonic())
        return Method(self._number, Queue.DeclareOk(*answer))

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False) -> Method[Queue.DeleteOk]:
        """Delete a queue. The answer's method.message_count is the number of ready messages that the queue had. Nothing
        happens if it does not exist. Raises ChannelClosedByBroker (406) if the queue has consumers and if_unused=True,
        or if it has messages and if_empty=True."""
        count = self._call(self._state.delete_queue, require_string(queue, "queue"), bool(if_unused), bool(if_empty))
        return Method(self._number, Queue.DeleteOk(count))

    def queue_purge(self, queue: str) -> Method[Queue.PurgeOk]:
        """Remove all ready messages of a queue. The answer's method.message_count is the number of messages removed."""
        return Method(self._number, Queue.PurgeOk(self._call(self._state.purge, require_string(queue, "queue"))))

    def queue_bind(
        self, queue: str, exchange: str, routing_key: str | None = None, arguments: Mapping[str, Any] | None = None
    ) -> Method[Queue.BindOk]:
        """Bind a queue to an exchange: the exchange then routes matching messages to the queue. Without routing_key,
        the name of the queue is used. Raises ChannelClosedByBroker (404) if either of them does not exist."""
        self._call(self._state.bind_queue, *_binding(queue, exchange, routing_key, arguments))
        return Method(self._number, Queue.BindOk())

    def queue_unbind(
        self, queue: str, exchange: str, routing_key: str | None = None, arguments: Mapping[str, Any] | None = None
    ) -> Method[Queue.UnbindOk]:
        """Remove the binding of a queue to an exchange, if it exists."""
        self._call(self._state.unbind_queue, *_binding(queue, exchange, routing_key, arguments))
        return Method(self._number, Queue.UnbindOk())

    # ----------------------------------------------------------------------------------------------------- transactions
    def tx_select(self) -> Method[Tx.SelectOk]:
        """Turn on transactions: from then on, publishing and acknowledging take effect only at tx_commit(). Raises
        ChannelClosedByBroker (406) after confirm_delivery()."""
        self._call(self._state.tx_select)
        return Method(self._number, Tx.SelectOk())

    def tx_commit(self) -> Method[Tx.CommitOk]:
        """Commit the transaction: everything since the last commit or rollback takes effect, atomically. Raises
        ChannelClosedByBroker (406) if a full queue refused one of the messages; the rest still takes effect."""
        self._call(self._state.tx_commit, _monotonic())
        return Method(self._number, Tx.CommitOk())

    def tx_rollback(self) -> Method[Tx.RollbackOk]:
        """Roll the transaction back: its messages are dropped, and deliveries that it acknowledged or rejected are
        unacknowledged again. Nothing is requeued."""
        self._call(self._state.tx_rollback)
        return Method(self._number, Tx.RollbackOk())


def _returned_as(message: Message) -> tuple[Basic.Return, BasicProperties, Any]:
    method = Basic.Return(312, "NO_ROUTE", message.exchange, message.key)
    return method, delivered_properties(message, 0), message.body


def _binding(queue: Any, exchange: Any, key: Any, arguments: Mapping[str, Any] | None) -> tuple[Any, ...]:
    key = None if key is None else require_string(key, "routing_key")
    return require_string(queue, "queue"), require_string(exchange, "exchange"), key, BindingArguments.of(arguments)
