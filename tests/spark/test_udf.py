"""concurrent_udf: map_concurrent as a column function."""

import sys
import time
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PythonException
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql import types as T
from support.notes import Notes

from manytail import Retry
from manytail.spark import Delivery, concurrent_udf

register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.udf


def column(df: Any, made: Any) -> list[Any]:
    return [row.x for row in df.select(made.alias("x")).collect()]


@pytest.mark.parametrize("size", [7, 10_000])
def test_values_in_value_out_in_input_order(spark: Any, conf: Any, size: int) -> None:
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", size)

    def fn(number: int, text: str) -> str:
        time.sleep(0.001 * (number % 5))
        return f"{text}{number}"

    udf = concurrent_udf(fn, "string", workers=32)
    df = spark.range(0, 1_000, 1, 2).select("id", udf("id", F.lit("n")).alias("x"))
    assert [tuple(row) for row in df.collect()] == [(number, f"n{number}") for number in range(1_000)]


def test_null_is_none_and_called_and_none_is_null(spark: Any) -> None:
    df = spark.sql("SELECT explode(array(1, null, 3)) AS a").coalesce(1)
    assert column(df, concurrent_udf(lambda a: -1 if a is None else None, "int")("a")) == [None, -1, None]


def test_decorator_forms(spark: Any) -> None:
    @concurrent_udf("bigint")
    def first(a: int) -> int:
        """Its own."""
        return a + 1

    @concurrent_udf(returnType=T.LongType(), workers=2)
    def second(a: int) -> int:
        return a + 2

    assert first.__name__ == "first"
    assert first.__doc__ == "Its own."
    assert column(spark.range(2), first("id") + second(F.col("id"))) == [3, 5]
    assert spark.range(1).select(first("id")).columns == ["first(id)"]


def test_errors_column(spark: Any) -> None:
    def fn(a: int) -> Any:
        if a == 1:
            raise ValueError("one")
        return "no int" if a == 2 else a

    udf = concurrent_udf(fn, "int", errors="column", retry=Retry(1, backoff=0))
    df = spark.range(0, 4, 1, 1).select(udf("id").alias("x"))
    assert (
        df.schema["x"].dataType.simpleString()
        == "struct<value:int,error:struct<type:string,message:string,attempts:int,key:string>>"
    )
    good, bad, misfit, last = (row.x for row in df.collect())
    assert (good, last) == (Row(value=0, error=None), Row(value=3, error=None))
    assert bad == Row(value=None, error=Row(type="ValueError", message="one", attempts=2, key=None))
    assert misfit.error.type == "manytail.arrow.ResultError"
    assert misfit.error.attempts == 1


def test_errors_raise(spark: Any) -> None:
    with pytest.raises(PythonException, match="ZeroDivisionError"):
        column(spark.range(3), concurrent_udf(lambda a: 1 // a, "int")("id"))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("struct<a:int,b:string>", {"a": 1}, Row(a=1, b=None)),
        ("struct<a:int,b:string>", (1, "s"), Row(a=1, b="s")),
        ("array<int>", (1, 2), [1, 2]),
        ("map<string,int>", {"value": 1}, {"value": 1}),
        ("a int, b string", (1, "s"), Row(a=1, b="s")),
    ],
)
def test_the_result_is_the_value_whatever_its_type(spark: Any, kind: str, value: Any, expected: Any) -> None:
    assert column(spark.range(1), concurrent_udf(lambda a: value, kind)("id")) == [expected]


def test_retries_timeout_setup_and_delivery(spark: Any) -> None:
    def fn(a: int, resource: str, delivery: Delivery) -> str:
        if a == 1 and delivery.attempt == 1:
            raise ValueError
        if a == 2:
            time.sleep(3)
        return f"{resource}{delivery.attempt}{delivery.key}"

    udf = concurrent_udf(
        fn,
        "string",
        retry=Retry(1, ValueError, backoff=0.01),
        setup=lambda: "r",
        errors="column",
        max_in_flight=64,
    )
    out = column(spark.range(0, 2, 1, 1), udf("id"))
    assert [found.value for found in out] == ["r1None", "r2None"]
    udf = concurrent_udf(fn, "string", timeout=0.1, setup=lambda: "r", errors="column")
    (late,) = column(spark.range(2, 3, 1, 1), udf("id"))
    assert (late.value, late.error.type) == (None, "TimeoutError")


def test_spark_does_not_call_twice(spark: Any, notes: Notes) -> None:
    """Unless it is marked, the optimiser copies the call into both places that use its value."""
    udf = concurrent_udf(lambda a: notes.add(a) or a, "bigint")
    df = spark.range(0, 50, 1, 1).select(udf("id").alias("x"))
    assert df.where("x >= 0 and x % 2 = 0").select("x", (F.col("x") + 1).alias("y")).count() == 25
    assert len(notes.read()) == 50


@pytest.mark.parametrize("option", ["order", "key", "per_key", "columns", "x"])
def test_other_options_are_type_errors(option: str) -> None:
    """None of its options has a name like these, so all are listed."""
    with pytest.raises(TypeError, match=rf"^{option}: not an option of concurrent_udf \(expected: one of fn, "):
        concurrent_udf(abs, "int", **{option: 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [({"workers": 0}, "workers: 0"), ({"errors": "drop"}, r"errors: 'drop' \(expected: 'raise' or 'column'\)")],
)
def test_bad_options_fail_where_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        concurrent_udf(abs, "int", **options)


def test_a_type_is_needed() -> None:
    for arguments in ((abs,), (), (abs, 5)):
        with pytest.raises(TypeError, match="returnType: "):
            concurrent_udf(*arguments)
    with pytest.raises(TypeError, match="fn: 5"):
        concurrent_udf(5, "int")


def test_at_least_one_column() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        concurrent_udf(abs, "int")()


def test_a_bad_type_names_the_option(spark: Any) -> None:
    with pytest.raises(ValueError, match=r"returnType: 'no such type' \(expected: a DDL string or DataType\)"):
        concurrent_udf(abs, "no such type")("id")
    with pytest.raises(TypeError, match=r"returnType: 'value varchar\(3\)' of type str"):
        concurrent_udf(abs, "varchar(3)")("id")


def test_parameters_may_have_any_name(spark: Any) -> None:
    """One named `delivery` is filled by its column; it gets a Delivery only if no column is left for it."""
    df = spark.range(3).select("id", (F.col("id") * 10).alias("ten"))

    @concurrent_udf(returnType="bigint")
    def both(resource: int, delivery: int) -> int:
        return resource + delivery

    assert [row.x for row in df.select(both("id", "ten").alias("x")).collect()] == [0, 11, 22]

    @concurrent_udf(returnType="string")
    def told(value: int, delivery: Any) -> str:
        return f"{value} {delivery.attempt}"

    assert [row.x for row in df.select(told("id").alias("x")).collect()] == ["0 1", "1 1", "2 1"]


def test_the_number_of_columns_must_fit(spark: Any) -> None:
    with pytest.raises(TypeError, match=r"fn: .* \(expected: a callable that takes 2 arguments"):
        concurrent_udf(lambda one: one, "bigint")("id", "id")
