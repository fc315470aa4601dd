"""Subscriptions that wait, are exclusive, select with code of the user's, or are closed. test_entries_model.py has what
they get, in any order of calls that do not wait."""
from queue import Empty

import pytest
from support.threads import LONG, Threads, run_all, wait_asleep

from manytail import ClosedError, EntryQueue, EntryState, ExclusiveError, ShutDown


def drain(subscription):
    items = []
    while True:
        try:
            items.append(subscription.get(False).item)
        except Empty:
            return items


# ------------------------------------------------------------------------------------------------ credit


@pytest.mark.parametrize("end", ["stolen", "no limit"])
def test_a_get_without_credit_waits_until_it_has_some(new, end):
    """tests/wakeups has the other ways."""
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
        else:
            subscription.prefetch = 0
        assert getter.result().item == (5 if end == "stolen" else 1)


# ------------------------------------------------------------------------------------------------ selecting


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


def test_a_start_is_oldest_or_newest(new):
    with pytest.raises(ValueError, match="start"):
        new().subscribe(start="middle")


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


# ------------------------------------------------------------------------------------------------ start, browsing


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


def test_ack_up_to_refuses_what_is_no_entry(new):
    with pytest.raises(TypeError):
        new().subscribe().ack_up_to(5)


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
