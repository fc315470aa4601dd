"""KeyedExecutor and Lane, sentence by sentence."""
import copy
import gc
import inspect
import itertools
import logging
import operator
import os
import pickle
import queue
import sys
import threading
import time
import weakref
from concurrent.futures import Executor
from concurrent.futures.thread import BrokenThreadPool
from functools import partial

import pytest
from support.counts import count_of_races
from support.threads import DEADLINE, Threads, run_all, switching_often, wait_asleep, wait_until

import manytail.executor
from manytail._workpool import Dispatcher
from manytail.executor import KeyedExecutor, Lane


# ------------------------------------------------------------------------------------------------- lanes
def options_of(lane):
    return lane.priority, lane.weight, lane.max_pending, lane.max_running


def test_a_lane_is_an_executor_made_on_first_use_and_found_again(executor, lane):
    assert isinstance(lane, Lane)
    assert isinstance(lane, Executor)
    assert isinstance(executor, Executor)
    assert executor.lane("a") is lane
    assert executor.lane("b") is not lane
    assert executor.lane(None) is not executor.lane(())
    assert executor.lane(1) is executor.lane(1.0)
    assert options_of(lane) == (0, 1, 0, 0)
    with pytest.raises(TypeError, match="unhashable"):
        executor.lane([])
    with pytest.raises(TypeError, match="cannot be made by itself"):
        Lane()


def test_options_are_set_if_passed_or_assigned_and_kept_if_not(executor, lane):
    for options, then in (
        ({"priority": 3, "weight": 2, "max_pending": 7, "max_running": 1}, (3, 2, 7, 1)),
        ({"weight": 5}, (3, 5, 7, 1)),
        ({"priority": 0, "max_pending": 0, "max_running": 0}, (0, 5, 0, 0)),
    ):
        assert executor.lane("a", **options) is lane
        assert options_of(lane) == then
    lane.priority, lane.weight, lane.max_running = 3, 2, 1
    assert options_of(lane) == (3, 2, 0, 1)
    with pytest.raises(AttributeError):
        lane.max_pending = 7


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"weight": 0}, ValueError, r"weight: 0 \(expected: an int >= 1, the calls per turn\)"),
        ({"max_running": "2"}, TypeError, r"max_running: '2' of type str \(expected: an int; 0 or less"),
        ({"max_pending": 1.5}, TypeError, r"max_pending: 1\.5"),
        ({"weight": 9, "priority": None}, TypeError, "priority: None"),
        ({"weight": 9, "priority": 2**64}, OverflowError, "priority"),
    ],
)
def test_options_are_all_set_or_none(executor, options, error, says):
    a = executor.lane("a", priority=3)
    with pytest.raises(error, match=says):
        executor.lane("a", **{"priority": 1, "max_pending": 5} | options)
    assert options_of(a) == (3, 1, 0, 0)
    with pytest.raises(ValueError, match="weight: 0"):
        a.weight = 0
    assert options_of(a) == (3, 1, 0, 0)


@pytest.mark.parametrize(
    ("options", "assigned", "order"),
    [
        ({"a": {"priority": 5}, "b": {"priority": -1}, "c": {}}, {}, "bbbbccccaaaa"),  # the lowest first
        ({"a": {}, "b": {}}, {"priority": 1}, "bbbbaaaa"),
        ({"a": {"weight": 2}, "b": {}}, {}, "aabaabbb"),
        ({"a": {}, "b": {}}, {"weight": 3}, "aaababbb"),
        # A turn goes on though each call ends before the next begins: the lane leaves its ring while a call runs.
        ({"a": {"weight": 2, "max_running": 1}, "b": {"max_running": 1}}, {}, "aabaabbb"),
    ],
)
def test_priority_and_weight_order_what_waits(held, gate, options, assigned, order):
    """Those of a lane are assigned while calls wait."""
    log = []
    for name, its in options.items():
        for _ in range(4):
            held.lane(name, **its).submit(log.append, name)
    for option, value in assigned.items():
        setattr(held.lane("a"), option, value)
        assert getattr(held.lane("a"), option) == value
    gate.open()
    held.shutdown()
    assert "".join(log) == order


def test_submit_uses_the_lane_of_no_key(held, gate):
    """The lane of None: it is in the round robin like the others, and takes options."""
    log = []
    for n in range(3):
        held.submit(log.append, f"none{n}")
        held.lane("a").submit(log.append, f"a{n}")
    held.lane(None, weight=2)
    gate.open()
    held.shutdown()
    assert log == ["none0", "none1", "a0", "none2", "a1", "a2"]


