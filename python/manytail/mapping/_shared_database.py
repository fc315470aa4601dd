"""SQLite and PostgreSQL as this process sees them: what `where` names, how to connect, and what an error means.

All statements stand in `_shared_store` and `_shared_tables`, in the SQL that both databases share. What differs is a
small class for each (`Sqlite`, `Postgresql`). SQLite comes with Python. PostgreSQL needs psycopg 3, which is imported
when a PostgreSQL database is named.

A process has one connection to a database (`Link`), used by one thread at a time. All stores of that database share it.
It is closed when the last of them is freed. A forked child makes its own: two processes that use one connection would
read each other's answers.

Errors. `Away` stands for what waiting may solve: refused and lost connections, a server that starts or stops, a full
disk, a lock that is held, tables that are gone. All else is an error for the user. No message shows a password or a
parameter of a statement: a server's details, where it quotes values, are left out, and secrets are replaced.

Waits. Nothing in here waits for long for somebody who may have stopped. SQLite does not wait for locks: `Store.run`
tries again. A session of PostgreSQL ends a transaction that waits for a lock, or in which nothing happens, so that a
process which was stopped in the middle of one holds up nobody for longer than that. A server that does not answer is
left after a while (`_shared_postgresql`).

Forks. A fork waits until no thread of ours uses SQLite, and closes its connections: SQLite keeps state of open files
and locks in the process, which a child would take for its own.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import sqlite3
import stat
import sys
import tempfile
import threading
import weakref
from _thread import get_ident
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from manytail._lifecycle import after_fork_in_child
from manytail._sync import Held

from ._errors import shortened
from ._exit import steps

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

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
ANSWER_WAIT = 10.0  # seconds without an answer, at most, before that counts as an outage; of a long statement: before
# another connection asks whether the server answers at all
WRITTEN = 100  # rows of one statement: the buffer of a socket takes it whole, so no process is stopped in the middle
CLOSE_TIMEOUT = 1.0  # seconds that closing waits for a transaction
FORK_TIMEOUT = 2.0  # seconds that a fork waits for a transaction
USE_INTERVAL = 0.1  # seconds after which a thread that waits for the connection looks whether it is to give up
_SECRETS = ("password", "passfile", "sslpassword", "sslkey", "oauth_client_secret")  # in the query of a URL


class Away(Exception):
    """The database does not answer. It may answer later."""


class Locked(Away):
    """Another process writes. It usually ends soon."""


class Patience(Protocol):
    """What says that somebody waits no longer."""

    def is_set(self) -> bool: ...


# ------------------------------------------------------------------------------------------------------- two databases
class Database(ABC):
    """A database that `where` names, and what is special about its kind."""

    shown: str  # what it is, without secrets and options
    secrets: tuple[str, ...] = ()  # every form in which a secret of it may appear in a message, the longest first
    clock: str  # SQL: seconds since 1970
    identity: str  # of a column whose values the database makes
    lock_rows: str  # at the end of a SELECT: nobody else changes these rows before the end of the transaction
    skip_locked: str  # the same, and rows that somebody has locked are left out
    tables: str  # SQL: one row with the names of the tables that begin with manytail_, or None
    lock_layout: str  # SQL: one transaction at a time goes past it

    @abstractmethod
    def key(self) -> str:
        """What names this database with its options, in any working directory. It may hold a password."""

    def refuse_place(self) -> None:  # noqa: B027 - a server has none
        """Raise what no waiting solves and can be seen without connecting: something other than a file is there."""

    @abstractmethod
    def connect(self, wait: int) -> Any:
        """A new connection. wait: seconds that this may take."""

    @abstractmethod
    def begin(self, connection: Any, writes: bool, give_up: Patience | None, wait: int, is_long: bool) -> None:
        """Begin a transaction. give_up: once it is set, nothing waits for an answer. wait: seconds without an answer
        that count as an outage. is_long: while a server answers another connection, they do not."""

    def is_replaced(self, connection: Any) -> bool:
        """Whether the connection leads to something else than a new one would."""
        return False

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

    def refuse_place(self) -> None:
        expected = "(expected: a file for the SQLite database)"
        try:
            mode = os.stat(self.file).st_mode
        except UnicodeEncodeError:
            raise ValueError(f"where: a path with characters that no file name can have {expected}") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
                raise ValueError(f"where: {shortened(self.file)}: {error.strerror} {expected}") from None
            return  # no file yet, or no rights: `connect` says so, where that has not changed by then
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(f"where: {self.file!r} is a directory {expected}")
        if not stat.S_ISREG(mode):
            raise ValueError(f"where: {self.file!r} is a device, a pipe or a socket {expected}")

    def connect(self, wait: int) -> sqlite3.Connection:
        """Raises first what waiting cannot solve: SQLite reports all of it alike."""
        self.refuse_place()
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
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.OperationalError) and (lack := _lack_of(file.parent)):
                raise ValueError(
                    f"where: {self.file!r}, on a file system{lack} (expected: a file on a local disk, or "
                    "postgresql://user@host/database)"
                ) from None
            raise
        return connection

    def begin(
        self, connection: sqlite3.Connection, writes: bool, give_up: Patience | None, wait: int, is_long: bool
    ) -> None:
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


def _lack_of(folder: Path) -> str:
    """What the file system lacks that SQLite needs, or an empty string. It asks with a file of its own: closing the
    database's would free the locks that this process has on it."""
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        file.truncate(mmap.PAGESIZE)
    except OSError:  # a full disk, missing rights
        return ""
    what = "share files in memory"
    with closing(file):
        try:
            mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
            what = "lock files"
            if sys.platform != "win32":
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"{_kind_of(folder)} that cannot {what}: {error.strerror}"
    return ""


