"""Row: what a queued item costs in memory. Each measurement is a process of its own, so that no freed memory is reused.

It is the growth of the resident set while None is put n times; the item itself takes no memory. `python
bench/memory.py NAME N` is that process.
"""
from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat

import single
from harness import Factory, Measure, Row, Target

MAKERS = {
    "ours": single.ours,
    single.SIMPLE: single.simple_queue,
    "Queue": single.stdlib_queue,
    "deque": single.plain_deque,
}
WARM = 1_000  # puts before the measurement: the first use of code and small blocks is no cost of items


def child(name: str, n: int) -> float:
    """Bytes per item of a queue that holds n items."""
    import psutil

    put, get = MAKERS[name]()
    for _ in repeat(None, WARM):
        put(None)
        get()
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    for _ in repeat(None, n):
        put(None)
    return (process.memory_info().rss - before) / n


def grown(name: str) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        def measure(n: int) -> float:
            done = subprocess.run([sys.executable, __file__, name, str(n)], check=True, capture_output=True, text=True)
            return float(done.stdout)

        yield measure

    return contestant


ROWS = [
    Row(
        "memory", "bytes per queued item, 1 million items", "bytes", {name: grown(name) for name in MAKERS},
        n=1_000_000, rounds=3, tiny=100_000, targets=(Target("<=", 24.0),),
    ),
]

if __name__ == "__main__":
    print(child(sys.argv[1], int(sys.argv[2])))
