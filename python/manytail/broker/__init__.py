"""An in-process broker: RabbitMQ's semantics, pika's names, callbacks in the caller's thread or in a pool.

    from manytail import broker as pika

    with pika.BlockingConnection() as connection:
        channel = connection.channel()
        channel.queue_declare("work")
        channel.basic_publish("", "work", b"hello")
        print(channel.basic_get("work", auto_ack=True))

The map of the package
    BlockingConnection      as pika's, threads too; those of equal host, port and virtual host share one Broker of the
                            process
    reset()                 closes these brokers
    ConnectionParameters, URLParameters, PlainCredentials       as pika's
    Broker                  a virtual host of its own; Broker.connect() takes the executor of the callbacks
    Connection, Channel     as pika's BlockingConnection and BlockingChannel; callbacks of Connection run in a pool
    BasicProperties         the properties of a message; DeliveryMode
    adapters, channel, connection, credentials, delivery_mode, exceptions, exchange_type, frame, spec
                            pika's modules, as far as they apply here
    __version__             the version of pika that has these names and signatures

Design: docs/design/broker.md. From pika and back: docs/from-rabbitmq.md.
"""

from __future__ import annotations

from manytail.broker import (
    adapters,
    channel,
    connection,
    credentials,
    delivery_mode,
    exceptions,
    exchange_type,
    frame,
    spec,
)
from manytail.broker.channel import Channel
from manytail.broker.connection import BlockingConnection, Broker, Connection, reset
from manytail.broker.exchange_type import ExchangeType
from manytail.broker.parameters import ConnectionParameters, PlainCredentials, URLParameters
from manytail.broker.spec import BasicProperties, DeliveryMode, ReturnedMessage

__all__ = [
    "BasicProperties",
    "BlockingConnection",
    "Broker",
    "Channel",
    "Connection",
    "ConnectionParameters",
    "DeliveryMode",
    "ExchangeType",
    "PlainCredentials",
    "ReturnedMessage",
    "URLParameters",
    "__version__",
    "adapters",
    "channel",
    "connection",
    "credentials",
    "delivery_mode",
    "exceptions",
    "exchange_type",
    "frame",
    "reset",
    "spec",
]

__version__ = "1.4.4"
