"""Histories of the real PubSubQueue: the specification explains small ones, and long ones show no bad pattern. It
refuses histories that are known to be wrong.

MANYTAIL_HISTORIES says how many small ones of each kind (default 300), MANYTAIL_ITEMS how many messages each publisher
of a long run publishes (default 1,000).
"""

import functools

import pytest
from support.counts import count
from support.threads import switching_often

from linear.checker import NotLinearizable, check
from linear.history import Call, Planned, Raised, record
from linear.patterns import Got, Nothing, Put, bad_patterns
from linear.pubsub_plans import PUBLISHING, TAKING, PubSubPlan
from linear.pubsub_spec import CLOSED, EMPTY, FULL, SHUT, PubSubSpec
from manytail import PubSubQueue

HISTORIES = count(300, 3_000, "MANYTAIL_HISTORIES")
ITEMS = count(1_000, 20_000, "MANYTAIL_ITEMS")

pytestmark = pytest.mark.thread_unsafe(reason="changes the switch interval and starts threads")


# ---------------------------------------------------------------------------------------------------- the specification
def row(*calls):
    """Calls one after the other, (thread, name, args, result) each."""
    return [
        Call(thread, 10 * n, 10 * n + 5, name, args, result) for n, (thread, name, args, result) in enumerate(calls)
    ]


def side_by_side(*calls):
    return [Call(thread, n, 100 + n, name, args, result) for n, (thread, name, args, result) in enumerate(calls)]


PUT_1, PUT_2, PUT_3 = (0, "publish", (1,), 0), (0, "publish", (2,), 1), (0, "publish", (3,), 2)
A_1, A_2, B_1 = (1, "get", ("a",), 1), (1, "get", ("a",), 2), (2, "get", ("b",), 1)
END = (0, "shutdown", (False,), None)
BOUND = {"maxsize": 1, "slow": "raise"}
DROP = {"maxsize": 1, "slow": "drop_oldest"}

