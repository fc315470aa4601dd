"""put_many of a multi-queue beside generators and loops that use it, and get_many.

tests/contract/test_bulk.py has what holds of put_many for every structure.
"""
import asyncio
from queue import Full

import pytest
from support.process import run_script
from support.queues import as_list, drain
from support.threads import Threads, wait_getters

from manytail import MultiQueue, ShutDown

# ------------------------------------------------------------------------------------------------ put_many


def test_a_generator_may_use_the_queue_it_is_put_into(new):
    queue = new()
    tail, other = queue.add("a"), queue.add("b", priority=-1)

    def items():
        for item in range(0, 100, 2):
            yield item
            assert tail.qsize() == 1
            tail.put(item + 1)
            other.put_many([-1, -2])
            assert [queue.get(), queue.get()] == [-1, -2]
            assert queue.get() == item
            assert tail.discard(item + 1)
            tail.enabled = False
            tail.enabled = True

    assert tail.put_many(items()) == 50
    assert queue.qsize() == 0


def test_put_many_of_itself_ends_and_keeps_the_counts(new):
    queue = new()
    tail = queue.add("a", maxsize=20)
    tail.put_many(range(3))
    try:
        count = tail.put_many(tail, block=False)  # weakly consistent: it may see what it puts
    except Full as full:
        count = full.count
    items = list(tail)
    assert tail.qsize() == queue.qsize() == len(items) == 3 + count <= 20
    assert items == [0, 1, 2] * (len(items) // 3) + [0, 1, 2][: len(items) % 3]


def test_a_generator_that_removes_its_tail(new):
    queue = new()
    tail = queue.add("a")

    def items():
        yield 1
        queue.remove("a")
        yield 2

    with pytest.raises(ShutDown) as error:
        tail.put_many(items())
    assert error.value.count == 1
    assert list(tail) == [1]
    assert queue.qsize() == 0


CHANGING_LIST = """
import asyncio, threading
from manytail import MultiQueue

class Loop(asyncio.SelectorEventLoop):
    def call_soon_threadsafe(self, *args, **options):
        items.clear()                       # the caller is in the middle of put_many(items)
        return super().call_soon_threadsafe(*args, **options)

for n in (1, 6, 100, 10_000):
    items = [object() for _ in range(n)]
    kept = list(items)
    queue = MultiQueue()
    tail = queue.add("a", maxsize=5)
    loop = Loop()
    task = loop.create_task(queue.aget())
    loop.run_until_complete(asyncio.sleep(0))
    end = object()
    def put():
        tail.put_many(items)
        tail.put(end)
    putter = threading.Thread(target=put)
    putter.start()
    taken = []
    while end not in taken:
        taken.append(queue.get())
    putter.join()
    taken.pop()
    assert all(a is b for a, b in zip(taken, kept)), "not what was in the list"
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    asyncio.SelectorEventLoop.close(loop)
print("done")
"""


def test_a_list_that_is_changed_while_it_is_put_is_harmless():
    """Waking a coroutine runs code of its loop, which may change the list that put_many is putting."""
    assert run_script(CHANGING_LIST) == "done\n"


@pytest.mark.parametrize("sizer", [None, abs], ids=["plain", "sized"])
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_subclass_of_list_or_tuple_is_put_as_it_iterates(new, kind, sizer):
    """Its own length is not asked for: one that is too large would read past the end of the array."""

    class Mine(kind):
        def __len__(self):
            return 1

    class Doubling(Mine):
        def __iter__(self):
            return (2 * item for item in super().__iter__())

    queue = new()
    tail = queue.add("a", sizer=sizer if new is MultiQueue else None)
    assert tail.put_many(Mine([1, 2, 3])) == 3
    assert tail.put_many(Doubling([4, 5])) == 2
    assert drain(queue) == [1, 2, 3, 8, 10]


# ------------------------------------------------------------------------------------------------ get_many


@pytest.mark.parametrize("max_items", [None, "3", 1.5])
def test_get_many_of_no_int_is_a_type_error_that_names_it(new_bulk, max_items):
    queue = new_bulk()
    queue.add("a").put(1)
    with pytest.raises(TypeError, match="max_items"):
        queue.get_many(max_items)
    with pytest.raises(TypeError, match="max_items"):
        asyncio.run(queue.aget_many(max_items))
    assert queue.qsize() == 1


def test_aget_many_calls_no_method_that_a_subclass_overrides(new_bulk):
    class Overriding(new_bulk):
        def get_many(self, max_items, block=True, timeout=None, *, linger=0.0):
            return "overridden"

    queue = Overriding()
    queue.add("a").put(1)
    assert as_list(asyncio.run(queue.aget_many(1))) == [1]


def test_get_many_that_waits_takes_a_whole_chain(new_bulk):
    queue = new_bulk()
    tail = queue.add("a")
    with Threads() as threads:
        getter = threads.start(queue.get_many, 2**62)
        wait_getters(queue, 1)
        tail.put_many([1, 2, 3])
        assert as_list(getter.result()) == [1, 2, 3]


def test_get_many_passes_its_wake_up_on_when_it_leaves_items(new_bulk):
    queue = new_bulk()
    tail = queue.add("a")
    with Threads() as threads:
        getters = [threads.start(queue.get_many, 2) for _ in range(3)]
        wait_getters(queue, 3)
        tail.put_many([1, 2, 3, 4, 5, 6])
        taken = sorted(item for getter in getters for item in as_list(getter.result()))
    assert taken == [1, 2, 3, 4, 5, 6]
