"""Output batches from rows of several input batches, what a row costs, what is measured of a call that was abandoned,
and the codec by which results are recorded."""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import manytail
from manytail.arrow import map_arrow
from manytail.arrow._metrics import CallMeter, Measure
from manytail.arrow._recorded import ArrowCodec, fingerprint
from manytail.mapping.frames import OUTPUT_BYTES, Options, Row, new_rows

LONG = pa.schema({"x": pa.int64()})


def batches(count: int, size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, size):
        numbers = range(start, min(start + size, count))
        yield pa.record_batch({"id": pa.array(numbers, pa.int64()), "text": [f"t{number}" for number in numbers]})


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

    out = list(map_arrow(fn, batches(1_000, size), LONG, order=ordered, errors="column", max_records=50))
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
    (out,) = list(map_arrow(lambda row: 1, [source], LONG))
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


@pytest.mark.parametrize(("fn", "kind"), [(read_a_column, pa.int64()), (read_a_text, pa.string())])
def test_a_row_passes_at_most_12_functions(fn: Any, kind: pa.DataType) -> None:
    """From Arrow batch to Arrow batch, in a running map, including the function's own access to its row."""
    rows, schema = 20_000, pa.schema({"x": kind})
    list(map_arrow(fn, batches(rows, 10_000), schema))
    calls = functions_called(lambda: list(map_arrow(fn, batches(rows, 10_000), schema)))
    per_row = calls.total() / rows
    assert 3 < per_row <= 12, (per_row, calls.most_common(20))


def test_a_row_has_all_that_an_item_has() -> None:
    class Plain(Row):
        __slots__ = ()

    (row,) = new_rows(Plain, None, 1)
    item: Any = Plain(None, read=row.read)
    assert row.read > 0
    names = [name for kind in Row.__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(item, name)]
    assert len(names) > 5
    assert {name: getattr(row, name) for name in names if name != "value"} == {
        name: getattr(item, name) for name in names if name != "value"
    }


def test_output_batches_are_bounded_by_bytes() -> None:
    size, count = 1 << 20, 200
    batch = pa.record_batch({"id": range(count)})
    sizes = [out.nbytes for out in map_arrow(lambda row: bytes(size), [batch], pa.schema({"x": pa.binary()}))]
    assert sum(sizes) >= count * size
    assert max(sizes) <= OUTPUT_BYTES + 2 * size


# ---------------------------------------------------------------------------------------------------- measured
def row_with(measure: Measure, attempts: int) -> Any:
    class Measured(Row):
        __slots__ = ("measure",)

    row: Any = Measured(None)
    row.measure, row.attempts = measure, attempts
    return row


def test_an_abandoned_call_counts_up_to_its_timeout_and_not_again_when_it_ends() -> None:
    row = row_with(Measure(time.monotonic()), 2)
    meter = CallMeter(Options(timeout=0.001))
    ends: list[Any] = []

    def first(item: Any) -> None:
        time.sleep(0.01)  # longer than the timeout: the next attempt begins in this time
        meter.measured(second)(item)
        ends.append(row.measure.ran)

    def second(item: Any) -> None:
        time.sleep(0.02)

    meter.measured(first)(row)
    (ran,) = ends
    assert ran >= 0.021
    assert row.measure.ran == ran  # the first call's end added nothing
    (found,) = meter.column([row]).to_pylist()
    assert (found["attempts"], found["ran"], found["remembered"]) == (2, ran, False)


def test_a_call_that_runs_when_its_row_is_emitted_is_settled() -> None:
    now = time.monotonic()
    row = row_with(Measure(now - 9), 1)
    row.error = TimeoutError()
    meter = CallMeter(Options(timeout=2.0))
    row.measure.calls = 1
    row.measure.running = [now - 5]
    (found,) = meter.column([row]).to_pylist()
    assert found["ran"] == 2.0
    assert found["waited"] == pytest.approx(4)


# ---------------------------------------------------------------------------------------------------- recorded
def schema(*names: str, **metadata: str) -> pa.Schema:
    return pa.schema([pa.field(name, pa.string(), metadata=metadata) for name in names])


def test_equal_names_and_types_have_equal_fingerprints() -> None:
    assert fingerprint(schema("a", "b")) == fingerprint(schema("a", "b", comment="x"))
    assert fingerprint(schema("a", "b")) != fingerprint(schema("b", "a"))
    assert fingerprint(pa.schema({"a": pa.int64()})) != fingerprint(pa.schema({"a": pa.timestamp("us")}))
    nested = [
        pa.schema({"outer": kind(pa.struct(list(schema("a", **metadata))))})
        for kind in (lambda inner: inner, pa.list_, lambda inner: pa.map_(pa.string(), inner))
        for metadata in ({}, {"comment": "x"})
    ]
    assert [fingerprint(each) for each in nested[::2]] == [fingerprint(each) for each in nested[1::2]]
    assert len({fingerprint(each) for each in nested}) == 3


def test_a_record_of_several_rows_or_of_another_type_is_none() -> None:
    codec = ArrowCodec(schema("a"))
    good = codec.encode_all(["x", None])
    number = pa.RecordBatch.from_pydict({"result": pa.array([1], pa.int64())}).serialize().to_pybytes()
    found = codec.decode_all([good[0], good[0] + good[1], b"", number, good[0][:-8], good[1]])
    assert [found[0], found[-1]] == ["x", None]
    assert [isinstance(one, Exception) for one in found] == [False, True, True, True, True, False]
