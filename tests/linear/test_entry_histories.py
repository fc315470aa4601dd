"""Histories of real EntryQueues: the specification explains small ones, and long ones show no bad pattern. It refuses
histories that are known to be wrong.

MANYTAIL_HISTORIES says how many small ones of each kind (default 300), MANYTAIL_ITEMS how many entries each putter of
a long run puts (default 1,000).
"""

import functools
from bisect import bisect_left, insort
from itertools import zip_longest
from math import inf

import pytest
from support.counts import count
from support.threads import switching_often

from linear.checker import NotLinearizable, check
from linear.entry_plans import TAKING, EntryPlan
from linear.entry_spec import CLOSED, EMPTY, FULL, SHUT, EntrySpec, Subscriber
from linear.history import Call, Planned, Raised, record
from linear.patterns import Got, Nothing, Put, bad_patterns
from manytail import EntryQueue

HISTORIES = count(300, 3_000, "MANYTAIL_HISTORIES")
ITEMS = count(1_000, 20_000, "MANYTAIL_ITEMS")

pytestmark = pytest.mark.thread_unsafe(reason="changes the switch interval and starts threads")


# ---------------------------------------------------------------------------------------------------- the specification
def row(*calls):
    """Calls of one thread, one after the other: (name, args, result) each."""
    return [Call(0, 10 * n, 10 * n + 5, *call) for n, call in enumerate(calls)]


def side_by_side(*calls, at=0):
    return [Call(thread, at + thread, at + 100 + thread, *call) for thread, call in enumerate(calls, 1)]


def put(item, level=0, group=None, result=None):
    return ("put", (item, level, group), result)


def get(delivery, item, name="a"):
    return ("get", (name, delivery), item)


def end(name, delivery, result=True):
    return (name, (delivery,), result)


SHUTDOWN, NOW = ("shutdown", (False,), None), ("shutdown", (True,), None)
ONE, TWO = get("x", 1), get("y", 2)
BOUND = {"maxsize": 1, "overflow": "reject"}
DROP = {"maxsize": 1, "overflow": "drop_oldest"}
LEVELS, SHARED = {"levels": 3}, {"groups": "shared"}

