"""The coroutines of entry queues on trio: they wait, threads wake them, and a cancelled one loses nothing."""
import random

import outcome
import pytest
import trio
from support.counts import count
from support.event_loops import within
from support.threads import DEADLINE, LONG, Threads, wait_until

from manytail import Consumer, EntryQueue, ShutDown

CANCELLATIONS = count(300, 5_000)


def getters_of(queue):
    """What gets entries of a queue: a subscription, a Consumer, and a subscription of one."""
    consumer = Consumer()
    return {"subscription": queue.subscribe(), "consumer": consumer, "of a consumer": consumer.subscribe(queue)}


@pytest.mark.parametrize("who", ["subscription", "consumer", "of a consumer"])
def test_a_waiting_aget_is_served_by_a_put_of_a_thread(new, who):
    queue = new()
    getters = getters_of(queue)
    for others in getters.keys() - {who, "consumer", "of a consumer"}:
        getters[others].suspend()
    for item in range(3):
        with Threads() as threads:
            loop = threads.start(within, getters[who].aget)
            queue.put(item)
            entry = loop.result()
        assert entry.item == item
        assert entry.ack()
    getters["subscription"].close()
    getters["consumer"].close()


def test_a_waiting_aput_is_served_by_an_ack_of_a_thread(new, keep):
    queue = new("q", maxsize=1)
    subscription = keep(queue.subscribe())
    queue.put(1)
    with Threads() as threads:
        loop = threads.start(within, queue.aput, 2)
        assert subscription.get(timeout=DEADLINE).ack()
        assert loop.result().item == 2


def test_shutdown_reaches_a_waiting_coroutine(new, keep):
    queue = new()
    subscription = keep(queue.subscribe())
    with Threads() as threads:
        loop = threads.start(within, subscription.aget)
        queue.shutdown()
        assert isinstance(loop.outcome(), ShutDown)


def test_each_call_is_a_checkpoint_and_a_cancelled_one_has_done_nothing(new):
    queue = new()
    queue.put(1)
    getters = getters_of(queue)

    async def main():
        for call in (*(getter.aget for getter in getters.values()), lambda: queue.aput(2)):
            with trio.CancelScope() as scope:
                scope.cancel()
                await call()
            assert scope.cancelled_caught

    within(main)
    stats = queue.stats()
    assert (stats.enqueued, stats.delivered, stats.available) == (1, 0, 1)
    getters["subscription"].close()
    getters["consumer"].close()


def test_a_getter_of_a_finished_trio_is_skipped(keep):
    """The run ends while the getter waits in it: another waiter gets the entry."""
    queue = EntryQueue()
    skipped, subscription = keep(queue.subscribe()), keep(queue.subscribe())
    coroutine = skipped.aget()

    async def main():
        coroutine.send(None)  # to its checkpoint
        coroutine.send(outcome.Value(None))  # it waits in this run, and is never resumed

    trio.run(main)
    with Threads() as threads:
        getter = threads.start(subscription.get, timeout=LONG)
        queue.put(1)
        assert getter.result().ack()
    coroutine.close()


@pytest.mark.parametrize("who", ["subscription", "consumer", "of a consumer"])
@pytest.mark.parametrize("immediate", [False, True], ids=["put", "immediate"])
def test_cancelled_agets_lose_no_entry(who, immediate):
    """Cancelled at any moment, also after an entry was handed over: each entry that was put is got exactly once."""
    queue = EntryQueue()
    getters = getters_of(queue)
    spared, got, put, random_ = getters[who], [], 0, random.Random(7)
    for name, getter in getters.items():
        if name != who and {name, who} != {"consumer", "of a consumer"}:
            getter.suspend()

    async def get(scope):
        with scope:
            entry = await spared.aget()
            got.append(entry.item)
            assert entry.ack()

    async def main():
        nonlocal put
        for n in range(CANCELLATIONS):
            scope = trio.CancelScope()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(get, scope)
                for _ in range(random_.randrange(4)):
                    await trio.lowlevel.checkpoint()
                put += queue.put(n, immediate=immediate) is not None
                for _ in range(random_.randrange(3)):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

    within(main)
    while queue.qsize():
        entry = spared.get(timeout=DEADLINE)
        got.append(entry.item)
        assert entry.ack()
    assert len(got) == len(set(got)) == put
    wait_until(lambda: queue.depth() == 0)
    getters["subscription"].close()
    getters["consumer"].close()
