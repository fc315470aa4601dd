"""The contract of MultiQueue and SubQueue: construction, arguments, errors and messages, views, figures, types."""
import collections.abc
import queue as stdlib
import re
from queue import Empty, Full

import pytest
from support.queues import drain
from support.threads import Threads

import manytail
from manytail import IndexMultiQueue, MultiQueue, ShutDown, SubQueue

INT_MAX = 2**31 - 1


class Loud:
    """Unhashable, no number, and recognisable in a message."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<loud>"


# ------------------------------------------------------------------------------------------------ construction


@pytest.mark.parametrize("selection", ["fifo", "", "Round_Robin", None, 3, b"oldest", ["oldest"]], ids=repr)
def test_a_selection_that_is_none_is_refused_by_name(new, selection):
    with pytest.raises((TypeError, ValueError), match="(?s)selection.*" + re.escape(repr(selection))):
        new(selection=selection)


def test_the_constructor_takes_keywords_only(new):
    with pytest.raises(TypeError):
        new("oldest")
    with pytest.raises(TypeError):
        new(maxsize=3)


def test_an_index_queue_is_a_multi_queue():
    assert issubclass(IndexMultiQueue, MultiQueue)
    assert isinstance(IndexMultiQueue().add("a"), SubQueue)


def test_shutdown_is_the_stdlibs_where_it_has_one():
    assert getattr(stdlib, "ShutDown", ShutDown) is ShutDown
    assert issubclass(ShutDown, Exception)
    assert manytail.Empty is Empty
    assert manytail.Full is Full


# ---------------------------------------------------------------------------------------------- add, setdefault, remove
BAD_OPTIONS = [
    *((ValueError, "weight", value) for value in (0, -1)),
    *((TypeError, option, value) for option in ("priority", "maxsize", "weight") for value in ("1", 1.0, None, Loud())),
]


@pytest.mark.parametrize(("error", "option", "value"), BAD_OPTIONS)
def test_a_bad_option_is_refused_by_name(new, error, option, value):
    queue = new()
    for make in (queue.add, queue.setdefault):
        with pytest.raises(error, match=f"(?s){option}.*{value!r}"):
            make("a", **{option: value})
    assert "a" not in queue
    assert queue.stats().subqueues == 0
    tail = queue.add("a", **{option: 5})
    with pytest.raises(error, match=f"(?s){option}.*{value!r}"):
        setattr(tail, option, value)
    assert getattr(tail, option) == 5


def test_priorities_may_be_any_c_int(new):
    queue = new()
    for item, priority in enumerate([-INT_MAX - 1, -1, 0, 1, INT_MAX]):
        queue.add(priority, priority=priority).put(item)
    assert drain(queue) == [0, 1, 2, 3, 4]


def test_a_key_must_be_hashable(new):
    queue = new()
    queue.add("a")
    for call in (queue.add, queue.setdefault, queue.remove, queue.__getitem__):
        with pytest.raises(TypeError):
            call(Loud())
    with pytest.raises(TypeError):
        queue.add()
    assert queue.stats().subqueues == 1


class Sour:
    """A key whose comparison fails."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise LookupError("sour")


def test_a_key_that_cannot_be_compared_passes_its_error_through(new):
    queue = new()
    tail = queue.add(1)
    for call in (queue.add, queue.setdefault, queue.remove, queue.__getitem__, queue.__contains__):
        with pytest.raises(LookupError, match="sour"):
            call(Sour())
    assert queue[1] is tail
    assert len(queue.subqueues) == 1
    tail.put(5)
    assert drain(queue) == [5]


def test_a_key_may_use_the_queue_while_it_is_compared(new):
    queue = new()

    class Busy:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            queue.setdefault("side").put(1)
            queue.get_nowait()
            return self is other

    tail = queue.add(1)
    busy = Busy()
    mine = queue.add(busy)
    assert queue[1] is tail
    assert queue[busy] is mine
    assert queue.remove(busy) is mine
    assert 1 in queue
    assert "side" in queue


def test_setdefault_makes_one_and_is_atomic(new):
    queue = new()
    with Threads() as threads:
        made = [threads.start(queue.setdefault, "k", priority=2, maxsize=3, weight=4, enabled=False) for _ in range(8)]
    (tail,) = {task.result() for task in made}
    assert queue.stats().subqueues == 1
    assert (tail.priority, tail.maxsize, tail.weight, tail.enabled) == (2, 3, 4, False)


def test_an_unknown_key_is_a_key_error_that_names_it(new):
    queue = new()
    queue.add("known")
    for call in (queue.remove, queue.__getitem__, queue.subqueues.__getitem__):
        with pytest.raises(KeyError, match="'unknown'"):
            call("unknown")
    assert "unknown" not in queue
    assert "known" in queue


