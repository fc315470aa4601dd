"""Putters, getters, releases, rejects, expiry, steals, closing subscriptions and browsers at once.

At the end every entry was acked once or became a dead letter once, each subscription saw its order, the counters add up
and memory is as at the start. `planted_pauses` varies the threads' own steps; a build with MANYTAIL_DELAYS=1
has pauses inside the algorithms, too.
"""
import gc
import itertools
import random
import threading
from queue import Empty, Full

import pytest
from support.threads import Threads, switching_often, wait_until

from manytail import Consumer, EntryQueue, LastValueQueue, PriorityEntryQueue, ShutDown, SortedEntryQueue

PUTTERS, GETTERS, EACH = 4, 8, 350


class Item:
    """Counts its instances, so that the end of the run shows that all were freed."""

    alive = 0
    lock = threading.Lock()

    def __init__(self, putter, number, key):
        self.putter, self.number, self.key = putter, number, key
        with Item.lock:
            Item.alive += 1

    def __del__(self):
        with Item.lock:
            Item.alive -= 1

    def __hash__(self):
        return hash((self.putter, self.number))

    @property
    def name(self):
        return (self.putter, self.number)


class Run:
    """A queue under load, and what each thread saw."""

    def __init__(self, queue, pause, *, ttl=False, closing=True, order=None):
        self.queue, self.pause, self.ttl, self.closing, self.order = queue, pause, ttl, closing, order
        self.acked, self.dead = [], []
        self.put_count = itertools.count()

    def dead_letter(self, entry, reason):
        self.dead.append((entry.item.name, str(reason)))

    def put(self, putter):
        chance = random.Random(putter)
        count = 0
        for number in range(EACH):
            item = Item(putter, number, chance.randrange(50))
            options = {"priority": chance.randrange(10), "group": chance.choice([None, None, "g", "h"])}
            if self.ttl and chance.random() < 0.2:
                options["ttl"] = chance.choice([0.0001, 0.003])
            if chance.random() < 0.05:
                options |= {"delay": 0.001, "headers": {"held": True}}
            self.pause()
            try:
                self.queue.put(item, **options)
            except Full:
                continue
            count += 1
        return count

    def get(self, getter):
        """A getter that sometimes closes its subscription and continues with a new one."""
        chance = random.Random(100 + getter)
        while True:
            with self.queue.subscribe(prefetch=getter % 4, priority=getter % 2 if getter < 6 else 0) as subscription:
                if not self.serve(subscription, chance):
                    return

    def serve(self, subscription, chance):
        held, last, taken = [], {}, 0
        while True:
            try:
                entry = subscription.get(timeout=0.05)
            except Empty:
                self.end(held, chance)
                continue
            except ShutDown:
                self.end(held, chance)
                return False
            taken += 1
            self.check_order(entry, last)
            held.append(entry)
            self.pause()
            if len(held) > 2 or chance.random() < 0.6:
                self.end(held, chance)
            if self.closing and taken > 40 and chance.random() < 0.1:
                return True  # the close releases what is held

    def check_order(self, entry, last):
        """Entries that were never released and never held come in order of arrival."""
        if entry.redelivered or entry.deliveries > 1 or self.order is None or "held" in entry.headers:
            return
        place = self.order(entry)
        lane = place[0]
        assert last.get(lane, (-1,)) < place[1], (last, place)
        last[lane] = place[1]

    def end(self, held, chance):
        chance.shuffle(held)
        for entry in held:
            what = chance.random()
            if what < 0.1:
                entry.unlock()
                self.pause()
            if what < 0.2:
                entry.release(delay=chance.choice([0.0, 0.0, 0.001]))
            elif what < 0.25:
                entry.reject()
            elif entry.ack():
                self.acked.append(entry.item.name)
        held.clear()

    def browse(self, stop):
        with self.queue.subscribe(browse=True) as browser:
            while not stop.is_set():
                for entry in self.queue.browse():
                    entry.state  # noqa: B018
                try:
                    browser.get(timeout=0.001)
                except (Empty, ShutDown):
                    continue

    def maintain(self, stop):
        while not stop.is_set():
            self.queue.maintain()
            stats = self.queue.stats()
            assert min(stats[:-1]) >= 0
            assert stats.depth <= stats.enqueued
            stop.wait(0.001)

    def __call__(self):
        stop = threading.Event()
        with Threads() as threads:
            getters = [threads.start(self.get, n) for n in range(GETTERS)]
            others = [threads.start(self.browse, stop), threads.start(self.maintain, stop)]
            putters = [threads.start(self.put, n) for n in range(PUTTERS)]
            put = sum(putter.result() for putter in putters)
            self.queue.shutdown()
            for getter in getters:
                getter.result()
            stop.set()
            for other in others:
                other.result()
        return put


def settle(run):
    """After the run: get and ack what was released last."""
    with run.queue.subscribe() as subscription:
        while True:
            try:
                entry = subscription.get()
            except ShutDown:
                return
            assert entry.ack()
            run.acked.append(entry.item.name)


