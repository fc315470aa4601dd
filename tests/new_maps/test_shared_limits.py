"""Maps and blocks whose limits have `shared`, in threads of this process: what is granted, reported and given back, and
the thread that does it. What holds over processes is in test_leases, and in tests/shared."""

import gc
import threading
import time

import pytest
from support.threads import LONG, Threads, wait_until

from manytail._maps import Budget, Concurrency, DeadlineExceeded, Rate, Shared, SharedUnavailable, concurrent_map
from manytail._maps.database.limits import LimitStore
from manytail._maps.limits.exchange import Exchange, exchange_of
from manytail._maps.limits.grants import Answer, Terms
from manytail._maps.limits.leases import LeasedTokens, Requests

pytestmark = pytest.mark.thread_unsafe(reason="a database of its own for each test")


def reserved(database) -> float:
    return sum(row[0] for row in database.query("SELECT reserved FROM manytail_holds"))


def limits_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "manytail-limits"]


def slow(monkeypatch, until):
    """Let each exchange wait until that holds."""
    exchange = LimitStore.exchange

    def slow_exchange(store, *arguments):
        wait_until(until)
        return exchange(store, *arguments)

    monkeypatch.setattr(LimitStore, "exchange", slow_exchange)


def test_maps_of_two_shareds_keep_all_limits_together(sqlite):
    running, most, lock = 0, 0, threading.Lock()

    def limits():
        shared = Shared(sqlite.url, "a")
        return [
            Rate(1e5, shared=shared, name="calls"),
            Budget(50, shared=shared, name="money"),
            Concurrency(3, shared=shared, name="slots"),
        ]

    def fn(item):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1
        return item

    with Threads() as threads:
        tasks = [threads.start(list, concurrent_map(fn, range(30), limits=limits(), errors="return")) for _ in range(2)]
        outcomes = [outcome for task in tasks for outcome in task.result()]
    assert sum(outcome.ok for outcome in outcomes) == 50
    assert most <= 3
    assert limits()[1].used() == 50.0
    wait_until(lambda: not reserved(sqlite), "all to be returned")


def test_a_map_that_fails_gives_back_what_was_taken_for_calls_that_are_not_made(sqlite, monkeypatch):
    """The second call gets its cost when the map has failed."""
    shared, failing = Shared(sqlite.url, "a"), threading.Event()

    def items():
        yield 0
        failing.wait(LONG)
        yield 1

    def fn(item):
        failing.set()
        raise OSError("its own")

    money = Budget(9.0, shared=shared, name="money")
    results = concurrent_map(fn, items(), limits=money, workers=2)
    slow(monkeypatch, lambda: not failing.is_set() or results._driver.scheduler.halted)
    with pytest.raises(OSError, match="its own"):
        list(results)
    assert money.used() == 1.0
    wait_until(lambda: not reserved(sqlite), "all to be returned")


def test_the_deadline_does_not_wait_for_an_answer(sqlite, monkeypatch):
    money = Budget(9.0, shared=Shared(sqlite.url, "a"), name="money")
    results = concurrent_map(str, [1, 2], limits=money, deadline=0.05, workers=2, errors="return")
    slow(monkeypatch, lambda: results._driver.scheduler.expired)
    assert [type(result.error) for result in results] == [DeadlineExceeded] * 2
    assert money.used() == 0.0
    wait_until(lambda: not reserved(sqlite), "all to be returned")


def test_a_pause_that_comes_during_an_exchange_is_told_in_the_next_one():
    """The answer knows nothing of it: it must not count as told. No thread exchanges what the account has to tell."""
    terms = Terms(9.0, 1.0)
    account = LeasedTokens(None, False, None, terms.interval, terms.burst, terms.per)
    account.lease_from(Requests(b"process", lambda: True), b"rate:calls", b"rate:calls", terms)
    assert account.report(0.0, False, 10.0, []).pause == 0.0
    account.pause(40.0)
    account.answered(Answer(0.0, account.terms), 0.0, 0.0, 11.0, [])
    assert account in account.requests.open
    assert account.report(0.0, False, 12.0, []).pause == 28.0
    account.answered(Answer(0.0, account.terms, paused_until=40.0), 0.0, 0.0, 13.0, [])
    assert account.report(0.0, False, 14.0, []).pause == 0.0
    account.answered(Answer(0.0, account.terms, paused_until=50.0), 0.0, 0.0, 15.0, [])
    assert account.paused_until == 50.0  # that of another process


