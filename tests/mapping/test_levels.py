"""Labels keep the order of their priorities, also when there is no number left between two of them."""

import random

from manytail.mapping._admission import LAST, Levels


class Queue:
    priority = 0


def test_labels_keep_the_order_of_their_priorities() -> None:
    levels, chance = Levels(), random.Random(1)
    queues: dict[float, Queue] = {}
    for _ in range(3_000):
        value = chance.choice([LAST, chance.randrange(-(2**63), 2**63), chance.randrange(10)])
        if value in queues:
            levels.leave(value, queues.pop(value))
        else:
            queues[value] = Queue()
            queues[value].priority = levels.label(value)
            levels.join(value, queues[value])
    ordered = sorted(queues)
    labels = [queues[value].priority for value in ordered]
    assert len(set(labels)) == len(labels)
    assert labels == sorted(labels)


def test_no_room_between_two_labels_spreads_all() -> None:
    """Each new priority falls between the two newest, which halves the free numbers: 17 of them use up 2**16."""
    levels = Levels()
    queues = {value: Queue() for value in (0.0, 1.0)}
    for value, queue in queues.items():
        queue.priority = levels.label(value)
        levels.join(value, queue)
    low, high = 0.0, 1.0
    for number in range(40):
        middle = (low + high) / 2
        queues[middle] = Queue()
        queues[middle].priority = levels.label(middle)
        levels.join(middle, queues[middle])
        low, high = (middle, high) if number % 2 else (low, middle)
    assert [queues[value].priority for value in sorted(queues)] == sorted({queue.priority for queue in queues.values()})


def test_labels_stay_in_the_range_of_a_c_int() -> None:
    """Ever more urgent rows: the labels reach the lower limit and are assigned anew."""
    levels = Levels()
    queues = [Queue() for _ in range(40_000)]
    for number, queue in enumerate(queues):
        queue.priority = levels.label(-number)
        levels.join(-number, queue)
    labels = [queue.priority for queue in queues]
    assert labels == sorted(set(labels), reverse=True)
    assert -(2**31) < labels[-1] < labels[0] < 2**31
