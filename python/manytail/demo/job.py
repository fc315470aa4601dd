"""The job: the transform runs once, into one Parquet; the enriched flights and the dead letters are both read from that."""

import importlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from .data import Share


class Outputs(NamedTuple):
    """Folders of Parquet files. `calls` is the transform's own output: every flight, in order, with its result or its error."""

    calls: Path
    enriched: Path
    dead: Path

    @classmethod
    def under(cls, folder: Path) -> "Outputs":
        return cls(folder / "calls", folder / "enriched", folder / "dead_letters")


def flights_of(spark: SparkSession, path: Path, share: Share) -> DataFrame:
    """The flights of a share in schedule order, in one partition: turns and limits hold within one task."""
    flights = spark.read.parquet(str(path))
    if share.month is not None:
        flights = flights.where(sf.col("month") == share.month)
    flights = flights.coalesce(1).sortWithinPartitions("seq")
    return flights if share.rows is None else flights.limit(share.rows)


def warm_up(flights: DataFrame, scratch: Path) -> None:
    """A job over a few rows with no call in it: starts Spark's Python worker and loads what a job needs, on both sides.

    It is no part of the measured time, and of two jobs measured one after another the first does not pay for it.
    """
    flights.limit(100).mapInArrow(_load, flights.schema).write.parquet(str(scratch / "warm"))


def _load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    importlib.import_module("manytail.demo.enrich")
    yield from batches


def run(flights: DataFrame, transform: Callable[[DataFrame], DataFrame], calls: Path) -> float:
    """Runs the transform once into `calls`. Seconds from asking Spark for it to its last row on disk."""
    started = time.perf_counter()
    flights.transform(transform).write.mode("overwrite").parquet(str(calls))
    return time.perf_counter() - started


def split(spark: SparkSession, outputs: Outputs, flight: list[str]) -> None:
    """What went well, in schedule order, and what did not, with reasons: each row goes to exactly one of the two. `flight`: the input's columns."""
    calls = spark.read.parquet(str(outputs.calls))
    failed = sf.col("_error").isNotNull()
    calls.where(~failed).drop("_error").write.mode("overwrite").parquet(str(outputs.enriched))
    reason = sf.substring_index("_error.type", ".", -1).alias("reason")
    calls.where(failed).select(*flight, reason, "_error.message", "_error.attempts").write.mode("overwrite").parquet(str(outputs.dead))
