"""Bad options fail on the driver, at the call, naming the option, the value and what was expected."""

from dataclasses import fields
from inspect import signature
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

from manytail import Retry
from manytail.mapping._options import OPTIONS, Options
from manytail.spark import concurrent_udf, map_concurrent
from manytail.spark._transform import setting


def fn(row: Any) -> Any:
    return row


REFUSED_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"order": "yes"}, r"order: 'yes' \(expected: 'input' or 'key' or 'completion'\)"),
    ({"order": "key"}, r"order: 'key' \(expected: key as well\)"),
    ({"weights": {1: 2}}, r"weights: \{1: 2\} \(expected: key as well\)"),
    ({"weights": {1: 0}, "key": "id"}, r"weights\[1\]: 0 \(expected: an int >= 1\)"),
    ({"timeout": float("nan")}, r"timeout: nan \(expected: seconds, a number > 0\)"),
    ({"errors": "ignore"}, r"errors: 'ignore' \(expected: 'raise' or 'column' or 'drop'\)"),
    ({"deadline": 0}, r"deadline: 0 \(expected: seconds, a number > 0\)"),
    ({"schema": "no such type"}, r"schema: 'no such type' \(expected: a DDL string or StructType\)"),
    ({"schema": "string"}, r"schema: 'string' \(expected: columns with names"),
    ({"schema": T.StructType()}, r"schema: StructType\(\[\]\) \(expected: at least one column\)"),
    (
        {"schema": "x int, s array<struct<a:int,a:int>>"},
        r"schema: 's array<struct<a:int,a:int>>' \(expected: structs whose fields have different names\)",
    ),
    ({"schema": "ID int"}, r"schema: 'ID' \(expected: names that no other result column and no input column has\)"),
    ({"schema": "x int, X int"}, r"schema: 'X' \(expected: names that no other result column"),
    ({"errors": "column", "error_column": "Id"}, r"error_column: 'Id' \(expected: a name that no other column has\)"),
    ({"metrics": True, "schema": "_call int"}, r"metrics: '_call' \(expected: a name that no other column has\)"),
    (
        {"metrics": True, "errors": "column", "error_column": "_CALL"},
        r"metrics: '_call' \(expected: a name that no other column has\)",
    ),
    ({"errors": "column", "error_column": "x"}, r"error_column: 'x' \(expected: a name that no other column has\)"),
]
REFUSED_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"fn": "text"}, r"fn: 'text' of type str \(expected: a callable\)"),
    ({"key": 5}, r"key: 5 of type int \(expected: a column name or a Column\)"),
    ({"key": "list"}, r"key: 'list' of type str \(expected: a column of an atomic type; it is array<int>\)"),
    ({"priority": "text"}, r"priority: 'text' of type str \(expected: an integral column; it is string\)"),
    ({"weights": [1], "key": "id"}, r"weights: \[1\] of type list \(expected: a mapping from keys to ints >= 1\)"),
    ({"weights": {1: 1.5}, "key": "id"}, r"weights\[1\]: 1\.5 of type float \(expected: an int >= 1\)"),
    ({"setup": 5}, r"setup: 5 of type int \(expected: a callable\)"),
    ({"setup": dict}, r"fn: .* \(expected: a callable that takes one argument, with resource= because of setup\)"),
    ({"schema": 5}, r"schema: 5 of type int \(expected: a DDL string or StructType\)"),
    (
        {"schema": "x interval year to month"},
        r"schema: 'x interval year to month' of type str \(expected: types that have Python",
    ),
    ({"item_id": 5}, r"item_id: 5 of type int \(expected: a column name or a Column\)"),
    ({"df": "text"}, r"df: 'text' of type str \(expected: a DataFrame\)"),
]


def call(spark: Any, options: dict[str, Any]) -> Any:
    df = spark.range(1).withColumn("list", F.array(F.lit(1))).withColumn("text", F.lit("t"))
    chosen = {"df": df, "fn": fn, "schema": "x int", **options}
    return map_concurrent(chosen.pop("df"), chosen.pop("fn"), chosen.pop("schema"), **chosen)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [(ValueError, *each) for each in REFUSED_VALUES] + [(TypeError, *each) for each in REFUSED_TYPES],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_bad_options_are_refused(spark: Any, kind: type[Exception], options: dict[str, Any], message: str) -> None:
    with pytest.raises(kind, match=message):
        call(spark, options)


def test_names_are_compared_as_the_session_does(spark: Any, conf: Any) -> None:
    conf("spark.sql.caseSensitive", "true")
    assert call(spark, {"schema": "ID int, x int, X int"}).columns == ["id", "list", "text", "ID", "x", "X"]
    with pytest.raises(ValueError, match="schema: 'id'"):
        call(spark, {"schema": "id int"})


def test_a_setting_that_the_session_does_not_show_has_its_default(spark: Any, conf: Any) -> None:
    conf("spark.sql.session.timeZone", "Asia/Tokyo")
    assert setting(spark, "spark.sql.session.timeZone", "UTC") == "Asia/Tokyo"
    # A serverless platform refuses more names than this session does, with an exception of the same kind.
    assert setting(spark, "spark.manytail.not.there", "UTC") == "UTC"


def test_duplicate_input_names_are_refused(spark: Any, conf: Any) -> None:
    for df in (spark.range(1).selectExpr("id", "id AS ID"), spark.range(1).selectExpr("id", "id")):
        with pytest.raises(ValueError, match=r"df: '(id|ID)' \(expected: input columns with different names\)"):
            map_concurrent(df, fn, "x int")
    conf("spark.sql.caseSensitive", "true")
    assert map_concurrent(spark.range(1).selectExpr("id", "id AS ID"), fn, "x int").columns == ["id", "ID", "x"]


