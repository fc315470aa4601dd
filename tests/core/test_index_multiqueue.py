"""What IndexMultiQueue adds to MultiQueue: raw 64-bit items, buffers in, arrays out, bulk calls without the GIL.

The `new` fixture tests everything else together with MultiQueue.
"""
import asyncio
import ctypes
import functools
import operator
import sys
import threading
from array import array
from queue import Empty, Full

import pytest
from support.queues import drain, get_many_into
from support.threads import DEADLINE, LONG, Threads, switching_often, wait_getters

from manytail import IndexMultiQueue, MultiQueue, ShutDown

LOWEST, HIGHEST = -(2**63), 2**63 - 1


@pytest.fixture
def numpy():
    return pytest.importorskip("numpy")


def queue_of(*items, **options):
    queue = IndexMultiQueue()
    tail = queue.add("a", **options)
    tail.put_many(items)
    return queue, tail


# ------------------------------------------------------------------------------------------------ single items
@pytest.mark.parametrize("item", [0, 1, -1, 255, 256, 2**31, 2**32, 2**53 + 1, LOWEST, HIGHEST])
def test_64_bit_integers_come_back_as_they_were(item):
    queue, tail = queue_of()
    tail.put(item)
    tail.put_nowait(item)
    tail.put_front(item)
    tail.put_many([item])
    tail.put_many(iter([item]))
    tail.put_many(array("q", [item]))
    assert queue.peek() == item
    assert type(queue.peek()) is int
    assert list(tail) == [item] * 6
    assert item in tail
    assert tail.discard(item)
    assert drain(queue) == [item] * 5


NO_INTEGERS = {OverflowError: [HIGHEST + 1, LOWEST - 1, 2**64, -(2**200)], TypeError: ["1", 1.0, None, [1], 1j]}


@pytest.mark.parametrize(("error", "item"), [(error, item) for error, items in NO_INTEGERS.items() for item in items])
def test_what_is_no_64_bit_integer_is_refused(error, item):
    queue, tail = queue_of()
    for put in (
        tail.put,
        tail.put_nowait,
        tail.put_front,
        lambda it: tail.put_many([it]),
        lambda it: tail.put_many(iter([it])),
        lambda it: asyncio.run(tail.aput(it)),
    ):
        with pytest.raises(error):
            put(item)
    assert queue.stats() == (0, 1, 1, 0, 0, 0, 0)


def test_a_coroutine_that_waits_asks_for_its_integer_once(numpy):
    """If it asked again after its wake-up and that raised, nobody else would be woken."""

    class Once:
        asked = False

        def __index__(self):
            assert not self.asked
            self.asked = True
            return 5

    async def main():
        queue, tail = queue_of(1)
        tail.maxsize = 1
        put = asyncio.ensure_future(tail.aput(Once()))
        while not queue.stats().putters_waiting:
            await asyncio.sleep(0)
        assert queue.get() == 1
        await put
        assert (await queue.aget_many(Once())).tolist() == [5]

    asyncio.run(main())


@pytest.mark.parametrize("bad", ["x", 2**63])
def test_a_bad_item_in_an_iterator_passes_through_and_what_came_before_is_in(bad):
    queue, tail = queue_of()
    with pytest.raises((TypeError, OverflowError)):
        tail.put_many(iter([1, 2, bad, 3]))
    assert drain(queue) == [1, 2]


def test_numpy_scalars_and_other_integers_are_integers(numpy):
    class Index:
        def __index__(self):
            return 42

    queue, tail = queue_of()
    tail.put(numpy.int64(7))
    tail.put(numpy.uint8(8))
    tail.put(True)
    tail.put(Index())
    assert numpy.int64(7) in tail
    assert drain(queue) == [7, 8, 1, 42]


def test_looking_for_what_cannot_be_in_finds_nothing():
    _, tail = queue_of(1, 2)
    for item in ("1", None, 2**70, -(2**64), 1.5, float("nan"), object()):
        assert item not in tail
        assert not tail.discard(item)
    assert 1.0 in tail  # compared by ==, as anywhere
    assert tail.discard(2.0)
    assert list(tail) == [1]