GOOD = {
    "in order": ({}, row(put(1), put(2), ONE, TWO, get("z", EMPTY))),
    "back at its old place": ({}, row(put(1), put(2), ONE, end("release", "x"), get("z", 1, "b"), TWO)),
    "a delivery ends once": ({}, row(put(1), ONE, end("ack", "x"), end("ack", "x", False), end("release", "x", False))),
    "an old delivery does nothing": (
        {},
        row(put(1), ONE, end("release", "x"), get("z", 1, "b"), end("ack", "x", False), end("ack", "z")),
    ),
    "taken while it is released": (
        {},
        [*row(put(1), put(2), ONE), *side_by_side(end("release", "x"), get("y", 2), at=100)],
    ),
    "the other way round": ({}, [*row(put(1), put(2), ONE), *side_by_side(end("release", "x"), get("y", 1), at=100)]),
    "one of two wins": ({}, [*row(put(1), ONE), *side_by_side(end("ack", "x"), end("reject", "x", False), at=100)]),
    "urgent first": (LEVELS, row(put(1), put(2, 2), put(3, 1), get("x", 2), get("y", 3), get("z", 1))),
    "a group stays with its holder": (
        SHARED,
        row(put(1, 0, "g"), put(2, 0, "g"), put(3), ONE, get("y", 3, "b"), get("z", 2)),
    ),
    "no credit": (
        {},
        row(put(1), put(2), get("x", 1, "one"), get("y", EMPTY, "one"), end("ack", "x"), get("z", 2, "one")),
    ),
    "closing releases": (
        {},
        row(put(1), put(2), ONE, ("close", ("a",), None), end("ack", "x", False), get("z", 1, "b"), get("w", CLOSED)),
    ),
    "an unlocked one is purged": ({}, row(put(1), ONE, end("unlock", "x"), ("purge", (), 1), end("ack", "x", False))),
    "a locked one is not": ({}, row(put(1), put(2), ONE, ("purge", (), 1), end("ack", "x"))),
    "the oldest is dropped": (
        DROP,
        row(put(1), put(2), get("x", 2), put(3), ("depth", (), 2), end("release", "x"), get("y", 3)),
    ),
    "the end": ({}, row(put(1), SHUTDOWN, put(2, result=SHUT), ONE, get("y", SHUT), end("release", "x"), get("z", 1))),
    "the end at once": ({}, row(put(1), put(2), ONE, NOW, get("y", SHUT), end("release", "x"), ("depth", (), 0))),
    "all up to one": (
        {},
        row(put(1), put(2), put(3), ONE, TWO, get("z", 3), ("ack_up_to", ("a", "y"), 2), end("ack", "z")),
    ),
    "many": (
        {},
        row(put(1), put(2), ("get_many", ("a", 5, "m"), [1, 2]), end("ack", ("m", 1)), ("unacked", ("a",), 1)),
    ),
    "counted while it is acknowledged": (
        {},
        [*row(put(1), ONE), *side_by_side(end("ack", "x"), ("depth", (), 1), at=100)],
    ),
}
BAD = {
    "got never put": ({}, row(get("x", 7))),
    "got twice": ({}, row(put(1), ONE, get("y", 1, "b"))),
    "got twice side by side": ({}, [*row(put(1)), *side_by_side(get("x", 1), get("y", 1, "b"), at=100)]),
    "order inverted": ({}, row(put(1), put(2), get("x", 2))),
    "acknowledged twice": ({}, row(put(1), ONE, end("ack", "x"), end("ack", "x"))),
    "acknowledged and released": ({}, [*row(put(1), ONE), *side_by_side(end("ack", "x"), end("release", "x"), at=100)]),
    "acknowledged by an old delivery": ({}, row(put(1), ONE, end("release", "x"), get("y", 1, "b"), end("ack", "x"))),
    "acknowledged and got again": ({}, row(put(1), ONE, end("ack", "x"), get("y", 1))),
    "held, but its end is refused": ({}, row(put(1), ONE, end("ack", "x", False))),
    "back at the end of the order": ({}, row(put(1), put(2), ONE, end("release", "x"), get("y", 2))),
    "lost by the release": ({}, row(put(1), ONE, end("release", "x"), get("y", EMPTY))),
    "passed by a pointer that was beyond it": (
        {},
        row(put(1), put(2), put(3), ONE, TWO, end("release", "x"), get("z", 3)),
    ),
    "empty while surely available": ({}, row(put(1), get("x", EMPTY))),
    "the lower level first": (LEVELS, row(put(1), put(2, 2), get("x", 1))),
    "a group in two hands": (SHARED, row(put(1, 0, "g"), put(2, 0, "g"), ONE, get("y", 2, "b"))),
    "a group kept without reason": (
        SHARED,
        row(put(1, 0, "g"), put(2, 0, "g"), ONE, end("ack", "x"), get("y", EMPTY, "b")),
    ),
    "beyond its credit": ({}, row(put(1), put(2), get("x", 1, "one"), get("y", 2, "one"))),
    "credit that does not come back": (
        {},
        row(put(1), put(2), get("x", 1, "one"), end("release", "x"), get("y", EMPTY, "one")),
    ),
    "closing keeps what it holds": ({}, row(put(1), ONE, ("close", ("a",), None), get("y", EMPTY, "b"))),
    "acknowledged after closing": ({}, row(put(1), ONE, ("close", ("a",), None), end("ack", "x"))),
    "got after closing": ({}, row(put(1), ("close", ("a",), None), ONE)),
    "purged while locked": ({}, row(put(1), ONE, ("purge", (), 1))),
    "purged and acknowledged": ({}, row(put(1), ONE, end("unlock", "x"), ("purge", (), 1), end("ack", "x"))),
    "over the bound": (BOUND, row(put(1), put(2))),
    "full with room": (BOUND, row(put(1), ONE, end("ack", "x"), put(2, result=FULL))),
    "no room though one left": (BOUND, row(put(1), ONE, put(2))),
    "dropped the new one": (DROP, row(put(1), put(2), get("x", 1))),
    "dropped a locked one": (DROP, row(put(1), ONE, put(2), end("ack", "x", False))),
    "put after the end": ({}, row(SHUTDOWN, put(1))),
    "ended before it was drained": ({}, row(put(1), SHUTDOWN, get("x", SHUT))),
    "ended at once, and got": ({}, row(put(1), NOW, ONE)),
    "came back after the end at once": ({}, row(put(1), ONE, NOW, end("release", "x"), get("y", 1))),
    "acknowledged too many": ({}, row(put(1), put(2), ONE, TWO, ("ack_up_to", ("a", "x"), 2))),
    "the wrong depth": ({}, row(put(1), ONE, ("depth", (), 0))),
    "the wrong size": ({}, row(put(1), ONE, ("qsize", (), 1))),
}


