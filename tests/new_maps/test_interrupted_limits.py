"""A signal handler that raises at any moment of what uses limits in the user's thread: nothing stays taken, no lock
stays held, and no context believes that it holds what it does not."""

import signal
import sys

import pytest
from support.interrupted import Interrupted, each_point, interrupt, needs_a_timer
from support.threads import Threads

from manytail._maps import Budget, Concurrency, Rate, Shared, concurrent_map
from manytail._maps.engine import lanes, scheduler
from manytail._maps.limits import exchange, objects, sections, stage
from manytail._maps.runners import driver, inline

pytestmark = [
    pytest.mark.thread_unsafe(reason="signals come in the main thread"),
    # Some of the points are in the end of a generator.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
FILES = {str(module.__file__) for module in (driver, exchange, inline, lanes, objects, scheduler, stage)}


def is_free(*limits) -> bool:
    """Also of those that wait."""
    return not sections._section.lock.locked() and not any(
        limit._account._reserved or limit._account.queue or limit._open for limit in limits
    )


@needs_a_timer
def test_blocks_that_are_interrupted_at_random_times_hold_nothing():
    slots, money, calls = Concurrency(1), Budget(1e9), Rate(1e9)

    def enter():
        with slots, money(2) as block, calls:
            block.spent(3)

    def after():
        assert is_free(slots, money), "something stays taken"
        assert not [one for one in sections.held_here.get() if (owner := one()) is not None and owner.held]

    interrupt(lambda: enter, after, 500, span=200)


@needs_a_timer
def test_blocks_that_are_interrupted_while_they_wait_leave_the_queue(monkeypatch):
    # What is raised in a finalizer is told to this hook, and pytest's fails the test if the next signal comes in it.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    slots = Concurrency(1)
    holder = slots(1)
    with Threads() as threads:  # not the context of those that wait
        threads.start(holder.__enter__).result()

    def handler(*_):
        if armed:
            raise Interrupted

    armed, before, interrupted = False, signal.signal(signal.SIGALRM, lambda *_: None), 0
    signal.signal(signal.SIGALRM, handler)
    try:
        while interrupted < 300:
            try:
                armed = True
                # Again and again: the first one may come before the wait, in what lets no exception out.
                signal.setitimer(signal.ITIMER_REAL, (1 + interrupted) * 1e-6, 0.01)
                with slots:
                    raise AssertionError("there is no room")
            except Interrupted:
                armed = False
                interrupted += 1
            assert not slots._account.queue
            assert slots._account._reserved == 1
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    holder.__exit__()
    assert is_free(slots)


@pytest.mark.parametrize("make", [Concurrency, Budget])
def test_an_inline_map_that_is_interrupted_at_any_point_leaves_nothing_reserved(make):
    limits = [make(9), Rate(1e9)]
    for at in each_point(FILES, least=20, step=3):
        limits[0] = make(9)
        results = concurrent_map(str, range(3), limits=limits, workers="inline")
        try:
            with at:
                list(results)
        except KeyboardInterrupt:
            pass
        del results
        assert is_free(limits[0])
        with limits[0](9.0 - (limits[0].used() if make is Budget else 0.0)):
            pass


def test_an_interruption_loses_no_permit_of_a_database(sqlite):
    shared, number = Shared(sqlite.url, "interrupted"), 0
    for at in each_point({str(exchange.__file__), str(objects.__file__)}):
        number += 1
        slots = Concurrency(1, shared=shared, name=f"limit {number}")  # nothing of it was granted before
        try:
            with at, slots:
                pass
        except KeyboardInterrupt:
            pass
        with slots:
            pass
    assert number > 5
