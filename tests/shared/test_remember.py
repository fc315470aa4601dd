"""`remember` in the maps: a recorded result is not called again, and the database never delays the consumer."""

import asyncio
import itertools
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest
from support import counts
from support.maps import budget, concurrently, everywhere, mapped, rate, refuse_thread
from support.process import KILL, KILLED_CODE, environment, start_script
from support.threads import DEADLINE, LONG, Threads, wait_until

from manytail import (
    Caller,
    Retry,
    RetryLater,
    Shared,
    aconcurrent_map,
    concurrent_map,
)
from manytail.mapping import _exchange, _remember
from manytail.mapping._idempotency import idempotency_key
from manytail.mapping._item import Item
from manytail.mapping._ledger import LATE
from manytail.mapping._options import Options
from manytail.mapping._remember import Memory
from manytail.mapping._scheduler import Scheduler
from manytail.mapping._thread_runner import ThreadRunner

pytestmark = pytest.mark.thread_unsafe(reason="a database, an environment or a process of its own for each test")


class Service:
    """Counts the calls that are paid for."""

    def __init__(self):
        self.calls = []

    def __call__(self, item):
        self.calls.append(item)
        return f"result of {item}"


@everywhere
def test_a_second_map_pays_for_nothing_that_was_recorded(database, mapped):
    shared, service = Shared(database.url, "a"), Service()
    expected = [f"result of {item}" for item in range(500)]
    assert mapped(service, range(300), remember=shared) == expected[:300]
    assert sorted(service.calls) == list(range(300))
    assert shared.remembered() == 300
    assert mapped(service, range(500), remember=Shared(database.url, "a"), order="input") == expected
    assert sorted(service.calls) == list(range(500))
    assert shared.remembered() == 500


@everywhere
@pytest.mark.parametrize(
    "options",
    [
        {"key": lambda item: item % 3, "per_key": 2, "order": "key"},
        {"rate": 1e6, "order": "completion"},
        {"timeout": DEADLINE, "retry": 1},
        {"dedup": 5, "item_id": str},
    ],
)
def test_with_other_options(sqlite, mapped, options):
    """Remembered results cost nothing: a budget for 100 calls is enough for 150 items, of which 50 come twice."""
    shared, service = Shared(sqlite.url, "a"), Service()
    if "rate" in options:
        limits = [rate(shared, 1e6), budget(shared, 100.0)]
        options = {"limits": limits, "order": "completion"}
    for items in (range(50), range(100)):
        results = mapped(service, items, remember=shared, **options)
        assert sorted(results) == sorted(f"result of {item}" for item in items)
    assert sorted(service.calls) == list(range(100))


@everywhere
@pytest.mark.parametrize("fresh", [1.0, 0.0], ids=["fresh", "looked up again"])
def test_batches_get_only_what_is_not_recorded(sqlite, mapped, fresh, monkeypatch):
    monkeypatch.setattr(_remember, "FRESH", fresh)
    shared, service, sizes = Shared(sqlite.url, "a"), Service(), []

    def fn(items):
        sizes.append(len(items))
        if len(sizes) == 1:  # another process records items that wait or are in a batch already
            assert list(concurrent_map(service, [9, 11], remember=Shared(sqlite.url, "a"))) == [
                "result of 9",
                "result of 11",
            ]
        return [service(item) for item in items]

    for items in (range(10), range(30)):
        results = mapped(fn, items, remember=shared, limits=rate(shared, 1e6), batch=4, workers=1)
        assert results == [f"result of {item}" for item in items]
    assert set(service.calls) == set(range(30))
    assert len(service.calls) <= 31 if fresh else len(service.calls) == 30
    assert max(sizes) <= 4
    assert shared.remembered() == 30


def test_an_item_without_a_key_fails_alone(sqlite):
    shared, service = Shared(sqlite.url, "a"), Service()
    good, bad = mapped(service, [1, object()], remember=shared, errors="return")
    assert good.result == "result of 1"
    assert isinstance(bad.error, TypeError)
    assert re.fullmatch(r"remember: <object .*> of type object \(expected: None, .*; or item_id=, .*\)", str(bad.error))
    assert service.calls == [1]