def test_an_eq_of_the_other_side_is_asked():
    class Two:
        def __eq__(self, other):
            return other == 2

        __hash__ = None

    _, tail = queue_of(1, 2, 3)
    assert Two() in tail
    assert tail.discard(Two())
    assert list(tail) == [1, 3]


# ------------------------------------------------------------------------------------------------ buffers in
def readonly(numpy, items):
    out = numpy.array(items, dtype=numpy.int64)
    out.flags.writeable = False
    return out


BUFFERS = {
    "array": lambda numpy, items: array("q", items),
    "memoryview": lambda numpy, items: memoryview(array("q", items)),
    "read-only memoryview": lambda numpy, items: memoryview(array("q", items).tobytes()).cast("q"),
    "numpy": lambda numpy, items: numpy.array(items, dtype=numpy.int64),
    "read-only numpy": readonly,
    "ctypes": lambda numpy, items: (ctypes.c_int64 * len(items))(*items),  # says nothing of its strides
}
SIZES = [0, 1, 61, 62, 63, 64, 65, 127, 128, 5000]


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
@pytest.mark.parametrize("n", SIZES)
def test_put_many_copies_a_buffer(numpy, make, n):
    items = [LOWEST + 3 * i if i % 2 else HIGHEST - i for i in range(n)]
    queue, tail = queue_of(-1)
    buffer = make(numpy, items)
    assert tail.put_many(buffer) == n
    assert tail.qsize() == n + 1
    assert drain(queue) == [-1, *items]


def test_the_buffer_is_copied_and_let_go(numpy):
    queue, tail = queue_of()
    source = numpy.arange(100)
    tail.put_many(source)
    source[:] = -1
    assert drain(queue) == list(range(100))
    items = array("q", range(10))
    tail.put_many(items)
    items.append(1)  # an exported buffer cannot be resized
    with pytest.raises(Full):
        queue.add("small", maxsize=3).put_many(items, block=False)
    items.append(2)


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
@pytest.mark.parametrize("maxsize", [1, 62, 63, 100])
def test_a_buffer_into_too_little_room_is_full_with_the_count(numpy, make, maxsize):
    queue = IndexMultiQueue()
    tail = queue.add("a", maxsize=maxsize)
    for how in ({"block": False}, {"timeout": 0}, {"timeout": 0.002}):
        with pytest.raises(Full) as full:
            tail.put_many(make(numpy, list(range(200))), **how)
        assert full.value.count == maxsize
        assert drain(queue) == list(range(maxsize))


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
def test_a_buffer_goes_in_as_room_comes(numpy, make):
    queue = IndexMultiQueue()
    tail = queue.add("a", maxsize=7)
    with Threads() as threads:
        putter = threads.start(tail.put_many, make(numpy, list(range(1000))))
        assert [queue.get(timeout=DEADLINE) for _ in range(1000)] == list(range(1000))
        assert putter.result() == 1000


OTHER_TYPES = {
    "array of int": lambda numpy: array("i", [1, 2]),
    "array of unsigned": lambda numpy: array("Q", [1, 2]),
    "array of double": lambda numpy: array("d", [1, 2]),
    "bytes": lambda numpy: b"12345678",
    "bytearray": lambda numpy: bytearray(8),
    "memoryview of bytes": lambda numpy: memoryview(b"12345678"),
    "int32": lambda numpy: numpy.arange(3, dtype=numpy.int32),
    "uint64": lambda numpy: numpy.arange(3, dtype=numpy.uint64),
    "float64": lambda numpy: numpy.arange(3, dtype=numpy.float64),
    "bool": lambda numpy: numpy.zeros(3, dtype=bool),
    "datetime": lambda numpy: numpy.zeros(3, dtype="datetime64[s]"),
    "big-endian": lambda numpy: numpy.arange(3, dtype=">i8" if sys.byteorder == "little" else "<i8"),
    "two dimensions": lambda numpy: numpy.zeros((2, 3), dtype=numpy.int64),
    "no dimension": lambda numpy: numpy.array(5, dtype=numpy.int64),
    "objects": lambda numpy: numpy.array([1, "x"], dtype=object),
    "every second": lambda numpy: numpy.arange(6)[::2],
    "reversed": lambda numpy: numpy.arange(3)[::-1],
    "a column": lambda numpy: numpy.zeros((3, 3), dtype=numpy.int64)[:, 1],
    "every second of a memoryview": lambda numpy: memoryview(array("q", range(6)))[::2],
}