# ------------------------------------------------------------------------------------------------ views
def test_subqueues_is_a_live_read_only_mapping(new):
    queue = new()
    view = queue.subqueues
    assert isinstance(view, collections.abc.Mapping)
    assert (len(view), list(view), "a" in view) == (0, [], False)
    a, b = queue.add("a"), queue.add("b")
    assert (len(view), set(view), view["a"]) == (2, {"a", "b"}, a)
    assert dict(view) == dict(view.items()) == {"a": a, "b": b}
    assert set(view.values()) == {a, b}
    assert repr(view) == f"SubQueueView({{'a': {a!r}, 'b': {b!r}}})"
    assert view.get("c") is None
    assert view.get("a") is a
    queue.remove("a")
    assert dict(view) == {"b": b}
    with pytest.raises(TypeError):
        view["x"] = b
    with pytest.raises(TypeError):
        del view["b"]
    assert not hasattr(view, "clear")
    assert not hasattr(view, "pop")
    with pytest.raises(AttributeError):
        queue.subqueues = {}


def test_iterating_subqueues_while_others_add_and_remove_never_fails(new):
    queue = new()
    for key in range(50):
        queue.add(key)

    def churn() -> None:
        for key in range(50, 300):
            queue.add(key)
            queue.remove(key - 50)

    with Threads() as threads:
        task = threads.start(churn)
        while task.is_alive():
            assert len(list(queue.subqueues.items())) in (50, 51)
    assert sorted(queue.subqueues) == list(range(250, 300))


def test_what_is_read_only_cannot_be_assigned(new):
    queue = new()
    tail = queue.add("a")
    for target, name in ((tail, "key"), (tail, "attached"), (queue, "is_shutdown"), (queue, "subqueues")):
        with pytest.raises(AttributeError):
            setattr(target, name, 1)


# ------------------------------------------------------------------------------------------------ figures
def test_stats_names_its_figures(new):
    stats = new().stats()
    assert stats == (0, 0, 0, 0, 0, 0, 0)
    assert isinstance(stats, manytail.MultiQueueStats)
    assert stats._fields == ("qsize", "subqueues", "enabled", "getters_waiting", "putters_waiting", "put", "got")


def test_block_takes_any_truth_value(new):
    for block in (False, 0, "", []):
        with pytest.raises(Empty):
            new().get(block)


# ------------------------------------------------------------------------------------------------ types
def test_queues_and_tails_are_hashable_by_identity(new):
    queue = new()
    a, b = queue.add("a"), queue.add("b")
    assert len({queue, new(), a, b, a}) == 4
    assert a != b
    assert a == a


def test_a_key_is_the_very_object_that_was_given(new):
    key = ("a", 1.5, object())
    queue = new()
    tail = queue.add(key)
    tail.put(1)
    assert tail.key is key
    assert queue.get_with_key()[0] is key


@pytest.mark.parametrize(
    "item", [None, "", 0, float("nan"), [], Loud(), NotImplemented, Exception("x"), StopIteration()]
)
def test_any_object_is_an_item(item):
    queue = MultiQueue()
    tail = queue.add("a")
    tail.put(item)
    tail.put_front(item)
    assert queue.peek() is item
    assert item in tail
    assert all(it is item for it in tail)
    assert queue.get() is item
    assert queue.get_many(5)[0] is item
    tail.put(item)
    assert tail.discard(item)
    assert queue.empty()


def test_wrong_numbers_of_arguments_are_type_errors(new):
    queue = new()
    tail = queue.add("a")
    for call in (tail.put, tail.put_nowait, tail.put_front, tail.put_many, queue.get_many, queue.remove, tail.discard):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError):
        queue.get(unknown=1)
    with pytest.raises(TypeError):
        tail.put(1, True, None, None)
    assert queue.qsize() == 0


# ------------------------------------------------------------------------------------------------ __init__ and __new__


def test_init_is_refused_after_use_that_left_no_trace(new):
    """A used queue has a chunk without space for put times, which selection="oldest" would write."""
    queue = new.__new__(new)
    tail = queue.add("a")
    tail.put_many(range(2000))
    assert drain(queue) == list(range(2000))
    queue.remove("a")
    with pytest.raises(RuntimeError, match="in use"):
        queue.__init__(selection="oldest")
    queue.add("b").put_many(range(2000))
    assert drain(queue) == list(range(2000))


def test_a_refused_option_leaves_a_queue_that_may_be_initialised(new):
    queue = new.__new__(new)
    with pytest.raises(ValueError, match="selection"):
        queue.__init__(selection="newest")
    queue.__init__(selection="oldest")
    a, b = queue.add("a"), queue.add("b")
    b.put(1)
    a.put(2)
    assert drain(queue) == [1, 2]


def test_a_queue_made_by_new_alone_works_as_with_the_defaults(new):
    queue = new.__new__(new)
    assert repr(queue) == f"<{new.__name__} of 0 sub-queues, 0 items>"
    a, b = queue.add("a"), queue.add("b")
    a.put_many([1, 2])
    b.put(3)
    assert drain(queue) == [1, 3, 2]
