"""Idempotency keys: a digest that is equal for values of equal type and value, in every process, job and release.

Every encoded value starts with its kind and its length, so that no two values have the same encoding. The order of a
dict's entries does not count. -0.0 equals 0.0, all NaNs are equal, equal decimals are equal, and 1 is not True.

The encoding must not change: the keys are stored in databases, and recorded results would not be found again.
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

TYPES = "None, bool, int, float, str, bytes, dates, times, Decimal, UUID, and "
TYPES += "tuples, lists, dicts, NamedTuples and dataclasses of them"
_TEXTS = (datetime.date, datetime.time, datetime.timedelta, Decimal, UUID)  # encoded as their kind and their text


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
        return _record(kind, zip(value._fields, value, strict=True))
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return _sized(b"z", value.astimezone(datetime.UTC).isoformat().encode())
    if kind in _TEXTS or kind is datetime.datetime:
        text = _plain(value) if kind is Decimal else value
        return _sized(b"x", f"{kind.__name__}:{text}".encode())
    if is_dataclass(value) and not isinstance(value, type):
        return _record(kind, ((field.name, getattr(value, field.name)) for field in fields(value)))
    raise UnstableError(f"{value!r} of type {kind.__qualname__}")


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


def _record(kind: type, values: Any) -> bytes:
    return _sized(b"r", encode(kind.__qualname__) + b"".join(encode(name) + encode(item) for name, item in values))


def _sized(kind: bytes, data: bytes) -> bytes:
    return b"%s%d:%s" % (kind, len(data), data)
