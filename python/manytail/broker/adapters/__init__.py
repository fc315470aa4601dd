"""BlockingConnection, where pika has it. pika's connections for event loops do not exist here."""

from manytail.broker.adapters import blocking_connection
from manytail.broker.connection import BlockingConnection

__all__ = ["BlockingConnection", "blocking_connection"]
