"""What a queue refers to and frees: weak references, cycles, deep nests, and exact reference counts on error paths."""
import asyncio
import gc
import sys
import tracemalloc
import weakref
from queue import Empty, Full

import pytest
from support.counts import part
from support.process import run_script
from support.queues import drain
from support.threads import LONG, Threads, wait_getters, wait_putters

from manytail import IndexMultiQueue, MultiQueue, ShutDown

GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
collecting = pytest.mark.thread_unsafe(reason="counts references and objects of the whole process")


class Item:
    """An object that can be weakly referenced."""


def gone(reference):
    """Whether the referent is freed. Runs the collector where reference counts may be deferred."""
    if reference() is not None:
        gc.collect()
    return reference() is None


# ------------------------------------------------------------------------------------------------ weak references
def test_queues_and_tails_can_be_weakly_referenced(new):
    queue = new()
    tail = queue.add("a")
    refs = weakref.ref(queue), weakref.ref(tail)
    assert refs[0]() is queue
    assert refs[1]() is tail
    weakref.WeakSet([queue, tail])
    del queue, tail
    assert gone(refs[0])
    assert gone(refs[1])


def test_a_handle_keeps_working_while_its_queue_has_no_other_reference(new):
    tail = new().add("a")
    tail.put(1)
    assert list(tail) == [1]
    tail.put_front(0)
    assert tail.qsize() == 2
    assert tail.attached


def test_the_queue_keeps_its_handles(new):
    queue = new()
    ref = weakref.ref(queue.add("a"))
    gc.collect()
    assert ref() is queue["a"]


@pytest.mark.parametrize(
    "release", ["get", "get_with_key", "get_many", "discard", "clear", "remove", "shutdown", "drop"]
)
def test_items_are_released(release):
    queue = MultiQueue()
    tail = queue.add("a")
    item = Item()
    ref = weakref.ref(item)
    tail.put(item)
    if release == "discard":
        assert tail.discard(item)
    elif release == "clear":
        tail.clear()
    elif release == "remove":
        queue.remove("a")
        assert not gone(ref) or item
        del tail
    elif release == "shutdown":
        queue.shutdown(immediate=True)
    elif release == "drop":
        del queue, tail
    elif release == "get_many":
        queue.get_many(1)
    else:
        getattr(queue, release)()
    del item
    assert gone(ref)


def test_keys_are_released():
    class Key:
        pass

    queue = MultiQueue()
    key = Key()
    ref = weakref.ref(key)
    queue.add(key).put(1)
    queue.get_with_key()
    queue.remove(key)
    del key
    assert gone(ref)


def test_a_selection_is_released_with_its_queue():
    def selection(ready):
        return ready[0]

    ref = weakref.ref(selection)
    queue = MultiQueue(selection=selection)
    queue.add("a").put(1)
    queue.get()
    del selection
    assert ref() is not None
    del queue
    assert gone(ref)


def test_what_was_taken_during_an_iteration_is_released():
    queue = MultiQueue()
    tail = queue.add("a")
    items = [Item() for _ in range(300)]
    refs = [weakref.ref(item) for item in items]
    tail.put_many(items)
    walk = iter(tail)
    next(walk)
    drain(queue)
    del items
    next(walk, None)
    gc.collect()
    assert sum(ref() is not None for ref in refs) <= 64  # the iterator may hold one node in advance
    del walk
    assert all(gone(ref) for ref in refs)


@pytest.mark.rss
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the resident set from /proc")
@pytest.mark.parametrize("options", ["", "maxsize=100_000"])
def test_a_short_sub_queue_stays_small_however_many_items_pass_through_it(options):
    grown = int(run_script(f"""
import os
from manytail import MultiQueue
queue, items = MultiQueue(), [None] * 50
tails = [queue.add(key, {options}) for key in range(2_000)]
def pass_through(times):
    for tail in tails:
        for _ in range(times):
            tail.put_many(items)
            assert len(queue.get_many(50)) == 50
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
print(-pass_through(10) + pass_through(100))
"""))
    assert grown < 2_000 * 2_000, f"{grown // 2_000} bytes for each sub-queue"


