"""concurrent_map of the new package: what its own tests need until those of the old package run against it."""

import gc
import random
import signal
import threading
from collections import Counter

import pytest
from support.threads import DEADLINE, Threads, wait_until

from manytail._maps import Caller, DeadlineExceeded, Retry, RetryLater, TooManyFailures, concurrent_map
from manytail._maps.runners import threads


def double(item):
    return 2 * item


class Ours:
    """Which threads of maps are alive that were not when this was made."""

    def __init__(self):
        self.before = set(threading.enumerate())

    def alive(self):
        return [one for one in threading.enumerate() if one.name.startswith("manytail-") and one not in self.before]


@pytest.mark.parametrize("make", [list, iter])
@pytest.mark.parametrize(
    "options",
    [{}, {"key": lambda item: item % 3, "per_key": 1}, {"priority": lambda item: -item}, {"timeout": DEADLINE}],
    ids=["plain", "per_key", "priority", "timeout"],
)
@pytest.mark.parametrize("number", [0, 1, 1_000])
def test_results_come_in_input_order(make, options, number):
    assert list(concurrent_map(double, make(list(range(number))), **options)) == [2 * item for item in range(number)]


def test_results_of_a_key_come_in_order_and_overtake_other_keys():
    released = threading.Event()

    def wait_for_first(item):
        if item == 0:
            assert released.wait(DEADLINE)
        return item

    results = concurrent_map(wait_for_first, range(10), order="key", key=lambda item: item % 2)
    assert [next(results) for _ in range(5)] == [1, 3, 5, 7, 9]
    released.set()
    assert list(results) == [0, 2, 4, 6, 8]


def test_a_failure_ends_the_map_after_the_results_before_it():
    def fail(item):
        if item == 3:
            raise ValueError(item)
        return item

    results = concurrent_map(fail, range(10_000), workers=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="3") as caught:
        next(results)
    assert caught.value.__notes__ == ["manytail: items[3], 3: the item with key None failed after 1 attempt"]
    assert list(results) == []


def test_an_item_that_fails_is_called_again_and_an_outcome_says_how_often():
    calls = Counter()

    def fail_twice(item):
        calls[item] += 1
        if calls[item] <= 2:
            raise OSError(item)
        return item

    outcomes = list(concurrent_map(fail_twice, range(20), retry=Retry(2, backoff=0.0), errors="return"))
    assert [(one.result, one.attempts) for one in outcomes] == [(item, 3) for item in range(20)]


def test_a_deferred_call_is_no_attempt_and_nothing_starts_before_it():
    calls = []

    def busy(item, delivery):
        calls.append((item, delivery.attempt))
        if item == 0 and len(calls) < 4:
            raise RetryLater(0.001)
        return item

    assert list(concurrent_map(busy, range(3), workers=1)) == [0, 1, 2]
    assert calls == [(0, 1)] * 4 + [(1, 1), (2, 1)]


