"""get_many(linger=...) of a Subscription and of a Consumer: what ends the wait; an exception releases everything."""

import time
from contextlib import contextmanager
from queue import Empty

import pytest
from support.threads import LONG, Threads, acting_when, ctrl_c, wait_asleep, wait_until

from manytail import ClosedError, Consumer, EntryQueue, ShutDown

SHORT = 0.003
pytestmark = pytest.mark.thread_unsafe(reason="signals")


def of_subscription(queue, prefetch=0):
    return queue.subscribe(prefetch=prefetch)


def of_consumer(queue, prefetch=0):
    consumer = Consumer(prefetch=prefetch)
    consumer.subscribe(queue)
    return consumer


def of_consumers_subscription(queue, prefetch=0):
    """Gets through one of a Consumer's subscriptions."""
    consumer = Consumer(prefetch=prefetch)
    subscription = consumer.subscribe(queue)
    alive.append(consumer)
    return subscription


alive = []


@pytest.fixture(params=[of_subscription, of_consumer, of_consumers_subscription], ids=lambda make: make.__name__)
def make(request):
    made = []

    def make(queue, prefetch=0):
        made.append(request.param(queue, prefetch))
        return made[-1]

    yield make
    for one in made + alive:
        one.close()
    alive.clear()


def items(entries):
    return [entry.item for entry in entries]


def holds(queue, n):
    wait_until(lambda: queue.stats().acquired == n, f"{n} acquired, {queue.stats()}")


@contextmanager
def lingering(getter, queue, n):
    """A thread that lingers in get_many(n), and holds the only entry of the queue."""
    queue.put(1)
    with Threads() as threads:
        task = threads.start(getter.get_many, n, linger=LONG)
        holds(queue, 1)
        yield task


def test_it_ends_when_max_items_are_there(make):
    queue = EntryQueue()
    getter = make(queue)
    with lingering(getter, queue, 3) as task:
        queue.put_many([2, 3])
        assert items(task.result()) == [1, 2, 3]


def test_it_ends_when_its_time_is_over_and_returns_what_came(make):
    queue = EntryQueue()
    getter = make(queue)
    queue.put_many([1, 2])
    began = time.monotonic()
    assert items(getter.get_many(5, linger=SHORT)) == [1, 2]
    assert time.monotonic() - began >= SHORT
    assert getter.unacked == 2


def test_the_timeout_ends_it_too(make):
    queue = EntryQueue()
    getter = make(queue)
    queue.put(1)
    assert items(getter.get_many(5, timeout=SHORT, linger=LONG)) == [1]
    with pytest.raises(Empty):
        getter.get_many(5, timeout=SHORT, linger=LONG)


def test_the_end_of_the_credit_ends_it(make):
    queue = EntryQueue()
    getter = make(queue, prefetch=2)
    queue.put_many([1, 2, 3])
    assert items(getter.get_many(5, linger=LONG)) == [1, 2]


def test_a_credit_that_another_thread_uses_up_ends_it(make):
    queue = EntryQueue()
    getter = make(queue, prefetch=2)
    with lingering(getter, queue, 5) as task:
        wait_asleep(task)
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
        wait_asleep(task)
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
        wait_asleep(task)
        subscription.prefetch = 1
        assert items(task.result()) == [1]


@pytest.mark.parametrize("immediate", [False, True])
def test_a_shutdown_ends_it(make, immediate):
    queue = EntryQueue()
    getter = make(queue)
    with lingering(getter, queue, 5) as task:
        queue.shutdown(immediate)
        entries = task.result()
    assert items(entries) == [1]
    assert entries[0].ack()
    with pytest.raises(ShutDown):
        getter.get_many(5, linger=LONG)


def test_closing_ends_it(make):
    queue = EntryQueue()
    getter = make(queue)
    with lingering(getter, queue, 5) as task:
        getter.close()
        assert items(task.result()) == [1]
    with pytest.raises(ClosedError):
        getter.get_many(5, linger=LONG)


def test_an_exception_releases_everything(make):
    queue = EntryQueue()
    getter = make(queue)
    queue.put_many([1, 2, 3])
    with acting_when(lambda: queue.stats().acquired == 3, ctrl_c), pytest.raises(KeyboardInterrupt):
        getter.get_many(5, linger=LONG)
    assert (queue.qsize(), getter.unacked, queue.stats().released) == (3, 0, 3)
    assert items(getter.get_many(5)) == [1, 2, 3]


def test_block_false_ignores_it(make):
    queue = EntryQueue()
    getter = make(queue)
    queue.put(1)
    assert items(getter.get_many(5, block=False, linger=LONG)) == [1]
    assert getter.get_many(0, linger=LONG) == []


@pytest.mark.parametrize(
    ("linger", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError), (None, TypeError)]
)
def test_a_bad_linger_is_refused(make, linger, error):
    queue = EntryQueue()
    getter = make(queue)
    queue.put(1)
    with pytest.raises(error, match=r"linger=.*expected"):
        getter.get_many(5, linger=linger)
    assert queue.qsize() == 1
