"""Rows of KeyedExecutor beside ThreadPoolExecutor: the cost of a call, and how long keys wait behind a busy one."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from harness import Factory, Measure, Row, Target

POOL = "ThreadPoolExecutor"
WORKERS = 8
KEYS = 16
BACKLOG = 20_000
ENOUGH = 100                                                  # tasks of each other key


def no_op() -> None:
    """The task."""


def keyed() -> Any:
    from manytail.executor import KeyedExecutor

    return KeyedExecutor(WORKERS)


def take(item: tuple[int]) -> tuple[int]:
    """The task of the rows whose items are fresh tuples."""
    return item


def round_trips(make: Callable[[], Executor]) -> Factory:
    """Tasks per second, each with a fresh tuple as its argument and its result taken."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        with make() as executor:
            wait([executor.submit(time.sleep, 0.01) for _ in range(WORKERS)])

            def measure(n: int) -> float:
                submit = executor.submit
                began = time.perf_counter()
                futures = [submit(take, (number,)) for number in range(1_000, 1_000 + n)]
                for future in futures:
                    future.result()
                return n / (time.perf_counter() - began)

            yield measure

    return contestant


def throughput(make: Callable[[], Executor], keys: int) -> Factory:
    """Tasks per second from the first submit until the last result. Executor, threads and lanes are made before."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        with make() as executor:
            submits = [executor.submit]
            if keys:
                submits = [executor.lane(key).submit for key in range(keys)]  # type: ignore[attr-defined]
            wait([executor.submit(time.sleep, 0.01) for _ in range(WORKERS)])

            def measure(n: int) -> float:
                rounds = max(1, n // len(submits))
                began = time.perf_counter()
                wait([submit(no_op) for _ in range(rounds) for submit in submits])
                return rounds * len(submits) / (time.perf_counter() - began)

            yield measure

    return contestant


def behind_a_backlog(heavy: int) -> Factory:
    """Milliseconds until every other key has had ENOUGH tasks done, the heavy key's submitted first."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        def measure(n: int) -> float:
            others = Countdown((KEYS - 1) * ENOUGH)
            executor = keyed()
            lanes = [executor.lane(key) for key in range(KEYS)]
            lanes[0].pause()                                  # both contestants start with all their tasks submitted
            for _ in range(heavy):
                lanes[0].submit(time.sleep, 0.001)
            for lane in lanes[1:]:
                lane.pause()
                for _ in range(ENOUGH):
                    lane.submit(others.task)
            began = time.perf_counter()
            for lane in lanes:
                lane.resume()
            others.wait()
            took = time.perf_counter() - began
            executor.shutdown(cancel_futures=True)
            return took * 1e3

        yield measure

    return contestant


class Countdown:
    """A task that sleeps 1 ms, and an event that is set once n of them are done."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.lock = threading.Lock()
        self.done = threading.Event()

    def task(self) -> None:
        time.sleep(0.001)
        with self.lock:
            self.left -= 1
            if self.left == 0:
                self.done.set()

    def wait(self) -> None:
        if not self.done.wait(600):
            raise TimeoutError(f"{self.left} tasks were not done")


def row(keys: int, bound: float, name: str) -> Row:
    return Row(
        name, f"KeyedExecutor, no-op tasks, {WORKERS} workers, {keys:,} key{'s' * (keys > 1)}", "tasks/s",
        {"ours": throughput(keyed, keys), POOL: throughput(lambda: ThreadPoolExecutor(WORKERS), 0)},
        n=40_000, rounds=15, targets=(Target(">=", bound, POOL),),
    )


def tuples(name: str, interpreter: str) -> Row:
    return Row(
        name, f"{interpreter}KeyedExecutor, submit and result, fresh tuples, {WORKERS} workers", "tasks/s",
        {"ours": round_trips(keyed), POOL: round_trips(lambda: ThreadPoolExecutor(WORKERS))},
        n=20_000, rounds=9, targets=(Target(">=", 1.0, POOL),),
    )


BALANCED = f"backlog of {ENOUGH}"
ROWS = [
    row(1, 1.0, "executor-1-key"),
    row(10_000, 0.8, "executor-10000-keys"),
    tuples("executor-tuple", ""),
    Row(
        "executor-fairness",
        f"{KEYS} keys, tasks of 1 ms, {WORKERS} workers, {BACKLOG:,} of one first: "
        f"until {ENOUGH} of each other are done",
        "ms",
        {"ours": behind_a_backlog(BACKLOG), BALANCED: behind_a_backlog(ENOUGH)},
        n=1,
        rounds=5,
        tiny=1,
        targets=(Target("<=", 1.2, BALANCED),),
    ),
]
FREE_THREADED_ROWS = [tuples("ft-executor-tuple", "free-threaded: ")]
