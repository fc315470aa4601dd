"""The load of soak.py, one process: each epoch runs random threads on a random queue and checks every invariant.

Prints one JSON line per violation and one at the end. The exit status is 1 if there was a violation. Needs only
manytail.

    python bench/soak_load.py --seconds 600 --seed 1

Checked after each epoch: each item put was got, cleared or discarded, once; each consumer saw each producer's items in
the order of the puts; the figures of stats() add up; join() returned and every thread ended; no item outlives its
epoch.
"""
import argparse
import asyncio
import contextlib
import faulthandler
import gc
import itertools
import json
import random
import sys
import threading
import time
import weakref
from collections import Counter
from queue import Empty, Full

from manytail import IndexMultiQueue, MultiQueue, ShutDown

DEADLINE = 120.0  # seconds; only catches hangs
SPAN = 1_000_000
MOMENT = 0.0005
SELECTIONS = ["round_robin", "weighted", "oldest", lambda ready: ready[-1]]


class Item:
    """Numbered, and weakly referable, so that a leak names the item."""

    __slots__ = ("__weakref__", "number")

    def __init__(self, number):
        self.number = number


def number(item):
    return item.number if isinstance(item, Item) else item


# ------------------------------------------------------------------------------------------------ producers
def put_each(tail, items, rng):
    for item in items:
        tail.put(item)


def put_chains(tail, items, rng):
    items = list(items)
    while items:
        n = rng.randint(1, 100)
        tail.put_many(items[:n])
        del items[:n]


def put_stream(tail, items, rng):
    tail.put_many(iter(items))


def put_impatiently(tail, items, rng):
    for item in items:
        while True:
            try:
                tail.put(item, timeout=MOMENT)
                break
            except Full:
                continue


def put_fronts(tail, items, rng):
    for item in items:
        tail.put_front(item)


def put_from_a_loop(tail, items, rng):
    async def produce():
        for item in items:
            while True:
                task = asyncio.ensure_future(tail.aput(item))
                if rng.random() < 0.05:
                    asyncio.get_running_loop().call_soon(task.cancel)
                try:
                    await task
                    break
                except asyncio.CancelledError:
                    continue  # cancelled before it returned: nothing was put

    asyncio.run(produce())


PRODUCERS = [put_each, put_chains, put_stream, put_impatiently, put_fronts, put_from_a_loop]


# ------------------------------------------------------------------------------------------------ consumers
def one_by_one(queue, rng):
    return [queue.get()]


def with_key(queue, rng):
    return [queue.get_with_key()[1]]


def impatient(queue, rng):
    try:
        return [queue.get(timeout=rng.random() * MOMENT)]
    except Empty:
        return []


def in_batches(queue, rng):
    return queue.get_many(rng.randint(1, 200))


def in_a_loop(queue, rng):
    async def take():
        task = asyncio.ensure_future(queue.aget())
        if rng.random() < 0.1:
            asyncio.get_running_loop().call_later(rng.random() * MOMENT, task.cancel)
        try:
            return [await task]
        except asyncio.CancelledError:
            return []

    return take()


CONSUMERS = [one_by_one, with_key, impatient, in_batches, in_a_loop]


# ----------------------------------------------------------------------------------------------- changes during the run
def blink(epoch, rng):
    rng.choice(epoch.tails).enabled = rng.random() < 0.6


def move(epoch, rng):
    rng.choice(epoch.tails).priority = rng.randint(-2, 2)


def weigh(epoch, rng):
    rng.choice(epoch.tails).weight = rng.randint(1, 5)


def resize(epoch, rng):
    rng.choice(epoch.tails).maxsize = rng.randint(-1, 50)


def clear(epoch, rng):
    epoch.taken_away.append(rng.choice(epoch.tails).clear())


def discard(epoch, rng):
    tail = rng.choice(epoch.tails)
    for item in itertools.islice(tail, rng.randint(0, 70)):
        if rng.random() < 0.02:
            epoch.taken_away.append(int(tail.discard(item)))


def come_and_go(epoch, rng):
    key = f"guest {rng.random()}"
    epoch.queue.add(key, priority=rng.randint(-1, 1), maxsize=2)
    epoch.queue.remove(key)


def look(epoch, rng):
    tail = rng.choice(epoch.tails)
    tail.qsize(), tail.remaining(), epoch.queue.qsize(), epoch.queue.stats()
    with contextlib.suppress(Empty):
        epoch.queue.peek()


MEDDLERS = [blink, move, weigh, resize, clear, discard, come_and_go, look]


