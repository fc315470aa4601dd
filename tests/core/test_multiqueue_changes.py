"""Changing a multi-queue in use: remove, enabled, priority, weight, maxsize, while others put, get and wait.

The original blocks the putters of a removed sub-queue for ever, lets later puts corrupt the counts, and cannot change a
priority or a capacity.
"""
import functools
from queue import Empty, Full

import pytest
from support.queues import as_list, drain, keeping_the_gil
from support.threads import LONG, Threads, wait_getters, wait_putters, wait_until

from manytail import IndexMultiQueue, ShutDown

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
def test_the_items_of_a_removed_tail_leave_the_count_and_stay_readable(new):
    queue = new()
    gone, kept = queue.add("gone"), queue.add("kept")
    gone.put_many([1, 2, 3])
    kept.put(4)
    assert queue.remove("gone") is gone
    assert queue.qsize() == 1
    assert (gone.qsize(), list(gone), 2 in gone, gone.empty()) == (3, [1, 2, 3], True, False)
    assert drain(queue) == [4]
    assert queue.empty()
    assert list(gone) == [1, 2, 3]


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
        with pytest.raises(ShutDown):
            put(tail)
    assert figures(queue) == before
    assert list(tail) == [1]
    assert queue.peek() == 5
    assert drain(queue) == [5]
    with pytest.raises(Empty):
        queue.get(timeout=0.001)


def test_the_shutdown_of_a_removed_tail_names_its_key(new):
    queue = new()
    queue.add("the key")
    tail = queue.remove("the key")
    with pytest.raises(ShutDown, match="the key"):
        tail.put(1)


def test_put_many_on_a_removed_tail_counts_none(new):
    queue = new()
    tail = queue.add("a")
    queue.remove("a")
    for items in ([1, 2], iter([1, 2])):
        with pytest.raises(ShutDown) as error:
            tail.put_many(items)
        assert error.value.count == 0


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


def test_removing_a_tail_leaves_blocked_getters_waiting_for_the_others(new):
    queue = new()
    queue.add("gone")
    other = queue.add("other")
    with Threads() as threads:
        getter = threads.start(queue.get, timeout=LONG)
        wait_getters(queue, 1)
        queue.remove("gone")
        other.put(1)
        assert getter.result() == 1


def test_a_detached_handle_works_on_its_own_items_and_touches_no_count(new):
    queue = new()
    tail = queue.add("gone", maxsize=4)
    tail.put_many([1, 2, 3, 4])
    queue.add("kept").put(9)
    queue.remove("gone")
    before = queue.stats()
    assert tail.discard(2)
    assert not tail.discard(2)
    assert (tail.qsize(), tail.remaining(), tail.full()) == (3, 1, False)
    assert tail.clear() == 3
    assert tail.empty()
    for name, value in (("enabled", False), ("priority", 7), ("weight", 3), ("maxsize", 2), ("enabled", True)):
        setattr(tail, name, value)
        assert getattr(tail, name) == value
    assert queue.stats() == before
    assert drain(queue) == [9]


def test_assigning_to_a_detached_handle_brings_nothing_back(new):
    queue = new()
    tail = queue.add("gone", enabled=False)
    tail.put(1)
    queue.remove("gone")
    tail.enabled = True
    tail.priority = -1
    with pytest.raises(Empty):
        queue.get_nowait()
    assert not tail.attached
    assert queue.qsize() == 0


def test_a_key_may_be_removed_and_added_again_and_again(new):
    queue = new()
    handles = []
    for n in range(5):
        handles.append(queue.add("k"))
        handles[-1].put(n)
        if n < 4:
            queue.remove("k")
    assert [tail.attached for tail in handles] == [False] * 4 + [True]
    assert [list(tail) for tail in handles] == [[0], [1], [2], [3], [4]]
    for tail in handles[:4]:
        with pytest.raises(ShutDown):
            tail.put(9)
    assert drain(queue) == [4]


def test_removing_twice_is_a_key_error(new):
    queue = new()
    queue.add("k")
    queue.remove("k")
    with pytest.raises(KeyError, match="'k'"):
        queue.remove("k")


def test_only_one_of_many_removers_succeeds(new):
    queue = new()
    tail = queue.add("k")
    tail.put(1)
    with Threads() as threads:
        removers = [threads.start(queue.remove, "k") for _ in range(6)]
        ends = [remover.outcome() for remover in removers]
    assert sorted(type(end).__name__ for end in ends) == ["KeyError"] * 5 + ["NoneType"]
    assert queue.stats().subqueues == 0


