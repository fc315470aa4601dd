"""The lock of a broker: one thread at a time, nobody left asleep, and the lock is free whatever ends a section."""

import signal
import threading
from collections import deque
from functools import partial
from typing import Any

import pytest
from support.counts import count
from support.threads import DEADLINE, Threads, run_all, switching_often, wait_until

from manytail._queue import Event
from manytail._sections import Sections

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
        for _ in range(count(2_000, 50_000)):
            with sections:
                before = number
                sections.effects.append((sections, before))
                number = before + 1

    with switching_often():
        run_all(*[enter_often] * threads)
    assert sections.carried_out == list(range(threads * count(2_000, 50_000)))
    assert not sections.locked()


def test_all_who_sleep_get_their_turn() -> None:
    """A release wakes one thread at a time: the release of each wakes the next."""
    for _ in range(count(20, 1_000)):
        sections = Numbered()
        turns = []

        def take_turn(number: int, sections: Numbered = sections, turns: list[int] = turns) -> None:
            with sections:
                turns.append(number)

        with Threads() as threads, sections:
            for number in range(4):
                threads.start(take_turn, number)
            wait_until(partial(all_sleep, sections, 4))
        assert sorted(turns) == [0, 1, 2, 3]


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
    with sections:
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
