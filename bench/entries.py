"""Rows of the entry queues: put, get and ack; threads; release far back; idle subscriptions; orders; bytes per entry.

`python bench/entries.py ORDER N` is the process that a memory row starts: bytes per entry of a queue that holds N.
"""
from __future__ import annotations

import gc
import queue
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import repeat
from typing import Any

import loops
from harness import Factory, Measure, Row, Sample, Target
from items import KINDS, noting_depth, sampled
from single import SEED
from threaded import race

MILLION = 1_000_000
WARM = 1_000
QUEUE = "Queue"  # queue.Queue: its put, get and task_done come nearest to put, get and ack
Between = Callable[[Any, int], Any]  # puts so many entries, which the returned subscription passes over


# ------------------------------------------------------------------------------------------------ put, get, ack

def acked(put: Callable[..., Any], get: Callable[[], Any], n: int) -> float:
    """ns for put, get and ack of one entry at a time."""
    turns = max(1, n // 5)
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        put(None); get().ack(); put(None); get().ack(); put(None); get().ack()  # noqa: E702
        put(None); get().ack(); put(None); get().ack()  # noqa: E702
    return (time.thread_time_ns() - began) / (turns * 5)


def done(put: Callable[..., Any], get: Callable[[], Any], task_done: Callable[[], Any], n: int) -> float:
    """The same of queue.Queue."""
    turns = max(1, n // 5)
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        put(None); get(); task_done(); put(None); get(); task_done(); put(None); get(); task_done()  # noqa: E702
        put(None); get(); task_done(); put(None); get(); task_done()                                 # noqa: E702
    return (time.thread_time_ns() - began) / (turns * 5)


@contextmanager
def ours_acked() -> Iterator[Measure]:
    from manytail import EntryQueue

    entries: Any = EntryQueue()
    with entries.subscribe() as subscription:
        loop = loops.fresh(acked)
        yield lambda n: loop(entries.put, subscription.get, n)


@contextmanager
def queue_done() -> Iterator[Measure]:
    rival: queue.Queue[Any] = queue.Queue()
    loop = loops.fresh(done)
    yield lambda n: loop(rival.put, rival.get, rival.task_done, n)


# ------------------------------------------------------------------------------------------------ threads

def ack_all(subscription: Any, n: int) -> None:
    get = subscription.get
    for _ in repeat(None, n):
        get().ack()


def get_all_done(owner: Any, n: int) -> None:
    get, task_done = owner.get, owner.task_done
    for _ in repeat(None, n):
        get()
        task_done()


def crowd(kind: str, take: Callable[..., Any], make: Callable[[ExitStack], tuple[Any, Any, Any]]) -> Factory:
    """Two putters and two getters; ns per entry that went through, a new queue each time."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        put_loop, get_loop = loops.fresh(KINDS[kind][1]), loops.fresh(take)

        def measure(n: int) -> Sample:
            share = max(1, n // 2)
            depths: list[int] = []
            with ExitStack() as stack:
                owner, *getters = make(stack)
                bodies = [partial(put_loop, owner, share) for _ in range(2)]
                bodies += [partial(noting_depth, get_loop, one, owner.qsize, share, depths) for one in getters]
                return sampled(max(race(bodies)) / (2 * share) * 1e9, depths)

        yield measure

    return contestant


def ours_of_two(stack: ExitStack) -> tuple[Any, Any, Any]:
    from manytail import EntryQueue

    entries: Any = EntryQueue()
    return entries, stack.enter_context(entries.subscribe()), stack.enter_context(entries.subscribe())


def queue_of_two(stack: ExitStack) -> tuple[Any, Any, Any]:
    rival: queue.Queue[Any] = queue.Queue()
    return rival, rival, rival


# ------------------------------------------------------------------------------------------------ release far back

def releases(held: Any, get: Callable[[], Any], n: int) -> tuple[float, Any]:
    """ns for a release, the get of that entry and the get of the next one. Also returns the entry that is then held."""
    began = time.thread_time_ns()
    for _ in repeat(None, n):
        held.release()
        held = get()
        get().ack()
    return (time.thread_time_ns() - began) / n, held


def acquired_between(entries: Any, between: int) -> Any:
    """The first entry is held by us, those between by another subscription."""
    entries.put("ours")
    subscription = entries.subscribe()
    first = subscription.get()
    holder = entries.subscribe()
    entries.put_many([None] * between)
    return subscription, first, (holder, holder.get_many(between))


def available_between(entries: Any, between: int) -> Any:
    """The entries between are AVAILABLE; our selector does not accept them."""
    entries.put("ours")
    subscription = entries.subscribe(selector=lambda entry: entry.item is not None)
    first = subscription.get()
    entries.put_many([None] * between)
    return subscription, first, None


def far_back(put_between: Between, between: int) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        from manytail import EntryQueue

        entries: Any = EntryQueue()
        subscription, held, others = put_between(entries, between)
        # Before the clock runs, the subscription's pointer passes all entries between.
        entries.put("passed once")
        subscription.get().ack()
        loop = loops.fresh(releases)

        def measure(n: int) -> float:
            nonlocal held
            entries.put_many(["after"] * n)
            value, held = loop(held, subscription.get, n)
            return value

        yield measure
        subscription.close()
        if others is not None:
            others[0].close()

    return contestant


# ------------------------------------------------------------------------------------------------ past what others own
Past = Callable[[Any, int], Any]  # fills a queue with so many entries that the returned subscription may not take


def held_group(kind: str) -> tuple[dict[str, Any], Past]:
    """The options of a queue with groups, and entries of a group that another subscription holds one of."""

    def fill(entries: Any, between: int) -> Any:
        entries.put("held", group="held")
        for _ in repeat(None, between):
            entries.put(None, group="held")
        keep = entries.subscribe()
        return keep, keep.get()

    return {"groups": kind}, fill


def claimed(entries: Any, between: int) -> Any:
    """Entries that a subscription of higher priority wants and does not take."""
    entries.put_many([None] * between)
    return entries.subscribe(priority=1, selector=lambda entry: entry.item is None), None


def gets_acked(get: Callable[[], Any], n: int) -> float:
    began = time.thread_time_ns()
    for _ in repeat(None, n):
        get().ack()
    return (time.thread_time_ns() - began) / n


def gets_nothing(get: Callable[..., Any], n: int) -> float:
    began = time.thread_time_ns()
    for _ in repeat(None, n):
        try:  # noqa: SIM105 (contextlib.suppress costs more than the get)
            get(False)
        except queue.Empty:
            pass
    return (time.thread_time_ns() - began) / n


@contextmanager
def reader(options: dict[str, Any], fill: Past, between: int) -> Iterator[tuple[Any, Any]]:
    """A queue, and a subscription that has seen that the entries between are not for it."""
    from manytail import EntryQueue

    entries: Any = EntryQueue(**options)
    owner, held = fill(entries, between)
    with entries.subscribe() as subscription:
        gets_nothing(subscription.get, 1)
        yield entries, subscription
    if held is not None:
        held.ack()
    owner.close()


def past(options: dict[str, Any], fill: Past, between: int, *, nothing: bool) -> Factory:
    """ns for a get and its ack, or for a get that finds nothing, with so many entries before what it may take."""

    @contextmanager
    def contestant() -> Iterator[Measure]:
        loop = loops.fresh(gets_nothing if nothing else gets_acked)
        made: list[tuple[Any, Any]] = []
        with ExitStack() as stack:

            def measure(n: int) -> float:
                if not made:                                  # a smoke run need not wait for a million
                    some = between if n >= 2_000 else min(between, 500)
                    made.append(stack.enter_context(reader(options, fill, some)))
                (entries, subscription), = made
                for _ in repeat(None, 0 if nothing else n):
                    entries.put("free")
                return loop(subscription.get, n)

            yield measure

    return contestant


def past_row(name: str, what: str, options: dict[str, Any], fill: Past, *, nothing: bool, prefix: str = "") -> Row:
    doing = "a get that finds nothing" if nothing else "get + ack"
    return Row(
        f"{name}-nothing" if nothing else name, f"{prefix}EntryQueue: {doing} past 1 million entries {what}", "ns",
        {
            "ours": past(options, fill, MILLION, nothing=nothing),
            "past 10": past(options, fill, 10, nothing=nothing),
        },
        n=10_000, rounds=9, tiny=50, targets=(Target("<=", 3.0, "past 10"),),
    )


def past_rows(name: str, what: str, options: dict[str, Any], fill: Past, prefix: str = "") -> list[Row]:
    return [past_row(name, what, options, fill, nothing=nothing, prefix=prefix) for nothing in (False, True)]


# ------------------------------------------------------------------------------------------------ subscriptions, orders

def only_puts(put: Callable[..., Any], n: int) -> float:
    turns = max(1, n // 5)
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        put(None); put(None); put(None); put(None); put(None)                                        # noqa: E702
    return (time.thread_time_ns() - began) / (turns * 5)


def idle(subscriptions: int) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        from manytail import EntryQueue

        entries: Any = EntryQueue()
        kept = [entries.subscribe() for _ in range(subscriptions)]
        loop = loops.fresh(only_puts)

        def measure(n: int) -> float:
            value = loop(entries.put, n)
            entries.purge()
            return value

        yield measure
        for subscription in kept:
            subscription.close()

    return contestant


def by_priority(put: Callable[..., Any], get: Callable[[], Any], n: int) -> float:
    """ns for put, get and ack, ten entries of ten priorities at a time."""
    turns = max(1, n // 10)
    began = time.thread_time_ns()
    for _ in repeat(None, turns):
        for priority in (3, 8, 0, 5, 9, 1, 6, 2, 7, 4):
            put(None, priority=priority)
        for _ in repeat(None, 10):
            get().ack()
    return (time.thread_time_ns() - began) / (turns * 10)


def levels(name: str) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        import manytail

        entries: Any = getattr(manytail, name)()
        with entries.subscribe() as subscription:
            loop = loops.fresh(by_priority)
            yield lambda n: loop(entries.put, subscription.get, n)

    return contestant


def put_each(put: Callable[..., Any], items: list[int]) -> float:
    began = time.thread_time_ns()
    for item in items:
        put(item)
    return (time.thread_time_ns() - began) / len(items)


@contextmanager
def sorted_puts() -> Iterator[Measure]:
    """Random keys into a million random keys; the queue grows by n each round."""
    from manytail import SortedEntryQueue

    chance = random.Random(SEED)
    entries: Any = SortedEntryQueue("", key=int)
    size = 0

    def measure(n: int) -> float:
        nonlocal size
        target = MILLION if n >= 5_000 else 10 * n            # a smoke run need not wait for a million
        if size < target:
            entries.put_many([chance.randrange(1 << 40) for _ in range(target - size)])
            size = target
        size += n
        return loops.fresh(put_each)(entries.put, [chance.randrange(1 << 40) for _ in range(n)])

    yield measure


# ------------------------------------------------------------------------------------------------ memory

FIFO, RANDOM, ASCENDING = "fifo", "random keys", "ascending keys"


def items_of(order: str, n: int) -> list[int | None]:
    """The items to put, made before memory is measured."""
    chance = random.Random(SEED)
    return {FIFO: [None] * n, ASCENDING: [*range(n)], RANDOM: [chance.randrange(1 << 40) for _ in range(n)]}[order]


def child(order: str, n: int) -> float:
    """Bytes per entry of a queue that holds n."""
    import psutil

    from manytail import EntryQueue, SortedEntryQueue

    entries: Any = EntryQueue() if order == FIFO else SortedEntryQueue("", key=int)
    items = items_of(order, n)
    with entries.subscribe() as subscription:
        for _ in repeat(None, WARM):
            entries.put(items[0])
            subscription.get().ack()
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    for item in items:
        entries.put(item)
    return (process.memory_info().rss - before) / n


def grown(order: str) -> Factory:
    @contextmanager
    def contestant() -> Iterator[Measure]:
        def measure(n: int) -> float:
            ran = subprocess.run([sys.executable, __file__, order, str(n)], check=True, capture_output=True, text=True)
            return float(ran.stdout)

        yield measure

    return contestant


def release_row(name: str, what: str, put_between: Between) -> Row:
    return Row(
        name, f"EntryQueue: release, get it and the one after it, 1 million {what} entries between", "ns",
        {"ours": far_back(put_between, MILLION), "10 between": far_back(put_between, 10)},
        n=20_000, rounds=15, targets=(Target("<=", 2.0, "10 between"),),
    )


ROWS = [
    Row(
        "entry",
        "EntryQueue: put + subscription.get + ack, one thread",
        "ns",
        {"ours": ours_acked, QUEUE: queue_done},
        n=200_000,
        rounds=25,
        targets=(Target("<=", 400.0), Target("<=", 0.333, QUEUE)),
        slow={QUEUE: 5},
    ),
    release_row("entry-release-acquired", "ACQUIRED", acquired_between),
    release_row("entry-release-available", "AVAILABLE", available_between),
    *past_rows("entry-group-shared", "of a shared group that another holds", *held_group("shared")),
    *past_rows("entry-group-assigned", "of a group that is assigned to another", *held_group("assigned")),
    *past_rows("entry-claimed", "that a selecting one of higher priority wants", {}, claimed),
    Row(
        "entry-idle",
        "EntryQueue: put, 1,000 idle subscriptions",
        "ns",
        {"ours": idle(1_000), "1 subscription": idle(1)},
        n=50_000,
        rounds=15,
        targets=(Target("<=", 2.0, "1 subscription"),),
    ),
    Row(
        "entry-priority",
        "PriorityEntryQueue, 10 levels: put + get + ack",
        "ns",
        {"ours": levels("PriorityEntryQueue"), "EntryQueue": levels("EntryQueue")},
        n=100_000,
        rounds=25,
        targets=(Target("<=", 1.3, "EntryQueue"),),
    ),
    Row(
        "entry-sorted",
        "SortedEntryQueue: put into 1 million, int keys",
        "ns",
        {"ours": sorted_puts},
        n=20_000,
        rounds=9,
        tiny=1_000,
        targets=(Target("<=", 4_000.0),),
    ),
    Row(
        "entry-memory",
        "EntryQueue: bytes per entry, 1 million entries",
        "bytes",
        {"ours": grown(FIFO)},
        n=MILLION,
        rounds=3,
        tiny=50_000,
        targets=(Target("<=", 160.0),),
    ),
    Row(
        "entry-sorted-memory",
        "SortedEntryQueue: bytes per entry, 1 million entries, int keys in random order",
        "bytes",
        {"ours": grown(RANDOM), ASCENDING: grown(ASCENDING)},
        n=MILLION,
        rounds=3,
        tiny=50_000,
        targets=(Target("<=", 160.0),),
    ),
]
FREE_THREADED_ROWS = [
    Row(
        f"ft-entry-2+2-{kind}",
        f"free-threaded: EntryQueue, 2 putters + 2 subscriptions, {what}",
        "ns/entry",
        {
            "ours": crowd(kind, ack_all, ours_of_two),
            "one thread": ours_acked,
            QUEUE: crowd(kind, get_all_done, queue_of_two),
        },
        n=200_000,
        targets=(Target("<=", 1.0, "one thread"), Target("<=", 0.333, QUEUE)),
        slow={QUEUE: 10},
    )
    for kind, (what, _) in KINDS.items()
]

if __name__ == "__main__":
    print(child(sys.argv[1], int(sys.argv[2])))