@pytest.mark.parametrize("make", OTHER_TYPES.values(), ids=OTHER_TYPES)
def test_a_buffer_of_another_type_is_a_type_error_and_nothing_is_put(numpy, make):
    queue, tail = queue_of()
    with pytest.raises(TypeError):
        tail.put_many(make(numpy))
    assert queue.stats() == (0, 1, 1, 0, 0, 0, 0)


# ------------------------------------------------------------------------------------------------ arrays out
@pytest.mark.parametrize("n", SIZES[1:])
def test_get_many_returns_an_int64_array_of_its_own(numpy, n):
    queue, tail = queue_of()
    tail.put_many(range(n))
    taken = queue.get_many(n + 5)
    assert isinstance(taken, numpy.ndarray)
    assert taken.dtype == numpy.int64
    assert taken.ndim == 1
    assert taken.tolist() == list(range(n))
    taken[:] = -1
    tail.put_many(range(n))
    assert queue.get_many(1).tolist() == [0]


def test_get_many_asks_for_no_more_memory_than_there_are_items(numpy):
    queue, _ = queue_of(1, 2)
    assert queue.get_many(2**62).tolist() == [1, 2]


# ------------------------------------------------------------------------------------------------ get_many_into
INTO = {
    "array": lambda numpy, n: array("q", [-1] * n),
    "memoryview": lambda numpy, n: memoryview(array("q", [-1] * n)),
    "numpy": lambda numpy, n: numpy.full(n, -1),
    "ctypes": lambda numpy, n: (ctypes.c_int64 * n)(*[-1] * n),
}


@pytest.mark.parametrize("make", INTO.values(), ids=INTO)
@pytest.mark.parametrize("room", [1, 62, 63, 200])
def test_get_many_into_fills_what_it_is_given(numpy, make, room):
    queue, tail = queue_of(*range(100))
    out = make(numpy, room)
    n = min(room, 100)
    assert queue.get_many_into(out) == n
    assert [int(item) for item in out] == list(range(n)) + [-1] * (room - n)
    assert list(tail) == list(range(n, 100))
    assert queue.stats().got == n


def test_get_many_into_no_room_returns_zero_at_once(numpy):
    queue, _ = queue_of()
    assert queue.get_many_into(array("q")) == 0
    assert queue.get_many_into(numpy.empty(0, dtype=numpy.int64)) == 0


def test_get_many_into_waits_and_ends_as_get_does():
    queue, tail = queue_of()
    assert get_many_into(queue, 0) == []
    for wait in ({"block": False}, {"timeout": 0.001}):
        with pytest.raises(Empty):
            get_many_into(queue, 2, **wait)
    with pytest.raises(ValueError, match="timeout"):
        get_many_into(queue, 2, timeout=-1)
    with Threads() as threads:
        getter = threads.start(get_many_into, queue, 2, timeout=LONG)
        wait_getters(queue, 1)
        tail.put_many([7, 8, 9])
        assert getter.result() == [7, 8]
    queue.shutdown()
    assert get_many_into(queue, 2) == [9]
    with pytest.raises(ShutDown):
        get_many_into(queue, 2)


@pytest.mark.parametrize(
    "make",
    [
        *OTHER_TYPES.values(),
        lambda numpy: readonly(numpy, [1, 2]),
        lambda numpy: [1, 2],
        lambda numpy: None,
        lambda numpy: 3,
        lambda numpy: memoryview(array("q", [1]).tobytes()).cast("q"),
    ],
    ids=[*OTHER_TYPES, "read-only", "a list", "none", "an int", "read-only memoryview"],
)
def test_get_many_into_what_is_no_writable_int64_buffer_is_a_type_error(numpy, make):
    queue, tail = queue_of(1, 2, 3)
    with pytest.raises(TypeError):
        queue.get_many_into(make(numpy))
    assert list(tail) == [1, 2, 3]


