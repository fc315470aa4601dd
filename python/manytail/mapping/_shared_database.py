"""SQLite and PostgreSQL as this process sees them: what `where` names, how to connect, and what an error means.

All statements stand in `_shared_store` and `_shared_tables`, in the SQL that both databases share. What differs is a
small class for each (`Sqlite`, `Postgresql`). SQLite comes with Python. PostgreSQL needs psycopg 3, which is imported
when a PostgreSQL database is named.

A process has one connection to a database (`Link`), used by one thread at a time. All stores of that database share it.
It is closed when the last of them is freed. A forked child makes its own: two processes that use one connection would
read each other's answers.

Errors. `Away` stands for what waiting may solve: refused and lost connections, a server that starts or stops, a full
disk, a lock that is held. All else is an error for the user. No message shows a password or a parameter of a statement:
a server's details, where it quotes values, are left out, and secrets are replaced.
"""

from __future__ import annotations

import atexit
import os
import re
import sqlite3
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from manytail._lifecycle import after_fork_in_child
from manytail._sync import Held

T = TypeVar("T")

EXPECTED = (
    "the path of a SQLite file, sqlite:///file.db, postgresql://user@host/database, env:NAME, "
    "or a callable that returns one of these"
)
LOCK_WAIT = 5.0  # seconds that SQLite waits for a lock before that counts as an outage
CLOSE_TIMEOUT = 1.0  # seconds that closing waits for a transaction
_SECRETS = ("password", "passfile", "sslpassword", "sslkey", "oauth_client_secret")  # in the query of a URL


class Away(Exception):
    """The database does not answer. It may answer later."""


# ------------------------------------------------------------------------------------------------------- two databases
class Database(ABC):
    """A database that `where` names, and what is special about its kind."""

    shown: str  # what it is, without secrets and options
    secrets: tuple[str, ...] = ()  # every form in which a secret of it may appear in a message, the longest first
    clock: str  # SQL: seconds since 1970
    identity: str  # of a column whose values the database makes
    lock_rows: str  # at the end of a SELECT: nobody else changes these rows before the end of the transaction
    skip_locked: str  # the same, and rows that somebody has locked are left out
    has_layout: str  # SQL: one row with a value if the tables exist
    lock_layout: str  # SQL: one transaction at a time goes past it

    @abstractmethod
    def key(self) -> str:
        """What names this database with its options, in any working directory. It may hold a password."""

    @abstractmethod
    def connect(self, wait: int) -> Any:
        """A new connection. wait: seconds that this may take."""

    @abstractmethod
    def begin(self, connection: Any, writes: bool) -> None: ...

    @abstractmethod
    def translated(self, sql: str) -> str:
        """A statement whose parameters are `?`, as the driver wants it."""

    @abstractmethod
    def meaning(self, error: Exception, said: str) -> BaseException | None:
        """What an error of the driver means: Away, or an error for the user. `said`: its text without secrets. None: it
        is no error of the driver."""

    def scrub(self, error: BaseException) -> str:
        """The message on one line, without secrets."""
        said = " ".join(str(error).split())
        for secret in self.secrets:
            said = said.replace(secret, "***")
        return said


