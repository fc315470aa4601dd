"""`remember=`: results are looked up in bulk and recorded in groups, whatever runs the map; what the codec refuses;
what the database costs a map that ends."""

import asyncio
import itertools
import logging
import pickle
import threading
import time

import pytest
from support.threads import DEADLINE, wait_until

from manytail._maps import DeadlineExceeded, RetryLater, Shared, SharedUnavailable, aconcurrent_map, concurrent_map
from manytail._maps.database.statements import Store
from manytail._maps.results import memory

pytestmark = pytest.mark.thread_unsafe(reason="a database of its own for each test")


def shared_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "manytail-shared"]


def in_threads(fn, items, **options):
    return list(concurrent_map(fn, items, **options))


def inline(fn, items, **options):
    return list(concurrent_map(fn, items, **{**options, "workers": "inline"}))


def in_loop(fn, items, **options):
    async def awaited(item):
        return fn(item)

    async def main():
        return [result async for result in aconcurrent_map(awaited, items, **options)]

    return asyncio.run(main())


WAYS = pytest.mark.parametrize("mapped", [in_threads, inline, in_loop])


@WAYS
@pytest.mark.parametrize("options", [{}, {"key": lambda item: item % 3}, {"order": "completion"}, {"timeout": 60.0}])
def test_what_was_recorded_is_not_called_again(sqlite, mapped, options):
    shared, calls = Shared(sqlite.url, "a"), []
    fn = lambda item: calls.append(item) or str(item)  # noqa: E731
    assert sorted(mapped(fn, range(300), remember=shared, **options)) == sorted(map(str, range(300)))
    assert shared.remembered() == 300
    assert sorted(mapped(fn, range(350), remember=shared, **options)) == sorted(map(str, range(350)))
    assert sorted(calls) == list(range(350))
    wait_until(lambda: not shared_threads(), "the thread to end")


def test_batches_get_only_what_is_not_recorded(sqlite):
    shared, batches = Shared(sqlite.url, "a"), []
    in_threads(str, range(0, 20, 2), remember=shared)

    def fn(items):
        batches.append(items)
        return [OSError() if item == 3 else str(item) for item in items]

    outcomes = in_threads(fn, range(20), remember=shared, batch=4, errors="return")
    assert [outcome.ok for outcome in outcomes] == [item != 3 for item in range(20)]
    assert sorted(item for items in batches for item in items if item != 3) == [1, *range(5, 20, 2)]
    assert shared.remembered() == 19


def test_look_ups_and_records_are_bulk_statements(sqlite, monkeypatch):
    asked, recorded = [], []
    look_up, record = Store.look_up, Store.record
    monkeypatch.setattr(Store, "look_up", lambda self, ids, *more: asked.append(len(ids)) or look_up(self, ids, *more))
    monkeypatch.setattr(Store, "record", lambda self, ids, *more: recorded.append(len(ids)) or record(self, ids, *more))
    in_threads(str, range(2_000), remember=Shared(sqlite.url, "a"), max_in_flight=1_000)
    assert sum(asked) == sum(recorded) == 2_000
    assert len(asked) <= 200
    assert len(recorded) <= 40


def test_a_result_is_recorded_within_half_a_second_though_others_run_on(sqlite):
    shared, opened = Shared(sqlite.url, "a"), threading.Event()
    results = concurrent_map(lambda item: item or opened.wait(DEADLINE), [1, 0], remember=shared, order="completion")
    assert next(results) == 1
    begun = time.monotonic()
    wait_until(lambda: shared.remembered() == 1, "the record")
    assert time.monotonic() - begun < 5.0  # a busy machine; it waits 0.4 s
    opened.set()
    assert list(results) == [True]


@pytest.mark.parametrize("size", [1, 1 << 22])
def test_no_call_starts_while_much_is_not_recorded(sqlite, monkeypatch, size):
    """Results of 4 MiB: four of them are enough."""
    shared, opened, calls = Shared(sqlite.url, "a"), threading.Event(), []
    record = Store.record
    monkeypatch.setattr(Store, "record", lambda self, *some: (opened.wait(DEADLINE), record(self, *some)))

    def fn(item):
        calls.append(item)
        return b"x" * size

    results = concurrent_map(fn, range(1_000 if size == 1 else 30), remember=shared, workers=2, max_in_flight=1_000)
    most = memory.BACKLOG if size == 1 else memory.BYTES // size
    begun = threading.Thread(target=list, args=(results,))
    begun.start()
    wait_until(lambda: results._driver.scheduler.memory._waits, "the map to wait")
    assert most - 2 <= len(calls) <= most + 2
    opened.set()
    begun.join()
    assert shared.remembered() == len(calls) >= 30


