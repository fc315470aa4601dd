"""KeyedExecutor and KeyExecutor, sentence by sentence: README.md beside this file maps the contract to these tests."""
import gc
import inspect
import itertools
import operator
import queue
import sys
import threading
import weakref
from concurrent.futures import Executor

import pytest
from support.threads import DEADLINE, Threads, wait_until

import manytail.executor
from manytail.executor import KeyedExecutor, KeyExecutor

pytestmark = pytest.mark.thread_unsafe(reason="its fixtures and executors are for one thread; they start threads of their own")


# ------------------------------------------------------------------------------------------------- lanes
def test_both_are_executors():
    with KeyedExecutor(1) as executor:
        assert isinstance(executor, Executor)
        assert isinstance(executor.key("a"), Executor)
        assert isinstance(executor.key("a"), KeyExecutor)


def test_a_lane_is_made_on_first_use_and_found_again(executor):
    a = executor.key("a")
    assert executor.key("a") is a
    assert executor.key("b") is not a
    assert (a.priority, a.weight, a.max_pending, a.max_running) == (0, 1, 0, 0)


def test_options_are_set_if_passed_and_kept_if_not(executor):
    a = executor.key("a", priority=3, weight=2, max_pending=7, max_running=1)
    assert executor.key("a") is a
    assert (a.priority, a.weight, a.max_pending, a.max_running) == (3, 2, 7, 1)
    executor.key("a", weight=5)
    assert (a.priority, a.weight, a.max_pending, a.max_running) == (3, 5, 7, 1)
    executor.key("a", priority=0, max_pending=0, max_running=0)
    assert (a.priority, a.weight, a.max_pending, a.max_running) == (0, 5, 0, 0)


def test_options_are_all_set_or_none(executor):
    a = executor.key("a", priority=3)
    with pytest.raises(ValueError, match="weight=0: expected an int >= 1"):
        executor.key("a", priority=1, weight=0)
    with pytest.raises(TypeError, match="max_running='2': expected an int"):
        executor.key("a", priority=1, max_running="2")
    with pytest.raises(TypeError, match=r"max_pending=1\.5"):
        executor.key("a", priority=1, max_pending=1.5)
    with pytest.raises(TypeError, match="priority=None"):
        executor.key("a", weight=9, priority=None)
    with pytest.raises(OverflowError, match="priority"):
        executor.key("a", weight=9, priority=2**64)
    assert (a.priority, a.weight, a.max_pending, a.max_running) == (3, 1, 0, 0)


def test_a_key_is_any_hashable(executor):
    assert executor.key(None) is not executor.key(())
    assert executor.key(1) is executor.key(1.0)
    with pytest.raises(TypeError, match="unhashable"):
        executor.key([])


def test_a_lane_cannot_be_made_by_itself():
    with pytest.raises(TypeError, match="cannot be made by itself"):
        KeyExecutor()


def test_lower_priority_runs_first(held, gate):
    log = []
    for name, priority in [("low", 5), ("high", -1), ("normal", 0)]:
        held.key(name, priority=priority).submit(log.append, name)
    gate.open()
    held.shutdown()
    assert log == ["high", "normal", "low"]


def test_priority_may_be_assigned_while_calls_wait(held, gate):
    log = []
    a, b = held.key("a"), held.key("b")
    a.submit(log.append, "a")
    b.submit(log.append, "b")
    a.priority = 1
    assert a.priority == 1
    gate.open()
    held.shutdown()
    assert log == ["b", "a"]


def test_each_lane_has_weight_calls_per_turn(held, gate):
    log = []
    lanes = {"a": held.key("a", weight=2), "b": held.key("b")}
    for name, lane in lanes.items():
        for n in range(4):
            lane.submit(log.append, f"{name}{n}")
    gate.open()
    held.shutdown()
    assert log == ["a0", "a1", "b0", "a2", "a3", "b1", "b2", "b3"]


def test_weight_may_be_assigned(held, gate):
    log = []
    a, b = held.key("a"), held.key("b")
    a.weight = 3
    for name, lane in (("a", a), ("b", b)):
        for _ in range(3):
            lane.submit(log.append, name)
    gate.open()
    held.shutdown()
    assert log == ["a", "a", "a", "b", "b", "b"]


