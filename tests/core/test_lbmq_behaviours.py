"""The 79 behaviours that the tests of LinkedBlockingMultiQueue pin down, in the terms of MultiQueue.

The numbers in a test's name are those of its behaviours. Where the original and our contract differ the contract
holds: None is an item, a capacity of 0 means unbounded, an empty queue raises Empty, an interrupted thread is a main
thread that gets Ctrl-C.
docs/lbmq-behaviours.md lists all 79. Those without a counterpart:

| number | why |
|---|---|
| 10 | get_many makes its own list; there is no sink to be null |
| 11 | the same, with a limit |
| 65 | the repr of a sub-queue is not a view of its items; list(sub_queue) is |
"""
import re
from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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


# ------------------------------------------------------------------------------------------------ construction, null
@pytest.mark.parametrize("maxsize", [0, -1, -(2**31)])
def test_01_02_remaining_is_the_capacity_and_one_that_is_not_positive_means_unbounded(new, maxsize):
    queue, tail = single(new, 100, maxsize=maxsize)
    assert queue.add("bounded", maxsize=SIZE).remaining() == SIZE
    assert tail.remaining() is queue.add("default").remaining() is None
    assert not tail.full()
    assert queue.qsize() == 100


PUTS_OF_NONE = {
    "put_nowait": lambda tail: tail.put_nowait(None),
    "put_front": lambda tail: tail.put_front(None, False),
    "timed put": lambda tail: tail.put(None, True, DEADLINE),
    "put": lambda tail: tail.put(None),
    "put_many": lambda tail: tail.put_many([None]),
}


@pytest.mark.parametrize("put", PUTS_OF_NONE.values(), ids=PUTS_OF_NONE)
def test_03_04_05_06_08_none_is_an_item_of_a_multi_queue_and_no_integer(new, put):
    queue, tail = single(new)
    if issubclass(new, IndexMultiQueue):
        with pytest.raises(TypeError):
            put(tail)
        assert queue.qsize() == 0
    else:
        put(tail)
        assert queue.get_with_key(timeout=DEADLINE) == ("A", None)


def test_07_put_many_of_none_is_a_type_error(new):
    queue, tail = single(new)
    with pytest.raises(TypeError):
        tail.put_many(None)
    assert queue.qsize() == 0


@pytest.mark.parametrize("out", [None, array("d", [0.0] * 3)], ids=str)
def test_09_59_get_many_into_needs_an_array_of_its_type(out):
    queue, tail = single(IndexMultiQueue, 3)
    with pytest.raises(TypeError):
        queue.get_many_into(out)
    assert list(tail) == [0, 1, 2]


# ------------------------------------------------------------------------------------------------ timeouts, Ctrl-C
@pytest.mark.parametrize("max_items", [0, -1, -(2**31)])
def test_12_get_many_of_no_items_takes_none(new_bulk, max_items):
    queue, tail = single(new_bulk, 3)
    assert as_list(queue.get_many(max_items)) == []
    assert list(tail) == [0, 1, 2]
    assert as_list(single(new_bulk)[0].get_many(max_items)) == []  # at once, on an empty queue too


SERVES = {
    "put": lambda queue, tail: (tail.clear(), setattr(tail, "enabled", True), tail.put(9)),
    "enabled": lambda queue, tail: setattr(tail, "enabled", True),
    "added": lambda queue, tail: queue.add("B", priority=2).put(9),
}


@pytest.mark.parametrize("serve", SERVES.values(), ids=SERVES)
def test_13_14_15_a_timed_get_times_out_and_a_later_one_is_served(new, serve):
    queue, tail = single(new)
    tail.enabled = False
    tail.put(9)
    with pytest.raises(Empty):
        queue.get(timeout=SHORT)
    with Threads() as threads:
        getter = threads.start(queue.get, timeout=LONG)
        wait_getters(queue, 1)
        serve(queue, tail)
        assert getter.result() == 9


