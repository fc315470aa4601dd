"""The connection of this process to a database: one, used by one thread at a time, made anew after an outage.

All stores of a database share it (`link_to`). It is closed when the last of them is freed, or when the interpreter
exits.

Forks. A forked child makes its own: two processes that use one connection would read each other's answers. SQLite keeps
the state of open files and locks in the process, which a child would take for its own: so a fork waits until no thread
of ours uses SQLite, and closes its connections.

Invariants
    _using          is held by the thread that uses the connection, which is `_user`
    _connection     a list of one or none; after an error that leaves doubt it is dropped, never used again
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from manytail._lifecycle import after_fork_in_child
from manytail._sync import Held

from .kinds import Away, Database, Locked, Patience, scrub

T = TypeVar("T")

WRITTEN = 100  # rows of one statement: the buffer of a socket takes it whole, so no process is stopped in the middle
CLOSE_TIMEOUT = 1.0  # seconds that closing waits for a transaction
FORK_TIMEOUT = 2.0  # seconds that a fork waits for a transaction
USE_INTERVAL = 0.1  # seconds after which a thread that waits for the connection looks whether it is to give up


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
        """Run `work` in one transaction. Raises what the database means by an error (`kinds`), and Away once
        `give_up` is set. is_long: a statement may take as long as it needs."""
        while True:
            with Held(self._using, USE_INTERVAL) as held:
                if held:
                    self._user = get_ident()
                    try:
                        return self._run(work, writes, give_up, math.inf if is_long else self._wait)
                    finally:
                        self._user = 0
            if give_up is not None and give_up.is_set():
                raise Away("it does not answer another thread")

    def _run(self, work: Callable[[Transaction], T], writes: bool, give_up: Patience | None, wait: float) -> T:
        database = self.database
        try:
            connection = self._opened()
            database.begin(connection, writes, give_up, wait)
            result = work(Transaction(database, connection))
            connection.commit()
        except Exception as error:
            meaning = database.meaning(error, scrub(database, error))
            away = error if isinstance(error, Away) else meaning
            if (isinstance(away, Away) and not isinstance(away, Locked)) or not self._rolled_back():
                self.drop()
            if meaning is None:
                raise
            raise meaning from None
        except BaseException:  # of a signal handler: the transaction may be half done
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

    def pause(self) -> Held | None:
        """Before a fork: close a connection to SQLite, when no thread uses it, and let none use it until what is
        returned is left. None: that is not so, for instance because this thread uses it."""
        if self.database.forks or self._user == get_ident():
            return None
        held = Held(self._using, FORK_TIMEOUT)
        if not held.__enter__():
            held.__exit__()
            return None
        self.drop()
        return held


_links: weakref.WeakValueDictionary[tuple[int, str, int], Link] = weakref.WeakValueDictionary()
_linking = threading.Lock()
_paused: list[Held] = []  # links, by the fork that goes on


def _before_fork() -> None:
    _paused.extend(held for link in list(_links.values()) if (held := link.pause()) is not None)


def _after_fork_in_parent() -> None:
    while _paused:
        _paused.pop().__exit__()


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


# At the import: registering in several threads at once crashes CPython 3.13 without the GIL. What records and reports
# at the exit is imported later, so it comes before this.
atexit.register(_close_all)
