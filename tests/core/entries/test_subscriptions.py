"""Subscriptions: competing, browsing, with selectors, exclusive, with priorities, no-local; credit; their pointers."""
import math
import threading
from queue import Empty

import pytest
from support.threads import DEADLINE, LONG, Threads, run_all, wait_asleep

from manytail import ClosedError, EntryQueue, EntryState, ExclusiveError, PriorityEntryQueue, ShutDown


def items_of(entries):
    return [entry.item for entry in entries]


def drain(subscription):
    items = []
    while True:
        try:
            items.append(subscription.get(False).item)
        except Empty:
            return items


def none_left(subscription):
    with pytest.raises(Empty):
        subscription.get(False)
    return True


# ------------------------------------------------------------------------------------------------ get
def test_get_returns_the_first_available_entry_in_the_order(new):
    queue = new()
    queue.put_many(range(4))
    one, two = queue.subscribe(), queue.subscribe()
    assert [one.get(False).item, two.get(False).item, one.get(False).item, two.get().item] == [0, 1, 2, 3]
    assert none_left(one)


def test_get_times_out(new):
    subscription = new().subscribe()
    for timeout in (0, 0.002):
        with pytest.raises(Empty):
            subscription.get(timeout=timeout)
    for bad in (-1, math.nan):
        with pytest.raises(ValueError, match="timeout"):
            subscription.get(timeout=bad)


def test_get_waits_for_a_put(new, keep):
    queue = new()
    with Threads() as threads:
        getter = threads.start(keep(queue.subscribe()).get)
        wait_asleep(getter)
        queue.put(5)
        assert getter.result().item == 5


def test_get_many_waits_for_the_first_and_takes_what_is_there(new):
    queue = new()
    subscription = queue.subscribe()
    assert subscription.get_many(0) == subscription.get_many(-3) == []
    with pytest.raises(Empty):
        subscription.get_many(3, False)
    with pytest.raises(Empty):
        subscription.get_many(3, timeout=0.001)
    queue.put_many(range(5))
    assert items_of(subscription.get_many(3)) == [0, 1, 2]
    assert items_of(subscription.get_many(3)) == [3, 4]
    with Threads() as threads:
        getter = threads.start(subscription.get_many, 3)
        wait_asleep(getter)
        queue.put(9)
        assert items_of(getter.result()) == [9]


def test_credit_bounds_get_many(new):
    queue = new()
    queue.put_many(range(5))
    subscription = queue.subscribe(prefetch=2)
    assert items_of(subscription.get_many(5)) == [0, 1]
    with pytest.raises(Empty):
        subscription.get_many(5, False)


def test_several_threads_share_a_subscription(new):
    queue = new()
    subscription = queue.subscribe()
    queue.put_many(range(400))

    def take():
        got = []
        while True:
            try:
                entry = subscription.get(False)
            except Empty:
                return got
            got.append(entry.item)
            assert entry.ack()

    taken = run_all(*[take] * 4)
    assert sorted(item for items in taken for item in items) == list(range(400))
    assert all(items == sorted(items) for items in taken)


def test_iteration_yields_entries_until_closed(new):
    queue = new()
    queue.put_many(range(3))
    subscription = queue.subscribe()
    seen = []
    for entry in subscription:
        seen.append(entry.item)
        entry.ack()
        if len(seen) == 3:
            subscription.close()
    assert seen == [0, 1, 2]


# ------------------------------------------------------------------------------------------------ credit
def test_prefetch_bounds_what_is_held_unacked(new):
    queue = new()
    queue.put_many(range(10))
    subscription = queue.subscribe(prefetch=2)
    first, second = subscription.get(False), subscription.get(False)
    assert (subscription.unacked, subscription.prefetch) == (2, 2)
    assert subscription.interest == "not_interested"
    assert none_left(subscription)
    for end in (first.ack, second.reject):
        assert end()
        assert subscription.get(False).item
    assert subscription.unacked == 2


def test_a_release_gives_credit_back(new):
    queue = new()
    queue.put_many(range(2))
    subscription = queue.subscribe(prefetch=1)
    assert subscription.get(False).release()
    assert subscription.get(False).item == 0


def test_prefetch_may_be_assigned(new):
    queue = new()
    queue.put_many(range(10))
    subscription = queue.subscribe()
    got = subscription.get_many(4)
    subscription.prefetch = 2
    assert none_left(subscription)
    for entry in got[:2]:
        entry.ack()
    assert none_left(subscription)
    got[2].ack()
    assert subscription.get(False).item == 4
    subscription.prefetch = 0
    assert len(subscription.get_many(20)) == 5


