"""The coroutines of the multi-queue in every kind of asyncio's loops: as their blocking namesakes; a cancelled
or closed loop loses no item."""
import asyncio
import gc
import inspect
import signal
import sys
import threading
from queue import Empty

import pytest
from support.event_loops import in_every_kind_of_loop
from support.queues import as_list, drain
from support.threads import DEADLINE, LONG, Threads, wait_getters, wait_putters

from manytail import MultiQueue, PubSubQueue, ShutDown

pytestmark = in_every_kind_of_loop


async def until(predicate):
    """Let the other tasks run until the predicate holds, which other threads may cause."""
    async with asyncio.timeout(DEADLINE):
        while not predicate():
            await asyncio.sleep(0)


async def within(awaitable):
    return await asyncio.wait_for(awaitable, DEADLINE)


def waiting(queue):
    return queue.stats().getters_waiting


# ------------------------------------------------------------------------------------------------ same meaning
def test_they_are_coroutines(new):
    queue = new()
    tail = queue.add("a")
    for function in (queue.aget, queue.aget_with_key, queue.aget_many, queue.ajoin, tail.aput):
        assert inspect.iscoroutinefunction(function) or asyncio.iscoroutinefunction(function)


def test_what_is_there_is_got_at_once(new_bulk):
    queue = new_bulk()
    tail = queue.add("a")

    async def main():
        await tail.aput(1)
        tail.put_many([2, 3, 4])
        assert await queue.aget() == 1
        assert await queue.aget_with_key() == ("a", 2)
        assert as_list(await queue.aget_many(9)) == [3, 4]
        for n in (0, -1):
            assert as_list(await queue.aget_many(n)) == []
        await asyncio.gather(*(asyncio.to_thread(queue.task_done) for _ in range(4)))
        await queue.ajoin()

    asyncio.run(main())
    assert queue.stats() == (0, 1, 1, 0, 0, 4, 4)


def test_they_follow_the_turns(new):
    queue = new(selection="weighted")
    queue.add("a", weight=2).put_many([1, 2, 3])
    queue.add("b").put_many([4, 5])
    queue.add("u", priority=-1).put(0)

    async def main():
        return [await queue.aget_with_key() for _ in range(6)]

    assert asyncio.run(main()) == [("u", 0), ("a", 1), ("a", 2), ("b", 4), ("a", 3), ("b", 5)]


def test_a_waiting_aget_is_served_by_a_put_of_its_own_loop(new):
    queue = new()
    tail = queue.add("a")

    async def main():
        task = asyncio.create_task(queue.aget())
        await until(lambda: waiting(queue) == 1)
        tail.put(7)
        assert await within(task) == 7
        assert waiting(queue) == 0

    asyncio.run(main())


GETS = {
    "aget": lambda queue: queue.aget(),
    "aget_with_key": lambda queue: queue.aget_with_key(),
    "aget_many": lambda queue: queue.aget_many(5),
}


@pytest.fixture(params=GETS)
def aget(request):
    return GETS[request.param]


def test_a_waiting_get_is_served_by_a_put_of_a_thread(new_bulk, aget):
    queue = new_bulk()
    tail = queue.add("a")

    async def main():
        return await within(aget(queue))

    with Threads() as threads:
        loop = threads.start(asyncio.run, main())
        wait_getters(queue, 1)
        tail.put(7)
        result = loop.result()
    assert result in (7, ("a", 7)) or as_list(result) == [7]


def test_a_waiting_aput_is_served_by_a_get_of_a_thread(new):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(1)
    with Threads() as threads:
        loop = threads.start(asyncio.run, within(tail.aput(2)))
        wait_putters(queue, 1)
        assert queue.get() == 1
        loop.result()
    assert drain(queue) == [2]


def test_a_thread_and_a_loop_wait_side_by_side(new):
    queue = new()
    tail = queue.add("a")
    with Threads() as threads:
        thread = threads.start(queue.get, timeout=LONG)
        loop = threads.start(asyncio.run, within(queue.aget()))
        wait_getters(queue, 2)
        tail.put_many([1, 2])
        assert sorted([thread.result(), loop.result()]) == [1, 2]


