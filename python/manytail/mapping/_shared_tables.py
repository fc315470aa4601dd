"""The tables of a Shared, and how they are made.

    manytail_layout    one row: the version of the layout
    manytail_names     one row per name of a Shared: the codec of its results
    manytail_results   remembered results: the first record stays, unless it is older than max_age
    manytail_limits    one row per limit, with its terms, and one per key of it: its state (`_grants`). Times are
                       seconds since 1970 by the database's clock
    manytail_holds     what a process has of a limit, or waits for, and the number of its last report

They are made in one transaction, under a lock so that one process at a time does it. Tables of another version are
refused and left as they are. Both databases read these types: SQLite keeps bytes in a column of any type.
"""

from __future__ import annotations

from ._shared_database import Transaction

VERSION = 4

_TABLES = (
    "manytail_layout (version INTEGER NOT NULL)",
    "manytail_names (id INTEGER{identity} PRIMARY KEY, name VARCHAR(100) NOT NULL UNIQUE, codec TEXT, "
    "result_schema TEXT)",
    "manytail_results (name INTEGER NOT NULL REFERENCES manytail_names (id), id BYTEA NOT NULL, result BYTEA NOT NULL, "
    "recorded_at DOUBLE PRECISION NOT NULL, PRIMARY KEY (name, id))",
    "manytail_limits (name INTEGER NOT NULL REFERENCES manytail_names (id), limit_id BYTEA NOT NULL, "
    "amount DOUBLE PRECISION, per DOUBLE PRECISION, burst DOUBLE PRECISION, lease DOUBLE PRECISION, "
    "tat DOUBLE PRECISION NOT NULL DEFAULT 0, credit DOUBLE PRECISION NOT NULL DEFAULT 0, "
    "paused_until DOUBLE PRECISION NOT NULL DEFAULT 0, settled DOUBLE PRECISION NOT NULL DEFAULT 0, "
    "PRIMARY KEY (name, limit_id))",
    "manytail_holds (name INTEGER NOT NULL REFERENCES manytail_names (id), limit_id BYTEA NOT NULL, "
    "holder BYTEA NOT NULL, reserved DOUBLE PRECISION NOT NULL, wanted DOUBLE PRECISION NOT NULL, "
    "since DOUBLE PRECISION NOT NULL, "
    "number INTEGER NOT NULL, expires_at DOUBLE PRECISION NOT NULL, PRIMARY KEY (name, limit_id, holder))",
)


class LayoutError(ValueError):
    """The tables belong to another version of manytail."""


def _missing(transaction: Transaction) -> list[str]:
    """The tables that do not exist, as _TABLES has them. LayoutError: those that exist have another version, or one is
    missing that the others refer to: in a new one other names would get their results."""
    names = set((transaction.value(transaction.database.tables) or "").split(","))
    missing = [table for table in _TABLES if table.split()[0] not in names]
    if len(missing) == len(_TABLES):
        return missing
    for table in missing:
        if table in _TABLES[:2]:
            raise LayoutError(
                f"shared: the table {table.split()[0]} is missing, and other tables manytail_* exist (expected: all of "
                "them, or none)"
            )
    found = transaction.value("SELECT max(version) FROM manytail_layout")
    if found != VERSION:
        which = "a newer manytail" if found is not None and found > VERSION else "an older manytail"
        raise LayoutError(
            f"shared: the tables have layout {found}, of {which} (expected: layout {VERSION}, or a database without "
            "tables manytail_*)"
        )
    return missing


def make(transaction: Transaction) -> None:
    """Make the tables if they are missing, inside this transaction."""
    if not _missing(transaction):
        return
    transaction.execute(transaction.database.lock_layout)
    missing = _missing(transaction)  # another process may have made them before this one got the lock
    for table in missing:
        transaction.execute(f"CREATE TABLE {table.format(identity=transaction.database.identity)}")
    if _TABLES[0] in missing:
        transaction.execute("INSERT INTO manytail_layout (version) VALUES (?)", (VERSION,))
