"""Results: from what a function returns to Arrow columns of the result schema.

The worker that got a result checks it, because a result that does not fit is a failure of its row, like an exception.
A result that passes is clean: the columns of an output batch are built from clean values without further checks.

Each Spark type has an Arrow type and a *fit*: a function that takes a value other than None and returns the clean
value, of which pyarrow makes a column, or raises Misfit. A result of several columns is a struct.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
import math
import struct
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import types as T

from manytail import ManytailError

Fit = Callable[[Any], Any]


class ResultError(ManytailError, TypeError):
    """What a function returned does not fit the result schema. The message names the row's key and the column. There is
    no retry."""

    __module__ = "manytail.spark"


class Misfit(Exception):
    """A value that does not fit its type. It becomes a ResultError where key and column are known."""

    def __init__(self, value: Any, expected: str, *path: str) -> None:
        super().__init__(value, expected)
        self.value = value
        self.expected = expected
        self.path = list(path)

    def __str__(self) -> str:
        shown = " ".join(repr(self.value).split())
        if len(shown) > 200:
            shown = shown[:200] + "..."
        path = "".join(part if part.startswith("[") else f".{part}" for part in self.path).removeprefix(".")
        return (
            f"column {path}: {shown} of type {type(self.value).__qualname__} does not fit (expected: {self.expected})"
        )


# ---------------------------------------------------------------------------------------------------- numbers and text
_FLOAT_MAX = struct.unpack(">f", b"\x7f\x7f\xff\xff")[0]


def _instance(value: Any, kinds: type | tuple[type, ...], expected: str) -> Any:
    """The value, if it is of these classes. numpy's scalars count as Python's; a bool is no number."""
    if hasattr(value, "dtype") and not getattr(value, "shape", True):
        value = value.item()
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise Misfit(value, expected)
    return value


def _integer(bits: int, name: str) -> tuple[pa.DataType, Fit]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    expected = f"an int from {low} to {high}, for {name}"

    def fit(value: Any) -> int:
        if type(value) is not int:
            value = int(_instance(value, int, expected))
        if low <= value <= high:
            return value  # type: ignore[no-any-return]
        raise Misfit(value, expected)

    return getattr(pa, f"int{bits}")(), fit


def _fit_double(value: Any) -> float:
    """Ints that a float holds exactly are accepted; strings, decimals and bools are not."""
    if type(value) is float:
        return value
    expected = "a float"
    value = _instance(value, (float, int), expected)
    try:
        found = float(value)
    except OverflowError:
        found = math.nan
    if found == value or value != value:
        return found
    raise Misfit(value, expected)


def _fit_float(value: Any) -> float:
    found = _fit_double(value)
    if math.isfinite(found) and abs(found) > _FLOAT_MAX:
        raise Misfit(value, "a float in the range of 32-bit floats")
    return found


def _fit_string(value: Any) -> str:
    if type(value) is not str:
        value = str.__str__(_instance(value, str, "a str"))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Misfit(value, "a str without lone surrogates") from None
    return value  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------- other leaves
_EPOCH = datetime.datetime(1970, 1, 1)
_UTC_EPOCH = _EPOCH.replace(tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
WHOLE = "in whole microseconds"


def _leaf(
    arrow: pa.DataType, expected: str, kinds: type | tuple[type, ...], made: Fit | None = None, holds: Fit | None = None
) -> tuple[pa.DataType, Fit]:
    """The type, and the fit for values of these classes for which `holds` is true. `made` makes the clean value."""

    def fit(value: Any) -> Any:
        found = _instance(value, kinds, expected)
        try:
            if found == found and (holds is None or holds(found)):  # pandas.NaT and a Decimal NaN equal nothing
                return found if made is None else made(found)
        except decimal.DecimalException:
            raise Misfit(value, expected) from None
        raise Misfit(value, expected)

    return arrow, fit


def _decimal(precision: int, scale: int) -> tuple[pa.DataType, Fit]:
    context = decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow])
    unit = decimal.Decimal(1).scaleb(-scale)

    def rescaled(value: Any) -> decimal.Decimal:
        return context.copy().quantize(decimal.Decimal(value), unit)

    expected = f"a Decimal or int that decimal({precision},{scale}) holds exactly"
    return _leaf(pa.decimal128(precision, scale), expected, (int, decimal.Decimal), rescaled)


def _timestamp(zone: datetime.tzinfo) -> tuple[pa.DataType, Fit]:
    def since_epoch(value: datetime.datetime) -> int:
        return ((value.replace(tzinfo=zone) if value.tzinfo is None else value) - _UTC_EPOCH) // _MICROSECOND

    return _leaf(pa.timestamp("us", "UTC"), f"a datetime {WHOLE}", datetime.datetime, since_epoch, _has_no_nanoseconds)


def _has_no_nanoseconds(value: Any) -> bool:
    """Whether a datetime or timedelta is one of whole microseconds: those of pandas may have nanoseconds."""
    return not (getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0))


def _is_naive(value: Any) -> bool:
    return value.tzinfo is None and _has_no_nanoseconds(value)


def _is_interval(value: Any) -> bool:
    return -(1 << 63) <= value // _MICROSECOND < 1 << 63 and _has_no_nanoseconds(value)


def _since_epoch(value: Any) -> int:
    return (value - _EPOCH) // _MICROSECOND  # type: ignore[no-any-return]


def _is_no_datetime(value: Any) -> bool:
    return not isinstance(value, datetime.datetime)


def _variant(value: Any) -> dict[str, bytes]:
    return {"value": bytes(value.value), "metadata": bytes(value.metadata)}


# The metadata tells Spark that the struct is a variant.
_VARIANT = [pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False, {"variant": "true"})]
_LEAVES: dict[str, tuple[pa.DataType, Fit]] = {
    "NullType": _leaf(pa.null(), "None", ()),
    "BooleanType": _leaf(pa.bool_(), "a bool", bool),
    "ByteType": _integer(8, "tinyint"),
    "ShortType": _integer(16, "smallint"),
    "IntegerType": _integer(32, "int"),
    "LongType": _integer(64, "bigint"),
    "FloatType": (pa.float32(), _fit_float),
    "DoubleType": (pa.float64(), _fit_double),
    "StringType": (pa.string(), _fit_string),
    "BinaryType": _leaf(pa.binary(), "bytes", (bytes, bytearray, memoryview), bytes),
    "DateType": _leaf(pa.date32(), "a datetime.date", datetime.date, None, _is_no_datetime),
    "TimestampNTZType": _leaf(
        pa.timestamp("us"), f"a naive datetime {WHOLE}", datetime.datetime, _since_epoch, _is_naive
    ),
    "TimeType": _leaf(pa.time64("ns"), "a naive datetime.time", datetime.time, None, _is_naive),  # from PySpark 4.1 on
    "DayTimeIntervalType": _leaf(
        pa.duration("us"), f"a datetime.timedelta {WHOLE}, less than 2**63", datetime.timedelta, None, _is_interval
    ),
    "VariantType": _leaf(pa.struct(_VARIANT), "a VariantVal", T.VariantVal, _variant),
}


# ---------------------------------------------------------------------------------------------------- nested values
def _within(path: str, fit: Fit, value: Any, nullable: bool = True) -> Any:
    try:
        if value is None and not nullable:
            raise Misfit(value, "not None")
        return None if value is None else fit(value)
    except Misfit as misfit:
        misfit.path.insert(0, path)
        raise


def _array(element: Fit, nullable: bool) -> Fit:
    def fit(value: Any) -> list[Any]:
        if type(value) is not list:
            if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)) or not _is_sequence(value):
                raise Misfit(value, "a list, tuple or one-dimensional array")
            value = list(value)
        return [_within(f"[{position}]", element, item, nullable) for position, item in enumerate(value)]

    return fit


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) or len(getattr(value, "shape", ())) == 1 or type(value).__module__ == "array"


def _map(key: Fit, item: Fit, nullable: bool) -> Fit:
    def fit(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise Misfit(value, "a mapping")
        return [(_within("[key]", key, k, False), _within(f"[{k!r}]", item, v, nullable)) for k, v in value.items()]

    return fit


def _struct(fields: Sequence[tuple[str, Fit, bool]]) -> Fit:
    names = [name for name, _, _ in fields]
    known = set(names)

    def fit(value: Any) -> dict[str, Any]:
        if isinstance(value, T.Row) and hasattr(value, "__fields__"):
            value = dict(zip(value.__fields__, value, strict=True))
        if isinstance(value, Mapping):
            if not known.issuperset(value):
                other = next(name for name in value if name not in known)
                raise Misfit(other, f"one of the names {', '.join(names)}", str(other))
            return {name: _within(name, one, value.get(name), nullable) for name, one, nullable in fields}
        if not isinstance(value, tuple) or len(value) != len(fields):
            raise Misfit(value, f"a mapping, a Row or a tuple of {len(fields)}")
        return {
            name: _within(name, one, item, nullable) for (name, one, nullable), item in zip(fields, value, strict=True)
        }

    return fit


def _user_defined(kind: T.UserDefinedType, stored: Fit) -> Fit:
    def fit(value: Any) -> Any:
        try:
            serialized = kind.serialize(value)
        except Exception as error:
            raise Misfit(value, f"an object that {type(kind).__qualname__} serializes") from error
        return None if serialized is None else stored(serialized)

    return fit


def arrow_and_fit(kind: T.DataType, zone: datetime.tzinfo) -> tuple[pa.DataType, Fit]:
    """The Arrow type that Spark expects for a column of this type, and the fit. TypeError: the type cannot be a
    result. ValueError: two fields of a struct have one name."""
    if isinstance(kind, T.UserDefinedType):
        arrow, fit = arrow_and_fit(kind.sqlType(), zone)
        return arrow, _user_defined(kind, fit)
    if type(kind).__name__ in _LEAVES:
        return _LEAVES[type(kind).__name__]
    if type(kind) is T.TimestampType:
        return _timestamp(zone)
    if isinstance(kind, T.DecimalType):
        return _decimal(kind.precision, kind.scale)
    if isinstance(kind, T.ArrayType):
        arrow, fit = arrow_and_fit(kind.elementType, zone)
        return pa.list_(pa.field("element", arrow, kind.containsNull)), _array(fit, kind.containsNull)
    if isinstance(kind, T.MapType):
        (key, key_fit), (item, item_fit) = arrow_and_fit(kind.keyType, zone), arrow_and_fit(kind.valueType, zone)
        fields = pa.field("key", key, False), pa.field("value", item, kind.valueContainsNull)
        return pa.map_(*fields), _map(key_fit, item_fit, kind.valueContainsNull)
    if isinstance(kind, T.StructType):
        if len(set(kind.names)) < len(kind.names):
            raise ValueError(f"{kind.simpleString()} has two fields of one name")
        found = [(field.name, field.nullable, *arrow_and_fit(field.dataType, zone)) for field in kind.fields]
        arrow = pa.struct([pa.field(name, arrow, nullable) for name, nullable, arrow, _ in found])
        return arrow, _struct([(name, fit, nullable) for name, nullable, _, fit in found])
    raise TypeError(f"{kind.simpleString()} cannot be a result type")


# ---------------------------------------------------------------------------------------------------- whole results
class Results:
    """The result schema, ready to check results and to build columns.

    `fit` is a faster `check`: what it accepts has the same clean value there. What it refuses, `check` may accept. Of a
    single column of a leaf type it is the fit of the leaf.
    """

    fit: Fit

    def __init__(self, schema: T.StructType, zone: datetime.tzinfo, *, by_value: bool = False) -> None:
        """by_value: the result is always the value of the only column."""
        self._names = [field.name for field in schema.fields]
        self._single = len(self._names) == 1
        self.arrow, self._fit = arrow_and_fit(schema.fields[0].dataType if self._single else schema, zone)
        self._unwraps = self._single and not by_value
        leaf = (
            self._single
            and not pa.types.is_nested(self.arrow)
            and not isinstance(schema.fields[0].dataType, T.UserDefinedType)
        )
        self.fit = self._fit if leaf or not self._unwraps else self._clean

    def check(self, value: Any, shown_key: Callable[[], Any]) -> Any:
        """The clean value of a result. ResultError: it does not fit. TypeError: it is an awaitable."""
        try:
            return self._clean(value)
        except Misfit as misfit:
            _refuse_awaitable(value)
            raise ResultError(f"{misfit} (key {shown_key()!r})") from misfit.__cause__

    def _clean(self, value: Any) -> Any:
        try:
            if self._unwraps:
                value = self._unwrapped(value)
            return None if value is None else self._fit(value)
        except Misfit as misfit:
            if self._single:
                misfit.path.insert(0, self._names[0])
            misfit.path = misfit.path or [", ".join(self._names)]
            raise

    def _unwrapped(self, value: Any) -> Any:
        """The only column's value: of a tuple of one, or of a Row or mapping whose one name is the column's."""
        name = self._names[0]
        if isinstance(value, tuple) and list(getattr(value, "__fields__", [name])) == [name]:
            if len(value) != 1:
                raise Misfit(value, "a tuple of 1")
            return value[0]
        return value[name] if isinstance(value, Mapping) and len(value) == 1 and name in value else value

    def by_name(self, value: Any) -> dict[str, Any]:
        """A clean result as a mapping from columns to clean values."""
        if self._single:
            return {self._names[0]: value}
        return {} if value is None else value

    def columns(self, values: list[Any]) -> list[pa.Array]:
        """One column per field, from clean results."""
        array = pa.array(values, self.arrow)
        return [array] if self._single else array.flatten()


def _refuse_awaitable(value: Any) -> None:
    """TypeError if the result is an awaitable, usually the coroutine of a function that is not `async def`."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # otherwise Python warns that it was never awaited
        raise TypeError(
            f"a function that is not `async def` returned an awaitable ({type(value).__qualname__})"
        ) from None


