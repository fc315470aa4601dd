"""Two executors in separate processes, without manytail installed, that are killed; test_elsewhere.py runs it.

Arguments: a directory for notes, and how often the kills are repeated; each kind comes once if it is 1. Python workers
and executors are killed with SIGKILL in mid-task, and a stage runs again because its shuffle files went with an
executor. Every row comes out once, each time, no thread stays in the workers, and the next job is well.
"""

import os
import signal
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from sessions import session

import manytail
from manytail.spark import bootstrap, concurrent_udf, fan_out, map_concurrent

NOTES, REPEATS = Path(sys.argv[1]), int(sys.argv[2])

spark = session("local-cluster[2,1,1024]", sql__shuffle__partitions=2)
ROWS = 1_000 if REPEATS == 1 else 10_000
IDS = list(range(ROWS))
KILLED_AT = ROWS // 8 * 3
source = spark.range(0, ROWS, 1, 4)


def once(name):
    """True at the first call in any process."""
    try:
        os.close(os.open(NOTES / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def note(name, line):
    with (NOTES / name).open("a") as file:
        file.write(f"{line}\n")


def kill_worker():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_executor():
    """The JVM is the parent of the daemon that forked this worker."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(stat.rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
    threading.Event().wait()  # the daemon takes its workers with it


def threads_here(batches):
    for _ in batches:
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("manytail-")]
        yield pa.RecordBatch.from_pydict({"name": pa.array(names, pa.string())})


def check_next_job():
    assert spark.range(0, 4, 1, 4).mapInArrow(threads_here, "name string").collect() == []
    rows = spark.range(0, 100, 1, 2).transform(map_concurrent, lambda row: -row.id, "x long").collect()
    assert [row.x for row in rows] == [-number for number in range(100)]


def check_the_error_without_manytail():
    """It names both Pythons, though manytail cannot be imported where it is raised."""
    worker, driver = os.environ["PYSPARK_PYTHON"], sys.executable
    one = spark.range(1)
    jobs = {
        "map_concurrent": one.transform(map_concurrent, lambda row: row.id, "x long"),
        "fan_out": fan_out(one, {"count": lambda batches: len(list(batches))}),
    }
    if hasattr(F, "arrow_udf"):
        jobs["concurrent_udf"] = one.select(concurrent_udf(lambda number: number, "long")("id"))
    for name, df in jobs.items():
        with pytest.raises(Exception, match="No module named 'manytail'") as raised:
            df.collect()
        said = str(raised.value)
        assert f"Python of this Spark worker: {worker}, 3." in said, (name, said)
        assert f"the driver's, {driver}, 3." in said, (name, said)
        assert "call manytail.spark.bootstrap(spark)" in said, (name, said)


def check_bootstrap():
    bootstrap(spark)

    def place(row):
        import manytail

        return manytail.__file__

    places = {row.place for row in spark.range(0, 8, 1, 4).transform(map_concurrent, place, "place string").collect()}
    assert all(not found.startswith(str(Path(manytail.__file__).parent)) for found in places), places


def check_failed_attempts():
    """In the first attempt of each task some row fails it: one by an exception, one kills its process."""

    def fn(row, delivery):
        if delivery.task_attempt == 0 and row.id == 150:
            raise ValueError("first attempt")
        if delivery.task_attempt == 0 and row.id == ROWS - 150:
            kill_worker()
        return delivery.task_attempt, delivery.idempotency_key

    schema = "task_attempt int, k string"
    df = source.transform(map_concurrent, fn, schema, order="input", key=F.col("id") % 10, per_key=2)
    rows = df.withColumn("part", F.spark_partition_id()).collect()
    assert [row.id for row in rows] == IDS
    attempts = {row.part: row.task_attempt for row in rows}
    assert attempts[0] >= 1, attempts
    assert attempts[3] >= 1, attempts
    one = spark.range(0, ROWS, 1, 1)
    again = one.transform(map_concurrent, lambda row, delivery: delivery.idempotency_key, "k string").collect()
    assert [row.k for row in rows] == [row.k for row in again]


def kill_at(name, number, kill):
    """For a call: once, in the middle of the rows, kill its process or the executor."""
    if number == KILLED_AT and once(name):
        kill()
    return 2 * number


def check_map(name, kill):
    mapped = source.transform(
        map_concurrent, lambda row: kill_at(name, row.id, kill), "twice long", key=F.col("id") % 7
    )
    assert [tuple(row) for row in mapped.collect()] == [(number, 2 * number) for number in IDS]


def check_udf(name, kill):
    if not hasattr(F, "arrow_udf"):  # concurrent_udf needs PySpark 4.1
        return
    doubled = concurrent_udf(lambda number: kill_at(name, number, kill), "long")
    assert [row.twice for row in source.select(doubled("id").alias("twice")).collect()] == [2 * n for n in IDS]


def check_fan_out(name, kill):
    def total(batches):
        return sum(kill_at(name, number, kill) for batch in batches for number in batch["id"].to_pylist())

    sinks = {"total": total, "other": total}
    done = fan_out(source, sinks, schema="n long").collect()
    assert [(row.partition, row.sink) for row in done] == [(part, sink) for part in range(4) for sink in sinks]
    assert sum(row.result.n for row in done) == 4 * sum(IDS)
    assert sum(row.rows for row in done) == 2 * ROWS


def check_stage_retry(name):
    """An executor is killed in the second stage, and files of the first are lost: part of that runs again."""

    def first(row):
        note(f"calls-{name}", row.id)
        return 2 * row.id

    def second(row):
        if once(name):
            kill_executor()
        return row.twice + 1

    once_mapped = source.transform(map_concurrent, first, "twice long", order="completion")
    rows = once_mapped.repartition(4, "id").transform(map_concurrent, second, "next long").collect()
    assert sorted(tuple(row) for row in rows) == [(number, 2 * number, 2 * number + 1) for number in IDS]
    calls = (NOTES / f"calls-{name}").read_text().split()
    assert sorted(set(map(int, calls))) == IDS
    assert len(calls) > ROWS, "no stage ran again"


check_the_error_without_manytail()
check_bootstrap()
check_failed_attempts()
check_udf("udf", kill_worker)
check_fan_out("fan_out", kill_worker)
check_stage_retry("stages")
check_next_job()
for repeat in range(REPEATS - 1):
    for check in (check_map, check_udf, check_fan_out):
        for kill in (kill_worker, kill_executor):
            check(f"{check.__name__}-{kill.__name__}-{repeat}", kill)
            check_next_job()
    check_stage_retry(f"stages-{repeat}")
    check_next_job()
spark.stop()
print("cluster: ok")
