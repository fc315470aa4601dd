"""Idempotency keys: a digest that is equal for values of equal type and value, in every process, job and release.

Every encoded value starts with its kind and its length, so that no two values have the same encoding. The order of a
dict's entries does not count. -0.0 equals 0.0, all NaNs are equal, equal decimals are equal, and 1 is not True.

A NamedTuple or dataclass is told apart by its fields and by the full name of its class: module and qualified name.

The encoding must not change: the keys are stored in databases, and recorded results would not be found again. Where it
was wrong, its new form has a number (FORMAT), so that no key of before is taken for another one.
"""

from __future__ import annotations

import datetime
import math
import struct
from dataclasses import fields, is_dataclass
from decimal import Decimal
from hashlib import blake2b
from typing import Any
from uuid import UUID

from ._classes import foreign_base, module_of
from ._errors import shortened

FORMAT = 2  # of NamedTuples and dataclasses, and of times with a zone
TYPES = "None, bool, int, float, str, bytes, dates, times, Decimal, UUID, and "
TYPES += "tuples, lists, dicts, NamedTuples and dataclasses of them"
_TEXTS = (datetime.date, datetime.timedelta, Decimal, UUID)  # encoded as their kind and their text


class UnstableError(TypeError):
    """A value of a type that has no stable encoding."""


def idempotency_key(value: Any, option: str = "idempotency_key", instead: str = "") -> str:
    """32 hex digits. TypeError: a type that has no stable encoding. It names the option, and what may be given instead
    of such a value."""
    try:
        return blake2b(encode(value), digest_size=16).hexdigest()
    except UnstableError as error:
        raise TypeError(f"{option}: {error} (expected: {TYPES}{instead})") from None


def encode(value: Any) -> bytes:
    """The bytes of which the key is the digest. UnstableError: as above."""
    if value is None:
        return b"0"
    kind = type(value)
    if kind is str:
        return _sized(b"s", value.encode("utf-8", "surrogatepass"))
    if kind is bool:
        return b"t" if value else b"f"
    if kind is int:
        return _sized(b"i", b"%d" % value)
    if kind is float:
        return b"d" + (b"nan" if math.isnan(value) else struct.pack(">d", value + 0.0))
    if kind is bytes:
        return _sized(b"b", value)
    return _encode_composed(value, kind)


def _encode_composed(value: Any, kind: type) -> bytes:
    if kind is dict:
        return _sized(b"m", b"".join(sorted(encode(key) + encode(item) for key, item in value.items())))
    if kind is list or kind is tuple:
        return _sized(b"l" if kind is list else b"u", b"".join(map(encode, value)))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _record(value, kind, zip(value._fields, value, strict=True))
    if kind is datetime.datetime or kind is datetime.time:
        return _moment(value, kind.__name__)
    if kind in _TEXTS:
        text = _plain(value) if kind is Decimal else value
        return _sized(b"x", f"{kind.__name__}:{text}".encode())
    if is_dataclass(value) and not isinstance(value, type):
        return _record(value, kind, ((field.name, getattr(value, field.name)) for field in fields(value)))
    raise UnstableError(f"{shortened(value)} of type {kind.__qualname__}")


def _plain(value: Any) -> str:
    """A text that is equal for equal decimals, and for all that are not a number. It is the text of the normal form
    whatever the context, and the bare text of a number in normal form, by which results are recorded."""
    if value.is_nan():
        return "NaN"
    sign, digits, exponent = value.as_tuple()
    if not value or not isinstance(exponent, int):
        return str(value or 0)  # 0, or an infinity
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return str(Decimal((sign, digits[: len(digits) - zeros], exponent + zeros))).upper()  # "e" by some contexts


def _moment(value: Any, name: str) -> bytes:
    """Of a time or datetime. With an offset it is the moment that counts, without one (also if its zone knows none)
    what the clock shows."""
    offset, shown = value.utcoffset(), value.replace(tzinfo=None)
    if offset is None:
        return _sized(b"x", f"{name}:{shown}".encode())
    if name == "datetime":
        try:
            return _sized(b"z", value.astimezone(datetime.UTC).isoformat().encode())
        except OverflowError:  # less than a day from the first or last moment that a datetime can have
            since = shown - datetime.datetime.min - offset
    else:  # not modulo a day, as Python compares times
        since = datetime.datetime.combine(datetime.date.min, shown) - datetime.datetime.min - offset
    return _sized(b"y", f"{FORMAT}:{name}:{since // datetime.timedelta(microseconds=1)}".encode())


def _record(value: Any, kind: type, values: Any) -> bytes:
    if (base := foreign_base(kind)) is not None:
        raise UnstableError(
            f"{shortened(value)} of type {kind.__qualname__}, whose fields are not all of its content: it derives from "
            f"{base.__qualname__}"
        )
    names = encode(FORMAT) + encode(module_of(kind)) + encode(kind.__qualname__)
    return _sized(b"c", names + b"".join(encode(name) + encode(item) for name, item in values))


def _sized(kind: bytes, data: bytes) -> bytes:
    return b"%s%d:%s" % (kind, len(data), data)
