"""From what a function returns to Arrow columns of the result schema.

A result is checked by the worker that got it, because a result that does not fit is a failure of its row, like an exception. What passes needs no
second look: the columns of an output batch are built from clean values in one go.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import types as T

from manytail import ManytailError

Fit = Callable[[Any], Any]


class ResultError(ManytailError, TypeError):
    """What a function returned does not fit the result schema. Names the row's key and the column; such a row is never tried again."""

    __module__ = "manytail.spark"


class Misfit(Exception):
    """A value that does not fit its type; becomes a ResultError where key and column are known."""

    def __init__(self, value: Any, expected: str) -> None:
        super().__init__(value, expected)
        self.value = value
        self.expected = expected
        self.path: list[str] = []

    def __str__(self) -> str:
        shown = " ".join(repr(self.value).split())
        if len(shown) > 200:
            shown = shown[:200] + "..."
        path = "".join(part if part.startswith("[") else f".{part}" for part in self.path).removeprefix(".")
        return f"column {path}: {shown} of type {type(self.value).__qualname__} does not fit (expected: {self.expected})"


# ---------------------------------------------------------------------------------------------------- one value
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_NAIVE_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_FLOAT_MAX = struct.unpack(">f", b"\x7f\x7f\xff\xff")[0]


def _fit_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and getattr(getattr(value, "dtype", None), "kind", "") == "b" and not getattr(value, "shape", None):
        return bool(value)
    raise Misfit(value, "a bool")


def _integer(low: int, high: int, name: str) -> Fit:
    expected = f"an int from {low} to {high}, for {name}"

    def fit(value: Any) -> int:
        if type(value) is not int:
            # numpy's integers say that they are integers by __index__; so does bool, which is none here, and so do arrays of one element.
            if isinstance(value, bool) or not hasattr(value, "__index__") or getattr(value, "shape", None):
                raise Misfit(value, expected)
            try:
                value = value.__index__()
            except Exception:
                raise Misfit(value, expected) from None
        if not low <= value <= high:
            raise Misfit(value, expected)
        return value  # type: ignore[no-any-return]

    return fit


def _float(single: bool) -> Fit:
    expected = "a float" + (" in the range of 32-bit floats" if single else "")

    def fit(value: Any) -> float:
        if type(value) is not float:
            value = _to_float(value, expected)
        if single and math.isfinite(value) and abs(value) > _FLOAT_MAX:
            raise Misfit(value, expected)
        return value  # type: ignore[no-any-return]

    return fit


def _to_float(value: Any, expected: str) -> float:
    """Ints that a float holds exactly are floats; so are numpy's floats. Strings, decimals and bools are not."""
    if isinstance(value, float):
        return float(value)
    if getattr(getattr(value, "dtype", None), "kind", "") == "f" and not value.shape:
        return float(value)
    if not isinstance(value, bool) and hasattr(value, "__index__") and not getattr(value, "shape", None):
        whole = value.__index__()
        if abs(whole) < 1 << 1023 and int(float(whole)) == whole:
            return float(whole)
    raise Misfit(value, expected)


def _fit_string(value: Any) -> str:
    if type(value) is not str:
        if not isinstance(value, str):
            raise Misfit(value, "a str")
        value = str.__str__(value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Misfit(value, "a str without lone surrogates") from None
    return value  # type: ignore[no-any-return]


def _fit_binary(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise Misfit(value, "bytes")


def _decimal(precision: int, scale: int) -> Fit:
    expected = f"a Decimal or int that decimal({precision},{scale}) holds exactly"
    context = decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow])
    unit = decimal.Decimal(1).scaleb(-scale)

    def fit(value: Any) -> decimal.Decimal:
        if isinstance(value, bool) or not isinstance(value, (int, decimal.Decimal)):
            raise Misfit(value, expected)
        try:
            fitted = context.copy().quantize(decimal.Decimal(value), unit)
        except decimal.DecimalException:
            raise Misfit(value, expected) from None
        if not fitted.is_finite():
            raise Misfit(value, expected)
        return fitted

    return fit