@pytest.mark.parametrize("end", ["ack", "release", "reject", "stolen", "more credit", "no limit"])
def test_a_get_without_credit_waits_until_it_has_some(new, end):
    queue = new()
    queue.put_many(range(3))
    subscription = queue.subscribe(prefetch=1)
    first = subscription.get(False)
    with Threads() as threads:
        getter = threads.start(subscription.get)
        wait_asleep(getter)
        if end == "stolen":
            first.unlock()
            queue.purge()
            queue.put(5)
        elif end in ("more credit", "no limit"):
            subscription.prefetch = 2 if end == "more credit" else 0
        else:
            getattr(first, end)()
        assert getter.result().item == {"release": 0, "stolen": 5}.get(end, 1)


def test_credit_is_not_lost_when_an_acquire_is_lost(new, keep):
    """Many getters compete for few entries with a credit of one each. Afterwards each can still take one."""
    queue = new()
    subscriptions = [keep(queue.subscribe(prefetch=1)) for _ in range(4)]

    def fight(subscription):
        for _ in range(300):
            try:
                subscription.get(False).ack()
            except Empty:
                queue.put(0)

    run_all(*[lambda subscription=subscription: fight(subscription) for subscription in subscriptions])
    queue.purge()
    for n, subscription in enumerate(subscriptions):
        assert subscription.unacked == 0
        queue.put(n)
        assert subscription.get(False).item == n


def test_suspended_subscriptions_get_nothing(new):
    queue = new()
    queue.put(1)
    subscription = queue.subscribe()
    subscription.suspend()
    subscription.suspend()
    assert subscription.interest == "not_interested"
    assert none_left(subscription)
    with Threads() as threads:
        getter = threads.start(subscription.get)
        wait_asleep(getter)
        subscription.resume()
        assert getter.result().item == 1
    assert subscription.interest == "interested"


def test_a_suspended_subscription_keeps_and_may_ack_what_it_holds(new):
    queue = new()
    queue.put(1)
    subscription = queue.subscribe()
    entry = subscription.get(False)
    subscription.suspend()
    assert subscription.unacked == 1
    assert entry.ack()


# ------------------------------------------------------------------------------------------------ selecting
def test_a_selecting_subscription_gets_what_it_wants(new):
    queue = new()
    queue.put_many(range(6))
    even = queue.subscribe(selector=lambda entry: entry.item % 2 == 0)
    assert drain(even) == [0, 2, 4]
    assert drain(queue.subscribe()) == [1, 3, 5]


def test_a_text_selector_looks_at_headers(new):
    pytest.importorskip("lark")
    queue = new()
    for n, colour in enumerate(["red", "blue", "red", None]):
        queue.put(n, headers={"colour": colour, "weight": n})
    assert drain(queue.subscribe(selector="colour = 'red' AND weight > 1")) == [2]
    assert drain(queue.subscribe(selector="colour IS NULL OR colour LIKE 'b%'")) == [1, 3]


def test_a_bad_text_selector_is_refused_with_its_place(new):
    pytest.importorskip("lark")
    queue = new()
    with pytest.raises(ValueError, match="line 1, column 10"):
        queue.subscribe(selector="colour = = 'red'")
    assert queue.stats().subscriptions == 0
    with pytest.raises(TypeError, match="selector"):
        queue.subscribe(selector=5)


def test_a_selector_gets_the_entry_and_may_use_the_queue(new, keep):
    queue = new()
    asked = []

    def selector(entry):
        asked.append((entry.item, entry.queue is queue, entry.state, queue.qsize(), len(list(queue.browse()))))
        return True

    queue.put(1)
    assert keep(queue.subscribe(selector=selector)).get(False).item == 1
    assert asked[0] == (1, True, EntryState.AVAILABLE, 1, 1)


def test_a_truthy_answer_selects(new):
    queue = new()
    queue.put_many(range(3))
    assert drain(queue.subscribe(selector=lambda entry: entry.item)) == [1, 2]


def test_origin_is_not_delivered_to_its_own(new):
    queue = new()
    mine, other = ["equal"], ["equal"]
    queue.put(0, origin=mine)
    queue.put(1, origin=other)
    queue.put(2)
    subscription = queue.subscribe(origin=mine)
    assert drain(subscription) == [1, 2]
    assert drain(queue.subscribe()) == [0]


