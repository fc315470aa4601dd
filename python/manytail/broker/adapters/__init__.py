"""BlockingConnection, in the module where pika has it. There are no counterparts of pika's connections for event
loops."""

from manytail.broker.adapters import blocking_connection
from manytail.broker.connection import BlockingConnection

__all__ = ["BlockingConnection", "blocking_connection"]
