"""Labels keep the order of their priorities, also when there is no number left between two of them."""

import random

from manytail.mapping._admission import LAST, PriorityLabels


class Queue:
    priority = 0


def test_labels_keep_the_order_of_their_priorities() -> None:
    labels, chance = PriorityLabels(), random.Random(1)
    queues: dict[float, Queue] = {}
    for _ in range(3_000):
        value = chance.choice([LAST, chance.randrange(-(2**63), 2**63), chance.randrange(10)])
        if value in queues:
            labels.leave(value, queues.pop(value))
        else:
            queues[value] = Queue()
            queues[value].priority = labels.label(value)
            labels.join(value, queues[value])
    ordered = sorted(queues)
    given = [queues[value].priority for value in ordered]
    assert len(set(given)) == len(given)
    assert given == sorted(given)


def test_no_room_between_two_labels_spreads_all() -> None:
    """Each new priority falls between the two newest, which halves the free numbers: 17 of them use up 2**16."""
    labels = PriorityLabels()
    queues = {value: Queue() for value in (0.0, 1.0)}
    for value, queue in queues.items():
        queue.priority = labels.label(value)
        labels.join(value, queue)
    low, high = 0.0, 1.0
    for number in range(40):
        middle = (low + high) / 2
        queues[middle] = Queue()
        queues[middle].priority = labels.label(middle)
        labels.join(middle, queues[middle])
        low, high = (middle, high) if number % 2 else (low, middle)
    assert [queues[value].priority for value in sorted(queues)] == sorted({queue.priority for queue in queues.values()})


def test_labels_stay_in_the_range_of_a_c_int() -> None:
    """Ever more urgent rows: the labels reach the lower limit and are assigned anew."""
    labels = PriorityLabels()
    queues = [Queue() for _ in range(40_000)]
    for number, queue in enumerate(queues):
        queue.priority = labels.label(-number)
        labels.join(-number, queue)
    given = [queue.priority for queue in queues]
    assert given == sorted(set(given), reverse=True)
    assert -(2**31) < given[-1] < given[0] < 2**31
