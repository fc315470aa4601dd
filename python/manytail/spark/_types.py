"""Spark's types as Arrow's. Where Python's values are Spark's own (Rows, objects of user-defined types, variants, naive
datetimes in the session's time zone), the type is a PythonType.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from manytail.arrow.engine import CALL, ERROR, PythonType, fields_of, zone_of

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


def session_zone(name: str) -> datetime.tzinfo:
    """The tzinfo for a value of spark.sql.session.timeZone."""
    return zone_of(_SHORT_ZONES.get(name, name))


# ---------------------------------------------------------------------------------------------------- input
# Types that Arrow has as structs, by the mark in a field's metadata. The last two exist from PySpark 4.1 on.
_MARKED: dict[bytes, Callable[[Any], Any]] = {
    b"variant": lambda value: T.VariantVal(value["value"], value["metadata"]),
    b"geometry": lambda value: T.Geometry.fromWKB(value["wkb"], value["srid"]),
    b"geography": lambda value: T.Geography.fromWKB(value["wkb"], value["srid"]),
}


class Views:
    """How columns of the input are seen. It keeps the types that it has made: pyarrow does not."""

    def __init__(self, zone: datetime.tzinfo) -> None:
        self._zone = zone
        self._made: list[PythonType] = []

    def _seen(self, storage: pa.DataType, to_python: Callable[[Any], Any]) -> PythonType:
        self._made.append(PythonType(storage, to_python))
        return self._made[-1]

    def of(self, arrow: pa.DataType, spark: T.DataType | None = None) -> pa.DataType:
        """The type of a column as fn sees it. Only user-defined types need the Spark type."""
        if isinstance(spark, T.UserDefinedType):
            return self._seen(self.of(arrow, spark.sqlType()), spark.deserialize)
        if pa.types.is_timestamp(arrow) and arrow.tz is not None:
            naive = pa.timestamp("us")
            return naive if self._zone is datetime.UTC else self._seen(naive, self._local)
        if pa.types.is_struct(arrow):
            return self._struct(arrow, spark)
        if pa.types.is_map(arrow):
            key, item = (spark.keyType, spark.valueType) if isinstance(spark, T.MapType) else (None, None)
            return pa.map_(self.of(arrow.key_type, key), self.of(arrow.item_type, item))
        if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
            return pa.list_(self.of(arrow.value_type, spark.elementType if isinstance(spark, T.ArrayType) else None))
        return arrow

    def _local(self, value: datetime.datetime) -> datetime.datetime:
        """Naive, in the session's time zone, of naive in UTC."""
        return value.replace(tzinfo=datetime.UTC).astimezone(self._zone).replace(tzinfo=None)

    def _struct(self, arrow: pa.StructType, spark: T.DataType | None) -> PythonType:
        fields = fields_of(arrow)
        marks = {mark for field in fields for mark, marked in (field.metadata or {}).items() if marked == b"true"}
        for mark, made in _MARKED.items():
            if mark in marks:
                return self._seen(arrow, made)
        kinds = [field.dataType for field in spark.fields] if isinstance(spark, T.StructType) else [None] * len(fields)
        names = [field.name for field in fields]
        seen = [field.with_type(self.of(field.type, kind)) for field, kind in zip(fields, kinds, strict=True)]

        def row(value: dict[str, Any]) -> T.Row:
            made = T.Row(*value.values())
            made.__fields__ = names  # as in a collected Row: a list that all rows share
            return made

        return self._seen(pa.struct(seen), row)


# ---------------------------------------------------------------------------------------------------- results
# The metadata tells Spark that the struct is a variant.
_VARIANT = [pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False, {"variant": "true"})]
_LEAVES = {
    "NullType": pa.null(), "BooleanType": pa.bool_(), "ByteType": pa.int8(), "ShortType": pa.int16(),
    "IntegerType": pa.int32(), "LongType": pa.int64(), "FloatType": pa.float32(), "DoubleType": pa.float64(),
    "StringType": pa.string(), "BinaryType": pa.binary(), "DateType": pa.date32(),
    "TimestampType": pa.timestamp("us", "UTC"), "TimestampNTZType": pa.timestamp("us"),
    "TimeType": pa.time64("ns"),  # from PySpark 4.1 on
    "DayTimeIntervalType": pa.duration("us"),
    "VariantType": PythonType(
        pa.struct(_VARIANT), None, lambda value: {"value": bytes(value.value), "metadata": bytes(value.metadata)},
        "a VariantVal",
    ),
}  # fmt: skip


class ResultTypes:
    """The Arrow types of result columns. It keeps the types that it has made: pyarrow does not."""

    def __init__(self) -> None:
        self._made: list[PythonType] = []

    def schema(self, kind: T.StructType) -> pa.Schema:
        return pa.schema([pa.field(each.name, self.of(each.dataType), each.nullable) for each in kind.fields])

    def of(self, kind: T.DataType) -> pa.DataType:
        """The Arrow type that Spark expects for a column of this type. TypeError: the type cannot be a result."""
        if isinstance(kind, T.UserDefinedType):
            expected = f"an object that {type(kind).__qualname__} serializes"
            self._made.append(PythonType(self.of(kind.sqlType()), None, kind.serialize, expected))
            return self._made[-1]
        if type(kind).__name__ in _LEAVES:
            return _LEAVES[type(kind).__name__]
        if isinstance(kind, T.DecimalType):
            return pa.decimal128(kind.precision, kind.scale)
        if isinstance(kind, T.ArrayType):
            return pa.list_(pa.field("element", self.of(kind.elementType), kind.containsNull))
        if isinstance(kind, T.MapType):
            item = pa.field("value", self.of(kind.valueType), kind.valueContainsNull)
            return pa.map_(pa.field("key", self.of(kind.keyType), False), item)
        if isinstance(kind, T.StructType):
            return pa.struct(list(self.schema(kind)))
        raise TypeError(f"{kind.simpleString()} cannot be a result type")


# ---------------------------------------------------------------------------------------------------- columns of ours
_OURS = {pa.string(): T.StringType(), pa.int32(): T.IntegerType(), pa.float64(): T.DoubleType(),
         pa.bool_(): T.BooleanType()}  # fmt: skip
ERROR_TYPE, CALL_TYPE = (
    T.StructType([T.StructField(field.name, _OURS[field.type]) for field in fields_of(arrow)])
    for arrow in (ERROR, CALL)
)
