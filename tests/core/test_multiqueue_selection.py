"""A callable selection: its argument, what it may return, and that nothing it does loses an item."""
import asyncio
import itertools
from queue import Empty

import pytest
from support.queues import as_list, drain, get_many_into
from support.threads import LONG, Threads, wait_getters

import manytail
from manytail import MultiQueue


def test_it_is_a_sequence(new):
    lengths = []

    def probe(ready):
        lengths.append((len(ready), ready[0] is next(iter(ready)), ready[-1] in ready, bool(ready)))
        return ready[-1]

    queue = new(selection=probe)
    for key in range(3):
        queue.add(key).put(key)
    assert drain(queue) == [2, 1, 0]
    assert lengths == [(n, True, True, True) for n in (3, 2, 1)]


def test_changing_what_it_is_given_changes_nothing(new):
    def vandal(ready):
        chosen = ready[0]
        if hasattr(ready, "clear"):
            ready.clear()
        return chosen

    queue = new(selection=vandal)
    for key in range(3):
        queue.add(key).put_many([key, key + 10])
    assert drain(queue) == [0, 1, 2, 10, 11, 12]


def test_it_is_called_once_per_item(new_bulk):
    calls = []

    def count(ready):
        calls.append(len(ready))
        return ready[-1]

    queue = new_bulk(selection=count)
    a, b = queue.add("a"), queue.add("b")
    a.put_many([1, 2, 3])
    b.put_many([4, 5])
    queue.peek()
    assert calls == [2]
    assert as_list(queue.get_many(100)) == [4, 5, 1, 2, 3] or len(calls) == 6
    assert len(calls) == 6
    assert sorted(calls[1:], reverse=True) == calls[1:]


def failing_at(number, error):
    """A selection that takes the first ready sub-queue, and fails at that call."""
    calls = itertools.count(1)

    def choose(ready):
        if next(calls) == number:
            raise error
        return ready[0]

    return choose


BULK = {
    "get_many": lambda queue, n, **linger: as_list(queue.get_many(n, **linger)),
    "get_many_into": get_many_into,
    "aget_many": lambda queue, n, **linger: as_list(asyncio.run(queue.aget_many(n, **linger))),
}
BULK_GETS = [("MultiQueue", "get_many"), ("MultiQueue", "aget_many"), *(("IndexMultiQueue", name) for name in BULK)]


@pytest.fixture(params=BULK_GETS, ids=" ".join)
def bulk(request):
    """A class, and a bulk get of it."""
    kind, name = request.param
    if kind == "IndexMultiQueue":
        pytest.importorskip("numpy")
    return getattr(manytail, kind), BULK[name]


@pytest.mark.parametrize("fails_at", [1, 2, 3, 5])
@pytest.mark.parametrize("linger", [0.0, LONG])
def test_a_bulk_get_in_which_it_raises_loses_nothing(bulk, linger, fails_at):
    """The error has what was taken before it, and the rest is in the queue."""
    new, get = bulk
    queue = new(selection=failing_at(fails_at, LookupError("no choice")))
    queue.add("a").put_many([1, 2, 3])
    queue.add("b").put_many([4, 5])
    with pytest.raises(LookupError) as error:
        get(queue, 9, linger=linger)
    taken = error.value.items
    assert len(taken) == fails_at - 1
    taken += get(queue, 9)
    assert sorted(taken) == [1, 2, 3, 4, 5]
    assert queue.stats().got == 5


@pytest.mark.parametrize("linger", [0.0, LONG])
def test_ctrl_c_inside_it_ends_a_bulk_get_which_has_what_it_took(bulk, linger):
    new, get = bulk
    queue = new(selection=failing_at(3, KeyboardInterrupt))
    queue.add("a").put_many(range(5))
    with pytest.raises(KeyboardInterrupt) as error:
        get(queue, 9, linger=linger)
    assert error.value.items == [0, 1]
    assert queue.stats().got == 2
    assert drain(queue) == [2, 3, 4]


CALLS = {
    "get": MultiQueue.get,
    "get_nowait": MultiQueue.get_nowait,
    "get_with_key": MultiQueue.get_with_key,
    "peek": MultiQueue.peek,
    "aget": lambda queue: asyncio.run(queue.aget()),
    "aget_many": lambda queue: asyncio.run(queue.aget_many(3)),
}


