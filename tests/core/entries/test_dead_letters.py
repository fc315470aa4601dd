"""Dead letters: queues and callables as receivers. test_entries_model.py has the reasons."""
import sys
import threading

import pytest
from support.threads import DEADLINE, LONG, Threads, run_all, wait_asleep

from manytail import DeadReason, EntryQueue, EntryState, PriorityEntryQueue, ShutDown


def recording(**options):
    dead = []
    queue = EntryQueue("q", dead_letter=lambda entry, reason: dead.append((entry.item, reason)), **options)
    return queue, dead


def items_of(entries):
    return [entry.item for entry in entries]


# ------------------------------------------------------------------------------------------------ callable
def test_a_callable_gets_the_deleted_entry_and_the_reason(keep):
    seen = []
    queue = EntryQueue(
        "q", dead_letter=lambda entry, reason: seen.append((entry.item, entry.state, entry.queue is queue, reason))
    )
    queue.put(1)
    assert keep(queue.subscribe()).get(False).reject()
    assert seen == [(1, EntryState.DELETED, True, DeadReason.REJECTED)]
    assert type(seen[0][3]) is DeadReason


def test_it_runs_in_the_acting_thread(keep):
    seen = []
    queue = EntryQueue("q", dead_letter=lambda entry, reason: seen.append(threading.current_thread()))
    queue.put(1)
    entry = keep(queue.subscribe()).get(False)
    with Threads() as threads:
        task = threads.start(entry.reject)
        task.result()
    assert seen == [task]


@pytest.mark.parametrize("default", [False, True])
def test_its_exception_goes_to_the_unraisable_hook(monkeypatch, capsys, default):
    caught = []
    hook = sys.__unraisablehook__ if default else lambda unraisable: caught.append(type(unraisable.exc_value))
    monkeypatch.setattr(sys, "unraisablehook", hook)

    def dead(entry, reason):
        raise KeyError("mine")

    queue = EntryQueue("q", dead_letter=dead)
    queue.put_many([1, 2])
    with queue.subscribe() as subscription:
        assert subscription.get(False).reject() is True
        assert subscription.get(False).ack()
    assert queue.stats().dead_lettered == 1
    shown = capsys.readouterr().err
    assert ("Exception ignored in" in shown and "KeyError: 'mine'" in shown) if default else caught == [KeyError]


def test_a_callable_that_waits_does_not_delay_the_entry_of_the_put_that_called_it():
    reached, release = threading.Event(), threading.Event()

    def dead(entry, reason):
        reached.set()
        assert release.wait(LONG)

    queue = EntryQueue("q", maxsize=2, overflow="drop_oldest", dead_letter=dead)
    queue.put_many(["held", "dropped"])
    with Threads() as threads, queue.subscribe() as subscription:
        assert subscription.get(False).item == "held"
        threads.start(queue.put, "new", delay=0.01)
        try:
            assert reached.wait(DEADLINE)
            assert subscription.get(timeout=DEADLINE).item == "new"
        finally:
            release.set()


def test_it_may_use_the_queue():
    queue = EntryQueue("q", dead_letter=lambda entry, reason: queue.put(entry.item + 1))
    queue.put(1)
    subscription = queue.subscribe()
    assert subscription.get(False).reject()
    assert subscription.get(False).item == 2


def test_of_two_calls_that_overlap_the_older_may_end_first(keep):
    """The younger one still puts past maxsize."""
    reached = threading.Event(), threading.Event()
    release = threading.Event(), threading.Event()

    def dead(entry, reason):
        reached[entry.item].set()
        assert release[entry.item].wait(LONG)
        if entry.item:
            queue.put_many(["more", "than fits"], timeout=0)

    queue = EntryQueue("q", maxsize=1, overflow="reject", dead_letter=dead)
    subscription = keep(queue.subscribe())
    with Threads() as threads:
        calls = []
        for item in range(2):
            queue.put(item)
            calls.append(threads.start(subscription.get(False).reject))
            assert reached[item].wait(DEADLINE)
        for item in range(2):
            release[item].set()
            assert calls[item].result()
    assert items_of(subscription.get_many(2)) == ["more", "than fits"]


# ------------------------------------------------------------------------------------------------ queue
def test_a_queue_gets_item_headers_priority_and_group_as_a_new_entry():
    letters = PriorityEntryQueue("dead")
    queue = EntryQueue("q", dead_letter=letters)
    item = object()
    queue.put(item, headers={"a": 1}, priority=7, group="g", ttl=1000)
    subscription = queue.subscribe()
    subscription.get(False).release()
    assert subscription.get(False).reject()
    (letter,) = letters.browse()
    assert letter.item is item
    assert (dict(letter.headers), letter.priority, letter.group) == ({"a": 1}, 7, "g")
    assert (letter.deliveries, letter.redelivered, letter.expires_at, letter.state) == (
        0,
        False,
        None,
        EntryState.AVAILABLE,
    )
    assert letter.queue is letters
    assert queue.stats().dead_lettered == 1


@pytest.mark.parametrize("overflow", ["block", "reject"])
def test_the_put_into_a_full_dead_letter_queue_never_waits(overflow, keep):
    letters = EntryQueue("dead", maxsize=1, overflow=overflow)
    queue = EntryQueue("q", dead_letter=letters)
    queue.put_many([1, 2, 3])
    for entry in keep(queue.subscribe()).get_many(3):
        assert entry.reject()
    assert items_of(letters.browse()) == [1, 2, 3]
    assert letters.depth() == 3


def test_a_dead_letter_wakes_a_getter_there(keep):
    letters = EntryQueue("dead")
    queue = EntryQueue("q", dead_letter=letters)
    queue.put(1)
    with Threads() as threads:
        getter = threads.start(keep(letters.subscribe()).get)
        wait_asleep(getter)
        keep(queue.subscribe()).get(False).reject()
        assert getter.result().item == 1


def test_a_dead_letter_queue_that_is_shut_down_takes_nothing_and_breaks_nothing(monkeypatch):
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: caught.append(unraisable.exc_type))
    letters = EntryQueue("dead")
    queue = EntryQueue("q", dead_letter=letters)
    queue.put_many([1, 2])
    subscription = queue.subscribe()
    letters.shutdown()
    assert subscription.get(False).reject() is True
    assert subscription.get(False).ack() is True
    assert queue.depth() == 0
    assert letters.depth() == 0
    assert caught == [ShutDown]


def test_queues_may_be_each_others_dead_letter():
    one = EntryQueue("one", maxsize=1, overflow="drop_oldest", dead_letter=lambda entry, reason: two.put(entry.item))
    two = EntryQueue("two", maxsize=1, overflow="drop_oldest", dead_letter=lambda entry, reason: one.put(entry.item))
    for n in range(10):
        one.put(n)
    assert one.depth() + two.depth() >= 2


# ------------------------------------------------------------------------------------------------ figures


def test_racing_ends_dead_letter_once():
    queue, dead = recording()
    subscription = queue.subscribe()
    for n in range(50):
        queue.put(n)
        entry = subscription.get(False)
        assert sum(run_all(entry.reject, entry.reject)) == 1
    assert [item for item, _ in dead] == list(range(50))
