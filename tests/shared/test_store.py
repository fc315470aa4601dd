"""What is kept in the database, on SQLite and PostgreSQL alike, in one process."""

import gc
import itertools
import logging
import os
import pickle
import sqlite3
import sys
import threading
import time

import pytest
from support.threads import Threads

from manytail import Budget, Concurrency, Shared, concurrent_map
from manytail.mapping import _grants, _shared_database, _shared_store, _shared_tables
from manytail.mapping._grants import Ask, Terms

pytestmark = pytest.mark.thread_unsafe(reason="a database, an environment or a process of its own for each test")

ID = b"0123456789abcdef"


def ids(number: int) -> list[bytes]:
    return [index.to_bytes(16, "big") for index in range(number)]


class Keeper:
    """A part of a cycle: its finalizer keeps the link."""

    def __init__(self, link, kept):
        self.link, self.kept, self.cycle = link, kept, self

    def __del__(self):
        self.kept.append(self.link)


def test_a_link_that_is_used_again_after_its_finalizer_is_closed(sqlite):
    kept = []
    Keeper(_shared_database.Link(_shared_database.database_of(sqlite.url), wait=1), kept)
    gc.collect()
    link = kept.pop()
    assert link.run(lambda transaction: transaction.value("SELECT 1"), writes=False) == 1
    (connection,) = link._connection
    del link
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_results_are_found_again_in_bulk(database):
    shared = Shared(database.url, "a")
    results = {each: each[-2:] * 3 for each in ids(2_500)}
    shared._store().record(results)
    again = Shared(database.url, "a")._store()
    assert again.look_up([*results, ID]) == results
    assert again.look_up([]) == {}
    assert again.look_up([ID]) == {}
    assert shared.remembered() == 2_500


def test_large_and_odd_results_come_back(database):
    store = Shared(database.url, "a")._store()
    results = dict(zip(ids(4), [b"", b"\0\\'\"%s:x", bytes(range(256)) * 40_000, b"%%"], strict=True))
    store.record(results)
    assert store.look_up(list(results)) == results


def test_the_first_record_stays(database):
    store = Shared(database.url, "a")._store()
    store.record({ID: b"first"})
    store.record({ID: b"second", ids(1)[0]: b"new"})
    assert store.look_up([ID, ids(1)[0]]) == {ID: b"first", ids(1)[0]: b"new"}


def test_names_do_not_see_each_other(database):
    names = ["a", "A", "a ", "'; drop table manytail_results; --", "x" * 100, "ü%s:name?"]
    for name in names:
        Shared(database.url, name)._store().record({ID: name.encode()})
    for name in names:
        shared = Shared(database.url, name)
        assert shared._store().look_up([ID]) == {ID: name.encode()}
        assert shared.remembered() == 1
    assert Shared(database.url, "A").forget() == 1
    assert Shared(database.url, "a").remembered() == 1


def age(database, seconds):
    database.query(f"UPDATE manytail_results SET recorded_at = recorded_at - {seconds}")


def test_what_is_older_than_max_age_is_absent_and_replaced(database):
    young, ever = Shared(database.url, "a", max_age=100), Shared(database.url, "a")
    young._store().record({ID: b"old"})
    young._store().record({ID: b"kept out"})
    assert young._store().look_up([ID]) == {ID: b"old"}
    age(database, 101)
    assert young._store().look_up([ID]) == {}
    assert (young.remembered(), ever.remembered()) == (0, 1)
    assert ever._store().look_up([ID]) == {ID: b"old"}
    ever._store().record({ID: b"not by one without max_age"})
    young._store().record({ID: b"new"})
    assert ever._store().look_up([ID]) == {ID: b"new"}
    assert young.remembered() == 1


def test_forget_drops_what_is_older(database):
    shared = Shared(database.url, "a")
    store = shared._store()
    store.record(dict.fromkeys(ids(3), b"x"))
    age(database, 50)
    store.record({ID: b"new"})
    assert shared.forget(older_than=60) == 0
    assert shared.forget(older_than=40) == 3
    assert store.look_up([ID]) == {ID: b"new"}
    assert shared.forget() == 1
    assert shared.remembered() == 0
    with pytest.raises(ValueError, match=r"^older_than: "):
        shared.forget(older_than=-1)


