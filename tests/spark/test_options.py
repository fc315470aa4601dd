"""Bad options fail on the driver, at the call, naming the option, the value and what was expected."""

import asyncio
from functools import partial
from typing import Any

import pytest
from pyspark.errors import PySparkTypeError, PySparkValueError
from pyspark.sql import functions as F
from pyspark.sql import types as T

from manytail import spark as manytail_spark
from manytail.spark import concurrent_udf, map_concurrent
from manytail.spark._options import is_async, takes


def fn(row: Any) -> Any:
    return row


VALUES: list[tuple[dict[str, Any], str]] = [
    ({"workers": 0}, r"workers: 0 \(expected: an int >= 1\)"),
    ({"max_in_flight": -1}, r"max_in_flight: -1 \(expected: an int >= 0\)"),
    ({"max_in_flight": 15}, r"max_in_flight: 15 \(expected: 0, which means automatic, or at least workers, which is 16\)"),
    ({"ordered": "yes"}, r"ordered: 'yes' \(expected: 'input' or 'key' or 'none'\)"),
    ({"ordered": "key"}, r"ordered: 'key' \(expected: 'input' or 'none', because key is not given\)"),
    ({"per_key": 2}, r"per_key: 2 \(expected: 0, because key is not given\)"),
    ({"per_key": -1, "key": "id"}, r"per_key: -1 \(expected: an int >= 0\)"),
    ({"weight": {1: 2}}, r"weight: \{1: 2\} \(expected: None, because key is not given\)"),
    ({"weight": {1: 0}, "key": "id"}, r"weight\[1\]: 0 \(expected: an int >= 1\)"),
    ({"timeout": 0}, r"timeout: 0 \(expected: seconds, a number > 0\)"),
    ({"timeout": -1.5}, r"timeout: -1\.5 \(expected: seconds, a number > 0\)"),
    ({"timeout": float("nan")}, r"timeout: nan \(expected: seconds, a number > 0\)"),
    ({"retries": -1}, r"retries: -1 \(expected: an int >= 0\)"),
    ({"backoff": -0.1}, r"backoff: -0\.1 \(expected: seconds, a number >= 0\)"),
    ({"backoff": float("inf")}, r"backoff: inf \(expected: finite seconds"),
    ({"errors": "ignore"}, r"errors: 'ignore' \(expected: 'raise' or 'column' or 'drop'\)"),
    ({"error_column": ""}, r"error_column: '' \(expected: a column name\)"),
    ({"columns": "keep"}, r"columns: 'keep' \(expected: 'append' or 'replace'\)"),
    ({"schema": "no such type"}, r"schema: 'no such type' \(expected: a DDL string or StructType\)"),
    ({"schema": "string"}, r"schema: 'string' \(expected: columns with names"),
    ({"schema": T.StructType()}, r"schema: StructType\(\[\]\) \(expected: at least one column\)"),
    ({"schema": "ID int"}, r"schema: 'ID' \(expected: names that no other result column and no input column has\)"),
    ({"schema": "x int, X int"}, r"schema: 'X' \(expected: names that no other result column"),
    ({"errors": "column", "error_column": "Id"}, r"error_column: 'Id' \(expected: a name that no other column has\)"),
    ({"errors": "column", "error_column": "x"}, r"error_column: 'x' \(expected: a name that no other column has\)"),
]
TYPES: list[tuple[dict[str, Any], str]] = [
    ({"fn": "text"}, r"fn: 'text' of type str \(expected: a callable\)"),
    ({"workers": 2.0}, r"workers: 2\.0 of type float \(expected: an int >= 1\)"),
    ({"workers": True}, r"workers: True of type bool \(expected: an int >= 1\)"),
    ({"key": 5}, r"key: 5 of type int \(expected: a column name or a Column\)"),
    ({"key": "list"}, r"key: 'list' of type str \(expected: a column of an atomic type; it is array<int>\)"),
    ({"priority": "text"}, r"priority: 'text' of type str \(expected: an integral column; it is string\)"),
    ({"weight": [1], "key": "id"}, r"weight: \[1\] of type list \(expected: a mapping from keys to ints >= 1\)"),
    ({"weight": {1: 1.5}, "key": "id"}, r"weight\[1\]: 1\.5 of type float \(expected: an int >= 1\)"),
    ({"timeout": "5"}, r"timeout: '5' of type str \(expected: seconds, a number > 0\)"),
    ({"retries": 1.5}, r"retries: 1\.5 of type float \(expected: an int >= 0\)"),
    ({"backoff": None}, r"backoff: None of type NoneType \(expected: seconds, a number >= 0\)"),
    ({"retry_on": "ValueError"}, r"retry_on: 'ValueError' of type str \(expected: an exception class or a tuple of them\)"),
    ({"retry_on": (ValueError, int)}, r"retry_on: .* \(expected: an exception class or a tuple of them\)"),
    ({"setup": 5}, r"setup: 5 of type int \(expected: a callable\)"),
    ({"setup": dict}, r"setup: .* \(expected: None, or a function that takes what setup makes as `resource=`\)"),
    ({"error_column": 5}, r"error_column: 5 of type int \(expected: a column name\)"),
    ({"schema": 5}, r"schema: 5 of type int \(expected: a DDL string or StructType\)"),
    ({"schema": "x interval year to month"}, r"schema: 'struct<x:interval year to month>' of type str \(expected: types that have Python"),
    ({"df": "text"}, r"df: 'text' of type str \(expected: a DataFrame\)"),
]


