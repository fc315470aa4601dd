"""The database of the new maps: SQLite and a real PostgreSQL; outages, locks, stopped peers and servers, forks."""

import contextlib
import logging
import os
import pickle
import signal
import sqlite3
import sys
import threading
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import postgres
from support.process import run_script, start_script
from support.silence import Silence
from support.threads import DEADLINE, Threads, wait_asleep, wait_until

import manytail
from manytail._maps.database import connection, kinds, statements
from manytail._maps.database.limits import LimitStore
from manytail._maps.database.shared import Shared
from manytail._maps.limits.grants import Ask, Terms
from manytail._maps.outcomes import SharedUnavailable
from manytail._sync import Event

pytestmark = pytest.mark.thread_unsafe(reason="a database, an environment or a process of its own for each test")

ID = b"0123456789abcdef"
PATIENT = 10 * DEADLINE  # as outage_timeout: does not end a wait of these tests
posix = pytest.mark.skipif(sys.platform == "win32", reason="stops processes, or forks")


@pytest.fixture(autouse=True)
def close_links():
    """Errors of a test may keep connections in cycles."""
    yield
    for link in list(connection._links.values()):
        link.drop()


def ids(number: int) -> list[bytes]:
    return [index.to_bytes(16, "big") for index in range(number)]


def results_of(store: Any, keys: Any) -> dict[bytes, bytes]:
    return {key: result for key, (result, _) in store.look_up(list(keys)).items()}


# ---------------------------------------------------------------------------------------------------- results
def test_results_are_found_again_in_bulk(database):
    shared = Shared(database.url, "a")
    results = {each: each[-2:] * 3 for each in ids(1_200)} | {ID: b"\0\\'\"%s:x"}
    shared.store().record(results)
    again = Shared(database.url, "a").store()
    assert results_of(again, [*results, b"x" * 16]) == results
    assert again.look_up([]) == {}
    assert shared.remembered() == 1_201
    assert Shared(database.url, "A").remembered() == 0
    assert shared.forget() == 1_201


def test_the_first_record_stays_unless_it_is_too_old(database):
    store = Shared(database.url, "a").store()
    store.record({ID: b"first"})
    store.record({ID: b"second", ids(1)[0]: b"new"})
    assert results_of(store, [ID, *ids(1)]) == {ID: b"first", ids(1)[0]: b"new"}
    assert 0 <= store.look_up([ID])[ID][1] < DEADLINE
    database.query("UPDATE manytail_results SET recorded_at = recorded_at - 100")
    aged = Shared(database.url, "a", max_age=50.0)
    assert aged.remembered() == 0
    aged.store().record({ID: b"third"})
    assert results_of(aged.store(), [ID, *ids(1)]) == {ID: b"third"}
    assert aged.forget(older_than=50.0) == 1


def test_databases_of_today_are_read_and_read_on(database):
    """The layout is that of the old package: users keep what they paid for."""
    old, new = manytail.Shared(database.url, "a"), Shared(database.url, "a")
    old._store().record({ID: b"old"})
    old._store().agree("manytail-1", "")
    new.store().agree("manytail-1", "")
    new.store().record({ID: b"new", ids(1)[0]: b"new"})
    both = [ID, *ids(1)]
    assert results_of(new.store(), both) == old._store().look_up(both) == {ID: b"old", ids(1)[0]: b"new"}
    with pytest.raises(ValueError, match=r"codec: 'other' .*expected: 'manytail-1'"):
        new.store().agree("other", "")


def test_another_layout_is_refused_and_left_alone(database):
    shared = Shared(database.url, "a")
    shared.remembered()
    for version, which in ((statements.VERSION - 1, "an older"), (statements.VERSION + 1, "a newer")):
        database.query(f"UPDATE manytail_layout SET version = {version}")
        with pytest.raises(ValueError, match=f"layout {version}, of {which} manytail"):
            Shared(database.url, "b").remembered()
    assert database.query("SELECT count(*) FROM manytail_names")[0][0] == 1


