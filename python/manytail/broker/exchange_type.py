"""The four types of exchange, as in pika.exchange_type."""

import enum

__all__ = ["ExchangeType"]


class ExchangeType(enum.StrEnum):
    """How an exchange chooses the queues for a message.

    direct: queues bound with the same routing key. fanout: all bound queues. headers: queues whose binding arguments
    match the headers. topic: queues whose binding is a pattern that matches the routing key."""

    direct = "direct"
    fanout = "fanout"
    headers = "headers"
    topic = "topic"