# ------------------------------------------------------------------------------------------------ exclusive
def test_exclusive_refuses_others_and_is_refused(new, keep):
    queue = new()
    subscription = queue.subscribe()
    with pytest.raises(ExclusiveError):
        queue.subscribe(exclusive=True)
    subscription.close()
    browser = queue.subscribe(browse=True)
    with pytest.raises(ExclusiveError):
        queue.subscribe(exclusive=True)
    browser.close()
    list(queue.browse())
    exclusive = queue.subscribe(exclusive=True)
    for options in ({}, {"exclusive": True}, {"browse": True}):
        with pytest.raises(ExclusiveError):
            queue.subscribe(**options)
    queue.put(1)
    assert exclusive.get(False).item == 1
    exclusive.close()
    assert keep(queue.subscribe()).get(False).item == 1
    assert queue.stats().subscriptions <= 1


def test_one_of_many_exclusive_ones_wins(new):
    for _ in range(20):
        queue = new()

        def claim(queue=queue):
            try:
                return queue.subscribe(exclusive=True)
            except ExclusiveError:
                return None

        won = [claim for claim in run_all(*[claim] * 4) if claim is not None]
        assert len(won) == 1
        won[0].close()


def test_an_exclusive_subscription_waits_and_is_woken(new):
    queue = new()
    subscription = queue.subscribe(exclusive=True)
    with Threads() as threads:
        getter = threads.start(subscription.get)
        wait_asleep(getter)
        queue.put(1)
        entry = getter.result()
        assert entry.item == 1
        again = threads.start(subscription.get)
        wait_asleep(again)
        entry.release()
        assert again.result().item == 1


# -------------------------------------------------------------------------------------------- priority of subscriptions
def test_a_higher_subscription_gets_it_whether_or_not_it_waits(new):
    queue = new()
    high, low = queue.subscribe(priority=5), queue.subscribe(priority=1)
    queue.put(1)
    assert none_left(low)
    assert high.get(False).item == 1


@pytest.mark.parametrize("why", ["suspended", "credit", "selector", "origin", "closed", "prefetch"])
def test_a_lower_one_gets_it_if_no_higher_one_is_interested_and_wants_it(new, why):
    queue = new()
    mine = object()
    high = queue.subscribe(
        priority=5,
        selector=(lambda entry: entry.item != 1) if why == "selector" else None,
        origin=mine,
        prefetch=1 if why == "credit" else 0,
    )
    low = queue.subscribe()
    if why == "credit":
        queue.put(0)
        high.get(False)
    queue.put(1, origin=mine if why == "origin" else None)
    if why not in ("selector", "origin", "credit"):
        assert none_left(low)
    if why == "suspended":
        high.suspend()
    elif why == "closed":
        high.close()
    elif why == "prefetch":
        high.prefetch = 1
        assert none_left(low)
        high.get(False)
        queue.put(2)
        assert low.get(False).item == 2
        return
    assert low.get(False).item == 1


def test_a_waiting_lower_one_is_woken_when_the_higher_one_loses_interest(new):
    for lose in ("suspend", "close", "get"):
        queue = new()
        high, low = queue.subscribe(priority=5, prefetch=1), queue.subscribe()
        with Threads() as threads:
            getter = threads.start(low.get)
            queue.put_many([1, 2])
            wait_asleep(getter)
            if lose == "get":
                assert high.get(False).item == 1
            else:
                getattr(high, lose)()
            assert getter.result().item == (2 if lose == "get" else 1)


def test_browsers_keep_nobody_from_anything(new, keep):
    queue = new()
    queue.subscribe(browse=True, priority=9)
    queue.put(1)
    assert keep(queue.subscribe()).get(False).item == 1


def test_equal_priorities_compete(new):
    queue = new()
    one, two = queue.subscribe(priority=3), queue.subscribe(priority=3)
    queue.put_many([1, 2])
    assert (one.get(False).item, two.get(False).item) == (1, 2)


# ------------------------------------------------------------------------------------------------ start, browsing
def test_start_newest_sees_only_what_is_put_later(new, keep):
    queue = new()
    queue.put_many([1, 2])
    subscription, browser = queue.subscribe(start="newest"), queue.subscribe(start="newest", browse=True)
    assert none_left(subscription)
    queue.put(3)
    assert drain(browser) == [3]
    assert drain(subscription) == [3]
    keep(queue.subscribe()).get(False).release()
    assert none_left(subscription)
    with pytest.raises(ValueError, match="start"):
        queue.subscribe(start="middle")


