"""The statements of a Shared, for one name, in this process, and what happens while the database is away.

Look-ups, records and leases are bulk statements. The leases of many limits are one statement: the generic cell rate
algorithm (`_rates`) with the database's clock (`lease`). Rows are written in one order, so that processes never
deadlock.

`Store.run` repeats a transaction until the database has been away for `outage_timeout` seconds. Then SharedUnavailable
is raised. Errors that waiting cannot solve are raised at once (`_shared_database`): PermissionError, FileNotFoundError,
ValueError, RuntimeError.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from manytail._queue import Event

from . import _shared_tables
from ._rates import Granted, Part, grant
from ._shared_database import Away, Database, Link, Transaction, database_of, link_to
from ._types import SharedUnavailable

log = logging.getLogger("manytail")

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between two tries
SLICE = 500  # ids of one look-up, and rows of one insert
LEASES = 200  # leases of one statement

_kept: set[Link] = set()  # by `Store.keep`


class Uncertain(Exception):
    """A transaction may have been committed or not, and must not be repeated."""


class Lease(NamedTuple):
    """A lease of slots from `start` on, 1/rate apart. now: the time when it was given. Both by the database's clock."""

    start: float
    now: float
    rate: float


def _slices(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (rows[begin : begin + size] for begin in range(0, len(rows), size))


def _values(row: str, rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    """A VALUES list with that row, so many times, and its parameters."""
    return "VALUES " + ",".join([row] * len(rows)), [value for each in rows for value in each]


class Store:
    """The database, for one name, in this process. Opens nothing before it is used."""

    def __init__(self, where: Callable[[], str], name: str, max_age: float | None, outage_timeout: float) -> None:
        self._where = where
        self._name = name
        self._max_age = max_age
        self._outage_timeout = outage_timeout
        self._link: Link | None = None
        self._is_kept = False  # whether `keep` was called
        self._name_id: int | None = None

    # ------------------------------------------------------------------------------------------------ transactions
    def keep(self) -> None:
        """Keep the connection until the process ends, also when this store is freed. The next store uses it."""
        self._is_kept = True
        if self._link is not None:
            _kept.add(self._link)

    @property
    def link(self) -> Link:
        """The connection. ValueError, ImportError: `where` cannot be used."""
        if self._link is None:  # two threads find the same one
            wait = max(2, math.ceil(min(self._outage_timeout, 10.0)))
            self._link = link_to(database_of(self._where()), wait)
            if self._is_kept:
                _kept.add(self._link)
        return self._link

    @property
    def _database(self) -> Database:
        return self.link.database

    def run(
        self,
        work: Callable[[Transaction, int], T],
        *,
        writes: bool = True,
        give_up: Event | None = None,
        repeats: bool = True,
    ) -> T:
        """Run `work(transaction, number of the name)` in one transaction. Repeat it while the database is away, with a
        longer pause each time. SharedUnavailable after `outage_timeout` seconds, or once `give_up` is set. repeats:
        repeat it also if it may have been committed; otherwise that raises Uncertain."""
        since: float | None = None
        pause = FIRST_PAUSE
        give_up = give_up or Event()
        while True:
            began: list[bool] = []
            try:
                return self._attempt(work, writes, began)
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

    def _attempt(self, work: Callable[[Transaction, int], T], writes: bool, began: list[bool]) -> T:
        """began: gets an item when `work` begins."""
        name = self._name_id

        def whole(transaction: Transaction) -> tuple[int, T]:
            number = self._number_of_name(transaction) if name is None else name
            began.append(True)
            return number, work(transaction, number)

        try:
            self._name_id, result = self.link.run(whole, writes or name is None)
        except Exception:
            self._name_id = None  # the server that comes back may have another database
            raise
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
    def agree(self, codec: str, schema: str, give_up: Event | None = None) -> None:
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

        return self.run(work, writes=False)

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

        return self.run(work)

    def _fresh(self) -> tuple[str, tuple[float, ...]]:
        """The condition that a result is not older than max_age, and its parameter."""
        if self._max_age is None:
            return "", ()
        return f" AND recorded_at > {self._database.clock} - ?", (self._max_age,)

    # ------------------------------------------------------------------------------------------------ results
    def look_up(self, ids: Sequence[bytes], give_up: Event | None = None) -> dict[bytes, bytes]:
        """The results that are recorded under these ids."""

        def work(transaction: Transaction, name: int) -> dict[bytes, bytes]:
            fresh, age = self._fresh()
            found: dict[bytes, bytes] = {}
            for part in _slices(ids, SLICE):
                some = ",".join("?" * len(part))
                query = f"SELECT id, result FROM manytail_results WHERE name = ? AND id IN ({some}){fresh}"
                found.update(transaction.execute(query, (name, *part, *age)).fetchall())
            return found

        return self.run(work, writes=False, give_up=give_up)

    def record(self, results: Mapping[bytes, bytes], give_up: Event | None = None) -> None:
        """Record results in one transaction. The first record of an id stays, unless it is older than max_age."""
        rows = sorted(results.items())

        def work(transaction: Transaction, name: int) -> None:
            conflict = "NOTHING"
            fresh, age = self._fresh()
            if fresh:
                old = fresh.replace(" AND recorded_at >", "manytail_results.recorded_at <=")
                conflict = f"UPDATE SET result = excluded.result, recorded_at = excluded.recorded_at WHERE {old}"
            for part in _slices(rows, SLICE):
                values, given = _values(f"(?, ?, ?, {self._database.clock})", [(name, *row) for row in part])
                transaction.execute(
                    f"INSERT INTO manytail_results (name, id, result, recorded_at) {values} "
                    f"ON CONFLICT (name, id) DO {conflict}",
                    [*given, *age],
                )

        if rows:
            self.run(work, give_up=give_up)

    # ------------------------------------------------------------------------------------------------ rates
    def set_rates(self, rates: Mapping[bytes, float], give_up: Event | None = None) -> None:
        """Store the rates of limits with the name. The last value holds for all. Log a change."""
        find = "SELECT rate FROM manytail_rates WHERE name = ? AND limit_id = ?"
        store = (
            "INSERT INTO manytail_rates (name, limit_id, rate, tat) VALUES (?, ?, ?, 0) "
            "ON CONFLICT (name, limit_id) DO UPDATE SET rate = excluded.rate"
        )

        def work(transaction: Transaction, name: int) -> list[tuple[bytes, float, float]]:
            changes = []
            for limit, rate in sorted(rates.items()):
                before = transaction.value(find, (name, limit))
                if before != rate:
                    transaction.execute(store, (name, limit, rate))
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

    def lease(self, limits: Sequence[Part], give_up: Event | None = None) -> list[Lease]:
        """Lease the next starts of each limit, LEASES of them in one statement. The rate that is stored under `group`
        goes before the one given. No limit may occur twice.

        `tat`, the theoretical arrival time, is the time from which on nothing is leased. A lease takes the interval of
        amount / rate seconds from max(tat, now) on. A lease that is lost wastes its interval, and the limit still
        holds. After a pause there is no burst: slots that have passed are not leased.
        """
        wanted = sorted(limits)

        def work(transaction: Transaction, name: int) -> dict[bytes, Lease]:
            leases = {}
            for part in _slices(wanted, LEASES):
                values, given = _values("(?, ?, ?, ?)", part)
                rows = transaction.execute(self._lease_statement(values), [*given, name, name]).fetchall()
                leases.update({limit: Lease(tat, clock, rate) for limit, tat, rate, clock in rows})
            return leases

        leases = self.run(work, give_up=give_up)  # with the new `tat`, the end of each lease, as start
        return [
            lease._replace(start=lease.start - limit.amount / lease.rate)
            for limit in limits
            for lease in [leases[limit.limit]]
        ]

    def _lease_statement(self, wanted: str) -> str:
        """Insert or update the row of each limit. A new row has the rate and begun + length of the lease. From that an
        existing row computes the length again: excluded.tat - begun. So `begun` is one time for the whole statement.
        `now` is read when the row is written, after a wait for its lock."""
        begun, now = self._database.begun, self._database.clock
        return (
            f"WITH wanted (limit_id, rate_of, given, number) AS ({wanted}), "
            "lengths AS (SELECT wanted.limit_id AS limit_id, coalesce(stored.rate, given) AS rate, number "
            "FROM wanted LEFT JOIN manytail_rates AS stored "
            "ON stored.name = ? AND stored.limit_id = wanted.rate_of) "
            "INSERT INTO manytail_rates (name, limit_id, rate, tat) "
            f"SELECT ?, limit_id, rate, {begun} + number * 1.0 / rate FROM lengths WHERE true "
            "ORDER BY limit_id ON CONFLICT (name, limit_id) DO UPDATE SET rate = excluded.rate, "
            f"tat = {self._database.greatest}(manytail_rates.tat, {now}) + (excluded.tat - {begun}) "
            f"RETURNING limit_id, tat, rate, {now}"
        )

    def grant(self, wanted: Sequence[Sequence[Part]], give_up: Event | None = None) -> tuple[list[Granted], float]:
        """Grant each call a slot in all its limits, or refuse it: `_rates.grant` decides. Returns the answers and the
        database's time. One transaction, which locks the rows of the limits."""
        limits = {part.limit: part for parts in wanted for part in parts}
        groups = {part.group: part._replace(limit=part.group) for part in limits.values()}
        every = sorted({**limits, **groups}.values())

        def work(transaction: Transaction, name: int) -> tuple[list[Granted], float]:
            rows = self._locked_rates(transaction, name, every)
            if len(rows) < len(every):
                transaction.execute_many(
                    "INSERT INTO manytail_rates (name, limit_id, rate, tat) VALUES (?, ?, ?, 0) "
                    "ON CONFLICT (name, limit_id) DO NOTHING",
                    [(name, each.limit, each.rate) for each in every],
                )
                rows = self._locked_rates(transaction, name, every)
            now = float(transaction.value(f"SELECT {self._database.clock}"))
            before = {limit: tat for limit, _, tat in rows}
            tats = dict(before)
            answers = grant(now, tats, {limit: rate for limit, rate, _ in rows}, wanted)
            transaction.execute_many(
                "UPDATE manytail_rates SET tat = ? WHERE name = ? AND limit_id = ?",
                [(tat, name, limit) for limit, tat in sorted(tats.items()) if tat != before[limit]],
            )
            return answers, now

        return self.run(work, give_up=give_up)

    def _locked_rates(self, transaction: Transaction, name: int, limits: Sequence[Part]) -> list[Any]:
        """Name, rate and `tat` of these limits, as far as they exist. Nobody else changes them before the end of the
        transaction."""
        rows: list[Any] = []
        for part in _slices(limits, SLICE):
            some = ",".join("?" * len(part))
            query = f"SELECT limit_id, rate, tat FROM manytail_rates WHERE name = ? AND limit_id IN ({some})"
            query += f" ORDER BY limit_id{self._database.lock_rows}"
            rows += transaction.execute(query, (name, *(each.limit for each in part))).fetchall()
        return rows

    def drop_limits(self, prefix: bytes, idle: float, give_up: Event | None = None) -> int:
        """Drop limits whose names begin with `prefix` and of which nothing was leased for `idle` seconds, but none that
        is being leased. Returns how many. Later leases do not change: they begin at the time they are asked for in
        either case."""
        end = prefix[:-1] + bytes([prefix[-1] + 1])

        def work(transaction: Transaction, name: int) -> int:
            old = f"limit_id >= ? AND limit_id < ? AND tat < {self._database.clock} - ?{self._database.skip_locked}"
            delete = (
                "DELETE FROM manytail_rates WHERE name = ? AND limit_id IN "
                f"(SELECT limit_id FROM manytail_rates WHERE name = ? AND {old})"
            )
            return int(transaction.execute(delete, (name, name, prefix, end, idle)).rowcount)

        return self.run(work, give_up=give_up)

    # ------------------------------------------------------------------------------------------------ the budget
    def spent(self) -> float:
        find = "SELECT spent FROM manytail_names WHERE id = ?"
        return self.run(lambda transaction, name: float(transaction.value(find, (name,))), writes=False)

    def spend(self, costs: Sequence[float], budget: float, give_up: Event | None = None) -> list[bool]:
        """Take each cost from the budget, in order, where there is room for it. Returns which ones were taken."""

        def work(transaction: Transaction, name: int) -> list[bool]:
            find = f"SELECT spent FROM manytail_names WHERE id = ?{self._database.lock_rows}"
            before = spent = float(transaction.value(find, (name,)))
            taken = []
            for cost in costs:
                taken.append(spent + cost <= budget)
                spent += cost if taken[-1] else 0.0
            if spent != before:
                transaction.execute("UPDATE manytail_names SET spent = ? WHERE id = ?", (spent, name))
            return taken

        return self.run(work, give_up=give_up)

    def give_back(self, cost: float, give_up: Event | None = None) -> None:
        """Return a cost that was taken from the budget and not spent. If it is not known whether that was committed, it
        is not repeated: a cost that is returned twice could be spent twice."""

        def work(transaction: Transaction, name: int) -> None:
            less = f"{self._database.greatest}(0, spent - ?)"
            transaction.execute(f"UPDATE manytail_names SET spent = {less} WHERE id = ?", (cost, name))

        try:
            self.run(work, give_up=give_up, repeats=False)
        except Uncertain as error:
            log.warning("shared: a cost of %s may stay spent: %s", cost, error)

    def reset(self) -> None:
        def work(transaction: Transaction, name: int) -> None:
            transaction.execute("UPDATE manytail_names SET spent = 0 WHERE id = ?", (name,))
            transaction.execute("DELETE FROM manytail_rates WHERE name = ?", (name,))

        self.run(work)
