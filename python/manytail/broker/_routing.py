"""Exchanges and bindings: the way of a message to its queues.

One class per type of exchange. Each answers `matches(message, key)` with destinations, which are queues or other
exchanges. Topic patterns are in a trie of words, the usual structure for them and RabbitMQ's too: routing costs by the
words of the key and the patterns that share a prefix with it, not by the bindings. Exchanges finds them by name and
routes from exchange to exchange. Pure: no thread, lock or clock.

Invariant: a binding is in its source's `bindings` and in its destination's `incoming`, or in neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from manytail.broker._protocol import (
    BindingArguments,
    Message,
    ReplyError,
    access_refused,
    command_invalid,
    is_text,
    matches_value,
    not_found,
    precondition_failed,
    table,
)

PREDECLARED = {"amq.match": "headers"} | {f"amq.{kind}": kind for kind in ("direct", "fanout", "headers", "topic")}


class Destination:
    """What can be bound to an exchange: a queue or an exchange."""

    __slots__ = ("incoming", "name")
    is_queue = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.incoming: dict[Binding, Exchange] = {}


class Binding:
    """A binding, which equals another one of the same source, destination, key and arguments: both are one binding."""

    __slots__ = ("_fields", "destination", "key")

    def __init__(self, source: str, destination: Destination, key: str, arguments: Any) -> None:
        self.destination = destination
        self.key = key
        self._fields = (source, destination, key, arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Binding) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)


# ---------------------------------------------------------------------------------------------------- kinds of exchange
class Exchange(Destination):
    """Name, flags and bindings."""

    __slots__ = ("alternate", "auto_delete", "bindings", "durable", "exchanges_bound", "internal")
    type = ""

    def __init__(
        self, name: str, durable: bool = True, auto_delete: bool = False, internal: bool = False,
        alternate: str | None = None,
    ) -> None:
        super().__init__(name)
        self.durable, self.auto_delete, self.internal, self.alternate = durable, auto_delete, internal, alternate
        self.bindings: dict[Binding, dict[str, Any]] = {}
        self.exchanges_bound = 0  # bindings to exchanges: while 0, routing stays in this exchange

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        """The destinations for one routing key, each once."""
        raise NotImplementedError

    def check(self, arguments: dict[str, Any]) -> None:
        """Raise if this type cannot read these arguments of a binding."""

    def bind(self, destination: Destination, key: str, arguments: BindingArguments) -> None:
        """Add a binding, unless it exists."""
        self.check(arguments.values)
        binding = Binding(self.name, destination, key, arguments.identity)
        if binding not in self.bindings:
            self.bindings[binding] = arguments.values
            self.exchanges_bound += not destination.is_queue
            destination.incoming[binding] = self
            self._added(binding)

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding. Returns whether it existed."""
        if self.bindings.pop(binding, None) is None:
            return False
        self.exchanges_bound -= not binding.destination.is_queue
        del binding.destination.incoming[binding]
        self._removed(binding)
        return True

    def _added(self, binding: Binding) -> None:
        """Add a binding, which is in `bindings` already, to the index of the type, if it has one."""

    def _removed(self, binding: Binding) -> None:
        """Remove a binding, which `bindings` lacks already, from the index of the type, if it has one."""


def _count(counts: dict[Destination, int], destination: Destination, change: int) -> None:
    """Change how many bindings lead to a destination. At 0 it is removed."""
    counts[destination] = counts.get(destination, 0) + change
    if not counts[destination]:
        del counts[destination]


class DirectExchange(Exchange):
    """Matches if the routing key equals the binding's."""

    __slots__ = ("_by_key",)
    type = "direct"

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self._by_key: dict[str, dict[Destination, int]] = {}

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        if key not in self._by_key:
            return ()
        return self._by_key[key]

    def _added(self, binding: Binding) -> None:
        _count(self._by_key.setdefault(binding.key, {}), binding.destination, 1)

    def _removed(self, binding: Binding) -> None:
        counts = self._by_key[binding.key]
        _count(counts, binding.destination, -1)
        if not counts:
            del self._by_key[binding.key]


class FanoutExchange(Exchange):
    """Matches every message."""

    __slots__ = ("_counts",)
    type = "fanout"

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self._counts: dict[Destination, int] = {}

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        return self._counts

    def _added(self, binding: Binding) -> None:
        _count(self._counts, binding.destination, 1)

    def _removed(self, binding: Binding) -> None:
        _count(self._counts, binding.destination, -1)


class TopicExchange(Exchange):
    """Matches patterns of words."""

    __slots__ = ("_trie",)
    type = "topic"

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self._trie = Trie()

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        return self._trie.match(key)

    def _added(self, binding: Binding) -> None:
        self._trie.add(binding.key, binding.destination)

    def _removed(self, binding: Binding) -> None:
        self._trie.remove(binding.key, binding.destination)


