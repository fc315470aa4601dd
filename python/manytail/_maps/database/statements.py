"""The statements of a Shared, for one name, in this process, and what happens while the database is away.

    manytail_layout    one row: the version of the layout
    manytail_names     one row per name of a Shared: the codec of its results
    manytail_results   remembered results: the first record stays, unless it is older than max_age
    manytail_limits    one row per limit, with its terms, and one per key of it: its state. Times are seconds since 1970
                       by the database's clock
    manytail_holds     what a process has of a limit, or waits for, and the number of its last report

The tables are made in one transaction, under a lock so that one process at a time does it. Those of another version are
refused and left as they are. Look-ups and records are bulk statements, bounded in rows and bytes. Rows are written in
one order, so that processes hardly ever deadlock; then the transaction is repeated.

`Store.run` repeats a transaction until the database has been away for `outage_timeout` seconds, or until nobody waits
for it: then SharedUnavailable. A lock that another process holds counts as away after LOCK_WAIT seconds only. Errors
that waiting cannot solve are raised at once (`kinds`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from manytail._sync import Event

from ..outcomes import SharedUnavailable
from . import kinds
from .connection import Link, Transaction, link_to
from .kinds import Away, Database, Locked, Patience

T = TypeVar("T")

VERSION = 4  # of the layout
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 2.0  # seconds between two tries
LONGEST_LOCK_PAUSE = 0.1  # the same, while another process writes
SLICE = 500  # ids of one look-up, and rows of one insert
SLICE_BYTES = 1 << 24  # of the results of one insert, unless one alone is larger: a server refuses a message of 1 GB

_log = logging.getLogger("manytail")
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


def _missing(transaction: Transaction) -> list[str]:
    """The tables that do not exist, as _TABLES has them. ValueError: those that exist have another version, or one is
    missing that the others refer to: in a new one other names would get their results."""
    names = set((transaction.value(transaction.database.tables) or "").split(","))
    missing = [table for table in _TABLES if table.split()[0] not in names]
    if len(missing) == len(_TABLES):
        return missing
    for table in missing:
        if table in _TABLES[:2]:
            raise ValueError(
                f"shared: the table {table.split()[0]} is missing, and other tables manytail_* exist (expected: all of "
                "them, or none)"
            )
    found = transaction.value("SELECT max(version) FROM manytail_layout")
    if found != VERSION:
        which = "a newer manytail" if found is not None and found > VERSION else "an older manytail"
        raise ValueError(
            f"shared: the tables have layout {found}, of {which} (expected: layout {VERSION}, or a database without "
            "tables manytail_*)"
        )
    return missing


def _make_tables(transaction: Transaction) -> None:
    """Make the tables if they are missing, inside this transaction."""
    if not _missing(transaction):
        return
    transaction.execute(transaction.database.lock_layout)
    missing = _missing(transaction)  # another process may have made them before this one got the lock
    for table in missing:
        transaction.execute(f"CREATE TABLE {table.format(identity=transaction.database.identity)}")
    if _TABLES[0] in missing:
        transaction.execute("INSERT INTO manytail_layout (version) VALUES (?)", (VERSION,))


class Store:
    """The database, for one name, in this process. Opens nothing before it is used."""

    def __init__(self, where: Callable[[], Database], name: str, max_age: float | None, outage_timeout: float) -> None:
        self._where = where
        self.name = name
        self._max_age = max_age
        self._outage_timeout = outage_timeout
        self._link: Link | None = None
        self._name_id: tuple[int, int] | None = None  # number of the connection that told it, number of the name

    @property
    def link(self) -> Link:
        """The connection. ValueError, ImportError: `where` cannot be used."""
        if self._link is None:  # two threads find the same one
            wait = max(2, math.ceil(min(self._outage_timeout, kinds.ANSWER_WAIT)))
            self._link = link_to(self._where(), wait)
        return self._link

    # ------------------------------------------------------------------------------------------------ transactions
    def run(
        self, work: Callable[[Transaction, int], T], *, writes: bool = True, give_up: Any = None, is_long: bool = False
    ) -> T:
        """Run `work(transaction, number of the name)` in one transaction, again and again while the database is away,
        also if it may have been committed. give_up: an Event; once it is set, nobody waits for a database that is away.
        is_long: a statement may take as long as it needs."""
        begun = time.monotonic()
        since: float | None = None  # since when it counts as away
        pause = FIRST_PAUSE
        give_up = give_up or Event()
        while True:
            try:
                return self._attempt(work, writes, give_up, is_long)
            except Away as error:
                away = error
            now = time.monotonic()
            is_usual = isinstance(away, Locked) and now - begun < kinds.LOCK_WAIT
            begins = since is None and not is_usual
            since = now if begins else since
            left = math.inf if since is None else since + self._outage_timeout - now
            if left <= 0 or give_up.is_set():
                why = f"shared: the database was unavailable for {now - begun:.1f} s: {away}"
                raise SharedUnavailable(why) from None
            if begins:
                warn("shared: the database is unavailable: %s", away)
            give_up.wait(min(pause, left))
            pause = min(2 * pause, LONGEST_LOCK_PAUSE if is_usual else LONGEST_PAUSE)

    def _attempt(self, work: Callable[[Transaction, int], T], writes: bool, give_up: Patience, is_long: bool) -> T:
        link, known = self.link, self._name_id

        def whole(transaction: Transaction) -> tuple[int, T]:
            # Another connection may lead to another database: a file that was made anew, a server that came back.
            number = known[1] if known and known[0] == link.number else self._number_of_name(transaction)
            return number, work(transaction, number)

        try:
            number, result = link.run(whole, writes or known is None or known[0] != link.number, give_up, is_long)
        except Exception:
            self._name_id = None
            raise
        self._name_id = link.number, number
        return result

    def _number_of_name(self, transaction: Transaction) -> int:
        """Make sure that the tables exist and that the name has a row."""
        _make_tables(transaction)
        find = "SELECT id FROM manytail_names WHERE name = ?"
        found = transaction.value(find, (self.name,))
        if found is None:
            transaction.execute("INSERT INTO manytail_names (name) VALUES (?) ON CONFLICT DO NOTHING", (self.name,))
            found = transaction.value(find, (self.name,))
        return int(found)

    # ----------------------------------------------------------------------------------------- what belongs to the name
    def agree(self, codec: str, schema: str, give_up: Any = None) -> None:
        """Store the codec and the schema of remembered results with the name. ValueError: it has others."""

        def work(transaction: Transaction, name: int) -> tuple[str, str]:
            transaction.execute(
                "UPDATE manytail_names SET codec = ?, result_schema = ? WHERE id = ? AND codec IS NULL",
                (codec, schema, name),
            )
            find = "SELECT codec, result_schema FROM manytail_names WHERE id = ?"
            found: tuple[str, str] = transaction.execute(find, (name,)).fetchone()
            return found

        stored = self.run(work, give_up=give_up)
        for what, ours, theirs in (("codec", codec, stored[0]), ("schema", schema, stored[1])):
            if ours != theirs:
                raise ValueError(
                    f"{what}: {ours!r} (expected: {theirs!r}, which the results of this name have; another name, "
                    "or forget() first)"
                )

    def remembered(self) -> int:
        def work(transaction: Transaction, name: int) -> int:
            fresh, age = self._fresh()
            count = f"SELECT count(*) FROM manytail_results WHERE name = ?{fresh}"
            return int(transaction.value(count, (name, *age)))

        return self.run(work, writes=False, is_long=True)

    def forget(self, older_than: float | None) -> int:
        """Drop results. Returns how many. All of them: drops their codec and schema too."""

        def work(transaction: Transaction, name: int) -> int:
            delete = "DELETE FROM manytail_results WHERE name = ?"
            if older_than is None:
                drop = "UPDATE manytail_names SET codec = NULL, result_schema = NULL WHERE id = ?"
                transaction.execute(drop, (name,))
                return int(transaction.execute(delete, (name,)).rowcount)
            delete += f" AND recorded_at < {self.link.database.clock} - ?"
            return int(transaction.execute(delete, (name, older_than)).rowcount)

        return self.run(work, is_long=True)

    def reset(self) -> None:
        """Its limits begin anew."""

        def work(transaction: Transaction, name: int) -> None:
            transaction.execute("DELETE FROM manytail_holds WHERE name = ?", (name,))
            transaction.execute("DELETE FROM manytail_limits WHERE name = ?", (name,))

        self.run(work)

    def _fresh(self) -> tuple[str, tuple[float, ...]]:
        """The condition that a result is not older than max_age, and its parameter."""
        if self._max_age is None:
            return "", ()
        return f" AND recorded_at > {self.link.database.clock} - ?", (self._max_age,)

    # ------------------------------------------------------------------------------------------------ results
    def look_up(self, ids: Sequence[bytes], give_up: Any = None) -> dict[bytes, tuple[bytes, float]]:
        """The results that are recorded under these ids, and their ages in seconds."""

        def work(transaction: Transaction, name: int) -> dict[bytes, tuple[bytes, float]]:
            fresh, age = self._fresh()
            columns = f"id, result, {self.link.database.clock} - recorded_at"
            found: dict[bytes, tuple[bytes, float]] = {}
            for begin in range(0, len(ids), SLICE):
                part = ids[begin : begin + SLICE]
                some = ",".join("?" * len(part))
                query = f"SELECT {columns} FROM manytail_results WHERE name = ? AND id IN ({some}){fresh}"
                for key, result, old in transaction.execute(query, (name, *part, *age)).fetchall():
                    found[bytes(key)] = bytes(result), float(old)
            return found

        return self.run(work, writes=False, give_up=give_up)

    def record(self, results: Mapping[bytes, bytes], give_up: Any = None) -> None:
        """Record results. The first record of an id stays, unless it is older than max_age. Each statement is a
        transaction: a process that is stopped while it sends one, which may be large, has no rows locked."""
        conflict = "NOTHING"
        fresh, age = self._fresh()
        if fresh:
            old = fresh.replace(" AND recorded_at >", "manytail_results.recorded_at <=")
            conflict = f"UPDATE SET result = excluded.result, recorded_at = excluded.recorded_at WHERE {old}"
        for part in parts_of(sorted(results.items())):

            def work(transaction: Transaction, name: int, part: Sequence[tuple[bytes, bytes]] = part) -> None:
                values = ",".join([f"(?, ?, ?, {self.link.database.clock})"] * len(part))
                transaction.execute(
                    f"INSERT INTO manytail_results (name, id, result, recorded_at) VALUES {values} "
                    f"ON CONFLICT (name, id) DO {conflict}",
                    [*(value for row in part for value in (name, *row)), *age],
                )

            self.run(work, give_up=give_up)


def parts_of(rows: Sequence[tuple[bytes, bytes]]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    """The rows of each insert: at most SLICE, and SLICE_BYTES unless one alone is larger."""
    begin, size = 0, 0
    for index, (_, result) in enumerate(rows):
        if index > begin and (index - begin == SLICE or size + len(result) > SLICE_BYTES):
            yield rows[begin:index]
            begin, size = index, 0
        size += len(result)
    if rows:
        yield rows[begin:]


def warn(message: str, *arguments: Any) -> None:
    """A handler or filter of the user that raises decides nothing."""
    with suppress(Exception):
        _log.warning(message, *arguments, stacklevel=3)
