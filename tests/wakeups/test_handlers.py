"""A call that runs a signal handler in its wait holds up nobody: each waiting call of every structure, with handlers
that wait for another thread, wait in the same queue, wake their own call, outlast its timeout, and raise.

The main thread waits, a signal comes while it sleeps. If its call kept its place in the list of waiters, or a wake-up,
while the handler runs, the handler would wait for ever.
"""
import faulthandler
import functools
import operator
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from support.counts import count
from support.forks import in_child
from support.threads import DEADLINE, Hang, Task, Threads, TooLate, in_time, wait_asleep, wait_getters, wait_until

from manytail import EntryQueue, MultiQueue
from manytail._sections import Sections
from manytail._sync import Event, Held

from .entry_pairs import ENTRY_PAIRS
from .pairs import PAIRS, Pair
from .pubsub_pairs import PUBSUB_PAIRS
from .queue_pairs import QUEUE_PAIRS
from .race import GAVE_UP, WOKEN, Interrupted, expect, handling, once
from .sync_pairs import SYNC_PAIRS, OfMutex, OfSections

pytestmark = [
    pytest.mark.thread_unsafe(reason="signals are the main thread's"),
    pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="POSIX signals"),
]


ALL_PAIRS = {**PAIRS, **PUBSUB_PAIRS, **ENTRY_PAIRS, **QUEUE_PAIRS, **SYNC_PAIRS}


