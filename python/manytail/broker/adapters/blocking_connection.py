"""Contains the classes of a BlockingConnection, under the same module name as in pika. BlockingChannel is Channel."""

from manytail.broker.channel import Channel as BlockingChannel
from manytail.broker.connection import BlockingConnection
from manytail.broker.spec import ReturnedMessage

__all__ = ["BlockingChannel", "BlockingConnection", "ReturnedMessage"]
