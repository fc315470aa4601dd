"""What queue_declare may ask for: each argument of the contract checked once, anything else refused."""

from __future__ import annotations

from typing import Any

from manytail.broker._refusals import precondition_failed

__all__ = ["QueueArguments"]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# name -> (test, what it expects)
_EXPECTED: dict[str, tuple[Any, str]] = {
    "x-max-length": (lambda value: _whole(value) and value >= 0, "a whole number >= 0"),
    "x-overflow": (lambda value: value in ("drop-head", "reject-publish", "reject-publish-dlx"), "drop-head, reject-publish or reject-publish-dlx"),
    "x-message-ttl": (lambda value: _whole(value) and value >= 0, "whole milliseconds >= 0"),
    "x-expires": (lambda value: _whole(value) and value > 0, "whole milliseconds > 0"),
    "x-max-priority": (lambda value: _whole(value) and 0 <= value <= 255, "a whole number from 0 to 255"),
    "x-dead-letter-exchange": (lambda value: isinstance(value, str), "the name of an exchange"),
    "x-dead-letter-routing-key": (lambda value: isinstance(value, str), "a routing key"),
    "x-delivery-limit": (lambda value: _whole(value) and value >= -1, "a whole number >= 0, or -1 for no limit"),
    "x-single-active-consumer": (lambda value: isinstance(value, bool), "true or false"),
    "x-queue-type": (lambda value: value in ("classic", "quorum"), "classic or quorum"),
}
# What a queue type does not have; on the server too.
_NOT_QUORUM = ("x-max-priority",)
_NOT_CLASSIC = ("x-delivery-limit",)


class QueueArguments:
    """The arguments of one queue, checked."""

    __slots__ = (
        "dead_letter_exchange",
        "dead_letter_key",
        "delivery_limit",
        "expires",
        "given",
        "max_length",
        "overflow",
        "priorities",
        "quorum",
        "single_active",
        "ttl",
    )

    def __init__(self, queue: str, given: dict[str, Any]) -> None:
        for name, value in given.items():
            if name not in _EXPECTED:
                precondition_failed(f"invalid arg {name!r} for queue {queue!r}: this broker does not know it")
            test, expected = _EXPECTED[name]
            if not test(value):
                precondition_failed(f"invalid arg {name!r} for queue {queue!r}: {value!r}, expected {expected}")
        self.given = given
        self.quorum = given.get("x-queue-type") == "quorum"
        self.max_length: int | None = given.get("x-max-length")
        self.overflow: str = given.get("x-overflow", "drop-head")
        self.ttl: int | None = given.get("x-message-ttl")
        self.expires: int | None = given.get("x-expires")
        self.priorities: int = given["x-max-priority"] + 1 if given.get("x-max-priority") else 0
        self.dead_letter_exchange: str | None = given.get("x-dead-letter-exchange")
        self.dead_letter_key: str | None = given.get("x-dead-letter-routing-key")
        self.delivery_limit: int | None = given.get("x-delivery-limit", 20 if self.quorum else None)
        if self.delivery_limit == -1:
            self.delivery_limit = None
        self.single_active: bool = given.get("x-single-active-consumer", False)
        if self.dead_letter_key is not None and self.dead_letter_exchange is None:
            precondition_failed(f"invalid arg 'x-dead-letter-routing-key' for queue {queue!r}: needs x-dead-letter-exchange")
        for name in _NOT_QUORUM if self.quorum else _NOT_CLASSIC:
            if name in given:
                precondition_failed(f"invalid arg {name!r} for queue {queue!r} of type {'quorum' if self.quorum else 'classic'}")

    def check_same(self, queue: str, asked: dict[str, Any]) -> None:
        """A redeclaration has to ask for the same; whole numbers of any width are the same, 10.0 is not 10. The default type may be left out."""
        for name in sorted(self.given.keys() | asked.keys()):
            default = "classic" if name == "x-queue-type" else None
            now, then = asked.get(name, default), self.given.get(name, default)
            if now != then or type(now) is not type(then):
                precondition_failed(f"inequivalent arg {name!r} for queue {queue!r}: received {now!r} but current is {then!r}")
