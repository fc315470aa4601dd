"""Runs each script on manytail.broker, and on a server where there is one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker import sides
from broker.inside import watched_sections


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "side" in metafunc.fixturenames:
        names = list(getattr(metafunc.module, "SIDES", ["manytail", "blocking"]))
        if sides.SERVER:
            names.append(pytest.param("server", marks=pytest.mark.rabbitmq))
        metafunc.parametrize("side", names, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests are thread_unsafe: a script waits for all callbacks of its side, counts messages and starts threads."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(
                pytest.mark.thread_unsafe(reason="scripts own their brokers, and have threads of their own")
            )


@pytest.fixture
def side(request: pytest.FixtureRequest) -> Iterator[sides.Side]:
    with watched_sections(), sides.side(request.param) as made:
        since, until = getattr(request.function, "server_versions", ((3, 8), (999,)))
        if request.param == "server" and not since <= server_version(made) < until:
            pytest.skip(f"not what RabbitMQ {server_version(made)} does: {since} to {until}")
        yield made


@pytest.fixture
def connection(side: sides.Side) -> Any:
    return side.connect()


@pytest.fixture
def channel(side: sides.Side, connection: Any) -> Any:
    return side.channel(connection)


@pytest.fixture
def queue(side: sides.Side, channel: Any) -> str:
    return side.queue(channel)


def server_version(made: sides.Side) -> tuple[int, ...]:
    text: str = made.connect()._impl.server_properties["version"]
    made.connections.pop().close()
    return tuple(int(part) for part in text.split("-")[0].split("."))
