"""The monitor of a broker: one call at a time changes it, and what must not run inside runs behind.

Every call of a channel is atomic because its whole change of the broker happens in one `with monitor`. Nothing of the user runs in there:
callbacks go to lanes, the executor is told after the monitor is left. What can still interrupt a section in its own thread is a signal handler
or a finalizer (of a body that a section drops). A call made from there must neither see a half-made change nor wait for itself, so the monitor
is reentrant but knows that it is busy: such a publish, ack, nack or reject is put off until the interrupted section ends; anything that has to
answer raises ReentrancyError.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from manytail.broker.exceptions import ReentrancyError

__all__ = ["Monitor"]


class Monitor:
    __slots__ = ("_after", "_last", "busy", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.busy = False  # a section is running; only its own thread can see that
        self._last: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._after: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def __enter__(self) -> None:
        self.lock.acquire()
        if self.busy:
            self.lock.release()
            raise ReentrancyError("this call interrupted another call of the same broker in the same thread (a signal handler or a finalizer)")
        self.busy = True

    def __exit__(self, *exc: object) -> None:
        while self._last:
            call, arguments = self._last.popleft()
            call(*arguments)
        after = self._after
        if after:
            self._after = []
        self.busy = False
        self.lock.release()
        if after:
            for call, arguments in after:
                call(*arguments)

    def last(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run this at the end of the current section, inside it."""
        self._last.append((call, arguments))

    def after(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run this when the current section has ended, outside it, in the order of the calls. Only from inside a section."""
        self._after.append((call, arguments))

    def interrupted(self) -> bool:
        """Whether this very thread is inside a section: the caller is a signal handler or a finalizer and has to put its change off with `after`.

        True only while the lock is this thread's, so the answer cannot change under the caller.
        """
        if not self.busy:
            return False
        mine = self.lock.acquire(blocking=False)
        if not mine:
            return False
        busy = self.busy
        self.lock.release()
        return busy

    def wait(self, condition: threading.Condition, ready: Callable[[], object], timeout: float | None = None) -> bool:
        """Inside a section: leave it until `ready()`, at most `timeout` seconds; true if it became so. The section goes on afterwards."""
        self._flush()
        self.busy = False
        try:
            return bool(condition.wait_for(ready, timeout))
        finally:
            self.busy = True

    def _flush(self) -> None:
        """Do what was put off before waiting for what may depend on it."""
        while self._last:
            call, arguments = self._last.popleft()
            call(*arguments)
        while self._after:
            after, self._after = self._after, []
            self.busy = False
            self.lock.release()
            try:
                for call, arguments in after:
                    call(*arguments)
            finally:
                self.lock.acquire()
                self.busy = True
