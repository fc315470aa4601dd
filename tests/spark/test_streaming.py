"""Structured Streaming: every input row is in the output exactly once, however often the driver is killed."""

import os
import random
import runpy
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from support.counts import count
from support.notes import Notes
from support.process import environment
from support.threads import LONG

from manytail.spark import fan_out

SCRIPT = Path(__file__).parent / "scripts" / "stream.py"
FILES, ROWS = 12, 50  # for each kill; a batch has four files


def write_files(directory: Path, files: int, rows: int) -> None:
    directory.mkdir()
    for number in range(files):
        pq.write_table(pa.table({"id": range(number * rows, (number + 1) * rows)}), directory / f"{number:03}.parquet")


def calls_in(directory: Path) -> list[str]:
    path = directory / "calls"
    return path.read_text().split() if path.exists() else []


def recorded_in(directory: Path) -> set[str]:
    """The calls whose results are recorded."""
    path = directory / "shared.db"
    if not path.exists():
        return set()
    with closing(sqlite3.connect(path, timeout=LONG)) as connection:
        return {row[0].hex() for row in connection.execute("SELECT id FROM manytail_results")}


def run_until(directory: Path, calls: int) -> None:
    """Run the query in a driver of its own, which kills itself with SIGKILL after `calls` more calls."""
    last = len(calls_in(directory)) + calls
    # Without what a session of Spark Connect leaves there, if the tests run on one.
    environ = {name: value for name, value in environment().items() if not name.startswith("SPARK_")}
    with open(directory / "said", "ab") as said:
        driver = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(directory), str(last)],
            env=environ,
            cwd=directory,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        driver.wait(LONG)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert driver.returncode == -signal.SIGKILL, (directory / "said").read_text()[-5_000:]


def test_every_row_once_after_kills_of_the_driver(spark: Any, tmp_path: Path) -> None:
    """The last driver is the session of the tests. What was recorded when a driver started is not called again, though
    the batches that were not committed are run again."""
    kills = count(1, 20)
    files = FILES * kills
    write_files(tmp_path / "in", files, ROWS)
    chance = random.Random(kills)
    script = runpy.run_path(str(SCRIPT))
    for number in range(kills + 1):
        recorded, before = recorded_in(tmp_path), len(calls_in(tmp_path))
        assert bool(recorded) == bool(number)
        if number < kills:
            run_until(tmp_path, chance.randrange(1, 500))  # of 600 rows
        else:
            assert script["start"](spark, tmp_path, script["noting"](tmp_path)).awaitTermination(LONG)
        assert not recorded & set(calls_in(tmp_path)[before:])
    assert len(set(calls_in(tmp_path))) == len(recorded_in(tmp_path)) == files * ROWS
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(number, 2 * number, number + 1) for number in range(files * ROWS)]


def test_fan_out_in_foreach_batch(spark: Any, tmp_path: Path, notes: Notes) -> None:
    """Each batch is read once for both sinks. On Connect `handle` runs in a process of the server."""
    write_files(tmp_path / "in", 6, 20)
    out = tmp_path / "out"
    out.mkdir()

    def handle(df: Any, batch: int) -> None:
        def write(batches: Iterator[pa.RecordBatch]) -> int:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            tables = [pa.Table.from_batches([one]) for one in batches]
            if tables:
                pq.write_table(pa.concat_tables(tables), out / f"{batch}-{context.partitionId()}.parquet")
            return sum(table.num_rows for table in tables)

        def total(batches: Iterator[pa.RecordBatch]) -> int:
            return sum(sum(one["id"].to_pylist()) for one in batches)

        done = fan_out(df, {"write": write, "total": total}, schema="n long").collect()
        for row in done:
            notes.add(row.sink, batch, row.rows, row.result.n)

    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
    writer = stream.writeStream.foreachBatch(handle).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(LONG)
    told = [(sink, *map(int, numbers)) for sink, *numbers in map(str.split, notes.read())]
    assert {batch for _, batch, _, _ in told} == {0, 1, 2}
    assert sum(rows for sink, _, rows, _ in told if sink == "write") == 120
    assert sum(n for sink, _, _, n in told if sink == "total") == sum(range(120))
    assert sorted(pq.read_table(out)["id"].to_pylist()) == list(range(120))
    assert spark.read.parquet(str(out)).agg(F.count("*")).first()[0] == 120
