"""What is kept in the database, on SQLite and PostgreSQL alike, in one process."""
import gc
import itertools
import logging
import os
import pickle
import threading
import time

import pytest
from support.threads import Threads

from manytail import Shared
from manytail.mapping import _shared_database, _shared_store, _shared_tables
from manytail.mapping._rates import Part

pytestmark = pytest.mark.thread_unsafe(reason="a database, an environment or a process of its own for each test")

ID = b"0123456789abcdef"


def ids(number: int) -> list[bytes]:
    return [index.to_bytes(16, "big") for index in range(number)]


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


# ---------------------------------------------------------------------------------------------------- rates
def test_leases_of_a_limit_follow_one_another_in_database_time(database):
    store = Shared(database.url, "a")._store()
    begin = time.time()
    leases = [store.lease([Part(b"rate", b"rate", 10.0, 2)])[0] for _ in range(20)]
    assert all(lease.rate == 10.0 for lease in leases)
    assert begin - 0.01 <= leases[0].start <= leases[0].now + 0.01  # the server is this machine
    for one, other in itertools.pairwise(leases):
        assert other.start >= one.start + 0.2 - 1e-3


def test_a_limit_that_rested_starts_from_now_without_a_burst(database):
    store = Shared(database.url, "a")._store()
    store.lease([Part(b"rate", b"rate", 10.0, 100)])
    database.query("UPDATE manytail_rates SET tat = tat - 3600")
    begin = time.time()
    first, second = (store.lease([Part(b"rate", b"rate", 10.0, 5)])[0] for _ in range(2))
    assert begin - 0.01 <= first.start <= first.now + 0.01
    assert second.start >= first.start + 0.5 - 1e-3


def test_several_limits_are_leased_in_one_transaction(database):
    store = Shared(database.url, "a")._store()
    limits = [
        Part(b"rate", b"rate", 10.0, 1),
        Part(b"key 1", b"per_key_rate", 2.0, 1),
        Part(b"key 2", b"per_key_rate", 2.0, 1),
    ]
    assert [lease.rate for lease in store.lease(limits)] == [10.0, 2.0, 2.0]
    assert Shared(database.url, "b")._store().lease(limits)[0].start < store.lease(limits)[0].start


def test_the_leases_of_many_keys_cost_one_statement(database, monkeypatch):
    """One row per limit; the order of the limits does not matter; each rests, or goes on, by itself."""
    store = Shared(database.url, "a")._store()
    store.set_rates({b"per_key_rate": 2.0})
    limits = [Part(b"key:%d" % number, b"per_key_rate", 5.0, 3_600 * (1 + number % 3)) for number in range(150)]
    statements: list[str] = []
    execute = _shared_database.Transaction.execute

    def noted(transaction, sql, parameters=()):
        statements.append(sql)
        return execute(transaction, sql, parameters)

    monkeypatch.setattr(_shared_database.Transaction, "execute", noted)
    first, second = store.lease(limits), store.lease(limits[::-1])[::-1]
    for limit, one, other in zip(limits, first, second, strict=True):
        assert one.rate == other.rate == 2.0
        assert one.start == pytest.approx(first[0].start, abs=60)
        assert other.start == pytest.approx(one.start + limit.amount / 2.0, abs=1e-3)
    assert len(statements) == sum("INSERT" in statement for statement in statements) == 2
    assert database.query("SELECT count(*) FROM manytail_rates") == [(151,)]


def test_limits_of_idle_keys_are_dropped(database):
    store = Shared(database.url, "a")._store()
    limits = [Part(name, b"per_key_rate", 10.0, 1) for name in (b"key:1", b"key:2", b"key:3", b"rate")]
    other = Shared(database.url, "b")._store()
    for each in (store, other):
        each.lease(limits)
    third = "X'6b65793a33'" if database.kind == "sqlite" else "'key:3'"
    database.query(f"UPDATE manytail_rates SET tat = tat - 3600 WHERE limit_id <> {third}")
    assert store.drop_limits(b"key:", 60.0) == 2
    assert store.drop_limits(b"key:", 60.0) == 0
    assert database.query("SELECT count(*) FROM manytail_rates") == [(6,)]
    begin, lease = time.time(), store.lease(limits)[0]
    assert begin - 0.01 <= lease.start <= lease.now + 0.01


def test_the_rate_given_last_holds_for_all_and_a_change_is_logged(database, caplog):
    one, other = Shared(database.url, "a")._store(), Shared(database.url, "a")._store()
    with caplog.at_level(logging.WARNING, "manytail"):
        one.set_rates({b"rate": 10.0, b"per_key_rate": 5.0})
        one.set_rates({b"rate": 10.0})
        assert caplog.messages == []
        other.set_rates({b"rate": 20.0, b"per_key_rate": 5.0})
        assert caplog.messages == ["shared: rate of name 'a' changes from 10.0 to 20.0 for all that use it"]
    assert one.lease([Part(b"rate", b"rate", 10.0, 1)])[0].rate == 20.0
    other.set_rates({b"per_key_rate": 7.0})
    assert one.lease([Part(b"a key", b"per_key_rate", 5.0, 1)])[0].rate == 7.0