# ------------------------------------------------------------------------------------------------ enabled
def test_a_disabled_tail_accepts_items_up_to_its_maxsize(new):
    queue = new()
    tail = queue.add("a", maxsize=2, enabled=False)
    tail.put(1)
    tail.put_front(0)
    with pytest.raises(Full):
        tail.put_nowait(2)
    assert (queue.qsize(), queue.empty(), tail.qsize()) == (0, True, 2)
    tail.enabled = True
    assert drain(queue) == [0, 1]


def test_disabling_leaves_blocked_putters_as_they_are(new):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(1)
    with Threads() as threads:
        putter = threads.start(tail.put, 2, timeout=LONG)
        wait_putters(queue, 1)
        tail.enabled = False
        wait_putters(queue, 1)
        tail.enabled = True
        assert queue.get() == 1
        putter.result()
    assert drain(queue) == [2]


def test_enabling_a_tail_with_items_serves_every_getter_that_waits(new):
    queue = new()
    tail = queue.add("a", enabled=False)
    tail.put_many(range(4))
    with Threads() as threads:
        getters = [threads.start(queue.get, timeout=LONG) for _ in range(4)]
        wait_getters(queue, 4)
        tail.enabled = True
        assert sorted(getter.result() for getter in getters) == [0, 1, 2, 3]


def test_a_put_into_a_disabled_tail_wakes_nobody(new):
    queue = new()
    hidden, seen = queue.add("hidden", enabled=False), queue.add("seen")
    with Threads() as threads:
        getter = threads.start(queue.get, timeout=LONG)
        wait_getters(queue, 1)
        hidden.put(1)
        wait_getters(queue, 1)
        seen.put(2)
        assert getter.result() == 2


def test_enabled_takes_truth_values(new):
    tail = new().add("a", enabled=1)
    assert tail.enabled is True
    tail.enabled = []
    assert tail.enabled is False


# ------------------------------------------------------------------------------------------------ priority
def test_a_new_priority_moves_the_items_too(new):
    queue = new()
    a, b = queue.add("a", priority=1), queue.add("b", priority=2)
    a.put_many([1, 2])
    b.put_many([3, 4])
    assert queue.get() == 1
    b.priority = 0
    assert b.priority == 0
    assert drain(queue) == [3, 4, 2]


def test_a_new_priority_of_an_idle_or_disabled_tail_counts_when_it_is_ready(new):
    queue = new()
    idle, hidden = queue.add("idle"), queue.add("hidden", enabled=False)
    hidden.put(1)
    queue.add("b", priority=5).put(2)
    idle.priority = hidden.priority = 9
    idle.put(3)
    hidden.enabled = True
    assert drain(queue) == [2, 3, 1]


def test_priorities_change_while_getters_wait(new):
    queue = new()
    tail = queue.add("a")
    with Threads() as threads:
        getter = threads.start(queue.get, timeout=LONG)
        wait_getters(queue, 1)
        tail.priority = -5
        tail.put(1)
        assert getter.result() == 1


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


def test_lowering_maxsize_keeps_the_items(new):
    queue = new()
    tail = queue.add("a")
    tail.put_many(range(5))
    tail.maxsize = 2
    assert (tail.qsize(), tail.remaining(), tail.full(), tail.maxsize) == (5, 0, True, 2)
    assert list(tail) == [0, 1, 2, 3, 4]
    for expected in range(3):
        with pytest.raises(Full):
            tail.put_nowait(9)
        assert queue.get() == expected
    with pytest.raises(Full):
        tail.put_nowait(9)
    assert queue.get() == 3
    tail.put_nowait(9)
    assert tail.remaining() == 0
    assert drain(queue) == [4, 9]


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


ROOM = {
    "get": lambda queue, tail: queue.get(),
    "get_with_key": lambda queue, tail: queue.get_with_key(),
    "clear": lambda queue, tail: tail.clear(),
    "discard": lambda queue, tail: tail.discard(1),
    "maxsize": lambda queue, tail: setattr(tail, "maxsize", tail.maxsize + 1),
    "get_many": lambda queue, tail: queue.get_many(1),
}


