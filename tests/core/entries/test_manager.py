"""The consumer manager: interest, notification and hand-over, as seen from outside.

Who is notified shows in who gets the entry. No waiter may sleep while an entry that it may take is AVAILABLE.
tests/wakeups has each way of becoming AVAILABLE, and of becoming able to take.
"""
import asyncio
import threading

import pytest
from support.threads import DEADLINE, LONG, Threads, wait_asleep, wait_until

from manytail import ClosedError, EntryQueue


def waiting(threads, *subscriptions, **options):
    """Start a thread in the get of each subscription. Returns when they sleep."""
    getters = [threads.start(subscription.get, **options) for subscription in subscriptions]
    wait_asleep(*getters)
    return getters


# ------------------------------------------------------------------------------------------------ states


def test_a_closed_subscription_stays_closed(new):
    subscription = new().subscribe()
    subscription.close()
    for call in (subscription.suspend, subscription.resume):
        try:
            call()
        except ClosedError:
            continue
    assert subscription.interest == "closed"


def test_a_waiter_that_was_woken_is_notified_until_it_is_back():
    """Checked in a selector: it runs in the woken thread, between the wake-up and the return of get."""
    queue = EntryQueue()
    seen = []
    running = threading.Event()

    def selector(entry):
        if threading.current_thread() is not threading.main_thread():
            seen.append(subscription.interest)
            running.set()
        return True

    subscription = queue.subscribe(selector=selector)
    with Threads() as threads:
        (getter,) = waiting(threads, subscription)
        queue.put(1)
        assert getter.result().item == 1
    assert running.is_set()
    assert set(seen) <= {"interested", "notified"}
    assert subscription.interest == "interested"


# ------------------------------------------------------------------------------------------------ who is woken


def test_a_queue_counts_its_subscriptions_by_interest(new, keep):
    queue = new()
    counts = dict.fromkeys(("interested", "notified", "not_interested", "non_acquiring"), 0)
    assert queue.interests() == counts
    waits, spent, suspended, browser, quiet_browser = (
        keep(queue.subscribe(**options))
        for options in ({}, {"prefetch": 1}, {}, {"browse": True}, {"browse": True, "selector": lambda entry: False})
    )
    suspended.suspend()
    quiet_browser.suspend()
    queue.put(1)
    spent.get()

    async def main():
        coroutine = waits.aget()
        while coroutine.send(None) is None:
            continue
        counts.update(interested=1, not_interested=3, non_acquiring=1)
        assert queue.interests() == counts
        queue.put(2)
        counts.update(interested=0, notified=1)
        assert queue.interests() == counts
        coroutine.close()

    asyncio.run(main())
    counts.update(interested=1, notified=0)
    assert queue.interests() == counts
    browser.close()
    counts.update(non_acquiring=0)
    assert queue.interests() == counts
    assert sum(counts.values()) == queue.stats().subscriptions


def test_the_highest_interested_waiter_gets_it(new, keep):
    queue = new()
    subscriptions = [keep(queue.subscribe(priority=priority)) for priority in (1, 3, 2)]
    with Threads() as threads:
        getters = waiting(threads, *subscriptions)
        for item, expected in enumerate([1, 2, 0]):
            queue.put(item)
            entry = getters[expected].result()
            assert entry.item == item
            entry.ack()
            subscriptions[expected].close()


@pytest.mark.parametrize("leave", ["close", "suspend"])
def test_who_leaves_when_it_was_notified_hands_over(new, leave):
    """The original has this defect: a waiter that was woken and closes before it takes must pass its wake-up on."""
    for _ in range(50):
        queue = new()
        one, two = queue.subscribe(), queue.subscribe()
        with Threads() as threads:
            first, second = threads.start(one.get, timeout=LONG), threads.start(two.get, timeout=LONG)
            queue.put(1)
            getattr(one, leave)()
            if leave == "close":
                assert first.outcome() is None or isinstance(first.error, ClosedError)
                assert second.result().item == 1  # in any case: close releases what the first one may have got
                continue
            wait_until(lambda first=first, second=second: not first.is_alive() or not second.is_alive())
            one.resume()
            queue.put(2)
            assert sorted([first.result().item, second.result().item]) == [1, 2]


# ------------------------------------------------------------------------------------------------ lists under churn


def test_a_thousand_idle_subscriptions_disturb_nobody(keep):
    queue = EntryQueue()
    idle = [keep(queue.subscribe(priority=-(n % 3))) for n in range(1000)]
    working = queue.subscribe()
    for n in range(100):
        queue.put(n)
        assert working.get(False).ack()
    assert queue.stats().subscriptions == 1001
    for subscription in idle[::2]:
        subscription.close()
    assert queue.stats().subscriptions == 501
    queue.put(1)
    assert idle[3].interest == "interested"
    for subscription in idle[1::2]:
        subscription.close()
    assert working.get(timeout=DEADLINE).item == 1


def test_a_closed_subscription_leaves_no_trace():
    import gc
    import weakref

    class Selector:
        def __call__(self, entry):
            return True

    queue = EntryQueue()
    gone = []
    for _ in range(300):
        selector = Selector()
        gone.append(weakref.ref(selector))
        with queue.subscribe(selector=selector):
            queue.put(1)
        queue.purge()
    del selector
    queue.put(1)
    with queue.subscribe() as last:
        last.get(False).ack()
    gc.collect()
    assert sum(reference() is not None for reference in gone) <= 1
