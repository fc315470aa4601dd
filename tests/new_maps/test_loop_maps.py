"""Maps of an `async def`, in a loop of their own and in the caller's, of every kind that asyncio runs in."""

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from contextlib import aclosing

import pytest
from support.event_loops import ASYNCIO
from support.interruptions import interruptions
from support.threads import DEADLINE, Threads, wait_until

from manytail._maps import DeadlineExceeded, Retry, RetryLater, aconcurrent_map, concurrent_map
from manytail._maps.engine.lanes import Lanes
from manytail._maps.engine.scheduler import Rules, Scheduler
from manytail._maps.engine.stages import Stage
from manytail._maps.maps import List
from manytail._maps.runners.loop import LoopDriver
from manytail._maps.verdicts import Judge

OPTIONS = [{}, {"key": lambda item: item % 3, "per_key": 1}, {"timeout": DEADLINE}]
OPTION_NAMES = ["plain", "per_key", "timeout"]
in_callers_loops = pytest.mark.parametrize("run", ASYNCIO.values(), ids=ASYNCIO)


async def double(item):
    await asyncio.sleep(0)
    return 2 * item


async def collect(results):
    async with aclosing(results):
        return [result async for result in results]


def own_loop(fn, items, **options):
    return list(concurrent_map(fn, items, **options))


WAYS = {"own loop": own_loop} | {
    name: lambda fn, items, run=run, **options: run(collect(aconcurrent_map(fn, items, **options)))
    for name, run in ASYNCIO.items()
}
everywhere = pytest.mark.parametrize("mapped", WAYS.values(), ids=WAYS)


class Numbers:
    """An asynchronous input that notes that it was closed."""

    closed = 0

    async def __aiter__(self):
        try:
            for number in range(10**6):
                await asyncio.sleep(0)
                yield number
        finally:
            await asyncio.sleep(0)
            self.closed += 1


# ---------------------------------------------------------------------------------------------------- results
@everywhere
@pytest.mark.parametrize("make", [list, iter])
@pytest.mark.parametrize("options", OPTIONS, ids=OPTION_NAMES)
def test_results_come_in_input_order(mapped, make, options):
    assert mapped(double, make(list(range(300))), **options) == [2 * item for item in range(300)]
    assert mapped(double, make([])) == []


@everywhere
def test_as_many_calls_run_at_once_as_there_are_workers(mapped):
    running, most = set(), []

    async def fn(item):
        running.add(item)
        most.append(len(running))
        await asyncio.sleep(0.001)
        running.remove(item)

    mapped(fn, range(50), workers=7)
    assert max(most) == 7


@everywhere
def test_calls_that_fail_are_made_again_and_deferred_ones_are_no_attempts(mapped):
    calls = Counter()

    async def fn(item, delivery):
        calls[item] += 1
        if calls[item] == 1:
            raise OSError(item)
        if calls[item] == 2:
            raise RetryLater(0.0)
        return delivery.attempt

    outcomes = mapped(fn, range(20), retry=Retry(2, backoff=0.0), errors="return")
    assert [(one.result, one.attempts) for one in outcomes] == [(2, 2)] * 20


@everywhere
def test_a_batch_is_one_call_and_its_bad_item_fails_alone(mapped):
    async def fn(items, delivery):
        await asyncio.sleep(0)
        assert len(delivery.idempotency_keys) == len(items)
        if 5 in items:
            raise LookupError(items)
        return [2 * item for item in items]

    outcomes = mapped(fn, range(16), batch=4, errors="return")
    assert [one.result for one in outcomes] == [None if item == 5 else 2 * item for item in range(16)]


@everywhere
@pytest.mark.parametrize("swallows", [False, True], ids=["cancelled", "swallowed"])
@pytest.mark.parametrize("option", ["timeout", "deadline"])
def test_at_its_time_a_call_is_cancelled_and_fails_also_if_it_swallows_that(mapped, swallows, option):
    ended = []

    async def fn(item):
        if item != 1:
            return item
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise
        finally:
            ended.append(item)

    outcomes = mapped(fn, range(3), errors="return", **{option: 1.0})
    kind = TimeoutError if option == "timeout" else DeadlineExceeded
    assert [type(one.error) for one in outcomes] == [type(None), kind, type(None)]
    assert ended == [1]


