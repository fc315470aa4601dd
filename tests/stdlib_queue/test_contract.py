"""What a queue.Queue promises, in kernel mode, in locked mode and with hooks of a subclass; and what SimpleQueue
promises. tests/wakeups has who waits: what wakes them, and what interrupts them."""
import math
import queue as standard
import sys
from functools import partial

import pytest
from support.threads import Threads, wait_asleep

import manytail
from manytail import queue
from manytail.queue import Empty, Full, LifoQueue, PriorityQueue, Queue, ShutDown, SimpleQueue

from .conftest import Locked

EVERY = [Queue, LifoQueue, PriorityQueue, SimpleQueue]


def test_the_module_has_the_names_of_the_standard_librarys():
    assert sorted(queue.__all__) == sorted({*standard.__all__, "ShutDown"})
    assert (queue.Empty, queue.Full) == (standard.Empty, standard.Full)
    assert queue.ShutDown is getattr(standard, "ShutDown", manytail.ShutDown)
    for kind in EVERY:
        assert kind.__name__ == getattr(standard, kind.__name__).__name__
        of_the_compiler = {"__weakref__", "__firstlineno__", "__static_attributes__"}
        for name in set(vars(getattr(standard, kind.__name__))) - of_the_compiler:
            assert hasattr(kind, name), name
    assert (LifoQueue, PriorityQueue) == (standard.LifoQueue, standard.PriorityQueue)


# ------------------------------------------------------------------------------------------------ order, bounds
def test_items_come_in_order(new):
    q = new()
    for n in range(100):
        q.put(n)
    assert (q.qsize(), q.empty(), q.full()) == (100, False, False)
    assert [q.get() for _ in range(100)] == list(range(100))
    assert (q.qsize(), q.empty()) == (0, True)


def test_any_object_is_an_item(new):
    q = new()
    for item in (None, False, 0, (), Empty, q):
        q.put(item)
        assert q.get() is item


def test_a_full_queue_takes_no_more(new):
    q = new(2)
    q.put(1)
    q.put_nowait(2)
    assert q.full()
    at_once = [q.put_nowait, partial(q.put, block=False), partial(q.put, block=0, timeout=-1)]
    for put in (*at_once, partial(q.put, timeout=0), partial(q.put, timeout=0.001)):
        with pytest.raises(Full):
            put(3)
    assert [q.get(), q.get()] == [1, 2]


def test_an_empty_queue_gives_nothing(new):
    q = new()
    at_once = [q.get_nowait, partial(q.get, False), partial(q.get, 0, -1)]
    for get in (*at_once, partial(q.get, timeout=0), partial(q.get, True, 0.001)):
        with pytest.raises(Empty):
            get()


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan])
def test_a_negative_timeout_is_refused_where_it_counts(new, timeout):
    q = new(1)
    with pytest.raises(ValueError, match="timeout: "):
        q.put(1, timeout=timeout)
    assert q.empty()
    q.put(1)
    with pytest.raises(ValueError, match="timeout: "):
        q.get(timeout=timeout)
    assert q.get(False, timeout) == 1
    new().put(1, timeout=timeout)       # without a bound there is nothing to wait for


def test_maxsize_is_any_number():
    for given, holds in ((2, 2), (2.5, 3), (True, 1)):
        q = Queue(given)
        assert q.maxsize is given
        for n in range(holds):
            q.put_nowait(n)
        with pytest.raises(Full):
            q.put_nowait(n)
    for given in (0, -1, math.inf, -math.inf):
        q = Queue(given)
        for n in range(10):
            q.put_nowait(n)
        assert not q.full()
    assert Queue(2**100).maxsize == 2**100
    for wrong in (None, "3", math.nan):
        with pytest.raises(TypeError, match="maxsize: "):
            Queue(wrong)


@pytest.mark.parametrize("module", [standard, queue])
@pytest.mark.parametrize("given", [None, 3])
def test_a_subclass_may_have_a_class_attribute_maxsize(module, given):
    class Mine(module.Queue):
        maxsize = 2

        def __init__(self):
            super().__init__(given or self.maxsize)

    q = Mine()
    for n in range(q.maxsize):
        q.put_nowait(n)
    assert q.full()
    assert q.maxsize == (given or 2)
    with pytest.raises(Full):
        q.put_nowait(n)


