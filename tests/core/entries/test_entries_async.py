"""What the coroutines of entry queues have of their own: tests/contract/test_async.py asks those of every class."""
import asyncio
import gc
import time
import weakref

import pytest
from support.event_loops import in_every_kind_of_loop
from support.threads import DEADLINE, wait_until

from manytail import Consumer, EntryQueue, LastValueQueue, SortedEntryQueue

pytestmark = in_every_kind_of_loop


async def within(awaitable):
    return await asyncio.wait_for(awaitable, DEADLINE)


async def parked(*tasks):
    """Return when the tasks have run until they wait: nothing else runs in this loop."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


@pytest.mark.parametrize("option", ["block", "timeout"])
def test_aput_refuses_what_only_put_has(new, option):
    queue = new()
    with pytest.raises(TypeError, match=option):
        asyncio.run(queue.aput(1, **{option: 1}))
    assert queue.depth() == 0


@pytest.mark.parametrize("new", [SortedEntryQueue, LastValueQueue])
def test_an_aput_that_waits_asks_the_key_function_once(new, keep):
    asked = []
    queue = new("q", maxsize=1, key=lambda item: asked.append(item) or item)
    subscription = keep(queue.subscribe())

    async def main():
        waiting = {asyncio.create_task(queue.aput(item)) for item in (1, 2)}
        await parked(*waiting)
        while waiting:                  # with a free slot for one of those that wait: the other finds it taken
            subscription.get(False).ack()
            done, waiting = await asyncio.wait(waiting, timeout=DEADLINE, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1

    queue.put(0)
    asyncio.run(main())
    assert sorted(asked) == [0, 1, 2]


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


def abandon(coroutine):
    """Close a loop while the coroutine waits in it."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # ignores "Task was destroyed but it is pending!"
    task = loop.create_task(coroutine)
    loop.run_until_complete(parked(task))
    loop.close()
    return task


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