def test_a_collated_key_is_refused(spark: Any) -> None:
    df = spark.sql("SELECT 'a' COLLATE UTF8_LCASE AS k")
    with pytest.raises(TypeError, match=r"key: 'k' .*compares byte by byte; it is string collate UTF8_LCASE"):
        map_concurrent(df, fn, "x int", key="k")


@pytest.mark.parametrize("expression", ["INTERVAL '1' YEAR", "parse_json('1')", "array(id)", "named_struct('a', id)"])
def test_a_key_whose_values_do_not_compare_is_refused(spark: Any, expression: str) -> None:
    with pytest.raises(TypeError, match=r"key: .*\(expected: a column of an atomic type; it is "):
        map_concurrent(spark.range(1), fn, "x int", key=F.expr(expression))


def test_good_options_are_taken(spark: Any) -> None:
    for options in (
        {"workers": 1, "max_in_flight": 1},
        {"timeout": None},
        {"timeout": float("inf")},
        {"retry": Retry(2, (), backoff=0)},
        {"error_column": "id"},  # there is no such column with errors="raise"
        {"schema": "id int", "columns": "replace"},
        {"key": F.col("id") % 2, "per_key": None},
        {"key": F.lit(None), "priority": F.lit(None).cast("byte")},
        {"schema": "struct<x: int>"},
    ):
        assert call(spark, options).schema is not None


# -------------------------------------------------------------------------------------------------- what cannot be kept
@pytest.mark.parametrize("option", ["key", "item_id", "priority"])
def test_generators_are_no_columns(spark: Any, option: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{option}: a generator such as explode \(expected: a column with one value per row\)"
    ):
        call(spark, {option: F.explode("list")})


@pytest.mark.parametrize("columns", ["append", "replace"])
def test_input_columns_without_python_values_are_refused(spark: Any, columns: str) -> None:
    df = spark.sql("SELECT INTERVAL '1' YEAR AS y")
    with pytest.raises(
        TypeError, match=r"df: .* \(expected: columns that have Python and Arrow values; y has type interval year\)"
    ):
        call(spark, {"df": df, "columns": columns})


@pytest.mark.parametrize("value", ["map()", "array()", "named_struct('m', map())"])
@pytest.mark.parametrize("columns", ["append", "replace"])
def test_empty_literals_without_a_type_are_refused_at_the_call(spark: Any, value: str, columns: Any) -> None:
    df = spark.range(3).select("id", F.expr(value).alias("x"))
    with pytest.raises(
        TypeError, match=r"df: .* \(expected: columns that have Python and Arrow values; x has type (map|array)<void"
    ):
        df.transform(map_concurrent, fn, "y int", columns=columns)


def test_an_item_id_without_python_values_and_an_input_without_columns_are_refused(spark: Any) -> None:
    with pytest.raises(
        TypeError, match=r"item_id: .* \(expected: a column that has Python and Arrow values; it is int"
    ):
        call(spark, {"item_id": F.expr("INTERVAL '1' YEAR")})
    with pytest.raises(ValueError, match=r"df: .* \(expected: at least one column"):
        call(spark, {"df": spark.range(5).select()})


def generator(row: Any) -> Any:
    yield row


async def async_generator(row: Any) -> Any:
    yield row


async def connect() -> None:
    return None


def with_resource(row: Any, resource: Any) -> Any:
    return row


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fn": generator},
            r"fn: .* \(expected: a function that returns its result; this one is a generator function\)",
        ),
        ({"fn": async_generator}, r"fn: .* this one is a generator function\)"),
        (
            {"fn": lambda: 1},
            r"fn: .* \(expected: a callable that takes one argument; resource= comes from setup only\)",
        ),
        ({"fn": lambda row, other: 1}, r"fn: .* \(expected: a callable that takes one argument"),
        ({"fn": with_resource}, r"fn: .* resource= comes from setup only\)"),
        ({"fn": with_resource, "setup": connect}, r"setup: .* \(expected: a plain function, because fn is one"),
        ({"fn": with_resource, "setup": lambda name: 1}, r"setup: .* \(expected: a callable without arguments\)"),
    ],
)
def test_callables_that_cannot_take_their_arguments_are_refused(
    spark: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(spark, options)


# -------------------------------------------------------------------------------------------------- the list of options
# Not in the list: these are columns, and their names.
OF_A_DATA_FRAME = {"key", "priority", "error_column", "item_id", "columns", "metrics"}
# A column function has neither an order to choose nor keys and batches.
OF_THE_INPUT = {"order", "per_key", "weights", "batch"}


def given(function: Any) -> dict[str, Any]:
    """The options in the signature, with their defaults."""
    parameters = signature(function).parameters.values()
    return {
        one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY and one.name not in OF_A_DATA_FRAME
    }


def test_the_options_in_the_signatures_have_the_defaults_of_the_list() -> None:
    defaults, checks = {one.name: one.default for one in fields(Options)}, {one.name: one.check for one in OPTIONS}
    kept = {name: checks[name](name, default) for name, default in given(map_concurrent).items()}
    assert kept == {name: defaults[name] for name in kept}
    assert given(concurrent_udf) == {
        name: default for name, default in given(map_concurrent).items() if name not in OF_THE_INPUT
    }


def test_an_unknown_option_is_refused_with_the_nearest(spark: Any) -> None:
    with pytest.raises(TypeError, match=r"^retries: not an option of map_concurrent \(expected: retry\?\)"):
        call(spark, {"retries": 3})
    with pytest.raises(TypeError, match=r"^row_id: not an option of concurrent_udf \(expected: "):
        concurrent_udf("string", row_id="id")
