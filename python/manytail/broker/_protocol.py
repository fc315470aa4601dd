"""Checks the arguments of a call before the call takes the broker's lock.

All user code of a call runs here (a repr, an ==, a hash), because none may run in a section, that is, under the lock
(`_runtime`). Names, keys and tables come out as values of exactly the built-in types that AMQP has.

A wrong call is a TypeError or a ValueError, as in pika. What the broker refuses is a ReplyError with an AMQP reply
code. It is found here, but raised in the section, where it closes the channel or the connection.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, NamedTuple, NoReturn

from manytail.broker.exceptions import ShortStringTooLong
from manytail.broker.spec import PROPERTY_NAMES, BasicProperties


# --------------------------------------------------------------------------------------------------------------- errors
class ReplyError(Exception):
    """The broker refuses. Internal: a channel turns it into ChannelClosedByBroker (4xx) or ConnectionClosedByBroker
    (5xx)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


def access_refused(text: str) -> NoReturn:
    raise ReplyError(403, f"ACCESS_REFUSED - {text}")


def not_found(kind: str, name: str) -> NoReturn:
    raise ReplyError(404, f"NOT_FOUND - no {kind} {name!r} in this broker")


def resource_locked(text: str) -> NoReturn:
    raise ReplyError(405, f"RESOURCE_LOCKED - {text}")


def precondition_failed(text: str) -> NoReturn:
    raise ReplyError(406, f"PRECONDITION_FAILED - {text}")


def command_invalid(text: str) -> NoReturn:
    raise ReplyError(503, f"COMMAND_INVALID - {text}")


def not_implemented(text: str) -> NoReturn:
    raise ReplyError(540, f"NOT_IMPLEMENTED - {text}")


# ------------------------------------------------------------------------------------------------------------ arguments
def require_string(value: Any, name: str) -> str:
    """A str that fits AMQP's short strings, converted from a subclass."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, but got {value!r}")
    exact = str.__str__(value)
    if len(exact) > 63 and len(exact.encode()) > 255:
        raise ShortStringTooLong(f"{name} is longer than 255 bytes: {exact[:80]!r}...")
    return exact


def require_name(value: Any, name: str) -> str:
    """A name to declare. Line ends are removed, as the server does."""
    return require_string(value, name).replace("\r", "").replace("\n", "")


def require_callable(value: Any, name: str) -> None:
    if not callable(value):
        raise TypeError(f"{name} must be callable, but got {value!r}")


def require_tag(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"delivery_tag must be an integer, but got {value!r}")
    return int.__int__(value)


def require_prefetch(prefetch_size: Any, prefetch_count: Any) -> tuple[int, int]:
    checked = []
    for name, value, most in (("prefetch_size", prefetch_size, 0xFFFFFFFF), ("prefetch_count", prefetch_count, 0xFFFF)):
        if not 0 <= int(value) <= most:
            raise ValueError(f"{name} must be from 0 to {most}, but got {value}")
        checked.append(int(value))
    return checked[0], checked[1]


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


MOST_MILLISECONDS = 315_360_000_000  # the server's limit of a time: ten years
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# type -> the function that converts a value of a subclass to exactly that type
_SCALARS: dict[type, Any] = {NoneType: None, bool: None, int: int.__int__, float: float.__float__, str: str.__str__}
_SCALARS[bytes] = bytes.__bytes__


def _plain(value: Any, name: str) -> Any:
    """The value as AMQP carries it: dicts, lists, scalars of the built-in types, and times in whole seconds of UTC, as
    which naive ones are read. Any other object is allowed in headers only, and passes unchanged."""
    if isinstance(value, Mapping):
        return table(value, name)
    if isinstance(value, list | tuple):
        return [_plain(inner, name) for inner in value]
    if isinstance(value, datetime):
        return _EPOCH + timedelta(seconds=calendar.timegm(value.utctimetuple()))
    if type(value) not in _SCALARS:
        for kind, exact in _SCALARS.items():
            if exact is not None and isinstance(value, kind):
                return exact(value)
        if name != "headers" and not _comparable(value):
            expected = "None, bool, int, float, str, bytes, Decimal, datetime, lists and dicts of them"
            raise TypeError(f"{name}: {value!r} (expected: {expected})")
    return value


def table(values: Mapping[str, Any] | None, name: str = "arguments") -> dict[str, Any]:
    """A copy of a table of arguments or headers, checked."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise TypeError(f"{name}: {values!r} (expected: a dict)")
    return {require_string(key, f"a key of {name}"): _plain(value, name) for key, value in values.items()}


def is_text(value: Any, text: str) -> bool:
    """Whether a value of a client is this text. Runs no user code, as == might."""
    return type(value) is str and bool(value == text)


def _comparable(value: Any) -> bool:
    kind = type(value)
    return kind in _SCALARS or kind is Decimal or (kind is datetime and value.tzinfo is UTC)


