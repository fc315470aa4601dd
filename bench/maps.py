"""The rows of concurrent_map: calls of which a few are slow, in order, beside a thread pool per thousand calls; and
what an item costs whose call returns at once, beside a thread pool's map, and with one option more beside without.
And what a row of map_arrow costs whose call returns a constant, beside the way of its batch to Python and back."""
from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from harness import Factory, Measure, Row, Target

WORKERS = 64
BATCH = 1_000
POOL = "a pool per 1,000"
FEW, POOL_MAP, PLAIN = 16, "ThreadPoolExecutor.map", "without it"
MEDIAN, SLOW = 0.010, 0.500                                   # seconds; one call in a hundred is slow



def waits(n: int) -> list[float]:
    chance = random.Random(1)
    return [SLOW if chance.random() < 0.01 else MEDIAN * chance.lognormvariate(0, 0.3) for _ in range(n)]


def call(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def ours(items: list[float], call: Callable[[float], Any] = call) -> list[Any]:
    from manytail.mapping import concurrent_map

    return list(concurrent_map(call, items, workers=WORKERS))


def pool_per_batch(items: list[float], call: Callable[[float], Any] = call) -> list[Any]:
    results: list[Any] = []
    for start in range(0, len(items), BATCH):
        with ThreadPoolExecutor(WORKERS) as pool:
            results += pool.map(call, items[start : start + BATCH])
    return results


def calls_per_second(way: Callable[[list[float]], list[float]]) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        def measure(n: int) -> float:
            items = waits(n)
            began = time.perf_counter()
            done = way(items)
            seconds = time.perf_counter() - began
            assert done == items, "lost, doubled or out of order"
            return n / seconds

        yield measure

    return contestant


def same(item: int) -> int:
    return item


def costs_per_item(way: Callable[[range], Iterator[int]]) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        def measure(n: int) -> float:
            began = time.perf_counter()
            done = sum(1 for _ in way(range(n)))
            seconds = time.perf_counter() - began
            assert done == n
            return seconds / n * 1e6

        yield measure

    return contestant


def ours_at_once(items: range) -> Iterator[int]:
    from manytail.mapping import concurrent_map

    return concurrent_map(same, items, workers=FEW)


def optioned_at_once(options: Callable[[], dict[str, Any]]) -> Callable[[range], Iterator[int]]:
    def way(items: range) -> Iterator[int]:
        from manytail.mapping import concurrent_map

        return concurrent_map(same, items, workers=FEW, **options())

    return way


def one(item: int) -> float:
    return 1.0


def class_of(item: int) -> int:
    return item % 64


def rate() -> dict[str, Any]:
    from manytail.mapping import Rate

    return {"limits": Rate(10**9)}


def three_limits() -> dict[str, Any]:
    from manytail.mapping import Budget, Rate

    return {"limits": [Rate(10**9), Rate(10**9, cost=one), Budget(10**12)]}


def breaker() -> dict[str, Any]:
    from manytail.mapping import Breaker

    return {"breaker": Breaker(3)}


def pool_at_once(items: range) -> Iterator[int]:
    with ThreadPoolExecutor(FEW) as pool:
        yield from pool.map(same, items)


def at_once(name: str, interpreter: str) -> Row:
    return Row(
        name, f"{interpreter}concurrent_map: fn returns at once, {FEW} workers", "us/item",
        {"ours": costs_per_item(ours_at_once), POOL_MAP: costs_per_item(pool_at_once)},
        n=20_000, targets=(Target("<=", 0.5, POOL_MAP),), rounds=9, tiny=200,
    )  # fmt: skip


def optioned(name: str, what: str, options: Callable[[], dict[str, Any]], bound: float) -> Row:
    return Row(
        f"map-{name}", f"concurrent_map: fn returns at once, {FEW} workers, {what}", "us/item",
        {"ours": costs_per_item(optioned_at_once(options)), PLAIN: costs_per_item(ours_at_once)},
        n=20_000, targets=(Target("<=", bound, PLAIN),), rounds=9, tiny=200,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- Arrow
ARROW, ARROW_BATCH = "to_pylist + from_pylist", 10_000


def arrow_batches(rows: int) -> list[Any]:
    """Eight columns like those of the flights, with a null in each fiftieth row."""
    import pyarrow as pa

    numbers = range(rows)
    columns = {
        "year": pa.array([2013] * rows, pa.int64()),
        "month": [number % 12 for number in numbers],
        "carrier": ["UA" if number % 3 else "AA" for number in numbers],
        "tailnum": [f"N{number % 4_000}" if number % 50 else None for number in numbers],
        "distance": [number % 3_000 for number in numbers],
        "delay": [number / 7 for number in numbers],
        "late": [number % 5 == 0 for number in numbers],
        "day": [number % 31 for number in numbers],
    }
    return pa.table(columns).to_batches(max_chunksize=ARROW_BATCH)


def ours_of_batches(batches: list[Any]) -> Iterator[Any]:
    import pyarrow as pa

    from manytail.arrow import map_arrow

    return map_arrow(lambda row: 1, batches, pa.schema({"x": pa.int64()}), workers=FEW)


def through_python(batches: list[Any]) -> Iterator[Any]:
    import pyarrow as pa

    return (pa.RecordBatch.from_pylist(batch.to_pylist(), batch.schema) for batch in batches)


def costs_per_row(way: Callable[[list[Any]], Iterator[Any]]) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        def measure(n: int) -> float:
            batches = arrow_batches(n)
            began = time.process_time()
            done = sum(batch.num_rows for batch in way(batches))
            seconds = time.process_time() - began
            assert done == n
            return seconds / n * 1e6

        yield measure

    return contestant


ROWS = [
    Row(
        "map-long-tail", "concurrent_map: median 10 ms, 1 % of 500 ms, 64 workers, in order", "calls/s",
        {"ours": calls_per_second(ours), POOL: calls_per_second(pool_per_batch)},
        n=10_000, targets=(Target(">=", 2.0, POOL),), rounds=5, tiny=100,
    ),
    at_once("map-at-once", ""),
    optioned("key", "key", lambda: {"key": class_of}, 2.5),
    optioned("rate", "a Rate of 10**9", rate, 2.5),
    optioned("breaker", "a Breaker", breaker, 2.5),
    optioned("dedup", "dedup", lambda: {"dedup": 1_000}, 2.5),
    optioned("priority", "64 priorities", lambda: {"priority": class_of}, 2.5),
    optioned("limits", "two Rates, one with costs, and a Budget", three_limits, 4.0),
    Row(
        "map-arrow", f"map_arrow: fn returns a constant, 8 columns, batches of 10,000, {FEW} workers, processor time",
        "us/row", {"ours": costs_per_row(ours_of_batches), ARROW: costs_per_row(through_python)},
        n=300_000, targets=(Target("<=", 1.6, ARROW),), rounds=9, tiny=200,
    ),
]  # fmt: skip
FREE_THREADED_ROWS = [at_once("ft-map-at-once", "free-threaded: ")]
