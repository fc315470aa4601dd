"""put_many and get_many: what goes in, what `.count` says, how far an iterable is pulled, what a bulk get waits for."""
import asyncio
from collections import deque
from queue import Full

import pytest
from support.process import run_script
from support.queues import SealedError, as_list, drain, one_then
from support.threads import DEADLINE, LONG, Threads, wait_getters, wait_putters

from manytail import MultiQueue, ShutDown

SHAPES = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "generator": lambda items: (item for item in items),
    "range": lambda items: items,
    "deque": deque,
    "dict keys": dict.fromkeys,
    "map": lambda items: map(int, items),
}
SIZES = [0, 1, 2, 61, 62, 63, 124, 125, 1000]


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]


# ------------------------------------------------------------------------------------------------ put_many
@pytest.mark.parametrize("n", SIZES)
def test_put_many_puts_all_in_order_and_says_how_many(new, shape, n):
    queue = new()
    tail = queue.add("a")
    assert tail.put_many(shape(range(n))) == n
    assert tail.put_many(shape(range(n, 2 * n))) == n
    assert (queue.qsize(), queue.stats().put) == (2 * n, 2 * n)
    assert drain(queue) == list(range(2 * n))


@pytest.mark.parametrize("junk", [3, None, 1.5, object()])
def test_put_many_of_what_is_not_iterable_is_a_type_error(new, junk):
    queue = new()
    tail = queue.add("a")
    with pytest.raises(TypeError):
        tail.put_many(junk)
    assert queue.stats() == (0, 1, 1, 0, 0, 0, 0)


@pytest.mark.parametrize("maxsize", [1, 3, 62, 100])
@pytest.mark.parametrize("there", [0, 1])
@pytest.mark.parametrize("how", [{"block": False}, {"timeout": 0}, {"timeout": 0.002}], ids=str)
def test_put_many_into_too_little_room_is_full_with_the_count_and_those_stay_in(new, shape, maxsize, there, how):
    queue = new()
    tail = queue.add("a", maxsize=maxsize)
    tail.put_many([-1] * there)
    with pytest.raises(Full) as full:
        tail.put_many(shape(range(200)), **how)
    assert full.value.count == maxsize - there
    assert queue.qsize() == maxsize
    assert drain(queue) == [-1] * there + list(range(maxsize - there))


def test_put_many_blocks_for_the_rest_and_goes_on_as_room_comes(new, shape):
    queue = new()
    tail = queue.add("a", maxsize=3)
    with Threads() as threads:
        putter = threads.start(tail.put_many, shape(range(500)), timeout=LONG)
        assert [queue.get(timeout=DEADLINE) for _ in range(500)] == list(range(500))
        assert putter.result() == 500
    assert queue.stats().put == 500


def test_at_most_one_item_is_pulled_beyond_those_put(new):
    queue = new()
    tail = queue.add("a", maxsize=3)
    pulled = []

    def items():
        for item in range(10):
            assert tail.qsize() == item, "the ones before it are in by now"
            pulled.append(item)
            yield item

    with pytest.raises(Full) as full:
        tail.put_many(items(), block=False)
    assert full.value.count == 3
    assert pulled in ([0, 1, 2], [0, 1, 2, 3])


def test_a_full_raised_by_the_iterable_is_its_own(new):
    tail = new().add("a")
    with pytest.raises(Full, match="mine"):
        tail.put_many(one_then(Full("mine")))
    assert list(tail) == [1]


def test_an_exception_of_the_iterable_that_refuses_attributes_passes_through(new):
    tail = new().add("a")
    with pytest.raises(SealedError, match="mine"):
        tail.put_many(one_then(SealedError("mine")))
    assert list(tail) == [1]


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


@pytest.mark.parametrize("how", [{"block": False}, {"timeout": 0}, {"timeout": 1e-9}])
def test_put_many_uses_room_that_gets_have_made(new, how):
    """A putter keeps a copy of how many items have left. It looks again before it says that there is no room."""
    queue = new()
    tail = queue.add("a", maxsize=2)
    tail.put(1)
    assert queue.get() == 1
    assert tail.put_many([2, 3], **how) == 2


@pytest.mark.parametrize(
    "end", [lambda queue: queue.shutdown(), lambda queue: queue.remove("a")], ids=["shutdown", "remove"]
)
def test_put_many_that_waits_is_woken_by_shutdown_with_the_count(new, shape, end):
    queue = new()
    tail = queue.add("a", maxsize=4)
    with Threads() as threads:
        putter = threads.start(tail.put_many, shape(range(10)))
        wait_putters(queue, 1)
        end(queue)
        error = putter.outcome()
    assert isinstance(error, ShutDown)
    assert error.count == 4
    assert list(tail) == [0, 1, 2, 3]


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


@pytest.mark.parametrize("n", SIZES[1:])
@pytest.mark.parametrize("max_items", [1, 62, 63, 10**6, 2**62])
def test_get_many_takes_what_is_there_up_to_max_items(new_bulk, n, max_items):
    queue = new_bulk()
    tail = queue.add("a")
    tail.put_many(range(n))
    assert as_list(queue.get_many(max_items)) == list(range(min(n, max_items)))
    assert list(tail) == list(range(min(n, max_items), n))
    assert queue.stats().got == min(n, max_items)


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
        getter = threads.start(queue.get_many, 5)
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
