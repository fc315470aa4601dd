"""Rows as a function sees them, read from Arrow batches. A column is converted once for all rows of its batch, when one
of them is first asked for it.

Values are those of a collected Row: nested Rows, dicts for maps, lists, naive datetimes in the session's time zone,
objects for user-defined types.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructType, UserDefinedType, VariantVal

from manytail.mapping._idempotency import encode

Convert = Callable[[Any], Any]

# The short names that Spark takes for session.timeZone (java.time.ZoneId.SHORT_IDS), and the IANA database lacks.
_SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")  # as java.time.ZoneId reads them


def session_zone(name: str) -> datetime.tzinfo:
    """The tzinfo for a value of spark.sql.session.timeZone."""
    if name in ("Z", "UTC", "GMT", "UT", "Etc/UTC"):
        return datetime.UTC
    offset = _OFFSET.fullmatch(name)
    if offset is None:
        return ZoneInfo(_SHORT_ZONES.get(name, name))
    sign, hours, minutes, seconds = offset.groups(default="0")
    distance = datetime.timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
    return datetime.timezone(-distance if sign == "-" else distance)


# ---------------------------------------------------------------------------------------------------- values
def _converter(arrow: pa.DataType, zone: datetime.tzinfo, spark: DataType | None) -> Convert | None:
    """A function that converts what `to_pylist` returns to a value of a Row. None: no conversion is needed. Instants
    come as naive datetimes in UTC. Only user-defined types need the Spark type."""
    if isinstance(spark, UserDefinedType):
        inner = _converter(arrow, zone, spark.sqlType())
        deserialize = spark.deserialize
        return _not_null(deserialize if inner is None else lambda value: deserialize(inner(value)))
    if pa.types.is_timestamp(arrow) and arrow.tz is not None and zone is not datetime.UTC:
        return _not_null(lambda value: value.replace(tzinfo=datetime.UTC).astimezone(zone).replace(tzinfo=None))
    if pa.types.is_struct(arrow):
        return _not_null(_struct_converter(arrow, zone, spark))
    if pa.types.is_map(arrow):
        kinds = (spark.keyType, spark.valueType) if isinstance(spark, MapType) else (None, None)
        key, item = (
            _converter(arrow.key_type, zone, kinds[0]) or _same,
            _converter(arrow.item_type, zone, kinds[1]) or _same,
        )
        return _not_null(dict if key is item is _same else lambda pairs: {key(k): item(v) for k, v in pairs})
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        element = _converter(arrow.value_type, zone, spark.elementType if isinstance(spark, ArrayType) else None)
        return None if element is None else _not_null(lambda value: [element(item) for item in value])
    return None


def _same(value: Any) -> Any:
    return value


def _not_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


# Types that Arrow has as structs, by the mark in a field's metadata. The last two exist from PySpark 4.1 on.
_MARKED: dict[bytes, Convert] = {
    b"variant": lambda value: VariantVal(value["value"], value["metadata"]),
    b"geometry": lambda value: types.Geometry.fromWKB(value["wkb"], value["srid"]),
    b"geography": lambda value: types.Geography.fromWKB(value["wkb"], value["srid"]),
}


def _struct_converter(arrow: pa.StructType, zone: datetime.tzinfo, spark: DataType | None) -> Convert:
    fields = [arrow.field(position) for position in range(arrow.num_fields)]
    marks = {mark for field in fields for mark, marked in (field.metadata or {}).items() if marked == b"true"}
    for mark, made in _MARKED.items():
        if mark in marks:
            return made
    kinds = [field.dataType for field in spark.fields] if isinstance(spark, StructType) else [None] * len(fields)
    converters = [_converter(field.type, zone, kind) or _same for field, kind in zip(fields, kinds, strict=True)]
    names = [field.name for field in fields]

    return lambda value: _row(names, [convert(item) for item, convert in zip(value.values(), converters, strict=True)])


def _row(names: list[str], values: Iterable[Any]) -> Row:
    row = Row(*values)
    row.__fields__ = names  # as in a collected Row: a list that all rows share
    return row


def _naive(arrow: pa.DataType) -> pa.DataType:
    """The same type with instants without a time zone: Spark knows zone names, such as GMT+8, that pyarrow does
    not."""
    if pa.types.is_timestamp(arrow):
        return pa.timestamp(arrow.unit)
    if pa.types.is_struct(arrow):
        return pa.struct([_naive_field(arrow.field(position)) for position in range(arrow.num_fields)])
    if pa.types.is_map(arrow):
        return pa.map_(
            arrow.key_field.with_type(_naive(arrow.key_type)), _naive_field(arrow.item_field), arrow.keys_sorted
        )
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return (pa.list_ if pa.types.is_list(arrow) else pa.large_list)(_naive_field(arrow.value_field))
    return arrow


def _naive_field(field: pa.Field) -> pa.Field:
    """Nullable: a null struct has nulls in its fields, however they are declared, and a cast refuses them."""
    return field.with_type(_naive(field.type)).with_nullable(True)


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


def column_reader(
    arrow: pa.DataType, zone: datetime.tzinfo, spark: DataType | None = None
) -> Callable[[pa.Array], list[Any]]:
    """A function that converts an Arrow column to Python values. A value that cannot be converted does not fail the
    others."""
    convert = _converter(arrow, zone, spark)
    stored = _naive(arrow)

    def whole(column: pa.Array) -> list[Any]:
        values = (column if stored == arrow else column.cast(stored)).to_pylist()
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


# ---------------------------------------------------------------------------------------------------- rows
class Reader:
    """How to read the batches of one input. Made once per task, from the first batch's schema."""

    def __init__(
        self,
        names: Sequence[str],
        types: Sequence[pa.DataType],
        zone: datetime.tzinfo,
        spark: Sequence[DataType | None] | None = None,
    ) -> None:
        self.names = tuple(names)
        self.position = {name: position for position, name in enumerate(names)}
        kinds = spark or [None] * len(types)
        self.columns = [column_reader(arrow, zone, kind) for arrow, kind in zip(types, kinds, strict=True)]


