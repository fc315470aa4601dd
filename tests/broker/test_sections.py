"""The lock of a broker: one thread at a time, nobody left asleep, and the lock is free whatever ends a section."""

import os
import signal
import threading
import time
from collections import deque
from functools import partial
from typing import Any

import pytest
from support.counts import count, count_of_races
from support.threads import DEADLINE, Threads, run_all, switching_often, wait_until

from manytail._sections import Sections
from manytail._sync import Event, Held

pytestmark = pytest.mark.thread_unsafe(reason="many threads, the switch interval, signals")


class Reentered(Exception):
    """What a section raises that would begin inside another one of its thread."""


class Numbered(Sections):
    """Sections that carry out an effect by noting its number, and run the calls that were put off."""

    def __init__(self) -> None:
        self.effects: deque[Any] = deque()
        self.dropped: list[Any] = []
        self.carried_out: list[int] = []
        self.freed: list[Any] = []
        super().__init__(self.effects, deque(), self.dropped)

    def target(self, effect: Any) -> None:
        self.carried_out.append(effect[1])

    def _reentered(self) -> Exception:
        return Reentered()

    def _after_section(self, calls: list[Any] | None, dropped: list[Any] | None) -> None:
        assert not self.interrupted()
        self.freed += dropped or []
        for call, arguments, _ in calls or []:
            call(*arguments)


def all_sleep(sections: Sections, number: int) -> bool:
    return sections.sleeping == number


@pytest.mark.parametrize("threads", [2, 6])
def test_sections_of_many_threads_exclude_one_another_and_end_with_their_effects_in_order(threads: int) -> None:
    sections = Numbered()
    number = 0

    def enter_often() -> None:
        nonlocal number
        for _ in range(count_of_races(2_000, 50_000)):
            with sections:
                before = number
                sections.effects.append((sections, before))
                number = before + 1

    with switching_often():
        run_all(*[enter_often] * threads)
    assert sections.carried_out == list(range(threads * count_of_races(2_000, 50_000)))
    assert not sections.locked()


def test_a_section_does_not_begin_inside_another_one_of_its_thread() -> None:
    sections = Numbered()
    with sections:
        assert sections.interrupted()
        assert sections.locked()
        with pytest.raises(Reentered), sections:
            pytest.fail("it began")
        assert sections.interrupted()
    assert not sections.locked()


def test_calls_put_off_run_after_the_section_even_if_an_effect_raises() -> None:
    sections = Numbered()
    ran: list[str] = []

    def leave_an_effect_that_raises() -> None:
        with sections:
            sections.effects.append((None, 0))  # it has no target
            sections.dropped.append("body")
            sections.after(ran.append, "first")
            sections.after(ran.append, "second")

    with pytest.raises(AttributeError):
        leave_an_effect_that_raises()
    assert (ran, sections.freed, sections.locked()) == (["first", "second"], ["body"], False)


def test_an_exception_of_a_section_releases_the_lock() -> None:
    sections = Numbered()
    with pytest.raises(ZeroDivisionError), sections:
        raise ZeroDivisionError
    assert not sections.locked()


def enter_until_interrupted(sections: Sections) -> None:
    """The signal comes during the wait for the section, in the section or after it."""
    with Held(sections):
        """Nothing to do."""
    Event().wait(DEADLINE)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals for a thread")
