"""Batches, equal rows, costs, rates and metrics in Spark tasks: as in concurrent_map, with rows of Arrow batches."""

import sys
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.errors import PySparkValueError
from pyspark.sql import Observation
from pyspark.sql import functions as F
from support.notes import Notes

from manytail import Rate, Retry
from manytail.spark import Delivery, concurrent_udf, map_concurrent

register_pickle_by_value(sys.modules[__name__])


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
        map_concurrent,
        lambda row: row.id,
        "x long",
        limits=Rate(1_000.0, cost="price", per_task=True),
        errors="column",
        metrics=metrics,
    ).collect()
    assert [row.x for row in rows] == [0, None, None, 3, 4]
    assert [row._error.message for row in rows[1:3]] == [
        "cost: None (expected: a finite number >= 0)",
        "cost: -1.5 (expected: a finite number >= 0)",
    ]
    assert {row._error.attempts for row in rows[1:3]} == {0}


def test_what_does_not_fit_is_refused_at_the_call(spark: Any) -> None:
    df = spark.range(3)
    with pytest.raises(ValueError, match=r"limits: Rate.* \(expected: key as well\)"):
        map_concurrent(df, lambda row: 1, "x int", limits=Rate(2, per_key=True, per_task=True))
    with pytest.raises(TypeError, match=r"cost: .* \(expected: a numeric column; it is string\)"):
        map_concurrent(df, lambda row: 1, "x int", limits=Rate(2, cost=F.lit("a"), per_task=True))
    with pytest.raises((ValueError, PySparkValueError), match="generator"):
        map_concurrent(df, lambda row: 1, "x int", limits=Rate(2, cost=F.explode(F.array(F.lit(1))), per_task=True))


# ---------------------------------------------------------------------------------------------------- metrics
def test_what_calls_came_to_and_their_sums_by_observe(spark: Any) -> None:
    """tests/arrow shows what each figure is."""
    df = spark.range(0, 4, 1, 1).transform(
        map_concurrent,
        lambda row: 1 // (row.id - 2),
        "n long",
        retry=Retry(2, backoff=0),
        errors="column",
        metrics=True,
        limits=Rate(1e6, cost=F.col("id") + 1, per_task=True),
        columns="replace",
    )
    assert df.columns == ["n", "_error", "_call"]
    observation = Observation("calls")
    rows = df.observe(
        observation, F.sum("_call.attempts").alias("attempts"), F.sum("_call.cost").alias("cost")
    ).collect()
    calls = [row._call for row in rows]
    assert [call.attempts for call in calls] == [1, 1, 3, 1]
    assert [call.cost for call in calls] == [1.0, 2.0, 9.0, 4.0]
    assert all(call.ran >= 0 and call.waited >= 0 and not call.remembered for call in calls)
    assert observation.get == {"attempts": 6, "cost": 16.0}