def test_more_failures_than_allowed_end_the_map():
    with pytest.raises(TooManyFailures, match=r"max_failures: 3 items failed \(expected: 2 at most\)"):
        list(concurrent_map(lambda item: 1 // 0, range(100), workers=1, errors="drop", max_failures=2))


def test_a_call_over_its_time_fails_its_item_and_another_thread_takes_over():
    released = threading.Event()

    def hang(item):
        if item == 1:
            released.wait(DEADLINE)
        return item

    try:
        outcomes = list(concurrent_map(hang, range(4), workers=1, timeout=0.05, errors="return"))
        assert [type(one.error) for one in outcomes] == [type(None), TimeoutError, type(None), type(None)]
    finally:
        released.set()


def test_at_the_deadline_what_is_not_done_fails():
    released = threading.Event()
    try:
        outcomes = list(
            concurrent_map(lambda item: released.wait(DEADLINE), range(100), workers=2, deadline=0.05, errors="return")
        )
        assert [type(one.error) for one in outcomes] == [DeadlineExceeded] * 100
    finally:
        released.set()


@pytest.mark.thread_unsafe(reason="reads the log of the process")
@pytest.mark.parametrize("option", ["timeout", "deadline"])
def test_calls_that_run_on_after_the_end_are_logged_once(option, caplog):
    released = threading.Event()
    try:
        results = concurrent_map(lambda item: released.wait(DEADLINE), range(1), errors="return", **{option: 0.05})
        assert [type(one.error) for one in results] == [{"timeout": TimeoutError, "deadline": DeadlineExceeded}[option]]
        results.close()
        assert caplog.messages == ["1 calls that ran out of time are still running: manytail-worker-1"]
    finally:
        released.set()


def test_an_exception_of_the_input_comes_after_the_results_before_it():
    def items():
        yield from range(5)
        raise LookupError("the input")

    results = concurrent_map(double, items())
    assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
    with pytest.raises(LookupError, match="the input"):
        next(results)


def test_stop_waits_for_running_calls_and_close_drops_their_results():
    for end, expected in (("stop", 2), ("close", 0)):
        begun, released = threading.Barrier(3), threading.Event()

        def wait(item, begun=begun, released=released):
            begun.wait(DEADLINE)
            assert released.wait(DEADLINE)
            return item

        results = concurrent_map(wait, iter(range(100)), workers=2)
        with Threads() as threads:
            taking = threads.start(list, results)
            begun.wait(DEADLINE)
            ending = threads.start(getattr(results, end))
            wait_until(lambda results=results: results._driver.scheduler.halted)
            released.set()
            ending.result()
            assert len(taking.result()) == expected


@pytest.mark.thread_unsafe(reason="looks at the threads of the process")
def test_a_map_that_is_dropped_leaves_no_thread():
    ours = Ours()
    results = concurrent_map(double, iter(range(1_000_000)), workers=2)
    assert next(results) == 0
    del results
    gc.collect()
    wait_until(lambda: ours.alive() == [])


# The handler also raises in callbacks of weak references, which report it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.thread_unsafe(reason="handles signals")
def test_a_consumer_that_is_interrupted_anywhere_ends_its_map_and_loses_no_call():
    """The handler raises at a random time in whatever the main thread does: start, next, stats, stop, close."""

    class Interruption(Exception):
        pass

    def raise_it(number, frame):
        raise Interruption

    ours, rng = Ours(), random.Random(7)
    before = signal.signal(signal.SIGALRM, raise_it)
    try:
        for _ in range(400):
            calls = Counter()

            def note(item, calls=calls):
                calls[item] += 1
                return item

            out = []
            results = None
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1e-3))
                results = concurrent_map(note, iter(range(200)), workers=3, max_in_flight=10)
                for item in results:
                    out.append(item)
                    results.stats()
                results.close()
            except Interruption:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if results is not None:
                results.close()
            assert out == list(range(len(out)))
            assert set(calls.values()) <= {1}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    results = None
    gc.collect()
    wait_until(lambda: ours.alive() == [])


def test_stats_count_the_item_whose_failure_ends_the_map():
    def fail(item):
        if item == 1:
            raise ValueError(item)
        return item

    results = concurrent_map(fail, range(3), workers=1)
    with pytest.raises(ValueError, match="1"):
        list(results)
    stats = results.stats()
    assert (stats.done, stats.failed, stats.calls) == (2, 1, 2)


@pytest.mark.thread_unsafe(reason="replaces Thread.start")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_a_service_thread_that_cannot_be_started_fails_the_map_or_the_caller(monkeypatch, asynchronous):
    def refuse(thread):
        if thread.name == "manytail-service":
            raise RuntimeError("can't start new thread")
        start(thread)

    async def fn(item):
        raise AssertionError

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", refuse)
    items = iter([1, 2])
    with pytest.raises(RuntimeError, match="can't start new thread"):
        next(concurrent_map(fn if asynchronous else str, items))
    assert list(items) == [1, 2]
    caller = Caller(fn if asynchronous else str)
    with pytest.raises(RuntimeError) as raised:
        caller.submit(1).result(DEADLINE)
    assert "can't start new thread" in str(raised.value.__cause__ or raised.value)  # the item came after it, or before
    caller.close()


@pytest.mark.thread_unsafe(reason="replaces the threads of all maps")
def test_the_end_waits_for_the_service_thread_though_who_started_it_has_not_gone_on(monkeypatch):
    joined, ended = threading.Event(), threading.Event()

    class Service(threads.Thread):
        def run(self):
            super().run()
            if self.name == "manytail-service":
                joined.wait(DEADLINE)

        def start(self):
            super().start()
            if self.name == "manytail-service":
                ended.wait(DEADLINE)

        def join(self, timeout=None):
            if self.name == "manytail-service":
                joined.set()
            super().join(timeout)

    monkeypatch.setattr(threads, "Thread", Service)
    try:
        assert list(concurrent_map(str, range(3), workers=2)) == ["0", "1", "2"]
        assert joined.is_set()
    finally:
        joined.set()
        ended.set()
