"""What a multi-queue holds and frees: cycles through whatever it refers to, and exact reference counts on error paths.

tests/contract/test_memory.py has what holds for every structure.
"""
import asyncio
import gc
import sys
import weakref
from queue import Full

import pytest
from support.queues import drain
from support.threads import LONG, Threads, wait_putters

from manytail import IndexMultiQueue, MultiQueue, ShutDown

GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
collecting = pytest.mark.thread_unsafe(reason="counts references and objects of the whole process")


class Item:
    """An object that can be weakly referenced."""


class Called(Item):
    """It is a selection and a sizer too."""

    def __call__(self, ready):
        return 1


def gone(reference):
    """Whether the referent is freed. Runs the collector where reference counts may be deferred."""
    if reference() is not None:
        gc.collect()
    return reference() is None


# ------------------------------------------------------------------------------------------------ what holds an object
class Picky(MultiQueue):
    """Its selection is its own bound method: only the queue can release it."""

    def __init__(self):
        super().__init__(selection=self.pick)

    def pick(self, ready):
        return ready[0]


def with_item(queue, item, *acts):
    queue.add("a").put(item)
    for act in acts:
        act(queue)
    return queue


def lingering(item, new=MultiQueue):
    """The coroutine holds the item, which leads back to it."""
    queue, loop = new(), asyncio.new_event_loop()
    queue.add("a").put(item if new is MultiQueue else 1)
    item.coroutine = queue.aget_many(5, linger=LONG)
    asyncio._set_running_loop(loop)
    try:
        while item.coroutine.send(None) is None:  # it lets the loop run
            continue
    finally:
        asyncio._set_running_loop(None)
    loop.close()
    return queue


# By name: makes a queue that holds the object, and is held by it.
HOLDERS = {
    "item": lambda it: with_item(MultiQueue(), it),
    "disabled": lambda it: with_item(MultiQueue(), it, lambda queue: setattr(queue["a"], "enabled", False)),
    "detached": lambda it: with_item(MultiQueue(), it, lambda queue: setattr(it, "tail", queue.remove("a"))),
    "view": lambda it: with_item(MultiQueue(), it, lambda queue: setattr(it, "view", queue.subqueues)),
    "iterator": lambda it: with_item(MultiQueue(), it, lambda queue: setattr(it, "walk", iter(queue["a"]))),
    "key": lambda it: with_item(MultiQueue(), 1, lambda queue: queue.add(it)),
    "key of an index queue": lambda it: with_item(IndexMultiQueue(), 1, lambda queue: queue.add(it)),
    "sizer": lambda it: with_item(MultiQueue(), 1, lambda queue: queue.add("b", sizer=it)),
    "selection": lambda it: with_item(MultiQueue(selection=it), 1),
    "its own method": lambda it: with_item(Picky(), it, MultiQueue.peek),
    "lingering": lingering,
    "lingering of an index queue": lambda it: lingering(it, IndexMultiQueue),
}


@collecting
@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_a_cycle_is_collected_and_nothing_of_it_stays(hold):
    """The collector clears weak references before it breaks a cycle. Only the list of tracked objects shows whether
    they are gone."""
    kinds = MultiQueue, type(MultiQueue().add("a")), type(iter(MultiQueue().add("a"))), Item

    def make():
        it = Called()
        it.queue = hold(it)
        return weakref.ref(it), weakref.ref(it.queue)

    def tracked():
        gc.collect()
        gc.collect()
        return sum(isinstance(one, kinds) for one in gc.get_objects())

    make()
    before = tracked()
    refs = [ref for _ in range(3) for ref in make()]
    assert tracked() == before
    assert [ref() for ref in refs] == [None] * 6


def test_what_was_taken_during_an_iteration_is_released():
    queue = MultiQueue()
    tail = queue.add("a")
    refs = [weakref.ref(item) for item in [Item() for _ in range(300)] if tail.put(item) is None]
    walk = iter(tail)
    next(walk)
    drain(queue)
    next(walk, None)
    gc.collect()
    assert sum(ref() is not None for ref in refs) <= 64  # the iterator may hold one node in advance
    del walk
    assert all(gone(ref) for ref in refs)


def test_a_finalizer_of_the_queues_own_cycle_may_use_it():
    """The collector finds an item in a cycle with its queue. The item's finalizer still has a working queue."""
    log = []

    class Item:
        def __init__(self, queue, tail):
            self.queue, self.tail = queue, tail

        def __del__(self):
            self.tail.put("last")
            log.append(self.queue.qsize())

    queue = MultiQueue()
    tail = queue.add("a")
    tail.put(Item(queue, tail))
    del queue, tail
    gc.collect()
    gc.collect()
    assert log == [2]


# ------------------------------------------------------------------------------------------------ error paths
def boom(*_):
    raise LookupError("boom")


def full_tail(**kw):
    queue = MultiQueue()
    tail = queue.add("a", maxsize=1, **kw)
    tail.put(None)
    return queue, tail


def detached_tail():
    queue = MultiQueue()
    queue.add("a")
    return queue.remove("a")


def shut_subqueue():
    queue = MultiQueue()
    tail = queue.add("a")
    queue.shutdown()
    return tail


def cancelled_aput(item):
    async def main():
        task = asyncio.create_task(full_tail()[1].aput(item))
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(main())


def generator_that_fails(item):
    yield item
    raise LookupError("boom")


class FailsToCompare:
    __hash__ = None
    __eq__ = boom


def compared(call, item):
    tail = MultiQueue().add("a")
    tail.put_many([item, FailsToCompare()])
    call(tail)


def add_again(item):
    queue = MultiQueue()
    queue.add(item)
    queue.add(item)


