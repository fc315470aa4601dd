"""get_many(linger=...) of a Subscriber at the bound of its queue, and beside others who get from the same subscriber.

tests/contract/test_linger.py has what holds for every structure.
"""
from queue import Full

import pytest
from support.threads import LONG, Threads

from manytail import Lagged, PubSubQueue

SHORT = 0.003
pytestmark = pytest.mark.thread_unsafe(reason="signals")


@pytest.fixture
def queue():
    return PubSubQueue()


@pytest.fixture
def subscriber(queue):
    with queue.subscribe() as one:
        yield one


def asleep(task):
    """Let the thread go on until it waits, if it does. No test needs it to."""
    task.join(SHORT)


# ------------------------------------------------------------------------------------------------ at the bound
def test_it_does_not_wait_for_more_than_the_bound_allows():
    queue = PubSubQueue(maxsize=3)
    with queue.subscribe() as subscriber, Threads() as threads:
        publisher = threads.start(queue.publish_many, range(9), timeout=LONG)
        assert [subscriber.get_many(100, linger=LONG) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        assert publisher.result() == 9


@pytest.mark.parametrize(("before", "after"), [(0, 2), (9, 2), (9, 3)])
def test_a_bound_that_is_lowered_ends_it(before, after):
    queue = PubSubQueue(maxsize=before)
    with queue.subscribe() as subscriber, Threads() as threads:
        queue.publish_many(range(2))
        getter = threads.start(subscriber.get_many, 100, linger=LONG)
        asleep(getter)
        queue.maxsize = after
        if after > 2:
            asleep(getter)
            queue.publish(2)
        assert getter.result() == list(range(after))
        with pytest.raises(Full):
            queue.publish_many(range(after + 1), block=False)


def test_a_bound_that_is_raised_lets_it_wait_for_more():
    queue = PubSubQueue(maxsize=3)
    with queue.subscribe() as subscriber, Threads() as threads:
        queue.publish(0)
        getter = threads.start(subscriber.get_many, 5, linger=LONG)
        asleep(getter)
        queue.maxsize = 100
        queue.publish_many([1, 2, 3])
        asleep(getter)
        queue.publish(4)
        assert getter.result() == [0, 1, 2, 3, 4]


def test_a_slower_subscriber_that_missed_messages_is_told_first():
    queue = PubSubQueue(maxsize=2, slow="drop_oldest")
    with queue.subscribe() as subscriber:
        queue.publish_many(range(5))
        with pytest.raises(Lagged) as lagged:
            subscriber.get_many(2, linger=LONG)
        assert lagged.value.missed == 3
        assert subscriber.get_many(2, linger=LONG) == [3, 4]


# ------------------------------------------------------------------------------------------------ beside others


def test_a_message_that_woke_who_waits_for_several_goes_to_who_waits_for_one(queue, subscriber):
    """Usually both sleep when it comes, the one that waits for several first."""
    with Threads() as threads:
        several = threads.start(subscriber.get_many, 3, linger=LONG)
        asleep(several)
        one = threads.start(subscriber.get, timeout=LONG)
        asleep(one)
        queue.publish(0)
        assert one.result() == 0
        queue.publish_many([1, 2, 3])
        assert several.result() == [1, 2, 3]
