"""`metrics=True`: the column `_call`."""

import time
from typing import Any

from pyspark.sql import Observation
from pyspark.sql import functions as F
from support.databases import Database

from manytail import Rate, Retry, RetryLater, Shared
from manytail.spark import map_concurrent


def test_what_calls_came_to_and_their_sums_by_observe(spark: Any) -> None:
    seen: dict[int, int] = {}

    def fn(row: Any) -> Any:
        calls = seen[row.id] = seen.get(row.id, 0) + 1
        time.sleep(0.02)
        if row.id == 1 and calls == 1:
            raise RetryLater(0.25)
        if row.id == 2:
            raise ValueError
        return row.id

    df = spark.range(0, 4, 1, 1).transform(
        map_concurrent,
        fn,
        "n long",
        retry=Retry(2, backoff=0.01),
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
    assert [call.deferred for call in calls] == [0.0, 0.25, 0.0, 0.0]
    assert not any(call.remembered for call in calls)
    assert all(call.waited >= 0 for call in calls)
    assert calls[0].ran >= 0.02
    assert calls[1].ran >= 0.04
    assert calls[2].ran >= 0.06
    assert observation.get == {"attempts": 6, "cost": 16.0}


def test_remembered_rows_and_equal_rows_cost_nothing(spark: Any, sqlite: Database) -> None:
    shared = Shared(sqlite.url, "metrics")
    df = spark.range(0, 8, 1, 1).select((F.col("id") % 4).alias("k"))

    def run(**options: Any) -> Any:
        rows = df.transform(map_concurrent, lambda row: row.k, "n long", metrics=True, workers=1, **options).collect()
        return [(row._call.attempts, row._call.remembered, row._call.cost, row._call.ran > 0) for row in rows]

    called, answered = (1, False, 1.0, True), (0, True, 0.0, False)
    assert run(dedup=10) == [called] * 4 + [answered] * 4
    run(remember=shared)
    assert run(remember=shared) == [answered] * 8