# ------------------------------------------------------------------------------------------------ an epoch
class Epoch:
    def __init__(self, rng, items):
        self.rng = rng
        kind = rng.choice([MultiQueue, MultiQueue, MultiQueue, IndexMultiQueue])
        self.objects = kind is MultiQueue
        self.queue = kind(selection=rng.choice(SELECTIONS))
        self.tails = [
            self.queue.add(
                key, maxsize=rng.choice([0, 0, 1, 7, 100]), weight=rng.randint(1, 4), priority=rng.choice([0, 0, 0, 1])
            )
            for key in range(rng.choice([1, 2, 5, 40]))
        ]
        self.producers = [rng.choice(PRODUCERS) for _ in range(rng.randint(1, 5))]
        # in_batches needs numpy for the arrays of an IndexMultiQueue.
        usable = CONSUMERS if self.objects else [consume for consume in CONSUMERS if consume is not in_batches]
        self.consumers = [rng.choice(usable) for _ in range(rng.randint(1, 4))]
        self.meddlers = rng.sample(MEDDLERS, rng.randint(0, 4))
        self.share = items // len(self.producers)
        self.taken_away = []
        self.alive = []
        self.stop = threading.Event()
        self.wrong = []

    def produce(self, me, rng):
        first = me * SPAN
        items = [Item(first + n) if self.objects else first + n for n in range(self.share)]
        if self.objects:
            self.alive.append([weakref.ref(item) for item in items])
        self.producers[me](self.tails[me % len(self.tails)], items, rng)

    def consume(self, me, rng):
        consume, taken = self.consumers[me], []
        with asyncio.Runner() as runner, contextlib.suppress(ShutDown):
            while True:
                items = consume(self.queue, rng)
                items = runner.run(items) if asyncio.iscoroutine(items) else items
                for item in items:
                    taken.append(number(item))
                    self.queue.task_done()
        return taken

    def meddle(self, me, rng):
        while not self.stop.is_set():
            self.meddlers[me](self, rng)
            self.stop.wait(rng.random() * 0.001)

    def run(self):
        """Run the epoch. Returns its violations."""
        results = {}

        def thread(name, me):
            seed = self.rng.random()

            def work():
                try:
                    results[name, me] = getattr(self, name)(me, random.Random(seed))
                except BaseException as error:
                    self.wrong.append(f"{name} {me} raised {error!r}")

            started = threading.Thread(target=work, daemon=True)
            started.start()
            return started

        consumers = [thread("consume", n) for n in range(len(self.consumers))]
        meddlers = [thread("meddle", n) for n in range(len(self.meddlers))]
        producers = [thread("produce", n) for n in range(len(self.producers))]
        if not self.join_all(producers):
            return self.wrong
        self.stop.set()
        self.join_all(meddlers)
        for tail in self.tails:
            tail.enabled = True
        if not self.queue.join(DEADLINE):
            self.wrong.append(f"join() did not return: {self.queue.stats()}")
        self.queue.shutdown()
        if self.join_all(consumers):
            self.check([results.get(("consume", n), []) for n in range(len(self.consumers))])
        return self.wrong

    def join_all(self, threads):
        deadline = time.monotonic() + DEADLINE
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
                self.wrong.append(f"a thread hangs: {self.queue.stats()}, {self.tails[:5]}")
                return False
        return True

    def check(self, taken_by):
        put, taken = self.share * len(self.producers), list(itertools.chain(*taken_by))
        twice = [item for item, n in Counter(taken).items() if n > 1]
        if twice:
            self.wrong.append(f"got twice: {twice[:5]}")
        if len(taken) + sum(self.taken_away) != put:
            self.wrong.append(f"{put} put, {len(taken)} got, {sum(self.taken_away)} taken away")
        for one in taken_by:
            for me, producer in enumerate(self.producers):
                mine = [item for item in one if item // SPAN == me]
                if producer is not put_fronts and mine != sorted(mine):
                    self.wrong.append(f"items of producer {me} out of order")
        stats = self.queue.stats()
        if (stats.put, stats.got, stats.qsize, stats.getters_waiting, stats.putters_waiting) != (
            put,
            len(taken),
            0,
            0,
            0,
        ):
            self.wrong.append(f"{put} put and {len(taken)} got, but {stats}")

    def leaked(self):
        """How many items are alive after the epoch. A task that raised is a reference cycle: collect first."""
        self.queue = self.tails = None
        gc.collect()
        return sum(ref() is not None for ref in itertools.chain(*self.alive))


def one_epoch(rng, items):
    """(items put, violations)."""
    epoch = Epoch(rng, items)
    shape = " ".join(
        str([action.__name__ for action in actions]) for actions in (epoch.producers, epoch.consumers, epoch.meddlers)
    )
    wrong = epoch.run()
    put = epoch.share * len(epoch.producers)
    if not wrong and epoch.leaked():
        wrong.append("items outlive their epoch")
    return put, [f"{words} ({shape})" for words in wrong]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--items", type=int, default=5000, help="per epoch")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    end = time.monotonic() + options.seconds
    epochs = total = violations = 0
    while time.monotonic() < end:
        put, wrong = one_epoch(rng, options.items)
        epochs, total, violations = epochs + 1, total + put, violations + len(wrong)
        for words in wrong:
            print(json.dumps({"violation": words, "epoch": epochs}), flush=True)
        if any("hangs" in words for words in wrong):
            break  # its threads would disturb the next epochs
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(
        json.dumps(
            {"epochs": epochs, "items": total, "violations": violations, "python": sys.version.split()[0], "gil": gil}
        ),
        flush=True,
    )
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
