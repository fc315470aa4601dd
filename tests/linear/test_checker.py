"""The checkers themselves: known histories, good and bad, and wrong queues that they must catch."""
import copy

import pytest

from linear.checker import Maybe, NotLinearizable, check, linearization
from linear.history import Call, Planned, Raised, record
from linear.multiqueue_spec import EMPTY, SHUT, MultiQueueSpec, Tail
from linear.patterns import Got, Nothing, Put, bad_patterns
from linear.plans import TAKING, Plan
from linear.toys import MUTANTS, Racy, Toy


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


def one_tail(**options):
    return MultiQueueSpec([Tail("a", **options)])


def two_tails(**options):
    return MultiQueueSpec([Tail("a"), Tail("b", **options)])


PUT_1, PUT_2 = ("put", ("a", 1), None), ("put", ("a", 2), None)
GET_1, GET_2, NONE = ("get", (), ("a", 1)), ("get", (), ("a", 2)), ("get", (), EMPTY)

GOOD = {
    "nothing happened": (one_tail(), history()),
    "one after the other": (
        one_tail(),
        history((0, 0, 1, *PUT_1), (0, 2, 3, *PUT_2), (1, 4, 5, *GET_1), (1, 6, 7, *GET_2)),
    ),
    "puts side by side, the other order": (
        one_tail(),
        history((0, 0, 5, *PUT_1), (1, 1, 4, *PUT_2), (0, 6, 7, *GET_2), (0, 8, 9, *GET_1)),
    ),
    "got while it is put": (one_tail(), history((0, 0, 9, *PUT_1), (1, 1, 2, *GET_1))),
    "empty while it is put": (one_tail(), history((0, 0, 9, *PUT_1), (1, 1, 2, *NONE), (1, 10, 11, *GET_1))),
    "touching in one instant is side by side": (one_tail(), history((0, 0, 5, *PUT_1), (1, 5, 6, *NONE))),
    "full while it is got": (
        one_tail(maxsize=1),
        history((0, 0, 1, *PUT_1), (1, 2, 9, *GET_1), (0, 3, 4, "put", ("a", 2), Raised("Full"))),
    ),
    "a bulk put in two steps": (
        one_tail(maxsize=1),
        history((0, 0, 9, "put_many", ("a", (1, 2)), 2), (1, 1, 2, *GET_1), (1, 10, 11, *GET_2)),
    ),
    "turn and turn about": (
        two_tails(),
        history(
            (0, 0, 1, "put_many", ("a", (1, 2)), 2),
            (0, 2, 3, "put", ("b", 3), None),
            (1, 4, 5, *GET_1),
            (1, 6, 7, "get", (), ("b", 3)),
            (1, 8, 9, *GET_2),
        ),
    ),
    "a shutdown drains": (
        one_tail(),
        history(
            (0, 0, 1, *PUT_1), (0, 2, 3, "shutdown", (False,), None), (1, 4, 5, *GET_1), (1, 6, 7, "get", (), SHUT)
        ),
    ),
}
BAD = {
    "got never put": (one_tail(), history((0, 0, 1, *GET_1))),
    "got before it was put": (one_tail(), history((0, 0, 1, *GET_1), (1, 2, 3, *PUT_1))),
    "got twice": (one_tail(), history((0, 0, 1, *PUT_1), (0, 2, 5, *GET_1), (1, 3, 4, *GET_1))),
    "order inverted": (one_tail(), history((0, 0, 1, *PUT_1), (0, 2, 3, *PUT_2), (1, 4, 5, *GET_2))),
    "empty while non-empty": (one_tail(), history((0, 0, 1, *PUT_1), (1, 2, 3, *NONE), (1, 4, 5, *GET_1))),
    "empty, explained only by a get that comes later": (
        one_tail(),
        history((0, 0, 1, *PUT_1), (1, 2, 3, *NONE), (2, 4, 5, *GET_1)),
    ),
    "full while there is room": (one_tail(maxsize=1), history((0, 0, 1, "put", ("a", 1), Raised("Full")))),
    "over the bound": (one_tail(maxsize=1), history((0, 0, 1, *PUT_1), (0, 2, 3, *PUT_2))),
    "a bulk put seen in part": (
        one_tail(),
        history((0, 0, 9, "put_many", ("a", (1, 2)), 2), (1, 1, 2, *GET_1), (1, 3, 4, *NONE)),
    ),
    "the turn is not given on": (
        two_tails(),
        history(
            (0, 0, 1, "put_many", ("a", (1, 2)), 2),
            (0, 2, 3, "put", ("b", 3), None),
            (1, 4, 5, *GET_1),
            (1, 6, 7, *GET_2),
        ),
    ),
    "a lower priority first": (
        two_tails(priority=-1),
        history((0, 0, 1, *PUT_1), (0, 2, 3, "put", ("b", 3), None), (1, 4, 5, *GET_1)),
    ),
    "put after the shutdown": (one_tail(), history((0, 0, 1, "shutdown", (False,), None), (0, 2, 3, *PUT_1))),
    "drained too early": (
        one_tail(),
        history((0, 0, 1, *PUT_1), (0, 2, 3, "shutdown", (False,), None), (1, 4, 5, "get", (), SHUT)),
    ),
    "a disabled tail is got from": (one_tail(enabled=False), history((0, 0, 1, *PUT_1), (0, 2, 3, *GET_1))),
    "the wrong count": (one_tail(), history((0, 0, 1, *PUT_1), (0, 2, 3, "clear", ("a",), 2))),
    "done, but not joined": (
        one_tail(),
        history((0, 0, 1, *PUT_1), (0, 2, 3, "task_done", (), None), (0, 4, 5, "join", (), False)),
    ),
}


@pytest.fixture(params=[False, True], ids=["", "knowing"])
def told(request):
    """Which specification is used: the plain one, or the one that knows the history."""
    return (lambda spec, calls: copy.deepcopy(spec).knowing(calls)) if request.param else (lambda spec, calls: spec)


@pytest.mark.parametrize(("spec", "calls"), GOOD.values(), ids=GOOD)
def test_an_order_is_found(spec, calls, told):
    spec = told(spec, calls)
    check(calls, spec)
    order = linearization(calls, spec)
    assert {id(call) for call in order} == {id(call) for call in calls}


@pytest.mark.parametrize(("spec", "calls"), BAD.values(), ids=BAD)
def test_no_order_is_found(spec, calls, told):
    with pytest.raises(NotLinearizable, match=r"no order of these calls"):
        check(calls, told(spec, calls))


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
def accused(new, seeds, **options):
    """The first seed whose history no order explains, None if all can be explained."""
    for seed in seeds:
        plan = Plan(seed, **options)
        recorded = record(plan.planned(new))
        if linearization(recorded, plan.spec.knowing(recorded)) is None:
            return seed
    return None


def test_a_right_queue_is_not_accused():
    assert accused(Toy, range(300)) is None


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_queue_is_caught(mutant):
    assert accused(mutant, range(1000)) is not None


def test_a_race_is_caught():
    queue = Racy()
    queue.add("a").put_many([1, 2])
    put = Call(2, 0, 1, "put_many", ("a", (1, 2)), 2)
    calls = record([[Planned("get", (), queue.get_with_key, TAKING)]] * 2)
    with pytest.raises(NotLinearizable):
        check([put, *calls], one_tail())


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
