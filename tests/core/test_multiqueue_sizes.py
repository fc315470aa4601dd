"""Sub-queues with a sizer: maxsize bounds the sum of the items' sizes.

What is refused, who waits, and that a size is asked for once, with no lock held, and kept."""
import asyncio
import gc
import weakref
from queue import Full

import pytest
from support.threads import DEADLINE, LONG, Threads, wait_putters

from manytail import IndexMultiQueue, MultiQueue, ShutDown

pytestmark = pytest.mark.thread_unsafe(reason="threads would share the fixtures' queue; Ctrl-C goes to the main thread")


def own(item):
    """The item is its size."""
    return item


@pytest.fixture
def queue():
    return MultiQueue()


@pytest.fixture
def tail(queue):
    return queue.add("a", maxsize=10, sizer=own)


# ------------------------------------------------------------------------------------------------ sums
def test_the_size_of_an_item_stays_what_it_was_when_it_was_put(queue):
    tail = queue.add("a", maxsize=5, sizer=len)
    item = [1, 2]
    tail.put(item)
    item.extend([3, 4, 5, 6])
    assert tail.size == 2
    assert queue.get() is item
    assert (tail.size, tail.remaining()) == (0, 5)


# ------------------------------------------------------------------------------------------------ the sizer is asked
def test_each_item_is_asked_for_its_size_once(queue):
    asked = []
    tail = queue.add("a", maxsize=4, sizer=lambda item: asked.append(item) or 1)
    tail.put("put")
    tail.put_front("front")
    tail.put_many(["list", "too"])
    with pytest.raises(Full):
        tail.put_many(iter(["iterator"]), block=False)
    with Threads() as threads:
        threads.start(tail.put, "waits", timeout=LONG)
        wait_putters(queue, 1)
        assert queue.get_many(9) == ["front", "put", "list", "too"]
    assert sorted(asked) == sorted(["put", "front", "list", "too", "iterator", "waits"])


def test_a_coroutine_that_waits_asks_once(queue):
    asked = []
    tail = queue.add("a", maxsize=5, sizer=lambda item: asked.append(item) or item)

    async def main():
        await tail.aput(5)
        waiting = asyncio.ensure_future(tail.aput(4))
        while not queue.stats().putters_waiting:
            await asyncio.sleep(0)
        assert queue.get_nowait() == 5
        await asyncio.wait_for(waiting, DEADLINE)

    asyncio.run(main())
    assert (asked, tail.size) == ([5, 4], 4)


def test_the_sizer_may_use_the_queue(queue):
    """No lock is held while it runs, and nothing is put yet."""
    seen = []

    def sizer(item):
        seen.append((tail.size, tail.qsize(), queue.stats().put))
        other.put(item)
        if item == "shut":
            queue.shutdown()
        return 1

    tail, other = queue.add("a", maxsize=2, sizer=sizer), queue.add("b")
    tail.put("x")
    assert seen == [(0, 0, 0)]
    with pytest.raises(ShutDown):
        tail.put("shut")
    assert (list(tail), list(other)) == (["x"], ["x", "shut"])


def test_all_of_a_list_are_asked_before_the_first_is_put(queue):
    seen = []
    tail = queue.add("a", maxsize=9, sizer=lambda item: seen.append(tail.qsize()) or 1)
    tail.put_many([1, 2, 3])
    assert seen == [0, 0, 0]


PUTS = {
    "put": lambda tail, item: tail.put(item),
    "put in time": lambda tail, item: tail.put(item, timeout=LONG),
    "put_nowait": lambda tail, item: tail.put_nowait(item),
    "put_front": lambda tail, item: tail.put_front(item),
    "put_many of a list": lambda tail, item: tail.put_many([item]),
    "put_many of an iterator": lambda tail, item: tail.put_many(iter([item])),
    "aput": lambda tail, item: asyncio.run(tail.aput(item)),
}


class Index:
    def __index__(self):
        return 3


