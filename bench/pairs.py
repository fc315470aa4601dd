"""Rows with threads: putters and getters on one unbounded queue, with the GIL and without it, for each kind of item."""
from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import loops
from harness import Factory, Measure, Row, Sample, Target
from items import KINDS, get_all, noting_depth, sampled
from rivals import ConditionMultiQueue
from single import CONDITION, SIMPLE, multiqueue, ours, pair, simple_queue
from threaded import race

Make = Callable[[], tuple[list[Any], Any]]  # what each putter puts into, and what the getters get from


def crowd(make: Make, putters: int, getters: int, kind: str) -> Factory:
    """ns per item; a new queue each time, and each thread has its share of the items."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        put_loop, get_loop = loops.fresh(KINDS[kind][1]), loops.fresh(get_all)

        def measure(n: int) -> Sample:
            tails, head = make()
            share = max(1, n // putters // getters)           # divides evenly on both sides
            total = share * putters * getters
            bodies = [partial(put_loop, tails[index % len(tails)], share * getters) for index in range(putters)]
            depths: list[int] = []
            bodies += [
                partial(noting_depth, get_loop, head, head.qsize, share * putters, depths) for _ in range(getters)
            ]
            return sampled(max(race(bodies)) / total * 1e9, depths)

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


def crowd_rows(
    name: str, where: str, putters: int, getters: int, *, tails: int = 1, bound: float | None = None, n: int
) -> list[Row]:
    """A row for each kind of item. The slow rivals run with tuples only: they are far off with any."""
    each = f", {tails} sub-queues" if tails > 1 else ""
    people = f"{putters} putter{'s' * (putters > 1)} + {getters} getter{'s' * (getters > 1)}"
    targets = () if bound is None else (Target("<=", bound, SIMPLE),)

    def row(kind: str, what: str) -> Row:
        made = {"ours": ours_tails(tails), SIMPLE: simple}
        if kind == "tuple":
            made |= {"Queue": stdlib, CONDITION: condition(tails)}
        return Row(
            f"{name}-{kind}", f"{where}: {people}{each}, {what}", "ns/item",
            {rival: crowd(make, putters, getters, kind) for rival, make in made.items()},
            n=n, targets=targets, slow={rival: 20 for rival in ("Queue", CONDITION) if rival in made},
        )

    return [row(kind, what) for kind, (what, _) in KINDS.items()]


def pair_row(name: str, what: str, loop: Any) -> Row:
    return Row(
        name, f"free-threaded: put+get on one thread, {what}", "ns/pair",
        {"ours": pair(ours, loop), SIMPLE: pair(simple_queue, loop)},
        n=300_000, rounds=25, targets=(Target("<=", 1.0, SIMPLE),),
    )


GIL_ROWS = [
    *crowd_rows("gil-1+1", "with the GIL", 1, 1, n=300_000),
    *crowd_rows("gil-2+2", "with the GIL", 2, 2, n=300_000),
]
FREE_THREADED_ROWS = [
    pair_row("ft-pair", "None", loops.pairs),
    pair_row("ft-pair-shared", "one shared object", loops.pairs_shared),
    *crowd_rows("ft-1+1", "free-threaded", 1, 1, n=500_000, bound=0.8),
    *crowd_rows("ft-2+2", "free-threaded", 2, 2, n=500_000, bound=0.8),
    *crowd_rows("ft-2+2-tails", "free-threaded", 2, 2, tails=2, n=500_000, bound=0.8),
]
