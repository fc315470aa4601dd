"""Rates and `budget` of maps that have `shared`: they hold over all maps and processes that use the name."""

import itertools
import logging
import os
import subprocess
import sys
import threading
import time

import pytest
from support.maps import budget, everywhere, mapped, rate
from support.process import KILL, KILLED_CODE, begin_together, environment, run_script, start_script
from support.threads import DEADLINE, LONG, Threads, TooLate, in_time, wait_until

from manytail import (
    Batch,
    Budget,
    BudgetExceeded,
    Concurrency,
    DeadlineExceeded,
    Rate,
    Retry,
    RetryLater,
    Shared,
    SharedUnavailable,
    concurrent_map,
)
from manytail.mapping._gate import Gate
from manytail.mapping._grants import Answer
from manytail.mapping._ledger import LATE

from .test_remember import Service

pytestmark = pytest.mark.thread_unsafe(reason="a database of its own for each test")


def spent_in(shared):
    """What calls have spent of the budget."""
    return budget(shared, 0).used()


def most_in(starts, seconds):
    """The most starts in any window of that many seconds."""
    starts, first, most = sorted(starts), 0, 0
    for index, start in enumerate(starts):
        while starts[first] <= start - seconds:
            first += 1
        most = max(most, index - first + 1)
    return most


def check_rate(starts, rate, workers=0):
    """A call may be noted late, on a busy machine by any time: so a window may have as many more as all workers."""
    for seconds in (0.05, 0.2, 0.5, 1.0, 2.0):
        assert most_in(starts, seconds) <= 1 + rate * (seconds + LATE) + workers + 1e-6


WORKER = """
import os, sys, time
from manytail import Rate, Shared, concurrent_map
url, log, items, rate, per_key = sys.argv[1:]
log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def fn(item):
    os.write(log, b"%d %.6f\\n" % (item % 3, time.time()))
    return item
print("ready", flush=True)
sys.stdin.readline()
limit = Rate(float(rate), per_key=per_key == "True", shared=Shared(url, "a"), name="rate")
for result in concurrent_map(
    fn, range(int(items)), limits=limit, key=lambda item: item % 3, workers=2, order="completion"
):
    print(result, flush=True)
"""


@pytest.mark.parametrize(("amount", "per_key", "items"), [(100.0, False, 60), (20.0, True, 30)], ids=["all", "keys"])
def test_processes_keep_a_rate_together_and_a_killed_one_frees_nothing(database, tmp_path, amount, per_key, items):
    """The service's log has no window with more starts than the rate allows, of all calls or of each key."""
    log, killed_after = tmp_path / "log", items // 3
    processes = [
        start_script(WORKER, database.url, str(log), str(number), str(amount), str(per_key))
        for number in (items, items, 100_000)
    ]
    begin_together(processes)
    for _ in range(killed_after):
        processes[2].stdout.readline()
    os.kill(processes[2].pid, KILL)
    for process in processes:
        _, said = process.communicate(timeout=4 * DEADLINE)
        assert process.returncode in (0, KILLED_CODE), said
    lines = [line.split() for line in log.read_text().splitlines()]
    assert len(lines) >= 2 * items + killed_after
    for keys in "012" if per_key else ["012"]:
        starts = [float(at) for key, at in lines if key in keys]
        assert len(starts) >= 20
        check_rate(starts, amount, workers=3 * 2)
    # each key, and the rate of all
    assert database.query("SELECT count(*) FROM manytail_limits") == [(4 if per_key else 1,)]


def test_slots_that_passed_while_the_map_rested_are_skipped(sqlite):
    """A lease of many slots is used for one call, and the next call comes when all of them are over."""
    shared, starts = Shared(sqlite.url, "a"), []

    def items():
        yield 0
        time.sleep(3 * LATE)  # the rest
        yield from range(1, 4)

    assert mapped(lambda item: starts.append(item), items(), limits=rate(shared, 1e9), workers=2) == [None] * 4
    assert sorted(starts) == [0, 1, 2, 3]


