"""How many items are in flight while they and their results are large."""

from sys import getsizeof

import pytest

from manytail._maps.engine.item import Item
from manytail._maps.engine.window import WAITING_BYTES, Window, weight_of

MB = 1_000_000


def filled(items, size):
    """A window in which so many items of that size have arrived."""
    window = Window(None, 4)
    kept = [Item(number) for number in range(items)]
    window.arrived = items
    for item in kept:
        window.weigh(item, bytearray(size))
    return window, kept


def test_a_window_does_not_grow_while_what_is_in_flight_is_large():
    window, items = filled(16, WAITING_BYTES // 16)
    window.grow()
    assert (window.size, window.read_limit(0)) == (16, 16)
    window.left(items[0])
    window.taken += 1
    window.grow()
    assert (window.size, window.read_limit(0)) == (32, 32)


def test_a_window_that_has_grown_takes_no_more_items_to_be_called_than_at_first():
    window, _ = filled(16, 10)
    window.grow()
    assert [window.read_limit(to_run) for to_run in (0, 10, 16, 20)] == [32, 22, 16, 16]
    assert window.is_full
    assert window.read_limit(0) == 32
    assert not window.is_full


def test_a_large_window_takes_no_more_while_what_is_in_flight_is_large():
    window, items = filled(32, 10 * MB)
    window.size = 64
    assert window.read_limit(0) == 32
    for item in items[:20]:
        window.left(item)
    window.taken = 20
    assert window.read_limit(0) == 48


class Large:
    nbytes = 25 * MB


class Odd:
    nbytes = "many"

    def __sizeof__(self):
        raise ValueError


@pytest.mark.parametrize(("value", "size"), [(Large(), 25 * MB), (Odd(), 0), ([0] * 9, getsizeof([0] * 9))])
def test_the_weight_of_a_value(value, size):
    assert weight_of(value) == size


def test_a_window_with_a_size_of_its_own_weighs_nothing():
    assert not Window(5, 4).weighs
