"""From what a function returns to columns: what fits, what does not, and the error messages."""

import asyncio
import datetime
import enum
from array import array
from collections import namedtuple
from decimal import Decimal
from typing import Any

import numpy
import pandas
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from manytail.spark import ResultError
from manytail.spark._results import Described, Results, describe
from manytail.spark._rows import session_zone

ZONE = session_zone("America/New_York")
INT, STRING = T.IntegerType(), T.StringType()
PAIR = T.StructType([T.StructField("a", INT), T.StructField("b", STRING)])


def shown_key() -> str:
    return "the key"


def results(*types: T.DataType) -> Results:
    return Results(T.StructType([T.StructField(name, kind) for name, kind in zip("xyz", types, strict=False)]), ZONE)


def through(schema: Results, *returned: Any) -> list[Any]:
    """The values in the columns, as Python objects, row by row."""
    columns = schema.columns([schema.check(value, shown_key) for value in returned])
    return list(zip(*[column.to_pylist() for column in columns], strict=True))


# ----------------------------------------------------------------------------------------------- which value goes where
Pair = namedtuple("Pair", ["b", "a"])


def test_none_makes_all_result_columns_null() -> None:
    assert through(results(INT, STRING), None) == [(None, None)]
    assert through(results(INT), None) == [(None,)]


@pytest.mark.parametrize("value", [{"y": "s", "x": 1}, Row(y="s", x=1), Row("x", "y")(1, "s")])
def test_a_mapping_or_named_row_goes_by_name(value: Any) -> None:
    assert through(results(INT, STRING), value) == [(1, "s")]


@pytest.mark.parametrize("value", [{"x": 1}, Row(x=1)])
def test_a_missing_name_is_null(value: Any) -> None:
    assert through(results(INT, STRING), value) == [(1, None)]


@pytest.mark.parametrize("value", [{"x": 1, "nope": 2}, Row(x=1, nope=2), {1: 1}])
def test_an_unknown_name_does_not_fit(value: Any) -> None:
    with pytest.raises(ResultError, match=r"column (nope|1): .*expected: one of the names x, y"):
        results(INT, STRING).check(value, shown_key)


@pytest.mark.parametrize("value", [(1, "s"), Row(1, "s"), Pair(1, "s")])
def test_another_tuple_goes_by_position(value: Any) -> None:
    assert through(results(INT, STRING), value) == [(1, "s")]


@pytest.mark.parametrize("value", [(1,), (1, "s", 2), ()])
def test_a_tuple_of_another_length_does_not_fit(value: Any) -> None:
    with pytest.raises(ResultError, match=r"column x, y: .*expected: a mapping, a Row or a tuple of 2"):
        results(INT, STRING).check(value, shown_key)


@pytest.mark.parametrize("value", [1, "ab", [1, "s"], {1, 2}])
def test_anything_else_is_for_one_column_schemas_only(value: Any) -> None:
    with pytest.raises(ResultError, match=r"column x, y: .*expected: a mapping, a Row or a tuple"):
        results(INT, STRING).check(value, shown_key)


def test_one_column() -> None:
    strings = T.MapType(STRING, INT)
    assert through(results(INT), 5, {"x": 5}, (5,), Row(x=5), Row("x")(5), Row(5)) == [(5,)] * 6
    assert through(results(T.ArrayType(INT)), [5]) == [([5],)]
    assert through(results(strings), {"k": 1}, {"x": {"k": 1}}, {}) == [([("k", 1)],), ([("k", 1)],), ([],)]
    assert through(results(strings), {"x": 1, "y": 2}) == [([("x", 1), ("y", 2)],)]
    assert through(results(PAIR), {"a": 1, "b": "s"}, Row(a=1, b="s"), ((1, "s"),)) == [({"a": 1, "b": "s"},)] * 3
    with pytest.raises(ResultError, match="expected: a tuple of 1"):
        results(PAIR).check((1, "s"), shown_key)
    with pytest.raises(ResultError, match=r"column x: \{'y': 5}"):
        results(INT).check({"y": 5}, shown_key)


# ---------------------------------------------------------------------------------------------------- which values fit
class Colour(enum.IntEnum):
    RED = 3


class Name(enum.StrEnum):
    ANN = "ann"


