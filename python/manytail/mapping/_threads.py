"""The threads of maps. Ctrl-C at any point of `start` and `join` leaves them whole.

After an interrupted `start` of threading.Thread nobody knows whether the thread will run. CPython 3.11 takes a thread
for ended whose `join` was interrupted. A lock of `threading` that Python code acquires (Condition, Event, Future) can
stay locked. So what the consumer's thread waits for are our `Event` and the locks themselves.
"""

from __future__ import annotations

import threading
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from manytail._lifecycle import daemon_began, expect_daemon, start_daemon
from manytail._sync import Event, start_thread


def holds_lock_of(*places: Any) -> bool:
    """Whether this thread holds the lock of one of these. Each has an RLock named `_lock`, or none."""
    locks = [getattr(place, "_lock", None) for place in places]
    return any(lock is not None and lock._is_owned() for lock in locks)


class _NoWait(threading.Event):
    """For `start`, which waits until the thread has begun. Interrupted in that wait, the thread might never begin."""

    def wait(self, timeout: float | None = None) -> bool:
        return True


class Thread(threading.Thread):
    """A daemon thread that runs a call."""

    def __init__(self, call: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._started: Any = _NoWait()
        self._call: Callable[[], object] | None = call
        self._is_started = False  # `start` was not interrupted
        self._fate: dict[str, bool] = {}  # "runs": whether it does; who asks first decides it
        self._over = Event()
        self._token: Any = None  # of the exit, which waits until this thread has begun
        self._joining: set[int] = set()  # threads in `join` of `threading`

    def start(self) -> None:
        try:
            start_thread(self._start)
        except BaseException:
            self.never_runs()  # decides it, and then `threading`, which lists the thread for ever, keeps nothing alive
            raise
        self._is_started = True

    def start_soon(self, failed: Callable[[BaseException], object]) -> None:
        """start() without its wait for another thread, for a caller that holds a lock: a collection in that thread may
        run finalizers that need the lock. failed: called with the error if the thread cannot be started."""
        try:
            self._is_started = True
            start_daemon(self._start_or, failed)
        except BaseException:
            self._is_started = False
            self.never_runs()
            raise

    def _start_or(self, failed: Callable[[BaseException], object]) -> None:
        try:
            self._start()
        except BaseException as error:
            self._is_started = False
            self.never_runs()
            failed(error)

    def _start(self) -> None:
        """Where no signal handler runs."""
        self._token = expect_daemon()
        try:
            super().start()
        except BaseException:
            daemon_began(self._token)
            raise

    def _bootstrap(self) -> None:
        """What the system's thread calls. Without memory `threading` may fail before it calls `run`."""
        daemon_began(self._token)
        try:
            super()._bootstrap()  # type: ignore[misc]
        finally:
            self.run()  # no effect if it was called

    def run(self) -> None:
        try:
            call, self._call = self._call, None
            if self._fate.setdefault("runs", True) and call is not None:
                call()
        finally:
            self._over.set()

    def never_runs(self) -> bool:
        """Whether `start` has not been called, or was interrupted before the thread began. Then it never does."""
        if self._is_started or self._fate.setdefault("runs", False):
            return False
        self._call = None
        return True

    def join(self, timeout: float | None = None) -> None:
        """Wait until the call has ended."""
        if not self.never_runs() and self._over.wait(timeout) and self._started.is_set():
            self._join(timeout)  # unless `threading` failed to set it up

    def _join(self, timeout: float | None) -> None:
        """Wait until the system's thread has ended. A signal handler that has interrupted this wait does not: it would
        wait for a lock that the interrupted `join` of CPython 3.11 and 3.12 may hold."""
        here = get_ident()
        if here not in self._joining:
            try:
                self._joining.add(here)
                super().join(timeout)
            finally:
                self._joining.discard(here)