def each(pairs: dict[str, type[Pair]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pair", [pytest.param(pair, id=name) for name, pair in pairs.items()])


EACH_PAIR = each(ALL_PAIRS)
WITH_TIMEOUT = {name: pair for name, pair in ALL_PAIRS.items() if pair.has_timeout}


def wakes_at_once(name: str, pair: type[Pair]) -> bool:
    """Not by a timer, nor by a thread that waits for the waiter. CPython's lock, in the mutex, does not look again."""
    return "delayed" not in name and "last" not in name and not pair.wake_waits and pair is not OfMutex


SPANS = (0.03, 1, 20)  # seconds: timeouts, each for a slower machine
MAIN: Any = threading.main_thread()


def hang(number: int, frame: object) -> None:
    faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
    raise Hang(f"the main thread still waits after {DEADLINE} s (stacks on stderr)")


class Waiting:
    """One wait of the main thread, with a signal whose handler runs `act` while it sleeps."""

    def __init__(self, pair: type[Pair], act: "Callable[[Waiting], None]", timeout: float | None = None) -> None:
        self.one, self.act, self.timeout = pair(), act, timeout
        self.one.begin()
        self.signals = 0

    def run(self, expected: str) -> None:
        with handling(signal.SIGUSR1, self.handle), handling(signal.SIGALRM, hang):
            signal.setitimer(signal.ITIMER_REAL, DEADLINE)
            try:
                with Threads() as self.threads:
                    call = self.one.waiting()
                    if self.timeout is not None:
                        call = functools.partial(call, timeout=self.timeout)
                    try:
                        self.outcome = self.wait(call, self.interrupt)
                    except TooLate:
                        raise
                    except BaseException:
                        self.one.end()
                        raise
                    self.one.end()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                self.one.close()
        assert self.signals == 1
        assert self.outcome == expected

    def wait(self, call: Callable[[], Any], when_asleep: Callable[[], None]) -> str:
        """Wait in the main thread; another thread calls `when_asleep` when it sleeps."""
        going: SimpleQueue[None] = SimpleQueue()

        def act() -> None:
            expect(going, "began to wait")      # starting this thread makes the main thread sleep, too
            wait_asleep(MAIN)
            when_asleep()

        other = self.threads.start(act)
        going.put(None)
        self.began = time.monotonic()
        outcome = once(self.one, call)
        other.result()      # what it did is complete before the round ends
        return outcome

    def interrupt(self) -> None:
        signal.pthread_kill(MAIN.ident, signal.SIGUSR1)

    def handle(self, number: int, frame: object) -> None:
        self.signals += 1
        if self.timeout is not None and time.monotonic() > self.began + self.timeout:
            raise TooLate       # the call may have ended
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

    def outlast(self) -> None:
        """Until the timeout of the interrupted call has passed."""
        assert self.timeout is not None
        time.sleep(max(0.0, self.began + 2 * self.timeout - time.monotonic()))

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
    def act(wait: Waiting) -> None:
        wait.wake_another()
        wait.next_round()

    Waiting(pair, act).run(WOKEN)


@EACH_PAIR
def test_a_handler_may_wait_in_the_queue_that_it_interrupts(pair: type[Pair]) -> None:
    def act(wait: Waiting) -> None:
        wait.wait_too()
        wait.next_round()

    Waiting(pair, act).run(WOKEN)


@EACH_PAIR
def test_a_handler_may_wake_the_call_that_it_interrupts(pair: type[Pair]) -> None:
    Waiting(pair, Waiting.wake).run(WOKEN)


@EACH_PAIR
def test_a_handler_that_raises_leaves_the_wake_up_to_another_waiter(pair: type[Pair]) -> None:
    def act(wait: Waiting) -> None:
        wait.wake_another()
        raise Interrupted

    with pytest.raises(Interrupted):
        Waiting(pair, act).run(WOKEN)


@each({name: pair for name, pair in WITH_TIMEOUT.items() if wakes_at_once(name, pair)})
def test_a_handler_that_outlasts_the_timeout_may_wake_the_call(pair: type[Pair]) -> None:
    """The call looks again before it gives up."""
    def act(wait: Waiting) -> None:
        wait.outlast()
        wait.wake()

    in_time(lambda seconds: Waiting(pair, act, seconds).run(WOKEN), *SPANS)


@each(WITH_TIMEOUT)
def test_a_handler_that_outlasts_the_timeout_may_wait_until_another_waiter_is_served(pair: type[Pair]) -> None:
    """The call then gives up, unless all waiters were woken."""
    def act(wait: Waiting) -> None:
        wait.outlast()
        wait.wake_another()

    in_time(lambda seconds: Waiting(pair, act, seconds).run(WOKEN if pair.wakes == "all" else GAVE_UP), *SPANS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_handler_that_forks_leaves_the_child_a_lock_that_wakes() -> None:
    def act(wait: Waiting) -> None:
        wait.wake()
        wait.one.end()  # the lock is free, and the interrupted call does not have it yet
        in_child(functools.partial(wait_and_wake, wait.one))

    Waiting(OfSections, act).run(WOKEN)


def wait_and_wake(one: Pair) -> None:
    one.begin()
    waiter = Task(once, (one, one.waiting()), {})
    waiter.start()
    wait_asleep(waiter)
    one.wake()
    waiter.result()


@pytest.mark.parametrize("released_first", [False, True])
def test_a_section_whose_wait_a_handler_ends_leaves_its_turn_to_the_next_waiter(released_first: bool) -> None:
    """The interrupted thread waits longest, so the end of the section wakes it. The other one is woken in its place."""

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    def hold(sections: Sections, inside: Event, threads: Threads) -> None:
        with sections:
            inside.set()
            wait_until(lambda: sections.sleeping == 1)
            threads.start(lambda: (sections.acquire(), sections.release()))
            wait_until(lambda: sections.sleeping == 2)
            if not released_first:
                signal.pthread_kill(MAIN.ident, signal.SIGUSR1)
        if released_first:
            signal.pthread_kill(MAIN.ident, signal.SIGUSR1)

    for _ in range(count(20, 1_000)):
        sections, inside = Sections(deque(), deque(), []), Event()
        with handling(signal.SIGUSR1, interrupt), Threads() as threads:
            threads.start(hold, sections, inside, threads)
            assert inside.wait(DEADLINE)
            with pytest.raises(Interrupted):
                enter_and_wait(sections)
        assert not sections.locked()


def enter_and_wait(sections: Sections) -> None:
    """The signal comes during the wait for the section, in it, or after it."""
    with Held(sections):
        """Nothing to do."""
    Event().wait(DEADLINE)


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

    with handling(signal.SIGUSR1, lambda *_: handled.put(None)), Threads() as threads:
        second = threads.start(behind, threads)
        assert queue.get(timeout=DEADLINE) == 1
        tail.put(2)
        assert second.result().result() == 2


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

    with handling(signal.SIGUSR1, handle):
        for _ in range(20):
            with Threads() as threads:
                threads.start(hand_over)
                got.extend(map(operator.call, (first.get,)))    # no bytecode runs between the get and the storing
            assert got.pop().ack()