# ------------------------------------------------------------------------------------------------- max_running


def test_a_call_begins_when_the_one_before_is_done():
    with KeyedExecutor(4) as executor:
        lane = executor.lane("a", max_running=1)
        calls = []
        for n in range(200):
            calls.append(lane.submit(lambda n=n: n == 0 or calls[n - 1].done()))
        assert all(future.result(DEADLINE) for future in calls)


def test_max_running_holds_for_one_lane_only(gate):
    with KeyedExecutor(4) as executor:
        lane = executor.lane("a", max_running=2)
        calls = [lane.submit(gate, n) for n in range(4)]
        gate.wait_begun(2)
        assert executor.submit(pow, 2, 3).result(DEADLINE) == 8
        assert executor.lane("b").submit(pow, 2, 4).result(DEADLINE) == 16
        assert (gate.number, lane.running, lane.pending, lane.state) == (2, 2, 2, "in progress")
        gate.open()
        assert [future.result(DEADLINE) for future in calls] == [0, 1, 2, 3]


def test_per_key_is_the_limit_of_lanes_that_have_none_of_their_own(gate):
    with KeyedExecutor(4, per_key=1) as executor:
        assert (
            executor.lane("a").max_running,
            executor.lane(None).max_running,
            executor.lane("b", max_running=2).max_running,
        ) == (1, 1, 2)
        calls = [executor.lane(key).submit(gate, key) for key in "aaabbb"]
        gate.wait_begun(3)
        assert (executor.lane("a").running, executor.lane("b").running) == (1, 2)
        gate.open()
        assert [future.result(DEADLINE) for future in calls] == list("aaabbb")


@pytest.mark.parametrize(("per_key", "before", "after"), [(0, 1, 3), (1, 1, 3), (1, None, 0)])
def test_raising_max_running_starts_what_waits(gate, per_key, before, after):
    with KeyedExecutor(3, per_key=per_key) as executor:
        lane = executor.lane("a", max_running=per_key if before is None else before)
        calls = [lane.submit(gate, n) for n in range(3)]
        gate.wait_begun(int(bool(lane.max_running)))
        assert executor.lane("a", max_running=after) is lane
        gate.wait_begun(2)
        gate.open()
        assert [future.result(DEADLINE) for future in calls] == [0, 1, 2]


# ------------------------------------------------------------------------------------------------- bounds
@pytest.mark.parametrize("bound", ["lane", "executor"])
def test_cancel_frees_the_place_at_once(gate, wait_submitters, bound):
    with KeyedExecutor(1, max_pending=int(bound == "executor")) as executor, Threads() as threads:
        executor.submit(gate)
        gate.wait_begun()
        lane = executor.lane("a", max_pending=int(bound == "lane"))
        pending = lane.submit(int)
        for _ in range(3):
            assert pending.cancel()
            pending = lane.submit(int)          # the worker is blocked: it would wait for ever
        waiting = threads.start((lane if bound == "lane" else executor.lane("b")).submit, int)
        wait_submitters(executor, 1)
        if bound == "lane":
            assert executor.lane("b").submit(int).cancel()      # other lanes are not full
        assert pending.cancel()
        assert waiting.result().cancel()
        gate.open()


def test_the_place_is_free_before_the_callbacks_of_the_cancelled_call_run(held):
    lane = held.lane("a", max_pending=1)
    pending = lane.submit(int)
    again = []
    pending.add_done_callback(lambda future: again.append(lane.submit(int)))
    assert pending.cancel()
    assert len(again) == 1


def test_cancelling_from_the_middle_of_a_long_backlog(held, gate):
    lane = held.lane("a", max_running=1)
    log = []
    calls = [lane.submit(log.append, n) for n in range(5000)]
    for call in calls[1::2]:
        assert call.cancel()
    assert lane.pending == 2500
    gate.open()
    held.shutdown()
    assert log == list(range(0, 5000, 2))


def test_a_worker_never_waits_for_a_place(executor):
    lane = executor.lane("a", max_pending=1, max_running=1)

    def submits_more():
        return [lane.submit(pow, 2, n) for n in range(10)]

    calls = lane.submit(submits_more).result(DEADLINE)
    assert [call.result(DEADLINE) for call in calls] == [2**n for n in range(10)]


