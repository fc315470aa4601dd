"""`fan_out`: the sentences of its docstring. The first half runs one task without Spark, where the test controls the
sinks and the input. The second half uses real Spark."""

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import types as T
from support.notes import Notes
from support.threads import DEADLINE, LONG, Threads

from manytail.spark import fan_out
from manytail.spark._fan_out import FanOut, Running, _raise_first

register_pickle_by_value(sys.modules[__name__])  # workers cannot import it


def batch(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": list(values)})


def values(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [value for one in batches for value in one.column(0).to_pylist()]


def work(sinks: dict[str, Any], max_lag: int = 16, raises: bool = False) -> FanOut:
    return FanOut(sinks=sinks, result=None, max_lag=max_lag, raises=raises, time_zone="UTC")


class Kept:
    """A sink that keeps its batches."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.calls = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.calls += 1
        self.values += values(batches)


class Held:
    """A sink that takes a batch when the test says so."""

    def __init__(self) -> None:
        self.go: SimpleQueue[bool] = SimpleQueue()
        self.took: SimpleQueue[int] = SimpleQueue()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> None:
        while self.go.get(timeout=LONG):
            one = next(batches, None)
            if one is None:
                return
            self.took.put(one.num_rows)


class Source:
    """Batches of one row. Records which were asked for."""

    def __init__(self, n: int) -> None:
        self.n, self.asked = n, 0
        self.changed = threading.Condition()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for number in range(self.n):
            with self.changed:
                self.asked += 1
                self.changed.notify_all()
            yield batch(number)

    def wait_asked(self, n: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked >= n, DEADLINE), self.asked


# ---------------------------------------------------------------------------------------------------- one task
def test_every_sink_gets_all_rows_in_order() -> None:
    sinks = {name: Kept() for name in "abc"}
    ran = work(sinks).feed(iter([batch(1, 2), batch(3), batch(4, 5, 6)]))
    assert all(sink.values == [1, 2, 3, 4, 5, 6] for sink in sinks.values())
    assert [(one.name, one.rows, one.described) for one in ran] == [("a", 6, None), ("b", 6, None), ("c", 6, None)]


def test_batches_are_shared_not_copied() -> None:
    sent = [batch(1), batch(2)]
    got: dict[str, list[pa.RecordBatch]] = {}
    work({name: (lambda batches, name=name: got.update({name: list(batches)})) for name in "ab"}).feed(iter(sent))
    assert all(one is other for name in "ab" for one, other in zip(got[name], sent, strict=True))


def test_a_sink_runs_once_in_a_thread_of_its_own() -> None:
    threads: dict[str, threading.Thread] = {}

    def sink(name: str) -> Any:
        def run(batches: Any) -> None:
            assert name not in threads
            threads[name] = threading.current_thread()
            values(batches)

        return run

    work({"a": sink("a"), "b": sink("b")}).feed(iter([batch(1)]))
    assert len({threads["a"], threads["b"], threading.current_thread()}) == 3
    assert not any(thread.is_alive() for thread in threads.values())


def test_a_slow_sink_does_not_hold_up_a_fast_one_before_max_lag() -> None:
    slow, fast = Held(), Held()
    source = Source(10)
    with Threads() as threads:
        ran = threads.start(work({"slow": slow, "fast": fast}, max_lag=4).feed, iter(source))
        for _ in range(4):
            fast.go.put(True)
        assert [fast.took.get(timeout=DEADLINE) for _ in range(4)] == [1] * 4
        assert slow.took.empty()
        for held in (slow, fast):
            for _ in range(11):
                held.go.put(True)
        assert [one.rows for one in ran.result()] == [10, 10]


def test_the_reader_waits_for_a_running_sink_that_is_max_lag_batches_behind() -> None:
    slow, fast = Held(), Kept()
    source = Source(20)
    with Threads() as threads:
        ran = threads.start(work({"slow": slow, "fast": fast}, max_lag=3).feed, iter(source))
        source.wait_asked(4)  # three are published, the reader waits with the fourth
        for number in range(4, 12):
            assert source.asked == number
            slow.go.put(True)
            assert slow.took.get(timeout=DEADLINE) == 1
            source.wait_asked(number + 1)
        slow.go.put(False)
        assert [one.rows for one in ran.result()] == [8, 20]
    assert source.asked == 20
    assert fast.values == list(range(20))


def test_a_sink_that_returns_early_is_unsubscribed_and_the_input_is_read_to_its_end() -> None:
    source = Source(100)
    kept = Kept()
    first, none, rest = work(
        {"first": lambda batches: next(batches), "none": lambda batches: None, "all": kept}, max_lag=1
    ).feed(iter(source))
    assert (first.rows, none.rows, rest.rows) == (1, 0, 100)
    assert first.described is none.described is rest.described is None
    assert source.asked == 100


def test_the_input_is_read_to_its_end_when_no_sink_is_left() -> None:
    source = Source(100)

    def fails(batches: Any) -> None:
        raise ValueError("at once")

    ran = work({"a": fails, "b": lambda batches: None}, max_lag=1).feed(iter(source))
    assert source.asked == 100
    assert [one.described for one in ran] == [{"type": "ValueError", "message": "at once"}, None]


@pytest.mark.parametrize("error", [KeyError("lost"), SystemExit(3), KeyboardInterrupt()])
def test_a_failing_sink_stops_only_itself(error: BaseException) -> None:
    def fails(batches: Iterator[pa.RecordBatch]) -> None:
        next(batches)
        next(batches)
        raise error

    kept = Kept()
    failed, fine = work({"fails": fails, "fine": kept}, max_lag=1).feed(iter(Source(50)))
    assert failed.rows == 2
    assert failed.described is not None
    assert failed.described["type"] == type(error).__name__
    assert fine.described is None
    assert kept.values == list(range(50))


def text(ran: Any) -> str | None:
    """The error of a sink in one line."""
    return None if ran.described is None else f"{ran.described['type']}: {ran.described['message']}"


class Failure(Exception):
    pass


@pytest.mark.parametrize("raises", [ValueError, GeneratorExit])
def test_no_sink_takes_a_failed_input_for_the_end(raises: type[BaseException]) -> None:
    ended: list[Any] = []

    def source() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise raises("the input")

    def sink(batches: Iterator[pa.RecordBatch]) -> None:
        try:
            ended.append(values(batches))
        except RuntimeError as error:
            ended.append(error)

    with pytest.raises(raises, match="the input"):
        work({"a": sink, "b": sink}).feed(source())
    assert [str(error) for error in ended] == ["the input of fan_out failed before its end"] * 2
    assert all(isinstance(error.__cause__, raises) for error in ended)


def test_raise_fails_with_the_first_sinks_exception_once_all_have_ended() -> None:
    source, kept = Source(30), Kept()

    def fails(batches: Iterator[pa.RecordBatch]) -> None:
        next(batches)
        raise Failure("no")

    with pytest.raises(Failure, match="no") as caught:
        list(work({"bad": fails, "good": kept}, raises=True).run(iter(source)))
    assert caught.value.__notes__ == ["manytail: raised by the sink 'bad' of fan_out"]
    assert source.asked == 30
    assert kept.values == list(range(30))


def test_a_returned_generator_or_awaitable_is_an_error_of_the_sink() -> None:
    async def coroutine() -> None: ...

    async def asynchronous(batches: Any) -> Any:
        for one in batches:
            yield one

    sinks = {
        "generator": lambda batches: (one for one in batches),
        "awaitable": lambda batches: coroutine(),
        "asynchronous": asynchronous,
    }
    ran = work(sinks).feed(iter([batch(1)]))
    assert [text(one) for one in ran] == [
        "TypeError: the sink returned a generator, which nothing runs",
        "TypeError: the sink returned a coroutine, which nothing runs",
        "TypeError: the sink returned a async_generator, which nothing runs",
    ]


def test_the_iterator_is_an_iterator() -> None:
    seen: list[Any] = []

    def sink(batches: Running) -> None:
        assert iter(batches) is batches
        seen.extend(values(batches))
        with pytest.raises(StopIteration):
            next(batches)

    assert work({"a": sink}).feed(iter([batch(1)]))[0].described is None
    assert seen == [1]


# ---------------------------------------------------------------------------------------------------- in Spark
def rows(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(one.num_rows for one in batches)


def total(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(sum(one.column("id").to_pylist()) for one in batches)


def test_one_row_per_task_and_sink(spark: Any) -> None:
    df = spark.range(0, 100, 1, 4)
    done = fan_out(df, {"rows": rows, "total": total}, schema="n long")
    assert done.schema == T.StructType(
        [
            T.StructField("partition", T.IntegerType(), False),
            T.StructField("sink", T.StringType(), False),
            T.StructField("rows", T.LongType(), False),
            T.StructField(
                "error", T.StructType([T.StructField("type", T.StringType()), T.StructField("message", T.StringType())])
            ),
            T.StructField("result", T.StructType([T.StructField("n", T.LongType())])),
        ]
    )
    found = {(row.partition, row.sink): row for row in done.collect()}
    assert sorted(found) == [(partition, sink) for partition in range(4) for sink in ("rows", "total")]
    assert all(row.rows == 25 and row.error is None for row in found.values())
    assert [found[partition, "rows"].result.n for partition in range(4)] == [25] * 4
    assert sum(found[partition, "total"].result.n for partition in range(4)) == 4950


def test_a_task_without_rows_has_its_rows_too(spark: Any) -> None:
    done = fan_out(spark.range(0, 1, 1, 3), {"a": rows, "b": rows}, schema="n long").collect()
    assert sorted((row.partition, row.sink) for row in done) == [
        (partition, sink) for partition in range(3) for sink in "ab"
    ]
    assert sum(row.result.n for row in done if row.sink == "a") == 1


def test_without_a_schema_there_is_no_result(spark: Any) -> None:
    done = fan_out(spark.range(0, 10, 1, 1), {"a": rows})
    assert done.columns == ["partition", "sink", "rows", "error"]
    assert [tuple(row) for row in done.collect()] == [(0, "a", 10, None)]


@pytest.mark.parametrize(
    "names", [["a.b", "with space", "`tick`"], ["id", "ID", "id"], ["c2", "c1", "c0"]], ids=lambda names: names[0]
)
def test_any_column_name_will_do(spark: Any, names: list[str]) -> None:
    df = spark.createDataFrame([(1, 2, 3)], names).toDF(*names).coalesce(1)

    def seen(batches: Iterator[pa.RecordBatch]) -> str:
        return repr([(one.schema.names, [column.to_pylist() for column in one.columns]) for one in batches])

    assert fan_out(df, {"seen": seen}, schema="x string").first().result.x == repr([(names, [[1], [2], [3]])])


def test_columns_that_arrow_cannot_hold_are_refused(spark: Any) -> None:
    df = spark.sql("SELECT INTERVAL '1' YEAR AS y")
    with pytest.raises(TypeError, match=r"^df: .*values; y has type interval year\)"):
        fan_out(df, {"a": rows})
    done = fan_out(spark.sql("SELECT make_interval(1) AS y, array() AS empty"), {"a": rows}, schema="n long")
    assert done.first().result.n == 1


def test_a_data_frame_without_columns_is_refused(spark: Any) -> None:
    with pytest.raises(ValueError, match=r"^df: .* \(expected: at least one column"):
        fan_out(spark.range(5).select(), {"a": rows})


def test_the_rows_are_read_once(spark: Any, notes: Notes) -> None:
    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in batches:
            for value in one.column(0).to_pylist():
                notes.add(value)
            yield one

    df = spark.range(0, 60, 1, 2).mapInArrow(note, "id long")
    done = fan_out(df, dict.fromkeys("abc", rows)).collect()
    assert sum(row.rows for row in done) == 180
    assert len(notes.read()) == 60


def test_result_is_null_on_error_and_its_columns_are_null_for_none(spark: Any) -> None:
    def fails(batches: Any) -> None:
        next(batches)
        raise ValueError("not today")

    def misfit(batches: Any) -> tuple[int, float]:
        return 1, 1.5

    sinks = {"fails": fails, "misfit": misfit, "none": lambda batches: None, "two": lambda batches: {"b": 2}}
    done = {
        row.sink: row
        for row in fan_out(spark.range(0, 5, 1, 1), sinks, schema="a int, b int", errors="column").collect()
    }
    assert tuple(done["fails"].error) == ("ValueError", "not today")
    assert done["fails"].result is None
    assert done["misfit"].result is None
    assert done["misfit"].error.type == "manytail.arrow.ResultError"
    assert done["misfit"].error.message.startswith("column b: 1.5")
    assert tuple(done["none"].result) == (None, None)
    assert tuple(done["two"].result) == (None, 2)


async def asynchronous(batches: Any) -> None: ...


def generator(batches: Any) -> Any:
    yield 1


BAD: list[tuple[type[Exception], dict[str, Any]]] = [
    (ValueError, {"sinks": {}}),
    (ValueError, {"max_lag": 0}),
    (ValueError, {"errors": "drop"}),
    (ValueError, {"schema": "int"}),
    (ValueError, {"schema": "a nonsense"}),
    (ValueError, {"schema": T.StructType([])}),
    (ValueError, {"schema": "n long, N long"}),
    (TypeError, {"sinks": [rows]}),
    (TypeError, {"sinks": {1: rows}}),
    (TypeError, {"sinks": {"a": 5}}),
    (TypeError, {"sinks": {"a": asynchronous}}),
    (TypeError, {"sinks": {"a": generator}}),
    (TypeError, {"sinks": {"a": lambda one, two: None}}),
    (TypeError, {"max_lag": 1.5}),
    (TypeError, {"max_lag": True}),
    (TypeError, {"schema": 5}),
    (TypeError, {"df": [1, 2]}),
]


@pytest.mark.parametrize(("kind", "arguments"), BAD)
def test_bad_arguments_of_fan_out_are_named(spark: Any, kind: type[Exception], arguments: dict[str, Any]) -> None:
    with pytest.raises(kind, match=f"^{next(iter(arguments))}"):
        fan_out(**{"df": spark.range(1), "sinks": {"a": rows}, **arguments})


def test_fan_out_on_a_stream(spark: Any, tmp_path: Any) -> None:
    spark.range(0, 50, 1, 1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    done = fan_out(stream, {"rows": rows, "total": total}, schema="n long")
    query = done.writeStream.format("memory").queryName("fanned").trigger(availableNow=True).start()
    assert query.awaitTermination(LONG)
    assert {row.sink: row.result.n for row in spark.table("fanned").collect()} == {"rows": 50, "total": 1225}


@dataclass(frozen=True)
class Frozen(Exception):
    """It refuses a note."""

    code: int

    def __str__(self) -> str:
        return f"code {self.code}"


@pytest.mark.parametrize("error", [StopIteration("drained"), SystemExit(3), Frozen(404)])
def test_what_cannot_leave_a_generator_fails_the_job_wrapped(error: BaseException) -> None:
    def fails(batches: Iterator[pa.RecordBatch]) -> None:
        raise error

    ran = work({"a": fails}).feed(iter([batch(1)]))
    with pytest.raises(RuntimeError, match=rf"{type(error).__name__}: ") as caught:
        _raise_first(ran)
    assert caught.value.__cause__ is error
    assert caught.value.__notes__ == ["manytail: raised by the sink 'a' of fan_out"]


def test_an_error_that_is_no_utf_8_fails_the_job_and_does_not_hang_it(spark: Any) -> None:
    def fails(batches: Iterator[pa.RecordBatch]) -> None:
        raise ValueError(b"\xff".decode("utf-8", "surrogateescape"))

    with pytest.raises(Exception, match=r"ValueError: \?") as caught:
        spark.range(3).transform(fan_out, {"a": fails}, errors="raise").collect()
    assert "of fan_out" in str(caught.value)
