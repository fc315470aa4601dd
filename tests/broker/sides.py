"""One script, two brokers: the sides that tests/broker runs on.

A test is a script of channel calls and their expected results. It runs on manytail.broker and, with a server at
MANYTAIL_RABBITMQ=host:port (make test-rabbitmq), on that through pika. A server is asynchronous: the effect of a call
on a queue is certain only after a synchronous call has passed through the same processes. `settle` sends such calls
until nothing changes.
"""

import gc
import itertools
import os
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from manytail import broker as manytail_broker

DEADLINE = 60.0
SERVER = os.environ.get("MANYTAIL_RABBITMQ", "")


def server_versions(since: str = "3.8", until: str = "999") -> Callable[[Any], Any]:
    """A mark: the first server version that a test holds for, and the first later one that differs."""

    def mark(test: Any) -> Any:
        test.server_versions = tuple(tuple(int(part) for part in version.split(".")) for version in (since, until))
        return test

    return mark


class CountingExecutor(ThreadPoolExecutor):
    """A thread pool that reports when it has nothing to do."""

    def __init__(self, max_workers: int = 4) -> None:
        super().__init__(max_workers)
        self._busy = 0
        self._changed = threading.Condition()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with self._changed:
            self._busy += 1
        return super().submit(self._counted, fn, *args, **kwargs)

    def _counted(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def wait_idle(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._busy == 0, DEADLINE), "callbacks did not come to an end"


class Recorder:
    """A consumer that records its deliveries and calls `then` for each. What it returns of them is settled."""

    def __init__(self, then: Callable[..., object] | None, settle: Callable[[], None]) -> None:
        self.deliveries: list[tuple[Any, Any, Any]] = []
        self.tag = ""
        self._then, self._settle = then, settle

    def _settled(self) -> list[tuple[Any, Any, Any]]:
        self._settle()
        return self.deliveries

    def __call__(self, channel: Any, method: Any, properties: Any, body: Any) -> None:
        self.deliveries.append((method, properties, body))
        if self._then is not None:
            self._then(channel, method, properties, body)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self._settled()]

    @property
    def tags(self) -> list[int]:
        return [method.delivery_tag for method, _, _ in self._settled()]

    @property
    def redelivered(self) -> list[bool]:
        return [method.redelivered for method, _, _ in self._settled()]


def ack(channel: Any, method: Any, properties: Any, body: Any) -> None:
    channel.basic_ack(method.delivery_tag)