def test_a_worker_of_another_executor_waits(held, gate, wait_submitters):
    lane = held.lane("a", max_pending=1)
    lane.submit(int)
    with KeyedExecutor(1) as other:
        waiting = other.submit(lane.submit, int)
        wait_submitters(held, 1)
        assert not waiting.done()
        gate.open()
        assert waiting.result(DEADLINE).result(DEADLINE) == 0


def test_raising_max_pending_lets_waiting_submits_go(held, wait_submitters):
    lane = held.lane("a", max_pending=1)
    lane.submit(int)
    with Threads() as threads:
        waiting = [threads.start(lane.submit, int) for _ in range(2)]
        wait_submitters(held, 2)
        held.lane("a", max_pending=3)
        for task in waiting:
            task.result()
    assert lane.pending == 3


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without the GIL the first may be faster"
)
@pytest.mark.parametrize("taker", ["is refused", "finds its lane full"])
def test_a_place_whose_taker_cannot_use_it_goes_to_the_next(wait_submitters, taker):
    """A full executor wakes the first of two lanes for the free slot. Before it takes the slot, that lane is shut down,
    or becomes full. With the GIL no other thread runs between the two calls of `map`."""
    with KeyedExecutor(1, max_pending=2) as executor, Threads() as threads:
        full, first, second = lanes = [executor.lane(key) for key in range(3)]
        for lane in lanes:
            lane.pause()
        full.submit(int)
        (first if taker == "finds its lane full" else second).submit(int)
        stays = threads.start(first.submit, int)
        wait_submitters(executor, 1)
        waiting = threads.start(second.submit, pow, 2, 3)
        wait_submitters(executor, 2)
        stop = first._end if taker == "is refused" else partial(executor.lane, 1, max_pending=1)
        list(map(operator.call, (full._drop, stop)))
        call = waiting.result()
        if taker == "is refused":
            assert isinstance(stays.outcome(), RuntimeError)
        first.resume()
        second.resume()
        assert call.result(DEADLINE) == 8
        assert taker == "is refused" or stays.result().result(DEADLINE) == 0


# ------------------------------------------------------------------------------------------------- pause
def test_pause_holds_calls_and_resume_runs_them(executor, lane, gate):
    running = lane.submit(gate, 1)
    gate.wait_begun()
    lane.pause()
    waiting = [lane.submit(pow, 2, n) for n in range(5)]
    assert executor.submit(int).result(DEADLINE) == 0
    gate.open()
    assert running.result(DEADLINE) == 1            # a running call continues
    assert (lane.pending, lane.state) == (5, "paused")
    assert not any(call.done() for call in waiting)
    lane.pause()                                    # a second pause changes nothing
    lane.resume()
    lane.resume()
    assert [call.result(DEADLINE) for call in waiting] == [1, 2, 4, 8, 16]


def test_resume_starts_as_many_threads_as_there_is_work_for(gate):
    with KeyedExecutor(3) as executor:
        lane = executor.lane("a")
        lane.pause()
        calls = [lane.submit(gate, n) for n in range(5)]
        assert executor._threads == set()           # no call could run, so no thread was started
        lane.resume()
        gate.wait_begun(3)
        gate.open()
        assert [call.result(DEADLINE) for call in calls] == list(range(5))


# ------------------------------------------------------------------------------------------------- shutdown
@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("of", ["executor", "lane", "with"])
def test_shutdown_resumes_paused_lanes_or_cancels_their_calls(executor, lane, of, cancel):
    lane.pause()
    calls = [lane.submit(pow, 2, n) for n in range(5)]
    if of == "with" and not cancel:
        with lane:
            assert not calls[0].done()
    else:
        (executor if of == "executor" else lane).shutdown(cancel_futures=cancel)
    assert all(call.cancelled() for call in calls) if cancel else [call.result(0) for call in calls] == [1, 2, 4, 8, 16]
    assert lane.closed
    with pytest.raises(RuntimeError, match="cannot pause after shutdown"):
        lane.pause()


def test_shutdown_of_a_lane_ends_that_lane_only(executor):
    lane, other = executor.lane("a", priority=4), executor.lane("b")
    calls = [lane.submit(pow, 2, n) for n in range(20)]
    lane.shutdown()
    assert all(call.done() for call in calls)       # shutdown waited for them
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown of this key"):
        lane.submit(int)
    assert other.submit(int).result(DEADLINE) == executor.submit(int).result(DEADLINE) == 0
    again = executor.lane("a")                       # a new lane of the same key
    assert again is not lane
    assert again.priority == 0
    assert again.submit(pow, 2, 2).result(DEADLINE) == 4
    lane.shutdown()                                 # a second shutdown does not affect the new lane
    assert executor.lane("a") is again


