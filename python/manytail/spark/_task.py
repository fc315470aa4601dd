"""What happens inside a task: Spark's Arrow batches become batches for the scheduler, rows for the function, and Arrow batches again.

`Work` travels to the executors, so it holds plain data and the function; everything that lives and is not data (threads, queues, converters) is
made by `run` and is gone when its generator ends.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import DataType, StructType

from ._call import Call, Delivery, Failure
from ._engine import Engine, Settings
from ._results import ERROR_TYPE, Results, arrow_type
from ._rows import Columns, Reader, RowView, digests, group_keys, normalise, session_zone

log = logging.getLogger("manytail.spark")

MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
TIME_ZONE = "spark.sql.session.timeZone"


@dataclass(frozen=True)
class Work:
    """One `map_concurrent` or `concurrent_udf`, as it is sent to the tasks."""

    fn: Callable[..., Any]
    settings: Settings
    result: StructType
    names: tuple[str, ...]  # of the input columns that the function sees; none: it gets values, not a row
    types: tuple[DataType, ...] | None
    key: int | None  # positions of columns in the input batches
    priority: int | None
    row_id: int | None
    weights: Mapping[Any, int] | None
    append: bool
    error_column: bool
    wants_delivery: bool
    time_zone: str
    max_records: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The body of mapInArrow."""
        task = Task(self)
        with closing(task.finished(batches)) as finished:
            for calls in finished:
                yield task.build(calls)
                del calls  # not kept while the next ones are waited for


class InputBatch:
    """One Arrow batch of the input, as the scheduler and the calls see it."""

    def __init__(self, task: Task, batch: pa.RecordBatch) -> None:
        work = task.work
        self.size: int = batch.num_rows
        self.row_bytes = batch.nbytes / max(1, batch.num_rows)
        self.batch = batch
        self.columns = Columns(task.reader, batch)
        self._task = task
        self.keys: list[Hashable] | None = None if work.key is None else group_keys(batch.column(work.key))
        self.priorities: list[int | None] | None = None if work.priority is None else batch.column(work.priority).to_pylist()

    def key(self, index: int) -> Any:
        """The key as a Row holds it."""
        return None if self._task.work.key is None else self._key_values[index]

    def weight(self, index: int) -> int:
        return self._task.weights.get(normalise(self.key(index)), 1)

    def idempotency_key(self, index: int) -> str:
        return self._digest(index)

    @cached_property
    def _key_values(self) -> list[Any]:
        position = self._task.work.key
        assert position is not None
        return self._task.key_converter(self.batch.column(position))

    @cached_property
    def _digest(self) -> Callable[[int], str]:
        work = self._task.work
        positions = range(self._task.visible) if work.row_id is None else [work.row_id]
        return digests([self.batch.column(position) for position in positions])