# ------------------------------------------------------------------------------------------------ cycles
def through_item():
    queue = MultiQueue()
    queue.add("a").put(queue)
    return queue


def through_handle():
    queue = MultiQueue()
    tail = queue.add("a")
    tail.put(tail)
    return queue


def through_key():
    class Key:
        pass

    queue, key = MultiQueue(), Key()
    queue.add(key)
    key.queue = queue
    return queue


def through_selection():
    def selection(ready):
        return holder[0]

    holder = []
    queue = MultiQueue(selection=selection)
    holder.append(queue.add("a"))
    return queue


class Picky(MultiQueue):
    """Its selection is its own bound method: only the queue can release it."""

    def __init__(self):
        super().__init__(selection=self.pick)

    def pick(self, ready):
        return ready[0]


def through_its_own_method():
    queue = Picky()
    queue.add("a").put(1)
    assert queue.get() == 1
    return queue


def through_its_own_method_as_key():
    class Keyed(MultiQueue):
        def note(self):
            pass

    queue = Keyed()
    queue.add(queue.note).put(1)
    return queue


def through_a_dead_iterator():
    tail = MultiQueue().add("a")
    tail.put_many(range(100))
    walk = iter(tail)
    next(walk)
    holder = [walk]
    holder.append(holder)
    tail.put(holder)
    return tail


def through_a_closure():
    def selection(ready):
        assert queue
        return ready[0]

    queue = MultiQueue(selection=selection)
    return queue


def through_a_detached_handle():
    queue = MultiQueue()
    tail = queue.add("a")
    tail.put([queue, tail])
    queue.remove("a")
    return queue


def through_the_view():
    queue = MultiQueue()
    queue.add("a").put(queue.subqueues)
    return queue


def through_an_iterator():
    queue = MultiQueue()
    tail = queue.add("a")
    tail.put_many([1, 2])
    walk = iter(tail)
    next(walk)
    tail.put(walk)
    return queue


def through_a_coroutine_that_lingers(new=MultiQueue):
    """The coroutine holds the item, which leads back to it."""
    queue, item, loop = new(), Item(), asyncio.new_event_loop()
    queue.add("a").put(item if new is MultiQueue else 1)
    coroutine = queue.aget_many(5, linger=LONG)
    item.way_back = queue, coroutine
    asyncio._set_running_loop(loop)
    try:
        while coroutine.send(None) is None:  # it lets the loop run
            continue
    finally:
        asyncio._set_running_loop(None)
    loop.close()
    return queue


def through_an_index_queues_coroutine_that_lingers():
    return through_a_coroutine_that_lingers(IndexMultiQueue)


def through_many_items():
    queue = MultiQueue()
    for key in range(3):
        tail = queue.add(key, enabled=key != 1, priority=key)
        tail.put_many([[queue]] * 200)
        tail.put_front((queue, tail))
    for _ in range(100):
        queue.get()
    return queue


def through_an_index_queues_key():
    class Key:
        pass

    queue, key = IndexMultiQueue(), Key()
    queue.add(key).put(1)
    key.queue = queue
    return queue


CYCLES = [
    through_item,
    through_handle,
    through_key,
    through_selection,
    through_its_own_method,
    through_its_own_method_as_key,
    through_a_dead_iterator,
    through_a_closure,
    through_a_detached_handle,
    through_the_view,
    through_an_iterator,
    through_a_coroutine_that_lingers,
    through_an_index_queues_coroutine_that_lingers,
    through_many_items,
    through_an_index_queues_key,
]


@collecting
@pytest.mark.parametrize("make", CYCLES, ids=lambda make: make.__name__)
def test_a_cycle_is_collected(make):
    refs = [weakref.ref(make()) for _ in range(3)]
    gc.collect()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


@collecting
@pytest.mark.parametrize("make", CYCLES, ids=lambda make: make.__name__)
def test_nothing_of_a_cycle_stays(make):
    """The collector clears weak references before it breaks a cycle. Only the list of tracked objects shows whether
    they are gone."""
    kinds = MultiQueue, type(MultiQueue().add("a")), type(iter(MultiQueue().add("a")))

    def tracked():
        gc.collect()
        gc.collect()
        return sum(isinstance(it, kinds) for it in gc.get_objects())

    make()
    before = tracked()
    for _ in range(3):
        make()
    assert tracked() == before