def test_a_key_made_again_shares_nothing_with_what_still_runs(executor, gate):
    old = executor.lane("a", max_running=1)
    running, pending = old.submit(gate, "old"), old.submit(pow, 2, 1)
    gate.wait_begun()
    old.shutdown(wait=False)
    new = executor.lane("a", max_running=1)
    assert new.submit(pow, 2, 2).result(DEADLINE) == 4      # while a call of the old lane runs
    gate.open()
    assert (running.result(DEADLINE), pending.result(DEADLINE)) == ("old", 2)
    assert new.submit(pow, 2, 3).result(DEADLINE) == 8


def test_a_lane_cannot_wait_for_itself(executor):
    lane = executor.lane("a", max_running=1)
    with pytest.raises(RuntimeError, match="one of its own calls"):
        lane.submit(lane.shutdown).result(DEADLINE)
    with pytest.raises(RuntimeError, match="cannot join current thread"):
        executor.submit(executor.shutdown).result(DEADLINE)


def test_after_shutdown_a_key_has_a_lane_that_refuses(executor):
    executor.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.lane("new").submit(int)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(int)


# ------------------------------------------------------------------------------------ lanes: kept, forgotten, looked up
def only_the_lane_of_no_key(executor):
    return gc.collect() is not None and len(executor._lanes) == 1


def test_an_idle_lane_nobody_refers_to_is_forgotten(executor):
    lane = executor.lane("a")
    lane.mark = 1
    assert lane.submit(pow, 2, 3).result(DEADLINE) == 8
    assert executor.lane("a").mark == 1
    del lane
    wait_until(lambda: only_the_lane_of_no_key(executor))
    assert not hasattr(executor.lane("a"), "mark")


def test_a_lane_with_calls_is_kept(held, gate):
    held.lane("a").submit(int)
    lane = weakref.ref(held.lane("a"))
    gc.collect()
    assert lane() is held.lane("a")
    gate.open()
    wait_until(lambda: gc.collect() is not None and lane() is None)


def test_a_lane_whose_only_call_was_cancelled_is_forgotten(held):
    assert held.lane("a").submit(int).cancel()
    assert only_the_lane_of_no_key(held)


@pytest.mark.parametrize("given", ["passed", "assigned", "passed, then paused and resumed"])
@pytest.mark.parametrize("option", ["priority", "weight", "max_running"])
def test_a_lane_that_was_given_options_is_never_forgotten(executor, option, given):
    if given == "assigned":
        setattr(executor.lane("a"), option, 3)
    else:
        executor.lane("a", **{option: 3})
    if "paused" in given:
        executor.lane("a").pause()
        executor.lane("a").resume()
    executor.lane("b", max_pending=3)
    gc.collect()
    assert getattr(executor.lane("a"), option) == executor.lane("b").max_pending == 3


def test_a_paused_lane_is_not_forgotten_until_it_is_resumed(executor):
    executor.lane("a").pause()
    gc.collect()
    call = executor.lane("a").submit(pow, 2, 3)
    assert (executor.lane("a").state, call.done()) == ("paused", False)
    executor.lane("a").resume()
    assert call.result(DEADLINE) == 8
    del call
    wait_until(lambda: only_the_lane_of_no_key(executor))


def test_a_lane_that_was_given_options_is_forgotten_when_it_is_shut_down(executor):
    executor.lane("a", weight=7).shutdown()
    assert executor.lane("a").weight == 1
    assert len(executor._kept) == 0
    ended = executor.lane("a")
    ended.shutdown()
    ended.weight = 3
    assert len(executor._kept) == 0


@pytest.mark.parametrize("of", ["executor", "lane"])
def test_an_interrupted_shutdown_leaves_no_future_without_an_end(of):
    executor, go_on = KeyedExecutor(1), threading.Event()
    lane = executor.lane("a")
    running = lane.submit(go_on.wait, DEADLINE)
    wait_until(running.running)
    futures = [lane.submit(int) for _ in range(5)]

    def interrupt(future):
        raise KeyboardInterrupt

    futures[1].add_done_callback(interrupt)
    ended = executor if of == "executor" else lane
    with pytest.raises(KeyboardInterrupt):
        ended.shutdown(wait=False, cancel_futures=True)
    assert [future.cancelled() for future in futures] == [True, True, False, False, False]
    ended.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in futures)
    go_on.set()
    assert running.result(DEADLINE)
    executor.shutdown()


