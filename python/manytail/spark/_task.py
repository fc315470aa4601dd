"""A task: Arrow batches in, rows through a scheduler of `manytail.mapping`, Arrow batches out.

`Work` is sent to the executors, so it has only plain data and the function. Everything else (threads, queues,
converters) is made by `Task` and ends with its generator.

The path of a row: the reader's `_take` makes the rows of a batch; `Scheduler.arrived` and `Admission.admit` put them
into the queue; a worker takes one and runs `call` (the user's function and the fit of its result); `Runner.succeeded`
and `_handle` pass it to `Scheduler.succeeded`, which emits it by `_complete` and `_emit`; `build` makes columns of
emitted rows. tests/spark/test_task.py checks that a row takes no more functions than these.
"""

from __future__ import annotations

import datetime
import logging
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import DataType, StructType

from manytail._timings import now
from manytail.mapping._item import Batch, Item, Unfit, add_note, batch_result, deliver_call
from manytail.mapping._options import Options
from manytail.mapping._remember import Memory
from manytail.mapping._scheduler import Scheduler
from manytail.mapping._thread_runner import ThreadRunner
from manytail.mapping._workers import refuse_awaitable

from ._metrics import CallMeter, Measure
from ._progress import Channel, Reports
from ._recorded import ArrowCodec
from ._results import ERROR_TYPE, Described, Misfit, Results, arrow_and_fit, describe, raisable, result_bytes
from ._rows import Columns, Reader, RowView, column_reader, group_keys, normalise, row_digest, row_digests, session_zone

log = logging.getLogger("manytail.spark")

MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
TIME_ZONE = "spark.sql.session.timeZone"
FLUSH_INTERVAL = 1.0  # seconds that the first row of an output batch waits for others
IDLE_GRACE = 0.02  # seconds without a row in flight after which an output batch is emitted although it is not full
BATCH_BYTES = 64 << 20  # of an output batch
WINDOW_BYTES = 256 << 20  # of input rows and results: the automatic window does not grow beyond that
ERROR_ARROW = arrow_and_fit(ERROR_TYPE, datetime.UTC)[0]


