"""Draws docs/assets/calls-in-flight.svg, the picture of the README, from a run that it measures.

    python bench/picture.py [--calls 5000] [--out docs/assets/calls-in-flight.svg]

The same calls are made in two ways, 64 at once, with results in order: by concurrent_map, and by a thread pool for each
1,000 of them. Each call says when it began and ended; drawn is how many were in flight.
"""
from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from manytail.demo.local.svg import BLUE, ORANGE, Line, chart
from maps import BATCH, WORKERS, ours, pool_per_batch

MEDIAN, SLOW, SLOW_ONES = 0.02, 1.0, 0.01  # seconds; one call in a hundred is slow
STEP = 0.02  # seconds between two points of the curves
Span = tuple[float, float]


def latencies(calls: int) -> list[float]:
    chance = random.Random(1)
    return [SLOW if chance.random() < SLOW_ONES else MEDIAN * chance.lognormvariate(0, 0.3) for _ in range(calls)]


def call(latency: float) -> Span:
    began = time.perf_counter()
    time.sleep(latency)
    return began, time.perf_counter()


def measured(way: Callable[[list[float], Callable[[float], Span]], list[Span]], items: list[float]) -> list[Span]:
    """When calls began and ended, in seconds from the start."""
    start = time.perf_counter()
    return [(began - start, ended - start) for began, ended in way(items, call)]


def in_flight(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """How many calls were in flight, on average over each STEP."""
    spans = list(spans)
    steps = [0.0] * (int(max(ended for _, ended in spans) / STEP) + 1)
    for began, ended in spans:
        for step in range(int(began / STEP), int(ended / STEP) + 1):
            steps[step] += min(ended, (step + 1) * STEP) - max(began, step * STEP)
    return [((step + 0.5) * STEP, busy / STEP) for step, busy in enumerate(steps)]


def picture(mapped: list[Span], theirs: list[Span]) -> str:
    lines = [
        Line(f"a thread pool per {BATCH:,}: {max(ended for _, ended in theirs):.1f} s", ORANGE, in_flight(theirs)),
        Line(f"concurrent_map: {max(ended for _, ended in mapped):.1f} s", BLUE, in_flight(mapped)),
    ]
    title = f"{len(mapped):,} calls, {WORKERS} at once, one in a hundred takes {SLOW:.0f} s, results in order"
    return chart(title, "seconds", "calls in flight", lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=5_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs/assets/calls-in-flight.svg")
    options = parser.parse_args()
    items = latencies(options.calls)
    options.out.write_text(picture(measured(ours, items), measured(pool_per_batch, items)), encoding="utf-8")


if __name__ == "__main__":
    main()