def test_a_turn_goes_on_though_each_call_ends_before_the_next_begins(held, gate):
    """weight=2 with max_running=1: two calls in a row, although the lane is out of its ring while a call runs."""
    log = []
    lanes = {"a": held.key("a", weight=2, max_running=1), "b": held.key("b", max_running=1)}
    for name, lane in lanes.items():
        for n in range(4):
            lane.submit(log.append, f"{name}{n}")
    gate.open()
    held.shutdown()
    assert log == ["a0", "a1", "b0", "a2", "a3", "b1", "b2", "b3"]


def test_submit_uses_the_lane_of_no_key(held, gate):
    """It has its turn like the others, and is nobody's lane of None."""
    log = []
    for n in range(3):
        held.submit(log.append, f"none{n}")
        held.key(None).submit(log.append, f"None{n}")
    gate.open()
    held.shutdown()
    assert log == ["none0", "None0", "none1", "None1", "none2", "None2"]


def test_no_backlog_delays_other_keys(held, gate):
    log = []
    for _ in range(1000):
        held.key("heavy").submit(log.append, "heavy")
    for n in range(10):
        held.key(n).submit(log.append, n)
    gate.open()
    held.shutdown()
    assert sorted(log[:11], key=str) == [*range(10), "heavy"]


# ------------------------------------------------------------------------------------------------- max_running
def test_with_max_running_1_calls_run_one_at_a_time_in_submission_order():
    log, busy = [], threading.Lock()

    def call(n):
        assert busy.acquire(blocking=False), "two calls at once"
        log.append(n)
        busy.release()

    with KeyedExecutor(4) as executor:
        lane = executor.key("a", max_running=1)
        calls = [lane.submit(call, n) for n in range(500)]
        assert [future.result(DEADLINE) for future in calls] == [None] * 500
    assert log == list(range(500))


def test_a_call_begins_when_the_one_before_is_done():
    with KeyedExecutor(4) as executor:
        lane = executor.key("a", max_running=1)
        calls = []
        for n in range(200):
            calls.append(lane.submit(lambda n=n: n == 0 or calls[n - 1].done()))
        assert all(future.result(DEADLINE) for future in calls)


def test_max_running_holds_for_one_lane_only(gate):
    with KeyedExecutor(4) as executor:
        lane = executor.key("a", max_running=2)
        calls = [lane.submit(gate, n) for n in range(4)]
        gate.wait_begun(2)
        assert executor.submit(pow, 2, 3).result(DEADLINE) == 8
        assert executor.key("b").submit(pow, 2, 4).result(DEADLINE) == 16
        assert (gate.number, lane.running, lane.pending, lane.state) == (2, 2, 2, "in progress")
        gate.open()
        assert [future.result(DEADLINE) for future in calls] == [0, 1, 2, 3]


def test_raising_max_running_starts_what_waits(gate):
    with KeyedExecutor(3) as executor:
        lane = executor.key("a", max_running=1)
        calls = [lane.submit(gate, n) for n in range(3)]
        gate.wait_begun(1)
        assert executor.key("a", max_running=3) is lane
        gate.wait_begun(2)
        gate.open()
        assert [future.result(DEADLINE) for future in calls] == [0, 1, 2]


# ------------------------------------------------------------------------------------------------- bounds
def test_a_full_lane_makes_submit_wait(held, gate, wait_submitters):
    lane = held.key("a", max_pending=2)
    first = [lane.submit(int), lane.submit(int)]
    with Threads() as threads:
        waiting = threads.start(lane.submit, pow, 2, 5)
        wait_submitters(held, 1)
        assert held.key("b").submit(int) is not None      # other lanes are not full
        gate.open()
        assert waiting.result().result(DEADLINE) == 32
    assert all(future.done() for future in first)


def test_max_pending_of_the_executor_bounds_all_lanes_together(gate, wait_submitters):
    with KeyedExecutor(1, max_pending=2) as executor, Threads() as threads:
        executor.submit(gate)
        gate.wait_begun()
        executor.submit(int)
        executor.key("a").submit(int)
        waiting = [threads.start(executor.key(key).submit, int) for key in ("a", "b")] + [threads.start(executor.submit, int)]
        wait_submitters(executor, 3)
        gate.open()
        assert [task.result().result(DEADLINE) for task in waiting] == [0, 0, 0]


