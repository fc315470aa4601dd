"""A message, and a parcel: the one copy of it that one queue holds.

A message is never changed after its publish, so all its parcels, and deliveries that still wait in a lane, share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manytail.broker._properties import BasicProperties, copied, fresh
from manytail.broker._refusals import precondition_failed

if TYPE_CHECKING:
    from manytail.broker._consumers import Consumer
    from manytail.broker._queues import Queue

__all__ = ["Message", "Parcel", "carbon_copies", "check_expiration", "delivered_properties"]


class Message:
    """Body, properties, where it was published, and all its routing keys: its own first, then those of the CC and BCC headers."""

    __slots__ = ("body", "exchange", "keys", "properties")

    def __init__(self, body: Any, properties: BasicProperties | None, exchange: str, keys: tuple[str, ...]) -> None:
        self.body = body
        self.properties = properties
        self.exchange = exchange
        self.keys = keys

    @property
    def headers(self) -> dict[str, Any]:
        return (self.properties and self.properties.headers) or {}

    @property
    def ttl(self) -> int | None:
        """Milliseconds, from the property `expiration`, which publish has checked."""
        expiration = self.properties.expiration if self.properties is not None else None
        return None if expiration is None else int(expiration)


class Parcel:
    """A message in a queue: ready, or unacknowledged on the channel it was handed to."""

    __slots__ = ("consumer", "entry", "expires_at", "message", "queue", "redelivered", "returns")

    def __init__(self, message: Message, queue: Queue) -> None:
        self.message = message
        self.queue = queue
        self.entry: Any = None  # its place in the store, while it is unacknowledged
        self.consumer: Consumer | None = None  # whose credit it uses up
        self.redelivered = False
        self.returns = 0  # how often it came back, for x-delivery-limit
        self.expires_at: float | None = None  # on the monotonic clock, fixed when it was enqueued


def check_expiration(properties: BasicProperties) -> None:
    """A property `expiration` is a whole number of milliseconds, as a decimal string."""
    expiration = properties.expiration
    if expiration is not None and not (isinstance(expiration, str) and expiration.isascii() and expiration.isdigit()):
        precondition_failed(f"invalid expiration {expiration!r}: expected milliseconds as a decimal string")


def carbon_copies(properties: BasicProperties | None) -> tuple[str, ...]:
    """The routing keys in the headers CC and BCC; BCC is taken off these properties, which are the broker's own copy."""
    headers = properties.headers if properties is not None else None
    if not headers:
        return ()
    keys: list[str] = []
    for name in ("CC", "BCC"):
        listed = headers.get(name)
        if name not in headers:
            continue
        if not isinstance(listed, list):
            precondition_failed(f"invalid header {name}={listed!r}: expected a list of routing keys")
        keys += [key for key in listed if isinstance(key, str)]
    headers.pop("BCC", None)
    return tuple(keys)


def delivered_properties(message: Message, parcel_returns: int) -> BasicProperties:
    """What a consumer gets: its own copy, with how often the parcel came back where a queue counts that."""
    properties = fresh() if message.properties is None else copied(message.properties)
    if parcel_returns:
        properties.headers = {**(properties.headers or {}), "x-delivery-count": parcel_returns}
    return properties