LEAK = """
import gc, tracemalloc
from manytail import MultiQueue

def dead_iterator():
    tail = MultiQueue().add("a")
    tail.put_many([None] * 100)
    walk = iter(tail)
    next(walk)
    dead = [walk]
    dead.append(dead)
    tail.clear()        # the iterator's pin alone keeps the chunk

def resident():
    with open("/proc/self/statm") as figures:
        return int(figures.read().split()[1])

for _ in range(200):
    dead_iterator()
gc.collect()
before = resident()
for _ in range(20_000):
    dead_iterator()
    if _ % 500 == 0:
        gc.collect()
gc.collect()
print("grew by", resident() - before, "pages")
assert resident() - before < 2_000      # 20,000 chunks of 2 kB each are 10,000 pages
"""


@pytest.mark.rss
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_an_iterator_in_a_dead_cycle_gives_its_chunk_back():
    run_script(LEAK)


@collecting
@pytest.mark.parametrize("wait", ["aget", "ajoin", "aput"])
def test_a_queue_that_only_a_dead_loop_waits_for_is_collected(new, wait):
    """Task, coroutine, queue, waiter, loop, future, task: a cycle through the wait list."""
    def abandon():
        queue = new()
        tail = queue.add("a", maxsize=1, enabled=False)
        tail.put(1)
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # ignores "Task was destroyed but it is pending!"
        task = loop.create_task(tail.aput(2) if wait == "aput" else getattr(queue, wait)())
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))
        assert not task.done()
        loop.close()
        return weakref.ref(queue), weakref.ref(tail), weakref.ref(task)

    refs = abandon()
    gc.collect()
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


@collecting
def test_items_are_visible_to_the_collector():
    queue = MultiQueue()
    tail, hidden = queue.add("a"), queue.add("b", enabled=False)
    items = [Item() for _ in range(150)]
    tail.put_many(items[:100])
    hidden.put_many(items[100:])
    seen = set()
    todo = [queue]
    while todo:
        for it in gc.get_referents(todo.pop()):
            if id(it) not in seen and type(it) is not type:
                seen.add(id(it))
                if not isinstance(it, Item):
                    todo.append(it)
    assert {id(item) for item in items} <= seen


@collecting
def test_collecting_while_threads_put_and_get():
    queue = MultiQueue()
    tails = [queue.add(key, maxsize=50) for key in range(3)]
    total = 3000

    def put_all(tail):
        for item in range(total):
            tail.put([item, queue])

    def get_all():
        return sum(queue.get()[0] for _ in range(total))

    with Threads() as threads:
        getters = [threads.start(get_all) for _ in range(3)]
        for tail in tails:
            threads.start(put_all, tail)
        for _ in range(30):         # a bounded number: without the GIL each collection stops the threads
            gc.collect()
        assert sum(getter.result() for getter in getters) == 3 * sum(range(total))


NEST = f"""
import gc, sys, threading
from manytail import MultiQueue

def nest(depth):
    inner = None
    for _ in range(depth):
        queue = MultiQueue()
        queue.add(0).put(inner)
        inner = queue
    return inner

def build_and_drop():
    nest({part(200_000)})

def build_and_collect():
    outer = nest({part(200_000)})
    outer[0].put(outer)
    del outer
    gc.collect()

def build_and_clear():
    outer = nest({part(200_000)})
    assert outer[0].clear() == 1

for run in (build_and_drop, build_and_collect, build_and_clear):
    run()
# CPython 3.13 lets 10,000 deallocations nest whatever the stack is: there nested lists overflow 256 KiB too. Without
# optimisation (MANYTAIL_DEBUG) the frames of these need 4.5 MiB, with it less than 2.
threading.stack_size((8192 if sys.version_info[:2] == (3, 13) else 256) * 1024)
for run in (build_and_drop, build_and_collect, build_and_clear):
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
print("done")
"""


def test_queues_nested_deep_in_one_another():
    assert run_script(NEST) == "done\n"