def spec(**options):
    return EntrySpec([Subscriber("a"), Subscriber("b"), Subscriber("one", prefetch=1)], **options)


@pytest.mark.parametrize(("options", "calls"), GOOD.values(), ids=GOOD)
def test_a_right_history_is_explained(options, calls):
    check(calls, spec(**options))


@pytest.mark.parametrize(("options", "calls"), BAD.values(), ids=BAD)
def test_a_wrong_history_is_refused(options, calls):
    with pytest.raises(NotLinearizable):
        check(calls, spec(**options))


# ------------------------------------------------------------------------------------------------------- the real queue
KINDS = {
    "items only": {"changes": False},
    "items only, no waiting": {"changes": False, "waits": False, "threads": 4, "calls": 4},
    "everything": {},
    "everything, four threads": {"threads": 4, "calls": 4},
    "everything, no waiting": {"waits": False, "threads": 2, "calls": 8},
}


@pytest.fixture(autouse=True)
def often():
    with switching_often():
        yield


def check_histories(seeds, **options):
    for seed in seeds:
        plan = EntryPlan(seed, **options)
        try:
            check(plan.run(), plan.spec)
        except AssertionError as error:
            error.add_note(f"the plan: EntryPlan({seed}, **{options}), {vars(plan.spec)}")
            raise


@pytest.mark.parametrize("kind", KINDS)
def test_small_histories(kind):
    check_histories(range(HISTORIES), **KINDS[kind])