def test_options_of_a_lane_that_threads_set_at_once_are_all_set():
    executor = KeyedExecutor(1)
    lane = executor.lane("a")

    def set_all(name):
        for value in range(1, count_of_races(2_000, 50_000)):
            executor.lane("a", **{name: value})
            assert getattr(lane, name) == value

    with switching_often():
        run_all(*[partial(set_all, name) for name in ("priority", "weight", "max_pending", "max_running")])
    executor.shutdown()


def test_submit_is_not_refused_because_another_thread_ends_the_lane_of_no_key():
    executor, over = KeyedExecutor(2), threading.Event()

    def end_lanes():
        while not over.is_set():
            executor.lane(None).shutdown(wait=False)

    def submit_often():
        try:
            for _ in range(count_of_races(2_000, 50_000)):
                assert executor.submit(int).result(DEADLINE) == 0
        finally:
            over.set()

    with switching_often():
        run_all(end_lanes, submit_often)
    executor.shutdown()


def test_an_initializer_may_submit_to_its_full_executor():
    def initialize():
        made.extend(executor.submit(int) for _ in range(3))

    made = []
    executor = KeyedExecutor(1, max_pending=1, initializer=initialize)
    assert executor.submit(int).result(DEADLINE) == 0
    assert [future.result(DEADLINE) for future in made] == [0, 0, 0]
    executor.shutdown()


@pytest.mark.thread_unsafe(reason="starts no thread for a while")
def test_a_worker_that_runs_the_calls_of_an_executor_without_threads_stays_a_worker(monkeypatch):
    outer = KeyedExecutor(1, max_pending=1)

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    def job():
        inner = KeyedExecutor(1)
        lane = inner.lane("a")
        lane.pause()
        future = lane.submit(outer._workers.pool.serves)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            inner.shutdown(wait=False)
        assert future.result(DEADLINE)
        return [outer.submit(int) for _ in range(3)]

    assert [future.result(DEADLINE) for future in outer.submit(job).result(DEADLINE)] == [0, 0, 0]
    outer.shutdown()


def test_an_executor_ends_though_lanes_were_given_options():
    executor = KeyedExecutor(1)
    assert executor.lane("a", weight=7).submit(pow, 2, 3).result(DEADLINE) == 8
    [thread] = executor._threads
    gc.disable()
    try:
        del executor            # no reference cycle: freed without the collector
        thread.join(DEADLINE)
    finally:
        gc.enable()
    assert not thread.is_alive()


def test_an_executor_ends_though_the_thread_that_made_it_waits():
    """Without the GIL an object is freed by the thread that made it. If the last lane, which a worker drops, is not
    freed while that thread waits, the other workers wait for ever."""
    ended = []

    def end(go, threads, done):
        go.wait(DEADLINE)
        deadline = time.monotonic() + DEADLINE / 4
        for thread in threads:
            thread.join(max(0, deadline - time.monotonic()))
        ended.append(not any(thread.is_alive() for thread in threads))
        os.write(done, b".")

    for _ in range(20):
        executor = KeyedExecutor(4)
        go, (done, write_done) = threading.Event(), os.pipe()
        calls = [executor.submit(go.wait, DEADLINE) for _ in range(8)]     # half of them are pending when it is dropped
        with Threads() as threads:
            threads.start(end, go, executor._threads, write_done)
            del executor
            go.set()
            os.read(done, 1)
        assert [call.result(DEADLINE) for call in calls] == [True] * 8
        os.close(done), os.close(write_done)
        assert all(ended)


class Colliding:
    """Keys with equal hashes. The key that is in the table compares, and calls `act` first."""

    def __init__(self, name, act=None):
        self.name, self.act = name, act

    def __hash__(self):
        return 7

    def __eq__(self, other):
        if self.act is not None:
            self.act()
        return self.name == other.name


def test_keys_are_compared_with_no_lock_held(executor):
    """`==` may wait for a thread that makes another lane."""
    compared = []
    with Threads() as threads:
        first = executor.lane(
            Colliding("a", lambda: compared.append(threads.start(executor.lane, len(compared), weight=2).result()))
        )
        assert executor.lane(Colliding("a")) is first
    assert [lane.weight for lane in compared] == [2]


