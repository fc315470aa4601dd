"""The coroutines of entry queues in every kind of asyncio's loops: as their blocking namesakes; a cancelled or closed
loop loses no entry."""
import asyncio
import gc
import inspect
import time
import weakref
from queue import Empty

import pytest
from support.event_loops import in_every_kind_of_loop
from support.threads import DEADLINE, LONG, Threads, wait_asleep, wait_until

from manytail import ClosedError, Consumer, EntryQueue, EntryState, LastValueQueue, ShutDown, SortedEntryQueue

pytestmark = in_every_kind_of_loop


async def within(awaitable):
    return await asyncio.wait_for(awaitable, DEADLINE)


async def parked(*tasks):
    """Return when the tasks have run until they wait: nothing else runs in this loop."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


async def until(predicate):
    async with asyncio.timeout(DEADLINE):
        while not predicate():
            await asyncio.sleep(0)


def test_they_are_coroutines(new, keep):
    queue = new()
    for function in (queue.aput, keep(queue.subscribe()).aget, Consumer().aget):
        assert inspect.iscoroutinefunction(function) or asyncio.iscoroutinefunction(function)


def test_what_is_there_is_got_at_once(new, keep):
    queue = new()

    async def main():
        entry = await queue.aput(1, priority=9, headers={"a": 1})
        assert (entry.item, entry.priority, entry.state) == (1, 9, EntryState.AVAILABLE)
        assert await queue.aput(2, immediate=True) is None
        got = await keep(queue.subscribe()).aget()
        assert got == entry
        assert got.ack()

    asyncio.run(main())


@pytest.mark.parametrize("option", ["block", "timeout"])
def test_aput_refuses_what_only_put_has(new, option):
    queue = new()
    with pytest.raises(TypeError, match=option):
        asyncio.run(queue.aput(1, **{option: 1}))
    assert queue.depth() == 0


def test_an_aget_is_served_by_a_put_of_its_own_loop_and_of_a_thread(new, keep):
    queue = new()
    subscription = keep(queue.subscribe())

    async def main():
        for in_a_thread in (False, True):
            task = asyncio.create_task(subscription.aget())
            await parked(task)
            if in_a_thread:
                await asyncio.to_thread(queue.put, 7)
            else:
                queue.put(7)
            assert (await within(task)).item == 7

    asyncio.run(main())


def test_an_aput_waits_for_room(new, keep):
    queue = new("q", maxsize=1)
    queue.put(1)

    async def main():
        task = asyncio.create_task(queue.aput(2))
        await parked(task)
        keep(queue.subscribe()).get(False).ack()
        return await within(task)

    assert asyncio.run(main()).item == 2


@pytest.mark.parametrize("new", [SortedEntryQueue, LastValueQueue])
def test_an_aput_that_waits_asks_the_key_function_once(new, keep):
    asked = []
    queue = new("q", maxsize=1, key=lambda item: asked.append(item) or item)
    subscription = keep(queue.subscribe())

    async def main():
        tasks = [asyncio.create_task(queue.aput(item)) for item in range(3)]
        await parked(*tasks[1:])
        for task in tasks:              # with a free slot for one of those that wait: the other finds it taken
            await within(task)
            subscription.get(False).ack()

    asyncio.run(main())
    assert asked == [0, 1, 2]


def test_ttl_and_delay_of_an_aput_count_from_its_call(new, keep):
    queue = new("q", maxsize=1)
    queue.put(1)
    subscription = keep(queue.subscribe())

    async def main():
        task = asyncio.create_task(queue.aput(2, ttl=1000, delay=0.05))
        await parked(task)
        called = time.monotonic()
        wait_until(lambda: time.monotonic() > called + 0.05)
        subscription.get(False).ack()
        entry = await within(task)
        assert entry.expires_at < called + 1000
        assert subscription.get(False) == entry

    asyncio.run(main())


class Weak(float):
    """An item of any class of queues that can be weakly referenced, and refer to others."""


def test_what_a_waiting_aput_has_not_put_yet_is_visible_to_the_collector(new):
    """Item, task, coroutine, entry, item: a cycle through an entry that is in no queue."""
    def leave():
        queue, item, header = new("q", maxsize=1), Weak(2), Weak(3)
        queue.put(1)
        item.task = header.task = abandon(queue.aput(item, headers={"a": header}))
        return weakref.ref(item), weakref.ref(header), weakref.ref(queue)

    references = leave()
    gc.collect()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


@pytest.mark.parametrize("how", ["release", "close", "delay", "unhold", "resume", "credit"])
def test_an_aget_is_woken_by_whatever_lets_it_go_on(new, keep, how):
    queue = new()
    queue.put(1)
    holder, subscription = keep(queue.subscribe()), keep(queue.subscribe(prefetch=1))
    entry = holder.get(False)

    async def main():
        if how == "resume":
            subscription.suspend()
            entry.release()
        if how == "credit":
            queue.put(2)
            mine = subscription.get(False)
            queue.put(3)
        task = asyncio.create_task(subscription.aget())
        await parked(task)
        if how == "release":
            entry.release()
        elif how == "close":
            holder.close()
        elif how == "delay":
            entry.release(delay=0.01)
        elif how == "unhold":
            queue.put(2, delay=0.01)
        elif how == "resume":
            subscription.resume()
        else:
            mine.ack()
        return (await within(task)).item

    assert asyncio.run(main()) == {"unhold": 2, "credit": 3}.get(how, 1)


def test_async_iteration_ends_at_shutdown_and_close(new):
    queue = new()
    queue.put_many(range(3))
    queue.shutdown()
    subscription, closed = queue.subscribe(), queue.subscribe()
    closed.close()

    async def main():
        assert [entry.item async for entry in closed] == []
        return [entry.item async for entry in subscription]

    assert asyncio.run(main()) == [0, 1, 2]


def test_errors_are_those_of_get(new):
    queue = new("q", maxsize=1)
    subscription = queue.subscribe()

    async def main():
        closing = asyncio.create_task(subscription.aget())
        queue.put(0)
        queue.purge()
        await parked(closing)
        subscription.close()
        with pytest.raises(ClosedError):
            await within(closing)
        other = queue.subscribe()
        ending = asyncio.create_task(other.aget())
        await parked(ending)
        queue.shutdown()
        with pytest.raises(ShutDown):
            await within(ending)
        with pytest.raises(ShutDown):
            await queue.aput(1)

    asyncio.run(main())


def test_a_cancelled_aget_leaves_the_queue_as_it_was(new):
    queue = new()
    subscription = queue.subscribe()

    async def main():
        task = asyncio.create_task(subscription.aget())
        await parked(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        queue.put(1)
        assert (await within(subscription.aget())).deliveries == 1

    asyncio.run(main())


def test_a_cancelled_aget_that_was_woken_passes_the_wake_up_on(new):
    queue = new()
    one, two = queue.subscribe(), queue.subscribe()

    async def main(first):
        tasks = [asyncio.create_task(subscription.aget()) for subscription in (one, two)]
        await parked(*tasks)
        entry = queue.put(7)
        tasks[first].cancel()
        _, pending = await asyncio.wait([tasks[1 - first]], timeout=DEADLINE)
        assert not pending
        got = tasks[1 - first].result()
        assert got == entry
        assert got.ack()
        with pytest.raises(asyncio.CancelledError):
            await tasks[first]

    for first in (0, 1) * 5:
        asyncio.run(main(first))
    assert queue.depth() == 0


def test_a_cancelled_aget_that_was_woken_passes_the_wake_up_on_to_a_thread(new):
    queue = new()
    for _ in range(30):
        with Threads() as threads, queue.subscribe() as one, queue.subscribe() as two:
            thread = threads.start(two.get, timeout=LONG)
            wait_asleep(thread)

            async def main(one=one):
                task = asyncio.create_task(one.aget())
                await parked(task)
                queue.put(7)
                task.cancel()
                try:
                    return await task
                except asyncio.CancelledError:
                    return None

            got = asyncio.run(main())
            if got is not None:
                assert got.ack()
                queue.put(8)
            assert thread.result().ack()
        assert queue.depth() == 0


def test_a_cancelled_aput_puts_nothing_and_passes_its_room_on(new):
    queue = new("q", maxsize=1)

    async def main(cancelled):
        queue.put(0)
        tasks = [asyncio.create_task(queue.aput(item)) for item in (1, 2)]
        await parked(*tasks)
        with queue.subscribe() as subscription:
            subscription.get(False).ack()
        tasks[cancelled].cancel()
        other = await within(tasks[1 - cancelled])
        assert other.item == 2 - cancelled
        with pytest.raises(asyncio.CancelledError):
            await tasks[cancelled]
        assert queue.purge() == 1

    for cancelled in (0, 1):
        asyncio.run(main(cancelled))


def test_cancelling_in_a_storm_loses_nothing(new):
    queue = new("q", maxsize=5)
    total = 800
    taken = []

    async def impatient(subscription, delay):
        while len(taken) < total:
            try:
                entry = await asyncio.wait_for(subscription.aget(), delay)
            except TimeoutError:
                await asyncio.sleep(0)
                continue
            taken.append(entry.item)
            assert entry.ack()

    async def main():
        async with asyncio.timeout(LONG):
            await asyncio.gather(*(impatient(queue.subscribe(), n / 4000) for n in range(4)))

    with Threads() as threads:
        threads.start(queue.put_many, range(total))
        asyncio.run(main())
    assert sorted(taken) == list(range(total))
    assert queue.depth() == 0


def abandon(coroutine):
    """Close a loop while the coroutine waits in it."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # ignores "Task was destroyed but it is pending!"
    task = loop.create_task(coroutine)
    loop.run_until_complete(parked(task))
    loop.close()
    return task