@pytest.mark.parametrize("changes", [False, True], ids=["items only", "everything"])
def test_longer_histories(changes):
    check_histories(range(HISTORIES // 10), changes=changes, threads=3, calls=25, waits=False)


# ------------------------------------------------------------------------------------------------------------ long runs
# Every get is followed by an ack, three times out of four, or by a release. So an entry is available several times.
SHAPES = {
    "one to one": {"putters": 1, "getters": 1, "shared": False},
    "one subscription": {"putters": 2, "getters": 3, "shared": True},
    "competing subscriptions": {"putters": 3, "getters": 3, "shared": False},
}


def run(putters, getters, shared, items):
    """What was put, every delivery as (item, seq, get call, how it ended), and every Empty."""
    queue = EntryQueue()
    subscriptions = [queue.subscribe()] * getters if shared else [queue.subscribe() for _ in range(getters)]
    putting = [
        [Planned("put", (item,), functools.partial(queue.put, item)) for item in range(n * items, (n + 1) * items)]
        for n in range(putters)
    ]
    share = putters * items * 4 // 3 // getters
    taking = [_deliveries(subscription, thread, share) for thread, subscription in enumerate(subscriptions)]
    calls = record([*putting, *taking])
    rest = queue.subscribe()
    now = max(call.end for call in calls)
    while queue.depth():
        now += 10
        entry = rest.get(False)
        calls += [Call(-1, now, now + 1, "get", (), entry), Call(-1, now + 2, now + 3, "ack", (entry,), entry.ack())]
    for subscription in {id(each): each for each in [*subscriptions, rest]}.values():
        subscription.close()
    return plain(calls)


def _deliveries(subscription, thread, share):
    """Get, then end what was got, `share` times. The second call finds the entry where the first stored it."""
    box = []

    def get():
        box.clear()
        box.append(subscription.get(False))
        return box[0]

    def ended(name):
        return (box[0], getattr(box[0], name)()) if box else None

    taking = Planned("get", (), get, TAKING)
    ending = [Planned(name, (), functools.partial(ended, name)) for name in ("ack", "release")]
    return [call for number in range(share) for call in (taking, ending[(thread + number) % 4 == 0])]


def plain(calls):
    """Calls without handles: get -> item; ack and release of (item,) -> whether it counted. Ends of no entry are left
    out."""
    found = []
    for call in calls:
        args, result = call.args, call.result
        if call.name == "get" and not isinstance(result, Raised):
            result = result.item
        elif call.name in ("ack", "release"):
            if result is None:
                continue
            entry, result = (args[0], result) if args else result
            args = (entry.item,)
        elif call.name == "put":
            result = result.seq
        found.append(Call(call.thread, call.start, call.end, call.name, args, result))
    return found


def wrong(calls):
    """What is wrong with a long run."""
    puts = {call.args[0]: call for call in calls if call.name == "put"}
    gets = sorted(
        (call for call in calls if call.name == "get" and not isinstance(call.result, Raised)),
        key=lambda call: call.start,
    )
    ends = [call for call in calls if call.name in ("ack", "release")]
    acked = [call.args[0] for call in ends if call.name == "ack"]
    found = [f"its end was refused: {call}" for call in ends if call.result is not True]
    found += [f"acknowledged {acked.count(item)} times: {item}" for item in puts if item not in set(acked)]
    found += ["acknowledged twice"] * (len(acked) != len(set(acked))) + ["got never put"] * any(
        call.result not in puts for call in gets
    )
    found += ["numbers with gaps or doubles"] * (
        sorted(call.result for call in puts.values()) != list(range(len(puts)))
    )
    if found:
        return found
    firsts = {}
    for call in sorted(gets, key=lambda call: call.end):
        firsts.setdefault(call.result, call)
    by_put = [Put(item, "", call.start, call.end) for item, call in puts.items()]
    nothings = [
        Nothing(call.start, call.end) for call in calls if call.name == "get" and isinstance(call.result, Raised)
    ]
    found += bad_patterns(by_put, [Got(item, call.start, call.end) for item, call in firsts.items()], nothings)
    return found + overtaken(puts, gets, ends) + held_twice(gets, ends)


def stretches(puts, gets, ends):
    """When each entry was certainly available: (start, end, arrival number).

    Deliveries of one entry follow each other, but the calls overlap: a get may return an entry before the release that
    freed it has returned. The holder calls release after its own get has ended, and before the next get of the entry
    can end. So, with gets sorted by end and releases by start, the n-th release frees the entry for get n + 1."""
    free_from = {item: [call.end] for item, call in puts.items()}
    for call in sorted((call for call in ends if call.name == "release"), key=lambda call: call.start):
        free_from[call.args[0]].append(call.end)
    taken_at = {item: [] for item in puts}
    for call in sorted(gets, key=lambda call: call.end):
        taken_at[call.result].append(call.start)
    return [
        (free, taken, call.result)
        for item, call in puts.items()
        for free, taken in zip_longest(free_from[item], taken_at[item][: len(free_from[item])], fillvalue=inf)
        if free < taken
    ]


def overtaken(puts, gets, ends):
    """A get returned an entry while one of smaller number was certainly available throughout the call."""
    waiting = sorted(stretches(puts, gets, ends))
    open_, at, found = [], 0, []
    for call in gets:
        while at < len(waiting) and waiting[at][0] < call.start:
            insort(open_, (waiting[at][2], waiting[at][1]))
            at += 1
        open_ = [stretch for stretch in open_ if stretch[1] > call.start]
        before = open_[: bisect_left(open_, (puts[call.result].result,))]
        found += [
            f"order inverted: {call} while number {number} was available"
            for number, until in before
            if until > call.end
        ][:1]
    return found


def held_twice(gets, ends):
    """Two deliveries of one entry were certainly held at the same time."""
    got = [(call.end, call.result, call.thread, True) for call in gets]
    over = [(call.start, call.args[0], call.thread, False) for call in ends]
    holders, found = {}, []
    for _, item, thread, begins in sorted(got + over):
        holder = holders.get(item)
        if begins and holder is not None:
            found.append(f"got twice: {item} by threads {holder} and {thread}")
        if begins:
            holders[item] = thread
        elif holder == thread:
            del holders[item]
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_no_bad_pattern(shape):
    assert wrong(run(**SHAPES[shape], items=ITEMS))[:5] == []


# A right run, written by hand so that it is always the same: puts, then a release of every third, then acks.
def by_hand():
    calls = [Call(0, 10 * n, 10 * n + 5, "put", (n,), n) for n in range(30)]
    at = 1000
    for n in range(30):
        for how in ("release", "ack") if n % 3 == 0 else ("ack",):
            calls += [Call(1, at, at + 5, "get", (), n), Call(1, at + 10, at + 15, how, (n,), True)]
            at += 20
    return [*calls, Call(1, at, at + 5, "get", (), EMPTY)]


def changed(calls, name, item, **changes):
    """The first call of that name on that item, changed, or left out."""
    at = next(n for n, call in enumerate(calls) if call.name == name and item in (call.result, *call.args))
    call = calls[at]
    new = (
        []
        if not changes
        else [
            Call(
                changes.get("thread", call.thread),
                changes.get("start", call.start),
                changes.get("end", call.end),
                changes.get("name", name),
                call.args,
                changes.get("result", call.result),
            )
        ]
    )
    return calls[:at] + new + calls[at + 1:]


WRONG = {
    "lost": lambda calls: changed(calls, "ack", 7),
    "invented": lambda calls: changed(calls, "get", 7, result=99),
    "acknowledged twice": lambda calls: [*calls, Call(1, 9000, 9005, "ack", (7,), True)],
    "its end was refused": lambda calls: changed(calls, "release", 9, result=False),
    "order inverted": lambda calls: swapped(calls, 7, 8),
    "released and passed over": lambda calls: late_again(calls),
    "empty": lambda calls: [*changed(calls, "get", 7, result=EMPTY), Call(2, 8000, 8005, "get", (), 7)],
    "got twice": lambda calls: [
        *calls,
        *(Call(2, c.end + 1, c.end + 2, "get", (), 7) for c in calls if c.result == 7 and c.name == "get"),
    ],
    "numbers": lambda calls: changed(calls, "put", 7, result=8),
}


def swapped(calls, one, other):
    """The deliveries of two entries exchanged."""
    put_in = {one: other, other: one}
    return [
        call
        if call.name == "put"
        else Call(
            call.thread,
            call.start,
            call.end,
            call.name,
            tuple(put_in.get(arg, arg) for arg in call.args),
            put_in.get(call.result, call.result) if call.name == "get" else call.result,
        )
        for call in calls
    ]


def late_again(calls):
    """Number 9 becomes available after its release only once number 10 was got."""
    tens = [call for call in calls if call.name != "put" and 10 in (call.result, *call.args)]
    nines = [call for call in calls if call.name != "put" and 9 in (call.result, *call.args)][2:]
    times = [(call.start, call.end) for call in [*nines, *tens]]
    moved = [
        Call(call.thread, start, end, call.name, call.args, call.result)
        for call, (start, end) in zip([*tens, *nines], times, strict=True)
    ]
    return [call for call in calls if call not in tens and call not in nines] + moved


def got_while_released():
    """A second thread gets and releases entry 1 during its first release. Only then does the first release return."""
    return [
        Call(0, 0, 1, "put", (1,), 0),
        Call(0, 2, 3, "put", (2,), 1),
        Call(0, 4, 5, "put", (3,), 2),
        Call(1, 10, 11, "get", (), 1),
        Call(1, 20, 70, "release", (1,), True),
        Call(2, 15, 30, "get", (), 1),
        Call(2, 40, 90, "release", (1,), True),
        Call(1, 72, 75, "get", (), 2),
        Call(1, 76, 77, "ack", (2,), True),
        Call(1, 92, 93, "get", (), 1),
        Call(1, 94, 95, "ack", (1,), True),
        Call(1, 96, 97, "get", (), 3),
        Call(1, 98, 99, "ack", (3,), True),
    ]


def test_a_right_long_run_is_not_accused():
    assert wrong(by_hand()) == []
    assert wrong(got_while_released()) == []


def test_what_a_release_freed_is_available_once_it_is_over():
    late = [call for call in got_while_released() if call.name == "put" or call.start < 90]
    again = [
        Call(1, 92, 93, "get", (), 3),
        Call(1, 94, 95, "ack", (3,), True),
        Call(1, 96, 97, "get", (), 1),
        Call(1, 98, 99, "ack", (1,), True),
    ]
    assert any("order inverted" in each for each in wrong([*late, *again]))


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_long_run_is_caught(how):
    assert wrong(WRONG[how](by_hand())) != []
