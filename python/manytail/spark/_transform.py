"""`map_concurrent`: a DataFrame in, a DataFrame out. Here is the driver's side: names, types and columns; the work itself is in `_task`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from . import _options as options
from ._results import ERROR_TYPE
from ._task import MAX_RECORDS, TIME_ZONE, Work

_ATOMIC = tuple(
    getattr(T, name)
    for name in (
        "BooleanType", "ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType", "StringType", "BinaryType",
        "DateType", "TimeType", "TimestampType", "TimestampNTZType", "DayTimeIntervalType", "CharType", "VarcharType", "NullType",
    )
    if hasattr(T, name)
)  # fmt: skip
_INTEGRAL = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


def map_concurrent(
    df: DataFrame,
    fn: Callable[..., Any],
    schema: str | T.StructType,
    *,
    workers: int = 16,
    max_in_flight: int = 0,
    ordered: Literal["input", "key", "none"] = "input",
    key: str | Column | None = None,
    per_key: int = 0,
    weight: Mapping[Any, int] | None = None,
    priority: str | Column | None = None,
    rate: float | None = None,
    per_key_rate: float | None = None,
    timeout: float | None = None,
    retries: int = 0,
    backoff: float | Callable[[int], float] = 0.1,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
    breaker: int = 0,
    breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["raise", "column", "drop"] = "raise",
    error_column: str = "_error",
    columns: Literal["append", "replace"] = "append",
    row_id: str | Column | None = None,
    metrics: bool = False,
    setup: Callable[[], Any] | None = None,
) -> DataFrame:
    """Call `fn(row)` on every row, many at once, inside each task.

    A row is emitted exactly once per successful task, none lost, none doubled, whatever fails. Limits hold per task, because a task shares no state
    with others. docs/spark.md describes every option at length.

    Parameters
    ----------
    df : DataFrame
        Batch or streaming, classic or Connect.
    fn : callable
        Gets a row: a mapping with attribute access and `asDict()`. Returns a mapping, a Row, a tuple, None, or for a one-column schema the value.
        May be `async def`. Gets `delivery=` if it has a parameter of that name, and `resource=` if `setup` is given.
    schema : str or StructType
        The columns that `fn` returns; nullable whatever it says.
    workers : int
        Calls that run at once.
    max_in_flight : int
        Rows between the input and the output batch being filled. 0: starts at 4 x workers and doubles whenever a worker has nothing to run only
        because the window is full of rows that wait for an earlier one or for their key, up to 10,000 rows and 256 MB.
    ordered : {"input", "key", "none"}
        Which order the output keeps.
    key, per_key, weight
        Rows of one key share at most `per_key` calls; keys take turns, `weight` calls per turn.
    priority : str or Column
        Integral, lower first, null last; comes before turns.
    timeout : float
        Seconds per attempt.
    retries, backoff, retry_on
        Up to `retries` further calls after an exception that `retry_on` names, after `backoff * 2**(k-1)` seconds or `backoff(k)`.
    errors : {"raise", "column", "drop"}
        What a row that failed for good does: fail the task, fill `error_column`, or be left out.
    columns : {"append", "replace"}
        Whether the input columns stay.
    row_id : str or Column
        Tells rows apart in `delivery.idempotency_key` that are equal in all columns.
    setup : callable
        Makes what `fn` gets as `resource=`: once per worker thread, or once per task for an `async def`.
    rate, per_key_rate, breaker, breaker_reset, breaker_open, metrics
        Not in this version.

    Returns
    -------
    DataFrame

    Examples
    --------
    >>> def fetch(row):
    ...     with urllib.request.urlopen(row.url, timeout=10) as answer:
    ...         return answer.status, answer.read()
    >>> pages = urls.transform(map_concurrent, fetch, "status int, body binary", workers=32, retries=3, errors="column")  # doctest: +SKIP
    """
    options.refuse_later({"rate": rate, "per_key_rate": per_key_rate, "metrics": metrics})
    options.refuse_later({"breaker": breaker, "breaker_reset": breaker_reset, "breaker_open": breaker_open})
    if not isinstance(df, DataFrame):
        raise options.bad_type("df", df, "a DataFrame")
    settings = options.settings(
        fn,
        workers=workers,
        max_in_flight=max_in_flight,
        ordered=ordered,
        keyed=key is not None,
        per_key=per_key,
        weighted=weight is not None,
        prioritised=priority is not None,
        timeout=timeout,
        retries=retries,
        backoff=backoff,
        retry_on=retry_on,
        errors=errors,
        setup=setup,
    )
    options.name("error_column", error_column)
    append = options.choice("columns", columns, ("append", "replace")) == "append"
    weights = options.weights(weight, key is not None)
    session = df.sparkSession
    source = _Source(df)
    key_at = source.add("key", key, _ATOMIC, "a column of an atomic type")
    priority_at = source.add("priority", priority, _INTEGRAL, "an integral column")
    row_id_at = source.add("row_id", row_id, None, "a column")
    prepared = source.prepare()
    zone = session.conf.get(TIME_ZONE) or "UTC"
    result = options.result_types("schema", result_schema(schema), zone)
    output = _output_schema(source.schema, result, append, error_column if errors == "column" else None, _case_sensitive(session))
    work = Work(
        fn=fn,
        settings=settings,
        result=result,
        names=tuple(source.schema.names),
        types=tuple(field.dataType for field in source.schema.fields),
        key=key_at,
        priority=priority_at,
        row_id=row_id_at,
        weights=weights,
        append=append,
        error_column=errors == "column",
        wants_delivery=options.takes(fn, "delivery"),
        time_zone=zone,
        max_records=int(session.conf.get(MAX_RECORDS) or 10_000),
    )

    def call_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work.run(batches)

    return prepared.mapInArrow(call_rows, output)


# ---------------------------------------------------------------------------------------------------- input
class _Source:
    """The input with the columns that only the scheduler sees behind it, under names that mapInArrow can address whatever the user's names are."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self.schema = df.schema  # an AnalysisException of the input itself is raised here, on Connect too
        self._hidden: list[Column] = []
        self._checks: list[tuple[str, Any, tuple[type, ...] | None, str]] = []

    def add(self, option: str, column: str | Column | None, kinds: tuple[type, ...] | None, expected: str) -> int | None:
        """The position that the column will have."""
        if column is None:
            return None
        if not isinstance(column, (str, Column)):
            raise options.bad_type(option, column, "a column name or a Column")
        self._hidden.append((F.col(column) if isinstance(column, str) else column).alias(f"_manytail_{option}"))
        self._checks.append((option, column, kinds, expected))
        return len(self.schema.fields) + len(self._hidden) - 1

    def prepare(self) -> DataFrame:
        """The input for mapInArrow; raises AnalysisException for unknown columns."""
        df = self._df.select("*", *self._hidden) if self._hidden else self._df
        hidden = df.schema.fields[len(self.schema.fields) :]
        if len(hidden) != len(self._checks):
            raise options.bad_value(self._checks[0][0], self._checks[0][1], "one column")
        for field, (option, column, kinds, expected) in zip(hidden, self._checks, strict=True):
            if kinds is not None and not isinstance(field.dataType, kinds):
                raise options.bad_type(option, column, f"{expected}; it is {field.dataType.simpleString()}")
            if option == "key" and isinstance(field.dataType, T.StringType) and not _is_binary(field.dataType):
                raise options.bad_type(option, column, f"a string that compares byte by byte; it is {field.dataType.simpleString()}")
        return df.toDF(*[f"c{position}" for position in range(len(df.schema.fields))])


