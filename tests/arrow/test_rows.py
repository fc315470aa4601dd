"""Rows read from Arrow batches, keys, and idempotency keys; no Spark session."""

import copy
import datetime
import pickle
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from manytail.arrow import RowView
from manytail.arrow._rows import Columns, Reader, group_keys, row_digest, row_digests
from manytail.arrow._types import zone_of
from manytail.mapping.frames import idempotency_key


def views(batch: pa.RecordBatch) -> list[RowView]:
    columns = Columns(Reader(batch.schema), batch)
    return [RowView(columns, index) for index in range(batch.num_rows)]


@pytest.fixture
def row() -> RowView:
    batch = pa.record_batch({"id": [1, 2], "url": ["a", None], "keys": [7, 8]})
    return views(batch)[0]


def test_a_row_is_a_mapping(row: RowView) -> None:
    assert isinstance(row, Mapping)
    assert row["url"] == "a"
    assert list(row) == ["id", "url", "keys"]
    assert len(row) == 3
    assert "id" in row
    assert "nope" not in row
    assert row.get("nope") is None
    assert dict(row) == {"id": 1, "url": "a", "keys": 7} == {**row}
    assert row == {"id": 1, "url": "a", "keys": 7}
    with pytest.raises(KeyError):
        row["nope"]


def test_a_row_allows_attribute_access(row: RowView) -> None:
    assert (row.id, row.url) == (1, "a")
    assert list(row.keys()) == ["id", "url", "keys"]  # a method has that name
    assert row["keys"] == 7
    with pytest.raises(AttributeError, match=r"no column 'nope' \(columns: id, url, keys\)"):
        _ = row.nope
    assert not hasattr(row, "nope")


def test_as_dict(row: RowView) -> None:
    assert row.asDict() == {"id": 1, "url": "a", "keys": 7}
    nested = views(
        pa.record_batch(
            {
                "s": [{"a": [{"b": 1}]}],
                "m": pa.array([[("k", {"b": 2})]], pa.map_(pa.string(), pa.struct({"b": pa.int64()}))),
            }
        )
    )[0]
    assert nested.asDict() == {"s": {"a": [{"b": 1}]}, "m": {"k": {"b": 2}}}


def test_repr_copy_and_pickle(row: RowView) -> None:
    assert repr(row) == "Row(id=1, url='a', keys=7)"
    assert pickle.loads(pickle.dumps(row)) == {"id": 1, "url": "a", "keys": 7}
    assert copy.copy(row) == row


def test_columns_are_converted_once_and_only_when_asked_for() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": [3, 4]})
    columns = Columns(Reader(batch.schema), batch)
    first, second = RowView(columns, 0), RowView(columns, 1)
    assert columns == {}
    assert (first.a, second.a) == (1, 2)
    assert columns == {"a": [1, 2]}


def test_an_attribute_is_the_column_of_any_name_that_is_no_method() -> None:
    names = ["_index", "_columns", "_id", "index"]
    row = views(pa.record_batch({name: [name] for name in names}))[0]
    assert [getattr(row, name) for name in names] == names


