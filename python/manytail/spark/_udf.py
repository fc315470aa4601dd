"""`concurrent_udf`: the scheduler of `map_concurrent` behind a column function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

import pyarrow as pa
import pyspark
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from manytail.mapping import Breaker, Limit, Retry, Shared
from manytail.mapping import _checks as checks
from manytail.mapping import _options as options
from manytail.mapping._options import Options
from manytail.mapping._policies import On

from ._progress import current_channel
from ._results import ERROR_TYPE, ResultError
from ._task import Task, Work
from ._transform import check_shared, parsed_type, refuse_file_elsewhere, result_types, session_settings

EXPECTED = "a DDL string or DataType"


@checks.names_options
def concurrent_udf(
    fn: Callable[..., Any] | None = None,
    returnType: str | T.DataType | None = None,
    *,
    workers: int = 16,
    max_in_flight: int | None = None,
    timeout: float | None = None,
    deadline: float | None = None,
    retry: int | Retry = 0,
    breaker: int | Breaker | None = None,
    errors: Literal["raise", "column"] = "raise",
    max_failures: int | None = None,
    fatal: On = (),
    limits: Limit | Sequence[Limit] = (),
    dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None,
    setup: Callable[[], Any] | None = None,
) -> Any:
    """Make a column function that calls `fn(*values)` for every row, many at once, inside each task. It keeps the order
    of the input.

    Needs PySpark 4.1 or newer.

    Parameters
    ----------
    fn : callable
        Gets the values of the row's columns, None for null. May be `async def`.
    returnType : str or DataType
        Of the value that `fn` returns.
    workers, max_in_flight, timeout, deadline, retry, breaker, max_failures, fatal, limits, dedup, remember,
    setup
        As in `map_concurrent`.
    errors : {"raise", "column"}
        With "column" the value is struct<value: returnType, error: struct<type, message, attempts, key>>.

    Returns
    -------
    callable
        Takes columns and returns a Column. Without `fn`: a decorator.

    Raises
    ------
    ValueError, TypeError
        A wrong option here; no column, or an `fn` that does not take as many values, when columns are given.
    RuntimeError
        PySpark is older than 4.1.

    Examples
    --------
    >>> pages = df.select("url", concurrent_udf(fetch, "string", workers=32)("url"))  # doctest: +SKIP

    >>> @concurrent_udf("string", timeout=5)  # doctest: +SKIP
    ... async def fetch(url): ...
    """
    given = {name: value for name, value in locals().items() if name not in ("fn", "returnType")}
    if not hasattr(F, "arrow_udf"):
        expected = "4.1 or newer, for arrow_udf; map_concurrent and fan_out need 4.0"
        raise RuntimeError(f"concurrent_udf: PySpark {pyspark.__version__} (expected: {expected})")
    if isinstance(fn, (str, T.DataType)) and returnType is None:  # @concurrent_udf("string")
        fn, returnType = None, fn
    if not isinstance(returnType, (str, T.DataType)):
        raise checks.bad_type("returnType", returnType, EXPECTED)
    if fn is None:
        return functools.partial(concurrent_udf, returnType=returnType, **given)
    checked = check_shared(
        options.check(fn, given, arguments=None, failures=("raise", "column"), never_retry=(ResultError,))
    )
    # pyright does not see that `check` refuses what is not callable.
    return _column_function(fn, returnType, checked, remember)  # pyright: ignore[reportArgumentType]


def _column_function(
    fn: Callable[..., Any], kind: str | T.DataType, checked: Options, remember: Any
) -> Callable[..., Column]:
    """What `concurrent_udf` returns. It asks the session for nothing before columns are given, so that it can be a
    module's decorator."""

    @functools.wraps(fn)
    def column(*columns: str | Column) -> Column:
        width = len(columns)
        if not columns:
            raise checks.bad_value("columns", columns, "at least one column")
        options.check_fn(fn, width, checked.setup is not None)
        session = SparkSession.active()
        refuse_file_elsewhere(session, remember)
        zone, max_records = session_settings(session)
        fields = [T.StructField("value", parsed_type("returnType", kind, EXPECTED))]
        work = Work(
            fn=fn,
            options=replace(checked, wants_delivery="delivery" in checks.unfilled(fn, width)),
            result=result_types("returnType", T.StructType(fields), zone),
            time_zone=zone,
            max_records=max_records,
            channel=current_channel(),
        )
        made: Column = _arrow_udf(work, width, getattr(fn, "__name__", type(fn).__name__))(*columns)
        return made

    return column


def _arrow_udf(work: Work, width: int, name: str) -> Any:
    def call_values(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        task = Task(work)
        with closing(task.finished(map(_as_batch, batches))) as finished:
            for rows in finished:
                yield task.build_values(rows)
                del rows

    # Spark reads the kind of the function from its type hints. In this file hints are text; Spark needs the types.
    one, many = Iterator[pa.Array], Iterator[tuple[pa.Array, ...]]
    call_values.__annotations__ = {"batches": one if width == 1 else many, "return": one}
    call_values.__name__ = name
    value = work.result.fields[0]
    returned = T.StructType([value, T.StructField("error", ERROR_TYPE)]) if work.error_column else value.dataType
    return F.arrow_udf(call_values, returned).asNondeterministic()  # type: ignore[attr-defined]


def _as_batch(arrays: Any) -> pa.RecordBatch:
    """Spark passes a tuple of columns, or the column itself if there is only one."""
    columns = arrays if isinstance(arrays, tuple) else (arrays,)
    return pa.RecordBatch.from_arrays(list(columns), names=[str(position) for position in range(len(columns))])
