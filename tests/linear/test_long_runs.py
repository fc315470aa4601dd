"""Long runs of the real queues with unique values: none of the bad patterns, nothing left, nothing lost.

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
from linear.multiqueue_plans import PUTTING, TAKING
from linear.patterns import Got, Nothing, Put, bad_patterns
from linear.toys import Forgetful
from manytail import EntryQueue, IndexMultiQueue, MultiQueue, PubSubQueue

ITEMS = count(1_000, 20_000, "MANYTAIL_ITEMS")

pytestmark = pytest.mark.thread_unsafe(reason="changes the switch interval and starts threads")


def putting(name: str, put: Any, putters: int, items: int, of: Any = lambda n: ()) -> list[list[Planned]]:
    """Each putter puts numbers of its own. of: the first arguments of its calls."""
    return [
        [
            Planned(name, (*of(n), number), functools.partial(put(n), number), PUTTING)
            for number in range(n * items, (n + 1) * items)
        ]
        for n in range(putters)
    ]


def waits(maxsize: int) -> dict[str, Any]:
    """Without a bound the getters do not wait. About half of their gets raise Empty: both results are checked."""
    return {"timeout": 30} if maxsize else {"block": False}


def taken(calls: list[Call]) -> tuple[list[Got], list[Nothing]]:
    failed = [call for call in calls if isinstance(call.result, Raised)]
    return (
        [Got(call.result, call.start, call.end) for call in calls if not isinstance(call.result, Raised)],
        [Nothing(call.start, call.end) for call in failed],
    )


@contextmanager
def switching() -> Iterator[None]:
    """Switch threads often, but not as often as possible: with many busy threads the GIL would only change hands."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


# ------------------------------------------------------------------------------------------------ multi-queues
def run(new: Any, items: int, tails: int, putters: int, getters: int, maxsize: int, levels: int, selection: str,
        beside: bool = True) -> list[str]:
    """Putters and getters at the same time, or one after the other; then what is left. Returns the bad patterns."""
    queue = new(selection=selection)
    handles = [queue.add(str(n), maxsize=maxsize, priority=n % levels) for n in range(tails)]
    lists = putting("put", lambda n: handles[n % tails].put, putters, items, lambda n: (str(n % tails),))
    taking = Planned("get", (), functools.partial(queue.get_with_key, **waits(maxsize)), TAKING)
    takers = [[taking] * (putters * items // getters) for _ in range(getters)]
    with switching():
        calls = record(lists + takers) if beside else numbered(record(lists), record(takers))
    puts = [
        Put(call.args[1], call.args[0], call.start, call.end, int(call.args[0]) % levels)
        for call in calls
        if call.name == "put"
    ]
    gots, nothings = taken([call for call in calls if call.name == "get"])
    left, nothing = rest(queue, max(call.end for call in calls))
    return bad_patterns(puts, [got._replace(item=got.item[1]) for got in gots] + left, [*nothings, nothing])


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
def test_no_bad_pattern_of_a_multi_queue(new, shape, selection):
    assert run(new, ITEMS, selection=selection, **SHAPES[shape])[:5] == []


def test_a_wrong_queue_is_caught():
    # beside=False: one after the other, so that no schedule can hide the fault.
    found = run(Forgetful, 300, selection="round_robin", beside=False, **SHAPES["a tail each"])
    assert any("empty while surely non-empty" in line for line in found)


# ------------------------------------------------------------------------------------------------ entries
@pytest.mark.parametrize(("putters", "getters", "shared"), [(1, 1, False), (2, 3, True), (3, 3, False)])
def test_no_bad_pattern_of_an_entry_queue(putters: int, getters: int, shared: bool) -> None:
    """Every fourth delivery is released, so an entry may be got several times: the first get of each counts."""
    queue, acked = EntryQueue(), []
    subscriptions = [queue.subscribe()] * getters if shared else [queue.subscribe() for _ in range(getters)]

    def take(subscription: Any, release: bool) -> Any:
        entry = subscription.get(False)
        assert entry.release() if release else entry.ack()
        if not release:
            acked.append(entry.item)
        return entry.item

    taking = [
        [Planned("get", (), functools.partial(take, of, (n + thread) % 4 == 0), TAKING)
         for n in range(putters * ITEMS * 4 // 3 // getters)]
        for thread, of in enumerate(subscriptions)
    ]  # fmt: skip
    with switching():
        calls = record(putting("put", lambda n: queue.put, putters, ITEMS) + taking)
    puts = [call for call in calls if call.name == "put"]
    gots, nothings = taken([call for call in calls if call.name == "get"])
    now = max(call.end for call in calls)
    while queue.depth():
        now += 1
        gots.append(Got(take(subscriptions[0], False), now, now))
    firsts = {got.item: got for got in sorted(gots, key=lambda got: got.end, reverse=True)}
    put = [Put(call.args[0], "", call.start, call.end) for call in puts]
    assert bad_patterns(put, list(firsts.values()), nothings)[:5] == []
    assert sorted(acked) == list(range(putters * ITEMS))
    assert sorted(call.result.seq for call in puts) == list(range(putters * ITEMS))
    for subscription in subscriptions:
        subscription.close()


# ------------------------------------------------------------------------------------------------ messages
OF_MESSAGES = {
    "one to one": (1, [1], 0),
    "many to many": (3, [1, 1, 1], 0),
    "threads share subscribers": (2, [2, 2], 0),
    "bounded": (2, [1, 2], 3),
}


@pytest.mark.parametrize(("publishers", "shared", "maxsize"), OF_MESSAGES.values(), ids=OF_MESSAGES)
def test_no_bad_pattern_of_a_pub_sub_queue(publishers: int, shared: list[int], maxsize: int) -> None:
    """`shared[n]` threads on subscriber number n. To each subscriber the queue is one of its own."""
    queue: Any = PubSubQueue(maxsize=maxsize)
    readers = [queue.subscribe() for _ in shared]
    gets = [functools.partial(reader.get, **waits(maxsize)) for reader in readers]
    getting = [Planned("get", (n,), get, TAKING) for n, get in enumerate(gets)]
    taking = [
        [get] * (publishers * ITEMS // threads)
        for get, threads in zip(getting, shared, strict=True)
        for _ in range(threads)
    ]
    calls = record(putting("publish", lambda n: queue.publish, publishers, ITEMS) + taking)
    published = sorted((call for call in calls if call.name == "publish"), key=lambda call: call.result)
    assert [call.result for call in published] == list(range(len(published)))
    puts = [Put(call.args[0], "", call.start, call.end) for call in published]
    place = {put.item: at for at, put in enumerate(puts)}
    now = max(call.end for call in calls)
    for n, reader in enumerate(readers):
        of_reader = [call for call in calls if call.args == (n,) and call.name == "get"]
        gots, nothings = taken(of_reader)
        gots += [Got(item, now, now) for item in (reader.get_many(len(puts), block=False) if reader.lag else [])]
        assert bad_patterns(puts, gots, nothings)[:5] == []
        assert sorted(place[got.item] for got in gots) == list(range(len(puts)))
        for thread in {call.thread for call in of_reader}:
            places = [place[got.item] for got in taken([call for call in of_reader if call.thread == thread])[0]]
            assert places == sorted(places)
        reader.close()
    assert queue.qsize() == 0
