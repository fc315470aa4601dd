"""The exceptions of the broker, with pika's names and bases, so that `except` clauses written for pika keep their
meaning.

What only a network can cause (a lost stream, a missed heartbeat, a refused login) is never raised here; those names
exist because handlers name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manytail.errors import ClosedError

__all__ = [
    "AMQPChannelError",
    "AMQPConnectionError",
    "AMQPError",
    "AMQPHeartbeatTimeout",
    "AuthenticationError",
    "ChannelClosed",
    "ChannelClosedByBroker",
    "ChannelClosedByClient",
    "ChannelError",
    "ChannelWrongStateError",
    "ConnectionBlockedTimeout",
    "ConnectionClosed",
    "ConnectionClosedByBroker",
    "ConnectionClosedByClient",
    "ConnectionWrongStateError",
    "ConsumerCancelled",
    "DuplicateConsumerTag",
    "InvalidChannelNumber",
    "NackError",
    "NoFreeChannels",
    "ReentrancyError",
    "ShortStringTooLong",
    "StreamLostError",
    "UnroutableError",
]


class AMQPError(Exception):
    """Base of all errors that the protocol names."""

    def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
        super().__init__(*args)


class AMQPConnectionError(AMQPError):
    """A connection failed or is gone."""


class StreamLostError(AMQPConnectionError):
    """Never raised: it needs a network."""


class AMQPHeartbeatTimeout(AMQPConnectionError):
    """Never raised: it needs a network."""


class AuthenticationError(AMQPConnectionError):
    """Never raised: it needs a network."""


class ConnectionBlockedTimeout(AMQPConnectionError):
    """Never raised: this broker blocks no connection."""


class NoFreeChannels(AMQPConnectionError):
    """All 65,535 channel numbers of the connection are in use."""


class ConnectionWrongStateError(AMQPConnectionError, ClosedError):
    """The call needs an open connection."""


class _Closed:
    """Reply code and text, as the two arguments of the exception."""

    args: tuple[Any, ...]

    def __init__(self, reply_code: int, reply_text: str) -> None:
        super().__init__(int(reply_code), str(reply_text))  # type: ignore[call-arg]

    @property
    def reply_code(self) -> int:
        """The number that AMQP has for the reason."""
        code: int = self.args[0]
        return code

    @property
    def reply_text(self) -> str:
        """The reason in words."""
        text: str = self.args[1]
        return text

    def __repr__(self) -> str:
        return f"{type(self).__name__}: ({self.reply_code}) {self.reply_text!r}"


class ConnectionClosed(_Closed, AMQPConnectionError):
    """The connection was closed, with a reply code and a reply text."""


class ConnectionClosedByBroker(ConnectionClosed):
    """A call on one of its channels made the broker close the connection (530, 540)."""


class ConnectionClosedByClient(ConnectionClosed):
    """`close` was called."""


class AMQPChannelError(AMQPError):
    """A channel failed, is gone, or has something to report about a message."""


class ChannelWrongStateError(AMQPChannelError, ClosedError):
    """The call needs an open channel."""


class ChannelClosed(_Closed, AMQPChannelError):
    """The channel was closed, with a reply code and a reply text."""


class ChannelClosedByBroker(ChannelClosed):
    """A call on it made the broker close the channel (403, 404, 405, 406)."""


class ChannelClosedByClient(ChannelClosed):
    """`close` was called."""


class DuplicateConsumerTag(AMQPChannelError):
    """The channel has a consumer of that tag already."""


class ConsumerCancelled(AMQPChannelError):
    """Never raised: use `add_on_cancel_callback`."""


class _WithMessages:
    """The messages that an exception is about, each with method, properties and body."""

    sentence = "{} message(s)"

    def __init__(self, messages: Sequence[Any]) -> None:
        super().__init__(self.sentence.format(len(messages)))  # type: ignore[call-arg]
        self.messages = messages

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.messages,)  # not the sentence, which Exception would pass


class UnroutableError(_WithMessages, AMQPChannelError):
    """With confirms on: a mandatory message reached no queue; it is in `messages`."""

    sentence = "{} mandatory message(s) reached no queue"


class NackError(_WithMessages, AMQPChannelError):
    """With confirms on: a queue refused the message (x-overflow reject-publish)."""

    sentence = "the message was refused, {} returned"


class InvalidChannelNumber(AMQPError):
    """A channel number is in use, or not one of 1 to 65,535."""


class ShortStringTooLong(AMQPError):
    """A name, key or tag of more than 255 bytes of UTF-8."""


class ChannelError(Exception):
    """Base of pika's usage errors of a channel."""

    def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
        super().__init__(*args)


class ReentrancyError(Exception):
    """The call would wait for itself, or it interrupted another call of the same thread and could not be postponed."""

    def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
        super().__init__(*args)