GOOD = {
    "each gets each": ({}, row(PUT_1, A_1, B_1, PUT_2, A_2)),
    "two publishers side by side": ({}, [*side_by_side(PUT_2, (3, "publish", (1,), 0)), Call(1, 200, 201, *A_1[1:])]),
    "empty while it is published": ({}, side_by_side(PUT_1, (1, "get", ("a",), EMPTY))),
    "a new one gets what comes later": (
        {},
        row(PUT_1, (1, "subscribe", ("c", "next"), None), PUT_2, (1, "get", ("c",), 2)),
    ),
    "a new one gets what is retained": (
        {},
        row(PUT_1, PUT_2, A_1, (1, "subscribe", ("c", "oldest"), None), (1, "get", ("c",), 1)),
    ),
    "a number that is not retained": ({}, row(PUT_1, A_1, B_1, (1, "subscribe", ("c", 0), Raised("ValueError")))),
    "full until the slowest has taken": (BOUND, row(PUT_1, A_1, (0, "publish", (2,), FULL), B_1, PUT_2)),
    "close gives up the rest": (BOUND, row(PUT_1, A_1, (2, "close", ("b",), None), PUT_2)),
    "the slowest is moved": (
        DROP,
        row(PUT_1, A_1, PUT_2, (2, "get", ("b",), Raised("Lagged", 1)), (2, "get", ("b",), 2), A_2),
    ),
    "the end drains": ({}, row(PUT_1, END, A_1, (1, "get", ("a",), SHUT), (0, "publish", (9,), SHUT))),
    "the end at once": ({}, row(PUT_1, (0, "shutdown", (True,), None), (1, "get", ("a",), SHUT))),
    "a run of many": (
        {},
        row((0, "publish_many", ((1, 2),), 2), (1, "get_many", ("a", 5), [1, 2]), (0, "qsize", (), 2)),
    ),
}
BAD = {
    "got never published": ({}, row((1, "get", ("a",), 7))),
    "got twice by one subscriber": ({}, row(PUT_1, PUT_2, A_1, A_1)),
    "got twice by threads that share one": (
        {},
        [*row(PUT_1), Call(1, 20, 40, "get", ("a",), 1), Call(2, 21, 41, "get", ("a",), 1)],
    ),
    "order inverted": ({}, row(PUT_1, PUT_2, A_2, A_1)),
    "two subscribers see two orders": ({}, row(PUT_1, PUT_2, A_1, A_2, (2, "get", ("b",), 2), B_1)),
    "a number twice": ({}, row(PUT_1, (0, "publish", (2,), 0))),
    "a gap in the numbers": ({}, row(PUT_1, (0, "publish", (2,), 2))),
    "a number that the order denies": ({}, row((0, "publish", (1,), 1), (3, "publish", (2,), 0))),
    "empty while surely non-empty": ({}, row(PUT_1, (1, "get", ("a",), EMPTY))),
    "one subscriber does not get it": ({}, row(PUT_1, A_1, (2, "get", ("b",), EMPTY))),
    "a new one gets what was before": ({}, row(PUT_1, (1, "subscribe", ("c", "next"), None), (1, "get", ("c",), 1))),
    "a new one misses what comes later": (
        {},
        row((1, "subscribe", ("c", "next"), None), PUT_1, (1, "get", ("c",), EMPTY)),
    ),
    "retained for nobody": ({}, row(PUT_1, A_1, B_1, (1, "subscribe", ("c", 0), None))),
    "freed too early": ({}, row(PUT_1, A_1, (1, "subscribe", ("c", 0), Raised("ValueError")))),
    "over the bound": (BOUND, row(PUT_1, A_1, PUT_2)),
    "full with room": (BOUND, row(PUT_1, A_1, B_1, (0, "publish", (2,), FULL))),
    "full for nobody": (
        BOUND,
        row((1, "close", ("a",), None), (2, "close", ("b",), None), PUT_1, (0, "publish", (2,), FULL)),
    ),
    "dropped without need": (DROP, row(PUT_1, (2, "get", ("b",), Raised("Lagged", 1)))),
    "dropped and not told": (DROP, row(PUT_1, PUT_2, (2, "get", ("b",), 2))),
    "told twice": (DROP, row(PUT_1, PUT_2, *[(2, "get", ("b",), Raised("Lagged", 1))] * 2)),
    "told too little": (DROP, row(PUT_1, PUT_2, PUT_3, (2, "get", ("b",), Raised("Lagged", 1)))),
    "dropped for a message that was refused": (
        DROP,
        row(PUT_1, END, (0, "publish", (2,), SHUT), (2, "get", ("b",), Raised("Lagged", 1))),
    ),
    "dropped beside the end for a message that was refused": (
        DROP,
        [
            *row(PUT_1),
            Call(0, 10, 100, *END[1:]),
            Call(3, 11, 101, "publish", (2,), SHUT),
            Call(2, 200, 201, "get", ("b",), Raised("Lagged", 1)),
        ],
    ),
    "a run joined in the middle": (
        {},
        row((0, "publish_many", ((1, 2),), 2), (1, "subscribe", ("c", "next"), None), (1, "get", ("c",), 2)),
    ),
    "dropped from one who keeps up": (DROP, row(PUT_1, A_1, PUT_2, (1, "get", ("a",), Raised("Lagged", 1)))),
    "published after the end": ({}, row(END, PUT_1)),
    "ended before it was drained": ({}, row(PUT_1, END, (1, "get", ("a",), SHUT))),
    "got after it was closed": ({}, row(PUT_1, (1, "close", ("a",), None), A_1)),
    "empty after it was closed": ({}, row((1, "close", ("a",), None), (1, "get", ("a",), EMPTY))),
    "a closed one still counts": ({}, row(PUT_1, (1, "close", ("a",), None), B_1, (0, "qsize", (), 1))),
    "a run seen in part": (
        {},
        [Call(0, 0, 50, "publish_many", ((1, 2),), 2), Call(1, 1, 2, *A_1[1:]), Call(1, 3, 4, "get", ("a",), EMPTY)],
    ),
    "the wrong place": ({}, row(PUT_1, A_1, (1, "position", ("a",), 0))),
    "the wrong lag": ({}, row(PUT_1, A_1, (2, "lag", ("b",), 0))),
}


@pytest.mark.parametrize(("options", "calls"), GOOD.values(), ids=GOOD)
def test_a_right_history_is_explained(options, calls):
    check(calls, PubSubSpec("ab", **options, later="c"))


@pytest.mark.parametrize(("options", "calls"), BAD.values(), ids=BAD)
def test_a_wrong_history_is_refused(options, calls):
    with pytest.raises(NotLinearizable):
        check(calls, PubSubSpec("ab", **options, later="c"))


def test_closed_goes_before_all_else():
    check(row(PUT_1, END, (1, "close", ("a",), None), (1, "get", ("a",), CLOSED)), PubSubSpec("ab"))


# ------------------------------------------------------------------------------------------------------- the real queue
KINDS = {
    "items only": {"changes": False},
    "items only, no waiting": {"changes": False, "waits": False, "threads": 4, "calls": 3},
    "everything": {},
    "everything, four threads": {"threads": 4, "calls": 3},
    "everything, no waiting": {"waits": False, "threads": 2, "calls": 6},
}


@pytest.fixture(autouse=True)
def often():
    with switching_often():
        yield


def check_histories(seeds, **options):
    for seed in seeds:
        plan = PubSubPlan(seed, **options)
        try:
            check(plan.run(PubSubQueue), plan.spec)
        except AssertionError as error:
            error.add_note(f"the plan: PubSubPlan({seed}, **{options}), {plan.spec.maxsize=} {plan.spec.slow=}")
            raise


@pytest.mark.parametrize("kind", KINDS)
def test_small_histories(kind):
    check_histories(range(HISTORIES), **KINDS[kind])


