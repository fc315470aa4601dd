"""Overflow: who waits for a free slot, and what a dead letter may put. test_entries_model.py has what is dropped."""
import sys
import time
from queue import Full

import pytest
from support.threads import Threads, wait_asleep

from manytail import EntryQueue


def items_of(entries):
    return [entry.item for entry in entries]


def fill(queue, n):
    return [queue.put(item, False) for item in range(n)]


# ------------------------------------------------------------------------------------------------ block
def test_the_largest_maxsize_goes_with_every_resume_mark():
    queue = EntryQueue(maxsize=sys.maxsize, resume_at=1.0)
    queue.put(1, False)
    queue.maxsize = sys.maxsize - 1
    assert queue.maxsize == sys.maxsize - 1


MARKS = [(10, 0.8, 8), (10, 0.79, 7), (3, 0.8, 2), (1, 0.8, 0), (5, 0.0, 0), (4, 1.0, 4), (7, 0.5, 3)]


@pytest.mark.parametrize(("maxsize", "resume_at", "mark"), MARKS)
def test_the_resume_mark_is_rounded_down(new, maxsize, resume_at, mark):
    queue = new("q", maxsize=maxsize, resume_at=resume_at)
    fill(queue, maxsize)
    subscription = queue.subscribe()
    for depth in range(maxsize, mark, -1):
        with pytest.raises(Full):
            queue.put(99, False)
        assert queue.depth() == depth
        subscription.get(False).ack()
    if mark < maxsize:
        queue.put(99, False)
    else:  # resume_at is the bound itself: a put finds it full again
        with pytest.raises(Full):
            queue.put(99, False)


@pytest.mark.parametrize("make_room", ["expire", "unbound"])
def test_whatever_makes_room_wakes_a_putter(new, make_room):
    """tests/wakeups has the other ways."""
    queue = new("q", maxsize=1)
    entry = queue.put(1, ttl=0.05) if make_room == "expire" else queue.put(1)
    with Threads() as threads:
        putter = threads.start(queue.put, 2)
        wait_asleep(putter)
        if make_room == "unbound":
            queue.maxsize = 0
        putter.result()
    if make_room == "expire":
        assert time.monotonic() >= entry.expires_at


def test_all_blocked_puts_go_on_when_the_mark_is_reached(new, keep):
    queue = new("q", maxsize=10, resume_at=0.5)
    fill(queue, 10)
    with Threads() as threads:
        putters = [threads.start(queue.put, 10 + n) for n in range(4)]
        wait_asleep(*putters)
        for entry in keep(queue.subscribe()).get_many(5):
            entry.ack()
        for putter in putters:
            putter.result()
    assert queue.depth() == 9


@pytest.mark.parametrize("value", ["3", 1.5, None])
def test_maxsize_is_an_int(new, value):
    queue = new()
    with pytest.raises(TypeError):
        queue.maxsize = value


# ------------------------------------------------------------------------------------------------ reject
def test_reject_raises_full_at_once_whatever_block_says(new, keep):
    queue = new("q", maxsize=2, overflow="reject")
    fill(queue, 2)
    for call in (
        lambda: queue.put(3),
        lambda: queue.put(3, True, 100),
        lambda: queue.put(3, False),
        lambda: queue.put_many([3]),
    ):
        with pytest.raises(Full):
            call()
    keep(queue.subscribe()).get(False).ack()
    queue.put(3)
    assert queue.depth() == 2


# ------------------------------------------------------------------------------------------------ drop_oldest


def test_a_put_from_inside_the_dead_letter_never_overflows_again(new):
    queue = new(
        "q",
        maxsize=2,
        overflow="drop_oldest",
        dead_letter=lambda entry, reason: queue.put(entry.item + 100) if entry.item < 100 else None,
    )
    fill(queue, 3)
    assert items_of(queue.browse()) == [1, 2, 100]


def test_other_threads_may_overflow_meanwhile():
    """The guard against recursion belongs to the thread that runs the callback, not to the queue."""
    with Threads() as threads:
        def dead(entry, reason):
            if entry.item == 0:
                threads.start(queue.put, 2).result()

        queue = EntryQueue("q", maxsize=1, overflow="drop_oldest", dead_letter=dead)
        queue.put(0)
        queue.put(1)
    assert queue.depth() == 1
