"""What is measured: curves over a number of threads, each with its contestants. Runs on the measured machine, which has
nothing but the archive: the standard library, manytail, culsans, and the neighbours of bench/ that pack.py names.

A contestant is a context manager that is made for one place on a curve and gives a function: how many items -> Figure.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

import loops
from rivals import ConditionMultiQueue
from threaded import race


@dataclass(frozen=True)
class Figure:
    """A measured value in the curve's unit, and what else was measured, by name."""

    value: float
    more: Mapping[str, float] = field(default_factory=dict)


Measure = Callable[[int], Figure]
Contestant = Callable[[int], AbstractContextManager[Measure]]  # of a place on the curve


@dataclass(frozen=True)
class Curve:
    name: str
    what: str
    x: str  # what the places count
    unit: str
    places: Sequence[int]
    contestants: Mapping[str, Contestant]

    @property
    def more_is_better(self) -> bool:
        return self.unit.endswith("/s")


# ------------------------------------------------------------------------------------------------------------- ends


@dataclass(frozen=True)
class Ends:
    """A structure as its threads see it: what each putter puts into and each getter gets from, and by which methods.
    Each thread looks its methods up itself: without the GIL a bound method that threads share would be what they
    contend for."""

    tails: Sequence[Any]
    heads: Sequence[Any]
    put: str = "put"
    take: Callable[[Any, int], None] | None = None  # a getter's loop, if it is not plain get()
    opened: Callable[[Any, Any], Any] = lambda head, got: got  # the item of what get() returned, which is then done
    everyone: bool = False  # each getter gets each item


Make = Callable[[ExitStack, int, int], Ends]  # for so many putters and getters


def put_tuples(tail: Any, name: str, n: int) -> None:
    put = getattr(tail, name)
    for number in range(1_000, 1_000 + n):
        put((number,))


def put_nones(tail: Any, name: str, n: int) -> None:
    put = getattr(tail, name)
    for _ in repeat(None, n):
        put(None)


def get_all(head: Any, n: int) -> None:
    get = head.get
    for _ in repeat(None, n):
        get()


def multiqueue(sub_queues: bool) -> Make:
    """With a sub-queue for each putter, or one for all."""

    def make(stack: ExitStack, putters: int, getters: int) -> Ends:
        from manytail import MultiQueue

        owner: Any = MultiQueue()
        tails = [owner.add(key) for key in range(putters if sub_queues else 1)]
        return Ends([tails[index % len(tails)] for index in range(putters)], [owner] * getters)

    return make


def one_queue(made: Callable[[], Any]) -> Make:
    def make(stack: ExitStack, putters: int, getters: int) -> Ends:
        owner = made()
        return Ends([owner] * putters, [owner] * getters)

    return make


def culsans_queue() -> Any:
    import culsans

    return culsans.Queue().sync_q


def condition(stack: ExitStack, putters: int, getters: int) -> Ends:
    owner = ConditionMultiQueue(putters)
    return Ends(owner.tails, [owner] * getters)


def polled_deque(stack: ExitStack, putters: int, getters: int) -> Ends:
    owner: deque[Any] = deque()
    return Ends([owner] * putters, [owner] * getters, put="append", take=poll)


def poll(items: deque[Any], n: int) -> None:
    """A deque cannot wait: a getter that finds nothing lets others run and looks again."""
    popleft, give_way = items.popleft, time.sleep
    left = n
    while left:
        try:
            popleft()
        except IndexError:
            give_way(0)
        else:
            left -= 1


def pubsub(stack: ExitStack, putters: int, getters: int) -> Ends:
    from manytail import PubSubQueue

    owner: Any = PubSubQueue()
    heads = [stack.enter_context(owner.subscribe()) for _ in range(getters)]
    return Ends([owner] * putters, heads, put="publish", everyone=True)


class PutsIntoEach:
    def __init__(self, queues: Sequence[Any]) -> None:
        self.queues = queues

    def publish(self, item: Any) -> None:
        for one in self.queues:
            one.put(item)


def queue_for_each(stack: ExitStack, putters: int, getters: int) -> Ends:
    queues = [queue.SimpleQueue[Any]() for _ in range(getters)]
    return Ends([PutsIntoEach(queues)] * putters, queues, put="publish", everyone=True)


def entries(stack: ExitStack, putters: int, getters: int) -> Ends:
    from manytail import EntryQueue

    owner: Any = EntryQueue()
    heads = [stack.enter_context(owner.subscribe()) for _ in range(getters)]
    return Ends([owner] * putters, heads, take=ack_all, opened=acked)


