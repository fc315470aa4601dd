"""How `remember` records results: the codec."""

import pyarrow as pa

from manytail.arrow._recorded import ArrowCodec, fingerprint


def schema(*names: str, **metadata: str) -> pa.Schema:
    return pa.schema([pa.field(name, pa.string(), metadata=metadata) for name in names])


def test_equal_names_and_types_have_equal_fingerprints() -> None:
    assert fingerprint(schema("a", "b")) == fingerprint(schema("a", "b", comment="x"))
    assert fingerprint(schema("a", "b")) != fingerprint(schema("b", "a"))
    assert fingerprint(pa.schema({"a": pa.int64()})) != fingerprint(pa.schema({"a": pa.timestamp("us")}))
    nested = [
        pa.schema({"outer": kind(pa.struct(list(schema("a", **metadata))))})
        for kind in (lambda inner: inner, pa.list_, lambda inner: pa.map_(pa.string(), inner))
        for metadata in ({}, {"comment": "x"})
    ]
    assert [fingerprint(each) for each in nested[::2]] == [fingerprint(each) for each in nested[1::2]]
    assert len({fingerprint(each) for each in nested}) == 3


def test_a_record_of_several_rows_or_of_another_type_is_none() -> None:
    codec = ArrowCodec(schema("a"))
    good = codec.encode_all(["x", None])
    number = pa.RecordBatch.from_pydict({"result": pa.array([1], pa.int64())}).serialize().to_pybytes()
    found = codec.decode_all([good[0], good[0] + good[1], b"", number, good[0][:-8], good[1]])
    assert [found[0], found[-1]] == ["x", None]
    assert [isinstance(one, Exception) for one in found] == [False, True, True, True, True, False]