def test_codec_and_schema_belong_to_the_name(database):
    shared = Shared(database.url, "a")
    shared._store().agree("codec", "schema")
    shared._store().agree("codec", "schema")
    with pytest.raises(ValueError, match=r"^codec: 'other' \(expected: 'codec'"):
        Shared(database.url, "a")._store().agree("other", "schema")
    with pytest.raises(ValueError, match=r"^schema: 'x' \(expected: 'schema'"):
        shared._store().agree("codec", "x")
    Shared(database.url, "b")._store().agree("other", "x")
    shared.forget()
    shared._store().agree("other", "x")


# ---------------------------------------------------------------------------------------------------- limits
RATE = Terms(10.0, 1.0)
BUDGET = Terms(10.0)


def lease(store, limit=b"rate:r", amount=1.0, terms=RATE, ahead=1e9, group=None):
    """Ask for slots of a Rate. Returns the answer, and the database's time."""
    group = group or limit
    (answer,), now = store.exchange(ahead, {group: terms}, [Ask(limit, group, b"h", amount)], [[(0, amount)]])
    return answer, now


def reserve(store, cost, kept=0.0, spent=0.0, number=0, holder=b"h", terms=BUDGET):
    """Report what calls of a Budget spent, and ask for what the next one costs; 0: for nothing."""
    ask = Ask(b"budget:b", b"budget:b", holder, cost, kept, spent, number)
    (answer,), _ = store.exchange(0.1, {b"budget:b": terms}, [ask], [[(0, cost)]] if cost else [])
    return answer


def test_leases_of_a_limit_follow_one_another_in_database_time(database):
    store = Shared(database.url, "a")._store()
    begin = time.time()
    leases = [lease(store, amount=2.0) for _ in range(20)]
    assert begin - 0.01 <= leases[0][0].begin <= leases[0][1] + 0.01  # the server is this machine
    for (one, _), (other, _) in itertools.pairwise(leases):
        assert other.begin >= one.begin + 0.2 - 1e-3


def test_slots_that_a_call_gets_in_one_transaction_begin_together():
    """Otherwise the first is over when the last begins, and the call asks for the one and then the other, for ever."""
    rows = {b"rate:a": _grants.Row(tat=100.0), b"rate:b": _grants.Row(tat=100.25), b"concurrency:c": _grants.Row()}
    asks = [Ask(limit, limit, b"h", 1.0) for limit in rows]
    terms = {b"rate:a": Terms(8.0, 1.0), b"rate:b": Terms(2.0, 1.0), b"concurrency:c": Terms(5.0)}
    holds = {limit: {} for limit in rows}
    calls = [[(0, 1.0), (1, 1.0), (2, 1.0)]]
    first, second, _ = _grants.grant(100.0, 0.5, terms, rows, holds, asks, calls)
    assert (first.begin, second.begin) == (100.25, 100.25)
    assert (rows[b"rate:a"].tat, rows[b"rate:b"].tat) == (100.375, 100.75)
    alone, _, _ = _grants.grant(100.0, 0.5, terms, rows, holds, asks, [[(0, 1.0)]])
    assert alone.begin == 100.375


def test_a_limit_that_rested_starts_from_now_without_a_burst(database):
    store = Shared(database.url, "a")._store()
    lease(store, amount=100.0)
    database.query("UPDATE manytail_limits SET tat = tat - 3600")
    (first, now), (second, _) = lease(store, amount=5.0), lease(store, amount=5.0)
    assert first.begin == pytest.approx(now, abs=0.01)
    assert second.begin >= first.begin + 0.5 - 1e-3


def test_slots_are_granted_a_little_ahead_and_refused_until_then(database):
    store = Shared(database.url, "a")._store()
    first, _ = lease(store, amount=10_000.0)  # all that it hands out in 1,000 s
    refused, _ = lease(store, ahead=200.0)
    assert refused.granted == 0.0
    assert refused.retry_at == pytest.approx(first.begin + 800.0, abs=1e-3)
    assert lease(store, ahead=2_000.0)[0].granted == 1.0