HANDLES = """
import gc
from manytail import MultiQueue

inner = None
for _ in range(200_000):
    queue = MultiQueue()
    tail = queue.add(0)
    tail.put(inner)
    queue.remove(0)
    inner = tail
del inner, tail, queue
gc.collect()
print("done")
"""


def test_200_000_detached_handles_in_one_another():
    assert run_script(HANDLES) == "done\n"


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


@collecting
def test_a_get_that_fails_leaves_the_references_of_the_items(new):
    queue = new(selection=boom)
    tail = queue.add("a")
    item = 10**12 + 7
    tail.put(item)
    before = sys.getrefcount(item)
    for _ in range(50):
        with pytest.raises(LookupError):
            queue.get()
        with pytest.raises(LookupError):
            queue.peek()
    gc.collect()
    assert sys.getrefcount(item) == before


@collecting
def test_waits_that_end_in_errors_leave_no_memory_behind():
    """After many timeouts, cancellations and shutdowns the process holds as much memory as before."""
    def run():
        queue, tail = full_tail(enabled=False)
        for call in (
            lambda: queue.get(timeout=0.0001),
            lambda: tail.put(1, timeout=0.0001),
            lambda: queue.get_many(3, timeout=0.0001),
        ):
            with pytest.raises((Empty, Full)):
                call()
        with Threads() as threads:
            getter = threads.start(queue.get)
            wait_getters(queue, 1)
            queue.shutdown()
            assert isinstance(getter.outcome(), ShutDown)

    for _ in range(20):
        run()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        for _ in range(100):
            run()
        gc.collect()
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # tracemalloc attributes allocations of compiled code to the Python line that called it, one of this file. A leak is
    # a block per run; a few more blocks are the interpreter's own.
    grown = [
        entry
        for entry in after.compare_to(before, "filename")
        if entry.traceback[0].filename == __file__ and entry.count_diff >= 100
    ]
    assert not grown


RSS = """
import resource, sys
from manytail import IndexMultiQueue, MultiQueue, ShutDown
from queue import Empty, Full

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def use(cls):
    queue = cls(selection="weighted")
    tails = [queue.add(key, maxsize=300, priority=key % 2) for key in range(5)]
    for tail in tails:
        tail.put_many(range(100))
        tail.put_many(iter(range(100)))
        for item in range(50):
            tail.put_front(item)
        try:
            tail.put_many(range(100), block=False)
        except Full:
            pass
        tail.discard(70)
        list(tail)
        5 in tail
    for _ in range(300):
        queue.get()
    tails[0].clear()
    queue.remove(1)
    tails[2].priority = 7
    while True:
        try:
            queue.get_nowait()
        except Empty:
            break
    tails[3].put_many(range(200))
    queue.shutdown(immediate=True)
    try:
        tails[3].put(1)
    except ShutDown:
        pass

for cls in (MultiQueue, IndexMultiQueue):
    for _ in range(300):
        use(cls)
    before = rss()
    for _ in range(2000):
        use(cls)
    grown = rss() - before
    assert grown < 4_000_000, f"{cls.__name__}: {grown} bytes more after 2000 rounds"
print("done")
"""


@pytest.mark.rss
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
def test_the_process_does_not_grow():
    assert run_script(RSS) == "done\n"


@pytest.mark.rss
def test_one_queue_in_long_use_does_not_grow():
    script = RSS[: RSS.index("def use")] + """
queue = MultiQueue()
tail = queue.add("a")
def rounds(n):
    for _ in range(n):
        tail.put_many(range(100))
        tail.put_front(1)
        for _ in range(101):
            queue.get()
rounds(500)
before = rss()
rounds(20_000)
assert rss() - before < 4_000_000, rss() - before
print("done")
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc/self/statm")
    assert run_script(script) == "done\n"


def test_a_blocked_getter_keeps_its_queue(new):
    queue = new()
    tail = queue.add("a")
    with Threads() as threads:
        getter = threads.start(queue.get, timeout=LONG)
        wait_getters(queue, 1)
        del queue
        gc.collect()
        tail.put(1)
        assert getter.result() == 1
