"""Message groups. A shared group belongs to a subscription while that holds unacked entries of it, an assigned group
until the subscription closes."""
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


@BOTH
def test_a_group_is_never_with_two_at_once(kind):
    queue = grouped(kind, [(1, "g"), (2, "g")])
    one, two = queue.subscribe(), queue.subscribe()
    held = take(one)
    assert item(two) is None
    assert queue.qsize() == 1
    held.ack()
    assert item(two) == (2 if kind == "shared" else None)


@pytest.mark.parametrize("end", ["ack", "reject", "release", "stolen", "close"])
def test_a_shared_group_is_free_when_nothing_of_it_is_held(end):
    queue = grouped("shared", [(1, "g"), (2, "g")])
    one, two = queue.subscribe(), queue.subscribe()
    held = take(one)
    assert item(two) is None
    if end == "stolen":
        held.unlock()
        queue.purge()
        queue.put(2, group="g")
    elif end == "close":
        one.close()
    else:
        assert getattr(held, end)()
    assert item(two) == (1 if end in ("release", "close") else 2)


def test_a_shared_group_stays_while_one_of_several_is_held():
    queue = grouped("shared", [(n, "g") for n in range(4)])
    one, two = queue.subscribe(), queue.subscribe()
    first, second = take(one), take(one)
    first.ack()
    assert item(two) is None
    second.ack()
    assert item(two) == 2


def test_an_assigned_group_survives_an_empty_queue():
    queue = grouped("assigned", [(1, "g")])
    one, two = queue.subscribe(), queue.subscribe()
    take(one).ack()
    queue.put(2, group="g")
    assert item(two) is None
    assert item(one) == 2


def test_a_shared_group_does_not_survive_an_empty_queue():
    queue = grouped("shared", [(1, "g")])
    one, two = queue.subscribe(), queue.subscribe()
    take(one).ack()
    queue.put(2, group="g")
    assert item(two) == 2


@BOTH
def test_closing_the_owner_hands_the_group_back_backwards_in_order(kind):
    queue = grouped(kind, [(1, "g"), (2, "h"), (3, "g"), (4, "h"), (5, "g")])
    one, two = queue.subscribe(), queue.subscribe()
    assert [item(one), item(two), item(one), item(two)] == [1, 2, 3, 4]
    assert item(two) is None
    one.close()
    again = [take(two) for _ in range(3)]
    assert [(entry.item, entry.redelivered) for entry in again] == [(1, True), (3, True), (5, False)]


@BOTH
def test_a_release_inside_a_group_keeps_its_order(kind):
    queue = grouped(kind, [(n, "g") for n in range(3)])
    one, two = queue.subscribe(), queue.subscribe()
    first, second = take(one), take(one)
    first.release()
    assert item(two) is None
    assert item(one) == 0
    second.release()
    assert [item(one), item(one)] == [1, 2]


def test_credit_keeps_an_owner_from_more_and_others_still_out():
    queue = grouped("shared", [(1, "g"), (2, "g"), (3, None)])
    one, two = queue.subscribe(prefetch=1), queue.subscribe()
    held = take(one)
    assert item(one) is None
    assert item(two) == 3
    held.ack()
    assert item(one) == 2


@BOTH
def test_the_first_of_a_group_may_become_another_one(kind):
    """By a release, by being purged, by its time to live: whoever may take the group gets what is first then."""
    queue = grouped(kind, [(1, "g"), (2, "g"), (3, "h"), (4, "g")])
    one, two = queue.subscribe(), queue.subscribe()
    first = take(one)
    second = take(one)
    assert item(two) == 3
    second.release()
    assert item(one) == 2
    first.release()
    assert item(one) == 1
    assert item(two) is None
    one.close()
    assert [item(two) for _ in range(4)] == [1, 2, 4, None]


@BOTH
def test_more_urgent_ones_have_the_first_claim_to_free_groups_only(kind):
    queue = grouped(kind, [(1, "g"), (2, "g"), (3, None), (4, "h")])
    below = queue.subscribe()
    assert item(below) == 1
    above = queue.subscribe(priority=5)
    assert [item(below), item(below)] == [2, None]
    above.suspend()
    assert item(below) == 3
    above.resume()
    assert [item(above), item(above)] == [4, None]