def _kind_of(folder: Path) -> str:
    """The name of the file system's kind, as far as the system tells it."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    inside = [each for each in mounts if folder.is_relative_to(each[1])]
    return f" ({max(inside, key=lambda each: len(each[1]))[2]})" if inside else ""


class Postgresql(Database):
    """PostgreSQL through psycopg 3. A server that is cut off is noticed within some 20 s."""

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
        from ._shared_postgresql import Connection

        options: dict[str, Any] = {"connect_timeout": wait, **self._LIMITS, **self._options}
        return Connection.connect(**options, autocommit=True)

    def begin(self, connection: Any, writes: bool, give_up: Patience | None, wait: int, is_long: bool) -> None:
        """The limits are those of the transaction. A pooler between here and the server refuses other ones."""
        connection.patience, connection.answer_wait = give_up, wait
        connection.answers = partial(self._answers, wait) if is_long else None
        limits = {
            "lock_timeout": LOCK_WAIT, "idle_in_transaction_session_timeout": IDLE_WAIT,
            "statement_timeout": 0 if is_long else STATEMENT_WAIT,
        }  # fmt: skip
        said = "".join(f"; SET LOCAL {name} = {seconds * 1_000:.0f}" for name, seconds in limits.items())
        connection.execute(f"BEGIN{said}", prepare=False)  # as one message, which cannot be prepared

    def _answers(self, wait: int) -> bool:
        """Whether the server lets another connection in."""
        try:
            self.connect(wait).close()
        except self._psycopg.Error:
            return False
        return True

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

    def write(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for WRITTEN rows at a time. `{}` in it stands for their list.

        Not `executemany`: psycopg sends it as a pipeline, whose statements the server executes as they come. None of
        its timeouts ends the wait for the rest, so a process that was stopped in between would keep its locks."""
        for begin in range(0, len(rows), WRITTEN):
            part = rows[begin : begin + WRITTEN]
            listed = ",".join([f"({','.join('?' * len(part[0]))})"] * len(part))
            self.execute(sql.format(listed), [value for row in part for value in row])

    def value(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first value of the first row; None if there is no row."""
        row = self.execute(sql, parameters).fetchone()
        return None if row is None else row[0]


_inherited: list[Any] = []  # kept unclosed: of a parent process, whose socket closing would use, or in a transaction


class Link:
    """The connection of this process to one database. It is made anew after an error that waiting may solve."""

    def __init__(self, database: Database, wait: int) -> None:
        """wait: seconds that connecting and an answer may take, at most."""
        self.database = database
        self._wait = wait
        self._connection: list[Any] = []  # one, or none
        self.number = 0  # of the connection
        self._failed = 0  # attempts to connect, in a row
        self._using = threading.Lock()  # held by the thread that uses it
        self._user = 0  # that thread
        self._close_when_freed()

    def _close_when_freed(self) -> None:
        self.close = weakref.finalize(self, _close, self._connection, self._using, os.getpid())
        self.close.atexit = False  # then it comes too early: see _close_all

    def run(
        self, work: Callable[[Transaction], T], writes: bool, give_up: Patience | None = None, is_long: bool = False
    ) -> T:
        """Run `work` in one transaction. Raises what the database means by an error (`Database.meaning`), and Away once
        `give_up` is set. is_long: a statement may take as long as it needs while the server answers others."""
        while True:
            with Held(self._using, USE_INTERVAL) as held:
                if held:
                    self._user = get_ident()
                    try:
                        return self._run(work, writes, give_up, is_long)
                    finally:
                        self._user = 0
            if give_up is not None and give_up.is_set():
                raise Away("it does not answer another thread")

    def _run(self, work: Callable[[Transaction], T], writes: bool, give_up: Patience | None, is_long: bool) -> T:
        database = self.database
        try:
            connection = self._opened()
            database.begin(connection, writes, give_up, self._wait, is_long)
            result = work(Transaction(database, connection))
            connection.commit()
        except Exception as error:
            meaning = database.meaning(error, database.scrub(error))
            away = error if isinstance(error, Away) else meaning
            if (isinstance(away, Away) and not isinstance(away, Locked)) or not self._rolled_back():
                self.drop()
            if meaning is None:
                raise
            raise meaning from None
        except BaseException:  # of a signal handler: the transaction may be half done
            if isinstance(database, Sqlite):
                self._rolled_back()  # what is closed keeps its locks while a traceback keeps a statement of it
            self.drop()
            raise
        return result

    def _opened(self) -> Any:
        if self._connection and self.database.is_replaced(self._connection[0]):
            self.drop()
        if not self._connection:
            if not self.close.alive:  # freed in a cycle, from which a thread took it that gives back what limits hold
                self._close_when_freed()
            wait = min(self._wait, 2 << min(self._failed, 8))  # short at first: no deadline acts meanwhile
            self._failed += 1
            try:
                self._connection.append(self.database.connect(wait))
            except OSError as error:
                if self.number:  # the file system may come back
                    raise Away(str(error)) from None
                raise
            self._failed = 0
            self.number += 1
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


    # ------------------------------------------------------------------------------------------------ forks
    def pause(self) -> bool:
        """Before a fork: close a connection to SQLite, when no thread uses it, and let none use it. False: that is not
        so, for instance because this thread uses it."""
        if not isinstance(self.database, Sqlite) or self._user == get_ident():
            return False
        held = Held(self._using, FORK_TIMEOUT)
        if not held.__enter__():
            held.__exit__()
            return False
        self._pause = held
        self.drop()
        return True

    def go_on(self) -> None:
        self._pause.__exit__()


_links: weakref.WeakValueDictionary[tuple[int, str, int], Link] = weakref.WeakValueDictionary()
_linking = threading.Lock()
_paused: list[Link] = []  # by the fork that goes on


def _before_fork() -> None:
    _paused.extend(link for link in list(_links.values()) if link.pause())


def _after_fork_in_parent() -> None:
    while _paused:
        _paused.pop().go_on()


def _after_fork_in_child() -> None:
    """A new lock in the child: at the fork another thread of the parent may have held the old one. Its links are those
    of the parent: it makes its own."""
    global _linking
    _linking = threading.Lock()
    _paused.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent)
after_fork_in_child(_after_fork_in_child)


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


def _close_all() -> None:
    for link in list(_links.values()):
        link.close()


steps.close = _close_all
