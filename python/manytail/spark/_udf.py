"""`concurrent_udf`: the same scheduler behind a column function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from . import _options as options
from ._engine import Settings
from ._results import ERROR_TYPE
from ._task import MAX_RECORDS, TIME_ZONE, Task, Work

_OPTIONS = ("workers", "max_in_flight", "timeout", "retries", "backoff", "retry_on", "errors", "setup")
_LATER = ("rate", "breaker", "breaker_reset", "breaker_open")


def concurrent_udf(fn: Callable[..., Any] | None = None, returnType: str | T.DataType | None = None, **keywords: Any) -> Any:
    """Make a column function that calls `fn(*values)` for every row, many at once, inside each task.

    Parameters
    ----------
    fn : callable
        Gets the values of the row's columns, None for null. May be `async def`.
    returnType : str or DataType
        Of the value that `fn` returns.
    **keywords
        workers, max_in_flight, timeout, retries, backoff, retry_on, setup as in `map_concurrent`; errors is "raise" or "column". With "column" the
        value is struct<value: returnType, error: struct<type, message, attempts, key>>.

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
    if isinstance(fn, (str, T.DataType)) and returnType is None:  # @concurrent_udf("string")
        fn, returnType = None, fn
    if returnType is None:
        raise options.bad_type("returnType", returnType, "a DDL string or DataType")
    if not isinstance(returnType, (str, T.DataType)):
        raise options.bad_type("returnType", returnType, "a DDL string or DataType")
    for name in keywords:
        if name not in (*_OPTIONS, *_LATER):
            raise options.bad_type(name, keywords[name], f"no such option; there are {', '.join((*_OPTIONS, *_LATER))}")
    options.refuse_later(keywords)
    if fn is None:
        return functools.partial(concurrent_udf, returnType=returnType, **keywords)
    chosen = {name: keywords[name] for name in _OPTIONS if name in keywords}
    return _ColumnFunction(fn, returnType, options.settings(fn, allowed_errors=("raise", "column"), **chosen))


class _ColumnFunction:
    """What `concurrent_udf` returns. The session is asked for nothing before columns are given, so that it may be a module's decorator."""

    def __init__(self, fn: Callable[..., Any], kind: str | T.DataType, settings: Settings) -> None:
        self._fn = fn
        self._kind = kind
        self._settings = settings
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *columns: str | Column) -> Column:
        if not columns:
            raise options.bad_value("columns", columns, "at least one column")
        made: Column = self._udf(len(columns))(*columns)
        return made

    def _udf(self, width: int) -> Any:
        if not hasattr(F, "arrow_udf"):
            raise NotImplementedError("concurrent_udf needs PySpark 4.1 or newer: it is built on arrow_udf")
        value = T.DataType.fromDDL(self._kind) if isinstance(self._kind, str) else self._kind
        fields = [T.StructField("value", value)]
        work = self._work(T.StructType(fields))
        returned = T.StructType([*fields, T.StructField("error", ERROR_TYPE)]) if work.error_column else value

        def call_values(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            task = Task(work)
            with closing(task.finished(map(_as_batch, batches))) as finished:
                for calls in finished:
                    yield task.build_values(calls)
                    del calls

        # The form of the function is told by its type hints, which are text here; Spark wants the types themselves.
        one, many = Iterator[pa.Array], Iterator[tuple[pa.Array, ...]]
        call_values.__annotations__ = {"batches": one if width == 1 else many, "return": one}
        call_values.__name__ = getattr(self._fn, "__name__", type(self._fn).__name__)
        return F.arrow_udf(call_values, returned).asNondeterministic()

    def _work(self, result: T.StructType) -> Work:
        session = SparkSession.active()
        zone = session.conf.get(TIME_ZONE) or "UTC"
        return Work(
            fn=self._fn,
            settings=self._settings,
            result=options.result_types("returnType", result, zone),
            names=(),
            types=None,
            key=None,
            priority=None,
            row_id=None,
            weights=None,
            append=False,
            error_column=self._settings.errors == "column",
            wants_delivery=options.takes(self._fn, "delivery"),
            time_zone=zone,
            max_records=int(session.conf.get(MAX_RECORDS) or 10_000),
        )


def _as_batch(arrays: Any) -> pa.RecordBatch:
    """Spark hands out a tuple of columns, or the column itself if it is only one."""
    columns = arrays if isinstance(arrays, tuple) else (arrays,)
    return pa.RecordBatch.from_arrays(list(columns), names=[str(position) for position in range(len(columns))])
