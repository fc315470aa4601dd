"""The coroutines of PubSubQueue on trio as on asyncio: they wait, threads wake them, cancellation loses nothing."""
import gc
import random
import threading

import outcome
import pytest
import trio
import trio.testing
from support.counts import count
from support.event_loops import LIBRARIES, within
from support.threads import LONG, Threads

from manytail import ClosedError, Full, Lagged, PubSubQueue, ShutDown

CANCELLATIONS = count(2_000, 10_000)


def full_queue():
    queue = PubSubQueue(maxsize=1)
    subscriber = queue.subscribe()
    queue.publish(0)
    return queue, subscriber


# ------------------------------------------------------------------------------------------------ same meaning
def test_what_is_there_is_got_at_once():
    queue = PubSubQueue(maxsize=2)

    async def main():
        with queue.subscribe() as subscriber:
            numbers = [await queue.apublish("a"), await queue.apublish("b")]
            return numbers, [await subscriber.aget(), await subscriber.aget()]

    assert within(main) == ([0, 1], ["a", "b"])


def test_they_hand_messages_to_one_another():
    queue = PubSubQueue(maxsize=2)

    async def publish():
        for number in range(100):
            assert await queue.apublish(number) == number
        queue.shutdown()

    async def main():
        with queue.subscribe() as subscriber:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                return [message async for message in subscriber]

    assert within(main) == list(range(100))


def waiting_in_trio(call, act):
    """What the call returns that waits in a trio run, once act() was called in another thread."""

    async def main():
        result = []

        async def run():
            result.append(await call())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(act)
        return result[0]

    return within(main)


def test_a_waiting_aget_is_served_by_a_publish_of_a_thread():
    queue = PubSubQueue()
    with queue.subscribe() as subscriber:
        assert waiting_in_trio(subscriber.aget, lambda: queue.publish(7)) == 7
        assert waiting_in_trio(subscriber.aget, lambda: queue.publish_many([8, 9])) == 8
        assert subscriber.get() == 9


@pytest.mark.parametrize("frees", ["get", "close", "maxsize"])
def test_a_waiting_apublish_goes_on_when_a_slot_is_free(frees):
    queue, subscriber = full_queue()
    free = {"get": subscriber.get, "close": subscriber.close, "maxsize": lambda: setattr(queue, "maxsize", 2)}[frees]
    assert waiting_in_trio(lambda: queue.apublish(1), free) == 1
    subscriber.close()


def test_shutdown_and_close_reach_a_waiting_coroutine():
    queue, subscriber = full_queue()
    with subscriber, queue.subscribe() as second, queue.subscribe() as third:
        calls = {ClosedError: (second.aget, second.close), ShutDown: (lambda: queue.apublish(1), queue.shutdown)}
        for error, (call, end) in calls.items():
            with pytest.raises(BaseExceptionGroup) as caught:
                waiting_in_trio(call, end)
            assert caught.group_contains(error)
        with pytest.raises(ShutDown):
            within(third.aget)


def test_each_call_is_a_checkpoint_and_a_cancelled_one_has_done_nothing():
    queue = PubSubQueue()
    with queue.subscribe() as subscriber:
        queue.publish(1)

        async def main():
            for call in (subscriber.aget, lambda: queue.apublish(2)):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await call()
                assert scope.cancelled_caught

        within(main)
        assert subscriber.get_many(9) == [1]


def test_the_ways_of_the_slow():
    refusing, dropping = PubSubQueue(maxsize=1, slow="raise"), PubSubQueue(maxsize=1, slow="drop_oldest")

    async def main():
        with refusing.subscribe() as subscriber:
            await refusing.apublish(0)
            with pytest.raises(Full):
                await refusing.apublish(1)
            assert await subscriber.aget() == 0
        with dropping.subscribe() as subscriber:
            assert [await dropping.apublish(number) for number in range(3)] == [0, 1, 2]
            with pytest.raises(Lagged) as lagged:
                await subscriber.aget()
            assert lagged.value.missed == 2
            assert await subscriber.aget() == 2

    within(main)


def test_outside_of_an_event_loop_they_say_so():
    queue, subscriber = full_queue()
    subscriber.get()
    for coroutine in (subscriber.aget(), full_queue_apublish()):
        with pytest.raises(RuntimeError, match="asyncio or trio"):
            coroutine.send(None)
    assert queue.publish(1) == 1
    subscriber.close()


async def full_queue_apublish():
    queue, subscriber = full_queue()
    with subscriber:
        await queue.apublish(1)


# ------------------------------------------------------------------------------------------------ loops that end
def left_waiting(coroutine):
    """It waits in a trio run that is over."""

    async def main():
        coroutine.send(None)  # to its checkpoint
        coroutine.send(outcome.Value(None))  # it waits, and is never resumed

    trio.run(main)
    return coroutine


def test_a_getter_of_a_finished_trio_is_skipped():
    queue = PubSubQueue()
    with queue.subscribe() as subscriber:
        coroutines = [left_waiting(subscriber.aget()) for _ in range(3)]
        with Threads() as threads:
            getter = threads.start(subscriber.get, timeout=LONG)
            queue.publish(1)
            assert getter.result() == 1
        queue.publish(2)
        assert subscriber.get() == 2
        for coroutine in coroutines:
            coroutine.close()
        gc.collect()


def test_a_publisher_of_a_finished_trio_is_skipped():
    queue, subscriber = full_queue()
    coroutines = [left_waiting(queue.apublish(9)) for _ in range(3)]
    with Threads() as threads:
        publisher = threads.start(queue.publish, 1, timeout=LONG)
        assert subscriber.get() == 0
        assert publisher.result() == 1
    assert subscriber.get() == 1
    for coroutine in coroutines:
        coroutine.close()
    subscriber.close()


# ------------------------------------------------------------------------------------------------ cancelling
@pytest.mark.parametrize("library", LIBRARIES)
def test_random_cancellations_lose_no_message_and_no_wake_up(library):
    """Calls that are cancelled after a few iterations of the loop, a thread that publishes, and one that gets. A small
    bound makes all of them wait at times."""
    run, cancelled_after = LIBRARIES[library]
    queue = PubSubQueue(maxsize=2)
    rng = random.Random(f"{library} {CANCELLATIONS}")
    published, got, from_thread = {}, [], []
    over = threading.Event()

    def publish():
        message = 1 << 40
        while not over.is_set():
            published[queue.publish(message, timeout=LONG)] = message
            message += 1

    def get():
        try:
            while True:
                from_thread.append(subscriber.get(timeout=LONG))
        except ShutDown:
            return

    async def main():
        for message in range(CANCELLATIONS):
            if rng.random() < 0.5:
                for number in await cancelled_after(queue.apublish(message), rng.randrange(4)) or []:
                    published[number] = message
            else:
                got.extend(await cancelled_after(subscriber.aget(), rng.randrange(4)) or [])

    with queue.subscribe() as subscriber, Threads() as threads:
        publishing, getting = threads.start(publish), threads.start(get)
        run(main)
        over.set()
        publishing.result()
        queue.shutdown()
        getting.result()
    assert sorted(published) == list(range(queue.stats().published))
    assert sorted(published.values()) == sorted(got + from_thread)