def test_start_newest_in_priority_order():
    queue = PriorityEntryQueue()
    queue.put("old", priority=1)
    subscription = queue.subscribe(start="newest")
    queue.put("new", priority=9)
    queue.put("late", priority=0)
    assert drain(subscription) == ["new", "late"]


def test_a_browser_sees_each_available_entry_once(new):
    queue = new()
    queue.put_many(range(3))
    browser = queue.subscribe(browse=True)
    assert drain(browser) == [0, 1, 2]
    assert none_left(browser)
    assert queue.qsize() == 3
    queue.put(3)
    assert drain(browser) == [3]
    assert queue.stats().delivered == 0


def test_a_browser_does_not_go_back_for_released_entries(new):
    queue = new()
    queue.put_many(range(3))
    browser, subscription = queue.subscribe(browse=True), queue.subscribe()
    entry = subscription.get(False)
    assert drain(browser) == [1, 2]
    entry.release()
    assert none_left(browser)


def test_a_browser_goes_back_for_more_urgent_arrivals():
    queue = PriorityEntryQueue()
    queue.put_many([1, 2], priority=4)
    browser = queue.subscribe(browse=True)
    assert browser.get(False).item == 1
    queue.put(3, priority=9)
    assert drain(browser) == [3, 2]
    queue.put(4, priority=9)
    assert drain(browser) == [4]


def test_a_browser_ignores_prefetch_and_groups():
    queue = EntryQueue(groups="shared")
    queue.put_many(range(4), group="g")
    subscription, browser = queue.subscribe(), queue.subscribe(browse=True, prefetch=1)
    subscription.get(False)
    assert drain(browser) == [1, 2, 3]
    assert browser.unacked == 0


def test_a_browser_takes_selectors_and_waits(new):
    queue = new()
    browser = queue.subscribe(browse=True, selector=lambda entry: entry.item > 1)
    with Threads() as threads:
        getter = threads.start(browser.get)
        wait_asleep(getter)
        queue.put_many([1, 2])
        assert getter.result().item == 2


def test_an_arrival_wakes_all_browsers(new, keep):
    queue = new()
    with Threads() as threads:
        getters = [threads.start(keep(queue.subscribe(browse=True)).get) for _ in range(3)]
        taker = threads.start(keep(queue.subscribe()).get)
        wait_asleep(taker, *getters)
        queue.put(1)
        # A browser that comes after the take has missed it; a browser that waited must not.
        queue.put(2)
        assert {getter.result().item for getter in getters} <= {1, 2}
        assert taker.result().item == 1


# ------------------------------------------------------------------------------------------------ ack_up_to, close
def test_ack_up_to_acks_what_was_got_no_later(new):
    queue = new()
    queue.put_many(range(6))
    subscription, other = queue.subscribe(), queue.subscribe()
    mine = subscription.get_many(3)
    theirs = other.get(False)
    mine += subscription.get_many(2)
    assert subscription.ack_up_to(mine[2]) == 3
    assert (subscription.unacked, queue.stats().acked) == (2, 3)
    assert subscription.ack_up_to(mine[2]) == 0
    assert subscription.ack_up_to(theirs) == 0
    assert other.ack_up_to(mine[3]) == 0
    mine[3].release()
    again = subscription.get(False)
    assert again.item == 4
    assert subscription.ack_up_to(mine[3]) == 0
    assert subscription.ack_up_to(again) == 2
    assert theirs.ack()


def test_ack_up_to_goes_by_the_order_of_getting_not_of_places(new):
    queue = new()
    queue.put_many([1, 2, 3])
    subscription = queue.subscribe()
    first, second = subscription.get_many(2)
    first.release()
    again = subscription.get(False)
    assert again.item == 1
    assert subscription.ack_up_to(second) == 1
    assert again.state is EntryState.ACQUIRED
    assert subscription.ack_up_to(again) == 1


def test_ack_up_to_refuses_what_is_no_entry(new):
    with pytest.raises(TypeError):
        new().subscribe().ack_up_to(5)


def test_closing_releases_what_it_holds_each_at_its_place(new):
    queue = new()
    queue.put_many(range(6))
    subscription = queue.subscribe()
    got = subscription.get_many(5)
    got[2].ack()
    subscription.close()
    subscription.close()
    assert subscription.closed
    assert subscription.interest == "closed"
    assert subscription.unacked == 0
    other = queue.subscribe()
    entries = other.get_many(9)
    assert items_of(entries) == [0, 1, 3, 4, 5]
    assert [entry.redelivered for entry in entries] == [True] * 4 + [False]
    assert queue.stats().subscriptions == 1


