"""Caller and AsyncCaller of the new package: items from many threads and tasks, cancellations, callbacks, ends."""

import asyncio
import contextvars
import gc
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial

import pytest
from support.event_loops import ASYNCIO
from support.interruptions import interruptions
from support.threads import DEADLINE, Threads, wait_until

from manytail._maps import (
    AsyncCaller,
    Batch,
    Budget,
    BudgetExceeded,
    Caller,
    Concurrency,
    Rate,
    Retry,
    RetryLater,
    concurrent_map,
)
from manytail._maps.callers import CallFuture, SharedLanes
from manytail._maps.engine.item import Item

pytestmark = pytest.mark.thread_unsafe(reason="counts the threads of the process, or is sent signals")
in_callers_loops = pytest.mark.parametrize("run", ASYNCIO.values(), ids=ASYNCIO)
OPTIONS = [{}, {"key": lambda item: item % 3, "per_key": 1}, {"timeout": DEADLINE}, {"limits": Concurrency(3)}]
OPTION_NAMES = ["plain", "per_key", "timeout", "limit"]


def double(item):
    return 2 * item


async def double_in_loop(item):
    await asyncio.sleep(0)
    return 2 * item


ways = pytest.mark.parametrize("fn", [double, double_in_loop], ids=["threads", "loop"])


class Gate:
    def __init__(self):
        self.begun, self.opened = [], threading.Event()

    def __call__(self, item):
        self.begun.append(item)
        assert self.opened.wait(DEADLINE)
        return item

    def wait_for(self, *items):
        wait_until(lambda: self.begun == list(items), f"{items} to begin")


