"""A call that waits and is interrupted by a signal: while the handler runs, others are woken in its place, and the
handler may use what it interrupts.

Each wait is for a thing: an item to get, or a free slot to put into. `take` waits for one and takes it, `give` adds
one.
"""
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, Full
from typing import Any, NamedTuple

import pytest
from support.queues import raised_with_interrupt_pending
from support.threads import DEADLINE, LONG, Threads, acting_when, main_thread_sleeps

import manytail.queue
from manytail import Consumer, EntryQueue, IndexMultiQueue, MultiQueue, PubSubQueue

pytestmark = [
    pytest.mark.thread_unsafe(reason="signals go to the main thread"),
    pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="Windows has no SIGUSR1"),
]


class Wait(NamedTuple):
    take: Callable[..., Any]  # timeout=...; Empty or Full: there was nothing in that time
    give: Callable[[], Any]
    close: Callable[[], Any] = int


def multiqueue(kind: type[MultiQueue[Any, Any]]) -> Wait:
    queue = kind()
    tail = queue.add("a")
    return Wait(queue.get, lambda: tail.put(1))


def subqueue() -> Wait:
    queue: MultiQueue[str, int] = MultiQueue()
    tail = queue.add("a", maxsize=1)
    tail.put(0)
    return Wait(lambda timeout: tail.put(1, timeout=timeout), lambda: queue.get(timeout=LONG))


def stdlib(name: str) -> Wait:
    queue = getattr(manytail.queue, name)()
    return Wait(lambda timeout: queue.get(timeout=timeout), lambda: queue.put(1))


def stdlib_full(name: str) -> Wait:
    queue = getattr(manytail.queue, name)(1)
    queue.put(0)
    return Wait(lambda timeout: queue.put(1, timeout=timeout), lambda: queue.get(timeout=LONG))


def entries() -> Wait:
    queue: EntryQueue[int] = EntryQueue()
    subscription = queue.subscribe()
    return Wait(lambda timeout: subscription.get(timeout=timeout).ack(), lambda: queue.put(1), subscription.close)


def consumer() -> Wait:
    queue: EntryQueue[int] = EntryQueue()
    one: Consumer[int] = Consumer()
    one.subscribe(EntryQueue())
    one.subscribe(queue)
    return Wait(lambda timeout: one.get(timeout=timeout).ack(), lambda: queue.put(1), one.close)


def entries_full() -> Wait:
    queue: EntryQueue[int] = EntryQueue(maxsize=1)
    subscription = queue.subscribe()
    queue.put(0)
    ack_one = lambda: subscription.get(timeout=LONG).ack()  # noqa: E731
    return Wait(lambda timeout: queue.put(1, timeout=timeout), ack_one, subscription.close)


def subscriber() -> Wait:
    queue: PubSubQueue[int] = PubSubQueue()
    one = queue.subscribe()
    return Wait(lambda timeout: one.get(timeout=timeout), lambda: queue.publish(1), one.close)


def publisher() -> Wait:
    queue: PubSubQueue[int] = PubSubQueue(maxsize=1)
    one = queue.subscribe()
    queue.publish(0)
    return Wait(lambda timeout: queue.publish(1, timeout=timeout), lambda: one.get(timeout=LONG), one.close)


WAITS: dict[str, Callable[[], Wait]] = {
    "MultiQueue.get": lambda: multiqueue(MultiQueue),
    "IndexMultiQueue.get": lambda: multiqueue(IndexMultiQueue),
    "SubQueue.put": subqueue,
    "SimpleQueue.get": lambda: stdlib("SimpleQueue"),
    "Queue.get": lambda: stdlib("Queue"),
    "LifoQueue.get": lambda: stdlib("LifoQueue"),
    "Queue.put": lambda: stdlib_full("Queue"),
    "PriorityQueue.put": lambda: stdlib_full("PriorityQueue"),
    "Subscription.get": entries,
    "Consumer.get": consumer,
    "EntryQueue.put": entries_full,
    "Subscriber.get": subscriber,
    "PubSubQueue.publish": publisher,
}


@pytest.fixture(params=WAITS)
def wait(request: pytest.FixtureRequest) -> Iterator[Wait]:
    made = WAITS[request.param]()
    yield made
    made.close()