def test_get_many_into_a_buffer_that_is_released_meanwhile_passes_its_wake_up_on():
    queue, tail = queue_of()
    out = memoryview(array("q", [0]))
    with Threads() as threads:
        first = threads.start(queue.get_many_into, out, timeout=LONG)
        wait_getters(queue, 1)
        other = threads.start(queue.get, timeout=LONG)
        wait_getters(queue, 2)
        out.release()
        tail.put(1)
        assert isinstance(first.outcome(), TypeError)
        assert other.result() == 1


@pytest.mark.parametrize("linger", [0.0, 0.001])
def test_get_many_of_the_base_class_returns_an_array_too(numpy, linger):
    queue, _ = queue_of(1, 2, 3)
    assert MultiQueue.get_many(queue, 5, linger=linger).tolist() == [1, 2, 3]


# ------------------------------------------------------------------------------------------------ without the GIL
def progress_during(call):
    """Whether another thread makes progress while this one is inside `call`.

    Both sides run inside `map` and `operator.call`, which evaluate no bytecode. This thread can lose the GIL only
    inside `call`. The other thread, once it has the GIL, appends before it can be asked to give it back. `sum` holds
    the GIL while the other thread wakes up and asks for it; if the machine is too busy for that, it is tried again. A
    call that keeps the GIL always fails.
    """
    for _ in range(20):
        lock, progress = threading.Lock(), []
        lock.acquire()

        def other(steps=(lock.acquire, functools.partial(progress.append, 1))):
            list(map(operator.call, steps))

        with Threads() as threads:
            threads.start(other)
            steps = (lock.release, functools.partial(sum, range(2_000_000)), call, progress.copy)
            if list(map(operator.call, steps))[-1]:
                return True
    return False


@pytest.mark.thread_unsafe(reason="sets the switch interval")
@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no GIL to release")
def test_bulk_calls_release_the_gil():
    queue = IndexMultiQueue()
    tail = queue.add("a")
    source = array("q", bytes(8 * 300_000))
    with switching_often():
        assert not progress_during(functools.partial(list, range(1_000_000))), "this way of looking sees nothing"
        assert progress_during(functools.partial(tail.put_many, source))
        for _ in range(20):         # enough for each time that progress_during may call
            tail.put_many(source)
        assert progress_during(functools.partial(queue.get_many_into, source))


def test_bulk_calls_of_many_threads_on_one_queue_lose_nothing(numpy):
    queue = IndexMultiQueue()
    tails = [queue.add(key, maxsize=1000 * key) for key in range(3)]
    per_thread = 60_000

    def put(n):
        items = numpy.arange(n * per_thread, (n + 1) * per_thread)
        for start in range(0, per_thread, 777):
            tails[n].put_many(items[start:start + 777])

    def get():
        taken = []
        out = numpy.empty(500, dtype=numpy.int64)
        while True:
            try:
                count = queue.get_many_into(out)
            except ShutDown:
                return taken
            taken.append(out[:count].copy())

    with Threads() as threads:
        getters = [threads.start(get) for _ in range(3)]
        putters = [threads.start(put, n) for n in range(3)]
        for putter in putters:
            putter.result()
        queue.shutdown()
        taken_by = [numpy.concatenate(getter.result() or [numpy.empty(0, dtype=numpy.int64)]) for getter in getters]
    for taken in taken_by:
        for n in range(3):
            mine = taken[taken // per_thread == n]
            assert (numpy.diff(mine) > 0).all()
    assert (numpy.sort(numpy.concatenate(taken_by)) == numpy.arange(3 * per_thread)).all()


def test_a_buffer_that_changes_while_it_is_put_is_harmless(numpy):
    """Another thread writes into the array that put_many copies without the GIL: each byte is the old or the new one.
    An item may be a mixture of both, because neither copy promises to move whole integers."""
    queue = IndexMultiQueue()
    tail = queue.add("a")
    source = numpy.zeros(500_000, dtype=numpy.int64)
    with Threads() as threads:
        putter = threads.start(tail.put_many, source)
        source[:] = HIGHEST
        assert putter.result() == 500_000
    got = queue.get_many(500_000)
    assert len(got) == 500_000
    assert set(numpy.unique(got.view(numpy.uint8)).tolist()) <= {0, *HIGHEST.to_bytes(8)}