class Side:
    """What both sides have. Names are unique to a test, so that tests can share a server."""

    name = ""
    version: tuple[int, ...] = (99,)
    exceptions: Any
    Properties: Any
    pika: Any  # the module, and an address for its URLParameters: of sides with a BlockingConnection
    url: str

    def __init__(self) -> None:
        self.connections: list[Any] = []
        self._channels: list[Any] = []
        self._queues: list[str] = []
        self._exchanges: list[str] = []
        self._unique = uuid.uuid4().hex[:8]
        self._numbers = itertools.count(1)

    # ------------------------------------------------------------------ what the sides do differently
    def connect(self) -> Any:
        raise NotImplementedError

    def settle(self) -> None:
        """Return when everything that the calls so far cause has happened, including callbacks."""
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Let callbacks run for that many seconds."""
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError

    def fence(self, channel: Any) -> None:
        """A synchronous call: after it the channel has processed everything sent before."""
        channel.exchange_declare("amq.direct", "direct", passive=True)

    # ------------------------------------------------------------------ helpers for scripts
    def unique(self, kind: str = "q") -> str:
        return f"{kind}{next(self._numbers)}-{self._unique}"

    def channel(self, connection: Any = None) -> Any:
        if connection is None:
            connection = self.connections[0] if self.connections else self.connect()
        channel = connection.channel()
        self._channels.append(channel)
        return channel

    def queue(self, channel: Any, name: str | None = None, dead: str | None = None, **options: Any) -> str:
        """Options that begin with `x_` are arguments. `dead`: the queue that its dead letters go to."""
        name = self.unique() if name is None else name
        to_dead = {} if dead is None else {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        arguments = {key.replace("_", "-"): options.pop(key) for key in list(options) if key.startswith("x_")}
        arguments |= to_dead | options.pop("arguments", {})
        channel.queue_declare(name, arguments=arguments, **options)
        self._queues.append(name)
        return name

    def exchange(self, channel: Any, kind: str = "direct", name: str | None = None, **options: Any) -> str:
        name = self.unique("x") if name is None else name
        channel.exchange_declare(name, kind, **options)
        self._exchanges.append(name)
        return name

    def publish(
        self, channel: Any, queue: str, *bodies: Any, exchange: str = "", mandatory: bool = False, **properties: Any
    ) -> None:
        for body in bodies:
            body = body if isinstance(body, bytes) else str(body).encode()
            channel.basic_publish(
                exchange, queue, body, self.Properties(**properties) if properties else None, mandatory
            )
        self.fence(channel)
        self.settle()

    def filled(self, *bodies: Any, **options: Any) -> tuple[Any, str]:
        """A channel, and a queue of these options with these messages."""
        channel = self.channel()
        queue = self.queue(channel, **options)
        self.publish(channel, queue, *bodies)
        return channel, queue

    def take(self, channel: Any, queue: str, count: int) -> list[int]:
        """The tags of so many messages, which are unacknowledged."""
        return [channel.basic_get(queue)[0].delivery_tag for _ in range(count)]

    def consume(self, channel: Any, queue: str, then: Callable[..., object] | None = None, **options: Any) -> Recorder:
        recorder = Recorder(then, self.settle)
        recorder.tag = channel.basic_consume(queue, recorder, **options)
        return recorder

    def returned(self, channel: Any) -> list[Any]:
        """The channel's returned messages: (method, properties, body), and more as they come."""
        messages: list[Any] = []
        channel.add_on_return_callback(lambda _, *message: messages.append(message))
        return messages

    def drain(self, channel: Any, queue: str) -> list[bytes]:
        """All ready messages, acknowledged."""
        self.settle()
        bodies = []
        while (got := channel.basic_get(queue, True))[0] is not None:
            bodies.append(got[2])
        return bodies

    def count(self, channel: Any, queue: str) -> int:
        self.settle()
        count: int = channel.queue_declare(queue, passive=True).method.message_count
        return count

    def consumers(self, channel: Any, queue: str) -> int:
        self.settle()
        count: int = channel.queue_declare(queue, passive=True).method.consumer_count
        return count

    def exists(self, name: str, kind: str = "queue") -> bool:
        """Asked on its own channel, because what is missing closes the channel."""
        return self.code(lambda channel: getattr(channel, f"{kind}_declare")(name, passive=True)) != 404

    def code(self, call: Callable[[Any], object], channel: Any = None) -> int | None:
        """The reply code with which a call closes its channel or connection. None: it closes neither."""
        channel = self.channel() if channel is None else channel
        try:
            call(channel)
            self.fence(channel)
        except Exception as error:
            code: int | None = getattr(error, "reply_code", None)
            if code is None:
                raise
            return code
        return None

    def bodies(self, *numbers: Any) -> list[bytes]:
        """As publish() makes them."""
        return [str(number).encode() for number in numbers]

    def eventually(self, condition: Callable[[], object], what: str, pause: float = 0.05) -> None:
        """Wait for what a timer of the broker causes. `pause`: seconds between two looks."""
        for _ in range(int(DEADLINE / pause)):
            if condition():
                return
            self.wait(pause)
        raise AssertionError(f"not within {DEADLINE} s: {what}")

    def end(self) -> None:
        self._end()