@everywhere
def test_a_budget_holds_over_all_maps(database, mapped):
    shared, service = Shared(database.url, "a"), Service()
    with Threads() as threads:
        tasks = [
            threads.start(
                mapped,
                service,
                range(20),
                limits=budget(shared, 100.0, cost=lambda item: 3.0),
                errors="return",
                workers=4,
            )
            for _ in range(3)
        ]
        results = [result for task in tasks for result in task.result()]
    assert len(service.calls) == 33
    assert spent_in(shared) == 99.0
    assert sum(one.ok for one in results) == 33
    assert {type(one.error) for one in results if not one.ok} == {BudgetExceeded}
    shared.reset()
    assert mapped(service, [1], limits=budget(shared, 3.0, cost=lambda item: 3.0)) == ["result of 1"]


def test_what_is_remembered_takes_no_slot_and_costs_nothing(sqlite):
    shared, service = Shared(sqlite.url, "a"), Service()
    mapped(service, range(500), remember=shared)
    limits = [rate(shared, 0.001), budget(shared, 0.0)]
    assert len(mapped(service, range(500), remember=shared, limits=limits)) == 500
    assert spent_in(shared) == 0.0
    assert len(service.calls) == 500


def test_a_retry_after_a_deferral_that_cannot_fails_with_the_error_of_fn(sqlite):
    shared, calls = Shared(sqlite.url, "a"), []

    def fn(item):
        calls.append(item)
        if len(calls) == 2:
            sqlite.query("UPDATE manytail_limits SET settled = settled + 1.0")  # by another process
            raise RetryLater(2.0)  # by then what the call had reserved is returned
        raise OSError("its own")

    (failed,) = mapped(fn, [1], limits=budget(shared, 2.0), retry=Retry(5, backoff=0.0), errors="return")
    assert str(failed.error) == "its own"
    assert (failed.attempts, calls) == (1, [1, 1])


def reserved(database):
    return database.query("SELECT coalesce(sum(reserved), 0) FROM manytail_holds")[0][0]


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

    results = concurrent_map(fn, items(), limits=budget(shared, 9.0), workers=2)
    scheduler, exchange = results._runner.scheduler, shared._store().exchange

    def slow_exchange(*arguments):
        if failing.is_set():
            wait_until(lambda: scheduler.halted)
        return exchange(*arguments)

    monkeypatch.setattr(shared._store(), "exchange", slow_exchange)
    with pytest.raises(OSError, match="its own"):
        list(results)
    assert spent_in(shared) == 1.0
    assert reserved(sqlite) == 0.0


def test_a_pause_that_comes_during_an_exchange_is_told_in_the_next_one(sqlite):
    """The answer knows nothing of it: it must not count as told."""
    account = rate(Shared(sqlite.url, "a"), 9.0)._account
    assert account.report(0.0, False, 10.0, []).pause == 0.0
    account.pause(40.0)
    account.answered(Answer(0.0, account.terms), 0.0, 0.0, 11.0, [])
    assert account in account.requests.open
    assert account.report(0.0, False, 12.0, []).pause == 28.0
    account.answered(Answer(0.0, account.terms, paused_until=40.0), 0.0, 0.0, 13.0, [])
    assert account.report(0.0, False, 14.0, []).pause == 0.0
    account.answered(Answer(0.0, account.terms, paused_until=50.0), 0.0, 0.0, 15.0, [])
    assert account.paused_until == 50.0  # that of another process
    assert account.report(0.0, False, 16.0, []).pause == 0.0


def test_the_deadline_does_not_wait_for_the_budget(sqlite, monkeypatch):
    """Nothing else happens in the map: both calls wait for the answer. What was granted is given back."""
    shared = Shared(sqlite.url, "a")
    results = concurrent_map(str, [1, 2], limits=budget(shared, 9.0), deadline=0.05, workers=2, errors="return")
    scheduler, exchange = results._runner.scheduler, shared._store().exchange

    def slow_exchange(*arguments):
        wait_until(lambda: scheduler.expired)
        return exchange(*arguments)

    monkeypatch.setattr(shared._store(), "exchange", slow_exchange)
    assert [type(result.error) for result in results] == [DeadlineExceeded] * 2
    assert spent_in(shared) == 0.0
    assert reserved(sqlite) == 0.0


