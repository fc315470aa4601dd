"""Round robin: the ring of ready sub-queues, the three built-in selections, and what does not change the order.

The original loses a turn at remove, and moves one at peek. These tests show what happens here.
"""
from itertools import permutations
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
def test_tails_take_turns_in_the_order_in_which_they_became_ready(new):
    queue = new()
    for key in "abc":
        queue.add(key)
    for key in "cab":
        queue[key].put_many([1, 2])
    assert keys(queue) == "cabcab"


def test_adding_a_tail_gives_it_no_place_before_its_first_item(new):
    queue = filled(new, a=[1, 2])
    late, later = queue.add("b"), queue.add("c")
    later.put(1)
    late.put(1)
    assert keys(queue) == "acba"


def test_a_served_tail_goes_to_the_end_only_if_it_has_more(new):
    queue = filled(new, a=[1], b=[1, 2], c=[1])
    assert queue.get_with_key()[0] == "a"
    queue["a"].put(2)  # a joins again, behind b and c
    assert keys(queue) == "bcab"


def test_an_item_for_a_tail_that_is_ready_moves_nobody(new):
    queue = filled(new, a=[1], b=[1])
    queue["a"].put(2)
    queue["b"].put(2)
    queue["b"].put_front(0)
    assert keys(queue) == "ababb"


def test_a_tail_emptied_and_filled_again_joins_at_the_end(new):
    queue = filled(new, a=[1], b=[1], c=[1])
    assert queue["a"].clear() == 1
    queue["a"].put(1)
    assert queue["b"].discard(1)
    queue["b"].put_front(1)
    assert keys(queue) == "cab"


def test_enabling_joins_at_the_end(new):
    queue = filled(new, a=[1], b=[1], c=[1])
    queue["a"].enabled = False
    queue["a"].enabled = True
    assert keys(queue) == "bca"


def test_a_disabled_tail_joins_when_it_is_enabled_and_not_when_it_is_filled(new):
    queue = new()
    first = queue.add("a", enabled=False)
    first.put(1)
    queue.add("b").put(1)
    first.enabled = True
    assert keys(queue) == "ba"


def test_enabling_an_enabled_tail_moves_nobody(new):
    queue = filled(new, a=[1], b=[1])
    queue["a"].enabled = True
    assert keys(queue) == "ab"


def test_assigning_the_priority_it_has_moves_nobody(new):
    queue = filled(new, a=[1], b=[1])
    queue["a"].priority = 0
    assert keys(queue) == "ab"


def test_a_new_priority_joins_the_end_of_that_ring(new):
    queue = filled(new, a=[1, 2], b=[1], c=[1])
    queue["a"].priority = 1
    queue["c"].priority = 1
    assert keys(queue) == "baca"
    queue = filled(new, a=[1, 2], b=[1])
    queue["a"].priority = 1
    queue["a"].priority = 0
    assert keys(queue) == "baa"


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


def test_removing_an_idle_or_disabled_tail_moves_nobody(new):
    queue = filled(new, a=[1, 2], b=[1, 2], c=[1, 2])
    queue.add("idle")
    queue["b"].enabled = False
    assert queue.get_with_key()[0] == "a"
    queue.remove("idle")
    queue.remove("b")
    assert keys(queue) == "cac"


def test_a_lower_number_goes_first_whatever_the_turns_are(new):
    queue = new()
    for key, priority in (("c", 5), ("a", -7), ("b", 0)):
        queue.add(key, priority=priority).put_many([1, 2])
    assert keys(queue) == "aabbcc"


@pytest.mark.parametrize("order", list(permutations([3, 1, 2, -4])))
def test_priorities_added_in_any_order_are_served_in_theirs(new, order):
    queue = new()
    for priority in order:
        queue.add(priority, priority=priority).put(priority)
    assert drain(queue) == sorted(order)


def test_a_higher_priority_in_between_does_not_move_the_turns_below(new):
    queue = filled(new, a=[1, 2], b=[1, 2])
    urgent = queue.add("u", priority=-1)
    assert queue.get_with_key()[0] == "a"
    urgent.put_many([1, 2])
    assert keys(queue) == "uubab"