def test_a_getter_of_a_closed_loop_is_skipped(new):
    queue = new()
    abandoned, subscription = queue.subscribe(), queue.subscribe()
    task = abandon(abandoned.aget())
    with Threads() as threads:
        getter = threads.start(subscription.get)
        wait_asleep(getter)
        queue.put(1)
        assert getter.result().item == 1
    assert not task.done()
    del task
    gc.collect()
    queue.put(2)
    assert abandoned.get(False).item == 2


def test_a_putter_of_a_closed_loop_is_skipped(new, keep):
    queue = new("q", maxsize=1)
    queue.put(0)
    task = abandon(queue.aput(99))
    with Threads() as threads:
        putter = threads.start(queue.put, 1)
        wait_asleep(putter)
        keep(queue.subscribe()).get(False).ack()
        assert putter.result().item == 1
    assert not task.done()


def test_a_woken_getter_whose_loop_closes_before_it_runs_passes_the_wake_up_on(new):
    queue = new()
    one, two = queue.subscribe(), queue.subscribe()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    task = loop.create_task(one.aget())
    loop.run_until_complete(parked(task))
    with Threads() as threads:
        getter = threads.start(two.get)
        wait_asleep(getter)
        queue.put(1)
        loop.close()
        del task
        gc.collect()
        assert getter.result().item == 1