def test_a_waiting_aget_leaves_the_loop_free(new):
    queue = new()
    tail = queue.add("a")
    ticks = []

    async def tick():
        for n in range(5):
            await asyncio.sleep(0)
            ticks.append(n)
        tail.put(1)

    async def main():
        return await within(asyncio.gather(queue.aget(), tick()))

    assert asyncio.run(main()) == [1, None]
    assert ticks == [0, 1, 2, 3, 4]


def test_max_items_is_checked(new_bulk):
    queue = new_bulk()
    with pytest.raises(TypeError, match="max_items"):
        asyncio.run(queue.aget_many("3"))


# ------------------------------------------------------------------------------------------------ cancelling
def test_a_cancelled_aget_leaves_the_queue_as_it_was(new_bulk, aget):
    queue = new_bulk()
    tail = queue.add("a")

    async def main():
        task = asyncio.create_task(aget(queue))
        await until(lambda: waiting(queue) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert waiting(queue) == 0
        tail.put(1)
        assert await within(queue.aget()) == 1

    asyncio.run(main())


def test_a_timed_out_aget_loses_nothing(new):
    queue = new()
    tail = queue.add("a")

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.aget(), 0.002)
        tail.put(1)
        assert await asyncio.wait_for(queue.aget(), DEADLINE) == 1

    asyncio.run(main())
    assert waiting(queue) == 0


def test_a_cancelled_aget_that_was_woken_passes_the_wake_up_on_to_another_task(new_bulk, aget):
    """put wakes the first of two tasks, which is cancelled before it runs. The item must reach the second one."""
    queue = new_bulk()
    tail = queue.add("a")

    async def main(first):
        tasks = [asyncio.create_task(aget(queue)) for _ in range(2)]
        await until(lambda: waiting(queue) == 2)
        tail.put(7)
        tasks[first].cancel()  # woken or not: this loop has not run since the put
        _, pending = await asyncio.wait([tasks[1 - first]], timeout=DEADLINE)
        assert not pending
        assert tasks[first].cancelled()
        tasks[1 - first].result()

    for first in (0, 1):
        asyncio.run(main(first))
        assert queue.empty()
        assert waiting(queue) == 0
    assert queue.stats().got == 2


def test_a_cancelled_aget_that_was_woken_passes_the_wake_up_on_to_a_thread(new):
    queue = new()
    tail = queue.add("a")
    for _ in range(50):
        with Threads() as threads:
            cancelled = []

            async def main(cancelled=cancelled):
                task = asyncio.create_task(queue.aget())
                await until(lambda: waiting(queue) == 2)
                tail.put(7)
                task.cancel()
                try:
                    return await task
                except asyncio.CancelledError:
                    cancelled.append(True)
                    return None

            thread = threads.start(queue.get, timeout=LONG)
            wait_getters(queue, 1)
            result = asyncio.run(main())
            if not cancelled:
                assert result == 7
                tail.put(8)
            assert thread.result() == (7 if cancelled else 8)
        assert queue.empty()


