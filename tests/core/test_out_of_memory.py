"""A failing allocation: nothing is lost, nothing leaks, and a wake-up passes to the next waiter.

Each test repeats a call. First its first allocation fails, then its second, and so on until none does.

Where random allocations of a whole program failed instead, six crashes ended in CPython's own do_warn (_warnings.c),
which makes a warning. Nothing of ours is in them: a program that only leaves a file unclosed does not survive that
either.
"""
import asyncio
import gc
import sys
import weakref

import pytest

from manytail import Consumer, EntryQueue, IndexMultiQueue, MultiQueue
from manytail._sections import RunningItem
from manytail._sync import Event
from manytail._workpool import Dispatcher, Lane, WorkPool

_testcapi = pytest.importorskip("_testcapi", reason="this interpreter cannot fail allocations on demand")

pytestmark = [pytest.mark.out_of_memory, pytest.mark.thread_unsafe(reason="allocations of the whole process fail")]


@pytest.fixture
def numpy():
    return pytest.importorskip("numpy")


class Item:
    """An object that can be weakly referenced."""


def alive(references):
    """How many of them are not freed. Runs the collector where reference counts may be deferred."""
    if any(ref() is not None for ref in references):
        gc.collect()
    return sum(ref() is not None for ref in references)


def failing(call, number):
    """Call with allocation `number` failing: (True, result), or (False, items) after a MemoryError with these or None.

    tests/conftest.py calls the test in a forked child, so that the failing allocation is one of the test's own threads.
    """
    _testcapi.set_nomemory(number, number + 1)
    try:
        result = call()
    except MemoryError as error:
        return False, getattr(error, "items", None)
    finally:
        _testcapi.remove_mem_hooks()
    return True, result     # a tuple: made after the hooks are gone


ALLOCATIONS = 25  # more than any call here makes


def each_allocation(attempt, allocations=ALLOCATIONS):
    """Call attempt(number), which returns whether it succeeded, for each number. Returns how often it failed."""
    gc.disable()
    try:
        succeeded = [attempt(number) for number in range(allocations)]
    finally:
        gc.enable()
    assert succeeded[-1]
    return succeeded.count(False)


class Driven:
    """A coroutine that the test steps, in a loop that runs only when the test runs it."""

    def __init__(self, loop, coroutine):
        self.loop, self.coroutine = loop, coroutine
        self.future = self.step()

    def step(self):
        """To the future that it waits for. What it yields before, to let the loop run, is None."""
        asyncio._set_running_loop(self.loop)
        try:
            while (future := self.coroutine.send(None)) is None:
                continue
            return future
        finally:
            asyncio._set_running_loop(None)

    def result(self):
        """What the coroutine returns at its next step."""
        asyncio._set_running_loop(self.loop)
        try:
            self.coroutine.send(None)
        except StopIteration as done:
            return done.value
        finally:
            asyncio._set_running_loop(None)
        raise AssertionError("it waits")


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def turn(loop):
    asyncio._set_running_loop(None)  # a failed step may have left it set
    loop.call_soon(loop.stop)
    loop.run_forever()


SELECTIONS = {"round_robin": "round_robin", "chosen": lambda ready: ready[0]}
GETS = {
    "aget": lambda queue: queue.aget(),
    "aget_with_key": lambda queue: queue.aget_with_key(),
    "aget_many": lambda queue: queue.aget_many(5),
}


@pytest.mark.parametrize("selection", ["round_robin", "chosen"])
@pytest.mark.parametrize("kind", GETS)
def test_a_woken_get_that_fails_for_memory_passes_the_item_on(loop, kind, selection):
    queue = MultiQueue(selection=SELECTIONS[selection])
    tail = queue.add("a")

    def attempt(number):
        woken, other = Driven(loop, GETS[kind](queue)), Driven(loop, queue.aget())
        tail.put("item")
        turn(loop)
        assert (woken.future.done(), other.future.done()) == (True, False)
        done, _ = failing(woken.result, number)
        woken.coroutine.close()  # it has ended, unless an allocation of the test failed before it was resumed
        if not queue.empty():  # it failed before it took the item; the memory for its result may be missing too
            turn(loop)
            assert other.future.done()
        else:
            tail.put("item")
            turn(loop)
        assert other.result() == "item"
        return done

    assert each_allocation(attempt) > 0
    assert queue.empty()
    assert queue.stats().getters_waiting == 0


@pytest.mark.parametrize("selection", ["round_robin", "chosen"])
@pytest.mark.parametrize("call", ["get", "get_with_key", "get_many", "peek", "put", "put_many"])
def test_no_item_is_lost_or_leaked(call, selection):
    calls = {
        "get": lambda queue, tail, items: queue.get(timeout=0),
        "get_with_key": lambda queue, tail, items: queue.get_with_key(timeout=0),
        "get_many": lambda queue, tail, items: queue.get_many(9),
        "peek": lambda queue, tail, items: queue.peek(),
        "put": lambda queue, tail, items: tail.put(items[0]),
        "put_many": lambda queue, tail, items: tail.put_many(items),
    }

    def attempt(number):
        queue = MultiQueue(selection=SELECTIONS[selection])
        tail = queue.add("a")
        items = [Item() for _ in range(3)]
        refs = [weakref.ref(item) for item in items]
        if not call.startswith("put"):
            tail.put_many(items)
        inside = tail.qsize()
        done, result = failing(lambda: calls[call](queue, tail, items), number)
        taken = len(result or []) if call == "get_many" else call.startswith("get") and done
        if not done or not call.startswith("put"):
            assert tail.qsize() == inside - taken
        del result
        items.clear()
        tail.clear()
        assert alive(refs) == 0
        return done

    each_allocation(attempt)


