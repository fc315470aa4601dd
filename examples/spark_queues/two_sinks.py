"""One pass over a Spark partition that feeds two sinks, with a PubSubQueue between the rows and the sinks.

    python examples/spark_queues/two_sinks.py

Each sink is a thread with a subscriber of its own and gets every batch. The bound keeps the faster one at most four
batches ahead. `manytail.spark.fan_out` is this with more around it; begin here if your sinks have to share something.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from manytail import PubSubQueue, Subscriber

SCHEMA = "sink string, amount long"
Sink = Callable[[Iterator[pa.RecordBatch]], int]


def total(batches: Iterator[pa.RecordBatch]) -> int:
    """The sum of all amounts."""
    return sum(pc.sum(batch["amount"]).as_py() or 0 for batch in batches)


def largest(batches: Iterator[pa.RecordBatch]) -> int:
    return max((pc.max(batch["amount"]).as_py() or 0 for batch in batches), default=0)


SINKS: dict[str, Sink] = {"total": total, "largest": largest}


def feed(batches: Iterator[pa.RecordBatch], sinks: dict[str, Sink]) -> dict[str, int]:
    """What each sink returns after it has had all batches. If one raises, the others still get all of theirs."""
    queue: PubSubQueue[pa.RecordBatch] = PubSubQueue(maxsize=4)

    def run(sink: Sink, subscriber: Subscriber[pa.RecordBatch]) -> int:
        with subscriber:  # a sink that fails leaves, and no longer keeps the others waiting at the bound
            return sink(iter(subscriber))

    with ThreadPoolExecutor(len(sinks)) as threads:
        # Subscribe before the first batch is published: a subscriber gets what comes after it.
        running: dict[str, Future[int]] = {
            name: threads.submit(run, sink, queue.subscribe()) for name, sink in sinks.items()
        }
        try:
            for batch in batches:
                queue.publish(batch)
        except BaseException:
            queue.shutdown(immediate=True)
            raise
        queue.shutdown()  # the sinks take what is left; then their iteration ends
        return {name: one.result() for name, one in running.items()}


def in_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found = feed(batches, SINKS)
    yield pa.RecordBatch.from_pydict({"sink": list(found), "amount": list(found.values())})


def in_one_pass(rows: DataFrame) -> DataFrame:
    """`rows` has a column amount; one row per task and sink. Lazy, as every transform."""
    return rows.mapInArrow(in_partition, SCHEMA)


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    in_one_pass(spark.range(100_000, numPartitions=2).selectExpr("id % 1000 AS amount")).show()
    spark.stop()


if __name__ == "__main__":
    main()