def test_closing_makes_waiting_and_later_gets_raise(new):
    queue = new()
    for options in ({}, {"browse": True}, {"exclusive": True}):
        subscription = queue.subscribe(**options)
        with Threads() as threads:
            getters = [threads.start(subscription.get), threads.start(subscription.get_many, 3, True, LONG)]
            wait_asleep(*getters)
            subscription.close()
            assert [type(getter.outcome()) for getter in getters] == [ClosedError] * 2
        for get, *arguments in ((subscription.get,), (subscription.get, False), (subscription.get_many, 2)):
            with pytest.raises(ClosedError):
                get(*arguments)


@pytest.mark.parametrize("idle", ["suspended", "no credit"])
def test_after_shutdown_who_cannot_take_waits_only_for_what_it_wants(new, idle):
    """A filtered subscription that is suspended or out of credit gets ShutDown too, though entries are left that it
    does not want."""
    queue = new()
    held = queue.put("a")
    subscription = queue.subscribe(prefetch=1, selector=lambda entry: entry.item == "a")
    if idle == "suspended":
        subscription.suspend()
    else:
        assert subscription.get(False) == held
        queue.put("a")
    queue.put("b")
    queue.shutdown()
    with pytest.raises(Empty):
        subscription.get(False)                 # it could be resumed, or get credit, and take the entry
    with queue.subscribe() as rival, Threads() as threads:
        getter = threads.start(subscription.get)
        wait_asleep(getter)
        assert rival.get(False).item == "a"
        with pytest.raises(ShutDown):
            getter.result()
        with pytest.raises(ShutDown):
            subscription.get(False)
        assert queue.qsize() == 1
    subscription.close()


def test_closed_goes_before_shutdown(new, keep):
    queue = new()
    subscription = queue.subscribe()
    subscription.close()
    queue.shutdown()
    with pytest.raises(ClosedError):
        subscription.get()
    with pytest.raises(ShutDown):
        keep(queue.subscribe()).get()


def test_closing_hands_over_to_waiting_ones(new):
    queue = new()
    queue.put_many(range(2))
    holder, other = queue.subscribe(), queue.subscribe()
    holder.get_many(2)
    with Threads() as threads:
        getter = threads.start(other.get)
        wait_asleep(getter)
        holder.close()
        assert getter.result().item == 0
    assert other.get(False).item == 1


def test_a_subscription_that_nobody_keeps_closes_and_wakes_others(new, keep):
    queue = new()
    queue.put(1)
    kept = [queue.subscribe()]
    assert kept[0].get(False).item == 1
    with Threads() as threads:
        getter = threads.start(keep(queue.subscribe()).get)
        wait_asleep(getter)
        with pytest.warns(ResourceWarning):
            kept.clear()
        assert getter.result().item == 1


# --------------------------------------------------------------------------------------------- order under many getters
def test_what_one_subscription_sees_never_goes_backwards_but_for_redelivery(new, keep):
    queue = new()
    total, done = 600, threading.Event()

    def consume(subscription, n):
        last, released = -1, 0
        while True:
            try:
                entry = subscription.get()
            except ShutDown:
                return released
            if not entry.redelivered:
                assert entry.item > last
                last = entry.item
            if entry.item % 5 == n and not entry.redelivered:
                released += entry.release()
            else:
                entry.ack()

    with Threads() as threads:
        consumers = [threads.start(consume, queue.subscribe(prefetch=n), n) for n in range(4)]
        for item in range(total):
            queue.put(item)
        done.set()
        queue.shutdown()
        released = sum(consumer.result() for consumer in consumers)
    stats = queue.stats()
    assert stats.released == released
    assert stats.acked + stats.depth == total
    assert stats.depth == 0 or keep(queue.subscribe()).get_many(total)
    assert DEADLINE


def test_a_subclass_may_override_browse():
    class Own(EntryQueue):
        def browse(self):
            return iter(())

    queue = Own()
    with queue.subscribe(selector=lambda entry: entry.item == 1) as subscription:
        queue.put(1, delay=1000)
        queue.shutdown()
        with pytest.raises(Empty):      # the entry that is left suits it
            subscription.get(False)
