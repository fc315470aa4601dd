"""What happens inside a task: Arrow batches in, rows through a scheduler of `manytail.mapping`, Arrow batches out.

`Work` travels to the executors, so it holds plain data and the function; everything that lives and is not data (threads, queues, converters) is
made by `Task` and is gone when its generator ends.

A row's way: the reader's `_take` makes the rows of a batch, `Scheduler.arrived` and `Admission.admit` put them into the queue, a worker takes one
and runs `call` (the user's function and `Results.check`), `Runner.succeeded`, `settle` and `_handle` bring it to `Scheduler.succeeded`, which emits
it by `_complete` and `_emit`; `build` makes columns of what was emitted.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import DataType, StructType

from manytail.mapping import Delivery
from manytail.mapping._item import Item
from manytail.mapping._map import add_note
from manytail.mapping._options import Options
from manytail.mapping._runner import ThreadRunner
from manytail.mapping._scheduler import Scheduler

from ._results import ERROR_TYPE, Described, Results, arrow_type, describe, result_bytes
from ._rows import Columns, Reader, RowView, group_keys, normalise, row_digest, session_zone

log = logging.getLogger("manytail.spark")

MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
TIME_ZONE = "spark.sql.session.timeZone"
FLUSH_INTERVAL = 1.0  # seconds that the first row of an output batch waits for others
IDLE_GRACE = 0.02  # seconds without a row in flight before the source is taken to have none at the moment
BATCH_BYTES = 64 << 20  # of an output batch
WINDOW_BYTES = 256 << 20  # of input rows and results that the automatic window does not grow beyond


@dataclass(frozen=True)
class Work:
    """One `map_concurrent` or `concurrent_udf`, as it is sent to the tasks."""

    fn: Callable[..., Any]
    options: Options
    result: StructType
    names: tuple[str, ...]  # of the input columns that the function sees; none: it gets values, not a row
    types: tuple[DataType, ...] | None
    key: int | None  # positions of columns in the input batches
    priority: int | None
    row_id: int | None
    append: bool
    error_column: bool
    time_zone: str
    max_records: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The body of mapInArrow."""
        task = Task(self)
        with closing(task.finished(batches)) as finished:
            for rows in finished:
                yield task.build(rows)
                del rows  # not kept while the next ones are waited for


class Row(Item):
    """One row in flight: its batch, and where it stands there."""

    __slots__ = ("batch", "index")

    def __init__(self, batch: InputBatch, index: int) -> None:
        self.batch = batch
        self.index = index
        self.key = None
        self.priority = 0
        self.attempts = 0
        self.deferred = None
        self.done = False
        self.result = self.error = None