def matches_value(value: Any, wanted: Any) -> bool:
    """Equal as an exchange of type headers compares: text and bytes by their bytes, a time and a number by the number,
    what is empty by that; inside lists and dicts the types count too, and the order of a dict. Runs no user code."""
    value, wanted = _as_compared(value), _as_compared(wanted)
    if type(value) in (int, float) and type(wanted) in (int, float):
        return bool(value == wanted)
    return _identical(value, wanted)


def _as_compared(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value.encode("utf-8", "surrogatepass")
    if kind is datetime and value.tzinfo is UTC:
        return (value - _EPOCH) // timedelta(seconds=1)
    return [] if kind is dict and not value else value


def _identical(value: Any, wanted: Any) -> bool:
    kind = type(value)
    if value is wanted or kind is not type(wanted):
        return value is wanted
    if kind is list:
        return len(value) == len(wanted) and all(map(_identical, value, wanted))
    if kind is dict:
        return list(value) == list(wanted) and all(map(_identical, value.values(), wanted.values()))
    return _comparable(value) and bool(value == wanted)


def _identity(value: Any) -> Any:
    """A table in a form that can be compared and hashed: sorted by key, and no float equals an int."""
    if type(value) is dict:
        return tuple(sorted((name, _identity(inner)) for name, inner in value.items()))
    if type(value) is list:
        return tuple(_identity(inner) for inner in value)
    return (type(value).__name__, repr(value))


class BindingArguments(NamedTuple):
    """The arguments of a binding, and the form by which two of them are compared."""

    values: dict[str, Any]
    identity: Any

    @classmethod
    def of(cls, arguments: Mapping[str, Any] | None) -> BindingArguments:
        values = table(arguments)
        return cls(values, _identity(values))


# -------------------------------------------------------------------------------------------------- arguments of queues
_OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
# name -> (test, what it expects)
_EXPECTED: dict[str, tuple[Any, str]] = {
    "x-max-length": (lambda value: whole(value) and value >= 0, "a whole number >= 0"),
    "x-overflow": (lambda value: value in _OVERFLOWS, ", ".join(_OVERFLOWS)),
    "x-message-ttl": (lambda value: whole(value) and 0 <= value <= MOST_MILLISECONDS, "milliseconds, 0 to ten years"),
    "x-expires": (lambda value: whole(value) and 0 < value <= MOST_MILLISECONDS, "milliseconds, 1 to ten years"),
    "x-max-priority": (lambda value: whole(value) and 0 <= value <= 255, "a whole number from 0 to 255"),
    "x-dead-letter-exchange": (lambda value: isinstance(value, str), "the name of an exchange"),
    "x-dead-letter-routing-key": (lambda value: isinstance(value, str), "a routing key"),
    "x-delivery-limit": (lambda value: whole(value) and value >= -1, "a whole number >= 0, or -1 for no limit"),
    "x-single-active-consumer": (lambda value: isinstance(value, bool), "true or false"),
    "x-queue-type": (lambda value: value in ("classic", "quorum"), "classic or quorum"),
}


class QueueArguments:
    """What queue_declare asks for. `error`: what is wrong with it, to be raised after the checks that RabbitMQ makes
    first."""

    def __init__(self, queue: str, arguments: Mapping[str, Any] | None) -> None:
        given = self.given = table(arguments)
        self.quorum = given.get("x-queue-type") == "quorum"
        self.error: ReplyError | None = None
        try:
            self._check(queue)
        except ReplyError as error:
            self.error = error
            return
        self.max_length: int | None = given.get("x-max-length")
        self.overflow: str = given.get("x-overflow", "drop-head")
        self.ttl: int | None = given.get("x-message-ttl")
        self.expires: int | None = given.get("x-expires")
        self.priorities: int = given["x-max-priority"] + 1 if given.get("x-max-priority") else 0
        self.dead_letter_exchange: str | None = given.get("x-dead-letter-exchange")
        self.dead_letter_key: str | None = given.get("x-dead-letter-routing-key")
        limit: int | None = given.get("x-delivery-limit", 20 if self.quorum else None)
        self.delivery_limit = None if limit == -1 else limit
        self.single_active: bool = given.get("x-single-active-consumer", False)

    def _check(self, queue: str) -> None:
        for name, value in self.given.items():
            if name not in _EXPECTED:
                precondition_failed(f"invalid arg {name!r} for queue {queue!r}: this broker does not know it")
            test, expected = _EXPECTED[name]
            if not test(value):
                precondition_failed(f"invalid arg {name!r} for queue {queue!r}: {value!r}, expected {expected}")
        if "x-dead-letter-routing-key" in self.given and "x-dead-letter-exchange" not in self.given:
            text = f"invalid arg 'x-dead-letter-routing-key' for queue {queue!r}: needs x-dead-letter-exchange"
            precondition_failed(text)
        name, kind = ("x-max-priority", "quorum") if self.quorum else ("x-delivery-limit", "classic")
        if name in self.given:
            precondition_failed(f"invalid arg {name!r} for queue {queue!r} of type {kind}")

    def check_same(self, queue: str, asked: QueueArguments) -> None:
        """A redeclaration has to ask for the same. Whole numbers of any width are equal, 10.0 is not 10. The default
        type may be left out."""
        for name in sorted(self.given.keys() | asked.given.keys()):
            default = "classic" if name == "x-queue-type" else None
            now, then = asked.given.get(name, default), self.given.get(name, default)
            if now != then or type(now) is not type(then):
                text = f"inequivalent arg {name!r} for queue {queue!r}: received {now!r} but current is {then!r}"
                precondition_failed(text)


# ------------------------------------------------------------------------------------------------------------- messages
def fresh(_new: Any = BasicProperties.__new__, _class: type[BasicProperties] = BasicProperties) -> BasicProperties:
    """BasicProperties() without the cost of its fourteen arguments."""
    made: BasicProperties = _new(_class)
    return made


def _copied_value(value: Any) -> Any:
    """A deep copy of dicts and lists; other objects in them are shared."""
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


class Message:
    """Body, properties, the exchange it was published to, its routing key, and those of the CC and BCC headers.

    A message never changes after its publish: all queues that contain it share it."""

    __slots__ = ("body", "cc_keys", "exchange", "key", "properties")

    def __init__(
        self, body: Any, properties: BasicProperties | None, exchange: str, key: str, cc_keys: tuple[str, ...] = ()
    ) -> None:
        self.body = body
        self.properties = properties
        self.exchange = exchange
        self.key = key
        self.cc_keys = cc_keys

    @property
    def headers(self) -> dict[str, Any]:
        return (self.properties and self.properties.headers) or {}

    @property
    def ttl(self) -> int | None:
        """Milliseconds, from the property `expiration`."""
        expiration = self.properties.expiration if self.properties is not None else None
        return None if expiration is None else int(expiration)


def message_of(body: Any, properties: Any, exchange: Any, key: Any) -> tuple[Message, ReplyError | None]:
    """The message of a publish, and what the broker refuses about it, or None. It has its own copy of the properties,
    which may be any object with these attributes, such as pika's. TypeError, ValueError: a property that no message can
    have."""
    exchange, key = require_string(exchange, "exchange"), require_string(key, "routing_key")
    if properties is None:
        return Message(body, None, exchange, key), None
    if type(properties) is BasicProperties:
        given = fresh()
        given.__dict__.update(properties.__dict__)
    elif any(hasattr(properties, name) for name in PROPERTY_NAMES):
        given = BasicProperties(**{name: getattr(properties, name, None) for name in PROPERTY_NAMES})
    else:
        raise TypeError(f"properties: {properties!r} (expected: BasicProperties)")
    if given.headers is not None:
        given.headers = table(given.headers, "headers")
    if given.priority is not None:
        given.priority = _priority(given.priority)
    if isinstance(given.reply_to, str):
        given.reply_to = str.__str__(given.reply_to)
    message = Message(body, given, exchange, key)
    try:
        _check_expiration(given)
        message.cc_keys = _carbon_copies(given.headers)
    except ReplyError as error:
        return message, error
    return message, None


def _priority(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"priority: {value!r} (expected: a whole number from 0 to 255)")
    if not 0 <= value <= 255:
        raise ValueError(f"priority: {value!r} (expected: a whole number from 0 to 255)")
    return int.__int__(value)


_WHOLE = re.compile(r"[+-]?[0-9]+")


def _check_expiration(properties: BasicProperties) -> None:
    expiration: Any = properties.expiration
    if expiration is None:
        return
    digits = isinstance(expiration, str) and len(expiration) <= 255 and _WHOLE.fullmatch(expiration)
    if not digits or not 0 <= int(expiration) <= MOST_MILLISECONDS:
        precondition_failed(f"invalid expiration {expiration!r}: expected milliseconds as a decimal string")
    properties.expiration = str.__str__(expiration)


def _carbon_copies(headers: dict[str, Any] | None) -> tuple[str, ...]:
    """The routing keys in the headers CC and BCC. BCC is removed."""
    keys: list[str] = []
    if headers:
        for name in ("CC", "BCC"):
            listed = headers.get(name)
            if name in headers and not isinstance(listed, list):
                precondition_failed(f"invalid header {name}: {listed!r} (expected: a list of routing keys)")
            keys += [key for key in listed or () if isinstance(key, str)]
        headers.pop("BCC", None)
    return tuple(keys)


def delivered_properties(message: Message, requeues: int) -> BasicProperties:
    """A copy of the properties for one delivery. requeues: how often it was requeued, where the queue counts that."""
    properties = fresh() if message.properties is None else copied(message.properties)
    if requeues:
        properties.headers = {**(properties.headers or {}), "x-delivery-count": requeues}
    return properties
