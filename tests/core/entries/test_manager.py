"""The consumer manager: interest, notification and hand-over, as seen from outside.

`interest` shows the state of a subscription. Who is notified shows in who gets the entry. No waiter may sleep while an
entry that it may take is AVAILABLE: every test that waits checks that for one way of becoming AVAILABLE, or of becoming
able to take.
"""
import threading
from queue import Empty

import pytest
from support.threads import DEADLINE, LONG, Threads, wait_asleep, wait_until

from manytail import ClosedError, EntryQueue, PriorityEntryQueue, ShutDown


def waiting(threads, *subscriptions, **options):
    """Start a thread in the get of each subscription. Returns when they sleep."""
    getters = [threads.start(subscription.get, **options) for subscription in subscriptions]
    wait_asleep(*getters)
    return getters


# ------------------------------------------------------------------------------------------------ states
def test_a_new_subscription_is_interested_and_needs_no_get(new):
    queue = new()
    assert queue.subscribe().interest == "interested"
    queue.put(1)
    assert queue.subscribe().interest == "interested"


def test_a_browser_is_non_acquiring_as_long_as_it_is_open(new):
    browser = new().subscribe(browse=True)
    assert browser.interest == "non_acquiring"
    browser.close()
    assert browser.interest == "closed"


def test_a_suspended_browser_is_not_interested_and_comes_back(new):
    browser = new().subscribe(browse=True)
    browser.suspend()
    assert browser.interest == "not_interested"
    browser.resume()
    assert browser.interest == "non_acquiring"


def test_interest_follows_suspension_and_credit(new):
    queue = new()
    queue.put_many(range(4))
    subscription = queue.subscribe(prefetch=1)
    assert subscription.interest == "interested"
    entry = subscription.get(False)
    assert subscription.interest == "not_interested"
    subscription.suspend()
    entry.ack()
    assert subscription.interest == "not_interested"
    subscription.resume()
    assert subscription.interest == "interested"
    subscription.get(False)
    subscription.prefetch = 2
    assert subscription.interest == "interested"
    subscription.prefetch = 1
    assert subscription.interest == "not_interested"
    subscription.prefetch = 0
    assert subscription.interest == "interested"
    subscription.close()
    assert subscription.interest == "closed"


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
def test_one_arrival_serves_one_waiter_and_many_serve_all(new, keep):
    queue = new()
    with Threads() as threads:
        getters = waiting(threads, *[keep(queue.subscribe()) for _ in range(4)])
        for n in range(4):
            queue.put(n)
        assert sorted(getter.result().item for getter in getters) == [0, 1, 2, 3]


def test_put_many_wakes_as_many_as_it_feeds(new, keep):
    queue = new()
    with Threads() as threads:
        getters = waiting(threads, *[keep(queue.subscribe()) for _ in range(4)])
        queue.put_many(range(4))
        assert sorted(getter.result().item for getter in getters) == [0, 1, 2, 3]


def test_several_waiters_of_one_subscription(new):
    queue = new()
    subscription = queue.subscribe()
    with Threads() as threads:
        getters = waiting(threads, *[subscription] * 3)
        queue.put_many(range(3))
        assert sorted(getter.result().item for getter in getters) == [0, 1, 2]


def test_a_waiter_that_does_not_want_it_is_passed_over(new):
    queue = new()
    picky, other = (
        queue.subscribe(selector=lambda entry: entry.item == "mine"),
        queue.subscribe(selector=lambda entry: entry.item != "mine"),
    )
    with Threads() as threads:
        mine, others = waiting(threads, picky, other)
        queue.put("other")
        assert others.result().item == "other"
        queue.put("mine")
        assert mine.result().item == "mine"


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


def test_closing_the_notified_one_hands_over(new):
    """The original has this defect: a waiter that was woken and closes before it takes must pass its wake-up on."""
    for _ in range(100):
        queue = new()
        one, two = queue.subscribe(), queue.subscribe()
        with Threads() as threads:
            first, second = threads.start(one.get), threads.start(two.get)
            queue.put(1)
            one.close()
            assert first.outcome() is None or isinstance(first.error, ClosedError)
            assert second.result().item == 1  # in any case: close releases what the first one may have got


def test_suspending_the_notified_one_hands_over(new):
    for _ in range(50):
        queue = new()
        one, two = queue.subscribe(), queue.subscribe()
        with Threads() as threads:
            first, second = threads.start(one.get, timeout=LONG), threads.start(two.get, timeout=LONG)
            queue.put(1)
            one.suspend()
            wait_until(lambda first=first, second=second: not first.is_alive() or not second.is_alive())
            one.resume()
            queue.put(2)
            assert sorted([first.result().item, second.result().item]) == [1, 2]


