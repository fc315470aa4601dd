"""Exactness with many threads: every subscriber receives exactly its contiguous run of messages, without gap or double.

A recorder that is subscribed throughout has every message; an index of its list is a sequence number. A subscriber
whose position was `begin` when it subscribed and `end` when it left must have received recorder[begin:end]. What its
own thread published before it subscribed comes before `begin`; what it published afterwards does not.
"""
import gc
import itertools
import random
import threading
import weakref
from queue import Empty

import pytest
from support.threads import LONG, Threads, run_all, switching_often

from manytail import ClosedError, Lagged, PubSubQueue, ShutDown

pytestmark = pytest.mark.thread_unsafe(reason="changes the switch interval and starts many threads")


@pytest.fixture(autouse=True)
def often():
    with switching_often():
        yield


def publisher(queue, number, n, seed=0):
    """Publishes single messages and runs in turn. Each message is (publisher, its number)."""
    chance = random.Random(f"{number} {seed}")

    def run():
        sent = 0
        while sent < n:
            k = min(n - sent, chance.choice([1, 1, 1, 2, 7, 40]))
            messages = [(number, i) for i in range(sent, sent + k)]
            if k == 1:
                queue.publish(messages[0])
            else:
                assert queue.publish_many(messages) == k
            sent += k

    return run


def take_some(subscriber, chance, n):
    """Take about n messages, by get or get_many."""
    taken = []
    while len(taken) < n:
        try:
            if chance.random() < 0.5:
                taken.append(subscriber.get(block=False))
            else:
                taken += subscriber.get_many(chance.randrange(1, 20), timeout=chance.random() * 0.001)
        except (Empty, ShutDown):
            break
    return taken


def coming_and_going(queue, number, times):
    """Subscribes, publishes, takes and closes. Returns what each stay saw: (begin, end, messages, published before,
    published during)."""
    chance = random.Random(number)

    def run():
        stays = []
        for _ in range(times):
            before = queue.publish((number, "before"))
            start = chance.choice(["next", "next", "oldest"])
            with queue.subscribe(start=start) as subscriber:
                begin = subscriber.position
                during = queue.publish((number, "during"))
                taken = take_some(subscriber, chance, chance.choice([0, 1, 5, 50]))
                stays.append((begin, subscriber.position, taken, before if start == "next" else -1, during))
        return stays

    return run


def check_stay(recorded, stay):
    begin, end, taken, before, during = stay
    assert taken == recorded[begin:end]
    assert before < begin <= during


@pytest.mark.parametrize(("publishers", "visitors"), [(1, 1), (1, 6), (4, 4), (8, 2)])
def test_every_stay_is_exact(publishers, visitors):
    queue = PubSubQueue()
    recorder = queue.subscribe()
    n = 1500 // publishers
    visits = [coming_and_going(queue, f"visitor {i}", 40) for i in range(visitors)]
    results = run_all(*[publisher(queue, i, n) for i in range(publishers)], *visits)
    recorded = recorder.get_many(10**6)
    assert len(recorded) == queue.stats().published
    for number in range(publishers):
        assert [message for message in recorded if message[0] == number] == [(number, i) for i in range(n)]
    for stay in itertools.chain.from_iterable(results[publishers:]):
        check_stay(recorded, stay)
    recorder.close()
    assert queue.stats()._replace(published=0) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(("publishers", "subscribers"), [(1, 50), (8, 8), (3, 20)])
@pytest.mark.parametrize("maxsize", [0, 3, 64])
def test_everybody_gets_everything_in_one_order(publishers, subscribers, maxsize):
    queue = PubSubQueue(maxsize=maxsize)
    n = 4000 // (publishers * subscribers) + 40
    total = n * publishers
    readers = [queue.subscribe() for _ in range(subscribers)]

    def read(subscriber):
        chance = random.Random(subscriber.position)
        taken = []
        while len(taken) < total:
            taken += subscriber.get_many(chance.randrange(1, 50)) if chance.random() < 0.5 else [subscriber.get()]
        return taken

    results = run_all(
        *[publisher(queue, i, n) for i in range(publishers)], *[lambda s=reader: read(s) for reader in readers]
    )
    first = results[publishers]
    assert sorted(first) == sorted((number, i) for number in range(publishers) for i in range(n))
    for number in range(publishers):
        assert [i for who, i in first if who == number] == list(range(n))
    assert all(taken == first for taken in results[publishers:])
    assert queue.qsize() == 0
    for reader in readers:
        reader.close()


