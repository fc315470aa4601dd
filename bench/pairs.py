"""Rows with threads: putters and getters on one unbounded queue, with the GIL and without it."""
from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import loops
from harness import Factory, Measure, Row, Target
from rivals import ConditionMultiQueue
from single import CONDITION, SIMPLE, multiqueue, ours, pair, simple_queue
from threaded import race

Make = Callable[[], tuple[list[Any], Any]]  # what each putter puts into, and what the getters get from


def crowd(make: Make, putters: int, getters: int) -> Factory:
    """ns per item; a new queue each time, and each thread has its share of the items."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        put_loop, get_loop = loops.fresh(loops.puts), loops.fresh(loops.gets)

        def measure(n: int) -> float:
            tails, head = make()
            share = max(1, n // putters // getters)           # divides evenly on both sides
            total = share * putters * getters
            bodies = [partial(put_loop, tails[index % len(tails)], share * getters) for index in range(putters)]
            bodies += [partial(get_loop, head, share * putters) for _ in range(getters)]
            return max(race(bodies)) / total * 1e9

        yield measure

    return contestant


def ours_tails(tails: int) -> Make:
    def make() -> tuple[list[Any], Any]:
        owner, made = multiqueue(tails)
        return made, owner

    return make


def simple() -> tuple[list[Any], Any]:
    rival: queue.SimpleQueue[Any] = queue.SimpleQueue()
    return [rival], rival


def stdlib() -> tuple[list[Any], Any]:
    rival: queue.Queue[Any] = queue.Queue()
    return [rival], rival


def condition(tails: int) -> Make:
    def make() -> tuple[list[Any], Any]:
        rival = ConditionMultiQueue(tails)
        return list(rival.tails), rival

    return make


def crowd_row(
    name: str, where: str, putters: int, getters: int, *, tails: int = 1, target: Target | None = None, n: int
) -> Row:
    each = f", {tails} sub-queues" if tails > 1 else ""
    people = f"{putters} putter{'s' * (putters > 1)} + {getters} getter{'s' * (getters > 1)}"
    return Row(
        name, f"{where}: {people}{each}", "ns/item",
        {
            "ours": crowd(ours_tails(tails), putters, getters),
            SIMPLE: crowd(simple, putters, getters),
            "Queue": crowd(stdlib, putters, getters),
            CONDITION: crowd(condition(tails), putters, getters),
        },
        n=n, rounds=15, targets=(target,) if target else (), slow={"Queue": 20, CONDITION: 20},
    )


GIL_ROWS = [
    crowd_row("gil-1+1", "with the GIL", 1, 1, n=1_000_000),
    crowd_row("gil-2+2", "with the GIL", 2, 2, n=1_000_000),
]
FREE_THREADED_ROWS = [
    Row(
        "ft-pair", "free-threaded: put+get on one thread", "ns/pair", {"ours": pair(ours), SIMPLE: pair(simple_queue)},
        n=300_000, rounds=25, targets=(Target("<=", 1.2, SIMPLE),),
    ),
    crowd_row("ft-1+1", "free-threaded", 1, 1, n=2_000_000, target=Target("<=", 0.8, SIMPLE)),
    crowd_row("ft-2+2", "free-threaded", 2, 2, n=2_000_000, target=Target("<=", 1.0, SIMPLE)),
    crowd_row("ft-2+2-tails", "free-threaded", 2, 2, tails=2, n=2_000_000),
]
