"""The callbacks of a BlockingConnection. They wait here until a thread serves the connection, and run in that thread.

A round of service is pika's: wait for the first callback, then run those that are there, the connection's own first,
then channel by channel. What comes during a round waits for the next one. One thread serves at a time. Others that wait
here return after its round, and one of them serves the next. A callback, or a signal handler that interrupts the
wait, that waits on its own connection serves nothing.

Invariants: a lane is in `_ready` while it has `items`. Only the thread whose identifier is `_server` touches `_serving`
and the `batch` of a lane. A signal handler may raise between any two calls of the serving thread: what has not begun
then stays in `_serving`, and the next round begins with it.
"""

from __future__ import annotations

import threading
import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from typing import Any

from manytail.broker._runtime import Lane, Runtime, Timer, TimerList, here


class Mailbox:
    """The lanes and timers of one connection. `_changed` is notified of all that a wait of it may be for."""

    in_caller = True  # an exception of a callback is raised by the call that runs it

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changed = runtime.condition()
        self._changes = 0  # rounds that have ended, and calls of notify()
        self._timers = TimerList()
        self._ready: list[ServedLane] = []
        self._serving: list[ServedLane] = []
        self._server = 0  # the thread that serves; 0: none

    def lane(self, run: Callable[[Any], object], first: bool = False) -> ServedLane:
        """`first`: its items go before those of other lanes."""
        return ServedLane(self, run, first)

    def changes(self) -> Mailbox:
        """What the channels of the connection notify, and wait at."""
        return self

    def made_ready(self, lane: ServedLane) -> None:
        """The lane gets its first item. In a section."""
        self._ready.insert(0 if lane.first else len(self._ready), lane)
        self._changed.notify_all()

    def at(self, due: float, action: Callable[[float], object]) -> Timer:
        """action(now) is called in a section, by the thread that serves the connection at `due` or after that."""
        timer = self._timers.at(due, action)
        self._changed.notify_all()
        return timer

    def notify(self) -> None:
        """Let every wait return. In a section."""
        self._changes += 1
        self._changed.notify_all()

    def drop(self, lane: ServedLane) -> None:
        """It has no items to run. In a section."""
        if lane in self._ready:
            self._ready.remove(lane)

    def end(self) -> None:
        """The connection is closed. In a section."""
        self.notify()

    def inside(self) -> bool:
        """Whether this thread serves already: the caller is a callback, or interrupts the wait for one."""
        return self._server == get_ident()

    # ---------------------------------------------------------------------------------------------------------- service
    def wait_until(self, done: Callable[[], object], timeout: float | None = None) -> bool:
        """Serve until `done()`, but no longer than about `timeout` seconds. Returns whether it is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not done():
            self.serve(done, timeout)
            if deadline is not None and (timeout := deadline - time.monotonic()) <= 0:
                return bool(done())
        return True

    def run_ready(self) -> None:
        """Run the callbacks that are there."""
        self.serve(bool, 0)

    def serve(self, done: Callable[[], object], timeout: float | None) -> None:
        """One round. It ends without a callback when `done()`, after a notify(), and after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        serves = False
        try:
            with self._runtime:
                me = get_ident()
                if not self._server:
                    self._server, serves = me, True
                self._wait(done, deadline, serves)
                if serves:
                    self._take()
            if serves:
                self._run()
        finally:
            if serves:
                self._server = 0
                with self._runtime:
                    self.notify()

    def _wait(self, done: Callable[[], object], deadline: float | None, serves: bool) -> None:
        """In a section, which ends during the wait."""
        before = self._changes
        while not done() and self._changes == before:
            until = deadline
            if serves:
                if self._ready or self._serving:
                    return
                due = self._timers.due
                until = due if until is None or (due is not None and due < until) else until
            left = None if until is None else min(until - time.monotonic(), threading.TIMEOUT_MAX)
            if left is not None and left <= 0:
                return
            self._changed.wait(left)

    def _take(self) -> None:
        """What is there becomes the round. In a section."""
        self._timers.call_due(time.monotonic())
        for lane in self._ready:
            lane.batch += lane.items
            lane.items.clear()
        self._serving += self._ready
        self._ready = []

    def _run(self) -> None:
        before = here.in_a_callback
        try:
            here.in_a_callback = True
            while self._serving:
                self._serving[0].run_batch()
                del self._serving[0]
        finally:
            here.in_a_callback = before


class ServedLane(Lane):
    """The callbacks of one channel, or those of the connection itself."""

    __slots__ = ("_mailbox", "batch", "first", "items")

    def __init__(self, mailbox: Mailbox, run: Callable[[Any], object], first: bool) -> None:
        super().__init__(run)
        self._mailbox = mailbox
        self.first = first
        self.items: deque[Any] = deque()
        self.batch: deque[Any] = deque()  # items of the round that have not begun
        self.add = self._add

    def _add(self, item: Any) -> None:
        """In a section."""
        if not self.items:
            self._mailbox.made_ready(self)
        self.items.append(item)

    def drop(self, addressee: Any, dropped: list[Any]) -> None:
        """Items of that addressee (None: all) will not run: move them to `dropped`. In a section."""
        mine = [item for item in self.items if addressee is None or item[0] is addressee]
        if mine:
            dropped += mine
            self.items = deque(item for item in self.items if addressee is not None and item[0] is not addressee)
            if not self.items:
                self._mailbox.drop(self)

    def run_batch(self) -> None:
        """Run the items of the round. If one raises, the rest stays."""
        batch, begin, end, run = self.batch, self._running.begin, self._running.end, self._run
        while batch:
            item = batch[0]
            try:
                if begin(item, batch):
                    run(item)
            finally:
                end()

    def wait_idle(self) -> None:
        """Wait until nothing runs in another thread."""
        self.wait_for(None)