def _is_binary(kind: T.StringType) -> bool:
    return getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"


# ---------------------------------------------------------------------------------------------------- output
def result_schema(schema: str | T.StructType) -> T.StructType:
    """The result columns, all nullable."""
    if isinstance(schema, str):
        try:
            parsed = T.DataType.fromDDL(schema)
        except AnalysisException as error:  # a ParseException is one
            raise options.bad_value("schema", schema, "a DDL string or StructType") from error
        if not isinstance(parsed, T.StructType):
            raise options.bad_value("schema", schema, "columns with names, such as 'status int, body string'")
        schema = parsed
    if not isinstance(schema, T.StructType):
        raise options.bad_type("schema", schema, "a DDL string or StructType")
    if not schema.fields:
        raise options.bad_value("schema", schema, "at least one column")
    return T.StructType([T.StructField(field.name, field.dataType, True, field.metadata) for field in schema.fields])


def _case_sensitive(session: Any) -> bool:
    return str(session.conf.get("spark.sql.caseSensitive")).lower() == "true"


def _output_schema(source: T.StructType, result: T.StructType, append: bool, error_column: str | None, case_sensitive: bool) -> T.StructType:
    def folded(names: Sequence[str]) -> list[str]:
        return list(names) if case_sensitive else [name.lower() for name in names]

    def refuse_twice(option: str, names: Sequence[str], taken: Sequence[str], expected: str) -> None:
        seen = set(folded(taken))
        for name, fold in zip(names, folded(names), strict=True):
            if fold in seen:
                raise options.bad_value(option, name, expected)
            seen.add(fold)

    refuse_twice("df", source.names, [], "input columns with different names")
    kept = source.names if append else []
    refuse_twice("schema", result.names, kept, "names that no other result column and no input column has")
    fields = [*(source.fields if append else []), *result.fields]
    if error_column is not None:
        refuse_twice("error_column", [error_column], [field.name for field in fields], "a name that no other column has")
        fields.append(T.StructField(error_column, ERROR_TYPE))
    return T.StructType(fields)
