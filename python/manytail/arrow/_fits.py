"""Which Python values fit an Arrow type.

The *fit* of a type takes a value other than None and returns the clean value, of which pyarrow makes a column, or
raises Misfit. Times are clean as integers: Python's datetime cannot hold all of them.
"""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from ._types import PythonType, fields_of, is_list

Fit = Callable[[Any], Any]


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


# ---------------------------------------------------------------------------------------------------- numbers
_LARGEST = {16: 65_504.0, 32: struct.unpack(">f", b"\x7f\x7f\xff\xff")[0]}  # of floats with so many bits


def _instance(value: Any, kinds: type | tuple[type, ...], expected: str) -> Any:
    """The value, if it is of these classes. numpy's scalars count as Python's; a bool is no number."""
    if hasattr(value, "dtype") and not getattr(value, "shape", True):
        value = value.item()
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise Misfit(value, expected)
    return value


def _integer(kind: pa.DataType) -> Fit:
    bits = kind.bit_width
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if types.is_signed_integer(kind) else (0, (1 << bits) - 1)
    expected = f"an int from {low} to {high}, for {kind}"

    def fit(value: Any) -> int:
        if type(value) is not int:
            value = int(_instance(value, int, expected))
        if low <= value <= high:
            return value  # type: ignore[no-any-return]
        raise Misfit(value, expected)

    return fit


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


def _floating(kind: pa.DataType) -> Fit:
    if kind.bit_width == 64:
        return _fit_double
    largest, expected = _LARGEST[kind.bit_width], f"a float in the range of {kind.bit_width}-bit floats"

    def fit(value: Any) -> float:
        found = _fit_double(value)
        if math.isfinite(found) and abs(found) > largest:
            raise Misfit(value, expected)
        return found

    return fit


def _decimal(kind: pa.DataType) -> Fit:
    context = decimal.Context(prec=kind.precision, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow])
    unit = decimal.Decimal(1).scaleb(-kind.scale)

    def rescaled(value: Any) -> decimal.Decimal:
        return context.copy().quantize(decimal.Decimal(value), unit)

    expected = f"a Decimal or int that decimal({kind.precision},{kind.scale}) holds exactly"
    return _leaf(expected, (int, decimal.Decimal), rescaled)


# ---------------------------------------------------------------------------------------------------- other leaves
def _leaf(expected: str, kinds: type | tuple[type, ...], made: Fit | None = None, holds: Fit | None = None) -> Fit:
    """The fit for values of these classes for which `holds` is true. `made` makes the clean value; None: there is
    none."""

    def fit(value: Any) -> Any:
        found = _instance(value, kinds, expected)
        try:
            if found == found and (holds is None or holds(found)):  # pandas.NaT and a Decimal NaN equal nothing
                clean = found if made is None else made(found)
                if clean is not None:
                    return clean
        except decimal.DecimalException:
            pass
        raise Misfit(value, expected)

    return fit


def _fit_string(value: Any) -> str:
    if type(value) is not str:
        value = str.__str__(_instance(value, str, "a str"))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Misfit(value, "a str without lone surrogates") from None
    return value  # type: ignore[no-any-return]


def _binary(kind: pa.DataType) -> Fit:
    width = kind.byte_width if types.is_fixed_size_binary(kind) else None
    expected = "bytes" if width is None else f"{width} bytes"
    return _leaf(
        expected,
        (bytes, bytearray, memoryview),
        bytes,
        None if width is None else lambda value: memoryview(value).nbytes == width,
    )


