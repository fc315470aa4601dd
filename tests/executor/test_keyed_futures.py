"""Futures of a KeyedExecutor behave as those of ThreadPoolExecutor: the same calls have the same outcome."""
import gc
import threading
import weakref
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from concurrent.futures.thread import BrokenThreadPool
from contextlib import nullcontext

import pytest
from support.threads import DEADLINE, Threads, wait_asleep, wait_until

from manytail._workpool import Lane as PoolLane
from manytail._workpool import WorkPool
from manytail.executor import KeyedExecutor


@pytest.fixture(
    params=[ThreadPoolExecutor, KeyedExecutor, lambda workers: KeyedExecutor(workers).lane("a")],
    ids=["stdlib", "executor", "lane"],
)
def one(request, gate):
    """An executor with one worker, which is blocked by a call that waits for gate.open()."""
    executor = request.param(1)
    executor.submit(gate)
    gate.wait_begun()
    yield executor
    gate.open()
    executor.shutdown()


@pytest.mark.parametrize("kind", [LookupError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_a_call_raises_is_its_outcome_and_ends_no_worker(one, gate, kind):
    def call():
        raise kind("in a call")

    bad, good = one.submit(call), one.submit(int)
    gate.open()
    assert isinstance(bad, Future)
    assert isinstance(bad.exception(DEADLINE), kind)
    assert good.result(DEADLINE) == 0


def test_keyword_arguments_pass_whatever_their_names(one, gate):
    call = one.submit(lambda **named: named, self=1, fn=2, args=3, call=4)
    gate.open()
    assert call.result(DEADLINE) == {"self": 1, "fn": 2, "args": 3, "call": 4}
    with pytest.raises(TypeError):
        one.submit()
    with pytest.raises(TypeError):
        one.submit(fn=int)


def test_a_pending_call_can_be_cancelled_once_and_for_all(one, gate):
    told = []
    call = one.submit(told.append, "ran")
    call.add_done_callback(lambda future: told.append(future.cancelled()))
    assert (call.done(), call.running()) == (False, False)
    assert [call.cancel(), call.cancel()] == [True, True]
    assert (call.done(), call.running(), call.cancelled()) == (True, False, True)
    with pytest.raises(CancelledError):
        call.result(0)
    gate.open()
    one.shutdown()
    assert (call.cancelled(), told) == (True, [True])


def test_a_running_and_a_finished_call_cannot_be_cancelled(gate):
    with KeyedExecutor(1) as executor:
        call = executor.submit(gate, 5)
        gate.wait_begun()
        assert call.running()
        assert not call.cancel()
        gate.open()
        assert call.result(DEADLINE) == 5
        assert not call.cancel()


def test_who_waits_learns_of_a_cancellation(held):
    """ThreadPoolExecutor reports it when a worker reaches the call. Here no worker reaches it."""
    call = held.lane("a").submit(int)
    with Threads() as threads:
        waiting = threads.start(wait, [call], DEADLINE, FIRST_COMPLETED)
        wait_until(lambda: call._waiters)
        assert call.cancel()
        assert waiting.result().done == {call}


@pytest.mark.parametrize("cancel_all", ["executor", "lane"])
def test_who_waits_learns_of_a_shutdown_that_cancels(held, gate, cancel_all):
    calls = [held.lane("a").submit(int) for _ in range(3)]
    with Threads() as threads:
        waiting = threads.start(wait, calls, DEADLINE)
        wait_until(lambda: all(call._waiters for call in calls))
        (held if cancel_all == "executor" else held.lane("a")).shutdown(wait=False, cancel_futures=True)
        assert waiting.result().done == set(calls)


def test_arguments_and_function_are_let_go_after_the_call_and_after_cancel(one, gate):
    class Thing:
        def method(self, other):
            return None

    things = [Thing() for _ in range(4)]
    gone = [weakref.ref(thing) for thing in things]
    ran, cancelled = one.submit(things[0].method, things[1]), one.submit(things[2].method, things[3])
    del things
    cancelled.cancel()
    gate.open()
    ran.result(DEADLINE)
    wait_until(lambda: gc.collect() is not None and all(reference() is None for reference in gone))
    assert ran.done()
    assert cancelled.cancelled()


def test_a_user_who_sets_the_result_himself_hurts_only_himself(held, gate, caplog):
    """Only the executor may set the result. The worker logs the error and continues."""
    call, other = held.submit(int), held.submit(pow, 2, 3)
    call.set_running_or_notify_cancel()
    call.set_result("mine")
    gate.open()
    assert (call.result(DEADLINE), other.result(DEADLINE)) == ("mine", 8)
    held.shutdown()
    assert "Exception in worker" in caplog.text


def test_a_failing_initializer_breaks_the_executor(caplog):
    begun = threading.Event()

    def initialize():
        begun.wait(DEADLINE)
        raise LookupError("no database")

    with KeyedExecutor(2, initializer=initialize) as executor:
        lane = executor.lane("a")
        lane.pause()
        calls = [executor.submit(int), lane.submit(int)]
        cancelled = executor.submit(int)
        cancelled.cancel()
        begun.set()
        for call in calls:
            assert isinstance(call.exception(DEADLINE), BrokenThreadPool)
        with pytest.raises(BrokenThreadPool, match="initializer failed"):
            executor.submit(int)
        with pytest.raises(BrokenThreadPool, match="initializer failed"):
            lane.submit(int)
        assert cancelled.cancelled()
    assert "no database" in caplog.text


def test_when_no_thread_can_be_started_submit_says_so_and_keeps_nothing(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    with KeyedExecutor(2) as executor:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                executor.submit(int)
        assert executor._workers.pool.pending == 0
        assert executor.submit(int).result(DEADLINE) == 0
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            assert executor.submit(pow, 2, 3).result(DEADLINE) == 8      # the existing thread runs it


class Starts:
    """start() of a pool of one worker: the first calls of it fail, after another submit has counted on the thread."""

    def __init__(self, failures):
        self.failures, self.calls, self.started = failures, [], 0
        self.pool = WorkPool(self, 1)
        self.lane, self.other = PoolLane(self.pool), PoolLane(self.pool)

    def __call__(self):
        if self.failures:
            self.failures -= 1
            if not self.calls:
                self.calls.append(self.other.submit(pow, 2, 3))
            raise RuntimeError("can't start new thread")
        self.started += 1


@pytest.mark.parametrize(("failures", "threads"), [(1, 1), (2, 0)])
def test_a_call_whose_thread_did_not_start_runs_on_another_submits_thread_or_at_the_end(failures, threads):
    start = Starts(failures)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start.lane.submit(int)
    assert (start.pool.pending, start.pool.workers, start.started) == (1, threads, threads)
    start.pool.end()
    assert (start.pool.workers, start.started) == (1, 1)
    start.pool.work()
    assert start.calls[0].result(0) == 8


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_resumed_lane_whose_thread_did_not_start_gets_another(error):
    failures, started = [error()], []

    def start():
        if failures:
            raise failures.pop()
        started.append(1)

    pool = WorkPool(start, 1)
    lane = PoolLane(pool)
    lane.pause()
    call = lane.submit(pow, 2, 3)
    with pytest.raises(error) if error is KeyboardInterrupt else nullcontext():
        lane.resume()
    assert (pool.pending, pool.workers, len(started)) == (1, 1, 1)
    pool.end()
    pool.work()
    assert call.result(0) == 8


def test_ctrl_c_while_a_thread_starts_is_raised_and_the_thread_counts(monkeypatch):
    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        (claim,) = thread._args
        wait_until(lambda: not claim)  # it works
        raise KeyboardInterrupt

    with KeyedExecutor(1) as executor:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                executor.submit(int)
        assert (executor._workers.pool.workers, len(executor._threads)) == (1, 1)
        assert executor.submit(pow, 2, 3).result(DEADLINE) == 8
        assert (executor._workers.pool.workers, len(executor._threads)) == (1, 1)


def test_ctrl_c_before_a_started_thread_has_begun_leaves_no_thread_that_does_not_count(monkeypatch):
    start, begin = threading.Thread.start, threading.Thread._bootstrap
    go_on = threading.Event()
    late = []

    def interrupted(thread):
        def wait(*timeout):
            raise KeyboardInterrupt

        late.append(thread)
        monkeypatch.setattr(thread._started, "wait", wait)
        start(thread)

    def begin_late(thread):
        go_on.wait(DEADLINE)
        begin(thread)

    with KeyedExecutor(1) as executor:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            patch.setattr(threading.Thread, "_bootstrap", begin_late)
            with pytest.raises(KeyboardInterrupt):
                executor.submit(int)
        go_on.set()
        wait_until(lambda: late[0].ident is not None and not late[0].is_alive())
        assert executor._workers.pool.workers == 0
        assert executor.submit(pow, 2, 3).result(DEADLINE) == 8
        assert (executor._workers.pool.workers, len(executor._threads)) == (1, 1)


def test_shutdown_waits_for_a_call_whose_thread_is_about_to_start():
    about_to, go_on = threading.Event(), threading.Event()

    class Gate:
        """The lock under which threads start."""

        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            if threading.current_thread().name == "submit":
                about_to.set()
                go_on.wait(DEADLINE)
            self.lock.acquire()

        def __exit__(self, *error):
            self.lock.release()

    executor = KeyedExecutor(1)
    executor._workers.lock = Gate(executor._workers.lock)
    with Threads() as threads:
        call = threads.start(executor.submit, pow, 2, 3)
        assert about_to.wait(DEADLINE)
        end = threads.start(executor.shutdown)
        wait_until(lambda: executor._workers.pool.ended)
        wait_asleep(end)
        assert end.is_alive()
        go_on.set()
        assert call.result().result(DEADLINE) == 8


@pytest.mark.parametrize("how", ["executor", "lane"])
def test_what_a_shutdown_cancels_holds_on_to_nothing(held, how):
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    lane = held.lane("a")
    call = lane.submit(print, thing)
    del thing
    (held if how == "executor" else lane).shutdown(wait=False, cancel_futures=True)
    of_lane = weakref.ref(lane)
    del lane
    wait_until(lambda: gc.collect() is not None and gone() is None and of_lane() is None)
    assert call.cancelled()
