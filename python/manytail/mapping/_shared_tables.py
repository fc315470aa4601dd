"""The tables of a Shared, and how they are made.

    manytail_layout    one row: the version of the layout
    manytail_names     one row per name of a Shared: the codec of its results, and its spent budget
    manytail_results   remembered results: the first record stays, unless it is older than max_age
    manytail_rates     one row per limit: `tat`, the time from which on no start is leased (`_rates`), in seconds since
                       1970 by the database's clock

They are made in one transaction, under a lock so that one process at a time does it. Tables of another version are
refused and left as they are. Both databases read these types: SQLite keeps bytes in a column of any type.
"""

from __future__ import annotations

from ._shared_database import Transaction

VERSION = 3

_TABLES = (
    "manytail_layout (version INTEGER NOT NULL)",
    "manytail_names (id INTEGER{identity} PRIMARY KEY, name VARCHAR(100) NOT NULL UNIQUE, codec TEXT, "
    "result_schema TEXT, spent DOUBLE PRECISION NOT NULL DEFAULT 0)",
    "manytail_results (name INTEGER NOT NULL REFERENCES manytail_names (id), id BYTEA NOT NULL, result BYTEA NOT NULL, "
    "recorded_at DOUBLE PRECISION NOT NULL, PRIMARY KEY (name, id))",
    "manytail_rates (name INTEGER NOT NULL REFERENCES manytail_names (id), limit_id BYTEA NOT NULL, "
    "rate DOUBLE PRECISION NOT NULL, tat DOUBLE PRECISION NOT NULL, PRIMARY KEY (name, limit_id))",
)


class LayoutError(ValueError):
    """The tables are those of another manytail."""


def _exist(transaction: Transaction) -> bool:
    """Whether the tables exist. LayoutError: they have another version."""
    if transaction.value(transaction.database.has_layout) is None:
        return False
    found = transaction.value("SELECT max(version) FROM manytail_layout")
    if found != VERSION:
        which = "a newer manytail" if found is not None and found > VERSION else "an older manytail"
        raise LayoutError(
            f"shared: the tables have layout {found}, of {which} (expected: layout {VERSION}, or a database without "
            "tables manytail_*)"
        )
    return True


def make(transaction: Transaction) -> None:
    """Make the tables if they are missing, inside this transaction."""
    if _exist(transaction):
        return
    transaction.execute(transaction.database.lock_layout)
    if _exist(transaction):  # another process made them before this one got the lock
        return
    for table in _TABLES:
        transaction.execute(f"CREATE TABLE {table.format(identity=transaction.database.identity)}")
    transaction.execute("INSERT INTO manytail_layout (version) VALUES (?)", (VERSION,))
