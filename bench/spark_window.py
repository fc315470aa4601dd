"""What the automatic window of map_concurrent gains where a few calls are slow: rows per second of a Spark job with
one task.

Every call sleeps: 10 ms for most rows, 500 ms for one in a hundred, drawn once per row with a fixed seed, so that all
contestants wait for the same calls. Contestants, with 64 workers each, on local[1], a warm worker and the same rows:

    ours        df.transform(map_concurrent, ...): order by input, all defaults
    completion  the same, in the order in which calls finish
    pool        mapInArrow with a thread pool per Arrow batch, `pool.map(fn, rows)`: what one writes without manytail

Loads: 20,000 rows in Arrow batches of 1,000 (spark.sql.execution.arrow.maxRecordsPerBatch), and 5,000 rows in one
batch. A time is the wall time of the job, which reads all rows and keeps nothing. Prints the median of the rounds'
ratios; `--json FILE` writes the rounds. Exit status 3 where PySpark, pyarrow or Java is missing.
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

from spark_map_concurrent import Missing, run_job, session

WORKERS = 64
LOADS = {"20,000 rows in batches of 1,000": (20_000, 1_000), "5,000 rows in one batch": (5_000, 5_000)}
OURS, COMPLETION, POOL = "ours", "completion", "pool"
TARGETS = {(name, POOL): target for name, target in zip(LOADS, (2.0, 0.95), strict=True)}
TARGETS |= {(name, COMPLETION): 0.9 for name in LOADS}


def latencies(rows: int) -> list[float]:
    chance = random.Random(12)
    return [0.5 if chance.random() < 0.01 else chance.uniform(0.005, 0.015) for _ in range(rows)]


def ours(df: Any, sleeps: list[float], order: str) -> Any:
    from manytail.spark import map_concurrent

    def call(row: Any) -> int:
        time.sleep(sleeps[row.id])
        return 1

    return df.transform(map_concurrent, call, "x int", workers=WORKERS, order=order)


def pool(df: Any, sleeps: list[float]) -> Any:
    import pyarrow as pa

    def call(row: dict[str, Any]) -> int:
        time.sleep(sleeps[row["id"]])
        return 1

    def call_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with ThreadPoolExecutor(WORKERS) as executor:
                results = list(executor.map(call, batch.to_pylist()))
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(results, pa.int32())], names=["id", "x"])

    return df.mapInArrow(call_batches, "id long, x int")


def contestants(spark: Any, rows: int) -> dict[str, Callable[[], float]]:
    """For each contestant a function that runs it over so many rows and returns rows per second."""
    df, sleeps = spark.range(0, rows, 1, 1), latencies(rows)
    made = {OURS: ours(df, sleeps, "input"), COMPLETION: ours(df, sleeps, "completion"), POOL: pool(df, sleeps)}
    return {name: lambda one=one: rows / run_job(one) for name, one in made.items()}


def measure(spark: Any, rounds: int, scale: float) -> dict[str, dict[str, list[float]]]:
    measured: dict[str, dict[str, list[float]]] = {name: {OURS: [], COMPLETION: [], POOL: []} for name in LOADS}
    for run in contestants(spark, 200).values():  # warm-up: the worker imports everything, the JVM compiles it
        run()
    for number in range(rounds):
        for name, (rows, size) in LOADS.items():
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(int(size * scale)))
            runs = list(contestants(spark, int(rows * scale)).items())
            for contestant, run in reversed(runs) if number % 2 else runs:
                measured[name][contestant].append(run())
    return measured


def report(measured: dict[str, dict[str, list[float]]]) -> str:
    lines = []
    for name, values in measured.items():
        medians = [f"{contestant} {statistics.median(speeds):7.0f} rows/s" for contestant, speeds in values.items()]
        lines.append(f"{name:32} {'  '.join(medians)}")
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
    try:
        spark = session()
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 3
    try:
        measured = measure(spark, 1 if options.smoke else options.rounds, 0.02 if options.smoke else 1.0)
    finally:
        spark.stop()
    print(report(measured))
    if options.json is not None:
        options.json.write_text(json.dumps(measured), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
