"""The coroutines of the multi-queue on trio as on asyncio: they wait, threads wake them, cancellation loses nothing."""
import gc
import random
import sys
import threading
import types

import outcome
import pytest
import trio
import trio.testing
from support.counts import count
from support.event_loops import LIBRARIES, within
from support.queues import as_list
from support.threads import LONG, Threads, wait_getters, wait_putters

from manytail import MultiQueue, ShutDown

CANCELLATIONS = count(2_000, 10_000)


# ------------------------------------------------------------------------------------------------ same meaning
def test_another_thread_may_be_importing_asyncio(monkeypatch, new_bulk):
    queue = new_bulk()
    queue.add("a").put_many([1, 2])
    # What a thread that imports it has put there so far.
    monkeypatch.setitem(sys.modules, "asyncio", types.ModuleType("asyncio"))
    assert [within(queue.aget), within(queue.aget)] == [1, 2]


def test_what_is_there_is_got_at_once(new_bulk):
    queue = new_bulk()
    tail = queue.add("a")

    async def main():
        await tail.aput(1)
        tail.put_many([2, 3, 4])
        got = [await queue.aget(), await queue.aget_with_key(), as_list(await queue.aget_many(9))]
        for _ in range(4):
            queue.task_done()
        await queue.ajoin()
        return got

    assert within(main) == [1, ("a", 2), [3, 4]]


def test_a_waiting_get_is_served_by_a_put_of_a_thread(new_bulk):
    queue = new_bulk()
    tail = queue.add("a")
    for call, expected in ((queue.aget, 7), (queue.aget_with_key, ("a", 7)), (lambda: queue.aget_many(5), [7])):
        with Threads() as threads:
            loop = threads.start(within, call)
            wait_getters(queue, 1)
            tail.put(7)
            result = loop.result()
        assert result == expected or as_list(result) == expected


def test_a_waiting_aput_is_served_by_a_get_of_a_thread(new):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(1)
    with Threads() as threads:
        loop = threads.start(within, tail.aput, 2)
        wait_putters(queue, 1)
        assert queue.get() == 1
        loop.result()
    assert queue.get() == 2


def test_a_waiting_ajoin_ends_with_the_last_task(new):
    queue = new()
    queue.add("a").put(1)

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.ajoin)
            await trio.testing.wait_all_tasks_blocked()
            queue.get()
            queue.task_done()

    within(main)


def test_shutdown_reaches_a_waiting_coroutine(new):
    queue = new()
    queue.add("a")
    with Threads() as threads:
        loop = threads.start(within, queue.aget)
        wait_getters(queue, 1)
        queue.shutdown()
        assert isinstance(loop.outcome(), ShutDown)


def test_each_call_is_a_checkpoint_and_a_cancelled_one_has_taken_nothing(new_bulk):
    queue = new_bulk()
    tail = queue.add("a")
    tail.put(1)

    async def main():
        for call in (queue.aget, queue.aget_with_key, lambda: queue.aget_many(1), lambda: tail.aput(2), queue.ajoin):
            with trio.CancelScope() as scope:
                scope.cancel()
                await call()
            assert scope.cancelled_caught

    within(main)
    assert queue.stats() == (1, 1, 1, 0, 0, 1, 0)


def test_outside_of_an_event_loop_they_say_so(new):
    queue = new()
    coroutine = queue.aget()
    with pytest.raises(RuntimeError, match="asyncio or trio"):
        coroutine.send(None)


# ------------------------------------------------------------------------------------------------ loops that end
def test_a_getter_of_a_finished_trio_is_skipped(new):
    """The run ends while the getter waits in it. Another waiter gets the item."""
    queue = new()
    tail = queue.add("a")
    coroutine = queue.aget()

    async def main():
        coroutine.send(None)  # runs to its checkpoint
        coroutine.send(outcome.Value(None))  # it waits in this run, and is never resumed

    trio.run(main)
    assert queue.stats().getters_waiting == 1
    with Threads() as threads:
        getter = threads.start(queue.get, timeout=LONG)
        wait_getters(queue, 2)
        tail.put(1)
        assert getter.result() == 1
    tail.put(2)
    assert queue.get() == 2
    coroutine.close()
    gc.collect()
    assert queue.stats().getters_waiting == 0


# ------------------------------------------------------------------------------------------------ cancelling
@pytest.mark.parametrize("library", LIBRARIES)
def test_random_cancellations_lose_no_item_and_no_wake_up(library):
    """Calls that are cancelled after a few iterations, a thread that puts, one that gets, and a small bound: all of
    them wait at times."""
    run, cancelled_after = LIBRARIES[library]
    queue = MultiQueue()
    tail = queue.add("a", maxsize=2)
    rng = random.Random(f"{library} {CANCELLATIONS}")
    put, got, from_thread = [], [], []
    over = threading.Event()

    def putter():
        for item in range(1 << 40, 1 << 41):
            if over.is_set():
                return
            tail.put(item, timeout=LONG)
            put.append(item)

    def getter():
        try:
            while True:
                from_thread.append(queue.get(timeout=LONG))
        except ShutDown:
            return

    async def main():
        for item in range(CANCELLATIONS):
            if rng.random() < 0.5:
                if await cancelled_after(tail.aput(item), rng.randrange(4)) is not None:
                    put.append(item)
            else:
                got.extend(await cancelled_after(queue.aget(), rng.randrange(4)) or [])

    with Threads() as threads:
        putting, getting = threads.start(putter), threads.start(getter)
        run(main)
        over.set()
        putting.result()
        queue.shutdown()
        getting.result()
    assert sorted(put) == sorted(got + from_thread)
    assert queue.stats()[3:5] == (0, 0)
