"""Consumer: one consumer over several queues; one credit, round robin, pull by get, push by listen."""
import asyncio
import gc
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import SimpleNamespace

import pytest
from support.counts import part_of_races
from support.event_loops import in_every_kind_of_loop
from support.threads import DEADLINE, LONG, Hang, Threads, wait_asleep, wait_until

from manytail import ClosedError, Consumer, EntryQueue, EntryState, ExclusiveError, ShutDown, _consumers


def queues(n, each=0):
    made = [EntryQueue(f"q{index}") for index in range(n)]
    for index, queue in enumerate(made):
        queue.put_many([f"{index}{item}" for item in range(each)])
    return made


def consumer_of(*of, **options):
    consumer = Consumer(**options)
    for queue in of:
        consumer.subscribe(queue)
    return consumer


# ------------------------------------------------------------------------------------------------ round robin
def test_turns_that_other_threads_take_skip_no_queue():
    """Without the GIL another thread may move the round robin on. A get still looks at every queue before it waits."""
    def pass_on(consumer):
        for _ in range(100_000):
            with suppress(Empty):
                consumer.get(timeout=1e-5).release()

    with consumer_of(*queues(2, each=1)) as consumer, Threads() as threads:
        for _ in range(4):
            threads.start(pass_on, consumer)


def test_it_takes_one_entry_per_queue_and_turn_and_passes_over_empty_ones():
    a, b, c = queues(3, each=3)
    b.purge()
    with consumer_of(a, b, c) as consumer:
        assert [consumer.get(False).item for _ in range(2)] == ["00", "20"]
        assert [entry.item for entry in consumer.get_many(3)] == ["01", "21", "02"]
        assert consumer.get_many(0) == consumer.get_many(-1) == []
        assert [entry.item for entry in consumer.get_many(5)] == ["22"]
        with pytest.raises(Empty):
            consumer.get(False)


# ------------------------------------------------------------------------------------------------ waiting


def test_it_waits_if_it_has_no_queue_and_wakes_with_the_first():
    (queue,) = queues(1, each=1)
    with Consumer() as consumer, Threads() as threads:
        with pytest.raises(Empty):
            consumer.get(timeout=0.001)
        with pytest.raises(Empty):
            consumer.get(False)
        getter = threads.start(consumer.get)
        wait_asleep(getter)
        consumer.subscribe(queue)
        assert getter.result().item == "00"


def test_shutdown_when_all_its_queues_would():
    a, b = queues(2)
    with consumer_of(a, b) as consumer, Threads() as threads:
        a.shutdown()
        with pytest.raises(Empty):
            consumer.get(False)
        getter = threads.start(consumer.get)
        wait_asleep(getter)
        b.put(1)
        b.shutdown()
        assert getter.result().item == 1
        for call in (lambda: consumer.get(), lambda: consumer.get(False), lambda: consumer.get_many(3)):
            with pytest.raises(ShutDown):
                call()


def test_iteration_ends_at_shutdown_and_close():
    a, b = queues(2, each=2)
    with consumer_of(a, b) as consumer:
        a.shutdown()
        b.shutdown()
        assert [entry.item for entry in consumer] == ["00", "10", "01", "11"]
    assert list(consumer) == []


@in_every_kind_of_loop
def test_aget_and_async_iteration():
    a, b = queues(2, each=2)

    async def main(consumer):
        first = await asyncio.wait_for(consumer.aget(), DEADLINE)
        task = asyncio.create_task(collect(consumer))
        await asyncio.sleep(0)
        a.put("late")
        a.shutdown()
        b.shutdown()
        return [first.item, *await asyncio.wait_for(task, DEADLINE)]

    async def collect(consumer):
        return [entry.item async for entry in consumer]

    with consumer_of(a, b) as consumer:
        assert sorted(asyncio.run(main(consumer))) == ["00", "01", "10", "11", "late"]


# ----------------------------------------------------------------------------------------- credit, priority, suspension
def test_one_credit_for_all_queues():
    with consumer_of(*queues(2, each=3), prefetch=3) as consumer:
        got = consumer.get_many(10)
        assert [entry.item for entry in got] == ["00", "10", "01"]
        assert consumer.unacked == 3
        with pytest.raises(Empty):
            consumer.get(False)
        got[1].ack()
        assert consumer.get(False).item == "11"
        assert consumer.unacked == 3


