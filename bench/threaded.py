"""The threaded driver: all threads wait at a barrier; each is timed from the moment it opens.

Starting a thread costs as much as thousands of queue operations, so it is outside the measured time.
"""
from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

Body = Callable[[], float | None]  # may return the perf_counter() at which its own work ended
DEADLINE = 600.0  # seconds; ends a hang with a message


def race(bodies: Sequence[Body]) -> list[float]:
    """Run each body in its own thread, from a common start. Returns the seconds that each took."""
    began = 0.0

    def start_clock() -> None:
        nonlocal began
        began = time.perf_counter()

    barrier = threading.Barrier(len(bodies), action=start_clock)
    ended: queue.SimpleQueue[tuple[int, float | BaseException]] = queue.SimpleQueue()

    def run(index: int, body: Body) -> None:
        try:
            barrier.wait()
            at = body()
            ended.put((index, time.perf_counter() if at is None else at))
        except BaseException as failure:
            barrier.abort()
            ended.put((index, failure))

    threads = [threading.Thread(target=run, args=(index, body), daemon=True) for index, body in enumerate(bodies)]
    for thread in threads:
        thread.start()
    times = collect(ended, len(threads))
    for thread in threads:
        thread.join()
    return [at - began for at in times]


def collect(ended: queue.SimpleQueue[tuple[int, float | BaseException]], count: int) -> list[float]:
    """When each thread ended. Raises the first failure at once: other threads may wait for the failed one for ever."""
    times = [0.0] * count
    limit = time.monotonic() + DEADLINE
    for _ in range(count):
        try:
            index, at = ended.get(timeout=max(0.0, limit - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"{times.count(0.0)} of {count} threads still run after {DEADLINE:g} s") from None
        if isinstance(at, BaseException):
            raise at
        times[index] = at
    return times
