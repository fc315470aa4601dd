"""put(immediate=True): the entry goes to a waiter by the acquire CAS, or is withdrawn; never both."""
import asyncio
import sys
import threading
from queue import Empty

import pytest
from support.event_loops import in_every_kind_of_loop
from support.threads import DEADLINE, Threads, wait_until

from manytail import Consumer, EntryQueue, EntryState, ShutDown


def handed(queue, item, **options):
    """Repeat an immediate put until a waiter takes it. Returns the entry."""
    entries = []
    wait_until(lambda: entries or entries.extend(filter(None, [queue.put(item, immediate=True, **options)])) or entries)
    return entries[0]


WAITS = {
    "get": lambda subscription: subscription.get(),
    "get_many": lambda subscription: subscription.get_many(5)[0],
    "iteration": lambda subscription: next(iter(subscription)),
    "aget": lambda subscription: asyncio.run(asyncio.wait_for(subscription.aget(), DEADLINE)),
}


@in_every_kind_of_loop
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("consumer", [False, True])
def test_who_waits_is_handed_it(new, wait, consumer):
    queue, several = new(), Consumer()
    several.subscribe(new())
    with several.subscribe(queue) if consumer else queue.subscribe() as subscription, Threads() as threads:
        getter = threads.start(wait, several if consumer else subscription)
        entry = handed(queue, 7)
        got = getter.result()
        assert got.item == 7
        assert got == entry
        assert (entry.state, got.deliveries) == (EntryState.ACQUIRED, 1)
        assert got.ack() is True
    several.close()
    stats = queue.stats()
    assert (stats.enqueued, stats.delivered, stats.acked) == (1, 1, 1)


def test_an_entry_that_was_handed_over_and_released_expires(new, keep):
    queue = new()
    with Threads() as threads:
        getter = threads.start(keep(queue.subscribe()).get)
        entry = handed(queue, 7, ttl=0.2)
        assert getter.result().release() is True
    wait_until(lambda: entry.state is EntryState.DELETED)
    assert queue.stats().expired == 1


def test_browsers_do_not_count(new):
    queue = new()
    with Threads() as threads:
        browser = queue.subscribe(browse=True)
        getter = threads.start(browser.get)
        for n in range(100):
            assert queue.put(n, immediate=True) is None
        queue.put(5)
        assert getter.result().item == 5


def test_who_does_not_want_it_or_has_no_credit_does_not_count(new):
    queue = new()
    mine = object()
    picky, local, spent = (
        queue.subscribe(selector=lambda entry: entry.item == "x"),
        queue.subscribe(origin=mine),
        queue.subscribe(prefetch=1),
    )
    queue.put(0)
    spent.get(False)
    suspended = queue.subscribe()
    suspended.suspend()
    with Threads() as threads:
        getters = [threads.start(subscription.get) for subscription in (picky, local, spent, suspended)]
        for _ in range(100):
            assert queue.put(1, immediate=True, origin=mine) is None
        queue.shutdown()
        assert [type(getter.outcome()) for getter in getters] == [ShutDown] * 4


def test_with_a_delay_it_is_a_value_error(new):
    queue = new()
    with pytest.raises(ValueError, match="delay"):
        queue.put(1, immediate=True, delay=1.0)
    assert queue.stats()[:-1] == (0,) * 16


def test_an_earlier_available_entry_goes_first(new):
    """A waiter would have been woken for the old entry. The new one is handed over; a later get takes the old one."""
    queue = new()
    subscription = queue.subscribe(selector=lambda entry: entry.item > 1)
    queue.put(1)
    with Threads() as threads:
        getter = threads.start(subscription.get)
        assert handed(queue, 2) == getter.result()
    assert queue.qsize() == 1


@in_every_kind_of_loop
def test_a_cancelled_aget_releases_what_it_was_handed():
    queue = EntryQueue()
    subscription = queue.subscribe()

    async def main():
        task = asyncio.create_task(subscription.aget())
        entry = None
        while entry is None:
            await asyncio.sleep(0)
            entry = queue.put(7, immediate=True)
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            return None

    got = asyncio.run(main())
    if got is None:
        again = subscription.get(timeout=DEADLINE)
        assert (again.item, again.redelivered) == (7, True)
    else:
        assert got.item == 7


