"""The 93 behaviours that the tests of Qpid Broker-J's queues pin down, in the terms of EntryQueue.

A test's number is the behaviour's. Where the original and our contract differ the contract holds: a bound is reached,
not exceeded, before a put waits; a ttl is the shorter of the queue's and the entry's; a locked entry does not expire.
docs/qpid-behaviours.md lists all 93. Those without a counterpart:

| number | why |
|---|---|
| 5 | there are no state listeners; the states themselves are 6 to 10 |
| 33 | an entry keeps its priority; reject it into a queue with another one, or put it anew |
| 34 | the same, for an unknown entry |
| 35 | the same, by selector |
| 58 | exclusivity is a subscription's own; there are no sessions or connections to share it in |
| 61 | there are no alerts; stats() is there to be watched |
| 67 | a dead letter is an object, so it exists; nothing is durable |
| 68 | entries do not move between queues; put them there |
| 72 | a queue lives as long as something refers to it |
| 75 | nothing is durable |
| 81 | nothing goes to disk |
| 82 | there are no alerts |
| 84 | nothing is recovered |
| 87 | entries are not converted for a consumer |
"""
import functools
import gc
import re
import threading
import time
import weakref
from pathlib import Path
from queue import Empty, Full

import pytest
from support.threads import Threads, before, in_time, wait_asleep, wait_until

from manytail import (
    Consumer,
    EntryQueue,
    EntryState,
    ExclusiveError,
    LastValueQueue,
    PriorityEntryQueue,
    SortedEntryQueue,
)