_EPOCH = datetime.datetime(1970, 1, 1)
_UTC_EPOCH = _EPOCH.replace(tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_UNITS = {"s": (1_000_000_000, "seconds"), "ms": (1_000_000, "milliseconds"), "us": (1_000, "microseconds"),
          "ns": (1, "nanoseconds")}  # fmt: skip


def _counted(unit: str, expected: str, kinds: type, nanoseconds: Fit, holds: Fit | None = None) -> Fit:
    """The fit for times that are a whole number of that unit: clean is the number."""
    length, name = _UNITS[unit]

    def count(value: Any) -> int | None:
        found, rest = divmod(nanoseconds(value), length)
        return None if rest or not -(1 << 63) <= found < 1 << 63 else found

    return _leaf(f"{expected} in whole {name}", kinds, count, holds)


def _nanoseconds(value: Any) -> int:
    """Of a timedelta. Those of pandas may have nanoseconds."""
    return (value // _MICROSECOND) * 1_000 + getattr(value, "nanoseconds", 0)  # type: ignore[no-any-return]


def _timestamp(kind: pa.TimestampType, zone: datetime.tzinfo) -> Fit:
    """zone: of naive datetimes, if the type has one."""

    def aware(value: Any) -> int:
        since = (value.replace(tzinfo=zone) if value.tzinfo is None else value) - _UTC_EPOCH
        return (since // _MICROSECOND) * 1_000 + getattr(value, "nanosecond", 0)  # type: ignore[no-any-return]

    def naive(value: Any) -> int:
        return ((value - _EPOCH) // _MICROSECOND) * 1_000 + getattr(value, "nanosecond", 0)  # type: ignore[no-any-return]

    if kind.tz is None:
        return _counted(kind.unit, "a naive datetime", datetime.datetime, naive, _is_naive)
    return _counted(kind.unit, "a datetime", datetime.datetime, aware)


def _is_naive(value: Any) -> bool:
    return value.tzinfo is None


def _of_the_day(value: datetime.time) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return (seconds * 1_000_000 + value.microsecond) * 1_000


def _is_no_datetime(value: Any) -> bool:
    return not isinstance(value, datetime.datetime)


# ---------------------------------------------------------------------------------------------------- nested values
def _within(path: str, fit: Fit, value: Any, nullable: bool = True) -> Any:
    try:
        if value is None and not nullable:
            raise Misfit(value, "not None")
        return None if value is None else fit(value)
    except Misfit as misfit:
        misfit.path.insert(0, path)
        raise


def _list(kind: pa.DataType, zone: datetime.tzinfo) -> Fit:
    element, nullable = fit_of(kind.value_type, zone), kind.value_field.nullable
    length = kind.list_size if types.is_fixed_size_list(kind) else None
    expected = "a list, tuple or one-dimensional array" + ("" if length is None else f" of {length}")

    def fit(value: Any) -> list[Any]:
        if type(value) is not list:
            if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)) or not _is_sequence(value):
                raise Misfit(value, expected)
            value = list(value)
        if length is not None and len(value) != length:
            raise Misfit(value, expected)
        return [_within(f"[{position}]", element, item, nullable) for position, item in enumerate(value)]

    return fit


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) or len(getattr(value, "shape", ())) == 1 or type(value).__module__ == "array"


def _map(kind: pa.MapType, zone: datetime.tzinfo) -> Fit:
    key, item, nullable = fit_of(kind.key_type, zone), fit_of(kind.item_type, zone), kind.item_field.nullable

    def fit(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise Misfit(value, "a mapping")
        return [(_within("[key]", key, k, False), _within(f"[{k!r}]", item, v, nullable)) for k, v in value.items()]

    return fit


def struct_fit(columns: Sequence[pa.Field], zone: datetime.tzinfo) -> Fit:
    """The fit for values of several fields. ValueError: two have one name."""
    names = [field.name for field in columns]
    known = set(names)
    if len(known) < len(names):
        raise ValueError(f"{pa.struct(columns)} has two fields of one name")
    fields = [(field.name, fit_of(field.type, zone), field.nullable) for field in columns]

    def fit(value: Any) -> dict[str, Any]:
        if isinstance(value, tuple):
            names_of = getattr(value, "__fields__", names)  # of a Row of Spark
            if len(value) != len(names_of):
                raise Misfit(value, f"a mapping, a Row or a tuple of {len(fields)}")
            value = dict(zip(names_of, value, strict=True))
        elif not isinstance(value, (dict, Mapping)):  # a dict is found faster by its own class
            raise Misfit(value, f"a mapping, a Row or a tuple of {len(fields)}")
        if not known.issuperset(value):
            other = next(name for name in value if name not in known)
            raise Misfit(other, f"one of the names {', '.join(names)}", str(other))
        clean, get, name = {}, value.get, ""
        try:  # `_within` of each field. In one loop: a call per field would take as long as most fits
            for name, one, nullable in fields:
                if (item := get(name)) is not None:
                    clean[name] = one(item)
                elif nullable:
                    clean[name] = None
                else:
                    raise Misfit(None, "not None")
        except Misfit as misfit:
            misfit.path.insert(0, name)
            raise
        return clean

    return fit


def _python(kind: PythonType, zone: datetime.tzinfo) -> Fit:
    stored, made = fit_of(kind.storage_type, zone), kind.from_python
    if made is None:
        return stored

    def fit(value: Any) -> Any:
        try:
            found = made(value)
        except Exception as error:
            raise Misfit(value, kind.expected) from error
        return None if found is None else stored(found)

    return fit


# ---------------------------------------------------------------------------------------------------- all types
def fit_of(kind: pa.DataType, zone: datetime.tzinfo) -> Fit:
    """The fit of a type. zone: of naive datetimes for a type with a time zone. TypeError: it cannot be a result.
    ValueError: two fields of a struct have one name."""
    if isinstance(kind, PythonType):
        return _python(kind, zone)
    if isinstance(kind, pa.BaseExtensionType):
        return fit_of(kind.storage_type, zone)
    if types.is_dictionary(kind):
        return fit_of(kind.value_type, zone)
    if types.is_timestamp(kind):
        return _timestamp(kind, zone)
    if types.is_duration(kind):
        return _counted(kind.unit, "a datetime.timedelta, less than 2**63,", datetime.timedelta, _nanoseconds)
    if types.is_time(kind):
        return _counted(kind.unit, "a naive datetime.time", datetime.time, _of_the_day, _is_naive)
    if types.is_map(kind):
        return _map(kind, zone)
    if is_list(kind):
        return _list(kind, zone)
    if types.is_struct(kind):
        return struct_fit(fields_of(kind), zone)
    for of_kind, made in _LEAVES:
        if of_kind(kind):
            return made(kind)
    raise TypeError(f"{kind} cannot be a result type")


_LEAVES: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Fit]]] = [
    (types.is_null, lambda kind: _leaf("None", ())),
    (types.is_boolean, lambda kind: _leaf("a bool", bool)),
    (types.is_integer, _integer),
    (types.is_floating, _floating),
    (types.is_decimal, _decimal),
    (types.is_date, lambda kind: _leaf("a datetime.date", datetime.date, None, _is_no_datetime)),
    (types.is_interval, lambda kind: _leaf("a pyarrow.MonthDayNano", pa.MonthDayNano)),
    *(
        (of_kind, lambda kind: _fit_string)
        for of_kind in (types.is_string, types.is_large_string, types.is_string_view)
    ),
    *(
        (of_kind, _binary)
        for of_kind in (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    ),
]