def test_a_waiter_that_times_out_passes_its_wake_up_on(new):
    """Restless getters with tiny timeouts, and a patient one that must get every entry that they do not take."""
    queue = new()
    done = threading.Event()
    restless_got = []

    def restless():
        subscription = queue.subscribe()
        while not done.is_set():
            try:
                entry = subscription.get(timeout=0.0002)
            except Empty:
                continue
            restless_got.append(entry.item)
            entry.ack()

    with Threads() as threads:
        others = [threads.start(restless) for _ in range(3)]
        patient = queue.subscribe()
        got = 0
        for n in range(300):
            queue.put(n)
            if n % 10 == 9:  # some waiter has taken each entry before the next ten are put
                wait_until(lambda: queue.depth() == 0 or queue.qsize() == 0)
        done.set()
        for other in others:
            other.result()
        queue.put(-1)
        while patient.get(timeout=LONG).item != -1:
            got += 1
    assert len(restless_got) + got == 300


@pytest.mark.parametrize("how", ["release", "close", "delay", "priority change", "newer", "unhold"])
def test_a_waiter_is_woken_for_whatever_becomes_available(new, how, keep):
    queue = new()
    queue.put(1)
    holder = queue.subscribe()
    entry = holder.get(False)
    with Threads() as threads:
        (getter,) = waiting(threads, keep(queue.subscribe()))
        if how == "release":
            entry.release()
        elif how == "close":
            holder.close()
        elif how == "delay":
            entry.release(delay=0.01)
        elif how in ("newer", "priority change"):
            queue.put(2, priority=9)
        else:
            queue.put(2, delay=0.01)
        assert getter.result().item in (1, 2)


def test_a_waiter_far_ahead_goes_back_for_a_release(new):
    queue = new()
    queue.put_many(range(50))
    one, two = queue.subscribe(), queue.subscribe()
    first = one.get(False)
    for entry in two.get_many(49):
        entry.ack()
    with Threads() as threads:
        (getter,) = waiting(threads, two)
        first.release()
        assert getter.result().item == 0


def test_a_waiter_goes_back_for_a_more_urgent_arrival():
    queue = PriorityEntryQueue()
    queue.put(1, priority=1)
    subscription = queue.subscribe()
    subscription.get(False)
    with Threads() as threads:
        (getter,) = waiting(threads, subscription)
        queue.put(2, priority=9)
        assert getter.result().item == 2


def test_no_waiter_sleeps_while_it_may_take_something():
    """Four threads each take, release or ack, suspend, resume and wait. Every entry gets through."""
    queue = EntryQueue(groups="shared")
    total = 400
    acked = []

    def consume(n):
        with queue.subscribe(
            prefetch=1, priority=n % 2, selector=(lambda entry: entry.item % 2 == 0) if n == 3 else None
        ) as subscription:
            while True:
                try:
                    entry = subscription.get()
                except ShutDown:
                    return
                if (entry.item + n + entry.deliveries) % 4 == 0 and entry.deliveries < 4:
                    subscription.suspend()
                    assert entry.release()
                    subscription.resume()
                else:
                    acked.append(entry.item)
                    assert entry.ack()

    with Threads() as threads:
        consumers = [threads.start(consume, n) for n in range(4)]
        for item in range(total):
            queue.put(item, group=[None, "g", "h"][item % 3])
        wait_until(lambda: queue.depth() == 0)
        queue.shutdown()
        for consumer in consumers:
            consumer.result()
    assert sorted(acked) == list(range(total))


# ------------------------------------------------------------------------------------------------ lists under churn
def test_subscriptions_come_and_go_while_entries_flow():
    queue = EntryQueue()
    total = 1500
    taken = []
    stop = threading.Event()

    def churn(n):
        while not stop.is_set():
            with queue.subscribe(priority=n % 3, browse=n == 4, prefetch=n) as subscription:
                try:
                    entry = subscription.get(timeout=0.001)
                except (Empty, ShutDown):
                    continue
                if n != 4 and entry.ack():
                    taken.append(entry.item)

    with Threads() as threads:
        churners = [threads.start(churn, n) for n in range(5)]
        for item in range(total):
            queue.put(item)
        wait_until(lambda: queue.depth() == 0)
        stop.set()
        for churner in churners:
            churner.result()
    assert sorted(taken) == list(range(total))
    assert queue.stats().subscriptions == 0


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
