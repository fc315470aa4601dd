"""Long runs of the real multi-queues with unique values: none of the bad patterns, nothing left, nothing lost.

MANYTAIL_ITEMS says how many items each putter puts (default 1,000).
"""
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty
from typing import Any

import pytest
from support.counts import count

from linear.history import Call, Planned, Raised, record
from linear.patterns import Got, Nothing, Put, bad_patterns
from linear.plans import PUTTING, TAKING
from linear.toys import Forgetful, NewestFirst, StaleEmpty, Toy, Twice
from manytail import IndexMultiQueue, MultiQueue

ITEMS = count(1_000, 20_000, "MANYTAIL_ITEMS")

pytestmark = pytest.mark.thread_unsafe(reason="changes the switch interval and starts threads")


def run(new: Any, items: int, tails: int, putters: int, getters: int, maxsize: int, levels: int, selection: str,
        beside: bool = True) -> list[str]:
    """Putters and getters at the same time, or one after the other; then what is left. Returns the bad patterns."""
    queue = new(selection=selection)
    handles = [queue.add(str(n), maxsize=maxsize, priority=n % levels) for n in range(tails)]
    priority = {str(n): n % levels for n in range(tails)}
    lists = [[Planned("put", (str(n % tails), number), functools.partial(handles[n % tails].put, number), PUTTING)
              for number in range(n * items, (n + 1) * items)] for n in range(putters)]
    # Without a bound the getters do not wait. About half of their gets raise Empty: both results are checked.
    share = putters * items // getters
    waits = {"timeout": 30} if maxsize else {"block": False}
    taking = Planned("get", (), functools.partial(queue.get_with_key, **waits), TAKING)
    with switching():
        takers = [[taking] * share for _ in range(getters)]
        calls = record(lists + takers) if beside else numbered(record(lists), record(takers))
    puts = [
        Put(call.args[1], call.args[0], call.start, call.end, priority[call.args[0]])
        for call in calls
        if call.name == "put"
    ]
    gets = [call for call in calls if call.name == "get"]
    gots = [Got(call.result[1], call.start, call.end) for call in gets if not isinstance(call.result, Raised)]
    nothings = [Nothing(call.start, call.end) for call in gets if isinstance(call.result, Raised)]
    left, nothing = rest(queue, max(call.end for call in calls))
    return bad_patterns(puts, gots + left, [*nothings, nothing])


@contextmanager
def switching() -> Iterator[None]:
    """Switch threads often, but not as often as possible: with many busy threads the GIL would only change hands."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def numbered(first: list[Call], second: list[Call]) -> list[Call]:
    """Two histories as one. The threads of the second get numbers of their own."""
    return first + [replace(call, thread=~call.thread) for call in second]


def rest(queue: Any, now: int) -> tuple[list[Got], Nothing]:
    """What is left, taken by one thread after all others have ended, and the Empty at the end. It shows lost items."""
    left = []
    while True:
        now += 1
        try:
            left.append(Got(queue.get_with_key(block=False)[1], now, now))
        except Empty:
            return left, Nothing(now, now)


SHAPES = {
    "one tail": {"tails": 1, "putters": 1, "getters": 1, "maxsize": 0, "levels": 1},
    "one tail, many threads": {"tails": 1, "putters": 3, "getters": 3, "maxsize": 0, "levels": 1},
    "a tail each": {"tails": 3, "putters": 3, "getters": 2, "maxsize": 0, "levels": 1},
    "priorities": {"tails": 4, "putters": 4, "getters": 2, "maxsize": 0, "levels": 2},
    "bounded": {"tails": 2, "putters": 4, "getters": 2, "maxsize": 2, "levels": 1},
    "bounded, priorities": {"tails": 3, "putters": 3, "getters": 3, "maxsize": 1, "levels": 3},
}


@pytest.mark.parametrize("selection", ["round_robin", "weighted", "oldest"])
@pytest.mark.parametrize("new", [MultiQueue, IndexMultiQueue], ids=["objects", "index"])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_bad_pattern(new, shape, selection):
    assert run(new, ITEMS, selection=selection, **SHAPES[shape])[:5] == []


WRONG = {Toy: None, NewestFirst: "order inverted", Forgetful: "empty while surely non-empty", Twice: "got twice",
         StaleEmpty: "empty while surely non-empty"}


@pytest.mark.parametrize(("new", "words"), WRONG.items())
def test_wrong_queues_are_caught(new, words):
    # beside=False: one after the other, so that no schedule can hide the fault.
    found = run(new, 300, selection="round_robin", beside=False, **SHAPES["a tail each"])
    assert (found == []) if words is None else any(words in line for line in found)
