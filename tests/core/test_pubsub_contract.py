"""Every sentence of the contract of PubSubQueue, Subscriber and Lagged, in one thread or a few."""
import asyncio
import pickle
import threading
from queue import Empty, Full

import pytest
from support.event_loops import in_every_kind_of_loop
from support.queues import with_interrupt_pending
from support.threads import DEADLINE, LONG, Threads

from manytail import ClosedError, Lagged, ManytailError, PubSubQueue, PubSubStats, Subscriber


def drain(subscriber):
    items = []
    while True:
        try:
            items.append(subscriber.get(block=False))
        except Empty:
            return items


# ------------------------------------------------------------------------------------------------------ publish, get


def test_any_object_is_a_message_none_included():
    queue = PubSubQueue()
    with queue.subscribe() as subscriber:
        items = [None, queue, subscriber, 0, "", Exception("no"), [1]]
        for item in items:
            queue.publish(item)
        assert all(got is item for got, item in zip(drain(subscriber), items, strict=True))


# ------------------------------------------------------------------------------------------------ timeouts, arguments


@pytest.mark.parametrize("options", [{"maxsize": "1"}, {"maxsize": 1.5}, {"slow": 1}, {"slow": None}])
def test_bad_types(options):
    with pytest.raises(TypeError, match=next(iter(options))):
        PubSubQueue(**options)


def test_bad_values():
    with pytest.raises(ValueError, match="slow: 'wait'"):
        PubSubQueue(slow="wait")
    with pytest.raises(TypeError):
        PubSubQueue(5)
    queue = PubSubQueue()
    with pytest.raises(ValueError, match="start: 'first'"):
        queue.subscribe(start="first")
    with pytest.raises(TypeError, match="start"):
        queue.subscribe(start=1.0)
    assert queue.subscribers == 0
    with pytest.raises(TypeError, match="subscribe"):
        Subscriber()
    with queue.subscribe() as subscriber, pytest.raises(TypeError, match="max_items"):
        subscriber.get_many("3")


def test_a_queue_that_was_used_cannot_be_initialised():
    used = PubSubQueue.__new__(PubSubQueue)
    used.subscribe().close()
    with pytest.raises(RuntimeError, match="in use"):
        used.__init__(slow="raise")
    with used.subscribe() as subscriber:
        assert used.publish(1) == 0
        assert subscriber.get() == 1


def test_a_queue_made_by_new_alone_works_as_with_the_defaults():
    queue = PubSubQueue.__new__(PubSubQueue)
    assert repr(queue) == "<PubSubQueue of 0 subscribers, 0 messages retained>"
    with queue.subscribe() as subscriber:
        queue.publish_many(range(100))
        assert subscriber.get_many(100) == list(range(100))
    late = PubSubQueue.__new__(PubSubQueue)
    with pytest.raises(TypeError):
        late.__init__(maxsize="3")  # refused, so it does not count
    late.__init__(maxsize=3)
    assert late.maxsize == 3


@pytest.mark.parametrize("many", [False, True])
def test_drop_oldest_never_drops_more_than_the_bound_asks_for(many):
    """The bound may be removed after a publish found the queue full and before it drops a message."""
    bound = 500
    queue = PubSubQueue(maxsize=bound, slow="drop_oldest")
    stop = threading.Event()
    with queue.subscribe(), Threads() as threads:
        queue.publish_many(range(bound))

        def move():
            while not stop.is_set():
                queue.maxsize = 0
                queue.maxsize = bound

        def publish():
            for _ in range(20_000):
                if many:
                    queue.publish_many([1, 2])
                else:
                    queue.publish(1)
                stats = queue.stats()
                # While this thread counted what is retained, others may have published, and dropped, that many.
                since = queue.stats().published - stats.published
                assert stats.retained + since >= bound - 4, (stats, since)

        threads.start(move)
        publishers = [threads.start(publish) for _ in range(2)]
        outcomes = [publisher.outcome() for publisher in publishers]
        stop.set()
    assert outcomes == [None, None]


# ------------------------------------------------------------------------------------------------------------- start