class Columns(dict[str, list[Any]]):
    """The converted columns of one batch, by name. Each is filled on first use."""

    __slots__ = ("batch", "reader")

    def __init__(self, reader: Reader, batch: pa.RecordBatch) -> None:
        super().__init__()
        self.reader = reader
        self.batch = batch

    def __missing__(self, name: str) -> list[Any]:
        position = self.reader.position[name]
        # Two threads may both convert the column; either list is right.
        values = self[name] = self.reader.columns[position](self.batch.column(position))
        return values


class RowView(Mapping[str, Any]):
    """One input row: a mapping from column names to values. Columns are attributes too (`row.url`), unless a method
    has that name."""

    # Private names: a column may be called `_index`, and its attribute must be the column.
    __slots__ = ("__columns", "__index")

    def __init__(self, columns: Columns, index: int) -> None:
        self.__columns = columns
        self.__index = index

    def __getitem__(self, name: str) -> Any:
        return self.__columns[name][self.__index]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and name in self.__columns.reader.position:
            return self.__columns[name][self.__index]
        raise AttributeError(f"row has no column {name!r} (columns: {', '.join(self)})")

    def __iter__(self) -> Iterator[str]:
        return iter(self.__columns.reader.names)

    def __len__(self) -> int:
        return len(self.__columns.reader.names)

    def __contains__(self, name: object) -> bool:
        return name in self.__columns.reader.position

    def asDict(self, recursive: bool = False) -> dict[str, Any]:
        """A dict of the row; `recursive` turns nested Rows into dicts too."""
        return _row(list(self), self.values()).asDict(recursive)

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as a plain dict, so that a row can go to another process without its batch."""
        return dict, (self.asDict(),)


# ---------------------------------------------------------------------------------------------------- keys
def normalise(value: Any) -> Hashable:
    """A key that is equal for values that groupBy treats as equal: all NaNs are equal, and -0.0 equals 0.0."""
    if isinstance(value, float):
        return _NAN if math.isnan(value) else value + 0.0
    if isinstance(value, bytearray):
        return bytes(value)
    return value  # type: ignore[no-any-return]


_NAN = ("NaN",)  # the key of NaN: no value of a key column is a tuple


def group_keys(column: pa.Array) -> list[Hashable]:
    """A value for each row, equal for rows of one key. Times are compared as integers: Python cannot hold all of them.
    They are instants, not local times: 2:30 before and after the clock is set back are two keys."""
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    values = _values(column)
    return [normalise(value) for value in values] if pa.types.is_floating(kind) else values


def _values(column: pa.Array) -> list[Any]:
    """The values of a column of a simple type. A string of Spark may hold bytes that are not UTF-8: then its bytes."""
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes()


# ---------------------------------------------------------------------------------------------------- idempotency keys
def row_digest(columns: Sequence[pa.Array], index: int) -> str:
    """A digest of that row's values, in column order. It depends only on the values: not on the batch, the session's
    time zone, or the order of a map's entries."""
    return blake2b(b"".join([_encode(column[index]) for column in columns]), digest_size=16).hexdigest()


def row_digests(columns: Sequence[pa.Array]) -> list[str]:
    """`row_digest` of all rows. Columns of simple types are converted as a whole, which is faster."""
    encoded = [_encode_column(column) for column in columns]
    return [blake2b(b"".join(values), digest_size=16).hexdigest() for values in zip(*encoded, strict=True)]


def _encode_column(column: pa.Array) -> list[bytes]:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return [encode(value) for value in _values(column)]
    return [_encode(column[index]) for index in range(len(column))]


def _encode(scalar: pa.Scalar) -> bytes:
    """Every encoded value starts with its kind and its length, so that no two rows have the same encoding."""
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
    return encode(_value(scalar))