@pytest.mark.parametrize("use", ["block", "map", "dropped map"])
def test_the_thread_ends_when_nobody_uses_the_limits(sqlite, use):
    limit = Concurrency(3, shared=Shared(sqlite.url, "a"), name="slots")
    if use == "block":
        with limit:
            assert limits_threads()
    elif use == "map":
        assert list(concurrent_map(str, [1], limits=limit)) == ["1"]
    else:
        next(concurrent_map(str, [1, 2, 3], limits=limit, workers=1))
        gc.collect()
    wait_until(lambda: not limits_threads(), "the thread to end")
    wait_until(lambda: not reserved(sqlite), "all to be returned")
    assert list(concurrent_map(str, [1], limits=limit)) == ["1"]  # and begins anew


def test_who_pokes_a_thread_that_is_ending_is_served(sqlite):
    """The thread has seen that nothing is due, and still counts as serving."""
    limit = Rate(1e6, shared=Shared(sqlite.url, "a"), name="calls")
    for _ in range(300):
        with limit:
            pass


def test_a_limit_that_its_own_caller_holds_is_refused_and_a_budget_is_waited_for(sqlite):
    shared = Shared(sqlite.url, "a")
    slots, money = Concurrency(1, shared=shared, name="slots"), Budget(9, shared=shared, name="money")
    with slots, pytest.raises(RuntimeError, match="already holds it"):
        list(concurrent_map(str, [1], limits=slots))
    with money(5.0), money(4.0):
        pass
    assert money.used() == 9.0


def test_a_database_that_stays_away_fails_maps_and_blocks(tmp_path):
    shared = Shared("postgresql://tester@127.0.0.1:1/none", "a", outage_timeout=0.2)
    limit = Rate(10, shared=shared, name="calls")
    with pytest.raises(SharedUnavailable):
        list(concurrent_map(str, [1], limits=limit))
    with pytest.raises(SharedUnavailable), limit:
        raise AssertionError("it began")
    wait_until(lambda: not limits_threads(), "the thread to end")


@pytest.mark.parametrize("workers", ["inline", 2])
def test_at_the_deadline_the_input_is_read_to_its_end_while_the_database_is_away(workers):
    shared = Shared("postgresql://tester@127.0.0.1:1/none", f"waits {workers}", outage_timeout=LONG)
    limit = Rate(10, shared=shared, name="calls")
    results = concurrent_map(str, range(20), limits=limit, deadline=0.2, workers=workers, errors="return")
    assert [type(result.error) for result in results] == [DeadlineExceeded] * 20
    wait_until(lambda: not limits_threads(), "the thread to end")


def test_many_keys_at_a_shared_limit_ask_a_few_at_a_time(sqlite):
    limit = Rate(1e3, per_key=True, shared=Shared(sqlite.url, "a"), name="calls")
    asked = []
    ask = limit.exchange.requests.ask

    def note_and_ask(needs):
        asked.append(len(results._driver.scheduler.stages[-1]._asking))
        ask(needs)

    limit.exchange.requests.ask = note_and_ask
    results = concurrent_map(str, range(200), key=lambda item: item % 50, limits=limit, workers=4)
    assert list(results) == list(map(str, range(200)))
    assert max(asked) <= 4


def test_one_exchange_for_each_database_and_name(sqlite):
    first, second = Shared(sqlite.url, "a"), Shared(sqlite.url, "a")
    assert exchange_of(first) is exchange_of(second)
    assert exchange_of(first) is not exchange_of(Shared(sqlite.url, "b"))
    assert isinstance(Rate(1, shared=first, name="r").exchange, Exchange)