def test_maxsize_may_be_assigned(new):
    q = new(3)
    for n in range(3):
        q.put_nowait(n)
    q.maxsize = 2
    with pytest.raises(Full):
        q.put_nowait(3)
    assert (q.maxsize, q.full(), q.qsize()) == (2, True, 3)
    q.maxsize = 4
    q.put_nowait(3)
    assert [q.get() for _ in range(4)] == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------------ waiting, joining
@pytest.mark.thread_unsafe(reason="starts threads and looks at their state")
def test_a_larger_maxsize_wakes_putters(new):
    q = new(1)
    q.put(0)
    with Threads() as threads:
        putters = [threads.start(q.put, n) for n in (1, 2)]
        wait_asleep(*putters)
        q.maxsize = 3
        for putter in putters:
            putter.result()
    assert sorted(q.get() for _ in range(3)) == [0, 1, 2]


def test_join_says_whether_all_tasks_are_done(new):
    q = new()
    assert q.join() is True
    q.put(1)
    assert q.unfinished_tasks == 1
    assert q.join(timeout=0.001) is False
    q.get()
    q.task_done()
    assert q.join(timeout=0) is True
    assert q.unfinished_tasks == 0
    with pytest.raises(ValueError, match="too many"):
        q.task_done()


# ------------------------------------------------------------------------------------------------ shutdown
def test_a_queue_that_was_shut_down_drains(new):
    q = new(2)
    q.put(1)
    q.put(2)
    assert not q.is_shutdown
    q.shutdown()
    q.shutdown()
    assert q.is_shutdown
    for put in (q.put, q.put_nowait, partial(q.put, timeout=1)):
        with pytest.raises(ShutDown):       # not Full
            put(3)
    assert [q.get(), q.get_nowait()] == [1, 2]
    for get in (q.get, q.get_nowait, partial(q.get, timeout=1)):
        with pytest.raises(ShutDown):
            get()
    assert q.unfinished_tasks == 2


def test_an_immediate_shutdown_empties(new):
    q = new()
    for n in range(3):
        q.put(n)
    assert q.get() == 0
    q.shutdown(immediate=True)
    assert (q.qsize(), q.unfinished_tasks) == (0, 1)
    with pytest.raises(ShutDown):
        q.get()
    q.task_done()
    assert q.join()


# ------------------------------------------------------------------------------------------------ objects
@pytest.mark.parametrize("kind", EVERY)
def test_its_repr_names_its_class(kind):
    assert kind.__name__ in repr(kind())


def test_instances_take_attributes():
    for kind in (Queue, LifoQueue, PriorityQueue, type("Mine", (SimpleQueue,), {})):
        q = kind()
        q.mine = 3
        assert q.mine == 3


def test_one_made_by_new_alone_works():
    q = Queue.__new__(Queue)
    q.put(1)
    assert (q.maxsize, q.get()) == (0, 1)
    with pytest.raises(AttributeError, match="queue"):
        Locked.__new__(Locked).put(1)


def test_simple_queue():
    q = SimpleQueue()
    q.put(1, False, -1)
    q.put_nowait(2)
    q.put(item=3, block=True, timeout=None)
    assert (q.qsize(), q.empty()) == (3, False)
    assert [q.get(), q.get_nowait(), q.get(block=False, timeout=-1)] == [1, 2, 3]
    for get in (q.get_nowait, partial(q.get, False), partial(q.get, timeout=0.001)):
        with pytest.raises(Empty):
            get()
    for timeout in (-1, math.nan):
        with pytest.raises(ValueError, match="timeout: "):
            q.get(timeout=timeout)
    with pytest.raises(TypeError):
        SimpleQueue(3)


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="counts may be deferred")
@pytest.mark.thread_unsafe(reason="counts references")
def test_references_are_given_back(new):
    item = object()
    before = sys.getrefcount(item)
    q = new(1)
    q.put(item)
    assert sys.getrefcount(item) == before + 1
    with pytest.raises(Full):
        q.put_nowait(item)
    q.get()
    assert sys.getrefcount(item) == before
    q.put(item)
    q.shutdown(immediate=True)
    with pytest.raises(ShutDown):
        q.put(item)
    assert sys.getrefcount(item) == before
