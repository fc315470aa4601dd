"""`fan_out`: one pass over the rows for several sinks, each in its own thread and at its own pace.

The reader publishes Spark's Arrow batches to a PubSubQueue, and every sink has a Subscriber of it: batches are shared,
not copied, and `max_lag` is the queue's capacity. A sink that ends, with or without an error, closes its subscriber, so
that the reader does not wait for it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from manytail import PubSubQueue, ShutDown, Subscriber
from manytail import _checks as checks
from manytail.arrow.engine import ResultSchema, describe, refuse_equal_names

from ._sent import Sent
from ._task import TIME_ZONE, raisable, setting
from ._transform import Source, fold_of, result_schema, result_types, session_settings
from ._types import ERROR_TYPE, ResultTypes, session_zone

ERROR = T.StructType(ERROR_TYPE.fields[:2])
Sink = Callable[[Iterator[pa.RecordBatch]], Any]


def fan_out(
    df: DataFrame,
    sinks: Mapping[str, Sink],
    *,
    schema: str | T.StructType | None = None,
    max_lag: int = 16,
    errors: Literal["raise", "column"] = "raise",
) -> DataFrame:
    """Read the rows once, and give all of them to every sink.

    Each task runs every sink in its own thread, once, with an iterator over the task's rows as Arrow record batches. A
    sink that fails stops only itself; the input is always read to its end. It is lazy: run it with `collect()` or a
    write. `show()` and `limit()` run only some partitions.

    Parameters
    ----------
    df : DataFrame
        A batch or streaming DataFrame, classic or Spark Connect.
    sinks : mapping
        Maps names to functions `sink(batches)`. A sink may return early.
    schema : str or StructType
        The columns that a sink returns, by the rules of `map_concurrent`. None: the return value is dropped.
    max_lag : int
        How many batches a sink may be behind before the reader waits for it.
    errors : {"raise", "column"}
        "raise": once the input has been read and all sinks have ended, the exception of a sink makes the task fail.
        "column": the exception is stored in the column `error` of the sink's row.

    Returns
    -------
    DataFrame
        One row per task and sink: `partition` int, `sink` string, `rows` long (the number of rows in the batches that
        the sink took), `error` struct<type, message> (null on success), and with `schema` also `result` struct<schema>,
        null on error.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument; raised by the call itself.
    AnalysisException
        If the input cannot be resolved; raised by the call itself, also on Spark Connect.

    Examples
    --------
    >>> def count(batches):
    ...     return sum(batch.num_rows for batch in batches)
    >>> fan_out(flights, {"count": count, "write": write}, schema="n long").collect()  # doctest: +SKIP
    """
    if not isinstance(df, DataFrame):
        raise checks.bad_type("df", df, "a DataFrame")
    checks.whole("max_lag", max_lag, 1)
    checks.choice("errors", errors, ("raise", "column"))
    zone, _ = session_settings(df.sparkSession)
    result = None if schema is None else result_types("schema", result_schema(schema))
    if result is not None:
        refuse_equal_names("df", [], result.names, False, {}, fold_of(df.sparkSession))
    checked, source = _sinks(sinks), Source(df, converts=False)
    names = tuple(source.schema.names)
    work = FanOut(checked, result, max_lag, raises=errors == "raise", time_zone=zone, names=names)
    return source.prepare().mapInArrow(lambda batches: work.run(batches), work.schema)


def _sinks(sinks: Any) -> dict[str, Sink]:
    if not isinstance(sinks, Mapping):
        raise checks.bad_type("sinks", sinks, "a mapping from names to callables")
    if not sinks:
        raise checks.bad_value("sinks", sinks, "at least one sink")
    for name, sink in sinks.items():
        if not isinstance(name, str):
            raise checks.bad_type("sinks", name, "a name, which is a string")
        checks.function(f"sinks[{name!r}]", sink)
        if checks.is_async(sink) or inspect.isgeneratorfunction(sink):
            expected = "a plain function: nothing would run the coroutine or generator that it returns"
            raise checks.bad_type(f"sinks[{name!r}]", sink, expected)
        if not checks.accepts(sink, 1):
            raise checks.bad_type(f"sinks[{name!r}]", sink, "a callable that takes one argument")
    return dict(sinks)


@dataclass(frozen=True)
class FanOut(Sent):
    """One `fan_out`, as it is sent to the tasks."""

    sinks: Mapping[str, Sink]
    result: T.StructType | None
    max_lag: int
    raises: bool
    time_zone: str
    names: tuple[str, ...] = ()  # of the input columns, which Spark sends under other names; empty: as they are

    @property
    def schema(self) -> T.StructType:
        fields = [
            T.StructField("partition", T.IntegerType(), False),
            T.StructField("sink", T.StringType(), False),
            T.StructField("rows", T.LongType(), False),
            T.StructField("error", ERROR),
        ]
        if self.result is not None:
            fields.append(T.StructField("result", self.result))
        return T.StructType(fields)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The body of mapInArrow."""
        context = TaskContext.get()
        zone = session_zone(setting(TIME_ZONE, self.time_zone))
        types = ResultTypes()
        results = None if self.result is None else ResultSchema(types.schema(self.result), zone)
        ran = self.feed(map(self._named, batches), results)
        if self.raises:
            _raise_first(ran)
        partition = context.partitionId() if context is not None else 0
        error = types.of(ERROR)
        columns = {
            "partition": pa.array([partition] * len(ran), pa.int32()),
            "sink": pa.array([one.name for one in ran]),
            "rows": pa.array([one.rows for one in ran], pa.int64()),
            "error": pa.array([one.described for one in ran], error),
        }
        if results is not None:
            failed = pa.array([one.error is not None for one in ran])
            made = results.columns([one.result for one in ran])
            columns["result"] = pa.StructArray.from_arrays(made, fields=results.fields, mask=failed)
        yield pa.RecordBatch.from_pydict(columns)

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the names of the input columns. The columns are not copied."""
        return batch.rename_columns(list(self.names)) if self.names else batch

    def feed(self, batches: Iterator[pa.RecordBatch], results: ResultSchema | None = None) -> list[Running]:
        """Read the input to its end. Returns the sinks, when all of them have ended."""
        queue: PubSubQueue[pa.RecordBatch] = PubSubQueue(maxsize=self.max_lag)
        failures: list[Running] = []
        running = [Running(name, sink, queue.subscribe(), results, failures) for name, sink in self.sinks.items()]
        try:
            for one in running:
                one.start()
            for batch in batches:
                queue.publish(batch)
                del batch  # must not be kept during the wait for the next one
        except BaseException as error:
            for one in running:
                one.broken = error  # a sink must not take it for the end of the rows
            raise
        finally:
            queue.shutdown()
            for one in running:
                one.join()
        return running


@dataclass(eq=False)
class Running:
    """One sink of one task: its thread, its place in the input, and its result."""

    name: str
    sink: Sink
    subscriber: Subscriber[pa.RecordBatch]
    results: ResultSchema | None
    failures: list[Running]  # the failed sinks of the task, the first to fail first
    rows: int = 0
    result: Any = None  # clean; None also if it failed
    error: BaseException | None = None
    broken: BaseException | None = None  # the exception of the input

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"manytail-sink-{self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended, if it was started."""
        if self._thread.ident is not None:
            self._thread.join()
        self.subscriber.close()

    def _run(self) -> None:
        try:
            with self.subscriber:
                value = self.sink(self)
            self.result = self._checked(value)
        except BaseException as error:
            self.error = error
            self.failures.append(self)

    def _checked(self, value: Any) -> Any:
        """The clean result, from what the sink returned."""
        if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(f"the sink returned a {type(value).__name__}, which nothing runs")
        return None if self.results is None else self.results.check(value, lambda: self.name)

    # The iterator that the sink gets.
    def __iter__(self) -> Running:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = self.subscriber.get()
        except ShutDown:
            if self.broken is not None:
                raise RuntimeError("the input of fan_out failed before its end") from self.broken
            raise StopIteration from None
        self.rows += batch.num_rows
        return batch

    @property
    def described(self) -> dict[str, str] | None:
        """The value of the row's error column."""
        if self.error is None:
            return None
        described = describe(self.error, 1)
        return {"type": described.type, "message": described.message}


def _raise_first(ran: list[Running]) -> None:
    """Raise the exception of the sink that failed first, with a note that names the sink. An exception that must not
    leave a task, or that takes no note, is wrapped in a RuntimeError."""
    if not ran[0].failures:
        return
    first = ran[0].failures[0]
    assert first.error is not None
    note = f"manytail: raised by the sink {first.name!r} of fan_out"
    raise raisable(first.error, note)
