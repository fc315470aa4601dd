"""The lock of a broker: one thread at a time, and the lock is free whatever ends a section. tests/wakeups has who waits
for it: nobody is left asleep, whatever signals come."""

from collections import deque
from typing import Any

import pytest
from support.counts import count_of_races
from support.threads import run_all, switching_often

from manytail._sections import Sections


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
