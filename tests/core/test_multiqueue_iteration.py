"""Iteration, `in`, discard and clear of a tail. They compare, and release items, with no lock of the queue held.

The original holds the one take lock of all sub-queues while it compares, so that a slow `equals` stalls every consumer.
"""
import contextlib
from queue import Empty

import pytest
from support.queues import drain
from support.threads import Threads, run_all

from manytail import MultiQueue, ShutDown

BLOCK = 62  # about the items of one node: the sizes below are on both sides of a few node borders


class Equal:
    """Equal to `value`; runs `act` in each comparison."""

    def __init__(self, value, act=lambda: None):
        self.value, self.act = value, act

    def __eq__(self, other):
        self.act()
        return self.value == (other.value if isinstance(other, Equal) else other)

    __hash__ = None


# ------------------------------------------------------------------------------------------------ iteration


@pytest.mark.parametrize("taken", [1, 5, BLOCK, BLOCK + 1, 150, 299])
@pytest.mark.parametrize("seen", [0, 1, 3, BLOCK, 100])
def test_items_taken_meanwhile_may_be_seen_or_not_and_each_item_at_most_once(new, taken, seen):
    queue = new()
    tail = queue.add("a")
    tail.put_many(range(300))
    items = iter(tail)
    shown = [next(items) for _ in range(seen)]
    for _ in range(taken):
        queue.get()
    shown += list(items)
    assert shown == sorted(set(shown))
    assert shown[:seen] == list(range(seen))
    assert set(shown) >= set(range(max(seen, taken), 300))


def test_clearing_during_an_iteration_ends_it(new):
    queue = new()
    tail = queue.add("a")
    tail.put_many(range(200))
    items = iter(tail)
    assert next(items) == 0
    assert tail.clear() == 200
    rest = list(items)
    assert rest == list(range(1, 1 + len(rest)))  # items that it had looked up already may follow, no others
    tail.put(7)
    assert list(tail) == [7]


KEPT = {
    "none": lambda item: False,
    "some": lambda item: item % 3,
    "the ends": lambda item: not 50 <= item < 350,  # whole chunks go from the middle
}


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("ahead", [False, True])
def test_discarding_while_iterating_keeps_the_rest_in_order(new, kept, ahead):
    queue = new()
    tail = queue.add("a")
    tail.put_many(range(400))
    for item in range(400) if ahead else tail:
        if not kept(item):
            assert tail.discard(item)
    assert list(tail) == [item for item in range(400) if kept(item)]
    assert drain(queue) == [item for item in range(400) if kept(item)]


@pytest.mark.parametrize("how", ["clear", "discard"])
def test_an_iterator_goes_on_after_its_node_went_to_another_tail(new, how):
    """An unused node of 59 slots is kept for the next tail that needs one."""
    queue = new()
    tail, other = queue.add("a"), queue.add("b")
    tail.put_many(list(range(59)))
    if how == "discard":                # which drops only a node between two others
        tail.put_many(list(range(59, 59 * 3)))
    items = iter(tail)
    at = 59 if how == "discard" else 0
    shown = [next(items) for _ in range(at + 1)]
    if how == "clear":
        assert tail.clear() == 59
    else:
        assert all(tail.discard(item) for item in range(59, 59 * 2))
    other.put_many(list(range(1000, 1059)))
    tail.put(500)
    shown += items                      # what it has copied of the node, and what comes after it
    assert shown == [*range(59 if how == "clear" else 59 * 3), 500]
    assert list(other) == list(range(1000, 1059))


def test_an_iterator_outlives_the_handle_and_the_queue(new):
    queue = new()
    tail = queue.add("a")
    tail.put_many(range(100))
    items = iter(tail)
    assert next(items) == 0
    queue.remove("a")
    del queue, tail
    assert list(items) == list(range(1, 100))


def test_an_iterator_of_a_drained_tail_restarts_at_the_new_head(new):
    queue = new()
    tail = queue.add("a")
    tail.put_many(range(300))
    items = iter(tail)
    next(items)
    drain(queue)
    tail.put_many(range(1000, 1300))
    rest = [item for item in items if item >= 1000]
    assert rest == sorted(set(rest))
    assert rest in ([], list(range(1000, 1300)))


def test_iterating_while_others_put_and_get_never_fails_and_repeats_nothing(new):
    queue = new()
    tail = queue.add("a")

    def churn(start):
        for item in range(start, start + 3000):
            tail.put(item)
            if item % 3:
                with contextlib.suppress(Empty):
                    queue.get_nowait()
            if item % 7 == 0:
                tail.discard(item)

    with Threads() as threads:
        churners = [threads.start(churn, start) for start in (0, 10_000)]
        while any(churner.is_alive() for churner in churners):
            shown = list(tail)
            assert len(shown) == len(set(shown))
            for start in (0, 10_000):
                mine = [item for item in shown if start <= item < start + 10_000]
                assert mine == sorted(mine)
            if len(shown) > 50:  # keep the walks short
                tail.clear()


def test_an_iterator_shared_by_threads_shows_each_item_to_one_of_them(new):
    """One iterator is for one thread at a time. Another thread gets a ValueError and may try again."""
    tail = new().add("a")
    tail.put_many(range(3000))
    items = iter(tail)

    def take():
        shown = []
        while True:
            try:
                shown.append(next(items))
            except ValueError:
                continue
            except StopIteration:
                return shown

    shown_by = run_all(*[take] * 3)
    assert sorted(item for shown in shown_by for item in shown) == list(range(3000))
    assert all(shown == sorted(shown) for shown in shown_by)