@pytest.mark.parametrize(
    ("options", "begin"),
    [
        ({"dedup": 5}, "dedup: <object "),
        ({"dedup": 5, "item_id": lambda item: {item}}, "item_id: {<object "),
    ],
)
def test_an_item_without_a_key_names_the_option(options, begin):
    (outcome,) = concurrent_map(str, [object()], errors="return", **options)
    assert isinstance(outcome.error, TypeError)
    assert str(outcome.error).startswith(begin)
    assert ("item_id=" in str(outcome.error)) is ("item_id" not in options)


def test_failures_and_deferrals_are_not_recorded(sqlite):
    shared = Shared(sqlite.url, "a")
    calls = []

    def fails(item):
        calls.append(item)
        if item == 0:
            raise OSError("no")
        if item == 1 and calls.count(1) == 1:
            raise RetryLater(0.0)
        return item

    for _ in range(2):
        results = mapped(fails, range(3), remember=shared, errors="return")
        assert [one.ok for one in results] == [False, True, True]
    assert sorted(calls) == [0, 0, 1, 1, 2]
    assert shared.remembered() == 2


REFUSED = r"remember: the result of item 3, of type set, cannot be recorded: codec: .*; let fn return .* codec=\.\.\.\)"


@everywhere
@pytest.mark.parametrize("order", ["input", "key", "completion"])
@pytest.mark.parametrize("errors", ["raise", "return", "drop"])
def test_what_the_codec_refuses_is_yielded_and_ends_the_map(sqlite, mapped, order, errors):
    shared, results = Shared(sqlite.url, "a"), []
    options = {"order": order, "errors": errors, "key": lambda item: "one", "workers": 2}
    with pytest.raises(TypeError, match=REFUSED) as raised:
        mapped(lambda item: {item} if item == 3 else item, range(10), results, remember=shared, **options)
    results = [one.result if errors == "return" else one for one in results]
    assert results[-1] == {3}
    assert order == "completion" or results == [0, 1, 2, {3}]
    assert isinstance(raised.value.__cause__, TypeError)
    assert shared.remembered() >= 3  # what came before it


@concurrently
def test_what_the_codec_refuses_waits_for_its_turn(sqlite, mapped):
    """The item before it fails until its call has ended, and is still called again."""
    results, calls = [], []

    def fn(item):
        calls.append(item)
        if item == 0 and 3 not in calls:
            raise OSError("not yet")
        return {item} if item == 3 else item

    options = {"order": "input", "workers": 4, "retry": Retry(100_000, backoff=0)}
    with pytest.raises(TypeError, match=REFUSED):
        mapped(fn, range(10), results, remember=Shared(sqlite.url, "a"), **options)
    assert results == [0, 1, 2, {3}]
    assert calls.count(0) > 1 or calls.index(3) < calls.index(0)


@concurrently
def test_the_batch_of_what_the_codec_refuses_is_recorded(sqlite, mapped):
    shared, results = Shared(sqlite.url, "a"), []
    with pytest.raises(TypeError, match=REFUSED):
        mapped(
            lambda items: [{3} if item == 3 else item for item in items], range(5), results, remember=shared, batch=5
        )
    assert results == [0, 1, 2, {3}]
    assert shared.remembered() == 4


@everywhere
def test_how_many_results_were_found_and_how_old_is_logged_once(database, mapped, caplog):
    shared = Shared(database.url, "a")
    mapped(str, [0], remember=shared)
    age = f"UPDATE manytail_results SET recorded_at = recorded_at - {3 * 86_400}"
    shared._store().run(lambda transaction, name: transaction.execute(age))
    with caplog.at_level(logging.INFO):
        mapped(str, range(300), remember=shared)
        mapped(str, range(400), remember=shared)
        mapped(str, range(400, 402), remember=shared)  # none
    first, second = (message for message in caplog.messages if "were found" in message)
    old = r"3 days, 0:0\d:\d\d"
    assert re.fullmatch(rf"remember: 1 results were found in Shared\(.*, 'a'\), {old} to {old} old", first)
    assert re.fullmatch(rf"remember: 300 results were found in Shared\(.*\), 0:0\d:\d\d to {old} old", second)