def test_cancel_frees_the_place_at_once(held, wait_submitters):
    lane = held.key("a", max_pending=1)
    pending = lane.submit(int)
    for _ in range(3):
        assert pending.cancel()
        pending = lane.submit(int)          # would wait for ever: the worker is held
    with Threads() as threads:
        waiting = threads.start(lane.submit, int)
        wait_submitters(held, 1)
        assert pending.cancel()
        assert waiting.result().cancel()


def test_cancel_frees_the_executors_place_for_another_lane(gate, wait_submitters):
    with KeyedExecutor(1, max_pending=1) as executor, Threads() as threads:
        executor.submit(gate)
        gate.wait_begun()
        pending = executor.key("a").submit(int)
        waiting = threads.start(executor.key("b").submit, int)
        wait_submitters(executor, 1)
        assert pending.cancel()
        assert waiting.result().result is not None
        gate.open()


def test_the_place_is_free_before_the_callbacks_of_the_cancelled_call_run(held):
    lane = held.key("a", max_pending=1)
    pending = lane.submit(int)
    again = []
    pending.add_done_callback(lambda future: again.append(lane.submit(int)))
    assert pending.cancel()
    assert len(again) == 1


def test_cancelling_from_the_middle_of_a_long_backlog(held, gate):
    lane = held.key("a", max_running=1)
    log = []
    calls = [lane.submit(log.append, n) for n in range(5000)]
    for call in calls[1::2]:
        assert call.cancel()
    assert lane.pending == 2500
    gate.open()
    held.shutdown()
    assert log == list(range(0, 5000, 2))


def test_a_worker_never_waits_for_a_place(executor):
    lane = executor.key("a", max_pending=1, max_running=1)

    def submits_more():
        return [lane.submit(pow, 2, n) for n in range(10)]

    calls = lane.submit(submits_more).result(DEADLINE)
    assert [call.result(DEADLINE) for call in calls] == [2**n for n in range(10)]


def test_a_worker_of_another_executor_waits(held, gate, wait_submitters):
    lane = held.key("a", max_pending=1)
    lane.submit(int)
    with KeyedExecutor(1) as other:
        waiting = other.submit(lane.submit, int)
        wait_submitters(held, 1)
        assert not waiting.done()
        gate.open()
        assert waiting.result(DEADLINE).result(DEADLINE) == 0


def test_raising_max_pending_lets_waiting_submits_go(held, wait_submitters):
    lane = held.key("a", max_pending=1)
    lane.submit(int)
    with Threads() as threads:
        waiting = [threads.start(lane.submit, int) for _ in range(2)]
        wait_submitters(held, 2)
        held.key("a", max_pending=3)
        for task in waiting:
            task.result()
    assert lane.pending == 3


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without the GIL the first may be faster")
def test_a_place_whose_taker_is_refused_goes_to_the_next(wait_submitters):
    """Of two lanes of a full executor the first is woken for the place, and shut down before it can take it. With the GIL nobody runs
    between the two calls of `map`."""
    with KeyedExecutor(1, max_pending=1) as executor, Threads() as threads:
        full, first, second = (executor.key(key) for key in range(3))
        for lane in (full, first, second):
            lane.pause()
        full.submit(int)
        refused = threads.start(first.submit, int)
        wait_submitters(executor, 1)
        waiting = threads.start(second.submit, pow, 2, 3)
        wait_submitters(executor, 2)
        list(map(operator.call, (full._drop, first._end)))
        assert isinstance(refused.outcome(), RuntimeError)
        call = waiting.result()
        second.resume()
        assert call.result(DEADLINE) == 8


# ------------------------------------------------------------------------------------------------- pause
def test_pause_holds_calls_and_resume_runs_them(executor, gate):
    lane = executor.key("a")
    running = lane.submit(gate, 1)
    gate.wait_begun()
    lane.pause()
    waiting = [lane.submit(pow, 2, n) for n in range(5)]
    assert executor.submit(int).result(DEADLINE) == 0
    gate.open()
    assert running.result(DEADLINE) == 1            # what runs goes on
    assert (lane.pending, lane.state) == (5, "paused")
    assert not any(call.done() for call in waiting)
    lane.pause()                                    # again: nothing
    lane.resume()
    lane.resume()
    assert [call.result(DEADLINE) for call in waiting] == [1, 2, 4, 8, 16]


