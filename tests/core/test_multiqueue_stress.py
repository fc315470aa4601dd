"""Many threads on one multi-queue while tails are enabled, disabled, moved, added and removed.

Every item names its producer and its place in that producer's sequence. So the end shows that nothing was lost or
doubled, and that each consumer took the items of one producer in order. Sizes are small: a GIL build switches threads
as often as it can (`switching_often`), a free-threaded build runs them in parallel.
"""
import asyncio
import contextlib
import itertools
import threading
from queue import Empty, Full

import pytest
from support.queues import as_list
from support.threads import LONG, Threads, switching_often

from manytail import IndexMultiQueue, ShutDown

pytestmark = pytest.mark.thread_unsafe(reason="changes the switch interval and starts many threads")

SELECTIONS = {
    "round_robin": "round_robin",
    "weighted": "weighted",
    "oldest": "oldest",
    "callable": lambda ready: ready[-1],
}
SPAN = 1_000_000


@pytest.fixture(autouse=True)
def often():
    with switching_often():
        yield


@pytest.fixture(params=SELECTIONS)
def selection(request):
    return SELECTIONS[request.param]


def sequence(producer, n):
    return range(producer * SPAN, producer * SPAN + n)


def check(taken_by, put_by):
    """taken_by: what each consumer took, in its order. put_by: what each producer put."""
    everything = sorted(itertools.chain.from_iterable(taken_by))
    assert everything == sorted(itertools.chain.from_iterable(put_by))
    for taken in taken_by:
        latest = [-1] * len(put_by)
        for item in taken:
            producer = item // SPAN
            assert item > latest[producer], f"items of producer {producer} out of order"
            latest[producer] = item


def until_shutdown(get):
    taken = []
    while True:
        try:
            taken += get()
        except ShutDown:
            return taken


def one_by_one(queue):
    return until_shutdown(lambda: [queue.get()])


def with_key(queue):
    return until_shutdown(lambda: [queue.get_with_key()[1]])


def in_batches(queue):
    return until_shutdown(lambda: as_list(queue.get_many(7)))


def impatient(queue):
    def get():
        try:
            return [queue.get(timeout=0.0005)]
        except Empty:
            return []

    return until_shutdown(get)


def in_a_loop(queue):
    async def consume():
        taken = []
        while True:
            try:
                taken.append(await queue.aget())
            except ShutDown:
                return taken

    return asyncio.run(consume())


CONSUMERS = [one_by_one, with_key, in_batches, impatient, in_a_loop]


def put_each(tail, items):
    for item in items:
        tail.put(item)
    return list(items)


def put_chains(tail, items):
    items = list(items)
    for start in range(0, len(items), 13):
        tail.put_many(items[start:start + 13])
    return items


def put_stream(tail, items):
    tail.put_many(iter(items))
    return list(items)


def put_impatiently(tail, items):
    for item in items:
        while True:
            try:
                tail.put(item, timeout=0.0005)
                break
            except Full:
                continue
    return list(items)


def put_what_fits(tail, items):
    items = list(items)
    at = 0
    while at < len(items):
        try:
            at += tail.put_many(items[at:at + 9], timeout=0.0005)
        except Full as full:
            at += full.count
    return items


def put_from_a_loop(tail, items):
    async def produce():
        for item in items:
            await tail.aput(item)

    asyncio.run(produce())
    return list(items)


PRODUCERS = [put_each, put_chains, put_stream, put_impatiently, put_what_fits, put_from_a_loop]


def run(queue, producing, consuming, *meddling):
    """Run all, shut down when the producers have ended, check, and return what was taken."""
    done = threading.Event()
    with Threads() as threads:
        consumers = [threads.start(consume, queue) for consume in consuming]
        producers = [threads.start(produce, tail, items) for produce, tail, items in producing]
        meddlers = [threads.start(meddle, done) for meddle in meddling]
        put_by = [producer.result() for producer in producers]
        done.set()
        for meddler in meddlers:
            meddler.result()
        queue.shutdown()
        taken_by = [consumer.result() for consumer in consumers]
    check(taken_by, put_by)
    stats = queue.stats()
    total = sum(map(len, put_by))
    assert (stats.put, stats.got, stats.qsize, stats.getters_waiting, stats.putters_waiting) == (total, total, 0, 0, 0)
    return taken_by


# ---------------------------------------------------------------------------------------------- producers and consumers
@pytest.mark.parametrize("maxsize", [0, 1, 5])
def test_many_producers_and_consumers(new_bulk, selection, maxsize):
    queue = new_bulk(selection=selection)
    tails = [queue.add(key, maxsize=maxsize, priority=key % 2, weight=1 + key) for key in range(3)]
    producing = [(produce, tails[n % 3], sequence(n, 150)) for n, produce in enumerate(PRODUCERS)]
    run(queue, producing, CONSUMERS)


@pytest.mark.parametrize("maxsize", [0, 1, 3])
def test_one_producer_and_one_consumer_keep_the_order(new_bulk, maxsize):
    for produce, consume in itertools.product(PRODUCERS, CONSUMERS):
        queue = new_bulk()
        tail = queue.add("a", maxsize=maxsize)
        taken, = run(queue, [(produce, tail, sequence(0, 120))], [consume])
        assert taken == list(sequence(0, 120))


# ------------------------------------------------------------------------------------------------ changes in mid-flight
def endless(*acts):
    """A function that repeats the acts in turn until the producers have ended."""
    def meddle(done):
        for act in itertools.cycle(acts):
            act()
            if done.is_set():
                return

    return meddle


