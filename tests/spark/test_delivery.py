"""`delivery=`: attempt, key and idempotency key of a call; and Spark's equality of keys."""

import math
import sys
import threading
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import functions as F

from manytail import Retry
from manytail.spark import Delivery, map_concurrent

register_pickle_by_value(sys.modules[__name__])


def idempotency_key(row: Any, delivery: Delivery) -> str:
    return delivery.idempotency_key


def keys_of(df: Any, **options: Any) -> dict[int, str]:
    return {row.id: row.k for row in df.transform(map_concurrent, idempotency_key, "k string", **options).collect()}


def test_attempts_are_counted_from_1_and_task_attempts_from_0(spark: Any) -> None:
    def fn(row: Any, delivery: Delivery) -> tuple[int, int]:
        if delivery.attempt <= row.id:
            raise ValueError
        return delivery.attempt, delivery.task_attempt

    df = spark.range(3).transform(map_concurrent, fn, "attempt int, task_attempt int", retry=Retry(5, backoff=0))
    assert [tuple(row) for row in df.collect()] == [(0, 1, 0), (1, 2, 0), (2, 3, 0)]


def test_key_is_none_without_one_and_as_in_a_row_with_one(spark: Any) -> None:
    def fn(row: Any, delivery: Delivery) -> str:
        return repr(delivery.key)

    source = spark.range(1)
    for key, expected in (
        (None, "None"), ("id", "0"), (F.col("id") + 5, "5"), (F.lit("a"), "'a'"), (F.lit(None), "None"),
        (F.expr("double('NaN')"), "nan"),
        (F.expr("timestamp'2024-07-01 09:00:00'"), "datetime.datetime(2024, 7, 1, 9, 0)"),
        (F.expr("1.50"), "Decimal('1.50')"),
    ):  # fmt: skip
        assert source.transform(map_concurrent, fn, "key string", key=key).collect()[0].key == expected


def test_idempotency_keys_are_the_same_in_every_partitioning(spark: Any, conf: Any) -> None:
    df = spark.range(0, 500).selectExpr(
        "id", "concat('v', id) AS text", "timestamp_seconds(id * 3600) AS t", "array(id, null) AS list"
    )
    found = keys_of(df.coalesce(1))
    assert len(set(found.values())) == 500
    assert keys_of(df.repartition(3, "id")) == found
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", 7)
    assert keys_of(df) == found
    conf("spark.sql.session.timeZone", "Asia/Tokyo")
    assert keys_of(df) == found
    assert keys_of(df, key="id", priority="id") == found


def test_equal_rows_share_an_idempotency_key_unless_item_id_tells_them_apart(spark: Any) -> None:
    source = spark.range(0, 6, 1, 1).selectExpr("id % 2 AS id", "id AS number")
    equal = source.select("id")
    assert len({row.k for row in equal.transform(map_concurrent, idempotency_key, "k string").collect()}) == 2
    apart = source.transform(map_concurrent, idempotency_key, "k string", item_id="number").collect()
    assert len({row.k for row in apart}) == 6
    by_column = equal.transform(map_concurrent, idempotency_key, "k string", item_id=F.lit("same")).collect()
    assert len({row.k for row in by_column}) == 1


@pytest.mark.parametrize(
    "value",
    [
        "CASE WHEN id = 0 THEN named_struct('n', 1) END",
        "CASE WHEN id = 0 THEN parse_json('1') END",
        "named_struct('t', now())",
        "CASE WHEN id = 0 THEN named_struct('t', TIMESTAMP'2020-01-01 00:00:00') END",
    ],
)  # fmt: skip
def test_every_type_has_an_idempotency_key(spark: Any, value: str) -> None:
    df = spark.range(3).select("id", F.expr(value).alias("x"))
    rows = df.transform(map_concurrent, lambda row, delivery: delivery.idempotency_key, "key string").collect()
    assert len({row.key for row in rows}) == 3


def test_the_order_of_a_maps_entries_changes_no_idempotency_key(spark: Any) -> None:
    df = spark.sql(
        "SELECT map('a', 1, 'b', 2) m UNION ALL SELECT map('b', 2, 'a', 1) UNION ALL SELECT map('a', 2, 'b', 1)"
    )
    rows = df.transform(map_concurrent, lambda row, delivery: delivery.idempotency_key, "key string").collect()
    assert len({row.key for row in rows}) == 2


# ---------------------------------------------------------------------------------------------------- keys
def test_keys_are_grouped_as_group_by_does(spark: Any) -> None:
    """With per_key=1 no two calls of one group overlap. Groups do: otherwise the barrier would block for ever."""
    values = "double('NaN'), 0.0D, cast(null as double), -double('NaN'), -0.0D, cast(null as double)"
    source = spark.sql(f"SELECT explode(array({values})) AS k").coalesce(1)
    groups = source.groupBy("k").count().count()
    all_groups = threading.Barrier  # made in the worker: it does not travel
    state: dict[str, Any] = {}

    def setup() -> None:
        state.setdefault("barrier", all_groups(groups))
        state.setdefault("running", [])

    def fn(row: Any, resource: None) -> bool:
        group = "NaN" if row.k is not None and math.isnan(row.k) else row.k and row.k + 0.0
        alone = group not in state["running"]
        state["running"].append(group)
        state["barrier"].wait(60)
        state["running"].remove(group)
        return alone

    df = source.transform(map_concurrent, fn, "alone boolean", key="k", per_key=1, workers=6, setup=setup)
    assert groups == 3
    assert [row.alone for row in df.collect()] == [True] * 6


def test_weights_find_the_same_keys(spark: Any) -> None:
    """One worker, so calls run in round-robin order: NaN has weight 2."""
    order = (
        "double('NaN'), double('NaN'), double('NaN'), double('NaN'), 0.0D, -0.0D, "
        "cast(null as double), cast(null as double)"
    )
    source = spark.sql(f"SELECT posexplode(array({order})) AS (n, k)").coalesce(1)

    def fn(row: Any) -> int:
        return 1

    df = source.transform(
        map_concurrent,
        fn,
        "x int",
        key="k",
        workers=1,
        max_in_flight=8,
        order="completion",
        weights={math.nan: 2, -0.0: 2},
    )
    turns = [row.n for row in df.collect()]
    assert sorted(turns) == list(range(8))
    assert turns.index(4) < turns.index(2)
    assert turns.index(5) == turns.index(4) + 1
    assert abs(turns.index(6) - turns.index(7)) > 1


@pytest.mark.parametrize("order", ["key", "completion"])
def test_priority_in_spark(spark: Any, order: str) -> None:
    source = spark.range(0, 64, 1, 1).selectExpr("id", "if(id = 0, -1, if(id = 5, null, 64 - id)) AS p")
    df = source.transform(
        map_concurrent, lambda row: 1, "x int", workers=1, max_in_flight=64, order=order, key="id", priority="p"
    )
    expected = [0, *(number for number in range(63, 0, -1) if number != 5), 5]
    assert [row.id for row in df.collect()] == expected