@dataclass(frozen=True)
class Work:
    """One `map_concurrent` or `concurrent_udf`, as it is sent to the tasks."""

    fn: Callable[..., Any]
    options: Options
    result: StructType
    time_zone: str
    max_records: int
    names: tuple[str, ...] = ()  # of the input columns that the function sees; empty: it gets values, not a row
    types: tuple[DataType, ...] | None = None
    key: int | None = None  # this and the next three: positions of columns in the input batches
    priority: int | None = None
    costs: tuple[int | None, ...] = ()  # of each limit
    item_id: int | None = None
    append: bool = False
    metrics: bool = False
    channel: Channel | None = None  # where it reports progress

    @property
    def error_column(self) -> bool:
        return self.options.errors == "column"

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The body of mapInArrow."""
        task = Task(self)
        with closing(task.finished(batches)) as finished:
            for rows in finished:
                yield task.build(rows)
                del rows  # must not be kept during the wait for the next ones


class Row(Item):
    """One row in flight: its batch, and its index in that."""

    __slots__ = ("batch", "index", "measure")

    batch: InputBatch
    index: int
    measure: Measure  # only with metrics

    def shown_key(self) -> Any:
        """The key for messages, of any type."""
        try:
            return self.batch.key(self.index)
        except Exception as error:
            return f"<{error}>"


class InputBatch:
    """One Arrow batch of the input, as the rows and the calls see it."""

    def __init__(self, task: Task, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.row_bytes = batch.nbytes / max(1, batch.num_rows)
        self.columns = Columns(task.reader, batch)
        self._task = task

    def rows(self) -> list[Item]:
        work = self._task.work
        rows = new_rows(self, self.batch.num_rows)
        if work.key is not None:
            for row, key in zip(rows, group_keys(self.batch.column(work.key)), strict=True):
                row.key = key
        if work.priority is not None:
            for row, priority in zip(rows, self.batch.column(work.priority).to_pylist(), strict=True):
                row.priority = float("inf") if priority is None else priority
        if any(position is not None for position in work.costs):
            set_costs(rows, work, [None if at is None else self.batch.column(at).to_pylist() for at in work.costs])
        if work.options.identifies:
            for row, digest in zip(rows, row_digests(self._identifying()), strict=True):
                row.identity = digest
        if work.metrics:
            now = time.monotonic()
            for row in rows:
                row.measure = Measure(now)  # type: ignore[attr-defined]
        return rows

    def key(self, index: int) -> Any:
        """The key as a Row has it."""
        return None if self._task.work.key is None else self._keys[index]

    def weight(self, index: int) -> int:
        try:
            return self._task.weights.get(normalise(self.key(index)), 1)
        except ValueError:  # Python cannot hold the key, so `weights` cannot contain it
            return 1

    def idempotency_key(self, index: int) -> str:
        return row_digest(self._identifying(), index)

    def _identifying(self) -> list[pa.Array]:
        """The columns that tell rows apart."""
        work = self._task.work
        positions = range(self._task.visible) if work.item_id is None else (work.item_id,)
        return [self.batch.column(position) for position in positions]

    @cached_property
    def _keys(self) -> list[Any]:
        column = self.batch.column(self._task.work.key)
        return column_reader(column.type, self._task.zone)(column)


def set_costs(rows: list[Item], work: Work, columns: list[list[Any] | None]) -> None:
    """Set what each row takes of each limit. columns: of each limit; None: it takes 1. A bad cost fails its row."""
    for index, row in enumerate(rows):
        costs = []
        for column in columns:
            cost = 1.0 if column is None else column[index]
            if cost is None or not 0 <= cost <= sys.float_info.max:
                row.error, cost = ValueError(f"cost: {cost} (expected: a finite number >= 0)"), 0.0
            costs.append(float(cost))
        row.costs = tuple(costs)


def new_rows(batch: Any, count: int) -> list[Item]:
    """The rows of a batch, as Item.__init__ would make them. In one loop: a call per row would take as long as the rest
    of the loop."""
    rows: list[Item] = []
    read = now()
    for index in range(count):
        row = Row.__new__(Row)
        row.read = read
        row.batch, row.index = batch, index
        row.key, row.priority, row.attempts, row.deferred = None, 0, 0, None
        row.done = row.known = row.fatal = False
        row.result = row.error = None
        rows.append(row)
    return rows


class Task:
    """One run of some work over one partition."""

    reader: Reader
    results: Results

    def __init__(self, work: Work) -> None:
        self.work = work
        self._context = context = TaskContext.get()
        self.task_attempt = context.attemptNumber() if context is not None else 0
        self.zone: datetime.tzinfo = datetime.UTC
        records = int(setting(MAX_RECORDS, str(work.max_records)))
        self._batch_rows = records if records > 0 else 1 << 31  # 0 or less: no limit
        self.weights = {normalise(key): weight for key, weight in (work.options.weights or {}).items()}
        self.visible = len(work.names)
        self._opened = False
        self._meter = CallMeter(work.options) if work.metrics else None

    # ------------------------------------------------------------------------------------------------ the run
    def finished(self, batches: Iterator[pa.RecordBatch]) -> Generator[list[Any], None, None]:
        """Finished rows, in the lists that become output batches. Raises what failed the task."""
        options = self.work.options
        self._scheduler = scheduler = Scheduler(
            options,
            weight_of=None if options.weights is None else _weight,
            buffer=self._batch_rows,
            buffer_bytes=BATCH_BYTES,
            window_bytes=WINDOW_BYTES,
            sizeof=size_of,
        )
        keep = None if options.errors == "raise" else describe  # not the exception: its traceback keeps frames alive
        memory = None if options.remember is None else Memory(options.remember, ArrowCodec(self.work.result))
        runner = ThreadRunner(scheduler, self._call_with, keep, input_error_first=True, memory=memory)
        for shared in (*(limit.shared for limit in options.limits), options.remember):
            if shared is not None:
                shared._keep()  # a worker process runs many tasks
        reports = None if self.work.channel is None else Reports(self.work.channel, runner.stats)
        try:
            yield from output_batches(runner, map(self._take, batches), self._batch_rows)
        finally:
            if reports is not None:
                reports.close()
            if scheduler.dropped:
                partition = None if self._context is None else self._context.partitionId()
                log.warning("%d rows failed and were dropped (partition %s)", scheduler.dropped, partition)

    def _take(self, batch: pa.RecordBatch) -> list[Item]:
        """The rows of an input batch, with their lanes. In the reader's thread."""
        if not self._opened:
            self._open(batch.schema)
            self._opened = True
        rows = InputBatch(self, batch).rows()
        self._scheduler.assign(rows)
        return rows

    def _open(self, schema: pa.Schema) -> None:
        """Make what needs the types and the session's time zone, which the first batch has."""
        work = self.work
        zone = next((tz for field in schema if (tz := _time_zone(field.type))), None)
        self.zone = session_zone(zone or setting(TIME_ZONE, work.time_zone))
        if not work.names:
            self.visible = len(schema.names)
        names = work.names or tuple(schema.names)
        self.reader = Reader(names, schema.types[: self.visible], self.zone, work.types)
        self.results = Results(work.result, self.zone, by_value=not work.names)

    # ------------------------------------------------------------------------------------------------ calls
    def _call_with(self, resource: dict[str, Any]) -> Callable[[Item], Any]:
        """The function that a worker calls with each row. resource: keyword arguments for fn, from `setup`."""
        call = self._unmeasured(resource)
        return call if self._meter is None else self._meter.measured(call)

    def _unmeasured(self, resource: dict[str, Any]) -> Callable[[Item], Any]:
        """The call. The most frequent kind, a plain function of a row, has its own, which is faster."""
        work, results = self.work, self.results
        fn, fit, check = work.fn, results.fit, results.check
        if work.options.batch is not None:
            return self._call_batches(resource)
        if work.options.is_async or resource or work.options.wants_delivery or not work.names:
            return self._any_call(resource)

        def call(row: Any) -> Any:
            value = fn(RowView(row.batch.columns, row.index))
            try:
                return None if value is None else fit(value)
            except Misfit:
                return check(value, row.shown_key)

        return call

    def _any_call(self, resource: dict[str, Any]) -> Callable[[Item], Any]:
        """The call of a function of any kind with one row, or with values."""
        work, check = self.work, self.results.check

        def returned(row: Any) -> Any:
            more = {**resource, "delivery": row.delivery} if work.options.wants_delivery else resource
            columns, index = row.batch.columns, row.index
            if work.names:
                return work.fn(RowView(columns, index), **more)
            return work.fn(*[columns[name][index] for name in columns.reader.names], **more)

        async def asynchronous(row: Any) -> Any:
            with self._delivery(row):
                return check(await returned(row), row.shown_key)

        def plain(row: Any) -> Any:
            with self._delivery(row):
                return check(returned(row), row.shown_key)

        return asynchronous if work.options.is_async else plain

    def _call_batches(self, resource: dict[str, Any]) -> Callable[[Any], Any]:
        """The call of a function that gets a list of rows."""
        work = self.work

        def returned(batch: Batch, rows: list[Any]) -> Any:
            more = {**resource, "delivery": batch.delivery} if work.options.wants_delivery else resource
            return work.fn([RowView(row.batch.columns, row.index) for row in rows], **more)

        async def asynchronous(batch: Batch) -> Any:
            rows = batch.to_call()
            if not rows:
                return self._fitted(batch, rows, [])
            with self._delivery(batch):
                return self._fitted(batch, rows, await returned(batch, rows))

        def plain(batch: Batch) -> Any:
            rows = batch.to_call()
            if not rows:
                return self._fitted(batch, rows, [])
            with self._delivery(batch):
                return self._fitted(batch, rows, refuse_awaitable(returned(batch, rows)))

        return asynchronous if work.options.is_async else plain

    def _fitted(self, batch: Batch, called: list[Item], returned: Any) -> Any:
        """The results of the batch. One that does not fit is replaced by an exception."""
        results = batch_result(returned, len(called))
        return results if isinstance(results, Unfit) else batch.with_known(list(map(self._fit_one, called, results)))

    def _fit_one(self, row: Any, result: Any) -> Any:
        if isinstance(result, BaseException):
            return result
        try:
            return self.results.check(result, row.shown_key)
        except Exception as error:
            return error

    def _delivery(self, call: Item) -> AbstractContextManager[Any]:
        """Around the call: its Delivery, if fn gets one. That does not refer to the rows, which refer to it."""
        options = self.work.options
        if not options.wants_delivery:
            return nullcontext()
        rows: list[Any] = call.to_call()
        if options.identifies:
            makers: list[Callable[[], str]] = [partial(str, row.identity) for row in rows]
        else:
            makers = [partial(row.batch.idempotency_key, row.index) for row in rows]
        identify: Callable[[], Any] = partial(_made, makers) if isinstance(call, Batch) else makers[0]
        key = rows[0].batch.key(rows[0].index)
        return deliver_call(call, identify, options.spent_names, self.task_attempt, key)

    # ------------------------------------------------------------------------------------------------ output
    def build(self, rows: list[Any]) -> pa.RecordBatch:
        """The output batch of finished rows, in this order."""
        arrays = self._inputs(rows) if self.work.append else []
        arrays += self.results.columns([row.result for row in rows])
        if self.work.error_column:
            arrays.append(self._errors(rows))
        if self._meter is not None:
            arrays.append(self._meter.column(rows))
        return pa.RecordBatch.from_arrays(arrays, names=[f"_{position}" for position in range(len(arrays))])

    def build_values(self, rows: list[Any]) -> pa.Array:
        """The output of a column function for finished rows, in this order."""
        (values,) = self.results.columns([row.result for row in rows])
        if not self.work.error_column:
            return values
        fields = [pa.field("value", values.type), pa.field("error", ERROR_ARROW)]
        return pa.StructArray.from_arrays([values, self._errors(rows)], fields=fields)

    def _inputs(self, rows: list[Any]) -> list[pa.Array]:
        """The visible input columns of these rows: slices where the rows are adjacent, as they are in input
        order."""
        starts: dict[InputBatch, int] = {}
        total = 0
        for batch in dict.fromkeys([row.batch for row in rows]):
            starts[batch] = total
            total += batch.batch.num_rows
        table = pa.Table.from_batches([batch.batch for batch in starts]).select(range(self.visible))
        indexes = [starts[row.batch] + row.index for row in rows]
        first = indexes[0]
        together = indexes == list(range(first, first + len(indexes)))
        taken = table.slice(first, len(indexes)) if together else table.take(pa.array(indexes, pa.int64()))
        return [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in taken.columns]

    def _errors(self, rows: list[Any]) -> pa.Array:
        return pa.array([None if row.error is None else self._error(row) for row in rows], ERROR_ARROW)

    @staticmethod
    def _error(row: Any) -> dict[str, Any]:
        error = row.error if isinstance(row.error, Described) else describe(row.error, row.attempts)
        return {**error._asdict(), "key": _key_text(row.shown_key())}