def test_thousands_of_priorities(new):
    queue = new()
    for priority in range(3000):
        queue.add(priority, priority=(priority * 7919) % 3001).put(priority)
    taken = drain(queue)
    assert [(priority * 7919) % 3001 for priority in taken] == sorted(
        (priority * 7919) % 3001 for priority in range(3000)
    )


# ------------------------------------------------------------------------------------------------ weighted
def test_weighted_serves_weight_items_per_turn(new):
    queue = filled(new, "weighted", {"a": 3, "b": 1, "c": 2}, a=range(7), b=range(3), c=range(4))
    assert keys(queue) == "aaabccaaabccab"


def test_a_weighted_tail_that_runs_empty_loses_the_rest_of_its_turn(new):
    queue = filled(new, "weighted", {"a": 3, "b": 2}, a=[1, 2], b=range(6))
    assert [queue.get_with_key()[0] for _ in range(2)] == ["a", "a"]
    queue["a"].put_many(range(4))
    assert keys(queue) == "bbaaabbabb"


def test_a_lone_weighted_tail_that_runs_empty_loses_the_rest_of_its_turn_too(new):
    queue = filled(new, "weighted", {"a": 3}, a=[1, 2])
    assert [queue.get(), queue.get()] == [1, 2]
    queue["a"].put_many(range(5))
    queue.add("b").put_many(range(2))
    assert keys(queue) == "aaabaab"


def test_a_higher_priority_does_not_end_a_weighted_turn(new):
    queue = filled(new, "weighted", {"a": 3}, a=range(4), b=range(2))
    urgent = queue.add("u", priority=-1, weight=2)
    assert queue.get_with_key()[0] == "a"
    urgent.put(1)
    assert keys(queue) == "uaabab"


def test_a_lower_priority_that_is_ready_does_not_end_a_weighted_turn(new):
    queue = filled(new, "weighted", {"a": 3}, a=range(6), b=range(3))
    queue.add("low", priority=1, weight=2).put_many([1, 2])
    assert [queue.get_with_key()[0] for _ in range(11)] == [*"aaabaaabb", "low", "low"]


def test_a_new_weight_counts_from_the_next_turn(new):
    queue = filled(new, "weighted", {"a": 3}, a=range(8), b=range(4))
    assert queue.get_with_key()[0] == "a"
    queue["a"].weight = 1
    assert queue["a"].weight == 1
    assert keys(queue) == "aababababaa"
    queue = filled(new, "weighted", {"a": 1, "b": 1}, a=range(4), b=range(5))
    assert queue.get_with_key()[0] == "a"
    queue["b"].weight = 3  # its turn has not begun
    assert keys(queue) == "bbbabbaa"


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


def test_weights_mean_nothing_to_the_other_selections(new):
    assert keys(filled(new, "round_robin", {"a": 5}, a=range(3), b=range(3))) == "ababab"
    assert keys(filled(new, "oldest", {"b": 5}, a=range(3), b=range(3))) == "aaabbb"


def test_a_huge_weight(new):
    queue = filled(new, "weighted", {"a": 2**31 - 1}, a=range(5), b=range(2))
    assert keys(queue) == "aaaaabb"


# ------------------------------------------------------------------------------------------------ oldest
def test_oldest_is_the_order_of_the_puts_over_all_tails(new):
    queue = new(selection="oldest")
    tails = [queue.add(key) for key in range(3)]
    for item, turn in enumerate([0, 0, 2, 1, 0, 2, 2, 1]):
        tails[turn].put(item)
    assert drain(queue) == list(range(8))


def test_oldest_within_one_priority_only(new):
    queue = new(selection="oldest")
    low, high = queue.add("low", priority=1), queue.add("high", priority=0)
    low.put(1)
    high.put(2)
    low.put(3)
    high.put(4)
    assert drain(queue) == [2, 4, 1, 3]


def test_oldest_counts_from_the_put_and_not_from_the_enabling(new):
    queue = new(selection="oldest")
    a, b = queue.add("a", enabled=False), queue.add("b")
    a.put(1)
    b.put(2)
    a.enabled = True
    assert drain(queue) == [1, 2]


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
