"""Rows that a flaky service refuses are tried again, in their old place, by an EntryQueue in each Spark task.

    python examples/spark_queues/flaky_service.py

Four threads take rows, one at a time each. A row whose call fails is released: it comes back, before all rows behind
it. After its third delivery it goes to the dead letters, and stands in the output with its error.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from manytail import DeadReason, Entry, EntryQueue, ShutDown

SCHEMA = "id long, answer string, tries int, error string"
THREADS, TRIES = 4, 3
Row = dict[str, Any]


def flaky(number: int, tries: int) -> str:
    """Stands for a service: every third row succeeds at its second try only, every hundredth never."""
    if number % 100 == 99 or (number % 3 == 0 and tries == 1):
        raise ConnectionError("connection reset by peer")
    return f"answer {number}"


def ask_for_all(rows: list[Row], call: Callable[[int, int], str]) -> list[Row]:
    """A result row for each row, in the order in which they were done."""
    results: list[Row] = []

    def give_up(entry: Entry[Row], reason: DeadReason) -> None:
        error = f"{reason}: no answer after {entry.deliveries} tries"
        results.append({**entry.item, "answer": None, "tries": entry.deliveries, "error": error})

    queue: EntryQueue[Row] = EntryQueue("rows", max_deliveries=TRIES, dead_letter=give_up)
    queue.put_many(rows)

    def work() -> None:
        with queue.subscribe(prefetch=1) as subscription:
            try:
                while True:
                    entry = subscription.get()
                    try:
                        answer = call(entry.item["id"], entry.deliveries)
                    except ConnectionError:
                        entry.release(delay=0.001 * 2**entry.deliveries)  # held for a moment, then back at its place
                        continue
                    results.append({**entry.item, "answer": answer, "tries": entry.deliveries, "error": None})
                    entry.ack()
            except ShutDown:
                pass  # all rows are done, or another thread failed
            except BaseException:
                queue.shutdown(immediate=True)
                raise

    with ThreadPoolExecutor(THREADS) as threads:
        working = [threads.submit(work) for _ in range(THREADS)]
        queue.shutdown()  # no more puts. A thread that releases a row comes back for it, so no row is left
        for one in working:
            one.result()
    return results


def in_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        results = ask_for_all(batch.to_pylist(), flaky)
        columns = ("id", "answer", "tries", "error")
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([row[name] for row in results], kind)
                for name, kind in zip(columns, (pa.int64(), pa.string(), pa.int32(), pa.string()), strict=True)
            ],
            names=columns,
        )


def answered(rows: DataFrame) -> DataFrame:
    """`rows` has a column id. Lazy, as every transform."""
    return rows.select("id").mapInArrow(in_partition, SCHEMA)


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    rows = answered(spark.range(1_000, numPartitions=2)).cache()
    rows.groupBy("tries", rows.error.isNull().alias("answered")).count().orderBy("tries").show()
    spark.stop()


if __name__ == "__main__":
    main()
