"""How `remember` records results: each as an Arrow record batch of one row, with types from the result schema.

Results are written as slices of one column, and records are read as one stream. So Arrow converts them, without a
Python call per value. What is read was written by another process and is not trusted: types come from the reader's own
schema, and the data is validated in full.

Instants are recorded as integers, as in clean results (`_results`): Python's datetime cannot hold all of them.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from manytail.mapping._remember import BulkCodec

from ._results import arrow_and_fit

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the end of a stream


class ArrowCodec(BulkCodec):
    """The codec of clean results (`_results`) of one schema."""

    name = "manytail.arrow-1"

    def __init__(self, schema: T.StructType) -> None:
        self.schema = fingerprint(schema)
        single = len(schema.fields) == 1
        arrow, _ = arrow_and_fit(schema.fields[0].dataType if single else schema, datetime.UTC)
        self._schema = pa.schema([pa.field("result", recorded_type(arrow))])
        self._begin = self._schema.serialize().to_pybytes()

    def encode_all(self, results: Sequence[Any]) -> list[bytes]:
        column = pa.array(results, self._schema.field(0).type)
        whole = pa.RecordBatch.from_arrays([column], schema=self._schema)
        return [whole.slice(index, 1).serialize().to_pybytes() for index in range(len(results))]

    def decode_all(self, records: Sequence[bytes]) -> list[Any]:
        try:
            return self._decode(records)
        except Exception:  # at least one of them cannot be read
            return [self._decode_one(record) for record in records]

    def _decode_one(self, record: bytes) -> Any:
        try:
            (result,) = self._decode([record])
        except Exception as error:
            return ValueError(f"remember: the recorded result cannot be read: {error}")
        return result

    def _decode(self, records: Sequence[bytes]) -> list[Any]:
        batches = list(pa.ipc.open_stream(b"".join([self._begin, *records, _END])))
        if [batch.num_rows for batch in batches] != [1] * len(records):
            raise ValueError("a recorded result is not one row")
        table = pa.Table.from_batches(batches, self._schema)
        table.validate(full=True)
        return table.column(0).to_pylist()  # type: ignore[no-any-return]


def fingerprint(schema: T.StructType) -> str:
    """Text that is equal for schemas with equal names and types, whatever their metadata, at any depth."""
    plain = _without_metadata(schema).json().encode()
    return f"{schema.simpleString()[:200]} #{hashlib.blake2b(plain, digest_size=8).hexdigest()}"


def _without_metadata(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.StructType):
        fields = [T.StructField(each.name, _without_metadata(each.dataType), each.nullable) for each in kind]
        return T.StructType(fields)
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_without_metadata(kind.elementType), kind.containsNull)
    if isinstance(kind, T.MapType):
        return T.MapType(_without_metadata(kind.keyType), _without_metadata(kind.valueType), kind.valueContainsNull)
    return kind


def recorded_type(arrow: pa.DataType) -> pa.DataType:
    """The same type with instants as integers."""
    if pa.types.is_timestamp(arrow):
        return pa.int64()
    if pa.types.is_struct(arrow):
        return pa.struct([_recorded_field(arrow.field(position)) for position in range(arrow.num_fields)])
    if pa.types.is_map(arrow):
        return pa.map_(_recorded_field(arrow.key_field), _recorded_field(arrow.item_field))
    if pa.types.is_list(arrow):
        return pa.list_(_recorded_field(arrow.value_field))
    return arrow


def _recorded_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, recorded_type(field.type), field.nullable)
