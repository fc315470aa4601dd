"""The exceptions of the broker. They have pika's names and base classes, so `except` clauses written for pika still
work.

Exceptions that only a network can cause (a lost stream, a missed heartbeat, a refused login) exist for such `except`
clauses, but are never raised.
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
    """The base class of all AMQP errors."""

    def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
        super().__init__(*args)


class AMQPConnectionError(AMQPError):
    """The connection failed or is closed."""


class StreamLostError(AMQPConnectionError):
    """Never raised: there is no network."""


class AMQPHeartbeatTimeout(AMQPConnectionError):
    """Never raised: there is no network."""


class AuthenticationError(AMQPConnectionError):
    """Never raised: credentials are not checked."""


class ConnectionBlockedTimeout(AMQPConnectionError):
    """Never raised: this broker never blocks a connection."""


class NoFreeChannels(AMQPConnectionError):
    """All 65,535 channel numbers of the connection are in use."""


class ConnectionWrongStateError(AMQPConnectionError, ClosedError):
    """The connection is closed, and the call needs an open one."""


class _Closed:
    """An exception whose two arguments are a reply code and a reply text."""

    args: tuple[Any, ...]

    def __init__(self, reply_code: int, reply_text: str) -> None:
        super().__init__(int(reply_code), str(reply_text))  # type: ignore[call-arg]

    @property
    def reply_code(self) -> int:
        """The AMQP reply code, for example 404."""
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
    """The connection was closed; reply_code and reply_text say why."""


class ConnectionClosedByBroker(ConnectionClosed):
    """The broker closed the connection because of an invalid call on one of its channels (reply codes 530 and 540)."""


class ConnectionClosedByClient(ConnectionClosed):
    """The program closed the connection with close()."""


class AMQPChannelError(AMQPError):
    """The channel failed or is closed, or one of its messages could not be delivered."""


class ChannelWrongStateError(AMQPChannelError, ClosedError):
    """The channel is closed, and the call needs an open one."""


class ChannelClosed(_Closed, AMQPChannelError):
    """The channel was closed; reply_code and reply_text say why."""


class ChannelClosedByBroker(ChannelClosed):
    """The broker closed the channel because of an invalid call on it (reply codes 403, 404, 405 and 406)."""


class ChannelClosedByClient(ChannelClosed):
    """The program closed the channel with close(), or a callback raised an exception."""


class DuplicateConsumerTag(AMQPChannelError):
    """The channel already has a consumer with this tag."""


class ConsumerCancelled(AMQPChannelError):
    """Never raised. To learn that a consumer was cancelled, use Channel.add_on_cancel_callback."""


class _WithMessages:
    """An exception about messages; each has a method, properties and a body."""

    sentence = "{} message(s)"

    def __init__(self, messages: Sequence[Any]) -> None:
        super().__init__(self.sentence.format(len(messages)))  # type: ignore[call-arg]
        self.messages = messages

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.messages,)  # not the sentence, which Exception would pass


class UnroutableError(_WithMessages, AMQPChannelError):
    """A mandatory message reached no queue. `messages` contains it. It is raised only after confirm_delivery()."""

    sentence = "{} mandatory message(s) reached no queue"


class NackError(_WithMessages, AMQPChannelError):
    """A full queue with x-overflow=reject-publish refused the message. It is raised only after confirm_delivery()."""

    sentence = "the message was refused, {} returned"


class InvalidChannelNumber(AMQPError):
    """The channel number is in use, or is not between 1 and 65,535."""


class ShortStringTooLong(AMQPError):
    """A name, routing key or tag is longer than 255 bytes of UTF-8."""


class ChannelError(Exception):
    """The base class of pika's errors for wrong use of a channel."""

    def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
        super().__init__(*args)


class ReentrancyError(Exception):
    """The call would wait for itself. It was made in a callback, or it interrupted another call of the same thread (for
    example in a signal handler) and cannot be postponed."""

    def __init__(self, *args: object) -> None:  # inspect.signature finds none of Exception
        super().__init__(*args)
