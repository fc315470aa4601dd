"""One thread that does things when they are due: times to live, queues that expire, call_later.

It starts with the first timer and ends when the broker closes. Timers are in a sorted list, so that a cancelled one can be found and dropped at once.
"""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable

from manytail.broker._dispatch import report

__all__ = ["Timer", "Timers"]


class Timer:
    """One thing to do."""

    __slots__ = ("_timers", "action", "due", "number")

    def __init__(self, timers: Timers, due: float, number: int, action: Callable[[], object]) -> None:
        self._timers = timers
        self.due = due
        self.number = number
        self.action = action

    def __lt__(self, other: Timer) -> bool:
        return (self.due, self.number) < (other.due, other.number)

    def cancel(self) -> None:
        """Never waits: an action that has begun ends."""
        self._timers.drop(self)


class Timers:
    def __init__(self) -> None:
        self._pending: list[Timer] = []  # ascending
        self._numbers = itertools.count(1)
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._pending)

    def at(self, due: float, action: Callable[[], object]) -> Timer:
        """Call `action` on the timer thread once time.monotonic() has reached `due`. After close: never."""
        timer = Timer(self, due, next(self._numbers), action)
        with self._changed:
            if self._closed:
                return timer
            insort(self._pending, timer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="manytail-broker-timers", daemon=True)
                self._thread.start()
            elif self._pending[0] is timer:
                self._changed.notify()
        return timer

    def drop(self, timer: Timer) -> None:
        with self._changed:
            index = bisect_left(self._pending, timer)
            if index < len(self._pending) and self._pending[index] is timer:
                del self._pending[index]

    def close(self) -> None:
        """Forget all; waits for an action that is running, unless that is the caller."""
        with self._changed:
            self._closed = True
            self._pending.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _next(self) -> Timer | None:
        """The next timer, when it is due; None after close."""
        with self._changed:
            while not self._closed:
                wait = None
                if self._pending:
                    wait = self._pending[0].due - time.monotonic()
                    if wait <= 0:
                        return self._pending.pop(0)
                self._changed.wait(wait)
        return None

    def _run(self) -> None:
        while (timer := self._next()) is not None:
            try:
                timer.action()
            except Exception as error:
                report(error)
            del timer
