"""Changing a multi-queue in use: remove, enabled, priority, weight, maxsize, while others put, get and wait.

The original blocks the putters of a removed sub-queue for ever, lets later puts corrupt the counts, and cannot change a
priority or a capacity.
"""
from queue import Empty

import pytest
from support.queues import drain
from support.threads import LONG, Threads, wait_getters, wait_putters

from manytail import ShutDown

PUTS = {
    "put": lambda tail, **kw: tail.put(9, **kw),
    "put_nowait": lambda tail: tail.put_nowait(9),
    "put_front": lambda tail, **kw: tail.put_front(9, **kw),
    "put_many": lambda tail, **kw: tail.put_many([9], **kw),
    "put_many of an iterator": lambda tail, **kw: tail.put_many(iter([9]), **kw),
}
WAITING_PUTS = {name: put for name, put in PUTS.items() if name != "put_nowait"}


def figures(queue):
    return queue.qsize(), queue.stats().subqueues, queue.stats().put, queue.stats().got


# ------------------------------------------------------------------------------------------------ remove


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
@pytest.mark.parametrize("maxsize", [0, 1])
@pytest.mark.parametrize("enabled", [True, False])
def test_put_on_a_removed_tail_is_shutdown_and_corrupts_no_count(new, put, maxsize, enabled):
    queue = new()
    tail = queue.add("gone", maxsize=maxsize, enabled=enabled)
    tail.put(1)  # fills it, if it is bounded: ShutDown goes before Full
    queue.add("kept").put(5)
    queue.remove("gone")
    before = figures(queue)
    for _ in range(3):
        with pytest.raises(ShutDown, match="gone") as error:
            put(tail)
        assert getattr(error.value, "count", 0) == 0
    assert figures(queue) == before
    assert list(tail) == [1]
    assert queue.peek() == 5
    assert drain(queue) == [5]
    with pytest.raises(Empty):
        queue.get(timeout=0.001)


@pytest.mark.parametrize("put", WAITING_PUTS.values(), ids=WAITING_PUTS)
@pytest.mark.parametrize("timeout", [None, LONG])
def test_removing_a_tail_wakes_its_blocked_putters_with_shutdown(new, put, timeout):
    queue = new()
    tail, other = queue.add("gone", maxsize=1), queue.add("other", maxsize=1)
    tail.put(1)
    other.put(2)
    with Threads() as threads:
        blocked = [threads.start(put, tail, timeout=timeout) for _ in range(3)]
        stays = threads.start(other.put, 3, timeout=LONG)
        wait_putters(queue, 4)
        queue.remove("gone")
        assert [type(putter.outcome()) for putter in blocked] == [ShutDown] * 3
        wait_putters(queue, 1)
        assert queue.get() == 2
        stays.result()
    assert list(tail) == [1]
    assert drain(queue) == [3]


# ------------------------------------------------------------------------------------------------ enabled


def test_enabling_a_tail_with_items_serves_every_getter_that_waits(new):
    queue = new()
    tail = queue.add("a", enabled=False)
    tail.put_many(range(4))
    with Threads() as threads:
        getters = [threads.start(queue.get, timeout=LONG) for _ in range(4)]
        wait_getters(queue, 4)
        tail.enabled = True
        assert sorted(getter.result() for getter in getters) == [0, 1, 2, 3]


def test_enabled_takes_truth_values(new):
    tail = new().add("a", enabled=1)
    assert tail.enabled is True
    tail.enabled = []
    assert tail.enabled is False


# ------------------------------------------------------------------------------------------------ maxsize
def test_raising_maxsize_wakes_as_many_putters_as_there_is_room(new):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(0)
    with Threads() as threads:
        for item in range(1, 6):
            threads.start(tail.put, item, timeout=LONG)
        wait_putters(queue, 5)
        tail.maxsize = 3
        wait_putters(queue, 3)
        assert tail.qsize() == 3
        assert tail.full()
        tail.maxsize = 0
    assert tail.remaining() is None
    taken = drain(queue)
    assert taken[0] == 0
    assert sorted(taken) == list(range(6))


def test_a_putter_blocked_over_a_lowered_maxsize_goes_in_when_there_is_room_again(new):
    queue = new()
    tail = queue.add("a", maxsize=3)
    tail.put_many([0, 1, 2])
    with Threads() as threads:
        putter = threads.start(tail.put, 3, timeout=LONG)
        wait_putters(queue, 1)
        tail.maxsize = 1
        assert [queue.get(), queue.get()] == [0, 1]
        wait_putters(queue, 1)
        assert list(tail) == [2]
        assert queue.get() == 2
        putter.result()
    assert drain(queue) == [3]


@pytest.mark.parametrize(
    "clear",
    [lambda queue, tail: tail.clear(), lambda queue, tail: drain(queue), lambda queue, tail: queue.get_many(9)],
    ids=["clear", "get", "get_many"],
)
def test_making_much_room_wakes_all_putters_that_fit(new_bulk, clear):
    queue = new_bulk()
    tail = queue.add("a", maxsize=4)
    tail.put_many(range(4))
    with Threads() as threads:
        for item in range(10, 14):
            threads.start(tail.put, item, timeout=LONG)
        wait_putters(queue, 4)
        clear(queue, tail)
        wait_putters(queue, 0)
    rest = drain(queue)
    assert set(rest) <= {10, 11, 12, 13}
    assert queue.stats().put == 8


# ------------------------------------------------------------------------------------------------ put_front


def test_many_put_fronts_come_out_last_in_first_out(new):
    queue = new()
    tail = queue.add("a")
    for item in range(500):
        tail.put_front(item)
        if item % 3 == 0:
            tail.put(-item)
    assert drain(queue) == [*range(499, -1, -1), *range(0, -500, -3)]
    tail.put_front(1)
    tail.put(2)
    assert drain(queue) == [1, 2]


def test_ten_thousand_tails_of_thousands_of_priorities(new):
    queue = new()
    for key in range(10_000):
        queue.add(key, priority=(key * 7919) % 3001)
    for key in range(9_999, -1, -3):
        queue[key].put(key)
    priorities = [(key * 7919) % 3001 for key in drain(queue)]
    assert len(priorities) == 3334
    assert priorities == sorted(priorities)
    for key in range(10_000):
        queue.remove(key)
    assert queue.stats().subqueues == 0
