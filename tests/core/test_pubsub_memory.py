"""What a PubSubQueue keeps and frees: a message is freed at once when its last subscriber is past it; cycles, deep
nests, reference counts."""
import gc
import sys
import threading
import warnings
import weakref
from contextlib import suppress
from queue import Empty, Full

import pytest
from support.threads import DEADLINE, LONG, Threads, run_all, wait_asleep

from manytail import PubSubQueue, ShutDown

GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
collecting = pytest.mark.thread_unsafe(reason="counts references and objects of the whole process")


class Message:
    """An object that can be weakly referenced."""


def gone(reference):
    """Whether the referent is freed. Runs the collector where reference counts may be deferred."""
    if reference() is not None:
        gc.collect()
    return reference() is None


def published(queue):
    message = Message()
    queue.publish(message)
    return weakref.ref(message)


# ------------------------------------------------------------------------------------------------ messages
def test_without_subscribers_a_message_is_not_kept():
    queue = PubSubQueue()
    assert gone(published(queue))
    queue.subscribe().close()
    assert gone(published(queue))


@pytest.mark.parametrize("past", ["get", "get_many", "close", "shutdown", "drop"])
def test_a_message_goes_when_the_last_expected_subscriber_is_past_it(past):
    queue = PubSubQueue(maxsize=1, slow="drop_oldest")
    first, last = queue.subscribe(), queue.subscribe()
    ref = published(queue)
    first.get()
    assert not gone(ref)
    if past == "get":
        last.get()
    elif past == "get_many":
        last.get_many(3)
    elif past == "close":
        last.close()
    elif past == "shutdown":
        queue.shutdown(immediate=True)
    else:
        queue.publish(1)
    assert gone(ref)
    first.close()
    last.close()


def test_messages_go_one_by_one_and_not_chunk_by_chunk():
    queue = PubSubQueue()
    with queue.subscribe() as a, queue.subscribe() as b:
        refs = [published(queue) for _ in range(200)]
        a.get_many(200)
        for i in range(200):
            assert not gone(refs[i]) if i % 40 == 0 else True
            b.get()
            assert gone(refs[i])


def test_a_subscriber_that_goes_while_an_exception_is_raised_leaves_it_alone():
    queue = PubSubQueue()

    def fail():
        subscriber = queue.subscribe()
        subscriber.publish("no such method")

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(AttributeError, match="publish"):
            fail()
    gc.collect()
    assert [it.category for it in warned] == [ResourceWarning] or not GIL
    assert queue.subscribers == 0


@collecting
def test_no_message_stays_whatever_meets_whatever():
    queue, alive = PubSubQueue(maxsize=50), weakref.WeakSet()

    def publish():
        for _ in range(400):
            message = Message()
            alive.add(message)
            queue.publish(message)

    def visit():
        for n in range(60):
            with queue.subscribe(start=["next", "oldest"][n % 2]) as subscriber, suppress(Empty):
                subscriber.get_many(20, timeout=0.001)

    def consume():
        for _ in range(1200):
            keep.get(timeout=LONG)

    with queue.subscribe() as keep:
        run_all(*[publish] * 3, *[visit] * 2, consume)
    gc.collect()
    assert (queue.qsize(), len(alive)) == (0, 0)


# ------------------------------------------------------------------------------------------------ references
@collecting
@pytest.mark.skipif(not GIL, reason="counts are deferred and split without the GIL")
def test_not_one_reference_is_lost_or_leaked():
    message = Message()
    before = sys.getrefcount(message)
    queue = PubSubQueue(maxsize=4, slow="raise")
    a, b = queue.subscribe(), queue.subscribe()
    for _ in range(50):
        queue.publish(message)
        assert sys.getrefcount(message) == before + 1
        assert a.get() is b.get() is message
        queue.publish_many([message] * 3)
        with pytest.raises(Full):
            queue.publish_many([message] * 3)
        with pytest.raises(Full):
            queue.publish(message)
        assert a.get_many(9) == b.get_many(9) == [message] * 4
        with pytest.raises(Empty):
            a.get(block=False)
        queue.publish(message)
        with queue.subscribe(start="oldest") as c:
            assert c.get() is message
        a.get()
        queue.publish_many(iter([message, message]))
        b.close()
        b = queue.subscribe()
        a.get_many(1)
        a.close()
        a = queue.subscribe()
        assert sys.getrefcount(message) == before
    queue.publish_many([message, message])
    queue.shutdown(immediate=True)
    with pytest.raises(ShutDown):
        queue.publish(message)
    with pytest.raises(ShutDown):
        queue.publish_many([message])
    assert sys.getrefcount(message) == before
    a.close()
    b.close()


@pytest.mark.parametrize("publish", [PubSubQueue.publish, lambda queue, item: queue.publish_many([item])])
def test_getters_are_woken_before_a_dropped_message_is_finalized(publish):
    came, finalized = threading.Event(), []

    class Dropped:
        def __del__(self):
            finalized.append(came.wait(DEADLINE))

    def get():
        message = fast.get()
        came.set()
        return message

    queue = PubSubQueue(maxsize=1, slow="drop_oldest")
    with queue.subscribe(), queue.subscribe() as fast, Threads() as threads:
        queue.publish(Dropped())
        fast.get()
        getter = threads.start(get)
        wait_asleep(getter)
        publish(queue, "new")
        assert getter.result() == "new"
    assert finalized == [True]