def test_what_the_codec_of_a_caller_refuses_is_logged_once(sqlite, caplog):
    shared = Shared(sqlite.url, "a")
    with caplog.at_level(logging.WARNING), Caller(lambda item: {item}, remember=shared) as call:
        assert [call(3), call(4)] == [{3}, {4}]
    assert shared.remembered() == 0
    (message,) = (message for message in caplog.messages if "cannot be recorded" in message)
    assert re.fullmatch(REFUSED + "; such results will be paid for again", message)


class Json:
    decode = staticmethod(json.loads)

    @staticmethod
    def encode(result):
        return json.dumps(result).encode()


def test_a_codec_of_the_user_belongs_to_the_name(sqlite):
    shared, service = Shared(sqlite.url, "a"), Service()
    for _ in range(2):
        assert mapped(service, [1], remember=Shared(sqlite.url, "a", codec=Json())) == ["result of 1"]
    assert service.calls == [1]
    with pytest.raises(ValueError, match=r"^codec: 'manytail-1' \(expected: '.*Json'"):
        mapped(service, [1, 2], remember=shared)
    assert service.calls == [1]  # no call was made


@dataclass
class Changed:
    x: int


@everywhere
def test_a_result_that_cannot_be_read_fails_its_item_and_is_not_paid_for_again(sqlite, mapped, monkeypatch):
    shared, service = Shared(sqlite.url, "a"), Service()
    mapped(Changed, [1], remember=shared)
    monkeypatch.delattr(sys.modules[__name__], "Changed")
    (failed,) = mapped(service, [1], remember=shared, errors="return", retry=3)
    assert isinstance(failed.error, ValueError)
    assert "forget" in failed.error.__notes__[0]
    assert service.calls == []


@pytest.mark.parametrize(
    ("options", "wrong", "said"),
    [
        ({"remember": True}, TypeError, "remember: True of type bool (expected: a path, a URL or a Shared)"),
        ({"shared": "sqlite:///a.db"}, TypeError, "shared: "),
        ({"codec": Json()}, TypeError, "codec"),
    ],
)
def test_bad_options_are_refused_at_the_call(options, wrong, said):
    with pytest.raises(wrong, match=re.escape(said)):
        concurrent_map(str, [1], **options)


# ------------------------------------------------------------------------------------------------- just before the call
@everywhere
def test_an_item_that_waited_is_looked_up_again_before_its_call(sqlite, mapped, monkeypatch):
    """Another process records its result while it waits for a worker."""
    monkeypatch.setattr(_remember, "FRESH", 0.0)
    shared, service = Shared(sqlite.url, "a"), Service()

    def fn(item):
        if item == 0:
            assert list(concurrent_map(service, [3], remember=Shared(sqlite.url, "a"))) == ["result of 3"]
        return service(item)

    results = mapped(fn, range(5), remember=shared, workers=1, key=lambda item: item % 2, timeout=DEADLINE)
    assert results == [f"result of {item}" for item in range(5)]
    assert sorted(service.calls) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("batch", [None, 2])
def test_a_result_that_a_worker_finds_and_cannot_read_fails_each_equal_item(sqlite, batch, monkeypatch):
    """Another process records it after the items came. Equal items wait for the first of them."""
    monkeypatch.setattr(_remember, "FRESH", 0.0)
    shared, seen, calls = Shared(sqlite.url, "a"), [], []

    def fn(item):
        calls.append(item)
        wait_until(lambda: results._runner.scheduler.window.in_flight == 3)
        shared._store().record({bytes.fromhex(idempotency_key(1)): b"no result"})
        return item

    results = concurrent_map(
        fn, [[0], 1, 1], key=str, remember=shared, batch=batch, dedup=5, workers=1,
        retry=Retry(1, backoff=3_600.0), errors="return", progress=seen.append,
    )  # fmt: skip
    _, first, second = results
    assert len(calls) == 1
    assert [type(failed.error) for failed in (first, second)] == [ValueError] * 2
    assert (seen[-1].failed, seen[-1].retried) == (2, 0)


def test_what_a_worker_finds_for_items_of_a_batch_counts_as_remembered(sqlite, monkeypatch):
    monkeypatch.setattr(_remember, "FRESH", 0.0)
    shared, seen = Shared(sqlite.url, "a"), []

    def fn(items):
        if items == [0]:
            wait_until(lambda: results._runner.scheduler.window.in_flight == 3)
            assert mapped(str, [1], remember=Shared(sqlite.url, "a")) == ["1"]
        return list(map(str, items))

    results = concurrent_map(fn, range(3), key=bool, remember=shared, batch=2, workers=1, progress=seen.append)
    assert list(results) == ["0", "1", "2"]
    assert seen[-1].remembered == 1