def test_resume_starts_as_many_threads_as_there_is_work_for(gate):
    with KeyedExecutor(3) as executor:
        lane = executor.key("a")
        lane.pause()
        calls = [lane.submit(gate, n) for n in range(5)]
        assert executor._threads == set()           # nothing could run, so nobody was asked
        lane.resume()
        gate.wait_begun(3)
        gate.open()
        assert [call.result(DEADLINE) for call in calls] == list(range(5))


def test_shutdown_resumes_paused_lanes(executor):
    lane = executor.key("a")
    lane.pause()
    calls = [lane.submit(pow, 2, n) for n in range(5)]
    executor.shutdown()
    assert [call.result(0) for call in calls] == [1, 2, 4, 8, 16]
    with pytest.raises(RuntimeError, match="cannot pause after shutdown"):
        lane.pause()


def test_shutdown_that_cancels_runs_nothing_of_a_paused_lane(executor):
    log = []
    lane = executor.key("a")
    lane.pause()
    calls = [lane.submit(log.append, n) for n in range(5)]
    executor.shutdown(cancel_futures=True)
    assert log == []
    assert all(call.cancelled() for call in calls)


# ------------------------------------------------------------------------------------------------- shutdown
def test_a_waiting_submit_raises_when_the_executor_is_shut_down(held, gate, wait_submitters):
    lane = held.key("a", max_pending=1)
    lane.submit(int)
    with Threads() as threads:
        waiting = threads.start(lane.submit, int)
        wait_submitters(held, 1)
        held.shutdown(wait=False)
        error = waiting.outcome()
    assert isinstance(error, RuntimeError)
    assert "after shutdown" in str(error)
    gate.open()


def test_shutdown_of_a_lane_ends_that_lane_only(executor):
    lane, other = executor.key("a", priority=4), executor.key("b")
    calls = [lane.submit(pow, 2, n) for n in range(20)]
    lane.shutdown()
    assert all(call.done() for call in calls)       # it has waited
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown of this key"):
        lane.submit(int)
    assert other.submit(int).result(DEADLINE) == executor.submit(int).result(DEADLINE) == 0
    again = executor.key("a")                       # the key may be made again
    assert again is not lane
    assert again.priority == 0
    assert again.submit(pow, 2, 2).result(DEADLINE) == 4
    lane.shutdown()                                 # a second time says nothing about the new one
    assert executor.key("a") is again


def test_a_key_made_again_shares_nothing_with_what_still_runs(executor, gate):
    old = executor.key("a", max_running=1)
    running, pending = old.submit(gate, "old"), old.submit(pow, 2, 1)
    gate.wait_begun()
    old.shutdown(wait=False)
    new = executor.key("a", max_running=1)
    assert new.submit(pow, 2, 2).result(DEADLINE) == 4      # though a call of the old lane runs
    gate.open()
    assert (running.result(DEADLINE), pending.result(DEADLINE)) == ("old", 2)
    assert new.submit(pow, 2, 3).result(DEADLINE) == 8


def test_shutdown_of_a_lane_can_cancel(held):
    lane = held.key("a")
    calls = [lane.submit(int) for _ in range(3)]
    lane.shutdown(cancel_futures=True)
    assert all(call.cancelled() for call in calls)


def test_shutdown_of_a_paused_lane_resumes_it(executor):
    lane = executor.key("a")
    lane.pause()
    call = lane.submit(pow, 2, 3)
    lane.shutdown()
    assert call.result(0) == 8


def test_a_lane_cannot_wait_for_itself(executor):
    lane = executor.key("a", max_running=1)
    with pytest.raises(RuntimeError, match="one of its own calls"):
        lane.submit(lane.shutdown).result(DEADLINE)
    with pytest.raises(RuntimeError, match="cannot join current thread"):
        executor.submit(executor.shutdown).result(DEADLINE)


def test_a_lane_is_a_context_manager(executor):
    with executor.key("a") as lane:
        calls = [lane.submit(pow, 2, n) for n in range(10)]
    assert all(call.done() for call in calls)
    assert lane.closed


