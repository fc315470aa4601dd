"""What processes tell one another about shared limits: the statements of one exchange (`limits/grants.py` decides).

One transaction locks the rows of the limits, in one order, and reads and writes them and their holds. What it decided
may be decided anew, if its answer is lost: reports have numbers, and grants that nobody heard of are wasted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from ..limits.grants import Answer, Ask, Hold, Holds, Row, Terms, grant
from .connection import Transaction
from .statements import SLICE, Store, warn

_TERMS, _STATE = "amount, per, burst, lease", "tat, credit, paused_until, settled"
_HOLD = "reserved, wanted, since, number, expires_at"
_UNKNOWN = (None,) * 4  # the terms of a key: those of its limit hold


class LimitStore:
    """The limits of one name of a database, for this process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: set[tuple[bytes, Terms]] = set()  # by this process

    def exchange(
        self,
        ahead: float,
        terms: Mapping[bytes, Terms],
        asks: Sequence[Ask],
        calls: Sequence[Sequence[tuple[int, float]]],
        give_up: Any = None,
    ) -> tuple[list[Answer], float]:
        """Report what calls took, and ask for more. Returns the answers and the database's time. terms: by group; the
        last that were told hold for all."""
        limits = sorted({ask.limit for ask in asks} | set(terms))
        clock = self._store.link.database.clock
        changed: list[tuple[bytes, Terms, Terms]] = []

        def work(transaction: Transaction, name: int) -> tuple[list[Answer], float]:
            changed.clear()
            stored, rows = _locked(transaction, name, limits, terms)
            holds = _holds(transaction, name, limits)
            before = _limits_of(stored, rows), _holds_of(holds)
            for limit, new in terms.items():
                if (limit, new) not in self._told and new != stored[limit]:
                    changed.append((limit, stored[limit], new))
                    stored[limit] = new
            now = float(transaction.value(f"SELECT {clock}"))
            answers = grant(now, ahead, stored, rows, holds, asks, calls)
            _write(transaction, name, before, (_limits_of(stored, rows), _holds_of(holds)))
            return answers, now

        result = self._store.run(work, give_up=give_up)
        self._told.update(terms.items())
        text = "shared: %s of name %r changes from %s to %s for all that use it"
        for limit, old, new in changed:
            warn(text, limit.decode(), self._store.name, old, new)
        return result

    def drop_idle(self, idle: float, give_up: Any = None) -> int:
        """Drop the keys of Rates of which nothing was taken for `idle` seconds, but none that is being changed. Returns
        how many. A later grant does not change: it begins at the time when it is asked for in either case."""
        database = self._store.link.database

        def work(transaction: Transaction, name: int) -> int:
            clock = database.clock
            old = f"per IS NULL AND tat < {clock} - ? AND paused_until < {clock}{database.skip_locked}"
            delete = (
                "DELETE FROM manytail_limits WHERE name = ? AND limit_id IN (SELECT limit_id FROM manytail_limits "
                f"WHERE name = ? AND {old}) AND NOT EXISTS (SELECT 1 FROM manytail_holds AS held "
                "WHERE held.name = manytail_limits.name AND held.limit_id = manytail_limits.limit_id)"
            )
            return int(transaction.execute(delete, (name, name, idle)).rowcount)

        return self._store.run(work, give_up=give_up)


def _locked(
    transaction: Transaction, name: int, limits: Sequence[bytes], terms: Mapping[bytes, Terms]
) -> tuple[dict[bytes, Terms], dict[bytes, Row]]:
    """The rows of these limits, which are made if they are missing. Nobody else changes them, or the holds of these
    limits, before the end of the transaction."""
    query = f"SELECT limit_id, {_TERMS}, {_STATE} FROM manytail_limits WHERE name = ?"
    end = f" ORDER BY limit_id{transaction.database.lock_rows}"
    found = _selected(transaction, query, name, limits, end)
    if len(found) < len(limits):
        transaction.write(
            f"INSERT INTO manytail_limits (name, limit_id, {_TERMS}) VALUES {{}} "
            "ON CONFLICT (name, limit_id) DO NOTHING",
            [(name, limit, *terms.get(limit, _UNKNOWN)) for limit in limits],
        )
        found = _selected(transaction, query, name, limits, end)
    stored = {bytes(limit): Terms(*values[:4]) for limit, *values in found}
    return stored, {bytes(limit): Row(*values[4:]) for limit, *values in found}


def _holds(transaction: Transaction, name: int, limits: Sequence[bytes]) -> dict[bytes, Holds]:
    query = f"SELECT limit_id, holder, {_HOLD} FROM manytail_holds WHERE name = ?"
    holds: dict[bytes, Holds] = {limit: {} for limit in limits}
    for limit, holder, *values in _selected(transaction, query, name, limits, ""):
        holds[bytes(limit)][bytes(holder)] = Hold(*values)
    return holds


def _selected(transaction: Transaction, query: str, name: int, limits: Sequence[bytes], end: str) -> list[Any]:
    """The rows of these limits, SLICE limits in one statement."""
    rows: list[Any] = []
    for begin in range(0, len(limits), SLICE):
        part = limits[begin : begin + SLICE]
        some = ",".join("?" * len(part))
        rows += transaction.execute(f"{query} AND limit_id IN ({some}){end}", (name, *part)).fetchall()
    return rows


def _limits_of(terms: Mapping[bytes, Terms], rows: Mapping[bytes, Row]) -> dict[bytes, tuple[Any, ...]]:
    return {limit: (*terms[limit], *astuple(row)) for limit, row in rows.items()}


def _holds_of(holds: Mapping[bytes, Holds]) -> dict[tuple[bytes, bytes], tuple[Any, ...]]:
    return {(limit, holder): astuple(hold) for limit, each in holds.items() for holder, hold in each.items()}


def _write(transaction: Transaction, name: int, before: tuple[Any, Any], after: tuple[Any, Any]) -> None:
    """Write what has changed of limits and holds."""
    limits, holds = after
    transaction.write(
        f"INSERT INTO manytail_limits (name, limit_id, {_TERMS}, {_STATE}) VALUES {{}} "
        f"ON CONFLICT (name, limit_id) DO UPDATE SET {_excluded(_TERMS)}, {_excluded(_STATE)}",
        [(name, limit, *values) for limit, values in sorted(limits.items()) if values != before[0][limit]],
    )
    transaction.write(
        f"INSERT INTO manytail_holds (name, limit_id, holder, {_HOLD}) VALUES {{}} "
        f"ON CONFLICT (name, limit_id, holder) DO UPDATE SET {_excluded(_HOLD)}",
        [(name, *key, *hold) for key, hold in holds.items() if before[1].get(key) != hold],
    )
    transaction.write(
        "DELETE FROM manytail_holds WHERE (name, limit_id, holder) IN (VALUES {})",
        [(name, *key) for key in before[1] if key not in holds],
    )


def _excluded(columns: str) -> str:
    return ", ".join(f"{column} = excluded.{column}" for column in columns.split(", "))