def test_the_leases_of_many_keys_cost_a_few_statements(database, monkeypatch):
    """The order of the limits does not matter; each rests, or goes on, by itself; rows of keys have no terms."""
    store = Shared(database.url, "a")._store()
    store.remembered()
    asks = [Ask(b"rate:k:%d" % number, b"rate:k", b"h", 1.0 + number % 3) for number in range(150)]
    statements: list[str] = []
    execute = _shared_database.Transaction.execute

    def noted(transaction, sql, parameters=()):
        statements.append(sql)
        return execute(transaction, sql, parameters)

    monkeypatch.setattr(_shared_database.Transaction, "execute", noted)
    calls = [[(place, ask.want)] for place, ask in enumerate(asks)]
    slow = {b"rate:k": Terms(10.0, 10_000.0)}  # no lease is over before the second exchange, however late that comes
    first, _ = store.exchange(1e9, slow, asks, calls)
    second, _ = store.exchange(1e9, slow, asks[::-1], [[(149 - call[0][0], call[0][1])] for call in calls])
    for ask, one, other in zip(asks, first, second[::-1], strict=True):
        assert other.begin == pytest.approx(one.begin + ask.want * 1_000.0, abs=1e-3)
    assert len(statements) <= 14
    assert database.query("SELECT count(*) FROM manytail_limits") == [(151,)]
    assert database.query("SELECT limit_id FROM manytail_limits WHERE per IS NOT NULL")[0][0] == b"rate:k"


def test_limits_of_idle_keys_are_dropped(database):
    store, other = Shared(database.url, "a")._store(), Shared(database.url, "b")._store()
    for each in (store, other):
        for limit in (b"rate:k:1", b"rate:k:2", b"rate:k:3"):
            lease(each, limit, group=b"rate:k")
        lease(each)
    third = "X'726174653a6b3a33'" if database.kind == "sqlite" else "'rate:k:3'"
    database.query(f"UPDATE manytail_limits SET tat = tat - 3600 WHERE limit_id <> {third}")
    assert store.drop_limits(60.0) == 2
    assert store.drop_limits(60.0) == 0
    assert database.query("SELECT count(*) FROM manytail_limits") == [(8,)]
    answer, now = lease(store, b"rate:k:1", group=b"rate:k")
    assert answer.begin == pytest.approx(now, abs=0.01)


def test_the_terms_given_last_hold_for_all_and_a_change_is_logged(database, caplog):
    one, other = Shared(database.url, "a")._store(), Shared(database.url, "a")._store()
    with caplog.at_level(logging.WARNING, "manytail"):
        lease(one)
        lease(one)
        assert caplog.messages == []
        assert lease(other, terms=Terms(20.0, 1.0))[0].terms.amount == 20.0
        assert len(caplog.messages) == 1
        assert "rate:r of name 'a' changes from Terms(amount=10.0" in caplog.messages[0]
    assert lease(one)[0].terms.amount == 20.0  # it told its terms before
    assert len(caplog.messages) == 1


def test_a_budget_is_never_exceeded(database):
    shared = Shared(database.url, "a")
    store = shared._store()
    assert reserve(store, 6.0).granted == 6.0
    assert reserve(store, 5.0, holder=b"other").granted == 0.0  # while the first may give back
    answer = reserve(store, 0.0, kept=3.0, spent=3.0, number=1)
    assert answer.left == 7.0
    assert reserve(store, 5.0, holder=b"other").granted == 0.0
    assert reserve(store, 4.0, holder=b"other").granted == 4.0
    assert store.spent(b"budget:b") == 3.0
    shared.reset()
    assert store.spent(b"budget:b") == 0.0


class Lost:
    """A connection that breaks when a transaction is done, before the answer."""

    def __init__(self, connection):
        self._connection = connection

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def commit(self):
        self._connection.commit()
        raise _shared_database.Away("lost")


def test_a_report_that_comes_twice_counts_once(sqlite):
    store = Shared(sqlite.url, "a")._store()
    assert reserve(store, 9.0).granted == 9.0
    store.link._connection[:] = [Lost(store.link._connection[0])]
    assert reserve(store, 0.0, kept=6.0, spent=3.0, number=1).left == 7.0
    assert store.spent(b"budget:b") == 3.0
    assert reserve(store, 1.0, holder=b"other").granted == 1.0


