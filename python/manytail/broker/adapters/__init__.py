"""Contains BlockingConnection, under the same module name as in pika. There are no counterparts of pika's connections
for event loops."""

from manytail.broker.adapters import blocking_connection
from manytail.broker.connection import BlockingConnection

__all__ = ["BlockingConnection", "blocking_connection"]
