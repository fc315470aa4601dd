"""Nothing leaks, nothing is freed early: reference counts, the collector, memory of long runs."""
import gc
import sys
import threading
import weakref
from queue import Empty

import pytest
from support.threads import run_all, switching_often, wait_until

from manytail import Consumer, EntryQueue, LastValueQueue, PriorityEntryQueue, SortedEntryQueue


class Item:
    """Can be weakly referenced, and refer to other items."""


def references(thing):
    gc.collect()
    return sys.getrefcount(thing)


def all_gone(*weak):
    gc.collect()
    return [reference() for reference in weak] == [None] * len(weak)


# ------------------------------------------------------------------------------------------------ reference counts
def test_an_acked_item_and_what_came_with_it_is_released():
    queue = EntryQueue("q", groups="shared")
    item, header, group, origin = Item(), Item(), Item(), Item()
    things = [item, header, group, origin]
    before = [references(thing) for thing in things]
    with queue.subscribe() as subscription:
        for _ in range(20):
            queue.put(item, headers={"a": header}, group=group, origin=origin)
        for _ in range(20):
            assert subscription.get(False).ack()
        queue.put(None)
        assert subscription.get(False).ack()  # the list keeps its last place until the next one comes
    queue.put(None)
    queue.purge()
    assert [references(thing) for thing in things] == before


@pytest.mark.parametrize("end", ["reject", "expire", "drop"])
def test_an_item_is_released_however_it_ends(end):
    """How items of every class end: tests/contract/test_memory.py."""
    queue = EntryQueue("q", maxsize=2, overflow="drop_oldest") if end == "drop" else EntryQueue("q")
    items = [Item() for _ in range(10)]
    gone = [weakref.ref(item) for item in items]
    queue.put_many(items, ttl=0.0001 if end == "expire" else None)
    items.clear()
    if end == "reject":
        with queue.subscribe() as subscription:
            assert all(entry.reject() for entry in subscription.get_many(10))
    while end == "expire" and queue.depth():
        queue.maintain()
    queue.put(None)
    # The timer's thread holds for a moment what it expires.
    wait_until(lambda: gc.collect() is not None and sum(it() is not None for it in gone) <= (end == "drop"))


def test_refused_puts_leave_no_reference():
    def key(item):
        if item.bad:
            raise KeyError
        return 0

    item = Item()
    item.bad = True
    for queue in (SortedEntryQueue("q", key=key), LastValueQueue("q", key=key)):
        before = references(item)
        for _ in range(10):
            with pytest.raises(KeyError):
                queue.put(item)
        assert references(item) == before
    queue = EntryQueue()
    before = references(item)
    for _ in range(10):
        assert queue.put(item, immediate=True) is None
        with pytest.raises(ValueError, match="ttl"):
            queue.put(item, ttl=-1)
    assert references(item) <= before + 1  # the last withdrawn place may stay at the end of the list
    queue.put(None)
    queue.purge()
    queue.put(None)
    assert references(item) == before


def test_keys_of_sorted_and_last_value_queues_are_released():
    for make in (SortedEntryQueue, LastValueQueue):
        class Key:
            def __init__(self, number):
                self.number = number

            def __lt__(self, other):
                return self.number < other.number

        keys = [Key(n) for n in range(5)]
        gone = [weakref.ref(key) for key in keys]
        queue = make("q", key=lambda n, keys=keys: keys[n])
        queue.put_many(range(5))
        with queue.subscribe() as subscription:
            for entry in subscription.get_many(5):
                entry.ack()
        keys.clear()
        key = None
        del entry, key, queue, subscription
        assert all_gone(*gone)


def test_get_leaves_no_reference_to_the_subscription_or_queue():
    queue = EntryQueue()
    subscription = queue.subscribe()
    before = references(queue), references(subscription)
    for n in range(50):
        queue.put(n)
        subscription.get(False).ack()
        with pytest.raises(Empty):
            subscription.get(False)
    assert (references(queue), references(subscription)) == before


