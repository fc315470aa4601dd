"""The rows of Caller: many threads whose calls are slow, beside threads that call the function themselves; what the way
through a worker costs one thread; and how full batches are, and how long items wait for them."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from harness import Factory, Measure, Row, Target
from threaded import race

THREADS, SECONDS, LINGER = 64, 0.010, 0.005
ALONE, POOL = "each thread calls it", "submit().result()"


def slow(item: int) -> int:
    time.sleep(SECONDS)
    return item


def slow_batch(items: list[int]) -> list[int]:
    time.sleep(SECONDS)
    return items


def same(item: int) -> int:
    return item


def caller(fn: Callable[..., Any], **options: Any) -> Any:
    from manytail.mapping import Caller

    return Caller(fn, **options)


def call_all(call: Callable[[int], int], n: int) -> None:
    for item in range(n):
        assert call(item) == item


def in_threads(call: Callable[[int], int], n: int) -> float:
    """Seconds for n calls in each of the threads."""
    return max(race([partial(call_all, call, n)] * THREADS))


@contextmanager
def ours_in_threads() -> Iterator[Measure]:
    with caller(slow, workers=THREADS) as call:
        in_threads(call, 2)  # its workers are started
        yield lambda n: THREADS * n / in_threads(call, n)


@contextmanager
def themselves() -> Iterator[Measure]:
    yield lambda n: THREADS * n / in_threads(slow, n)


def one_thread(call: Callable[[int], int]) -> Measure:
    """Microseconds of a call, in a thread of its own."""
    return lambda n: race([partial(call_all, call, n)])[0] / n * 1e6


@contextmanager
def ours_alone() -> Iterator[Measure]:
    with caller(same) as call:
        yield one_thread(call)


@contextmanager
def pool_alone() -> Iterator[Measure]:
    with ThreadPoolExecutor(16) as pool:
        yield one_thread(lambda item: pool.submit(same, item).result())


def batched(figure: Callable[[Any], float]) -> Factory:
    """The figure of the Stats of a Caller that all threads call."""
    from manytail.mapping import Batch

    @contextmanager
    def contestant() -> Iterator[Measure]:
        def measure(n: int) -> float:
            with caller(slow_batch, batch=Batch(32, linger=LINGER)) as call:
                in_threads(call, n)
                return figure(call.stats())

        yield measure

    return contestant


ROWS = [
    Row(
        "caller-threads", f"Caller: {THREADS} threads, calls of 10 ms, as many workers", "calls/s",
        {"ours": ours_in_threads, ALONE: themselves},
        n=50, targets=(Target(">=", 0.95, ALONE),), rounds=9, tiny=2,
    ),
    Row(
        "caller-alone", "Caller: fn returns at once, one thread calls", "us/call",
        {"ours": ours_alone, POOL: pool_alone},
        n=5_000, targets=(Target("<=", 1.0, POOL),), rounds=9, tiny=20,
    ),
    Row(
        "caller-batch", f"Caller: {THREADS} threads, Batch(32, linger=5 ms), calls of 10 ms: mean batch", "items",
        {"ours": batched(lambda stats: stats.done / stats.calls)},
        n=50, targets=(Target(">=", 24),), rounds=5, tiny=2,
    ),
    Row(
        "caller-batch-wait", "the same: 99 of 100 items wait for their call at most", "ms",
        {"ours": batched(lambda stats: stats.waited.p99 * 1e3)},
        n=50, targets=(Target("<=", (LINGER + 2 * SECONDS) * 1e3),), rounds=5, tiny=2,
    ),
]  # fmt: skip
