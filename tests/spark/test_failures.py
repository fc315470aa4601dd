"""What fails, and what is left after it.

In every case no row is lost or doubled, no thread stays in a worker that is used again, and the next job runs.

Here one JVM is enough. What needs executors of their own (a killed worker whose task is tried again, a killed executor,
a stage that runs again, speculation) is in scripts/cluster.py; the kills of a streaming query's driver are in
test_streaming.py. Cases that cost seconds and differ little run all together in `make test-long` only.
"""

import asyncio
import itertools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import functions as F
from support.counts import count, some
from support.notes import Notes
from support.threads import DEADLINE, Threads, wait_until

from manytail import Retry
from manytail.spark import Delivery, concurrent_udf, fan_out, map_concurrent

register_pickle_by_value(sys.modules[__name__])  # workers cannot import it

# Exceptions that user functions should not raise; some do.
RUDE = (SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit)


def through_map(df: Any, fn: Callable[[int], Any], **options: Any) -> Any:
    return df.transform(map_concurrent, lambda row: fn(row.id), "x long", **options)


def through_udf(df: Any, fn: Callable[[int], Any], **options: Any) -> Any:
    return df.select("id", concurrent_udf(fn, "long", **options)("id").alias("x"))


def through_fan_out(df: Any, fn: Callable[[int], Any]) -> Any:
    """One sink calls fn for each row, the other one succeeds."""

    def calls(batches: Iterator[pa.RecordBatch]) -> int:
        called = 0
        for batch in batches:
            for value in batch.column(0).to_pylist():
                fn(value)
                called += 1
        return called

    return fan_out(df, {"calls": calls, "counts": rows_of}, schema="n long")


def rows_of(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


UDF = (through_udf,) if hasattr(F, "arrow_udf") else ()  # concurrent_udf needs PySpark 4.1
ALL = (through_map, *UDF, through_fan_out)
CALLS = (through_map, *UDF)


def threads_here(batches: Any) -> Any:
    for _ in batches:
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("manytail-")]
        yield pa.RecordBatch.from_pydict({"name": pa.array(names, pa.string())})


def threads_left(spark: Any) -> list[str]:
    """Threads in the workers that are used again."""
    return [row.name for row in spark.range(0, 2, 1, 2).mapInArrow(threads_here, "name string").collect()]


@pytest.fixture(autouse=True)
def the_next_job_is_unaffected(spark: Any) -> Iterator[None]:
    yield
    assert threads_left(spark) == []
    assert [row.x for row in through_map(spark.range(0, 50, 1, 2), lambda number: -number).collect()] == [
        -number for number in range(50)
    ]


# -------------------------------------------------------------------------------- exceptions that are none
def fail_rudely(number: int) -> int:
    """Every fifth row succeeds."""
    if number % 5:
        raise RUDE[number % 5 - 1](f"row {number}")
    return number


async def fail_rudely_later(row: Any) -> int:
    await asyncio.sleep(0)
    return fail_rudely(row.id)


@pytest.mark.parametrize("fn", [lambda row: fail_rudely(row.id), fail_rudely_later])
def test_each_fails_its_row_alone(spark: Any, fn: Any) -> None:
    rows = spark.range(0, 100, 1, 2).transform(map_concurrent, fn, "x long", errors="column").collect()
    assert [row.id for row in rows] == list(range(100))
    assert [row.x for row in rows] == [number if number % 5 == 0 else None for number in range(100)]
    types = [row._error.type for row in rows if row._error]
    plain = [kind.__name__ for kind in RUDE] * 20
    assert types == (
        ["RuntimeError" if kind == "StopIteration" else kind for kind in plain] if fn is fail_rudely_later else plain
    )


# -------------------------------------------------------------------------------- calls that hang
class NotesHandler(logging.Handler):
    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.add(record.getMessage())


CALLED_AGAIN: dict[str, Any] = {"timeout": 1, "retry": Retry(1_000, TimeoutError, backoff=0)}


def test_a_call_that_hangs_is_left_alone_and_named(spark: Any, notes: Notes, tmp_path: Path) -> None:
    """Its worker is used again; the thread is the only one that stays there, and the log names it."""
    end = tmp_path / "end"
    handlers: list[logging.Handler] = []

    def setup() -> None:  # once in the worker: the handler travels with nothing
        if not handlers:
            handlers.append(NotesHandler(notes))
            logging.getLogger("manytail").addHandler(handlers[0])

    def fn(row: Any, resource: None, delivery: Delivery) -> int:
        if row.id == 3 and delivery.attempt == 1:
            while not end.exists():
                time.sleep(0.01)
        if row.id == 3:
            raise LookupError
        return row.id  # type: ignore[no-any-return]

    def release(batches: Any) -> Any:
        for _ in batches:
            end.touch()
            for thread in threading.enumerate():
                if thread.name.startswith("manytail-"):
                    thread.join(DEADLINE)
            logger = logging.getLogger("manytail")
            for handler in list(logger.handlers):
                logger.removeHandler(handler)
            yield pa.RecordBatch.from_pydict({"pid": [os.getpid()]})

    # On a busy machine other calls run out of time too: they are made again.
    df = spark.range(0, 50, 1, 1).transform(
        map_concurrent, fn, "x long", workers=4, setup=setup, errors="column", **CALLED_AGAIN
    )
    rows = df.collect()
    assert [row.id for row in rows] == list(range(50))
    assert [row.x for row in rows] == [None if number == 3 else number for number in range(50)]
    assert (rows[3]._error.type, rows[3]._error.attempts) == ("LookupError", 2)
    left = threads_left(spark)
    assert len(left) == 1
    assert notes.read() == [f"1 calls that ran out of time are still running: {left[0]}"]
    assert len(through_map(spark.range(0, 1_000, 1, 2), lambda number: number).collect()) == 1_000
    spark.range(0, 2, 1, 2).mapInArrow(release, "pid long").collect()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("through", some(1, ALL))