def test_after_shutdown_a_key_has_a_lane_that_refuses(executor):
    executor.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.key("new").submit(int)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(int)


# ------------------------------------------------------------------------------------------------- forgotten lanes
def test_an_idle_lane_nobody_refers_to_is_forgotten(executor):
    assert executor.key("a", priority=7).submit(pow, 2, 3).result(DEADLINE) == 8
    wait_until(lambda: gc.collect() is not None and len(executor._lanes) == 0)
    assert executor.key("a").priority == 0


def test_a_lane_with_calls_is_kept(held, gate):
    held.key("a", priority=7).pause()
    gc.collect()
    assert held.key("a").priority == 0                      # idle, so forgotten, paused or not
    held.key("b", priority=7).submit(int)
    held.key("c", priority=8).pause()
    lane = weakref.ref(held.key("b"))
    gc.collect()
    assert lane() is not None
    assert held.key("b").priority == 7
    gate.open()
    wait_until(lambda: gc.collect() is not None and lane() is None)


def test_a_lane_whose_only_call_was_cancelled_is_forgotten(held):
    call = held.key("a", priority=7).submit(int)
    assert call.cancel()
    gc.collect()
    assert held.key("a").priority == 0


def test_ten_thousand_idle_keys_leave_nothing(executor):
    for key in range(10_000):
        executor.key(key, max_running=1).submit(int)
    wait_until(lambda: gc.collect() is not None and len(executor._lanes) == 0)


# ------------------------------------------------------------------------------------------------- map
def lanes_of(executor):
    return [executor, executor.key("a")]


