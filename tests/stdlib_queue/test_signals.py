"""A signal ends a wait of Event and Condition whenever it comes, even just before the wait sleeps."""
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.counts import count
from support.threads import DEADLINE, Threads

from manytail._sync import Condition, Event

pytestmark = [
    pytest.mark.thread_unsafe(reason="signals are the main thread's"),
    pytest.mark.skipif(os.name == "nt", reason="POSIX signals"),
]


ROUNDS = count(60, 10_000)


class Hit(Exception):
    pass


@pytest.fixture
def signals() -> Iterator[None]:
    def hit(*_: object) -> None:
        raise Hit

    before = signal.signal(signal.SIGUSR1, hit)
    yield
    signal.signal(signal.SIGUSR1, before)


def event() -> tuple[Callable[[], None], Callable[[], None]]:
    """A function that wakes the waiters, and one that waits until a signal comes."""
    happened = Event()

    def wake() -> None:
        happened.set()
        happened.clear()

    def wait() -> None:
        while True:
            assert happened.wait(DEADLINE), "the signal did not end the wait"

    return wake, wait


def condition() -> tuple[Callable[[], None], Callable[[], None]]:
    changed = Condition(threading.Lock())

    def wake() -> None:
        with changed:
            changed.notify_all()

    def wait() -> None:
        with changed:
            changed.wait_for(lambda: False, DEADLINE)
        raise AssertionError("the signal did not end the wait")

    return wake, wait


Kind = Callable[[], tuple[Callable[[], None], Callable[[], None]]]


@pytest.mark.parametrize("kind", [event, condition])
def test_a_signal_ends_a_wait_that_was_woken_just_before(kind: Kind, signals: None) -> None:
    """Without the GIL a wait of threading.Condition sleeps through the signal in one of some hundreds of rounds."""
    for _ in range(ROUNDS):
        wake, wait = kind()
        go = threading.Event()

        def work(go: threading.Event = go, wake: Callable[[], None] = wake) -> None:
            go.wait(DEADLINE)
            for _ in range(3):
                wake()
            os.kill(os.getpid(), signal.SIGUSR1)

        with Threads() as threads:
            threads.start(work)
            began = time.monotonic()
            with pytest.raises(Hit):  # noqa: PT012
                go.set()
                wait()
            assert time.monotonic() - began < DEADLINE / 2, "the wait slept on until its timeout"


def test_an_event_is_set_and_cleared() -> None:
    happened = Event()
    assert not happened.wait(0)
    assert not happened.wait(0.001)
    happened.set()
    assert happened.is_set()
    assert happened.wait()
    happened.clear()
    assert not happened.is_set()


@pytest.mark.parametrize("timeout", ["1", float("nan")])
def test_a_timeout_is_checked(timeout: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"timeout|not supported"):
        Event().wait(timeout)  # type: ignore[arg-type]
