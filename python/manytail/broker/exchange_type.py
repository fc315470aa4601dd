"""The four types of exchange, as in pika.exchange_type."""

import enum

__all__ = ["ExchangeType"]


class ExchangeType(enum.StrEnum):
    """How an exchange chooses the queues of a message: by routing key, all, by headers, by pattern of routing keys."""

    direct = "direct"
    fanout = "fanout"
    headers = "headers"
    topic = "topic"