@pytest.mark.parametrize("which", [0, 1], ids=["executor", "lane"])
class TestMap:
    def test_results_come_in_order(self, executor, which):
        assert list(lanes_of(executor)[which].map(pow, range(50), itertools.repeat(2))) == [n * n for n in range(50)]
        assert list(lanes_of(executor)[which].map(pow, [], [])) == []

    def test_unordered_results_come_as_calls_end(self, executor, gate, which):
        results = lanes_of(executor)[which].map(lambda n: gate(n) if n == 0 else n, range(5), ordered=False)
        assert sorted(itertools.islice(results, 4)) == [1, 2, 3, 4]
        gate.open()
        assert list(results) == [0]

    def test_it_submits_at_once_up_to_four_times_max_workers(self, executor, which):
        items = iter(range(100))
        results = lanes_of(executor)[which].map(abs, items)
        assert next(items) == 8
        assert next(results) == 0
        results.close()

    @pytest.mark.parametrize("ordered", [True, False])
    def test_later_items_are_pulled_as_results_are_taken(self, executor, which, ordered):
        pulled = []
        items = (pulled.append(n) or n for n in itertools.count())
        results = lanes_of(executor)[which].map(abs, items, buffersize=3, ordered=ordered)
        assert pulled == [0, 1, 2]
        for taken in range(1, 6):
            next(results)
            assert len(pulled) == 3 + taken
        results.close()

    def test_what_a_call_raises_is_raised_and_the_rest_is_cancelled(self, held, gate, which):
        results = lanes_of(held)[which].map(lambda n: 1 // n, [1, 0, 1, 1])
        held.key("last").submit(int)
        gate.open()
        assert next(results) == 1
        with pytest.raises(ZeroDivisionError):
            next(results)
        assert list(results) == []

    def test_closing_cancels_what_was_submitted(self, held, which):
        lane = lanes_of(held)[which]
        results = lane.map(abs, range(10), buffersize=4)
        assert held._staff.pool.pending == 4
        results.close()
        assert held._staff.pool.pending == 4        # a generator that was not begun has nothing to close
        results = lane.map(abs, range(10), buffersize=4, timeout=0)
        with pytest.raises(TimeoutError):
            next(results)
        assert held._staff.pool.pending == 4

    @pytest.mark.parametrize("ordered", [True, False])
    def test_timeout_is_for_the_whole_map(self, held, which, ordered):
        results = lanes_of(held)[which].map(abs, range(3), timeout=0.01, ordered=ordered)
        with pytest.raises(TimeoutError):
            next(results)

    def test_timeout_is_not_left_to_the_standard_librarys_queue(self, held, which, monkeypatch):
        """The get of CPython's SimpleQueue sleeps for ever if its time is over while it begins."""
        class Oversleeps(queue.SimpleQueue):
            def get(self, block=True, timeout=None):
                assert timeout is None
                return super().get(block)

        monkeypatch.setattr(manytail.executor, "SimpleQueue", Oversleeps, raising=False)
        results = lanes_of(held)[which].map(abs, range(3), timeout=0.01, ordered=False)
        with pytest.raises(TimeoutError):
            next(results)

    @pytest.mark.parametrize("ordered", [True, False])
    def test_an_error_of_the_iterable_comes_behind_the_results(self, executor, which, ordered):
        def items():
            yield from range(5)
            raise LookupError("of the iterable")

        results = lanes_of(executor)[which].map(abs, items(), buffersize=2, ordered=ordered)
        assert sorted(itertools.islice(results, 5)) == [0, 1, 2, 3, 4]
        with pytest.raises(LookupError, match="of the iterable"):
            next(results)
        with pytest.raises(LookupError, match="of the iterable"):
            lanes_of(executor)[which].map(abs, items(), ordered=ordered)

    def test_after_shutdown_what_was_submitted_still_comes(self, executor, which):
        results = lanes_of(executor)[which].map(abs, range(10), buffersize=3)
        executor.shutdown()
        assert list(itertools.islice(results, 3)) == [0, 1, 2]
        with pytest.raises(RuntimeError, match="after shutdown"):
            next(results)

    def test_chunksize_is_ignored(self, executor, which):
        assert list(lanes_of(executor)[which].map(abs, range(10), chunksize=7)) == list(range(10))

    def test_buffersize_is_checked(self, executor, which):
        for wrong, kind in ((0, ValueError), (-1, ValueError), (1.5, TypeError), ("3", TypeError)):
            with pytest.raises(kind, match="buffersize"):
                lanes_of(executor)[which].map(abs, [1], buffersize=wrong)

    def test_no_result_is_kept_alive(self, executor, which):
        class Thing:
            pass

        for ordered in (True, False):
            for thing in lanes_of(executor)[which].map(lambda n: Thing(), range(20), ordered=ordered):
                gone = weakref.ref(thing)
                del thing
                wait_until(lambda gone=gone: gc.collect() is not None and gone() is None)


# ------------------------------------------------------------------------------------------------- construction, looks
def test_the_signatures_are_those_of_the_contract():
    made = inspect.signature(KeyedExecutor)
    assert list(made.parameters) == ["max_workers", "max_pending", "thread_name_prefix", "initializer", "initargs"]
    assert {name: parameter.default for name, parameter in made.parameters.items()} == {
        "max_workers": None, "max_pending": 0, "thread_name_prefix": "", "initializer": None, "initargs": (),
    }
    assert [parameter.kind for parameter in made.parameters.values()][1:] == [inspect.Parameter.KEYWORD_ONLY] * 4
    key = inspect.signature(KeyedExecutor.key)
    assert list(key.parameters) == ["self", "key", "priority", "weight", "max_pending", "max_running"]
    for kind in (KeyedExecutor, KeyExecutor):
        mapped = inspect.signature(kind.map)
        assert list(mapped.parameters) == ["self", "fn", "iterables", "timeout", "chunksize", "ordered", "buffersize"]
        assert list(inspect.signature(kind.shutdown).parameters) == ["self", "wait", "cancel_futures"]


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="max_workers must be greater than 0, not 0"):
        KeyedExecutor(0)
    with pytest.raises(TypeError, match="max_pending"):
        KeyedExecutor(1, max_pending="no")
    with pytest.raises(TypeError, match="initializer must be a callable"):
        KeyedExecutor(1, initializer=3)
    with pytest.raises(TypeError):
        KeyedExecutor(1, 2)


def test_reprs_say_what_is_going_on(held):
    lane = held.key("a", max_running=1)
    lane.submit(int)
    assert repr(lane) == "<KeyExecutor 'a', 1 pending, 0 running, ready>"
    assert repr(held) == "<KeyedExecutor of 1 workers, 1 pending>"
    held.shutdown(wait=False)
    assert repr(held) == "<KeyedExecutor of 1 workers, shut down>"


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
