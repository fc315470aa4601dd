"""The rows of concurrent_map and aconcurrent_map beside others' ways (ways.py): what an item costs whose call returns
at once, equal calls, calls of which a few are slow, and the memory of a million items. Every way's answers are checked
before it is measured, and while it is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import maps
import ways
from harness import Factory, Measure, Row, Unavailable

FEW, MANY = 16, 64  # calls at once
SECONDS = 0.010
STATUS = Path("/proc/self/status")
PLAIN, ASYNC = "plain functions", "coroutines"
# A way with its function, as a function of the items and of the calls at once.
Collect = Callable[[Sequence[Any], int], list[Any]]


def same(item: int) -> int:
    return item


async def same_async(item: int) -> int:
    return item


async def nap_async(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


def equal(n: int) -> list[float]:
    return [SECONDS] * n


def plain(way: ways.Way, call: ways.Call) -> Collect:
    return lambda items, at_once: list(way(call, items, at_once))


def in_loop(way: ways.AsyncWay, call: ways.AsyncCall) -> Collect:
    async def collect(items: Sequence[Any], at_once: int) -> list[Any]:
        return [result async for result in way(call, items, at_once)]

    return lambda items, at_once: asyncio.run(collect(items, at_once))


def measured(collect: Collect, items_of: Callable[[int], Sequence[Any]], at_once: int,
             clock: Callable[[], float], figure: Callable[[float, int], float]) -> Factory:  # fmt: skip
    """`figure` is made of the seconds by `clock`, and the number of items."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        def measure(n: int) -> float:
            items = items_of(n)
            began = clock()
            results = collect(items, at_once)
            seconds = clock() - began
            assert results == list(items), "lost, doubled or out of order"
            return figure(seconds, n)

        measure(2 * at_once)
        yield measure

    return contestant


def processor_time(collect: Collect) -> Factory:
    """Microseconds of all threads for an item."""
    return measured(collect, range, FEW, time.process_time, lambda seconds, n: seconds / n * 1e6)


def calls_per_second(collect: Collect, waits: Callable[[int], list[float]]) -> Factory:
    return measured(collect, waits, MANY, time.perf_counter, lambda seconds, n: n / seconds)


def contestants(factory: Callable[..., Factory], call: ways.Call, *more: Any) -> dict[str, Factory]:
    return {name: factory(plain(way, call), *more) for name, way in ways.WAYS.items()}


def async_contestants(factory: Callable[..., Factory], call: ways.AsyncCall, *more: Any) -> dict[str, Factory]:
    return {name: factory(in_loop(way, call), *more) for name, way in ways.ASYNC_WAYS.items()}


# -------------------------------------------------------------------------------------------------------------- memory
def taken(kind: str, name: str, n: int) -> None:
    """Take n results one by one, and keep none."""

    async def total() -> int:
        found = 0
        async for result in ways.STREAMS[name](same_async, range(n), FEW):
            found += result
        return found

    found = sum(ways.WAYS[name](same, range(n), FEW)) if kind == PLAIN else asyncio.run(total())
    assert found == n * (n - 1) // 2, "lost or doubled"


def greatest() -> float:
    """The greatest resident set that this process had, in MB."""
    (line,) = (line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def child(kind: str, name: str, n: int) -> float:
    """By how many MB the resident set grows at most. The first use of code is no cost of items."""
    taken(kind, name, 1_000)
    before = greatest()
    taken(kind, name, n)
    return max(0.0, greatest() - before)  # Linux counts in steps: a smaller one is none


def grown(kind: str, name: str) -> Factory:
    """In a new process, so that no freed memory is used again."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        if not STATUS.exists():
            raise Unavailable(f"skipped: the greatest resident set is read from {STATUS}")
        taken(kind, name, 100)

        def measure(n: int) -> float:
            command = [sys.executable, __file__, kind, name, str(n)]
            return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

        yield measure

    return contestant


def row(name: str, what: str, unit: str, contestants: dict[str, Factory], n: int, **more: Any) -> Row:
    return Row(f"beside-{name}", what, unit, contestants, n, rounds=more.pop("rounds", 5), tiny=200, **more)


NO_OP = f"processor time of an item whose call returns at once, {FEW} at once, in order"
EQUAL = f"calls of 10 ms, {MANY} at once, in order"
TAIL = f"calls of 10 ms, 1 % of 500 ms, {MANY} at once, in order"
MEMORY = "greatest growth of the resident set while a million results are taken one by one"
ROWS = [
    row("no-op", f"{PLAIN}: {NO_OP}", "us/item", contestants(processor_time, same), 20_000, rounds=9),
    row("no-op-async", f"{ASYNC}: {NO_OP}", "us/item", async_contestants(processor_time, same_async), 20_000,
        rounds=9, slow={ways.ABL: 10}),
    row("equal", f"{PLAIN}: {EQUAL}", "calls/s", contestants(calls_per_second, maps.call, equal), 6_400),
    row("equal-async", f"{ASYNC}: {EQUAL}", "calls/s", async_contestants(calls_per_second, nap_async, equal), 6_400),
    row("tail", f"{PLAIN}: {TAIL}", "calls/s", contestants(calls_per_second, maps.call, maps.waits), 10_000),
    row("tail-async", f"{ASYNC}: {TAIL}", "calls/s",
        async_contestants(calls_per_second, nap_async, maps.waits), 10_000),
]  # fmt: skip
MEMORY_ROWS = [
    row("memory", f"{PLAIN}: {MEMORY}", "MB", {name: grown(PLAIN, name) for name in ways.WAYS}, 1_000_000,
        rounds=3, warm=False),
    row("memory-async", f"{ASYNC}: {MEMORY}", "MB", {name: grown(ASYNC, name) for name in ways.STREAMS}, 1_000_000,
        rounds=3, warm=False),
]  # fmt: skip

if __name__ == "__main__":
    print(child(sys.argv[1], sys.argv[2], int(sys.argv[3])))