def check_books(run, put, *, lost=0):
    stats = run.queue.stats()
    assert (stats.available, stats.acquired, stats.held, stats.depth, stats.subscriptions) == (0, 0, 0, 0, 0)
    assert stats.enqueued == put
    assert stats.enqueued == stats.acked + stats.rejected + stats.expired + stats.dropped + stats.purged
    # The timer's thread delivers dead letters of expired entries a moment later.
    wait_until(lambda: len(run.dead) >= stats.dead_lettered, "all dead letters")
    assert stats.dead_lettered == len(run.dead)
    assert stats.acked == len(run.acked) == len(set(run.acked))
    assert len({name for name, _ in run.dead}) == len(run.dead)
    assert set(run.acked).isdisjoint(name for name, _ in run.dead)
    assert len(run.acked) + len(run.dead) + lost == put
    reasons = [reason for _, reason in run.dead]
    assert reasons.count("rejected") == stats.rejected
    assert reasons.count("expired") == stats.expired
    return stats


def arrival(entry):
    return ("all", (entry.seq,))


CASES = {
    "fifo": (EntryQueue, {}, {"order": arrival}),
    "fifo, bounded": (EntryQueue, {"maxsize": 20}, {"order": arrival}),
    "fifo, ttl": (EntryQueue, {"max_deliveries": 3}, {"ttl": True}),
    "fifo, shared groups": (EntryQueue, {"groups": "shared", "maxsize": 50}, {}),
    "fifo, assigned groups": (EntryQueue, {"groups": "assigned"}, {"ttl": True}),
    "reject": (EntryQueue, {"maxsize": 30, "overflow": "reject"}, {}),
    "drop oldest": (EntryQueue, {"maxsize": 15, "overflow": "drop_oldest"}, {"ttl": True}),
    "priority": (PriorityEntryQueue, {"levels": 10}, {}),
    "priority, drop oldest": (PriorityEntryQueue, {"levels": 3, "maxsize": 15, "overflow": "drop_oldest"}, {}),
    "sorted": (SortedEntryQueue, {"key": lambda item: item.key}, {"ttl": True}),
    "sorted, bounded": (SortedEntryQueue, {"key": lambda item: item.key, "maxsize": 20}, {}),
    "last value": (LastValueQueue, {"key": lambda item: item.key}, {}),
}


@pytest.mark.thread_unsafe(reason="counts the items of the process")
@pytest.mark.parametrize("name", CASES)
def test_every_entry_ends_exactly_once(name, planted_pauses):
    make, options, more = CASES[name]
    gc.collect()
    before = Item.alive
    run = Run(None, planted_pauses, **more)
    run.queue = make("q", dead_letter=run.dead_letter, **options)
    with switching_often():
        put = run()
    settle(run)
    lost = run.queue.stats().dropped - sum(
        reason in ("overflow", "max_deliveries", "deleted") for _, reason in run.dead
    )
    assert name == "last value" or lost == 0
    check_books(run, put, lost=lost)
    del run
    gc.collect()
    assert Item.alive == before


def test_consumers_over_several_queues(planted_pauses):
    """Multi-queue consumers with one credit each, against putters on every queue. Consumers close and are replaced."""
    queues = [EntryQueue("a"), PriorityEntryQueue("b", maxsize=20), SortedEntryQueue("c", key=lambda item: item)]
    acked = []

    def put(n):
        for item in range(n * 1000, n * 1000 + 300):
            planted_pauses()
            queues[item % 3].put(item, priority=item % 10)

    def consume(n):
        chance = random.Random(n)
        while True:
            with Consumer(prefetch=n % 3, priority=n % 2) as consumer:
                for queue in chance.sample(queues, 3):
                    consumer.subscribe(queue)
                for _ in range(chance.randrange(20, 60)):
                    try:
                        entry = consumer.get()
                    except ShutDown:
                        return
                    planted_pauses()
                    if chance.random() < 0.15:
                        entry.release()
                    else:
                        assert entry.ack()
                        acked.append(entry.item)

    with Threads() as threads, switching_often():
        consumers = [threads.start(consume, n) for n in range(5)]
        for putter in [threads.start(put, n) for n in range(3)]:
            putter.result()
        for queue in queues:
            queue.shutdown()
        for consumer in consumers:
            consumer.result()
    for queue in queues:
        with queue.subscribe() as subscription:
            for entry in subscription:
                acked.append(entry.item)
                entry.ack()
        assert queue.stats().depth == 0
    assert sorted(acked) == sorted(item for n in range(3) for item in range(n * 1000, n * 1000 + 300))


def test_exclusive_subscriptions_take_over_from_each_other():
    """Each holds the queue alone for a while. Order and completeness hold across hand-overs."""
    from manytail import ExclusiveError

    queue = EntryQueue()
    acked = []

    def serve():
        while True:
            try:
                subscription = queue.subscribe(exclusive=True)
            except ExclusiveError:
                if queue.is_shutdown and queue.depth() == 0:
                    return
                continue
            with subscription:
                for _ in range(25):
                    try:
                        entry = subscription.get()
                    except ShutDown:
                        return
                    acked.append(entry.item)
                    assert entry.ack()
                subscription.get_many(3, False) if queue.qsize() else None  # the close releases these

    with Threads() as threads:
        servers = [threads.start(serve) for _ in range(3)]
        for n in range(1000):
            queue.put(n)
        queue.shutdown()
        for server in servers:
            server.result()
    assert acked == list(range(1000))
