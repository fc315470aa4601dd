"""get_many(linger=...) of a Subscriber at the bound of its queue, and beside others who get from the same subscriber.

tests/contract/test_linger.py has what holds for every structure.
"""
import pytest
from support.threads import LONG, Threads, wait_asleep, wait_until

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
def test_what_it_has_taken_makes_room():
    """More than the bound comes into one batch."""
    queue = PubSubQueue(maxsize=3)
    with queue.subscribe() as subscriber, Threads() as threads:
        publisher = threads.start(queue.publish_many, range(20), timeout=LONG)
        assert subscriber.get_many(20, linger=LONG) == list(range(20))
        assert publisher.result() == 20


@pytest.mark.parametrize(("before", "after"), [(0, 2), (9, 2), (3, 100)])
def test_another_bound_does_not_end_it(before, after):
    queue = PubSubQueue(maxsize=before)
    with queue.subscribe() as subscriber, Threads() as threads:
        queue.publish_many(range(2))
        getter = threads.start(subscriber.get_many, 5, linger=LONG)
        asleep(getter)
        queue.maxsize = after
        asleep(getter)
        queue.publish_many([2, 3, 4])
        assert getter.result() == list(range(5))


def test_a_slower_subscriber_that_missed_messages_is_told_first():
    queue = PubSubQueue(maxsize=2, slow="drop_oldest")
    with queue.subscribe() as subscriber:
        queue.publish_many(range(5))
        with pytest.raises(Lagged) as lagged:
            subscriber.get_many(2, linger=LONG)
        assert lagged.value.missed == 3
        assert subscriber.get_many(2, linger=LONG) == [3, 4]


def test_one_that_misses_messages_later_returns_what_it_has_and_the_next_get_is_told():
    """The next get may be waiting already."""
    queue = PubSubQueue(maxsize=2, slow="drop_oldest")
    with queue.subscribe() as subscriber, Threads() as threads:
        queue.publish(0)
        several = threads.start(subscriber.get_many, 10**9, linger=LONG)
        wait_until(lambda: not subscriber.lag, "it lingers")
        wait_asleep(several)
        one = threads.start(subscriber.get, timeout=LONG)
        wait_asleep(one)
        while several.is_alive():  # without the GIL it may keep up with some
            queue.publish_many(range(100))
            asleep(several)
        assert several.result()[0] == 0
        if not isinstance(one.outcome(), Lagged):  # a message came to it first
            with pytest.raises(Lagged):
                subscriber.get(block=False)


# ------------------------------------------------------------------------------------------------ beside others


def test_each_message_goes_to_one_of_those_who_wait_whether_for_one_or_for_several(queue, subscriber):
    with Threads() as threads:
        several = threads.start(subscriber.get_many, 3, linger=LONG)
        wait_asleep(several)
        one = threads.start(subscriber.get, timeout=LONG)
        wait_asleep(one)
        queue.publish_many(range(4))
        assert sorted([*several.result(), one.result()]) == [0, 1, 2, 3]