AWARE = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.UTC)
FITS: list[tuple[T.DataType, Any, Any]] = [
    (T.BooleanType(), True, True),
    (T.BooleanType(), numpy.bool_(False), False),
    (T.ByteType(), -128, -128),
    (INT, numpy.int64(7), 7),
    (INT, Colour.RED, 3),
    (T.LongType(), 2**63 - 1, 2**63 - 1),
    (T.DoubleType(), 1, 1.0),
    (T.DoubleType(), 1.5, 1.5),
    (T.DoubleType(), numpy.float32(0.5), 0.5),
    (T.DoubleType(), numpy.float64(0.1), 0.1),
    (T.FloatType(), 0.5, 0.5),
    (T.FloatType(), float("inf"), float("inf")),
    (STRING, "äöü 🎈", "äöü 🎈"),
    (STRING, Name.ANN, "ann"),
    (T.BinaryType(), b"\x00", b"\x00"),
    (T.BinaryType(), bytearray(b"ab"), b"ab"),
    (T.BinaryType(), memoryview(b"ab"), b"ab"),
    (T.DecimalType(5, 2), Decimal("123.4"), Decimal("123.40")),
    (T.DecimalType(5, 2), Decimal("1.500"), Decimal("1.50")),
    (T.DecimalType(5, 2), 999, Decimal("999.00")),
    (T.DateType(), datetime.date(2024, 2, 29), datetime.date(2024, 2, 29)),
    (T.TimestampType(), AWARE, AWARE),
    (T.TimestampType(), datetime.datetime(2024, 7, 1, 8), AWARE),  # naive: the session's time
    (
        T.TimestampType(),
        datetime.datetime(2024, 11, 3, 1, 30, fold=1),
        datetime.datetime(2024, 11, 3, 6, 30, tzinfo=datetime.UTC),
    ),
    (T.TimestampType(), pandas.Timestamp("2024-07-01 12:00", tz="UTC"), AWARE),
    (T.TimestampNTZType(), datetime.datetime(2024, 7, 1, 8), datetime.datetime(2024, 7, 1, 8)),
    (T.DayTimeIntervalType(), datetime.timedelta(days=-1, microseconds=1), datetime.timedelta(days=-1, microseconds=1)),
    (T.DayTimeIntervalType(), pandas.Timedelta(1000, unit="ns"), datetime.timedelta(microseconds=1)),
    (T.ArrayType(INT), (1, None), [1, None]),
    (T.ArrayType(INT), numpy.array([1, 2]), [1, 2]),
    (T.ArrayType(T.DoubleType()), array("d", [1.5]), [1.5]),
    (T.ArrayType(T.TimestampType()), [datetime.datetime(2024, 7, 1, 8)], [AWARE]),
    (T.MapType(STRING, T.ArrayType(INT)), {"a": [1], "b": None}, [("a", [1]), ("b", None)]),
    (PAIR, {"b": "s"}, {"a": None, "b": "s"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    FITS,
    ids=lambda value: value.simpleString() if isinstance(value, T.DataType) else None,
)
def test_what_fits(kind: T.DataType, value: Any, expected: Any) -> None:
    schema = results(kind)
    wrapped = (value,) if isinstance(value, tuple) else value
    assert through(schema, wrapped) == [(expected,)]
    assert through(results(INT, kind), (None, value)) == [(None, expected)]


NANOSECOND = pandas.Timestamp("2024-07-01 12:00:00.000000001")
MISFITS: list[tuple[T.DataType, Any]] = [
    (INT, 1.5), (INT, 1.0), (INT, True), (INT, "1"), (INT, 2**31), (INT, Decimal(1)), (INT, numpy.float64(1)),
    (INT, numpy.array([1])),
    (T.ByteType(), 128), (T.LongType(), 2**63), (T.BooleanType(), 1), (T.BooleanType(), "true"),
    (T.DoubleType(), "1.5"), (T.DoubleType(), True), (T.DoubleType(), Decimal("1.5")), (T.DoubleType(), 2**53 + 1),
    (T.DoubleType(), 1 << 5_000),
    (T.FloatType(), 1e300),
    (STRING, 1), (STRING, b"bytes"), (STRING, "\ud800"), (STRING, ["a"]),
    (T.BinaryType(), "text"), (T.BinaryType(), [1]),
    (T.DecimalType(5, 2), Decimal("1.234")), (T.DecimalType(5, 2), Decimal("1234.5")),
    (T.DecimalType(5, 2), Decimal("NaN")),
    (T.DecimalType(5, 2), 1.5), (T.DecimalType(5, 2), Decimal("Infinity")), (T.DecimalType(5, 2), True),
    (T.DecimalType(5, 2), "1"),
    (T.DateType(), AWARE), (T.DateType(), "2024-01-01"), (T.TimestampType(), datetime.date(2024, 1, 1)),
    (T.TimestampType(), 0),
    (T.DayTimeIntervalType(), datetime.timedelta.max), (T.DayTimeIntervalType(), datetime.timedelta.min),
    (T.DayTimeIntervalType(), pandas.Timedelta(1001, unit="ns")),
    (T.TimestampType(), NANOSECOND), (T.TimestampNTZType(), NANOSECOND),
    (T.TimestampType(), pandas.NaT), (T.TimestampNTZType(), AWARE), (T.DayTimeIntervalType(), 5), (T.NullType(), 1),
    (T.ArrayType(INT), "12"), (T.ArrayType(INT), b"12"), (T.ArrayType(INT), {1}), (T.ArrayType(INT), {1: 2}),
    (T.ArrayType(INT), 5),
    (T.ArrayType(INT), [1.5]), (T.ArrayType(INT, False), [None]), (T.ArrayType(INT), numpy.zeros((2, 2))),
    (T.MapType(STRING, INT), [("a", 1)]), (T.MapType(STRING, INT), {1: 1}), (T.MapType(STRING, INT), {"a": "b"}),
    (T.MapType(STRING, INT), {None: 1}), (T.MapType(STRING, INT, False), {"a": None}),
    (PAIR, {"c": 1}), (PAIR, 5), (PAIR, [1, "s"]), (T.StructType([T.StructField("a", INT, False)]), {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value"),
    MISFITS,
    ids=lambda value: value.simpleString() if isinstance(value, T.DataType) else repr(value)[:30],
)
def test_what_does_not_fit_names_key_and_column(kind: T.DataType, value: Any) -> None:
    with pytest.raises(
        ResultError, match=r"^column x[^ ]*: .* of type \w+ does not fit \(expected: .*\) \(key 'the key'\)$"
    ):
        results(kind).check(value, shown_key)
    with pytest.raises(ResultError, match=r"^column y"):
        results(INT, kind).check((1, value), shown_key)


def test_the_path_to_a_nested_misfit_is_named() -> None:
    kind = T.ArrayType(T.StructType([T.StructField("m", T.MapType(STRING, INT))]))
    with pytest.raises(ResultError, match=r"^column x\[1\]\.m\['b'\]: 'no'"):
        results(kind).check([{"m": {"a": 1}}, {"m": {"b": "no"}}], shown_key)


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(ResultError) as caught:
        results(INT).check("x" * 10_000, shown_key)
    assert len(str(caught.value)) < 500


def test_result_error_is_named_as_users_import_it() -> None:
    assert f"{ResultError.__module__}.{ResultError.__qualname__}" == "manytail.spark.ResultError"


async def coroutine() -> int:
    return 1


@pytest.mark.parametrize("schema", [results(INT), results(INT, STRING)], ids=["one column", "two columns"])
def test_an_awaitable_is_a_type_error_and_no_coroutine_is_left_unawaited(schema: Results) -> None:
    with pytest.raises(TypeError, match=r"not `async def` returned an awaitable \(coroutine\)") as caught:
        schema.check(coroutine(), shown_key)
    assert type(caught.value) is TypeError
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(TypeError, match=r"awaitable \(Future\)"):
            schema.check(loop.create_future(), shown_key)
    finally:
        loop.close()


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
        results(PointType()).check("no point", shown_key)


@pytest.mark.parametrize(
    "kind", [T.YearMonthIntervalType(), T.VarcharType(3), T.ArrayType(T.CharType(3))], ids=T.DataType.simpleString
)
def test_types_that_cannot_be_results_are_refused(kind: T.DataType) -> None:
    with pytest.raises(TypeError, match="cannot be a result type"):
        results(kind)


def test_a_struct_with_two_fields_of_one_name_is_refused() -> None:
    twice = T.StructType([T.StructField("a", INT), T.StructField("a", INT)])
    with pytest.raises(ValueError, match=r"^struct<a:int,a:int> has two fields of one name$"):
        results(T.ArrayType(twice))


# -------------------------------------------------------------------------------------------------- failures
class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Outer:
    class Inner(Exception):
        pass


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("x"), "ValueError", "x"),
        (Outer.Inner("y"), f"{__name__}.Outer.Inner", "y"),
        (ValueError("z" * 5_000), "ValueError", "z" * 4_000),
        (ValueError("\ud800ä"), "ValueError", "?ä"),
        (Unprintable(), f"{__name__}.Unprintable", "<no message: str() of it raised RuntimeError>"),
        (SystemExit(3), "SystemExit", "3"),
        (StopIteration(1), "StopIteration", "1"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_type_and_message_of_an_error(error: BaseException, kind: str, message: str) -> None:
    assert describe(error, 1) == Described(kind, message, 1)
