"""The objects that a program sees, by the names of pika.spec: the properties of a message, and the methods that a
broker answers with."""

from __future__ import annotations

import enum
from dataclasses import make_dataclass
from typing import Any, ClassVar

__all__ = [
    "PERSISTENT_DELIVERY_MODE",
    "PROPERTY_NAMES",
    "TRANSIENT_DELIVERY_MODE",
    "Basic",
    "BasicProperties",
    "DeliveryMode",
    "Exchange",
    "Method",
    "Queue",
    "ReturnedMessage",
    "Tx",
    "copied",
    "fresh",
]

TRANSIENT_DELIVERY_MODE = 1
PERSISTENT_DELIVERY_MODE = 2


class DeliveryMode(enum.Enum):
    Transient = TRANSIENT_DELIVERY_MODE
    Persistent = PERSISTENT_DELIVERY_MODE


class BasicProperties:
    """What a message says of itself besides its body. Every property may be None. The broker reads headers (exchanges
    of type headers, CC, BCC), expiration (milliseconds as a decimal string) and priority; the others pass.

    A property that was never set is None in the class and not in the instance: a message without properties costs one
    empty object."""

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
        self, content_type: Any = None, content_encoding: Any = None, headers: Any = None, delivery_mode: Any = None,
        priority: Any = None, correlation_id: Any = None, reply_to: Any = None, expiration: Any = None,
        message_id: Any = None, timestamp: Any = None, type: Any = None, user_id: Any = None, app_id: Any = None,
        cluster_id: Any = None
    ) -> None:
        given = locals()
        if isinstance(delivery_mode, enum.Enum):
            given["delivery_mode"] = delivery_mode.value
        self.__dict__.update((name, given[name]) for name in PROPERTY_NAMES if given[name] is not None)

    def _values(self) -> dict[str, Any]:
        return {name: value for name in PROPERTY_NAMES if (value := getattr(self, name)) is not None}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BasicProperties) and self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<BasicProperties({', '.join(f'{name}={value!r}' for name, value in self._values().items())})>"


PROPERTY_NAMES: tuple[str, ...] = tuple(name for name in vars(BasicProperties) if not name.startswith("_"))


def fresh(_new: Any = BasicProperties.__new__, _class: type[BasicProperties] = BasicProperties) -> BasicProperties:
    """BasicProperties() without the fourteen arguments."""
    made: BasicProperties = _new(_class)
    return made


def _copied_value(value: Any) -> Any:
    """A copy as far down as dicts and lists go; what is in them passes as it is."""
    if type(value) is dict:
        return {key: _copied_value(inner) for key, inner in value.items()}
    if type(value) is list:
        return [_copied_value(inner) for inner in value]
    return value


def copied(properties: BasicProperties) -> BasicProperties:
    """A copy with its own headers."""
    copy = fresh()
    copy.__dict__.update(properties.__dict__)
    if properties.headers is not None:
        copy.headers = _copied_value(properties.headers)
    return copy


class _Fields:
    __slots__: tuple[str, ...] = ()
    NAME: ClassVar[str] = ""

    def __repr__(self) -> str:
        return f"<{self.NAME}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})>"


def _method(name: str, **fields: Any) -> Any:
    """A class of that name with these fields, each with its default; without one if that is _REQUIRED."""
    listed = [(field, Any) if default is _REQUIRED else (field, Any, default) for field, default in fields.items()]
    namespace = {"NAME": name, "__module__": __name__, "__qualname__": name}
    short = name.rpartition(".")[2]
    return make_dataclass(short, listed, bases=(_Fields,), namespace=namespace, slots=True, repr=False)


_REQUIRED = object()

# The frame round an answer: `frame.method` is one of the classes below. What is in `UnroutableError.messages`.
Method = _method("METHOD", channel_number=_REQUIRED, method=_REQUIRED)
ReturnedMessage = _method("ReturnedMessage", method=_REQUIRED, properties=_REQUIRED, body=_REQUIRED)


class Basic:
    Deliver = _method("Basic.Deliver", consumer_tag="", delivery_tag=0, redelivered=False, exchange="", routing_key="")
    GetOk = _method("Basic.GetOk", delivery_tag=0, redelivered=False, exchange="", routing_key="", message_count=0)
    Return = _method("Basic.Return", reply_code=0, reply_text="", exchange="", routing_key="")
    Cancel = _method("Basic.Cancel", consumer_tag="", nowait=False)


class Queue:
    DeclareOk = _method("Queue.DeclareOk", queue="", message_count=0, consumer_count=0)
    DeleteOk = _method("Queue.DeleteOk", message_count=0)
    PurgeOk = _method("Queue.PurgeOk", message_count=0)
    BindOk = _method("Queue.BindOk")
    UnbindOk = _method("Queue.UnbindOk")


class Exchange:
    DeclareOk = _method("Exchange.DeclareOk")
    DeleteOk = _method("Exchange.DeleteOk")
    BindOk = _method("Exchange.BindOk")
    UnbindOk = _method("Exchange.UnbindOk")


class Tx:
    SelectOk = _method("Tx.SelectOk")
    CommitOk = _method("Tx.CommitOk")
    RollbackOk = _method("Tx.RollbackOk")
