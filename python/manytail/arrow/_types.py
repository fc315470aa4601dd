"""Arrow types, and how columns are read: a column is cast to its *stored* type, of which pyarrow makes Python values,
and these are converted. A dictionary-encoded column has the values of its dictionary, an extension type those of its
storage.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyarrow import types

Convert = Callable[[Any], Any]


class PythonType(pa.ExtensionType):  # type: ignore[misc]
    """An Arrow type whose Python values are made by an engine, such as the Rows of Spark. Its columns are stored with
    the Arrow type `storage`.

    to_python converts a value of `storage` to a value of this type. from_python converts what a function returned to a
    value of `storage`; if it raises, the result does not fit, and `expected` says what would fit. pyarrow has only a
    weak reference to a type that is implemented in Python: keep the type until the map has begun.
    """

    def __init__(
        self,
        storage: pa.DataType,
        to_python: Convert | None = None,
        from_python: Convert | None = None,
        expected: str = "",
    ) -> None:
        self.to_python = to_python
        self.from_python = from_python
        self.expected = expected
        super().__init__(storage, "manytail.python")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> PythonType:
        return cls(storage)


# ---------------------------------------------------------------------------------------------------- types of types
_LISTS: dict[int, Callable[[pa.DataType, pa.Field], pa.DataType]] = {
    pa.list_(pa.null()).id: lambda kind, item: pa.list_(item),
    pa.large_list(pa.null()).id: lambda kind, item: pa.large_list(item),
    pa.list_view(pa.null()).id: lambda kind, item: pa.list_view(item),
    pa.large_list_view(pa.null()).id: lambda kind, item: pa.large_list_view(item),
    pa.list_(pa.null(), 1).id: lambda kind, item: pa.list_(item, kind.list_size),
}


def is_list(kind: pa.DataType) -> bool:
    return kind.id in _LISTS


def fields_of(kind: pa.StructType) -> list[pa.Field]:
    """Return the fields of a struct type."""
    return [kind.field(position) for position in range(kind.num_fields)]


Change = Callable[[pa.DataType], pa.DataType | None]


def mapped(kind: pa.DataType, change: Change, nullable: bool = False) -> pa.DataType:
    """The type with the types in it changed: `change` says what one becomes, or None, and then those in it are looked
    at. nullable: what is in a nested type may be null."""
    changed = change(kind)
    if changed is not None:
        return changed

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(mapped(field.type, change, nullable)).with_nullable(nullable or field.nullable)

    if types.is_struct(kind):
        return pa.struct([inner(field) for field in fields_of(kind)])
    if types.is_map(kind):
        return pa.map_(inner(kind.key_field).with_nullable(False), inner(kind.item_field), kind.keys_sorted)
    return _LISTS[kind.id](kind, inner(kind.value_field)) if is_list(kind) else kind


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without extension types and dictionaries in it."""
    return mapped(kind, _plain)


def _plain(kind: pa.DataType) -> pa.DataType | None:
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    return plain_type(kind.value_type) if types.is_dictionary(kind) else None


def column_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column that stores values of type `kind`: it is `kind` with each PythonType replaced by
    its storage type."""
    return mapped(kind, lambda one: column_type(one.storage_type) if isinstance(one, PythonType) else None)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type that a column is cast to before pyarrow makes Python values of it. Instants come as naive datetimes in
    UTC, because there are names of zones, such as GMT+8, that pyarrow does not know. Nanoseconds come as microseconds:
    the cast refuses what would be lost. All may be null: a null struct has nulls in its fields, however they are
    declared, and a cast refuses them."""
    return mapped(plain_type(kind), _stored, nullable=True)


def _stored(kind: pa.DataType) -> pa.DataType | None:
    if types.is_timestamp(kind):
        return pa.timestamp("us" if kind.unit == "ns" else kind.unit)
    return {pa.duration("ns"): pa.duration("us"), pa.time64("ns"): pa.time64("us")}.get(kind)


def recorded_type(kind: pa.DataType) -> pa.DataType:
    """The type in which clean values are read as they were written: times are integers."""
    return mapped(plain_type(kind), _recorded)


def _recorded(kind: pa.DataType) -> pa.DataType | None:
    if not (types.is_timestamp(kind) or types.is_duration(kind) or types.is_time(kind)):
        return None
    return pa.int64() if kind.bit_width == 64 else pa.int32()


# ---------------------------------------------------------------------------------------------------- time zones
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")  # as java.time.ZoneId reads them


@cache
def zone_of(name: str) -> datetime.tzinfo:
    """Return the tzinfo of that name or offset."""
    if name in ("Z", "UTC", "GMT", "UT", "Etc/UTC"):
        return datetime.UTC
    offset = _OFFSET.fullmatch(name)
    if offset is None:
        return ZoneInfo(name)
    sign, hours, minutes, seconds = offset.groups(default="0")
    distance = datetime.timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
    return datetime.timezone(-distance if sign == "-" else distance)


# ---------------------------------------------------------------------------------------------------- reading
def _converter(kind: pa.DataType) -> Convert | None:
    """A function that converts what `to_pylist` of the stored type returns. None: no conversion is needed."""
    if isinstance(kind, PythonType):
        inner, made = _converter(kind.storage_type), kind.to_python
        return inner if made is None else _not_null(made if inner is None else lambda value: made(inner(value)))
    if isinstance(kind, pa.BaseExtensionType):
        return _converter(kind.storage_type)
    if types.is_dictionary(kind):
        return _converter(kind.value_type)
    if types.is_timestamp(kind) and kind.tz is not None:
        name = kind.tz  # a name that Python does not know fails the rows whose values are asked for
        return _not_null(lambda value: value.replace(tzinfo=datetime.UTC).astimezone(zone_of(name)))
    if types.is_struct(kind):
        converted = {field.name: convert for field in fields_of(kind) if (convert := _converter(field.type))}
        return _not_null(lambda value: {**value, **{name: each(value[name]) for name, each in converted.items()}}) \
            if converted else None
    if types.is_map(kind):
        key, item = _converter(kind.key_type) or _same, _converter(kind.item_type) or _same
        return _not_null(dict if key is item is _same else lambda pairs: {key(k): item(v) for k, v in pairs})
    if is_list(kind):
        element = _converter(kind.value_type)
        return None if element is None else _not_null(lambda value: [element(item) for item in value])
    return None


def _same(value: Any) -> Any:
    return value


def _not_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


class _ColumnWithGaps(list[Any]):
    """A converted column with values that Python cannot hold. Reading one of them raises ValueError."""

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        if isinstance(value, _Bad):
            raise ValueError(f"this value cannot be held in Python: {value.error}") from value.error
        return value


class _Bad(NamedTuple):
    """Replaces a value that could not be converted."""

    error: Exception


def column_reader(kind: pa.DataType) -> Callable[[pa.Array], list[Any]]:
    """A function that converts a column of that type to Python values. A value that cannot be converted does not fail
    the others."""
    convert = _converter(kind)

    def whole(column: pa.Array) -> list[Any]:
        stored = stored_type(column.type)
        values = (column if stored == column.type else column.cast(stored)).to_pylist()
        return values if convert is None else [convert(value) for value in values]

    def one(cell: pa.Array) -> Any:
        try:
            return whole(cell)[0]
        except Exception as error:
            return _Bad(error)

    def read(column: pa.Array) -> list[Any]:
        try:
            return whole(column)
        except Exception:
            return _ColumnWithGaps([one(column.slice(index, 1)) for index in range(len(column))])

    return read
