"""The specifications themselves: histories by hand that they explain, and wrong ones that they refuse."""
import copy

import pytest

from linear.checker import NotLinearizable, check, linearization
from linear.entry_spec import EntrySpec, Subscriber
from linear.history import CLOSED, EMPTY, FULL, SHUT, Call, Raised
from linear.multiqueue_spec import MultiQueueSpec, Tail
from linear.pubsub_spec import PubSubSpec


def row(*calls):
    """Calls one after the other: (thread, name, args, result) each."""
    return [Call(thread, 10 * n, 10 * n + 5, *call) for n, (thread, *call) in enumerate(calls)]


def side_by_side(*calls, at=0):
    return [Call(thread, at + n, at + 100 + n, *call) for n, (thread, *call) in enumerate(calls)]


# ------------------------------------------------------------------------------------------------ MultiQueue
def history(*calls):
    """(thread, start, end, name, args, result)"""
    return [Call(*call) for call in calls]


def one_tail(**options):
    return MultiQueueSpec([Tail("a", **options)])


def two_tails(**options):
    return MultiQueueSpec([Tail("a"), Tail("b", **options)])


PUT_1, PUT_2 = ("put", ("a", 1), None), ("put", ("a", 2), None)
GET_1, GET_2, NONE = ("get", (), ("a", 1)), ("get", (), ("a", 2)), ("get", (), EMPTY)

OF_MULTIQUEUE = {
    "nothing happened": (one_tail(), history()),
    "one after the other": (one_tail(), history(
        (0, 0, 1, *PUT_1), (0, 2, 3, *PUT_2), (1, 4, 5, *GET_1), (1, 6, 7, *GET_2),
    )),
    "puts side by side, the other order": (one_tail(), history(
        (0, 0, 5, *PUT_1), (1, 1, 4, *PUT_2), (0, 6, 7, *GET_2), (0, 8, 9, *GET_1),
    )),
    "got while it is put": (one_tail(), history((0, 0, 9, *PUT_1), (1, 1, 2, *GET_1))),
    "empty while it is put": (one_tail(), history((0, 0, 9, *PUT_1), (1, 1, 2, *NONE), (1, 10, 11, *GET_1))),
    "touching in one instant is side by side": (one_tail(), history((0, 0, 5, *PUT_1), (1, 5, 6, *NONE))),
    "full while it is got": (one_tail(maxsize=1), history(
        (0, 0, 1, *PUT_1), (1, 2, 9, *GET_1), (0, 3, 4, "put", ("a", 2), Raised("Full")),
    )),
    "a bulk put in two steps": (one_tail(maxsize=1), history(
        (0, 0, 9, "put_many", ("a", (1, 2)), 2), (1, 1, 2, *GET_1), (1, 10, 11, *GET_2),
    )),
    "turn and turn about": (two_tails(), history(
        (0, 0, 1, "put_many", ("a", (1, 2)), 2), (0, 2, 3, "put", ("b", 3), None), (1, 4, 5, *GET_1),
        (1, 6, 7, "get", (), ("b", 3)), (1, 8, 9, *GET_2),
    )),
    "a shutdown drains": (one_tail(), history(
        (0, 0, 1, *PUT_1), (0, 2, 3, "shutdown", (False,), None), (1, 4, 5, *GET_1), (1, 6, 7, "get", (), SHUT),
    )),
}
NOT_OF_MULTIQUEUE = {
    "order inverted": (one_tail(), history((0, 0, 1, *PUT_1), (0, 2, 3, *PUT_2), (1, 4, 5, *GET_2))),
    "got twice": (one_tail(), history((0, 0, 1, *PUT_1), (1, 2, 3, *GET_1), (1, 4, 5, *GET_1))),
    "got twice side by side": (one_tail(), history((0, 0, 1, *PUT_1), (1, 2, 9, *GET_1), (2, 3, 8, *GET_1))),
    "lost": (one_tail(), history((0, 0, 1, *PUT_1), (0, 2, 3, *PUT_2), (1, 4, 5, *GET_1), (1, 6, 7, *NONE))),
    "empty while surely non-empty": (one_tail(), history((0, 0, 1, *PUT_1), (1, 2, 3, *NONE))),
    "the same turn twice": (two_tails(), history(
        (0, 0, 1, "put_many", ("a", (1, 2)), 2), (0, 2, 3, "put", ("b", 3), None), (1, 4, 5, *GET_1), (1, 6, 7, *GET_2),
    )),
    "over the bound": (one_tail(maxsize=1), history((0, 0, 1, *PUT_1), (0, 2, 3, *PUT_2))),
    "a disabled one is served": (one_tail(enabled=False), history((0, 0, 1, *PUT_1), (1, 2, 3, *GET_1))),
    "unfinished though it was cleared": (one_tail(), history(
        (0, 0, 1, *PUT_1), (0, 2, 3, "clear", ("a",), 1), (0, 4, 5, "join", (), False),
    )),
    "a lower priority first": (two_tails(priority=-1), history(
        (0, 0, 1, *PUT_1), (0, 2, 3, "put", ("b", 3), None), (1, 4, 5, *GET_1),
    )),
    "put after the shutdown": (one_tail(), history((0, 0, 1, "shutdown", (False,), None), (0, 2, 3, *PUT_1))),
    "drained too early": (one_tail(), history(
        (0, 0, 1, *PUT_1), (0, 2, 3, "shutdown", (False,), None), (1, 4, 5, "get", (), SHUT),
    )),
    "put behind, not in front": (one_tail(), history(
        (0, 0, 1, *PUT_1), (0, 2, 3, "put_front", ("a", 2), None), (1, 4, 5, *GET_1),
    )),
    "got never put": (one_tail(), history((0, 0, 1, *GET_1))),
    "got before it was put": (one_tail(), history((0, 0, 1, *GET_1), (1, 2, 3, *PUT_1))),
    "empty, explained only by a get that comes later": (one_tail(), history(
        (0, 0, 1, *PUT_1), (1, 2, 3, *NONE), (2, 4, 5, *GET_1),
    )),
    "full while there is room": (one_tail(maxsize=1), history((0, 0, 1, "put", ("a", 1), Raised("Full")))),
    "a bulk put seen in part": (one_tail(), history(
        (0, 0, 9, "put_many", ("a", (1, 2)), 2), (1, 1, 2, *GET_1), (1, 3, 4, *NONE),
    )),
    "the wrong count": (one_tail(), history((0, 0, 1, *PUT_1), (0, 2, 3, "clear", ("a",), 2))),
}


