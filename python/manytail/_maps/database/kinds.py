"""SQLite and PostgreSQL: what `where` names, how to connect, and what an error means. No thread, no lock.

The statements stand in `statements`, in the SQL that both databases share. What differs is a class for each here, with
the same members:

    shown          what the database is, without secrets and options
    secrets        every form in which a secret of it may appear in a message, the longest first
    forks          a connection may be open in this process while it forks
    key            names the database with its options, in any working directory; it may hold a password
    connect        a new connection, within `wait` seconds
    begin          begins a transaction; `wait` seconds without an answer count as an outage, and once `give_up` is set
                   nothing waits for one
    is_replaced    whether a connection leads to something else than a new one would
    translated     a statement whose parameters are `?`, as the driver wants it
    meaning        what an error of the driver means, whose text without secrets is `said`: Away, or an error for the
                   user; None: it is no error of the driver

and pieces of SQL:

    clock          seconds since 1970
    identity       of a column whose values the database makes
    lock_rows      at the end of a SELECT: nobody else changes these rows before the end of the transaction
    skip_locked    the same, and rows that somebody has locked are left out
    tables         one row with the names of the tables that begin with manytail_, or None
    lock_layout    one transaction at a time goes past it

SQLite comes with Python. PostgreSQL needs psycopg 3, which is imported when a PostgreSQL database is named.

Errors. `Away` stands for what waiting may solve: refused and lost connections, a server that starts or stops, a full
disk, a lock that is held, tables that are gone. All else is an error for the user. No message shows a password or a
parameter of a statement: a server's details, where it quotes values, are left out, and secrets are replaced.

Waits. Nothing waits for long for somebody who may have stopped. SQLite does not wait for locks at all. A session of
PostgreSQL ends a statement that takes long or waits for a lock, and a transaction in which nothing happens: so a
process that was stopped in the middle of one holds up nobody for longer. A server that does not answer is left
(`answers`).
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qsl, quote, quote_plus, unquote

EXPECTED = (
    "the path of a SQLite file, sqlite:///file.db, postgresql://user@host/database, env:NAME, "
    "or a callable that returns one of these"
)
LOCK_WAIT = 5.0  # seconds of waiting for a lock before that counts as an outage
IDLE_WAIT = 3.0  # seconds after which PostgreSQL ends a transaction in which its process does nothing
STATEMENT_WAIT = 60.0  # seconds after which PostgreSQL ends a statement of a map
# Without the GIL none: a statement of another thread is freed by that one, when it runs again. A cached one keeps the
# file open after `close`, and a child that is forked meanwhile would find it locked for ever.
CACHED_STATEMENTS = 0 if "free-threading" in sys.version else 128
ANSWER_WAIT = 10.0  # seconds without an answer, at most, before that counts as an outage
_SECRETS = ("password", "passfile", "sslpassword", "sslkey", "oauth_client_secret")  # in the query of a URL


class Away(Exception):
    """The database does not answer. It may answer later."""


class Locked(Away):
    """Another process writes. It usually ends soon."""


class Patience(Protocol):
    """What says that somebody waits no longer."""

    def is_set(self) -> bool: ...


class Sqlite:
    """WAL, so that readers do not wait for writers. synchronous=NORMAL: records survive a process that is killed. After
    a power cut the last transactions may be missing: their results are paid for again.

    A transaction that writes takes the write lock at its beginning. If it read first, its write would fail at once when
    another process had written in between."""

    forks = False
    secrets: tuple[str, ...] = ()
    clock = "((julianday('now') - 2440587.5) * 86400.0)"
    identity = lock_rows = skip_locked = ""
    tables = "SELECT group_concat(name) FROM sqlite_master WHERE type = 'table' AND substr(name, 1, 9) = 'manytail_'"
    lock_layout = "SELECT 1"  # BEGIN IMMEDIATE has the lock

    _AWAY = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL)
    _LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    _NO_RIGHTS = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)

    def __init__(self, file: str) -> None:
        if "\0" in file:
            raise ValueError(f"where: a path with a null character (expected: {EXPECTED})")
        if not file or ":memory:" in file or file.startswith("file:"):
            raise ValueError(f"where: an SQLite database in memory (expected: {EXPECTED})")
        self.shown = self.file = os.path.abspath(file)

    def key(self) -> str:
        return self.file

    def connect(self, wait: int) -> sqlite3.Connection:
        """Raises first what waiting cannot solve: SQLite reports all of it alike."""
        file = Path(self.file)
        if not file.parent.is_dir():
            raise FileNotFoundError(f"where: no directory {str(file.parent)!r} for the SQLite database")
        if not os.access(file if file.exists() else file.parent, os.R_OK | os.W_OK):
            raise PermissionError(f"where: no permission to write the SQLite database {str(file)!r}")
        connection = sqlite3.connect(
            file,
            timeout=0,
            check_same_thread=False,
            isolation_level=None,
            cached_statements=CACHED_STATEMENTS,
            factory=_SqliteConnection,
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.file = _identity_of(file)
        except BaseException:
            connection.close()
            raise
        return connection

    def begin(self, connection: sqlite3.Connection, writes: bool, give_up: Patience | None, wait: float) -> None:
        connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")

    def is_replaced(self, connection: Any) -> bool:
        """The file was deleted, and perhaps made anew: what goes into the old one is lost."""
        return bool(connection.file != _identity_of(self.file))

    def translated(self, sql: str) -> str:
        return sql

    def meaning(self, error: Exception, said: str) -> BaseException | None:
        if not isinstance(error, sqlite3.Error):
            return None
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in self._LOCKED:
            return Locked(said)
        if code in self._AWAY or said.startswith("no such table: manytail_"):
            return Away(said)
        if code in self._NO_RIGHTS:
            return PermissionError(f"shared: the database refuses: {said}")
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return ValueError(f"where: the file is no SQLite database: {said}")
        return RuntimeError(f"shared: the database says: {said}")


class _SqliteConnection(sqlite3.Connection):
    file: tuple[int, int] | None  # which one it has opened

    def __del__(self) -> None:
        """In a cycle with an error that its Link has raised, the collector may come here before `_close` does."""
        with suppress(sqlite3.ProgrammingError):  # one that could not be opened is not initialized
            self.close()


def _identity_of(file: str | Path) -> tuple[int, int] | None:
    """None: there is no such file."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class Postgresql:
    """PostgreSQL through psycopg 3. A server that is cut off is noticed within some 20 s."""

    forks = True
    clock = "extract(epoch FROM clock_timestamp())::float8"
    identity = " GENERATED BY DEFAULT AS IDENTITY"
    lock_rows = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    # Not to_regclass: after the wait for the lock it may still answer from a cache.
    tables = (
        "SELECT string_agg(tablename::text, ',') FROM pg_tables "
        "WHERE left(tablename::text, 9) = 'manytail_' AND schemaname = ANY (current_schemas(false))"
    )
    lock_layout = f"SELECT pg_advisory_xact_lock({0x6D616E797461696C})"  # "manytail"

    # SQLSTATEs, or their first characters. Connection (08), resources (53), shutdown (57P), system (58), a conflict
    # (40001, 40P01), a read-only standby (25006), a transaction that took too long (25P03, 57014), tables that are gone
    # (42P01). Then a lock that is held, and missing rights.
    _AWAY = ("08", "53", "57P", "58", "40001", "40P01", "25006", "25P03", "57014", "42P01")
    _LOCKED = "55P03"
    _NO_RIGHTS = ("42501", "28")
    # A server that refuses a connection gives the reason only as text. If that is not English, the wait for
    # outage_timeout comes first.
    _REFUSED = re.compile(
        r"authentication failed|no password supplied|no pg_hba\.conf entry|(database|role) \".*\" does not exist|"
        r"permission denied for"
    )
    _LIMITS: ClassVar = {
        "keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000,
        "application_name": "manytail",
    }  # fmt: skip

    def __init__(self, url: str) -> None:
        try:
            import psycopg.conninfo
        except ImportError as error:
            hint = f"shared: PostgreSQL needs psycopg: pip install 'psycopg[binary]>=3.2' ({error})"
            raise ImportError(hint, name=error.name) from None
        try:
            self._options = psycopg.conninfo.conninfo_to_dict(url)
        except (psycopg.Error, ValueError) as error:
            option = re.search(r'invalid (?:URI query parameter|connection option)[: ]+"?(\w+)', str(error))
            what = f"has the invalid connection option {option[1]!r}" if option else "cannot be read"
            raise ValueError(f"where: {what} (expected: {EXPECTED})") from None
        if not str(self._options.get("port") or "0").replace(",", "").isdigit():
            raise ValueError(f"where: cannot be read (expected: {EXPECTED})")
        self._psycopg: Any = psycopg
        self._url = url
        self.secrets = _secrets_of(url, self._options)
        user, host, port, name = (self._options.get(each) for each in ("user", "host", "port", "dbname"))
        at = f"{'' if user is None else f'{quote(str(user))}@'}{host or ''}{'' if port is None else f':{port}'}"
        self.shown = f"postgresql://{at}/{quote(str(name or ''))}"

    def key(self) -> str:
        return self._url

    def connect(self, wait: int) -> Any:
        from .answers import Connection

        options: dict[str, Any] = {"connect_timeout": wait, **self._LIMITS, **self._options}
        return Connection.connect(**options, autocommit=True)

    def begin(self, connection: Any, writes: bool, give_up: Patience | None, wait: float) -> None:
        """The limits are those of the transaction. A pooler between here and the server refuses other ones."""
        connection.patience, connection.answer_wait = give_up, wait
        limits = {
            "lock_timeout": LOCK_WAIT, "idle_in_transaction_session_timeout": IDLE_WAIT,
            "statement_timeout": STATEMENT_WAIT if wait < math.inf else 0,
        }  # fmt: skip
        said = "".join(f"; SET LOCAL {name} = {seconds * 1_000:.0f}" for name, seconds in limits.items())
        connection.execute(f"BEGIN{said}", prepare=False)  # as one message, which cannot be prepared

    def is_replaced(self, connection: Any) -> bool:
        return False

    def translated(self, sql: str) -> str:
        return sql.replace("%", "%%").replace("?", "%s")

    def meaning(self, error: Exception, said: str) -> BaseException | None:
        if not isinstance(error, self._psycopg.Error):
            return None
        found: Any = error
        state = found.sqlstate
        if state is None:  # no answer, or no connection
            if self._REFUSED.search(said):
                return PermissionError(f"shared: the database refuses: {said}")
            gone = isinstance(error, self._psycopg.OperationalError | self._psycopg.InterfaceError)
            return Away(said) if gone else ValueError(f"where: {said}")
        said = found.diag.message_primary or said  # without details, which may quote values
        if state == self._LOCKED:
            return Locked(said)
        if state.startswith(self._AWAY):
            return Away(said)
        if state.startswith(self._NO_RIGHTS):
            return PermissionError(f"shared: the database refuses: {said}")
        return RuntimeError(f"shared: the database says: {said}")