def result_bytes(value: Any) -> int:
    """The approximate memory of a clean result, in bytes: 8 for each value, and the length of its texts and bytes."""
    if isinstance(value, (str, bytes)):
        return 8 + len(value)
    if isinstance(value, (list, tuple)):
        return 8 + sum(map(result_bytes, value))
    if isinstance(value, dict):
        return 8 + sum(map(result_bytes, value.values()))
    return 8


# ---------------------------------------------------------------------------------------------------- failures
_ERROR_FIELDS = {"type": T.StringType, "message": T.StringType, "attempts": T.IntegerType, "key": T.StringType}
ERROR_TYPE = T.StructType([T.StructField(name, kind()) for name, kind in _ERROR_FIELDS.items()])
MESSAGE_LIMIT = 4_000


class Described(NamedTuple):
    """Why a row has no result: fields of the error column. Its field `key` is added where the column is built."""

    type: str
    message: str
    attempts: int


def describe(error: BaseException, attempts: int) -> Described:
    """The error as text that fits a Spark string: at most 4,000 characters, no lone surrogates, even if `str(error)`
    itself fails."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except BaseException as inner:
        message = f"<no message: str() of it raised {type(inner).__qualname__}>"
    message = message[:MESSAGE_LIMIT].encode("utf-8", "replace").decode("utf-8")
    return Described(name, message, attempts)


def raisable(error: BaseException, add_note: Callable[[BaseException], None]) -> Exception:
    """The exception to fail a task with. SystemExit and the like would end the Python worker, StopIteration cannot
    leave a generator, and some classes refuse a note, such as a frozen dataclass: they are wrapped. What cannot be
    written as UTF-8 (lone surrogates) is replaced: PySpark's worker would fail to report it, and the job would hang."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        with suppress(Exception):
            add_note(error)
            "".join(traceback.format_exception(error)).encode()
            return error
    described = describe(error, 0)
    wrapped = RuntimeError(f"{described.type}: {described.message}")
    add_note(wrapped)
    wrapped.__cause__ = error
    try:
        "".join(traceback.format_exception(wrapped)).encode()
    except Exception:
        wrapped.__cause__ = None  # nor is its context shown
    return wrapped