def test_a_job_is_cancelled_while_calls_hang(spark: Any, notes: Notes, through: Any) -> None:
    """The driver continues at once; Spark kills the worker two or three seconds later."""

    def hang(number: int) -> None:
        notes.add(os.getpid())
        threading.Event().wait()

    def job() -> None:
        through(spark.range(0, 50, 1, 1), hang).collect()

    with Threads() as threads:
        running = threads.start(job)
        wait_until(lambda: bool(notes.read()))
        spark.interruptAll()
        with pytest.raises(Exception, match=r"(?i)cancel|interrupt"):
            running.result()
    # While the old worker still runs:
    assert len(through_map(spark.range(0, 100, 1, 2), lambda number: number).collect()) == 100
    for pid in {int(line) for line in notes.read()}:
        wait_until(lambda pid=pid: not is_running(pid))


# -------------------------------------------------------------------------------- processes that die
def exit_at_once() -> None:
    os._exit(3)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("through", "end"), some(1, itertools.product(ALL, (exit_at_once, kill_itself))))
def test_a_worker_that_dies_fails_the_job(spark: Any, through: Any, end: Any) -> None:
    """local[2] tries no task again; scripts/cluster.py does."""

    def fn(number: int) -> int:
        if number == 30:
            end()
        return number

    with pytest.raises(Exception, match=r"exited unexpectedly \(crashed\)"):
        through(spark.range(0, 50, 1, 1), fn).collect()


# -------------------------------------------------------------------------------- inputs that fail
@pytest.mark.parametrize("through", some(1, ALL))
def test_an_input_that_fails_in_the_jvm(spark: Any, conf: Any, through: Any) -> None:
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    df = spark.range(0, 100, 1, 1).selectExpr("IF(id < 55, id, raise_error('the disk is gone')) AS id")
    with pytest.raises(Exception, match="the disk is gone"):
        through(df, lambda number: number).collect()


# -------------------------------------------------------------------------------- consumers that stop
@pytest.mark.parametrize("through", some(1, reversed(CALLS)))
def test_limit_and_first_stop_early(spark: Any, conf: Any, notes: Notes, through: Any) -> None:
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", 10)

    def fn(number: int) -> int:
        notes.add(number)
        return 2 * number

    df = through(spark.range(0, 100_000, 1, 2), fn)
    assert [tuple(row) for row in df.limit(10).collect()] == [(number, 2 * number) for number in range(10)]
    assert tuple(df.first()) == (0, 0)
    assert len(notes.read()) < 100_000


# -------------------------------------------------------------------------------- odd rows
@pytest.mark.parametrize("through", some(1, ALL))
def test_a_row_of_100_mb(spark: Any, conf: Any, through: Any) -> None:
    """Beside small ones; their results come out too. 16 MB where there is little time."""
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", 2)
    size = count(16, 100) << 20
    df = spark.range(0, 4, 1, 1).selectExpr("id", f"IF(id = 1, repeat('x', {size}), 'y') AS text")

    def letters(batches: Iterator[pa.RecordBatch]) -> int:
        return sum(len(text) for batch in batches for text in batch["text"].to_pylist())

    if through is through_fan_out:
        done = fan_out(df, {"letters": letters}, schema="n long")
        assert [row.result.n for row in done.collect()] == [size + 3]
        return
    if through is through_map:
        made = df.transform(map_concurrent, lambda row: row.text.swapcase(), "x string")
    else:
        made = df.select("id", concurrent_udf(str.swapcase, "string")("text").alias("x"))
    rows = made.select("id", F.length("x").alias("length"), F.substring("x", -1, 1).alias("last")).collect()
    assert [tuple(row) for row in rows] == [(0, 1, "Y"), (1, size, "X"), (2, 1, "Y"), (3, 1, "Y")]


# -------------------------------------------------------------------------------- results that do not fit
MISFITS = (1.5, "1", [1], {"y": 1}, (1, 2), object(), 1 << 63)


def misfit(number: int) -> Any:
    return MISFITS[number % 8] if number % 8 < 7 else number


@pytest.mark.parametrize(("through", "number"), some(1, itertools.product(CALLS, (6, 0))))
def test_a_result_that_does_not_fit_fails_the_job(spark: Any, through: Any, number: int) -> None:
    with pytest.raises(Exception, match=r"ResultError: column (x|value)"):
        through(spark.range(number, 10, 1, 1), misfit).collect()