# ------------------------------------------------------------------------------------------------ the collector
@pytest.mark.parametrize(
    "through",
    ["item", "headers", "group", "selector", "dead letter", "key", "value key", "origin", "handle", "consumer"],
)
def test_cycles_through_the_queue_are_collected(through):
    thing = Item()
    gone = weakref.ref(thing)
    options = {"dead_letter": lambda entry, reason, thing=thing: None} if through == "dead letter" else {}
    if through in ("key", "value key"):
        make = SortedEntryQueue if through == "key" else LastValueQueue
        queue = make("q", key=lambda item, thing=thing: 0)
    else:
        queue = EntryQueue("q", groups="assigned", **options)
    thing.queue = queue
    thing.subscription = queue.subscribe(selector=(lambda entry, thing=thing: True) if through == "selector" else None)
    entry = queue.put(
        thing if through == "item" else 1,
        headers={"a": thing} if through == "headers" else None,
        group=thing if through == "group" else None,
        origin=thing if through == "origin" else None,
    )
    if through in ("handle", "group"):
        thing.entry = thing.subscription.get(False)
    if through == "consumer":
        thing.consumer = Consumer()
        thing.consumer.subscribe(queue, selector=lambda entry, thing=thing: True)
        thing.entry = thing.consumer.get(False)
    thing.subscription.close() if through == "item" else None
    del queue, entry, thing, options
    assert all_gone(gone)


def test_a_long_list_is_freed_without_recursion():
    queue = EntryQueue()
    kept = queue.put(0)
    queue.put_many(range(300_000))
    with queue.subscribe() as subscription:
        while queue.qsize():
            for entry in subscription.get_many(10_000):
                entry.ack()
    del queue, subscription, entry
    gc.collect()
    assert kept.item == 0


def test_queues_made_and_dropped_in_every_thread():
    def use():
        for n in range(150):
            queue = [EntryQueue, PriorityEntryQueue][n % 2](maxsize=10, ttl=1000 if n % 3 else None)
            queue.put_many(range(5))
            with queue.subscribe(prefetch=3) as subscription:
                subscription.get(False).release()
                subscription.get(False).ack()
            with Consumer() as consumer:
                consumer.subscribe(queue)
                consumer.get(False).reject()

    run_all(*[use] * 4)


def test_dead_entries_in_the_middle_are_unlinked():
    """First and last stay; a hundred thousand in between end in random order. A handle of an ended entry keeps no other
    entry alive."""
    import random

    queue = EntryQueue()
    items = [Item() for _ in range(3000)]
    gone = [weakref.ref(item) for item in items]
    queue.put("first")
    for item in items:
        queue.put(item)
    queue.put("last")
    with queue.subscribe(selector=lambda entry: not isinstance(entry.item, str)) as subscription:
        entries = subscription.get_many(3000)
        items.clear()
        item = None
        random.Random(3).shuffle(entries)
        kept = entries[0]
        for entry in entries:
            entry.ack()
        del entries, entry, item
        assert [entry.item for entry in queue.browse()] == ["first", "last"]
        for _ in range(200):  # unlinking starts after some entries have ended
            queue.put(Item())
            subscription.get(False).ack()
        gc.collect()
        assert sum(reference() is not None for reference in gone) == 1
        assert kept.item is not None


@pytest.mark.thread_unsafe(reason="starts threads of its own, and each must get a turn")
def test_reading_handles_while_their_places_die():
    queue = EntryQueue()
    stop = threading.Event()
    shared = [queue.put(0)]

    def read():
        count, stopped = 0, False
        while not stopped:              # at least once, however late it starts
            stopped = stop.is_set()
            entry = shared[0]
            assert entry.item == entry.headers["n"] if entry.headers else entry.item == 0
            assert entry.deliveries in (0, 1)
            count += 1
        return count

    def churn():
        with queue.subscribe() as subscription:
            for n in range(4000):
                shared[0] = queue.put(n, headers={"n": n})
                subscription.get(False).ack()
        stop.set()

    with switching_often():
        assert run_all(churn, read, read)[1] > 0
