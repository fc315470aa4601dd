"""Rows of PubSubQueue: the cost of publishing and of a delivery, beside one SimpleQueue per subscriber.

`python bench/pubsub.py NAME MESSAGES SUBSCRIBERS` is the process of a memory row: bytes per message not yet taken.
"""
from __future__ import annotations

import gc
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import loops
from harness import Factory, Measure, Row, Sample, Target
from items import KINDS, get_all, noting_depth, sampled

SIMPLE = "SimpleQueue"
EACH = "a SimpleQueue per subscriber"
RETAINED = 1_000_000
RUN = 1_000


def publisher(stack: ExitStack, subscribers: int) -> tuple[Any, list[Any]]:
    """A queue and its subscribers, closed with the stack."""
    from manytail import PubSubQueue

    owner: Any = PubSubQueue()
    return owner, [stack.enter_context(owner.subscribe()) for _ in range(subscribers)]


def publishing(subscribers: int) -> Factory:
    """ns per publish while no subscriber takes anything."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        def measure(n: int) -> float:
            with ExitStack() as stack:
                publish = publisher(stack, subscribers)[0].publish
                messages = range(n)
                began = time.perf_counter()
                for _ in messages:
                    publish(None)
                return (time.perf_counter() - began) / n * 1e9

        yield measure

    return contestant


def rounds_of(publish: Callable[[Any], Any], gets: list[Callable[[], Any]], n: int) -> float:
    """ns per delivery: one message, then one get by each subscriber."""
    messages = range(max(1, n // len(gets)))
    began = time.perf_counter()
    for _ in messages:
        publish(None)
        for get in gets:
            get()
    return (time.perf_counter() - began) / (len(messages) * len(gets)) * 1e9


def rounds_of_each(puts: list[Callable[[Any], Any]], gets: list[Callable[[], Any]], n: int) -> float:
    """The same with a queue for each subscriber: the publisher puts into all."""
    messages = range(max(1, n // len(gets)))
    began = time.perf_counter()
    for _ in messages:
        for put in puts:
            put(None)
        for get in gets:
            get()
    return (time.perf_counter() - began) / (len(messages) * len(gets)) * 1e9


def delivering(subscribers: int) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        with ExitStack() as stack:
            owner, takers = publisher(stack, subscribers)
            gets = [taker.get for taker in takers]
            if subscribers == 1:
                pairs = loops.fresh(loops.pairs)              # one subscriber: no inner loop
                yield lambda n: pairs(owner.publish, gets[0], n)
            else:
                loop = loops.fresh(rounds_of)
                yield lambda n: loop(owner.publish, gets, n)

    return contestant


def delivering_to_each(subscribers: int) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(subscribers)]
        if subscribers == 1:
            pairs = loops.fresh(loops.pairs)
            yield lambda n: pairs(queues[0].put, queues[0].get, n)
        else:
            loop = loops.fresh(rounds_of_each)
            yield lambda n: loop([one.put for one in queues], [one.get for one in queues], n)

    return contestant


# ------------------------------------------------------------------------------------------- two threads
def beside(send: Callable[[int], Any], take: Callable[[int], Any], n: int) -> float:
    """Messages per second: a thread sends n, this thread takes n."""
    sender = threading.Thread(target=send, args=(n,))
    began = time.perf_counter()
    sender.start()
    take(n)
    took = time.perf_counter() - began
    sender.join()
    return n / took


def in_runs() -> Factory:
    """publish_many and get_many."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        with ExitStack() as stack:
            owner, (taker,) = publisher(stack, 1)
            run = [None] * RUN

            def send(n: int) -> None:
                for _ in range(n // RUN):
                    owner.publish_many(run)

            def take(n: int) -> None:
                left = n // RUN * RUN
                while left:
                    left -= len(taker.get_many(left))

            yield lambda n: beside(send, take, max(n, RUN))

    return contestant


class Publisher:
    """What a loop of bench/items.py puts into."""

    def __init__(self, owner: Any) -> None:
        self.put, self.qsize = owner.publish, owner.qsize


def one_by_one(kind: str, make: Callable[[ExitStack], tuple[Any, Any]]) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        with ExitStack() as stack:
            owner, taker = make(stack)
            put_loop, get_loop = loops.fresh(KINDS[kind][1]), loops.fresh(get_all)

            def measure(n: int) -> Sample:
                depths: list[int] = []
                take = partial(noting_depth, get_loop, taker, owner.qsize, depths=depths)
                return sampled(beside(partial(put_loop, owner), take, n), depths)

            yield measure

    return contestant


def ours(stack: ExitStack) -> tuple[Any, Any]:
    owner, (taker,) = publisher(stack, 1)
    return Publisher(owner), taker


def simple(stack: ExitStack) -> tuple[Any, Any]:
    rival: queue.SimpleQueue[Any] = queue.SimpleQueue()
    return rival, rival


# ------------------------------------------------------------------------------------------- what does not grow
def coming_and_going(retained: int) -> Factory:
    """ns per subscribe() and close() while so many messages are retained."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        with ExitStack() as stack:
            owner, _ = publisher(stack, 1)
            owner.publish_many([None] * retained)

            def measure(n: int) -> float:
                began = time.perf_counter()
                for _ in range(n):
                    owner.subscribe().close()
                return (time.perf_counter() - began) / n * 1e9

            yield measure

    return contestant


def child(name: str, n: int, subscribers: int) -> float:
    """Bytes per message that no subscriber has taken."""
    import psutil

    with ExitStack() as stack:
        puts = (
            [publisher(stack, subscribers)[0].publish]
            if name == "ours"
            else [queue.SimpleQueue[Any]().put for _ in range(subscribers)]
        )
        gc.collect()
        process = psutil.Process()
        before = process.memory_info().rss
        for _ in range(n):
            for put in puts:
                put(None)
        return float(process.memory_info().rss - before) / n


def grown(name: str, subscribers: int) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        def measure(n: int) -> float:
            done = subprocess.run(
                [sys.executable, __file__, name, str(n), str(subscribers)], check=True, capture_output=True, text=True
            )
            return float(done.stdout)

        yield measure

    return contestant


def publish_row(subscribers: int, bound: float) -> Row:
    what = f"publish, {subscribers} subscriber{'s' * (subscribers != 1)}, one thread"
    return Row(
        f"pubsub-publish-{subscribers}",
        what,
        "ns/message",
        {"ours": publishing(subscribers)},
        n=200_000,
        targets=(Target("<=", bound),),
    )


def delivery_row(subscribers: int) -> Row:
    return Row(
        f"pubsub-delivery-{subscribers}",
        f"publish + take by each of {subscribers}, one thread",
        "ns/delivery",
        {"ours": delivering(subscribers), EACH: delivering_to_each(subscribers)},
        n=200_000 if subscribers < 16 else 1_600_000,
        targets=(Target("<=", 60.0), *([Target("<=", 1 / 1.5, EACH)] if subscribers == 16 else [])),
    )


ROWS = [
    publish_row(0, 40.0),
    publish_row(1, 60.0),
    publish_row(4, 60.0),
    delivery_row(1),
    delivery_row(4),
    delivery_row(16),
    Row(
        "pubsub-memory",
        "bytes per message of 100,000 that 16 subscribers have before them",
        "bytes",
        {"ours": grown("ours", 16), EACH: grown("each", 16)},
        n=100_000,
        rounds=3,
        tiny=20_000,
        targets=(Target("<=", 0.5, EACH),),
    ),
    Row(
        "pubsub-join",
        f"subscribe() + close() while {RETAINED:,} messages are retained",
        "ns",
        {"ours": coming_and_going(RETAINED), "none retained": coming_and_going(0)},
        n=20_000,
        rounds=7,
        tiny=200,
        targets=(Target("<=", 1.5, "none retained"),),
    ),
]
FREE_THREADED_ROWS = [
    Row(
        "ft-pubsub-runs",
        "free-threaded: 1 publisher + 1 subscriber, publish_many and get_many",
        "messages/s",
        {"ours": in_runs()},
        n=5_000_000,
        rounds=9,
        targets=(Target(">=", 15e6),),
    ),
    *(
        Row(
            f"ft-pubsub-1+1-{kind}",
            f"free-threaded: 1 publisher + 1 subscriber, publish and get, {what}",
            "messages/s",
            {"ours": one_by_one(kind, ours), SIMPLE: one_by_one(kind, simple)},
            n=500_000,
            rounds=9,
            targets=(Target(">=", 0.8, SIMPLE),),
        )
        for kind, (what, _) in KINDS.items()
    ),
]


if __name__ == "__main__":
    print(child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