@pytest.mark.parametrize("make_room", ROOM.values(), ids=ROOM)
@pytest.mark.parametrize("put", WAITING_PUTS.values(), ids=WAITING_PUTS)
def test_whatever_makes_room_wakes_a_putter(new_bulk, make_room, put):
    queue = new_bulk()
    tail = queue.add("a", maxsize=2)
    tail.put_many([1, 2])
    with Threads() as threads:
        putter = threads.start(put, tail, timeout=LONG)
        wait_putters(queue, 1)
        make_room(queue, tail)
        putter.result()
    assert 9 in tail


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


def test_clearing_a_disabled_tail_makes_room_too(new):
    queue = new()
    tail = queue.add("a", maxsize=1, enabled=False)
    tail.put(1)
    with Threads() as threads:
        putter = threads.start(tail.put, 2, timeout=LONG)
        wait_putters(queue, 1)
        assert tail.clear() == 1
        putter.result()
    assert queue.qsize() == 0
    tail.enabled = True
    assert drain(queue) == [2]


# ------------------------------------------------------------------------------------------------ waking
def test_a_tail_added_while_getters_wait_needs_no_wake_up_of_its_own(new):
    queue = new()
    with Threads() as threads:
        getters = [threads.start(queue.get, timeout=LONG) for _ in range(3)]
        wait_getters(queue, 3)
        for key in range(3):
            queue.add(key).put(key)
        assert sorted(getter.result() for getter in getters) == [0, 1, 2]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_put_many_wakes_as_many_getters_as_it_has_items_for(new, n):
    queue = new()
    tail = queue.add("a")
    with Threads() as threads:
        getters = [threads.start(queue.get, timeout=LONG) for _ in range(n)]
        wait_getters(queue, n)
        tail.put_many(list(range(n)))
        assert sorted(getter.result() for getter in getters) == list(range(n))


def test_one_item_goes_to_one_of_many_waiting_getters(new):
    queue = new()
    tail = queue.add("a")
    with Threads() as threads:
        getters = [threads.start(queue.get, timeout=LONG) for _ in range(4)]
        wait_getters(queue, 4)
        tail.put(0)
        wait_getters(queue, 3)
        tail.put_many([1, 2, 3])
        assert sorted(getter.result() for getter in getters) == [0, 1, 2, 3]


def test_getters_that_time_out_take_no_wake_up_with_them(new):
    """Many getters time out while items arrive. Every item is got once, by a getter that waits on."""
    queue = new()
    tail = queue.add("a")

    def impatient():
        try:
            return queue.get(timeout=0.002)
        except Empty:
            return None

    for item in range(40):
        with Threads() as threads:
            patient = threads.start(queue.get, timeout=LONG)
            others = [threads.start(impatient) for _ in range(2)]
            wait_until(lambda: queue.stats().getters_waiting >= 1)
            tail.put(item)
            got = [other.result() for other in others]
            if item in got:
                tail.put(-1)
                assert patient.result() == -1
            else:
                assert patient.result() == item
        assert queue.empty()


def test_putters_that_time_out_take_no_wake_up_with_them(new):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put(-1)

    def impatient(item):
        try:
            tail.put(item, timeout=0.002)
        except Full:
            return 0
        return 1

    for item in range(40):
        with Threads() as threads:
            threads.start(tail.put, item, timeout=LONG)
            others = [threads.start(impatient, 1000) for _ in range(2)]
            queue.get(timeout=LONG)
            for other in others:
                if other.result():
                    queue.get(timeout=LONG)
        assert tail.qsize() == 1


def impatient_get(queue):
    try:
        return queue.get(timeout=0.1)
    except Empty:
        return None


@pytest.mark.thread_unsafe(reason="keeps the GIL for a while")
def test_a_getter_whose_time_runs_out_as_it_is_woken_takes_the_item_or_passes_it_on(new):
    """The put wakes a getter that has timed out and not left yet. Another getter, which still waits, must not miss the
    item."""
    for _ in range(4):
        queue = new()
        tail = queue.add("a")
        with Threads() as threads:
            first = threads.start(impatient_get, queue)
            wait_until(lambda queue=queue, first=first: queue.stats().getters_waiting == 1 or not first.is_alive())
            patient = threads.start(queue.get)
            wait_until(lambda queue=queue, first=first: queue.stats().getters_waiting == 2 or not first.is_alive())
            keeping_the_gil(0.2, functools.partial(tail.put, 1))
            if first.result() == 1:
                tail.put(2)
                assert patient.result() == 2
            else:
                assert patient.result() == 1