class Handled:
    """SIGUSR1 comes as soon as the main thread sleeps in a wait, and runs `handler` once."""

    def __init__(self, handler: Callable[[], Any]) -> None:
        self.begun = threading.Event()
        self.results: list[Any] = []
        self._handler = handler
        self._before = signal.signal(signal.SIGUSR1, self._handle)

    def _handle(self, *_: Any) -> None:
        self.begun.set()
        self.results.append(self._handler())

    def __enter__(self) -> "Handled":
        self._sender = acting_when(main_thread_sleeps, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        self._sender.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._sender.__exit__(*error)
        signal.signal(signal.SIGUSR1, self._before)


def test_a_handler_that_sleeps_keeps_nothing_from_others(wait: Wait) -> None:
    """It sleeps until another thread has the one thing that was given meanwhile."""
    has_taken = threading.Event()

    def other() -> None:
        wait.take(timeout=LONG)
        has_taken.set()

    with Threads() as threads:
        with Handled(lambda: has_taken.wait(DEADLINE)) as handled:

            def give() -> None:
                assert handled.begun.wait(DEADLINE)
                threads.start(other)
                wait.give()
                assert has_taken.wait(LONG)
                wait.give()

            giver = threads.start(give)
            wait.take(timeout=LONG)
        giver.result()
    assert handled.results == [True]


def test_a_handler_that_sleeps_is_passed_by_what_was_given_before(wait: Wait) -> None:
    """The other thread sleeps behind the one that runs the handler."""
    has_taken = threading.Event()

    def other() -> None:
        wait.take(timeout=LONG)
        has_taken.set()

    with Threads() as threads:
        first = threads.start(other)
        with Handled(lambda: (wait.give(), has_taken.wait(DEADLINE))[1]) as handled:

            def give() -> None:
                assert has_taken.wait(LONG)
                wait.give()

            giver = threads.start(give)
            wait.take(timeout=LONG)
        first.result()
        giver.result()
    assert handled.results in ([True], [])  # []: the thing came before the signal


def test_a_handler_takes_what_its_call_waits_for(wait: Wait) -> None:
    with Threads() as threads:
        with Handled(lambda: wait.take(timeout=DEADLINE)) as handled:

            def give() -> None:
                assert handled.begun.wait(DEADLINE)
                wait.give()
                wait.give()

            giver = threads.start(give)
            wait.take(timeout=LONG)
        giver.result()
    assert len(handled.results) == 1


def test_a_handler_gives_what_its_call_waits_for(wait: Wait) -> None:
    with Handled(wait.give) as handled:
        wait.take(timeout=LONG)
    assert len(handled.results) == 1
    with pytest.raises((Empty, Full)):
        wait.take(timeout=0.001)


def test_what_is_given_while_a_handler_raises_goes_to_another(wait: Wait) -> None:
    def fail() -> None:
        wait.give()
        raise ZeroDivisionError

    with Threads() as threads:
        with Handled(fail), pytest.raises(ZeroDivisionError):
            wait.take(timeout=LONG)
        threads.start(wait.take, timeout=DEADLINE).result()


def test_a_wait_whose_time_is_over_after_its_handler_looks_once_more(wait: Wait) -> None:
    """The handler lasts longer than the timeout, and there is a thing when it ends."""
    timeout, begin = 0.2, 0.0

    def outlast() -> None:
        threading.Event().wait(max(0.0, begin + 1.1 * timeout - time.monotonic()))
        wait.give()

    with Handled(outlast) as handled:
        while not handled.results:
            begin = time.monotonic()
            with contextlib.suppress(Empty, Full):  # the signal came too late
                wait.take(timeout=timeout)
                break
            assert not handled.begun.is_set()
    assert len(handled.results) == 1


def many_into_two_slots() -> list[Any]:
    """(put_many, the number of items that there are), of each queue that takes many at once."""
    tail = MultiQueue[str, int]().add("a", maxsize=2)
    sized = MultiQueue[str, int]().add("a", maxsize=2, sizer=abs)  # no Python code, in which a signal would be served
    entry_queue = EntryQueue[int](maxsize=2)
    indices = IndexMultiQueue[str]().add("a", maxsize=2)
    published: PubSubQueue[int] = PubSubQueue(maxsize=2)
    listener = published.subscribe()
    return [
        pytest.param(tail.put_many, tail.qsize, id="SubQueue"),
        pytest.param(sized.put_many, sized.qsize, id="SubQueue with a sizer"),
        pytest.param(indices.put_many, indices.qsize, id="SubQueue of integers"),
        pytest.param(entry_queue.put_many, entry_queue.qsize, id="EntryQueue"),
        pytest.param(published.publish_many, lambda: len(listener.get_many(9)), id="PubSubQueue"),
    ]  # fmt: skip


@pytest.mark.parametrize(("put_many", "size"), many_into_two_slots())
def test_a_signal_does_not_hide_how_many_items_went_in(put_many: Any, size: Any) -> None:
    error = raised_with_interrupt_pending(put_many, [1, 1, 1], block=False)
    assert isinstance(error, Full)
    assert error.count == size() == 2
