"""Labels for priorities keep their order, also when there is no number left between two of them."""

import random

from manytail.spark._levels import LAST, Levels


class Tail:
    priority = 0


def test_labels_keep_the_order_of_their_priorities() -> None:
    levels, chance = Levels(), random.Random(1)
    tails: dict[float, Tail] = {}
    for _ in range(3_000):
        value = chance.choice([LAST, chance.randrange(-(2**63), 2**63), chance.randrange(10)])
        if value in tails:
            levels.leave(value, tails.pop(value))
        else:
            tails[value] = Tail()
            tails[value].priority = levels.label(value)
            levels.join(value, tails[value])
    ordered = sorted(tails)
    labels = [tails[value].priority for value in ordered]
    assert len(set(labels)) == len(labels)
    assert labels == sorted(labels)


def test_no_room_between_two_labels_spreads_all() -> None:
    """Each new priority falls between the two newest, which halves the room: 17 of them use up 2**16."""
    levels = Levels()
    tails = {value: Tail() for value in (0.0, 1.0)}
    for value, tail in tails.items():
        tail.priority = levels.label(value)
        levels.join(value, tail)
    low, high = 0.0, 1.0
    for number in range(40):
        middle = (low + high) / 2
        tails[middle] = Tail()
        tails[middle].priority = levels.label(middle)
        levels.join(middle, tails[middle])
        low, high = (middle, high) if number % 2 else (low, middle)
    assert [tails[value].priority for value in sorted(tails)] == sorted({tail.priority for tail in tails.values()})


def test_labels_stay_in_the_range_of_a_c_int() -> None:
    """Ever more urgent rows: the labels run into the lower edge and are spread anew."""
    levels = Levels()
    tails = [Tail() for _ in range(40_000)]
    for number, tail in enumerate(tails):
        tail.priority = levels.label(-number)
        levels.join(-number, tail)
    labels = [tail.priority for tail in tails]
    assert labels == sorted(set(labels), reverse=True)
    assert -(2**31) < labels[-1] < labels[0] < 2**31