@WAYS
def test_what_the_codec_refuses_is_yielded_and_ends_the_map(sqlite, mapped):
    shared, results = Shared(sqlite.url, "a"), []
    fn = lambda item: {item} if item == 3 else item  # noqa: E731
    with pytest.raises(TypeError, match="the result of item 3, of type set, cannot be recorded"):
        results += mapped(fn, range(10), remember=shared, workers=2)
    assert shared.remembered() >= 3


def test_a_record_that_cannot_be_read_fails_its_item(sqlite):
    shared = Shared(sqlite.url, "a")
    in_threads(str, range(3), remember=shared)
    sqlite.query("UPDATE manytail_results SET result = x'ff'")
    outcomes = in_threads(str, range(4), remember=shared, errors="return")
    assert [outcome.ok for outcome in outcomes] == [False, False, False, True]
    assert "Shared.forget() drops them" in str(outcomes[0].error.__notes__)


def test_an_abandoned_call_and_a_deferred_one_are_not_recorded(sqlite):
    shared, opened, deferred = Shared(sqlite.url, "a"), threading.Event(), []

    def fn(item):
        if item == 0:
            opened.wait(DEADLINE)
        if item == 1 and not deferred:
            deferred.append(item)
            raise RetryLater(0.0)
        return item

    results = concurrent_map(fn, [0, 1], remember=shared, timeout=0.1, errors="return")
    assert [outcome.ok for outcome in results] == [False, True]
    opened.set()
    wait_until(lambda: not any("worker" in one.name for one in threading.enumerate()), "the abandoned call to end")
    assert shared.remembered() == 1


def test_the_deadline_does_not_wait_for_a_look_up(sqlite, monkeypatch):
    look_up = Store.look_up

    def slow_look_up(store, ids, give_up):
        give_up.wait(DEADLINE)
        return look_up(store, ids, give_up)

    monkeypatch.setattr(Store, "look_up", slow_look_up)
    results = concurrent_map(str, range(5), remember=Shared(sqlite.url, "a"), deadline=0.1, errors="return")
    assert [type(outcome.error) for outcome in results] == [DeadlineExceeded] * 5


def test_a_map_that_is_closed_records_what_its_calls_returned(sqlite):
    shared = Shared(sqlite.url, "a")
    results = concurrent_map(str, range(100), remember=shared, workers=1)
    assert next(results) == "0"
    results.close()
    assert shared.remembered() >= 1
    assert not shared_threads() or wait_until(lambda: not shared_threads()) is None


@WAYS
def test_a_database_that_stays_away_fails_the_map_before_a_call(mapped):
    shared = Shared("postgresql://tester@127.0.0.1:1/none", "a", outage_timeout=0.2)
    with pytest.raises(SharedUnavailable):
        mapped(lambda item: pytest.fail("it was called"), [1], remember=shared)


def test_results_that_cannot_be_recorded_at_the_end_fail_the_map(sqlite, monkeypatch, caplog):
    def fails(store, some, give_up=None):
        raise SharedUnavailable("it is away")

    monkeypatch.setattr(Store, "record", fails)
    results = concurrent_map(str, [1], remember=Shared(sqlite.url, "a"))
    assert next(results) == "1"
    with pytest.raises(SharedUnavailable):
        next(results)
    assert "1 results were not recorded and will be paid for again" in caplog.text


def test_how_many_results_were_found_is_logged_once(sqlite, caplog):
    shared = Shared(sqlite.url, "a")
    in_threads(str, range(10), remember=shared)
    with caplog.at_level(logging.INFO):
        in_threads(str, range(10), remember=shared)
    (message,) = (message for message in caplog.messages if "were found" in message)
    assert message.startswith("remember: 10 results were found in Shared(")


def named(item):
    return item


