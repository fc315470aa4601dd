"""The driver whose workers are threads.

Any of these threads may make a step: it takes the lock, gives the events of the inbox to the scheduler, and carries out
the effects (driver.py).

    service    one thread, which the consumer starts: makes a step when another thread pokes it, and when the timer is
               due; starts the reader
    progress   reports where the map stands, if the user has asked for that
    reader     reads an input that may block. An input that never blocks, and runs no user code, needs none: the thread
               that makes a step reads it
    workers    make the calls: one thread per call that was handed and has not ended, up to `workers`, started on demand

All are daemons. `join` waits for all of them except abandoned workers; for the reader it waits READER_JOIN_TIMEOUT.

A running call of a plain function cannot be cancelled. If its time is over it is abandoned: its result is discarded,
its thread ends when the call returns, and another thread takes its place.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from manytail import MultiQueue
from manytail._lifecycle import start_daemon
from manytail._progress import INTERVAL, log
from manytail._sync import Event, Held
from manytail._timings import Timings
from manytail.errors import Empty, ShutDown

from ..engine.events import Fail, Failed, InputEnded, Missed
from ..engine.item import Call, Item, Kind, Verdict
from ..engine.scheduler import Scheduler
from ..engine.window import LIGHT
from ..outcomes import end_delivery
from ..verdicts import Judge
from .driver import Driver

READER_JOIN_TIMEOUT = 0.05  # seconds that `join` waits for the reader, whose input may block for ever


class Thread(threading.Thread):
    """A daemon thread that runs a call in a copy of the map's context."""

    def __init__(self, driver: Driver, call: Callable[[], object], name: str) -> None:
        super().__init__(target=driver.context.copy().run, args=(call,), name=name, daemon=True)
        self.driver = driver


class Worker:
    """A worker thread. If calls have a time limit: `calls` is its current call, and whoever takes it out of there, the
    worker when the call has ended or who abandons it, decides which of the two has happened."""

    __slots__ = ("abandoned", "calls", "thread")

    def __init__(self) -> None:
        self.calls: dict[Call, bool] = {}
        self.abandoned = False  # and it has found that out
        self.thread: Thread