def call(spark: Any, options: dict[str, Any]) -> Any:
    df = spark.range(1).withColumn("list", F.array(F.lit(1))).withColumn("text", F.lit("t"))
    chosen = {"df": df, "fn": fn, "schema": "x int", **options}
    return map_concurrent(chosen.pop("df"), chosen.pop("fn"), chosen.pop("schema"), **chosen)


@pytest.mark.parametrize(("options", "message"), VALUES, ids=lambda value: str(value)[:40] if isinstance(value, dict) else "")
def test_bad_values(spark: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PySparkValueError, match=message) as caught:
        call(spark, options)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("options", "message"), TYPES, ids=lambda value: str(value)[:40] if isinstance(value, dict) else "")
def test_bad_types(spark: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PySparkTypeError, match=message) as caught:
        call(spark, options)
    assert isinstance(caught.value, TypeError)


def test_names_are_compared_as_the_session_does(spark: Any, conf: Any) -> None:
    conf("spark.sql.caseSensitive", "true")
    assert call(spark, {"schema": "ID int, x int, X int"}).columns == ["id", "list", "text", "ID", "x", "X"]
    with pytest.raises(ValueError, match="schema: 'id'"):
        call(spark, {"schema": "id int"})


def test_duplicate_input_names_are_refused(spark: Any, conf: Any) -> None:
    for df in (spark.range(1).selectExpr("id", "id AS ID"), spark.range(1).selectExpr("id", "id")):
        with pytest.raises(PySparkValueError, match=r"df: '(id|ID)' \(expected: input columns with different names\)"):
            map_concurrent(df, fn, "x int")
    conf("spark.sql.caseSensitive", "true")
    assert map_concurrent(spark.range(1).selectExpr("id", "id AS ID"), fn, "x int").columns == ["id", "ID", "x"]


def test_a_collated_key_is_refused(spark: Any) -> None:
    df = spark.sql("SELECT 'a' COLLATE UTF8_LCASE AS k")
    with pytest.raises(TypeError, match=r"key: 'k' .*compares byte by byte; it is string collate UTF8_LCASE"):
        map_concurrent(df, fn, "x int", key="k")


def test_good_options_are_taken(spark: Any) -> None:
    for options in (
        {"workers": 1, "max_in_flight": 1},
        {"timeout": None},
        {"timeout": float("inf")},
        {"backoff": 0},
        {"retry_on": ()},
        {"retry_on": BaseException},
        {"error_column": "id"},  # there is no such column with errors="raise"
        {"schema": "id int", "columns": "replace"},
        {"key": F.col("id") % 2, "per_key": 0},
        {"key": F.lit(None), "priority": F.lit(None).cast("byte")},
        {"schema": "struct<x: int>"},
    ):
        assert call(spark, options).schema is not None


# ---------------------------------------------------------------------------------------------------- what a later version brings
@pytest.mark.parametrize(
    ("option", "value"),
    [("rate", 5.0), ("per_key_rate", 1), ("breaker", 3), ("breaker_reset", 5.0), ("breaker_open", "fail"), ("metrics", True)],
)
def test_options_of_a_later_version_are_refused_by_name(spark: Any, option: str, value: Any) -> None:
    with pytest.raises(NotImplementedError, match=f"^{option}: {value!r}"):
        call(spark, {option: value})
    if option not in ("per_key_rate", "metrics"):
        with pytest.raises(NotImplementedError, match=f"^{option}: {value!r}"):
            concurrent_udf(fn, "int", **{option: value})


def test_options_of_a_later_version_may_have_their_defaults(spark: Any) -> None:
    options = {"rate": None, "per_key_rate": None, "breaker": 0, "breaker_reset": 30.0, "breaker_open": "wait", "metrics": False}
    assert call(spark, options).columns == ["id", "list", "text", "x"]


@pytest.mark.parametrize(("name", "arguments"), [("per_task", (5, None)), ("bootstrap", (None,)), ("progress", (None,))])
def test_functions_of_a_later_version_are_refused_by_name(name: str, arguments: Any) -> None:
    with pytest.raises(NotImplementedError, match=rf"manytail\.spark\.{name}"):
        getattr(manytail_spark, name)(*arguments)


# ---------------------------------------------------------------------------------------------------- what kind of function it is
async def coroutine(row: Any) -> Any:
    return row


class Callable:
    async def __call__(self, row: Any) -> Any:
        return row

    async def method(self, row: Any) -> Any:
        return row


class Plain:
    def __call__(self, row: Any) -> Any:
        return coroutine(row)


@pytest.mark.parametrize(
    ("function", "expected"),
    [(coroutine, True), (partial(coroutine), True), (partial(partial(coroutine)), True), (Callable(), True), (partial(Callable()), True),
     (Callable().method, True), (fn, False), (Plain(), False), (lambda row: coroutine(row), False), (len, False), (asyncio.sleep, True)],
)  # fmt: skip
def test_which_functions_are_async(function: Any, expected: bool) -> None:
    assert is_async(function) is expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda row, delivery: 0, True),
        (lambda row, *, delivery: 0, True),
        (lambda row, delivery=None: 0, True),
        (partial(lambda row, delivery: 0), True),
        (lambda row, **kwargs: 0, False),
        (lambda row, **delivery: 0, False),
        (lambda row, *delivery: 0, False),
        (lambda row: 0, False),
        (len, False),
    ],
)
def test_who_gets_a_delivery(function: Any, expected: bool) -> None:
    assert takes(function, "delivery") is expected
