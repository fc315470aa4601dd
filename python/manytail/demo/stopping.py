"""Ctrl-C in order. The work is done in a thread of its own; the main thread waits, and on a signal asks the work to stop.

A KeyboardInterrupt in the middle of a conversation with the JVM leaves a broken connection and a traceback, and one between the start of a process
and the line that remembers it leaves the process. So nothing is interrupted: Spark is stopped under the thread that works, which ends its job with
an error, and between its steps that thread looks whether it should go on.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """The work was asked to stop, and has."""


class Stopping:
    """The request, shared by the two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = False  # set once, by the main thread
        self._end: Callable[[], None] | None = None

    def ask(self) -> None:
        """Called by the main thread. Ends what the work has said can be ended; under the lock, so that the work does not end it at the same time."""
        with self._lock:
            if not self._asked:
                self._asked = True
                if self._end is not None:
                    self._end()

    def check(self) -> None:
        """Called by the work between steps."""
        with self._lock:
            if self._asked:
                raise Stopped

    @contextmanager
    def by(self, end: Callable[[], None]) -> Iterator[None]:
        """Inside the block a request calls `end`, which makes the work fail; whatever it fails with then comes out as Stopped."""
        self._register(end)
        try:
            yield
        except Exception as error:
            if self._asked:
                raise Stopped from error
            raise
        finally:
            self._register(None)

    def _register(self, end: Callable[[], None] | None) -> None:
        with self._lock:
            if end is not None and self._asked:
                raise Stopped
            self._end = end


def stoppable(work: Callable[[Stopping], T]) -> T:
    """Runs `work` in a thread and returns its result. On SIGINT or SIGTERM it is asked to stop, and raises Stopped if it does so."""
    stopping = Stopping()
    with _on_signals(stopping.ask), ThreadPoolExecutor(1, thread_name_prefix="demo") as thread:
        return thread.submit(work, stopping).result()


@contextmanager
def _on_signals(ask: Callable[[], None]) -> Iterator[None]:
    """Inside, the first signal calls `ask` in the main thread; another does not stop the stopping."""

    def stop(number: int, frame: object) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        ask()

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