def test_what_a_process_that_died_had_reserved_counts_as_spent(database):
    store = Shared(database.url, "a")._store()
    assert reserve(store, 6.0).granted == 6.0
    database.query("UPDATE manytail_holds SET expires_at = expires_at - 3600")
    answer = reserve(store, 5.0, holder=b"other")
    assert (answer.granted, answer.left) == (0.0, 4.0)
    assert store.spent(b"budget:b") == 6.0


def test_a_call_gets_all_that_it_needs_or_nothing(database):
    """The second call of a key is refused until its key has a slot, and takes nothing of the other limit."""
    store = Shared(database.url, "a")._store()
    terms = {b"rate:all": Terms(50.0, 1.0), b"rate:key": Terms(2.0, 1.0)}
    limits = {b"rate:all": b"rate:all", b"rate:key:1": b"rate:key", b"rate:key:2": b"rate:key"}
    asks = [Ask(limit, group, b"h", 1.0) for limit, group in limits.items()]
    for _ in range(2):  # with the rows missing, and present
        (both, first, other), now = store.exchange(
            0.1, terms, asks, [[(0, 1.0), (1, 1.0)], [(0, 1.0), (1, 1.0)], [(0, 1.0), (2, 1.0)]]
        )
        assert (both.granted, first.granted, other.granted) == (2.0, 1.0, 1.0)
        assert both.begin == pytest.approx(now, abs=1e-3)
        assert both.retry_at == first.retry_at == pytest.approx(now + 0.4, abs=1e-3)
        database.query("UPDATE manytail_limits SET tat = tat - 3600")


def permits(store, holder, cost=0.0, want=0.0, kept=0.0, amount=10.0):
    """Report what a holder has of a Concurrency, and ask for what the next call costs; 0: for nothing."""
    group = b"concurrency:c"
    ask, terms = Ask(group, group, holder, want or cost, kept), {group: Terms(amount, lease=3_000.0)}
    (answer,), _ = store.exchange(0.1, terms, [ask], [[(0, cost)]] if cost else [])
    return answer


@pytest.fixture
def patient(monkeypatch):
    """Who waits counts as waiting, however long the test takes."""
    monkeypatch.setattr(_grants, "WAITING", 3_000.0)


@pytest.mark.usefixtures("patient")
def test_permits_are_divided_while_others_wait_and_free_when_their_process_died(database):
    store = Shared(database.url, "a")._store()
    assert permits(store, b"one", 2.0, 100.0).granted == pytest.approx(10.0)
    assert permits(store, b"two", 1.0).granted == 0.0
    assert permits(store, b"one", kept=10.0).most == 5.0
    assert permits(store, b"one", kept=5.0).most == 5.0
    assert permits(store, b"two", 1.0, 100.0).granted == pytest.approx(5.0)
    assert permits(store, b"three", 8.0).granted == 0.0
    assert permits(store, b"one", kept=5.0).most == 2.0  # one call of the third costs 8
    database.query("UPDATE manytail_holds SET expires_at = expires_at - 3600")
    assert permits(store, b"three", 8.0).granted == 8.0


@pytest.mark.usefixtures("patient")
def test_the_only_permit_goes_to_who_has_waited_longest(database):
    store = Shared(database.url, "a")._store()
    assert permits(store, b"one", 1.0, amount=1.0).granted == 1.0
    assert permits(store, b"two", 1.0, amount=1.0).granted == 0.0
    assert permits(store, b"one", kept=1.0, amount=1.0).most == 0.0
    assert permits(store, b"one", 1.0, amount=1.0).granted == 0.0  # it returns the permit, and asks again at once
    assert permits(store, b"two", 1.0, amount=1.0).granted == 1.0


def test_who_comes_back_after_its_lease_starts_nothing_beside_those_who_got_its_permits(database):
    store = Shared(database.url, "a")._store()
    assert permits(store, b"one", 10.0).granted == 10.0
    database.query("UPDATE manytail_holds SET expires_at = expires_at - 3600")
    assert permits(store, b"two", 10.0).granted == 10.0
    assert permits(store, b"one", kept=10.0).most == 0.0  # its calls still run


