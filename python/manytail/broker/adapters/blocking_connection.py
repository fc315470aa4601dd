"""The classes of a BlockingConnection, in the module where pika has them. BlockingChannel is Channel."""

from manytail.broker.channel import Channel as BlockingChannel
from manytail.broker.connection import BlockingConnection
from manytail.broker.spec import ReturnedMessage

__all__ = ["BlockingChannel", "BlockingConnection", "ReturnedMessage"]
