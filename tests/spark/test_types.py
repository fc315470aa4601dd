"""Spark's types as Arrow's: values of a collected Row in, results out; no Spark session."""

import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from manytail.arrow import ResultError, RowView
from manytail.arrow._rows import Columns, Reader
from manytail.arrow.engine import ResultSchema
from manytail.spark._types import ResultTypes, Views, session_zone

NEW_YORK = session_zone("America/New_York")


def rows(array: pa.Array) -> list[RowView]:
    """Rows of one column as a function sees them."""
    views = Views(NEW_YORK)
    columns = Columns(Reader(pa.schema({"x": views.of(array.type)})), pa.record_batch({"x": array}))
    return [RowView(columns, index) for index in range(len(array))]


def seen(array: pa.Array) -> list[Any]:
    return [row.x for row in rows(array)]


def test_nested_rows_become_dicts_too() -> None:
    array = pa.array([{"a": [{"b": 1}]}])
    row = rows(array)[0]
    assert row.asDict() == {"x": Row(a=[Row(b=1)])}
    assert row.asDict(recursive=True) == {"x": {"a": [{"b": 1}]}}


UTC_TIME = datetime.datetime(2024, 7, 1, 12, 30, 15, 123456, tzinfo=datetime.UTC)
TIMESTAMP = pa.timestamp("us", "America/New_York")
LOCAL = datetime.datetime(2024, 7, 1, 8, 30, 15, 123456)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([UTC_TIME, None], TIMESTAMP), [LOCAL, None]),
        (pa.array([[UTC_TIME], [None]], pa.list_(TIMESTAMP)), [[LOCAL], [None]]),
        (
            pa.array([{"a": 1, "t": UTC_TIME}, None], pa.struct({"a": pa.int32(), "t": TIMESTAMP})),
            [Row(a=1, t=LOCAL), None],
        ),
        (
            pa.array([[(UTC_TIME, {"b": None})]], pa.map_(TIMESTAMP, pa.struct({"b": pa.int8()}))),
            [{LOCAL: Row(b=None)}],
        ),
        (pa.nulls(2), [None, None]),
    ],
)  # fmt: skip
def test_values_are_those_of_a_collected_row(array: pa.Array, expected: list[Any]) -> None:
    found = seen(array)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]
    assert [getattr(value, "__fields__", None) for value in found] == [
        getattr(value, "__fields__", None) for value in expected
    ]


@pytest.mark.parametrize(("name", "hours"), [("Z", 0), ("GMT+2", 2), ("Asia/Tokyo", 9), ("JST", 9), ("PST", -7)])
def test_session_zones(name: str, hours: float) -> None:
    assert session_zone(name).utcoffset(LOCAL) == datetime.timedelta(hours=hours)


def test_both_instants_of_a_repeated_hour_keep_their_fold() -> None:
    instants = [datetime.datetime(2024, 11, 3, hour, 30, tzinfo=datetime.UTC) for hour in (5, 6)]
    found = seen(pa.array(instants, TIMESTAMP))
    assert [time.replace(fold=0) for time in found] == [datetime.datetime(2024, 11, 3, 1, 30)] * 2
    assert [time.fold for time in found] == [0, 1]


@pytest.mark.skipif(not hasattr(T, "Geometry"), reason="this PySpark has no spatial types")
@pytest.mark.parametrize("name", ["Geometry", "Geography"])
def test_spatial_values_are_those_of_a_collected_row(name: str) -> None:
    marked = pa.field("wkb", pa.binary(), metadata={name.lower(): "true"})
    column = pa.array([{"srid": 4326, "wkb": b"\x01"}, None], pa.struct([pa.field("srid", pa.int32()), marked]))
    found = seen(column)
    assert type(found[0]) is getattr(T, name)
    assert (found[0].getSrid(), bytes(found[0].getBytes()), found[1]) == (4326, b"\x01", None)


# ---------------------------------------------------------------------------------------------------- results
def results(*kinds: T.DataType) -> ResultSchema:
    types = ResultTypes()
    fields = [T.StructField(name, kind) for name, kind in zip("xyz", kinds, strict=False)]
    return ResultSchema(types.schema(T.StructType(fields)), NEW_YORK)


def through(schema: ResultSchema, *returned: Any) -> list[Any]:
    """The values in the columns, as Python objects, row by row."""
    columns = schema.columns([schema.check(value, lambda: "the key") for value in returned])
    return list(zip(*[column.to_pylist() for column in columns], strict=True))


INT, STRING = T.IntegerType(), T.StringType()
PAIR = T.StructType([T.StructField("a", INT), T.StructField("b", STRING)])


@pytest.mark.parametrize("value", [Row(y="s", x=1), Row("x", "y")(1, "s"), Row(1, "s")])
def test_a_row_goes_by_name_if_it_has_names(value: Any) -> None:
    assert through(results(INT, STRING), value) == [(1, "s")]


def test_a_row_of_one_column() -> None:
    assert through(results(INT), Row(x=5), Row("x")(5), Row(5)) == [(5,)] * 3
    assert through(results(PAIR), Row(a=1, b="s")) == [({"a": 1, "b": "s"},)]
    with pytest.raises(ResultError, match=r"column nope: .*expected: one of the names x, y"):
        results(INT, STRING).check(Row(x=1, nope=2), lambda: None)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(T.ArrayType(INT, False), [None]), (T.MapType(STRING, INT, False), {"a": None}), (T.VariantType(), "x"),
     (T.StructType([T.StructField("a", INT, False)]), {})],
)  # fmt: skip
def test_what_does_not_fit_sparks_types(kind: T.DataType, value: Any) -> None:
    with pytest.raises(ResultError, match=r"^column x[^ ]*: .* does not fit \(expected: .*\) \(key 'the key'\)$"):
        results(kind).check(value, lambda: "the key")


class Point:
    pass


class PointType(T.UserDefinedType):
    @classmethod
    def sqlType(cls) -> T.DataType:
        return T.ArrayType(T.DoubleType(), False)

    def serialize(self, obj: Any) -> list[float]:
        return [obj.x, obj.y]


def test_user_defined_types() -> None:
    point = Point()
    point.x, point.y = 1.0, 2.0  # type: ignore[attr-defined]
    assert through(results(PointType()), point) == [([1.0, 2.0],)]
    with pytest.raises(ResultError, match="an object that PointType serializes"):
        results(PointType()).check("no point", lambda: "the key")


@pytest.mark.parametrize(
    "kind", [T.YearMonthIntervalType(), T.VarcharType(3), T.ArrayType(T.CharType(3))], ids=T.DataType.simpleString
)
def test_types_that_cannot_be_results_are_refused(kind: T.DataType) -> None:
    with pytest.raises(TypeError, match="cannot be a result type"):
        results(kind)


def test_a_struct_with_two_fields_of_one_name_is_refused() -> None:
    twice = T.StructType([T.StructField("a", INT), T.StructField("a", INT)])
    with pytest.raises(ValueError, match=r"^struct<a: int32, a: int32> has two fields of one name$"):
        results(T.ArrayType(twice))
