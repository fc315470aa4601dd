"""Values as bytes: the idempotency key of an item, and the record of a result.

`_walk` goes through a value once and knows its parts: lists, tuples, dicts, and NamedTuples and dataclasses by their
fields. A form says what becomes of each part:

    KEY      equal for values of equal type and value, in every process, job and release: a dict's order does not count,
             -0.0 is 0.0, NaN is NaN, equal decimals and equal moments are equal, and 1 is not True. Every part begins
             with its kind and length, so no two values have the same bytes. A key is the digest of these
    RECORD   exact, and read back by `decode`: the kind in one byte, then the data, with its length first if it varies

Both are stored in databases and must not change. Where those of a key were wrong, the new ones have a number (FORMAT).

Reading is safe with any bytes: nothing is unpickled or imported, and no constructor of a user's class is called. A
class is named by its module and qualified name, and is of a module that is imported already. Its fields have to be all
of its content: neither form takes a dataclass that derives from dict, list, str or Exception.
"""

from __future__ import annotations

import math
import reprlib
import struct
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from .classes import attributes, class_of, foreign_base, is_at_top, module_of

NAME = "manytail-1"  # of the form RECORD, stored with the name of a Shared: another one needs another name
FORMAT = 2  # in keys: of NamedTuples and dataclasses, and of moments
LONGEST = 1 << 28  # bytes of a record: far below what databases accept in one value
TYPES = (
    "None, bool, int, float, str, bytes, dates, times, Decimal, UUID, and tuples, lists, dicts, NamedTuples and "
    "dataclasses of them"
)
_UNREADABLE = (
    struct.error, LookupError, ArithmeticError, RecursionError, TypeError, AttributeError, UnicodeError
)  # fmt: skip


class _Refused(TypeError):
    """A value that has no bytes in that form."""


class Form(NamedTuple):
    leaves: dict[type, Callable[[Any], bytes]]
    group: Callable[[bytes, list[bytes]], bytes]  # of a list (l) or tuple (u): its kind and its parts
    pairs: Callable[[list[tuple[bytes, bytes]]], bytes]  # of a dict
    record: Callable[[Any, tuple[str, ...], list[bytes]], bytes]  # of a NamedTuple or dataclass: its names and parts


def key(value: Any, option: str = "idempotency_key", instead: str = "") -> str:
    """32 hex digits. TypeError: a type that has no stable bytes; it names the option, and what may stand instead."""
    try:
        return blake2b(_walk(value, KEY), digest_size=16).hexdigest()
    except _Refused as error:
        raise TypeError(f"{option}: {error} (expected: {TYPES}{instead})") from None
    except RecursionError:
        raise ValueError(f"{option}: a value that contains itself, or is nested too deeply") from None


def stable(value: Any) -> bytes:
    """The bytes of which the key is the digest. TypeError: it has none."""
    return _walk(value, KEY)


def encode(value: Any) -> bytes:
    """The record of a value. TypeError: it cannot be read back. ValueError: nested too deeply, or over 256 MiB."""
    try:
        data = _walk(value, RECORD)
    except _Refused as error:
        raise TypeError(f"codec: a result {error} (expected: {TYPES})") from None
    except RecursionError:
        raise ValueError("codec: a result that contains itself, or is nested too deeply") from None
    if len(data) > LONGEST:
        raise ValueError(f"codec: a result of {len(data)} bytes (expected: at most {LONGEST})")
    return data


def decode(data: bytes) -> Any:
    """The value of a record. ValueError: not made by `encode`, or its class is missing or has other fields."""
    reader = _Reader(data)
    try:
        value = reader.value()
    except _UNREADABLE as error:
        raise ValueError(f"codec: a recorded result cannot be read: {type(error).__name__}") from error
    if reader.at != len(data):
        raise ValueError("codec: a recorded result has extra bytes at its end")
    return value


def _walk(value: Any, form: Form) -> bytes:
    kind: Any = type(value)
    leaf = form.leaves.get(kind)
    if leaf is not None:
        return leaf(value)
    if kind is list or kind is tuple:
        return form.group(b"l" if kind is list else b"u", [_walk(each, form) for each in value])
    if kind is dict:
        return form.pairs([(_walk(name, form), _walk(each, form)) for name, each in value.items()])
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return form.record(value, value._fields, [_walk(each, form) for each in value])
    if is_dataclass(kind):
        names = tuple(field.name for field in fields(kind))
        return form.record(value, names, [_walk(getattr(value, name), form) for name in names])
    raise _Refused(f"{_shown(value)} of type {kind.__qualname__}")


def _check_content(value: Any) -> None:
    kind = type(value)
    if (base := foreign_base(kind)) is not None:
        why = f"whose fields are not all of its content: it derives from {base.__qualname__}"
        raise _Refused(f"{_shown(value)} of type {kind.__qualname__}, {why}")


