"""BasicProperties: the fourteen properties of a message, and their copies at publish and at each delivery.

A property that was never set is not in the instance but None in the class, so that a message without properties costs one empty object.
"""

from __future__ import annotations

import enum
from typing import Any

__all__ = ["BasicProperties", "copied", "copied_from_anything", "fresh"]

NAMES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


class BasicProperties:
    """What a message says of itself besides its body. Every property may be None. The broker reads headers (exchanges of type headers, CC, BCC),
    expiration (milliseconds as a decimal string) and priority; the others pass."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    def __init__(
        self,
        content_type: Any = None,
        content_encoding: Any = None,
        headers: Any = None,
        delivery_mode: Any = None,
        priority: Any = None,
        correlation_id: Any = None,
        reply_to: Any = None,
        expiration: Any = None,
        message_id: Any = None,
        timestamp: Any = None,
        type: Any = None,
        user_id: Any = None,
        app_id: Any = None,
        cluster_id: Any = None,
    ) -> None:
        given = locals()
        if isinstance(delivery_mode, enum.Enum):
            given["delivery_mode"] = delivery_mode.value
        self.__dict__.update((name, given[name]) for name in NAMES if given[name] is not None)

    def _values(self) -> dict[str, Any]:
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BasicProperties) and self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<BasicProperties({', '.join(f'{name}={value!r}' for name, value in self._values().items())})>"


def fresh(_new: Any = BasicProperties.__new__, _class: type[BasicProperties] = BasicProperties) -> BasicProperties:
    """BasicProperties() without the fourteen arguments."""
    made: BasicProperties = _new(_class)
    return made


def _copied_value(value: Any) -> Any:
    """A copy as far down as the broker's own containers go; what is in them passes as it is."""
    if type(value) is dict:
        return {key: _copied_value(inner) for key, inner in value.items()}
    if type(value) is list:
        return [_copied_value(inner) for inner in value]
    return value


def copied(properties: BasicProperties) -> BasicProperties:
    """Its own object with its own headers."""
    copy = fresh()
    copy.__dict__.update(properties.__dict__)
    if properties.headers is not None:
        copy.headers = _copied_value(properties.headers)
    return copy


def copied_from_anything(properties: Any) -> BasicProperties:
    """The same from any object with these attributes, as pika's BasicProperties."""
    if type(properties) is BasicProperties:
        return copied(properties)
    copy = BasicProperties(**{name: getattr(properties, name, None) for name in NAMES})
    if copy.headers is not None:
        copy.headers = _copied_value(dict(copy.headers))
    return copy
