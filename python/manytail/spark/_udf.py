"""`concurrent_udf`: the same scheduler behind a column function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from manytail.mapping import _options as options
from manytail.mapping._options import Options, RetryOn

from ._results import ERROR_TYPE, ResultError
from ._task import MAX_RECORDS, TIME_ZONE, Task, Work
from ._transform import result_types


def concurrent_udf(
    fn: Callable[..., Any] | None = None,
    returnType: str | T.DataType | None = None,
    *,
    workers: int = 16,
    max_in_flight: int = 0,
    timeout: float | None = None,
    deadline: float | None = None,
    retries: int = 0,
    backoff: float | Callable[[int, BaseException], float] = 0.1,
    max_backoff: float = 60.0,
    retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0,
    errors: Literal["raise", "column"] = "raise",
    setup: Callable[[], Any] | None = None,
) -> Any:
    """Make a column function that calls `fn(*values)` for every row, many at once, inside each task. The order is the input's.

    Parameters
    ----------
    fn : callable
        Gets the values of the row's columns, None for null. May be `async def`.
    returnType : str or DataType
        Of the value that `fn` returns.
    workers, max_in_flight, timeout, deadline, retries, backoff, max_backoff, retry_on, defer_timeout, setup
        As in `map_concurrent`.
    errors : {"raise", "column"}
        With "column" the value is struct<value: returnType, error: struct<type, message, attempts, key>>.

    Returns
    -------
    callable
        From columns to a Column, or a decorator if `fn` is not given.

    Examples
    --------
    >>> pages = df.select("url", concurrent_udf(fetch, "string", workers=32)("url"))  # doctest: +SKIP

    >>> @concurrent_udf("string", timeout=5)  # doctest: +SKIP
    ... async def fetch(url): ...
    """
    given = {name: value for name, value in locals().items() if name not in ("fn", "returnType")}
    if isinstance(fn, (str, T.DataType)) and returnType is None:  # @concurrent_udf("string")
        fn, returnType = None, fn
    if not isinstance(returnType, (str, T.DataType)):
        raise options.bad_type("returnType", returnType, "a DDL string or DataType")
    if fn is None:
        return functools.partial(concurrent_udf, returnType=returnType, **given)
    checked = options.check(fn, given, arguments=None, failures=("raise", "column"), never_retry=(ResultError,))
    return _ColumnFunction(fn, returnType, checked)  # pyright: ignore[reportArgumentType] - checked is that it is a callable


class _ColumnFunction:
    """What `concurrent_udf` returns. The session is asked for nothing before columns are given, so that it may be a module's decorator."""

    def __init__(self, fn: Callable[..., Any], kind: str | T.DataType, checked: Options) -> None:
        self._fn = fn
        self._kind = kind
        self._options = checked
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *columns: str | Column) -> Column:
        if not columns:
            raise options.bad_value("columns", columns, "at least one column")
        options.check_fn(self._fn, len(columns), self._options.setup is not None)
        made: Column = self._udf(len(columns))(*columns)
        return made

    def _udf(self, width: int) -> Any:
        if not hasattr(F, "arrow_udf"):
            raise NotImplementedError("concurrent_udf needs PySpark 4.1 or newer: it is built on arrow_udf")
        value = _parsed(self._kind)
        fields = [T.StructField("value", value)]
        work = self._work(T.StructType(fields), width)
        returned = T.StructType([*fields, T.StructField("error", ERROR_TYPE)]) if work.error_column else value

        def call_values(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            task = Task(work)
            with closing(task.finished(map(_as_batch, batches))) as finished:
                for rows in finished:
                    yield task.build_values(rows)
                    del rows

        # The form of the function is told by its type hints, which are text here; Spark wants the types themselves.
        one, many = Iterator[pa.Array], Iterator[tuple[pa.Array, ...]]
        call_values.__annotations__ = {"batches": one if width == 1 else many, "return": one}
        call_values.__name__ = getattr(self._fn, "__name__", type(self._fn).__name__)
        return F.arrow_udf(call_values, returned).asNondeterministic()  # pyright: ignore[reportCallIssue, reportArgumentType]

    def _work(self, result: T.StructType, width: int) -> Work:
        session = SparkSession.active()
        zone = session.conf.get(TIME_ZONE) or "UTC"
        return Work(
            fn=self._fn,
            options=replace(self._options, wants_delivery="delivery" in options.unfilled(self._fn, width)),
            result=result_types("returnType", result, zone),
            names=(),
            types=None,
            key=None,
            priority=None,
            row_id=None,
            append=False,
            error_column=self._options.errors == "column",
            time_zone=zone,
            max_records=int(session.conf.get(MAX_RECORDS) or 10_000),
        )


def _parsed(kind: str | T.DataType) -> T.DataType:
    if not isinstance(kind, str):
        return kind
    try:
        return T.DataType.fromDDL(kind)
    except AnalysisException as error:  # a ParseException is one
        raise options.bad_value("returnType", kind, "a DDL string or DataType") from error


def _as_batch(arrays: Any) -> pa.RecordBatch:
    """Spark hands out a tuple of columns, or the column itself if it is only one."""
    columns = arrays if isinstance(arrays, tuple) else (arrays,)
    return pa.RecordBatch.from_arrays(list(columns), names=[str(position) for position in range(len(columns))])
