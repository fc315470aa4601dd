"""The statements of a Shared, for one name, in this process, and what happens while the database is away.

Look-ups and records are bulk statements. What a process takes of limits is one transaction (`exchange`, `_grants`).
Rows are locked and written in one order, so that processes hardly ever deadlock; then the transaction is repeated.

`Store.run` repeats a transaction until the database has been away for `outage_timeout` seconds. Then SharedUnavailable
is raised. A lock that another process holds counts as that only after LOCK_WAIT seconds. Errors that waiting cannot
solve are raised at once (`_shared_database`): PermissionError, FileNotFoundError, ValueError, RuntimeError.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from operator import itemgetter
from typing import Any, TypeVar

from manytail._sync import Event

from . import _logs, _shared_database, _shared_tables
from ._grants import Answer, Ask, Hold, Holds, Row, Terms, grant
from ._shared_database import ANSWER_WAIT, Away, Database, Link, Locked, Patience, Transaction, database_of, link_to
from ._types import SharedUnavailable

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two tries
FIRST_LOCK_PAUSE, LONGEST_LOCK_PAUSE = 0.001, 0.1  # the same, while another process writes
GRACE = 2.0  # seconds that what has to be told may still wait, where nothing else does
_TERMS, _STATE = "amount, per, burst, lease", "tat, credit, paused_until, settled"
_HOLD = "reserved, wanted, since, number, expires_at"
_UNKNOWN = (None,) * 4  # the terms of a key: those of its limit hold
SLICE = 500  # ids of one look-up, and rows of one insert
SLICE_BYTES = 1 << 24  # of the results of one insert, unless one alone is larger: a server refuses a message of 1 GB

_lasting: set[Link] = set()  # by `Store.stay_connected`


def _slices(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (rows[begin : begin + size] for begin in range(0, len(rows), size))


def _parts(rows: Sequence[tuple[bytes, bytes]]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    """The rows of each insert."""
    begin, size = 0, 0
    for index, (_, result) in enumerate(rows):
        if index > begin and (index - begin == SLICE or size + len(result) > SLICE_BYTES):
            yield rows[begin:index]
            begin, size = index, 0
        size += len(result)
    if rows:
        yield rows[begin:]


def _selected(transaction: Transaction, query: str, name: int, limits: Sequence[bytes], end: str) -> list[Any]:
    """The rows of these limits, SLICE limits in one statement."""
    rows: list[Any] = []
    for part in _slices(limits, SLICE):
        some = ",".join("?" * len(part))
        rows += transaction.execute(f"{query} AND limit_id IN ({some}){end}", (name, *part)).fetchall()
    return rows


def _flat(holds: Mapping[bytes, Holds]) -> dict[tuple[bytes, bytes], tuple[Any, ...]]:
    return {(limit, holder): astuple(hold) for limit, each in holds.items() for holder, hold in each.items()}


class Grace:
    """Is set GRACE seconds after the event was: for what is lost if it is not told."""

    def __init__(self, event: Any) -> None:
        self._event = event
        self._over_at = math.inf

    def is_set(self) -> bool:
        if not self._event.is_set():
            self._over_at = math.inf
            return False
        now = time.monotonic()
        self._over_at = min(self._over_at, now + GRACE)
        return now >= self._over_at

    def wait(self, timeout: float) -> object:
        return (Event() if self._event.is_set() else self._event).wait(timeout)


class Store:
    """The database, for one name, in this process. Opens nothing before it is used."""

    def __init__(self, where: Callable[[], str], name: str, max_age: float | None, outage_timeout: float) -> None:
        self._where = where
        self._name = name
        self._max_age = max_age
        self._outage_timeout = outage_timeout
        self._link: Link | None = None
        self._stays_connected = False
        self._name_id: tuple[int, int] | None = None  # number of the connection that told it, number of the name
        self._told: set[tuple[bytes, Terms]] = set()  # by this process, of limits

    # ------------------------------------------------------------------------------------------------ transactions
    def stay_connected(self) -> None:
        """Keep the connection until the process ends, also when this store is freed. The next store uses it."""
        self._stays_connected = True
        if self._link is not None:
            _lasting.add(self._link)

    @property
    def link(self) -> Link:
        """The connection. ValueError, ImportError: `where` cannot be used."""
        if self._link is None:  # two threads find the same one
            wait = max(2, math.ceil(min(self._outage_timeout, ANSWER_WAIT)))
            self._link = link_to(database_of(self._where()), wait)
            if self._stays_connected:
                _lasting.add(self._link)
        return self._link

    @property
    def _database(self) -> Database:
        return self.link.database

    def run(
        self,
        work: Callable[[Transaction, int], T],
        *,
        writes: bool = True,
        give_up: Any = None,
        is_long: bool = False,
    ) -> T:
        """Run `work(transaction, number of the name)` in one transaction. Repeat it while the database is away, with a
        longer pause each time, also if it may have been committed. SharedUnavailable after `outage_timeout` seconds, or
        once `give_up` is set. is_long: a statement may take as long as it needs while the server answers others."""
        begun = time.monotonic()
        since: float | None = None  # since when it counts as away
        pause, lock_pause = FIRST_PAUSE, FIRST_LOCK_PAUSE
        give_up = give_up or Event()
        while True:
            try:
                return self._attempt(work, writes, give_up, is_long)
            except Away as away:
                now = time.monotonic()
                is_usual = isinstance(away, Locked) and now - begun < _shared_database.LOCK_WAIT
                if since is None and not is_usual:
                    since = now
                    _logs.warning("shared: the database is unavailable: %s", away)
                left = math.inf if since is None else since + self._outage_timeout - now
                if left <= 0 or give_up.is_set():
                    why = f"shared: the database was unavailable for {now - begun:.1f} s: {away}"
                    raise SharedUnavailable(why) from None
            if is_usual:
                give_up.wait(lock_pause)
                lock_pause = min(2 * lock_pause, LONGEST_LOCK_PAUSE)
            else:
                give_up.wait(min(pause, left))
                pause = min(2 * pause, LONGEST_PAUSE)

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
        _shared_tables.make(transaction)
        find = "SELECT id FROM manytail_names WHERE name = ?"
        found = transaction.value(find, (self._name,))
        if found is None:
            transaction.execute("INSERT INTO manytail_names (name) VALUES (?) ON CONFLICT DO NOTHING", (self._name,))
            found = transaction.value(find, (self._name,))
        return int(found)

    # ----------------------------------------------------------------------------------------- what belongs to the name
    def agree(self, codec: str, schema: str, give_up: Any = None) -> None:
        """Store the codec and the schema of remembered results with the name. ValueError: the name has results with
        others."""

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
            delete += f" AND recorded_at < {self._database.clock} - ?"
            return int(transaction.execute(delete, (name, older_than)).rowcount)

        return self.run(work, is_long=True)

    def _fresh(self) -> tuple[str, tuple[float, ...]]:
        """The condition that a result is not older than max_age, and its parameter."""
        if self._max_age is None:
            return "", ()
        return f" AND recorded_at > {self._database.clock} - ?", (self._max_age,)

    # ------------------------------------------------------------------------------------------------ results
    def look_up(
        self, ids: Sequence[bytes], give_up: Any = None, ages: list[float] | None = None
    ) -> dict[bytes, bytes]:
        """The results that are recorded under these ids. ages: gets their ages, in seconds."""

        def work(transaction: Transaction, name: int) -> list[tuple[bytes, bytes, float]]:
            fresh, age = self._fresh()
            columns = f"id, result, {self._database.clock} - recorded_at"
            found: list[tuple[bytes, bytes, float]] = []
            for part in _slices(ids, SLICE):
                some = ",".join("?" * len(part))
                query = f"SELECT {columns} FROM manytail_results WHERE name = ? AND id IN ({some}){fresh}"
                found += transaction.execute(query, (name, *part, *age)).fetchall()
            return found

        found = self.run(work, writes=False, give_up=give_up)
        if ages is not None:
            ages += [age for _, _, age in found]
        return {id_: result for id_, result, _ in found}

    def record(self, results: Mapping[bytes, bytes], give_up: Any = None) -> None:
        """Record results. The first record of an id stays, unless it is older than max_age. Each statement is a
        transaction: a process that is stopped while it sends one, which may be large, has no rows locked."""
        conflict = "NOTHING"
        fresh, age = self._fresh()
        if fresh:
            old = fresh.replace(" AND recorded_at >", "manytail_results.recorded_at <=")
            conflict = f"UPDATE SET result = excluded.result, recorded_at = excluded.recorded_at WHERE {old}"
        for part in _parts(sorted(results.items())):

            def work(transaction: Transaction, name: int, part: Sequence[tuple[bytes, bytes]] = part) -> None:
                values = ",".join([f"(?, ?, ?, {self._database.clock})"] * len(part))
                transaction.execute(
                    f"INSERT INTO manytail_results (name, id, result, recorded_at) VALUES {values} "
                    f"ON CONFLICT (name, id) DO {conflict}",
                    [*(value for row in part for value in (name, *row)), *age],
                )

            self.run(work, give_up=give_up)

    # ------------------------------------------------------------------------------------------------ limits
    def exchange(
        self,
        ahead: float,
        terms: Mapping[bytes, Terms],
        asks: Sequence[Ask],
        calls: Sequence[Sequence[tuple[int, float]]],
        give_up: Any = None,
    ) -> tuple[list[Answer], float]:
        """Report what calls took of limits, and ask for more: `_grants.grant` decides. Returns the answers and the
        database's time. One transaction, which locks the rows of the limits. terms: by group; the last told hold."""
        limits = sorted({ask.limit for ask in asks} | set(terms))
        told: list[tuple[bytes, Terms, Terms]] = []

        def work(transaction: Transaction, name: int) -> tuple[list[Answer], float]:
            told.clear()
            found = self._locked_limits(transaction, name, limits)
            if len(found) < len(limits):
                new = [limit for limit in limits if limit not in found]
                transaction.write(
                    f"INSERT INTO manytail_limits (name, limit_id, {_TERMS}) VALUES {{}} "
                    "ON CONFLICT (name, limit_id) DO NOTHING",
                    [(name, limit, *terms.get(limit, _UNKNOWN)) for limit in new],
                )
                found = self._locked_limits(transaction, name, limits)
            stored = {limit: found[limit][0] for limit in terms}
            told.extend((limit, stored[limit], new) for limit, new in terms.items() if self._tells(limit, new, stored))
            transaction.write(
                f"INSERT INTO manytail_limits (name, limit_id, {_TERMS}) VALUES {{}} ON CONFLICT (name, limit_id) "
                "DO UPDATE SET amount = excluded.amount, per = excluded.per, burst = excluded.burst, "
                "lease = excluded.lease",
                [(name, limit, *new) for limit, _, new in told],
            )
            stored.update({limit: new for limit, _, new in told})
            rows = {ask.limit: found[ask.limit][1] for ask in asks}
            holds = self._holds(transaction, name, list(rows))
            before = {limit: astuple(row) for limit, row in rows.items()}, _flat(holds)
            now = float(transaction.value(f"SELECT {self._database.clock}"))
            answers = grant(now, ahead, stored, rows, holds, asks, calls)
            self._store_limits(transaction, name, before, rows, _flat(holds))
            return answers, now

        result = self.run(work, give_up=give_up)
        self._told.update(terms.items())
        changed = "shared: %s of name %r changes from %s to %s for all that use it"
        for limit, before, new in told:
            _logs.warning(changed, limit.decode(), self._name, before, new)
        return result

    def _tells(self, limit: bytes, new: Terms, stored: Mapping[bytes, Terms]) -> bool:
        """Whether these terms replace the stored ones: they were not told before."""
        return (limit, new) not in self._told and new != stored[limit]

    def _locked_limits(
        self, transaction: Transaction, name: int, limits: Sequence[bytes]
    ) -> dict[bytes, tuple[Terms, Row]]:
        """The rows of these limits, as far as they exist. Nobody else changes them, or the holds of these limits,
        before the end of the transaction."""
        query = f"SELECT limit_id, {_TERMS}, {_STATE} FROM manytail_limits WHERE name = ?"
        rows = _selected(transaction, query, name, limits, f" ORDER BY limit_id{self._database.lock_rows}")
        return {bytes(limit): (Terms(*values[:4]), Row(*values[4:])) for limit, *values in rows}

    def _holds(self, transaction: Transaction, name: int, limits: Sequence[bytes]) -> dict[bytes, Holds]:
        query = f"SELECT limit_id, holder, {_HOLD} FROM manytail_holds WHERE name = ?"
        holds: dict[bytes, Holds] = {limit: {} for limit in limits}
        for limit, holder, *values in _selected(transaction, query, name, limits, ""):
            holds[bytes(limit)][bytes(holder)] = Hold(*values)
        return holds

    def _store_limits(
        self, transaction: Transaction, name: int, before: tuple[Any, Any], rows: Mapping[bytes, Row], holds: Any
    ) -> None:
        changed = [(limit, row) for limit, row in rows.items() if astuple(row) != before[0][limit]]
        transaction.write(
            f"INSERT INTO manytail_limits (name, limit_id, {_STATE}) VALUES {{}} ON CONFLICT (name, limit_id) "
            "DO UPDATE SET tat = excluded.tat, credit = excluded.credit, paused_until = excluded.paused_until, "
            "settled = excluded.settled",
            [(name, limit, *astuple(row)) for limit, row in sorted(changed, key=itemgetter(0))],
        )
        transaction.write(
            f"INSERT INTO manytail_holds (name, limit_id, holder, {_HOLD}) VALUES {{}} "
            "ON CONFLICT (name, limit_id, holder) DO UPDATE SET "
            "reserved = excluded.reserved, wanted = excluded.wanted, since = excluded.since, number = excluded.number, "
            "expires_at = excluded.expires_at",
            [(name, *key, *hold) for key, hold in holds.items() if before[1].get(key) != hold],
        )
        transaction.write(
            "DELETE FROM manytail_holds WHERE (name, limit_id, holder) IN (VALUES {})",
            [(name, *key) for key in before[1] if key not in holds],
        )

    def drop_limits(self, idle: float, give_up: Any = None) -> int:
        """Drop the keys of Rates of which nothing was taken for `idle` seconds, but none that is being changed. Returns
        how many. A later grant does not change: it begins at the time when it is asked for in either case."""
        clock = self._database.clock

        def work(transaction: Transaction, name: int) -> int:
            old = f"per IS NULL AND tat < {clock} - ? AND paused_until < {clock}{self._database.skip_locked}"
            delete = (
                "DELETE FROM manytail_limits WHERE name = ? AND limit_id IN (SELECT limit_id FROM manytail_limits "
                f"WHERE name = ? AND {old}) AND NOT EXISTS (SELECT 1 FROM manytail_holds AS held "
                "WHERE held.name = manytail_limits.name AND held.limit_id = manytail_limits.limit_id)"
            )
            return int(transaction.execute(delete, (name, name, idle)).rowcount)

        return self.run(work, give_up=give_up)

    def spent(self, limit: bytes) -> float:
        """What ended calls have spent of a Budget, and what processes had reserved that died."""
        clock = self._database.clock

        def work(transaction: Transaction, name: int) -> float:
            settled = "SELECT settled FROM manytail_limits WHERE name = ? AND limit_id = ?"
            lost = (
                "SELECT coalesce(sum(reserved), 0) FROM manytail_holds "
                f"WHERE name = ? AND limit_id = ? AND expires_at <= {clock}"
            )
            return float(transaction.value(settled, (name, limit)) or 0) + float(transaction.value(lost, (name, limit)))

        return self.run(work, writes=False)

    def reset(self) -> None:
        def work(transaction: Transaction, name: int) -> None:
            transaction.execute("DELETE FROM manytail_holds WHERE name = ?", (name,))
            transaction.execute("DELETE FROM manytail_limits WHERE name = ?", (name,))

        self.run(work)
