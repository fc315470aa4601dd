"""Connection: pika's BlockingConnection by its names and signatures, without the network: channels, timers, and the executor that runs the
callbacks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from manytail.broker import exceptions
from manytail.broker._dispatch import Dispatch, Lane
from manytail.broker._timers import Timer
from manytail.broker._validation import require_callable
from manytail.broker.channel import Channel

if TYPE_CHECKING:
    from manytail.broker._vhost import VirtualHost

__all__ = ["Connection"]

CHANNEL_MAX = 65535


class Connection:
    """Channels that share an executor. Made by Broker.connect(). Every method may be called from any thread."""

    basic_nack_supported = basic_nack = True
    consumer_cancel_notify_supported = consumer_cancel_notify = True
    exchange_exchange_bindings_supported = exchange_exchange_bindings = True
    publisher_confirms_supported = publisher_confirms = True

    def __init__(self, host: VirtualHost, executor: Executor, owned: bool, forget: Callable[[Connection], object]) -> None:
        self._host = host
        self._monitor = host.monitor
        self._executor = executor
        self._owned = owned  # ours to shut down
        self._forget_me = forget
        self._dispatch = Dispatch(executor, host.monitor, self._executor_refused)
        self._lane = Lane(self._dispatch, self._run_callback)
        self._channels: dict[int, Channel] = {}
        self._closing_reason: Exception | None = None
        self._changed = host.monitor.condition()
        self._dispatched = False  # a callback has ended since process_data_events returned
        self._waiting = 0  # in process_data_events
        self._rounds = 0  # counts the callbacks that ended while somebody waited
        self._timers: dict[int, Timer] = {}
        self._timer_numbers = itertools.count(1)

    # ------------------------------------------------------------------ what it is
    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'open' if self.is_open else 'closed'}, {len(self._channels)} channels>"

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if self.is_open:
            self.close()

    @property
    def is_open(self) -> bool:
        return self._closing_reason is None

    @property
    def is_closed(self) -> bool:
        return self._closing_reason is not None

    def _check_open(self) -> None:
        if self._closing_reason is not None:
            raise exceptions.ConnectionWrongStateError("Connection is closed.") from self._closing_reason

    # ------------------------------------------------------------------ channels
    def channel(self, channel_number: int | None = None) -> Channel:
        """Open a channel, with that number or the lowest free one from 1 to 65,535."""
        with self._monitor:
            self._check_open()
            if channel_number is None:
                number = next((number for number in range(1, CHANNEL_MAX + 1) if number not in self._channels), None)
                if number is None:
                    raise exceptions.NoFreeChannels
            else:
                number = int(channel_number)
                if not 1 <= number <= CHANNEL_MAX or number in self._channels:
                    raise exceptions.InvalidChannelNumber(number)
            channel = self._channels[number] = Channel(self, number)
        return channel

    def _forget(self, channel: Channel) -> None:
        """It is closed: its number is free again."""
        with self._monitor:
            if self._channels.get(channel.channel_number) is channel:
                del self._channels[channel.channel_number]

    # ------------------------------------------------------------------ ending
    def close(self, reply_code: int = 200, reply_text: str = "Normal shutdown") -> None:
        """Close all channels: what is unacknowledged is requeued, exclusive queues are deleted. Waits for running callbacks, except from inside one.

        ConnectionWrongStateError: it is closed."""
        with self._monitor:
            if self._closing_reason is not None:
                raise exceptions.ConnectionWrongStateError(f"Connection.close({reply_code}, {reply_text!r}) called on closed connection.")
            lanes = [channel._lane for channel in self._channels.values()]
            self._end(exceptions.ConnectionClosedByClient(reply_code, reply_text))
        if not self._dispatch.inside():
            for lane in [*lanes, self._lane]:
                lane.wait_for(None)

    def _end(self, reason: Exception) -> None:
        """Closed, for whatever reason; inside the monitor."""
        if self._closing_reason is not None:
            return
        self._closing_reason = reason
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel._end(reason)
        for queue in [queue for queue in self._host.queues.values() if queue.owner is self]:
            self._host.delete_queue(queue)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._changed.notify_all()
        self._monitor.after(self._forget_me, self)
        if self._owned:
            self._monitor.after(partial(self._executor.shutdown, wait=False))

    def _executor_refused(self, error: BaseException) -> None:
        """The executor takes no more tasks: no callback would ever run again."""
        with self._monitor:
            reason = exceptions.AMQPConnectionError(f"the executor of the connection refused a task: {error}")
            reason.__cause__ = error
            self._end(reason)

    # ------------------------------------------------------------------ waiting
    def process_data_events(self, time_limit: float | None = 0) -> None:
        """Wait until a callback of this connection has ended that no earlier call of this method has told of, for time_limit seconds at the most
        (None: without limit). Callbacks need no such call to run."""
        with self._monitor:
            self._waiting += 1  # before the look at _dispatched: a callback sets that first and looks here then
            before = self._rounds
            try:
                self._wait(lambda: self._dispatched or self._rounds != before, time_limit)
                self._dispatched = False
            finally:
                self._waiting -= 1
        self._raise_reason()

    def sleep(self, duration: float) -> None:
        """Wait so many seconds, or until the connection is closed."""
        if duration < 0:
            raise ValueError(f"duration={duration!r}: expected seconds >= 0")
        with self._monitor:
            self._wait(lambda: False, duration)
        self._raise_reason()

    def _wait(self, ready: Callable[[], object], timeout: float | None) -> None:
        """Inside the monitor, which it leaves meanwhile."""
        self._check_open()
        self._monitor.wait(self._changed, lambda: self._closing_reason is not None or ready(), timeout)

    def _raise_reason(self) -> None:
        """Why the connection was closed, if not by its client."""
        if self._closing_reason is not None and not isinstance(self._closing_reason, exceptions.ConnectionClosedByClient):
            raise self._closing_reason

    # ------------------------------------------------------------------ callbacks of the connection
    def callback_ended(self) -> None:
        """One of this connection or of its channels."""
        self._dispatched = True
        if self._waiting:
            with self._monitor:
                self._rounds += 1
                self._changed.notify_all()

    def _run_callback(self, item: Any) -> None:
        _, callback = item
        try:
            callback()
        finally:
            self.callback_ended()

    def add_callback_threadsafe(self, callback: Callable[[], object]) -> None:
        """Call it on the executor as soon as may be; one at a time per connection, in order. ConnectionWrongStateError: it is closed."""
        require_callable(callback, "callback")
        with self._monitor:
            self._check_open()
            self._lane.add((None, callback))

    def call_later(self, delay: float, callback: Callable[[], object]) -> int:
        """Call it on the executor in `delay` seconds. An id for remove_timeout. Calls that are due when the connection closes are not made."""
        require_callable(callback, "callback")
        with self._monitor:
            self._check_open()
            number = next(self._timer_numbers)
            self._timers[number] = self._host.timers.at(time.monotonic() + delay, partial(self._due, number, callback))
        return number

    def _due(self, number: int, callback: Callable[[], object]) -> None:
        with self._monitor:
            if number in self._timers:
                self._lane.add((None, partial(self._call_timer, number, callback)))

    def _call_timer(self, number: int, callback: Callable[[], object]) -> None:
        if self._timers.pop(number, None) is not None:
            callback()

    def remove_timeout(self, timeout_id: int) -> None:
        """Take a call_later back, if it has not begun."""
        with self._monitor:
            timer = self._timers.pop(timeout_id, None)
            if timer is not None:
                timer.cancel()

    def add_on_connection_blocked_callback(self, callback: Callable[..., object]) -> None:
        """Accepted and never called: this broker blocks no connection."""
        require_callable(callback, "callback")

    def add_on_connection_unblocked_callback(self, callback: Callable[..., object]) -> None:
        """Accepted and never called: this broker blocks no connection."""
        require_callable(callback, "callback")

    def update_secret(self, new_secret: str, reason: str) -> None:
        """Accepted: there is nothing to authenticate. ConnectionWrongStateError: it is closed."""
        self._check_open()