def test_a_path_stands_for_the_name_of_fn_and_a_changed_fn_warns_once(tmp_path):
    path = tmp_path / "run.db"
    assert in_threads(named, [1], remember=path) == [1]
    assert Shared(path, f"{__name__}.named").remembered() == 1
    code = named.__code__
    named.__code__ = (lambda item: item + 1).__code__
    try:
        with pytest.warns(UserWarning, match="fn has changed since results were recorded"):
            assert in_threads(named, [1], remember=path) == [1]
        assert in_threads(named, [1, 2], remember=path) == [1, 3]
    finally:
        named.__code__ = code
    with pytest.raises(ValueError, match="a function of a module or script"):
        in_threads(lambda item: item, [1], remember=path)


def test_what_is_left_when_many_results_waited_is_recorded_in_time(sqlite, monkeypatch):
    """The first record ends when all calls but one have returned; that one returns when they are recorded."""
    monkeypatch.setattr(memory, "GROUP", 10)
    monkeypatch.setattr(memory, "BACKLOG", 20)
    shared, record = Shared(sqlite.url, "a"), Store.record
    recording, begun = threading.Event(), threading.Barrier(40)

    def slow_record(store, *arguments):
        recording.set()
        wait_until(lambda: results._driver.scheduler.memory._added >= 39)
        return record(store, *arguments)

    def fn(item):
        begun.wait(DEADLINE)
        if item >= 10:
            assert recording.wait(DEADLINE)
        if item == 39:
            wait_until(lambda: shared.remembered() == 39, "all others to be recorded")
        return item

    monkeypatch.setattr(Store, "record", slow_record)
    results = concurrent_map(fn, range(40), workers=40, remember=shared)
    assert list(results) == list(range(40))


def test_inline_all_results_of_the_last_batch_are_recorded(sqlite):
    shared = Shared(sqlite.url, "a")
    assert inline(lambda items: items, range(450), batch=450, remember=shared) == list(range(450))
    assert shared.remembered() == 450


def test_a_look_up_that_was_taken_while_its_time_was_set_leaves_no_time(sqlite):
    looking = memory.Memory(Shared(sqlite.url, "a"), None, inline=True)
    looking.look_up([])
    looking.work(threading.Event())
    assert looking.due_at() == float("inf")


def test_inline_an_error_of_the_database_ends_the_memory(sqlite, monkeypatch):
    def fails(store, some, give_up=None):
        raise SharedUnavailable("it is away")

    monkeypatch.setattr(Store, "record", fails)
    results = concurrent_map(str, [1], remember=Shared(sqlite.url, "a"), workers="inline")
    with pytest.raises(SharedUnavailable):
        list(results)
    assert results._driver.scheduler.memory.ended.is_set()


def test_each_function_is_called_at_the_end_whatever_others_raise(sqlite):
    ending, called = memory.Memory(Shared(sqlite.url, "a"), None), []
    ending.flushed([].pop)
    ending.flushed(lambda: called.append(1))
    ending.leave(0.0)
    assert called == [1]


class Pickles:
    def encode(self, result):
        return pickle.dumps(result)

    def decode(self, data):
        return pickle.loads(data)


@WAYS
def test_an_exception_that_fn_returns_comes_back_as_its_result(sqlite, mapped):
    shared = Shared(sqlite.url, "a", codec=Pickles())
    for _ in range(2):
        (outcome,) = mapped(ValueError, ["odd"], remember=shared, errors="return")
        assert (outcome.ok, type(outcome.result)) == (True, ValueError)
    assert outcome.attempts == 0


def test_a_look_up_that_comes_after_the_deadline_changes_no_item(sqlite, monkeypatch):
    shared, look_up, taken = Shared(sqlite.url, "a"), Store.look_up, threading.Event()
    in_threads(str, range(3), remember=shared)
    found = []

    def late_look_up(store, ids, give_up):
        assert taken.wait(DEADLINE)
        found.extend(answers := look_up(store, ids))
        return answers

    monkeypatch.setattr(Store, "look_up", late_look_up)
    items = []
    results = concurrent_map(str, range(3), remember=shared, deadline=0.1, errors="return")
    kept = memory.Memory.kept
    monkeypatch.setattr(memory.Memory, "kept", lambda self: items.extend(self._looking) or kept(self))
    outcomes = list(itertools.islice(results, 3))
    taken.set()
    results.close()
    assert [type(outcome.error) for outcome in outcomes] == [DeadlineExceeded] * 3
    assert len(found) == len(items) == 3
    assert [item.known for item in items] == [False] * 3