# ------------------------------------------------------------------------------------------------ EntryQueue
def put(item, level=0, group=None, result=None):
    return (0, "put", (item, level, group), result)


def get(delivery, item, name="a"):
    return (0, "get", (name, delivery), item)


def end(name, delivery, result=True):
    return (0, name, (delivery,), result)


def at_once(*calls):
    """Side by side, by a thread each, after a row."""
    return side_by_side(*((thread, *call[1:]) for thread, call in enumerate(calls, 1)), at=100)


SHUTDOWN, NOW = (0, "shutdown", (False,), None), (0, "shutdown", (True,), None)
ONE, TWO = get("x", 1), get("y", 2)
BOUND = {"maxsize": 1, "overflow": "reject"}
DROP = {"maxsize": 1, "overflow": "drop_oldest"}
LEVELS, SHARED = {"levels": 3}, {"groups": "shared"}

OF_ENTRIES = {
    "in order": ({}, row(put(1), put(2), ONE, TWO, get("z", EMPTY))),
    "back at its old place": ({}, row(put(1), put(2), ONE, end("release", "x"), get("z", 1, "b"), TWO)),
    "a delivery ends once": ({}, row(put(1), ONE, end("ack", "x"), end("ack", "x", False), end("release", "x", False))),
    "an old delivery does nothing": ({}, row(
        put(1), ONE, end("release", "x"), get("z", 1, "b"), end("ack", "x", False), end("ack", "z"),
    )),
    "taken while it is released": ({}, [*row(put(1), put(2), ONE), *at_once(end("release", "x"), get("y", 2))]),
    "the other way round": ({}, [*row(put(1), put(2), ONE), *at_once(end("release", "x"), get("y", 1))]),
    "one of two wins": ({}, [*row(put(1), ONE), *at_once(end("ack", "x"), end("reject", "x", False))]),
    "urgent first": (LEVELS, row(put(1), put(2, 2), put(3, 1), get("x", 2), get("y", 3), get("z", 1))),
    "a group stays with its holder": (SHARED, row(
        put(1, 0, "g"), put(2, 0, "g"), put(3), ONE, get("y", 3, "b"), get("z", 2),
    )),
    "no credit": ({}, row(
        put(1), put(2), get("x", 1, "one"), get("y", EMPTY, "one"), end("ack", "x"), get("z", 2, "one"),
    )),
    "closing releases": ({}, row(
        put(1), put(2), ONE, (0, "close", ("a",), None), end("ack", "x", False), get("z", 1, "b"), get("w", CLOSED),
    )),
    "an unlocked one is purged": ({}, row(
        put(1), ONE, end("unlock", "x"), (0, "purge", (), 1), end("ack", "x", False),
    )),
    "a locked one is not": ({}, row(put(1), put(2), ONE, (0, "purge", (), 1), end("ack", "x"))),
    "the oldest is dropped": (DROP, row(
        put(1), put(2), get("x", 2), put(3), (0, "depth", (), 2), end("release", "x"), get("y", 3),
    )),
    "the end": ({}, row(put(1), SHUTDOWN, put(2, result=SHUT), ONE, get("y", SHUT), end("release", "x"), get("z", 1))),
    "the end at once": ({}, row(put(1), put(2), ONE, NOW, get("y", SHUT), end("release", "x"), (0, "depth", (), 0))),
    "all up to one": ({}, row(
        put(1), put(2), put(3), ONE, TWO, get("z", 3), (0, "ack_up_to", ("a", "y"), 2), end("ack", "z"),
    )),
    "many": ({}, row(
        put(1), put(2), (0, "get_many", ("a", 5, "m"), [1, 2]), end("ack", ("m", 1)), (0, "unacked", ("a",), 1),
    )),
    "counted while it is acknowledged": ({}, [*row(put(1), ONE), *at_once(end("ack", "x"), (0, "depth", (), 1))]),
}
NOT_OF_ENTRIES = {
    "got never put": ({}, row(get("x", 7))),
    "got twice": ({}, row(put(1), ONE, get("y", 1, "b"))),
    "got twice side by side": ({}, [*row(put(1)), *at_once(get("x", 1), get("y", 1, "b"))]),
    "order inverted": ({}, row(put(1), put(2), get("x", 2))),
    "acknowledged twice": ({}, row(put(1), ONE, end("ack", "x"), end("ack", "x"))),
    "acknowledged and released": ({}, [*row(put(1), ONE), *at_once(end("ack", "x"), end("release", "x"))]),
    "acknowledged by an old delivery": ({}, row(put(1), ONE, end("release", "x"), get("y", 1, "b"), end("ack", "x"))),
    "acknowledged and got again": ({}, row(put(1), ONE, end("ack", "x"), get("y", 1))),
    "held, but its end is refused": ({}, row(put(1), ONE, end("ack", "x", False))),
    "back at the end of the order": ({}, row(put(1), put(2), ONE, end("release", "x"), get("y", 2))),
    "lost by the release": ({}, row(put(1), ONE, end("release", "x"), get("y", EMPTY))),
    "passed by a pointer that was beyond it": ({}, row(
        put(1), put(2), put(3), ONE, TWO, end("release", "x"), get("z", 3),
    )),
    "empty while surely available": ({}, row(put(1), get("x", EMPTY))),
    "the lower level first": (LEVELS, row(put(1), put(2, 2), get("x", 1))),
    "a group in two hands": (SHARED, row(put(1, 0, "g"), put(2, 0, "g"), ONE, get("y", 2, "b"))),
    "a group kept without reason": (SHARED, row(
        put(1, 0, "g"), put(2, 0, "g"), ONE, end("ack", "x"), get("y", EMPTY, "b"),
    )),
    "beyond its credit": ({}, row(put(1), put(2), get("x", 1, "one"), get("y", 2, "one"))),
    "credit that does not come back": ({}, row(
        put(1), put(2), get("x", 1, "one"), end("release", "x"), get("y", EMPTY, "one"),
    )),
    "closing keeps what it holds": ({}, row(put(1), ONE, (0, "close", ("a",), None), get("y", EMPTY, "b"))),
    "acknowledged after closing": ({}, row(put(1), ONE, (0, "close", ("a",), None), end("ack", "x"))),
    "got after closing": ({}, row(put(1), (0, "close", ("a",), None), ONE)),
    "purged while locked": ({}, row(put(1), ONE, (0, "purge", (), 1))),
    "purged and acknowledged": ({}, row(put(1), ONE, end("unlock", "x"), (0, "purge", (), 1), end("ack", "x"))),
    "over the bound": (BOUND, row(put(1), put(2))),
    "full with room": (BOUND, row(put(1), ONE, end("ack", "x"), put(2, result=FULL))),
    "no room though one left": (BOUND, row(put(1), ONE, put(2))),
    "dropped the new one": (DROP, row(put(1), put(2), get("x", 1))),
    "dropped a locked one": (DROP, row(put(1), ONE, put(2), end("ack", "x", False))),
    "put after the end": ({}, row(SHUTDOWN, put(1))),
    "ended before it was drained": ({}, row(put(1), SHUTDOWN, get("x", SHUT))),
    "ended at once, and got": ({}, row(put(1), NOW, ONE)),
    "came back after the end at once": ({}, row(put(1), ONE, NOW, end("release", "x"), get("y", 1))),
    "acknowledged too many": ({}, row(put(1), put(2), ONE, TWO, (0, "ack_up_to", ("a", "x"), 2))),
    "the wrong depth": ({}, row(put(1), ONE, (0, "depth", (), 0))),
    "the wrong size": ({}, row(put(1), ONE, (0, "qsize", (), 1))),
}