def test_a_closed_loop_passes_a_wake_up_to_a_coroutine_that_waits_twice_in_the_queue():
    """Passing it on notifies both subscriptions of a Consumer, so its coroutine is posted twice in a row."""
    queue, origin = EntryQueue(), object()

    async def main(consumer):
        for _ in range(2):
            consumer.subscribe(queue, origin=origin)        # the first entry does not suit these
        getter = asyncio.create_task(consumer.aget())
        await parked(getter)
        queue.put(1, origin=origin)
        await parked(getter)
        queue.put(2)
        return (await within(getter)).item

    with queue.subscribe() as abandoned, Consumer() as consumer:
        task = abandon(abandoned.aget())
        assert asyncio.run(main(consumer)) == 2
        assert not task.done()


def test_several_loops_and_threads_share_a_queue():
    queue = EntryQueue(maxsize=8)
    total, loops = 300, 3
    taken = []

    async def produce(start):
        for item in range(start, start + total):
            await queue.aput(item)

    async def consume(subscription):
        async for entry in subscription:
            if entry.item % 11 == 0 and not entry.redelivered:
                assert entry.release()
            else:
                taken.append(entry.item)
                assert entry.ack()

    def run(n):
        async def main():
            async with asyncio.timeout(LONG):
                with queue.subscribe() as subscription:
                    consumer = asyncio.create_task(consume(subscription))
                    await produce(n * 1000)
                    await until(lambda: len(taken) == loops * total)
                    queue.shutdown()
                    await consumer

        asyncio.run(main())

    with Threads() as threads:
        for task in [threads.start(run, n) for n in range(loops)]:
            task.result()
    assert sorted(taken) == sorted(n * 1000 + item for n in range(loops) for item in range(total))


def test_a_timed_out_aget_raises_what_the_loop_raises(new):
    subscription = new().subscribe()

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(subscription.aget(), 0.002)

    asyncio.run(main())
    with pytest.raises(Empty):
        subscription.get(False)
    wait_until(lambda: subscription.interest == "interested")