@pytest.mark.parametrize("released_first", [False, True])
def test_a_signal_handler_that_raises_ends_a_wait_and_the_next_waiter_gets_the_lock(released_first: bool) -> None:
    """The interrupted thread sleeps longest, so a release wakes it. If that comes after the signal, and before the
    thread has left, another one is woken in its place."""

    def handler(number: int, frame: Any) -> None:
        raise InterruptedError

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(count(20, 1_000)):
            sections, inside = Numbered(), Event()

            def enter(sections: Numbered = sections) -> None:
                with sections:
                    """The other waiter."""

            other = threading.Thread(target=enter, daemon=True)

            def hold(sections: Numbered = sections, inside: Event = inside, other: threading.Thread = other) -> None:
                with sections:
                    inside.set()
                    wait_until(partial(all_sleep, sections, 1))
                    other.start()
                    wait_until(partial(all_sleep, sections, 2))
                    if not released_first:
                        signal.pthread_kill(main, signal.SIGUSR1)
                if released_first:
                    signal.pthread_kill(main, signal.SIGUSR1)

            with Threads() as threads:
                threads.start(hold)
                assert inside.wait(DEADLINE)
                with pytest.raises(InterruptedError):
                    enter_until_interrupted(sections)
            other.join(DEADLINE)
            assert not other.is_alive()
            assert not sections.locked()
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupted_while_it_sleeps(sections: Sections, handler: Any, before_release: Any, after_release: Any) -> None:
    """Enter a section while another thread holds the lock; `handler` runs in this thread's sleep. The other thread
    calls `before_release` in its section and `after_release` after it."""
    main, inside = threading.get_ident(), Event()

    def hold() -> None:
        with sections:
            inside.set()
            wait_until(partial(all_sleep, sections, 1))
            signal.pthread_kill(main, signal.SIGUSR1)
            before_release()
        after_release()

    before = signal.signal(signal.SIGUSR1, handler)
    holder = threading.Thread(target=hold, daemon=True)
    try:
        holder.start()
        assert inside.wait(DEADLINE)
        with sections:
            """After the handler."""
        holder.join(DEADLINE)
        assert not holder.is_alive()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_signal_handler_that_forks_during_a_wait_leaves_the_child_a_lock_that_wakes() -> None:
    sections, in_handler, released = Numbered(), Event(), Event()
    child = -1

    def handler(number: int, frame: Any) -> None:
        nonlocal child
        in_handler.set()
        assert released.wait(DEADLINE)
        child = os.fork()

    def enter() -> None:
        with sections:
            """Woken by the release of the main thread."""

    try:
        interrupted_while_it_sleeps(sections, handler, partial(in_handler.wait, DEADLINE), released.set)
        if child == 0:
            other = threading.Thread(target=enter, daemon=True)
            with sections:
                other.start()
                wait_until(partial(all_sleep, sections, 1))
            other.join(DEADLINE)
            os._exit(int(other.is_alive()))
    finally:
        if child == 0:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def interrupt_often(main: int, done: Event) -> None:
    """Signals for the main thread, one after another."""
    while not done.is_set():
        signal.pthread_kill(main, signal.SIGUSR1)
        time.sleep(0)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals for a thread")
def test_handlers_that_take_the_lock_interrupt_a_thread_that_takes_it_too() -> None:
    """A stress run: each thread gets its turns, whichever wait a signal ends."""
    sections, done = Numbered(), Event()
    turns = [0, 0, 0]
    each = count(500, 20_000)

    def take_turn(who: int) -> None:
        with sections:
            turns[who] += 1

    def handler(number: int, frame: Any) -> None:
        if not sections.interrupted():
            take_turn(0)

    def take_turns(who: int) -> None:
        for _ in range(each):
            take_turn(who)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with switching_often(), Threads() as threads:
            threads.start(interrupt_often, threading.get_ident(), done)
            threads.start(take_turns, 1)
            take_turns(2)
            done.set()
    finally:
        done.set()
        signal.signal(signal.SIGUSR1, before)
    assert turns[1:] == [each, each]
    assert (sections.sleeping, sections.locked()) == (0, False)


@pytest.fixture
def memory() -> Any:
    return pytest.importorskip("_testcapi", reason="this interpreter cannot fail allocations on demand")


@pytest.mark.out_of_memory
def test_the_end_of_a_section_that_finds_no_memory_releases_the_lock(memory: Any) -> None:
    failures = 0
    for number in range(10):
        sections = Numbered()
        sections.acquire()
        sections.dropped.append("body")
        sections.after(len, ())
        memory.set_nomemory(number, number + 1)
        try:
            sections.release()
        except MemoryError:
            failures += 1
        finally:
            memory.remove_mem_hooks()
        assert not sections.locked()
    assert failures
