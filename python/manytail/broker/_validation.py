"""What is wrong with a call before the broker sees it: TypeError and ValueError at once, as pika raises them."""

from __future__ import annotations

from typing import Any

from manytail.broker.exceptions import ShortStringTooLong

__all__ = ["require_callable", "require_name", "require_prefetch", "require_string"]


def require_string(value: Any, name: str) -> str:
    """A str that fits AMQP's short strings."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, but got {value!r}")
    if len(value) > 63 and len(value.encode()) > 255:
        raise ShortStringTooLong(f"{name} is longer than 255 bytes: {value[:80]!r}...")
    return value


def require_name(value: Any, name: str) -> str:
    """A name to declare: line ends are taken out, as the server does."""
    return require_string(value, name).replace("\r", "").replace("\n", "")


def require_callable(value: Any, name: str) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be callable, but got {value!r}")


def require_prefetch(prefetch_size: int, prefetch_count: int) -> None:
    for name, value, most in (("prefetch_size", prefetch_size, 0xFFFFFFFF), ("prefetch_count", prefetch_count, 0xFFFF)):
        if not 0 <= int(value) <= most:
            raise ValueError(f"{name} must be from 0 to {most}, but got {value}")
