"""The objects that a program gets from the broker, with the names of pika.spec: the properties of a message, and the
AMQP methods that accompany messages and answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from manytail._values import initialised_repr

__all__ = [
    "ACCESS_REFUSED",
    "CHANNEL_ERROR",
    "COMMAND_INVALID",
    "CONNECTION_FORCED",
    "CONTENT_TOO_LARGE",
    "FRAME_ERROR",
    "INTERNAL_ERROR",
    "INVALID_PATH",
    "NOT_ALLOWED",
    "NOT_FOUND",
    "NOT_IMPLEMENTED",
    "NO_CONSUMERS",
    "NO_ROUTE",
    "PERSISTENT_DELIVERY_MODE",
    "PORT",
    "PRECONDITION_FAILED",
    "PROPERTY_NAMES",
    "REPLY_SUCCESS",
    "RESOURCE_ERROR",
    "RESOURCE_LOCKED",
    "SYNTAX_ERROR",
    "TRANSIENT_DELIVERY_MODE",
    "UNEXPECTED_FRAME",
    "Basic",
    "BasicProperties",
    "DeliveryMode",
    "Exchange",
    "Method",
    "Queue",
    "ReturnedMessage",
    "Tx",
]

_M = TypeVar("_M")

TRANSIENT_DELIVERY_MODE = 1
PERSISTENT_DELIVERY_MODE = 2
PORT = 5672
# Reply codes
REPLY_SUCCESS = 200
CONTENT_TOO_LARGE = 311
NO_ROUTE = 312
NO_CONSUMERS = 313
CONNECTION_FORCED = 320
INVALID_PATH = 402
ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
FRAME_ERROR = 501
SYNTAX_ERROR = 502
COMMAND_INVALID = 503
CHANNEL_ERROR = 504
UNEXPECTED_FRAME = 505
RESOURCE_ERROR = 506
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541


class DeliveryMode(enum.Enum):
    """Values for BasicProperties.delivery_mode. The delivery mode has no effect: messages are kept in memory only."""

    Transient = TRANSIENT_DELIVERY_MODE
    Persistent = PERSISTENT_DELIVERY_MODE


class BasicProperties:
    """The properties of a message. Every property may be None.

    The broker uses three of them: headers (for exchanges of type headers, and for CC and BCC), expiration
    (milliseconds, as a decimal string) and priority. It delivers the others unchanged."""

    # A property that was never set is None in the class and absent in the instance: a message without properties costs
    # one empty object.

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


class _Fields:
    __slots__: tuple[str, ...] = ()
    NAME: ClassVar[str]

    @initialised_repr
    def __repr__(self) -> str:
        return f"<{self.NAME}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})>"


@dataclass(slots=True, repr=False)
class Method(_Fields, Generic[_M]):
    """The frame that contains an answer. `frame.method` is the answer, for example a Queue.DeclareOk."""

    NAME: ClassVar[str] = "METHOD"
    channel_number: int
    method: _M


@dataclass(slots=True, repr=False)
class ReturnedMessage(_Fields):
    """A message that reached no queue: an element of UnroutableError.messages."""

    NAME: ClassVar[str] = "ReturnedMessage"
    method: Basic.Return
    properties: BasicProperties
    body: Any


class Basic:
    """AMQP methods that accompany a message."""

    @dataclass(slots=True, repr=False)
    class Deliver(_Fields):
        """Comes with a message that is delivered to a consumer."""

        NAME: ClassVar[str] = "Basic.Deliver"
        consumer_tag: str = ""
        delivery_tag: int = 0
        redelivered: bool = False
        exchange: str = ""
        routing_key: str = ""

    @dataclass(slots=True, repr=False)
    class GetOk(_Fields):
        """Comes with a message that basic_get returns. message_count is the number of messages left in the queue."""

        NAME: ClassVar[str] = "Basic.GetOk"
        delivery_tag: int = 0
        redelivered: bool = False
        exchange: str = ""
        routing_key: str = ""
        message_count: int = 0

    @dataclass(slots=True, repr=False)
    class Return(_Fields):
        """Comes with a mandatory message that reached no queue."""

        NAME: ClassVar[str] = "Basic.Return"
        reply_code: int = 0
        reply_text: str = ""
        exchange: str = ""
        routing_key: str = ""

    @dataclass(slots=True, repr=False)
    class Cancel(_Fields):
        """Says that the queue of a consumer was deleted."""

        NAME: ClassVar[str] = "Basic.Cancel"
        consumer_tag: str = ""
        nowait: bool = False


class Queue:
    """Answers to calls on a queue."""

    @dataclass(slots=True, repr=False)
    class DeclareOk(_Fields):
        """The name of the queue, and the numbers of its ready messages and consumers."""

        NAME: ClassVar[str] = "Queue.DeclareOk"
        queue: str = ""
        message_count: int = 0
        consumer_count: int = 0

    @dataclass(slots=True, repr=False)
    class DeleteOk(_Fields):
        """The queue was deleted, or did not exist. message_count is the number of ready messages that were deleted."""

        NAME: ClassVar[str] = "Queue.DeleteOk"
        message_count: int = 0

    @dataclass(slots=True, repr=False)
    class PurgeOk(_Fields):
        """The ready messages were removed. message_count is their number."""

        NAME: ClassVar[str] = "Queue.PurgeOk"
        message_count: int = 0

    @dataclass(slots=True, repr=False)
    class BindOk(_Fields):
        """The binding exists."""

        NAME: ClassVar[str] = "Queue.BindOk"

    @dataclass(slots=True, repr=False)
    class UnbindOk(_Fields):
        """The binding was removed, or did not exist."""

        NAME: ClassVar[str] = "Queue.UnbindOk"


class Exchange:
    """Answers to calls on an exchange."""

    @dataclass(slots=True, repr=False)
    class DeclareOk(_Fields):
        """The exchange exists."""

        NAME: ClassVar[str] = "Exchange.DeclareOk"

    @dataclass(slots=True, repr=False)
    class DeleteOk(_Fields):
        """The exchange was deleted, or did not exist."""

        NAME: ClassVar[str] = "Exchange.DeleteOk"

    @dataclass(slots=True, repr=False)
    class BindOk(_Fields):
        """The binding exists."""

        NAME: ClassVar[str] = "Exchange.BindOk"

    @dataclass(slots=True, repr=False)
    class UnbindOk(_Fields):
        """The binding was removed, or did not exist."""

        NAME: ClassVar[str] = "Exchange.UnbindOk"


class Tx:
    """Answers to calls that concern transactions."""

    @dataclass(slots=True, repr=False)
    class SelectOk(_Fields):
        """Transactions are turned on for the channel."""

        NAME: ClassVar[str] = "Tx.SelectOk"

    @dataclass(slots=True, repr=False)
    class CommitOk(_Fields):
        """The transaction was committed."""

        NAME: ClassVar[str] = "Tx.CommitOk"

    @dataclass(slots=True, repr=False)
    class RollbackOk(_Fields):
        """The transaction was rolled back."""

        NAME: ClassVar[str] = "Tx.RollbackOk"