def output_batches(
    runner: ThreadRunner, source: Iterator[list[Item]], batch_rows: int
) -> Generator[list[Any], None, None]:
    """Run the runner over the source. Yields finished rows, in the lists that become output batches. Raises what failed
    the task."""
    scheduler = runner.scheduler
    try:
        runner.start(source)
        while rows := _next_rows(runner, batch_rows):
            yield rows
            del rows
    finally:
        runner.close(cancel=not scheduler.halted)  # cancels coroutines if Spark wants no more rows
        runner.flush()
    if scheduler.error is not None:
        raise _task_error(scheduler)


def _next_rows(runner: ThreadRunner, batch_rows: int) -> list[Item]:
    """An output batch: when it is full, FLUSH_INTERVAL after its first row, or when no other row can make progress.
    Empty at the end."""
    scheduler, now = runner.scheduler, runner.now
    while not scheduler.output and not scheduler.over and not runner.stopping:
        runner.wait()  # also wakes when the input has nothing at the moment
    due = now() + FLUSH_INTERVAL
    while len(scheduler.output) < batch_rows and not scheduler.full and not scheduler.over and not runner.stopping:
        idle = runner.idle_since
        wait = (due if idle is None else min(due, idle + IDLE_GRACE)) - now()
        if wait <= 0:
            break
        runner.wait(batch_rows, wait)
    if runner.stopping:
        return []
    return runner.locked(_take_buffered, runner)


