"""Threads of one Spark task take row numbers from an IndexMultiQueue and fill the result in place.

    python examples/spark_queues/row_numbers.py

The rows stay where they are, in Arrow columns. What goes through the queue is 8 bytes a row. Each host has a sub-queue
of its own, so a host with many rows does not come before the others, and results stand in the order of the rows.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from manytail import IndexMultiQueue, ShutDown

SCHEMA = "host string, size long, seconds double"
THREADS, BLOCK = 4, 64


def seconds_of(host: str, sizes: list[int]) -> list[float]:
    """Stands for a request to that host, with a block of rows at once."""
    return [len(host) + size / 1000 for size in sizes]


def fill(batch: pa.RecordBatch, call: Callable[[str, list[int]], list[float]]) -> pa.Array:
    """What `call` returns for each row, with at most `BLOCK` rows of one host in a call."""
    hosts, sizes = batch["host"].to_numpy(zero_copy_only=False), batch["size"].to_numpy()
    rows: IndexMultiQueue[str] = IndexMultiQueue(selection="weighted")
    for host in np.unique(hosts):
        rows.add(str(host), weight=BLOCK).put_many(np.flatnonzero(hosts == host))
    rows.shutdown()  # nothing is added any more: getters take what is there, and then get ShutDown
    results = np.empty(len(hosts))

    def work() -> None:
        try:
            while True:
                numbers = rows.get_many(BLOCK)  # of one host, while each has so many left
                for host in np.unique(hosts[numbers]):
                    mine = numbers[hosts[numbers] == host]
                    results[mine] = call(str(host), sizes[mine].tolist())  # each row number is with one thread only
        except ShutDown:
            pass
        except BaseException:
            rows.shutdown(immediate=True)  # the other threads stop, too
            raise

    with ThreadPoolExecutor(THREADS) as threads:
        for one in [threads.submit(work) for _ in range(THREADS)]:
            one.result()
    return pa.array(results)


def in_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.append_column("seconds", fill(batch, seconds_of))


def with_seconds(rows: DataFrame) -> DataFrame:
    """`rows` has the columns host and size. Lazy, as every transform."""
    return rows.select("host", "size").mapInArrow(in_partition, SCHEMA)


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rows = spark.range(10_000, numPartitions=2).selectExpr(
        "format_string('host%d', id * id % 7) AS host", "id AS size"
    )
    with_seconds(rows).show(5)
    spark.stop()


if __name__ == "__main__":
    main()