@everywhere
def test_a_cancellation_that_fn_makes_itself_fails_its_item_alone(mapped):
    async def fn(item):
        if item == 1:
            asyncio.current_task().cancel()  # it acts at the next wait, which may be its worker's
        if item == 2:
            raise asyncio.CancelledError
        if item == 3:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        return item

    outcomes = mapped(fn, range(6), workers=1, errors="return")
    assert [type(one.error) for one in outcomes] == [
        type(None), type(None), asyncio.CancelledError, asyncio.CancelledError, type(None), type(None),
    ]  # fmt: skip


@everywhere
def test_the_resource_is_entered_and_left_by_one_task_and_its_end_sees_the_failure(mapped):
    class Resource:
        async def __aenter__(self):
            self.task = asyncio.current_task()
            return self

        async def __aexit__(self, kind, *error):
            assert asyncio.current_task() is self.task
            await asyncio.sleep(0)
            ends.append(kind)

    async def fn(item, resource):
        assert isinstance(resource, Resource)
        if item == 5:
            raise LookupError(item)

    async def setup():
        await asyncio.sleep(0)
        return Resource()

    ends = []
    mapped(fn, range(5), setup=setup)
    with pytest.raises(LookupError):
        mapped(fn, range(10), setup=Resource)
    assert ends == [None, LookupError]


@everywhere
def test_what_setup_or_its_end_raises_fails_the_map(mapped):
    class Resource:
        async def aclose(self):
            raise ConnectionError("the end")

    async def fn(item, resource):
        return item

    async def setup():
        raise ConnectionError("the begin")

    with pytest.raises(ConnectionError, match="the begin"):
        mapped(fn, range(3), setup=setup)
    with pytest.raises(ConnectionError, match="the end"):
        mapped(fn, range(3), setup=Resource)


@pytest.mark.parametrize("end", ["stop", "close"])
def test_a_loop_of_its_own_ends_with_its_map(end):
    begun, ended = threading.Event(), []
    go_on = threading.Event()

    async def fn(item):
        begun.set()
        try:
            while not go_on.is_set():
                await asyncio.sleep(0.001)
        finally:
            ended.append(item)
        return item

    results = concurrent_map(fn, iter(range(100)), workers=2)
    with Threads() as threads:
        taking = threads.start(list, results)
        assert begun.wait(DEADLINE)
        if end == "stop":
            results.stop()
            go_on.set()
        else:
            results.close()  # cancels them
        out = taking.result()
    assert out == (sorted(ended) if end == "stop" else [])
    assert 1 <= len(ended) <= 2


# ---------------------------------------------------------------------------------------------- in the caller's loop
@in_callers_loops
@pytest.mark.parametrize("way", ["leave", "raise", "cancel"])
def test_an_asynchronous_input_is_closed_where_the_consumer_leaves(run, way):
    numbers = Numbers()

    async def take():
        async with aconcurrent_map(double, aiter(numbers), max_in_flight=32) as results:
            await anext(results)
            if way == "raise":
                raise ZeroDivisionError
            if way == "cancel":
                asyncio.current_task().cancel()
                await anext(results)
                await asyncio.sleep(0)

    async def main():
        (error,) = await asyncio.gather(asyncio.ensure_future(take()), return_exceptions=True)
        assert type(error) is {"leave": type(None), "raise": ZeroDivisionError, "cancel": asyncio.CancelledError}[way]
        assert numbers.closed == 1
        assert len(asyncio.all_tasks()) == 1

    run(main())


@in_callers_loops
def test_a_cancelled_anext_ends_the_map_and_the_next_one_says_so(run):
    begun, ended = [], []

    async def wait(item):
        begun.append(item)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    async def main():
        results = aconcurrent_map(wait, range(100), workers=3)
        taking = asyncio.ensure_future(anext(results))
        while len(begun) < 3:
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert sorted(ended) == [0, 1, 2]
        with pytest.raises(RuntimeError, match="results are missing"):
            await anext(results)

    run(main())


@in_callers_loops
def test_another_task_is_refused_and_aclose_ends_the_one_that_waits(run):
    async def wait(item):
        await asyncio.Event().wait()

    async def main():
        results = aconcurrent_map(wait, range(100))
        taking = asyncio.ensure_future(anext(results))
        await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="already executing"):
            await anext(results)
        await results.aclose()
        with pytest.raises(StopAsyncIteration):
            await taking

    run(main())


@in_callers_loops
def test_fn_may_stop_its_map_and_may_not_wait_for_its_end(run):
    async def fn(item):
        if item == 3:
            with pytest.raises(RuntimeError, match="aclose: called by fn"):
                await results.aclose()
            results.stop()
        return item

    async def main():
        nonlocal results
        results = aconcurrent_map(fn, range(100), workers=1)
        assert await collect(results) == [0, 1, 2, 3]

    results = None
    run(main())


