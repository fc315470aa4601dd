"""`concurrent_udf`: the scheduler of `map_concurrent` behind a column function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Literal

import pyarrow as pa
import pyspark
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from manytail import _checks as checks
from manytail.arrow.engine import ArrowMap, check_options
from manytail.mapping import Breaker, Limit, On, Retry, Shared

from ._progress import current_channel
from ._task import Work
from ._transform import check_shared, parsed_type, refuse_file_elsewhere, result_types, session_settings
from ._types import ERROR_TYPE

EXPECTED = "a DDL string or DataType"
FAILURES = ("raise", "column")


@checks.names_options
def concurrent_udf(
    fn: Callable[..., Any] | None = None,
    returnType: str | T.DataType | None = None,
    *,
    workers: int | tuple[int, int] | Literal["inline"] = 16,
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
    """Make a column function that calls `fn(*values)` for every row, with many calls at once inside each task. The rows
    keep their order.

    Needs PySpark 4.1 or newer.

    Parameters
    ----------
    fn : callable
        Gets the values of the columns; None for null. May be `async def`.
    returnType : str or DataType
        The type of the value that `fn` returns.
    workers, max_in_flight, timeout, deadline, retry, breaker, max_failures, fatal, limits, dedup, remember,
    setup
        As in `map_concurrent`.
    errors : {"raise", "column"}
        With "column" the value is struct<value: returnType, error: struct<type, message, attempts, key>>.

    Returns
    -------
    callable
        Takes columns and returns a Column. Without `fn`, it returns a decorator.

    Raises
    ------
    ValueError, TypeError
        For a wrong option. The returned function raises them if it is called without columns, or with a number of
        columns that `fn` does not take.
    RuntimeError
        If PySpark is older than 4.1.

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
    check_shared(check_options(fn, given, arguments=None, failures=FAILURES))
    assert callable(fn)  # it is checked
    return _column_function(fn, returnType, given)


def _column_function(
    fn: Callable[..., Any], kind: str | T.DataType, given: dict[str, Any]
) -> Callable[..., Column]:
    """What `concurrent_udf` returns. It asks the session for nothing before columns are given, so that it can be a
    module's decorator."""

    @functools.wraps(fn)
    def column(*columns: str | Column) -> Column:
        width = len(columns)
        if not columns:
            raise checks.bad_value("columns", columns, "at least one column")
        checked = check_options(fn, given, arguments=width, failures=FAILURES)
        session = SparkSession.active()
        refuse_file_elsewhere(session, given["remember"], checked.remember)
        zone, max_records = session_settings(session)
        fields = [T.StructField("value", parsed_type("returnType", kind, EXPECTED))]
        arrow_map = ArrowMap(fn, checked, append=False, max_records=max_records)
        result = result_types("returnType", T.StructType(fields))
        work = Work(arrow_map, result, zone, channel=current_channel())
        made: Column = _arrow_udf(work, width, getattr(fn, "__name__", type(fn).__name__))(*columns)
        return made

    return column


def _arrow_udf(work: Work, width: int, name: str) -> Any:
    has_errors = work.work.error_name is not None

    def call_values(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        for batch in work.run(map(_as_batch, batches)):
            if has_errors:
                fields = [field.with_name(name) for field, name in zip(batch.schema, ("value", "error"), strict=True)]
                yield pa.StructArray.from_arrays(batch.columns, fields=fields)
            else:
                yield batch.column(0)
            del batch

    # Spark reads the kind of the function from its type hints. In this file hints are text; Spark needs the types.
    one, many = Iterator[pa.Array], Iterator[tuple[pa.Array, ...]]
    call_values.__annotations__ = {"batches": one if width == 1 else many, "return": one}
    call_values.__name__ = name
    value = work.result.fields[0]
    returned = T.StructType([value, T.StructField("error", ERROR_TYPE)]) if has_errors else value.dataType
    return F.arrow_udf(call_values, returned).asNondeterministic()  # type: ignore[attr-defined]


def _as_batch(arrays: Any) -> pa.RecordBatch:
    """Spark passes a tuple of columns, or the column itself if there is only one."""
    columns = arrays if isinstance(arrays, tuple) else (arrays,)
    return pa.RecordBatch.from_arrays(list(columns), names=[str(position) for position in range(len(columns))])
