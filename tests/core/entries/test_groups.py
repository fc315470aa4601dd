"""Message groups that are many, waited for, sorted or under load. test_entries_model.py has who owns a group."""
import threading
from queue import Empty

import pytest
from support.threads import Threads, wait_asleep

from manytail import EntryQueue, ShutDown, SortedEntryQueue


def take(subscription):
    """The item of its next entry, which stays unacked. None if there is none for it."""
    try:
        return subscription.get(False)
    except Empty:
        return None


def item(subscription):
    entry = take(subscription)
    return None if entry is None else entry.item


def grouped(kind, pairs):
    queue = EntryQueue("q", groups=kind)
    for value, group in pairs:
        queue.put(value, group=group)
    return queue


BOTH = pytest.mark.parametrize("kind", ["shared", "assigned"])


@BOTH
def test_groups_are_exact_however_many(kind):
    """No buckets: with a thousand groups, none is held back by another."""
    queue = grouped(kind, [(n, f"g{n}") for n in range(1000)])
    one, two = queue.subscribe(), queue.subscribe()
    assert [item([one, two][n % 2]) for n in range(1000)] == list(range(1000))
    for n in range(1000):
        queue.put(n, group=f"g{n}")
    assert [item([one, two][n % 2]) for n in range(1000)] == list(range(1000))


@BOTH
def test_groups_compare_by_hash_and_equality(kind):
    queue = grouped(kind, [(1, 1), (2, 1.0), (3, ("a", 1)), (4, ("a", 1.0))])
    one, two = queue.subscribe(), queue.subscribe()
    assert item(one) == 1
    assert item(two) == 3
    assert item(one) == 2
    assert item(two) == 4


@BOTH
def test_a_waiting_get_is_woken_when_the_group_becomes_free(kind):
    queue = grouped(kind, [(1, "g"), (2, "g")])
    one, two = queue.subscribe(), queue.subscribe()
    held = take(one)
    with Threads() as threads:
        getter = threads.start(two.get)
        wait_asleep(getter)
        if kind == "shared":
            held.ack()
        else:
            held.ack()
            one.close()
        assert getter.result().item == 2


def test_a_groups_key_may_be_dropped_from_the_queue():
    """A key that no entry and no owner refers to is freed."""
    import gc
    import weakref

    class Key:
        pass

    queue = EntryQueue("q", groups="shared")
    key = Key()
    gone = weakref.ref(key)
    queue.put(1, group=key)
    del key
    with queue.subscribe() as subscription:
        subscription.get(False).ack()
    queue.put(2)
    gc.collect()
    assert gone() is None


@BOTH
def test_a_group_is_never_with_two_at_once_under_load(kind):
    queue = EntryQueue("q", groups=kind)
    owners: dict[str, tuple[threading.Thread, int]] = {}
    lock = threading.Lock()
    order: dict[str, list[int]] = {}

    def consume(subscription):
        while True:
            try:
                entry = subscription.get()
            except ShutDown:
                return
            with lock:
                owner, held = owners.get(entry.group, (subscription, 0))
                assert held == 0 or owner is subscription
                owners[entry.group] = (subscription, held + 1)
            if entry.deliveries == 1 and entry.item % 7 == 0:
                with lock:
                    owners[entry.group] = (subscription, owners[entry.group][1] - 1)
                    entry.release()
            else:
                with lock:
                    order.setdefault(entry.group, []).append(entry.item)
                    owners[entry.group] = (subscription, owners[entry.group][1] - 1)
                    entry.ack()

    with Threads() as threads:
        subscriptions = [queue.subscribe(prefetch=1) for _ in range(4)]
        consumers = [threads.start(consume, subscription) for subscription in subscriptions]
        for n in range(600):
            queue.put(n, group=f"g{n % 5}")
        queue.shutdown()
        for consumer in consumers:
            consumer.result()
    # With a credit of one, entries of one group are processed one after the other, in order.
    assert all(items == sorted(items) for items in order.values())
    assert sum(map(len, order.values())) + queue.depth() == 600
    assert {"g0", "g4"} <= set(order)


@BOTH
def test_a_sorted_queue_deals_its_orders_anew_under_groups(kind):
    """Keys that halve the gap each time use up the orders between two entries."""
    queue = SortedEntryQueue("q", key=float, groups=kind)
    queue.put(0.0, group="g")
    low, high = 0.0, 1.0
    values = []
    for number in range(300):
        middle = (low + high) / 2
        low, high = (middle, high) if number % 2 else (low, middle)
        if middle in values:
            break
        values.append(middle)
        queue.put(middle, group="gh"[number % 2])
    one = queue.subscribe()
    assert [item(one) for _ in values] == sorted([0.0, *values])[:-1]