def _fit_date(value: Any) -> datetime.date:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    raise Misfit(value, "a datetime.date")


def _timestamp(zone: datetime.tzinfo) -> Fit:
    def fit(value: Any) -> int:
        if not isinstance(value, datetime.datetime) or value != value:  # pandas.NaT equals nothing
            raise Misfit(value, "a datetime")
        if value.tzinfo is None:
            value = value.replace(tzinfo=zone)
        return int((value - _EPOCH) // _MICROSECOND)

    return fit


def _fit_timestamp_ntz(value: Any) -> int:
    if not isinstance(value, datetime.datetime) or value != value or value.tzinfo is not None:  # pandas.NaT equals nothing
        raise Misfit(value, "a naive datetime")
    return int((value - _NAIVE_EPOCH) // _MICROSECOND)


def _fit_time(value: Any) -> datetime.time:
    if isinstance(value, datetime.time) and value.tzinfo is None:
        return value
    raise Misfit(value, "a naive datetime.time")


def _fit_interval(value: Any) -> datetime.timedelta:
    if isinstance(value, datetime.timedelta) and value == value:  # pandas.NaT equals nothing
        return value
    raise Misfit(value, "a datetime.timedelta")


def _fit_null(value: Any) -> Any:
    raise Misfit(value, "None")


def _fit_variant(value: Any) -> dict[str, bytes]:
    if isinstance(value, T.VariantVal):
        return {"value": bytes(value.value), "metadata": bytes(value.metadata)}
    raise Misfit(value, "a VariantVal")


def _user_defined(kind: T.UserDefinedType, zone: datetime.tzinfo) -> Fit:
    inner = _fit(kind.sqlType(), zone)

    def fit(value: Any) -> Any:
        try:
            stored = kind.serialize(value)
        except Exception as error:
            raise Misfit(value, f"an object that {type(kind).__qualname__} serializes") from error
        return None if stored is None else inner(stored)

    return fit


# ---------------------------------------------------------------------------------------------------- nested values
def _within(path: str, fit: Fit, value: Any, nullable: bool = True) -> Any:
    try:
        if value is None:
            if not nullable:
                raise Misfit(value, "not None")
            return None
        return fit(value)
    except Misfit as misfit:
        misfit.path.insert(0, path)
        raise


def _array(kind: T.ArrayType, zone: datetime.tzinfo) -> Fit:
    element, nullable = _fit(kind.elementType, zone), kind.containsNull

    def fit(value: Any) -> list[Any]:
        if type(value) is not list:
            if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)) or not _is_sequence(value):
                raise Misfit(value, "a list, tuple or one-dimensional array")
            value = list(value)
        return [_within(f"[{position}]", element, item, nullable) for position, item in enumerate(value)]

    return fit


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) or len(getattr(value, "shape", ())) == 1 or type(value).__module__ == "array"


def _map(kind: T.MapType, zone: datetime.tzinfo) -> Fit:
    key, item, nullable = _fit(kind.keyType, zone), _fit(kind.valueType, zone), kind.valueContainsNull

    def fit(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise Misfit(value, "a mapping")
        return [(_within("[key]", key, k, False), _within(f"[{k!r}]", item, v, nullable)) for k, v in value.items()]

    return fit


def _struct(kind: T.StructType, zone: datetime.tzinfo) -> Fit:
    fields = [(field.name, _fit(field.dataType, zone), field.nullable) for field in kind.fields]
    names = {name: position for position, (name, _, _) in enumerate(fields)}

    def fit(value: Any) -> dict[str, Any]:
        values = _by_name(value, names)
        if values is None:
            if not isinstance(value, tuple) or len(value) != len(fields):
                raise Misfit(value, f"a mapping, or a tuple of {len(fields)}")
            values = list(value)
        return {name: _within(name, one, item, nullable) for (name, one, nullable), item in zip(fields, values, strict=True)}

    return fit


def _by_name(value: Any, names: dict[str, int]) -> list[Any] | None:
    """The values of a mapping or named Row in the order of `names`; None if it is neither."""
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, T.Row) and hasattr(value, "__fields__"):
        items = zip(value.__fields__, value, strict=True)  # type: ignore[assignment]
    else:
        return None
    values: list[Any] = [None] * len(names)
    for name, item in items:
        position = names.get(name)
        if position is None:
            raise Misfit(name, f"one of the names {', '.join(names)}")
        values[position] = item
    return values