def test_rows_that_are_looked_up_at_the_end_of_the_input_are_not_lost(sqlite, monkeypatch):
    """The window has no room for them at that time: the results in it, which wait for the first one, are too large."""
    shared = Shared(sqlite.url, "a")
    options, size = Options(workers=3, remember=shared), lambda item: item.result or 0.0
    scheduler = Scheduler(options, buffer=10, window_bytes=1_000.0, sizeof=size)
    runner = ThreadRunner(scheduler, lambda resource: lambda item: item.value(), memory=Memory(shared, None))
    gates = {name: threading.Event() for name in ("first", "second", "rest", "lookup", "looked up", "end")}
    find = Memory._find

    def gated_find(memory, store, items):
        if items[0].key == "end":
            gates["looked up"].set()
            gates["lookup"].wait(LONG)
        find(memory, store, items)

    def gated(name, result):
        return lambda: result if gates[name].wait(LONG) else None

    def source():
        first = [gated("first", 0.0), gated("second", 5_000.0), *[float] * 10]
        for values, gate in (first, "rest"), ([float] * 2, "end"):
            items = [Item(value, gate) for value in values]
            for item in items:
                item.identity = idempotency_key(str(id(item)))
            scheduler.assign(items)
            yield items
            gates[gate].wait(LONG)

    monkeypatch.setattr(Memory, "_find", gated_find)
    runner.start(source())
    wait_until(lambda: scheduler.finished == 10)  # so a worker has nothing to run, and the window grows
    gates["rest"].set()
    assert gates["looked up"].wait(DEADLINE)
    gates["second"].set()
    wait_until(lambda: scheduler.window.bytes_in_flight() >= 1_000.0)
    gates["lookup"].set()
    gates["end"].set()
    wait_until(lambda: scheduler.ended)
    gates["first"].set()
    wait_until(lambda: scheduler.over)
    assert len(scheduler.output) == 14
    runner.close()


@everywhere
def test_a_call_that_misses_its_slot_for_a_lookup_needs_no_other_lookup(sqlite, mapped, monkeypatch):
    """A look-up takes longer than a start may be late. If each slot needed one, no call would ever start."""
    monkeypatch.setattr(_remember, "FRESH", 0.0)
    shared, lookups = Shared(sqlite.url, "a"), itertools.count()
    look_up = shared._store().look_up

    def slow_look_up(*arguments):
        next(lookups)
        time.sleep(1.2 * LATE)
        return look_up(*arguments)

    monkeypatch.setattr(shared._store(), "look_up", slow_look_up)
    assert mapped(str, range(2), remember=shared, limits=rate(shared, 50.0), workers=2) == ["0", "1"]
    assert next(lookups) <= 4  # when the items come, and before their calls: one for each item, or for both


def test_at_most_a_group_and_the_running_calls_are_not_recorded(sqlite):
    """While the database does not answer, workers stop after the backlog."""
    shared, service = Shared(sqlite.url, "a"), Service()
    inside, looked_up, go_on = threading.Event(), threading.Event(), threading.Event()
    store = shared._store()
    record = store.record

    def slow(*arguments):
        inside.set()
        go_on.wait()
        record(*arguments)

    def fn(item):
        looked_up.wait()  # the thread that `slow` holds up looks up too
        return service(item)

    store.record = slow  # type: ignore[method-assign]
    results = concurrent_map(fn, range(5_000), remember=shared, workers=4, max_in_flight=4_000)
    with Threads() as threads:
        consumer = threads.start(list, results)
        wait_until(lambda: results._scheduler.window.in_flight > _remember.BACKLOG + 4)
        looked_up.set()
        inside.wait()
        memory = results._runner.memory  # type: ignore[attr-defined]
        wait_until(lambda: len(memory._waiting) == 4)  # all workers
        assert _remember.BACKLOG <= len(service.calls) <= _remember.BACKLOG + 4
        go_on.set()
        assert len(consumer.result()) == 5_000
    assert shared.remembered() == 5_000


