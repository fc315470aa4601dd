"""The checkers themselves: what they do with any specification, and wrong queues that they must catch."""
import pytest

from linear.checker import Maybe, NotLinearizable, check, linearization
from linear.history import Call, record
from linear.multiqueue_plans import MultiQueuePlan
from linear.multiqueue_spec import MultiQueueSpec, Tail
from linear.patterns import Got, Nothing, Put, bad_patterns
from linear.toys import Forgetful


class Register:
    """The smallest specification: shows that the checker needs no more than the protocol."""

    initial = 0

    def steps(self, call):
        return [None]

    def apply(self, state, call, step):
        if call.name == "write":
            return [call.args[0]]
        return [state] if call.result == state else []


def history(*calls):
    """(thread, start, end, name, args, result)"""
    return [Call(*call) for call in calls]


def test_any_specification_will_do():
    writes = [(0, 0, 9, "write", (1,), None), (1, 0, 9, "write", (2,), None)]
    check(history(*writes, (2, 1, 2, "read", (), 2), (2, 3, 4, "read", (), 1)), Register())
    with pytest.raises(NotLinearizable):
        check(
            history(*writes, (2, 1, 2, "read", (), 2), (2, 3, 4, "read", (), 1), (2, 5, 6, "read", (), 2)), Register()
        )


def test_a_thread_makes_one_call_at_a_time():
    with pytest.raises(ValueError, match="one call at a time"):
        check(history((0, 0, 5, "read", (), 0), (0, 3, 9, "read", (), 0)), Register())


def test_what_was_visited_is_not_visited_again():
    """Twelve concurrent writers and a read of a value never written: 2 ** 12 sets times 12 last writers, not 12!
    orders."""
    asked = []

    class Counting(Register):
        def apply(self, state, call, step):
            asked.append(call)
            return super().apply(state, call, step)

    calls = history(*[(n, 0, 9, "write", (n,), None) for n in range(12)], (12, 10, 11, "read", (), "never written"))
    assert linearization(calls, Counting()) is None
    assert len(asked) <= 2**12 * 12 * 12


def test_puts_that_overlap_are_not_tried_in_every_order():
    """Four concurrent bulk puts of eight steps each: 10 ** 17 orders. The gets show which one it was."""
    bound = [Tail("a", maxsize=100)]
    puts = [(n, 0, 9, "put_many", ("a", tuple(range(n, 32, 4))), 8) for n in range(4)]
    gets = [(4, 10 + 2 * n, 11 + 2 * n, "get", (), ("a", n)) for n in range(32)]
    check(history(*puts, *gets), MultiQueueSpec(bound).knowing(history(*puts, *gets)))
    late = [*gets[:-2], (4, 100, 101, "get", (), ("a", 31)), (4, 102, 103, "get", (), ("a", 30))]
    check(history(*puts, *late), MultiQueueSpec(bound).knowing(history(*puts, *late)))
    twisted = [
        *gets[:-5],
        *((4, 100 + 2 * n, 101 + 2 * n, "get", (), ("a", item)) for n, item in enumerate((31, 30, 29, 28, 27))),
    ]
    with pytest.raises(NotLinearizable):  # 31 was put after 27
        check(history(*puts, *twisted), MultiQueueSpec(bound).knowing(history(*puts, *twisted)))


class Log(Register):
    """A call appends each of its arguments at its own instant. It may leave out all but the last."""

    initial = ()

    def steps(self, call):
        return [*map(Maybe, call.args[:-1]), call.args[-1]] if call.name == "write" else [None]

    def apply(self, state, call, step):
        return [(*state, step)] if call.name == "write" else super().apply(state, call, step)


@pytest.mark.parametrize("log", [(3,), (1, 3), (2, 3), (1, 2, 3)], ids=str)
def test_a_step_may_be_left_out(log):
    check(history((0, 0, 1, "write", (1, 2, 3), None), (1, 2, 3, "read", (), log)), Log())


@pytest.mark.parametrize("log", [(), (1,), (2,), (1, 2), (3, 3), (1, 1, 3), (2, 1, 3), (3, 1)], ids=str)
def test_steps_keep_their_order_and_the_last_is_not_left_out(log):
    with pytest.raises(NotLinearizable):
        check(history((0, 0, 1, "write", (1, 2, 3), None), (1, 2, 3, "read", (), log)), Log())


# ------------------------------------------------------------------------------------------------ wrong queues
def explained(seed):
    """Whether an order explains what a wrong queue does."""
    plan = MultiQueuePlan(seed)
    recorded = record(plan.planned(Forgetful))
    return linearization(recorded, plan.spec.knowing(recorded)) is not None


def test_a_wrong_queue_is_caught():
    assert not all(map(explained, range(1000)))


# ------------------------------------------------------------------------------------------------ bad patterns
def in_row(*items, tail="a", at=0, priority=0):
    return [Put(item, tail, at + 10 * n, at + 10 * n + 5, priority) for n, item in enumerate(items)]


def test_a_right_run_shows_no_bad_pattern():
    puts = in_row(1, 2, 3) + in_row(4, 5, tail="b", priority=1)
    gots = [Got(1, 3, 8), Got(2, 12, 40), Got(3, 20, 41), Got(4, 50, 51), Got(5, 60, 61)]
    nothings = [Nothing(0, 1), Nothing(4, 6), Nothing(62, 70)]
    assert bad_patterns(puts, gots, nothings) == []


PATTERNS = {
    "got never put": ([Got(9, 0, 1)], []),
    "got before it was put": ([Got(2, 0, 1), Got(1, 2, 3)], []),
    "got twice": ([Got(1, 6, 7), Got(1, 8, 9), Got(2, 30, 31), Got(3, 32, 33)], []),
    "order inverted": ([Got(2, 30, 31), Got(1, 32, 33), Got(3, 34, 35)], []),
    "never got": ([Got(1, 30, 31), Got(3, 34, 35)], []),
    "passed over": ([Got(4, 30, 31), Got(1, 32, 33), Got(2, 34, 35), Got(3, 36, 37)], []),
    "empty while surely non-empty": ([Got(1, 30, 31), Got(2, 32, 33), Got(3, 34, 35)], [Nothing(6, 7)]),
    # No single item covers it, two together do.
    "surely non-empty": ([Got(1, 17, 40), Got(2, 18, 41), Got(3, 34, 42)], [Nothing(16, 33)]),
}


@pytest.mark.parametrize("what", PATTERNS)
def test_a_bad_pattern_is_found(what):
    gots, nothings = PATTERNS[what]
    puts = in_row(1, 2, 3) + in_row(4, tail="b", priority=1)
    found = bad_patterns(puts, gots, nothings)
    assert any(what in words for words in found), found


def test_values_of_long_runs_are_unique():
    with pytest.raises(ValueError, match="unique"):
        bad_patterns(in_row(1, 1), [])
