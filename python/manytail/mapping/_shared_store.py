"""The database of a Shared, as one process sees it: a connection, the statements, and the handling of errors.

Imports SQLAlchemy: `_shared` imports this on first use. One connection per process and database (`Link`), used by one
thread at a time: the engine's pool holds one.

Statements. Look-ups and records are bulk statements: PostgreSQL gets arrays, SQLite lists of parameters. The leases of
many limits are one statement: the generic cell rate algorithm (`_rates`) with the database's clock (`lease`). A
transaction that writes takes SQLite's write lock at its beginning. If it read first, its write would fail at once
when another process had written in between.

Errors. `Store.run` repeats a transaction until the database has been away for `outage_timeout` seconds: refused and
lost connections, a server that starts or stops, a full disk, a lock that is held. Then SharedUnavailable is raised.
Errors that waiting cannot solve are raised at once: PermissionError, FileNotFoundError, ValueError, RuntimeError. No
error shows a password or a parameter: SQLAlchemy hides parameters, the URL's secrets are removed from messages, and
SQLAlchemy's exceptions are not chained.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, quote_plus

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from . import _shared_tables
from ._rates import Granted, Part, grant
from ._types import SharedUnavailable

log = logging.getLogger("manytail")

T = TypeVar("T")

BACKENDS = {"sqlite": "sqlite", "sqlite+pysqlite": "sqlite", "postgresql+psycopg": "postgresql"}
EXPECTED_URL = "sqlite:///file.db, postgresql+psycopg://user@host/database, env:NAME, or a callable that returns one"
_SECRETS = ("password", "passfile", "sslpassword", "sslkey", "oauth_client_secret")  # in the query of a URL

LOCK_WAIT = 5.0  # seconds that SQLite waits for a lock before that counts as an outage
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two tries
CLOSE_TIMEOUT = 1.0  # seconds that closing waits for a transaction
WAIT_FOR_THREADS = 86_400.0  # seconds of the pool's timeout, which never passes: `Link.using` is taken first
SLICE = 500  # ids of one look-up, and rows of one insert, in SQLite
LEASES = 200  # leases of one statement, in SQLite

_NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "extract(epoch FROM clock_timestamp())::float8",
}
_BEGUN = {  # one time for all rows of a statement
    "sqlite": _NOW["sqlite"],
    "postgresql": "extract(epoch FROM statement_timestamp())::float8",
}
_GREATEST = {"sqlite": "max", "postgresql": "greatest"}

# SQLSTATEs, or their first characters. An outage: connection (08), resources (53), shutdown (57P), system (58), a
# conflict (40001, 40P01), a read-only standby (25006), a lock that is held (55P03). Then missing rights.
_AWAY = ("08", "53", "57P", "58", "40001", "40P01", "25006", "55P03")
_NO_RIGHTS = ("42501", "28")
_AWAY_SQLITE = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}  # fmt: skip
_NO_RIGHTS_SQLITE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
# A server that refuses a connection gives the reason only as text. If that is not English, the wait for outage_timeout
# comes first.
_REFUSED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|(database|role) \".*\" does not exist|"
    r"permission denied for"
)


# ---------------------------------------------------------------------------------------------------- URLs
def parse_url(url: str) -> URL:
    """The parts of a URL. ValueError, which does not show it, because any part may be a password: it cannot be used."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # ValueError: the port is no number
        raise ValueError(f"url: cannot be read (expected: {EXPECTED_URL})") from None
    backend = BACKENDS.get(parsed.drivername)
    if backend is None:
        raise ValueError(f"url: of {parsed.drivername!r} (expected: {EXPECTED_URL})")
    if backend == "sqlite":
        file = parsed.database or ":memory:"
        if ":memory:" in file or file.startswith("file:") or parsed.query:
            raise ValueError("url: an SQLite database in memory, or with parameters (expected: sqlite:///file.db)")
        parsed = parsed.set(database=os.path.abspath(file))
    return parsed


def secrets_of(parsed: URL) -> list[str]:
    """Every form in which a secret of the URL may appear, the longest first."""
    found = [parsed.password, *(parsed.query.get(name) for name in _SECRETS)]
    plain = [str(each) for each in found if each]
    return sorted({form(each) for each in plain for form in (str, quote, quote_plus)}, key=len, reverse=True)