@pytest.mark.parametrize("error", [LookupError, Empty])  # Empty: also what a get raises that finds nothing
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_its_error_is_raised_and_nothing_is_lost(new_bulk, call, error):
    broken = [True]

    def sometimes(ready):
        if broken[0]:
            raise error("the selection failed")
        return ready[0]

    queue = new_bulk(selection=sometimes)
    for key in range(3):
        queue.add(key).put_many([key, key + 10])
    before = queue.stats()
    for _ in range(5):
        with pytest.raises(error, match="the selection failed"):
            call(queue)
    assert queue.stats() == before
    broken[0] = False
    assert drain(queue) == [0, 1, 2, 10, 11, 12]


def test_its_error_does_not_swallow_the_wake_up_of_another_getter(new):
    """Two getters wait and the first one that is woken fails. The item must reach the second one."""
    queue = new(selection=failing_at(1, LookupError("once")))
    tail = queue.add("a")
    with Threads() as threads:
        getters = [threads.start(queue.get, timeout=LONG) for _ in range(2)]
        wait_getters(queue, 2)
        tail.put(1)
        ends = [getter.outcome() for getter in getters]
    assert sorted(type(end).__name__ for end in ends) == ["LookupError", "NoneType"]
    assert queue.empty()


JUNK = {
    "none": lambda queue, ready: None,
    "a key": lambda queue, ready: ready[0].key,
    "the queue": lambda queue, ready: queue,
    "all of them": lambda queue, ready: ready,
    "an idle tail": lambda queue, ready: queue["idle"],
    "a disabled tail": lambda queue, ready: queue["disabled"],
    "a lower priority": lambda queue, ready: queue["lower"],
    "another queue's": lambda queue, ready: other_tail(type(queue)),
    "a detached tail": lambda queue, ready: detached_tail(queue),
}


def other_tail(new):
    tail = new().add("other")
    tail.put(1)
    return tail


def detached_tail(queue):
    queue.add("detached").put(5)
    return queue.remove("detached")


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_anything_else_is_a_value_error_and_nothing_is_lost(new, junk):
    sane = []
    queue = new(selection=lambda ready: ready[0] if sane else junk(queue, ready))
    queue.add("idle")
    queue.add("disabled", enabled=False).put(7)
    queue.add("lower", priority=1).put(8)
    queue.add("a").put_many([1, 2])
    for call in (queue.get, queue.get_nowait, queue.get_with_key, queue.peek):
        with pytest.raises(ValueError, match="selection"):
            call()
    assert queue.qsize() == 3
    assert queue.stats().got == 0
    sane.append(True)
    assert drain(queue) == [1, 2, 8]


EMPTYING = {
    "clear": lambda queue, tail: tail.clear(),
    "discard": lambda queue, tail: tail.discard(1),
    "disable": lambda queue, tail: setattr(tail, "enabled", False),
    "remove": lambda queue, tail: queue.remove(tail.key),
}


@pytest.mark.parametrize("empty", EMPTYING.values(), ids=EMPTYING)
def test_it_is_asked_again_if_its_choice_is_empty_by_then(new, empty):
    calls = []

    def choose(ready):
        calls.append([tail.key for tail in ready])
        if len(calls) == 1:
            empty(queue, ready[0])
            return first
        return ready[0]

    queue = new(selection=choose)
    first, second = queue.add("a"), queue.add("b")
    first.put(1)
    second.put(2)
    assert queue.get() == 2
    assert calls == [["a", "b"], ["b"]]


def test_a_choice_that_was_taken_by_a_get_inside_it_is_asked_again(new):
    inner = []

    def choose(ready):
        if not inner:
            inner.append(None)
            inner[0] = queue.get_nowait()  # asks again, recursively
            return ready[0]
        return ready[0]

    queue = new(selection=choose)
    queue.add("a").put(1)
    queue.add("b").put(2)
    assert queue.get() == 2
    assert inner == [1]


def test_when_its_choice_was_the_last_one_get_is_empty_or_waits(new):
    def choose(ready):
        ready[0].clear()
        return ready[0] if not hasattr(ready, "clear") else tail

    queue = new(selection=choose)
    tail = queue.add("a")
    tail.put(1)
    with pytest.raises(Empty):
        queue.get_nowait()
    tail.put(1)
    with pytest.raises(Empty):
        queue.get(timeout=0.001)
    tail.put(1)
    with pytest.raises(Empty):
        queue.peek()


def test_it_may_use_the_queue(new):
    def busy(ready):
        queue.qsize()
        queue.stats()
        other.put(9)
        assert 9 in other
        ready[0].put_front(5)
        ready[0].discard(5)
        list(ready[0])
        queue.setdefault(len(queue.subqueues)).priority = 3
        return ready[0]

    queue = new(selection=busy)
    other = queue.add("other", enabled=False)
    tail = queue.add("a")
    tail.put_many([1, 2])
    assert [queue.get(), queue.get()] == [1, 2]
    assert list(other) == [9, 9]
