"""The tables of a Shared, and how they are made. Imports SQLAlchemy: only `_shared_store` imports this, on first use.

    manytail_layout    one row: the version of the layout
    manytail_names     one row per name of a Shared: the codec of its results, and its spent budget
    manytail_results   remembered results: the first record stays, unless it is older than max_age
    manytail_rates     one row per limit: `tat`, the time from which on no start is leased (`_rates`), in seconds since
                       1970 by the database's clock

The layout's version is the number of STEPS that were taken. A database with fewer gets the missing ones in one
transaction, under a lock so that one process at a time does it. One with more was made by a newer manytail and is
refused.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    inspect,
    text,
)

_LOCK = 0x6D616E797461696C  # "manytail": the key of PostgreSQL's advisory lock

_tables = MetaData()

LAYOUT = Table("manytail_layout", _tables, Column("version", Integer, nullable=False))
NAMES = Table(
    "manytail_names",
    _tables,
    Column("id", Integer, primary_key=True),
    Column("name", String(100), nullable=False, unique=True),
    Column("codec", Text),
    Column("result_schema", Text),
    Column("spent", Double, nullable=False, server_default=text("0")),
)
RESULTS = Table(
    "manytail_results",
    _tables,
    Column("name", Integer, ForeignKey(NAMES.c.id), nullable=False),
    Column("id", LargeBinary, nullable=False),
    Column("result", LargeBinary, nullable=False),
    Column("recorded_at", Double, nullable=False),
    PrimaryKeyConstraint("name", "id"),
)
RATES = Table(
    "manytail_rates",
    _tables,
    Column("name", Integer, ForeignKey(NAMES.c.id), nullable=False),
    Column("limit_id", LargeBinary, nullable=False),
    Column("rate", Double, nullable=False),
    Column("tat", Double, nullable=False),
    PrimaryKeyConstraint("name", "limit_id"),
)
STEPS = ([NAMES, RESULTS], [RATES])


class LayoutError(ValueError):
    """The tables were made by a newer manytail."""


def version(connection: Connection) -> int | None:
    """The version of the layout. None: there are no tables."""
    if not inspect(connection).has_table(LAYOUT.name):
        return None
    found: Any = connection.execute(text("SELECT max(version) FROM manytail_layout")).scalar()
    return None if found is None else int(found)


def make(connection: Connection, steps: Any = STEPS) -> None:
    """Bring the layout up to date, inside the transaction of this connection. LayoutError: a newer manytail made it."""
    if version(connection) == len(steps):
        return
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    # SQLite's BEGIN IMMEDIATE has the lock. Another process may have made the tables before this one got the lock.
    found = version(connection)
    if found is not None and found > len(steps):
        raise LayoutError(
            f"shared: the tables have layout {found}, this manytail knows {len(steps)} "
            "(expected: a newer manytail here)"
        )
    if found is None:
        LAYOUT.create(connection, checkfirst=True)
        connection.execute(text("INSERT INTO manytail_layout (version) VALUES (0)"))
    for step in steps[found or 0 :]:
        _tables.create_all(connection, tables=step)
    connection.execute(text("UPDATE manytail_layout SET version = :version"), {"version": len(steps)})
