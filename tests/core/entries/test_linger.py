"""get_many(linger=...) ends with a credit or an interest. What else ends it: tests/contract/test_linger.py."""
from contextlib import contextmanager
from queue import Empty

import pytest
from support.threads import LONG, Threads, wait_asleep, wait_until

from manytail import Consumer, EntryQueue


@pytest.fixture(params=["subscription", "consumer", "of a consumer"])
def make(request):
    """Makes what gets from a queue."""
    made = []

    def make(queue, prefetch=0):
        if request.param == "subscription":
            subscription = queue.subscribe(prefetch=prefetch)
            made.append(subscription)
            return subscription
        consumer = Consumer(prefetch=prefetch)
        made.append(consumer)
        subscription = consumer.subscribe(queue)
        return consumer if request.param == "consumer" else subscription

    yield make
    for one in made:
        one.close()


def items(entries):
    return [entry.item for entry in entries]


@contextmanager
def lingering(getter, queue, n):
    """A thread that lingers in get_many(n), and holds the only entry of the queue."""
    queue.put(1)
    with Threads() as threads:
        task = threads.start(getter.get_many, n, linger=LONG)
        wait_until(lambda: queue.stats().acquired == 1, "it holds the entry")
        wait_asleep(task)
        yield task


def test_the_end_of_the_credit_ends_it(make):
    queue = EntryQueue()
    getter = make(queue, prefetch=2)
    queue.put_many([1, 2, 3])
    assert items(getter.get_many(5, linger=LONG)) == [1, 2]


def test_a_credit_that_another_thread_uses_up_ends_it(make):
    queue = EntryQueue()
    getter = make(queue, prefetch=2)
    with lingering(getter, queue, 5) as task:
        queue.put(2)
        try:
            taken = [getter.get(False)]
        except Empty:  # the one that lingers was faster
            taken = []
        assert items(task.result()) + items(taken) == [1, 2]


def test_suspending_ends_it(make):
    queue = EntryQueue()
    getter = make(queue)
    with lingering(getter, queue, 5) as task, Threads() as threads:
        getter.suspend()
        assert items(task.result()) == [1]
        waiting = threads.start(getter.get)
        wait_asleep(waiting)
        queue.put(2)
        getter.resume()
        assert waiting.result().item == 2


def test_a_smaller_prefetch_ends_it():
    queue = EntryQueue()
    with queue.subscribe(prefetch=2) as subscription, lingering(subscription, queue, 5) as task:
        subscription.prefetch = 1
        assert items(task.result()) == [1]
