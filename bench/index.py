"""Rows of IndexMultiQueue: 64-bit integers moved as arrays."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any

import loops
from harness import Factory, Measure, Row, Target
from single import SIMPLE, pair, simple_queue
from threaded import race

BULK = 10_000
ALONE = "one thread"


def index_queue() -> tuple[Any, Any, Any, Any]:
    """Queue, sub-queue, an array to send and an array to receive into."""
    import numpy

    from manytail import IndexMultiQueue

    owner: Any = IndexMultiQueue()
    return owner, owner.add("rows"), numpy.arange(BULK, dtype=numpy.int64), numpy.empty(BULK, dtype=numpy.int64)


@contextmanager
def arrays() -> Iterator[Measure]:
    head, tail, items, _ = index_queue()
    loop = loops.fresh(loops.bulks)
    yield lambda n: loop(tail.put_many, head.get_many, items, n)


@contextmanager
def arrays_into() -> Iterator[Measure]:
    head, tail, items, out = index_queue()
    loop = loops.fresh(loops.bulks)
    yield lambda n: loop(tail.put_many, lambda size: head.get_many_into(out), items, n)


@contextmanager
def two_copies() -> Iterator[Measure]:
    """The lower bound: what copying in and out costs without a queue."""
    import numpy

    items, middle = numpy.arange(BULK, dtype=numpy.int64), numpy.empty(BULK, dtype=numpy.int64)
    loop = loops.fresh(loops.bulks)
    yield lambda n: loop(lambda array: numpy.copyto(middle, array), lambda size: middle.copy(), items, n)


def together(threads: int) -> Factory:
    """Items per second of all threads, each with its own queue."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        queues = [index_queue() for _ in range(threads)]

        def measure(n: int) -> float:
            turns = max(1, n // BULK)
            seconds = max(race([partial(move, *queue, turns) for queue in queues]))
            return turns * BULK * threads / seconds

        yield measure

    return contestant


def move(head: Any, tail: Any, items: Any, out: Any, turns: int) -> None:
    for _ in repeat(None, turns):
        tail.put_many(items)
        head.get_many_into(out)


ROWS = [
    Row(
        "index",
        "IndexMultiQueue: put_many + get_many of 10,000",
        "ns/item",
        {"ours": arrays, "get_many_into": arrays_into, "two numpy copies": two_copies, SIMPLE: pair(simple_queue)},
        n=5_000_000,
        rounds=15,
        tiny=50_000,
        targets=(Target("<=", 2.0),),
        slow={SIMPLE: 20},
    ),
    Row(
        "index-threads",
        "IndexMultiQueue: two threads, each with its own queue",
        "items/s",
        {"ours": together(2), ALONE: together(1)},
        n=50_000_000,
        rounds=15,
        tiny=50_000,
        targets=(Target(">=", 1.6, ALONE),),
    ),
]