@in_callers_loops
def test_a_dropped_map_cancels_its_calls_and_leaves_no_task(run):
    begun, ended = [], []

    async def wait(item):
        begun.append(item)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    async def main():
        results = aconcurrent_map(wait, Numbers(), workers=3)
        taking = asyncio.ensure_future(anext(results))
        while len(begun) < 3:
            await asyncio.sleep(0)
        taking.cancel()
        del results, taking
        gc.collect()
        async with asyncio.timeout(DEADLINE):
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0)
        assert len(ended) == 3

    run(main())


@in_callers_loops
def test_a_loop_that_ends_first_ends_the_map(run):
    async def main():
        results = aconcurrent_map(wait, Numbers(), workers=3, setup=lambda: made)
        task = asyncio.ensure_future(anext(results))
        kept.extend((results, task))
        while len(begun) < 3:
            await asyncio.sleep(0)

    async def wait(item, resource):
        begun.append(item)
        await asyncio.Event().wait()

    class Resource:
        closed = 0

        async def aclose(self):
            self.closed += 1

    made, kept, begun = Resource(), [], []
    run(main())
    assert kept[1].cancelled()
    assert made.closed == 1
    assert kept[0]._driver.ended


def test_a_step_that_cannot_be_made_ends_the_map_and_cancels_what_runs():
    class Broken(Stage):
        def after(self, call, ended, now):
            raise MemoryError

    cancelled = []

    async def fn(item):
        if item.value == 0:
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(item.value)
            raise

    async def call_with(stack):
        return fn

    async def main():
        scheduler = Scheduler(Rules(workers=3), Lanes(), [Broken()])
        driver = LoopDriver(scheduler, call_with, Judge(Retry(0)))
        driver.start(List(scheduler, range(10)))
        await driver.wait()
        assert driver.ended
        assert isinstance(driver.error(), MemoryError)
        await driver.join()
        assert cancelled == [1, 2]

    asyncio.run(asyncio.wait_for(main(), DEADLINE))


@pytest.mark.parametrize("options", OPTIONS, ids=OPTION_NAMES)
def test_whenever_it_is_cancelled_nothing_runs_on_and_nothing_is_called_twice(options):
    rng = random.Random(5)

    async def main():
        async with asyncio.timeout(DEADLINE):
            await repeat()

    async def repeat():
        for _ in range(200):
            calls, running, out = Counter(), set(), []

            async def fn(item, calls=calls, running=running):
                calls[item] += 1
                running.add(item)
                try:
                    await asyncio.sleep(rng.choice([0, 0, 0.0005]))
                finally:
                    running.remove(item)
                return item

            async def take(fn=fn, out=out):
                async with aconcurrent_map(fn, iter(range(100)), workers=4, **options) as results:
                    async for result in results:
                        out.append(result)

            task = asyncio.ensure_future(take())
            await asyncio.wait([task], timeout=rng.uniform(0, 0.005))
            task.cancel()
            await asyncio.wait([task])
            assert not running
            assert out == list(range(len(out)))
            assert set(calls.values()) <= {1}
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


# ---------------------------------------------------------------------------------------------------- interruptions
# The handler also raises in finalizers, which report it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.thread_unsafe(reason="handles signals")
@pytest.mark.parametrize("options", OPTIONS, ids=OPTION_NAMES)
def test_a_consumer_that_is_interrupted_anywhere_ends_its_map(options):
    calls, running = Counter(), set()

    async def fn(item):
        calls[item] += 1
        running.add(item)
        await asyncio.sleep(0)
        running.remove(item)
        return item

    out = []

    def take():
        for result in results:
            out.append(result)
            results.stats()
        results.close()

    before = set(threading.enumerate())
    with interruptions(11) as interrupted:
        for _ in range(300):
            calls.clear()
            running.clear()
            out.clear()
            results = concurrent_map(fn, iter(range(100)), workers=3, max_in_flight=10, **options)
            interrupted(take, 5e-3)
            results.close()
            assert out == list(range(len(out)))
            assert set(calls.values()) <= {1}
    results = None
    gc.collect()
    wait_until(lambda: not [one for one in set(threading.enumerate()) - before if one.name.startswith("manytail-")])


def test_a_timer_that_is_far_away_holds_up_no_end():
    began = time.monotonic()
    assert asyncio.run(collect(aconcurrent_map(double, range(3), deadline=1e9, timeout=1e8))) == [0, 2, 4]
    assert time.monotonic() - began < DEADLINE
