"""A message broker inside your process, with RabbitMQ's semantics and pika's names. No server and no network.

    from manytail import broker as pika

    with pika.BlockingConnection() as connection:
        channel = connection.channel()
        channel.queue_declare("work")
        channel.basic_publish("", "work", b"hello")
        print(channel.basic_get("work", auto_ack=True))

In this package:
    BlockingConnection      works like pika's; callbacks run in the thread that waits for them. Connections with the
                            same host, port and virtual host share one Broker of the process
    reset()                 closes these shared brokers
    ConnectionParameters, URLParameters, PlainCredentials       work like pika's
    Broker                  a separate virtual host; callbacks of its connections run in a thread pool
    Connection, Channel     have the methods of pika's BlockingConnection and BlockingChannel
    BasicProperties         the properties of a message
    DeliveryMode            values for BasicProperties.delivery_mode
    adapters, channel, connection, credentials, delivery_mode, exceptions, exchange_type, frame, spec
                            pika's modules, as far as they apply here
    __version__             the version of pika that has these names and signatures

Moving from pika and back: docs/from-rabbitmq.md. Design: docs/design/broker.md.
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
