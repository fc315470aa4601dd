"""Connections and brokers, with the names and signatures of pika's BlockingConnection, but without a network.

A connection has channels, timers, and something that runs the callbacks: an executor, or the thread that serves the
connection. A Broker is one virtual host. The brokers that BlockingConnection finds by host, port and virtual host are
kept in `_brokers` until reset() or the process ends.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from typing import Any, NoReturn

from manytail._lifecycle import begin, refuse_copy
from manytail._values import initialised_repr
from manytail.broker import exceptions
from manytail.broker._mailbox import Mailbox
from manytail.broker._protocol import require_callable
from manytail.broker._runtime import Addressee, Closable, Lane, Pool, Runtime, Timer, in_a_callback
from manytail.broker._state import close_channels
from manytail.broker.channel import Channel
from manytail.broker.parameters import ConnectionParameters, Parameters, URLParameters
from manytail.errors import ClosedError
from manytail.executor import KeyedExecutor

__all__ = [
    "BlockingConnection",
    "Broker",
    "Connection",
    "ConnectionParameters",
    "Parameters",
    "URLParameters",
    "reset",
]

CHANNEL_MAX = 65535


class _WrongType(TypeError, AssertionError):
    """A TypeError where pika asserts: a program may catch that."""


class Connection(Closable):
    """A connection to a broker of this process. It has channels and timers.

    Create it with Broker.connect(): callbacks then run in a thread pool. Or use BlockingConnection. You may call every
    method from any thread. Methods that need an open connection raise ConnectionWrongStateError if it is closed."""

    wrong_state = exceptions.ConnectionWrongStateError
    basic_nack_supported = basic_nack = True
    consumer_cancel_notify_supported = consumer_cancel_notify = True
    exchange_exchange_bindings_supported = exchange_exchange_bindings = True
    publisher_confirms_supported = publisher_confirms = True

    def _open(self, broker: Broker, dispatch: Any) -> None:
        """Initialise. Not `__init__`, because that of BlockingConnection takes parameters. `dispatch`: what runs the
        callbacks, a Pool or a Mailbox. In a section."""
        self._broker = broker
        self._runtime = broker._runtime
        self._dispatch = dispatch
        self._callbacks = Addressee()
        self._lane: Lane = dispatch.lane(self._run_callback, first=True)
        self._channels: dict[int, Channel] = {}
        self._ending: list[Lane] = []  # of closed channels whose callback may still run
        self._closing_reason: Exception | None = None
        self._changed = self._runtime.condition()
        self._dispatched = False  # whether a callback has ended since process_data_events returned
        self._waiting = 0  # threads in process_data_events
        self._rounds = 0  # counts the callbacks that ended while a thread waited
        self._timers: dict[int, tuple[Timer, Callable[[], object]]] = {}
        self._timer_numbers = itertools.count(1)
        broker._connections[id(self)] = self

    @initialised_repr
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'open' if self.is_open else 'closed'}, {len(self._channels)} channels>"

    # --------------------------------------------------------------------------------------------------------- channels
    def channel(self, channel_number: int | None = None) -> Channel:
        """Open a channel with the given number, or if none is given, with the lowest free one. Numbers are 1 to
        65,535."""
        asked = None if channel_number is None else int(channel_number)
        with self._runtime:
            self._check_open()
            if asked is None:
                number = next((number for number in range(1, CHANNEL_MAX + 1) if number not in self._channels), None)
                if number is None:
                    raise exceptions.NoFreeChannels
            elif 1 <= asked <= CHANNEL_MAX and asked not in self._channels:
                number = asked
            else:
                raise exceptions.InvalidChannelNumber(asked)
            channel = self._channels[number] = Channel(self, number)
        return channel

    def _forget(self, channel: Channel) -> None:
        """The channel is closed: its number is free again. In a section."""
        if self._channels.get(channel.channel_number) is channel:
            del self._channels[channel.channel_number]
            self._ending = [lane for lane in [*self._ending, channel._lane] if lane.runs()]

    # ---------------------------------------------------------------------------------------------------------- the end
    def close(self, reply_code: int = 200, reply_text: str = "Normal shutdown") -> None:
        """Close the connection and all its channels: unacknowledged messages are requeued, and its exclusive queues are
        deleted. Waits for running callbacks, unless a callback calls it."""
        with self._runtime:
            if self._closing_reason is not None:
                text = f"Connection.close({reply_code}, {reply_text!r}) called on closed connection."
                raise exceptions.ConnectionWrongStateError(text)
            self._end(exceptions.ConnectionClosedByClient(reply_code, reply_text))
        self._wait_for_callbacks()

    def _wait_for_callbacks(self) -> None:
        """After the end: wait for the callbacks that run, unless the caller is one."""
        if not in_a_callback():
            for lane in [*self._ending, self._lane]:
                lane.wait_for(None)

    def _runs_callbacks(self) -> bool:
        """After the end: whether a callback still runs."""
        return any(lane.runs() for lane in [*self._ending, self._lane])

    def _end(self, reason: Exception) -> None:
        """Close the connection, for any reason. In a section."""
        if self._closing_reason is not None:
            return
        self._closing_reason = reason
        self._callbacks.gone = True
        host = self._runtime.host
        channels = list(self._channels.values())
        close_channels([channel._state for channel in channels], time.monotonic())
        for channel in channels:
            channel._end(reason)
        host.delete_queues_of(self)
        for timer, _ in self._timers.values():
            timer.cancel()
        host.dropped.append(self._timers)
        self._timers = {}
        self._lane.drop(None, host.dropped)
        self._changed.notify_all()
        self._broker._forget(self)
        self._dispatch.end()

    def _executor_failed(self, error: BaseException) -> None:
        """The executor takes no more tasks, so no callback could run: close."""
        reason = exceptions.AMQPConnectionError(f"the executor refused a callback: {error}")
        reason.__cause__ = error
        with self._runtime:
            self._end(reason)

    # ---------------------------------------------------------------------------------------------------------- waiting
    def process_data_events(self, time_limit: float | None = 0) -> None:
        """Wait until a callback has ended since the last call of this method, but at most time_limit seconds (None: no
        limit). You need not call it: the callbacks run in the executor anyway."""
        with self._runtime:
            self._waiting += 1  # before reading _dispatched: a callback sets that first and then reads this
            before = self._rounds
            try:
                self._wait(lambda: self._dispatched or self._rounds != before, time_limit)
                self._dispatched = False
            finally:
                self._waiting -= 1
        self._raise_reason()

    def sleep(self, duration: float) -> None:
        """Sleep for that many seconds, or until the connection is closed."""
        if duration < 0:
            raise ValueError(f"duration: {duration!r} (expected: seconds >= 0)")
        with self._runtime:
            self._wait(lambda: False, duration)
        self._raise_reason()

    def _wait(self, ready: Callable[[], object], timeout: float | None) -> None:
        """Call it in a section. The section ends during the wait."""
        self._check_open()
        self._changed.wait_for(lambda: self._closing_reason is not None or ready(), timeout)

    def _raise_reason(self) -> None:
        """Raise the reason why the connection was closed, unless its client closed it."""
        reason = self._closing_reason
        if reason is not None and not isinstance(reason, exceptions.ConnectionClosedByClient):
            raise reason

    # -------------------------------------------------------------------------------------- callbacks of the connection
    def _callback_ended(self) -> None:
        """A callback of this connection or of one of its channels has ended."""
        self._dispatched = True
        if self._waiting:
            with self._runtime:
                self._rounds += 1
                self._changed.notify_all()

    def _run_callback(self, item: Any) -> None:
        try:
            item[2]()
        finally:
            self._callback_ended()

    def add_callback_threadsafe(self, callback: Callable[[], object]) -> None:
        """Call `callback()` as soon as possible, in a thread that runs callbacks. The calls of one connection that are
        made in this way run one at a time, in order. Calls that have not begun when the connection closes are not
        made."""
        require_callable(callback, "callback")
        with self._runtime:
            self._check_open()
            self._lane.add((self._callbacks, 0, callback))

    def call_later(self, delay: float, callback: Callable[[], object]) -> int:
        """Call `callback()` after `delay` seconds, in a thread that runs callbacks. Returns an id for remove_timeout.
        Calls that are due after the connection has closed are not made. Raises ValueError for a negative delay."""
        require_callable(callback, "callback")
        if not delay >= 0:
            raise ValueError(f"delay: {delay!r} (expected: seconds >= 0)")
        due = time.monotonic() + delay
        with self._runtime:
            self._check_open()
            number = next(self._timer_numbers)
            self._timers[number] = self._dispatch.at(due, partial(self._due, number)), callback
        return number

    def _due(self, number: int, now: float) -> None:
        """In a section."""
        self._lane.add((self._callbacks, 0, partial(self._call_timer, number)))

    def _call_timer(self, number: int) -> None:
        timer_and_callback = self._timers.pop(number, None)
        if timer_and_callback is not None:
            timer_and_callback[1]()

    def remove_timeout(self, timeout_id: int) -> None:
        """Cancel the call with that id, which call_later returned, unless the call has begun."""
        with self._runtime:
            timer_and_callback = self._timers.pop(timeout_id, None)
            if timer_and_callback is not None:
                timer_and_callback[0].cancel()

    def add_on_connection_blocked_callback(self, callback: Callable[..., object]) -> None:
        """Accept a callback, but never call it, because this broker never blocks a connection."""
        require_callable(callback, "callback")

    def add_on_connection_unblocked_callback(self, callback: Callable[..., object]) -> None:
        """Accept a callback, but never call it, because this broker never blocks a connection."""
        require_callable(callback, "callback")

    def update_secret(self, new_secret: str, reason: str) -> None:
        """Does nothing, as credentials are not checked. If an argument is not a str, raises an error that is both a
        TypeError and an AssertionError (which pika raises)."""
        self._check_open()
        for name, value in (("new_secret", new_secret), ("reason", reason)):
            if not isinstance(value, str):
                raise _WrongType(f"{name}: {value!r} (expected: a str)")


class Broker:
    """A broker with one virtual host: its exchanges, queues and messages. Use it in a `with` block, or close it.

    >>> with Broker() as broker:
    ...     channel = broker.connect().channel()
    ...     channel.queue_declare("work").method.message_count
    0
    """

    def __init__(self) -> None:
        begin(self)
        self._runtime = Runtime()
        self._connections: dict[int, Connection] = {}  # by identity: a subclass may define __eq__
        self._ending: list[Connection] = []  # closed, but a callback may still run
        self._closed = False

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "it belongs to this process", "make another one there")

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @initialised_repr
    def __repr__(self) -> str:
        queues, connections = len(self._runtime.host.queues), len(self._connections)
        return f"<{type(self).__name__} {queues} queues, {connections} connections{', closed' if self._closed else ''}>"

    def connect(self, *, executor: Executor | None = None, max_workers: int | None = None) -> Connection:
        """Open a connection whose callbacks run in a thread pool.

        executor: an executor that runs calls in threads; the connection does not shut it down. Without it, the
        connection has its own KeyedExecutor with max_workers threads (None: os.cpu_count()). Raises ValueError if both
        are given, TypeError for a ProcessPoolExecutor or an object without submit(), and ClosedError if the broker is
        closed."""
        if executor is not None and max_workers is not None:
            both = f"executor={executor!r} and max_workers={max_workers!r}"
            raise ValueError(f"{both} (expected: one of them, as an executor has its own threads)")
        if isinstance(executor, ProcessPoolExecutor):
            why = "callbacks and channels cannot go to another process"
            raise TypeError(f"executor: {executor!r} (expected: an executor with threads, because {why})")
        if executor is not None and not hasattr(executor, "submit"):
            raise TypeError(f"executor: {executor!r} (expected: an executor, which has submit())")
        owned = executor is None
        if executor is None:
            workers = (os.cpu_count() or 1) if max_workers is None else max_workers
            executor = KeyedExecutor(workers, thread_name_prefix="manytail-broker")
        connection = Connection()
        self._connect(connection, Pool(executor, owned, self._runtime, connection._executor_failed))
        return connection

    def _connect(self, connection: Connection, dispatch: Pool | Mailbox) -> None:
        with self._runtime:
            if self._closed:
                raise ClosedError("connect: the broker is closed")
            connection._open(self, dispatch)

    def _forget(self, connection: Connection) -> None:
        """The connection is closed. In a section."""
        del self._connections[id(connection)]
        self._ending = [each for each in [*self._ending, connection] if each._runs_callbacks()]

    def close(self) -> None:
        """Close all connections and delete all queues. Waits for running callbacks, unless a callback calls it. A
        second call does nothing."""
        reason = exceptions.ConnectionClosedByClient(200, "Normal shutdown")
        with self._runtime:
            self._closed = True
            for connection in list(self._connections.values()):
                connection._end(reason)
            ending = self._ending
        for connection in ending:
            connection._wait_for_callbacks()
        with self._runtime:
            for queue in list(self._runtime.host.queues.values()):
                self._runtime.host.delete_queue(queue)
        self._runtime.timers.close()


# ------------------------------------------------------------------------------------------- the brokers of the process
_brokers: dict[tuple[str, int, str], Broker] = {}
_brokers_lock = threading.RLock()  # a finalizer may connect while this thread does


class BlockingConnection(Connection):
    """A connection that works like pika's BlockingConnection: its callbacks and timers run, one at a time, in the
    thread that calls start_consuming, process_data_events, sleep or consume, and in no other thread.

    Connections with the same host, port and virtual host share one Broker of this process. The first connection creates
    it. It keeps its queues and messages until reset() or the end of the process."""

    def __init__(self, parameters: Parameters | Sequence[Parameters] | None = None, _impl_class: None = None) -> None:
        """parameters: ConnectionParameters, URLParameters, None for the defaults, or a sequence of parameters, of which
        the first is used. Raises ValueError if the sequence is empty, and TypeError for any other type."""
        if isinstance(parameters, Sequence) and not len(parameters):
            raise ValueError(f"parameters: {parameters!r} (expected: at least one)")
        first = parameters[0] if isinstance(parameters, Sequence) else parameters
        first = Parameters() if first is None else first
        if not isinstance(first, Parameters):
            expected = "ConnectionParameters, URLParameters, a sequence of them, or None"
            raise TypeError(f"parameters: {parameters!r} (expected: {expected})")
        address = str(first.host), int(first.port), str(first.virtual_host)
        begin(self)
        while True:
            with _brokers_lock:
                broker = _brokers.get(address)
                if broker is None:
                    broker = _brokers[address] = Broker()
            try:
                broker._connect(self, Mailbox(broker._runtime))
            except ClosedError:
                with _brokers_lock:  # reset() may have come in between
                    if _brokers.get(address) is broker:
                        del _brokers[address]
            else:
                return

    def process_data_events(self, time_limit: float | None = 0) -> None:
        """Run the callbacks that are ready. If none is ready, wait for one, for at most time_limit seconds (None: no
        limit). It may return earlier, when a consumer has ended. If a callback calls it, no other callback runs.

        Raises ReentrancyError if a callback of this connection calls it with time_limit=None."""
        if time_limit is not None and not time_limit >= 0:
            raise ValueError(f"time_limit: {time_limit!r} (expected: seconds >= 0, or None)")
        if time_limit is None and self._dispatch.inside():
            raise exceptions.ReentrancyError("process_data_events(None) would wait for itself in a callback")
        self._check_open()
        self._dispatch.serve(lambda: self.is_closed, time_limit)
        self._raise_reason()

    def sleep(self, duration: float) -> None:
        """Sleep for that many seconds, or until the connection is closed, and run callbacks in the meantime. If a
        callback calls it, no other callback runs."""
        if not duration >= 0:
            raise ValueError(f"duration: {duration!r} (expected: seconds >= 0)")
        self._check_open()
        self._dispatch.wait_until(lambda: self.is_closed, duration)
        self._raise_reason()


def reset() -> None:
    """Close the brokers that BlockingConnection created, and their connections. Later connections create new
    brokers."""
    with _brokers_lock:
        brokers = list(_brokers.values())
        _brokers.clear()
    for broker in brokers:
        broker.close()