@in_every_kind_of_loop
def test_what_is_reserved_for_a_get_whose_queues_change_wakes_another_get(keep):
    """A get of both queues is handed an entry of the first, but takes one of the second. The test resumes the
    coroutines itself, to fix their order."""
    first, second = EntryQueue("first"), EntryQueue("second")
    consumer = Consumer()
    of_first = consumer.subscribe(first)
    first.put("before")
    second.put("of second")
    consumer.get(False).ack()  # so the next get tries the second queue first

    def until_it_waits(coroutine):
        while (waits := coroutine.send(None)) is None:
            continue
        return waits

    def result(coroutine):
        with pytest.raises(StopIteration) as done:
            coroutine.send(None)
        return done.value.value.item

    async def main():
        of_both, of_one, stranger = consumer.aget(), of_first.aget(), keep(first.subscribe()).aget()
        until_it_waits(stranger)  # waits longest: a notification that is forwarded comes here
        until_it_waits(of_both)
        until_it_waits(of_one)
        assert first.put("handed over", immediate=True)
        consumer.subscribe(second)
        await asyncio.sleep(0)
        waits = until_it_waits(of_one)
        assert result(of_both) == "of second"
        await asyncio.sleep(0)
        assert waits.done()
        assert result(of_one) == "handed over"
        stranger.close()

    asyncio.run(main())
    consumer.close()


def test_never_both_delivered_and_returned(planted_pauses, keep):
    """The race of the original: several putters, immediate or not, against getters that take, release and time out."""
    queue = EntryQueue()
    subscriptions = [keep(queue.subscribe(prefetch=n % 2)) for n in range(3)]
    done = threading.Event()

    def put(n):
        returned, taken = [], []
        for item in range(n * 10_000, n * 10_000 + 400):
            if n:
                planted_pauses()
            (taken if queue.put(item, immediate=True) is not None else returned).append(item)
        return returned, taken

    def get(subscription):
        got = []
        while True:
            try:
                entry = subscription.get(timeout=0.001)
            except Empty:
                if done.is_set():
                    return got
                continue
            if subscription is not subscriptions[0]:
                planted_pauses()
            if entry.item % 3 == 0 and not entry.redelivered:
                assert entry.release()
            else:
                got.append(entry.item)
                assert entry.ack()

    with Threads() as threads:
        getters = [threads.start(get, subscription) for subscription in subscriptions]
        putters = [threads.start(put, n) for n in range(3)]
        outcomes = [putter.result() for putter in putters]
        done.set()
        got = [item for getter in getters for item in getter.result()]
    for entry in keep(queue.subscribe()).get_many(10_000, False) if queue.qsize() else []:
        got.append(entry.item)  # released after the other getters had ended
        entry.ack()
    returned = {item for back, _ in outcomes for item in back}
    taken = sorted(item for _, took in outcomes for item in took)
    assert sorted(got) == taken
    assert returned.isdisjoint(taken)
    stats = queue.stats()
    assert (stats.enqueued, stats.acked, stats.depth) == (len(taken), len(taken), 0)


def test_the_timer_knows_of_an_entry_that_was_handed_over():
    """It expires although nobody uses the queue after the subscription released it."""
    expired = threading.Event()
    queue = EntryQueue("q", dead_letter=lambda entry, reason: expired.set())
    subscription = queue.subscribe()
    with Threads() as threads:
        threads.start(subscription.get)
        handed(queue, 1, ttl=0.01)
    subscription.close()
    assert expired.wait(DEADLINE)


def test_a_selector_that_is_not_asked_keeps_no_reference():
    """An interruption in one selector ends the put before the others are asked."""

    def interrupted(entry):
        raise KeyboardInterrupt

    def other(entry):
        return True

    queue = EntryQueue()
    with queue.subscribe(selector=interrupted), queue.subscribe(selector=other):
        before = sys.getrefcount(other)
        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                queue.put(1, immediate=True)
        assert sys.getrefcount(other) == before