UTC_TIME = datetime.datetime(2024, 7, 1, 12, 30, 15, 123456, tzinfo=datetime.UTC)
NAIVE = UTC_TIME.replace(tzinfo=None)
TIMESTAMP = pa.timestamp("us", "America/New_York")
TEXTS = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, None], pa.int8()), [1, None]),
        (pa.array([1.5, float("inf")], pa.float32()), [1.5, float("inf")]),
        (pa.array([True, None]), [True, None]),
        (pa.array(["ä", None]), ["ä", None]),
        (pa.array(["ä", None], pa.string_view()), ["ä", None]),
        (pa.array([b"\x00", None]), [b"\x00", None]),
        (pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)), [Decimal("1.50"), None]),
        (pa.array([datetime.date(2024, 2, 29)]), [datetime.date(2024, 2, 29)]),
        (pa.array([datetime.time(1, 2)], pa.time64("ns")), [datetime.time(1, 2)]),
        (pa.array([UTC_TIME, None], TIMESTAMP), [UTC_TIME, None]),
        (pa.array([UTC_TIME], pa.timestamp("us", "+05:30")), [UTC_TIME]),
        (pa.array([NAIVE, None], pa.timestamp("us")), [NAIVE, None]),
        (pa.array([NAIVE], pa.timestamp("ns")), [NAIVE]),
        (pa.array([datetime.timedelta(hours=5)], pa.duration("ns")), [datetime.timedelta(hours=5)]),
        (pa.array([[1, None], None, []], pa.list_(pa.int32())), [[1, None], None, []]),
        (pa.array([[1]], pa.list_view(pa.int32())), [[1]]),
        (pa.array([[UTC_TIME], [None]], pa.list_(TIMESTAMP, 1)), [[UTC_TIME], [None]]),
        (pa.array([{"a": 1, "t": UTC_TIME}, None], pa.struct({"a": pa.int32(), "t": TIMESTAMP})),
         [{"a": 1, "t": UTC_TIME}, None]),
        (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())), [{"k": 1}, None]),
        (pa.array([[(UTC_TIME, {"b": None})]], pa.map_(TIMESTAMP, pa.struct({"b": pa.int8()}))),
         [{UTC_TIME: {"b": None}}]),
        (pa.array(["a", None, "a"], TEXTS), ["a", None, "a"]),
        (pa.array([{"x": ["a"]}], pa.struct({"x": pa.list_(TEXTS)})), [{"x": ["a"]}]),
        (pa.array([bytes(16), None], pa.uuid()), [bytes(16), None]),
        (pa.ListArray.from_arrays([0, 1], pa.array([bytes(16)], pa.uuid())), [[bytes(16)]]),
        (pa.nulls(2), [None, None]),
    ],
)  # fmt: skip
def test_values_are_pythons(array: pa.Array, expected: list[Any]) -> None:
    """Dictionaries are decoded, extension types have the values of their storage."""
    found = [row.x for row in views(pa.record_batch({"x": array}))]
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


def test_an_aware_time_is_that_of_its_columns_zone() -> None:
    (row,) = views(pa.record_batch({"t": pa.array([UTC_TIME], TIMESTAMP), "n": pa.array([NAIVE], pa.timestamp("us"))}))
    assert row.t.utcoffset() == datetime.timedelta(hours=-4)
    assert row.n.tzinfo is None


@pytest.mark.parametrize("array", [pa.array([1_000, 1_001], pa.timestamp("ns")),
                                   pa.array([1_000, 1_001], pa.duration("ns")),
                                   pa.array([0, 1 << 62], pa.timestamp("us")),
                                   pa.array([0, 1 << 62], pa.timestamp("s", "UTC"))])  # fmt: skip
def test_a_value_that_python_cannot_hold_fails_those_that_ask_for_it(array: pa.Array) -> None:
    good, bad = views(pa.record_batch({"x": array}))
    assert good.x is not None
    with pytest.raises(ValueError, match="cannot be held in Python"):
        _ = bad.x


@pytest.mark.parametrize(
    ("name", "hours"),
    [("UTC", 0), ("Z", 0), ("GMT", 0), ("+05:30", 5.5), ("-08:00", -8), ("GMT+2", 2), ("UTC-03:00", -3),
     ("+01:00:36", 1.01), ("Asia/Tokyo", 9)],
)  # fmt: skip
def test_zones(name: str, hours: float) -> None:
    assert zone_of(name).utcoffset(NAIVE) == datetime.timedelta(hours=hours)


# ---------------------------------------------------------------------------------------------------- keys
def test_keys_compare_as_in_group_by() -> None:
    nan = float("nan")
    keys = group_keys(pa.array([nan, -nan, 0.0, -0.0, None, None, 1.0]))
    assert [keys.index(key) for key in keys] == [0, 0, 2, 2, 4, 4, 6]
    assert len(set(keys)) == 4
    assert len(set(map(idempotency_key, keys))) == 4  # names of limits in a database


