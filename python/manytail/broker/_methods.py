"""What a broker answers: the methods of AMQP 0-9-1 as objects with pika's attributes (`method.delivery_tag`, `frame.method.message_count`)."""

from __future__ import annotations

from typing import Any

__all__ = ["Basic", "Exchange", "Method", "Queue", "ReturnedMessage", "Tx"]


class _Fields:
    """Equality and repr by the slots; a subclass names them and takes them in that order."""

    __slots__: tuple[str, ...] = ()
    NAME = "Method"

    def _values(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.NAME}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})>"


class Method(_Fields):
    """The frame round an answer: `frame.method` is one of the classes below."""

    __slots__ = ("channel_number", "method")
    NAME = "METHOD"

    def __init__(self, channel_number: int, method: Any) -> None:
        self.channel_number = channel_number
        self.method = method


class ReturnedMessage:
    """A message that came back: in `UnroutableError.messages`."""

    __slots__ = ("body", "method", "properties")

    def __init__(self, method: Any, properties: Any, body: Any) -> None:
        self.method = method
        self.properties = properties
        self.body = body


def _empty(name: str) -> type[_Fields]:
    """An answer without fields."""
    return type(name.rpartition(".")[2], (_Fields,), {"__slots__": (), "NAME": name, "__module__": __name__, "__qualname__": name})


class Basic:
    class Deliver(_Fields):
        __slots__ = ("consumer_tag", "delivery_tag", "exchange", "redelivered", "routing_key")
        NAME = "Basic.Deliver"

        def __init__(
            self, consumer_tag: str = "", delivery_tag: int = 0, redelivered: bool = False, exchange: str = "", routing_key: str = ""
        ) -> None:
            self.consumer_tag = consumer_tag
            self.delivery_tag = delivery_tag
            self.redelivered = redelivered
            self.exchange = exchange
            self.routing_key = routing_key

    class GetOk(_Fields):
        __slots__ = ("delivery_tag", "exchange", "message_count", "redelivered", "routing_key")
        NAME = "Basic.GetOk"

        def __init__(
            self, delivery_tag: int = 0, redelivered: bool = False, exchange: str = "", routing_key: str = "", message_count: int = 0
        ) -> None:
            self.delivery_tag = delivery_tag
            self.redelivered = redelivered
            self.exchange = exchange
            self.routing_key = routing_key
            self.message_count = message_count

    class Return(_Fields):
        __slots__ = ("exchange", "reply_code", "reply_text", "routing_key")
        NAME = "Basic.Return"

        def __init__(self, reply_code: int = 0, reply_text: str = "", exchange: str = "", routing_key: str = "") -> None:
            self.reply_code = reply_code
            self.reply_text = reply_text
            self.exchange = exchange
            self.routing_key = routing_key

    class Cancel(_Fields):
        __slots__ = ("consumer_tag", "nowait")
        NAME = "Basic.Cancel"

        def __init__(self, consumer_tag: str = "", nowait: bool = False) -> None:
            self.consumer_tag = consumer_tag
            self.nowait = nowait


class Queue:
    class DeclareOk(_Fields):
        __slots__ = ("consumer_count", "message_count", "queue")
        NAME = "Queue.DeclareOk"

        def __init__(self, queue: str = "", message_count: int = 0, consumer_count: int = 0) -> None:
            self.queue = queue
            self.message_count = message_count
            self.consumer_count = consumer_count

    class DeleteOk(_Fields):
        __slots__ = ("message_count",)
        NAME = "Queue.DeleteOk"

        def __init__(self, message_count: int = 0) -> None:
            self.message_count = message_count

    class PurgeOk(_Fields):
        __slots__ = ("message_count",)
        NAME = "Queue.PurgeOk"

        def __init__(self, message_count: int = 0) -> None:
            self.message_count = message_count

    BindOk = _empty("Queue.BindOk")
    UnbindOk = _empty("Queue.UnbindOk")


class Exchange:
    DeclareOk = _empty("Exchange.DeclareOk")
    DeleteOk = _empty("Exchange.DeleteOk")
    BindOk = _empty("Exchange.BindOk")
    UnbindOk = _empty("Exchange.UnbindOk")


class Tx:
    SelectOk = _empty("Tx.SelectOk")
    CommitOk = _empty("Tx.CommitOk")
    RollbackOk = _empty("Tx.RollbackOk")
