"""Turns among many sub-queues, and what idle ones cost. test_multiqueue_model.py has the order of turns, whatever is
changed."""
from queue import Empty

import pytest
from support.queues import drain

SELECTIONS = ["round_robin", "weighted", "oldest"]


def test_a_huge_weight(new):
    queue = new(selection="weighted")
    for key, weight, n in (("a", 2**31 - 1, 5), ("b", 1, 2)):
        queue.add(key, weight=weight).put_many(range(n))
    assert "".join(queue.get_with_key()[0] for _ in range(7)) == "aaaaabb"


def test_oldest_with_many_tails(new):
    queue = new(selection="oldest")
    for item in range(2000):
        queue.setdefault((item * 7919) % 257, priority=0).put(item)
    queue.remove(100)
    queue[7].clear()
    expected = [item for item in range(2000) if (item * 7919) % 257 not in (100, 7)]
    assert drain(queue) == expected


@pytest.mark.parametrize("order", [range(11), range(10, -1, -1), [3, 4, 0, 1, 2, *range(5, 11)]])
def test_oldest_after_discarding_a_whole_chunk(new, order):
    """The first chunk has 11 slots. The discard of its last item moves the head past it."""
    queue = new(selection="oldest")
    a, b = queue.add("a"), queue.add("b")
    a.put_many(range(60))
    b.put(60)
    for item in order:
        assert a.discard(item)
    assert drain(queue) == list(range(11, 61))


# ------------------------------------------------------------------------------------------------ what idle tails cost
class CountedKey:
    """A key that counts how often it is hashed or compared."""

    looks = 0

    def __init__(self, name):
        self.name = name

    def __hash__(self):
        CountedKey.looks += 1
        return hash(self.name)

    def __eq__(self, other):
        CountedKey.looks += 1
        return self.name == other.name


@pytest.mark.thread_unsafe(reason="counts in a class attribute")
@pytest.mark.parametrize("selection", SELECTIONS)
def test_get_put_and_peek_look_at_no_key(new, selection):
    queue = new(selection=selection)
    tails = [queue.add(CountedKey(n), priority=n % 3) for n in range(200)]
    CountedKey.looks = 0
    for tail in tails[::7]:
        tail.put_many([1, 2])
    queue.peek()
    assert len(drain(queue)) == 58
    assert CountedKey.looks == 0


def test_a_callable_is_shown_the_ready_tails_of_the_best_priority_and_no_others(new):
    """The work of one get, seen in what the callable gets: idle tails are not part of it."""
    seen = []

    def first(ready):
        seen.append([tail.key for tail in ready])
        return ready[0]

    queue = new(selection=first)
    for key in range(1000):
        queue.add(key, priority=key % 2, enabled=key % 5 != 0)
    for key in (4, 8, 3, 10):  # 10 is disabled, 3 has a lower priority
        queue[key].put(key)
    assert drain(queue) == [4, 8, 3]
    assert seen == [[4, 8], [8], [3]]


def test_empty_gets_do_not_call_a_callable(new):
    queue = new(selection=lambda ready: pytest.fail(f"called with {ready}"))
    queue.add("a", enabled=False).put(1)
    queue.add("b")
    with pytest.raises(Empty):
        queue.get_nowait()
    with pytest.raises(Empty):
        queue.peek()
    with pytest.raises(Empty):
        queue.get(timeout=0.001)