def _shown(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except Exception:  # the user's
        return "a value"


# ---------------------------------------------------------------------------------------------------- the form KEY
def _sized(kind: bytes, data: bytes) -> bytes:
    return b"%s%d:%s" % (kind, len(data), data)


def _key_of_str(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"s%d:%s" % (len(data), data)


def _key_of_int(value: int) -> bytes:
    data = b"%d" % value
    return b"i%d:%s" % (len(data), data)


def _text(value: Any) -> bytes:
    return _sized(b"x", f"{type(value).__name__}:{value}".encode())


def _plain(value: Decimal) -> bytes:
    """By the normal form of the number, whatever the context: equal for equal decimals, and for all NaNs."""
    sign, digits, exponent = value.as_tuple()
    if value.is_nan():
        text = "NaN"
    elif not value or not isinstance(exponent, int):
        text = str(value or 0)  # 0, or an infinity
    else:
        zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
        text = str(Decimal((sign, digits[: len(digits) - zeros], exponent + zeros))).upper()  # "e" by some contexts
    return _sized(b"x", f"Decimal:{text}".encode())


def _moment(value: Any) -> bytes:
    """With an offset it is the moment that counts; without one, also where a zone knows none, what the clock shows."""
    offset, shown, name = value.utcoffset(), value.replace(tzinfo=None), type(value).__name__
    if offset is None:
        return _sized(b"x", f"{name}:{shown}".encode())
    if type(value) is datetime:
        try:
            return _sized(b"z", value.astimezone(UTC).isoformat().encode())
        except OverflowError:  # less than a day from the first or last moment that a datetime can have
            since = shown - datetime.min - offset
    else:  # not modulo a day, as Python compares times
        since = datetime.combine(date.min, shown) - datetime.min - offset
    return _sized(b"y", f"{FORMAT}:{name}:{since // timedelta(microseconds=1)}".encode())


def _key_of_record(value: Any, names: tuple[str, ...], parts: list[bytes]) -> bytes:
    kind = type(value)
    _check_content(value)
    head = stable(FORMAT) + stable(module_of(kind)) + stable(kind.__qualname__)
    return _sized(b"c", head + b"".join(stable(name) + part for name, part in zip(names, parts, strict=True)))


KEY = Form(
    {
        type(None): lambda value: b"0",
        str: _key_of_str,
        bool: lambda value: b"t" if value else b"f",
        int: _key_of_int,
        float: lambda value: b"d" + (b"nan" if math.isnan(value) else struct.pack(">d", value + 0.0)),
        bytes: lambda value: _sized(b"b", value),
        **dict.fromkeys((date, timedelta, UUID), _text), **dict.fromkeys((datetime, time), _moment), Decimal: _plain,
    },
    lambda kind, parts: _sized(kind, b"".join(parts)),
    lambda pairs: _sized(b"m", b"".join(sorted(name + each for name, each in pairs))),
    _key_of_record,
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------- the form RECORD
_LENGTH, _FLOAT = struct.Struct(">I"), struct.Struct(">d")
_DATE, _TIME, _DELTA = struct.Struct(">HBB"), struct.Struct(">BBBIB"), struct.Struct(">iII")


def _counted(kind: bytes, data: bytes) -> bytes:
    return kind + _LENGTH.pack(len(data)) + data


def _str(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"s" + _LENGTH.pack(len(data)) + data


def _int(value: int) -> bytes:
    size = value.bit_length() // 8 + 1
    return b"i" + _LENGTH.pack(size) + value.to_bytes(size, "big", signed=True)


def _day(value: Any) -> bytes:
    return _DATE.pack(value.year, value.month, value.day)


def _clock(value: Any) -> bytes:
    return _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold) + _zone(value.tzinfo)


def _zone(zone: Any) -> bytes:
    if zone is None:
        return b"0"
    if type(zone) is timezone:
        return b"o" + _walk(zone.__getinitargs__(), RECORD)  # type: ignore[attr-defined]
    if type(zone) is ZoneInfo and zone.key is not None:
        return b"z" + _walk(zone.key, RECORD)
    raise _Refused(f"with a time zone of type {type(zone).__qualname__}, which is no datetime.timezone or ZoneInfo")


def _bytes_of_record(value: Any, names: tuple[str, ...], parts: list[bytes]) -> bytes:
    kind = type(value)
    _check_content(value)
    if not is_at_top(kind):
        raise _Refused(f"of class {kind.__qualname__}, which is not at the top of a module")
    if more := [name for name in attributes(value) if name not in names]:
        raise _Refused(f"of class {kind.__qualname__} with attributes that are not fields: {', '.join(more)}")
    head = _walk((module_of(kind), kind.__qualname__, names), RECORD)
    return (b"N" if issubclass(kind, tuple) else b"C") + head + b"".join(parts)


RECORD = Form(
    {
        type(None): lambda value: b"0",
        str: _str,
        bool: lambda value: b"t" if value else b"f",
        int: _int,
        float: lambda value: b"d" + _FLOAT.pack(value),
        bytes: lambda value: _counted(b"b", value),
        date: lambda value: b"a" + _day(value),
        time: lambda value: b"h" + _clock(value),
        datetime: lambda value: b"w" + _day(value) + _clock(value),
        timedelta: lambda value: b"e" + _DELTA.pack(value.days, value.seconds, value.microseconds),
        Decimal: lambda value: _counted(b"D", str(value).encode()),
        UUID: lambda value: b"U" + value.bytes,
    },
    lambda kind, parts: kind + _LENGTH.pack(len(parts)) + b"".join(parts),
    lambda pairs: b"m" + _LENGTH.pack(len(pairs)) + b"".join(part for pair in pairs for part in pair),
    _bytes_of_record,
)


_ZONES: dict[bytes, Callable[[Any], Any]] = {b"0": lambda none: None, b"o": lambda of: timezone(*of), b"z": ZoneInfo}


class _Reader:
    """Reads one value after another from `at` on."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def value(self) -> Any:
        self.at += 1
        return _READERS[self.data[self.at - 1 : self.at]](self)

    def raw(self, length: int | None = None) -> bytes:
        """So many bytes; None: their number comes first."""
        begin = self.at
        if length is None:
            length = self.count()
            begin += _LENGTH.size
        self.at = begin + length
        return self.data[begin : self.at]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        self.at += form.size
        return form.unpack_from(self.data, self.at - form.size)

    def count(self) -> int:
        """A length in bytes or items. Not more than the bytes that are left: each item takes at least one."""
        (length,) = _LENGTH.unpack_from(self.data, self.at)
        self.at += _LENGTH.size
        if length > len(self.data) - self.at:
            raise IndexError(length)
        return int(length)

    def items(self) -> list[Any]:
        return [self.value() for _ in range(self.count())]

    def clock(self) -> tuple[Any, int]:
        """The arguments of a time, and its fold."""
        *shown, fold = self.unpack(_TIME)
        tag = self.raw(1)
        given = None if tag == b"0" else self.value()
        return (*shown, _ZONES[tag](given)), fold

    def moment(self, make: Callable[..., Any], shown: Iterable[int] = ()) -> Any:
        clock, fold = self.clock()
        return make(*shown, *clock, fold=fold)

    def record(self, is_tuple: bool) -> Any:
        module, qualname, names = self.value()
        kind = class_of(module, qualname)
        if not isinstance(kind, type):
            where = f"is not in module {module}, or the module is not imported"
            raise ValueError(f"codec: class {qualname} of a recorded result {where}")
        known: Any = getattr(kind, "_fields", None) if is_tuple else None
        if not is_tuple and is_dataclass(kind):
            known = tuple(field.name for field in fields(kind))
        if known != names or issubclass(kind, tuple) is not is_tuple:
            raise ValueError(f"codec: class {kind.__qualname__} has other fields than the recorded result")
        if is_tuple:
            new: Any = tuple.__new__  # of a class that is known only now
            return new(kind, [self.value() for _ in names])
        made = object.__new__(kind)
        for name in names:
            object.__setattr__(made, name, self.value())
        return made


_READERS: dict[bytes, Callable[[_Reader], Any]] = {
    b"0": lambda reader: None,
    b"t": lambda reader: True,
    b"f": lambda reader: False,
    b"i": lambda reader: int.from_bytes(reader.raw(), "big", signed=True),
    b"d": lambda reader: reader.unpack(_FLOAT)[0],
    b"s": lambda reader: reader.raw().decode("utf-8", "surrogatepass"),
    b"b": _Reader.raw,
    b"a": lambda reader: date(*reader.unpack(_DATE)),
    b"h": lambda reader: reader.moment(time),
    b"w": lambda reader: reader.moment(datetime, reader.unpack(_DATE)),
    b"e": lambda reader: timedelta(*reader.unpack(_DELTA)),
    b"D": lambda reader: Decimal(reader.raw().decode("ascii")),
    b"U": lambda reader: UUID(bytes=reader.raw(16)),
    b"u": lambda reader: tuple(reader.items()),
    b"l": _Reader.items,
    b"m": lambda reader: {reader.value(): reader.value() for _ in range(reader.count())},
    b"N": lambda reader: reader.record(True),
    b"C": lambda reader: reader.record(False),
}
