"""Which call is next, as far as keys, weights and priorities say."""

import math

import pytest

from manytail._maps.engine.item import Item
from manytail._maps.engine.lanes import Lanes


def admitted(lanes, *items):
    """items: (key, priority), numbered from 0."""
    made = []
    for number, (key, priority) in enumerate(items):
        item = Item(number, key, number=number)
        item.priority = priority
        lanes.assign(item)
        made.append(item)
    lanes.admit(made)
    return made


def starts(lanes, most=100):
    """The numbers of the calls that start, as long as none ends."""
    found = []
    while len(found) < most and (lane := lanes.next()) is not None:
        found.append(lanes.take(lane).number)
    return found


def test_keys_are_served_round_robin():
    lanes = Lanes(keyed=True)
    admitted(lanes, *[("a", 0)] * 3, *[("b", 0)] * 2, ("c", 0))
    assert starts(lanes) == [0, 3, 5, 1, 4, 2]


def test_a_key_with_weight_two_starts_twice_as_many_calls():
    lanes = Lanes(keyed=True, weight_of=lambda item: 2 if item.key == "a" else 1)
    admitted(lanes, *[("a", 0)] * 4, *[("b", 0)] * 2)
    assert starts(lanes) == [0, 1, 4, 2, 3, 5]


def test_the_lowest_priority_starts_first_and_none_last():
    lanes = Lanes(prioritised=True)
    admitted(lanes, (None, 5), (None, math.inf), (None, -1), (None, 5))
    assert starts(lanes) == [2, 0, 3, 1]


def test_priority_comes_before_round_robin():
    lanes = Lanes(keyed=True, prioritised=True)
    admitted(lanes, ("a", 1), ("a", 0), ("b", 1), ("b", 1), ("a", 0))
    assert starts(lanes) == [1, 4, 2, 0, 3]


def test_calls_of_a_key_start_in_input_order_where_its_order_is_promised():
    lanes = Lanes(keyed=True, prioritised=True, in_order=True)
    admitted(lanes, ("a", 5), ("a", 0), ("b", 1))
    assert starts(lanes) == [2, 0, 1]


def test_a_key_without_a_free_slot_lets_others_go_first():
    lanes = Lanes(keyed=True, per_key=1)
    items = admitted(lanes, ("a", 0), ("a", 0), ("b", 0))
    assert starts(lanes) == [0, 2]
    lanes.finished(items[0].lane)
    assert starts(lanes) == [1]


def test_a_more_urgent_item_takes_the_next_slot_of_its_key():
    lanes = Lanes(keyed=True, prioritised=True, per_key=1)
    items = admitted(lanes, ("a", 5), ("a", 5))
    assert starts(lanes) == [0]
    admitted(lanes, ("a", 1))
    lanes.finished(items[0].lane)
    assert [starts(lanes, 1), items[1].done] == [[0], False]  # the new item, which is number 0 again


def test_a_call_that_is_due_again_goes_before_new_items_and_needs_no_slot():
    lanes = Lanes(keyed=True, per_key=1)
    items = admitted(lanes, ("a", 0), ("a", 0))
    assert starts(lanes) == [0]
    lanes.again(items[0])
    assert starts(lanes) == [0]


@pytest.mark.parametrize("prioritised", [False, True])
def test_a_lane_that_pauses_starts_nothing_and_its_starts_are_spread(prioritised):
    lanes = Lanes(keyed=True, prioritised=prioritised)
    items = admitted(lanes, ("a", 0), ("a", 0), ("b", 0))
    lane = items[0].lane
    lanes.pause(lane, until=10.0, now=0.0, calls=1, spreads=True)
    assert starts(lanes) == [2]
    assert lanes.wake_at == 10.0
    lanes.tick(10.0)
    assert starts(lanes, 1) == [0]
    lanes.started(lane, 10.0)
    assert starts(lanes) == []
    assert 10.0 < lanes.wake_at <= 11.0
    lanes.tick(lanes.wake_at)
    assert starts(lanes) == [1]


def test_a_wake_does_not_end_a_pause():
    lanes = Lanes(keyed=True)
    items = admitted(lanes, ("a", 0))
    lanes.rest(items[0].lane, math.inf)
    lanes.pause(items[0].lane, until=1.0, now=0.0, calls=1, spreads=False)
    lanes.wake(items[0].lane, 0.5)
    assert starts(lanes) == []
    lanes.tick(1.0)
    assert starts(lanes) == [0]


def test_keys_that_are_idle_are_forgotten():
    lanes = Lanes(keyed=True)
    for number in range(10_000):
        item = Item(number, number)
        lanes.assign(item)
        item.lane.emitted += 1
    assert len(lanes.lines()) <= 4_096
