"""What single operations cost on one thread, by pytest-benchmark: `python -m pytest bench/test_single_thread.py`.

Each benchmark runs a thousand operations of a kind, so that calling the benchmark itself does not show.
"""
from __future__ import annotations

import queue
from collections.abc import Callable
from itertools import repeat
from typing import Any

import pytest

import loops
import single
from manytail import IndexMultiQueue, MultiQueue

N = 1_000


def filled(selection: str, tails: int) -> tuple[Any, list[Any]]:
    """A queue with N items, spread over its sub-queues."""
    owner: Any = MultiQueue(selection=selection)  # type: ignore[arg-type]
    made = [owner.add(key) for key in range(tails)]
    for index in range(N):
        made[index % tails].put(None)
    return owner, made


def repeated(call: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
    """N calls in a loop with its own code object (loops.fresh)."""

    def loop(call: Any, arguments: Any) -> None:
        for _ in repeat(None, N):
            call(*arguments)

    own = loops.fresh(loop)
    return lambda: own(call, arguments)


@pytest.mark.benchmark(group="put+get")
@pytest.mark.parametrize(
    "make", [single.ours, single.simple_queue, single.stdlib_queue, single.plain_deque, single.condition_multiqueue]
)
def test_pair(benchmark: Any, make: Callable[[], tuple[Any, Any]]) -> None:
    put, get = make()
    loop = loops.fresh(loops.pairs)
    benchmark(loop, put, get, N)


@pytest.mark.benchmark(group="put+get by selection, 5 tails")
@pytest.mark.parametrize("selection", ["round_robin", "weighted", "oldest"])
def test_selection(benchmark: Any, selection: str) -> None:
    owner, tails = filled(selection, 5)
    loop = loops.fresh(loops.pairs_on_five)
    benchmark(loop, [tail.put for tail in tails], owner.get, N)
    assert owner.qsize() == N


@pytest.mark.benchmark(group="put+get, bounded or not")
@pytest.mark.parametrize("maxsize", [0, 1, N])
def test_bound(benchmark: Any, maxsize: int) -> None:
    owner: Any = MultiQueue()
    tail = owner.add("only", maxsize=maxsize)
    loop = loops.fresh(loops.pairs)
    benchmark(loop, tail.put, owner.get, N)
    assert owner.empty()


@pytest.mark.benchmark(group="other ways in and out")
@pytest.mark.parametrize(
    "ways", [("put", "get"), ("put_nowait", "get_nowait"), ("put_front", "get"), ("put", "get_with_key")], ids="+".join
)
def test_ways(benchmark: Any, ways: tuple[str, str]) -> None:
    owner: Any = MultiQueue()
    tail = owner.add("only")
    loop = loops.fresh(loops.pairs)
    benchmark(loop, getattr(tail, ways[0]), getattr(owner, ways[1]), N)
    assert owner.empty()


@pytest.mark.benchmark(group="looking")
@pytest.mark.parametrize("what", ["peek", "qsize", "empty"])
def test_look(benchmark: Any, what: str) -> None:
    owner, _ = filled("round_robin", 5)
    benchmark(repeated(getattr(owner, what)))
    assert owner.qsize() == N


@pytest.mark.benchmark(group="put_many + get_many")
@pytest.mark.parametrize("size", [1, 10, 100, N])
def test_bulk(benchmark: Any, size: int) -> None:
    owner: Any = MultiQueue()
    tail = owner.add("only")
    loop = loops.fresh(loops.bulks)
    benchmark(loop, tail.put_many, owner.get_many, [None] * size, N)
    assert owner.empty()


@pytest.mark.benchmark(group="integers one by one")
@pytest.mark.parametrize("kind", [MultiQueue, IndexMultiQueue])
def test_integers(benchmark: Any, kind: Any) -> None:
    owner = kind()
    tail = owner.add("only")

    def pairs(put: Any, get: Any) -> int:
        total = 0
        for item in range(N):
            put(item)
            total += get()
        return total

    assert benchmark(loops.fresh(pairs), tail.put, owner.get) == N * (N - 1) // 2


@pytest.mark.benchmark(group="misses")
@pytest.mark.parametrize("kind", [MultiQueue, queue.SimpleQueue, queue.Queue])
def test_empty(benchmark: Any, kind: Any) -> None:
    """get_nowait on an empty queue: the cost of raising Empty."""

    def misses(get_nowait: Any) -> int:
        missed = 0
        for _ in repeat(None, N):
            try:
                get_nowait()
            except queue.Empty:
                missed += 1
        return missed

    assert benchmark(loops.fresh(misses), kind().get_nowait) == N