@pytest.mark.parametrize("start", [-1, -2, -3, 9, 101, 2**62, -(2**62), 2**64, -(2**64)])
def test_start_that_is_not_retained(start):
    queue = PubSubQueue()
    with queue.subscribe() as first:
        queue.publish_many(list(range(100)))
        first.get_many(10)
        with pytest.raises(ValueError, match=f"start: {start}"):
            queue.subscribe(start=start)
        assert queue.subscribers == 1
        assert drain(first) == list(range(10, 100))
        assert queue.qsize() == 0


# -------------------------------------------------------------------------------------------------------------- slow


def test_block_goes_on_when_the_slowest_is_collected():
    queue = PubSubQueue(maxsize=1)
    slow = queue.subscribe()
    with queue.subscribe() as fast, Threads() as threads:
        queue.publish(0)
        assert fast.get() == 0
        waiting = threads.start(queue.publish, 1, timeout=LONG)
        with pytest.warns(ResourceWarning, match="unclosed <Subscriber at 0, 1 behind>"):
            del slow
        assert waiting.result() == 1
        assert fast.get() == 1


@in_every_kind_of_loop
def test_all_waiting_publishers_go_on_when_the_last_subscriber_leaves():
    """What they publish then is not retained: the slot that one is notified of is free for the next one, too."""

    async def main():
        queue = PubSubQueue(maxsize=2)
        with queue.subscribe():
            queue.publish_many([0, 1])
            publishers = [asyncio.create_task(queue.apublish(number)) for number in range(5)]
            await asyncio.sleep(0)
            assert not any(publisher.done() for publisher in publishers)
        assert sorted(await asyncio.gather(*publishers)) == [2, 3, 4, 5, 6]
        assert queue.qsize() == 0

    asyncio.run(asyncio.wait_for(main(), DEADLINE))


@in_every_kind_of_loop
def test_a_getter_that_lagged_leaves_the_message_to_another():
    """Two wait. The first is notified and gets Lagged; the second is notified of the messages that are there then."""

    async def main():
        queue = PubSubQueue(maxsize=1, slow="drop_oldest")
        with queue.subscribe() as subscriber:
            getters = [asyncio.create_task(subscriber.aget()) for _ in range(3)]
            await asyncio.sleep(0)
            queue.publish(0)
            queue.publish(1)
            await asyncio.wait(getters, return_when=asyncio.FIRST_EXCEPTION)
            queue.publish(2)
            ends = await asyncio.gather(*getters, return_exceptions=True)
        assert sorted(end for end in ends if not isinstance(end, Lagged)) == [1, 2]
        assert sum(end.missed for end in ends if isinstance(end, Lagged)) == 1

    asyncio.run(asyncio.wait_for(main(), DEADLINE))


def test_raise_raises_at_once_whatever_block_says():
    queue = PubSubQueue(maxsize=2, slow="raise")
    with queue.subscribe() as subscriber:
        queue.publish_many([0, 1])
        for arguments in [(), (True,), (True, LONG), (False,)]:
            with pytest.raises(Full):
                queue.publish(2, *arguments)
        with pytest.raises(Full):
            asyncio.run(queue.apublish(2))
        assert drain(subscriber) == [0, 1]
        assert queue.publish(2) == 2
        assert queue.stats().dropped == 0


def test_lagged_comes_before_anything_else_is_taken_and_in_every_way_of_getting():
    queue = PubSubQueue(maxsize=1, slow="drop_oldest")
    with queue.subscribe() as subscriber:
        for get in (
            subscriber.get,
            lambda: subscriber.get(False),
            lambda: subscriber.get_many(5),
            lambda: next(iter(subscriber)),
            lambda: asyncio.run(subscriber.aget()),
            lambda: subscriber.get(timeout=LONG),
        ):
            queue.publish_many([1, 2])
            with pytest.raises(Lagged) as caught:
                get()
            assert caught.value.missed == 1
            assert drain(subscriber) == [2]