def test_its_subscriptions_are_out_of_credit_together():
    a, b = queues(2, each=2)
    with Consumer(prefetch=1) as consumer:
        one, two = consumer.subscribe(a), consumer.subscribe(b)
        assert (one.interest, two.interest) == ("interested", "interested")
        entry = consumer.get(False)
        assert (one.interest, two.interest) == ("not_interested", "not_interested")
        entry.ack()
        assert (one.interest, two.interest) == ("interested", "interested")


def test_its_priority_is_that_of_its_subscriptions():
    (queue,) = queues(1)
    low = queue.subscribe(priority=1)
    with consumer_of(queue, priority=2) as consumer:
        queue.put("x")
        with pytest.raises(Empty):
            low.get(False)
        assert consumer.get(False).item == "x"


def test_prefetch_and_priority_are_the_consumers_own():
    (queue,) = queues(1)
    with Consumer() as consumer:
        for option in ("prefetch", "priority"):
            with pytest.raises(TypeError, match=option):
                consumer.subscribe(queue, **{option: 1})
        assert queue.stats().subscriptions == 0


def test_subscribe_takes_the_other_options():
    (queue,) = queues(1)
    queue.put_many(range(4))
    with Consumer() as consumer:
        consumer.subscribe(queue, selector=lambda entry: entry.item > 1, exclusive=True)
        with pytest.raises(ExclusiveError):
            queue.subscribe()
        assert [entry.item for entry in consumer.get_many(4)] == [2, 3]
        with pytest.raises(TypeError):
            consumer.subscribe("queue")


def test_suspend_and_resume(keep):
    a, b = queues(2, each=1)
    with consumer_of(a, b) as consumer, Threads() as threads:
        consumer.suspend()
        with pytest.raises(Empty):
            consumer.get(False)
        getter = threads.start(consumer.get)
        wait_asleep(getter)
        assert keep(a.subscribe()).get(False).item == "00"
        consumer.resume()
        assert getter.result().item == "10"


# ------------------------------------------------------------------------------------------------ closing
def test_closing_closes_its_subscriptions_and_releases_what_it_holds():
    a, b = queues(2, each=2)
    consumer = Consumer()
    one, two = consumer.subscribe(a), consumer.subscribe(b)
    consumer.get_many(3)
    consumer.close()
    consumer.close()
    assert (one.closed, two.closed, consumer.unacked) == (True, True, 0)
    assert (a.qsize(), b.qsize()) == (2, 2)
    for call in (
        lambda: consumer.get(),
        lambda: consumer.get(False),
        lambda: consumer.get_many(2),
        lambda: consumer.subscribe(a),
    ):
        with pytest.raises(ClosedError):
            call()


def test_closing_beside_gets_disturbs_none():
    """Without the GIL each thread reads the list of subscriptions while others remove closed ones from it."""
    def get_until_closed(consumer, begun):
        def get_for_ever():
            while True:
                with suppress(Empty):
                    consumer.get(False)

        begun.wait(DEADLINE)
        with pytest.raises(ClosedError):
            get_for_ever()

    for _ in range(part_of_races(1500)):
        consumer, begun = Consumer(), threading.Barrier(4)
        subscriptions = [consumer.subscribe(queue) for queue in queues(50)]
        with Threads() as threads:
            for _ in range(3):
                threads.start(get_until_closed, consumer, begun)
            begun.wait(DEADLINE)
            for subscription in subscriptions:
                subscription.close()
            consumer.close()


def test_a_subscription_made_beside_gets_is_not_forgotten():
    """A get drops closed subscriptions from the list; it must not drop a new one."""
    got = SimpleQueue()

    def get_until_closed(consumer):
        for entry in consumer:
            got.put(entry.item)

    with Threads() as threads, Consumer() as consumer:
        for _ in range(3):
            threads.start(get_until_closed, consumer)
        for n in range(6000):
            queue = EntryQueue()
            with consumer.subscribe(queue):
                queue.put(n)
                assert got.get(timeout=DEADLINE) == n
        consumer.close()


def test_closing_one_subscription_leaves_the_others_and_hands_over(keep):
    a, b = queues(2, each=1)
    with Consumer() as consumer, Threads() as threads:
        one = consumer.subscribe(a)
        consumer.subscribe(b)
        assert consumer.get(False).item == "00"
        other = threads.start(keep(a.subscribe()).get)
        wait_asleep(other)
        one.close()
        assert other.result().item == "00"
        assert consumer.get(False).item == "10"