class InputBatch:
    """One Arrow batch of the input, as the rows and the calls see it."""

    def __init__(self, task: Task, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.row_bytes = batch.nbytes / max(1, batch.num_rows)
        self.columns = Columns(task.reader, batch)
        self._task = task

    def rows(self) -> list[Item]:
        work = self._task.work
        rows: list[Item] = [Row(self, index) for index in range(self.batch.num_rows)]
        if work.key is not None:
            for row, key in zip(rows, group_keys(self.batch.column(work.key)), strict=True):
                row.key = key
        if work.priority is not None:
            for row, priority in zip(rows, self.batch.column(work.priority).to_pylist(), strict=True):
                row.priority = float("inf") if priority is None else priority
        return rows

    def key(self, index: int) -> Any:
        """The key as a Row holds it."""
        return None if self._task.work.key is None else self._keys[index]

    def shown_key(self, index: int) -> Any:
        """The same for messages, whatever the key is."""
        try:
            return self.key(index)
        except Exception as error:
            return f"<{error}>"

    def weight(self, index: int) -> int:
        try:
            return self._task.weights.get(normalise(self.key(index)), 1)
        except ValueError:  # Python cannot hold the key, so weights cannot name it
            return 1

    def idempotency_key(self, index: int) -> str:
        work = self._task.work
        positions = range(self._task.visible) if work.row_id is None else (work.row_id,)
        return row_digest([self.batch.column(position) for position in positions], index)

    @cached_property
    def _keys(self) -> list[Any]:
        assert self._task.work.key is not None
        return self._task.key_converter(self.batch.column(self._task.work.key))


class Task:
    """One run of some work over one partition."""

    reader: Reader
    results: Results

    def __init__(self, work: Work) -> None:
        self.work = work
        context = TaskContext.get()
        self.task_attempt = context.attemptNumber() if context is not None else 0
        self._context = context
        self.zone_name = self._setting(TIME_ZONE, work.time_zone)
        records = int(self._setting(MAX_RECORDS, str(work.max_records)))
        self._batch_rows = records if records > 0 else 1 << 31
        self.weights = {normalise(key): weight for key, weight in (work.options.weights or {}).items()}
        self.visible = len(work.names)
        self.zone: datetime.tzinfo = datetime.UTC
        self._opened = False

    def _setting(self, name: str, default: str) -> str:
        """As the session had it when the job was started; it travels with the task where it was set at all."""
        found = self._context.getLocalProperty(name) if self._context is not None else None
        return default if found is None else found

    # ------------------------------------------------------------------------------------------------ the run
    def finished(self, batches: Iterator[pa.RecordBatch]) -> Generator[list[Any], None, None]:
        """Finished rows, in the lists that become output batches. Raises what failed the task."""
        self._scheduler = scheduler = Scheduler(
            self.work.options,
            weight_of=None if self.work.options.weights is None else lambda row: row.batch.weight(row.index),  # type: ignore[attr-defined]
            buffer=self._batch_rows,
            buffer_bytes=BATCH_BYTES,
            window_bytes=WINDOW_BYTES,
            sizeof=_size,
        )
        keep = None if self.work.options.errors == "raise" else describe  # a traceback holds the frames of its calls
        runner = ThreadRunner(scheduler, self._call_with, keep, input_error_first=True)
        try:
            yield from output_batches(runner, map(self._take, batches), self._batch_rows)
        finally:
            if scheduler.dropped:
                log.warning("%d rows failed and were dropped (partition %s)", scheduler.dropped, self._partition())

    def _partition(self) -> int | None:
        return None if self._context is None else self._context.partitionId()

    def _take(self, batch: pa.RecordBatch) -> list[Item]:
        if not self._opened:
            self._open(batch.schema)
            self._opened = True
        rows = InputBatch(self, batch).rows()
        self._scheduler.assign(rows)
        return rows

    def _open(self, schema: pa.Schema) -> None:
        """The first batch says which types come, and which time zone the session has."""
        work = self.work
        self.zone = session_zone(next((tz for field in schema if (tz := _time_zone(field.type))), self.zone_name))
        if not work.names:
            self.visible = len(schema.names)
        names = work.names or tuple(schema.names)
        self.reader = Reader(names, schema.types[: self.visible], self.zone, work.types)
        self.results = Results(work.result, self.zone)
        if work.key is not None:
            self.key_converter = Reader(["key"], [schema.types[work.key]], self.zone).converters[0]

    # ------------------------------------------------------------------------------------------------ calls
    def _call_with(self, resource: dict[str, Any]) -> Callable[[Item], Any]:
        """What a worker calls for each row."""
        work = self.work
        fn, wants_delivery = work.fn, work.options.wants_delivery
        check = self.results.check if work.names else self.results.check_value
        arguments = _row if work.names else _values

        def plain(row: Any) -> Any:
            value = fn(RowView(row.batch.columns, row.index))
            return None if value is None else check(value, row.batch, row.index)

        def full(row: Any) -> Any:
            extra = {"delivery": self._delivery(row), **resource} if wants_delivery else resource
            return check(fn(*arguments(row), **extra), row.batch, row.index)

        async def asynchronous(row: Any) -> Any:
            extra = {"delivery": self._delivery(row), **resource} if wants_delivery else resource
            return check(await fn(*arguments(row), **extra), row.batch, row.index)

        if work.options.is_async:
            return asynchronous
        return full if resource or wants_delivery or not work.names else plain

    def _delivery(self, row: Any) -> Delivery:
        return Delivery(row.attempts, self.task_attempt, row.batch.key(row.index), row.batch.idempotency_key(row.index))

    # ------------------------------------------------------------------------------------------------ output
    def build(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """The output batch of finished rows, in this order."""
        arrays = self._inputs(rows) if self.work.append else []
        arrays += self.results.columns([row.result for row in rows])
        if self.work.error_column:
            arrays.append(self._errors(rows))
        return pa.RecordBatch.from_arrays(arrays, names=[f"_{position}" for position in range(len(arrays))])

    def build_values(self, rows: Sequence[Any]) -> pa.Array:
        """The same for a column function."""
        values = self.results.columns([row.result for row in rows])[0]
        if not self.work.error_column:
            return values
        fields = [pa.field("value", values.type), pa.field("error", arrow_type(ERROR_TYPE))]
        return pa.StructArray.from_arrays([values, self._errors(rows)], fields=fields)

    def _inputs(self, rows: Sequence[Any]) -> list[pa.Array]:
        """The visible input columns of these rows: slices where the rows stand together, which they do in input order."""
        offsets: dict[InputBatch, int] = {}
        total = 0
        for batch in dict.fromkeys([row.batch for row in rows]):
            offsets[batch] = total
            total += batch.batch.num_rows
        batches = list(offsets)
        indexes = [row.index for row in rows] if len(batches) == 1 else [offsets[row.batch] + row.index for row in rows]
        first = indexes[0]
        together = indexes[-1] - first == len(indexes) - 1 and indexes == list(range(first, first + len(indexes)))
        taken = None if together else pa.array(indexes, pa.int64())
        columns = [[batch.batch.column(position) for batch in batches] for position in range(self.visible)]
        return [_pick(chunks, first, len(indexes), taken) for chunks in columns]

    def _errors(self, rows: Sequence[Any]) -> pa.Array:
        errors = [None if row.error is None else self._error(row) for row in rows]
        return pa.array(errors, arrow_type(ERROR_TYPE))

    @staticmethod
    def _error(row: Any) -> dict[str, Any]:
        error = row.error if isinstance(row.error, Described) else describe(row.error, row.attempts)
        return {**error._asdict(), "key": _key_text(row.batch.shown_key(row.index))}


def output_batches(runner: ThreadRunner, source: Iterator[list[Item]], batch_rows: int) -> Generator[list[Any], None, None]:
    """Run the runner over the source: finished rows, in the lists that become output batches. Raises what failed the task."""
    scheduler = runner.scheduler
    try:
        runner.start(source)
        while rows := _next_rows(runner, batch_rows):
            yield rows
            del rows
    finally:
        runner.close(cancel=not scheduler.halted)  # coroutines are cancelled where Spark wants no more rows
    if scheduler.error is not None:
        raise _task_error(scheduler)


def _next_rows(runner: ThreadRunner, batch_rows: int) -> list[Item]:
    """An output batch: when it is full, FLUSH_INTERVAL after its first row, or when nothing else can go on; empty at the end."""
    scheduler, now = runner.scheduler, runner.now
    while not scheduler.output and not scheduler.over and not runner.stopping:
        runner.wait()  # also woken when the input has nothing at the moment
    due = now() + FLUSH_INTERVAL
    while len(scheduler.output) < batch_rows and not scheduler.full and not scheduler.over and not runner.stopping:
        idle = runner.idle_since
        wait = (due if idle is None else min(due, idle + IDLE_GRACE)) - now()
        if wait <= 0:
            break
        runner.wait(batch_rows, wait)
    if runner.stopping:
        return []
    with runner.state():
        rows = [scheduler.output.popleft() for _ in range(scheduler.buffered)]
        scheduler.took(len(rows))
        runner.go_on()
    return rows


def _size(item: Any) -> float:
    """Bytes of the input row and its result."""
    value = item.result
    if value is None or type(value) is int:
        return item.batch.row_bytes + 8  # type: ignore[no-any-return]
    return item.batch.row_bytes + result_bytes(value)  # type: ignore[no-any-return]


def _task_error(scheduler: Scheduler) -> Exception:
    """What fails the task: SystemExit and the like would end the Python worker, StopIteration cannot leave a generator."""
    found = scheduler.error
    assert found is not None
    if isinstance(found, Exception) and not isinstance(found, StopIteration):
        error = found
    else:
        described = describe(found, 0)
        error = RuntimeError(f"{described.type}: {described.message}")
        error.__cause__ = found
    row: Any = scheduler.failing
    if row is not None and row.error is found:
        add_note(error, "row", row.batch.shown_key(row.index), row.attempts)
    return error


def _row(row: Any) -> tuple[RowView]:
    return (RowView(row.batch.columns, row.index),)


def _values(row: Any) -> list[Any]:
    columns, index = row.batch.columns, row.index
    return [columns[name][index] for name in columns.reader.names]


def _pick(chunks: list[pa.Array], first: int, length: int, rows: pa.Array | None) -> pa.Array:
    column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    return column.slice(first, length) if rows is None else column.take(rows)


def _key_text(key: Any) -> str | None:
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    return bytes(key).decode("utf-8", "replace") if isinstance(key, (bytes, bytearray)) else str(key)


def _time_zone(kind: pa.DataType) -> str | None:
    """The zone of the first timestamp in a type: Spark writes the session's there."""
    if pa.types.is_timestamp(kind):
        return kind.tz  # type: ignore[no-any-return]
    fields = [kind.field(position) for position in range(kind.num_fields)]
    return next((tz for field in fields if (tz := _time_zone(field.type))), None)
