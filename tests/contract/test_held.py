"""Held and start_thread: how our interpreted code holds locks and starts threads. test_interrupted_calls.py interrupts
them."""

import contextvars
import threading
from contextlib import nullcontext

import pytest
from support.threads import DEADLINE, Threads

from manytail._sync import Held, start_thread


@pytest.mark.parametrize("error", [None, KeyError])
def test_a_block_holds_the_lock_until_it_ends(error: type[Exception] | None) -> None:
    lock = threading.Lock()
    with pytest.raises(error) if error else nullcontext(), Held(lock):
        assert lock.locked()
        if error:
            raise error
    assert not lock.locked()


def test_one_that_is_freed_in_the_block_releases_the_lock() -> None:
    """As when a signal handler raises before the block is protected."""
    lock = threading.Lock()
    held = Held(lock)
    held.__enter__()
    assert lock.locked()
    del held
    assert not lock.locked()


def test_a_lock_that_is_not_had_in_time_stays_with_its_holder() -> None:
    lock = threading.Lock()
    with Held(lock, 0.0) as held:
        assert held
        with Held(lock, 0.0) as again:
            assert not again
        assert lock.locked()
    assert not lock.locked()


def test_a_reentrant_lock_is_free_for_others_after_the_outermost_block() -> None:
    lock = threading.RLock()

    def is_free() -> bool:
        free = lock.acquire(blocking=False)
        if free:
            lock.release()
        return free

    with Threads() as threads:
        with Held(lock):
            with Held(lock):
                pass
            assert not threads.start(is_free).result()
        assert threads.start(is_free).result()


@pytest.mark.thread_unsafe(reason="only the main thread has its threads started by another")
def test_a_thread_starts_in_the_context_of_its_maker() -> None:
    variable = contextvars.ContextVar("variable", default="")
    variable.set("maker's")
    seen = []
    start_thread(lambda: seen.append((variable.get(), threading.current_thread() is threading.main_thread())))
    assert seen == [("maker's", False)]


def test_it_raises_what_the_start_raises() -> None:
    def start() -> None:
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError, match="can't start new thread"):
        start_thread(start)


def test_a_thread_has_begun_when_it_returns() -> None:
    begun = threading.Event()
    thread = threading.Thread(target=begun.wait, args=(DEADLINE,))
    start_thread(thread.start)
    assert thread.is_alive()
    begun.set()
    thread.join()
