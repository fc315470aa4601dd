"""The body of mapInArrow without Spark: what it logs, and its output batches from rows of several input batches."""

import logging
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

import manytail
from manytail.mapping._item import Item
from manytail.mapping._options import check
from manytail.spark._task import Work, new_rows


def work(fn: Any, **changes: Any) -> Work:
    settings = {name: changes.pop(name) for name in ("order", "errors", "workers", "max_in_flight") if name in changes}
    fields: dict[str, Any] = {
        "fn": fn,
        "options": check(fn, settings, failures=("raise", "column", "drop")),
        "result": T.StructType([T.StructField("x", T.LongType())]),
        "names": ("id", "text"),
        "types": (T.LongType(), T.StringType()),
        "append": True,
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


# ---------------------------------------------------------------------------------------------------- functions per row
OURS = str(Path(manytail.__file__).parent)


def functions_called(run: Callable[[], Any]) -> Counter[str]:
    """How often each Python function of the package is called, in this thread and in those that it starts."""
    calls: list[Any] = []  # appending is atomic

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls.append(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Counter(f"{Path(code.co_filename).name}: {code.co_qualname}" for code in calls)


def read_a_column(row: Any) -> Any:
    return row.id


def read_a_text(row: Any) -> Any:
    return row["text"]


@pytest.mark.parametrize(("fn", "kind"), [(read_a_column, T.LongType()), (read_a_text, T.StringType())])
def test_a_row_passes_at_most_12_functions(fn: Any, kind: T.DataType) -> None:
    """From Arrow batch to Arrow batch, in a running task, including the function's own access to its row."""
    rows = 20_000
    busy = work(fn, result=T.StructType([T.StructField("x", kind)]), max_records=10_000)
    list(busy.run(batches(rows, 10_000)))
    calls = functions_called(lambda: list(busy.run(batches(rows, 10_000))))
    per_row = calls.total() / rows
    assert 5 < per_row <= 12, (per_row, calls.most_common(20))


def test_a_row_has_all_that_an_item_has() -> None:
    (row,) = new_rows(None, 1)
    item = Item(None, read=row.read)
    assert row.read > 0
    names = [name for name in Item.__slots__ if name != "value" and hasattr(item, name)]
    assert {name: getattr(row, name) for name in names} == {name: getattr(item, name) for name in names}