def ack_all(subscription: Any, n: int) -> None:
    get = subscription.get
    for _ in repeat(None, n):
        get().ack()


def acked(subscription: Any, entry: Any) -> Any:
    entry.ack()
    return entry.item


def queue_done(stack: ExitStack, putters: int, getters: int) -> Ends:
    owner = queue.Queue[Any]()
    return Ends([owner] * putters, [owner] * getters, take=get_all_done, opened=done)


def get_all_done(owner: Any, n: int) -> None:
    get, task_done = owner.get, owner.task_done
    for _ in repeat(None, n):
        get()
        task_done()


def done(owner: Any, item: Any) -> Any:
    owner.task_done()
    return item


# ------------------------------------------------------------------------------------------------- what is measured

Crowd = Callable[[int], tuple[int, int]]  # place -> putters, getters


def throughput(make: Make, crowd: Crowd, put: Callable[[Any, str, int], None] = put_tuples) -> Contestant:
    """Items per second that getters have got, all threads from a common start until the last has ended."""

    @contextmanager
    def contestant(place: int) -> Iterator[Measure]:
        putters, getters = crowd(place)
        put_loop, get_loop = loops.fresh(put), loops.fresh(get_all)

        def measure(n: int) -> Figure:
            share = max(1, n // (putters * getters))  # divides evenly on both sides
            with ExitStack() as stack:
                ends = make(stack, putters, getters)
                got = share * putters * (getters if ends.everyone else 1)  # by each getter
                bodies = [partial(put_loop, tail, ends.put, share * getters) for tail in ends.tails]
                bodies += [partial(ends.take or get_loop, head, got) for head in ends.heads]
                return Figure(got * getters / max(race(bodies)))

        yield measure

    return contestant


def handoff(make: Make, crowd: Crowd) -> Contestant:
    """Microseconds from before a put until after the get that waited for it, the 99th percentile. A putter has one item
    under way: it goes on when a getter, or each of them, has got it."""

    @contextmanager
    def contestant(place: int) -> Iterator[Measure]:
        putters, getters = crowd(place)

        def measure(n: int) -> Figure:
            share = max(1, n // (putters * getters))
            times: list[list[int]] = [[] for _ in range(getters)]
            with ExitStack() as stack:
                ends = make(stack, putters, getters)
                each = getters if ends.everyone else 1
                bodies = [partial(send, tail, ends.put, share * getters, each) for tail in ends.tails]
                got = share * putters * each
                bodies += [
                    partial(receive, head, ends.opened, got, mine) for head, mine in zip(ends.heads, times, strict=True)
                ]
                race(bodies)
            return percentiles([one for mine in times for one in mine])

        yield measure

    return contestant


def send(tail: Any, name: str, n: int, getters: int) -> None:
    put, clock, taken = getattr(tail, name), time.perf_counter_ns, threading.Semaphore(0)
    if getters == 1:
        taken = threading.Lock()  # type: ignore[assignment]
        taken.acquire()
    for _ in repeat(None, n):
        put((clock(), taken.release))
        for _ in range(getters):
            taken.acquire()


def receive(head: Any, opened: Callable[[Any, Any], Any], n: int, times: list[int]) -> None:
    get, clock = head.get, time.perf_counter_ns
    for _ in repeat(None, n):
        got = get()
        at = clock()
        began, taken = opened(head, got)
        times.append(at - began)
        taken()


def percentiles(nanoseconds: list[int]) -> Figure:
    ranked = sorted(nanoseconds)
    p99 = ranked[min(len(ranked) - 1, len(ranked) * 99 // 100)]
    return Figure(p99 / 1e3, {"p50": statistics.median(ranked) / 1e3, "handoffs": len(ranked)})


# ------------------------------------------------------------------------------------------------------------ arrays
BULK = 10_000


def index_queue() -> tuple[Any, Any]:
    from manytail import IndexMultiQueue

    owner: Any = IndexMultiQueue()
    return owner.add("numbers"), owner


def numbers() -> memoryview:
    return memoryview(array("q", range(BULK)))


class Copies:
    """Arrays through a SimpleQueue: a copy when they are put, a copy when they are got."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put_many(self, items: memoryview) -> None:
        self.queue.put(items.tobytes())

    def get_many_into(self, out: memoryview) -> None:
        out.cast("B")[:] = self.queue.get()


def copies() -> tuple[Any, Any]:
    made = Copies()
    return made, made


def arrays(make: Callable[[], tuple[Any, Any]]) -> Contestant:
    """64-bit integers per second of all threads. Each has a queue of its own, puts 10,000 and gets them."""

    @contextmanager
    def contestant(threads: int) -> Iterator[Measure]:
        made = [(*make(), numbers(), numbers()) for _ in range(threads)]

        def measure(n: int) -> Figure:
            turns = max(1, n // (BULK * threads))
            return Figure(turns * BULK * threads / max(race([partial(move, *one, turns) for one in made])))

        yield measure

    return contestant


def move(tail: Any, head: Any, items: memoryview, out: memoryview, turns: int) -> None:
    for _ in repeat(None, turns):
        tail.put_many(items)
        head.get_many_into(out)


# --------------------------------------------------------------------------------------------------- calls on workers


def no_op() -> None:
    """A task that is nothing but its call."""


def compute(_: object = None) -> int:
    """A task of some 20 microseconds of Python."""
    total = 0
    for number in range(400):
        total += number * number
    return total


def keyed(workers: int) -> Any:
    from manytail.executor import KeyedExecutor

    return KeyedExecutor(workers)


def plain_submits(executor: Any) -> list[Callable[..., Any]]:
    return [executor.submit]


def lanes(executor: Any) -> list[Callable[..., Any]]:
    return [executor.lane(key).submit for key in range(64)]


@contextmanager
def running(make: Callable[[int], Executor], workers: int) -> Iterator[Executor]:
    """An executor whose threads all run."""
    with make(workers) as executor:
        everyone = threading.Barrier(workers)
        wait([executor.submit(everyone.wait) for _ in range(workers)])
        yield executor


def tasks(
    make: Callable[[int], Executor], task: Callable[[], Any], submits: Callable[[Any], list[Any]] = plain_submits
) -> Contestant:
    """Tasks per second from the first submit until the last result, all submitted by one thread."""

    @contextmanager
    def contestant(workers: int) -> Iterator[Measure]:
        with running(make, workers) as executor:
            each = submits(executor)

            def measure(n: int) -> Figure:
                rounds = max(1, n // len(each))
                began = time.perf_counter()
                wait([submit(task) for _ in range(rounds) for submit in each])
                return Figure(rounds * len(each) / (time.perf_counter() - began))

            yield measure

    return contestant


def begins(make: Callable[[int], Executor]) -> Contestant:
    """Microseconds from before a submit until its task runs, while all workers wait."""

    @contextmanager
    def contestant(workers: int) -> Iterator[Measure]:
        with running(make, workers) as executor:

            def measure(n: int) -> Figure:
                clock, submit = time.perf_counter_ns, executor.submit
                times = []
                for _ in repeat(None, n):
                    began = clock()
                    times.append(submit(clock).result() - began)
                return percentiles(times)

            yield measure

    return contestant


def ours_mapped(fn: Callable[[int], Any], items: range, workers: int) -> Iterator[Any]:
    from manytail import concurrent_map

    return concurrent_map(fn, items, workers=workers)


def pool_mapped(fn: Callable[[int], Any], items: range, workers: int) -> Iterator[Any]:
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(fn, items)


def calls(way: Callable[..., Iterator[Any]], fn: Callable[[int], Any]) -> Contestant:
    """Calls per second of a whole map, the start of its threads included: as many as start for n calls."""

    @contextmanager
    def contestant(workers: int) -> Iterator[Measure]:
        def measure(n: int) -> Figure:
            began = time.perf_counter()
            count = sum(1 for _ in way(fn, range(n), workers))
            seconds = time.perf_counter() - began
            if count != n:
                raise AssertionError(f"{count} results (expected: {n})")
            return Figure(n / seconds)

        yield measure

    return contestant


def same(item: int) -> int:
    return item


def sleep_5_ms(item: int) -> None:
    time.sleep(0.005)


# ------------------------------------------------------------------------------------------------------------- curves


def as_many(place: int) -> tuple[int, int]:
    return place, place


def one_getter(place: int) -> tuple[int, int]:
    return place, 1


def one_putter(place: int) -> tuple[int, int]:
    return 1, place


OURS, SIMPLE, POOL = "manytail", "SimpleQueue", "ThreadPoolExecutor"
RIVALS: dict[str, Make] = {
    SIMPLE: one_queue(queue.SimpleQueue),
    "Queue": one_queue(queue.Queue),
    "culsans": one_queue(culsans_queue),
}
PAIRS: dict[str, Make] = {OURS: multiqueue(False), "manytail, a sub-queue per putter": multiqueue(True), **RIVALS}
FAN_IN: dict[str, Make] = {OURS: multiqueue(True), "deques + Condition": condition, **RIVALS}
EACH: dict[str, Make] = {OURS: pubsub, "a SimpleQueue per subscriber": queue_for_each}
ENTRIES: dict[str, Make] = {OURS: entries, "Queue and task_done": queue_done}
DEQUE: dict[str, Make] = {"deque, polled": polled_deque}


def all_of(measured: Callable[..., Contestant], makes: Mapping[str, Make], *more: Any) -> dict[str, Contestant]:
    return {name: measured(make, *more) for name, make in makes.items()}


def mapped(fn: Callable[[int], Any]) -> dict[str, Contestant]:
    return {OURS: calls(ours_mapped, fn), f"{POOL}.map": calls(pool_mapped, fn)}


P99 = "us (99th percentile)"
FEW, MANY = (1, 2, 4, 8), (1, 2, 4, 8, 15)
WORKERS, MAPPED = (1, 2, 4, 8, 16), (1, 4, 16, 64, 256)
CURVES = [
    Curve(
        "pairs", "N putters and N getters, fresh tuples", "N", "items/s", (1, 2, 3, 4, 6, 8),
        all_of(throughput, PAIRS | DEQUE, as_many),
    ),
    Curve(
        "pairs-none", "N putters and N getters, None", "N", "items/s", FEW,
        all_of(throughput, PAIRS | DEQUE, as_many, put_nones),
    ),
    Curve(
        "pairs-handoff", "N putters and N getters, an item under way for each putter", "N", P99, FEW,
        all_of(handoff, PAIRS, as_many),
    ),
    Curve(
        "fan-in", "N putters and one getter, fresh tuples; manytail with N sub-queues", "N", "items/s", MANY,
        all_of(throughput, FAN_IN | DEQUE, one_getter),
    ),
    Curve(
        "fan-in-handoff", "N putters and one getter, an item under way for each putter", "N", P99, MANY,
        all_of(handoff, FAN_IN, one_getter),
    ),
    Curve(
        "pubsub", "one publisher, N subscribers that each get all, fresh tuples", "N", "deliveries/s", MANY,
        all_of(throughput, EACH, one_putter),
    ),
    Curve(
        "pubsub-handoff", "one publisher, N subscribers that each get all, one message under way", "N", P99, MANY,
        all_of(handoff, EACH, one_putter),
    ),
    Curve(
        "arrays", "IndexMultiQueue: N threads, each with its own queue and arrays of 10,000", "N", "integers/s",
        WORKERS, {OURS: arrays(index_queue), "copies through a SimpleQueue": arrays(copies)},
    ),
    Curve(
        "entries", "EntryQueue: N putters and N subscriptions that get and ack, fresh tuples", "N", "entries/s", FEW,
        all_of(throughput, ENTRIES, as_many),
    ),
    Curve(
        "entries-handoff", "EntryQueue: N putters and N subscriptions, an entry under way for each putter", "N", P99,
        FEW, all_of(handoff, ENTRIES, as_many),
    ),
    Curve(
        "executor", "KeyedExecutor: tasks that return at once", "workers", "tasks/s", WORKERS,
        {
            OURS: tasks(keyed, no_op), "manytail, 64 keys": tasks(keyed, no_op, lanes),
            POOL: tasks(ThreadPoolExecutor, no_op),
        },
    ),
    Curve(
        "executor-computing", "KeyedExecutor: tasks of some 20 us of Python", "workers", "tasks/s", WORKERS,
        {
            OURS: tasks(keyed, compute), "manytail, 64 keys": tasks(keyed, compute, lanes),
            POOL: tasks(ThreadPoolExecutor, compute),
        },
    ),
    Curve(
        "executor-handoff", "KeyedExecutor: from submit until the task runs, all workers idle", "workers", P99,
        WORKERS, {OURS: begins(keyed), POOL: begins(ThreadPoolExecutor)},
    ),
    Curve("map", "concurrent_map: calls that return at once", "workers", "calls/s", MAPPED, mapped(same)),
    Curve(
        "map-computing", "concurrent_map: calls of some 20 us of Python", "workers", "calls/s", MAPPED,
        mapped(compute),
    ),
    Curve("map-sleeping", "concurrent_map: calls that sleep 5 ms", "workers", "calls/s", MAPPED, mapped(sleep_5_ms)),
]  # fmt: skip
