"""A signal handler that raises at any moment of a call leaves no lock held: the call of another thread returns.

tests/broker/test_interrupted_calls.py says the same of a broker, and that its calls take effect whole or not at all.
docs/limits.md names the locks that the standard library's own objects may keep."""

import itertools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias

import pytest
from support.counts import count
from support.interrupted import interrupt, needs_a_timer
from support.threads import Threads

from manytail import EntryQueue, IndexMultiQueue, MultiQueue, PubSubQueue, concurrent_map
from manytail._sync import Event, Held
from manytail.executor import KeyedExecutor
from manytail.queue import Queue, SimpleQueue

pytestmark = [
    needs_a_timer,
    pytest.mark.thread_unsafe(reason="signals are the main thread's"),
    # What a handler raises in a finalizer or in a callback of a weak reference is only reported.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# The call, and what another thread does after it.
Prepared: TypeAlias = tuple[Callable[[], object], Callable[[], object]]


def often(call: Callable[[], object]) -> Callable[[], None]:
    """A call that is so short that the signal would mostly come after it."""

    def calls() -> None:
        for _ in range(20):
            call()

    return calls


# ----------------------------------------------------------------------------------------------------------- primitives
def block(new: Callable[[], Any], *, nested: bool) -> Prepared:
    lock, entered = new(), 0

    def call() -> None:
        nonlocal entered
        with Held(lock), Held(lock) if nested else nullcontext():
            entered += 1

    def other() -> None:
        assert lock.acquire(blocking=False)

    return often(call), other


def event() -> Prepared:
    happened = Event()
    call = often(lambda: (happened.set(), happened.wait(), happened.clear()))
    return call, lambda: (happened.set(), happened.wait())


# --------------------------------------------------------------------------------------------------------------- queues
def both(queue: Any) -> Callable[[], object]:
    """A put and a get of another thread."""

    def call() -> None:
        queue.put(1)
        queue.get()
        assert queue.qsize() >= 0

    return call


def multiqueue() -> Prepared:
    queue: Any = MultiQueue()
    first, second = queue.add("first", maxsize=4), queue.add("second")

    def call() -> None:
        first.put(1)
        second.put_many([2, 3])
        queue.get()
        queue.get_many(2)

    return call, lambda: (first.put(1, timeout=60), queue.get(), queue.qsize())


def index_multiqueue() -> Prepared:
    queue = IndexMultiQueue()
    rows = queue.add("rows")
    call = often(lambda: (rows.put_many(range(3)), queue.get_many(3)))
    return call, lambda: (rows.put(1), queue.get())


def entry_queue() -> Prepared:
    queue = EntryQueue()
    consumer = queue.subscribe()

    def call() -> None:
        queue.put("item")
        consumer.get().release(delay=0.00001)
        consumer.get().ack()

    def other() -> None:
        queue.put("other")
        queue.subscribe().get().ack()
        assert queue.qsize() >= 0

    return call, other


def pubsub() -> Prepared:
    queue = PubSubQueue()
    subscriber = queue.subscribe()
    call = often(lambda: (queue.publish("item"), subscriber.get()))
    return call, lambda: (queue.publish("other"), subscriber.get())


class LastFirst(Queue[Any]):
    """In locked mode: it overrides a hook."""

    def _get(self) -> Any:
        return self.queue.pop()


def stdlib_queue(new: Callable[[int], Any], *, repeat: bool) -> Prepared:
    queue = new(8)

    def call() -> None:
        queue.put(1)
        queue.get()
        queue.task_done()

    return often(call) if repeat else call, both(queue)


def stdlib_queue_waits() -> Prepared:
    queue: Any = Queue(1)

    def call() -> None:
        queue.put(1)
        for wait in (queue.put, queue.join):
            try:
                wait(2, timeout=0.00002) if wait == queue.put else wait(timeout=0.00002)
            except Exception:
                continue
        queue.get()

    def other() -> None:
        while queue.qsize():
            queue.get()
        both(queue)()

    return call, other


def simple_queue() -> Prepared:
    queue: Any = SimpleQueue()
    return often(lambda: (queue.put(1), queue.get())), both(queue)


# --------------------------------------------------------------------------------------------------- executor and maps
def submit() -> Prepared:
    executor = KeyedExecutor(2)

    def other() -> None:
        assert executor.lane("other").submit(int).result() == 0
        executor.shutdown()

    return lambda: (executor.lane("key").submit(int), executor.lane("key").submit(int)), other


def submit_and_cancel() -> Prepared:
    executor = KeyedExecutor(1)
    executor.lane("key").submit(int)

    def other() -> None:
        assert executor.lane("other").submit(int).result() == 0
        executor.shutdown()

    return lambda: executor.lane("key").submit(int).cancel(), other


def shutdown() -> Prepared:
    executor = KeyedExecutor(2)
    executor.lane("key").submit(int)
    return executor.shutdown, executor.shutdown


def whole_map() -> Prepared:
    results = concurrent_map(abs, range(4), workers=2)
    return lambda: list(results), results.close


def next_of_a_map() -> Prepared:
    results = concurrent_map(abs, range(20), workers=2, per_key=1, key=lambda item: item % 2)
    next(results)
    return lambda: (next(results), next(results)), results.close


def close_of_a_map() -> Prepared:
    results = concurrent_map(abs, itertools.count(), workers=2, timeout=60)
    next(results)
    return results.close, results.close


CALLS: dict[str, Callable[[], Prepared]] = {
    "block": partial(block, threading.Lock, nested=False),
    "reentrant_block": partial(block, threading.RLock, nested=True),
    "stdlib_queue": partial(stdlib_queue, Queue, repeat=True),
    "stdlib_queue_in_locked_mode": partial(stdlib_queue, LastFirst, repeat=False),
    **{
        prepared.__name__: prepared
        for prepared in (
            *(event, multiqueue, index_multiqueue, entry_queue, pubsub, stdlib_queue_waits, simple_queue),
            *(submit, submit_and_cancel, shutdown, whole_map, next_of_a_map, close_of_a_map),
        )
    },
}


@pytest.mark.parametrize("prepared", CALLS.values(), ids=CALLS)
def test_no_lock_stays_held(prepared: Callable[[], Prepared]) -> None:
    other: Callable[[], object]

    def prepare() -> Callable[[], object]:
        nonlocal other
        call, other = prepared()
        return call

    with Threads() as threads:
        interrupt(prepare, lambda: threads.start(other).result(), count(200, 10_000))
