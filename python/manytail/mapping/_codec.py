"""The default codec of remembered results: bytes for values of a few types, read back exactly.

Types: None, bool, int, float, str, bytes, date, time, datetime, timedelta, Decimal, UUID, tuple, list, dict, and
NamedTuples and dataclasses of these; no subclasses. A value is one byte for its type, then its data; data of variable
length starts with the length, in four bytes. A time zone is a `datetime.timezone` or a `zoneinfo.ZoneInfo`.

Reading is safe with any bytes: it unpickles nothing, imports nothing, and calls no constructor of a user's class. The
class of a NamedTuple or dataclass is named by its module and qualified name. It must be in a module that is imported
already; its fields are set one by one. Data that ends early, has bytes left over or has another form is a ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from struct import Struct
from struct import error as StructError
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo

from ._classes import class_of, extras, foreign_base, found_in, module_of

NAME = "manytail-1"  # stored with the name of a Shared: another encoding needs another name

_LENGTH = Struct(">I")
_FLOAT = Struct(">d")
_DATE = Struct(">HBB")
_TIME = Struct(">BBBIB")
_DELTA = Struct(">iII")
_LONGEST = 1 << 28  # bytes of a result: far below what databases accept in one value

_Write = Callable[[bytes], None]


def encode(value: Any) -> bytes:
    """The bytes of a value. TypeError: a type not named above. ValueError: nested too deeply, or over 256 MiB."""
    parts: list[bytes] = []
    try:
        _write(value, parts.append)
    except RecursionError:
        raise ValueError("codec: a result that contains itself, or is nested too deeply") from None
    data = b"".join(parts)
    if len(data) > _LONGEST:
        raise ValueError(f"codec: a result of {len(data)} bytes (expected: at most {_LONGEST})")
    return data


def decode(data: bytes) -> Any:
    """The value of these bytes. ValueError: they are not from `encode`, or a class is missing or has other fields."""
    reader = _Reader(data)
    try:
        value = reader.value()
    except (
        StructError,
        LookupError,
        ArithmeticError,
        RecursionError,
        TypeError,
        AttributeError,
        UnicodeError,
    ) as error:
        raise ValueError(f"codec: a recorded result cannot be read: {type(error).__name__}") from error
    if reader.at != len(data):
        raise ValueError("codec: a recorded result has extra bytes at its end")
    return value


# ---------------------------------------------------------------------------------------------------- writing
def _write(value: Any, write: _Write) -> None:
    writer = _WRITERS.get(type(value))
    if writer is not None:
        writer(value, write)
    elif issubclass(type(value), tuple) and hasattr(value, "_fields"):
        _write_record(b"N", value, type(value)._fields, value, write)
    elif is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in fields(value))
        _write_record(b"C", value, names, [getattr(value, name) for name in names], write)
    else:
        raise TypeError(
            f"codec: a result of type {type(value).__qualname__} (expected: None, bool, int, float, str, bytes, dates, "
            "times, Decimal, UUID, and "
            "tuples, lists, dicts, NamedTuples and dataclasses of them)"
        )


def _sized(tag: bytes, data: bytes, write: _Write) -> None:
    write(tag + _LENGTH.pack(len(data)) + data)


def _write_int(value: int, write: _Write) -> None:
    _sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True), write)


def _write_text(value: str, write: _Write) -> None:
    _sized(b"s", value.encode("utf-8", "surrogatepass"), write)


def _items_writer(tag: bytes) -> Callable[[Any, _Write], None]:
    def write_items(value: Any, write: _Write) -> None:
        write(tag + _LENGTH.pack(len(value)))
        for item in value:
            _write(item, write)

    return write_items


def _write_dict(value: dict[Any, Any], write: _Write) -> None:
    write(b"m" + _LENGTH.pack(len(value)))
    for key, item in value.items():
        _write(key, write)
        _write(item, write)


def _write_zone(zone: Any, write: _Write) -> None:
    if zone is None:
        write(b"0")
    elif type(zone) is timezone:
        write(b"o")
        _write(zone.__getinitargs__(), write)  # type: ignore[attr-defined]
    elif type(zone) is ZoneInfo and zone.key is not None:
        write(b"z")
        _write_text(zone.key, write)
    else:
        raise TypeError(
            f"codec: a time zone of type {type(zone).__qualname__} (expected: datetime.timezone or zoneinfo.ZoneInfo)"
        )


def _clock(value: time | datetime) -> bytes:
    return _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold)


def _write_time(value: time, write: _Write) -> None:
    write(b"h" + _clock(value))
    _write_zone(value.tzinfo, write)


def _write_datetime(value: datetime, write: _Write) -> None:
    write(b"w" + _DATE.pack(value.year, value.month, value.day) + _clock(value))
    _write_zone(value.tzinfo, write)


def _write_record(tag: bytes, value: Any, names: tuple[str, ...], values: Any, write: _Write) -> None:
    kind = type(value)
    if kind not in _FOUND:
        if found_in(kind.__module__, kind.__qualname__) is not kind:
            raise TypeError(f"codec: a result of class {kind.__qualname__} (expected: a class at the top of a module)")
        if (base := foreign_base(kind)) is not None:
            raise TypeError(
                f"codec: a result of class {kind.__qualname__}, which derives from {base.__qualname__}, whose content "
                "is in no field (expected: a dataclass or NamedTuple with that content in a field)"
            )
        _FOUND[kind] = None
    if extras(value, names):
        raise TypeError(f"codec: a {kind.__qualname__} with attributes that are not fields")
    write(tag)
    _write((module_of(kind), kind.__qualname__, names), write)
    for item in values:
        _write(item, write)


_FOUND: WeakKeyDictionary[type, None] = WeakKeyDictionary()  # classes whose values can be written and read


_WRITERS: dict[type, Callable[[Any, _Write], None]] = {
    type(None): lambda value, write: write(b"0"),
    bool: lambda value, write: write(b"t" if value else b"f"),
    int: _write_int,
    float: lambda value, write: write(b"d" + _FLOAT.pack(value)),
    str: _write_text,
    bytes: lambda value, write: _sized(b"b", value, write),
    date: lambda value, write: write(b"a" + _DATE.pack(value.year, value.month, value.day)),
    time: _write_time,
    datetime: _write_datetime,
    timedelta: lambda value, write: write(b"e" + _DELTA.pack(value.days, value.seconds, value.microseconds)),
    Decimal: lambda value, write: _sized(b"D", str(value).encode(), write),
    UUID: lambda value, write: write(b"U" + value.bytes),
    tuple: _items_writer(b"u"),
    list: _items_writer(b"l"),
    dict: _write_dict,
}


# ---------------------------------------------------------------------------------------------------- reading
class _Reader:
    """Reads one value after another from `at` on."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def value(self) -> Any:
        tag = self.data[self.at]
        self.at += 1
        return _READERS[tag](self)

    def unpack(self, form: Struct) -> tuple[Any, ...]:
        found = form.unpack_from(self.data, self.at)
        self.at += form.size
        return found

    def count(self) -> int:
        """A length in bytes or items. More than the bytes that are left is an error: each item takes at least one."""
        (length,) = self.unpack(_LENGTH)
        if length > len(self.data) - self.at:
            raise IndexError(length)
        return length  # type: ignore[no-any-return]

    def raw(self) -> bytes:
        length = self.count()
        self.at += length
        return self.data[self.at - length : self.at]

    def text(self) -> str:
        return self.raw().decode("utf-8", "surrogatepass")

    def integer(self) -> int:
        return int.from_bytes(self.raw(), "big", signed=True)

    def items(self) -> list[Any]:
        return [self.value() for _ in range(self.count())]

    def mapping(self) -> dict[Any, Any]:
        return {self.value(): self.value() for _ in range(self.count())}

    def uuid(self) -> UUID:
        self.at += 16
        return UUID(bytes=self.data[self.at - 16 : self.at])

    def zone(self) -> Any:
        tag = self.data[self.at : self.at + 1]
        self.at += 1
        if tag == b"0":
            return None
        if tag == b"o":
            return timezone(*self.value())
        if tag == b"z":
            self.at += 1  # the tag of the text that follows
            return ZoneInfo(self.text())
        raise KeyError(tag)

    def clock_time(self) -> time:
        hour, minute, second, microsecond, fold = self.unpack(_TIME)
        return time(hour, minute, second, microsecond, self.zone(), fold=fold)

    def date_and_time(self) -> datetime:
        year, month, day = self.unpack(_DATE)
        hour, minute, second, microsecond, fold = self.unpack(_TIME)
        return datetime(year, month, day, hour, minute, second, microsecond, self.zone(), fold=fold)

    def named_tuple(self) -> Any:
        kind, names = self.record()
        if not issubclass(kind, tuple) or getattr(kind, "_fields", None) != names:
            raise ValueError(f"codec: class {kind.__qualname__} has other fields than the recorded result")
        return tuple.__new__(kind, [self.value() for _ in names])

    def data_class(self) -> Any:
        kind, names = self.record()
        if not is_dataclass(kind) or tuple(field.name for field in fields(kind)) != names:
            raise ValueError(f"codec: class {kind.__qualname__} has other fields than the recorded result")
        made = object.__new__(kind)
        for name in names:
            object.__setattr__(made, name, self.value())
        return made

    def record(self) -> tuple[type, tuple[str, ...]]:
        module, qualname, names = self.value()
        kind = class_of(module, qualname)
        if not isinstance(kind, type):
            raise ValueError(
                f"codec: class {qualname} of a recorded result is not in module {module}, or the module is not imported"
            )
        return kind, names


_READERS: dict[int, Callable[[_Reader], Any]] = {
    ord("0"): lambda reader: None,
    ord("t"): lambda reader: True,
    ord("f"): lambda reader: False,
    ord("i"): _Reader.integer,
    ord("d"): lambda reader: reader.unpack(_FLOAT)[0],
    ord("s"): _Reader.text,
    ord("b"): _Reader.raw,
    ord("a"): lambda reader: date(*reader.unpack(_DATE)),
    ord("h"): _Reader.clock_time,
    ord("w"): _Reader.date_and_time,
    ord("e"): lambda reader: timedelta(*reader.unpack(_DELTA)),
    ord("D"): lambda reader: Decimal(reader.raw().decode("ascii")),
    ord("U"): _Reader.uuid,
    ord("u"): lambda reader: tuple(reader.items()),
    ord("l"): _Reader.items,
    ord("m"): _Reader.mapping,
    ord("N"): _Reader.named_tuple,
    ord("C"): _Reader.data_class,
}