def test_reset_forgets_limits_and_keeps_results(database):
    shared = Shared(database.url, "a")
    store = shared._store()
    store.record({ID: b"x"})
    lease(store, amount=1_000.0)
    shared.reset()
    answer, now = lease(store)
    assert answer.begin == pytest.approx(now, abs=0.01)
    assert shared.remembered() == 1


# ---------------------------------------------------------------------------------------------------- tables
def layout(database):
    return database.query("SELECT version FROM manytail_layout")


def test_the_layout_has_a_version(database):
    Shared(database.url, "a").remembered()
    Shared(database.url, "b").remembered()
    assert layout(database) == [(_shared_tables.VERSION,)]


@pytest.mark.parametrize(("version", "which"), [(99, "a newer manytail"), (2, "an older manytail")])
def test_another_layout_is_refused_and_left_alone(database, version, which):
    Shared(database.url, "a").remembered()
    database.query(f"UPDATE manytail_layout SET version = {version}")
    with pytest.raises(ValueError, match=rf"layout {version}, of {which} \(expected: layout"):
        Shared(database.url, "a").remembered()
    assert layout(database) == [(version,)]


def use_all_tables(database):
    """The results of a map that uses each of the tables, and how many of them were remembered."""
    shared = Shared(database.url, "a", outage_timeout=5)
    limits = [Budget(100, shared=shared, name="budget"), Concurrency(2, shared=shared, name="concurrency")]
    with concurrent_map(str, range(3), limits=limits, remember=shared, workers=2) as results:
        return list(results), results.stats().remembered


@pytest.mark.parametrize(("table", "remembered"), [("results", 0), ("limits", 3), ("holds", 3)])
def test_a_table_that_was_dropped_is_made_anew(database, table, remembered):
    use_all_tables(database)
    database.query(f"DROP TABLE manytail_{table}")
    assert use_all_tables(database) == (["0", "1", "2"], remembered)


@pytest.mark.parametrize("table", ["layout", "names"])
def test_a_table_that_others_refer_to_is_not_made_beside_them(database, table):
    """Names that it would give again have the results of others."""
    use_all_tables(database)
    cascade = " CASCADE" if database.url.startswith("postgresql") else ""
    database.query(f"DROP TABLE manytail_{table}{cascade}")
    with pytest.raises(ValueError, match=f"the table manytail_{table} is missing"):
        use_all_tables(database)


# ---------------------------------------------------------------------------------------------------- connections
def test_a_kept_connection_serves_the_next_task(database, monkeypatch):
    """Spark unpickles a Shared for each task, in a process that runs many."""
    links = []
    monkeypatch.setattr(_shared_store, "_lasting", lasting := set())
    for _ in range(3):
        shared = pickle.loads(pickle.dumps(Shared(database.url, "a")))
        shared._stay_connected()
        assert shared.remembered() == 0
        links.append(id(shared._store().link))
        del shared
        gc.collect()
        assert len(lasting) == 1
    assert len(set(links)) == 1


@pytest.mark.thread_unsafe(reason="counts the files of the process")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/fd")
def test_one_connection_closed_with_its_shared(sqlite):
    def connections() -> int:
        file = sqlite.url.removeprefix("sqlite:///")
        return sum(os.path.realpath(f"/proc/self/fd/{fd}") == file for fd in os.listdir("/proc/self/fd"))

    shared = Shared(sqlite.url, "a")
    with Threads() as threads:
        for task in [threads.start(shared.remembered) for _ in range(8)]:
            assert task.result() == 0
    assert connections() == 1
    other, copy = Shared(sqlite.url, "b"), pickle.loads(pickle.dumps(shared))
    assert other.remembered() == copy.remembered() == 0
    assert connections() == 1
    del shared, other, copy, threads, task  # what the threads called holds it
    gc.collect()
    assert connections() == 0


def test_a_thread_waits_while_another_uses_the_connection(sqlite):
    shared = Shared(sqlite.url, "a")
    shared.remembered()
    inside, go_on = threading.Event(), threading.Event()

    def slow(connection, name):
        inside.set()
        go_on.wait()
        return name

    with Threads() as threads:
        first = threads.start(shared._store().run, slow)
        inside.wait()
        second = threads.start(shared.remembered)
        go_on.set()
        assert first.result() == 1
        assert second.result() == 0