def test_instants_are_keys_not_local_times() -> None:
    instants = [datetime.datetime(2024, 11, 3, hour, 30, tzinfo=datetime.UTC) for hour in (5, 6, 5)]
    assert len(set(group_keys(pa.array(instants, TIMESTAMP)))) == 2


def test_a_string_that_is_not_utf_8_is_a_key() -> None:
    texts = not_utf_8(b"a", b"\xff", None, b"\xfe", b"\xff", b"")
    assert group_keys(texts) == ["a", b"\xff", None, b"\xfe", b"\xff", ""]


def not_utf_8(*values: bytes | None) -> pa.Array:
    """A column of strings with these bytes, as Spark makes it: it does not check them."""
    stored = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(stored), stored.buffers())


# ---------------------------------------------------------------------------------------------------- idempotency keys
def digest(*columns: pa.Array) -> str:
    return row_digest(columns, 0)


def test_idempotency_keys_are_blake2b_hex_and_depend_on_the_values_alone() -> None:
    one = pa.record_batch({"a": [1, 2], "b": ["x", None]})
    other = pa.record_batch({"a": [9, 8, 1], "b": ["q", "r", "x"]})
    found = row_digest(one.columns, 0)
    assert found == row_digest(other.columns, 2) == row_digest(other.slice(2).columns, 0)
    assert found != row_digest(one.columns, 1)
    assert len(bytes.fromhex(found)) == 16


def test_idempotency_keys_do_not_depend_on_a_zone() -> None:
    assert digest(pa.array([UTC_TIME], TIMESTAMP)) == digest(pa.array([UTC_TIME], pa.timestamp("us", "Asia/Tokyo")))
    nested = [pa.array([[UTC_TIME]], pa.list_(pa.timestamp("us", zone))) for zone in ("America/New_York", "+03:00")]
    assert digest(nested[0]) == digest(nested[1])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (["ab", "c"], ["a", "bc"]),
        ([1, None], [None, 1]),
        (["1"], [1]),
        ([1], [1.0]),
        ([True], [1]),
        ([""], [None]),
        ([b"a"], ["a"]),
        ([[1, 2], [3]], [[1], [2, 3]]),
        ([{"a": 1}], [{"b": 1}]),
        (["a", "b"], ["b", "a"]),
    ],
)
def test_different_rows_have_different_idempotency_keys(left: list[Any], right: list[Any]) -> None:
    assert digest(*[pa.array([value]) for value in left]) != digest(*[pa.array([value]) for value in right])


def test_a_string_that_is_not_utf_8_has_an_idempotency_key() -> None:
    texts = not_utf_8(b"a", b"\xff", b"\xfe")
    found = row_digests([texts])
    assert found == [row_digest([texts], index) for index in range(3)]
    assert len(set(found)) == 3
    assert found[0] == digest(pa.array(["a"]))
    nested = pa.StructArray.from_arrays([texts], ["s"])
    assert len(set(row_digests([nested]))) == 3


def test_dictionaries_and_extension_types_count_as_their_values() -> None:
    assert digest(pa.array(["a"], TEXTS)) == digest(pa.array(["a"])) == digest(pa.array(["a"], pa.string_view()))
    assert digest(pa.array([bytes(16)], pa.uuid())) == digest(pa.array([bytes(16)]))
    assert group_keys(pa.array(["a", None, "b"], TEXTS)) == ["a", None, "b"]


def test_the_digests_of_all_rows_are_those_of_each() -> None:
    day = datetime.datetime(2020, 1, 1)
    columns = [
        pa.array(["a", "ü", None]),
        pa.array([1, None, -5], pa.int8()),
        pa.array([0.1, float("nan"), -0.0], pa.float32()),
        pa.array([True, None, False]),
        pa.array([b"x", None, b""]),
        pa.array([Decimal("1.5"), None, Decimal(2)]),
        pa.array([day, None, day]),
        pa.array([[1], None, []]),
        pa.nulls(3),
    ]
    assert row_digests(columns) == [row_digest(columns, index) for index in range(3)]