@pytest.mark.parametrize("publishers", [1, 4])
def test_lagged_accounts_for_every_message(publishers):
    queue = PubSubQueue(maxsize=8, slow="drop_oldest")
    recorder = []
    n = 2000

    def read(subscriber):
        """Sequence numbers of its messages. Lagged says how many are missing before the next."""
        position, got, missed = 0, {}, 0  # subscriber.position may have moved on past what it is not told of yet
        while True:
            try:
                got[position] = subscriber.get()
            except Lagged as lagged:
                position += lagged.missed
                missed += lagged.missed
            except ShutDown:
                assert position == n * publishers
                return got, missed
            else:
                position += 1

    def publish(number):
        for i in range(n):
            position = queue.publish((number, i))
            recorder.append((position, (number, i)))

    subscribers = [queue.subscribe() for _ in range(3)]
    with Threads() as threads:
        readers = [threads.start(read, subscriber) for subscriber in subscribers]
        for task in [threads.start(publish, number) for number in range(publishers)]:
            task.result()
        queue.shutdown()
        results = [reader.result() for reader in readers]
    log = dict(recorder)
    assert sorted(log) == list(range(n * publishers))
    for got, missed in results:
        assert all(log[position] == message for position, message in got.items())
        assert len(got) + missed == n * publishers
    assert queue.stats().dropped == sum(missed for _, missed in results)
    for subscriber in subscribers:
        subscriber.close()


def test_threads_sharing_one_subscriber_while_others_come_and_go():
    queue = PubSubQueue()
    shared, alone = queue.subscribe(), queue.subscribe()

    def share():
        taken = []
        while True:
            try:
                taken += [shared.get()] if len(taken) % 3 else shared.get_many(5)
            except ShutDown:
                return taken

    with Threads() as threads:
        sharers = [threads.start(share) for _ in range(4)]
        run_all(*[publisher(queue, i, 800) for i in range(3)], coming_and_going(queue, "visitor", 30))
        queue.shutdown()
        parts = [task.result() for task in sharers]
    recorded = alone.get_many(10**6)
    places = {message: place for place, message in enumerate(recorded) if message[0] != "visitor"}
    assert sorted(map(repr, itertools.chain.from_iterable(parts))) == sorted(map(repr, recorded))
    for part in parts:      # each thread took its messages in order
        own = [places[message] for message in part if message in places]
        assert own == sorted(own)
    shared.close()
    alone.close()


@pytest.mark.parametrize("immediate", [False, True])
def test_shutdown_at_any_moment_cuts_all_at_one_place(immediate):
    for seed in range(15):
        queue = PubSubQueue()
        readers = [queue.subscribe() for _ in range(3)]

        def publish(number, queue=queue):
            sent = 0
            try:
                while True:
                    queue.publish((number, sent))
                    sent += 1
            except ShutDown:
                return sent

        with Threads() as threads:
            reading = [threads.start(list, reader) for reader in readers]
            publishing = [threads.start(publish, number) for number in range(2)]
            readers[0].get(timeout=LONG) if seed == 0 else None
            queue.shutdown(immediate)
            sent = [task.result() for task in publishing]
            taken = [task.result() for task in reading]
        assert queue.stats().published == sum(sent)
        if not immediate:
            assert taken[1] == taken[2]
            assert len(taken[1]) == sum(sent)
        assert queue.qsize() == 0
        for reader in readers:
            reader.close()


def test_who_subscribes_during_an_immediate_shutdown_gets_nothing():
    for _ in range(10):
        queue = PubSubQueue()
        subscribers = [queue.subscribe() for _ in range(2000)]
        queue.publish_many([1, 2, 3])
        begun, over = threading.Event(), threading.Event()

        def join(queue=queue, subscribers=subscribers, begun=begun, over=over):
            while not over.is_set():
                subscribers.append(queue.subscribe(start="oldest"))
                begun.set()

        with Threads() as threads:
            threads.start(join)
            begun.wait(LONG)
            queue.shutdown(immediate=True)
            over.set()
        assert sum(subscriber.lag for subscriber in subscribers) == 0
        for subscriber in subscribers:
            subscriber.close()


class Message:
    """An object that can be weakly referenced."""


def test_memory_returns_whatever_meets_whatever():
    """The last subscriber that expects a message frees it at once. At the end none is left."""
    queue = PubSubQueue(maxsize=50)
    alive = weakref.WeakSet()
    keep = queue.subscribe()

    def publish():
        for _ in range(400):
            message = Message()
            alive.add(message)
            queue.publish(message)

    def visit():
        chance = random.Random(1)
        for _ in range(60):
            with queue.subscribe(start=chance.choice(["next", "oldest"])) as subscriber:
                take_some(subscriber, chance, 10)

    def consume():
        for _ in range(1200):
            keep.get(timeout=LONG)

    run_all(publish, publish, publish, visit, visit, consume)
    gc.collect()
    assert queue.qsize() == 0
    assert len(alive) == 0
    keep.close()


def test_close_while_threads_wait_and_take():
    for _ in range(40):
        queue = PubSubQueue()
        subscriber = queue.subscribe()

        def take(subscriber=subscriber):
            taken = 0
            try:
                while True:
                    taken += len(subscriber.get_many(3))
            except ClosedError:
                return taken

        results = run_all(take, take, subscriber.close, lambda q=queue: [q.publish(i) for i in range(20)])
        assert results[0] + results[1] == subscriber.position
        assert queue.qsize() == 0
