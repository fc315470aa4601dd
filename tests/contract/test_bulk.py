"""put_many of every structure: what goes in, what `.count` says, how far an iterable is pulled, what it waits for."""
import itertools
from collections import deque
from queue import Full

import pytest
from support.queues import Sealed, SealedError, one_then
from support.threads import DEADLINE, LONG, Threads, wait_asleep

from manytail import ShutDown

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
WAYS = [{"block": False}, {"timeout": 0}, {"timeout": 0.002}]

pytestmark = pytest.mark.thread_unsafe(reason="starts threads and looks at their state")


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]


def test_it_puts_all_in_order_and_says_how_many(structure, shape):
    for n in SIZES:
        on = structure()
        assert on.put_many(shape(range(n))) == n
        assert on.put_many(shape(range(n, 2 * n))) == n
        assert on.inside() == 2 * n
        assert on.drain() == list(range(2 * n))


@pytest.mark.parametrize("junk", [3, None, 1.5, object()])
def test_what_is_not_iterable_is_a_type_error(structure, junk):
    on = structure()
    with pytest.raises(TypeError):
        on.put_many(junk)
    assert on.inside() == 0


def test_too_little_room_is_full_with_the_count_and_those_stay_in(structure, shape):
    for maxsize, there, way in itertools.product([1, 3, 62, 100], [0, 1], WAYS):
        on = structure(maxsize=maxsize)
        on.put_many([-1] * there)
        with pytest.raises(Full) as full:
            on.put_many(shape(range(200)), **way)
        assert full.value.count == maxsize - there
        assert on.inside() == maxsize
        assert on.drain() == [-1] * there + list(range(maxsize - there))


def test_it_blocks_for_the_rest_and_goes_on_as_room_comes(structure, shape):
    on = structure(maxsize=3)
    with Threads() as threads:
        putter = threads.start(on.put_many, shape(range(500)), timeout=LONG)
        assert [on.get(timeout=DEADLINE) for _ in range(500)] == list(range(500))
        assert putter.result() == 500


def test_at_most_one_item_is_pulled_beyond_those_put(structure):
    on, pulled = structure(maxsize=3), []

    def items():
        for item in range(10):
            assert on.inside() == item, "the ones before it are in by now"
            pulled.append(item)
            yield item

    with pytest.raises(Full) as full:
        on.put_many(items(), block=False)
    assert full.value.count == 3
    assert pulled in ([0, 1, 2], [0, 1, 2, 3])


OF_ITERABLES = {
    "an error": (lambda: LookupError("mine"), None),
    "Full": (lambda: Full("mine"), 1),
    "Ctrl-C": (KeyboardInterrupt, 1),
    "Ctrl-C, sealed": (Sealed, None),
    "an error, sealed": (SealedError, None),
}


@pytest.mark.parametrize(("make", "count"), OF_ITERABLES.values(), ids=OF_ITERABLES)
def test_an_exception_of_the_iterable_passes_through(structure, make, count):
    """An interruption, or a Full, says how many went in, unless it refuses attributes."""
    on, error = structure(), make()
    with pytest.raises(type(error)) as stopped:
        on.put_many(one_then(error))
    assert stopped.value is error
    assert getattr(error, "count", None) == count
    assert on.drain() == [1]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_it_wakes_as_many_getters_as_it_has_items_for(structure, n):
    on = structure()
    with Threads() as threads:
        getters = [threads.start(on.get, timeout=LONG) for _ in range(n)]
        wait_asleep(*getters)
        assert on.put_many(list(range(n))) == n
        assert sorted(getter.result() for getter in getters) == list(range(n))


@pytest.mark.parametrize("way", [{"block": False}, {"timeout": 0}, {"timeout": 1e-9}])
def test_it_uses_room_that_gets_have_made(structure, way):
    """A putter keeps a copy of how many items have left. It looks again before it says that there is no room."""
    on = structure(maxsize=2)
    on.put(1)
    assert on.get() == 1
    assert on.put_many([2, 3], **way) == 2


def test_a_shutdown_wakes_it_with_the_count(structure, shape):
    on = structure(maxsize=4)
    with Threads() as threads:
        putter = threads.start(on.put_many, shape(range(10)))
        wait_asleep(putter)
        on.shutdown()
        error = putter.outcome()
    assert isinstance(error, ShutDown)
    assert error.count == 4
    with pytest.raises(ShutDown) as ended:
        on.put_many(shape(range(5)))
    assert ended.value.count == 0
    assert on.drain() == [0, 1, 2, 3]