@signals
@pytest.mark.parametrize("timeout", [(), (True, DEADLINE)], ids=["untimed", "timed"])
@pytest.mark.parametrize("method", ["get", "put"])
def test_13_16_17_18_19_30_31_32_36_42_a_wait_is_interrupted_before_and_while_it_blocks(new, method, timeout):
    queue, tail = single(new, SIZE)
    inside = list(range(SIZE)) if method == "put" else []
    if method == "get":
        assert drain(queue) == list(range(SIZE))
    call = queue.get if method == "get" else partial(tail.put, 99)
    with pytest.raises(KeyboardInterrupt):
        with_interrupt_pending(call, *timeout)
    waiting = f"{method}ters_waiting"
    with acting_when(lambda: getattr(queue.stats(), waiting) == 1, ctrl_c), pytest.raises(KeyboardInterrupt):
        call(*timeout)
    assert getattr(queue.stats(), waiting) == 0
    assert drain(queue) == inside
    tail.put(1)
    assert queue.get(timeout=DEADLINE) == 1  # no interrupt is pending


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
    assert tail.empty()
    assert queue.empty()


@pytest.mark.parametrize("put", ["put_nowait", "put"])
def test_21_22_23_24_29_what_is_put_is_contained_until_it_is_full(new, put):
    queue, tail = single(new)
    assert tail.empty()
    assert queue.empty()
    for n in range(SIZE):
        assert (tail.qsize(), tail.remaining(), tail.full()) == (n, SIZE - n, False)
        getattr(tail, put)(n)
        assert n in tail
    for refused in (lambda: tail.put_nowait(SIZE), lambda: tail.put(SIZE, block=False)):
        with pytest.raises(Full):
            refused()
    for n in range(SIZE):
        assert (tail.qsize(), tail.remaining(), tail.full()) == (SIZE - n, n, n == 0)
        assert queue.get() == n


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


def test_27_28_put_many_of_nothing_of_all_and_of_more_than_fits(new):
    queue, tail = single(new)
    assert tail.put_many([]) == 0
    assert tail.put_many(list(range(SIZE - 2))) == SIZE - 2
    with pytest.raises(Full) as full:
        tail.put_many(range(SIZE - 2, 2 * SIZE), block=False)
    assert full.value.count == 2
    assert drain(queue) == list(range(SIZE))


def test_31_32_a_timed_put_times_out_and_a_blocked_one_completes_after_a_get(new):
    queue, tail = single(new, 2, maxsize=2)
    with pytest.raises(Full):
        tail.put(99, timeout=SHORT)
    with Threads() as threads:
        putter = threads.start(tail.put, 2, timeout=LONG)
        wait_putters(queue, 1)
        assert queue.get() == 0
        putter.result()
    assert tail.remaining() == 0
    assert drain(queue) == [1, 2]


# ------------------------------------------------------------------------------------------------ gets
GETS = {
    "get": lambda queue: queue.get() if queue.qsize() else queue.get_nowait(),
    "get_nowait": lambda queue: queue.get_nowait(),
    "zero timeout": lambda queue: queue.get(timeout=0),
    "timeout": lambda queue: queue.get(timeout=SHORT),
    "without blocking": lambda queue: queue.get(block=False),
    "get_many": lambda queue: as_list(queue.get_many(1, block=False))[0],
}
each_get = pytest.mark.parametrize("get", GETS.values(), ids=GETS)


@each_get
def test_33_36_37_40_41_49_gets_are_fifo_then_empty(new_bulk, get):
    queue, _ = single(new_bulk, SIZE)
    assert [get(queue) for _ in range(SIZE)] == list(range(SIZE))
    with pytest.raises(Empty):
        get(queue)


@each_get
def test_34_38_50_gets_go_by_priority_then_by_turns(new_bulk, get):
    queue, *_ = multi(new_bulk)
    assert [get(queue) for _ in range(9)] == list(range(9))
    with pytest.raises(Empty):
        get(queue)