def shown(parsed: URL) -> str:
    """The URL without secrets and options."""
    return URL.create(
        parsed.drivername, parsed.username, None, parsed.host, parsed.port, parsed.database
    ).render_as_string()


# ---------------------------------------------------------------------------------------------------- errors
class Away(Exception):
    """The database does not answer. It may answer later."""


class Uncertain(Exception):
    """A transaction may have been committed or not, and must not be repeated."""


class Lease(NamedTuple):
    """A lease of slots from `start` on, 1/rate apart. now: the time when it was given. Both by the database's clock."""

    start: float
    now: float
    rate: float


class Store:
    """The database, for one name, in this process. Opens nothing before it is used."""

    def __init__(self, url: Callable[[], str], name: str, max_age: float | None, outage_timeout: float) -> None:
        self._url = url
        self._name = name
        self._max_age = max_age
        self._outage_timeout = outage_timeout
        self._link: Link | None = None
        self._backend = ""
        self._hidden: list[str] = []  # secrets of the URL
        self._making = threading.Lock()
        self._kept = False  # whether `keep` was called
        self._name_id: int | None = None
        self._connected = False  # whether a connection was made before

    # ------------------------------------------------------------------------------------------------ connection
    def keep(self) -> None:
        """Keep the connection until the process ends, also when this store is freed. The next store uses it."""
        self._kept = True
        if self._link is not None:
            _kept.add(self._link)

    def _opened(self) -> Link:
        """The connection. ValueError: a URL that cannot be used. ImportError: the driver is not installed."""
        with self._making:
            if self._link is None:
                parsed = parse_url(self._url())
                self._hidden = secrets_of(parsed)
                self._backend = BACKENDS[parsed.drivername]
                try:
                    self._link = link_to(parsed, self._outage_timeout)
                except ImportError as error:
                    raise ImportError(f"shared: pip install 'manytail[shared]' ({error})", name=error.name) from error
                except (SQLAlchemyError, TypeError) as error:  # TypeError: an unknown option in the query
                    raise ValueError(f"url: {self._scrub(error)}") from None
                if self._kept:
                    _kept.add(self._link)
            return self._link

    def run(
        self,
        work: Callable[[Connection, int], T],
        *,
        writes: bool = True,
        give_up: threading.Event | None = None,
        repeats: bool = True,
    ) -> T:
        """Run `work(connection, number of the name)` in one transaction. Repeat it while the database is away, with a
        longer pause each time. SharedUnavailable after `outage_timeout` seconds, or once `give_up` is set. repeats:
        repeat it also if it may have been committed; otherwise that raises Uncertain."""
        since: float | None = None
        pause = FIRST_PAUSE
        give_up = give_up or threading.Event()
        while True:
            began: list[bool] = []
            try:
                return self._attempt(_noting(work, began), writes)
            except Away as away:
                if began and not repeats:
                    raise Uncertain(str(away)) from None
                now = time.monotonic()
                if since is None:
                    since = now
                    log.warning("shared: the database is away: %s", away)
                left = since + self._outage_timeout - now
                if left <= 0 or give_up.is_set():
                    raise SharedUnavailable(f"shared: the database was away for {now - since:.1f} s: {away}") from None
            give_up.wait(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _attempt(self, work: Callable[[Connection, int], T], writes: bool) -> T:
        name_id = self._name_id
        try:
            link = self._opened()
            with link.using, link.engine.connect() as connection:
                connection.execution_options(manytail_writes=writes or name_id is None)
                with connection.begin():
                    if name_id is None:
                        name_id = self._begin(connection)
                    result = work(connection, name_id)
        except (SQLAlchemyError, _shared_tables.LayoutError, OSError) as error:
            self._name_id = None  # the server that comes back may have another database
            raise self._translated(error) from None
        self._name_id, self._connected = name_id, True
        return result

    def _begin(self, connection: Connection) -> int:
        """Make sure that the tables exist and that the name has a row."""
        _shared_tables.make(connection)
        named = {"name": self._name}
        find = text("SELECT id FROM manytail_names WHERE name = :name")
        if (found := connection.execute(find, named).scalar()) is None:
            connection.execute(
                text("INSERT INTO manytail_names (name) VALUES (:name) ON CONFLICT (name) DO NOTHING"), named
            )
            found = connection.execute(find, named).scalar_one()
        return int(found)

    # ------------------------------------------------------------------------------------------------ errors
    def _scrub(self, error: BaseException) -> str:
        """The message on one line, without the secrets of the URL."""
        said = " ".join(str(error).split())
        for secret in self._hidden:
            said = said.replace(secret, "***")
        return said

    def _translated(self, error: BaseException) -> BaseException:
        """What is raised instead: Away if waiting may help, otherwise an error for the user."""
        if isinstance(error, _shared_tables.LayoutError):
            return error
        if isinstance(error, OSError):
            return Away(str(error)) if self._connected else error
        cause: Any = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        said = self._scrub(cause)
        if isinstance(cause, sqlite3.Error):
            return _of_sqlite(getattr(cause, "sqlite_errorcode", 0) & 0xFF, said)
        state = getattr(cause, "sqlstate", None)
        if state is None and isinstance(error, DBAPIError):  # no answer, or no connection
            if _REFUSED.search(said):
                return PermissionError(f"shared: the database refuses: {said}")
            return Away(said) if isinstance(error, OperationalError | InterfaceError) else ValueError(f"url: {said}")
        if str(state).startswith(_AWAY) or (isinstance(error, DBAPIError) and error.connection_invalidated):
            return Away(said)
        if str(state).startswith(_NO_RIGHTS):
            return PermissionError(f"shared: the database refuses: {said}")
        return RuntimeError(f"shared: the database says: {said}")

    # ----------------------------------------------------------------------------------------- what belongs to the name
    def agree(self, codec: str, schema: str, give_up: threading.Event | None = None) -> None:
        """Store the codec and the schema of remembered results with the name. ValueError: the name has results with
        others."""

        def work(connection: Connection, name: int) -> tuple[str, str]:
            values = {"name": name, "codec": codec, "schema": schema}
            connection.execute(
                text(
                    "UPDATE manytail_names SET codec = :codec, result_schema = :schema "
                    "WHERE id = :name AND codec IS NULL"
                ),
                values,
            )
            found = connection.execute(
                text("SELECT codec, result_schema FROM manytail_names WHERE id = :name"), values
            ).one()
            return str(found[0]), str(found[1])

        stored = self.run(work, give_up=give_up)
        for what, ours, theirs in (("codec", codec, stored[0]), ("schema", schema, stored[1])):
            if ours != theirs:
                raise ValueError(
                    f"{what}: {ours!r} (expected: {theirs!r}, which the results of this name have; another name, "
                    "or forget() first)"
                )

    def remembered(self) -> int:
        condition, values = self._fresh(":max_age")
        query = text(f"SELECT count(*) FROM manytail_results WHERE name = :name{condition}")
        return self.run(
            lambda connection, name: int(connection.execute(query, {"name": name, **values}).scalar_one()), writes=False
        )

    def forget(self, older_than: float | None) -> int:
        """Drop results. Returns how many. All of them: drops their codec and schema too."""

        def work(connection: Connection, name: int) -> int:
            query = "DELETE FROM manytail_results WHERE name = :name"
            if older_than is None:
                connection.execute(
                    text("UPDATE manytail_names SET codec = NULL, result_schema = NULL WHERE id = :name"),
                    {"name": name},
                )
                return connection.execute(text(query), {"name": name}).rowcount
            query += f" AND recorded_at < {self._now} - :age"
            return connection.execute(text(query), {"name": name, "age": older_than}).rowcount

        return self.run(work)

    @property
    def _now(self) -> str:
        return _NOW[self._backend]

    def _fresh(self, parameter: str) -> tuple[str, dict[str, float]]:
        """The condition that a result is not older than max_age."""
        if self._max_age is None:
            return "", {}
        self._opened()  # sets `_backend`
        return f" AND recorded_at > {self._now} - {parameter}", {"max_age": self._max_age}

    # ------------------------------------------------------------------------------------------------ results
    def look_up(self, ids: Sequence[bytes], give_up: threading.Event | None = None) -> dict[bytes, bytes]:
        """The results that are recorded under these ids."""

        def work(connection: Connection, name: int) -> dict[bytes, bytes]:
            if self._backend == "postgresql":
                condition, values = self._fresh("%s")
                query = f"SELECT id, result FROM manytail_results WHERE name = %s AND id = ANY(%b){condition}"
                return dict(connection.exec_driver_sql(query, (name, list(ids), *values.values())).all())
            condition, values = self._fresh("?")
            found: dict[bytes, bytes] = {}
            for begin in range(0, len(ids), SLICE):
                part = ids[begin : begin + SLICE]
                ids_of_part = ",".join("?" * len(part))
                query = f"SELECT id, result FROM manytail_results WHERE name = ? AND id IN ({ids_of_part}){condition}"
                found.update(connection.exec_driver_sql(query, (name, *part, *values.values())).all())
            return found

        return self.run(work, writes=False, give_up=give_up)

    def record(self, results: Mapping[bytes, bytes], give_up: threading.Event | None = None) -> None:
        """Record results in one transaction. The first record of an id stays, unless it is older than max_age."""
        rows = sorted(results.items())  # in one order: processes that insert the same ids never deadlock

        def work(connection: Connection, name: int) -> None:
            postgresql = self._backend == "postgresql"
            condition, values = self._fresh("%s" if postgresql else "?")
            conflict = "NOTHING"
            if condition:
                old = condition.replace(" AND recorded_at >", "manytail_results.recorded_at <=")
                conflict = f"UPDATE SET result = excluded.result, recorded_at = excluded.recorded_at WHERE {old}"
            insert = "INSERT INTO manytail_results (name, id, result, recorded_at)"
            if postgresql:
                columns = (
                    f"SELECT %s, id, result, {self._now} FROM unnest(%b::bytea[], %b::bytea[]) AS new (id, result)"
                )
                given: Any = (name, [row[0] for row in rows], [row[1] for row in rows], *values.values())
            else:
                columns = f"VALUES (?, ?, ?, {self._now})"
                given = [(name, *row, *values.values()) for row in rows]
            connection.exec_driver_sql(f"{insert} {columns} ON CONFLICT (name, id) DO {conflict}", given)

        if rows:
            self.run(work, give_up=give_up)

    # ------------------------------------------------------------------------------------------------ rates
    def set_rates(self, rates: Mapping[bytes, float], give_up: threading.Event | None = None) -> None:
        """Store the rates of limits with the name. The last value holds for all. Log a change."""
        find = text("SELECT rate FROM manytail_rates WHERE name = :name AND limit_id = :limit")
        store = text(
            "INSERT INTO manytail_rates (name, limit_id, rate, tat) VALUES (:name, :limit, :rate, 0) "
            "ON CONFLICT (name, limit_id) DO UPDATE SET rate = excluded.rate"
        )

        def work(connection: Connection, name: int) -> list[tuple[bytes, float, float]]:
            changes = []
            for limit, rate in sorted(rates.items()):
                values = {"name": name, "limit": limit, "rate": rate}
                before = connection.execute(find, values).scalar()
                if before != rate:
                    connection.execute(store, values)
                    if before is not None:
                        changes.append((limit, before, rate))
            return changes

        for limit, before, rate in self.run(work, give_up=give_up):
            log.warning(
                "shared: %s of name %r changes from %s to %s for all that use it",
                limit.decode(),
                self._name,
                before,
                rate,
            )

    def lease(self, limits: Sequence[Part], give_up: threading.Event | None = None) -> list[Lease]:
        """Lease the next starts of each limit, all in one statement (SQLite: LEASES of them). The rate that is stored
        under `group` goes before the one given. No limit may occur twice.

        `tat`, the theoretical arrival time, is the time from which on nothing is leased. A lease takes the interval of
        amount / rate seconds from max(tat, now) on. A lease that is lost wastes its interval, and the limit still
        holds. After a pause there is no burst: slots that have passed are not leased.
        """
        wanted = sorted(limits)  # in one order: processes that lease the same limits never deadlock

        def work(connection: Connection, name: int) -> dict[bytes, Lease]:
            rows: list[Any] = []
            if self._backend == "postgresql":
                columns = [list(column) for column in zip(*wanted, strict=True)]
                arrays = "unnest(%b::bytea[], %b::bytea[], %s::float8[], %s::float8[])"
                query = self._lease_statement(f"SELECT * FROM {arrays}", "%s")
                rows += connection.exec_driver_sql(query, (*columns, name, name)).all()
            else:
                for begin in range(0, len(wanted), LEASES):
                    part = wanted[begin : begin + LEASES]
                    query = self._lease_statement("VALUES " + ",".join(["(?, ?, ?, ?)"] * len(part)), "?")
                    given = (*[value for limit in part for value in limit], name, name)
                    rows += connection.exec_driver_sql(query, given).all()
            return {bytes(limit): Lease(tat, clock, rate) for limit, tat, rate, clock in rows}

        leases = self.run(work, give_up=give_up)  # with the new `tat`, the end of each lease, as start
        return [
            lease._replace(start=lease.start - limit.amount / lease.rate)
            for limit in limits
            for lease in [leases[limit.limit]]
        ]

    def _lease_statement(self, wanted: str, parameter: str) -> str:
        """Insert or update the row of each limit. A new row has the rate and begun + length of the lease. From that an
        existing row computes the length again: excluded.tat - begun. So `begun` is one time for the whole statement.
        `now` is read when the row is written, after a wait for its lock."""
        begun, now = _BEGUN[self._backend], self._now
        return (
            f"WITH wanted (limit_id, rate_of, given, number) AS ({wanted}), "
            "lengths AS (SELECT wanted.limit_id AS limit_id, coalesce(stored.rate, given) AS rate, number "
            "FROM wanted LEFT JOIN manytail_rates AS stored "
            f"ON stored.name = {parameter} AND stored.limit_id = wanted.rate_of) "
            "INSERT INTO manytail_rates (name, limit_id, rate, tat) "
            f"SELECT {parameter}, limit_id, rate, {begun} + number * 1.0 / rate FROM lengths WHERE true "
            "ORDER BY limit_id ON CONFLICT (name, limit_id) DO UPDATE SET rate = excluded.rate, "
            f"tat = {_GREATEST[self._backend]}(manytail_rates.tat, {now}) + (excluded.tat - {begun}) "
            f"RETURNING limit_id, tat, rate, {now}"
        )

    def grant(
        self, wanted: Sequence[Sequence[Part]], give_up: threading.Event | None = None
    ) -> tuple[list[Granted], float]:
        """Grant each call a slot in all its limits, or refuse it: `_rates.grant` decides. Returns the answers and the
        database's time. One transaction, which locks the rows of the limits."""
        limits = {part.limit: part for parts in wanted for part in parts}
        groups = {part.group: part._replace(limit=part.group) for part in limits.values()}
        every = sorted({**limits, **groups}.values())  # in one order: processes never deadlock

        def work(connection: Connection, name: int) -> tuple[list[Granted], float]:
            rows = self._locked_rates(connection, name, every)
            if len(rows) < len(every):
                insert = text(
                    "INSERT INTO manytail_rates (name, limit_id, rate, tat) VALUES (:name, :limit, :rate, 0) "
                    "ON CONFLICT (name, limit_id) DO NOTHING"
                )
                connection.execute(
                    insert, [{"name": name, "limit": each.limit, "rate": each.rate} for each in every]
                )
                rows = self._locked_rates(connection, name, every)
            now = float(connection.execute(text(f"SELECT {self._now}")).scalar_one())
            before = {limit: tat for limit, _, tat in rows}
            tats = dict(before)
            answers = grant(now, tats, {limit: rate for limit, rate, _ in rows}, wanted)
            self._set_tats(connection, name, {limit: tat for limit, tat in tats.items() if tat != before[limit]})
            return answers, now

        return self.run(work, give_up=give_up)

    def _locked_rates(self, connection: Connection, name: int, limits: Sequence[Part]) -> list[Any]:
        """Name, rate and `tat` of these limits, as far as they exist. Nobody else changes them before the end of the
        transaction."""
        query = "SELECT limit_id, rate, tat FROM manytail_rates WHERE name = "
        ids = [each.limit for each in limits]
        if self._backend == "postgresql":
            query += "%s AND limit_id = ANY(%b) ORDER BY limit_id FOR UPDATE"
            rows = connection.exec_driver_sql(query, (name, ids)).all()
        else:
            rows = []
            for begin in range(0, len(ids), SLICE):
                part = ids[begin : begin + SLICE]
                found = connection.exec_driver_sql(
                    f"{query}? AND limit_id IN ({','.join('?' * len(part))})", (name, *part)
                )
                rows += found.all()
        return [(bytes(limit), rate, tat) for limit, rate, tat in rows]

    def _set_tats(self, connection: Connection, name: int, tats: Mapping[bytes, float]) -> None:
        if not tats:
            return
        if self._backend == "postgresql":
            query = (
                "UPDATE manytail_rates SET tat = new.tat FROM unnest(%b::bytea[], %s::float8[]) AS new (limit_id, tat) "
                "WHERE name = %s AND manytail_rates.limit_id = new.limit_id"
            )
            connection.exec_driver_sql(query, (list(tats), list(tats.values()), name))
        else:
            query = "UPDATE manytail_rates SET tat = ? WHERE name = ? AND limit_id = ?"
            connection.exec_driver_sql(query, [(tat, name, limit) for limit, tat in tats.items()])

    def drop_limits(self, prefix: bytes, idle: float, give_up: threading.Event | None = None) -> int:
        """Drop limits whose names begin with `prefix` and of which nothing was leased for `idle` seconds. Returns how
        many. Later leases do not change: they begin at the time they are asked for in either case."""

        def work(connection: Connection, name: int) -> int:
            end = prefix[:-1] + bytes([prefix[-1] + 1])
            these = f"name = :name AND limit_id >= :prefix AND limit_id < :end AND tat < {self._now} - :idle"
            if self._backend == "postgresql":  # skips limits that are being leased, instead of waiting
                these = (
                    "name = :name AND limit_id IN "
                    f"(SELECT limit_id FROM manytail_rates WHERE {these} FOR UPDATE SKIP LOCKED)"
                )
            values = {"name": name, "prefix": prefix, "end": end, "idle": idle}
            return connection.execute(text(f"DELETE FROM manytail_rates WHERE {these}"), values).rowcount

        return self.run(work, give_up=give_up)

    # ------------------------------------------------------------------------------------------------ the budget
    def spent(self) -> float:
        query = text("SELECT spent FROM manytail_names WHERE id = :name")
        return self.run(
            lambda connection, name: float(connection.execute(query, {"name": name}).scalar_one()), writes=False
        )

    def spend(self, costs: Sequence[float], budget: float, give_up: threading.Event | None = None) -> list[bool]:
        """Take each cost from the budget, in order, where there is room for it. Returns which ones were taken."""

        def work(connection: Connection, name: int) -> list[bool]:
            lock = " FOR UPDATE" if self._backend == "postgresql" else ""
            before = spent = float(
                connection.execute(
                    text(f"SELECT spent FROM manytail_names WHERE id = :name{lock}"), {"name": name}
                ).scalar_one()
            )
            taken = []
            for cost in costs:
                taken.append(spent + cost <= budget)
                spent += cost if taken[-1] else 0.0
            if spent != before:
                connection.execute(
                    text("UPDATE manytail_names SET spent = :spent WHERE id = :name"), {"name": name, "spent": spent}
                )
            return taken

        return self.run(work, give_up=give_up)

    def give_back(self, cost: float, give_up: threading.Event | None = None) -> None:
        """Return a cost that was taken from the budget and not spent. If it is not known whether that was committed, it
        is not repeated: a cost that is returned twice could be spent twice."""

        def work(connection: Connection, name: int) -> None:
            query = f"UPDATE manytail_names SET spent = {_GREATEST[self._backend]}(0, spent - :cost) WHERE id = :name"
            connection.execute(text(query), {"name": name, "cost": cost})

        try:
            self.run(work, give_up=give_up, repeats=False)
        except Uncertain as error:
            log.warning("shared: a cost of %s may stay spent: %s", cost, error)

    def reset(self) -> None:
        def work(connection: Connection, name: int) -> None:
            connection.execute(text("UPDATE manytail_names SET spent = 0 WHERE id = :name"), {"name": name})
            connection.execute(text("DELETE FROM manytail_rates WHERE name = :name"), {"name": name})

        self.run(work)


def _noting(work: Callable[[Connection, int], T], began: list[bool]) -> Callable[[Connection, int], T]:
    """`work`, which also adds to `began` when it begins."""

    def noted(connection: Connection, name: int) -> T:
        began.append(True)
        return work(connection, name)

    return noted


# ---------------------------------------------------------------------------------------------------- connections
_inherited: list[Engine] = []  # kept unclosed: of a parent process, whose socket closing would use, or in a transaction


class Link:
    """The connection of this process to one database. All stores of that database use it, one thread at a time."""

    def __init__(self, parsed: URL, wait: int) -> None:
        """wait: seconds that connecting may take."""
        self.engine = _sqlite(parsed) if BACKENDS[parsed.drivername] == "sqlite" else _postgresql(parsed, wait)
        self.using = threading.Lock()  # held by the thread that uses it
        weakref.finalize(self, _close, self.engine, self.using, os.getpid())


_links: weakref.WeakValueDictionary[tuple[int, str, int], Link] = weakref.WeakValueDictionary()
_kept: set[Link] = set()
_linking = threading.Lock()


def _after_fork() -> None:
    """A new lock in the child: at the fork another thread of the parent may have held the old one."""
    global _linking
    _linking = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def link_to(parsed: URL, outage_timeout: float) -> Link:
    """The connection of this process to that database. It is closed when no store uses it, unless `keep` was called."""
    wait = max(2, math.ceil(min(outage_timeout, 10.0)))
    key = (os.getpid(), parsed.render_as_string(hide_password=False), wait)
    with _linking:
        found = _links.get(key)
        if found is None:
            found = _links[key] = Link(parsed, wait)
        return found


def _close(engine: Engine, using: threading.Lock, process: int) -> None:
    """Close the connection: the last store is freed, or the interpreter exits. One in a transaction is left open."""
    if os.getpid() == process and using.acquire(timeout=CLOSE_TIMEOUT):
        engine.dispose()
        using.release()
    else:
        _inherited.append(engine)


def _of_sqlite(code: int, said: str) -> BaseException:
    if code in _AWAY_SQLITE:
        return Away(said)
    if code in _NO_RIGHTS_SQLITE:
        return PermissionError(f"shared: the database refuses: {said}")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return ValueError(f"url: the file is no SQLite database: {said}")
    return RuntimeError(f"shared: the database says: {said}")


def _sqlite(parsed: URL) -> Engine:
    """WAL, so that readers do not wait for writers. synchronous=NORMAL: records survive a process that is killed. After
    a power cut the last transactions may be missing: their results are paid for again."""
    engine = create_engine(
        parsed, hide_parameters=True, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=WAIT_FOR_THREADS,
        connect_args={"timeout": LOCK_WAIT, "check_same_thread": False, "isolation_level": None},
    )  # fmt: skip

    @event.listens_for(engine, "do_connect")
    def check_file(*_: Any) -> None:
        """Raise the errors that waiting cannot solve: SQLite reports all of them alike."""
        file = Path(parsed.database or "")
        if not file.parent.is_dir():
            raise FileNotFoundError(f"url: no directory {str(file.parent)!r} for the SQLite database")
        if not os.access(file if file.exists() else file.parent, os.R_OK | os.W_OK):
            raise PermissionError(f"url: no right to write the SQLite database {str(file)!r}")

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(
            "BEGIN IMMEDIATE" if connection.get_execution_options()["manytail_writes"] else "BEGIN"
        )

    return engine


def _postgresql(parsed: URL, wait: int) -> Engine:
    """A server that is cut off is noticed within some 20 s. Options in the URL override these."""
    limits = {
        "connect_timeout": wait, "keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3,
        "tcp_user_timeout": 20_000, "application_name": "manytail",
    }  # fmt: skip
    return create_engine(
        parsed, hide_parameters=True, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=WAIT_FOR_THREADS,
        connect_args={name: value for name, value in limits.items() if name not in parsed.query},
    )  # fmt: skip
