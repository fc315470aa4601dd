"""Batches, equal rows, costs, rates and breakers in Spark tasks: as in concurrent_map, with rows of Arrow batches."""

import sys
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PySparkValueError
from pyspark.sql import functions as F
from support.notes import Notes

from manytail import Batch, Breaker, Rate
from manytail.spark import Delivery, concurrent_udf, map_concurrent

register_pickle_by_value(sys.modules[__name__])


def test_a_bad_row_of_a_batch_fails_alone(spark: Any, notes: Notes) -> None:
    add = notes.add

    def fn(rows: list[Any]) -> list[Any]:
        add(len(rows))
        if any(row.id == 77 for row in rows):
            raise OSError("77")
        return [("no number" if row.id == 5 else row.id * 2) for row in rows]

    df = spark.range(0, 200, 1, 1).transform(
        map_concurrent, fn, "x long", batch=Batch(50, linger=3_600), workers=4, errors="column"
    )
    rows = df.collect()
    assert [row.id for row in rows] == list(range(200))
    assert {row.id: row._error.type for row in rows if row._error is not None} == {
        5: "manytail.arrow.ResultError",
        77: "OSError",
    }
    assert all(row.x == 2 * row.id for row in rows if row._error is None)
    assert len(notes.read()) <= 4 + 12


def test_an_async_fn_gets_batches_of_one_key_and_a_delivery_for_each_batch(spark: Any) -> None:
    async def fn(rows: list[Any], delivery: Delivery) -> list[Any]:
        assert {delivery.key} == {row.key for row in rows}
        return [(key, delivery.attempt) for key in delivery.idempotency_keys]

    df = spark.range(0, 100, 1, 1).select("id", (F.col("id") % 3).alias("key"))
    rows = df.transform(map_concurrent, fn, "digest string, attempt int", batch=10, key="key", per_key=1).collect()
    assert len({row.digest for row in rows}) == 100
    assert {row.attempt for row in rows} == {1}


@pytest.mark.parametrize("item_id", [None, "id"])
def test_equal_rows_share_a_call_unless_item_id_tells_them_apart(spark: Any, notes: Notes, item_id: Any) -> None:
    add = notes.add

    def fn(row: Any) -> int:
        add(row.n)
        return row.n + 1  # type: ignore[no-any-return]

    df = spark.range(0, 1_000, 1, 1).select((F.col("id") % 10).alias("n"), F.lit("a").alias("text"), "id")
    df = df.drop("id") if item_id is None else df
    rows = df.transform(map_concurrent, fn, "x long", dedup=100, item_id=item_id, workers=8).collect()
    assert [row.x for row in rows] == [number % 10 + 1 for number in range(1_000)]
    assert len(notes.read()) == (10 if item_id is None else 1_000)


@pytest.mark.udf
def test_a_column_function_shares_calls_too(spark: Any, notes: Notes) -> None:
    add = notes.add

    def fn(number: int) -> str:
        add(number)
        return str(number)

    udf = concurrent_udf(fn, "string", dedup=10, limits=Rate(1_000.0, per_task=True))
    rows = spark.range(0, 500, 1, 1).select(udf(F.col("id") % 5).alias("x")).collect()
    assert [row.x for row in rows] == [str(number % 5) for number in range(500)]
    assert len(notes.read()) == 5


@pytest.mark.parametrize("metrics", [False, True])
def test_a_cost_that_is_none_fails_its_row(spark: Any, metrics: bool) -> None:
    df = spark.sql("SELECT id, CASE id WHEN 1 THEN null WHEN 2 THEN -1.5 ELSE 2.5 END AS price FROM range(0, 5, 1, 1)")
    rows = df.transform(
        map_concurrent, lambda row: row.id, "x long", limits=Rate(1_000.0, cost="price", per_task=True),
        errors="column", metrics=metrics,
    ).collect()
    assert [row.x for row in rows] == [0, None, None, 3, 4]
    assert [row._error.message for row in rows[1:3]] == [
        "cost: None (expected: a finite number >= 0)",
        "cost: -1.5 (expected: a finite number >= 0)",
    ]
    assert {row._error.attempts for row in rows[1:3]} == {0}


def test_rows_of_a_broken_key_fail_and_others_go_on(spark: Any) -> None:
    def fn(row: Any) -> int:
        if row.id % 2:
            raise OSError("down")
        return row.id  # type: ignore[no-any-return]

    options: dict[str, Any] = {
        "breaker": Breaker(2, reset=3_600.0, when_open="fail"),
        "workers": 2,
        "errors": "column",
    }
    df = spark.range(0, 100, 1, 1).transform(
        map_concurrent, fn, "x long", key=F.col("id") % 2, limits=Rate(1_000.0, per_key=True, per_task=True), **options
    )
    types = [row._error and row._error.type for row in df.collect()]
    assert set(types[::2]) == {None}
    assert set(types[1::2]) == {"OSError", "manytail.BreakerOpen"}
    assert types.count("OSError") <= 3


def test_what_does_not_fit_is_refused_at_the_call(spark: Any) -> None:
    df = spark.range(3)
    with pytest.raises(ValueError, match=r"limits: Rate.* \(expected: key is given\)"):
        map_concurrent(df, lambda row: 1, "x int", limits=Rate(2, per_key=True, per_task=True))
    with pytest.raises(TypeError, match=r"cost: .* \(expected: a numeric column; it is string\)"):
        map_concurrent(df, lambda row: 1, "x int", limits=Rate(2, cost=F.lit("a"), per_task=True))
    with pytest.raises((ValueError, PySparkValueError), match="generator"):
        map_concurrent(
            df, lambda row: 1, "x int", limits=Rate(2, cost=F.explode(F.array(F.lit(1))), per_task=True)
        )
