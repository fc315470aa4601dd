"""How `remember` records results: each as an Arrow record batch of one row, with types from the result schema.

Results are written as slices of one column, and records are read as one stream. So Arrow converts them, without a
Python call per value. What is read was written by another process and is not trusted: types come from the reader's own
schema, and the data is validated in full.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from manytail.mapping.frames import BulkCodec

from ._types import plain_type, recorded_type

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the end of a stream


class ArrowCodec(BulkCodec):
    """The codec of clean results (`_fits`) of one schema."""

    name = "manytail.arrow-2"

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = fingerprint(schema)
        kind = schema.field(0).type if len(schema) == 1 else pa.struct(list(schema))
        self._schema = pa.schema([pa.field("result", recorded_type(kind))])
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


def fingerprint(schema: pa.Schema) -> str:
    """Text that is equal for schemas with equal names and types, whatever their metadata, at any depth."""
    text = str(plain_type(pa.struct(list(schema))))
    return f"{text[:200]} #{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