def test_a_limit_of_a_process_that_was_killed_is_free_when_its_lease_has_run_out(sqlite):
    shared, limit = Shared(sqlite.url, "a"), {"shared": Shared(sqlite.url, "a"), "name": "c", "lease": 1.0}
    script = """
import os, sys
from manytail import Concurrency, Shared
with Concurrency(1.0, lease=1.0, shared=Shared(sys.argv[1], "a"), name="c"):
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", script, sqlite.url], env=environment(), timeout=4 * DEADLINE)
    assert reserved(sqlite) == 1.0
    with Concurrency(1.0, **limit):
        assert reserved(sqlite) == 2.0  # that of the other is no longer counted
    assert shared.remembered() == 0


def test_several_shared_limits_of_a_kind_hold_together(sqlite):
    """Two rates, a Budget that is settled by what calls spent, and a Concurrency."""
    shared, running, most, lock = Shared(sqlite.url, "a"), [0], [0], threading.Lock()

    def fn(item, delivery):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        delivery.spent(euros=0.5)
        with lock:
            running[0] -= 1
        return item

    euros = Budget(20.0, cost=lambda item: 2.0, shared=shared, name="euros")
    limits = [
        Rate(1_000.0, shared=shared, name="second"),
        Rate(10_000.0, "minute", burst=100.0, shared=shared, name="minute"), euros,
        Concurrency(3.0, shared=shared, name="connections"),
    ]  # fmt: skip
    assert mapped(fn, range(30), limits=limits, workers=8) == list(range(30))
    assert euros.used() == 15.0
    assert 1 <= most[0] <= 3
    assert reserved(sqlite) == 0.0


@everywhere
def test_a_pause_holds_for_all_that_use_the_rate(sqlite, mapped):
    """RetryLater without a key, in one process, pauses the maps of another."""
    shared, deferred = Shared(sqlite.url, "a"), []

    def fn(item):
        if not deferred:
            deferred.append(time.monotonic())
            raise RetryLater(1.0)
        return item

    mapped(str, [1], limits=rate(shared, 1e6))
    with Threads() as threads:
        first = threads.start(mapped, fn, [1], limits=rate(shared, 1e6))
        wait_until(lambda: sqlite.query("SELECT max(paused_until) FROM manytail_limits")[0][0] > 0)
        mapped(lambda item: deferred.append(time.monotonic()), [2], limits=rate(shared, 1e6))
        first.result()
    assert deferred[1] >= deferred[0] + 0.99


@everywhere
def test_the_deadline_does_not_wait_for_a_slot(sqlite, mapped):
    shared, service = Shared(sqlite.url, "a"), Service()
    results = mapped(service, range(20), limits=rate(shared, 0.01), deadline=0.5, errors="return", workers=4)
    assert len(service.calls) <= 1
    assert sum(isinstance(result.error, DeadlineExceeded) for result in results) >= 19


USES = {
    "rate": lambda shared: {"limits": Rate(10.0, shared=shared, name="a")},
    "budget": lambda shared: {"limits": Budget(10.0, shared=shared, name="b")},
    "remember": lambda shared: {"remember": shared},
}
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES)


@everywhere
@each_use
def test_the_deadline_does_not_wait_for_the_database(away, mapped, use):
    shared, service = Shared(away, "a", outage_timeout=10 * DEADLINE), Service()
    results = mapped(service, range(20), **use(shared), deadline=0.5, errors="return")
    assert [type(result.error) for result in results] == [DeadlineExceeded] * 20
    assert service.calls == []


def test_a_map_whose_database_was_away_does_not_hold_up_the_interpreters_exit(away):
    run_script(
        """
import asyncio, gc, sys
from manytail import Rate, Shared, aconcurrent_map

gc.disable()  # what is left of the map is freed at the exit

async def fn(item):
    raise AssertionError

async def main():
    limit = Rate(10, shared=Shared(sys.argv[1], "a", outage_timeout=1_000), name="r")
    async for outcome in aconcurrent_map(fn, range(3), limits=limit, deadline=0.1, errors="return"):
        assert not outcome.ok