@pytest.mark.parametrize("changes", [False, True], ids=["items only", "everything"])
def test_longer_histories(changes):
    check_histories(range(HISTORIES // 10), changes=changes, threads=3, calls=25, waits=False)


# ------------------------------------------------------------------------------------------------------------ long runs
SHAPES = {
    "one to one": {"publishers": 1, "shared": [1], "maxsize": 0},
    "many to many": {"publishers": 3, "shared": [1, 1, 1], "maxsize": 0},
    "threads share subscribers": {"publishers": 2, "shared": [2, 2], "maxsize": 0},
    "bounded": {"publishers": 2, "shared": [1, 2], "maxsize": 3},
}


def run(publishers, shared, maxsize, items):
    """The calls of publishers and of `shared[n]` threads on subscriber number n, and what is left."""
    queue = PubSubQueue(maxsize=maxsize)
    readers = [queue.subscribe() for _ in shared]
    publishing = [
        [
            Planned("publish", (item,), functools.partial(queue.publish, item), PUBLISHING)
            for item in range(n * items, (n + 1) * items)
        ]
        for n in range(publishers)
    ]
    waits = {"timeout": 30} if maxsize else {"block": False}
    taking = [[Planned("get", (n,), functools.partial(reader.get, **waits), TAKING)] * (publishers * items // threads)
              for n, (reader, threads) in enumerate(zip(readers, shared, strict=True)) for _ in range(threads)]
    calls = record(publishing + taking)
    now = max(call.end for call in calls)
    for n, reader in enumerate(readers):
        rest = reader.get_many(publishers * items, block=False) if reader.lag else []
        calls += [Call(-1, now, now, "get", (n,), item) for item in rest]
        reader.close()
    assert queue.qsize() == 0
    return calls


def wrong(calls, readers):
    """What is wrong with a long run: the bad patterns of each subscriber, as a queue of its own, and the numbers."""
    published = [call for call in calls if call.name == "publish"]
    puts = [Put(call.args[0], "", call.start, call.end) for call in published]
    order = [call.args[0] for call in sorted(published, key=lambda call: call.result)]
    place = {item: at for at, item in enumerate(order)}
    found = (
        []
        if sorted(call.result for call in published) == list(range(len(published)))
        else ["numbers with gaps or doubles"]
    )
    for n in range(readers):
        gets = [call for call in calls if call.name == "get" and call.args == (n,)]
        gots = [Got(call.result, call.start, call.end) for call in gets if not isinstance(call.result, Raised)]
        nothings = [Nothing(call.start, call.end) for call in gets if isinstance(call.result, Raised)]
        found += bad_patterns(puts, gots, nothings)
        for thread in {call.thread for call in gets}:
            places = [
                place.get(call.result, -1)
                for call in gets
                if call.thread == thread and not isinstance(call.result, Raised)
            ]
            found += [f"subscriber {n}, thread {thread}: not in the order of the numbers"] * (places != sorted(places))
        found += [f"subscriber {n} did not get all"] * (sorted(got.item for got in gots) != sorted(order))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_no_bad_pattern(shape):
    calls = run(**SHAPES[shape], items=ITEMS)
    assert wrong(calls, len(SHAPES[shape]["shared"]))[:5] == []


def doctored(calls, how):
    """A right run with one fault added."""
    gets = [call for call in calls if call.name == "get" and call.thread != -1 and not isinstance(call.result, Raised)]
    return how(calls, gets)


def edited(calls, *edits):
    """Each edit: (call, result), None drops the call."""
    gone = {id(call) for call, _ in edits}
    kept = [call for call in calls if id(call) not in gone]
    return kept + [
        Call(call.thread, call.start, call.end, call.name, call.args, result)
        for call, result in edits
        if result is not None
    ]


WRONG = {
    "lost": lambda calls, gets: edited(calls, (gets[10], None)),
    "doubled": lambda calls, gets: edited(calls, (gets[10], gets[9].result)),
    "inverted": lambda calls, gets: edited(calls, (gets[10], gets[40].result), (gets[40], gets[10].result)),
    "empty": lambda calls, gets: edited(calls, (gets[10], EMPTY)),
    "invented": lambda calls, gets: edited(calls, (gets[10], -7)),
    "numbers": lambda calls, gets: edited(
        calls, *((call, call.result + 1) for call in calls if call.name == "publish" and call.result == 5)
    ),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_long_run_is_caught(how):
    calls = run(**SHAPES["one to one"], items=200)
    assert wrong(calls, 1) == []
    calls = [call for call in calls if call.thread == 0] + [
        Call(1, 10**18 + 10 * n, 10**18 + 10 * n + 5, "get", (0,), item)
        for n, item in enumerate(sorted(c.args[0] for c in calls if c.thread == 0))
    ]
    assert wrong(calls, 1) == []
    assert wrong(doctored(calls, WRONG[how]), 1) != []
