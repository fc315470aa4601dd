"""Exchanges: where the bindings of one source lead. One class per type; each answers `matches(message, key)` with destinations.

A destination is a queue or another exchange. The walk over several exchanges is in _vhost.py: it has the visited set, the alternates and the CC
keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from manytail.broker._messages import Message
from manytail.broker._refusals import command_invalid, precondition_failed
from manytail.broker._topics import Trie

__all__ = ["Binding", "Destination", "DirectExchange", "Exchange", "FanoutExchange", "HeadersExchange", "TopicExchange", "exchange_class"]


class Destination:
    """What can be bound to an exchange: a queue or an exchange."""

    __slots__ = ("incoming", "name")
    is_queue = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.incoming: dict[Binding, Exchange] = {}  # the bindings that lead here, each with its source


class Binding(NamedTuple):
    """Its identity: the same destination, key and arguments bound twice are one binding."""

    source: str
    destination: Destination
    key: str
    arguments: Hashable


def frozen(value: Any) -> Hashable:
    """A table of arguments as something to compare and hash: by key, whole numbers of any width alike, but no float like an int."""
    if isinstance(value, dict):
        return tuple(sorted((name, frozen(inner)) for name, inner in value.items()))
    if isinstance(value, list):
        return tuple(frozen(inner) for inner in value)
    return (type(value).__name__, repr(value))


class Exchange(Destination):
    """Name, flags and bindings."""

    __slots__ = ("alternate", "arguments", "auto_delete", "bindings", "durable", "exchanges_bound", "internal")
    type = ""

    def __init__(self, name: str, durable: bool, auto_delete: bool, internal: bool, arguments: dict[str, Any]) -> None:
        super().__init__(name)
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        alternate = arguments.get("alternate-exchange")
        if alternate is not None and not isinstance(alternate, str):
            precondition_failed(f"invalid arg 'alternate-exchange' for exchange {name!r}: {alternate!r}, expected a name")
        self.alternate: str | None = alternate
        self.bindings: dict[Binding, dict[str, Any]] = {}
        self.exchanges_bound = 0  # destinations that are exchanges: while 0, routing needs no walk

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        """The destinations for one routing key, each once."""
        raise NotImplementedError

    def check(self, arguments: dict[str, Any]) -> None:
        """Refuse binding arguments that this type cannot read."""

    def bind(self, destination: Destination, key: str, arguments: dict[str, Any]) -> None:
        """Idempotent."""
        self.check(arguments)
        binding = Binding(self.name, destination, key, frozen(arguments))
        if binding not in self.bindings:
            self.bindings[binding] = arguments
            self.exchanges_bound += not destination.is_queue
            destination.incoming[binding] = self
            self._added(binding, arguments)

    def unbind(self, binding: Binding) -> bool:
        """Whether there was such a binding."""
        if binding not in self.bindings:
            return False
        arguments = self.bindings.pop(binding)
        self.exchanges_bound -= not binding.destination.is_queue
        del binding.destination.incoming[binding]
        self._removed(binding, arguments)
        return True

    def binding(self, destination: Destination, key: str, arguments: dict[str, Any]) -> Binding:
        return Binding(self.name, destination, key, frozen(arguments))

    def _added(self, binding: Binding, arguments: dict[str, Any]) -> None:
        raise NotImplementedError

    def _removed(self, binding: Binding, arguments: dict[str, Any]) -> None:
        raise NotImplementedError


class DirectExchange(Exchange):
    """The whole key."""

    __slots__ = ("_by_key",)
    type = "direct"

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self._by_key: dict[str, dict[Destination, int]] = {}

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        return self._by_key.get(key, ())

    def _added(self, binding: Binding, arguments: dict[str, Any]) -> None:
        counts = self._by_key.setdefault(binding.key, {})
        counts[binding.destination] = counts.get(binding.destination, 0) + 1

    def _removed(self, binding: Binding, arguments: dict[str, Any]) -> None:
        counts = self._by_key[binding.key]
        counts[binding.destination] -= 1
        if not counts[binding.destination]:
            del counts[binding.destination]
        if not counts:
            del self._by_key[binding.key]


class FanoutExchange(Exchange):
    """Everything, whatever the key."""

    __slots__ = ("_counts",)
    type = "fanout"

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self._counts: dict[Destination, int] = {}

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        return self._counts

    def _added(self, binding: Binding, arguments: dict[str, Any]) -> None:
        self._counts[binding.destination] = self._counts.get(binding.destination, 0) + 1

    def _removed(self, binding: Binding, arguments: dict[str, Any]) -> None:
        self._counts[binding.destination] -= 1
        if not self._counts[binding.destination]:
            del self._counts[binding.destination]


class TopicExchange(Exchange):
    """Patterns of words."""

    __slots__ = ("_trie",)
    type = "topic"

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self._trie = Trie()

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        return self._trie.match(key)

    def _added(self, binding: Binding, arguments: dict[str, Any]) -> None:
        self._trie.add(binding.key, binding.destination)

    def _removed(self, binding: Binding, arguments: dict[str, Any]) -> None:
        self._trie.remove(binding.key, binding.destination)


class HeadersExchange(Exchange):
    """The headers of the message against the arguments of each binding, one binding after the other."""

    __slots__ = ()
    type = "headers"

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        headers = message.headers
        return {binding.destination: None for binding, arguments in self.bindings.items() if _headers_match(arguments, headers)}

    def check(self, arguments: dict[str, Any]) -> None:
        kind = arguments.get("x-match", "all")
        if kind not in ("all", "any", "all-with-x", "any-with-x"):
            precondition_failed(f"invalid x-match field value {kind!r} in arguments: expected all, any, all-with-x or any-with-x")

    def _added(self, binding: Binding, arguments: dict[str, Any]) -> None:
        """`bindings` is all that this type needs."""

    def _removed(self, binding: Binding, arguments: dict[str, Any]) -> None:
        """`bindings` is all that this type needs."""


def _headers_match(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    """A None in the binding asks for the header, any other value for an equal one. No conditions: `all` holds, `any` does not."""
    kind = arguments.get("x-match", "all")
    with_x = kind.endswith("-with-x")
    tests = (
        name in headers and (wanted is None or _alike(headers[name], wanted))
        for name, wanted in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    )
    return any(tests) if kind.startswith("any") else all(tests)


def _alike(value: Any, wanted: Any) -> bool:
    """Equal as AMQP values: true is not 1."""
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


_CLASSES: dict[str, type[Exchange]] = {made.type: made for made in (DirectExchange, FanoutExchange, TopicExchange, HeadersExchange)}


def exchange_class(name: Any) -> type[Exchange]:
    """The class of a type's name; an enum with that value will do."""
    name = getattr(name, "value", name)
    if name not in _CLASSES:
        command_invalid(f"unknown exchange type {name!r}: expected one of {', '.join(_CLASSES)}")
    return _CLASSES[name]