_SCALARS: dict[type[T.DataType], Fit] = {
    T.BooleanType: _fit_boolean,
    T.ByteType: _integer(-(1 << 7), (1 << 7) - 1, "tinyint"),
    T.ShortType: _integer(-(1 << 15), (1 << 15) - 1, "smallint"),
    T.IntegerType: _integer(-(1 << 31), (1 << 31) - 1, "int"),
    T.LongType: _integer(-(1 << 63), (1 << 63) - 1, "bigint"),
    T.FloatType: _float(True),
    T.DoubleType: _float(False),
    T.StringType: _fit_string,
    T.BinaryType: _fit_binary,
    T.DateType: _fit_date,
    T.TimestampNTZType: _fit_timestamp_ntz,
    T.DayTimeIntervalType: _fit_interval,
    T.NullType: _fit_null,
    T.VariantType: _fit_variant,
}
if hasattr(T, "TimeType"):  # from 4.1 on
    _SCALARS[T.TimeType] = _fit_time


def _fit(kind: T.DataType, zone: datetime.tzinfo) -> Fit:
    """The check for values of a type. It never sees None. TypeError for a type that cannot be a result."""
    scalar = _SCALARS.get(type(kind))
    if scalar is not None:
        return scalar
    if type(kind) is T.TimestampType:
        return _timestamp(zone)
    if isinstance(kind, T.DecimalType):
        return _decimal(kind.precision, kind.scale)
    if isinstance(kind, T.ArrayType):
        return _array(kind, zone)
    if isinstance(kind, T.MapType):
        return _map(kind, zone)
    if isinstance(kind, T.StructType):
        return _struct(kind, zone)
    if isinstance(kind, T.UserDefinedType):
        return _user_defined(kind, zone)
    raise TypeError(f"{kind.simpleString()} cannot be a result type")


# ---------------------------------------------------------------------------------------------------- whole results
class Results:
    """The result schema, ready to check results and to build columns."""

    def __init__(self, schema: T.StructType, zone: datetime.tzinfo) -> None:
        self._names = {field.name: position for position, field in enumerate(schema.fields)}
        self._fits = [(field.name, _fit(field.dataType, zone)) for field in schema.fields]
        self._types = [arrow_type(field.dataType) for field in schema.fields]
        self._single = len(schema.fields) == 1

    def check(self, value: Any, batch: Any = None, index: int = 0) -> Any:
        """What `columns` takes for that result: None, a tuple of clean values, or for a one-column schema the clean value."""
        if value is None:
            return None
        try:
            if self._single:
                return self._check_single(value)
            values = self._split(value)
            return tuple([_within(name, fit, item) for (name, fit), item in zip(self._fits, values, strict=True)])
        except Misfit as misfit:
            _refuse_awaitable(value)
            key = None if batch is None else batch.shown_key(index)
            raise ResultError(f"{misfit} (key {key!r})") from misfit.__cause__

    def check_value(self, value: Any, batch: Any = None, index: int = 0) -> Any:
        """For a one-column schema, where the value is the column's whatever it is."""
        if value is None:
            return None
        name, fit = self._fits[0]
        try:
            return _within(name, fit, value)
        except Misfit as misfit:
            _refuse_awaitable(value)
            key = None if batch is None else batch.shown_key(index)
            raise ResultError(f"{misfit} (key {key!r})") from misfit.__cause__

    def _split(self, value: Any) -> Sequence[Any]:
        try:
            values = _by_name(value, self._names)
        except Misfit as misfit:
            misfit.path = [str(misfit.value)]
            raise
        if values is not None:
            return values
        if isinstance(value, tuple):
            if len(value) == len(self._fits):
                return value
            raise self._misfit(value, f"a tuple of {len(self._fits)}")
        raise self._misfit(value, "a mapping, a Row or a tuple")

    def _misfit(self, value: Any, expected: str) -> Misfit:
        misfit = Misfit(value, expected)
        misfit.path = [", ".join(self._names)]
        return misfit

    def _check_single(self, value: Any) -> Any:
        name, fit = self._fits[0]
        if isinstance(value, tuple):
            if list(getattr(value, "__fields__", [name])) == [name]:
                if len(value) != 1:
                    raise self._misfit(value, "a tuple of 1")
                value = value[0]
        elif isinstance(value, Mapping) and len(value) == 1 and name in value:
            value = value[name]
        return _within(name, fit, value)

    def columns(self, values: list[Any]) -> list[pa.Array]:
        """One column per field, from results that `check` returned."""
        if self._single:
            return [pa.array(values, self._types[0])]
        nothing = (None,) * len(self._types)
        transposed = zip(*[nothing if value is None else value for value in values], strict=True)
        return [pa.array(column, kind) for column, kind in zip(transposed, self._types, strict=True)]


