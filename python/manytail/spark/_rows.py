"""Rows as a function sees them, read from Arrow batches: a column is converted when a row of the batch is first asked for it, and once for all rows.

Values are those of a collected Row: nested Rows, dicts for maps, lists, naive datetimes in the session's time zone, objects for user-defined types.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    Row,
    StructType,
    UserDefinedType,
    VariantVal,
)

from manytail.mapping._idempotency import encode

Convert = Callable[[Any], Any]

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")  # as java.time.ZoneId reads them


def session_zone(name: str) -> datetime.tzinfo:
    """The tzinfo for a value of spark.sql.session.timeZone."""
    if name in ("Z", "UTC", "GMT", "UT", "Etc/UTC"):
        return datetime.UTC
    offset = _OFFSET.fullmatch(name)
    if offset is None:
        return ZoneInfo(name)
    sign, hours, minutes, seconds = offset.groups(default="0")
    distance = datetime.timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
    return datetime.timezone(-distance if sign == "-" else distance)


# ---------------------------------------------------------------------------------------------------- values
def _value_converter(arrow: pa.DataType, zone: datetime.tzinfo, spark: DataType | None) -> Convert | None:
    """From what `to_pylist` gives to what a Row holds; None where that is the same. The Spark type is only needed for user-defined types."""
    if isinstance(spark, UserDefinedType):
        inner = _value_converter(arrow, zone, spark.sqlType())
        deserialize = spark.deserialize
        return _not_null(deserialize if inner is None else lambda value: deserialize(inner(value)))
    if pa.types.is_timestamp(arrow):
        return None if arrow.tz is None else _not_null(lambda value: value.astimezone(zone).replace(tzinfo=None))
    if pa.types.is_struct(arrow):
        return _not_null(_struct_converter(arrow, zone, spark))
    if pa.types.is_map(arrow):
        return _not_null(_map_converter(arrow, zone, spark))
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        element = _value_converter(arrow.value_type, zone, spark.elementType if isinstance(spark, ArrayType) else None)
        return None if element is None else _not_null(lambda value: [element(item) for item in value])
    return None


def _not_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _struct_converter(arrow: pa.StructType, zone: datetime.tzinfo, spark: DataType | None) -> Convert:
    fields = [arrow.field(position) for position in range(arrow.num_fields)]
    if any((field.metadata or {}).get(b"variant") == b"true" for field in fields):
        return lambda value: VariantVal(value["value"], value["metadata"])
    types = [field.dataType for field in spark.fields] if isinstance(spark, StructType) else [None] * len(fields)
    converters = [_value_converter(field.type, zone, kind) for field, kind in zip(fields, types, strict=True)]
    names = [field.name for field in fields]
    if not any(converters):
        return lambda value: _make_row(names, value.values())
    return lambda value: _make_row(
        names, [item if convert is None else convert(item) for item, convert in zip(value.values(), converters, strict=True)]
    )


def _make_row(names: list[str], values: Iterable[Any]) -> Row:
    row = Row(*values)
    row.__fields__ = names  # as in a collected Row: a list that all rows share
    return row


def _map_converter(arrow: pa.MapType, zone: datetime.tzinfo, spark: DataType | None) -> Convert:
    kinds = (spark.keyType, spark.valueType) if isinstance(spark, MapType) else (None, None)
    key, item = _value_converter(arrow.key_type, zone, kinds[0]), _value_converter(arrow.item_type, zone, kinds[1])
    if key is None and item is None:
        return dict
    return lambda pairs: {(k if key is None else key(k)): (v if item is None else item(v)) for k, v in pairs}


def column_converter(arrow: pa.DataType, zone: datetime.tzinfo, spark: DataType | None = None) -> Callable[[pa.Array], list[Any]]:
    """From an Arrow column to Python values."""
    if pa.types.is_timestamp(arrow) and arrow.tz is not None:
        return lambda column: _local_times(column, zone)
    convert = _value_converter(arrow, zone, spark)
    if convert is None:
        return pa.Array.to_pylist  # type: ignore[no-any-return]
    stored = in_utc(arrow)
    if stored == arrow:
        return lambda column: [convert(value) for value in column.to_pylist()]
    return lambda column: [convert(value) for value in column.cast(stored).to_pylist()]


def in_utc(arrow: pa.DataType) -> pa.DataType:
    """The same type with its instants in UTC: Spark knows names of time zones, such as GMT+8, that pyarrow does not."""
    if pa.types.is_timestamp(arrow):
        return pa.timestamp(arrow.unit, arrow.tz and "UTC")
    if pa.types.is_struct(arrow):
        return pa.struct([_field_in_utc(arrow.field(position)) for position in range(arrow.num_fields)])
    if pa.types.is_map(arrow):
        return pa.map_(arrow.key_field.with_type(in_utc(arrow.key_type)), _field_in_utc(arrow.item_field), arrow.keys_sorted)
    if pa.types.is_list(arrow):
        return pa.list_(_field_in_utc(arrow.value_field))
    if pa.types.is_large_list(arrow):
        return pa.large_list(_field_in_utc(arrow.value_field))
    return arrow


def _field_in_utc(field: pa.Field) -> pa.Field:
    """Nullable: a null struct has nulls in its fields, whatever they are declared as, and a cast refuses them."""
    return field.with_type(in_utc(field.type)).with_nullable(True)


def _local_times(column: pa.Array, zone: datetime.tzinfo) -> list[Any]:
    """By way of UTC: pyarrow need not know the session's zone, and no zone object is made per value."""
    values = column.cast(pa.timestamp("us")).to_pylist()
    if zone is datetime.UTC:
        return values  # type: ignore[no-any-return]
    utc = datetime.UTC
    return [None if value is None else value.replace(tzinfo=utc).astimezone(zone).replace(tzinfo=None) for value in values]


