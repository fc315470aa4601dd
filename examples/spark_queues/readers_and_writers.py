"""Readers and writers of one Spark task with a MultiQueue between them: a big customer does not delay the small ones.

    python examples/spark_queues/readers_and_writers.py

A row names a file of one customer. Two threads read files, two send their lines. Each customer has a sub-queue of its
own: bounded, so that memory stays bounded, and the customers take turns.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from manytail import MultiQueue, ShutDown

SCHEMA = pa.schema([("customer", pa.string()), ("lines", pa.int64())])
READERS, WRITERS = 2, 2


def transfer(files: list[tuple[str, str]], send: Callable[[str, str], object]) -> Counter[str]:
    """Send every line of these (customer, path) pairs; how many of each customer."""
    lines: MultiQueue[str, str] = MultiQueue()

    def read(customer: str, path: str) -> None:
        try:
            with open(path, encoding="utf-8") as file:
                lines.setdefault(customer, maxsize=100).put_many(file)  # waits while this customer's 100 are unsent
        except ShutDown:
            pass  # another thread failed and says why
        except BaseException:
            lines.shutdown(immediate=True)
            raise

    def write() -> Counter[str]:
        sent: Counter[str] = Counter()
        try:
            while True:
                customer, line = lines.get_with_key()
                send(customer, line)
                sent[customer] += 1
        except ShutDown:  # all is read and sent, or another thread failed
            return sent
        except BaseException:
            lines.shutdown(immediate=True)  # or the readers would wait for ever
            raise

    with ThreadPoolExecutor(READERS + WRITERS) as threads:
        writing = [threads.submit(write) for _ in range(WRITERS)]
        reading = [threads.submit(read, customer, path) for customer, path in files]
        for one in reading:
            one.exception()  # wait for all of them; errors are raised below
        lines.shutdown()  # the writers take what is left, then get ShutDown
        for one in reading:
            one.result()
        return sum((each.result() for each in writing), Counter())


def send_all(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does. To "send" is here to append to a list, and to write a file per customer and task at the end."""

    def in_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = [(row["customer"], row["path"]) for batch in batches for row in batch.to_pylist()]
        sent: dict[str, list[str]] = {customer: [] for customer, _ in files}
        counts = transfer(files, lambda customer, line: sent[customer].append(line))
        for customer, lines in sent.items():
            with tempfile.NamedTemporaryFile(
                "w", dir=folder, prefix=f"{customer}-", suffix=".txt", encoding="utf-8", delete=False
            ) as out:
                out.writelines(lines)
        customers = sorted(counts)
        yield pa.RecordBatch.from_pydict({"customer": customers, "lines": [counts[one] for one in customers]}, SCHEMA)

    return in_partition


def sent_lines(files: DataFrame, folder: Path) -> DataFrame:
    """`files` has the columns customer and path. Lazy, as every transform."""
    return files.mapInArrow(send_all(str(folder)), "customer string, lines long")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = []
        for customer, size in (("big", 20_000), ("small", 100), ("tiny", 3)):
            path = folder / f"{customer}.log"
            path.write_text("".join(f"{customer} {number}\n" for number in range(size)), encoding="utf-8")
            rows.append((customer, str(path)))
        spark = SparkSession.builder.master("local[2]").getOrCreate()
        files = spark.createDataFrame(rows, "customer string, path string").repartition(2)
        sent_lines(files, folder).show()
        spark.stop()


if __name__ == "__main__":
    main()
