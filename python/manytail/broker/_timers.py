"""One thread that does things when they are due: times to live, queues that expire, call_later.

It starts with the first timer and ends when the broker closes. A cancelled timer stays in the heap until it is due, without its action.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from manytail.broker._dispatch import report

__all__ = ["Timer", "Timers"]


class Timer:
    """One thing to do. `cancel` never waits: an action that has begun ends."""

    __slots__ = ("action", "due", "number")

    def __init__(self, due: float, number: int, action: Callable[[], object] | None) -> None:
        self.due = due
        self.number = number
        self.action = action

    def __lt__(self, other: Timer) -> bool:
        return (self.due, self.number) < (other.due, other.number)

    def cancel(self) -> None:
        self.action = None


class Timers:
    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._numbers = itertools.count(1)
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._closed = False

    def at(self, due: float, action: Callable[[], object]) -> Timer:
        """Call `action` on the timer thread once time.monotonic() has reached `due`. After close: never."""
        timer = Timer(due, next(self._numbers), action)
        with self._changed:
            if self._closed:
                return timer
            heapq.heappush(self._heap, timer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="manytail-broker-timers", daemon=True)
                self._thread.start()
            elif self._heap[0] is timer:
                self._changed.notify()
        return timer

    def close(self) -> None:
        """Forget all; waits for an action that is running, unless that is the caller."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _next(self) -> Timer | None:
        """The next timer, when it is due; None after close."""
        with self._changed:
            while not self._closed:
                wait = None
                if self._heap:
                    wait = self._heap[0].due - time.monotonic()
                    if wait <= 0:
                        return heapq.heappop(self._heap)
                self._changed.wait(wait)
        return None

    def _run(self) -> None:
        while (timer := self._next()) is not None:
            action = timer.action
            if action is not None:
                try:
                    action()
                except Exception as error:
                    report(error)
            timer = action = None