def test_a_comparison_may_make_the_lane_that_is_asked_for(executor):
    def make():
        key.act = None
        made.append(executor.lane(Colliding("b")))

    made, key = [], Colliding("a", make)
    first = executor.lane(key)
    assert executor.lane(Colliding("b")) is made[0]
    assert made[0] is not first


def test_what_a_comparison_raises_leaves_the_lanes_as_they_were(executor):
    def fail():
        raise LookupError("of the key")

    key = Colliding("a", fail)
    first = executor.lane(key)
    with pytest.raises(LookupError, match="of the key"):
        executor.lane(Colliding("b"))
    key.act = None
    assert executor.lane(Colliding("a")) is first


def test_threads_that_ask_for_a_key_get_one_lane_while_others_come_and_go():
    switch = threading.Event().is_set
    with switching_often(), KeyedExecutor(2) as executor:
        kept = [executor.lane(Colliding(n, switch)) for n in range(10)]

        def ask(number):
            for n in range(300):
                executor.lane(Colliding((number, n % 3), switch)).submit(int)
                assert executor.lane(Colliding(n % 10)) is kept[n % 10]

        run_all(*[partial(ask, number) for number in range(4)])
        assert [executor.lane(Colliding(n)) for n in range(10)] == kept


# ------------------------------------------------------------------------------------------------- copies
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_nothing_that_owns_threads_or_calls_is_copied(executor, copied):
    """Dropping a copy of an executor would shut the executor down."""
    for thing, what in [
        (executor, "share it between threads"),
        (executor.lane("a"), "ask the executor"),
        (executor.submit(int), "pass on its result"),
        (executor._workers.pool, "make another one"),
        (Dispatcher(executor).lane(), "ask the executor"),
    ]:
        with pytest.raises(TypeError, match=f"cannot copy or pickle '{type(thing).__name__}' object: .*{what}"):
            copied(thing)
    assert executor.submit(pow, 2, 3).result(DEADLINE) == 8


# ------------------------------------------------------------------------------------------------- map
def lanes_of(executor):
    return [executor, executor.lane("a")]