BAD = [
    (-1, ValueError),
    (11, ValueError),
    (-(2**70), OverflowError),
    (2**63, OverflowError),
    (2**100, OverflowError),
    (1.5, TypeError),
    ("3", TypeError),
    (None, TypeError),
    (True, TypeError),
    (False, TypeError),
    (LookupError("no size"), LookupError),
]


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
@pytest.mark.parametrize(("size", "error"), BAD, ids=str)
def test_a_size_that_cannot_be_is_refused_and_nothing_is_put(queue, put, size, error):
    def sizer(item):
        if isinstance(size, Exception):
            raise size
        return size

    tail = queue.add("a", maxsize=10, sizer=sizer)
    item = Index()
    refs = [weakref.ref(item)]
    with pytest.raises(error, match=r"sizer\(item\): .*\(expected: |^no size$") as refused:
        put(tail, item)
    assert (tail.size, tail.qsize(), queue.stats().put) == (0, 0, 0)
    assert queue.join(0)
    if isinstance(size, Exception):
        assert refused.value is size
        size.__traceback__ = None
    del item, refused
    gc.collect()
    assert refs[0]() is None


def test_anything_with_an_index_is_a_size(queue):
    tail = queue.add("a", maxsize=10, sizer=lambda item: Index())
    tail.put("x")
    assert tail.size == 3


def test_sizes_that_add_up_to_too_much_are_refused(queue):
    tail = queue.add("a", sizer=own)
    tail.put(2**63 - 1)
    with pytest.raises(OverflowError, match=r"2\*\*63"):
        tail.put(1)
    tail.put(0)
    assert tail.size == 2**63 - 1
    assert queue.get() == 2**63 - 1
    tail.put(1)
    assert tail.size == 1


@pytest.mark.parametrize("sizer", [3, "len", [], b""])
@pytest.mark.parametrize("make", ["add", "setdefault"])
def test_a_sizer_that_cannot_be_called_is_refused(queue, make, sizer):
    with pytest.raises(TypeError, match=r"sizer: .*expected"):
        getattr(queue, make)("a", sizer=sizer)
    assert not queue.subqueues


def test_an_index_multi_queue_has_no_sizes():
    queue = IndexMultiQueue()
    with pytest.raises(TypeError, match=r"sizer: .*IndexMultiQueue"):
        queue.add("a", sizer=len)
    tail = queue.add("a", maxsize=5, sizer=None)
    tail.put_many([1, 2])
    assert tail.size == 2


# ------------------------------------------------------------------------------------------------ put_many
@pytest.mark.parametrize("shape", [list, tuple, iter])
@pytest.mark.parametrize(
    ("items", "fits", "error"),
    [
        ([1, -1, 1], 1, ValueError),
        ([1, 2, 2**64], 2, OverflowError),
        ([1, "x"], 1, TypeError),
    ],
)
def test_put_many_puts_and_counts_what_comes_before_an_item_without_a_size(queue, tail, shape, items, fits, error):
    with pytest.raises(error) as raised:
        tail.put_many(shape(items), block=False)
    assert raised.value.count == fits
    assert list(tail) == items[:fits]
    assert tail.size == sum(items[:fits])


def test_put_many_that_waits_refuses_an_item_that_does_not_fit_any_more(queue, tail):
    tail.put(10)
    with Threads() as threads:
        putter = threads.start(tail.put_many, [1, 9], timeout=LONG)
        wait_putters(queue, 1)
        tail.maxsize = 5
        queue.get()
        error = putter.outcome()
    assert isinstance(error, ValueError)
    assert error.count == 1
    assert list(tail) == [1]


# ------------------------------------------------------------------------------------------------ who waits
def test_a_small_item_passes_a_large_one_that_waits(queue, tail):
    tail.put_many([3, 6])
    with Threads() as threads:
        large = threads.start(tail.put, 10, timeout=LONG)
        wait_putters(queue, 1)
        small = threads.start(tail.put, 4, timeout=LONG)
        wait_putters(queue, 2)
        assert queue.get() == 3
        small.result()
        assert (list(tail), queue.stats().putters_waiting) == ([6, 4], 1)
        assert queue.get_many(2) == [6, 4]
        large.result()
    assert list(tail) == [10]


def test_a_waiting_put_is_refused_when_maxsize_is_lowered_below_its_item(queue, tail):
    tail.put(10)
    with Threads() as threads:
        putter = threads.start(tail.put, 7, timeout=LONG)
        wait_putters(queue, 1)
        tail.maxsize = 6
        assert isinstance(putter.outcome(), ValueError)
    assert list(tail) == [10]
