"""Fixtures of tests about this process alone: a broker; a connection with an executor of its own; a channel that has
declared the queue "q"."""

from collections.abc import Iterator

import pytest

from manytail.broker import Broker, Channel, Connection


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def connection(broker: Broker) -> Connection:
    return broker.connect(max_workers=4)


@pytest.fixture
def channel(connection: Connection) -> Channel:
    made = connection.channel()
    made.queue_declare("q")
    return made
