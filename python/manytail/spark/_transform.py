"""`map_concurrent`: the driver's part. It checks options, names and types, and builds the plan. The work itself is in
`_task`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from manytail import _checks as checks
from manytail.arrow.engine import NAME, ArrowMap, ResultSchema, check_name, check_options, refuse_equal_names
from manytail.mapping import Batch, Breaker, Limit, On, Retry, Shared
from manytail.mapping.frames import has_literal_password, is_file, with_costs

from ._progress import current_channel
from ._task import MAX_RECORDS, TIME_ZONE, Work
from ._types import CALL_TYPE, ERROR_TYPE, ResultTypes

_ATOMIC = (T.AtomicType, T.NullType)
# Atomic types without Python values, or whose values do not compare. By name: some versions of PySpark lack some.
_NO_KEYS = ("YearMonthIntervalType", "VariantType", "GeographyType", "GeometryType")


@checks.names_options
def map_concurrent(
    df: DataFrame,
    fn: Callable[..., Any],
    schema: str | T.StructType,
    *,
    workers: int | tuple[int, int] | Literal["inline"] = 16,
    max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input",
    key: str | Column | None = None,
    per_key: int | None = None,
    weights: Mapping[Any, int] | None = None,
    priority: str | Column | None = None,
    batch: int | Batch | None = None,
    timeout: float | None = None,
    deadline: float | None = None,
    retry: int | Retry = 0,
    breaker: int | Breaker | None = None,
    errors: Literal["raise", "column", "drop"] = "raise",
    error_column: str = "_error",
    max_failures: int | None = None,
    fatal: On = (),
    limits: Limit | Sequence[Limit] = (),
    dedup: int | None = None,
    item_id: str | Column | None = None,
    remember: str | PathLike[str] | Shared | None = None,
    columns: Literal["append", "replace"] = "append",
    metrics: bool = False,
    setup: Callable[[], Any] | None = None,
) -> DataFrame:
    """Call `fn(row)` on every row, with many calls at once inside each task: `manytail.concurrent_map` for DataFrames.

    Each row is in the output of a successful task exactly once, whatever fails. See docs/spark.md for all options.

    Parameters
    ----------
    df : DataFrame
        A batch or streaming DataFrame, classic or Spark Connect.
    fn : callable
        Gets a row: a mapping with attribute access and `asDict()`. Returns a mapping, a Row, a tuple or None; if the
        schema has one column, it may return just the value. May be `async def`. Gets `delivery=` if it has a parameter
        of that name, and `resource=` if `setup` is given.
    schema : str or StructType
        The columns that `fn` returns. They are always nullable.
    workers, max_in_flight, timeout, deadline, retry, breaker, setup
        As in `manytail.concurrent_map`. The automatic window does not grow beyond 256 MB of rows and results.
    batch : int or Batch
        `fn(rows)` gets a list of up to this many rows of one key and returns a sequence with one result for each.
    limits : Rate, Budget, Concurrency, or a list of them
        With `shared`, a limit applies to all tasks, jobs and clusters that use its name. Without it, pass
        `per_task=True`: each task then has its own limit. The cost is a numeric column (a name or a Column) whose
        values are >= 0. A null or any other value makes the row fail.
    dedup : int
        Rows that are equal in all columns, or in `item_id`, share one call while it runs; later equal rows get its
        result, if it is among those of the last `dedup` calls.
    order : {"input", "key", "completion"}
        The order of the output inside a task.
    key, per_key, weights
        `key` groups the rows. Groups take turns, according to their weights, and have at most `per_key` concurrent
        calls each.
    priority : str or Column
        An integer column: rows with lower numbers start first, and rows with null last.
    errors : {"raise", "column", "drop"}
        What happens to a row that fails for good. "raise": the task fails. "column": the error is stored in
        `error_column`. "drop": the row is left out.
    max_failures, fatal
        As in `manytail.concurrent_map`, but for each task: the task fails if more rows fail, or if a row fails
        with an error that `fatal` names.
    columns : {"append", "replace"}
        Whether the input columns stay.
    metrics : bool
        Append a column `_call`, struct<attempts int, waited double, ran double, deferred double, remembered boolean,
        cost double>; times are in seconds. The sums of its fields are the job's totals; `df.observe` works on it.
    item_id : str or Column
        The column that identifies a row, for `delivery.idempotency_key`, `dedup` and `remember`. None: all columns.
    remember : Shared, str or path
        Records results, so that a retried task, or the next run of the job, does not make these calls again. Raises
        ValueError if the name has results of another schema, if a literal URL contains a password, or if it is a path
        and the master is not local.

    Returns
    -------
    DataFrame

    Raises
    ------
    ValueError, TypeError
        For a wrong option, or options that do not fit together; raised by the call itself.
    AnalysisException
        For an unknown column; raised by the call itself, also on Spark Connect.

    Examples
    --------
    >>> def fetch(row):
    ...     with urllib.request.urlopen(row.url, timeout=10) as answer:
    ...         return answer.status, answer.read()
    >>> schema = "status int, body binary"
    >>> pages = urls.transform(map_concurrent, fetch, schema, workers=32, retry=3, errors="column")  # doctest: +SKIP
    """
    if not isinstance(df, DataFrame):
        raise checks.bad_type("df", df, "a DataFrame")
    checked = check_shared(check_options(fn, locals()))
    check_name("error_column", error_column)
    append = checks.choice("columns", columns, ("append", "replace")) == "append"
    source = Source(df)
    key_at = source.add("key", key, _ATOMIC, "a column of an atomic type")
    priority_at = source.add("priority", priority, (T.IntegralType,), "an integral column")
    costs_at = [source.add("cost", limit.cost, (T.NumericType,), "a numeric column") for limit in checked.limits]
    item_id_at = source.add("item_id", item_id, (T.DataType,), "a column")
    prepared = source.prepare()
    session = df.sparkSession
    refuse_file_elsewhere(session, remember, checked.remember)
    zone, max_records = session_settings(session)
    result = result_types("schema", result_schema(schema))
    fields = [*(source.schema.fields if append else ()), *result.fields]
    more = {"error_column": T.StructField(error_column, ERROR_TYPE)} if checked.errors == "column" else {}
    if checks.check_flag("metrics", metrics):
        more["metrics"] = T.StructField(NAME, CALL_TYPE)
    others = {option: field.name for option, field in more.items()}
    refuse_equal_names("df", source.schema.names, result.names, append, others, fold_of(session))
    fields += more.values()
    arrow_map = ArrowMap(
        fn, with_costs(checked, costs_at), None, append, error_column, metrics, max_records, key_at, priority_at,
        item_id_at,
    )  # fmt: skip
    names, types = tuple(source.schema.names), tuple(field.dataType for field in source.schema.fields)
    work = Work(arrow_map, result, zone, names, types, current_channel())
    return prepared.mapInArrow(lambda batches: work.run(batches), T.StructType(fields))


def check_shared(checked: Any) -> Any:
    """Checks that apply only where options are sent to other processes."""
    for limit in checked.limits:
        if limit.shared is None and not limit.per_task:
            expected = "shared, which all tasks keep together, or per_task=True: each task has its own"
            raise checks.bad_value("limits", limit, expected)
        if callable(limit.cost):
            raise checks.bad_value("limits", limit, "a cost that is a column: its name or a Column")
    given = [("limits", limit.shared) for limit in checked.limits]
    for option, shared in [*given, ("remember", checked.remember)]:
        if shared is not None and has_literal_password(shared):
            expected = "a URL without a password, which travels with the job: env:NAME, or a callable that returns it"
            raise checks.bad_value(option, shared, expected)
    if checked.remember is not None and checked.remember.codec is not None:
        expected = "a Shared without codec: results are recorded in Arrow's format"
        raise checks.bad_value("remember", checked.remember, expected)
    return checked


def refuse_file_elsewhere(session: Any, remember: Any, shared: Shared | None) -> None:
    """A path names a file of one machine: the workers of a cluster would each have their own. A Shared may be on a file
    that all machines mount. shared: what the option `remember` was made into."""
    by_path = shared is not None and shared is not remember and is_file(shared)
    if by_path and not setting(session, "spark.master", "").startswith("local"):
        expected = "a path only where the master is local; a Shared in PostgreSQL, which all machines reach"
        raise checks.bad_value("remember", remember, expected)


def session_settings(session: Any) -> tuple[str, int]:
    """The time zone and the rows per Arrow batch, for tasks that do not get them with the job."""
    return setting(session, TIME_ZONE, "UTC"), int(setting(session, MAX_RECORDS, "10000"))


def setting(session: Any, name: str, default: str) -> str:
    """A setting of the session. A platform may refuse to show it, as serverless ones do: then `default`, as Spark has
    it."""
    try:
        return session.conf.get(name) or default
    except PySparkException:
        return default


# ---------------------------------------------------------------------------------------------------- input
class Source:
    """The input, followed by hidden columns that only the scheduler sees. All are renamed by position: the user's names
    may be ones that mapInArrow cannot address."""

    def __init__(self, df: DataFrame, *, converts: bool = True) -> None:
        """converts: values become Python's. If not, Arrow's are enough."""
        self._df = df
        self._refused = _has_no_python_values if converts else _has_no_arrow_values
        self.schema = df.schema  # raises an AnalysisException of the input itself here, on Connect too
        if not self.schema.fields:
            raise checks.bad_value("df", df, "at least one column: Spark hands no rows without columns to Python")
        for field in self.schema.fields:
            if found := _first_of(field.dataType, self._refused):
                expected = "columns that have Python and Arrow values"
                raise checks.bad_type("df", df, f"{expected}; {field.name} has type {found}")
        self._hidden: list[Column] = []
        self._checks: list[tuple[str, Any, tuple[type, ...], str]] = []

    def add(self, option: str, column: str | Column | None, kinds: tuple[type, ...], expected: str) -> str | None:
        """Add a hidden column. Returns its name in the batches."""
        if column is None:
            return None
        if not isinstance(column, (str, Column)):
            raise checks.bad_type(option, column, "a column name or a Column")
        # In a struct, because Spark refuses a generator there: it would multiply rows.
        inner = F.struct((F.col(column) if isinstance(column, str) else column).alias("value")).getField("value")
        self._hidden.append(inner.alias(f"_manytail_{option}"))
        self._checks.append((option, column, kinds, expected))
        return f"c{len(self.schema.fields) + len(self._hidden) - 1}"

    def prepare(self) -> DataFrame:
        """The input for mapInArrow. Raises AnalysisException for unknown columns."""
        try:
            df = self._df.select("*", *self._hidden) if self._hidden else self._df
            hidden = df.schema.fields[len(self.schema.fields) :]
        except AnalysisException as error:
            if "UNSUPPORTED_GENERATOR" not in str(error.getCondition()):
                raise
            names = ", ".join(option for option, _, _, _ in self._checks)
            expected = "a column with one value per row"
            raise ValueError(f"{names}: a generator such as explode (expected: {expected})") from error
        for field, (option, column, kinds, expected) in zip(hidden, self._checks, strict=True):
            kind = field.dataType
            if not isinstance(kind, kinds) or (option == "key" and type(kind).__name__ in _NO_KEYS):
                raise checks.bad_type(option, column, f"{expected}; it is {kind.simpleString()}")
            if _first_of(kind, self._refused):
                expected = f"{expected} that has Python and Arrow values"
                raise checks.bad_type(option, column, f"{expected}; it is {kind.simpleString()}")
            if option == "key" and getattr(kind, "collation", "UTF8_BINARY") != "UTF8_BINARY":
                expected = "a string that compares byte by byte"
                raise checks.bad_type(option, column, f"{expected}; it is {kind.simpleString()}")
        return df.toDF(*[f"c{position}" for position in range(len(df.schema.fields))])


def _first_of(kind: T.DataType, refused: Callable[[T.DataType], bool]) -> str | None:
    """The first type in a type that is refused."""
    if refused(kind):
        return kind.simpleString()
    inner = [field.dataType for field in kind.fields] if isinstance(kind, T.StructType) else []
    inner += [getattr(kind, name) for name in ("elementType", "keyType", "valueType") if hasattr(kind, name)]
    return next((found for one in inner if (found := _first_of(one, refused))), None)


def _has_no_arrow_values(kind: T.DataType) -> bool:
    return isinstance(kind, T.YearMonthIntervalType)


def _has_no_python_values(kind: T.DataType) -> bool:
    # An empty array() or map() literal has elements of type void that may not be null: Arrow has no such field, and
    # reading one ends the worker.
    empty = isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.NullType) and not kind.containsNull
    empty = empty or (isinstance(kind, T.MapType) and isinstance(kind.keyType, T.NullType))
    return empty or isinstance(kind, (T.YearMonthIntervalType, T.CalendarIntervalType))


# ---------------------------------------------------------------------------------------------------- output
def result_schema(schema: str | T.StructType) -> T.StructType:
    """The result columns, all nullable."""
    parsed = parsed_type("schema", schema, "a DDL string or StructType")
    if not isinstance(parsed, T.StructType):
        named = "columns with names, such as 'status int, body string'"
        raise (checks.bad_value if isinstance(schema, str) else checks.bad_type)("schema", schema, named)
    if not parsed.fields:
        raise checks.bad_value("schema", schema, "at least one column")
    return T.StructType([T.StructField(field.name, field.dataType, True, field.metadata) for field in parsed.fields])


def parsed_type(option: str, kind: Any, expected: str) -> T.DataType:
    """The type of a DDL string."""
    if isinstance(kind, str):
        try:
            return T.DataType.fromDDL(kind)
        except AnalysisException as error:  # a ParseException is one
            raise checks.bad_value(option, kind, expected) from error
    if not isinstance(kind, T.DataType):
        raise checks.bad_type(option, kind, expected)
    return kind


def result_types(option: str, result: T.StructType) -> T.StructType:
    """Refuse types that cannot be result types. Returns `result`."""
    types = ResultTypes()
    for field in result.fields:
        shown = f"{field.name} {field.dataType.simpleString()}"
        try:
            ResultSchema(types.schema(T.StructType([field])), datetime.UTC)
        except TypeError as error:
            raise checks.bad_type(option, shown, "types that have Python and Arrow values") from error
        except ValueError as error:
            raise checks.bad_value(option, shown, "structs whose fields have different names") from error
    return result


def fold_of(session: Any) -> Callable[[str], str]:
    """What makes names of columns equal that are equal for the session."""
    return str if setting(session, "spark.sql.caseSensitive", "false").lower() == "true" else str.lower
