"""Rows on one thread: the cost of a put and a get, with and without idle sub-queues."""
from __future__ import annotations

import queue
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import loops
from harness import Factory, Measure, Row, Target
from rivals import ConditionMultiQueue

SIMPLE = "SimpleQueue"
CONDITION = "deques + Condition"
MANY = 100_000
BULK = 1_000
SEED = 20_261_120  # of the random order, so that every run uses the same


def multiqueue(tails: int) -> tuple[Any, list[Any]]:
    from manytail import MultiQueue

    owner: Any = MultiQueue()
    return owner, [owner.add(key) for key in range(tails)]


# ------------------------------------------------------------------------------------------- one put and one get

def pair(make: Callable[[], tuple[Any, Any]], of: Any = loops.pairs) -> Factory:
    """A contestant of `loops.pairs`, or of another loop. `make` returns its put and get, bound."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        put, get = make()
        loop = loops.fresh(of)
        yield lambda n: loop(put, get, n)

    return contestant


def ours() -> tuple[Any, Any]:
    owner, (tail,) = multiqueue(1)
    return tail.put, owner.get


def simple_queue() -> tuple[Any, Any]:
    rival: queue.SimpleQueue[Any] = queue.SimpleQueue()
    return rival.put, rival.get


def stdlib_queue() -> tuple[Any, Any]:
    rival: queue.Queue[Any] = queue.Queue()
    return rival.put, rival.get


def plain_deque() -> tuple[Any, Any]:
    rival: deque[Any] = deque()
    return rival.append, rival.popleft


def condition_multiqueue() -> tuple[Any, Any]:
    rival = ConditionMultiQueue(5)
    return rival.tails[0].put, rival.get


def culsans_queue() -> tuple[Any, Any]:
    import culsans

    rival = culsans.Queue().sync_q
    return rival.put, rival.get


# ------------------------------------------------------------------------------------------- at a depth

def deep(make: Callable[[], tuple[Any, Any]], depth: int) -> Factory:
    """A contestant of `loops.pairs` with that many items waiting, each an object of its own."""

    def filled() -> tuple[Any, Any]:
        put, get = make()
        for index in range(depth):
            put((index,))
        return put, get

    return pair(filled)


def depth_row(name: str, depth: int) -> Row:
    return Row(
        name,
        f"put+get on one thread, {depth:,} item{'s' * (depth > 1)} waiting",
        "ns/pair",
        {"ours": deep(ours, depth), SIMPLE: deep(simple_queue, depth), "deque": deep(plain_deque, depth)},
        n=200_000,
        rounds=11,
    )


# ------------------------------------------------------------------------------------------ tails, used and idle

def five_of(tails: int, loop: Any) -> Factory:
    """Five sub-queues in use, spread over all of them; with one sub-queue, that one five times."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        owner, made = multiqueue(tails)
        puts = [made[index * tails // 5].put for index in range(5)]
        get = owner.get
        own = loops.fresh(loop)
        yield lambda n: own(puts, get, n)

    return contestant


def shuffled(tails: Sequence[Any]) -> list[Any]:
    order = list(tails)
    random.Random(SEED).shuffle(order)
    return order


def ours_spread(loop: Any) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        owner, tails = multiqueue(MANY)
        puts = [tail.put for tail in shuffled(tails)]
        gets = [owner.get] * MANY
        own = loops.fresh(loop)
        yield lambda n: own(puts, gets, n)

    return contestant


def simple_spread(loop: Any) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        order = shuffled([queue.SimpleQueue() for _ in range(MANY)])
        puts = [rival.put for rival in order]
        gets = [rival.get for rival in order]
        own = loops.fresh(loop)
        yield lambda n: own(puts, gets, n)

    return contestant


# ------------------------------------------------------------------------------------------------------- in bulk

@contextmanager
def ours_bulk() -> Iterator[Measure]:
    owner, (tail,) = multiqueue(1)
    items = [None] * BULK
    loop = loops.fresh(loops.bulks)
    yield lambda n: loop(tail.put_many, owner.get_many, items, n)


PAIR_RIVALS: dict[str, Factory] = {
    SIMPLE: pair(simple_queue),
    "Queue": pair(stdlib_queue),
    "deque": pair(plain_deque),
    CONDITION: pair(condition_multiqueue),
    "culsans": pair(culsans_queue),
}


def five_row(name: str, tails: int, loop: Any, how: str) -> Row:
    idle = f", {tails - 5:,} idle" if tails > 5 else ""
    return Row(
        name, f"put+get, 5 sub-queues in use{idle}, {how}", "ns/pair",
        {"ours": five_of(tails, loop), "1 sub-queue": five_of(1, loop)}, n=300_000, rounds=25,
        targets=(Target("<=", 1.3, "1 sub-queue"),),
    )


ROWS = [
    Row(
        "pair",
        "put+get on one thread, 1 sub-queue",
        "ns/pair",
        {"ours": pair(ours), **PAIR_RIVALS},
        n=300_000,
        rounds=25,
        targets=(Target("<=", 1.2, SIMPLE), Target("<=", 1 / 20, CONDITION)),
        slow={"Queue": 20, CONDITION: 20, "culsans": 20},
        note="culsans takes items as janus does; its queue and Queue are measured on a twentieth of the items, "
        "because they are slow",
    ),
    five_row("five", 5, loops.pairs_on_five, "in turn"),
    five_row("five-of-1k", 1_000, loops.pairs_on_five, "in turn"),
    five_row("five-of-100k", MANY, loops.pairs_on_five, "in turn"),
    five_row("ready", 5, loops.five_ready, "all filled, then drained"),
    five_row("ready-of-1k", 1_000, loops.five_ready, "all filled, then drained"),
    five_row("ready-of-100k", MANY, loops.five_ready, "all filled, then drained"),
    depth_row("depth-1", 1),
    depth_row("depth-1k", 1_000),
    depth_row("depth-100k", 100_000),
    Row(
        "spread",
        "100,000 sub-queues in use, random order: put on one, then get; a SimpleQueue each: put and get on that one",
        "ns/pair",
        {"ours": ours_spread(loops.along), SIMPLE: simple_spread(loops.along)},
        n=2 * MANY,
        rounds=11,
        targets=(Target("<=", 1.5, SIMPLE),),
        note="shuffled lists of bound methods, made before the clock starts",
    ),
    Row(
        "spread-filled",
        "the same, an item in each of the 100,000 before the first get",
        "ns/pair",
        {"ours": ours_spread(loops.fill_then_drain), SIMPLE: simple_spread(loops.fill_then_drain)},
        n=2 * MANY,
        rounds=11,
    ),
    Row(
        "bulk",
        "put_many + get_many of 1,000; SimpleQueue one by one",
        "ns/item",
        {"ours": ours_bulk, SIMPLE: pair(simple_queue)},
        n=300_000,
        rounds=25,
        targets=(Target("<=", 0.4, SIMPLE),),
    ),
]
