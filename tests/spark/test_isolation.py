"""A value that Python cannot hold, or a type that Arrow cannot cast, fails its row alone."""

from typing import Any

import pytest
from pyspark.sql import functions as F

from manytail.spark import map_concurrent

FAR = "CASE WHEN id = 1 THEN TIMESTAMP'+10000-01-01 00:00:00' ELSE TIMESTAMP'2020-01-01 00:00:00' END"


@pytest.mark.parametrize("kind", ["timestamp", "date"])
def test_a_value_that_python_cannot_hold_fails_its_row_alone(spark: Any, kind: str) -> None:
    df = spark.range(3).select("id", F.expr(f"CAST({FAR} AS {kind})").alias("at"))
    rows = (
        df.transform(map_concurrent, lambda row: row.at.year, "year int", errors="column")
        .drop("at")
        .orderBy("id")
        .collect()
    )
    assert [row.year for row in rows] == [2020, None, 2020]
    assert rows[1]._error.type == "ValueError"
    assert "cannot be held in Python" in rows[1]._error.message
    assert [row._error for row in rows if row.id != 1] == [None, None]


@pytest.mark.parametrize("kind", ["timestamp", "date"])
def test_as_a_key_it_fails_nothing(spark: Any, kind: str) -> None:
    df = spark.range(3).select("id", F.expr(f"CAST({FAR} AS {kind})").alias("at"))
    rows = (
        df.transform(map_concurrent, lambda row: row.id, "same long", key="at", per_key=1, weights={}, errors="column")
        .select("same")
        .collect()
    )
    assert sorted(row.same for row in rows) == [0, 1, 2]


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


@pytest.mark.parametrize("value", ["map()", "array()", "named_struct('m', map())"])
@pytest.mark.parametrize("columns", ["append", "replace"])
def test_empty_literals_without_a_type_are_refused_at_the_call(spark: Any, value: str, columns: Any) -> None:
    df = spark.range(3).select("id", F.expr(value).alias("x"))
    with pytest.raises(
        TypeError, match=r"df: .* \(expected: columns that have Python and Arrow values; x has type (map|array)<void"
    ):
        df.transform(map_concurrent, lambda row: 1, "y int", columns=columns)


def test_the_order_of_a_maps_entries_changes_no_idempotency_key(spark: Any) -> None:
    df = spark.sql(
        "SELECT map('a', 1, 'b', 2) m UNION ALL SELECT map('b', 2, 'a', 1) UNION ALL SELECT map('a', 2, 'b', 1)"
    )
    rows = df.transform(map_concurrent, lambda row, delivery: delivery.idempotency_key, "key string").collect()
    assert len({row.key for row in rows}) == 2


def test_a_key_error_inside_a_conversion_is_no_missing_column(spark: Any) -> None:
    (row,) = spark.range(1).transform(map_concurrent, lambda row: row.nope, "x int", errors="column").collect()
    assert row._error.type == "AttributeError"
    assert "row has no column 'nope'" in row._error.message


def test_a_message_that_raises_system_exit_fails_its_row_alone(spark: Any) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise SystemExit(1)

    def fail(row: Any) -> int:
        raise Rude

    (row,) = spark.range(1).transform(map_concurrent, fail, "x int", errors="column").collect()
    assert row._error.message == "<no message: str() of it raised SystemExit>"
