"""The checkers themselves: what they do with any specification, and wrong queues that they must catch."""
from contextlib import suppress
from queue import Empty

import pytest

from linear.checker import Maybe, NotLinearizable, check, linearization
from linear.history import Call, record
from linear.multiqueue_plans import MultiQueuePlan
from linear.multiqueue_spec import MultiQueueSpec, Tail
from manytail import MultiQueue, ShutDown


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
class Forgetful(MultiQueue):
    """Drops an item with each one that it gives: histories of real threads are recorded and refused."""

    def get_with_key(self, block=True, timeout=None):
        taken = super().get_with_key(block, timeout)
        with suppress(Empty, ShutDown):
            super().get_with_key(False)
        return taken


def explained(seed):
    """Whether an order explains what a wrong queue does."""
    plan = MultiQueuePlan(seed)
    recorded = record(plan.planned(Forgetful))
    return linearization(recorded, plan.spec.knowing(recorded)) is not None


def test_a_wrong_queue_is_caught():
    assert not all(map(explained, range(1000)))
