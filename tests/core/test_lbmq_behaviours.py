"""The 79 behaviours that the tests of LinkedBlockingMultiQueue pin down, in the terms of MultiQueue.

A test's number is the behaviour's. Where the original and our contract differ the contract holds: None is an item, a
capacity of 0 means unbounded, an empty queue raises Empty, an interrupted thread is a main thread that gets Ctrl-C.
docs/lbmq-behaviours.md lists all 79. Those without a counterpart:

| number | why |
|---|---|
| 10 | get_many makes its own list; there is no sink to be null |
| 11 | the same, with a limit |
| 65 | the repr of a sub-queue is not a view of its items; list(sub_queue) is |
"""
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, Full

import pytest
from support.queues import as_list, drain, with_interrupt_pending
from support.threads import DEADLINE, LONG, Threads, acting_when, ctrl_c, wait_getters, wait_putters

from manytail import IndexMultiQueue

SIZE = 20
SHORT = 0.01  # a timeout that is meant to run out
signals = pytest.mark.thread_unsafe(reason="Ctrl-C goes to the main thread")


def single(new, n=0, maxsize=SIZE):
    """One sub-queue A of priority 1 with the items 0..n-1."""
    queue = new()
    tail = queue.add("A", priority=1, maxsize=maxsize)
    tail.put_many(range(n))
    return queue, tail


def multi(new):
    """A of priority 1, then B and C of priority 2; `get` returns 0..8."""
    queue = new()
    a, b, c = queue.add("A", priority=1), queue.add("B", priority=2), queue.add("C", priority=2)
    a.put_many([0, 1, 2])
    b.put_many([3, 5, 7])
    c.put_many([4, 6, 8])
    return queue, a, b, c


def blocked_then_interrupted(queue, waiting, call, *args):
    """`call` blocks in the main thread until Ctrl-C comes, and raises KeyboardInterrupt."""
    with acting_when(lambda: getattr(queue.stats(), waiting) == 1, ctrl_c), pytest.raises(KeyboardInterrupt):
        call(*args)
    assert getattr(queue.stats(), waiting) == 0


# ------------------------------------------------------------------------------------------------ construction
def test_01_remaining_is_the_capacity_or_none(new):
    queue = new()
    assert queue.add("bounded", maxsize=SIZE).remaining() == SIZE
    assert queue.add("default").remaining() is None


@pytest.mark.parametrize("maxsize", [0, -1, -(2**31)])
def test_02_a_capacity_that_is_not_positive_means_unbounded(new, maxsize):
    queue, tail = single(new, 100, maxsize=maxsize)
    assert tail.remaining() is None
    assert not tail.full()
    assert queue.qsize() == 100


# ------------------------------------------------------------------------------------------------ null
def put_none(new, method, *args):
    """None is an item of a MultiQueue; an IndexMultiQueue holds integers only."""
    queue, tail = single(new)
    if issubclass(new, IndexMultiQueue):
        with pytest.raises(TypeError):
            getattr(tail, method)(None, *args)
        assert queue.qsize() == 0
    else:
        getattr(tail, method)(None, *args)
        assert queue.get_with_key(timeout=DEADLINE) == ("A", None)


def test_03_put_nowait_of_none(new):
    put_none(new, "put_nowait")


def test_04_put_front_of_none(new):
    put_none(new, "put_front", False)


def test_05_timed_put_of_none(new):
    put_none(new, "put", True, DEADLINE)


def test_06_put_of_none(new):
    put_none(new, "put")


def test_07_put_many_of_none_is_a_type_error(new):
    queue, tail = single(new)
    with pytest.raises(TypeError):
        tail.put_many(None)
    assert queue.qsize() == 0


def test_08_put_many_of_nones(new):
    queue, tail = single(new)
    if issubclass(new, IndexMultiQueue):
        with pytest.raises(TypeError):
            tail.put_many([None, None])
        assert queue.qsize() == 0
    else:
        assert tail.put_many([None, None]) == 2
        assert drain(queue) == [None, None]