def enable(queue, tails, n):
    tails[n % 3].enabled = n % 2


def move(queue, tails, n):
    tails[n % 3].priority = n % 5 - 2


def weigh(queue, tails, n):
    tails[n % 3].weight = 1 + n % 4


def resize(queue, tails, n):
    tails[n % 3].maxsize = n % 4


def come_and_go(queue, tails, n):
    key = f"guest {threading.get_ident()} {n}"
    queue.add(key, priority=n % 3 - 1)
    queue.setdefault(key)
    assert key in queue
    assert len(queue.subqueues) >= 3
    queue.remove(key)


def look(queue, tails, n):
    tail = tails[n % 3]
    shown = list(tail)
    assert len(shown) == len(set(shown))
    assert -5 not in tail
    assert not tail.discard(-5)
    assert tail.qsize() >= 0
    queue.stats()
    queue.subqueues.items()
    with contextlib.suppress(Empty, ShutDown):
        queue.peek()


MEDDLING = {
    "enabling": [enable],
    "changing": [move, weigh, resize],
    "coming and going": [come_and_go, come_and_go, look],
    "looking on": [look],
}


@pytest.mark.parametrize("acts", MEDDLING.values(), ids=MEDDLING)
def test_in_mid_flight(new_bulk, selection, acts):
    queue = new_bulk(selection=selection)
    tails = [queue.add(key, maxsize=3) for key in range(3)]

    def repeating(act):
        def meddle(done):
            for n in itertools.count():
                act(queue, tails, n)
                if done.is_set():
                    break
            for tail in tails:
                tail.enabled, tail.maxsize = True, 0

        return meddle

    producing = [(produce, tails[n % 3], sequence(n, 150)) for n, produce in enumerate(PRODUCERS)]
    run(queue, producing, CONSUMERS, *map(repeating, acts))


def test_removing_a_tail_in_mid_flight_loses_nothing_that_was_put(new_bulk, selection):
    """Producers put until their tail is removed. What went in was got or is in the handle; what was refused is in
    neither."""
    for _ in range(5):
        queue = new_bulk(selection=selection)
        tails = [queue.add(key, maxsize=2 * key + 1) for key in range(3)]

        def produce(tail, producer):
            went_in = []
            for item in sequence(producer, SPAN):
                try:
                    tail.put(item)
                except ShutDown:
                    return went_in
                went_in.append(item)
            return went_in

        with Threads() as threads:
            consumers = [threads.start(consume, queue) for consume in (one_by_one, in_batches)]
            producers = [threads.start(produce, tails[n % 3], n) for n in range(6)]
            for key in range(3):
                for _ in range(50):
                    queue.stats()
                queue.remove(key)
            put_by = [producer.result() for producer in producers]
            queue.shutdown()
            taken_by = [consumer.result() for consumer in consumers]
        left = [list(tail) for tail in tails]
        assert sorted(itertools.chain(*taken_by, *left)) == sorted(itertools.chain(*put_by))
        check(taken_by + left, put_by)
        stats = queue.stats()
        assert (stats.qsize, stats.subqueues, stats.put) == (0, 0, sum(map(len, put_by)))
        assert stats.got == sum(map(len, taken_by))


def test_clear_and_discard_in_mid_flight(new_bulk):
    """Each item is got, cleared or discarded, once. At the end every task is done."""
    queue = new_bulk()
    tails = [queue.add(key, maxsize=6) for key in range(2)]
    cleared = []

    def clear():
        cleared.append(sum(tail.clear() for tail in tails))

    def discard():
        cleared.append(sum(tail.discard(item) for tail in tails for item in tail if item % 5 == 0))

    done = threading.Event()

    def consume():
        count = 0
        while True:
            try:
                items = as_list(queue.get_many(3))
            except ShutDown:
                return count
            count += len(items)
            for _ in items:
                queue.task_done()

    with Threads() as threads:
        consumers = [threads.start(consume) for _ in range(3)]
        meddlers = [threads.start(endless(act), done) for act in (clear, discard)]
        producers = [threads.start(produce, tails[n % 2], sequence(n, 300)) for n, produce in enumerate(PRODUCERS)]
        put = sum(len(producer.result()) for producer in producers)
        done.set()
        for meddler in meddlers:
            meddler.result()
        assert queue.join(LONG) is True
        queue.shutdown()
        got = sum(consumer.result() for consumer in consumers)
    assert got + sum(cleared) == put == len(PRODUCERS) * 300
    assert queue.stats().got == got
    with pytest.raises(ValueError, match="task_done"):
        queue.task_done()


def test_index_items_from_both_kinds_of_put():
    """Raw buffers and single integers into one tail, from several threads."""
    from array import array

    queue = IndexMultiQueue()
    tail = queue.add("a", maxsize=100)

    def put_buffers(tail, items):
        tail.put_many(array("q", items))
        return list(items)

    producing = [(produce, tail, sequence(n, 2000)) for n, produce in enumerate([put_buffers, put_each, put_buffers])]
    run(queue, producing, [one_by_one, with_key, one_by_one])


def test_stats_never_show_more_items_than_were_put(new):
    queue = new()
    tails = [queue.add(key) for key in range(3)]
    seen = []

    def put(tail):
        for item in range(20_000):
            tail.put(item)

    with Threads() as threads:
        putters = [threads.start(put, tail) for tail in tails]
        while any(putter.is_alive() for putter in putters):
            seen.append(queue.stats())
    assert all(stats.put >= stats.got + stats.qsize for stats in seen)
    assert queue.stats().put == queue.stats().qsize == 60_000