def test_a_cancelled_aput_puts_nothing(new):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(1)

    async def main():
        task = asyncio.create_task(tail.aput(2))
        await until(lambda: queue.stats().putters_waiting == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert queue.stats().putters_waiting == 0
    assert drain(queue) == [1]


def test_a_cancelled_aput_that_was_woken_passes_the_room_on(new):
    queue = new()
    tail = queue.add("a", maxsize=1)

    async def main(n):
        tail.put(0)
        tasks = [asyncio.create_task(tail.aput(item)) for item in (1, 2)]
        await until(lambda: queue.stats().putters_waiting == 2)
        assert queue.get() == 0
        tasks[n % 2].cancel()
        await asyncio.wait(tasks, timeout=DEADLINE, return_when=asyncio.FIRST_COMPLETED)
        await until(tail.full)
        tail.maxsize = 0  # wakes the one that still waits
        await within(asyncio.gather(*tasks, return_exceptions=True))
        went_in = [item for item, task in zip((1, 2), tasks, strict=True) if not task.cancelled()]
        assert sorted(drain(queue)) == went_in
        assert went_in
        tail.maxsize = 1

    for n in range(20):
        asyncio.run(main(n))


def test_a_cancelled_ajoin_disturbs_no_other_join(new):
    queue = new()
    queue.add("a").put(1)

    async def main():
        tasks = [asyncio.create_task(queue.ajoin()) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert not tasks[1].done()
        queue.get()
        queue.task_done()
        await within(tasks[1])

    asyncio.run(main())


def test_cancelling_in_a_storm_loses_nothing(new):
    """Tasks that time out almost at once, and one patient one, against a thread that puts."""
    queue = new()
    tail = queue.add("a", maxsize=3)
    total = 1500
    taken = []

    async def impatient(delay):
        while len(taken) < total:
            try:
                taken.append(await asyncio.wait_for(queue.aget(), delay))
            except TimeoutError:
                await asyncio.sleep(0)

    async def main():
        async with asyncio.timeout(LONG):
            await asyncio.gather(*(impatient(n / 5000) for n in range(5)))

    with Threads() as threads:
        threads.start(tail.put_many, range(total))
        asyncio.run(main())
    assert sorted(taken) == list(range(total))
    assert queue.stats() == (0, 1, 1, 0, 0, total, total)


# ------------------------------------------------------------------------------------------------ loops that end
def abandon(coroutine, registered):
    """Run a loop in this thread until `registered`, then close it with the coroutine still waiting in it."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # ignores "Task was destroyed but it is pending!"
    task = loop.create_task(coroutine)
    loop.run_until_complete(until(registered))
    loop.close()
    return task


def test_a_getter_of_a_closed_loop_is_skipped(new):
    queue = new()
    tail = queue.add("a")
    task = abandon(queue.aget(), lambda: waiting(queue) == 1)
    with Threads() as threads:
        getter = threads.start(queue.get)
        wait_getters(queue, 2)
        tail.put(1)
        assert getter.result() == 1
    tail.put(2)
    assert queue.get() == 2
    assert not task.done()


def test_many_getters_of_closed_loops_are_skipped_at_once(new):
    queue = new()
    tail = queue.add("a")
    tasks = [abandon(queue.aget(), lambda n=n: waiting(queue) == n) for n in range(1, 6)]
    with Threads() as threads:
        getters = [threads.start(queue.get) for _ in range(2)]
        wait_getters(queue, 7)
        tail.put_many([1, 2])
        assert sorted(getter.result() for getter in getters) == [1, 2]
    tail.put(3)
    assert drain(queue) == [3]
    del tasks


def refusing(*errors):
    """A loop whose call_soon_threadsafe() first raises these errors, as if a signal handler ran in it."""
    loop, left = asyncio.new_event_loop(), list(errors)
    call = loop.call_soon_threadsafe

    def call_soon_threadsafe(*args, **kwargs):
        if left:
            raise left.pop()
        return call(*args, **kwargs)

    loop.call_soon_threadsafe = call_soon_threadsafe
    return loop


def wait_of_kind(kind):
    """A coroutine that waits, a function that returns whether it waits, and the call that wakes it."""
    if kind in ("aget", "aget_many", "ajoin", "aput"):
        queue = MultiQueue()
        tail = queue.add("a", maxsize=1)
        if kind in ("aget", "aget_many"):
            wait = queue.aget() if kind == "aget" else queue.aget_many(3)
            return wait, lambda: queue.stats().getters_waiting, lambda: tail.put(1)
        tail.put(1)
        if kind == "aput":
            return tail.aput(2), lambda: queue.stats().putters_waiting, queue.get
        return queue.ajoin(), None, lambda: (queue.get(), queue.task_done())
    queue = PubSubQueue(maxsize=1)
    subscriber = queue.subscribe()
    if kind == "subscriber aget":
        return subscriber.aget(), None, lambda: (queue.publish(1), subscriber)
    queue.publish(1)
    return queue.apublish(2), None, subscriber.get


KINDS = ["aget", "aget_many", "ajoin", "aput", "subscriber aget", "apublish"]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.thread_unsafe(reason="sys.unraisablehook belongs to the process")
@pytest.mark.parametrize("error", [LookupError, MemoryError, RuntimeError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_raised_while_a_coroutine_is_woken_does_not_cost_it_the_wake_up(monkeypatch, kind, error):
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_type))
    coroutine, _, wake = wait_of_kind(kind)
    loop = refusing(error("handler"), error("handler"))
    try:
        task = loop.create_task(coroutine)
        for _ in range(3):
            loop.call_soon(loop.stop)
            loop.run_forever()
        assert not task.done()
        wake()  # raises nothing: its item is in the queue
        loop.run_until_complete(asyncio.wait_for(task, DEADLINE))
    finally:
        loop.close()
    assert reports == [error, error]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.thread_unsafe(reason="signals go to the main thread")
@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no SIGUSR1 on Windows")
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_while_a_coroutine_is_woken_does_not_cost_it_the_wake_up(kind):
    coroutine, _, wake = wait_of_kind(kind)
    loop = refusing(KeyboardInterrupt())
    try:
        task = loop.create_task(coroutine)
        for _ in range(3):
            loop.call_soon(loop.stop)
            loop.run_forever()

        def wake_and_go_on():
            wake()
            sum(range(10))

        with pytest.raises(KeyboardInterrupt):
            wake_and_go_on()
        loop.run_until_complete(asyncio.wait_for(task, DEADLINE))
    finally:
        loop.close()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.thread_unsafe(reason="signals go to the main thread")
@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no SIGUSR1 on Windows")
@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_handler_that_raises_while_a_coroutine_is_woken(monkeypatch, kind):
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reports.append(report.exc_type))

    def fail(*_):
        raise LookupError("handler")

    before = signal.signal(signal.SIGUSR1, fail)
    coroutine, _, wake = wait_of_kind(kind)
    loop = asyncio.new_event_loop()
    call = loop.call_soon_threadsafe

    def call_soon_threadsafe(*args, **kwargs):
        if not reports:
            signal.raise_signal(signal.SIGUSR1)  # its handler runs here
        return call(*args, **kwargs)

    loop.call_soon_threadsafe = call_soon_threadsafe
    try:
        task = loop.create_task(coroutine)
        for _ in range(3):
            loop.call_soon(loop.stop)
            loop.run_forever()
        wake()
        loop.run_until_complete(asyncio.wait_for(task, DEADLINE))
    finally:
        loop.close()
        signal.signal(signal.SIGUSR1, before)
    assert reports == [LookupError]


def test_a_putter_of_a_closed_loop_is_skipped(new):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(0)
    task = abandon(tail.aput(99), lambda: queue.stats().putters_waiting == 1)
    with Threads() as threads:
        putter = threads.start(tail.put, 1)
        wait_putters(queue, 2)
        assert queue.get() == 0
        putter.result()
    assert drain(queue) == [1]
    assert not task.done()


def test_a_joiner_of_a_closed_loop_is_skipped(new):
    queue = new()
    queue.add("a").put(1)
    turns = iter(range(3))
    task = abandon(queue.ajoin(), lambda: next(turns, None) is None)
    with Threads() as threads:
        join = threads.start(queue.join)
        assert queue.join(0.002) is False
        queue.get()
        queue.task_done()
        assert join.result() is True
    assert not task.done()


def test_shutdown_with_a_closed_loop_waiting(new):
    queue = new()
    queue.add("a")
    task = abandon(queue.aget(), lambda: waiting(queue) == 1)
    with Threads() as threads:
        getter = threads.start(queue.get)
        wait_getters(queue, 2)
        queue.shutdown()
        assert isinstance(getter.outcome(), ShutDown)
    assert not task.done()


def test_an_abandoned_task_that_is_collected_leaves_the_queue(new):
    """When the task is freed, the coroutine of the closed loop is closed. That removes it from the wait list."""
    queue = new()
    tail = queue.add("a")
    task = abandon(queue.aget(), lambda: waiting(queue) == 1)
    del task
    gc.collect()
    tail.put(1)
    assert queue.get() == 1
    assert waiting(queue) == 0


def test_a_woken_getter_whose_loop_is_closed_before_it_runs_passes_the_wake_up_on(new):
    queue = new()
    tail = queue.add("a")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    task = loop.create_task(queue.aget())
    loop.run_until_complete(until(lambda: waiting(queue) == 1))
    with Threads() as threads:
        getter = threads.start(queue.get)
        wait_getters(queue, 2)
        tail.put(1)
        loop.close()
        del task
        gc.collect()
        assert getter.result() == 1
    assert queue.empty()


@pytest.mark.parametrize("turns", [0, 1], ids=["before it is told", "before it runs"])
def test_a_woken_get_whose_loop_is_closed_passes_the_wake_up_on_though_its_task_is_kept(new_bulk, aget, turns):
    """Past the others of its loop."""
    queue = new_bulk()
    tail = queue.add("a")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    tasks = [loop.create_task(aget(queue)) for _ in range(3)]
    loop.run_until_complete(until(lambda: waiting(queue) == 3))
    with Threads() as threads:
        other = threads.start(asyncio.run, within(queue.aget()))
        wait_getters(queue, 4)
        tail.put(7)
        for _ in range(turns):
            loop.call_soon(loop.stop)
            loop.run_forever()
        loop.close()
        if tasks[0].done():  # uvloop made two turns
            assert turns
            tail.put(7)
        assert other.result() == 7
    assert queue.empty()


def test_a_get_whose_loop_is_closed_beside_its_wake_up_passes_it_on(new_bulk, aget):
    """Another thread closes it when call_soon_threadsafe() has looked, so what this adds stays there."""
    queue = new_bulk()
    tail = queue.add("a")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    task = loop.create_task(aget(queue))
    loop.run_until_complete(until(lambda: waiting(queue) == 1))
    added = []

    def call_soon_threadsafe(*callback):
        loop.close()
        added.append(callback)

    loop.call_soon_threadsafe = call_soon_threadsafe
    with Threads() as threads:
        other = threads.start(asyncio.run, within(queue.aget()))
        wait_getters(queue, 2)
        tail.put(7)
        assert other.result() == 7
    assert added
    assert not task.done()


def test_a_loop_that_does_not_run_keeps_no_item_from_a_thread_that_waits(new):
    """Two items for two waiters: the one in a loop that is blocked must not delay the other."""
    queue = new()
    tail = queue.add("a")

    async def main():
        task = asyncio.create_task(queue.aget())
        await until(lambda: waiting(queue) == 1)
        with Threads() as threads:  # blocks the loop
            getter = threads.start(queue.get)
            wait_getters(queue, 2)
            tail.put(1)
            tail.put(2)
            return {getter.result(), await task}

    assert asyncio.run(main()) == {1, 2}


def test_several_loops_in_threads_share_a_queue(new_bulk):
    queue = new_bulk()
    tails = [queue.add(key, maxsize=4) for key in range(3)]
    per_loop = 400

    async def produce(tail, start):
        for item in range(start, start + per_loop):
            await tail.aput(item)

    async def consume(taken):
        while True:
            try:
                taken += as_list(await queue.aget_many(3))
            except ShutDown:
                return

    def run_loop(n):
        taken = []

        async def main():
            async with asyncio.timeout(LONG):
                consumers = [asyncio.create_task(consume(taken)) for _ in range(2)]
                await asyncio.gather(*(produce(tail, (3 * n + m) * 10_000) for m, tail in enumerate(tails)))
                barrier.wait(LONG)
                queue.shutdown()
                await asyncio.gather(*consumers)

        asyncio.run(main())
        return taken

    loops = 3
    barrier = threading.Barrier(loops)
    with Threads() as threads:
        # Loops wait at the barrier, so another thread must keep taking.
        helper = threads.start(lambda: drain_until_shutdown(queue))
        runs = [threads.start(run_loop, n) for n in range(loops)]
        taken = [item for run in runs for item in run.result()] + helper.result()
    assert sorted(taken) == sorted(n * 10_000 + m for n in range(9) for m in range(per_loop))


def drain_until_shutdown(queue):
    taken = []
    while True:
        try:
            taken.append(queue.get())
        except ShutDown:
            return taken


def test_one_loop_of_many_producers_and_consumers(new):
    queue = new()
    tails = [queue.add(key, maxsize=2) for key in range(4)]
    taken = []

    async def produce(n):
        for item in range(n * 1000, n * 1000 + 100):
            await tails[n].aput(item)

    async def consume():
        for _ in range(100):
            taken.append(await queue.aget())  # noqa: PERF401 - order over all consumers

    async def main():
        async with asyncio.timeout(LONG):
            await asyncio.gather(*(produce(n) for n in range(4)), *(consume() for _ in range(4)))

    asyncio.run(main())
    for n in range(4):
        assert [item for item in taken if item // 1000 == n] == list(range(n * 1000, n * 1000 + 100))


# ------------------------------------------------------------------------------------------------ errors
def test_shutdown_reaches_every_waiting_coroutine(new):
    queue = new()
    tail = queue.add("a", maxsize=1, enabled=False)
    tail.put(1)

    async def main():
        tasks = [asyncio.create_task(call) for call in (queue.aget(), queue.aget(), tail.aput(2))]
        await until(lambda: queue.stats()[3:5] == (2, 1))
        queue.shutdown()
        return [type(end) for end in await within(asyncio.gather(*tasks, return_exceptions=True))]

    assert asyncio.run(main()) == [ShutDown] * 3


def test_removing_a_tail_reaches_a_waiting_aput(new):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(1)

    async def main():
        task = asyncio.create_task(tail.aput(2))
        await until(lambda: queue.stats().putters_waiting == 1)
        queue.remove("a")
        with pytest.raises(ShutDown):
            await within(task)

    asyncio.run(main())
    assert list(tail) == [1]


@pytest.mark.parametrize("error", [LookupError, Empty])  # Empty: also what a get raises that finds nothing
@pytest.mark.parametrize("call", [MultiQueue.aget, lambda queue: queue.aget_many(1)], ids=["aget", "aget_many"])
def test_a_selection_that_raises_reaches_aget_and_loses_nothing(new_bulk, call, error):
    errors = [error("broken")]

    def broken_at_first(ready):
        if errors:
            raise errors.pop()
        return ready[0]

    queue = new_bulk(selection=broken_at_first)
    tail = queue.add("a")

    async def main():
        tail.put(1)
        with pytest.raises(error, match="broken"):
            await call(queue)
        assert await call(queue) in (1, [1])

    asyncio.run(main())


def test_aget_many_calls_no_method_that_a_subclass_overrides(new_bulk):
    class Overriding(new_bulk):
        def get_many(self, max_items, block=True, timeout=None, *, linger=0.0):
            return "overridden"

    queue = Overriding()
    queue.add("a").put(1)
    assert as_list(asyncio.run(queue.aget_many(1))) == [1]


def test_aget_many_of_a_selection_waits_for_the_first_item(new_bulk):
    queue = new_bulk(selection=lambda ready: ready[0])
    tail = queue.add("a")

    async def main():
        task = asyncio.create_task(queue.aget_many(5))
        await until(lambda: waiting(queue) == 1)
        tail.put_many([1, 2])
        return as_list(await within(task))

    assert asyncio.run(main()) == [1, 2]


def test_a_coroutine_never_awaited_takes_nothing(new):
    queue = new()
    tail = queue.add("a")
    tail.put(1)
    for coroutine in (queue.aget(), queue.aget_many(2), queue.ajoin(), tail.aput(5)):
        coroutine.close()
    assert queue.stats() == (1, 1, 1, 0, 0, 1, 0)
    assert drain(queue) == [1]
    with pytest.raises(Empty):
        queue.get_nowait()