asyncio.run(main())
""",
        arguments=[away],
    )


def test_closing_does_not_wait_for_a_slot(sqlite):
    shared = Shared(sqlite.url, "a")
    results = concurrent_map(str, range(20), limits=rate(shared, 0.01), workers=4)
    assert next(results) == "0"
    results.close()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("manytail-")])


def test_another_rate_is_logged_and_holds(sqlite, caplog):
    shared = Shared(sqlite.url, "a")
    mapped(str, range(3), limits=rate(shared, 1e6))
    with caplog.at_level(logging.WARNING):
        mapped(str, range(3), limits=rate(shared, 2e6))
    change = "rate:rate of name 'a' changes from Terms(amount=1000000.0"
    assert len([said for said in caplog.messages if change in said]) == 1


@everywhere
@each_use
def test_a_database_that_stays_away_fails_the_map_before_a_call(away, mapped, use):
    shared, service = Shared(away, "a", outage_timeout=0.3), Service()
    with pytest.raises(SharedUnavailable, match="unavailable for"):
        mapped(service, range(3), **use(shared))
    assert service.calls == []


def test_the_measure_of_windows():
    assert most_in([0.0, 0.1, 0.2, 1.0], 0.15) == 2
    with pytest.raises(AssertionError):
        check_rate(list(itertools.accumulate([0.005] * 200)), 100.0)


# ---------------------------------------------------------------------------------------------------- rates of keys
@everywhere
def test_a_key_at_its_shared_rate_holds_up_no_other(sqlite, mapped):
    """Another map has leased the next hour of one key. Its item waits without a worker; the other keys are called."""
    items = ["slow", *(f"key {number}" for number in range(30))]

    def attempt(deadline):
        shared, calls = Shared(sqlite.url, f"until {deadline}"), []
        mapped(str, ["slow"], limits=rate(shared, 1.0, per_key=True), key=str)
        sqlite.query("UPDATE manytail_limits SET tat = tat + 3600 WHERE limit_id <> CAST('rate:rate' AS BLOB)")
        results = mapped(
            calls.append, items, limits=rate(shared, 1.0, per_key=True), key=str, workers=1, deadline=deadline,
            errors="return", order="completion",
        )  # fmt: skip
        if sum(result.error is None for result in results) < 30:
            raise TooLate("the other keys were not called before the deadline")
        return calls, results

    calls, results = in_time(attempt, 2, 20, 60)
    assert sorted(calls) == sorted(items[1:])
    assert sum(isinstance(result.error, DeadlineExceeded) for result in results) == 1


def test_keys_without_a_stable_encoding_fail_their_items(sqlite):
    """The limit of a key has a name that is the same in every process."""
    keys = ["text", 1, 2.5, None, float("nan"), float("nan"), ("a", b"b"), object, "text"]
    results = mapped(
        str, range(len(keys)), key=keys.__getitem__, errors="return",
        limits=rate(Shared(sqlite.url, "a"), 1e6, per_key=True),
    )  # fmt: skip
    assert [index for index, result in enumerate(results) if result.result != str(index)] == [7]
    assert isinstance(results[7].error, TypeError)
    assert results[7].attempts == 0
    assert sqlite.query("SELECT count(*) FROM manytail_limits") == [(7,)]  # six keys, NaN being one, and all


def test_what_was_paid_for_is_not_paid_for_again_when_its_slot_is_missed(sqlite, monkeypatch):
    """The answer about the budget comes when the slots are over: the call takes a new slot, and keeps its payment."""
    for batch, fn in ((None, str), (Batch(4, linger=3_600.0), lambda items: list(map(str, items)))):
        shared, late = Shared(sqlite.url, f"batch {batch}"), iter([False, True, False, False] * 2)
        monkeypatch.setattr(Gate, "late", lambda gate, call, now, late=late: next(late, False))  # before, and after
        options = {"batch": batch, "workers": 1, "errors": "return"}
        results = mapped(fn, range(8), limits=[rate(shared, 1e6), budget(shared, 6.0)], **options)
        assert [one.result for one in results[:6]] == list(map(str, range(6)))
        assert [(type(result.error), result.attempts) for result in results[6:]] == [(BudgetExceeded, 0)] * 2
        assert spent_in(shared) == 6.0