# ------------------------------------------------------------------------------------------------ PubSubQueue
SAID_1, SAID_2, SAID_3 = (0, "publish", (1,), 0), (0, "publish", (2,), 1), (0, "publish", (3,), 2)
A_1, A_2, B_1 = (1, "get", ("a",), 1), (1, "get", ("a",), 2), (2, "get", ("b",), 1)
ONE_SLOT = {"maxsize": 1, "slow": "raise"}
MOVED = {"maxsize": 1, "slow": "drop_oldest"}

OF_MESSAGES = {
    "each gets each": ({}, row(SAID_1, A_1, B_1, SAID_2, A_2)),
    "two publishers side by side": ({}, [*side_by_side(SAID_2, (3, "publish", (1,), 0)), Call(1, 200, 201, *A_1[1:])]),
    "empty while it is published": ({}, side_by_side(SAID_1, (1, "get", ("a",), EMPTY))),
    "a new one gets what comes later": ({}, row(
        SAID_1, (1, "subscribe", ("c", "next"), None), SAID_2, (1, "get", ("c",), 2),
    )),
    "a new one gets what is retained": ({}, row(
        SAID_1, SAID_2, A_1, (1, "subscribe", ("c", "oldest"), None), (1, "get", ("c",), 1),
    )),
    "a number that is not retained": ({}, row(SAID_1, A_1, B_1, (1, "subscribe", ("c", 0), Raised("ValueError")))),
    "full until the slowest has taken": (ONE_SLOT, row(SAID_1, A_1, (0, "publish", (2,), FULL), B_1, SAID_2)),
    "close gives up the rest": (ONE_SLOT, row(SAID_1, A_1, (2, "close", ("b",), None), SAID_2)),
    "the slowest is moved": (MOVED, row(
        SAID_1, A_1, SAID_2, (2, "get", ("b",), Raised("Lagged", 1)), (2, "get", ("b",), 2), A_2,
    )),
    "the end drains": ({}, row(SAID_1, SHUTDOWN, A_1, (1, "get", ("a",), SHUT), (0, "publish", (9,), SHUT))),
    "the end at once": ({}, row(SAID_1, (0, "shutdown", (True,), None), (1, "get", ("a",), SHUT))),
    "a run of many": ({}, row(
        (0, "publish_many", ((1, 2),), 2), (1, "get_many", ("a", 5), [1, 2]), (0, "qsize", (), 2),
    )),
    "closed goes before all else": ({}, row(SAID_1, SHUTDOWN, (1, "close", ("a",), None), (1, "get", ("a",), CLOSED))),
}
NOT_OF_MESSAGES = {
    "got never published": ({}, row((1, "get", ("a",), 7))),
    "got twice by one subscriber": ({}, row(SAID_1, SAID_2, A_1, A_1)),
    "got twice by threads that share one": ({}, [*row(
        SAID_1,
    ), Call(1, 20, 40, "get", ("a",), 1), Call(2, 21, 41, "get", ("a",), 1)]),
    "order inverted": ({}, row(SAID_1, SAID_2, A_2, A_1)),
    "two subscribers see two orders": ({}, row(SAID_1, SAID_2, A_1, A_2, (2, "get", ("b",), 2), B_1)),
    "a number twice": ({}, row(SAID_1, (0, "publish", (2,), 0))),
    "a gap in the numbers": ({}, row(SAID_1, (0, "publish", (2,), 2))),
    "a number that the order denies": ({}, row((0, "publish", (1,), 1), (3, "publish", (2,), 0))),
    "empty while surely non-empty": ({}, row(SAID_1, (1, "get", ("a",), EMPTY))),
    "one subscriber does not get it": ({}, row(SAID_1, A_1, (2, "get", ("b",), EMPTY))),
    "a new one gets what was before": ({}, row(SAID_1, (1, "subscribe", ("c", "next"), None), (1, "get", ("c",), 1))),
    "a new one misses what comes later": ({}, row(
        (1, "subscribe", ("c", "next"), None), SAID_1, (1, "get", ("c",), EMPTY),
    )),
    "retained for nobody": ({}, row(SAID_1, A_1, B_1, (1, "subscribe", ("c", 0), None))),
    "freed too early": ({}, row(SAID_1, A_1, (1, "subscribe", ("c", 0), Raised("ValueError")))),
    "over the bound": (ONE_SLOT, row(SAID_1, A_1, SAID_2)),
    "full with room": (ONE_SLOT, row(SAID_1, A_1, B_1, (0, "publish", (2,), FULL))),
    "full for nobody": (ONE_SLOT, row(
        (1, "close", ("a",), None), (2, "close", ("b",), None), SAID_1, (0, "publish", (2,), FULL),
    )),
    "dropped without need": (MOVED, row(SAID_1, (2, "get", ("b",), Raised("Lagged", 1)))),
    "dropped and not told": (MOVED, row(SAID_1, SAID_2, (2, "get", ("b",), 2))),
    "told twice": (MOVED, row(SAID_1, SAID_2, *[(2, "get", ("b",), Raised("Lagged", 1))] * 2)),
    "told too little": (MOVED, row(SAID_1, SAID_2, SAID_3, (2, "get", ("b",), Raised("Lagged", 1)))),
    "dropped for a message that was refused": (MOVED, row(
        SAID_1, SHUTDOWN, (0, "publish", (2,), SHUT), (2, "get", ("b",), Raised("Lagged", 1)),
    )),
    "dropped beside the end for a message that was refused": (MOVED, [
        *row(SAID_1), Call(0, 10, 100, *SHUTDOWN[1:]), Call(3, 11, 101, "publish", (2,), SHUT),
        Call(2, 200, 201, "get", ("b",), Raised("Lagged", 1)),
    ]),
    "a run joined in the middle": ({}, row(
        (0, "publish_many", ((1, 2),), 2), (1, "subscribe", ("c", "next"), None), (1, "get", ("c",), 2),
    )),
    "dropped from one who keeps up": (MOVED, row(SAID_1, A_1, SAID_2, (1, "get", ("a",), Raised("Lagged", 1)))),
    "published after the end": ({}, row(SHUTDOWN, SAID_1)),
    "ended before it was drained": ({}, row(SAID_1, SHUTDOWN, (1, "get", ("a",), SHUT))),
    "got after it was closed": ({}, row(SAID_1, (1, "close", ("a",), None), A_1)),
    "empty after it was closed": ({}, row((1, "close", ("a",), None), (1, "get", ("a",), EMPTY))),
    "a closed one still counts": ({}, row(SAID_1, (1, "close", ("a",), None), B_1, (0, "qsize", (), 1))),
    "a run seen in part": ({}, [
        Call(0, 0, 50, "publish_many", ((1, 2),), 2), Call(1, 1, 2, *A_1[1:]), Call(1, 3, 4, "get", ("a",), EMPTY),
    ]),
    "the wrong place": ({}, row(SAID_1, A_1, (1, "position", ("a",), 0))),
    "the wrong lag": ({}, row(SAID_1, A_1, (2, "lag", ("b",), 0))),
}


