"""The driver whose workers are threads.

    service    one thread, which the consumer starts: makes the steps that others ask for (`poke`), and those that are
               due at a time; starts the others
    reader     reads an input that may block
    workers    make the calls: as many threads as calls were handed at once, at most `workers`

All are daemons. `ended` is set when the last of them has ended, but for a reader whose input blocks, and for abandoned
calls. A source that never blocks, and runs no user code, is read by whoever makes a step, without a reader.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from manytail import MultiQueue
from manytail._lifecycle import start_daemon
from manytail._sync import Event, Held
from manytail._timings import Timings
from manytail.errors import Empty, ShutDown

from ..engine.events import Failed, InputEnded, Missed
from ..engine.item import Call, Item, Verdict
from ..engine.scheduler import Scheduler
from .driver import Driver


class Thread(threading.Thread):
    """A daemon thread that runs a call in a copy of the map's context."""

    def __init__(self, driver: Driver, call: Callable[[], object], name: str) -> None:
        super().__init__(target=driver.context.copy().run, args=(call,), name=name, daemon=True)


class ThreadDriver(Driver):
    def __init__(
        self,
        scheduler: Scheduler,
        call_with: Callable[[ExitStack], Callable[[Any], Any]],
        judge: Callable[[Call, BaseException], Verdict],
    ) -> None:
        """call_with: sets a worker up, and returns what it calls with each item. judge: see policies."""
        super().__init__(scheduler, time.monotonic)
        self._call_with = call_with
        self._judge = judge
        self._queue: MultiQueue[None, Call] = MultiQueue()
        self._calls = self._queue.add(None)
        self._output_changed = Event()
        self._service_wakeup = Event()
        self._read_next = Event()
        self._at = math.inf  # when the service thread makes a step
        self._source: Iterator[list[Item]] | None = None  # one that never blocks
        self._most = 0.0  # items that may be read
        self._count = 0  # items that were read
        self._reader: Iterator[list[Item]] | None = None
        self._threads = 0  # of workers
        self._alive = 0  # threads that `close` waits for
        self._alive_lock = threading.Lock()
        self._over = Event()  # all threads have ended
        self.gathers = scheduler.hands_ahead
        self._handover: list[Call] | None = None  # where a worker that makes a step finds its next call

    # ------------------------------------------------------------------------------------------------ the consumer's
    def start(self, source: Iterator[list[Item]], never_blocks: bool) -> None:
        """Begin to read. never_blocks: see above; the source is told how many items it may return by `send`."""
        if never_blocks:
            self._source = source
        else:
            self._reader = source
        self._alive = 1
        start_daemon(self._start_thread, self._serve_map, "manytail-service")

    def wait(self) -> None:
        """Wait until the output has an item, or the map has ended."""
        self._output_changed.clear()
        self.waiting, self.slack = True, 0
        if not self.output and not self.ended:
            if self.inbox:
                self.poke()
            self._output_changed.wait()
        self.waiting = False

    def join(self) -> None:
        """Wait until all threads have ended."""
        self._over.wait()

    def took(self, number: int) -> None:
        """The consumer took so many items."""
        self.inbox.append(number)
        if self.queued() < self.scheduler.allowed:  # else every worker has something to do before it is needed
            self.poke()

    # ------------------------------------------------------------------------------------------------ the driver's
    def poke(self) -> None:
        self._service_wakeup.set()

    def show(self) -> None:
        self._output_changed.set()

    def hand(self, calls: list[Call]) -> None:
        if self._handover is not None and not self._handover:
            self._handover.append(calls.pop(0))
            if not calls:
                return
        self._calls.put_many(calls)
        wanted = min(self.scheduler.allowed, self.scheduler.handed)
        while self._threads < wanted:
            self._threads += 1
            self._start_thread(self._work, f"manytail-worker-{self._threads}", counted=False)

    def queued(self) -> int:
        return self._calls.qsize()

    def take_back(self) -> list[Call]:
        calls: list[Call] = []
        try:
            while True:
                calls += self._queue.get_many(1_024, block=False)
        except (Empty, ShutDown):
            return calls

    def read(self, most: float) -> None:
        if self._source is not None:
            self._read_here(most)
        elif most > self._most:
            self._most = most
            self._read_next.set()

    def _read_here(self, most: float) -> None:
        assert self._source is not None
        while self._count < most:
            self.room = int(most) - self._count
            items = next(self._source, None)
            if items is None:
                self._source = None
                self.inbox.append(InputEnded(None))
                return
            self._count += len(items)
            self.inbox.append(items)

    def set_timer(self, at: float) -> None:
        if at < self._at:
            self._at = at
            self._service_wakeup.set()

    def end(self) -> None:
        self._queue.shutdown(immediate=True)
        self._service_wakeup.set()
        self._read_next.set()
        self._source = None

    # ------------------------------------------------------------------------------------------------ threads
    def _start_thread(self, run: Callable[[], object], name: str, counted: bool = True) -> None:
        if not counted:
            with Held(self._alive_lock):
                self._alive += 1
        Thread(self, partial(self._run, run), name).start()

    def _run(self, run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:
            self.fail(error)
            self.pump()
        finally:
            with Held(self._alive_lock):
                self._alive -= 1
                last = not self._alive
            if last:
                self._over.set()

    def _serve_map(self) -> None:
        """The service thread."""
        if self._reader is not None:
            Thread(self, partial(self._read_all, self._reader), "manytail-reader").start()
        while True:
            self._service_wakeup.clear()
            self._at = math.inf
            self.inbox.append(0)  # have a step made, whoever holds the lock
            self.pump()
            if self.ended:
                return
            wait = self._at - self.now()
            self._service_wakeup.wait(None if wait == math.inf else min(max(0.0, wait), threading.TIMEOUT_MAX))

    def _read_all(self, source: Iterator[list[Item]]) -> None:
        error: BaseException | None = None
        try:
            while not self.ended:
                if self._count >= self._most:
                    self._read_next.clear()
                    if self._count >= self._most and not self.ended:
                        self._read_next.wait()
                    continue
                items = next(source, None)
                if items is None:
                    break
                self._count += len(items)
                self.inbox.append(items)
                items = None  # a reader that waits keeps no item alive
                # Else all workers are busy, and the next of them that is free makes a step.
                if self.scheduler.handed < self.scheduler.allowed or self._count >= self._most:
                    self.pump()
        except BaseException as raised:
            error = raised
        self.report(InputEnded(error))

    def _work(self) -> None:
        """A worker thread."""
        with ExitStack() as stack:
            call = self._call_with(stack)
            timings = Timings()
            self.report_timings(timings)
            self._make_calls(call, timings)

    def report_timings(self, timings: Timings) -> None:
        with Held(self._alive_lock):
            self.add_timings(timings)

    def _make_calls(self, call: Callable[[Any], Any], timings: Timings) -> None:
        get, begin, end, inbox = self._queue.get, timings.begin, timings.end, self.inbox
        following: Any = None
        succeeded = self._gathered if self.gathers else self._succeeded
        while True:
            item = result = None  # an idle worker keeps no item alive
            try:
                item = get() if following is None else following
            except ShutDown:
                return
            following = None
            if self.halted:
                self.report(Missed(item))
                continue
            item.attempts += 1
            begin()
            try:
                result = call(item)
            except BaseException as error:
                item.began = timings.end_attempt()
                self._failed(item, error)
            else:
                item.result = result
                end(item.read)  # type: ignore[union-attr]
                inbox.append(item)
                if len(inbox) > self.slack:
                    following = succeeded()

    def _gathered(self) -> None:
        self.pump()

    def _succeeded(self) -> Call | None:
        """Make a step, and take from it the next call of this worker, which then goes through no queue."""
        taken: list[Call] = []
        while self._lock.acquire(False):
            try:
                self._handover = taken
                self._handle()
            finally:
                self._handover = None
                self._lock.release()
            if not self.inbox:
                break
        return taken[0] if taken else None

    def _failed(self, item: Call, error: BaseException) -> None:
        verdict = self._judge(item, error)
        self.report(Failed(item, verdict))
