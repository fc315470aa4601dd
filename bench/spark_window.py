"""What the automatic window of map_concurrent buys where a few calls are slow: rows per second of one task, without a JVM.

Every call sleeps: 10 ms for most rows, 500 ms for one in a hundred, drawn once per row with a fixed seed, so that all contestants wait for the same
calls. Arrow batches go straight into the function that mapInArrow would run. Contestants, with 64 workers each:

    ours        order by input, all defaults
    completion  the same, in the order in which calls finish
    pool        a thread pool per Arrow batch, `pool.map(fn, rows)`: what one writes without manytail

Loads: 20,000 rows in Arrow batches of 1,000, and 5,000 rows in one batch. Prints the median of the rounds' ratios; `--json FILE` writes the rounds.
"""
from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

WORKERS = 64
LOADS = {"20,000 rows in batches of 1,000": (20_000, 1_000), "5,000 rows in one batch": (5_000, 5_000)}
OURS, COMPLETION, POOL = "ours", "completion", "pool"
TARGETS = {(name, POOL): 2.0 if "batches" in name else 0.95 for name in LOADS} | {(name, COMPLETION): 0.9 for name in LOADS}


def latencies(rows: int) -> list[float]:
    chance = random.Random(12)
    return [0.5 if chance.random() < 0.01 else chance.uniform(0.005, 0.015) for _ in range(rows)]


def batches(rows: int, size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, size):
        yield pa.RecordBatch.from_arrays([pa.array(range(start, min(rows, start + size)))], names=["id"])


def ours(sleeps: list[float], order: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    from pyspark.sql import types as T

    from manytail.mapping._options import check
    from manytail.spark._task import Work

    def call(row: Any) -> int:
        time.sleep(sleeps[row.id])
        return 1

    return Work(
        fn=call, options=check(call, {"workers": WORKERS, "order": order}), result=T.StructType([T.StructField("x", T.IntegerType())]),
        names=("id",), types=(T.LongType(),), key=None, priority=None, row_id=None, append=True, error_column=False,
        time_zone="UTC", max_records=10_000,
    ).run  # fmt: skip


def pool(sleeps: list[float]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def call(row: dict[str, Any]) -> int:
        time.sleep(sleeps[row["id"]])
        return 1

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with ThreadPoolExecutor(WORKERS) as executor:
                results = list(executor.map(call, batch.to_pylist()))
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(results, pa.int32())], names=["id", "x"])

    return run


def speed(run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], rows: int, size: int) -> float:
    begin = time.perf_counter()
    out = sum(batch.num_rows for batch in run(batches(rows, size)))
    seconds = time.perf_counter() - begin
    if out != rows:
        raise RuntimeError(f"{out} rows came out of {rows}")
    return rows / seconds


def measure(rounds: int, scale: float) -> dict[str, dict[str, list[float]]]:
    measured: dict[str, dict[str, list[float]]] = {name: {OURS: [], COMPLETION: [], POOL: []} for name in LOADS}
    for _ in range(rounds):
        for name, (rows, size) in LOADS.items():
            rows, size = int(rows * scale), int(size * scale)
            sleeps = latencies(rows)
            contestants = {OURS: ours(sleeps, "input"), COMPLETION: ours(sleeps, "completion"), POOL: pool(sleeps)}
            for contestant, run in contestants.items():
                measured[name][contestant].append(speed(run, rows, size))
    return measured


def report(measured: dict[str, dict[str, list[float]]]) -> str:
    lines = []
    for name, values in measured.items():
        medians = "  ".join(f"{contestant} {statistics.median(speeds):7.0f} rows/s" for contestant, speeds in values.items())
        lines.append(f"{name:32} {medians}")
        for rival in (POOL, COMPLETION):
            ratio = statistics.median(mine / theirs for mine, theirs in zip(values[OURS], values[rival], strict=True))
            lines.append(f"{'':32} ours / {rival}: {ratio:.2f} (to reach: >= {TARGETS[name, rival]})")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="1 round on few rows: does it run?")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    measured = measure(1 if options.smoke else options.rounds, 0.02 if options.smoke else 1.0)
    print(report(measured))
    if options.json is not None:
        options.json.write_text(json.dumps(measured), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
