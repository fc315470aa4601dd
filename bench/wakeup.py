"""How long a blocked getter takes to wake up, and what it costs while it sleeps.

    python bench/wakeup.py [--quick] [--json FILE]

Handoff: two threads bounce one item over two queues, both blocking. A bounce is two handoffs; half of its time is one.
Nothing else runs, so every get really waits. Idle: a thread waits in `get` for two lengths of time. The difference in
its CPU time and in its voluntary context switches (one per wake-up) is the cost of waiting itself. It would show
polling; the goal is 0.
"""
from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness
from threaded import race

Make = Callable[[], tuple[Any, Any]]                          # what to put into, what to get from


def ours() -> tuple[Any, Any]:
    from manytail import MultiQueue

    owner: Any = MultiQueue()
    return owner.add("only"), owner


def simple() -> tuple[Any, Any]:
    rival: queue.SimpleQueue[Any] = queue.SimpleQueue()
    return rival, rival


def stdlib() -> tuple[Any, Any]:
    rival: queue.Queue[Any] = queue.Queue()
    return rival, rival


CONTESTANTS: dict[str, Make] = {"ours": ours, "SimpleQueue": simple, "Queue": stdlib}


# ----------------------------------------------------------------------------------------------------------- handoff

def bounce(make: Make, n: int) -> list[float]:
    """Microseconds of n handoffs, each half of a bounce."""
    there_tail, there_head = make()
    back_tail, back_head = make()
    times: list[float] = []
    race([partial(serve, there_tail.put, back_head.get, n, times), partial(answer, there_head.get, back_tail.put, n)])
    return times


def serve(put: Callable[[Any], None], get: Callable[[], Any], n: int, times: list[float]) -> None:
    clock = time.perf_counter_ns
    for _ in range(n):
        began = clock()
        put(None)
        get()
        times.append((clock() - began) / 2_000)


def answer(get: Callable[[], Any], put: Callable[[Any], None], n: int) -> None:
    for _ in range(n):
        get()
        put(None)


# -------------------------------------------------------------------------------------------------------------- idle

def idle(make: Make, short: float, long: float) -> dict[str, float]:
    """What one more second of waiting in `get` costs the waiting thread."""
    cpu_short, wakes_short = blocked(make, short)
    cpu_long, wakes_long = blocked(make, long)
    seconds = long - short
    return {
        "cpu_us_per_s": max(0.0, (cpu_long - cpu_short) / seconds * 1e6),
        "wakes_per_s": max(0.0, (wakes_long - wakes_short) / seconds),
    }


def blocked(make: Make, seconds: float) -> tuple[float, int]:
    """CPU seconds and voluntary context switches of one `get` that waits that long."""
    tail, head = make()
    used: list[tuple[float, int]] = []
    entered = threading.Event()

    def wait() -> None:
        cpu, wakes = time.thread_time(), voluntary_switches()
        entered.set()
        head.get()
        used.append((time.thread_time() - cpu, voluntary_switches() - wakes))

    def feed() -> None:
        entered.wait()
        time.sleep(seconds)                                   # the wait that is measured, not a synchronisation
        tail.put(None)

    race([wait, feed])
    return used[0]


def voluntary_switches() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


# ------------------------------------------------------------------------------------------------------------- report

def curves(n: int, rounds: int) -> dict[str, list[float]]:
    """The 1st to 99th percentile of a handoff in microseconds, each the median over rounds."""
    cuts: dict[str, list[list[float]]] = {name: [] for name in CONTESTANTS}
    for _ in range(rounds):
        for name, make in CONTESTANTS.items():
            cuts[name].append(statistics.quantiles(bounce(make, n), n=100, method="inclusive"))
    return {name: [statistics.median(values) for values in zip(*rows, strict=True)] for name, rows in cuts.items()}


def measure(n: int, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Contestants alternate within a round; percentiles are per round, the figure is their median."""
    handoffs: dict[str, list[list[float]]] = {name: [] for name in CONTESTANTS}
    for done in range(rounds):
        print(f"wakeup: round {done + 1}/{rounds}", file=sys.stderr, flush=True)
        for name, make in CONTESTANTS.items():
            handoffs[name].append(bounce(make, n))
    figures = {}
    for name, make in CONTESTANTS.items():
        print(f"wakeup: {name} idle", file=sys.stderr, flush=True)
        cuts = [statistics.quantiles(times, n=100, method="inclusive") for times in handoffs[name]]
        figures[name] = {
            "handoff_p50_us": statistics.median(cut[49] for cut in cuts),
            "handoff_p99_us": statistics.median(cut[98] for cut in cuts),
            **idle(make, seconds / 10, seconds),
        }
    return figures


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench/wakeup.py", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer handoffs, shorter waits")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args(argv)
    n, rounds, seconds = (500, 2, 0.2) if options.quick else (10_000, 7, 3.0)
    figures = measure(n, rounds, seconds)
    columns = list(next(iter(figures.values())))
    print(f"{'':12}" + "".join(f"{column:>18}" for column in columns))
    for name, values in figures.items():
        print(f"{name:12}" + "".join(f"{values[column]:18.3f}" for column in columns))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(
            json.dumps({"environment": harness.environment(), "figures": figures}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
