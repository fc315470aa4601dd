"""Three outputs of one pass over a year of flights: delays per airport, statistics per carrier, late flights as JSON.

    python examples/flights/fan_out.py [--out DIR]

Three Spark jobs would read the flights three times. Here each task reads its part once. Every sink runs in its own
thread over the same Arrow batches and returns what its task found; the driver adds these up. A sink that fails loses
its own output and no other.
"""

import argparse
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manytail.demo import data
from manytail.demo.session import spark_session
from manytail.spark import fan_out

# What every sink returns for its task: sums that can be added up, and the files that it wrote.
SCHEMA = "groups array<struct<key string, flights long, flown long, delay long>>, files array<string>"
LATE = 120  # minutes


def sums_by(key: str, delay: str) -> Callable[[Iterator[pa.RecordBatch]], dict[str, Any]]:
    """A sink that counts, by a column, the flights, those that flew, and minutes of delay."""

    def sink(batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        parts = [pa.table({"key": batch[key], "delay": batch[delay].cast(pa.int64())}) for batch in batches]
        if not parts:
            return {"groups": []}
        sums = (
            pa.concat_tables(parts).group_by("key").aggregate([([], "count_all"), ("delay", "count"), ("delay", "sum")])
        )
        columns = (sums["key"], sums["count_all"], sums["delay_count"], pc.fill_null(sums["delay_sum"], 0))
        names = ("key", "flights", "flown", "delay")
        return {
            "groups": [
                dict(zip(names, row, strict=True))
                for row in zip(*(column.to_pylist() for column in columns), strict=True)
            ]
        }

    return sink


def late_flights(folder: str) -> Callable[[Iterator[pa.RecordBatch]], dict[str, Any]]:
    """A sink that writes one JSON line per late flight. A retried task writes a new file; only returned files count."""

    def sink(batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        path = Path(folder, f"late-{uuid.uuid4().hex}.jsonl")
        with path.open("w", encoding="utf-8") as file:
            for batch in batches:
                late = batch.filter(pc.greater_equal(batch["dep_delay"], LATE))
                for row in late.select(["seq", "carrier", "flight", "origin", "dest", "dep_delay"]).to_pylist():
                    file.write(json.dumps(row) + "\n")
        return {"groups": [], "files": [str(path)]}

    return sink


def in_one_pass(flights: DataFrame, folder: Path) -> DataFrame:
    """Lazy, as every transform: one row per task and sink."""
    sinks = {
        "airports": sums_by("dest", "arr_delay"),
        "carriers": sums_by("carrier", "dep_delay"),
        "late": late_flights(str(folder)),
    }
    return fan_out(flights, sinks, schema=SCHEMA)


def added_up(done: DataFrame, sink: str) -> DataFrame:
    """The sums of all tasks."""
    one = sf.col("group")
    groups = done.where(sf.col("sink") == sink).select(sf.explode("result.groups").alias("group"))
    return groups.groupBy(one.key.alias("key")).agg(
        *(sf.sum(one[name]).alias(name) for name in ("flights", "flown", "delay"))
    )


def late_files(done: DataFrame) -> list[str]:
    return [row[0] for row in done.where(sf.col("sink") == "late").select(sf.explode("result.files")).collect()]


def main(out: Path) -> None:
    pq.write_table(data.flights(), out / "flights.parquet")
    late = out / "late"
    late.mkdir(exist_ok=True)
    with spark_session(out) as spark:
        flights = spark.read.parquet(str(out / "flights.parquet")).repartition(4)

        # All results below are read from these few rows, so they are cached: the flights are read once.
        done = in_one_pass(flights, late.resolve()).persist()
        done.select("partition", "sink", "rows", "error").orderBy("partition", "sink").show()

        mean = sf.round(sf.try_divide("delay", "flown"), 1)  # null where no flight flew
        print("Minutes of delay at arrival, per airport:")
        added_up(done, "airports").withColumn("mean", mean).orderBy(sf.desc("mean")).show(8)
        print("Minutes of delay at departure, per carrier:")
        added_up(done, "carriers").withColumn("mean", mean).orderBy(sf.desc("mean")).show(8)
        lines = sum(Path(file).read_text(encoding="utf-8").count("\n") for file in late_files(done))
        print(f"{lines} flights left {LATE} minutes late or more: {late}/*.jsonl")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    main(folder)