@pytest.mark.thread_unsafe(reason="keeps the GIL for a while")
def test_a_putter_whose_time_runs_out_as_it_is_woken_uses_the_room_or_passes_it_on(new):
    for _ in range(4):
        queue = new()
        tail = queue.add("a", maxsize=1)
        tail.put(0)

        def impatient_put(tail=tail):
            try:
                tail.put(1, timeout=0.1)
            except Full:
                return None
            return 1

        with Threads() as threads:
            first = threads.start(impatient_put)
            wait_until(lambda queue=queue, first=first: queue.stats().putters_waiting == 1 or not first.is_alive())
            patient = threads.start(tail.put, 2)
            wait_until(lambda queue=queue, first=first: queue.stats().putters_waiting == 2 or not first.is_alive())
            keeping_the_gil(0.2, queue.get)
            if first.result() == 1:
                assert queue.get(timeout=LONG) == 1
            patient.result()
        assert drain(queue) == [2]


# ------------------------------------------------------------------------------------------------ put_front
def test_put_front_goes_before_what_is_there(new_bulk):
    queue = new_bulk()
    tail = queue.add("a")
    tail.put_front(1)
    tail.put(2)
    tail.put_front(0)
    assert list(tail) == [0, 1, 2]
    assert as_list(queue.get_many(9)) == [0, 1, 2]


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


def test_put_front_keeps_to_the_capacity(new):
    queue = new()
    tail = queue.add("a", maxsize=1)
    tail.put_front(1)
    with pytest.raises(Full):
        tail.put_front(2, block=False)
    with pytest.raises(Full):
        tail.put_front(2, timeout=0.001)
    assert drain(queue) == [1]


def test_put_front_wakes_a_getter(new):
    queue = new()
    tail = queue.add("a")
    with Threads() as threads:
        getter = threads.start(queue.get, timeout=LONG)
        wait_getters(queue, 1)
        tail.put_front(1)
        assert getter.result() == 1


def test_put_front_after_gets_discards_and_a_clear(new):
    queue = new()
    tail = queue.add("a")
    tail.put_many(range(200))
    for _ in range(130):
        queue.get()
    tail.put_front(1000)
    for item in range(130, 190):
        assert tail.discard(item)
    tail.put_front(1001)
    assert list(tail) == [1001, 1000, *range(190, 200)]
    tail.clear()
    tail.put_front(1002)
    tail.put_front(1003)
    assert drain(queue) == [1003, 1002]


def test_put_front_of_no_integer_changes_nothing():
    tail = IndexMultiQueue().add("a")
    with pytest.raises(TypeError):
        tail.put_front("1")
    with pytest.raises(OverflowError):
        tail.put_front(2**63)
    assert tail.empty()


def test_counts_are_right_after_a_storm_of_changes(new):
    """Everything that changes a count, in one thread, against a plain sum."""
    queue = new()
    tails = [queue.add(key, maxsize=key % 3 * 10) for key in range(9)]
    for step in range(2000):
        tail = tails[step * 7919 % 9]
        act = step * 104729 % 11
        if act < 5:
            if not tail.full() and tail.attached:
                (tail.put_front if act == 0 else tail.put)(step)
        elif act == 5:
            tail.enabled = not tail.enabled
        elif act == 6:
            tail.priority = step % 4
        elif act == 7:
            tail.discard(step - 100)
        elif act == 8 and not queue.empty():
            queue.get_nowait()
        elif act == 9 and step % 5 == 0:
            tail.clear()
        elif act == 10 and tail.attached:
            queue.remove(tail.key)
            tails[tails.index(tail)] = queue.add(tail.key, maxsize=tail.maxsize)
        assert queue.qsize() == sum(tail.qsize() for tail in tails if tail.enabled)
    assert queue.stats().subqueues == 9


def test_a_multi_queue_of_no_tails_is_empty(new):
    queue = new()
    assert queue.empty()
    with pytest.raises(Empty):
        queue.get_nowait()
    with pytest.raises(Empty):
        queue.peek()
    with pytest.raises(Empty):
        queue.get(timeout=0.001)


def test_ten_thousand_tails(new):
    queue = new()
    for key in range(10_000):
        queue.add(key)
    for key in range(9_999, -1, -3):
        queue[key].put(key)
    assert drain(queue) == list(range(9_999, -1, -3))
    for key in range(10_000):
        queue.remove(key)
    assert queue.stats().subqueues == 0