# ------------------------------------------------------------------------------------------------ in and discard
def test_contains_and_discard_compare_by_identity_first():
    nan = float("nan")
    sour = Equal(1, lambda: pytest.fail("compared with itself"))
    tail = MultiQueue().add("a")
    tail.put_many([nan, sour])
    assert nan in tail
    assert float("nan") not in (it for it in tail if it is nan)
    assert tail.discard(nan)
    assert sour in tail
    assert tail.discard(sour)
    assert tail.empty()


class NoTruth:
    """Its comparison has no truth value."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise LookupError("sour")

    __hash__ = None


def sour():
    raise LookupError("sour")


@pytest.mark.parametrize("item", [Equal(2, sour), NoTruth()], ids=["raises", "has no truth"])
def test_an_eq_that_raises_passes_through_and_changes_nothing(item):
    queue = MultiQueue()
    tail = queue.add("a")
    tail.put_many([1, item, 3])
    for call in (tail.__contains__, tail.discard):
        with pytest.raises(LookupError, match="sour"):
            call(3)
    assert 1 in tail  # found before the item whose comparison raises
    assert tail.qsize() == queue.qsize() == 3
    assert tail.discard(1)
    assert queue.stats() == (2, 1, 1, 0, 0, 3, 0)


COMPARING = {"in": lambda tail, item: item in tail, "discard": lambda tail, item: tail.discard(item)}


@pytest.fixture(params=COMPARING)
def compare(request):
    return COMPARING[request.param]


def test_an_eq_may_use_the_queue_it_is_compared_in(compare):
    queue = MultiQueue()
    tail, other = queue.add("a", maxsize=50), queue.add("b", priority=-1)
    count, busy = [], []

    def act():
        count.append(1)
        if busy:  # compared by the discard and `in` below
            return
        busy.append(1)
        other.put("other")
        assert queue.get_nowait() == "other"
        tail.put("more", block=False)
        assert tail.discard("more")
        tail.put_front("front", block=False)
        assert queue.get_nowait() == "front"
        assert queue.qsize() == tail.qsize() == 3
        assert len(list(tail)) == 3
        tail.enabled = False
        tail.enabled = True
        tail.priority += 1
        queue.add("c").put(1)
        queue.remove("c")
        queue.stats()
        busy.clear()

    tail.put_many([Equal(1, act), Equal(2, act), Equal(3, act)])
    assert compare(tail, 2)
    assert len(count) > 2


@pytest.mark.parametrize("gone", ["taken", "discarded"])
def test_the_item_that_is_gone_when_it_is_compared_is_not_discarded_twice(gone):
    """The comparison itself takes the item that is equal. discard must continue with the next one, or find none."""
    queue = MultiQueue()
    tail = queue.add("a")
    taken = []

    def take():
        if not taken:
            taken.append(item)
            assert tail.discard(item) if gone == "discarded" else queue.get_nowait() is item

    item = Equal(1, take)
    tail.put(item)
    assert not tail.discard(1)
    assert tail.qsize() == queue.qsize() == 0
    taken.clear()
    tail.put_many([0, item, Equal(1)] if gone == "discarded" else [item, Equal(1)])
    assert tail.discard(1)
    left = [0] if gone == "discarded" else []
    assert (list(tail), tail.qsize(), queue.qsize()) == (left, len(left), len(left))


def test_a_tail_cleared_while_an_eq_runs():
    queue = MultiQueue()
    tail = queue.add("a")
    tail.put_many([Equal(1, lambda: tail.clear()), *range(200)])
    assert not tail.discard(150)
    assert tail.empty()
    tail.put_many([Equal(1, lambda: tail.clear()), *range(200)])
    tail.__contains__(150)  # true or false: the item was there when the search began
    assert tail.qsize() == queue.qsize() == 0


def test_a_tail_removed_while_an_eq_runs(compare):
    queue = MultiQueue()
    tail = queue.add("a")

    def act():
        if "a" in queue:
            queue.remove("a")

    tail.put_many([Equal(0, act), Equal(1), Equal(2)])
    assert compare(tail, 1)
    assert queue.qsize() == 0
    assert queue.stats().subqueues == 0


# ------------------------------------------------------------------------------------------------ clear


def test_released_items_may_use_the_queue():
    """Finalizers of cleared, discarded and removed items run with no lock held."""
    queue = MultiQueue()
    tail, log = queue.add("a"), queue.add("log", priority=-1)

    class Parting:
        def __del__(self):
            queue.qsize()
            with contextlib.suppress(ShutDown):
                log.put("gone")
                tail.put("last words")
                assert tail.discard("last words")

    tail.put_many(Parting() for _ in range(3))
    assert tail.clear() == 3
    assert log.clear() == 3
    tail.put(Parting())
    item = next(iter(tail))
    assert tail.discard(item)
    del item
    assert log.clear() == 1
    tail.put(Parting())
    queue.get()
    assert log.clear() == 1
    tail.put(Parting())
    queue.remove("a")
    assert tail.clear() == 1  # its finalizer raises at its second call, after its first one succeeded
    assert log.clear() == 1
    queue.add("b").put(Parting())
    queue.shutdown(immediate=True)
    assert queue.qsize() == 0