def removed_while_blocked(item):
    queue, tail = full_tail()
    with Threads() as threads:
        putter = threads.start(tail.put, item)
        wait_putters(queue, 1)
        queue.remove("a")
        raise putter.outcome()


def shut_down_while_blocked(item):
    queue, tail = full_tail()
    with Threads() as threads:
        putter = threads.start(tail.put_many, [item, item])
        wait_putters(queue, 1)
        queue.shutdown()
        raise putter.outcome()


def selection_fails(item):
    queue = MultiQueue(selection=boom)
    queue.add("a").put(item)
    queue.get()


def selection_returns(item, junk):
    queue = MultiQueue(selection=lambda ready: junk)
    queue.add("a").put(item)
    queue.get()


ERRORS = {
    "put full": (lambda item: full_tail()[1].put(item, False), Full),
    "put timeout": (lambda item: full_tail()[1].put(item, timeout=0.0005), Full),
    "put bad timeout": (lambda item: full_tail()[1].put(item, timeout=-1), ValueError),
    "put worse timeout": (lambda item: full_tail()[1].put(item, timeout=item), TypeError),
    "put_nowait": (lambda item: full_tail()[1].put_nowait(item), Full),
    "put_front full": (lambda item: full_tail()[1].put_front(item, False), Full),
    "put_front timeout": (lambda item: full_tail()[1].put_front(item, timeout=0.0005), Full),
    "put_many list full": (lambda item: full_tail()[1].put_many([item, item], False), Full),
    "put_many iterator full": (lambda item: full_tail()[1].put_many(iter([item, item]), False), Full),
    "put_many partly": (lambda item: full_tail(enabled=False)[0].add("b", maxsize=3).put_many([item] * 9, False), Full),
    "put_many iterator partly": (lambda item: MultiQueue().add("b", maxsize=3).put_many(iter([item] * 9), False), Full),
    "put_many of no iterable": (lambda item: MultiQueue().add("a").put_many(item), TypeError),
    "put_many bad timeout": (lambda item: MultiQueue().add("a").put_many([item], timeout=-1), ValueError),
    "put_many failing": (lambda item: MultiQueue().add("a").put_many(generator_that_fails(item)), LookupError),
    "put detached": (lambda item: detached_tail().put(item), ShutDown),
    "put_many detached": (lambda item: detached_tail().put_many([item]), ShutDown),
    "put_front detached": (lambda item: detached_tail().put_front(item), ShutDown),
    "put shut down": (lambda item: shut_subqueue().put(item), ShutDown),
    "put_many shut down": (lambda item: shut_subqueue().put_many(iter([item])), ShutDown),
    "aput shut down": (lambda item: asyncio.run(shut_subqueue().aput(item)), ShutDown),
    "aput cancelled": (cancelled_aput, asyncio.CancelledError),
    "blocked put removed": (removed_while_blocked, ShutDown),
    "blocked put_many shut down": (shut_down_while_blocked, ShutDown),
    "selection fails": (selection_fails, LookupError),
    "selection returns junk": (lambda item: selection_returns(item, item), ValueError),
    "bad selection": (lambda item: MultiQueue(selection=item), (TypeError, ValueError)),
    "in fails": (lambda item: compared(lambda tail: tail.__contains__(0), item), LookupError),
    "discard fails": (lambda item: compared(lambda tail: tail.discard(0), item), LookupError),
    "add twice": (add_again, ValueError),
    "add bad weight": (lambda item: MultiQueue().add(item, weight=0), ValueError),
    "add bad priority": (lambda item: MultiQueue().add(item, priority=item), TypeError),
    "add bad maxsize": (lambda item: MultiQueue().setdefault(item, maxsize=item), TypeError),
    "remove unknown": (lambda item: MultiQueue().remove(item), KeyError),
    "getitem unknown": (lambda item: MultiQueue()[item], KeyError),
    "get bad timeout": (lambda item: MultiQueue().get(timeout=item), TypeError),
    "get_many bad count": (lambda item: MultiQueue().get_many(item), TypeError),
    "set priority": (lambda item: setattr(MultiQueue().add("a"), "priority", item), TypeError),
    "set weight": (lambda item: setattr(MultiQueue().add("a"), "weight", item), TypeError),
    "set maxsize": (lambda item: setattr(MultiQueue().add("a"), "maxsize", item), TypeError),
    "index put": (lambda item: IndexMultiQueue().add("a").put(item), TypeError),
    "index put_front": (lambda item: IndexMultiQueue().add("a").put_front(item), TypeError),
    "index put_many list": (lambda item: IndexMultiQueue().add("a").put_many([1, item]), TypeError),
    "index put_many iterator": (lambda item: IndexMultiQueue().add("a").put_many(iter([1, item])), TypeError),
    "index get_many_into": (lambda item: IndexMultiQueue().get_many_into(item), TypeError),
}


def fails(call, item, error):
    try:
        call(item)
    except error as caught:
        caught.__traceback__ = None
        return
    pytest.fail("raised nothing")


@collecting
@pytest.mark.parametrize(("call", "error"), ERRORS.values(), ids=ERRORS)
def test_an_error_path_leaks_no_reference_and_drops_none(call, error):
    """Counted: each run takes and releases the same number of references. Watched: the object is freed at the end, not
    before."""
    item = Item()
    ref = weakref.ref(item)
    fails(call, item, error)
    gc.collect()
    before = sys.getrefcount(item)
    for _ in range(20):
        fails(call, item, error)
    gc.collect()
    if GIL:  # without the GIL references of other threads are counted elsewhere, and later
        assert sys.getrefcount(item) == before
    assert ref() is item
    del item
    assert gone(ref)
