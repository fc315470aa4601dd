"""Round robin: the ring of ready sub-queues, the three built-in selections, and what does not change the order.

The original loses a turn at remove, and moves one at peek. These tests show what happens here.
"""
from queue import Empty

import pytest
from support.queues import as_list, drain

SELECTIONS = ["round_robin", "weighted", "oldest"]


def filled(new, selection="round_robin", weights=None, **tails):
    """A queue with one tail per keyword. Its items are put tail by tail."""
    queue = new(selection=selection)
    for key, items in tails.items():
        queue.add(key, weight=(weights or {}).get(key, 1)).put_many(items)
    return queue


def keys(queue):
    """The keys in the order of get, until the queue is empty."""
    order = []
    while not queue.empty():
        order.append(queue.get_with_key()[0])
    return "".join(order)


# ------------------------------------------------------------------------------------------------ the ring


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("removed", ["a", "b", "c", "d"])
@pytest.mark.parametrize("served", range(5))
def test_removing_a_tail_never_makes_another_lose_its_turn(new, selection, served, removed):
    """The order of the others does not change, whichever tail is removed and whichever was served last."""
    def turns():
        queue = filled(new, selection, a=[1, 5], b=[2, 6], c=[3, 7], d=[4, 8])
        for _ in range(served):
            queue.get()
        return queue

    expected = keys(turns()).replace(removed, "")
    queue = turns()
    queue.remove(removed)
    assert keys(queue) == expected


def test_thousands_of_priorities(new):
    queue = new()
    for priority in range(3000):
        queue.add(priority, priority=(priority * 7919) % 3001).put(priority)
    taken = drain(queue)
    assert [(priority * 7919) % 3001 for priority in taken] == sorted(
        (priority * 7919) % 3001 for priority in range(3000)
    )


# ------------------------------------------------------------------------------------------------ weighted


@pytest.mark.parametrize("leave", ["disable", "clear", "move", "discard"])
def test_leaving_the_ring_in_mid_turn_ends_the_turn(new, leave):
    queue = filled(new, "weighted", {"a": 3, "b": 1}, a=[1, 2], b=range(4))
    a = queue["a"]
    assert queue.get_with_key()[0] == "a"
    if leave == "disable":
        a.enabled = False
        a.enabled = True
    elif leave == "clear":
        a.clear()
        a.put(2)
    elif leave == "discard":
        assert a.discard(2)
        a.put(2)
    else:
        a.priority = 9
        a.priority = 0
    a.put_many([3, 4, 5])
    assert keys(queue) == "baaababb"


def test_a_huge_weight(new):
    queue = filled(new, "weighted", {"a": 2**31 - 1}, a=range(5), b=range(2))
    assert keys(queue) == "aaaaabb"


# ------------------------------------------------------------------------------------------------ oldest


def test_oldest_looks_at_heads_only(new):
    """An item put in front is the head and is young; the items behind it wait for it."""
    queue = new(selection="oldest")
    a, b = queue.add("a"), queue.add("b")
    a.put(1)
    b.put(2)
    a.put_front(3)
    assert drain(queue) == [2, 3, 1]


def test_oldest_after_discarding_a_head(new):
    queue = new(selection="oldest")
    a, b, c = (queue.add(key) for key in "abc")
    a.put(1)
    b.put(2)
    c.put(3)
    a.put(4)
    a.discard(1)
    assert drain(queue) == [2, 3, 4]


def test_oldest_with_many_tails(new):
    queue = new(selection="oldest")
    for item in range(2000):
        queue.setdefault((item * 7919) % 257, priority=0).put(item)
    queue.remove(100)
    queue[7].clear()
    expected = [item for item in range(2000) if (item * 7919) % 257 not in (100, 7)]
    assert drain(queue) == expected


def test_oldest_moves_with_a_new_priority(new):
    queue = new(selection="oldest")
    a, b, c = queue.add("a", priority=1), queue.add("b"), queue.add("c")
    a.put(1)
    b.put(2)
    c.put(3)
    a.priority = 0
    assert drain(queue) == [1, 2, 3]


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


# ------------------------------------------------------------------------------------------------ peek and bulk
@pytest.mark.parametrize("selection", SELECTIONS)
def test_peek_moves_nobody(new, selection):
    def make():
        return filled(new, selection, {"a": 2}, a=range(4), b=range(3), c=range(2))

    expected = keys(make())
    queue, order = make(), ""
    while not queue.empty():
        head = queue.peek()
        assert all(queue.peek() == head for _ in range(3))
        key, item = queue.get_with_key()
        assert item == head
        order += key
    assert order == expected


def test_peek_does_not_move_past_empty_tails_as_the_original_did(new):
    """The pointer is at a, which is empty: peek, then a fills, then get. The peek must make no difference."""
    def run(peeks):
        queue = filled(new, a=[1], b=[1, 2, 3])
        queue.get()  # a is served and is then empty
        for _ in range(peeks):
            queue.peek()
        queue["a"].put(2)
        return keys(queue)

    assert run(0) == run(1) == run(5) == "babb"


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("step", [1, 2, 3, 4, 100])
def test_get_many_takes_in_the_order_of_get(new_bulk, selection, step):
    def make():
        queue = filled(new_bulk, selection, {"a": 2, "c": 3}, a=[1, 4, 7, 8], b=[2, 5], c=[3, 6, 9, 10, 11])
        queue.add("u", priority=-1).put_many([20, 21])
        queue["b"].put_front(30)
        return queue

    expected = drain(make())
    queue, taken = make(), []
    while not queue.empty():
        taken += as_list(queue.get_many(step))
    assert taken == expected


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