def test_iteration_may_go_on_after_lagged():
    queue = PubSubQueue(maxsize=2, slow="drop_oldest")
    with queue.subscribe() as subscriber:
        queue.publish_many(list(range(5)))
        queue.shutdown()
        messages = iter(subscriber)
        with pytest.raises(Lagged):
            next(messages)
        assert list(messages) == [3, 4]


@pytest.mark.thread_unsafe(reason="signals are the process's")
def test_a_ctrl_c_that_comes_before_lagged_loses_no_count():
    queue = PubSubQueue(maxsize=1, slow="drop_oldest")
    with queue.subscribe() as subscriber:
        queue.publish_many([0, 1, 2])
        with pytest.raises(KeyboardInterrupt):
            with_interrupt_pending(subscriber.get)
        with pytest.raises(Lagged) as caught:
            subscriber.get()
        assert caught.value.missed == 2
        assert subscriber.get() == 2


def test_lagged_is_an_error_of_ours_that_pickles():
    error = pickle.loads(pickle.dumps(Lagged(3)))
    assert isinstance(error, ManytailError)
    assert error.missed == 3
    assert "3 messages" in str(error)


# ------------------------------------------------------------------------------------------------- close, sharing
def test_a_closed_subscriber_keeps_nothing_and_gives_nothing():
    queue = PubSubQueue()
    slow = queue.subscribe()
    queue.publish_many(range(1000))
    slow.get()
    slow.close()
    slow.close()
    assert queue.qsize() == 0
    assert (slow.closed, slow.position, slow.lag) == (True, 1, 0)
    for get in (slow.get, lambda: slow.get(False), lambda: slow.get_many(3), lambda: asyncio.run(slow.aget())):
        with pytest.raises(ClosedError):
            get()
    assert list(slow) == slow.get_many(0) == []


def test_the_context_manager_closes():
    queue = PubSubQueue()
    with pytest.raises(KeyError), queue.subscribe() as subscriber:
        raise KeyError
    assert subscriber.closed
    assert queue.subscribers == 0


# ---------------------------------------------------------------------------------------------------------- shutdown


@pytest.mark.parametrize("published", [0, 1, 9, 10, 11, 68, 69])
def test_shutdown_at_every_place_in_a_chunk(published):
    queue = PubSubQueue()
    with queue.subscribe() as subscriber:
        for item in range(published):
            queue.publish(item)
        queue.shutdown()
        assert list(subscriber) == list(range(published))


def test_who_subscribes_during_an_immediate_shutdown_gets_nothing():
    for _ in range(10):
        queue = PubSubQueue()
        subscribers = [queue.subscribe() for _ in range(2000)]
        queue.publish_many([1, 2, 3])
        begun, over = threading.Event(), threading.Event()

        def join(queue=queue, subscribers=subscribers, begun=begun, over=over):
            while not over.is_set():
                subscribers.append(queue.subscribe(start="oldest"))
                begun.set()

        with Threads() as threads:
            threads.start(join)
            begun.wait(LONG)
            queue.shutdown(immediate=True)
            over.set()
        assert sum(subscriber.lag for subscriber in subscribers) == 0
        for subscriber in subscribers:
            subscriber.close()


# ------------------------------------------------------------------------------------------------ state and manners
def test_state():
    queue = PubSubQueue(maxsize=100)
    assert queue.stats() == PubSubStats(retained=0, published=0, subscribers=0, slowest_lag=0, dropped=0)
    with queue.subscribe() as a, queue.subscribe() as b:
        queue.publish_many(list(range(10)))
        a.get_many(7)
        b.get_many(4)
        assert queue.stats() == PubSubStats(retained=6, published=10, subscribers=2, slowest_lag=6, dropped=0)
        assert (a.position, a.lag, b.position, b.lag) == (7, 3, 4, 6)
        assert queue.qsize() == 6
        assert repr(a) == "<Subscriber at 7, 3 behind>"
        assert repr(queue) == "<PubSubQueue of 2 subscribers, 6 messages retained>"
    assert repr(a) == "<Subscriber at 7, closed>"
    queue.shutdown()
    assert repr(queue) == "<PubSubQueue of 0 subscribers, 0 messages retained, shut down>"
