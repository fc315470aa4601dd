"""One run of a map: Arrow batches in, rows through the engine of `manytail.mapping`, Arrow batches out.

The path of a row: `read` makes the rows of a batch, in the reader's thread; a worker takes one and runs `call` (the
user's function and the fit of its result); `build` makes columns of finished rows. What is between these is
`manytail.mapping.frames`. tests/arrow/test_task.py checks how many functions a row takes in all.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

import pyarrow as pa
from pyarrow import types

from manytail import _checks as checks
from manytail.mapping import frames
from manytail.mapping.frames import (
    Frame,
    Options,
    batch_results,
    cost_of,
    deliver,
    idempotency_key,
    new_rows,
    priority_of,
    refuse_awaitable,
)

from . import _metrics
from ._fits import Misfit
from ._metrics import CallMeter, Measure
from ._recorded import ArrowCodec
from ._results import ERROR, Described, ResultSchema, describe, result_bytes
from ._rows import NAN, Columns, Reader, RowView, group_keys, normalise, row_digest, row_digests
from ._types import column_reader, zone_of

Asked = str | Callable[[Any], Any] | None  # an option that is a column's name, or a function of a row


class Host:
    """Where a map runs, and how values look there. An engine such as Spark makes a Host of its own for each run."""

    task_attempt = 0  # that the function's Delivery says
    by_value = False  # fn gets the values of the columns, not a row
    input_error_first = False  # an exception of the input ends the map at once, not after the rows before it

    def __init__(self, time_zone: str) -> None:
        """time_zone: of naive results for a type with a time zone."""
        self.zone = zone_of(time_zone)

    def view(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the input that the function sees. They are the first columns of `schema`, or all of
        them; they may have different names, and PythonTypes."""
        return schema

    def key_type(self, kind: pa.DataType) -> pa.DataType:
        """Return the type in which messages and Deliveries show the values of a key column."""
        return kind

    def raised(self, error: BaseException, note: str | None) -> BaseException:
        """Return the exception that the map raises in place of `error`. `error` has the note already, unless its class
        does not accept notes."""
        return error


@dataclass(frozen=True)
class ArrowMap:
    """A map that has no input yet, with the validated arguments of `map_arrow`."""

    fn: Callable[..., Any]
    options: Options
    schema: Any = None  # of the results, a pyarrow.Schema; None: the engine sets it in its tasks
    append: bool = True
    error_column: str = "_error"
    metrics: bool = False
    max_records: int = 10_000
    key: Asked = None
    priority: Asked = None
    item_id: Asked = None

    @property
    def error_name(self) -> str | None:
        """The name of the error column, if there is one."""
        return self.error_column if self.options.errors == "column" else None


class Row(frames.Row):
    """One row in flight: its batch, and its index in that."""

    __slots__ = ("measure",)

    batch: InputBatch
    measure: Measure  # only with metrics

    def shown_key(self) -> Any:
        """The key for messages, of any type."""
        try:
            return self.batch.shown_key(self)
        except Exception as error:
            return f"<{error}>"

    @property
    def view(self) -> RowView:
        """The row as functions of it see it."""
        return RowView(self.batch.columns, self.index)