def test_threads_lease_disjoint_intervals(database):
    shared = Shared(database.url, "a")
    with Threads() as threads:
        tasks = [
            threads.start(lambda: [shared._store().lease([Part(b"r", b"r", 50.0, 1)])[0].start for _ in range(25)])
            for _ in range(8)
        ]
        starts = sorted(start for task in tasks for start in task.result())
    assert all(other - one >= 0.02 - 1e-3 for one, other in itertools.pairwise(starts))


# ---------------------------------------------------------------------------------------------------- budget
def test_a_budget_is_never_exceeded(database):
    shared = Shared(database.url, "a")
    store = shared._store()
    assert store.spend([3.0, 3.0, 5.0, 3.0], 10.0) == [True, True, False, True]
    assert shared._store().spent() == 9.0
    assert store.spend([2.0, 1.0], 10.0) == [False, True]
    assert store.spend([1.0], 20.0) == [True]  # each compares its own budget
    store.give_back(3.0)
    assert shared._store().spent() == 8.0
    shared.reset()
    assert shared._store().spent() == 0.0


def test_a_cost_is_not_given_back_twice_when_the_answer_is_lost(sqlite, caplog):
    shared = Shared(sqlite.url, "a")
    store = shared._store()
    assert store.spend([9.0], 10.0) == [True]
    (connection,) = store.link._connection

    class Lost:
        """The transaction is done, and the connection breaks before the answer."""

        def __getattr__(self, name):
            return getattr(connection, name)

        def commit(self):
            connection.commit()
            raise _shared_database.Away("lost")

    store.link._connection[:] = [Lost()]
    store.give_back(3.0)
    assert shared._store().spent() == 6.0
    assert "a cost of 3.0 may stay spent" in caplog.text


def test_calls_are_granted_slots_in_all_their_limits_at_the_same_time(database):
    """The second call of a key is refused until its key has a slot; a call of another key is not."""
    store = Shared(database.url, "a")._store()
    store.set_rates({b"rate": 50.0, b"per_key_rate": 2.0})

    def call(key):
        return [Part(b"rate", b"rate", 1.0, 1), Part(b"key:" + key, b"per_key_rate", 1.0, 1)]

    for _ in range(2):  # with the rows missing, and present
        (first, second, other), now = store.grant([call(b"1"), call(b"1"), call(b"2")])
        assert (first.granted, second.granted, other.granted) == (True, False, True)
        assert first.start == pytest.approx(now, abs=1e-3)
        assert second.start == pytest.approx(now + 0.5, abs=1e-3)
        assert not second.by_map
        assert other.start == pytest.approx(now + 0.02, abs=1e-3)
        database.query("UPDATE manytail_rates SET tat = tat - 3600")
    (*granted, refused), now = store.grant([call(b"%d" % key) for key in range(7)])
    assert all(each.granted for each in granted)
    assert (refused.granted, refused.by_map) == (False, True)
    assert refused.start == pytest.approx(now + 0.02, abs=1e-3)


def test_threads_never_spend_more_than_the_budget_together(database):
    shared = Shared(database.url, "a")
    with Threads() as threads:
        tasks = [
            threads.start(lambda: sum(sum(shared._store().spend([3.0, 2.0], 100.0)) for _ in range(20)))
            for _ in range(6)
        ]
        for task in tasks:
            task.result()
    assert 98.0 <= shared._store().spent() <= 100.0


def test_reset_forgets_rates_and_keeps_results(database):
    shared = Shared(database.url, "a")
    store = shared._store()
    store.record({ID: b"x"})
    store.set_rates({b"rate": 1.0})
    store.lease([Part(b"rate", b"rate", 1.0, 1_000)])
    shared.reset()
    begin, lease = time.time(), store.lease([Part(b"rate", b"rate", 5.0, 1)])[0]
    assert begin - 0.01 <= lease.start <= lease.now + 0.01
    assert lease.rate == 5.0
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


# ---------------------------------------------------------------------------------------------------- connections
def test_a_kept_connection_serves_the_next_task(database, monkeypatch):
    """Spark unpickles a Shared for each task, in a process that runs many."""
    links = []
    monkeypatch.setattr(_shared_store, "_kept", kept := set())
    for _ in range(3):
        shared = pickle.loads(pickle.dumps(Shared(database.url, "a")))
        shared._keep()
        assert shared.remembered() == 0
        links.append(id(shared._store().link))
        del shared
        gc.collect()
        assert len(kept) == 1
    assert len(set(links)) == 1


@pytest.mark.thread_unsafe(reason="counts the files of the process")
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
    assert other.remembered() == copy._store().spent() == 0
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