def _refuse_awaitable(value: Any) -> None:
    """The usual reason why a result is of no use: a function that is not `async def` handed out a coroutine."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # or Python warns that it was never awaited
        raise TypeError(f"a function that is not `async def` returned an awaitable ({type(value).__qualname__})") from None


_ARROW: dict[type[T.DataType], pa.DataType] = {
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.StringType: pa.string(),
    T.BinaryType: pa.binary(),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", "UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
    T.DayTimeIntervalType: pa.duration("us"),
    T.NullType: pa.null(),
    # Spark tells a variant from another struct by this mark.
    T.VariantType: pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False, {"variant": "true"})]),
}
if hasattr(T, "TimeType"):
    _ARROW[T.TimeType] = pa.time64("ns")


def arrow_type(kind: T.DataType) -> pa.DataType:
    """The Arrow type that Spark takes for a column of this type, for each that `_fit` knows."""
    if type(kind) in _ARROW:
        return _ARROW[type(kind)]
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if isinstance(kind, T.MapType):
        value = pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull)
        return pa.map_(pa.field("key", arrow_type(kind.keyType), False), value)
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(field.name, arrow_type(field.dataType), field.nullable) for field in kind.fields])
    assert isinstance(kind, T.UserDefinedType)
    return arrow_type(kind.sqlType())


ERROR_TYPE = T.StructType(
    [
        T.StructField("type", T.StringType()),
        T.StructField("message", T.StringType()),
        T.StructField("attempts", T.IntegerType()),
        T.StructField("key", T.StringType()),
    ]
)


# ---------------------------------------------------------------------------------------------------- failures and sizes
MESSAGE_LIMIT = 4_000


class Described(NamedTuple):
    """Why a row has no result, in the fields of the error column (`key` is added where the column is built)."""

    type: str
    message: str
    attempts: int


def describe(error: BaseException, attempts: int) -> Described:
    """The error as text that fits a Spark string: at most 4,000 characters, no lone surrogates, even if `str(error)` itself fails."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except BaseException as inner:
        message = f"<no message: str() of it raised {type(inner).__qualname__}>"
    message = message[:MESSAGE_LIMIT].encode("utf-8", "replace").decode("utf-8")
    return Described(name, message, attempts)


def result_bytes(value: Any) -> int:
    """Roughly the memory of a checked result: that of its text and bytes, and 8 for anything else."""
    if isinstance(value, (str, bytes)):
        return 8 + len(value)
    if isinstance(value, (list, tuple)):
        return 8 + sum(map(result_bytes, value))
    if isinstance(value, dict):
        return 8 + sum(map(result_bytes, value.values()))
    return 8
