"""From what a function returns to columns: what fits, what does not, and the error messages."""

import asyncio
import datetime
import enum
from array import array
from collections import namedtuple
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy
import pandas
import pyarrow as pa
import pytest

from manytail.arrow import ResultError
from manytail.arrow._results import Described, ResultSchema, describe
from manytail.arrow._types import zone_of

ZONE = zone_of("America/New_York")
INT, STRING, AT = pa.int32(), pa.string(), pa.timestamp("us", "UTC")
PAIR = pa.struct({"a": INT, "b": STRING})


def shown_key() -> str:
    return "the key"


def results(*kinds: pa.DataType) -> ResultSchema:
    return ResultSchema(pa.schema(dict(zip("xyz", kinds, strict=False))), ZONE)


def through(schema: ResultSchema, *returned: Any) -> list[Any]:
    """The values in the columns, as Python objects, row by row."""
    columns = schema.columns([schema.check(value, shown_key) for value in returned])
    return list(zip(*[column.to_pylist() for column in columns], strict=True))


# ----------------------------------------------------------------------------------------------- which value goes where
Pair = namedtuple("Pair", ["b", "a"])


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (None, (None, None)),
        ({"y": "s", "x": 1}, (1, "s")),
        (MappingProxyType({"y": "s", "x": 1}), (1, "s")),
        ({"x": 1}, (1, None)),
        ((1, "s"), (1, "s")),
        (Pair(1, "s"), (1, "s")),
    ],
)
def test_a_mapping_goes_by_name_and_a_tuple_by_position(value: Any, row: tuple[Any, ...]) -> None:
    assert through(results(INT, STRING), value) == [row]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([{"x": 1, "nope": 2}, {1: 1}], r"column (nope|1): .*expected: one of the names x, y"),
        ([(1,), (1, "s", 2), ()], r"column x, y: .*expected: a mapping, a Row or a tuple of 2"),
        ([1, "ab", [1, "s"], {1, 2}], r"column x, y: .*expected: a mapping, a Row or a tuple"),
    ],
    ids=["an unknown name", "another length", "for one column"],
)
def test_another_shape_does_not_fit(values: list[Any], message: str) -> None:
    for value in values:
        with pytest.raises(ResultError, match=message):
            results(INT, STRING).check(value, shown_key)


