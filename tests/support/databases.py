"""Fixtures for tests that need a database: a file of SQLite, and a real PostgreSQL server where the machine has one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support import postgres

_numbers = iter(range(1_000_000))


def _running() -> Iterator[postgres.Server]:
    if why := postgres.missing():
        pytest.skip(why)
    made = postgres.Server()
    yield made
    made.remove()


server = pytest.fixture(_running, scope="session", name="server")
restarted = pytest.fixture(_running, scope="session", name="restarted")


@pytest.fixture
def own_server(restarted: postgres.Server) -> Iterator[postgres.Server]:
    """A server that the test may stop, with a database of its own."""
    restarted.database = f"db{next(_numbers)}"
    restarted.execute(f"CREATE DATABASE {restarted.database}", database="postgres")
    yield restarted
    if not restarted.runs:
        restarted.start()


@pytest.fixture
def away(server: postgres.Server) -> str:
    """The URL of a server that does not run, one for each test: what is waited for is the same for all of one URL."""
    return server.url(database=f"db{next(_numbers)}").replace(f":{server.port}/", ":1/")


class Database(NamedTuple):
    """A fresh, empty database."""

    url: str
    kind: str
    query: Any


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    import sqlite3

    file = tmp_path / "shared.db"

    def query(*statements: str) -> list[Any]:
        connection = sqlite3.connect(file, timeout=60, isolation_level=None)
        try:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
            return rows
        finally:
            connection.close()

    return Database(f"sqlite:///{file}", "sqlite", query)


@pytest.fixture
def postgresql(server: postgres.Server) -> Database:
    name = f"db{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name}")
    return Database(
        server.url(database=name), "postgresql", lambda *statements: server.execute(*statements, database=name)
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Database:
    """A test with this fixture runs on both databases."""
    found: Database = request.getfixturevalue(request.param)
    return found
