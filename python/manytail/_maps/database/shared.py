"""`Shared`: names a database, and a name in it under which results and limits are kept.

sqlite3 is imported when the first Shared is made, and psycopg when one names a PostgreSQL database. A Shared holds no
connection itself. It has a `Store` for each process, made on first use and found by the process's id. So
a child makes its own after a fork. The parent's store stays referenced in the child, but is never used or closed there,
because both processes would use one socket.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from manytail import _checks
from manytail._lifecycle import begin

if TYPE_CHECKING:
    from .kinds import Database
    from .statements import Store

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
    of the file does not exist; SharedUnavailable if the database was unavailable for `outage_timeout` seconds.
    """

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

        ValueError, TypeError: bad arguments. ImportError: psycopg is not installed."""
        begin(self)
        self._where, self._database = _checked(where)
        if not isinstance(name, str):
            raise _checks.bad_type("name", name, "a str of 1 to 100 characters")
        if not 1 <= len(name) <= 100 or "\0" in name or any("\ud800" <= character <= "\udfff" for character in name):
            raise _checks.bad_value("name", name, "1 to 100 characters that a database can store")
        self._name = name
        self._max_age = _checks.optional_seconds("max_age", max_age)
        self._codec = _check_codec(codec)
        self._outage_timeout = _checks.finite("outage_timeout", outage_timeout, positive=True)
        self._stores: dict[int, Store] = {}

    fingerprint: str | None = None  # of the fn that a path is named after; `options.remembering` sets it

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
        return self.store().remembered()

    def forget(self, *, older_than: float | None = None) -> int:
        """Delete the recorded results, or only those older than `older_than` seconds, and return how many were deleted.
        After forget() without an argument, the name may be used with another codec."""
        return self.store().forget(None if older_than is None else _checks.seconds("older_than", older_than))

    def reset(self) -> None:
        """Reset all limits of this name: nothing counts as spent, and rates forget earlier calls."""
        self.store().reset()

    # ------------------------------------------------------------------------------------------------ for maps
    def store(self) -> Store:
        """The store of this process."""
        found = self._stores.get(os.getpid())
        if found is None:
            from .statements import Store

            store = Store(partial(database_of, self._where), self._name, self._max_age, self._outage_timeout)
            found = self._stores.setdefault(os.getpid(), store)  # atomic: two threads get the same
        return found

    def where_key(self) -> Any:
        """Equal for every Shared of this process that leads to the same database, as far as that is known here."""
        return self._where if isinstance(self._where, str) else id(self._where)

    def _has_literal_password(self) -> bool:
        """Whether a pickle of this contains a password."""
        return self._database is not None and bool(self._database.secrets)

    def _is_file(self) -> bool:
        """Whether it is a file of SQLite, as far as that is known here."""
        return self._database is not None and not self._database.forks

    def __repr__(self) -> str:
        where = getattr(self, "_where", None)
        if where is None:
            return "<Shared, not initialised>"
        if callable(where):
            said = f"<callable {getattr(where, '__qualname__', type(where).__qualname__)}>"
        else:
            said = repr(where if self._database is None else self._database.shown)
        return f"Shared({said}, {self._name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"max_age": self._max_age, "codec": self._codec, "outage_timeout": self._outage_timeout}
        return partial(type(self), **options), (self._where, self._name)


def database_of(where: str | Callable[[], str]) -> Database:
    """The database that `where` names in this process. ValueError: it names none, or the environment variable of
    `env:NAME` is not set here."""
    from .kinds import database_named  # imports sqlite3

    if callable(where):
        found = where()
        if not isinstance(found, str):
            raise TypeError(f"where: the callable returned a {type(found).__qualname__} (expected: a str)")
        return database_named(found)
    if not where.startswith("env:"):
        return database_named(where)
    if not (found := os.environ.get(where.removeprefix("env:"), "")):
        raise ValueError(
            f"where: {where!r} is not set in this process (expected: an environment variable that holds a path or a "
            "URL)"
        )
    return database_named(found)


def _checked(where: Any) -> tuple[str | Callable[[], str], Database | None]:
    """What to keep of `where`, and the database if it is known already."""
    if callable(where):
        if not _checks.accepts(where, 0):
            raise _checks.bad_type("where", where, "a callable without arguments that returns a path or a URL")
        return cast("Callable[[], str]", where), None
    path = os.fspath(where) if isinstance(where, str | os.PathLike) else None
    if not isinstance(path, str):  # it is not shown, because it may be a password
        expected = "a path, a URL, or a callable that returns one"
        raise TypeError(f"where: a {type(where).__qualname__} (expected: {expected})")
    if path is where and path.startswith("env:"):
        if not _VARIABLE.fullmatch(path):
            raise ValueError("where: 'env:' without the name of an environment variable (expected: env:NAME)")
        return path, None
    # An absolute path is no URL.
    database = database_of(path if path is where or not path else os.path.abspath(path))
    return database.key(), database


def _check_codec(value: Any) -> Any:
    for method in ("encode", "decode"):
        found = getattr(value, method, None)
        if value is not None and not (callable(found) and _checks.accepts(found, 1)):
            raise _checks.bad_type("codec", value, "an object with encode(result) -> bytes and decode(data)")
    return value
