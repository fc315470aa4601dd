"""Whether fn has changed since results were recorded for its name: `remember="file.db"` names results by fn alone.

The fingerprint is of the code, its constants, the defaults and the values of the closure that have an idempotency key;
of a function in the closure, as a decorator has it, too. Bytecode is of one version of Python: those of two versions
are not compared. It is kept in a row of manytail_names of its own, as the codec of a name that no user gives.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from manytail._sync import Event

from .identity import stable as encode

if TYPE_CHECKING:
    from ..database.connection import Transaction
    from ..database.statements import Store

_VERSION = f"{sys.implementation.cache_tag}-{sys.flags.optimize}"
_ROW = "\1manytail: fn of {}"  # with the number of the name of the results


def fingerprint(fn: Any) -> str | None:
    """Of the version of Python, and of fn. None: it has no code in Python."""
    while not isinstance(fn, FunctionType):  # a method, or what functools.cache has made
        fn = getattr(fn, "__func__", getattr(fn, "__wrapped__", None))
        if fn is None:
            return None
    return f"{_VERSION} {blake2b(b''.join(_of_function(fn, set())), digest_size=16).hexdigest()}"


def _of_function(fn: FunctionType, seen: set[int]) -> Iterator[bytes]:
    seen.add(id(fn))
    yield from _of_code(fn.__code__, fn.__doc__)
    values = [fn.__defaults__, *sorted((fn.__kwdefaults__ or {}).items()), *_closed_over(fn)]
    for value in values:
        if isinstance(value, FunctionType):
            if id(value) not in seen:
                yield from _of_function(value, seen)
        else:
            yield _of_value(value)


def _closed_over(fn: FunctionType) -> Iterator[Any]:
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty
            continue


def _of_code(code: CodeType, docstring: str | None = None) -> Iterator[bytes]:
    """Without the docstring, which is the first constant, and the places of its lines."""
    yield encode([code.co_code, list(code.co_names), list(code.co_varnames), list(code.co_freevars)])
    constants = list(code.co_consts)
    if docstring is not None and constants and constants[0] == docstring:
        del constants[0]
    for value in constants:
        if isinstance(value, CodeType):
            yield from _of_code(value)
        else:
            yield _of_value(value)


def _of_value(value: Any) -> bytes:
    if isinstance(value, frozenset):  # as a constant, of `in {...}`
        return b"".join(sorted(map(_of_value, value)))
    try:
        return encode(value)
    except Exception:  # it has no key
        return b"?"


def check_function(store: Store, shown: str, found: str, give_up: Event) -> None:
    """Keep the fingerprint of fn with its results. UserWarning: they were recorded with another one, since the time
    that it names. It comes once for a change."""
    before, since = store.run(partial(_kept, found), give_up=give_up)
    if before is None or since is None or before == found or before.split(" ")[0] != _VERSION:
        return
    at = datetime.fromtimestamp(since, UTC).astimezone().isoformat(" ", "seconds")
    warnings.warn(
        f"remember: fn has changed since results were recorded for it, from {at} on, and these are used. Begin anew "
        f"with {shown}.forget(), or with another name",
        UserWarning,
        stacklevel=2,
    )


def _kept(found: str, transaction: Transaction, name: int) -> tuple[str | None, float | None]:
    """Keep it. Returns the one of before, and when the first result was recorded."""
    row = _ROW.format(name)
    before = transaction.value("SELECT codec FROM manytail_names WHERE name = ?", (row,))
    since = transaction.value("SELECT min(recorded_at) FROM manytail_results WHERE name = ?", (name,))
    if before != found:
        transaction.execute("INSERT INTO manytail_names (name) VALUES (?) ON CONFLICT DO NOTHING", (row,))
        transaction.execute("UPDATE manytail_names SET codec = ? WHERE name = ?", (found, row))
    return before, since
