"""An in-process broker: RabbitMQ's semantics, pika's names, a thread pool for the callbacks.

    with Broker() as broker, broker.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("work")
        channel.basic_consume("work", lambda channel, method, properties, body: channel.basic_ack(method.delivery_tag))
        channel.basic_publish("", "work", b"hello")

The map of the package
    Broker                  one virtual host: exchanges and queues by name
    Connection, Channel     pika's BlockingConnection and BlockingChannel
    BasicProperties         what a message says of itself; ExchangeType: the four types by name
    exceptions              pika's exceptions
"""

from __future__ import annotations

import enum
import os
from concurrent.futures import Executor, ProcessPoolExecutor
from types import TracebackType

from manytail.broker import exceptions
from manytail.broker._methods import ReturnedMessage
from manytail.broker._properties import BasicProperties
from manytail.broker._vhost import VirtualHost
from manytail.broker.channel import Channel
from manytail.broker.connection import Connection
from manytail.errors import ClosedError
from manytail.executor import KeyedExecutor

__all__ = ["BasicProperties", "Broker", "Channel", "Connection", "ExchangeType", "ReturnedMessage", "exceptions"]


class ExchangeType(enum.StrEnum):
    direct = "direct"
    fanout = "fanout"
    headers = "headers"
    topic = "topic"


class Broker:
    """One virtual host. Context manager: closes at the end."""

    def __init__(self) -> None:
        self._host = VirtualHost()
        self._connections: set[Connection] = set()
        self._closed = False

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Broker {len(self._host.queues)} queues, {len(self._connections)} connections{', closed' if self._closed else ''}>"

    def connect(self, *, executor: Executor | None = None, max_workers: int | None = None) -> Connection:
        """A connection whose callbacks run on `executor`, which is never shut down, or on a KeyedExecutor of its own of max_workers threads
        (os.cpu_count()). Both given: ValueError. A ProcessPoolExecutor: TypeError. ClosedError: the broker is closed."""
        if executor is not None and max_workers is not None:
            raise ValueError(f"executor={executor!r} and max_workers={max_workers!r}: expected one of them; an executor has its own threads")
        if isinstance(executor, ProcessPoolExecutor):
            raise TypeError(f"executor={executor!r}: expected one with threads; callbacks and channels cannot go to another process")
        owned = executor is None
        if executor is None:
            workers = (os.cpu_count() or 1) if max_workers is None else max_workers
            executor = KeyedExecutor(workers, thread_name_prefix="manytail-broker")
        with self._host.monitor:
            if self._closed:
                raise ClosedError("connect: the broker is closed")
            connection = Connection(self._host, executor, owned, self._connections.discard)
            self._connections.add(connection)
        return connection

    def close(self) -> None:
        """Close all connections, waiting for running callbacks, and forget all exchanges and queues. Closing twice is as once."""
        with self._host.monitor:
            self._closed = True
            connections = list(self._connections)
        for connection in connections:
            try:
                connection.close()
            except exceptions.ConnectionWrongStateError:
                continue  # it closed meanwhile
        with self._host.monitor:
            for queue in list(self._host.queues.values()):
                self._host.delete_queue(queue)
        self._host.timers.close()
