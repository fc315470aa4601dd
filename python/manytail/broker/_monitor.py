"""The monitor of a broker: one call at a time changes it, and what must not run inside runs behind.

Every call of a channel is atomic because its whole change of the broker happens in one `with monitor`. Nothing of the user runs in there:
callbacks go to lanes, the executor is told after the monitor is left. What can still interrupt a section in its own thread is a signal handler
or a finalizer (of a body that a section drops). A call made from there must neither see a half-made change nor wait for itself, so the monitor
is reentrant but knows that it is busy: such a publish, ack, nack or reject is put off until the interrupted section ends; anything that has to
answer raises ReentrancyError.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import Any

from manytail.broker.exceptions import ReentrancyError

__all__ = ["Monitor"]


class _Lock:
    """A mutual exclusion lock that knows its owner and is never handed over: a waiter that is woken competes for it.

    With a lock that is handed over, here any of `threading`, two threads under the GIL soon wait for one another at every single call: the one
    that was given the lock has to wait for the GIL, the one that has the GIL for the lock. Here the thread that runs goes on running.

    Taking it is one atomic step, dict.setdefault, whose answer says all there is to know: this very object of mine, it was free; an equal one,
    this thread has it; another one, somebody else has it.
    """

    __slots__ = ("_sleepers", "_taken")

    def __init__(self) -> None:
        self._taken: dict[None, int] = {}
        self._sleepers: deque[Any] = deque()

    def acquire(self, blocking: bool = True) -> bool:
        """False: not `blocking` and somebody has it. ReentrancyError: this thread has it."""
        me = get_ident()
        while (owner := self._taken.setdefault(None, me)) is not me:
            if owner == me:
                raise ReentrancyError("this call interrupted another call of the same broker in the same thread (a signal handler or a finalizer)")
            if not blocking:
                return False
            self._sleep(me)
        return True

    def release(self) -> None:
        del self._taken[None]
        if self._sleepers:
            self._wake()

    def mine(self) -> bool:
        """Whether this thread has it."""
        return self._taken.get(None) == get_ident()

    _is_owned = mine  # threading.Condition asks

    def _wake(self) -> None:
        try:
            self._sleepers.popleft().release()
        except IndexError:
            return  # it went by itself

    def _sleep(self, me: int) -> None:
        """Until a release, or not at all if one has happened since: who releases looks for sleepers afterwards."""
        bed = allocate_lock()
        bed.acquire()
        self._sleepers.append(bed)
        try:
            if self._taken:
                bed.acquire()
        finally:
            try:
                self._sleepers.remove(bed)
            except ValueError:  # somebody woke us; if we go on our way by an exception, the next one has to be
                if not self._taken and self._sleepers:
                    self._wake()


def _run_all(calls: list[tuple[Callable[..., object], tuple[Any, ...]]]) -> None:
    """Each of them, whatever the others raise; the first exception is raised at the end."""
    failure: BaseException | None = None
    for call, arguments in calls:
        try:
            call(*arguments)
        except BaseException as error:
            failure = failure or error
    if failure is not None:
        raise failure


class Monitor:
    __slots__ = ("_after", "_last", "lock")

    def __init__(self) -> None:
        self.lock = _Lock()
        self._last: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._after: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *exc: object) -> None:
        try:
            while self._last:
                call, arguments = self._last.popleft()
                call(*arguments)
        finally:
            # A signal handler may add to the list at any moment: what is run is what was swapped out, and nothing else.
            after: list[tuple[Callable[..., object], tuple[Any, ...]]] | None = None
            if self._after:
                after, self._after = self._after, []
            self.lock.release()
            if after is not None:
                _run_all(after)
            if self._after:  # it was added behind the look at it, or belongs to a section that has begun since
                with self:
                    pass

    def last(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run this at the end of the current section, inside it."""
        self._last.append((call, arguments))

    def after(self, call: Callable[..., object], *arguments: Any) -> None:
        """Run this when the current section has ended, outside it, in the order of the calls. Only from inside a section."""
        self._after.append((call, arguments))

    def interrupted(self) -> bool:
        """Whether this very thread is inside a section: the caller is a signal handler or a finalizer and has to put its change off with `after`."""
        return self.lock.mine()

    def wait(self, condition: Condition, ready: Callable[[], object], timeout: float | None = None) -> bool:
        """Inside a section: leave it until `ready()`, at most `timeout` seconds; true if it became so. The section goes on afterwards."""
        self._flush()
        return bool(condition.wait_for(ready, timeout))

    def condition(self) -> Condition:
        """To wait for in sections."""
        return Condition(self.lock)  # type: ignore[arg-type]

    def _flush(self) -> None:
        """Do what was put off before waiting for what may depend on it."""
        while self._last:
            call, arguments = self._last.popleft()
            call(*arguments)
        while self._after:
            after, self._after = self._after, []
            self.lock.release()
            try:
                _run_all(after)
            finally:
                self.lock.acquire()