# ------------------------------------------------------------------------------------------------ the tests
def cases(of_multiqueue, of_entries, of_messages):
    for name, (spec, calls) in of_multiqueue.items():
        yield pytest.param(spec, calls, id=f"multi-queue: {name}")
        yield pytest.param(copy.deepcopy(spec).knowing(calls), calls, id=f"multi-queue, knowing: {name}")
    subscribers = [Subscriber("a"), Subscriber("b"), Subscriber("one", prefetch=1)]
    for name, (options, calls) in of_entries.items():
        yield pytest.param(EntrySpec(subscribers, **options), calls, id=f"entries: {name}")
    for name, (options, calls) in of_messages.items():
        yield pytest.param(PubSubSpec("ab", **options, later="c"), calls, id=f"messages: {name}")


@pytest.mark.parametrize(("spec", "calls"), list(cases(OF_MULTIQUEUE, OF_ENTRIES, OF_MESSAGES)))
def test_a_right_history_is_explained(spec, calls):
    check(calls, spec)
    assert {id(call) for call in linearization(calls, spec)} == {id(call) for call in calls}


@pytest.mark.parametrize(("spec", "calls"), list(cases(NOT_OF_MULTIQUEUE, NOT_OF_ENTRIES, NOT_OF_MESSAGES)))
def test_a_wrong_history_is_refused(spec, calls):
    with pytest.raises(NotLinearizable, match=r"no order of these calls"):
        check(calls, spec)