def test_closing_a_subscription_that_was_notified_wakes_another_consumer(keep):
    """Of a multi-queue consumer that stays open: its wake-up for the closed queue must pass to another consumer."""
    for _ in range(100):
        a, b = queues(2)
        consumer = Consumer()
        one = consumer.subscribe(a)
        consumer.subscribe(b)
        with Threads() as threads:
            first, second = threads.start(consumer.get), threads.start(keep(a.subscribe()).get)
            a.put(1)
            one.close()
            wait_until(lambda first=first, second=second: not first.is_alive() or not second.is_alive())
            if first.is_alive():
                b.put(2)
            else:
                a.put(2)
            assert first.result().item in (1, 2)
            assert second.result().item in (1, 2)
        consumer.close()


def test_a_consumer_that_nobody_keeps_closes_itself():
    (queue,) = queues(1, each=1)
    kept = [consumer_of(queue)]
    assert kept[0].get(False).item == "00"
    with pytest.warns(ResourceWarning, match="(?i)consumer"):
        kept.clear()
    assert queue.stats().subscriptions == 0
    assert queue.qsize() == 1


def test_a_subscription_of_a_consumer_that_the_user_drops_stays_open():
    (queue,) = queues(1, each=1)
    with Consumer() as consumer:
        consumer.subscribe(queue)
        gc.collect()
        assert queue.stats().subscriptions == 1
        assert consumer.get(False).item == "00"


# ------------------------------------------------------------------------------------------------ listen
@pytest.fixture
def executor():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_listen_pushes_and_the_callback_acks(executor):
    a, b = queues(2, each=5)
    got = []

    def callback(entry):
        got.append(entry.item)
        assert entry.ack()

    with consumer_of(a, b) as consumer:
        consumer.listen(callback, executor=executor)
        wait_until(lambda: a.depth() + b.depth() == 0)
        a.put("late")
        wait_until(lambda: a.depth() == 0)
    assert [item for item in got if item != "late"] == ["00", "10", "01", "11", "02", "12", "03", "13", "04", "14"]
    assert got[-1] == "late"


def test_one_call_of_each_consumer_at_a_time_though_many_share_an_executor(executor):
    made, got, overlaps = queues(3), [], []
    consumers = [consumer_of(*made) for _ in range(6)]
    running = [threading.Lock() for _ in consumers]

    def listen(consumer, alone):
        def callback(entry):
            if not alone.acquire(blocking=False):
                overlaps.append(entry.item)
                return
            got.append(entry.item)
            entry.ack()
            alone.release()

        consumer.listen(callback, executor=executor)

    for consumer, alone in zip(consumers, running, strict=True):
        listen(consumer, alone)
    for n in range(600):
        made[n % 3].put(n)
    wait_until(lambda: sum(queue.depth() for queue in made) == 0)
    for consumer in consumers:
        consumer.close()
    assert (overlaps, sorted(got)) == ([], list(range(600)))


@pytest.mark.parametrize("acks", [False, True])
def test_a_callback_that_raises_is_reported_and_releases_what_it_has_not_acked(executor, monkeypatch, acks):
    caught, deliveries = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: caught.append(unraisable.exc_value.args))
    (queue,) = queues(1, each=1)

    def callback(entry):
        deliveries.append(entry.deliveries)
        if acks or entry.deliveries == 3:
            entry.ack()
        if acks or entry.deliveries < 3:
            raise KeyError(entry.deliveries)

    with consumer_of(queue) as consumer:
        consumer.listen(callback, executor=executor)
        wait_until(lambda: caught and queue.depth() == 0)
    assert deliveries == ([1] if acks else [1, 2, 3])
    assert caught == ([(1,)] if acks else [(1,), (2,)])
    assert (queue.stats().acked, queue.stats().released) == (1, len(deliveries) - 1)


def test_a_callback_that_does_not_end_its_entry_keeps_it(executor):
    (queue,) = queues(1, each=2)
    kept = []
    with consumer_of(queue) as consumer:
        consumer.listen(kept.append, executor=executor)
        wait_until(lambda: len(kept) == 2)
        assert consumer.unacked == 2
        assert kept[0].state is EntryState.ACQUIRED
        assert kept[0].unlock() is True
        assert kept[1].ack()


def test_get_meanwhile_raises(executor):
    (queue,) = queues(1)
    with consumer_of(queue) as consumer:
        consumer.listen(lambda entry: entry.ack(), executor=executor)
        for call in (
            lambda: consumer.get(),
            lambda: consumer.get(False),
            lambda: consumer.get_many(1),
            lambda: asyncio.run(consumer.aget()),
        ):
            with pytest.raises(ClosedError):
                call()


def test_credit_bounds_what_is_pushed(executor):
    (queue,) = queues(1, each=4)
    kept = []
    with consumer_of(queue, prefetch=2) as consumer:
        consumer.listen(kept.append, executor=executor)
        wait_until(lambda: len(kept) == 2)
        assert queue.qsize() == 2
        kept[0].ack()
        wait_until(lambda: len(kept) == 3)


