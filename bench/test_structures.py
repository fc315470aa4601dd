"""What single operations of the other structures cost, by pytest-benchmark: entry queues, pub/sub, lanes, the broker.

`make microbench` runs this and test_single_thread.py, and compares with the runs that were saved before. Where a row
needs threads (lanes, the broker with a pool), the figure is for the whole way there and back.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

import pytest

import entries
import loops
import pubsub
from brokers import acks
from manytail import EntryQueue, LastValueQueue, PriorityEntryQueue, PubSubQueue, SortedEntryQueue
from manytail.broker import BasicProperties, BlockingConnection, Broker, ConnectionParameters
from manytail.executor import KeyedExecutor

N = 1_000
ORDERS: dict[str, Callable[[], Any]] = {
    "EntryQueue": EntryQueue,
    "PriorityEntryQueue": PriorityEntryQueue,
    "SortedEntryQueue": partial(SortedEntryQueue, key=id),
    "LastValueQueue": partial(LastValueQueue, key=id),
}


# ----------------------------------------------------------------------------------------------------- entry queues
@pytest.mark.benchmark(group="entries: put + get + ack")
@pytest.mark.parametrize("order", ORDERS)
def test_acked(benchmark: Any, order: str) -> None:
    queue = ORDERS[order]()
    with queue.subscribe() as subscription:
        benchmark(loops.fresh(entries.acked), queue.put, subscription.get, N)
    assert queue.depth() == 0


@pytest.mark.benchmark(group="entries: put + get + ack")
@pytest.mark.parametrize("options", [{"prefetch": 1}, {"selector": lambda entry: True}], ids=lambda it: next(iter(it)))
def test_acked_by_a_subscription_with_options(benchmark: Any, options: dict[str, Any]) -> None:
    queue: Any = EntryQueue()
    with queue.subscribe(**options) as subscription:
        benchmark(loops.fresh(entries.acked), queue.put, subscription.get, N)
    assert queue.depth() == 0


@pytest.mark.benchmark(group="entries: get + release of one entry, others behind it")
@pytest.mark.parametrize("behind", [0, N])
def test_release(benchmark: Any, behind: int) -> None:
    queue: Any = EntryQueue()
    queue.put_many([None] * (1 + behind))

    def released(get: Callable[[], Any]) -> None:
        for _ in repeat(None, N):
            get().release()

    with queue.subscribe() as subscription:
        benchmark(loops.fresh(released), subscription.get)
    assert queue.qsize() == 1 + behind


@pytest.mark.benchmark(group="entries: in bulk")
@pytest.mark.parametrize("size", [10, N])
def test_bulk_of_entries(benchmark: Any, size: int) -> None:
    queue: Any = EntryQueue()

    def bulk(put_many: Callable[..., Any], subscription: Any, items: list[None]) -> None:
        get_many, ack_up_to, size = subscription.get_many, subscription.ack_up_to, len(items)
        for _ in repeat(None, N // size):
            put_many(items)
            ack_up_to(get_many(size)[-1])

    with queue.subscribe() as subscription:
        benchmark(loops.fresh(bulk), queue.put_many, subscription, [None] * size)
    assert queue.depth() == 0


# ----------------------------------------------------------------------------------------------------------- pub/sub
@pytest.mark.benchmark(group="pub/sub: publish + get by each")
@pytest.mark.parametrize("subscribers", [1, 4, 16])
def test_delivery(benchmark: Any, subscribers: int) -> None:
    queue: Any = PubSubQueue()
    taking = [queue.subscribe() for _ in range(subscribers)]
    benchmark(loops.fresh(pubsub.rounds_of), queue.publish, [one.get for one in taking], N)
    assert queue.qsize() == 0
    for one in taking:
        one.close()


@pytest.mark.benchmark(group="pub/sub: subscribe + close")
@pytest.mark.parametrize("retained", [0, N])
def test_join(benchmark: Any, retained: int) -> None:
    queue: Any = PubSubQueue()
    with queue.subscribe():
        queue.publish_many([None] * retained)

        def joins(subscribe: Callable[[], Any]) -> None:
            for _ in repeat(None, N):
                subscribe().close()

        benchmark(loops.fresh(joins), queue.subscribe)
        assert queue.qsize() == retained


# ------------------------------------------------------------------------------------------------------------- lanes
def nothing() -> None:
    """The call."""


@pytest.mark.benchmark(group="lanes: submit + result")
@pytest.mark.parametrize("keys", [1, 100])
def test_lanes(benchmark: Any, keys: int) -> None:
    with KeyedExecutor(2, per_key=1) as executor:
        lanes = [executor.lane(key) for key in range(keys)]

        def calls() -> None:
            futures = [lanes[number % keys].submit(nothing) for number in range(N)]
            for future in futures:
                future.result()

        benchmark(calls)


@pytest.mark.benchmark(group="lanes: a lane found by its key")
def test_finding_a_lane(benchmark: Any) -> None:
    with KeyedExecutor(1) as executor:
        lanes = [executor.lane(key) for key in range(100)]  # a lane that nobody refers to is forgotten

        def look(lane: Callable[[int], Any]) -> None:
            for _ in repeat(None, N // 100):
                for key in range(100):
                    lane(key)

        benchmark(loops.fresh(look), executor.lane)
        assert executor.lane(7) is lanes[7]


# ------------------------------------------------------------------------------------------------------------ broker
@pytest.fixture
def channel() -> Iterator[Any]:
    """A channel with an exclusive queue named "bench"."""
    with Broker() as broker, broker.connect() as connection:
        made = connection.channel()
        made.queue_declare("bench", exclusive=True)
        yield made


@pytest.mark.benchmark(group="broker: publish + get + ack")
def test_basic_get(benchmark: Any, channel: Any) -> None:
    def polled(publish: Callable[..., Any], get: Callable[..., Any], ack: Callable[..., Any]) -> None:
        for _ in repeat(None, N):
            publish("", "bench", b"x")
            ack(get("bench")[0].delivery_tag)

    benchmark(loops.fresh(polled), channel.basic_publish, channel.basic_get, channel.basic_ack)
    assert channel.queue_declare("bench", passive=True).method.message_count == 0


@pytest.mark.benchmark(group="broker: publish + callback + ack")
def test_callbacks_on_a_pool(benchmark: Any, channel: Any) -> None:
    def round_of_them() -> None:
        done = threading.Event()
        tag = channel.basic_consume("bench", acks(N, lambda _: done.set()))
        for _ in repeat(None, N):
            channel.basic_publish("", "bench", b"x")
        done.wait()
        channel.basic_cancel(tag)

    benchmark(round_of_them)


@pytest.mark.benchmark(group="broker: publish + callback + ack")
def test_callbacks_in_the_thread_that_waits(benchmark: Any) -> None:
    with BlockingConnection(ConnectionParameters("microbench")) as connection:
        channel = connection.channel()
        channel.queue_declare("bench", exclusive=True)

        def round_of_them() -> None:
            tag = channel.basic_consume("bench", acks(N, lambda consuming: consuming.stop_consuming()))
            for _ in repeat(None, N):
                channel.basic_publish("", "bench", b"x")
            channel.start_consuming()
            channel.basic_cancel(tag)

        benchmark(round_of_them)


@pytest.mark.benchmark(group="broker: publish by routing")
@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_routing(benchmark: Any, channel: Any, kind: str) -> None:
    """To one queue of ten that are bound; fanout: to all ten. Each holds one message at most."""
    properties = BasicProperties(headers={"number": 7}) if kind == "headers" else None
    channel.exchange_declare("routes", kind, auto_delete=True)
    for number in range(10):
        queue = channel.queue_declare("", exclusive=True, arguments={"x-max-length": 1}).method.queue
        arguments = {"number": number, "x-match": "all"} if kind == "headers" else None
        channel.queue_bind(queue, "routes", f"key.{number}", arguments=arguments)

    def publishes(publish: Callable[..., Any], properties: Any) -> None:
        for _ in repeat(None, N):
            publish("routes", "key.7", b"x", properties, True)  # mandatory: it raises or returns what reaches no queue

    returned: list[Any] = []
    channel.add_on_return_callback(lambda *message: returned.append(message))
    benchmark(loops.fresh(publishes), channel.basic_publish, properties)
    assert returned == []