def test_09_get_many_into_needs_an_array():
    queue, tail = single(IndexMultiQueue, 3)
    with pytest.raises(TypeError):
        queue.get_many_into(None)
    assert list(tail) == [0, 1, 2]


# ------------------------------------------------------------------------------------------------ limits and timeouts
@pytest.mark.parametrize("max_items", [0, -1, -(2**31)])
def test_12_get_many_of_no_items_takes_none(new_bulk, max_items):
    queue, tail = single(new_bulk, 3)
    assert as_list(queue.get_many(max_items)) == []
    assert list(tail) == [0, 1, 2]
    assert as_list(single(new_bulk)[0].get_many(max_items)) == []  # at once, on an empty queue too


def test_13_timed_get_times_out_or_gets(new):
    queue, tail = single(new)
    with pytest.raises(Empty):
        queue.get(timeout=SHORT)
    with Threads() as threads:
        getter = threads.start(queue.get, timeout=LONG)
        wait_getters(queue, 1)
        tail.put(7)
        assert getter.result() == 7


@signals
def test_13_timed_get_is_interrupted_before_and_while_it_waits(new):
    queue, tail = single(new)
    with pytest.raises(KeyboardInterrupt):
        with_interrupt_pending(queue.get, timeout=DEADLINE)
    blocked_then_interrupted(queue, "getters_waiting", queue.get, True, DEADLINE)
    tail.put(1)
    assert queue.get(timeout=DEADLINE) == 1  # no interrupt is pending


def test_14_a_disabled_tail_lets_get_time_out_and_enabling_wakes_it(new):
    queue, tail = single(new, 2)
    tail.enabled = False
    with pytest.raises(Empty):
        queue.get(timeout=SHORT)
    with Threads() as threads:
        getter = threads.start(queue.get, timeout=LONG)
        wait_getters(queue, 1)
        tail.enabled = True
        assert getter.result() == 0


def test_15_a_tail_added_in_mid_flight_wakes_a_blocked_get(new):
    queue, tail = single(new, 2)
    tail.enabled = False
    with Threads() as threads:
        getter = threads.start(queue.get, timeout=LONG)
        wait_getters(queue, 1)
        queue.add("B", priority=2).put(9)
        assert getter.result() == 9
    assert list(tail) == [0, 1]


@signals
def test_16_get_from_empty_blocks_until_interrupted(new):
    queue, _ = single(new)
    blocked_then_interrupted(queue, "getters_waiting", queue.get)


@signals
def test_17_get_from_empty_with_an_interrupt_pending_raises_it_at_once(new):
    queue, _ = single(new)
    with pytest.raises(KeyboardInterrupt):
        with_interrupt_pending(queue.get)
    assert queue.stats().getters_waiting == 0


@signals
def test_18_timed_get_from_empty_blocks_until_interrupted(new):
    queue, _ = single(new)
    blocked_then_interrupted(queue, "getters_waiting", queue.get, True, DEADLINE)


@signals
def test_19_timed_get_from_empty_with_an_interrupt_pending_raises_it_at_once(new):
    queue, _ = single(new)
    with pytest.raises(KeyboardInterrupt):
        with_interrupt_pending(queue.get, True, DEADLINE)
    assert queue.stats().getters_waiting == 0


# ------------------------------------------------------------------------------------------------ puts
def test_20_discard_takes_out_one_and_leaves_its_neighbours(new):
    queue, tail = single(new, SIZE)
    for item in range(1, SIZE, 2):
        assert item in tail
        assert tail.discard(item)
        assert item not in tail
        assert item - 1 in tail
    for item in range(0, SIZE, 2):
        assert tail.discard(item)
        assert not tail.discard(item)
        assert not tail.discard(item + 1)
    assert tail.empty()
    assert queue.empty()