def test_results_are_emitted_before_they_are_recorded(sqlite):
    """The database never blocks the consumer."""
    shared = Shared(sqlite.url, "a")
    go_on = threading.Event()
    store = shared._store()
    record = store.record
    store.record = lambda *arguments: (go_on.wait(), record(*arguments))[1]  # type: ignore[method-assign]
    results = concurrent_map(str, range(10), remember=shared)
    assert [next(results) for _ in range(10)] == [str(item) for item in range(10)]
    go_on.set()
    assert list(results) == []
    assert shared.remembered() == 10


def test_results_are_recorded_while_the_map_goes_on(sqlite):
    shared, go_on = Shared(sqlite.url, "a"), threading.Event()

    def fn(item):
        if item:
            go_on.wait()
        return item

    results = concurrent_map(fn, range(2), remember=shared)
    assert next(results) == 0
    wait_until(lambda: Shared(sqlite.url, "a").remembered() == 1)
    go_on.set()
    assert list(results) == [1]


@everywhere
def test_a_map_that_fails_or_is_closed_records_what_came(sqlite, mapped):
    shared = Shared(sqlite.url, "a")

    def fn(item):
        if item == 40:
            raise OSError("no")
        return item

    with pytest.raises(OSError, match="no"):
        mapped(fn, range(100), remember=shared, workers=1)
    assert shared.remembered() == 40
    results = concurrent_map(str, range(100, 200), remember=shared, workers=1)
    assert next(results) == "100"
    results.close()
    assert shared.remembered() >= 41


@pytest.mark.parametrize("name", ["manytail-shared", "manytail-limits"])
def test_a_thread_that_cannot_be_started_fails_the_map(sqlite, name, monkeypatch):
    refuse_thread(name, monkeypatch)
    shared = Shared(sqlite.url, "a")
    remember = shared if name == "manytail-shared" else None
    results = concurrent_map(str, range(9), remember=remember, limits=rate(shared, 1e6))
    with Threads() as threads:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threads.start(list, results).result()
        threads.start(results.close).result()


def test_a_collection_while_the_thread_of_limits_starts_may_run_finalizers_of_maps(sqlite, monkeypatch):
    """A map that is freed there leaves the limits, whose lock the thread that starts the other one has."""
    start = threading.Thread.start

    class Freed:
        inline = False

    def collecting(thread):
        if thread.name == "manytail-limits":
            for exchange in list(_exchange._exchanges.values()):
                exchange.leave(Freed())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", collecting)
    shared = Shared(sqlite.url, "a")
    assert mapped(str, range(9), limits=rate(shared, 1e6)) == [str(item) for item in range(9)]


def test_no_thread_is_left(sqlite):
    shared = Shared(sqlite.url, "a")
    mapped(str, range(10), remember=shared)
    results = concurrent_map(str, range(10_000), remember=shared)
    next(results)
    del results  # the collector does not wait; the threads end by themselves
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("manytail-")])


class BlockingCodec:
    def __init__(self):
        self.entered, self.left = threading.Event(), threading.Event()

    def encode(self, result):
        return result.encode()

    def decode(self, data):
        self.entered.set()
        assert self.left.wait(DEADLINE)
        return data.decode()


def test_a_codec_that_blocks_holds_up_its_own_map_alone(sqlite):
    """A map has a thread of its own for its results, because that runs the codec. Limits have one for all maps."""
    codec = BlockingCodec()
    shared = Shared(sqlite.url, "a", codec=codec)
    mapped(str, range(3), remember=shared)
    with Threads() as threads:
        held_up = threads.start(mapped, str, range(3), remember=shared)
        assert codec.entered.wait(DEADLINE)
        assert mapped(str, range(9), limits=rate(shared, 1e6)) == [str(item) for item in range(9)]
        codec.left.set()
        assert held_up.result() == ["0", "1", "2"]


def test_the_threads_of_a_map_in_a_loop(sqlite):
    """One for results and one for limits, and no other."""
    shared = Shared(sqlite.url, "a")

    async def fn(item):
        return sorted(one.name for one in threading.enumerate() if one.name.startswith("manytail-"))

    async def run():
        return [names async for names in aconcurrent_map(fn, range(3), remember=shared, limits=rate(shared, 1e6))]

    assert asyncio.run(run()) == [["manytail-limits", "manytail-shared"]] * 3


