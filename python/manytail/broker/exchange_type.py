"""The four types of exchange, as in pika.exchange_type."""

import enum

__all__ = ["ExchangeType"]


class ExchangeType(enum.StrEnum):
    direct = "direct"
    fanout = "fanout"
    headers = "headers"
    topic = "topic"