class Task:
    """One run of some work over one partition."""

    reader: Reader

    def __init__(self, work: Work) -> None:
        self.work = work
        context = TaskContext.get()
        self.task_attempt = context.attemptNumber() if context is not None else 0
        self._context = context
        self.zone_name = self._setting(TIME_ZONE, work.time_zone)
        records = int(self._setting(MAX_RECORDS, str(work.max_records)))
        self._batch_rows = records if records > 0 else 1 << 31
        self.weights = {normalise(key): turns for key, turns in (work.weights or {}).items()}
        self.visible = len(work.names)
        self.zone: datetime.tzinfo = datetime.UTC
        self._opened = False

    def _setting(self, name: str, default: str) -> str:
        """As the session had it when the job was started; it travels with the task where it was set at all."""
        found = self._context.getLocalProperty(name) if self._context is not None else None
        return default if found is None else found

    # ------------------------------------------------------------------------------------------------ the run
    def finished(self, batches: Iterator[pa.RecordBatch]) -> Generator[list[Call], None, None]:
        self.results: Results
        engine = Engine(replace(self.work.settings, batch_rows=self._batch_rows), self._caller)
        try:
            yield from engine.run(map(self._take, batches))
        finally:
            if engine.dropped:
                log.warning("%d rows failed and were dropped (partition %s)", engine.dropped, self._partition())

    def _partition(self) -> int | None:
        return None if self._context is None else self._context.partitionId()

    def _take(self, batch: pa.RecordBatch) -> InputBatch:
        if not self._opened:
            self._open(batch.schema)
            self._opened = True
        return InputBatch(self, batch)

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
    def _caller(self, resource: dict[str, Any]) -> Callable[[Call], Any]:
        """What a worker calls for each row."""
        work = self.work
        fn, wants_delivery, check = work.fn, work.wants_delivery, self._check()

        def plain(call: Call) -> Any:
            value = fn(RowView(call.batch.columns, call.index))
            return None if value is None else check(call, value)

        def full(call: Call) -> Any:
            extra = {"delivery": self._delivery(call), **resource} if wants_delivery else resource
            return check(call, fn(*arguments(call), **extra))

        async def asynchronous(call: Call) -> Any:
            extra = {"delivery": self._delivery(call), **resource} if wants_delivery else resource
            return check(call, await fn(*arguments(call), **extra))

        arguments = _row if work.names else _values
        if work.settings.is_async:
            return asynchronous
        return full if resource or wants_delivery or not work.names else plain

    def _check(self) -> Callable[[Call, Any], Any]:
        check = self.results.check if self.work.names else self.results.check_value
        if self.work.key is None:
            return lambda call, value: check(value, None)
        return lambda call, value: check(value, call.batch.key(call.index))

    def _delivery(self, call: Call) -> Delivery:
        batch = call.batch
        return Delivery(call.attempt, self.task_attempt, batch.key(call.index), batch.idempotency_key(call.index))

    # ------------------------------------------------------------------------------------------------ output
    def build(self, calls: Sequence[Call]) -> pa.RecordBatch:
        """The output batch of finished rows, in this order."""
        arrays = self._inputs(calls) if self.work.append else []
        arrays += self.results.columns([call.value for call in calls])
        if self.work.error_column:
            arrays.append(self._errors(calls))
        return pa.RecordBatch.from_arrays(arrays, names=[f"_{position}" for position in range(len(arrays))])

    def build_values(self, calls: Sequence[Call]) -> pa.Array:
        """The same for a column function."""
        values = self.results.columns([call.value for call in calls])[0]
        if not self.work.error_column:
            return values
        fields = [pa.field("value", values.type), pa.field("error", arrow_type(ERROR_TYPE))]
        return pa.StructArray.from_arrays([values, self._errors(calls)], fields=fields)

    def _inputs(self, calls: Sequence[Call]) -> list[pa.Array]:
        """The visible input columns of these rows: slices where the rows stand together, which they do in input order."""
        offsets: dict[InputBatch, int] = {}
        total = 0
        for batch in dict.fromkeys([call.batch for call in calls]):
            offsets[batch] = total
            total += batch.size
        batches = list(offsets)
        rows = [call.index for call in calls] if len(batches) == 1 else [offsets[call.batch] + call.index for call in calls]
        first = rows[0]
        together = rows[-1] - first == len(rows) - 1 and rows == list(range(first, first + len(rows)))
        taken = None if together else pa.array(rows, pa.int64())
        return [_pick([batch.batch.column(position) for batch in batches], first, len(rows), taken) for position in range(self.visible)]

    def _errors(self, calls: Sequence[Call]) -> pa.Array:
        failures = [None if call.failure is None else self._error(call, call.failure) for call in calls]
        return pa.array(failures, arrow_type(ERROR_TYPE))

    @staticmethod
    def _error(call: Call, failure: Failure) -> dict[str, Any]:
        return {**failure._asdict(), "key": _key_text(call.batch.key(call.index))}


def _row(call: Call) -> tuple[RowView]:
    return (RowView(call.batch.columns, call.index),)


def _values(call: Call) -> list[Any]:
    columns, index = call.batch.columns, call.index
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