def test_a_put_of_an_entry_that_fails_for_memory_puts_nothing():
    queue, other = EntryQueue(), EntryQueue()
    handles = [other.put(number) for number in range(300)]  # so that none comes from the list of free handles

    def attempt(number):
        before = queue.depth()
        done, _ = failing(lambda: queue.put("item"), number)
        assert queue.depth() == before + done
        return done

    assert each_allocation(attempt) > 0
    assert len(handles) == 300


@pytest.mark.parametrize("linger", [0.0, 1e-9])
@pytest.mark.parametrize("of", ["subscription", "consumer", "consumer's subscription"])
def test_a_get_many_of_entries_that_fails_for_memory_releases_them(of, linger):
    def attempt(number):
        queue = EntryQueue()
        queue.put_many([1, 2, 3])
        with Consumer() as consumer:
            subscription = queue.subscribe() if of == "subscription" else consumer.subscribe(queue)
            getter = consumer if of == "consumer" else subscription
            done, entries = failing(lambda: getter.get_many(3, linger=linger), number)
            assert (queue.qsize(), getter.unacked) == ((0, 3) if done else (3, 0))
            del entries
            subscription.close()
        return done

    assert each_allocation(attempt) > 0


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize(
    "call",
    [
        *("get", "get_nowait", "get_with_key", "get_many", "get_many_into"),
        *("get_many that lingers", "get_many_into that lingers"),
    ],
)
def test_no_integer_is_lost(call, selection, numpy):
    out = numpy.zeros(3, "int64")
    calls = {  # the call, and how many integers its result has
        "get": (lambda queue: queue.get(), lambda item: 1),
        "get_nowait": (lambda queue: queue.get_nowait(), lambda item: 1),
        "get_with_key": (lambda queue: queue.get_with_key(), lambda pair: 1),
        "get_many": (lambda queue: queue.get_many(3), len),
        "get_many_into": (lambda queue: queue.get_many_into(out), int),
        "get_many that lingers": (lambda queue: queue.get_many(3, linger=1e-9), len),
        "get_many_into that lingers": (lambda queue: queue.get_many_into(out, linger=1e-9), int),
    }
    take, count = calls[call]

    def attempt(number):
        queue = IndexMultiQueue(selection=SELECTIONS[selection])
        tail = queue.add("a")
        tail.put_many(range(10**6, 10**6 + 3))
        done, taken = failing(lambda: take(queue), number)
        gone = count(taken) if done else len(taken or [])
        assert list(tail) == [*range(10**6, 10**6 + 3)][gone:]
        return done

    each_allocation(attempt, 40)


def test_a_running_item_is_usable_after_a_watch_that_finds_no_memory():
    class Addressee:
        gone = auto_ack = False

    def attempt(number):
        running, addressee = RunningItem(), Addressee()
        running.begin((addressee, 1))
        ended = Event()
        done, _ = failing(lambda: running.watch(addressee, ended), number)
        running.end()
        assert ended.is_set() == done
        return done

    assert each_allocation(attempt) > 0


@pytest.mark.parametrize("new", [MultiQueue, IndexMultiQueue])
def test_an_immediate_shutdown_needs_no_memory_to_take_the_items_away(new):
    def attempt(number):
        queue = new()
        tails = [queue.add(key) for key in range(3)]
        for tail in tails:
            tail.put_many(range(10**6, 10**6 + 3))
        done, _ = failing(lambda: queue.shutdown(immediate=True), number)
        assert queue.is_shutdown == queue.join(0) == done
        assert [list(tail) for tail in tails] == [[] if done else [*range(10**6, 10**6 + 3)]] * 3
        return done

    each_allocation(attempt)


@pytest.mark.parametrize("length", [3, 200])
def test_an_iterator_that_fails_for_memory_leaks_nothing_and_skips_nothing(length):
    def attempt(number):
        tail = MultiQueue().add("a")
        items = [Item() for _ in range(length)]
        refs = [weakref.ref(item) for item in items]
        tail.put_many(items)
        walk = iter(tail)
        done, first = failing(lambda: next(walk), number)
        seen = ([first] if done else []) + list(walk)
        assert seen == items
        del first
        seen.clear()
        items.clear()
        tail.clear()
        assert alive(refs) == 0
        return done

    # From CPython 3.14 on the list may come from a free list.
    assert each_allocation(attempt) > 0 or sys.version_info >= (3, 14)


def test_a_worker_that_fails_for_memory_is_counted_out():
    def attempt(number):
        pool = WorkPool(lambda: None, 1)
        Lane(pool).submit(int).cancel()
        assert pool.workers == 1
        pool.end()
        done, _ = failing(pool.work, number)
        assert pool.workers == 0
        return done

    assert each_allocation(attempt) > 0


def test_a_worker_that_fails_for_memory_leaves_its_call_to_another():
    started = []

    def attempt(number):
        pool = WorkPool(lambda: started.append(pool), 1)
        lane = Lane(pool)
        lane.submit(int)
        pool.end()
        started.clear()
        done, _ = failing(pool.work, number)
        assert (pool.pending, pool.workers, len(started)) in ((0, 0, 0), (1, 1, 1))
        lane._drop()
        return done

    assert each_allocation(attempt) > 0


def test_a_block_of_a_lane_that_fails_for_memory_is_over():
    class Manual:
        def submit(self, task):
            tasks.append(task)

    tasks, seen = [], []
    lane = Dispatcher(Manual(), on_error=lambda item, error: None).lane(seen.append)

    def attempt(number):
        seen.clear()
        lane.add(number)
        serve = tasks.pop()
        done, _ = failing(serve, number)
        assert lane.running == 0
        lane._drop()
        return done

    each_allocation(attempt)
