"""The names of one broker, and the way of a message from an exchange to its queues. Everything here runs inside the monitor."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from manytail.broker._arguments import QueueArguments
from manytail.broker._dead_letters import closes_a_cycle, obituary
from manytail.broker._exchanges import Destination, Exchange, exchange_class
from manytail.broker._messages import Message
from manytail.broker._monitor import Monitor
from manytail.broker._queues import Queue
from manytail.broker._refusals import access_refused, not_found, precondition_failed, resource_locked
from manytail.broker._timers import Timers

if TYPE_CHECKING:
    from manytail.broker.connection import Connection

__all__ = ["VirtualHost"]

PREDECLARED = {"amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic", "amq.headers": "headers", "amq.match": "headers"}


class _DefaultExchange(Exchange):
    """The exchange of no name: every queue, by its name."""

    __slots__ = ("_queues",)
    type = "direct"

    def __init__(self, queues: dict[str, Queue]) -> None:
        super().__init__("", True, False, False, {})
        self._queues = queues

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        queue = self._queues.get(key)
        return () if queue is None else (queue,)


class VirtualHost:
    def __init__(self) -> None:
        self.monitor = Monitor()
        self.timers = Timers()
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {"": _DefaultExchange(self.queues)}
        for name, kind in PREDECLARED.items():
            self.exchanges[name] = exchange_class(kind)(name, True, False, False, {})

    # ------------------------------------------------------------------ routing
    def exchange(self, name: str) -> Exchange:
        exchange = self.exchanges.get(name)
        if exchange is None:
            not_found("exchange", name)
        return exchange

    def route(self, exchange: Exchange, message: Message) -> Collection[Queue]:
        """The queues for a message, each once."""
        keys = message.keys
        if len(keys) == 1 and not exchange.exchanges_bound:
            found: Any = exchange.matches(message, keys[0])
            if found or exchange.alternate is None:
                return found  # type: ignore[no-any-return]
        return self._walk(exchange, message)

    def _walk(self, exchange: Exchange, message: Message) -> Collection[Queue]:
        """Through exchanges bound to exchanges, and to the alternate of one whose own bindings lead nowhere; each exchange once."""
        queues: dict[Queue, None] = {}
        pending = [exchange]
        seen = {exchange}
        for source in pending:
            found: dict[Any, None] = {}
            for key in message.keys:
                found.update(dict.fromkeys(source.matches(message, key)))
            if not found and source.alternate is not None:
                alternate = self.exchanges.get(source.alternate)
                found = {} if alternate is None else {alternate: None}
            for destination in found:
                if destination.is_queue:
                    queues[destination] = None
                elif destination not in seen:
                    seen.add(destination)
                    pending.append(destination)
        return queues

    def bury(self, message: Message, reason: str, queue: str, exchange: str, key: str | None) -> None:
        """Publish a dead letter once the change that caused the death is complete: the queue may be among those it goes to."""
        self.monitor.last(self._publish_dead_letter, message, reason, queue, exchange, key)

    def _publish_dead_letter(self, message: Message, reason: str, queue: str, exchange: str, key: str | None) -> None:
        target = self.exchanges.get(exchange)
        if target is None:
            return
        letter = obituary(message, reason, queue, exchange, key)
        for destination in list(self.route(target, letter)):
            if not closes_a_cycle(letter, reason, destination.name):
                destination.publish(letter)

    # ------------------------------------------------------------------ exchanges
    def declare_exchange(
        self, name: str, kind: Any, passive: bool, durable: bool, auto_delete: bool, internal: bool, arguments: dict[str, Any]
    ) -> None:
        if passive:
            self.exchange(name)
            return
        self._not_default(name)
        made = exchange_class(kind)
        existing = self.exchanges.get(name)
        if existing is None:
            _not_reserved("exchange", name)
            self.exchanges[name] = made(name, durable, auto_delete, internal, arguments)
            return
        now = {"type": made.type, "durable": durable, "auto_delete": auto_delete, "internal": internal}
        then = {"type": existing.type, "durable": existing.durable, "auto_delete": existing.auto_delete, "internal": existing.internal}
        _check_same("exchange", name, now, then)
        if arguments.get("alternate-exchange") != existing.alternate:
            alternate = arguments.get("alternate-exchange")
            precondition_failed(
                f"inequivalent arg 'alternate-exchange' for exchange {name!r}: received {alternate!r} but current is {existing.alternate!r}"
            )

    def delete_exchange(self, name: str, if_unused: bool) -> None:
        self._not_default(name)
        _not_reserved("exchange", name)
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.bindings:
            precondition_failed(f"exchange {name!r} in use")
        self._drop_exchange(exchange)

    def _drop_exchange(self, exchange: Exchange) -> None:
        """With its bindings both ways, and the automatic exchanges that this leaves without any."""
        del self.exchanges[exchange.name]
        for binding in list(exchange.bindings):
            exchange.unbind(binding)
        self._unbind_incoming(exchange)

    def _unbind_incoming(self, destination: Destination) -> None:
        for binding, source in list(destination.incoming.items()):
            self._unbind(source, binding)

    def _unbind(self, source: Exchange, binding: Any) -> None:
        removed = source.unbind(binding)
        if removed and source.auto_delete and not source.bindings and self.exchanges.get(source.name) is source:
            self._drop_exchange(source)

    # ------------------------------------------------------------------ bindings
    def bind(self, source: str, destination: Destination, key: str, arguments: dict[str, Any]) -> None:
        self._not_default(source)
        self.exchange(source).bind(destination, key, arguments)

    def unbind(self, source: str, destination: Destination | None, key: str, arguments: dict[str, Any]) -> None:
        """What does not exist is unbound already."""
        self._not_default(source)
        exchange = self.exchanges.get(source)
        if exchange is not None and destination is not None:
            self._unbind(exchange, exchange.binding(destination, key, arguments))

    def _not_default(self, name: str) -> None:
        if not name:
            access_refused("operation not permitted on the default exchange")

    # ------------------------------------------------------------------ queues
    def queue(self, name: str, connection: Connection) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            not_found("queue", name)
        queue.check_access(connection)
        return queue

    def declare_queue(
        self, name: str, connection: Connection, durable: bool, exclusive: bool, auto_delete: bool, arguments: dict[str, Any]
    ) -> Queue:
        generated = "" if name else f"amq.gen-{secrets.token_urlsafe(16)}"
        name = name or generated
        existing = self.queues.get(name)
        if existing is not None:
            existing.check_access(connection)
            if exclusive and existing.owner is None:
                resource_locked(f"cannot obtain exclusive access to queue {name!r}, which is not exclusive")
            now = {"durable": durable, "auto_delete": auto_delete, "exclusive": exclusive}
            then = {"durable": existing.durable, "auto_delete": existing.auto_delete, "exclusive": existing.owner is not None}
            _check_same("queue", name, now, then)
            QueueArguments(name, arguments)
            existing.arguments.check_same(name, arguments)
            existing.used()
            return existing
        if not generated:
            _not_reserved("queue", name)
        asked = QueueArguments(name, arguments)
        if asked.quorum:
            _check_quorum(name, durable, exclusive, auto_delete)
        queue = self.queues[name] = Queue(self, name, durable, auto_delete, connection if exclusive else None, asked)
        return queue

    def delete_queue(self, queue: Queue) -> int:
        """How many messages were ready."""
        del self.queues[queue.name]
        self._unbind_incoming(queue)
        return queue.close()


def _not_reserved(kind: str, name: str) -> None:
    if name.startswith("amq."):
        access_refused(f"{kind} name {name!r} contains reserved prefix 'amq.*'")


def _check_same(kind: str, name: str, now: dict[str, Any], then: dict[str, Any]) -> None:
    for field, value in now.items():
        if value != then[field]:
            precondition_failed(f"inequivalent arg {field!r} for {kind} {name!r}: received {value!r} but current is {then[field]!r}")


def _check_quorum(name: str, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    for wrong, what in ((not durable, "non-durable"), (exclusive, "exclusive"), (auto_delete, "auto-delete")):
        if wrong:
            precondition_failed(f"invalid property {what!r} for queue {name!r} of type quorum")