def test_21_empty_and_full(new):
    queue, tail = single(new, maxsize=2)
    assert tail.empty()
    assert queue.empty()
    assert tail.remaining() == 2
    tail.put(1)
    assert not tail.empty()
    assert not queue.empty()
    assert not tail.full()
    assert tail.remaining() == 1
    tail.put(2)
    assert tail.full()
    assert tail.remaining() == 0
    with pytest.raises(Full):
        tail.put_nowait(3)
    assert drain(queue) == [1, 2]


def test_22_size_and_remaining_add_up_to_the_capacity(new):
    queue, tail = single(new)
    for n in range(SIZE):
        assert (tail.qsize(), tail.remaining()) == (n, SIZE - n)
        tail.put(n)
    for n in range(SIZE):
        assert (tail.qsize(), tail.remaining()) == (SIZE - n, n)
        assert queue.get() == n


def test_23_put_nowait_until_full(new):
    _, tail = single(new, maxsize=1)
    tail.put_nowait(0)
    with pytest.raises(Full):
        tail.put_nowait(1)
    assert list(tail) == [0]


def test_24_put_without_blocking_when_full(new):
    _, tail = single(new, SIZE)
    assert tail.remaining() == 0
    with pytest.raises(Full):
        tail.put(SIZE, block=False)
    assert list(tail) == list(range(SIZE))


