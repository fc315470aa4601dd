"""Rows as a function sees them, read from Arrow batches. A column is converted once for all rows of its batch, when one
of them is first asked for it.

Also what tells rows apart, made from whole columns: group keys and idempotency keys.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from manytail.mapping.frames import encode

from ._types import column_reader, fields_of, is_list, plain_type


# ---------------------------------------------------------------------------------------------------- rows
class Reader:
    """How to read the batches of one input. Made once, from the schema of the columns that the function sees."""

    def __init__(self, schema: pa.Schema) -> None:
        self.names = tuple(schema.names)
        self.position = {name: position for position, name in enumerate(schema.names)}
        self.columns = [column_reader(kind) for kind in schema.types]


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
    """One input row: a mapping from column names to values. Columns are also attributes (`row.url`), unless a method
    has the same name."""

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
        """Return the row as a dict; `recursive` also turns nested Rows (in Spark) into dicts."""
        return {name: _without_rows(value) if recursive else value for name, value in self.items()}

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as a plain dict, so that a row can go to another process without its batch."""
        return dict, (self.asDict(),)


def _without_rows(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return value.asDict(True)
    if isinstance(value, dict):
        return {key: _without_rows(item) for key, item in value.items()}
    return [_without_rows(item) for item in value] if isinstance(value, list) else value


# ---------------------------------------------------------------------------------------------------- keys
def normalise(value: Any) -> Hashable:
    """A key that is equal for values that groupBy treats as equal: all NaNs are equal, and -0.0 equals 0.0."""
    if isinstance(value, float):
        return NAN if math.isnan(value) else value + 0.0
    if isinstance(value, bytearray):
        return bytes(value)
    return value  # type: ignore[no-any-return]


NAN = ("NaN",)  # the key of NaN: no value of a key column is a tuple


def plain(column: pa.Array) -> pa.Array:
    """The column without dictionaries and extension types."""
    kind = plain_type(column.type)
    return column if kind == column.type else column.cast(kind)


def group_keys(column: pa.Array) -> list[Hashable]:
    """A value for each row, equal for rows of one key. Times are compared as integers: Python cannot hold all of them.
    They are instants, not local times: 2:30 before and after the clock is set back are two keys."""
    column = plain(column)
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
    """A digest of that row's values, in column order. It depends only on the values: not on the batch, a time zone, or
    the order of a map's entries."""
    (digest,) = row_digests([column.slice(index, 1) for column in columns])
    return digest


def row_digests(columns: Sequence[pa.Array]) -> list[str]:
    """`row_digest` of all rows. Columns of simple types are converted as a whole, which is faster."""
    encoded = [_encode_column(column) for column in columns]
    return [blake2b(b"".join(values), digest_size=16).hexdigest() for values in zip(*encoded, strict=True)]


def _encode_column(column: pa.Array) -> list[bytes]:
    column = plain(column)
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
        fields = [encode(field.name) + _encode(scalar[position]) for position, field in enumerate(fields_of(kind))]
        return b"r%d:" % len(fields) + b"".join(fields)
    if pa.types.is_map(kind):
        entries = scalar.values
        return b"m%d:" % len(entries) + b"".join(sorted([_encode(entry) for entry in entries]))
    if is_list(kind):
        return b"l%d:" % len(scalar.values) + b"".join([_encode(element) for element in scalar.values])
    if pa.types.is_temporal(kind):
        count = b"%d" % scalar.value
        return b"%s%d:%s" % (str(kind).partition("[")[0].encode(), len(count), count)
    return encode(_value(scalar))