class InputBatch:
    """One Arrow batch of the input, as the rows and the calls see it."""

    def __init__(self, task: Task, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.row_bytes = batch.nbytes / max(1, batch.num_rows) + task.results.fixed_bytes
        self.columns = Columns(task.reader, batch)
        self._task = task

    def rows(self) -> list[Any]:
        task = self._task
        work = task.work
        rows = new_rows(Row, self, self.batch.num_rows)
        if work.priority is not None:
            for row, priority in self._asked(rows, task.priority):
                row.priority = math.inf if priority is None else priority
        if task.costs:
            self._set_costs(rows)
        if work.options.identifies:
            if callable(work.item_id):
                for row, identity in self._asked(rows, self._identity_of):
                    row.identity = identity
            else:
                for row, identity in zip(rows, row_digests(self._identifying()), strict=True):
                    row.identity = identity
        if work.metrics:
            began = time.monotonic()
            for row in rows:
                row.measure = Measure(began)
        if isinstance(work.key, str):
            for row, key in zip(rows, group_keys(self.batch.column(work.key)), strict=True):
                row.key = key
        return rows

    def _asked(self, rows: list[Any], asked: Asked) -> Iterator[tuple[Any, Any]]:
        """Rows, and what an option says of them. A function that raises fails its row."""
        if isinstance(asked, str):
            yield from zip(rows, self.batch.column(asked).to_pylist(), strict=True)
            return
        assert asked is not None
        for row in rows:
            try:
                value = asked(row.view)
            except BaseException as error:
                row.error = error
            else:
                yield row, value

    def _set_costs(self, rows: list[Any]) -> None:
        """Set what each row takes of each limit. A bad cost fails its row."""
        costs = [[1.0] * len(rows) for _ in self._task.costs]
        for amounts, asked in zip(costs, self._task.costs, strict=True):
            for row, cost in self._asked(rows, asked) if asked is not None else ():
                if cost is None or not 0 <= cost <= sys.float_info.max:
                    row.error = ValueError(f"cost: {cost} (expected: a finite number >= 0)")
                else:
                    amounts[row.index] = float(cost)
        for row, each in zip(rows, zip(*costs, strict=True), strict=True):
            row.costs = each

    def shown_key(self, row: Row) -> Any:
        """The key as Python has it."""
        if isinstance(self._task.work.key, str):
            return self._keys[row.index]
        return math.nan if row.key is NAN else row.key

    def weight(self, row: Row) -> int:
        try:
            return self._task.weights.get(normalise(self.shown_key(row)), 1)
        except ValueError:  # Python cannot hold the key, so `weights` cannot contain it
            return 1

    def idempotency_key(self, index: int) -> str:
        if callable(self._task.work.item_id):
            return self._identity_of(RowView(self.columns, index))
        return row_digest(self._identifying(), index)

    def _identity_of(self, row: RowView) -> str:
        identify: Any = self._task.work.item_id
        return idempotency_key(identify(row), "item_id")

    def _identifying(self) -> list[pa.Array]:
        """The columns that tell rows apart."""
        item_id = self._task.work.item_id
        return self.batch.columns[: self._task.visible] if item_id is None else [self.batch.column(item_id)]

    @cached_property
    def _keys(self) -> list[Any]:
        column = self.batch.column(self._task.work.key)
        return column_reader(self._task.host.key_type(column.type))(column)


class Task(Frame):
    """One run of some work over one input."""

    def __init__(self, work: ArrowMap, input_schema: pa.Schema | None, host: Host) -> None:
        """input_schema: None if the input has no batch. ValueError, TypeError: a column that the options name is not
        there, or has another type; a type that cannot be a result; two columns of one name."""
        self.work, self.options, self.host = work, work.options, host
        self._is_known = input_schema is not None
        self._input_schema = pa.schema([]) if input_schema is None else input_schema
        view = host.view(self._input_schema)
        self.visible = len(view)
        self.reader = Reader(view)
        self.results = ResultSchema(work.schema, host.zone, by_value=host.by_value)
        self.batch_rows = work.max_records
        self.input_error_first, self.raised = host.input_error_first, host.raised  # type: ignore[method-assign]
        self.codec = None if self.options.remember is None else ArrowCodec(work.schema)
        self.key_of = self._key_of if callable(work.key) else None
        # Where all results are of one size, without a call of Python code for each row.
        self.size = size_of if self.results.varies else attrgetter("batch.row_bytes")
        self.weights = {normalise(key): weight for key, weight in (work.options.weights or {}).items()}
        self._meter = CallMeter(work.options) if work.metrics else None
        self.priority, self.costs = self._check_columns()
        self.schema = self._output_schema(view)

    def _check_columns(self) -> tuple[Asked, list[Asked]]:
        """What says the priority and the costs of a row: functions are wrapped in checks of what they return."""
        work = self.work
        self._check_column("key", work.key, is_atomic, "a column of an atomic type")
        self._check_column("item_id", work.item_id, lambda kind: True, "a column")
        self._check_column("priority", work.priority, is_whole, "an integral column")
        for limit in self.options.limits:
            self._check_column("cost", limit.cost, is_number, "a numeric column")
        ask = work.priority
        priority = (lambda row: priority_of(ask(row))) if callable(ask) else ask
        limits = self.options.limits
        costs: list[Asked] = [partial(cost_of, limit) if callable(limit.cost) else limit.cost for limit in limits]
        return priority, costs if self.options.has_costs else []

    def _check_column(self, option: str, asked: Any, fits: Callable[[pa.DataType], bool], expected: str) -> None:
        if asked is None or callable(asked):
            return
        if not isinstance(asked, str):
            raise checks.bad_type(option, asked, "a column name or a function of the row")
        if not self._is_known:
            return
        names = self._input_schema.names
        if asked not in names:
            raise checks.bad_value(option, asked, f"a column of the input, one of {', '.join(names)}")
        kind = self._input_schema.field(asked).type
        if not fits(kind.value_type if types.is_dictionary(kind) else kind):
            raise checks.bad_type(option, asked, f"{expected}; it is {kind}")

    def _output_schema(self, view: pa.Schema) -> pa.Schema:
        work, fields = self.work, list(self._input_schema)[: self.visible]
        more = {} if work.error_name is None else {"error_column": pa.field(work.error_name, ERROR)}
        more.update({"metrics": pa.field(_metrics.NAME, _metrics.CALL)} if work.metrics else {})
        others = {option: field.name for option, field in more.items()}
        refuse_equal_names("data", view.names, work.schema.names, work.append, others)
        kept = [field.with_name(name) for name, field in zip(view.names, fields, strict=True)] if work.append else []
        # A row that has failed has no results.
        results = [field.with_nullable(field.nullable or work.error_name is not None) for field in self.results.fields]
        return pa.schema([*kept, *results, *more.values()])

    # ------------------------------------------------------------------------------------------------ the run
    def slices(self, batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """The input in batches that are no larger than those of the output."""
        for batch in batches:
            if not isinstance(batch, pa.RecordBatch):
                raise checks.bad_type("data", batch, "record batches")
            if batch.schema != self._input_schema:
                raise checks.bad_value("data", batch.schema, f"batches of one schema, {self._input_schema}")
            for start in range(0, batch.num_rows, self.batch_rows):
                yield batch.slice(start, self.batch_rows)
            del batch  # must not be kept during the wait for the next one

    def read(self, chunk: pa.RecordBatch) -> list[Any]:
        return InputBatch(self, chunk).rows()

    def _key_of(self, row: Any) -> Hashable:
        return normalise(self.work.key(row.view))  # type: ignore[operator, misc]

    def weight(self, row: Any) -> int:
        return row.batch.weight(row)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------------------ calls
    def call_with(self, resource: dict[str, Any]) -> Callable[..., Any]:
        call = self._unmeasured(resource)
        return call if self._meter is None else self._meter.measured(call)

    def _unmeasured(self, resource: dict[str, Any]) -> Callable[..., Any]:
        """The call. The most frequent kind, a plain function of a row, has its own, which is faster."""
        options, results = self.options, self.results
        fn, fit, check, none_fits = self.work.fn, results.fit, results.check, results.none_fits
        if options.batch is not None or options.is_async or resource or options.wants_delivery or self.host.by_value:
            return self._any_call(resource)

        make: Any = RowView.__new__

        def call(row: Any) -> Any:
            view = make(RowView)  # as RowView.__init__ would make it, without the call
            view._RowView__columns, view._RowView__index = row.batch.columns, row.index
            value = fn(view)
            if value is None and none_fits:
                return None
            if type(value) is not dict:
                try:
                    return fit(value)
                except Misfit:
                    pass
            return check(value, row.shown_key)

        return call

    def _any_call(self, resource: dict[str, Any]) -> Callable[..., Any]:
        """The call of a function of any kind: with a row, with the values of one, or with a list of rows."""
        fn, names, by_value = self.work.fn, self.reader.names, self.host.by_value
        batched, delivers = self.options.batch is not None, self.options.wants_delivery

        def returned(call: Any, rows: list[Any]) -> Any:
            more = {**resource, "delivery": call.delivery} if delivers else resource
            if batched:
                return fn([row.view for row in rows], **more)
            return fn(*[call.batch.columns[name][call.index] for name in names] if by_value else [call.view], **more)

        def fitted(value: Any, rows: list[Any]) -> Any:
            return batch_results(value, rows, self._fit) if batched else self._fit(rows[0], value)

        async def asynchronous(call: Any, rows: Any = None) -> Any:
            rows = rows or [call]
            with self._delivery(call, rows):
                return fitted(await returned(call, rows), rows)

        def plain(call: Any, rows: Any = None) -> Any:
            rows = rows or [call]
            with self._delivery(call, rows):
                return fitted(refuse_awaitable(returned(call, rows)) if batched else returned(call, rows), rows)

        return asynchronous if self.options.is_async else plain

    def _fit(self, row: Any, result: Any) -> Any:
        return self.results.check(result, row.shown_key)

    def _delivery(self, call: Any, rows: list[Any]) -> AbstractContextManager[Any]:
        """Around the call with these rows: its Delivery, if fn gets one. That does not refer to the rows, which refer
        to it."""
        options = self.options
        if not options.wants_delivery:
            return nullcontext()
        if options.identifies:
            makers: list[Callable[[], str]] = [partial(str, row.identity) for row in rows]
        else:
            makers = [partial(row.batch.idempotency_key, row.index) for row in rows]
        identify: Callable[[], Any] = partial(_made, makers) if options.batch is not None else makers[0]
        return deliver(call, identify, options.spent_names, self.host.task_attempt, rows[0].batch.shown_key(rows[0]))

    # ------------------------------------------------------------------------------------------------ output
    def described(self, error: BaseException, attempts: int) -> Described:
        return describe(error, attempts)

    def build(self, rows: list[Any]) -> pa.RecordBatch:
        arrays = self._inputs(rows) if self.work.append else []
        arrays += self.results.columns([row.result for row in rows])
        if self.work.error_name is not None:
            arrays.append(pa.array([None if row.error is None else _error(row) for row in rows], ERROR))
        if self._meter is not None:
            arrays.append(self._meter.column(rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

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
        if indexes == list(range(first, first + len(indexes))):
            columns = table.slice(first, len(indexes)).columns
        else:
            chosen = pa.array(indexes, pa.int64())
            columns = [_taken(column, chosen) for column in table.columns]
        return [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in columns]


def _taken(column: pa.ChunkedArray, indexes: pa.Array) -> pa.ChunkedArray:
    try:
        return column.take(indexes)
    except pa.ArrowNotImplementedError:  # of string views, among others
        return pa.chunked_array([column.slice(index, 1).combine_chunks() for index in indexes.to_pylist()])


def _error(row: Any) -> dict[str, Any]:
    error = row.error if isinstance(row.error, Described) else describe(row.error, row.attempts)
    return {**error._asdict(), "key": _key_text(row.shown_key())}


def _key_text(key: Any) -> str | None:
    if key is None:
        return None
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, (bytes, bytearray)):
        return bytes(key).decode("utf-8", "replace")
    try:
        text = str.__str__(key) if isinstance(key, str) else str(key)  # the text of an Enum of str is its value
    except ValueError:  # Python refuses to write an int of thousands of digits
        text = checks.shown(key)
    return text.encode("utf-8", "replace").decode("utf-8")  # what UTF-8 has not fails a whole column


def _made(makers: list[Callable[[], str]]) -> list[str]:
    return [make() for make in makers]


def size_of(row: Any) -> float:
    """Bytes of the input row and its result."""
    value = row.result
    kind = type(value)
    if kind is str or kind is bytes:
        return row.batch.row_bytes + len(value)  # type: ignore[no-any-return]
    if kind is dict or kind is list:
        return row.batch.row_bytes + result_bytes(value)  # type: ignore[no-any-return]
    return row.batch.row_bytes  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------- types of options
def is_atomic(kind: pa.DataType) -> bool:
    no = (types.is_nested, types.is_interval, types.is_dictionary)
    return not isinstance(kind, pa.BaseExtensionType) and not any(one(kind) for one in no)


def is_whole(kind: pa.DataType) -> bool:
    return types.is_integer(kind) or types.is_null(kind)  # type: ignore[no-any-return]


def is_number(kind: pa.DataType) -> bool:
    return is_whole(kind) or types.is_floating(kind) or types.is_decimal(kind)


def refuse_equal_names(
    option: str,
    inputs: list[str],
    results: list[str],
    append: bool,
    others: Mapping[str, str],
    fold: Callable[[str], str] = str,
) -> None:
    """Refuse two columns of one name. option: has the input columns, which are in the output with `append`. others:
    names of the columns that follow the results, by the options that add them. fold: makes equal names equal."""
    kept = inputs if append else []
    refused = [
        (option, inputs, [], "input columns with different names"),
        ("schema", results, kept, "names that no other result column and no input column has"),
    ]
    before = kept + results
    for name_of, name in others.items():
        refused.append((name_of, [name], before, "a name that no other column has"))
        before = [*before, name]
    for name_of, names, taken, expected in refused:
        seen = {fold(name) for name in taken}
        for name in names:
            if fold(name) in seen:
                raise checks.bad_value(name_of, name, expected)
            seen.add(fold(name))