class ThreadDriver(Driver):
    def __init__(
        self,
        scheduler: Scheduler,
        call_with: Callable[[ExitStack], Callable[[Any], Any]],
        judge: Judge,
    ) -> None:
        """call_with: sets a worker up, and returns the function that the worker applies to each call. judge: decides
        what follows a call that failed."""
        super().__init__(scheduler, time.monotonic)
        self._call_with = call_with
        self._judge = judge
        self._queue: MultiQueue[None, Call] = MultiQueue()
        self._calls = self._queue.add(None)
        self._output_changed = Event()
        # If `start` is interrupted, the service thread may exist or not. Whoever of it and `join` sets "runs" first
        # decides whether the map runs.
        self._claim: dict[str, bool] = {}
        self._wakeup = Event()
        self._timer_at = math.inf  # when the service thread has to make a step
        # The input.
        self._blocking: Iterator[list[Item]] | None = None  # one that a reader reads
        self._reader: Thread | None = None
        self._may_read_more = Event()
        self._taken_all = Event()  # the consumer takes nothing more. What reports waits for it, and for the next one
        self._no_more = Event()  # the map has ended
        self._read_limit = 0.0  # items that may be read
        # Workers.
        self._timed = scheduler.rules.timeout is not None or scheduler.rules.deadline is not None
        self._paced = any(stage.paces for stage in scheduler.stages)
        self._workers: list[Worker] = []  # without abandoned ones
        self._started = 0  # workers, for their names
        self._abandoned: list[Thread] = []  # that ran out of the time of one call
        self._late_times = Timings()  # of abandoned calls
        self.add_timings(self._late_times)
        self._left: list[Thread] = []  # of calls that were abandoned, also at the deadline
        self._handover: list[Call] | None = None  # `hand` puts the next call of the worker that makes a step here
        # The end.
        self._threads: list[Thread] = []  # that `join` waits for; abandoned ones are not among them
        self._unfinished = 1  # how many of them have not ended, with the service thread
        self._count_lock = threading.Lock()
        self._all_ended = Event()  # all of them have ended

    # ------------------------------------------------------------------------------------------------ for the consumer
    def start(self, source: Any, never_blocks: bool) -> None:
        """Begin to read. source: an iterator over lists of items; one that never blocks has a method
        `take(most)` instead, which returns [] at the end."""
        if never_blocks:
            self._source = source
        else:
            self._blocking = source
        start_daemon(self._start_service)

    def wait(self) -> None:
        """Wait until the output has `wanted` items, or the map has ended; or until `wait_until`."""
        self._output_changed.clear()
        self.waiting = True
        if self.wanted == 1:
            self.slack = 0
        if len(self.output) < self.wanted and not self.ended:
            if self.inbox:
                self.poke()
            self._output_changed.wait(None if self.wait_until == math.inf else max(0.0, self.wait_until - self.now()))
        self.waiting = False

    def join(self) -> None:
        """Wait until all threads have ended. If the service thread has not begun, it is kept from ever doing so."""
        self._taken_all.set()
        if not self._claim.setdefault("runs", False):
            self.ended = True
            self.show()
            return
        self._all_ended.wait()
        for thread in self._threads:
            thread.join()  # its work is done: it ends in a moment
        self._source = None
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            reader.join(READER_JOIN_TIMEOUT)
        self.flush()
        left, self._left = self._left, []
        self._note_left(left)  # last: a handler of the user's may raise

    @staticmethod
    def _note_left(threads: list[Thread]) -> None:
        """Log which calls that ran out of time run on after the end of the map."""
        end = time.monotonic() + READER_JOIN_TIMEOUT
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        if stuck := [thread.name for thread in threads if thread.is_alive()]:
            with suppress(Exception):
                log.warning("%d calls that ran out of time are still running: %s", len(stuck), ", ".join(stuck))

    def abandon(self) -> None:
        super().abandon()
        self._taken_all.set()

    def runs_here(self) -> bool:
        """Whether the caller is a thread of this map."""
        return getattr(threading.current_thread(), "driver", None) is self

    def took(self, number: int) -> None:
        super().took(number)
        if self.queued() < self.scheduler.allowed:  # otherwise there is a call for every worker, and the step can wait
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
        while self._worker_count < wanted and self._add_worker():
            pass

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
        worker = next((one for one in self._workers if call in one.calls), None)
        if worker is None or worker.calls.pop(call, None) is None:
            return  # the call has ended, or its worker has not begun it and sees in _begin that the deadline has passed
        end_delivery(call.delivery)
        self._late_times.ended(call.began)
        self._workers.remove(worker)
        self._threads.remove(worker.thread)
        self._left = [*(thread for thread in self._left if thread.is_alive()), worker.thread]
        self._count_ended()
        if self.scheduler.expired:  # of the map: there is no retry to decide on, and no call for another thread
            self._fail_overdue(call, error)
            return
        self._abandoned = [one for one in self._abandoned if one.is_alive()]
        self._abandoned.append(worker.thread)
        most = self.scheduler.rules.workers
        if len(self._abandoned) > most:
            self._fail_overdue(call, error)
            if len(self._abandoned) == most + 1:  # else another one, of this step, has failed the map
                text = f"timeout: {len(self._abandoned)} calls still run after {self.scheduler.rules.timeout} s"
                self.halted = True
                self.inbox.appendleft(Fail(RuntimeError(f"{text} (expected: at most workers, {most})")))
        elif not self._add_worker((call, error)):  # that thread runs the user's `on` and `backoff`, which may be slow
            self._fail_overdue(call, error)

    def _fail_overdue(self, call: Call, error: BaseException) -> None:
        self.inbox.append(Failed(call, Verdict(Kind.FAIL, error=error, timed_out=True)))

    def read(self, most: float) -> None:
        if self._source is not None:
            self.read_here(most)
        elif most > self._read_limit:
            self._read_limit = most
            self._may_read_more.set()

    def set_timer(self, at: float) -> None:
        if at < self._timer_at:
            self._timer_at = at
            self._wakeup.set()

    def end(self) -> None:
        self._queue.shutdown(immediate=True)
        self._wakeup.set()
        self._may_read_more.set()
        self._no_more.set()

    # ------------------------------------------------------------------------------------------------ threads
    def _start_thread(self, run: Callable[[], object], name: str) -> Thread:
        thread = Thread(self, run, name)
        thread.start()
        return thread

    def _start_service(self) -> None:
        """In a thread that ends with this."""
        try:
            thread = Thread(self, self._serve, "manytail-service")
            self._threads.append(thread)  # before it runs: whoever waits for its end finds it there
            thread.start()
        except BaseException as error:  # the system has no other thread to give
            self._threads.clear()
            if self._claim.setdefault("runs", True):
                self.crash(error)
                self._count_ended()

    def _count_ended(self) -> None:
        """A thread that `join` waited for has ended, or is abandoned."""
        with Held(self._count_lock):
            self._unfinished -= 1
            last = not self._unfinished
        if last:
            self._all_ended.set()

    def _serve(self) -> None:
        """The service thread, which is the first one."""
        if not self._claim.setdefault("runs", True):
            return
        try:
            self._start_others()
            while not self.ended:
                self._wakeup.clear()
                if self._timer_at <= self.now():
                    self._timer_at = math.inf
                self.inbox.append(0)  # without effect: a step is made here, or by the thread that holds the lock
                self.pump()
                wait = self._timer_at - self.now()
                if not self.ended:
                    self._wakeup.wait(None if wait == math.inf else min(max(0.0, wait), threading.TIMEOUT_MAX))
        except BaseException as error:
            self.report(Fail(error))
        finally:
            self._count_ended()

    def _start_others(self) -> None:
        if self._blocking is not None:
            self._reader = self._start_thread(partial(self._read_all, self._blocking), "manytail-reader")
        if self.progress is not None:
            with Held(self._count_lock):
                self._unfinished += 1
            try:
                self._threads.append(self._start_thread(partial(self._report_on, self.progress), "manytail-progress"))
            except RuntimeError:  # the system cannot start another thread
                self._count_ended()
                raise

    def _report_on(self, report: Callable[[], object]) -> None:
        """The thread that reports, until the consumer waits for the end of all threads, and once then."""
        try:
            while not self._taken_all.wait(INTERVAL):
                report()
            self._no_more.wait()
            report()
        except BaseException as error:  # KeyboardInterrupt, SystemExit
            self.halted = True
            self.report(Fail(error))
            if self.ended and self.scheduler.error is None:  # perhaps nobody makes another step
                self.scheduler.error = error
        finally:
            self._count_ended()

    def _read_all(self, source: Iterator[list[Item]]) -> None:
        error: BaseException | None = None
        scheduler = self.scheduler
        try:
            while not self.ended:
                if self._items_read >= self._read_limit:
                    self._may_read_more.clear()
                    if self._items_read >= self._read_limit and not self.ended:
                        self._may_read_more.wait()
                    continue
                items = next(source, None)
                if items is None:
                    break
                self._items_read += len(items)
                self.inbox.append(items)
                items = None  # a reader that waits keeps no item alive
                if scheduler.handed < scheduler.allowed or self._items_read >= self._read_limit:
                    self.pump()  # otherwise all workers are busy, and the next one that is free makes a step
        except BaseException as raised:
            error = raised
        self.report(InputEnded(error))
        del error, source  # the traceback of the error refers to this frame: that would be a cycle

    # ------------------------------------------------------------------------------------------------ workers
    @property
    def _worker_count(self) -> int:
        return len(self._workers)

    def _add_worker(self, overdue: tuple[Call, BaseException] | None = None) -> bool:
        """overdue: a call that was abandoned, and why: the new worker reports it first. Returns False if the system
        cannot start another thread: the map fails, and calls that run end as those of every map that fails."""
        worker = Worker()
        self._started += 1
        with Held(self._count_lock):
            self._unfinished += 1
        try:
            worker.thread = self._start_thread(partial(self._work, worker, overdue), f"manytail-worker-{self._started}")
        except RuntimeError as error:
            self._count_ended()
            error.add_note(f"manytail: after {self._started - 1} worker threads (workers={self.scheduler.allowed})")
            self.halted = True
            self.inbox.appendleft(Fail(error))
            return False
        self._workers.append(worker)
        self._threads.append(worker.thread)
        return True

    def _work(self, worker: Worker, overdue: tuple[Call, BaseException] | None) -> None:
        """A worker thread."""
        try:
            if overdue is not None:
                self.report_end(self._judge.failed(*overdue, overdue=True))
                overdue = None  # an idle worker keeps no item alive
            with ExitStack() as stack:
                self.hold()
                function = self._call_with(stack)
                timings = Timings()
                with Held(self._count_lock):
                    self.add_timings(timings)
                try:
                    self._make_calls(worker, function, timings)
                except BaseException as error:  # no memory: what became of its call nobody knows
                    with Held(self._lock):
                        self.crash(error)
        except BaseException as error:
            self.halted = True
            self.report(Fail(error))
        finally:
            if not worker.abandoned:
                self._count_ended()

    def _make_calls(self, worker: Worker, function: Callable[[Any], Any], timings: Timings) -> None:
        """Make calls, until the map has ended or a call is abandoned."""
        get, begin, end, inbox = self.calls_of(function, timings), timings.begin, timings.end, self.inbox
        timed, paced = self._timed, self._paced
        next_call: Any = None
        batched = self.scheduler.batched
        weighs, weigh = self.scheduler.window.weighs, self.scheduler.window.weigh
        after_success = self._pump_only if self.scheduler.hands_ahead else self._make_step
        while True:
            item = result = None  # an idle worker keeps no item alive
            try:
                item = get() if next_call is None else next_call
            except ShutDown:
                return
            next_call = None
            if self.halted or (paced and item.begin_by < self.now()) or (timed and not self._begin(worker, item)):
                if worker.abandoned:
                    return
                self.report(Missed(item))
                continue
            item.attempts += 1
            begin()
            try:
                result = function(item)
            except BaseException as error:
                if timed and not self._end_timed(worker, item):
                    return
                item.began = timings.end_attempt()
                self.report_end(self._judge.failed(item, error))
            else:
                if timed and not self._end_timed(worker, item):
                    return
                item.result = result
                if batched:
                    began = timings.end_attempt()
                    self.report_end(self.batch_returned(item, began, timings, self._judge))  # type: ignore[arg-type]
                    continue
                if weighs and type(result) not in LIGHT:
                    weigh(item, result)  # type: ignore[arg-type]
                end(item.read)  # type: ignore[union-attr]
                inbox.append(item)
                if len(inbox) > self.slack:
                    next_call = after_success()

    def calls_of(self, function: Callable[[Any], Any], timings: Timings) -> Callable[[], Call]:
        """What waits for the next call of a worker. ShutDown: the map has ended."""
        return self._queue.get

    def _begin(self, worker: Worker, call: Call) -> bool:
        """A timed call begins. Returns False if the deadline of the map has passed: the call is not made."""
        call.began = self.now()
        worker.calls[call] = True
        return not self.scheduler.expired or not self._end_timed(worker, call)

    @staticmethod
    def _end_timed(worker: Worker, call: Call) -> bool:
        """Returns False if the call was abandoned before. Its result is discarded, and the thread ends."""
        worker.abandoned = worker.calls.pop(call, None) is None
        return not worker.abandoned

    def _pump_only(self) -> None:
        self.pump()

    def _make_step(self) -> Call | None:
        """Make a step. If it hands calls out, return the first: this worker makes it next, without the queue."""
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
