"""The driver whose workers are threads.

    service    one thread, which the consumer starts: makes the steps that others ask for (`poke`), and those that are
               due at a time; starts the reader
    reader     reads an input that may block
    workers    make the calls: as many threads as calls were handed at once, at most `workers`

All are daemons. `join` waits until they have ended, but for a reader whose input blocks, and for abandoned calls. A
source that never blocks, and runs no user code, is read by whoever makes a step, without a reader.

A plain call cannot be cancelled. One that has run out of time is abandoned: its thread reports nothing any more and
ends when the call returns; another thread takes its place.
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

from ..engine.events import Fail, Failed, InputEnded, Missed
from ..engine.item import Call, Item, Kind, Verdict
from ..engine.scheduler import Scheduler
from .driver import Driver

INPUT_TIMEOUT = 0.05  # seconds that the end of a map waits for a reader: its input may block for ever


class Thread(threading.Thread):
    """A daemon thread that runs a call in a copy of the map's context."""

    def __init__(self, driver: Driver, call: Callable[[], object], name: str) -> None:
        super().__init__(target=driver.context.copy().run, args=(call,), name=name, daemon=True)
        self.driver = driver


class Worker:
    """One worker thread, and where calls are timed, the call that it makes. When the thread ends a call while another
    one abandons it, the first of `end` and `give_up` wins."""

    __slots__ = ("abandoned", "call", "lock", "thread")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.call: Call | None = None
        self.abandoned = False
        self.thread: Thread

    def begin(self, call: Call) -> None:
        with Held(self.lock):
            self.call = call

    def end(self) -> bool:
        """The call has ended. False: it was abandoned before."""
        with Held(self.lock):
            self.call = None
            return not self.abandoned

    def give_up(self, call: Call) -> bool:
        """Abandon the call. False: it has ended."""
        with Held(self.lock):
            if self.call is not call:
                return False
            self.abandoned, self.call = True, None
            return True


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
        # The service thread. An interruption of `start` leaves open whether it runs: it and `join` agree on that.
        self._fate: dict[str, bool] = {}
        self._wakeup = Event()
        self._at = math.inf  # when it makes a step
        # The input.
        self._source: Any = None  # one that never blocks
        self._is_read = False  # it has no more items
        self._blocking: Iterator[list[Item]] | None = None
        self._reader: Thread | None = None
        self._read_next = Event()
        self._most = 0.0  # items that may be read
        self._count = 0  # items that were read
        # Workers.
        self._timed = scheduler.rules.timeout is not None or scheduler.rules.deadline is not None
        self._at_work: dict[Call, Worker] = {}  # where calls are timed
        self._workers = 0  # threads that make calls, abandoned ones aside
        self._made = 0  # threads, for their names
        self._abandoned: list[Worker] = []
        self._handover: list[Call] | None = None  # where a worker that makes a step finds its next call
        # The end.
        self._threads: list[Thread] = []  # that `join` waits for; abandoned ones are not among them
        self._alive = 1  # of these, those that have not ended; the service thread is the first
        self._alive_lock = threading.Lock()
        self._over = Event()  # all of them have ended

    # ------------------------------------------------------------------------------------------------ the consumer's
    def start(self, source: Any, never_blocks: bool) -> None:
        """Begin to read. source: an iterator over lists of items; one that never blocks has a method
        `take(most)` instead, which returns [] at the end."""
        if never_blocks:
            self._source = source
        else:
            self._blocking = source
        start_daemon(self._start_service)

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
        """Wait until all threads have ended. A map whose service thread has not begun never begins."""
        if not self._fate.setdefault("runs", False):
            self.ended = True
            self.show()
            return
        self._over.wait()
        for thread in self._threads:
            thread.join()  # it has ended but for a moment
        self._source = None
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            reader.join(INPUT_TIMEOUT)

    def runs_here(self) -> bool:
        """Whether the caller is a thread of this map."""
        return getattr(threading.current_thread(), "driver", None) is self

    def took(self, number: int) -> None:
        """The consumer took so many items."""
        self.inbox.append(number)
        if self.queued() < self.scheduler.allowed:  # else every worker has something to do before it is needed
            self.poke()

    # ------------------------------------------------------------------------------------------------ effects
    def poke(self) -> None:
        self._wakeup.set()

    def show(self) -> None:
        self._output_changed.set()

    def hand(self, calls: list[Call]) -> None:
        handover = self._handover
        if handover is not None and not handover:
            handover.append(calls.pop(0))
            if not calls:
                return
        self._calls.put_many(calls)
        wanted = min(self.scheduler.allowed, self.scheduler.handed)
        while self._workers < wanted:
            self._add_worker()

    def queued(self) -> int:
        return self._calls.qsize()

    def take_back(self) -> list[Call]:
        calls: list[Call] = []
        try:
            while True:
                calls += self._queue.get_many(1_024, block=False)
        except (Empty, ShutDown):
            return calls

    def cancel(self, call: Call, error: BaseException) -> None:
        worker = self._at_work.get(call)
        if worker is None or not worker.give_up(call):
            return  # it has ended, or its worker sees that the deadline has passed
        del self._at_work[call]
        self._workers -= 1
        self._threads.remove(worker.thread)
        self._leave()
        if self.scheduler.expired:  # no call follows: nobody is asked, and no thread is replaced
            self.inbox.append(Failed(call, Verdict(Kind.FAIL, error=error, timed_out=True)))
            return
        self._abandoned = [one for one in self._abandoned if one.thread.is_alive()]
        self._abandoned.append(worker)
        if len(self._abandoned) > self.scheduler.allowed:
            self.inbox.append(Failed(call, Verdict(Kind.FAIL, error=error, timed_out=True)))
            seconds, most = self.scheduler.rules.timeout, self.scheduler.allowed
            text = f"timeout: {len(self._abandoned)} calls run on after {seconds} s (expected: at most workers, {most})"
            self.halted = True
            self.inbox.appendleft(Fail(RuntimeError(text)))
        else:
            self._add_worker((call, error))  # it asks the user's `on` and `backoff`, which may take their time

    def read(self, most: float) -> None:
        if self._source is not None:
            self._read_here(most)
        elif most > self._most:
            self._most = most
            self._read_next.set()

    def _read_here(self, most: float) -> None:
        while not self._is_read and self._count < most:
            items = self._source.take(int(most) - self._count)
            if not items:
                self._is_read = True
                self.inbox.append(InputEnded(None))
                return
            self._count += len(items)
            self.inbox.append(items)

    def set_timer(self, at: float) -> None:
        if at < self._at:
            self._at = at
            self._wakeup.set()

    def end(self) -> None:
        self._queue.shutdown(immediate=True)
        self._is_read = True
        self._wakeup.set()
        self._read_next.set()

    # ------------------------------------------------------------------------------------------------ threads
    def _start(self, run: Callable[[], object], name: str) -> Thread:
        thread = Thread(self, run, name)
        thread.start()
        return thread

    def _start_service(self) -> None:
        self._threads.append(self._start(self._serve, "manytail-service"))

    def _leave(self) -> None:
        """A thread that `join` waited for has ended, or is abandoned."""
        with Held(self._alive_lock):
            self._alive -= 1
            last = not self._alive
        if last:
            self._over.set()

    def _serve(self) -> None:
        """The service thread; the first of all."""
        if not self._fate.setdefault("runs", True):
            return
        try:
            if self._blocking is not None:
                self._reader = self._start(partial(self._read_all, self._blocking), "manytail-reader")
            while not self.ended:
                self._wakeup.clear()
                if self._at <= self.now():
                    self._at = math.inf
                self.inbox.append(0)  # have a step made, by whoever holds the lock
                self.pump()
                wait = self._at - self.now()
                if not self.ended:
                    self._wakeup.wait(None if wait == math.inf else min(max(0.0, wait), threading.TIMEOUT_MAX))
        except BaseException as error:
            self.report(Fail(error))
        finally:
            self._leave()

    def _read_all(self, source: Iterator[list[Item]]) -> None:
        error: BaseException | None = None
        scheduler = self.scheduler
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
                if scheduler.handed < scheduler.allowed or self._count >= self._most:
                    self.pump()
        except BaseException as raised:
            error = raised
        self.report(InputEnded(error))
        del error, source  # its traceback refers to this frame

    # ------------------------------------------------------------------------------------------------ workers
    def _add_worker(self, overdue: tuple[Call, BaseException] | None = None) -> None:
        """overdue: a call that was abandoned, and why: the new worker reports it first."""
        worker = Worker()
        self._workers += 1
        self._made += 1
        with Held(self._alive_lock):
            self._alive += 1
        try:
            worker.thread = self._start(partial(self._work, worker, overdue), f"manytail-worker-{self._made}")
            self._threads.append(worker.thread)
        except RuntimeError as error:  # the system has no more threads to give
            self._workers -= 1
            self._leave()
            error.add_note(f"manytail: after {self._made - 1} worker threads (workers={self.scheduler.allowed})")
            raise

    def _work(self, worker: Worker, overdue: tuple[Call, BaseException] | None) -> None:
        """A worker thread."""
        try:
            if overdue is not None:
                self._failed(*overdue)
                overdue = None  # an idle worker keeps no item alive
            with ExitStack() as stack:
                call = self._call_with(stack)
                timings = Timings()
                with Held(self._alive_lock):
                    self.add_timings(timings)
                self._make_calls(worker, call, timings)
        except BaseException as error:
            self.halted = True
            self.report(Fail(error))
        finally:
            if not worker.abandoned:
                self._leave()

    def _make_calls(self, worker: Worker, call: Callable[[Any], Any], timings: Timings) -> None:
        """Make calls, until the map has ended or a call is abandoned."""
        get, begin, end, inbox, timed = self._queue.get, timings.begin, timings.end, self.inbox, self._timed
        following: Any = None
        succeeded = self._gather if self.scheduler.hands_ahead else self._make_step
        while True:
            item = result = None  # an idle worker keeps no item alive
            try:
                item = get() if following is None else following
            except ShutDown:
                return
            following = None
            if self.halted or (timed and not self._begin(worker, item)):
                if worker.abandoned:
                    return
                self.report(Missed(item))
                continue
            item.attempts += 1
            begin()
            try:
                result = call(item)
            except BaseException as error:
                if timed and not self._end_timed(worker, item):
                    return
                item.began = timings.end_attempt()
                self._failed(item, error)
            else:
                if timed and not self._end_timed(worker, item):
                    return
                item.result = result
                end(item.read)  # type: ignore[union-attr]
                inbox.append(item)
                if len(inbox) > self.slack:
                    following = succeeded()

    def _begin(self, worker: Worker, call: Call) -> bool:
        """A timed call begins. False: the deadline has passed; or it was abandoned already."""
        call.began = self.now()
        worker.begin(call)
        self._at_work[call] = worker
        if not self.scheduler.expired:
            return True
        self._end_timed(worker, call)
        return False

    def _end_timed(self, worker: Worker, call: Call) -> bool:
        """False: the call was abandoned before. Then nothing of it counts."""
        return worker.end() and self._at_work.pop(call, None) is worker

    def _gather(self) -> None:
        self.pump()

    def _make_step(self) -> Call | None:
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

    def _failed(self, call: Call, error: BaseException) -> None:
        verdict = self._judge(call, error)
        if verdict.kind is Kind.FAIL and (self.scheduler.rules.raises or verdict.fatal):
            self.halted = True  # at once: no other worker begins a call
        self.report(Failed(call, verdict))
        if verdict.kind is not Kind.FAIL or verdict.pauses:
            self.settle()  # else this worker could take the next call of a lane that pauses