def test_one_column() -> None:
    assert through(results(INT), None) == [(None,)]
    strings = pa.map_(STRING, INT)
    assert through(results(INT), 5, {"x": 5}, (5,)) == [(5,)] * 3
    assert through(results(pa.list_(INT)), [5]) == [([5],)]
    assert through(results(strings), {"k": 1}, {"x": {"k": 1}}, {}) == [([("k", 1)],), ([("k", 1)],), ([],)]
    assert through(results(strings), {"x": 1, "y": 2}) == [([("x", 1), ("y", 2)],)]
    assert through(results(PAIR), {"a": 1, "b": "s"}, ((1, "s"),)) == [({"a": 1, "b": "s"},)] * 2
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
FITS: list[tuple[pa.DataType, Any, Any]] = [
    (pa.bool_(), True, True),
    (pa.bool_(), numpy.bool_(False), False),
    (pa.int8(), -128, -128),
    (INT, numpy.int64(7), 7),
    (INT, Colour.RED, 3),
    (pa.int64(), 2**63 - 1, 2**63 - 1),
    (pa.float64(), 1, 1.0),
    (pa.float64(), 1.5, 1.5),
    (pa.float64(), numpy.float32(0.5), 0.5),
    (pa.float64(), numpy.float64(0.1), 0.1),
    (pa.float32(), 0.5, 0.5),
    (pa.float32(), float("inf"), float("inf")),
    (STRING, "äöü 🎈", "äöü 🎈"),
    (STRING, Name.ANN, "ann"),
    (pa.binary(), b"\x00", b"\x00"),
    (pa.binary(), bytearray(b"ab"), b"ab"),
    (pa.binary(), memoryview(b"ab"), b"ab"),
    (pa.decimal128(5, 2), Decimal("123.4"), Decimal("123.40")),
    (pa.decimal128(5, 2), Decimal("1.500"), Decimal("1.50")),
    (pa.decimal128(5, 2), 999, Decimal("999.00")),
    (pa.date32(), datetime.date(2024, 2, 29), datetime.date(2024, 2, 29)),
    (AT, AWARE, AWARE),
    (AT, datetime.datetime(2024, 7, 1, 8), AWARE),  # naive: the session's time
    (
        AT,
        datetime.datetime(2024, 11, 3, 1, 30, fold=1),
        datetime.datetime(2024, 11, 3, 6, 30, tzinfo=datetime.UTC),
    ),
    (AT, pandas.Timestamp("2024-07-01 12:00", tz="UTC"), AWARE),
    (pa.timestamp("us"), datetime.datetime(2024, 7, 1, 8), datetime.datetime(2024, 7, 1, 8)),
    (pa.duration("us"), datetime.timedelta(days=-1, microseconds=1), datetime.timedelta(days=-1, microseconds=1)),
    (pa.duration("us"), pandas.Timedelta(1000, unit="ns"), datetime.timedelta(microseconds=1)),
    (pa.list_(INT), (1, None), [1, None]),
    (pa.list_(INT), numpy.array([1, 2]), [1, 2]),
    (pa.list_(pa.float64()), array("d", [1.5]), [1.5]),
    (pa.list_(AT), [datetime.datetime(2024, 7, 1, 8)], [AWARE]),
    (pa.map_(STRING, pa.list_(INT)), {"a": [1], "b": None}, [("a", [1]), ("b", None)]),
    (PAIR, {"b": "s"}, {"a": None, "b": "s"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    FITS,
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else None,
)
def test_what_fits(kind: pa.DataType, value: Any, expected: Any) -> None:
    schema = results(kind)
    wrapped = (value,) if isinstance(value, tuple) else value
    assert through(schema, wrapped) == [(expected,)]
    assert through(results(INT, kind), (None, value)) == [(None, expected)]


NANOSECOND = pandas.Timestamp("2024-07-01 12:00:00.000000001")
MISFITS: list[tuple[pa.DataType, Any]] = [
    (INT, 1.5), (INT, 1.0), (INT, True), (INT, "1"), (INT, 2**31), (INT, Decimal(1)), (INT, numpy.float64(1)),
    (INT, numpy.array([1])),
    (pa.int8(), 128), (pa.int64(), 2**63), (pa.bool_(), 1), (pa.bool_(), "true"),
    (pa.float64(), "1.5"), (pa.float64(), True), (pa.float64(), Decimal("1.5")), (pa.float64(), 2**53 + 1),
    (pa.float64(), 1 << 5_000),
    (pa.float32(), 1e300),
    (STRING, 1), (STRING, b"bytes"), (STRING, "\ud800"), (STRING, ["a"]),
    (pa.binary(), "text"), (pa.binary(), [1]),
    (pa.decimal128(5, 2), Decimal("1.234")), (pa.decimal128(5, 2), Decimal("1234.5")),
    (pa.decimal128(5, 2), Decimal("NaN")),
    (pa.decimal128(5, 2), 1.5), (pa.decimal128(5, 2), Decimal("Infinity")), (pa.decimal128(5, 2), True),
    (pa.decimal128(5, 2), "1"),
    (pa.date32(), AWARE), (pa.date32(), "2024-01-01"), (AT, datetime.date(2024, 1, 1)),
    (AT, 0),
    (pa.duration("us"), datetime.timedelta.max), (pa.duration("us"), datetime.timedelta.min),
    (pa.duration("us"), pandas.Timedelta(1001, unit="ns")),
    (AT, NANOSECOND), (pa.timestamp("us"), NANOSECOND),
    (AT, pandas.NaT), (pa.timestamp("us"), AWARE), (pa.duration("us"), 5), (pa.null(), 1),
    (pa.list_(INT), "12"), (pa.list_(INT), b"12"), (pa.list_(INT), {1}), (pa.list_(INT), {1: 2}),
    (pa.list_(INT), 5),
    (pa.list_(INT), [1.5]), (pa.list_(pa.field("item", INT, False)), [None]), (pa.list_(INT), numpy.zeros((2, 2))),
    (pa.map_(STRING, INT), [("a", 1)]), (pa.map_(STRING, INT), {1: 1}), (pa.map_(STRING, INT), {"a": "b"}),
    (pa.map_(STRING, INT), {None: 1}), (pa.map_(STRING, pa.field("value", INT, False)), {"a": None}),
    (PAIR, {"c": 1}), (PAIR, 5), (PAIR, [1, "s"]), (pa.struct([pa.field("a", INT, False)]), {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value"),
    MISFITS,
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else repr(value)[:30],
)
def test_what_does_not_fit_names_key_and_column(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(
        ResultError, match=r"^column x[^ ]*: .* of type \w+ does not fit \(expected: .*\) \(key 'the key'\)$"
    ):
        results(kind).check(value, shown_key)
    with pytest.raises(ResultError, match=r"^column y"):
        results(INT, kind).check((1, value), shown_key)


def test_the_path_to_a_nested_misfit_is_named() -> None:
    kind = pa.list_(pa.struct({"m": pa.map_(STRING, INT)}))
    with pytest.raises(ResultError, match=r"^column x\[1\]\.m\['b'\]: 'no'"):
        results(kind).check([{"m": {"a": 1}}, {"m": {"b": "no"}}], shown_key)


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(ResultError) as caught:
        results(INT).check("x" * 10_000, shown_key)
    assert len(str(caught.value)) < 500


def test_result_error_is_named_as_users_import_it() -> None:
    assert f"{ResultError.__module__}.{ResultError.__qualname__}" == "manytail.arrow.ResultError"


async def coroutine() -> int:
    return 1


@pytest.mark.parametrize("schema", [results(INT), results(INT, STRING)], ids=["one column", "two columns"])
def test_an_awaitable_is_a_type_error_and_no_coroutine_is_left_unawaited(schema: ResultSchema) -> None:
    with pytest.raises(TypeError, match=r"not `async def` returned an awaitable \(coroutine\)") as caught:
        schema.check(coroutine(), shown_key)
    assert type(caught.value) is TypeError
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(TypeError, match=r"awaitable \(Future\)"):
            schema.check(loop.create_future(), shown_key)
    finally:
        loop.close()


# -------------------------------------------------------------------------------------------------- failures
class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Ending(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


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
        (Ending(), f"{__name__}.Ending", "<no message: str() of it raised SystemExit>"),
        (SystemExit(3), "SystemExit", "3"),
        (StopIteration(1), "StopIteration", "1"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_type_and_message_of_an_error(error: BaseException, kind: str, message: str) -> None:
    assert describe(error, 1) == Described(kind, message, 1)