@each_get
def test_35_39_gets_pass_over_a_disabled_tail(new_bulk, get):
    queue, a, *_ = multi(new_bulk)
    a.enabled = False
    assert [get(queue) for _ in range(6)] == list(range(3, 9))
    with pytest.raises(Empty):
        get(queue)
    a.enabled = True
    assert [get(queue) for _ in range(3)] == [0, 1, 2]


def check_peek(queue, expected):
    for item in expected:
        assert queue.peek() == queue.peek() == item
        assert queue.get_nowait() == item
    with pytest.raises(Empty):
        queue.peek()


def test_43_44_46_47_peek_equals_the_next_get_and_is_empty_at_the_end(new):
    check_peek(single(new, SIZE)[0], range(SIZE))
    check_peek(multi(new)[0], range(9))


def test_45_48_peek_passes_over_disabled_tails(new):
    queue, a, *_ = multi(new)
    a.enabled = False
    check_peek(queue, range(3, 9))
    a.enabled = True
    check_peek(queue, range(3))
    queue, *tails = multi(new)
    for tail in tails:
        tail.enabled = False
    check_peek(queue, [])
    assert [tail.qsize() for tail in tails] == [3, 3, 3]


# ------------------------------------------------------------------------------------------------ looking into a tail
def test_51_53_a_tail_is_usable_after_all_was_discarded_or_cleared(new):
    queue, tail = single(new, SIZE)
    assert (tail.clear(), tail.clear()) == (SIZE, 0)
    assert (tail.qsize(), queue.qsize(), tail.remaining(), tail.empty(), queue.empty()) == (0, 0, SIZE, True, True)
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


def discard_unless(tail, keep):
    """Discard while iterating. Returns whether any item was discarded."""
    return sum(tail.discard(item) for item in tail if not keep(item)) > 0


def test_54_55_56_what_another_tail_has_is_contained_kept_and_discarded(new):
    queue, tail = single(new, SIZE)
    _, other = single(new, SIZE)
    for step in range(SIZE):
        assert discard_unless(tail, other.__contains__) == (step > 0)
        assert all(it in other for it in tail)
        assert all(it in tail for it in other)
        assert tail.qsize() == queue.qsize() == SIZE - step
        assert other.discard(step)
        assert not all(it in other for it in tail)
    tail.put_many(range(10))
    other.put_many(range(5))
    assert discard_unless(tail, lambda item: item not in other)
    assert list(tail) == [SIZE - 1, *range(5, 10)]


def test_57_63_a_list_of_a_tail_is_in_order_and_holds_the_same_objects(new):
    queue, tail = single(new)
    items = [10**6 + n for n in range(SIZE)]
    tail.put_many(items)
    snapshot = list(tail)
    taken = [queue.get() for _ in items]
    assert snapshot == taken == items
    if not issubclass(new, IndexMultiQueue):
        assert all(a is b is c for a, b, c in zip(snapshot, items, taken, strict=True))


def test_58_get_many_into_fills_the_array_it_is_given():
    queue, _ = single(IndexMultiQueue, SIZE)
    out = array("q", [-1]) * (SIZE + 2)
    assert queue.get_many_into(out) == SIZE
    assert list(out) == [*range(SIZE), -1, -1]


def test_60_61_64_iteration_visits_all_also_with_gets_in_between(new):
    queue, tail = single(new, SIZE)
    rest, taken = set(tail), set()
    for item in tail:  # each item seen is also taken, from the same end
        rest.discard(item)
        taken.add(queue.get_nowait())
        assert item in taken or item in tail
    assert rest <= taken
    assert list(tail) == list(iter(tail)) == []


def test_62_discarding_the_current_item_of_an_iteration(new):
    _, tail = single(new)
    tail.put_many([2, 1, 3])
    items = iter(tail)
    assert [next(items), next(items)] == [2, 1]
    assert tail.discard(1)
    assert list(items) == [3]
    assert list(tail) == [2, 3]