def test_close_waits_for_the_running_call(executor):
    (queue,) = queues(1, each=2)
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def callback(entry):
        started.set()
        if not go_on.wait(LONG):
            raise Hang("never let go")
        entry.ack()
        ended.set()

    consumer = consumer_of(queue)
    consumer.listen(callback, executor=executor)
    assert started.wait(DEADLINE)
    with Threads() as threads:
        closer = threads.start(consumer.close)
        wait_asleep(closer)
        assert closer.is_alive()
        go_on.set()
        closer.result()
        assert ended.is_set()
    assert queue.stats().acked + queue.depth() == 2


def test_close_from_inside_the_callback_does_not_wait_for_itself(executor):
    (queue,) = queues(1, each=3)
    closed = threading.Event()

    def callback(entry):
        entry.ack()
        consumer.close()
        closed.set()

    consumer = consumer_of(queue)
    consumer.listen(callback, executor=executor)
    assert closed.wait(DEADLINE)
    with pytest.raises(ClosedError):
        consumer.get(False)
    assert queue.depth() == 2


def test_an_executor_that_waits_does_not_delay_the_timer_of_other_queues():
    """An entry that becomes available by the timer wakes the listener in the timer thread."""
    slow, quick = queues(2)
    submitting, go_on = threading.Event(), threading.Event()

    class Waits(ThreadPoolExecutor):
        def submit(self, *args, **options):
            if slow.depth():
                submitting.set()
                assert go_on.wait(LONG)
            return super().submit(*args, **options)

    with Waits(1) as executor, consumer_of(slow) as consumer, quick.subscribe() as subscription:
        try:
            consumer.listen(lambda entry: entry.ack(), executor=executor)
            slow.put(1, delay=0.01)
            assert submitting.wait(DEADLINE)
            quick.put(2, delay=0.01)
            assert subscription.get(timeout=DEADLINE).item == 2
        finally:
            go_on.set()
        wait_until(lambda: slow.depth() == 0)


def test_a_listener_that_has_ended_does_not_keep_its_consumer():
    (queue,) = queues(1)
    consumer = consumer_of(queue)
    with ThreadPoolExecutor(1) as executor:
        consumer.listen(lambda entry: entry.ack(), executor=executor)
        queue.shutdown()
    gone = weakref.ref(consumer)
    gc.disable()
    try:
        del consumer
        wait_until(lambda: gone() is None, "the consumer to be freed without the collector")
    finally:
        gc.enable()


def test_a_listening_consumer_may_be_collected_in_its_task():
    """Its finalizer then stops the listening, and does not wait for the task that it runs in."""
    queue = EntryQueue()
    queue.put("item")
    kept, tasks, delivered = [consumer_of(queue)], [], []

    def callback(entry):
        delivered.append(entry.item)
        entry.ack()
        kept.clear()

    def run():
        while tasks:
            tasks.pop()()

    kept[0].listen(callback, executor=SimpleNamespace(submit=tasks.append))
    with Threads() as threads:
        threads.start(run)
    assert delivered == ["item"]
    assert kept == []
    gc.collect()
    assert queue.stats().subscriptions == 0


def test_of_two_threads_that_listen_at_once_one_is_refused(executor, monkeypatch):
    (queue,) = queues(1)
    made, both = _consumers.Listener, threading.Barrier(2)

    def at_once(*args):
        both.wait(DEADLINE)
        return made(*args)

    monkeypatch.setattr(_consumers, "Listener", at_once)
    with consumer_of(queue) as consumer, Threads() as threads:
        tasks = [threads.start(consumer.listen, print, executor=executor) for _ in range(2)]
        assert sorted(str(type(task.outcome())) for task in tasks) == sorted([str(type(None)), str(ClosedError)])


def test_listening_twice_and_bad_arguments(executor):
    (queue,) = queues(1, each=1)
    with consumer_of(queue) as consumer:
        for wrong in ({"callback": 3}, {"executor": 3}):
            with pytest.raises(TypeError, match=rf"{next(iter(wrong))}: 3( of type int)? \(expected: "):
                consumer.listen(**{"callback": print, "executor": executor} | wrong)
        with pytest.raises(TypeError):
            consumer.listen(print)
        assert consumer.get(False).item == "00"
        consumer.listen(print, executor=executor)
        for _ in range(2):
            with pytest.raises((ClosedError, RuntimeError)):
                consumer.listen(print, executor=executor)
            consumer.close()
