"""Rows of manytail.broker: publish, callback and ack, on one channel and on four with threads, and routing; beside the
same pika code on a local RabbitMQ."""
from __future__ import annotations

import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from harness import ROOT, Factory, Measure, Row, Target, Unavailable
from threaded import DEADLINE

RABBITMQ = "pika and RabbitMQ"
BINDINGS, QUEUES, PATTERNS_OF_WORDS = 10_000, 100, 60
PREFETCH = 200
CHANNELS, PREFETCH_OF_FOUR, BODY = 4, 100, 100  # of the rows with threads; a body is so many fresh bytes


def acks(n: int, at_end: Callable[[Any], object]) -> Callable[..., None]:
    """A callback that acks each message, and calls `at_end` with the channel after the n-th."""
    left = n

    def callback(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        nonlocal left
        channel.basic_ack(method.delivery_tag)
        left -= 1
        if left == 0:
            at_end(channel)

    return callback


def messages(connection: Any, n: int) -> float:
    """Messages per second: n published through a direct exchange, then n callbacks that ack, all on one channel."""
    channel = connection.channel()
    channel.exchange_declare("bench", "direct", auto_delete=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "bench", "key")
    channel.basic_qos(prefetch_count=PREFETCH)
    began = time.perf_counter()
    for _ in range(n):
        channel.basic_publish("bench", "key", b"x")
    channel.basic_consume(queue, acks(n, lambda consuming: consuming.stop_consuming()))
    channel.start_consuming()
    took = time.perf_counter() - began
    channel.queue_delete(queue)
    channel.close()
    return n / took


@contextmanager
def ours() -> Iterator[Measure]:
    from manytail.broker import Broker

    with Broker() as broker, broker.connect() as connection:
        yield lambda n: messages(connection, n)


@contextmanager
def ours_blocking() -> Iterator[Measure]:
    from manytail import broker

    parameters = broker.ConnectionParameters("bench")
    with broker.BlockingConnection(parameters) as connection:
        yield lambda n: messages(connection, n)


def messages_of_threads(connection: Any, n: int) -> float:
    """Messages per second: a thread per queue publishes to it while callbacks on a channel per queue ack."""
    each = max(1, n // CHANNELS)
    consumed = [threading.Event() for _ in range(CHANNELS)]

    def consume(queue: str, done: threading.Event) -> Any:
        channel = connection.channel()
        channel.queue_declare(queue)
        channel.basic_qos(prefetch_count=PREFETCH_OF_FOUR)
        channel.basic_consume(queue, acks(each, lambda _: done.set()))
        return channel

    def publish(channel: Any, queue: str) -> None:
        for _ in range(each):
            channel.basic_publish("", queue, bytes(BODY))

    queues = [f"q{number}" for number in range(CHANNELS)]
    channels = [consume(queue, done) for queue, done in zip(queues, consumed, strict=True)]
    publishing = [connection.channel() for _ in queues]
    threads = [threading.Thread(target=publish, args=pair) for pair in zip(publishing, queues, strict=True)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for done in consumed:
        if not done.wait(DEADLINE):
            raise TimeoutError(f"not all of {each:,} messages per queue came within {DEADLINE:g} s")
    took = time.perf_counter() - began
    for channel, queue in zip(channels, queues, strict=True):
        channel.queue_delete(queue)
    for channel in [*channels, *publishing]:
        channel.close()
    return each * CHANNELS / took


@contextmanager
def ours_threads() -> Iterator[Measure]:
    from manytail.broker import Broker

    with Broker() as broker, broker.connect() as connection:
        yield partial(messages_of_threads, connection)


@contextmanager
def theirs() -> Iterator[Measure]:
    """On the server named by MANYTAIL_RABBITMQ, or on one that is started here."""
    try:
        import pika
    except ImportError as missing:
        raise Unavailable("skipped: pika is not installed") from missing
    with server() as address:
        host, port = address.rsplit(":", 1)
        with pika.BlockingConnection(pika.ConnectionParameters(host, int(port), heartbeat=0)) as connection:
            yield lambda n: messages(connection, n)


@contextmanager
def server() -> Iterator[str]:
    if address := os.environ.get("MANYTAIL_RABBITMQ"):
        yield address
        return
    if shutil.which("rabbitmq-server") is None:
        raise Unavailable("skipped: rabbitmq-server is not installed (make test-rabbitmq installs it)")
    sys.path.insert(0, str(ROOT / "tools"))
    import rabbitmq

    with rabbitmq.running() as address:
        yield address


def patterns(wild: random.Random) -> tuple[list[str], list[str]]:
    """Patterns of two to five words, one word in five a wildcard, and keys of the same words."""
    words = ["".join(wild.choices("abcdefgh", k=3)) for _ in range(PATTERNS_OF_WORDS)]
    made: dict[str, None] = {}
    while len(made) < BINDINGS:
        made[
            ".".join(
                wild.choice("*#") if wild.random() < 0.2 else wild.choice(words) for _ in range(wild.randint(2, 5))
            )
        ] = None
    return list(made), [".".join(wild.choices(words, k=wild.randint(2, 5))) for _ in range(2000)]


@contextmanager
def topic() -> Iterator[Measure]:
    """Microseconds to route a message: from the exchange to its set of queues."""
    from manytail.broker import Broker
    from manytail.broker._protocol import Message

    with Broker() as broker, broker.connect(max_workers=1) as connection:
        channel = connection.channel()
        channel.exchange_declare("topic", "topic")
        for number in range(QUEUES):
            channel.queue_declare(f"q{number}")
        bound, keys = patterns(random.Random(1))
        for number, pattern in enumerate(bound):
            channel.queue_bind(f"q{number % QUEUES}", "topic", pattern)
        exchanges = broker._runtime.host.exchanges
        route: Callable[..., Any] = exchanges.route
        exchange = exchanges.by_name["topic"]
        published = [Message(b"", None, "topic", key) for key in keys]

        def measure(n: int) -> float:
            rounds = max(1, n // len(published))
            began = time.perf_counter()
            for _ in range(rounds):
                for message in published:
                    route(exchange, message)
            return (time.perf_counter() - began) / (rounds * len(published)) * 1e6

        yield measure


def row(
    name: str,
    what: str,
    contestants: dict[str, Factory],
    *targets: Target,
    unit: str = "messages/s",
    n: int = 60_000,
    **more: Any,
) -> Row:
    return Row(name, what, unit, contestants, n=n, targets=targets, **more)


def of_threads(name: str, interpreter: str) -> Row:
    """The bound is what the same program reached on CPython 3.11 when issue 16 was written."""
    what = f"{interpreter}publish, callback, ack: {CHANNELS} publishing threads, {CHANNELS} channels, fresh bytes"
    return row(name, what, {"ours": ours_threads}, Target(">=", 164_600), rounds=9, n=40_000)


ROWS = [
    row(
        "broker",
        "publish, callback, ack through a direct exchange, one channel",
        {"ours": ours},
        Target(">=", 150_000),
        rounds=9,
    ),
    row(
        "broker-blocking",
        "the same with callbacks in the thread of start_consuming, and on a pool",
        {"ours": ours_blocking, "Broker.connect": ours},
        rounds=9,
    ),
    of_threads("broker-4", ""),
    row(
        "broker-rabbitmq",
        "the same beside pika and a RabbitMQ on this machine",
        {"ours": ours, RABBITMQ: theirs},
        Target(">=", 10, RABBITMQ),
        rounds=5,
        tiny=400,
        slow={RABBITMQ: 15},
    ),
    row(
        "broker-topic",
        f"routing through a topic exchange of {BINDINGS:,} bindings",
        {"ours": topic},
        Target("<=", 20),
        unit="us",
        n=20_000,
    ),
]
FREE_THREADED_ROWS = [of_threads("ft-broker-4", "free-threaded: ")]