# ---------------------------------------------------------------------------------------------------- rows
class Reader:
    """How to read the batches of one input: made once per task, from the first batch's schema."""

    def __init__(
        self, names: Sequence[str], types: Sequence[pa.DataType], zone: datetime.tzinfo, spark: Sequence[DataType | None] | None = None
    ) -> None:
        self.names = tuple(names)
        self.position = {name: position for position, name in enumerate(names)}
        kinds = spark or [None] * len(types)
        self.converters = [_isolated(column_converter(arrow, zone, kind)) for arrow, kind in zip(types, kinds, strict=True)]


class Columns(dict[str, list[Any]]):
    """The converted columns of one batch, by name; filled as they are asked for."""

    __slots__ = ("batch", "reader")

    def __init__(self, reader: Reader, batch: pa.RecordBatch) -> None:
        super().__init__()
        self.reader = reader
        self.batch = batch

    def __missing__(self, name: str) -> list[Any]:
        position = self.reader.position[name]
        # Two threads may both convert the column; either list will do.
        values = self[name] = self.reader.converters[position](self.batch.column(position))
        return values


class Partial(list[Any]):
    """A converted column with values that Python cannot hold: asking for one of them raises."""

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        if isinstance(value, _Bad):
            raise ValueError(f"this value cannot be held in Python: {value.error}") from value.error
        return value


class _Bad:
    """In the place of a value that could not be converted."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _isolated(convert: Callable[[pa.Array], list[Any]]) -> Callable[[pa.Array], list[Any]]:
    """The same conversion, in which a value that fails is no failure of the others."""

    def one(cell: pa.Array) -> Any:
        try:
            return convert(cell)[0]
        except Exception as error:
            return _Bad(error)

    def isolated(column: pa.Array) -> list[Any]:
        try:
            return convert(column)
        except Exception:
            return Partial([one(column.slice(index, 1)) for index in range(len(column))])

    return isolated


class RowView(Mapping[str, Any]):
    """One input row: a mapping from column names to values, whose columns are attributes too (`row.url`), where no method has that name."""

    __slots__ = ("_columns", "_index")

    def __init__(self, columns: Columns, index: int) -> None:
        self._columns = columns
        self._index = index

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._index]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and name in self._columns.reader.position:
            return self._columns[name][self._index]
        raise AttributeError(f"row has no column {name!r} (columns: {', '.join(self)})")

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.reader.names)

    def __len__(self) -> int:
        return len(self._columns.reader.names)

    def __contains__(self, name: object) -> bool:
        return name in self._columns.reader.position

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        """A dict of the row; `recursive` turns nested Rows into dicts too."""
        values = {name: self._columns[name][self._index] for name in self}
        return {name: _as_dict(value) for name, value in values.items()} if recursive else values

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        """As a plain dict, so that a row can go to another process without its batch."""
        return dict, (self.asDict(),)


def _as_dict(value: Any) -> Any:
    if isinstance(value, Row):
        return value.asDict(True)
    if isinstance(value, list):
        return [_as_dict(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_dict(item) for key, item in value.items()}
    return value


# ---------------------------------------------------------------------------------------------------- keys
def normalise(value: Any) -> Hashable:
    """Equal for values that groupBy holds equal: one NaN, and no negative zero."""
    if isinstance(value, float):
        return _NAN if math.isnan(value) else value + 0.0
    if isinstance(value, bytearray):
        return bytes(value)
    return value  # type: ignore[no-any-return]


_NAN = "NaN", float  # a key of its own, which no value of a key column equals


_COUNTED = {"timestamp": 64, "time64": 64, "duration": 64, "date32": 32}  # types that are counts of something, and their bits


def group_keys(column: pa.Array) -> list[Hashable]:
    """What tells the rows' keys apart. Instants, not local times: the hour that a clock repeats is two keys. Times are told by their numbers, because
    Python cannot hold all of them."""
    bits = _COUNTED.get(str(column.type).partition("[")[0])
    if bits is not None:
        return column.cast(pa.int64() if bits == 64 else pa.int32()).to_pylist()  # type: ignore[no-any-return]
    values = column.to_pylist()
    return [normalise(value) for value in values] if pa.types.is_floating(column.type) else values


# ---------------------------------------------------------------------------------------------------- idempotency keys
def row_digest(columns: Sequence[pa.Array], index: int) -> str:
    """A digest of that row's values, in column order. It depends on the values alone: not on the batch, the session's time zone, or the order of a
    map's entries."""
    return blake2b(b"".join([_encode(column[index]) for column in columns]), digest_size=16).hexdigest()


def _encode(scalar: pa.Scalar) -> bytes:
    """Every value starts with its kind and says how long it is, so that no two rows read alike."""
    if not scalar.is_valid:
        return b"0"
    kind = scalar.type
    if pa.types.is_struct(kind):
        fields = [encode(kind.field(position).name) + _encode(scalar[position]) for position in range(kind.num_fields)]
        return b"r%d:" % len(fields) + b"".join(fields)
    if pa.types.is_map(kind):
        entries = scalar.values
        return b"m%d:" % len(entries) + b"".join(sorted([_encode(entry) for entry in entries]))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return b"l%d:" % len(scalar.values) + b"".join([_encode(element) for element in scalar.values])
    if pa.types.is_temporal(kind):
        count = b"%d" % scalar.value
        return b"%s%d:%s" % (str(kind).partition("[")[0].encode(), len(count), count)
    return encode(scalar.as_py())
