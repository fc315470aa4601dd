"""Addresses of connections: parameters with pika's names, and the brokers of this process that they name."""

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from support.process import run_command

from manytail import broker
from manytail.broker import BlockingConnection, ConnectionParameters, PlainCredentials, URLParameters, exceptions
from manytail.broker.parameters import Parameters


@pytest.fixture(autouse=True)
def own_brokers() -> Iterator[None]:
    broker.reset()
    yield
    broker.reset()


def values(parameters: Any) -> dict[str, Any]:
    """Every parameter by name, of both sides."""
    names = [
        name
        for name in dir(pika.ConnectionParameters)
        if isinstance(getattr(pika.ConnectionParameters, name), property)
    ]
    found = {name: getattr(parameters, name) for name in names}
    credentials = found["credentials"]
    return found | {
        "credentials": (type(credentials).__name__, credentials.username, credentials.password),
        "ssl_options": None,
    }


@pytest.mark.parametrize(
    "given",
    [
        {},
        {
            "host": "a",
            "port": 1,
            "virtual_host": "b",
            "heartbeat": 30,
            "channel_max": 7,
            "frame_max": 4096,
            "locale": "de",
        },
        {
            "blocked_connection_timeout": 2.5,
            "socket_timeout": 1,
            "stack_timeout": None,
            "connection_attempts": 3,
            "retry_delay": 0.5,
        },
        {"port": "5673"},
        {"port": 5673.9},
        {"client_properties": {"connection_name": "me"}, "tcp_options": {"TCP_KEEPIDLE": 60}, "socket_timeout": None},
    ],
)
def test_parameters_are_pikas(given: dict[str, Any]) -> None:
    assert values(ConnectionParameters(**given)) == values(pika.ConnectionParameters(**given))


@pytest.mark.parametrize(
    "url",
    [
        "amqp://localhost",
        "amqp://user:pass%20word@host:1234/vhost",
        "amqp://guest:guest@localhost:5672/%2F",
        "amqps://host/%2f",
        "amqp://host?heartbeat=600&blocked_connection_timeout=300&connection_attempts=3"
        "&retry_delay=0.5&socket_timeout=2&locale=de",
    ],
)
def test_urls_are_pikas(url: str) -> None:
    assert values(URLParameters(url)) == values(pika.URLParameters(url))


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: ConnectionParameters(port=70000), ValueError, "port: 70000"),
        (lambda: ConnectionParameters(port="five"), TypeError, "port: 'five'"),
        (lambda: ConnectionParameters(port=None), TypeError, "port: None"),
        (lambda: ConnectionParameters(host=object()), TypeError, "host: "),
        (lambda: ConnectionParameters(heartbeat="often"), ValueError, "heartbeat: 'often'"),
        (lambda: ConnectionParameters(hots="a"), TypeError, "hots"),
        (lambda: ConnectionParameters(retry_delay=-1), ValueError, "retry_delay: -1"),
        (lambda: URLParameters("http://host?hartbeat=1"), ValueError, "hartbeat"),
        (lambda: URLParameters("amqp://host?heartbeat=1&heartbeat=2"), ValueError, "heartbeat"),
        (lambda: URLParameters("amqp://host?heartbeat=often"), ValueError, "heartbeat: 'often'"),
        (lambda: URLParameters("ftp://host"), ValueError, "ftp"),
        (lambda: setattr(Parameters(), "hots", "a"), AttributeError, "hots"),
        (lambda: BlockingConnection("localhost"), TypeError, "localhost"),  # type: ignore[arg-type]
        (lambda: BlockingConnection([]), ValueError, "parameters"),
    ],
)
def test_parameters_that_are_wrong(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_connections_of_equal_address_meet() -> None:
    one = BlockingConnection(ConnectionParameters("host", 1, "v", PlainCredentials("a", "b"), heartbeat=1))
    one.channel().queue_declare("q")
    same = BlockingConnection([URLParameters("amqp://host:1/v"), ConnectionParameters("elsewhere")])
    assert same.channel().queue_declare("q", passive=True).method.queue == "q"
    for other in (
        ConnectionParameters("host2", 1, "v"),
        ConnectionParameters("host", 2, "v"),
        ConnectionParameters("host", 1, "w"),
        None,
    ):
        with pytest.raises(exceptions.ChannelClosedByBroker):
            BlockingConnection(other).channel().queue_declare("q", passive=True)


def test_what_one_connection_leaves_is_there_for_the_next_until_reset() -> None:
    with BlockingConnection() as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"1")
    assert isinstance(connection, broker.Connection)
    assert connection.is_closed
    del connection, channel
    gc.collect()
    second = BlockingConnection()
    assert second.channel().basic_get("q", True)[2] == b"1"
    broker.reset()
    assert second.is_closed
    with pytest.raises(exceptions.ChannelClosedByBroker):
        BlockingConnection().channel().queue_declare("q", passive=True)


def test_a_broker_that_was_closed_makes_way_for_another() -> None:
    """As one that reset() closes in another thread while this one connects."""
    BlockingConnection()._broker.close()
    with BlockingConnection() as connection:
        connection.channel().queue_declare("q")
    assert BlockingConnection().channel().queue_declare("q", passive=True).method.queue == "q"


def test_importing_starts_no_thread_makes_no_broker_and_needs_no_pika() -> None:
    code = (
        "import sys, threading, manytail.broker.connection as c; "
        "print(threading.active_count(), len(c._brokers), 'pika' in sys.modules)"
    )
    ran = run_command(sys.executable, "-c", code)
    assert ran.stdout == "1 0 False\n"