class Sqlite(Database):
    """WAL, so that readers do not wait for writers. synchronous=NORMAL: records survive a process that is killed. After
    a power cut the last transactions may be missing: their results are paid for again.

    A transaction that writes takes the write lock at its beginning. If it read first, its write would fail at once when
    another process had written in between."""

    clock = "((julianday('now') - 2440587.5) * 86400.0)"
    identity = lock_rows = skip_locked = ""
    has_layout = "SELECT max(name) FROM sqlite_master WHERE name = 'manytail_layout'"
    lock_layout = "SELECT 1"  # BEGIN IMMEDIATE has the lock

    _AWAY = (
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    )  # fmt: skip
    _NO_RIGHTS = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)

    def __init__(self, file: str) -> None:
        if not file or ":memory:" in file or file.startswith("file:") or "\0" in file:
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
            raise PermissionError(f"where: no right to write the SQLite database {str(file)!r}")
        connection = sqlite3.connect(file, timeout=LOCK_WAIT, check_same_thread=False, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def begin(self, connection: sqlite3.Connection, writes: bool) -> None:
        connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")

    def translated(self, sql: str) -> str:
        return sql

    def meaning(self, error: Exception, said: str) -> BaseException | None:
        if not isinstance(error, sqlite3.Error):
            return None
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in self._AWAY:
            return Away(said)
        if code in self._NO_RIGHTS:
            return PermissionError(f"shared: the database refuses: {said}")
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return ValueError(f"where: the file is no SQLite database: {said}")
        return RuntimeError(f"shared: the database says: {said}")


class Postgresql(Database):
    """PostgreSQL through psycopg 3. A server that is cut off is noticed within some 20 s."""

    clock = "extract(epoch FROM clock_timestamp())::float8"
    identity = " GENERATED BY DEFAULT AS IDENTITY"
    lock_rows = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    # Not to_regclass: after the wait for the lock it may still answer from a cache.
    has_layout = (
        "SELECT max(tablename::text) FROM pg_tables "
        "WHERE tablename = 'manytail_layout' AND schemaname = ANY (current_schemas(false))"
    )
    lock_layout = f"SELECT pg_advisory_xact_lock({0x6D616E797461696C})"  # "manytail"

    # SQLSTATEs, or their first characters. Connection (08), resources (53), shutdown (57P), system (58), a conflict
    # (40001, 40P01), a read-only standby (25006), a lock that is held (55P03). Then missing rights.
    _AWAY = ("08", "53", "57P", "58", "40001", "40P01", "25006", "55P03")
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
            raise ImportError(f"shared: pip install 'manytail[postgres]' ({error})", name=error.name) from None
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
        return self._psycopg.connect(**{"connect_timeout": wait, **self._LIMITS, **self._options})

    def begin(self, connection: Any, writes: bool) -> None:
        """psycopg begins a transaction with the first statement."""

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
        if state.startswith(self._AWAY):
            return Away(said)
        if state.startswith(self._NO_RIGHTS):
            return PermissionError(f"shared: the database refuses: {said}")
        return RuntimeError(f"shared: the database says: {said}")


def _secrets_of(url: str, options: dict[str, Any]) -> tuple[str, ...]:
    plain = {str(options[name]) for name in _SECRETS if options.get(name)}
    written = url.partition("://")[2].rpartition("@")[0].partition(":")[2]  # that of the query goes before it
    plain |= {unquote(written), *(value for name, value in parse_qsl(url.partition("?")[2]) if name in _SECRETS)}
    forms = {form(each) for each in plain for form in (str, quote, quote_plus)} | {written}
    return tuple(sorted(forms - {""}, key=len, reverse=True))


def database_of(where: str) -> Database:
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


# --------------------------------------------------------------------------------------------------------- connections
class Transaction:
    """One transaction. Parameters of statements are `?`."""

    def __init__(self, database: Database, connection: Any) -> None:
        self.database = database
        self._connection = connection

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """Execute a statement. Returns the driver's cursor."""
        return self._connection.execute(self.database.translated(sql), parameters)

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        cursor = self._connection.cursor()
        cursor.executemany(self.database.translated(sql), rows)
        cursor.close()

    def value(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first value of the first row; None if there is no row."""
        row = self.execute(sql, parameters).fetchone()
        return None if row is None else row[0]


_inherited: list[Any] = []  # kept unclosed: of a parent process, whose socket closing would use, or in a transaction


class Link:
    """The connection of this process to one database. It is made anew after an error that waiting may solve."""

    def __init__(self, database: Database, wait: int) -> None:
        """wait: seconds that connecting may take."""
        self.database = database
        self._wait = wait
        self._connection: list[Any] = []  # one, or none
        self._connected = False  # whether there was one before
        self._using = threading.Lock()  # held by the thread that uses it
        self.close = weakref.finalize(self, _close, self._connection, self._using, os.getpid())
        self.close.atexit = False  # then it comes too early: see _close_all

    def run(self, work: Callable[[Transaction], T], writes: bool) -> T:
        """Run `work` in one transaction. Raises what the database means by an error (`Database.meaning`)."""
        with Held(self._using):
            return self._run(work, writes)

    def _run(self, work: Callable[[Transaction], T], writes: bool) -> T:
        database = self.database
        try:
            connection = self._opened()
            database.begin(connection, writes)
            result = work(Transaction(database, connection))
            connection.commit()
        except Exception as error:
            meaning = database.meaning(error, database.scrub(error))
            if isinstance(error, Away) or isinstance(meaning, Away) or not self._rolled_back():
                self.drop()
            if meaning is None:
                raise
            raise meaning from None
        except BaseException:  # of a signal handler: the transaction may be half done
            self.drop()
            raise
        return result

    def _opened(self) -> Any:
        if not self._connection:
            try:
                self._connection.append(self.database.connect(self._wait))
            except OSError as error:
                if self._connected:  # the file system may come back
                    raise Away(str(error)) from None
                raise
            self._connected = True
        return self._connection[0]

    def _rolled_back(self) -> bool:
        """Roll the transaction back. Returns whether the connection can be used again."""
        try:
            for connection in self._connection:
                connection.rollback()
        except Exception:
            return False
        return bool(self._connection)

    def drop(self) -> None:
        """Close the connection."""
        while self._connection:
            connection = self._connection.pop()
            try:
                connection.close()
            except Exception:  # of a connection that is lost
                continue


_links: weakref.WeakValueDictionary[tuple[int, str, int], Link] = weakref.WeakValueDictionary()
_linking = threading.Lock()


def _after_fork() -> None:
    """A new lock in the child: at the fork another thread of the parent may have held the old one."""
    global _linking
    _linking = threading.Lock()


after_fork_in_child(_after_fork)


def link_to(database: Database, wait: int) -> Link:
    """The connection of this process to that database."""
    key = (os.getpid(), database.key(), wait)
    with Held(_linking):
        found = _links.get(key)
        if found is None:
            found = _links[key] = Link(database, wait)
        return found


def _close(connection: list[Any], using: threading.Lock, process: int) -> None:
    """The last store is freed, or the interpreter exits. A connection in a transaction is left open."""
    if os.getpid() == process:
        with Held(using, CLOSE_TIMEOUT) as held:
            while held and connection:
                connection.pop().close()
    _inherited.extend(connection)


# Registered before a map starts, and so before what records its last results at exit: that runs first.
@atexit.register
def _close_all() -> None:
    for link in list(_links.values()):
        link.close()