@pytest.mark.parametrize("which", [0, 1], ids=["executor", "lane"])
class TestMap:
    def test_results_come_in_order(self, executor, which):
        assert list(lanes_of(executor)[which].map(pow, range(50), itertools.repeat(2))) == [n * n for n in range(50)]
        assert list(lanes_of(executor)[which].map(pow, [], [], chunksize=7)) == []  # which is ignored

    def test_unordered_results_come_as_calls_end(self, executor, gate, which):
        results = lanes_of(executor)[which].map(lambda n: gate(n) if n == 0 else n, range(5), order="completion")
        assert sorted(itertools.islice(results, 4)) == [1, 2, 3, 4]
        gate.open()
        assert list(results) == [0]

    def test_it_submits_at_once_up_to_four_times_max_workers(self, executor, which):
        items = iter(range(100))
        results = lanes_of(executor)[which].map(abs, items)
        assert next(items) == 8
        assert next(results) == 0
        results.close()

    @pytest.mark.parametrize("order", ["input", "completion"])
    def test_later_items_are_pulled_as_results_are_taken(self, executor, which, order):
        pulled = []
        items = (pulled.append(n) or n for n in itertools.count())
        results = lanes_of(executor)[which].map(abs, items, buffersize=3, order=order)
        assert pulled == [0, 1, 2]
        for taken in range(1, 6):
            next(results)
            assert len(pulled) == 3 + taken
        results.close()

    def test_what_a_call_raises_is_raised_and_the_rest_is_cancelled(self, held, gate, which):
        results = lanes_of(held)[which].map(lambda n: 1 // n, [1, 0, 1, 1])
        held.lane("last").submit(int)
        gate.open()
        assert next(results) == 1
        with pytest.raises(ZeroDivisionError):
            next(results)
        assert list(results) == []

    def test_closing_cancels_what_was_submitted(self, held, which):
        lane = lanes_of(held)[which]
        results = lane.map(abs, range(10), buffersize=4)
        assert held._workers.pool.pending == 4
        results.close()
        assert held._workers.pool.pending == 4        # closing a generator that was not started runs nothing
        results = lane.map(abs, range(10), buffersize=4, timeout=0)
        with pytest.raises(TimeoutError):
            next(results)
        assert held._workers.pool.pending == 4

    @pytest.mark.parametrize("order", ["input", "completion"])
    @pytest.mark.parametrize("timeout", [1e12, float("inf")])
    def test_a_timeout_may_be_longer_than_the_system_can_wait(self, held, gate, which, order, timeout):
        results = lanes_of(held)[which].map(abs, range(3), timeout=timeout, order=order)
        with Threads() as threads:
            taken = threads.start(list, results)
            wait_asleep(taken)
            gate.open()
            assert taken.result() == [0, 1, 2]

    @pytest.mark.parametrize("order", ["input", "completion"])
    def test_timeout_is_for_the_whole_map_and_not_left_to_the_standard_librarys_queue(
        self, held, which, order, monkeypatch
    ):
        """CPython's SimpleQueue.get sleeps for ever if its time is over when it begins to wait."""
        class Oversleeps(queue.SimpleQueue):
            def get(self, block=True, timeout=None):
                assert timeout is None
                return super().get(block)

        monkeypatch.setattr(manytail.executor, "SimpleQueue", Oversleeps, raising=False)
        results = lanes_of(held)[which].map(abs, range(3), timeout=0.01, order=order)
        with pytest.raises(TimeoutError):
            next(results)

    @pytest.mark.parametrize("order", ["input", "completion"])
    @pytest.mark.parametrize("buffersize", [2, None])
    def test_an_error_of_the_iterable_comes_behind_the_results(self, executor, which, order, buffersize):
        def items():
            yield from range(5)
            raise LookupError("of the iterable")

        results = lanes_of(executor)[which].map(abs, items(), buffersize=buffersize, order=order)
        assert sorted(itertools.islice(results, 5)) == [0, 1, 2, 3, 4]
        with pytest.raises(LookupError, match="of the iterable"):
            next(results)
        assert list(results) == []

    def test_an_interrupted_map_cancels_what_it_submitted(self, held, which):
        def items():
            yield from range(3)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            lanes_of(held)[which].map(abs, items())
        assert held._workers.pool.pending == 0

    def test_after_shutdown_map_raises_at_once(self, executor, which):
        lane = lanes_of(executor)[which]
        executor.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            lane.map(abs, range(10))

    @pytest.mark.parametrize(
        ("option", "error", "says"),
        [
            ({"order": "key"}, ValueError, r"order: 'key' \(expected: 'input' or 'completion'\)"),
            ({"timeout": float("nan")}, ValueError, r"timeout: nan \(expected: a number of seconds"),
            ({"timeout": "1"}, TypeError, r"timeout: '1' of type str \(expected: a number of seconds or None\)"),
            *(({"buffersize": wrong}, ValueError, "buffersize") for wrong in (0, -1)),
            *(({"buffersize": wrong}, TypeError, "buffersize") for wrong in (1.5, "3")),
        ],
    )
    def test_options_are_checked(self, executor, which, option, error, says):
        with pytest.raises(error, match=says):
            lanes_of(executor)[which].map(abs, [1], **option)

    def test_after_shutdown_what_was_submitted_still_comes(self, executor, which):
        results = lanes_of(executor)[which].map(abs, range(10), buffersize=3)
        executor.shutdown()
        assert list(itertools.islice(results, 3)) == [0, 1, 2]
        with pytest.raises(RuntimeError, match="after shutdown"):
            next(results)

    def test_no_result_is_kept_alive(self, executor, which):
        class Thing:
            pass

        for order in ("input", "completion"):
            for thing in lanes_of(executor)[which].map(lambda n: Thing(), range(5), order=order):
                gone = weakref.ref(thing)
                del thing
                wait_until(lambda gone=gone: gc.collect() is not None and gone() is None)


# ------------------------------------------------------------------------------------------------- construction, looks


MAP = "(self, fn, *iterables, timeout=None, chunksize=1, order='input', buffersize=None)"
OF_A_LANE = "priority=Ellipsis, weight=Ellipsis, max_pending=Ellipsis, max_running=Ellipsis"


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (
            KeyedExecutor,
            "(max_workers=None, *, per_key=0, max_pending=0, thread_name_prefix='', initializer=None, initargs=())",
        ),
        (KeyedExecutor.lane, f"(self, key, *, {OF_A_LANE})"),
        *((kind.map, MAP) for kind in (KeyedExecutor, Lane)),
        *((kind.shutdown, "(self, wait=True, *, cancel_futures=False)") for kind in (KeyedExecutor, Lane)),
    ],
)
def test_the_signatures_are_those_of_the_contract(call, shape):
    parameters = [each.replace(annotation=each.empty) for each in inspect.signature(call).parameters.values()]
    assert str(inspect.Signature(parameters)) == shape


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"max_workers": 0}, ValueError, "max_workers must be greater than 0, not 0"),
        ({"max_workers": "2"}, TypeError, r"max_workers: '2' \(expected: an int > 0 or None\)"),
        ({"max_pending": "no"}, TypeError, "max_pending"),
        ({"initializer": 3}, TypeError, "initializer must be a callable"),
        ({"per_key": 1.5}, TypeError, r"per_key: 1\.5 of type float \(expected: an int"),
    ],
)
def test_arguments_are_checked(arguments, error, says):
    with pytest.raises(error, match=says):
        KeyedExecutor(**arguments)