# ----------------------------------------------------------------------------------------------- executors and draining
def test_66_67_put_and_get_in_an_executor(new):
    queue, tail = single(new, 2, maxsize=2)

    def put():
        with pytest.raises(Full):
            tail.put_nowait(2)
        tail.put(2, timeout=LONG)

    def get():
        with pytest.raises(Empty):
            queue.get_nowait()
        return queue.get(timeout=LONG)

    with ThreadPoolExecutor(2) as executor:
        putter = executor.submit(put)
        wait_putters(queue, 1)
        assert executor.submit(queue.get).result(DEADLINE) == 0
        putter.result(DEADLINE)
        assert drain(queue) == [1, 2]
        getter = executor.submit(get)
        wait_getters(queue, 1)
        executor.submit(tail.put, 1).result(DEADLINE)
        assert getter.result(DEADLINE) == 1


def test_68_69_70_get_many_takes_all_that_is_enabled_in_order_and_the_queue_is_usable(new_bulk):
    queue, a, *_ = multi(new_bulk)
    a.enabled = False
    assert as_list(queue.get_many(100)) == list(range(3, 9))
    a.enabled = True
    assert queue.qsize() == 3
    assert as_list(queue.get_many(100)) == [0, 1, 2]
    assert queue.qsize() == 0
    a.put_many([0, 1])
    assert as_list(queue.get_many(SIZE)) == [0, 1]


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
    other = queue.add("B", enabled=False)
    other.put(1)
    assert queue.qsize() == 3
    assert queue.remove("A") is tail
    assert queue.remove("B") is other
    assert queue.qsize() == 0
    assert (list(tail), list(other)) == ([0, 1, 2], [1])


def test_75_after_removing_a_tail_of_the_same_priority_the_other_is_next(new):
    queue = new()
    for key in "AB":
        queue.add(key, priority=1).put(ord(key))
    assert queue.get() == ord("A")
    queue.remove("A")
    assert queue.get() == ord("B")


def test_76_77_priorities_come_and_go_with_their_tails(new):
    queue = new()
    queue.add("low", priority=2).put_many([2, 3])
    queue.add("high", priority=1).put(1)
    queue.remove("high")
    assert queue.peek() == queue.get() == 2
    queue.add("high", priority=1).put(4)
    queue.add("middle", priority=2).put(5)
    assert drain(queue) == [4, 3, 5]


def test_78_79_enabling_or_disabling_twice_counts_once(new):
    queue, tail = single(new, 3)
    for enabled, inside in ((True, 3), (False, 0), (True, 3)):
        tail.enabled = enabled
        tail.enabled = enabled
        assert queue.qsize() == inside
    assert drain(queue) == [0, 1, 2]


# ------------------------------------------------------------------------------------------------ completeness
def behaviours_of(name):
    """The numbers in the name of a test."""
    numbers = re.match(r"test_((?:\d\d_)*)", name)
    return [int(number) for number in numbers[1].split("_")[:-1]] if numbers else []


def test_the_page_lists_every_behaviour_with_its_tests_or_the_reason_why_there_is_none():
    expected = {number: [] for number in range(1, 80)}
    for name in globals():
        for number in behaviours_of(name):
            expected[number].append(name)
    reasons = dict(re.findall(r"^\| (\d+) \| (.+) \|$", __doc__ or "", re.MULTILINE))
    assert {number for number, names in expected.items() if not names} == set(map(int, reasons))
    page = Path(__file__).resolve().parents[2] / "docs" / "lbmq-behaviours.md"
    if not page.exists():
        pytest.skip("these tests run away from the source tree, without docs/")
    rows = dict(re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert {int(number): re.findall(r"`(test_\w+)`", cell) for number, cell in rows.items()} == expected
    assert {number: cell for number, cell in rows.items() if "`test_" not in cell} == reasons