class Manytail(Side):
    name = "manytail"
    exceptions = manytail_broker.exceptions
    Properties = manytail_broker.BasicProperties

    def __init__(self) -> None:
        super().__init__()
        self.broker = manytail_broker.Broker()
        self.executor = CountingExecutor()

    def connect(self) -> Any:
        connection = self.broker.connect(executor=self.executor)
        self.connections.append(connection)
        return connection

    def settle(self) -> None:
        self.executor.wait_idle()

    def wait(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def _end(self) -> None:
        self.broker.close()
        self.executor.shutdown()


class Blocking(Manytail):
    """Connections whose callbacks run in the thread of the test, when that settles."""

    name = "blocking"

    def __init__(self) -> None:
        super().__init__()
        self.pika = manytail_broker
        self.url = f"amqp://guest:guest@host-{self._unique}/%2F"

    def connect(self) -> Any:
        connection = manytail_broker.BlockingConnection(manytail_broker.URLParameters(self.url))
        self.broker = connection._broker
        self.connections.append(connection)
        return connection

    def settle(self) -> None:
        """Serve the connections in turn, until a round of each has run nothing."""
        while [each for each in self.connections if each._dispatch._ready or each._dispatch._serving]:
            self.wait(0)

    def wait(self, seconds: float) -> None:
        serving = [connection for connection in self.connections if connection.is_open]
        for connection in serving:
            if connection.is_open:
                connection.sleep(seconds / len(serving))


class Server(Side):
    name = "server"

    def __init__(self) -> None:
        import pika

        super().__init__()
        self.pika = pika
        self.url = f"amqp://guest:guest@{SERVER}/%2F?heartbeat=0"
        self.exceptions = pika.exceptions
        self.Properties = pika.BasicProperties
        self._fences: dict[Any, Any] = {}

    def connect(self) -> Any:
        connection = self.pika.BlockingConnection(self.pika.URLParameters(self.url))
        self.connections.append(connection)
        return connection

    def settle(self) -> None:
        """Send calls through every queue and channel until two rounds in a row deliver nothing. At least three rounds,
        because of dead letters."""
        before, quiet, rounds = -1, 0, 0
        while quiet < 2 or rounds < 4:
            for connection in [connection for connection in self.connections if connection.is_open]:
                self._through_queues(connection)
            for channel in [channel for channel in self._channels if channel.is_open]:
                self.fence(channel)
            for connection in [connection for connection in self.connections if connection.is_open]:
                connection.process_data_events(0)
            seen = sum(self._delivered(channel) for channel in self._channels)
            quiet = quiet + 1 if seen == before else 0
            before, rounds = seen, rounds + 1

    def _delivered(self, channel: Any) -> int:
        return sum(len(callback.deliveries) for callback in getattr(channel, "recorders", ()))

    def _through_queues(self, connection: Any) -> None:
        """Declare each queue passively: the queue itself answers that."""
        for queue in list(self._queues):
            channel = self._fences.get(connection)
            if channel is None or channel.is_closed:
                channel = self._fences[connection] = connection.channel()
            try:
                channel.queue_declare(queue, passive=True)
            except self.exceptions.ChannelClosedByBroker as error:
                if error.reply_code == 404:
                    self._queues.remove(queue)

    def consume(self, channel: Any, queue: str, then: Callable[..., object] | None = None, **options: Any) -> Recorder:
        recorder = super().consume(channel, queue, then, **options)
        if not hasattr(channel, "recorders"):
            channel.recorders = []
        channel.recorders.append(recorder)
        return recorder

    def wait(self, seconds: float) -> None:
        for connection in self.connections:
            if connection.is_open:
                connection.sleep(seconds / len(self.connections))

    def _end(self) -> None:
        open_ones = [connection for connection in self.connections if connection.is_open]
        last = self.connect()
        for connection in open_ones:
            connection.close()
        for queue in self._queues:
            last.channel().queue_delete(queue)
        for exchange in self._exchanges:
            last.channel().exchange_delete(exchange)
        last.close()
        with warnings.catch_warnings():
            # pika leaves the sockets of a connection that the server closed to the collector.
            warnings.simplefilter("ignore", ResourceWarning)
            self._fences.clear()
            gc.collect()


@contextmanager
def side(name: str) -> Iterator[Side]:
    made: Side = {"manytail": Manytail, "blocking": Blocking, "server": Server}[name]()
    try:
        yield made
    finally:
        made.end()