Database = Sqlite | Postgresql


def scrub(database: Database, error: BaseException) -> str:
    """The message on one line, without secrets."""
    said = " ".join(str(error).split())
    for secret in database.secrets:
        said = said.replace(secret, "***")
    return said


def _secrets_of(url: str, options: dict[str, Any]) -> tuple[str, ...]:
    plain = {str(options[name]) for name in _SECRETS if options.get(name)}
    written = url.partition("://")[2].rpartition("@")[0].partition(":")[2]  # that of the query goes before it
    plain |= {unquote(written), *(value for name, value in parse_qsl(url.partition("?")[2]) if name in _SECRETS)}
    forms = {form(each) for each in plain for form in (str, quote, quote_plus)} | {written}
    return tuple(sorted(forms - {""}, key=len, reverse=True))


def database_named(where: str) -> Database:
    """The database that a path or a URL names. ValueError: it cannot be used; the message does not show it, because any
    part of it may be a password. ImportError: psycopg is missing."""
    scheme, is_url, rest = where.partition("://")
    if not is_url:
        return Sqlite(where)
    if scheme in ("postgresql", "postgres"):
        return Postgresql(where)
    if scheme != "sqlite":
        raise ValueError(f"where: a URL of {scheme!r} (expected: {EXPECTED})")
    if not rest.startswith("/") or "?" in rest:
        raise ValueError(f"where: sqlite:// without a path, or with parameters (expected: {EXPECTED})")
    return Sqlite(rest[1:])