def _take_buffered(runner: ThreadRunner) -> list[Item]:
    scheduler = runner.scheduler
    rows = [scheduler.output.popleft() for _ in range(scheduler.buffered)]
    scheduler.took(len(rows))
    runner.go_on()
    return rows


def _made(makers: list[Callable[[], str]]) -> list[str]:
    return [make() for make in makers]


def _weight(row: Any) -> int:
    return row.batch.weight(row.index)  # type: ignore[no-any-return]


def size_of(row: Any) -> float:
    """Bytes of the input row and its result."""
    value = row.result
    kind = type(value)
    if kind is str or kind is bytes:
        return row.batch.row_bytes + 8 + len(value)  # type: ignore[no-any-return]
    if kind is dict or kind is list:
        return row.batch.row_bytes + result_bytes(value)  # type: ignore[no-any-return]
    return row.batch.row_bytes + 8  # type: ignore[no-any-return]


def _task_error(scheduler: Scheduler) -> Exception:
    """What fails the task."""
    assert scheduler.error is not None
    row: Any = scheduler.failing

    def note(error: BaseException) -> None:
        if row is not None and row.error is scheduler.error:
            add_note(error, "row", row.shown_key(), row.attempts)

    return raisable(scheduler.error, note)


def setting(name: str, default: str) -> str:
    """A session's setting when the job was started. Spark sends it with the task if it was set."""
    context = TaskContext.get()
    found = None if context is None else context.getLocalProperty(name)
    return default if found is None else found


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
