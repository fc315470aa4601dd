"""`map_arrow`: checks what it is given, opens the input, and returns its lazy batches."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from typing import Any, Literal

import pyarrow as pa

from manytail import _checks as checks
from manytail.mapping import Batch, Breaker, Limit, On, Retry, Shared, Stats
from manytail.mapping.frames import FrameResults, Options, check, refuse_per_task

from ._fits import fit_of
from ._results import ResultError
from ._task import ArrowMap, Host, Task

COLUMNS = ("key", "priority", "item_id")  # options that are columns or functions of a row


@checks.names_options
def map_arrow(
    fn: Callable[..., Any],
    data: Any,
    schema: pa.Schema,
    *,
    columns: Literal["append", "replace"] = "append",
    errors: Literal["raise", "column", "drop"] = "raise",
    error_column: str = "_error",
    metrics: bool = False,
    time_zone: str = "UTC",
    max_records: int = 10_000,
    workers: int | tuple[int, int] | tuple[int, int, int] | Literal["inline"] = 16,
    max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input",
    key: str | Callable[[Any], Hashable] | None = None,
    per_key: int | None = None,
    weights: Mapping[Any, int] | None = None,
    priority: str | Callable[[Any], int | None] | None = None,
    batch: int | Batch | None = None,
    timeout: float | None = None,
    deadline: float | None = None,
    retry: int | Retry = 0,
    breaker: int | Breaker | None = None,
    max_failures: int | None = None,
    fatal: On = (),
    limits: Limit | Sequence[Limit] = (),
    item_id: str | Callable[[Any], Any] | None = None,
    dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None,
    setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> ArrowResults:
    """Call `fn(row)` on every row of a frame, with many calls at once: `concurrent_map` for Polars, DuckDB, pandas and
    everything else that supports Arrow's C stream.

    It reads lazily, except for the schema of `data` and the first batch of an iterable. See docs/guides/arrow.md for
    rows, results, errors and options.

    Parameters
    ----------
    fn : callable
        Gets a row, which is a mapping with attribute access and `asDict()`, or with `batch`, a list of rows. Returns a
        mapping, a tuple or None; if the schema has one column, it may return just the value. May be `async def`. Gets
        `delivery=` and `resource=` as in `concurrent_map`.
    data : object
        An object with `__arrow_c_stream__` (a pyarrow Table or reader, a Polars or pandas frame, a DuckDB relation), or
        an iterable of record batches. An empty iterable has no input columns.
    schema : pyarrow.Schema
        The columns that `fn` returns. A null in a column that is not nullable makes the row fail.
    columns : {"append", "replace"}
        Whether the input columns stay.
    errors : {"raise", "column", "drop"}
        What happens to a row that fails for good. "raise": it ends the map. "column": its error is stored in
        `error_column`, and its results are null, even in columns that are not nullable. "drop": it is left out.
    metrics : bool
        Append a column `_call`, a struct of attempts, waited, ran, deferred, remembered and cost; times are in seconds.
    time_zone : str
        The time zone of naive datetimes that `fn` returns for a column with a time zone.
    max_records : int
        The largest number of rows in an output batch.
    key, priority, item_id, limits
        As in `concurrent_map`, but `key`, `priority`, `item_id` and the cost of a limit are column names, or functions
        of the row.
    workers, max_in_flight, order, per_key, weights, batch, timeout, deadline, retry, breaker, max_failures, fatal,
    dedup, remember, setup, progress
        As in `concurrent_map`.

    Returns
    -------
    ArrowResults
        An iterator over record batches, which any library that supports Arrow's C stream accepts.

    Raises
    ------
    ValueError, TypeError
        For a bad option or schema, or an unknown column; raised by the call itself, before any row is read.

    Examples
    --------
    >>> import pyarrow as pa
    >>> rows = map_arrow(lambda row: row.n * 2, pa.table({"n": [1, 2]}), pa.schema({"twice": pa.int64()}))
    >>> pa.table(rows).to_pylist()
    [{'n': 1, 'twice': 2}, {'n': 2, 'twice': 4}]
    """
    work = ArrowMap(
        fn,
        check_options(fn, locals()),
        check_schema(schema),
        append=checks.choice("columns", columns, ("append", "replace")) == "append",
        error_column=check_name("error_column", error_column),
        metrics=checks.check_flag("metrics", metrics),
        max_records=min(checks.whole("max_records", max_records, 1), 1 << 31),  # pyarrow slices by ints of 64 bits
        key=key,
        priority=priority,
        item_id=item_id,
    )
    refuse_per_task(work.options.limits)
    return run(work, data, Host(check_zone(time_zone)))


def run(work: ArrowMap, data: Any, host: Host) -> ArrowResults:
    """Run a map over that input and return its results."""
    schema, batches = _opened(data)
    return ArrowResults(Task(work, schema, host), batches, data)


def check_options(
    fn: Any,
    given: Mapping[str, Any],
    *,
    arguments: int | None = 1,
    failures: tuple[str, ...] = ("raise", "column", "drop"),
) -> Options:
    """Check the options among the arguments of a map over Arrow batches, and return them. arguments: how many
    positional arguments fn gets; None: not known yet. failures: the allowed values of `errors`."""
    return check(fn, given, arguments=arguments, failures=failures, never_retry=(ResultError,), columns=COLUMNS)


def check_schema(schema: Any) -> pa.Schema:
    if not isinstance(schema, pa.Schema):
        raise checks.bad_type("schema", schema, "a pyarrow.Schema")
    if not len(schema):
        raise checks.bad_value("schema", schema, "at least one column")
    for number, field in enumerate(schema):
        if field.name in schema.names[:number]:
            raise checks.bad_value("schema", field.name, "names that no other result column has")
        try:
            fit_of(field.type, datetime.UTC)
        except TypeError as error:
            raise TypeError(f"schema: {field} (expected: types that have a Python value)") from error
        except ValueError as error:
            raise ValueError(f"schema: {field} (expected: structs whose fields have different names)") from error
    return schema


def check_name(option: str, name: Any) -> str:
    """Check the name of a column and return it."""
    if not isinstance(name, str) or not name:
        bad = checks.bad_value if isinstance(name, str) else checks.bad_type
        raise bad(option, name, "a column name")
    return name


def check_zone(name: Any) -> str:
    expected = "a time zone, such as 'UTC', '+01:00' or 'Europe/Berlin'"
    if not isinstance(name, str):
        raise checks.bad_type("time_zone", name, expected)
    try:
        Host(name)
    except (KeyError, ValueError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise checks.bad_value("time_zone", name, expected) from error
    return name


# ---------------------------------------------------------------------------------------------------- input
def _opened(data: Any) -> tuple[pa.Schema | None, Iterator[Any]]:
    """The schema and the batches of an input. An iterable has the schema of its first batch."""
    if hasattr(data, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(data)
        except pa.ArrowInvalid as error:
            raise checks.bad_type("data", data, "a stream of record batches") from error
        return reader.schema, iter(reader)
    if not isinstance(data, Iterable):
        raise checks.bad_type("data", data, "an object with __arrow_c_stream__, or an iterable of record batches")
    batches = iter(data)
    try:
        first = next(batches, None)
    except Exception as error:
        return None, _raising(error)
    if first is None:
        return None, batches
    if not isinstance(first, pa.RecordBatch):
        raise checks.bad_type("data", first, "record batches")
    return first.schema, chain([first], batches)


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


# ---------------------------------------------------------------------------------------------------- output
class ArrowResults(FrameResults[pa.RecordBatch]):
    """The iterator over record batches that `map_arrow` returns.

    Libraries that support Arrow's C stream accept it: `pa.table(results)`, `polars.DataFrame(results)`, a DuckDB query.
    Such a library sees an exception as Arrow's own error; `error` is the original one. Otherwise it works like the
    Results of `concurrent_map`.
    """

    error: BaseException | None = None  # what the iterator has raised

    def __init__(self, task: Task, batches: Iterable[pa.RecordBatch], data: Any) -> None:
        super().__init__(task, task.slices(batches), data)
        self.schema: pa.Schema = task.schema

    def __next__(self) -> pa.RecordBatch:
        try:
            return super().__next__()
        except StopIteration:
            raise
        except BaseException as error:
            self.error = error
            raise

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.RecordBatchReader.from_batches(self.schema, self).__arrow_c_stream__(requested_schema)