def test_25_put_many_of_itself_ends_and_keeps_the_counts(new):
    queue, tail = single(new, 3)
    try:
        count = tail.put_many(tail, block=False)  # weakly consistent: it may see what it puts
    except Full as full:
        count = full.count
    items = list(tail)
    assert tail.qsize() == queue.qsize() == len(items) == 3 + count <= SIZE
    assert items == [0, 1, 2] * (len(items) // 3) + [0, 1, 2][: len(items) % 3]


def test_26_put_many_up_to_what_an_iterable_fails_at(new):
    def items():
        yield from range(3)
        raise LookupError("no more")

    queue, tail = single(new)
    with pytest.raises(LookupError, match="no more"):
        tail.put_many(items())
    assert drain(queue) == [0, 1, 2]


def test_27_put_many_without_enough_room(new):
    queue, tail = single(new, maxsize=2)
    with pytest.raises(Full) as full:
        tail.put_many(range(SIZE), block=False)
    assert full.value.count == 2
    assert drain(queue) == [0, 1]


def test_28_put_many_of_nothing_and_of_all_in_order(new):
    queue, tail = single(new)
    assert tail.put_many([]) == 0
    assert queue.empty()
    assert tail.put_many(list(range(SIZE))) == SIZE
    assert drain(queue) == list(range(SIZE))


def test_29_all_that_is_put_is_contained(new):
    _, tail = single(new)
    for item in range(SIZE):
        tail.put(item)
        assert item in tail
    assert tail.remaining() == 0


@signals
def test_30_a_blocked_put_is_interrupted_and_changes_nothing(new):
    queue, tail = single(new, SIZE)
    with pytest.raises(KeyboardInterrupt):
        with_interrupt_pending(tail.put, 99)
    blocked_then_interrupted(queue, "putters_waiting", tail.put, 99)
    assert list(tail) == list(range(SIZE))
    assert queue.qsize() == SIZE


@signals
def test_31_a_blocked_put_completes_after_a_get_and_the_next_one_blocks(new):
    queue, tail = single(new, 2, maxsize=2)
    with Threads() as threads:
        putter = threads.start(tail.put, 2, timeout=LONG)
        wait_putters(queue, 1)
        assert queue.get() == 0
        putter.result()
    assert tail.remaining() == 0
    blocked_then_interrupted(queue, "putters_waiting", tail.put, 99)
    assert drain(queue) == [1, 2]


@signals
def test_32_a_timed_put_times_out_and_is_interrupted(new):
    queue, tail = single(new, 2, maxsize=2)
    with pytest.raises(Full):
        tail.put(99, timeout=SHORT)
    blocked_then_interrupted(queue, "putters_waiting", tail.put, 99, True, DEADLINE)
    assert drain(queue) == [0, 1]


# ------------------------------------------------------------------------------------------------ gets
def test_33_get_is_fifo(new):
    queue, _ = single(new, SIZE)
    assert [queue.get() for _ in range(SIZE)] == list(range(SIZE))


def test_34_get_goes_by_priority_then_by_turns(new):
    queue, *_ = multi(new)
    assert [queue.get() for _ in range(9)] == list(range(9))


def test_35_get_passes_over_a_disabled_tail(new):
    queue, a, *_ = multi(new)
    a.enabled = False
    assert [queue.get() for _ in range(6)] == list(range(3, 9))
    a.enabled = True
    assert [queue.get() for _ in range(3)] == [0, 1, 2]


@signals
def test_36_get_drains_then_blocks_until_interrupted(new):
    queue, _ = single(new, SIZE)
    assert [queue.get() for _ in range(SIZE)] == list(range(SIZE))
    blocked_then_interrupted(queue, "getters_waiting", queue.get)


def test_37_get_nowait_is_fifo_then_empty(new):
    queue, _ = single(new, SIZE)
    assert [queue.get_nowait() for _ in range(SIZE)] == list(range(SIZE))
    with pytest.raises(Empty):
        queue.get_nowait()


def test_38_get_nowait_goes_by_priority_then_by_turns(new):
    queue, *_ = multi(new)
    assert [queue.get_nowait() for _ in range(9)] == list(range(9))
    with pytest.raises(Empty):
        queue.get_nowait()


def test_39_get_nowait_is_empty_while_only_a_disabled_tail_has_items(new):
    queue, a, *_ = multi(new)
    a.enabled = False
    assert [queue.get_nowait() for _ in range(6)] == list(range(3, 9))
    with pytest.raises(Empty):
        queue.get_nowait()
    a.enabled = True
    assert drain(queue) == [0, 1, 2]


def test_40_get_with_a_zero_timeout(new):
    queue, _ = single(new, SIZE)
    assert [queue.get(timeout=0) for _ in range(SIZE)] == list(range(SIZE))
    with pytest.raises(Empty):
        queue.get(timeout=0)


def test_41_get_with_a_timeout(new):
    queue, _ = single(new, SIZE)
    assert [queue.get(timeout=DEADLINE) for _ in range(SIZE)] == list(range(SIZE))
    with pytest.raises(Empty):
        queue.get(timeout=SHORT)


@signals
def test_42_an_interrupted_timed_get_raises_the_interrupt_and_not_empty(new):
    queue, _ = single(new, SIZE)
    for item in range(SIZE):
        assert queue.get(timeout=DEADLINE) == item
    blocked_then_interrupted(queue, "getters_waiting", queue.get, True, DEADLINE)


def check_peek(queue, expected):
    for item in expected:
        assert queue.peek() == item
        assert queue.peek() == item
        assert queue.get_nowait() == item
    with pytest.raises(Empty):
        queue.peek()


def test_43_peek_equals_the_next_get(new):
    check_peek(single(new, SIZE)[0], range(SIZE))


def test_44_peek_equals_the_next_get_over_many_tails(new):
    check_peek(multi(new)[0], range(9))


def test_45_peek_passes_over_a_disabled_tail(new):
    queue, a, *_ = multi(new)
    a.enabled = False
    check_peek(queue, range(3, 9))
    a.enabled = True
    check_peek(queue, range(3))


def test_46_peek_of_an_empty_queue_is_empty(new):
    queue, _ = single(new, 1)
    assert queue.peek() == 0
    queue.get()
    with pytest.raises(Empty):
        queue.peek()


def test_47_peek_of_many_empty_tails_is_empty(new):
    queue, *_ = multi(new)
    for item in range(9):
        assert queue.peek() == item
        assert queue.get() == item
    with pytest.raises(Empty):
        queue.peek()


def test_48_peek_is_empty_when_nothing_is_enabled(new):
    queue, *tails = multi(new)
    for tail in tails:
        tail.enabled = False
    with pytest.raises(Empty):
        queue.peek()
    assert [tail.qsize() for tail in tails] == [3, 3, 3]


def test_49_get_without_blocking_raises_at_the_end(new):
    queue, _ = single(new, SIZE)
    assert [queue.get(block=False) for _ in range(SIZE)] == list(range(SIZE))
    with pytest.raises(Empty):
        queue.get(block=False)


def test_50_get_without_blocking_over_many_tails_raises_at_the_end(new):
    queue, *_ = multi(new)
    assert [queue.get(block=False) for _ in range(9)] == list(range(9))
    with pytest.raises(Empty):
        queue.get(block=False)


# ------------------------------------------------------------------------------------------------ looking into a tail
def test_51_put_and_get_work_after_all_was_discarded(new):
    queue, tail = single(new)
    for item in (1, 2):
        tail.put(item)
        assert tail.discard(item)
        assert queue.empty()
        tail.put(item + 10)
        assert queue.get(timeout=DEADLINE) == item + 10


def test_52_contains_follows_gets(new):
    queue, tail = single(new, SIZE)
    for item in range(SIZE):
        assert item in tail
        queue.get()
        assert item not in tail


def test_53_clear_empties_both_views_and_the_tail_is_usable(new):
    queue, tail = single(new, SIZE)
    assert tail.clear() == SIZE
    assert tail.empty()
    assert queue.empty()
    assert (tail.qsize(), queue.qsize(), tail.remaining()) == (0, 0, SIZE)
    tail.put(1)
    assert not tail.empty()
    assert 1 in tail
    assert tail.clear() == 1
    assert tail.clear() == 0
    assert tail.empty()


def test_54_containing_all_of_another_tail(new):
    _, tail = single(new, SIZE)
    _, other = single(new)
    for item in range(SIZE):
        assert all(it in tail for it in other)
        assert not all(it in other for it in tail)
        other.put(item)
    assert all(it in other for it in tail)


def discard_unless(tail, keep):
    """Discard while iterating. Returns whether any item was discarded."""
    return sum(tail.discard(item) for item in tail if not keep(item)) > 0


def test_55_keeping_only_what_another_tail_has(new):
    queue, tail = single(new, SIZE)
    _, other = single(new, SIZE)
    for step in range(SIZE):
        assert discard_unless(tail, other.__contains__) == (step > 0)
        assert all(it in other for it in tail)
        assert tail.qsize() == queue.qsize() == SIZE - step
        assert other.discard(step)


def test_56_discarding_all_that_another_tail_has(new):
    for n in range(1, SIZE):
        queue, tail = single(new, SIZE)
        _, other = single(new, n)
        assert discard_unless(tail, lambda item, other=other: item not in other)
        assert tail.qsize() == queue.qsize() == SIZE - n
        assert not any(it in tail for it in other)


def test_57_a_list_of_a_tail_is_fifo_and_holds_the_same_objects(new):
    queue, tail = single(new)
    items = [10**6 + n for n in range(SIZE)]
    tail.put_many(items)
    snapshot = list(tail)
    assert snapshot == items
    taken = [queue.get() for _ in items]
    assert taken == items
    if not issubclass(new, IndexMultiQueue):
        assert all(a is b is c for a, b, c in zip(snapshot, items, taken, strict=True))


def test_58_get_many_into_fills_the_array_it_is_given():
    from array import array

    queue, _ = single(IndexMultiQueue, SIZE)
    out = array("q", [-1]) * (SIZE + 2)
    assert queue.get_many_into(out) == SIZE
    assert list(out) == [*range(SIZE), -1, -1]


def test_59_get_many_into_refuses_another_type_of_array():
    from array import array

    queue, tail = single(IndexMultiQueue, 3)
    with pytest.raises(TypeError):
        queue.get_many_into(array("d", [0.0] * 3))
    assert list(tail) == [0, 1, 2]


def test_60_iteration_visits_all_also_with_gets_in_between(new):
    queue, tail = single(new, SIZE)
    assert list(tail) == list(range(SIZE))
    rest = set(range(SIZE))
    taken = set()
    for item in tail:  # each item seen is also taken, from the same end
        rest.discard(item)
        taken.add(queue.get())
        assert item in taken or item in tail
    assert rest <= taken


def test_61_iteration_over_an_empty_tail(new):
    _, tail = single(new)
    with pytest.raises(StopIteration):
        next(iter(tail))
    assert list(tail) == []


def test_62_discarding_the_current_item_of_an_iteration(new):
    _, tail = single(new)
    tail.put_many([2, 1, 3])
    items = iter(tail)
    assert next(items) == 2
    assert next(items) == 1
    assert tail.discard(1)
    assert list(items) == [3]
    assert list(tail) == [2, 3]


def test_63_iteration_is_in_order(new):
    _, tail = single(new, maxsize=3)
    tail.put_many([1, 2, 3])
    assert tail.remaining() == 0
    assert list(enumerate(tail, 1)) == [(1, 1), (2, 2), (3, 3)]


def test_64_taking_during_iteration_never_fails(new):
    queue, tail = single(new, 3)
    for _ in tail:
        queue.get_nowait()
    assert tail.empty()
    assert queue.empty()


# ----------------------------------------------------------------------------------------------- executors and draining
def test_66_put_in_an_executor(new):
    queue, tail = single(new, 2, maxsize=2)
    with ThreadPoolExecutor(2) as executor:

        def put():
            with pytest.raises(Full):
                tail.put_nowait(2)
            tail.put(2, timeout=LONG)
            return tail.remaining()

        putter = executor.submit(put)
        wait_putters(queue, 1)
        taken = executor.submit(queue.get)
        assert taken.result(DEADLINE) == 0
        assert putter.result(DEADLINE) == 0
    assert drain(queue) == [1, 2]


def test_67_get_in_an_executor(new):
    queue, tail = single(new)
    with ThreadPoolExecutor(2) as executor:

        def get():
            with pytest.raises(Empty):
                queue.get_nowait()
            return queue.get(timeout=LONG)

        getter = executor.submit(get)
        wait_getters(queue, 1)
        executor.submit(tail.put, 1).result(DEADLINE)
        assert getter.result(DEADLINE) == 1
    assert tail.empty()


def test_68_get_many_takes_all_in_order_and_the_queue_is_usable(new_bulk):
    queue, tail = single(new_bulk, SIZE)
    assert as_list(queue.get_many(SIZE)) == list(range(SIZE))
    assert tail.qsize() == queue.qsize() == 0
    tail.put_many([0, 1])
    assert 0 in tail
    assert 1 in tail
    assert as_list(queue.get_many(SIZE)) == [0, 1]


def test_69_get_many_goes_by_priority_then_by_turns(new_bulk):
    queue, *tails = multi(new_bulk)
    assert as_list(queue.get_many(100)) == list(range(9))
    assert queue.qsize() == 0
    assert all(tail.empty() for tail in tails)


def test_70_get_many_passes_over_a_disabled_tail(new_bulk):
    queue, a, *_ = multi(new_bulk)
    a.enabled = False
    assert as_list(queue.get_many(100)) == list(range(3, 9))
    assert queue.qsize() == 0
    a.enabled = True
    assert queue.qsize() == 3
    assert as_list(queue.get_many(100)) == [0, 1, 2]
    assert queue.qsize() == 0


def test_71_get_many_of_a_full_tail_lets_a_blocked_put_finish(new_bulk):
    queue, tail = single(new_bulk, SIZE)
    with Threads() as threads:
        putter = threads.start(tail.put, SIZE, timeout=LONG)
        wait_putters(queue, 1)
        taken = as_list(queue.get_many(SIZE))
        assert taken[:SIZE] == list(range(SIZE))
        putter.result()
    assert taken[SIZE:] + drain(queue) == [SIZE]


def test_72_get_many_takes_at_most_what_is_asked(new_bulk):
    for n in range(SIZE + 2):
        queue, tail = single(new_bulk, SIZE)
        taken = as_list(queue.get_many(n, block=False))
        assert taken == list(range(min(n, SIZE)))
        assert list(tail) == list(range(len(taken), SIZE))


def test_73_none_is_contained_only_if_it_was_put(new):
    _, tail = single(new, 3)
    assert None not in tail
    assert not tail.discard(None)
    if not issubclass(new, IndexMultiQueue):
        tail.put(None)
        assert None in tail
        assert tail.discard(None)
    assert list(tail) == [0, 1, 2]


# ------------------------------------------------------------------------------------------------ tails come and go
def test_74_removing_a_tail_takes_its_items_out_of_the_count(new):
    queue, tail = single(new, 3)
    assert queue.qsize() == 3
    assert queue.remove("A") is tail
    assert queue.qsize() == 0
    other = queue.add("B")
    other.put(1)
    other.enabled = False
    assert queue.qsize() == 0
    assert queue.remove("B") is other
    assert queue.qsize() == 0
    assert (list(tail), list(other)) == ([0, 1, 2], [1])


def test_75_after_removing_a_tail_of_the_same_priority_the_other_is_next(new):
    queue = new()
    a, b = queue.add("A", priority=1), queue.add("B", priority=1)
    a.put(1)
    b.put(2)
    assert queue.get() == 1
    queue.remove("A")
    assert queue.get() == 2


def test_76_a_priority_without_tails_is_gone(new):
    queue = new()
    high, low = queue.add("high", priority=1), queue.add("low", priority=2)
    high.put(1)
    low.put_many([2, 3])
    queue.remove("high")
    assert queue.peek() == 2
    assert queue.get() == 2
    queue.add("high", priority=1).put(4)
    assert drain(queue) == [4, 3]


def test_77_a_tail_of_a_higher_priority_added_later_goes_first(new):
    queue = new()
    queue.add("low", priority=1).put(1)
    queue.add("high", priority=0).put(0)
    queue.add("middle", priority=1).put(2)
    assert drain(queue) == [0, 1, 2]


def test_78_enabling_twice_counts_once(new):
    queue, tail = single(new, 3)
    tail.enabled = True
    tail.enabled = True
    assert queue.qsize() == 3
    assert drain(queue) == [0, 1, 2]


def test_79_disabling_twice_counts_once(new):
    queue, tail = single(new, 3)
    tail.enabled = False
    tail.enabled = False
    assert queue.qsize() == 0
    tail.enabled = True
    assert queue.qsize() == 3
    assert drain(queue) == [0, 1, 2]


# ------------------------------------------------------------------------------------------------ completeness
def test_every_behaviour_is_tested_or_has_a_reason():
    tested = {int(name[5:7]) for name in globals() if re.match(r"test_\d\d_", name)}
    reasons = {int(number) for number in re.findall(r"^\| (\d+) \| .+ \|$", __doc__ or "", re.MULTILINE)}
    assert not tested & reasons
    assert tested | reasons == set(range(1, 80))


def test_the_page_lists_every_behaviour_as_this_file_does():
    page = Path(__file__).resolve().parents[2] / "docs" / "lbmq-behaviours.md"
    if not page.exists():
        pytest.skip("these tests run away from the source tree, without docs/")
    rows = dict(re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert list(map(int, rows)) == list(range(1, 80))
    names = [name for name in globals() if re.match(r"test_\d\d_", name)]
    listed = [name for cell in rows.values() for name in re.findall(r"`(test_\w+)`", cell)]
    assert sorted(listed) == sorted(names)
    reasons = dict(re.findall(r"^\| (\d+) \| (.+) \|$", __doc__ or "", re.MULTILINE))
    assert {number: cell for number, cell in rows.items() if "`test_" not in cell} == reasons