class HeadersExchange(Exchange):
    """Compares the headers of the message with the arguments of each binding, one binding after the other."""

    __slots__ = ()
    type = "headers"

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        headers = message.headers
        bindings = self.bindings.items()
        return {binding.destination: None for binding, arguments in bindings if _headers_match(arguments, headers)}

    def check(self, arguments: dict[str, Any]) -> None:
        kind = arguments.get("x-match", "all")
        if not any(is_text(kind, name) for name in ("all", "any", "all-with-x", "any-with-x")):
            precondition_failed("invalid x-match field value in arguments: expected all, any, all-with-x or any-with-x")


def _headers_match(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    """A None in the binding matches any value of a header that exists, another value an equal one. Without conditions
    `all` matches and `any` does not."""
    kind = arguments.get("x-match", "all")
    with_x = kind.endswith("-with-x")
    tests = (
        name in headers and (wanted is None or matches_value(headers[name], wanted))
        for name, wanted in arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    )
    return any(tests) if kind.startswith("any") else all(tests)


class _DefaultExchange(Exchange):
    """The exchange with the empty name. It routes to the queue whose name is the routing key."""

    __slots__ = ("_queues",)
    type = "direct"

    def __init__(self, queues: Mapping[str, Any]) -> None:
        super().__init__("")
        self._queues = queues

    def matches(self, message: Message, key: str) -> Iterable[Any]:
        return (self._queues[key],) if key in self._queues else ()


# ------------------------------------------------------------------------------------------------------- topic patterns
class _Node:
    __slots__ = ("children", "ends", "loops")

    def __init__(self, loops: bool = False) -> None:
        self.loops = loops  # the node of a "#": it also matches any further words
        self.children: dict[str, _Node] = {}
        self.ends: dict[Any, int] = {}  # destination -> bindings of this pattern to it


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


class Trie:
    """Patterns and their destinations. Patterns and keys are split at "."; an empty word counts as a word, the empty
    string has no words. `*` is one word, `#` any number of words; both only as a whole word and only in patterns."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, pattern: str, destination: Any) -> None:
        node = self._root
        for word in _words(pattern):
            following = node.children.get(word)
            if following is None:
                following = node.children[word] = _Node(loops=word == "#")
            node = following
        _count(node.ends, destination, 1)

    def remove(self, pattern: str, destination: Any) -> None:
        """Remove one binding, and the nodes that only it needs."""
        path = [self._root]
        words = _words(pattern)
        for word in words:
            path.append(path[-1].children[word])
        _count(path[-1].ends, destination, -1)
        while words and not path[-1].ends and not path[-1].children:
            path.pop()
            del path[-1].children[words.pop()]

    def match(self, key: str) -> Iterable[Any]:
        """The destinations of all patterns that match, each once, in no particular order."""
        found: dict[Any, int] = {}
        states: dict[_Node, None] = {self._root: None}
        _skip_hashes(states)
        for word in _words(key):
            states = _step(states, word)
            if not states:
                return ()
        for node in states:
            found.update(node.ends)
        return found


def _skip_hashes(states: dict[_Node, None]) -> None:
    """`#` may match no word: a state before a `#` node is also in that node."""
    pending = list(states)
    for node in pending:
        after = node.children.get("#")
        if after is not None and after not in states:
            states[after] = None
            pending.append(after)


def _step(states: dict[_Node, None], word: str) -> dict[_Node, None]:
    """The states after one more word of the key. A state of the pattern automaton is a node, so there are never more
    states than nodes."""
    following: dict[_Node, None] = {}
    for node in states:
        if node.loops:
            following[node] = None
        children = node.children
        if children:
            if word != "#" and word != "*" and word in children:
                following[children[word]] = None
            if "*" in children:
                following[children["*"]] = None
    _skip_hashes(following)
    return following


# ---------------------------------------------------------------------------------------------------- all the exchanges
_CLASSES: tuple[type[Exchange], ...] = (DirectExchange, FanoutExchange, TopicExchange, HeadersExchange)
_KINDS = {kind.type: kind for kind in _CLASSES}


class ExchangeRequest:
    """What exchange_declare asks for, checked outside the broker's lock. `error` is raised inside."""

    def __init__(
        self, name: str, kind: Any, durable: bool, auto_delete: bool, internal: bool,
        arguments: Mapping[str, Any] | None,
    ) -> None:
        self.name = name
        alternate = table(arguments).get("alternate-exchange")
        self.flags: dict[str, Any] = {"durable": durable, "auto_delete": auto_delete, "internal": internal}
        self.flags["alternate"] = alternate
        kind = getattr(kind, "value", kind)  # an enum with that value is accepted
        self.error: ReplyError | None = None
        try:
            if not isinstance(kind, str) or kind not in _KINDS:
                command_invalid(f"unknown exchange type {kind!r}: expected one of {', '.join(_KINDS)}")
            self.kind = _KINDS[kind]
            if alternate is not None and not isinstance(alternate, str):
                text = f"invalid arg 'alternate-exchange' for exchange {name!r}: {alternate!r}, expected a name"
                precondition_failed(text)
        except ReplyError as error:
            self.error = error

    def check_same(self, existing: Exchange) -> None:
        check_same("exchange", self.name, {"type": self.kind.type, **self.flags}, existing)


class Exchanges:
    """All exchanges by name, including the predeclared ones. `queues`: the broker's, for the default exchange."""

    __slots__ = ("by_name",)

    def __init__(self, queues: Mapping[str, Any]) -> None:
        self.by_name: dict[str, Exchange] = {"": _DefaultExchange(queues)}
        for name, kind in PREDECLARED.items():
            self.by_name[name] = _KINDS[kind](name)

    def find(self, name: str) -> Exchange:
        exchange = self.by_name.get(name)
        if exchange is None:
            not_found("exchange", name)
        return exchange

    def route(self, exchange: Exchange, message: Message) -> Collection[Any]:
        """The queues for a message, each once."""
        if not message.cc_keys and not exchange.exchanges_bound:
            found: Any = exchange.matches(message, message.key)
            if found or exchange.alternate is None:
                return found  # type: ignore[no-any-return]
        return self._walk(exchange, message)

    def _walk(self, exchange: Exchange, message: Message) -> Collection[Any]:
        """Follow exchanges bound to exchanges, and the alternate of an exchange whose bindings lead nowhere. Visits
        each exchange once. The default exchange as an alternate has no bindings, so it leads nowhere."""
        queues: dict[Any, None] = {}
        pending = [exchange]
        seen = {exchange}
        for source in pending:
            found: dict[Any, None] = {}
            for key in (message.key, *message.cc_keys):
                found.update(dict.fromkeys(source.matches(message, key)))
            if not found and source.alternate:
                alternate = self.by_name.get(source.alternate)
                found = {} if alternate is None else {alternate: None}
            for destination in found:
                if destination.is_queue:
                    queues[destination] = None
                elif destination not in seen:
                    seen.add(destination)
                    pending.append(destination)
        return queues

    def declare(self, request: ExchangeRequest) -> None:
        not_default(request.name)
        if request.error is not None:
            raise request.error
        existing = self.by_name.get(request.name)
        if existing is not None:
            request.check_same(existing)
            return
        not_reserved("exchange", request.name)
        self.by_name[request.name] = request.kind(request.name, *request.flags.values())

    def delete(self, name: str, if_unused: bool) -> None:
        not_default(name)
        not_reserved("exchange", name)
        exchange = self.by_name.get(name)
        if exchange is None:
            return
        if if_unused and exchange.bindings:
            precondition_failed(f"exchange {name!r} in use")
        self._drop(exchange)

    def _drop(self, exchange: Exchange) -> None:
        """Remove the exchange, its bindings in both directions, and auto-delete exchanges that lose their last one."""
        del self.by_name[exchange.name]
        for binding in list(exchange.bindings):
            exchange.unbind(binding)
        self.forget(exchange)

    def forget(self, destination: Destination) -> None:
        """Remove the bindings that lead to a destination."""
        for binding, source in list(destination.incoming.items()):
            self._unbind(source, binding)

    def _unbind(self, source: Exchange, binding: Binding) -> None:
        removed = source.unbind(binding)
        if removed and source.auto_delete and not source.bindings and self.by_name.get(source.name) is source:
            self._drop(source)

    def bind(self, source: str, destination: Destination, key: str, arguments: BindingArguments) -> None:
        not_default(source)
        self.find(source).bind(destination, key, arguments)

    def unbind(self, source: str, destination: Destination | None, key: str, arguments: BindingArguments) -> None:
        """A binding that does not exist is no error."""
        not_default(source)
        exchange = self.by_name.get(source)
        if exchange is not None and destination is not None:
            self._unbind(exchange, Binding(source, destination, key, arguments.identity))


def not_default(name: str) -> None:
    if not name:
        access_refused("operation not permitted on the default exchange")


def not_reserved(kind: str, name: str) -> None:
    if name.startswith("amq."):
        access_refused(f"{kind} name {name!r} contains reserved prefix 'amq.*'")


def check_same(kind: str, name: str, asked: dict[str, Any], existing: Destination) -> None:
    """406 if a declaration of an existing name asks for something else."""
    for field, value in asked.items():
        current = getattr(existing, field)
        if value != current:
            text = f"inequivalent arg {field!r} for {kind} {name!r}: received {value!r} but current is {current!r}"
            precondition_failed(text)
