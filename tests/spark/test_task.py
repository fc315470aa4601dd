"""The body of mapInArrow without Spark: what it logs, and how it builds output batches from rows of several input batches."""

import logging
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from manytail.mapping._options import check
from manytail.spark._task import Work


def work(fn: Any, **changes: Any) -> Work:
    settings = {name: changes.pop(name) for name in ("order", "errors", "workers", "max_in_flight") if name in changes}
    fields: dict[str, Any] = {
        "fn": fn,
        "options": check(fn, settings, failures=("raise", "column", "drop")),
        "result": T.StructType([T.StructField("x", T.LongType())]),
        "names": ("id", "text"),
        "types": (T.LongType(), T.StringType()),
        "key": None,
        "priority": None,
        "row_id": None,
        "append": True,
        "error_column": settings.get("errors") == "column",
        "time_zone": "UTC",
        "max_records": 50,
    }
    return Work(**{**fields, **changes})


def batches(count: int, size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, size):
        numbers = range(start, min(start + size, count))
        yield pa.record_batch({"id": pa.array(numbers, pa.int64()), "text": [f"t{number}" for number in numbers]})


def test_the_number_of_dropped_rows_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "manytail.spark"):
        out = list(work(lambda row: 1 // (row.id % 2), errors="drop").run(batches(100, 30)))
    assert sum(batch.num_rows for batch in out) == 50
    assert caplog.messages == ["50 rows failed and were dropped (partition None)"]


def test_nothing_is_logged_where_nothing_was_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "manytail.spark"):
        list(work(lambda row: 1, errors="drop").run(batches(100, 30)))
    assert caplog.messages == []


@pytest.mark.parametrize("ordered", ["input", "completion"])
@pytest.mark.parametrize("size", [7, 50, 1_000])
def test_input_columns_stand_beside_their_results(ordered: str, size: int) -> None:
    chance = random.Random(3)
    waits = {number: chance.random() < 0.02 for number in range(1_000)}

    def fn(row: Any) -> int:
        if waits[row.id]:  # let others overtake
            sum(range(20_000))
        if row.id % 11 == 0:
            raise ValueError(row.text)
        return -row.id  # type: ignore[no-any-return]

    out = list(work(fn, order=ordered, errors="column").run(batches(1_000, size)))
    rows = [tuple(row.values()) for batch in out for row in batch.to_pylist()]
    assert sorted(row[0] for row in rows) == list(range(1_000))
    for number, text, value, error in rows:
        assert text == f"t{number}"
        assert value == (None if number % 11 == 0 else -number)
        assert (error and error["message"]) == (text if number % 11 == 0 else None)
    if ordered == "input":
        assert [row[0] for row in rows] == list(range(1_000))
    assert max(batch.num_rows for batch in out) <= 50


def test_whole_batches_in_order_are_passed_on_without_a_copy() -> None:
    (source,) = batches(50, 50)
    (out,) = list(work(lambda row: 1).run(iter([source])))
    assert out.column(0).buffers()[1].address == source.column(0).buffers()[1].address