@given(st.lists(st.integers(0, 3 * statements.SLICE_BYTES // 4), max_size=12), st.integers(0, 600))
def test_no_insert_is_large_in_rows_and_bytes(sizes, small):
    class Sized(bytes):
        size = 1

        def __len__(self) -> int:
            return self.size

    rows = [(b"", Sized()) for _ in range(len(sizes) + small)]
    for (_, each), size in zip(rows, sizes, strict=False):
        each.size = size
    parts = list(statements.parts_of(rows))
    assert [row for part in parts for row in part] == rows
    for part in parts:
        assert len(part) <= statements.SLICE
        assert len(part) <= 1 or sum(len(data) for _, data in part) <= statements.SLICE_BYTES


# ---------------------------------------------------------------------------------------------------- outages
@contextlib.contextmanager
def locked(database):
    """Another session holds all locks of the database, and does nothing."""
    Shared(database.url, "other").remembered()
    if database.kind == "sqlite":
        other: Any = sqlite3.connect(database.url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
    else:
        import psycopg

        other = psycopg.connect(database.url)
        for table in ("names", "results"):
            other.execute(f"LOCK TABLE manytail_{table}")
    try:
        yield
    finally:
        other.close()


def test_a_lock_that_is_held_is_away_only_after_a_while(database, monkeypatch):
    monkeypatch.setattr(kinds, "LOCK_WAIT", 0.1)
    with locked(database), pytest.raises(SharedUnavailable, match="lock"):
        Shared(database.url, "a", outage_timeout=0.1).store().record({ID: b""})


def test_who_gives_up_does_not_wait_for_a_lock(database):
    give_up = Event()
    with locked(database), Threads() as threads:
        waiting = threads.start(partial(Shared(database.url, "a").store().record, {ID: b""}, give_up=give_up))
        wait_asleep(waiting)
        give_up.set()
        with pytest.raises(SharedUnavailable):
            waiting.result()


def test_a_server_that_is_not_there_is_waited_for_and_named_without_secrets(away, caplog):
    with caplog.at_level(logging.DEBUG), pytest.raises(SharedUnavailable, match="unavailable for") as caught:
        Shared(away, "a", outage_timeout=0.1).remembered()
    assert "unavailable" in caplog.text
    for secret in (postgres.PASSWORD, "pa%3Ass%40wo%2Frd"):
        assert secret not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"


@posix
def test_a_server_that_is_stopped_is_left_and_found_again(own_server):
    shared = Shared(own_server.url(), "a", outage_timeout=0.5)
    shared.store().record({ID: b"x"})
    patient, give_up = Shared(own_server.url(), "a", outage_timeout=PATIENT), Event()
    patient.remembered()
    own_server.freeze(signal.SIGSTOP)
    try:
        with Threads() as threads:
            waiting = threads.start(partial(patient.store().look_up, [ID], give_up))
            with pytest.raises(SharedUnavailable, match=r"no answer|timeout"):
                shared.store().look_up([ID])
            give_up.set()
            with pytest.raises(SharedUnavailable):
                waiting.result()
    finally:
        own_server.freeze(signal.SIGCONT)
    assert results_of(patient.store(), [ID]) == {ID: b"x"}


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_restarts_is_waited_for(own_server, mode):
    shared = Shared(own_server.url(), "a", outage_timeout=PATIENT)
    shared.store().record({ID: b"x"})
    own_server.stop(mode)
    with Threads() as threads:
        waiting = threads.start(shared.store().record, {ids(1)[0]: b"y"})
        own_server.start()
        waiting.result()
    assert shared.remembered() == 2


# A peer is stopped in the middle of a transaction, in which it has locked a row.
STOPPED = """
import signal, sys, threading
from manytail._maps.database import kinds
from manytail._maps.database.limits import LimitStore
from manytail._maps.database.shared import Shared
from manytail._maps.limits.grants import Ask, Terms
stops = [None]
kinds.IDLE_WAIT = 1.0

def work(transaction, name):
    transaction.execute("UPDATE manytail_names SET codec = ? WHERE name = ?", ("mine", "a"))
    if stops:
        stops.pop()
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        kinds.IDLE_WAIT = 30.0  # a busy machine is no peer that was stopped

Shared(sys.argv[1], "a").store().run(work)
"""


@posix
def test_a_peer_that_is_stopped_in_a_transaction_blocks_no_other(postgresql):
    shared = Shared(postgresql.url, "a", outage_timeout=PATIENT)
    shared.remembered()
    process = start_script(STOPPED, postgresql.url)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    try:
        shared.store().agree("ours", "")
    finally:
        os.kill(process.pid, signal.SIGCONT)
    _, said = process.communicate(timeout=4 * DEADLINE)
    assert process.returncode == 0, said  # it was told that its transaction was ended, and made it again


def test_a_peer_that_falls_silent_anywhere_in_an_exchange_blocks_no_other(postgresql, server, monkeypatch):
    """The server ends its transaction, also if it was stopped between two rows that it changes. Keys have no terms."""
    monkeypatch.setattr(kinds, "IDLE_WAIT", 1.0)
    terms = {b"rate:k": Terms(10.0, 1.0), b"concurrency:c": Terms(5.0, lease=30.0)}
    asks = [Ask(b"rate:k:%d" % number, b"rate:k", b"h", 1.0) for number in range(5)]
    asks.append(Ask(b"concurrency:c", b"concurrency:c", b"h", 1.0))
    calls = [[(place, 1.0)] for place in range(6)]
    give_up, exchanges = Event(), []
    with Threads() as threads, contextlib.ExitStack() as exits:
        for count in range(12):
            silence = exits.enter_context(Silence(server.port))
            url = postgresql.url.replace(f":{server.port}/", f":{silence.port}/")
            store = LimitStore(Shared(url, f"a{count}", outage_timeout=PATIENT).store())
            store.exchange(1e9, terms, asks, calls)  # connects, and makes the rows
            silence.after(count)
            exchange = threads.start(store.exchange, 1e9, terms, asks, calls, give_up)
            wait_until(lambda silence=silence, exchange=exchange: silence.began.is_set() or not exchange.is_alive())
            exchanges.append(exchange)
        silent = sum(exchange.is_alive() for exchange in exchanges)
        for count in range(12):
            other = LimitStore(Shared(postgresql.url, f"a{count}", outage_timeout=PATIENT).store())
            answers, _ = other.exchange(1e9, terms, asks, calls)
            assert all(answer.granted for answer in answers)
        give_up.set()
        ends = [type(exchange.outcome()) for exchange in exchanges]
    assert 5 < silent < 12
    assert ends == [SharedUnavailable] * silent + [type(None)] * (12 - silent)


def test_a_file_or_tables_that_are_gone_are_made_anew(database):
    shared = Shared(database.url, "a")
    shared.store().record({ID: b"x"})
    database.query("DROP TABLE manytail_results", "DROP TABLE manytail_holds", "DROP TABLE manytail_limits")
    database.query("DROP TABLE manytail_names", "DROP TABLE manytail_layout")
    shared.store().record({ID: b"y"})
    assert results_of(shared.store(), [ID]) == {ID: b"y"}
    if database.kind == "sqlite":
        os.remove(database.url.removeprefix("sqlite:///"))
        shared.store().record({ID: b"z"})
        assert results_of(Shared(database.url, "a").store(), [ID]) == {ID: b"z"}


@pytest.mark.parametrize("table", ["results", "layout", "names"])
def test_a_table_that_is_missing_alone_is_made_anew_unless_others_refer_to_it(database, table):
    """Names that a new one would give again have the results of others."""
    Shared(database.url, "a").store().record({ID: b"x"})
    database.query(f"DROP TABLE manytail_{table}{' CASCADE' if database.kind == 'postgresql' else ''}")
    shared = Shared(database.url, "a", outage_timeout=PATIENT)
    if table == "results":
        shared.store().record({ID: b"y"})
        assert results_of(shared.store(), [ID]) == {ID: b"y"}
        return
    with pytest.raises(ValueError, match=f"the table manytail_{table} is missing"):
        shared.remembered()


# A fork comes while another thread of the parent is in a transaction: it waits for the end of that.
FORKS = """
import os, sys, threading, traceback, warnings
from support.silence import Silence
from support.threads import DEADLINE, Threads, wait_asleep, wait_until
from manytail._maps.database.limits import LimitStore
from manytail._maps.database.shared import Shared
from manytail._maps.limits.grants import Ask, Terms
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
shared = Shared(sys.argv[1], "a", outage_timeout=20.0)
shared.remembered()
inside, go_on = threading.Event(), threading.Event()

def hold(transaction, name):
    transaction.execute("UPDATE manytail_names SET codec = NULL")
    inside.set()
    go_on.wait(DEADLINE)

def fork():
    child = os.fork()
    if child == 0:
        try:
            shared.store().record({b"1" * 16: b"child"})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]

with Threads() as threads:
    threads.start(shared.store().run, hold)
    inside.wait(DEADLINE)
    forking = threads.start(fork)
    wait_asleep(forking)
    go_on.set()
    assert forking.result() == 0
shared.store().record({b"2" * 16: b"parent"})
assert shared.remembered() == 2
"""


@posix
def test_a_fork_waits_for_the_transaction_of_another_thread(database):
    run_script(FORKS, arguments=[database.url])


def test_a_handler_of_logging_that_raises_decides_nothing(away):
    class Raising(logging.Handler):
        def emit(self, record: Any) -> None:
            raise LookupError

    log, handler = logging.getLogger("manytail"), Raising()
    log.addHandler(handler)
    try:
        with pytest.raises(SharedUnavailable):
            Shared(away, "a", outage_timeout=0.1).remembered()
    finally:
        log.removeHandler(handler)


# ---------------------------------------------------------------------------------------------------- a Shared
def test_a_pickle_is_the_same_with_a_connection_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared = Shared("a.db", "a", max_age=5.0)
    shared.store().record({ID: b"x"})
    other = pickle.loads(pickle.dumps(shared))
    assert repr(other) == repr(shared) == f"Shared({str(tmp_path / 'a.db')!r}, 'a')"
    assert other.remembered() == 1
    assert other.store() is not shared.store()
    assert other.store().link is shared.store().link


def test_secrets_are_not_shown_and_read_where_they_are_used(tmp_path, monkeypatch):
    assert "s3cret" not in repr(Shared("postgresql://me:s3cret@127.0.0.1/db?sslpassword=s3cret2", "a"))
    shared = pickle.loads(pickle.dumps(Shared("env:MANYTAIL_TEST_WHERE", "a")))
    with pytest.raises(ValueError, match=r"MANYTAIL_TEST_WHERE.* is not set in this process"):
        shared.remembered()
    monkeypatch.setenv("MANYTAIL_TEST_WHERE", str(tmp_path / "a.db"))
    assert shared.remembered() == Shared(lambda: str(tmp_path / "a.db"), "a").remembered() == 0


def test_threads_share_one_connection(database):
    shared, inside = Shared(database.url, "a"), threading.Semaphore(1)

    def work(transaction: Any, name: int) -> None:
        assert inside.acquire(blocking=False)
        transaction.value("SELECT 1")
        inside.release()

    with Threads() as threads:
        for _ in range(8):
            threads.start(shared.store().run, work)
    assert shared.store().link.number == 1