@functools.total_ordering
class Item:
    """A number that can be weakly referenced."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return self.number == other.number

    def __lt__(self, other):
        return self.number < other.number

    def __hash__(self):
        return hash(self.number)


def items_of(entries):
    return [entry.item for entry in entries]


def take(subscription):
    try:
        return subscription.get(False).item
    except Empty:
        return None


def filled(new, n, **options):
    queue = new("q", **options)
    return queue, [queue.put(item) for item in range(n)], queue.subscribe()


def pass_time(moment):
    wait_until(lambda: time.monotonic() > moment)


# ------------------------------------------------------------------------------------------------ an entry
def test_01_a_new_entry_is_available_and_can_be_acquired(new):
    _, (entry,), subscription = filled(new, 1)
    assert entry.state is EntryState.AVAILABLE
    assert subscription.get(False) == entry
    assert entry.state is EntryState.ACQUIRED


def test_02_an_acquired_entry_that_is_acked_is_deleted(new):
    _, (entry,), subscription = filled(new, 1)
    subscription.get(False).ack()
    assert entry.state is EntryState.DELETED


def test_03_a_release_makes_it_available(new):
    _, (entry,), subscription = filled(new, 1)
    subscription.get(False).release()
    assert entry.state is EntryState.AVAILABLE


def test_04_a_release_of_a_deleted_entry_leaves_it_deleted(new):
    _, (entry,), subscription = filled(new, 1)
    got = subscription.get(False)
    got.ack()
    assert got.release() is False
    assert entry.state is EntryState.DELETED


def test_06_a_fresh_acquisition_is_locked_and_can_be_unlocked(new):
    queue, _, subscription = filled(new, 1)
    got = subscription.get(False)
    assert queue.purge() == 0
    assert got.unlock() is True
    assert queue.purge() == 1


def test_07_a_stolen_entry_is_no_longer_its_holders(new):
    queue, _, subscription = filled(new, 2)
    first, second = subscription.get_many(2)
    second.unlock()
    queue.purge()
    assert (second.ack(), first.ack()) == (False, True)
    assert subscription.unacked == 0


def test_08_what_comes_back_can_be_acquired_again(new):
    """Here a steal ends a delivery. An entry that its holder releases itself can be acquired again."""
    _, _, subscription = filled(new, 1)
    got = subscription.get(False)
    got.unlock()
    assert got.release()
    assert subscription.get(False).ack()


def test_09_unlocked_then_locked_again(new):
    queue, _, subscription = filled(new, 1)
    got = subscription.get(False)
    got.unlock()
    got.lock()
    assert queue.purge() == 0
    assert got.ack()


def test_10_locking_is_the_owners(new):
    _, _, subscription = filled(new, 1)
    got = subscription.get(False)
    assert (got.lock(), got.lock()) == (True, True)
    got.release()
    assert subscription.get(False).lock()
    assert got.lock() is False


def test_11_a_reject_ends_it_for_everybody(new):
    """The original remembers who rejected an entry. Here reject ends it, and release offers it to all again."""
    _, (entry,), subscription = filled(new, 1)
    got = subscription.get(False)
    got.release()
    assert subscription.get(False).reject()
    assert entry.state is EntryState.DELETED


def test_12_the_next_live_entry_skips_deleted_ones(new):
    queue, entries, subscription = filled(new, 4)
    got = subscription.get_many(4)
    got[1].ack()
    got[2].ack()
    assert list(queue.browse()) == [entries[0], entries[3]]
    got[3].ack()
    assert list(queue.browse()) == [entries[0]]


def test_13_a_dead_letter_is_put_once(new):
    letters = EntryQueue()
    _, _, subscription = filled(new, 1, dead_letter=letters)
    got = subscription.get(False)
    assert (got.reject(), got.reject()) == (True, False)
    assert letters.depth() == 1


def test_14_arrival_numbers_are_a_total_order(new):
    _, entries, _ = filled(new, 5)
    numbers = [entry.seq for entry in entries]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 5


def test_15_traversal_with_none_and_with_the_middle_deleted(new):
    queue, _, subscription = filled(new, 3)
    assert items_of(queue.browse()) == [0, 1, 2]
    subscription.get_many(3)[1].ack()
    assert items_of(queue.browse()) == [0, 2]


def test_16_a_sorted_queue_is_traversed_in_key_order(keep):
    queue = SortedEntryQueue("q", key=lambda item: item)
    for item in ("CCC", "AAA", "BBB"):
        queue.put(item)
    assert items_of(queue.browse()) == ["AAA", "BBB", "CCC"]
    keep(queue.subscribe(selector=lambda entry: entry.item == "BBB")).get(False).ack()
    assert items_of(queue.browse()) == ["AAA", "CCC"]


# ------------------------------------------------------------------------------------------------ the list
def test_17_an_entry_knows_its_queue(new):
    queue, (entry,), _ = filled(new, 1)
    assert entry.queue is queue


def test_18_a_put_grows_the_traversal_by_one(new):
    queue, _, _ = filled(new, 3)
    for n in range(3, 6):
        queue.put(n)
        assert len(list(queue.browse())) == n + 1


def test_19_traversal_visits_every_entry(new):
    queue, entries, _ = filled(new, 10)
    assert list(queue.browse()) == entries


def test_20_a_second_traversal_visits_as_many(new):
    queue, _, _ = filled(new, 10)
    assert len(list(queue.browse())) == len(list(queue.browse())) == 10


def test_21_deleting_every_second_entry_halves_the_traversal(new):
    queue, _, subscription = filled(new, 10)
    for got in subscription.get_many(10)[::2]:
        got.ack()
    assert items_of(queue.browse()) == [1, 3, 5, 7, 9]


def test_22_traversal_begins_with_the_first_entry(new):
    queue, entries, _ = filled(new, 3)
    assert next(queue.browse()) == entries[0]
    assert list(new().browse()) == []


def test_23_after_deleting_the_first_the_second_is_first(new):
    queue, entries, subscription = filled(new, 3)
    browsing = queue.browse()
    assert next(browsing) == entries[0]
    subscription.get(False).ack()
    assert next(queue.browse()) == next(browsing) == entries[1]


def test_24_traversal_with_the_last_deleted(new):
    queue, entries, subscription = filled(new, 2)
    browsing = queue.browse()
    subscription.get_many(2)[1].ack()
    assert list(browsing) == [entries[0]]
    assert next(browsing, None) is None


def test_25_dead_entries_in_the_middle_do_not_stay(new):
    queue = new("q")
    items = [Item(n) for n in range(2000)]
    gone = [weakref.ref(item) for item in items]
    queue.put_many(items)
    subscription = queue.subscribe()
    got = subscription.get_many(2000)
    items.clear()
    for entry in got[1:-1]:
        entry.ack()
    kept = (got[0], got[-1])
    del got, entry
    gc.collect()
    assert sum(reference() is not None for reference in gone) <= 200
    assert items_of(queue.browse()) == [kept[0].item, kept[1].item]


def test_26_traversal_from_a_deleted_entry_reaches_the_next_live_one(new):
    queue, entries, subscription = filled(new, 6)
    browsing = queue.browse()
    assert next(browsing) == entries[0]
    got = subscription.get_many(6)
    for entry in got[:4]:
        entry.ack()
    assert list(browsing) == entries[4:]


def test_27_the_first_put_is_dropped_first():
    queue = EntryQueue("q", maxsize=3, overflow="drop_oldest")
    queue.put_many(range(4))
    assert items_of(queue.browse()) == [1, 2, 3]


# ------------------------------------------------------------------------------------------------ priority
def test_28_an_entry_equals_itself():
    entry = PriorityEntryQueue().put(1)
    assert entry == entry
    assert not entry != entry  # noqa: SIM202


def test_29_equal_priorities_go_by_arrival():
    queue = PriorityEntryQueue()
    queue.put_many([1, 2], priority=4)
    assert items_of(queue.browse()) == [1, 2]


def test_30_priority_goes_before_arrival():
    for order in ([5, 4], [4, 5]):
        queue = PriorityEntryQueue()
        for priority in order:
            queue.put(priority, priority=priority)
        assert items_of(queue.browse()) == [5, 4]


def test_31_the_least_significant_is_the_oldest_of_the_lowest_level(keep):
    queue = PriorityEntryQueue("q", maxsize=3, overflow="drop_oldest")
    for item, priority in [("a", 4), ("b", 4), ("c", 5)]:
        queue.put(item, priority=priority)
    queue.put("d", priority=9)
    assert items_of(queue.browse()) == ["d", "c", "b"]
    keep(queue.subscribe()).get(False).ack()
    queue.put("e", priority=3)
    queue.put("f", priority=9)
    assert items_of(queue.browse()) == ["f", "c", "b"]


def test_32_nine_messages_of_three_levels():
    queue = PriorityEntryQueue("q", levels=3)
    for item, priority in zip(range(1, 10), [10, 4, 0, 0, 4, 10, 4, 10, 0], strict=True):
        queue.put(item, priority=priority)
    browser = queue.subscribe(browse=True)
    assert [take(browser) for _ in range(9)] == [1, 6, 8, 2, 5, 7, 3, 4, 9]


# ------------------------------------------------------------------------------------------------ last value
def test_36_entries_without_a_key_are_never_replaced(keep):
    queue = LastValueQueue("q", key=lambda item: None)
    assert list(queue.browse()) == []
    queue.put_many([1, 1])
    assert queue.depth() == 2
    keep(queue.subscribe()).get(False).ack()
    assert queue.depth() == 1


def test_37_one_entry_per_key():
    queue = LastValueQueue("q", key=lambda item: item[0])
    for item in ("a1", "b1", "a2"):
        queue.put(item)
    assert items_of(queue.browse()) == ["b1", "a2"]


def test_38_an_acquired_old_entry_goes_on_release(keep):
    queue = LastValueQueue("q", key=lambda item: item[0])
    queue.put("a1")
    got = keep(queue.subscribe()).get(False)
    queue.put("a2")
    assert queue.depth() == 2
    got.release()
    assert items_of(queue.browse()) == ["a2"]


def test_39_keys_of_entries_that_are_gone_are_not_kept():
    class Key:
        pass

    queue = LastValueQueue("q", key=lambda item: item)
    key = Key()
    gone = weakref.ref(key)
    queue.put(key)
    with queue.subscribe() as subscription:
        subscription.get(False).ack()
    queue.put("other")
    del key
    gc.collect()
    assert gone() is None


def test_40_the_oldest_moves_as_entries_are_replaced():
    queue = LastValueQueue("q", key=lambda item: item[0], maxsize=2, overflow="drop_oldest")
    for item in ("a1", "b1", "a2", "c1"):
        queue.put(item)
    assert items_of(queue.browse()) == ["a2", "c1"]


def test_41_the_oldest_age_advances_when_the_first_is_replaced():
    def attempt(seconds):
        queue = LastValueQueue("q", key=lambda item: item)
        queue.put("a")
        wait_until(lambda: queue.stats().oldest_age > seconds)
        with before(seconds / 2):  # half, because arrivals are taken from a clock that is some milliseconds behind
            queue.put("a")
            assert queue.stats().oldest_age < seconds

    in_time(attempt, 0.1, 2, 20)


# ------------------------------------------------------------------------------------------------ sorted
def test_42_shuffled_keys_come_out_sorted():
    queue = SortedEntryQueue("q", key=lambda item: item)
    items = [n * 73 % 200 for n in range(200)]
    queue.put_many(items)
    assert items_of(queue.browse()) == sorted(items)


def test_43_equal_keys_are_first_in_first_out():
    queue = SortedEntryQueue("q", key=lambda item: 0)
    queue.put_many(range(100))
    assert items_of(queue.browse()) == list(range(100))


def test_44_none_is_a_key_like_any_other():
    """None cannot be compared with itself by `<`, so put raises from the second None on."""
    queue = SortedEntryQueue("q", key=lambda item: item)
    queue.put(None)
    with pytest.raises(TypeError):
        queue.put(None)
    assert queue.depth() == 1


@pytest.mark.parametrize("items", [range(100), range(100)[::-1]], ids=["ascending", "descending"])
def test_45_ascending_and_descending_input(items):
    queue = SortedEntryQueue("q", key=lambda item: item)
    queue.put_many(list(items))
    assert items_of(queue.browse()) == list(range(100))


def test_46_inserts_after_before_between_and_at_the_head():
    queue = SortedEntryQueue("q", key=lambda item: item)
    for item in (50, 60, 40, 55, 10):
        queue.put(item)
    assert items_of(queue.browse()) == [10, 40, 50, 55, 60]


def test_47_the_oldest_is_by_arrival_whatever_the_key():
    queue = SortedEntryQueue("q", key=lambda item: item, maxsize=2, overflow="drop_oldest")
    for item in (3, 1, 2):
        queue.put(item)
    assert items_of(queue.browse()) == [1, 2]


# ------------------------------------------------------------------------------------------------ the queue
def test_48_subscribing_counts_and_closing_uncounts(new):
    queue = new()
    subscription = queue.subscribe()
    assert queue.stats().subscriptions == 1
    assert subscription.interest == "interested"
    queue.put(1)
    assert take(subscription) == 1
    subscription.close()
    assert queue.stats().subscriptions == 0
    queue.put(2)
    assert queue.qsize() == 2


def test_49_what_was_put_before_subscribing_is_delivered(new):
    queue = new()
    queue.put_many([1, 2])
    subscription = queue.subscribe()
    assert [take(subscription), take(subscription)] == [1, 2]


def test_50_a_held_entry_is_delivered_after_its_time(new):
    queue = new()
    queue.put(1, delay=0.005)
    subscription = queue.subscribe()
    pass_time(time.monotonic() + 0.006)
    queue.maintain()
    assert take(subscription) == 1


def test_51_no_delay_no_holding(new):
    queue = new()
    assert queue.put(1, delay=0.0).state is EntryState.AVAILABLE


def test_52_others_overtake_a_held_entry(new):
    queue = new()
    queue.put(1, delay=1000)
    queue.put(2)
    subscription = queue.subscribe()
    assert [take(subscription), take(subscription)] == [2, None]


def test_53_a_release_of_one_of_three_is_redelivered_once(new):
    _, _, subscription = filled(new, 3)
    got = subscription.get_many(3)
    got[2].release()
    assert [take(subscription), take(subscription)] == [2, None]


def test_54_a_released_entry_that_has_expired_is_not_redelivered(new):
    def take_both(ttl):
        queue = new()
        with before(ttl):
            entry = queue.put(1, ttl=ttl)
            queue.put(2)
            subscription = queue.subscribe()
            first, _ = subscription.get_many(2)
        return queue, entry, subscription, first

    queue, entry, subscription, first = in_time(take_both, 0.02, 1, 60)
    pass_time(entry.expires_at)
    first.release()
    assert take(subscription) is None
    assert (entry.state, queue.stats().expired) == (EntryState.DELETED, 1)


def test_55_releases_out_of_order_are_redelivered_in_order(new):
    _, _, subscription = filled(new, 3)
    got = subscription.get_many(3)
    got[2].release()
    got[0].release()
    assert [take(subscription) for _ in range(3)] == [0, 2, None]


def test_56_a_release_is_redelivered_to_exactly_one(new):
    queue, _, one = filled(new, 2)
    two = queue.subscribe()
    got = one.get(False)
    two.get(False)
    got.release()
    assert sorted([str(take(one)), str(take(two))]) == ["0", "None"]


def test_57_exclusive_both_ways(new):
    queue = new()
    with queue.subscribe(exclusive=True), pytest.raises(ExclusiveError):
        queue.subscribe()
    with queue.subscribe(), pytest.raises(ExclusiveError):
        queue.subscribe(exclusive=True)


def test_59_browsing_omits_what_is_gone(new):
    queue, _, subscription = filled(new, 3)
    subscription.get_many(2)[1].ack()
    assert items_of(queue.browse()) == [0, 2]
    assert [entry.item for entry in queue.browse() if entry.item > 1] == [2]


def test_60_purge_empties_also_with_dead_entries_in_the_middle(new):
    queue, _, subscription = filled(new, 4)
    first, second = subscription.get_many(2)
    second.ack()
    first.release()
    assert queue.purge() == 3
    assert queue.depth() == 0


@pytest.mark.parametrize(
    ("of_queue", "of_put", "effective"), [(10, None, 10), (10, 15, 10), (10, 5, 5), (None, 5, 5), (None, None, None)]
)
def test_62_the_shorter_time_to_live_wins(new, of_queue, of_put, effective):
    before = time.monotonic()
    expires = new("q", ttl=of_queue).put(1, ttl=of_put).expires_at
    if effective is None:
        assert expires is None
    else:
        assert before + effective <= expires <= time.monotonic() + effective


def test_63_the_oldest_age_is_by_arrival():
    for queue in (PriorityEntryQueue(), SortedEntryQueue("q", key=lambda item: item)):
        queue.put(2, priority=1)
        wait_until(lambda queue=queue: queue.stats().oldest_age > 0.01)
        queue.put(1, priority=9)
        assert queue.stats().oldest_age > 0.01


# ------------------------------------------------------------------------------------------------ overflow
def test_64_without_a_bound_there_is_none(new):
    queue = new()
    queue.put_many(range(3))
    assert queue.depth() == 3


def test_65_the_fifth_of_four_drops_the_oldest(new):
    queue = new("q", maxsize=4, overflow="drop_oldest")
    queue.put_many(range(5))
    assert items_of(queue.browse()) == [1, 2, 3, 4]


def test_66_as_many_are_dropped_as_needed(new):
    queue = new("q", maxsize=4, overflow="drop_oldest")
    queue.put_many(range(4))
    queue.maxsize = 3
    queue.put(4)
    assert items_of(queue.browse()) == [2, 3, 4]


def test_69_an_expired_entry_goes_to_the_dead_letter(new):
    letters = EntryQueue()
    queue = new("q", dead_letter=letters)
    entry = queue.put(1, ttl=0.001)
    pass_time(entry.expires_at)
    queue.maintain()
    wait_until(lambda: items_of(letters.browse()) == [1])   # the timer's thread may deliver the dead letter


def test_70_an_entry_deleted_after_the_traversal_has_begun_is_not_shown(new):
    queue, entries, subscription = filled(new, 3)
    browsing = queue.browse()
    next(browsing)
    subscription.get_many(2)[1].ack()
    assert list(browsing) == [entries[2]]


def test_71_purge_releases_items(new):
    queue = new()
    item = Item(3)
    gone = weakref.ref(item)
    queue.put(item)
    del item
    queue.purge()
    queue.put(Item(4))
    queue.purge()
    queue.put(Item(5))
    gc.collect()
    assert gone() is None


def test_73_entries_that_are_gone_are_never_delivered(new):
    queue, _, subscription = filled(new, 4)
    got = subscription.get_many(4)
    got[1].ack()
    got[3].ack()
    got[0].release()
    got[2].release()
    other = queue.subscribe()
    assert [take(other) for _ in range(3)] == [0, 2, None]


def test_74_an_entry_that_went_before_subscribing_is_skipped(new):
    queue, _, subscription = filled(new, 2)
    subscription.get(False).ack()
    assert take(queue.subscribe()) == 1


def test_76_exactly_at_the_limit_nothing_is_dropped(new):
    queue = new("q", maxsize=3, overflow="drop_oldest")
    queue.put_many(range(3))
    assert queue.stats().dropped == 0
    queue.put(3)
    assert queue.stats().dropped == 1


def test_77_a_locked_oldest_is_skipped(new, keep):
    queue = new("q", maxsize=3, overflow="drop_oldest")
    queue.put_many(range(3))
    keep(queue.subscribe()).get(False)
    queue.put(3)
    assert items_of(queue.browse()) == [0, 2, 3]


def test_78_over_the_limit_a_released_entry_is_dropped(new, keep):
    queue = new("q", maxsize=2, overflow="drop_oldest")
    queue.put_many(range(2))
    got = keep(queue.subscribe()).get_many(2)
    queue.put(2)
    assert queue.depth() == 3
    assert got[0].release() is True
    assert items_of(queue.browse()) == [1, 2]


def test_79_reject_refuses_until_there_is_room(new, keep):
    queue = new("q", maxsize=2, overflow="reject")
    queue.put_many([1, 2])
    with pytest.raises(Full):
        queue.put(3)
    keep(queue.subscribe()).get(False).ack()
    queue.put(3)
    with pytest.raises(Full):
        queue.put(4)


def test_80_a_full_queue_blocks_until_eighty_percent(new):
    queue = new("q", maxsize=10)
    queue.put_many(range(10))
    subscription = queue.subscribe()
    with Threads() as threads:
        putter = threads.start(queue.put, 10)
        wait_asleep(putter)
        subscription.get(False).ack()
        assert queue.depth() == 9
        with pytest.raises(Full):
            queue.put(11, False)
        subscription.get(False).ack()
        putter.result()
    assert queue.depth() == 9


def test_83_all_statistics_are_zero_at_the_start(new):
    stats = new().stats()
    assert len(stats) == 17
    assert set(stats) == {0, None}


# ------------------------------------------------------------------------------------------------ consumers
def test_85_closing_a_consumer_closes_each_of_its_subscriptions():
    consumer = Consumer()
    subscriptions = [consumer.subscribe(EntryQueue()) for _ in range(3)]
    consumer.close()
    consumer.close()
    assert all(subscription.closed for subscription in subscriptions)


def test_86_suspending_twice_is_suspending_once():
    queue = EntryQueue()
    with Consumer() as consumer:
        subscription = consumer.subscribe(queue)
        consumer.suspend()
        consumer.suspend()
        assert subscription.interest == "not_interested"
        consumer.resume()
        assert subscription.interest == "interested"
    assert subscription.interest == "closed"


@pytest.mark.parametrize("kind", ["shared", "assigned"])
def test_88_two_subscriptions_get_one_group_each(new, kind):
    queue = new("q", groups=kind)
    for item in range(4):
        queue.put(item, group="gh"[item % 2])
    one, two = queue.subscribe(), queue.subscribe()
    assert [take(one), take(two), take(two), take(one)] == [0, 1, 3, 2]


@pytest.mark.parametrize("kind", ["shared", "assigned"])
def test_89_a_closing_owner_hands_its_group_back_in_order(new, kind):
    queue = new("q", groups=kind)
    queue.put_many(range(3), group="g")
    one, two = queue.subscribe(), queue.subscribe()
    one.get_many(2)
    assert take(two) is None
    one.close()
    assert [(entry.item, entry.redelivered) for entry in two.get_many(3)] == [(0, True), (1, True), (2, False)]


def test_90_an_assignment_survives_an_empty_queue_and_sharing_does_not(new):
    for kind, expected in (("assigned", None), ("shared", 1)):
        queue = new("q", groups=kind)
        queue.put(0, group="g")
        one, two = queue.subscribe(), queue.subscribe()
        one.get(False).ack()
        queue.put(1, group="g")
        assert take(two) == expected


def test_91_a_shared_group_is_never_with_two_at_once(new):
    queue = new("q", groups="shared")
    queue.put_many(range(3), group="g")
    one, two = queue.subscribe(), queue.subscribe()
    got = one.get_many(2)
    got[0].ack()
    assert take(two) is None
    got[1].ack()
    assert take(two) == 2


def test_92_a_low_priority_is_served_only_if_no_higher_one_can_take_it(new):
    queue = new()
    low = queue.subscribe(priority=1)
    high = queue.subscribe(priority=9, prefetch=1, selector=lambda entry: entry.item != 1)
    queue.put_many(range(3))
    assert take(low) == 1
    assert take(low) is None
    first = high.get(False)
    assert first.item == 0
    assert take(low) == 2


def test_93_the_nth_failure_goes_to_the_dead_letter_and_browsing_does_not_count(new):
    letters = EntryQueue()
    queue = new("q", max_deliveries=3, dead_letter=letters)
    queue.put(1)
    subscription, browser = queue.subscribe(), queue.subscribe(browse=True)
    assert take(browser) == 1
    for _ in range(3):
        assert letters.depth() == 0
        assert subscription.get(False).release()
    assert items_of(letters.browse()) == [1]
    assert threading.active_count()


# ------------------------------------------------------------------------------------------------ completeness
def test_every_behaviour_is_tested_or_has_a_reason():
    tested = {int(name[5:7]) for name in globals() if re.match(r"test_\d\d_", name)}
    reasons = {int(number) for number in re.findall(r"^\| (\d+) \| .+ \|$", __doc__ or "", re.MULTILINE)}
    assert not tested & reasons
    assert tested | reasons == set(range(1, 94))


def test_the_page_lists_every_behaviour_as_this_file_does():
    page = Path(__file__).resolve().parents[3] / "docs" / "qpid-behaviours.md"
    if not page.exists():
        pytest.skip("these tests run away from the source tree, without docs/")
    rows = dict(re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert list(map(int, rows)) == list(range(1, 94))
    names = [name for name in globals() if re.match(r"test_\d\d_", name)]
    listed = [name for cell in rows.values() for name in re.findall(r"`(test_\w+)`", cell)]
    assert sorted(listed) == sorted(names)
    reasons = dict(re.findall(r"^\| (\d+) \| (.+) \|$", __doc__ or "", re.MULTILINE))
    assert {number: cell for number, cell in rows.items() if "`test_" not in cell} == reasons
