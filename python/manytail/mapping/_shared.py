"""`Shared`: names a database, and a name in it under which results and limits are kept.

sqlite3 is imported when the first Shared is made, and psycopg when one names a PostgreSQL database. A Shared holds no
connection itself. It has a `_shared_store.Store` for each process, made on first use and found by the process's id. So
a child makes its own after a fork. The parent's store stays referenced in the child, but is never used or closed there,
because both processes would use one socket.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from types import MethodDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

from manytail import _checks
from manytail._lifecycle import begin

from ._classes import MAIN, name_of_main

if TYPE_CHECKING:
    from ._shared_database import Database
    from ._shared_store import Store

_VARIABLE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")


class Shared:
    """A named store of recorded results (`remember=`) and limits (`shared=`) in a SQL database. All maps, tasks,
    processes and machines that use the same name share it.

    where: the path of a SQLite file, or `sqlite:///file.db`, for the processes of one machine; it needs no
    installation. Or `postgresql://user@host/database` for several machines; it needs `pip install
    'psycopg[binary]>=3.2'`. For a URL with a password, pass `env:NAME`, which reads an environment variable in each
    process, or a function that returns the URL. The tables are called manytail_* and are created on first use.

    A Shared can be pickled; each process opens one connection, on first use. Its repr, logs and errors never show
    passwords or the parameters of SQL statements.

    Its methods block while they query the database. Raises ValueError for a bad `where`, or if the tables belong to
    another version of manytail; PermissionError for a wrong password or missing rights; FileNotFoundError if the folder
    of the file does not exist; IsADirectoryError if `where` is a directory; SharedUnavailable if the database was
    unavailable for `outage_timeout` seconds.
    """

    __module__ = "manytail"

    def __init__(
        self,
        where: str | os.PathLike[str] | Callable[[], str],
        name: str,
        *,
        max_age: float | None = None,
        codec: Any = None,
        outage_timeout: float = 60.0,
    ) -> None:
        """name: 1 to 100 characters. max_age: remembered results older than that many seconds count as absent and are
        replaced. codec: has encode(result) -> bytes and decode(data); the default encodes the types of idempotency
        keys, exactly. Its name is stored with `name`, which refuses another one. outage_timeout: seconds that the
        database may be away. In that time no call starts; after it SharedUnavailable fails the map.

        ValueError, TypeError, IsADirectoryError: bad arguments. ImportError: psycopg is not installed."""
        begin(self)
        self._where = _checked(where)
        if not isinstance(name, str):
            raise _checks.bad_type("name", name, "a str of 1 to 100 characters")
        if not 1 <= len(name) <= 100 or "\0" in name or any("\ud800" <= character <= "\udfff" for character in name):
            raise _checks.bad_value("name", name, "1 to 100 characters that a database can store")
        self._name = name
        self._max_age = _checks.optional_seconds("max_age", max_age)
        self._codec = _check_codec(codec)
        self._outage_timeout = _checks.finite("outage_timeout", outage_timeout, positive=True)
        self._stores: dict[int, Store] = {}

    _fingerprint: str | None = None  # of the fn that a path is named after; `remembering` sets it

    @property
    def name(self) -> str:
        """The name under which results and limits are kept."""
        return self._name

    @property
    def codec(self) -> Any:
        """The object that encodes and decodes the results. None: the default."""
        return self._codec

    def remembered(self) -> int:
        """Return the number of recorded results, not counting those older than max_age."""
        return self._store().remembered()

    def forget(self, *, older_than: float | None = None) -> int:
        """Delete the recorded results, or only those older than `older_than` seconds, and return how many were deleted.
        After forget() without an argument, the name may be used with another codec."""
        return self._store().forget(None if older_than is None else _checks.seconds("older_than", older_than))

    def reset(self) -> None:
        """Reset all limits of this name: nothing counts as spent, and rates forget earlier calls."""
        self._store().reset()

    # ------------------------------------------------------------------------------------------------ for maps
    def _store(self) -> Store:
        """The store of this process."""
        found = self._stores.get(os.getpid())
        if found is None:
            from ._shared_store import Store

            store = Store(partial(read, self._where), self._name, self._max_age, self._outage_timeout)
            found = self._stores.setdefault(os.getpid(), store)  # atomic: two threads get the same
        return found

    def _stay_connected(self) -> None:
        """Keep the connection of this process for the next Shared with the same database. For Spark's worker processes,
        where each task unpickles its own Shared."""
        self._store().stay_connected()

    def _has_literal_password(self) -> bool:
        """Whether a pickle of this contains a password."""
        if callable(self._where) or self._where.startswith("env:"):
            return False
        return bool(_database(self._where).secrets)

    def _is_file(self) -> bool:
        """Whether it is a file of SQLite, as far as that is known here."""
        where = self._where
        return not callable(where) and not where.startswith("env:") and "://" not in where

    def __repr__(self) -> str:
        where = getattr(self, "_where", None)
        if where is None:
            return "<Shared, not initialised>"
        if callable(where):
            said = f"<callable {getattr(where, '__qualname__', type(where).__qualname__)}>"
        else:
            said = repr(where if where.startswith("env:") else _database(where).shown)
        return f"Shared({said}, {self._name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), self._where, self._name, self._max_age, self._codec, self._outage_timeout)


def read(where: str | Callable[[], str]) -> str:
    """The path or URL, in this process. ValueError: the environment variable of `env:NAME` is not set here."""
    if callable(where):
        found = where()
        if not isinstance(found, str):
            raise TypeError(f"where: the callable returned a {type(found).__qualname__} (expected: a str)")
        return found
    if where.startswith("env:"):
        found = os.environ.get(where.removeprefix("env:"), "")
        if not found:
            raise ValueError(
                f"where: {where!r} is not set in this process (expected: an environment variable that holds a path or "
                "a URL)"
            )
        return found
    return where


def _remake(
    kind: type[Shared],
    where: str | Callable[[], str],
    name: str,
    max_age: float | None,
    codec: Any,
    outage_timeout: float,
) -> Shared:
    return kind(where, name, max_age=max_age, codec=codec, outage_timeout=outage_timeout)


def _database(where: str) -> Database:
    """The database that it names. Imports sqlite3."""
    from ._shared_database import database_of

    return database_of(where)


def _checked(where: Any) -> str | Callable[[], str]:
    if callable(where):
        if not _checks.accepts(where, 0):
            raise _checks.bad_type("where", where, "a callable without arguments that returns a path or a URL")
        return where  # type: ignore[no-any-return]
    path = os.fspath(where) if isinstance(where, str | os.PathLike) else None
    if not isinstance(path, str):  # it is not shown, because it may be a password
        expected = "a path, a URL, or a callable that returns one"
        raise TypeError(f"where: a {type(where).__qualname__} (expected: {expected})")
    if path is where and path.startswith("env:"):
        if not _VARIABLE.fullmatch(path):
            raise ValueError("where: 'env:' without the name of an environment variable (expected: env:NAME)")
        return str(path)
    # An absolute path is no URL.
    database = _database(path if path is where or not path else os.path.abspath(path))
    database.refuse_place()
    return database.key()


def _check_codec(value: Any) -> Any:
    for method in ("encode", "decode"):
        found = getattr(value, method, None)
        if value is not None and not (callable(found) and _checks.accepts(found, 1)):
            raise _checks.bad_type("codec", value, "an object with encode(result) -> bytes and decode(data)")
    return value


def name_of(fn: Any) -> str:
    """The name for the results of fn where a path stands for a Shared: its module and qualname. ValueError: fn has no
    name that means the same function in every process."""
    expected = "a function of a module or script; of another one name the results: Shared(path, name)"
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if isinstance(fn, MethodDescriptorType):  # str.upper has no module
        module = fn.__objclass__.__module__
    is_bound = not isinstance(getattr(fn, "__self__", None), type | ModuleType | None)  # to an object, with its state
    if module in MAIN:
        module = name_of_main(sys.modules.get(module))
    if not isinstance(module, str) or not isinstance(name, str) or is_bound or "<" in name:
        raise _checks.bad_value("remember", fn, expected)
    return f"{module}.{name}"
