"""Below a selecting subscription of higher priority: that one has the first claim to what it wants, while it is
interested. What was passed for it is remembered, and looked at again when it is not."""
from queue import Empty

import pytest

from manytail import EntryQueue, PriorityEntryQueue, SortedEntryQueue


def item(subscription):
    """The item of its next entry, which is acked. None if there is none for it."""
    try:
        entry = subscription.get(False)
    except Empty:
        return None
    entry.ack()
    return entry.item


class Asked:
    """A selector that wants even items, and counts what it was asked."""

    def __init__(self):
        self.times = 0

    def __call__(self, entry):
        self.times += 1
        return entry.item % 2 == 0


def claimed(n, make=EntryQueue, **options):
    """A queue of even items, the subscription that wants them, its selector, and one below."""
    queue = make("q")
    queue.put_many([2] * n)
    asked = Asked()
    above = queue.subscribe(priority=5, selector=asked, **options)
    return queue, above, asked, queue.subscribe()


@pytest.mark.parametrize("make", [EntryQueue, PriorityEntryQueue, lambda name: SortedEntryQueue(name, key=int)])
def test_what_is_claimed_is_asked_for_once(make):
    queue, above, asked, below = claimed(50, make)
    assert item(below) is None
    before = asked.times
    for number in range(1, 9, 2):
        queue.put(number)
        assert item(below) == number
        assert item(below) is None
    assert asked.times - before <= 2 * 4
    assert item(above) == 2


@pytest.mark.parametrize("lose", ["suspend", "close"])
def test_what_was_claimed_is_free_when_nobody_claims_it(lose):
    _, above, _, below = claimed(3)
    assert item(below) is None
    getattr(above, lose)()
    assert [item(below) for _ in range(4)] == [2, 2, 2, None]


def test_credit_that_comes_back_claims_what_is_left():
    queue, above, asked, below = claimed(50, prefetch=1)
    queue.put(1)
    assert item(below) == 1
    for _ in range(5):
        held = above.get()
        assert item(below) == 2                     # it may hold no more
        before = asked.times
        held.ack()
        assert item(below) is None
        assert asked.times == before                # what was passed before is not asked for again


def test_another_claim_does_not_stand_for_one_that_has_gone():
    queue, above, _, below = claimed(3)
    queue.put_many([1, 4])
    odd = queue.subscribe(priority=4, selector=lambda entry: entry.item % 2)
    assert item(below) is None
    above.suspend()
    assert [item(below) for _ in range(5)] == [2, 2, 2, 4, None]
    odd.close()
    assert item(below) == 1


def test_a_claim_that_ends_while_its_selector_is_asked_does_not_count():
    """Its interest ends between the answer and the next look. An entry that is passed then would be nobody's."""
    queue = EntryQueue("q")
    queue.put(2)

    def wants(entry):
        above.suspend()
        return True

    above = queue.subscribe(priority=5, selector=wants)
    below = queue.subscribe()
    assert item(below) == 2


def test_its_own_selector_and_the_claims_above_both_count():
    queue, above, _, _ = claimed(2)
    queue.put_many([3, 5])
    five = queue.subscribe(selector=lambda entry: entry.item != 3)
    assert item(five) == 5
    assert item(five) is None
    above.close()
    assert [item(five) for _ in range(3)] == [2, 2, None]


def test_closing_one_that_is_below_leaves_the_others():
    queue, above, _, below = claimed(2)
    others = [queue.subscribe() for _ in range(2)]
    assert item(below) is item(others[0]) is item(others[1]) is None
    below.close()
    queue.put(1)
    assert item(others[0]) == 1
    above.close()
    assert [item(others[0]), item(others[1]), item(others[0])] == [2, 2, None]