def ours():
    return [one.name for one in threading.enumerate() if one.name.startswith("manytail-")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = len(ours())
    yield
    gc.collect()
    wait_until(lambda: len(ours()) <= before, "threads of Callers to end")


# ---------------------------------------------------------------------------------------------------- results
@ways
@pytest.mark.parametrize("options", OPTIONS, ids=OPTION_NAMES)
def test_many_threads_get_their_own_results(fn, options):
    def calls(first):
        return [caller(first + number) for number in range(50)]

    with Caller(fn, workers=4, **options) as caller, Threads() as threads:
        tasks = [threads.start(calls, 100 * number) for number in range(8)]
        assert [task.result() for task in tasks] == [[2 * (100 * n + one) for one in range(50)] for n in range(8)]
        assert [one.result() for one in [caller.submit(number) for number in range(20)]] == list(range(0, 40, 2))
        wait_until(lambda: caller.stats().in_flight == 0)
        stats = caller.stats()
    assert (stats.done, stats.failed, stats.calls) == (420, 0, 420)


@ways
def test_an_error_says_which_item_it_is_of(fn):
    def fail(item):
        raise KeyError(item)

    async def fail_in_loop(item):
        raise KeyError(item)

    with Caller(fail if fn is double else fail_in_loop, key=str.upper, retry=Retry(2, backoff=0.0)) as caller:
        for ask in (lambda: caller("a"), lambda: caller.submit("a").result()):
            with pytest.raises(KeyError) as raised:
                ask()
            assert raised.value.__notes__ == ["manytail: 'a': the item with key 'A' failed after 3 attempts"]


def test_calls_of_a_key_start_as_they_were_handed_in_and_never_overlap():
    running, started, lock = Counter(), [], threading.Lock()

    def fn(item):
        with lock:
            running[item % 3] += 1
            started.append(item)
            assert running[item % 3] == 1
        with lock:
            running[item % 3] -= 1

    with Caller(fn, workers=8, key=lambda item: item % 3, per_key=1) as caller:
        for future in [caller.submit(item) for item in range(300)]:
            future.result()
    assert all([item for item in started if item % 3 == key] == list(range(key, 300, 3)) for key in range(3))


class Key:
    """Its comparison lasts until two are under way."""

    both, met = threading.Barrier(2), threading.Event()

    def __hash__(self):
        return 1

    def __eq__(self, other):
        if not self.met.is_set():
            self.both.wait(DEADLINE)
            self.met.set()
        return False


def test_keys_are_compared_without_a_lock_and_two_threads_that_bring_one_key_share_its_lane():
    keys = [Key(), 5, 5]
    with Caller(double, key=lambda item: keys[item]) as caller, Threads() as threads:
        keys[1:] = [Key(), Key()]
        caller(0)
        others = [threads.start(caller, number) for number in (1, 2)]
        assert [one.result() for one in others] == [2, 4]
    running = Counter()
    barrier = threading.Barrier(8)

    def fn(item):
        running[item] += 1
        assert running[item] == 1
        running[item] -= 1

    for _ in range(20):
        with Caller(fn, workers=8, key=lambda item: item, per_key=1) as caller, Threads() as threads:

            def hand_in(caller=caller):
                barrier.wait(DEADLINE)
                caller("key")

            for one in [threads.start(hand_in) for _ in range(8)]:
                one.result()


def test_items_of_many_threads_share_a_batch_and_equal_ones_a_call():
    batches = []

    def fn(items):
        batches.append(items)
        return [2 * item for item in items]

    with Caller(fn, batch=Batch(3, linger=10 * DEADLINE)) as caller, Threads() as threads:
        tasks = [threads.start(caller, number) for number in range(6)]
        assert [task.result() for task in tasks] == list(range(0, 12, 2))
    assert sorted(map(len, batches)) == [3, 3]
    gate = Gate()
    with Caller(gate, dedup=10) as caller:
        futures = [caller.submit("a") for _ in range(5)]
        gate.wait_for("a")
        gate.opened.set()
        assert [one.result() for one in futures] == ["a"] * 5
    assert gate.begun == ["a"]


def test_handing_in_waits_while_the_window_is_full():
    gate = Gate()
    with Caller(gate, workers=2, max_in_flight=2) as caller, Threads() as threads:
        first = [caller.submit(number) for number in range(2)]
        wait_until(lambda: sorted(gate.begun) == [0, 1])
        waiting = [threads.start(caller.submit, number) for number in (2, 3)]
        wait_until(lambda: len(caller._driver.line) == 2)
        assert caller.stats().in_flight == 2
        gate.opened.set()
        assert [task.result().result() for task in waiting] == [2, 3]
        assert [future.result() for future in first] == [0, 1]


def test_no_wake_up_of_a_full_window_is_lost():
    with Caller(double, workers=2, max_in_flight=2) as caller, Threads() as threads:

        def submits():
            return sum(caller.submit(number).result() for number in range(100))

        assert [task.result() for task in [threads.start(submits) for _ in range(12)]] == [9_900] * 12


def test_as_many_calls_run_at_once_as_there_are_workers():
    """Direct calls, from threads that begin together."""
    for _ in range(20):
        barrier = threading.Barrier(4)

        def meet(item, barrier=barrier):
            barrier.wait(DEADLINE)
            return item

        with Caller(meet, workers=4) as caller, Threads() as threads:
            calls = [threads.start(caller, number) for number in range(8)]
            assert [one.result() for one in calls] == [*range(8)]


def test_nothing_starts_while_the_server_says_not_now_and_the_order_stays():
    """Direct calls, which the scheduler learns of then."""
    begun, opened = [], threading.Event()

    def fn(item):
        assert opened.wait(DEADLINE)
        begun.append((item, time.monotonic()))
        if len(begun) == 1:
            raise RetryLater(0.3)
        return item

    with Caller(fn, workers=1) as caller:
        futures = [caller.submit(number) for number in range(10)]
        opened.set()
        wait_until(lambda: caller.stats().deferred == 1)
        futures += [caller.submit(number) for number in range(10, 15)]
        assert [one.result() for one in futures] == list(range(15))
        stats = caller.stats()
    assert [item for item, _ in begun] == [0, *range(15)]
    assert begun[1][1] - begun[0][1] >= 0.3
    assert (stats.done, stats.failed, stats.calls, stats.in_flight) == (15, 0, 16, 0)


# ---------------------------------------------------------------------------------------------------- lanes
class HookedKey:
    """Calls what its test wants when it is looked up next."""

    hook = None

    def __hash__(self):
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        return 1

    def __eq__(self, other):
        return self is other


def assigned(lanes, key):
    item = Item(None, key)
    lanes.assign(item)
    return item.lane


def test_a_key_that_comes_while_its_lane_is_dropped_gets_one_that_stays(monkeypatch):
    monkeypatch.setattr("manytail._maps.callers.IDLE_LIMIT", 1)
    lanes, key, comes = SharedLanes(keyed=True), HookedKey(), []
    lanes._limit = 1
    old = assigned(lanes, key)
    old.emitted = old.assigned
    with Threads() as threads:

        def bring():  # while `drop_idle` looks the key up, which it has marked
            comes.extend(threads.start(assigned, lanes, key) for _ in range(3))
            lanes.drop_idle()  # another one drops meanwhile
            wait_until(lambda: old.forgotten)

        key.hook = bring
        lanes.drop_idle()
        made = {one.result() for one in comes}
    assert len(made) == 1
    assert made != {old}
    assert assigned(lanes, key) in made


def test_a_lane_whose_key_cannot_be_looked_up_goes_on():
    def fail():
        raise KeyError("hash")

    lanes, key = SharedLanes(keyed=True), HookedKey()
    lanes._limit = 1
    old = assigned(lanes, key)
    old.emitted = old.assigned
    key.hook = fail
    lanes.drop_idle()
    assert assigned(lanes, key) is old


def test_one_key_has_one_lane_while_idle_ones_are_forgotten_all_the_time(monkeypatch):
    monkeypatch.setattr("manytail._maps.engine.lanes.IDLE_LIMIT", 2)
    monkeypatch.setattr("manytail._maps.callers.IDLE_LIMIT", 2, raising=False)
    running = Counter()

    def fn(item):
        running[item[0]] += 1
        assert running[item[0]] == 1
        running[item[0]] -= 1
        return item[1]

    with Caller(fn, workers=8, key=lambda item: item[0], per_key=1) as caller, Threads() as threads:

        def calls(seed):
            chance = random.Random(seed)
            for number in range(100):
                assert caller((chance.randrange(12), number)) == number

        for one in [threads.start(calls, seed) for seed in range(8)]:
            one.result()
        lanes = caller._driver.scheduler.lanes._lanes
        assert len(lanes) <= 12
        assert all(lane.key == key for key, lane in lanes.items())


# ---------------------------------------------------------------------------------------------------- cancelled futures
def test_two_threads_that_begin_a_future_are_both_told_that_it_begins():
    future = CallFuture(ThreadPoolExecutor())
    with Threads() as threads:
        with future._condition:
            begin = [threads.start(future.begin) for _ in range(2)]
        assert [one.result() for one in begin] == [True, True]
    assert future.begin()
    assert not future.cancel()


def test_callbacks_run_in_threads_for_them_whoever_tries_to_cancel_meanwhile():
    names, stop = [], threading.Event()
    gate = Gate()

    def cancels(futures):
        while not stop.is_set():
            for future in futures:
                future.cancel()

    with Caller(gate, workers=4) as caller, Threads() as threads:
        futures = [caller.submit(number) for number in range(4)]
        for future in futures:
            future.add_done_callback(lambda _: names.append(threading.current_thread().name))
        wait_until(lambda: len(gate.begun) == 4)
        hammers = [threads.start(cancels, futures) for _ in range(3)]
        gate.opened.set()
        assert sorted(future.result() for future in futures) == [0, 1, 2, 3]
        wait_until(lambda: len(names) == 4)
        stop.set()
        for one in hammers:
            one.result()
    assert names == ["manytail-callbacks"] * 4


class Unspeakable:
    def __repr__(self):
        raise SystemExit("a repr that ends the thread")


def test_an_item_whose_repr_raises_has_its_error_all_the_same():
    def fail(item):
        raise ConnectionError(1)

    with Caller(fail) as caller:
        assert isinstance(caller.submit(Unspeakable()).exception(DEADLINE), ConnectionError)
    with Caller(fail, limits=Budget(1.0, cost=lambda item: 2.0)) as caller:
        assert isinstance(caller.submit(Unspeakable()).exception(DEADLINE), BudgetExceeded)


def test_a_cancelled_item_is_skipped_at_its_turn():
    gate = Gate()
    with Caller(gate, workers=1, retry=Retry(3, BaseException, backoff=0.0)) as caller:
        first, second, third = (caller.submit(item) for item in "abc")
        gate.wait_for("a")
        assert second.cancel()
        assert not first.cancel()
        gate.opened.set()
        assert wait([second], DEADLINE).done == {second}
        assert (first.result(), third.result()) == ("a", "c")
    assert gate.begun == ["a", "c"]


def test_a_batch_goes_without_cancelled_items_and_a_cancelled_leader_passes_to_its_follower():
    gate = Gate()
    with Caller(gate, workers=1, batch=Batch(3, linger=10 * DEADLINE)) as caller:
        futures = [caller.submit(item) for item in range(6)]
        wait_until(lambda: len(gate.begun) == 1)
        assert futures[4].cancel()
        gate.opened.set()
        assert [one.result() for one in futures if not one.cancelled()] == [0, 1, 2, 3, 5]
    assert gate.begun == [[0, 1, 2], [3, 5]]
    gate = Gate()
    with Caller(gate, workers=1, dedup=5) as caller:
        caller.submit("other")
        gate.wait_for("other")
        leader, follower = caller.submit("a"), caller.submit("a")
        assert leader.cancel()
        gate.opened.set()
        assert follower.result() == "a"
    assert gate.begun == ["other", "a"]


def test_a_callback_that_waits_holds_up_no_other_call():
    released, waits = threading.Event(), threading.Event()

    def wait_in_callback(future):
        waits.set()
        assert released.wait(DEADLINE)

    with Caller(double, workers=1) as caller:
        try:
            for _ in range(3):
                caller.submit(1).add_done_callback(wait_in_callback)
            assert waits.wait(DEADLINE)
            assert [caller(number) for number in range(20)] == list(range(0, 40, 2))
            called = threading.Event()
            caller.submit(2).add_done_callback(lambda future: called.set())
            assert called.wait(DEADLINE)
        finally:
            released.set()


def test_what_a_callback_raises_is_logged_and_others_run(caplog):
    def fail(future):
        raise KeyboardInterrupt

    gate = Gate()
    with Caller(gate, workers=1) as caller:
        future = caller.submit(1)
        future.add_done_callback(fail)
        gate.opened.set()
        assert caller(2) == 2
    assert "callback" in caplog.text


# ---------------------------------------------------------------------------------------------------- inside fn
@ways
def test_a_call_from_inside_fn_is_refused_and_submit_is_not(fn):
    def call(item):
        if item == 0:
            with pytest.raises(RuntimeError, match="from inside fn"):
                caller(1)
            return [caller.submit(number) for number in range(1, 5)]
        return item

    async def call_in_loop(item):
        return call(item)

    with Caller(call if fn is double else call_in_loop, workers=1, max_in_flight=1) as caller:
        assert [future.result() for future in caller(0)] == [1, 2, 3, 4]


def test_a_call_from_a_map_that_fn_makes_is_inside_too_and_close_is_refused():
    def call(item):
        with pytest.raises(RuntimeError, match="close: called by fn"):
            caller.close()
        return list(concurrent_map(caller, [1], errors="return")) if item == 0 else item

    with Caller(call) as caller:
        (outcome,) = caller(0)
    assert isinstance(outcome.error, RuntimeError)


def test_a_caller_that_is_made_inside_fn_runs_inside_it():
    def call(item):
        if item > 0:
            return item
        with Caller(outer) as inner:
            return inner.submit(1).exception(DEADLINE)

    with Caller(call, workers=2) as outer:
        assert "from inside fn" in str(outer(0))


@ways
def test_a_context_that_is_copied_inside_fn_and_outlives_it_is_not_inside(fn):
    def copied(item):
        return contextvars.copy_context() if item == "copies" else item

    async def copied_in_loop(item):
        return copied(item)

    with Caller(copied if fn is double else copied_in_loop, workers=1) as caller:
        context = caller("copies")
        assert context.run(caller, "later") == "later"


variable = contextvars.ContextVar("variable", default="none")


def test_fn_and_the_functions_of_an_item_run_in_the_context_of_the_caller():
    seen = []

    def made():
        variable.set("made")
        return Caller(lambda item: variable.get(), key=lambda item: seen.append(variable.get()))

    with contextvars.Context().run(made) as caller:
        assert caller(1) == "made"
    assert seen == ["made"]


# ---------------------------------------------------------------------------------------------------- the end
@ways
@pytest.mark.parametrize("cancel", [False, True], ids=["waits", "cancels"])
def test_threads_that_call_while_another_closes_get_a_result_or_are_told(fn, cancel):
    def call_until_the_end(caller, begun):
        number = 0
        while True:
            try:
                assert caller(number) == 2 * number
            except (RuntimeError, CancelledError):
                return number
            begun.set()
            number += 1

    for _ in range(30):
        caller, begun = Caller(fn, workers=2), threading.Event()
        with Threads() as threads:
            calls = [threads.start(call_until_the_end, caller, begun) for _ in range(3)]
            assert begun.wait(DEADLINE)
            caller.close(cancel=cancel)
            done = sum(one.result() for one in calls)
        assert not caller._driver.open
        assert not caller._driver.line
        assert done <= caller.stats().done


def test_a_cancelling_close_cancels_what_waits_and_waits_for_what_runs():
    gate = Gate()
    with Threads() as threads:
        caller = Caller(gate, workers=1)
        futures = [caller.submit(number) for number in range(5)]
        gate.wait_for(0)
        closing = threads.start(caller.close, cancel=True)
        wait_until(lambda: caller._driver.halted)
        gate.opened.set()
        closing.result()
        assert futures[0].result() == 0
        assert all(future.cancelled() for future in futures[1:])
        with pytest.raises(RuntimeError, match="is closed"):
            caller(1)


class Blocked:
    """Coroutines of one loop would wait for one another."""

    def __init__(self, gate):
        self.gate = gate

    async def __call__(self, item):
        return await asyncio.to_thread(self.gate, item)


@ways
@pytest.mark.parametrize("by", ["close", "collector"])
@pytest.mark.parametrize("options", [{}, {"max_in_flight": 3}, {"limits": 1}], ids=["direct", "window", "limit"])
def test_what_has_not_started_is_cancelled_though_a_call_runs_on(fn, options, by):
    options = {**options, "limits": Concurrency(3)} if "limits" in options else options  # a limit of its own
    gate = Gate()
    caller = Caller(gate if fn is double else Blocked(gate), workers=1, **options)
    futures = [caller.submit(number) for number in range(3)]
    gate.wait_for(0)
    with Threads() as threads:
        late = threads.start(partial(ended_by, caller, 3)) if by == "close" and "max_in_flight" in options else None
        driver = caller._driver
        wait_until(lambda: late is None or len(driver.line) == 1)
        if by == "close":
            threads.start(caller.close, cancel=True)
        del caller
        gc.collect()
        try:
            assert wait(futures[1:], DEADLINE).done == set(futures[1:])
            assert late is None or late.result() is CancelledError
        finally:
            gate.opened.set()
    assert futures[0].result(DEADLINE) == 0
    assert [one.cancelled() for one in futures[1:]] == [True, True]
    assert gate.begun == [0]


def ended_by(caller, item):
    """The type of what the call raises."""
    try:
        caller(item)
    except (CancelledError, RuntimeError) as error:
        return type(error)


@ways
def test_a_setup_that_raises_fails_all_items_and_later_ones(fn):
    def setup():
        raise ConnectionError("no server")

    def call(item, resource):
        return item

    async def call_in_loop(item, resource):
        return item

    with Caller(call if fn is double else call_in_loop, setup=setup) as caller:
        with pytest.raises(ConnectionError):
            caller(1)
        with pytest.raises(RuntimeError, match="has failed"):
            caller(2)


@ways
def test_a_dropped_caller_leaves_no_thread(fn):
    caller = Caller(fn)
    assert caller(1) == 2
    del caller
    gc.collect()  # the fixture waits for the threads


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_begins_anew():
    with Caller(double) as caller:
        assert caller(1) == 2
        child = os.fork()
        if not child:
            os._exit(0 if caller(21) == 42 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert caller(2) == 4


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_cancelled_and_however_it_ends_every_future_is_done(seed):
    rng = random.Random(seed)

    def fn(item):
        if item % 7 == 0:
            raise OSError(item)
        return item

    options = rng.choice([{}, {"dedup": 5}, {"key": lambda item: item % 3, "per_key": 1}])
    caller = Caller(fn, workers=3, retry=Retry(1, backoff=0.0), **options)
    futures = []
    for number in range(200):
        futures.append(caller.submit(number % 40))
        if rng.random() < 0.3:
            rng.choice(futures).cancel()
    caller.close(cancel=rng.random() < 0.5)
    for number, future in enumerate(futures):
        assert future.done()
        if not future.cancelled() and future.exception() is None:
            assert future.result() == number % 40


# ---------------------------------------------------------------------------------------------------- interruptions
# The handler also raises in finalizers, which report it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@ways
@pytest.mark.parametrize("options", [{}, {"max_in_flight": 2, "workers": 2}], ids=["plain", "window"])
def test_whoever_is_interrupted_while_it_hands_in_others_go_on(fn, options):
    def take():
        futures.append(caller.submit(1))
        caller(2)
        futures.append(caller.submit(3))

    with Caller(fn, **options) as caller, interruptions(3) as interrupted:
        interruptions_seen = 0
        for _ in range(1_500):
            futures = []
            interruptions_seen += interrupted(take, 3e-4)
            for future in futures:
                assert future.result() in (2, 6)
            assert caller(5) == 10
        assert interruptions_seen > 100
        wait_until(lambda: caller.stats().in_flight == 0)


# The handler also raises in finalizers, which report it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@ways
def test_a_close_that_is_interrupted_anywhere_is_closed_by_the_next(fn):
    with interruptions(4) as interrupted:
        for _ in range(150):
            caller = Caller(fn, workers=2)
            futures = [caller.submit(number) for number in range(10)]
            interrupted(caller.close, 5e-4)
            caller.close()
            assert [future.result() for future in futures] == list(range(0, 20, 2))


# ---------------------------------------------------------------------------------------------------- in the loop
class LoopGate:
    def __init__(self):
        self.begun, self.cancelled, self.opened = [], [], asyncio.Event()

    async def __call__(self, item):
        self.begun.append(item)
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        return item

    async def wait_for(self, *items):
        await until(lambda: self.begun == list(items))


async def until(predicate):
    async with asyncio.timeout(DEADLINE):
        while not predicate():
            await asyncio.sleep(0)


async def cancel(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_callers_loops
def test_many_tasks_get_their_own_results(run):
    async def main():
        async with AsyncCaller(double_in_loop, workers=5, max_in_flight=7) as caller:
            assert await asyncio.gather(*map(caller, range(100))) == list(range(0, 200, 2))
            stats = caller.stats()
        assert (stats.done, stats.failed, stats.in_flight) == (100, 0, 0)
        with pytest.raises(RuntimeError, match="is closed"):
            await caller(1)
        await caller.aclose()

    run(main())


@in_callers_loops
def test_a_cancelled_await_cancels_what_waits_and_what_nobody_shares(run):
    async def main():
        gate = LoopGate()
        async with AsyncCaller(gate, workers=1, retry=Retry(3, BaseException, backoff=0.0)) as caller:
            runs, waits, last = (asyncio.ensure_future(caller(item)) for item in ("runs", "waits", "last"))
            await gate.wait_for("runs")
            await cancel(waits)
            await cancel(runs)
            await gate.wait_for("runs", "last")
            gate.opened.set()
            assert await last == "last"
        assert gate.cancelled == ["runs"]

    run(main())


@in_callers_loops
def test_a_shared_call_is_cancelled_with_the_last_one_who_waits(run):
    async def main():
        gate = LoopGate()
        async with AsyncCaller(gate, dedup=3) as caller:
            tasks = [asyncio.ensure_future(caller("a")) for _ in range(3)]
            await gate.wait_for("a")
            await cancel(tasks[0])
            await cancel(tasks[2])
            assert gate.cancelled == []
            await cancel(tasks[1])
            await until(lambda: gate.cancelled == ["a"])
            gate.opened.set()
            assert await caller("a") == "a"
        gate = LoopGate()
        async with AsyncCaller(gate, batch=Batch(2, linger=10 * DEADLINE)) as caller:
            first, second = (asyncio.ensure_future(caller(item)) for item in (1, 2))
            await gate.wait_for([1, 2])
            await cancel(first)
            assert gate.cancelled == []
            await cancel(second)
            await until(lambda: gate.cancelled == [[1, 2]])
            gate.opened.set()

    run(main())


@in_callers_loops
def test_inside_fn_a_call_and_aclose_are_refused_and_a_task_that_outlives_it_is_not_inside(run):
    async def main():
        made = []

        async def outlives():
            await later.wait()
            return await caller("later")

        async def fn(item):
            if item == "first":
                with pytest.raises(RuntimeError, match="from inside fn"):
                    await caller("second")
                with pytest.raises(RuntimeError, match="aclose: called by fn"):
                    await caller.aclose()
                made.append(asyncio.ensure_future(outlives()))
            return item

        later = asyncio.Event()
        async with AsyncCaller(fn, workers=1) as caller:
            await caller("first")
            later.set()
            assert await made[0] == "later"

    run(main())


@in_callers_loops
def test_an_aclose_that_is_cancelled_cancels_what_runs(run):
    async def main():
        gate = LoopGate()
        caller = AsyncCaller(gate, workers=2)
        tasks = [asyncio.ensure_future(caller(item)) for item in range(4)]
        await gate.wait_for(0, 1)
        closing = asyncio.ensure_future(caller.aclose())
        await asyncio.sleep(0.01)
        await cancel(closing)
        assert gate.cancelled == [0, 1]
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len(asyncio.all_tasks()) == 1

    run(main())


@in_callers_loops
def test_leaving_a_block_waits_for_no_item_that_nobody_waits_for(run):
    """It waits for its next attempt, or for its turn."""

    async def fail(item):
        raise ConnectionError

    async def main():
        retry = Retry(3, backoff=10 * DEADLINE, max_backoff=10 * DEADLINE)
        async with AsyncCaller(fail, retry=retry, limits=Rate(2, "hour", burst=1)) as caller:
            tasks = [asyncio.ensure_future(caller(item)) for item in range(3)]
            await until(lambda: caller.stats().retried == 2)
            for task in tasks[:2]:
                await cancel(task)
            asyncio.get_running_loop().call_later(0.01, tasks[2].cancel)
        assert tasks[2].cancelled()

    run(asyncio.wait_for(main(), DEADLINE))


@in_callers_loops
def test_what_is_cancelled_when_its_block_fails_and_what_a_dropped_one_leaves(run):
    async def main():
        gate = LoopGate()
        tasks = []
        with suppress(ZeroDivisionError):
            async with AsyncCaller(gate, workers=1) as caller:
                tasks += [asyncio.ensure_future(caller(item)) for item in range(3)]
                await gate.wait_for(0)
                asyncio.get_running_loop().call_later(0.01, gate.opened.set)
                raise ZeroDivisionError
        assert await tasks[0] == 0
        assert [one.cancelled() for one in tasks[1:]] == [True, True]
        caller = AsyncCaller(double_in_loop)
        assert await caller(1) == 2
        del caller
        gc.collect()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    run(main())


def test_another_loop_and_a_plain_function_are_refused():
    caller = AsyncCaller(double_in_loop)

    async def main():
        return await caller(1)

    assert asyncio.run(main()) == 2
    with pytest.raises(RuntimeError, match="another loop"):
        asyncio.run(main())
    with pytest.raises(TypeError, match=r"^fn: "):
        AsyncCaller(len)
    for kind in (Caller, AsyncCaller):
        with pytest.raises(ValueError, match=r"^workers: 'inline'"):
            kind(double_in_loop, workers="inline")
