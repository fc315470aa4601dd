"""The self-check of `python -m manytail doctor`: threads use each structure, and each promise is checked by counting.

A round is one small run with threads. It returns how many items went through. It raises Broken if they do not add up.
Rounds make their own queues and share nothing. No wait is longer than STUCK, so that a lost wake-up or item ends as
Broken and not as a hang.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import Empty, Full
from threading import Thread
from typing import Any, NamedTuple

from manytail import EntryQueue, MultiQueue, PubSubQueue, ShutDown, SubQueue, Subscriber, Subscription
from manytail.executor import KeyedExecutor

ITEMS = 500  # per producer in a round
PRODUCERS = 3
CONSUMERS = 3
STUCK = 60.0  # seconds without an item while items are expected


class Broken(Exception):
    """A promise was not kept; the message says which and by how much."""


def together(jobs: Iterable[Callable[[], Any]]) -> list[Any]:
    """The results of jobs that run at the same time, each in its own thread. Raises the first error, and Ctrl-C, at
    once: then other jobs may wait for what does not come, and end with the process."""
    ran: list[tuple[Thread, Future[Any]]] = []
    for job in jobs:
        future: Future[Any] = Future()
        thread = Thread(target=_run, args=(job, future), name="doctor", daemon=True)
        thread.start()
        ran.append((thread, future))
    results = [future.result() for _, future in ran]
    for thread, _ in ran:
        thread.join()
    return results


def _run(job: Callable[[], Any], future: Future[Any]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:
        future.set_exception(error)


def expect(right: bool, promise: str, *figures: object) -> None:
    if not right:
        raise Broken(f"{promise}: {', '.join(map(str, figures))}")


def multi_queue() -> int:
    """Producers fill sub-queues of different priority and capacity; consumers empty them."""
    queue: MultiQueue[int, tuple[int, int]] = MultiQueue()
    sub_queues = [queue.add(number, priority=number % 2, maxsize=16 * number) for number in range(PRODUCERS)]

    def produce(number: int, sub_queue: SubQueue[int, tuple[int, int]]) -> None:
        for n in range(ITEMS):
            sub_queue.put((number, n), timeout=STUCK)

    def consume() -> list[tuple[int, int]]:
        return list(until_shutdown(partial(queue.get, timeout=STUCK)))

    def close() -> None:
        together(partial(produce, *pair) for pair in enumerate(sub_queues))
        queue.shutdown()

    received = together([*[consume] * CONSUMERS, close])[:-1]
    expect_each_once("MultiQueue: each item once", [item for items in received for item in items])
    for items in received:
        for number in range(PRODUCERS):
            seen = [n for producer, n in items if producer == number]
            expect(seen == sorted(seen), "MultiQueue: order inside a sub-queue", seen)
    expect(queue.qsize() == 0, "MultiQueue: empty at the end", queue.qsize())
    return PRODUCERS * ITEMS


def until_shutdown(get: Callable[[], Any]) -> Iterator[Any]:
    """Yield what `get` returns, until it raises ShutDown."""
    while True:
        try:
            item = get()
        except ShutDown:
            return
        yield item


def expect_each_once(promise: str, received: list[Any]) -> None:
    counted = Counter(received)
    expected = {(number, n) for number in range(PRODUCERS) for n in range(ITEMS)}
    lost = len(expected - counted.keys())
    repeated = sum(count - 1 for count in counted.values())
    expect(
        lost == 0 and repeated == 0 and counted.keys() == expected,
        promise,
        f"{lost} lost, {repeated} repeated, of {len(expected)}",
    )


def entry_queue() -> int:
    """Consumers acquire entries and release one in four; each entry is acknowledged once."""
    queue: EntryQueue[tuple[int, int]] = EntryQueue()

    def produce(number: int) -> None:
        for n in range(ITEMS):
            queue.put((number, n), timeout=STUCK)

    def consume(subscription: Subscription[tuple[int, int]], chance: random.Random) -> list[tuple[int, int]]:
        done = []
        for entry in until_shutdown(partial(subscription.get, timeout=STUCK)):
            if chance.random() < 0.25:
                entry.release()
            elif entry.ack():
                done.append(entry.item)
        return done

    def close() -> None:
        together(partial(produce, number) for number in range(PRODUCERS))
        queue.shutdown()

    subscriptions = [queue.subscribe() for _ in range(CONSUMERS)]
    try:
        jobs = [
            partial(consume, subscription, random.Random(number)) for number, subscription in enumerate(subscriptions)
        ]
        received = together([*jobs, close])[:-1]
    finally:
        for subscription in subscriptions:
            subscription.close()
    expect_each_once("EntryQueue: each entry acknowledged once", [item for items in received for item in items])
    stats = queue.stats()
    expect(stats.depth == 0 and stats.acked == stats.enqueued == PRODUCERS * ITEMS, "EntryQueue: its own counts", stats)
    return PRODUCERS * ITEMS


def pub_sub() -> int:
    """Every subscriber gets every message, all of them in the same order."""
    queue: PubSubQueue[tuple[int, int]] = PubSubQueue(maxsize=64)

    def publish(number: int) -> None:
        for n in range(ITEMS):
            queue.publish((number, n), timeout=STUCK)

    def listen(subscriber: Subscriber[tuple[int, int]]) -> list[tuple[int, int]]:
        return list(until_shutdown(partial(subscriber.get, timeout=STUCK)))

    def close() -> None:
        together(partial(publish, number) for number in range(PRODUCERS))
        queue.shutdown()

    subscribers = [queue.subscribe() for _ in range(CONSUMERS)]
    try:
        received = together([*[partial(listen, subscriber) for subscriber in subscribers], close])[:-1]
    finally:
        for subscriber in subscribers:
            subscriber.close()
    for messages in received:
        expect_each_once("PubSubQueue: each message once to each subscriber", messages)
        expect(messages == received[0], "PubSubQueue: one order for all subscribers")
    return PRODUCERS * ITEMS


def keyed_executor() -> int:
    """Calls of one key run one at a time and in the order in which they were submitted."""
    running = [threading.Lock() for _ in range(PRODUCERS)]
    finished: list[deque[int]] = [deque() for _ in range(PRODUCERS)]

    def call(key: int, n: int) -> int:
        expect(
            running[key].acquire(blocking=False), "KeyedExecutor: one call of a key at a time", f"key {key}, call {n}"
        )
        finished[key].append(n)
        running[key].release()
        return n

    with KeyedExecutor(CONSUMERS, per_key=1) as executor:
        lanes = [executor.lane(key) for key in range(PRODUCERS)]
        futures = [lane.submit(call, key, n) for n in range(ITEMS) for key, lane in enumerate(lanes)]
        results = [future.result(timeout=STUCK) for future in futures]
    expect(results == [n for n in range(ITEMS) for _ in lanes], "KeyedExecutor: each future has the result of its call")
    for key, calls in enumerate(finished):
        expect(list(calls) == list(range(ITEMS)), "KeyedExecutor: order inside a key", f"key {key}", list(calls))
    return PRODUCERS * ITEMS


class Round(NamedTuple):
    """The check of one structure."""

    play: Callable[[], int]
    promise: str


ROUNDS = {
    "MultiQueue": Round(multi_queue, "each item once, in order inside its sub-queue"),
    "EntryQueue": Round(entry_queue, "each entry acknowledged once, whoever gave it back"),
    "PubSubQueue": Round(pub_sub, "each message once to each subscriber, in one order"),
    "KeyedExecutor": Round(keyed_executor, "the calls of a key one at a time, in order"),
}


def repeat(play: Callable[[], int], seconds: float) -> tuple[int, int]:
    """Play rounds for that many seconds, at least one. Returns how many rounds, and how many items. Raises Broken."""
    rounds = items = 0
    until = time.monotonic() + seconds
    while rounds == 0 or time.monotonic() < until:
        try:
            items += play()
        except (Empty, Full, TimeoutError) as error:
            raise Broken(
                f"nothing moved for {STUCK:g} s ({type(error).__name__}), though items were to come"
            ) from error
        rounds += 1
    return rounds, items
