"""A call that runs a signal handler in its wait holds up nobody: each waiting call of every structure, with handlers
that wait for another thread, wait in the same queue, wake their own call, and raise.

The main thread waits, a signal comes while it sleeps. If its call kept its place in the list of waiters, or a wake-up,
while the handler runs, the handler would wait for ever.
"""
import faulthandler
import operator
import signal
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from support.threads import DEADLINE, Hang, Task, Threads, wait_asleep, wait_getters

from manytail import EntryQueue, MultiQueue

from .entry_pairs import ENTRY_PAIRS
from .pairs import PAIRS, Pair
from .pubsub_pairs import PUBSUB_PAIRS
from .queue_pairs import QUEUE_PAIRS
from .race import WOKEN, Interrupted, expect, once

pytestmark = [
    pytest.mark.thread_unsafe(reason="signals are the main thread's"),
    pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="POSIX signals"),
]

EACH_PAIR = pytest.mark.parametrize("pair", [
    pytest.param(pair, id=name) for name, pair in {**PAIRS, **PUBSUB_PAIRS, **ENTRY_PAIRS, **QUEUE_PAIRS}.items()
])
MAIN: Any = threading.main_thread()


def hang(number: int, frame: object) -> None:
    faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
    raise Hang(f"the main thread still waits after {DEADLINE} s (stacks on stderr)")


class Wait:
    """One wait of the main thread, with a signal whose handler runs `act` while it sleeps."""

    def __init__(self, pair: type[Pair], act: "Callable[[Wait], None]") -> None:
        self.one, self.act = pair(), act
        self.one.begin()
        self.signals = 0

    def run(self) -> None:
        before = signal.signal(signal.SIGUSR1, self.handle), signal.signal(signal.SIGALRM, hang)
        signal.setitimer(signal.ITIMER_REAL, DEADLINE)
        try:
            with Threads() as self.threads:
                call = self.one.waiting()
                try:
                    self.outcome = self.wait(call, self.interrupt)
                finally:
                    self.one.end()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGUSR1, before[0])
            signal.signal(signal.SIGALRM, before[1])
            self.one.close()
        assert self.signals == 1
        assert self.outcome == WOKEN

    def wait(self, call: Callable[[], Any], when_asleep: Callable[[], None]) -> str:
        """Wait in the main thread; another thread calls `when_asleep` when it sleeps."""
        going: SimpleQueue[None] = SimpleQueue()

        def act() -> None:
            expect(going, "began to wait")      # starting this thread makes the main thread sleep, too
            wait_asleep(MAIN)
            when_asleep()

        other = self.threads.start(act)
        going.put(None)
        outcome = once(self.one, call)
        other.result()      # what it did is complete before the round ends
        return outcome

    def interrupt(self) -> None:
        signal.pthread_kill(MAIN.ident, signal.SIGUSR1)

    def handle(self, number: int, frame: object) -> None:
        self.signals += 1
        self.act(self)

    # What handlers do:
    def wake_another(self) -> None:
        """Wait until a thread that waits behind the interrupted call has been woken."""
        woken: SimpleQueue[str] = SimpleQueue()
        call = self.one.waiting()
        wait_asleep(self.threads.start(lambda: woken.put(once(self.one, call))))
        self.one.wake()
        assert expect(woken, "was woken while the handler ran") == WOKEN

    def wait_too(self) -> None:
        assert self.wait(self.one.waiting(), self.one.wake) == WOKEN

    def next_round(self) -> None:
        """Of a pair that wakes one waiter: wake the interrupted call too, when its handler has ended."""
        if self.one.wakes == "one":
            self.one.end()
            self.one.begin()
            self.wake()

    def wake(self) -> None:
        """In this thread, unless the waker waits until somebody waits."""
        if self.one.wake_waits:
            self.threads.start(self.one.wake)
        else:
            self.one.wake()


@EACH_PAIR
def test_a_handler_may_wait_until_another_waiter_is_served(pair: type[Pair]) -> None:
    def act(wait: Wait) -> None:
        wait.wake_another()
        wait.next_round()

    Wait(pair, act).run()


@EACH_PAIR
def test_a_handler_may_wait_in_the_queue_that_it_interrupts(pair: type[Pair]) -> None:
    def act(wait: Wait) -> None:
        wait.wait_too()
        wait.next_round()

    Wait(pair, act).run()


@EACH_PAIR
def test_a_handler_may_wake_the_call_that_it_interrupts(pair: type[Pair]) -> None:
    Wait(pair, Wait.wake).run()


@EACH_PAIR
def test_a_handler_that_raises_leaves_the_wake_up_to_another_waiter(pair: type[Pair]) -> None:
    def act(wait: Wait) -> None:
        wait.wake_another()
        raise Interrupted

    with pytest.raises(Interrupted):
        Wait(pair, act).run()


def test_a_wait_that_runs_a_handler_keeps_its_place() -> None:
    """Who has waited longest gets the first item, whatever signals came."""
    queue = MultiQueue()
    tail = queue.add("a")
    handled: SimpleQueue[None] = SimpleQueue()

    def behind(threads: Threads) -> Task:
        wait_getters(queue, 1)
        other = threads.start(queue.get)
        wait_getters(queue, 2)
        signal.pthread_kill(MAIN.ident, signal.SIGUSR1)
        expect(handled, "ran the handler")
        wait_getters(queue, 2)
        tail.put(1)
        return other

    before = signal.signal(signal.SIGUSR1, lambda *_: handled.put(None))
    try:
        with Threads() as threads:
            second = threads.start(behind, threads)
            assert queue.get(timeout=DEADLINE) == 1
            tail.put(2)
            assert second.result().result() == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_entry_handed_to_a_call_is_released_before_its_handler_runs() -> None:
    """put(immediate=True) gives its entry to a call that a signal has just interrupted: the handler can get it."""
    queue = EntryQueue("a")
    with queue.subscribe() as first, queue.subscribe() as second:
        hand_over_often(queue, first, second)
    assert queue.depth() == 0


def hand_over_often(queue: Any, first: Any, second: Any) -> None:
    got: list[Any] = []

    def hand_over() -> None:
        wait_asleep(MAIN)
        signal.pthread_kill(MAIN.ident, signal.SIGUSR1)     # with a GIL the call goes on only when this thread lets it
        if queue.put(1, immediate=True) is None:
            queue.put(1)

    def handle(number: int, frame: object) -> None:
        if not got:     # else the signal came after the get
            assert second.get(timeout=DEADLINE).ack()
            queue.put(2)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        for _ in range(20):
            with Threads() as threads:
                threads.start(hand_over)
                got.extend(map(operator.call, (first.get,)))    # no bytecode runs between the get and the storing
            assert got.pop().ack()
    finally:
        signal.signal(signal.SIGUSR1, before)