# ---------------------------------------------------------------------------------------------------- outages
@everywhere
def test_while_the_database_is_away_nothing_starts_and_then_it_goes_on(own_server, mapped, caplog):
    shared, service = Shared(own_server.url(), "a", outage_timeout=10 * DEADLINE), Service()
    stopped = threading.Event()

    def fn(item):
        if item == 10:
            own_server.stop("immediate")
            stopped.set()
        return service(item)

    with caplog.at_level(logging.WARNING), Threads() as threads:
        task = threads.start(mapped, fn, range(200), remember=shared, workers=1, timeout=DEADLINE)
        stopped.wait()
        wait_until(lambda: "is unavailable" in caplog.text)
        own_server.start()
        assert task.result() == [f"result of {item}" for item in range(200)]
    assert sorted(service.calls) == list(range(200))
    assert shared.remembered() == 200


# ---------------------------------------------------------------------------------------------------- kills
WORKER = """
import os, sys
from manytail import Shared, concurrent_map
paid = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def fn(item):
    os.write(paid, b"%d\\n" % item)
    return item
for result in concurrent_map(fn, range(int(sys.argv[3])), remember=Shared(sys.argv[1], "a"), workers=8):
    if not result % 50:
        print(result, flush=True)
"""


def test_kill_9_costs_at_most_what_ran_and_the_last_group(database, tmp_path):
    """The worker is killed again and again; the next one continues."""
    (items, kills), paid = (10_000, 20) if counts.LONG else (4_000, 5), tmp_path / "paid"
    killed = recorded_again = 0
    shared = Shared(database.url, "a")
    while True:
        before = {row[0] for row in database.query("SELECT id FROM manytail_results")} if killed else set()
        at = paid.stat().st_size if killed else 0
        process = start_script(WORKER, database.url, str(paid), str(items))
        if killed < kills:
            reach = items * (killed + 1) // (kills + 1)
            for line in process.stdout:
                if int(line) >= reach:
                    break
            os.kill(process.pid, KILL)
            killed += 1
        _, said = process.communicate(timeout=4 * DEADLINE)
        again = [int(line) for line in paid.read_bytes()[at:].split()]
        recorded_again += sum(bytes.fromhex(idempotency_key(item)) in before for item in again)
        if process.returncode == 0:
            break
        assert process.returncode == KILLED_CODE, said
    calls = [int(line) for line in paid.read_bytes().split()]
    assert set(calls) == set(range(items))
    assert recorded_again == 0
    assert len(calls) - items <= kills * (8 + 200)
    assert shared.remembered() == items
    print(
        f"\n{database.kind}: {kills} kills over {items} items: {len(calls) - items} paid twice, "
        f"{recorded_again} recorded ones called again"
    )


LEFT = """
import sys
from manytail import Shared, concurrent_map
from manytail.mapping import _remember
_remember.RECORD_AFTER, _remember.GROUP, _remember.BACKLOG = 3_600, 10**9, 10**9  # nothing before the exit
results = concurrent_map(str, range(100_000), remember=Shared(sys.argv[1], "a"))
for _ in range(50):
    next(results)
if sys.argv[2] == "interrupted":
    raise KeyboardInterrupt
"""


@pytest.mark.parametrize("how", ["left", "interrupted"])
def test_the_interpreters_exit_records_the_last_results(sqlite, how):
    command = [sys.executable, "-c", LEFT, sqlite.url, how]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=4 * DEADLINE, check=False)
    assert ("KeyboardInterrupt" in ran.stderr) == (how == "interrupted"), ran.stderr
    assert "Exception ignored" not in ran.stderr
    assert Shared(sqlite.url, "a").remembered() >= 50


@concurrently
def test_the_window_grows_while_workers_wait_for_a_lookup(sqlite, mapped, monkeypatch):
    """With calls that are faster than the database, a statement looks up many items."""
    taken, many = itertools.count(), threading.Event()
    shared = Shared(sqlite.url, "a")
    look_up = shared._store().look_up

    def slow_look_up(*arguments):
        assert many.wait(DEADLINE)
        return look_up(*arguments)

    def items():
        for item in range(2_000):
            if next(taken) == 50:
                many.set()
            yield item

    monkeypatch.setattr(shared._store(), "look_up", slow_look_up)
    assert mapped(abs, items(), remember=shared, workers=4) == list(range(2_000))
