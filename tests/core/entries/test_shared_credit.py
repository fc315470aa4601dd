"""The credit of a Consumer, which its subscriptions share, and who waits in the other queues of that Consumer.

While a Consumer has credit, it outranks subscriptions of lower priority in each of its queues. When its credit is used
up in one queue, the entries of all others are free for them.
"""
import asyncio
import threading
from queue import Empty

import pytest
from support.counts import count_of_races
from support.event_loops import in_every_kind_of_loop
from support.threads import DEADLINE, LONG, Threads, run_all, switching_often, wait_asleep, wait_until

from manytail import Consumer, EntryQueue

pytestmark = pytest.mark.thread_unsafe(reason="each test has queues of its own, but not each of its threads")


class TwoQueues:
    """A Consumer of two queues, with an entry in the second, and a subscription of lower priority to the second."""

    def __init__(self, prefetch=1, **options):
        self.first, self.second = EntryQueue("first"), EntryQueue("second")
        self.consumer = Consumer(prefetch=prefetch, priority=10)
        self.of_first = self.consumer.subscribe(self.first, **options)
        self.of_second = self.consumer.subscribe(self.second, **options)
        self.lower = self.second.subscribe()
        self.second.put("x")


@pytest.fixture(params=[{}, {"selector": lambda entry: True}], ids=["unfiltered", "filtered"])
def two(request):
    two = TwoQueues(**request.param)
    yield two
    two.consumer.close()
    two.lower.close()


def of_get(two):
    two.first.put("y")
    return two.consumer.get(False)


def of_get_of_one_queue(two):
    two.first.put("y")
    return two.of_first.get(False)


def of_get_many(two):
    two.first.put("y")
    return two.consumer.get_many(5, False)[0]


def of_aget(two):
    two.first.put("y")
    return asyncio.run(asyncio.wait_for(two.of_first.aget(), DEADLINE))


def of_put_immediate(two):
    with Threads() as threads:
        getter = threads.start(two.of_first.get, timeout=LONG)
        wait_until(lambda: two.first.put("y", immediate=True) is not None)
        return getter.result()


TAKES = [of_get, of_get_of_one_queue, of_get_many, of_aget, of_put_immediate]


@pytest.mark.parametrize("take", TAKES, ids=lambda take: take.__name__)
def test_a_credit_used_up_in_one_queue_wakes_who_is_outranked_in_another(two, take):
    with Threads() as threads:
        getter = threads.start(two.lower.get, timeout=LONG)
        wait_asleep(getter)
        taken = take(two)
        assert taken.item == "y"
        assert getter.result().item == "x"


@in_every_kind_of_loop
def test_it_wakes_a_coroutine_too(two):
    async def main():
        getter = asyncio.create_task(two.lower.aget())
        for _ in range(3):
            await asyncio.sleep(0)
        taken = of_get(two)
        entry = await asyncio.wait_for(getter, DEADLINE)
        return taken.item, entry.item

    assert asyncio.run(main()) == ("y", "x")


def test_only_the_last_credit_does():
    two = TwoQueues(prefetch=2)
    two.first.put_many(["y", "z"])
    with two.consumer, two.lower, Threads() as threads:
        getter = threads.start(two.lower.get, timeout=LONG)
        wait_asleep(getter)
        held = two.of_first.get(False)
        with pytest.raises(Empty):
            two.lower.get(False)
        held = [held, two.of_first.get(False)]
        assert getter.result().item == "x"
        assert [entry.item for entry in held] == ["y", "z"]


def test_a_queue_added_when_the_credit_is_used_up_is_not_outranked():
    two, third = TwoQueues(), EntryQueue("third")
    taken = of_get(two)
    with two.consumer, two.lower, third.subscribe() as lower:
        two.consumer.subscribe(third)
        third.put("z")
        assert lower.get(False).item == "z"
        assert taken.ack()


def test_a_credit_that_comes_back_outranks_again_in_each_queue(two):
    taken = of_get(two)
    assert taken.ack()
    with pytest.raises(Empty):
        two.lower.get(False)
    assert two.consumer.get(False).item == "x"


def test_suspending_wakes_in_each_queue_and_resuming_outranks_again(two):
    with Threads() as threads:
        getter = threads.start(two.lower.get, timeout=LONG)
        wait_asleep(getter)
        two.consumer.suspend()
        assert getter.result().release()
        two.consumer.resume()
        with pytest.raises(Empty):
            two.lower.get(False)


def test_one_that_lingers_in_one_queue_returns_when_the_credit_is_used_up_in_another():
    two = TwoQueues(prefetch=2)
    with two.consumer, two.lower, Threads() as threads:
        getter = threads.start(two.of_second.get_many, 2, linger=LONG)
        wait_until(lambda: two.consumer.unacked == 1)
        wait_asleep(getter)
        taken = of_get_of_one_queue(two)
        assert [entry.item for entry in getter.result()] == ["x"]
        assert taken.item == "y"


def test_one_that_waits_in_one_queue_sees_what_comes_after_credit_has_gone_and_come_back():
    """While another thread has its last credit, its subscription is idle, and a put passes it over."""
    two = TwoQueues()
    with two.consumer, two.lower, Threads() as threads:
        assert two.consumer.get(False).ack()
        getter = threads.start(two.of_second.get)
        wait_asleep(getter)
        taken = of_get_of_one_queue(two)
        other = two.second.put("passed over")
        assert two.lower.get(False) == other
        assert taken.ack()
        two.second.put("z")
        assert getter.result().item == "z"


def test_gets_of_several_queues_never_exceed_the_credit():
    """Two threads get of two queues at the same moment. No lock of a queue keeps them apart. There is one credit."""
    rounds = count_of_races(200, 50_000)
    made = [EntryQueue("a"), EntryQueue("b")]
    together = threading.Barrier(2)
    with Consumer(prefetch=1) as consumer, switching_often():
        subscriptions = [consumer.subscribe(queue) for queue in made]
        for queue in made:
            queue.put(1)

        def get(subscription):
            got, unacked = 0, set()
            for _ in range(rounds):
                together.wait(DEADLINE)
                entry = get_nowait(subscription)
                together.wait(DEADLINE)
                unacked.add(consumer.unacked)
                together.wait(DEADLINE)
                if entry is not None:
                    got += 1
                    entry.release()
            return got, unacked

        (one, unacked), (other, _) = run_all(*[lambda of=subscription: get(of) for subscription in subscriptions])
        assert unacked == {1}
        assert one + other == rounds
        assert consumer.unacked == 0


def get_nowait(subscription):
    try:
        return subscription.get(False)
    except Empty:
        return None