def test_reprs_say_what_is_going_on(held):
    lane = held.lane("a", max_running=1)
    lane.submit(int)
    assert repr(lane) == "<Lane 'a', 1 pending, 0 running, ready>"
    assert repr(held) == "<KeyedExecutor of 1 workers, 1 pending>"
    held.shutdown(wait=False)
    assert repr(held) == "<KeyedExecutor of 1 workers, shut down>"


def test_the_first_call_of_a_thread_cannot_wait_for_its_executor_either():
    """It runs before the thread that submitted it has noted down the new thread."""
    executor, tried = KeyedExecutor(1), threading.Event()

    class NotedLater(set):
        def add(self, thread):
            assert tried.wait(DEADLINE), "the call waits for its own end"
            super().add(thread)

    def end():
        try:
            executor.shutdown()
        finally:
            tried.set()

    executor._workers.threads = NotedLater()
    with pytest.raises(RuntimeError, match="cannot join current thread"):
        executor.submit(end).result(DEADLINE)
    executor.shutdown()


def test_an_initializer_cannot_wait_for_its_executor():
    executor = KeyedExecutor(1, initializer=lambda: refused.append(raised_by(executor.shutdown)))
    refused = []
    assert executor.submit(pow, 2, 3).result(DEADLINE) == 8
    assert [(type(error), str(error)) for error in refused] == [(RuntimeError, "cannot join current thread")]
    executor.shutdown()


def raised_by(call):
    try:
        call()
    except Exception as error:
        return error


@pytest.mark.thread_unsafe(reason="changes the log of all executors and threading.excepthook")
def test_a_failed_initializer_is_logged_before_the_calls_fail(monkeypatch):
    """They fail whatever the log does."""
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
    reported, logged = [], []

    class Handler(logging.Handler):
        def handle(self, record):
            logged.append((record.getMessage(), call.done()))
            raise LookupError("of the handler")

    def initialize():
        assert begun.wait(DEADLINE)
        raise ValueError("of the initializer")

    begun, handler = threading.Event(), Handler()
    executor = KeyedExecutor(1, initializer=initialize)
    logging.getLogger("concurrent.futures").addHandler(handler)
    try:
        call = executor.submit(pow, 2, 3)
        begun.set()
        assert isinstance(call.exception(DEADLINE), BrokenThreadPool)
        executor.shutdown()
    finally:
        logging.getLogger("concurrent.futures").removeHandler(handler)
    assert logged == [("Exception in initializer:", False)]
    assert [str(error) for error in reported] == ["of the handler"]


def test_the_prefix_of_thread_names_may_have_braces():
    with KeyedExecutor(1, thread_name_prefix="{a} {}") as executor:
        assert executor.submit(lambda: threading.current_thread().name).result(DEADLINE) == "{a} {}_0"


def test_initializer_runs_in_each_thread_before_any_call(gate):
    local = threading.local()

    def initialize(*args):
        local.args = args

    with KeyedExecutor(3, initializer=initialize, initargs=(1, 2), thread_name_prefix="mine") as executor:
        calls = [executor.submit(lambda: (gate(), local.args)[1]) for _ in range(3)]
        gate.wait_begun(3)
        assert sorted(thread.name for thread in executor._threads) == ["mine_0", "mine_1", "mine_2"]
        gate.open()
        assert [call.result(DEADLINE) for call in calls] == [(1, 2)] * 3
