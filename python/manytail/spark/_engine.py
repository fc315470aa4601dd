"""The scheduler inside one task: batches of rows in, finished rows out. `_workers` runs the calls, `_lanes` says which may start; no Spark here.

Threads. The task's own thread runs `Engine.run` and hands finished rows on. A reader thread pulls the input, because a pull may take for ever and
finished rows must not wait for it. Workers call the function. A timer thread puts rows back after their backoff and gives up on calls that are
over their time. All are made by `run` and joined before it ends, except calls that were given up on.

One lock guards the scheduler's state, and a worker never waits for it. A worker that has finished a row appends it to `_completed` and tries the
lock: if it gets it, it handles everything that stands there, and looks again after it has let go; if not, the holder will do the same. So a row is
handled by somebody at once, and sixteen workers with a fast function do not queue up behind one another, each holding a lock while it waits for the
interpreter. The worker that handles finished rows also moves the order forward and refills the window, so that no other thread need wake per row.

Invariants, under the lock:
    in_flight = rows fed - rows that stand in an output batch (or were dropped) <= window
    window    = max_in_flight where that is given; else it starts at 4 x workers and doubles when a worker has nothing to run only because the
                window is full of rows that wait for an earlier one or for their key (`_grow`)
    rows ahead of the reader: the rest of at most one input batch, and the next one is pulled only when that is used up and the window has room
    rows behind: at most one output batch; while it is full, finished rows stay in flight
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any, Literal, Protocol

from ._call import Call, describe, result_bytes
from ._lanes import Lanes
from ._workers import Coroutines, Threads

log = logging.getLogger("manytail.spark")

LINGER = 1.0  # seconds that the first row of an output batch waits for others
PAUSE = 0.02  # seconds without a row in flight before it is believed that the source has none to give at the moment
PARTING = 1.0  # seconds that a thread gets at the end that cannot be waited for
WINDOW_LIMIT = 10_000  # items that the automatic window holds at most, unless 4 x workers is more
WINDOW_BYTES = 256 << 20  # input rows and results that the automatic window does not grow beyond
SAMPLE = 64  # results whose size stands for that of all


class Batch(Protocol):
    """What the scheduler wants to know of an input batch. The call itself reads the row from it."""

    size: int
    keys: list[Any] | None  # hashable; rows with equal ones form a group
    priorities: list[int | None] | None
    row_bytes: float  # memory of one row, on average

    def weight(self, index: int) -> int: ...
    def key(self, index: int) -> Any: ...


@dataclass(frozen=True)
class Settings:
    """What `map_concurrent` was told, as far as it concerns the scheduler."""

    workers: int = 16
    max_in_flight: int = 0  # 0: automatic
    ordered: Literal["input", "key", "none"] = "input"
    per_key: int = 0
    prioritised: bool = False
    weighted: bool = False
    timeout: float | None = None
    retries: int = 0
    backoff: float | Callable[[int], float] = 0.1
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception
    never_retry: tuple[type[BaseException], ...] = ()
    errors: Literal["raise", "column", "drop"] = "raise"
    batch_rows: int = 10_000
    setup: Callable[[], Any] | None = None
    is_async: bool = False


class Engine:
    """One run over one partition. `caller(resource)` makes what a worker calls with each row: it returns the checked result, or a coroutine of it."""

    def __init__(self, settings: Settings, caller: Callable[[dict[str, Any]], Callable[[Call], Any]]) -> None:
        self.settings = settings
        self.caller = caller
        self.lanes = Lanes(
            per_key=self._needed_per_key(settings),
            prioritised=settings.prioritised,
            in_order=settings.ordered == "key",
            weighted=settings.weighted,
        )
        self.queue = self.lanes.queue
        self.failure: BaseException | None = None
        self.halted = False  # no further call may start: looked at by workers, and set by the one whose row fails the task, without the lock
        self.stopping = False  # the queue has been shut down; rows in flight are forgotten
        self.dropped = 0
        self._lock = threading.Lock()
        self._completed: deque[Call] = deque()
        self._started: deque[Call] = deque()
        self._line: deque[Call] | None = deque() if settings.ordered == "input" else None
        self._by_key = settings.ordered == "key"
        self._growing = not settings.max_in_flight
        self._largest = max(WINDOW_LIMIT, 4 * settings.workers)
        self._set_window(settings.max_in_flight or 4 * settings.workers)
        # Input: the batch being fed and how far; the reader thread fetches the next one when asked.
        self._batch: Batch | None = None
        self._fed = 0
        self._reading = False
        self._exhausted = False
        self._read_next = threading.Event()
        # Output: the batch being filled; rows whose turn it is but for which it has no room; what wakes the task's thread.
        self._out: list[Call] = []
        self._overdue: deque[Call] = deque()
        self._out_since: float | None = None
        self._idle_since: float | None = None  # no row in flight, and the source has been asked for more
        self._in_flight = 0
        self._row_bytes = 0.0
        self._held_back = 0  # finished rows that wait for an earlier one
        self._look = threading.Event()
        self._timer = _Timer(self)
        self._crew = (Coroutines if settings.is_async else Threads)(self)

    @staticmethod
    def _needed_per_key(settings: Settings) -> int:
        """A limit that cannot bind is none: without retries a key never has more slots in use than there are workers."""
        return 0 if settings.per_key >= settings.workers and not settings.retries else settings.per_key

    # ------------------------------------------------------------------------------------------------ the task's thread
    def run(self, batches: Iterator[Batch]) -> Iterator[list[Call]]:
        """Yield finished rows, at most `batch_rows` at a time. Raises what failed the task."""
        reader = threading.Thread(target=self._read, args=(batches,), name="manytail-reader", daemon=True)
        try:
            with self.state():
                self._advance()
            reader.start()
            while True:
                finished = self._next_output()
                if finished is None:
                    break
                yield finished
                del finished  # what was handed on is not kept while the next is waited for
        finally:
            self._close(reader)
        if self.failure is not None:
            raise self.failure

    def _next_output(self) -> list[Call] | None:
        """Wait for an output batch; None at the end, or when the task has failed."""
        while True:
            with self.state():
                if self.failure is not None:
                    return None
                if self._must_yield():
                    return self._take_output()
                if self._is_over():
                    return None
                wait = self._output_due() - time.monotonic()
                self._look.clear()
            self._look.wait(None if wait == math.inf else max(0.0, wait))

    def _must_yield(self) -> bool:
        if not self._out:
            return False
        return len(self._out) >= self.settings.batch_rows or self._is_over() or time.monotonic() >= self._output_due()

    def _is_over(self) -> bool:
        return self._exhausted and not self._in_flight

    def _output_due(self) -> float:
        """When the rows that came out must be handed on, though there could be more of them."""
        if self._out_since is None:
            return math.inf
        full = self._out_since + LINGER
        return full if self._idle_since is None else min(full, self._idle_since + PAUSE)

    def _take_output(self) -> list[Call]:
        taken, self._out = self._out, []
        self._out_since = None
        while self._overdue and len(self._out) < self.settings.batch_rows:
            self._emit(self._overdue.popleft())
        self._advance()
        return taken

    def _close(self, reader: threading.Thread) -> None:
        """Let running calls end, and leave no thread behind but those that cannot be waited for."""
        with self.state():
            self._stop()
        self._crew.join()
        self._timer.join()
        stuck = self._crew.part(PARTING)
        if reader.ident is not None:
            # Still blocked in Spark's iterator only if the task has failed or was given up on; this worker process is not used again then.
            reader.join(PARTING)
        if stuck:
            log.warning("%d calls that ran out of time are still running: %s", len(stuck), ", ".join(thread.name for thread in stuck))

    # ------------------------------------------------------------------------------------------------ the reader
    def _read(self, batches: Iterator[Batch]) -> None:
        try:
            while self._read_one(batches):
                pass
        except BaseException as error:
            self.fail(error)

    def _read_one(self, batches: Iterator[Batch]) -> bool:
        """Fetch a batch when one is wanted; False after the last."""
        self._read_next.wait()
        if self.stopping:
            return False
        batch = next(batches, None)
        with self.state():
            if self.stopping:
                return False
            self._reading = False
            self._read_next.clear()
            if batch is None:
                self._exhausted = True
            elif batch.size:
                self._batch, self._fed, self._row_bytes = batch, 0, batch.row_bytes
            self._advance()
        return batch is not None

    # ------------------------------------------------------------------------------------------------ the lock
    @contextmanager
    def state(self) -> Iterator[None]:
        """The lock, for threads that may wait for it; rows that were finished meanwhile are handled before and after."""
        try:
            with self._lock:
                self._handle()
                yield
        finally:
            self.settle()

    def settle(self) -> None:
        """Handle finished rows unless another thread holds the lock: it will look once more after letting go."""
        while (self._completed or self._started) and self._lock.acquire(False):
            try:
                self._handle()
            finally:
                self._lock.release()

    def _handle(self) -> None:
        if not self._completed and not self._started:
            return
        while self._started:
            call = self._started.popleft()
            if not self.stopping:
                self.lanes.started(call)
        while self._completed:
            call = self._completed.popleft()
            if self.stopping:
                continue
            if call.retry_in is not None:
                self._timer.schedule(call)
            else:
                self._finish(call)
        self._advance()

    # ------------------------------------------------------------------------------------------------ what workers and timer call
    def attempt_started(self, call: Call) -> None:
        """A worker is about to run the call. Never blocks."""
        call.attempt += 1
        if self.lanes.reports_starts:
            self._started.append(call)
            self.settle()

    def attempt_succeeded(self, call: Call, value: Any) -> None:
        call.value = value
        self._completed.append(call)
        self.settle()

    def attempt_failed(self, call: Call, error: BaseException) -> None:
        """Decide, outside the lock because user code takes part, whether there is another attempt."""
        try:
            call.retry_in = self._backoff(call, error)
        except BaseException as wrong:
            wrong.__cause__ = error
            error, call.retry_in = wrong, None
        if call.retry_in is None:
            call.failure = describe(error, call.attempt)
            if self.settings.errors == "raise":
                self.halted = True
                call.error = error  # not kept otherwise: its traceback holds the row's frames
        self._completed.append(call)
        self.settle()

    def _backoff(self, call: Call, error: BaseException) -> float | None:
        """Seconds until the next attempt, None if there is none."""
        settings = self.settings
        if call.attempt > settings.retries or isinstance(error, settings.never_retry) or not isinstance(error, settings.retry_on):
            return None
        if not callable(settings.backoff):
            return float(settings.backoff) * 2.0 ** min(call.attempt - 1, 1_000)
        seconds: Any = settings.backoff(call.attempt)
        if not isinstance(seconds, (int, float)) or not seconds >= 0:
            raise ValueError(f"backoff: returned {seconds!r} for attempt {call.attempt} (expected: seconds, a number >= 0)")
        return float(seconds)

    @property
    def watches(self) -> bool:
        """Whether the timer must look after running calls: a coroutine is cancelled by its own loop."""
        return self.settings.timeout is not None and not self.settings.is_async

    def overdue_calls(self, now: float) -> tuple[list[Call], float]:
        """Under the lock, for the timer: the calls to give up on, and when to look again."""
        if not self.watches:
            return [], math.inf
        assert self.settings.timeout is not None
        overdue, deadline = self._crew.give_up(now)
        if self._in_flight and not self.stopping:
            deadline = min(deadline, now + self.settings.timeout)  # no call that starts from now on is due before that
        return overdue, deadline

    def fail(self, error: BaseException) -> None:
        """The task fails, for a reason that is not one row's."""
        with self._lock:
            self.fail_locked(error)

    # ------------------------------------------------------------------------------------------------ under the lock
    def fail_locked(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = _as_exception(error)
        self._stop()

    def _finish(self, call: Call) -> None:
        """The row has its last word: free its slot, and let those leave whose turn it is."""
        if call.failure is not None and self.settings.errors == "raise":
            self.fail_locked(_noted(call))
            return
        call.done = True
        self.lanes.finished(call)
        line = self._line
        if line is None:
            if not self._by_key:
                self._emit(call)
                return
            line = call.lane.line
        self._held_back += 1
        while line and line[0].done:
            self._held_back -= 1
            self._emit(line.popleft())

    def _emit(self, call: Call) -> None:
        """Out of flight and into the output batch, if that has room."""
        if call.failure is not None and self.settings.errors == "drop":
            self.dropped += 1
        elif len(self._out) < self.settings.batch_rows:
            if not self._out:
                self._out_since = time.monotonic()
                self._look.set()
            self._out.append(call)
        else:
            self._overdue.append(call)
            return
        self._in_flight -= 1
        self.lanes.left(call)

    def _advance(self) -> None:
        """Whatever can go on now: refill the window, ask for more input, wake the task's thread."""
        if self.stopping:
            return
        free = self._free_places()
        # Refilled in strides, because every refill may wake workers; but never so late that one of them finds nothing to do.
        if self._batch is not None and free > 0 and (free >= self._stride or self.queue.qsize() < self.settings.workers):
            self._feed(free)
            while self._batch is not None and (free := self._free_places()):
                self._feed(free)
        if self._batch is None and not self._reading and not self._exhausted and self._in_flight < self._window:
            self._reading = True
            self._read_next.set()
        if not self._in_flight and self._batch is None and self._idle_since is None:
            self._idle_since = time.monotonic()
            self._look.set()
        if len(self._out) >= self.settings.batch_rows or self._is_over():
            self._look.set()

    def _free_places(self) -> int:
        if self._growing and self._in_flight >= self._window:
            self._grow()
        return self._window - self._in_flight

    def _set_window(self, window: int) -> None:
        self._window = window
        self._stride = max(1, (window - self.settings.workers) // 2)

    def _grow(self) -> None:
        """Double the full window if a worker has nothing to run only because other rows wait for an earlier one or for their key.

        Rows for which the output has no room do not count: they wait for the consumer, and a larger window would only cost memory.
        """
        blocked = self._held_back + self.lanes.hidden
        to_run = self._in_flight - blocked - self._timer.waiting
        if self._overdue or not blocked or to_run >= self.settings.workers or (self._exhausted and self._batch is None):
            return
        larger = min(2 * self._window, self._largest)
        if larger * self._bytes_per_row() <= WINDOW_BYTES:
            self._set_window(larger)
            self._growing = larger < self._largest

    def _bytes_per_row(self) -> float:
        """Of an input row and its result, judged by results that are held back."""
        sample = [call.value for call in islice(self._line or (), SAMPLE) if call.done]
        return self._row_bytes + sum(map(result_bytes, sample)) / max(1, len(sample))

    def _feed(self, free: int) -> None:
        batch = self._batch
        assert batch is not None
        start = self._fed
        stop = min(batch.size, start + free)
        self._fed = stop
        self._idle_since = None
        self._in_flight += stop - start
        if stop == batch.size:
            self._batch = None
        calls = self.lanes.admit(batch, start, stop)
        if self._line is not None:
            self._line.extend(calls)
        elif self._by_key:
            for call in calls:
                call.lane.line.append(call)
        self._crew.rows_came(len(calls))
        self._timer.rows_came()

    def _stop(self) -> None:
        """The task is over, or it fails and Spark drops its output."""
        self.halted = True
        if not self.stopping:
            self.stopping = True
            self.queue.shutdown(immediate=True)
        self._read_next.set()
        self._look.set()
        self._timer.wake()


def _as_exception(error: BaseException) -> Exception:
    """What may leave a generator and reach Spark as the task's failure: SystemExit and the like would end the worker, StopIteration cannot pass."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(f"{type(error).__qualname__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _noted(call: Call) -> Exception:
    """The row's error, saying which row and how often it was tried."""
    error = _as_exception(call.error)
    attempts = "1 attempt" if call.attempt == 1 else f"{call.attempt} attempts"
    error.add_note(f"manytail: the row with key {call.batch.key(call.index)!r} failed after {attempts}")
    return error


class _Timer:
    """Retries that wait for their backoff, and calls that run against a timeout: one thread that sleeps until the next of them is due.

    It starts with the first retry, or with the first row where plain functions have a timeout. All but `wake` and `join` is called under the
    scheduler's lock.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._retries: list[tuple[float, int, Call]] = []
        self._numbers = count()
        self._wakeup = threading.Event()
        self._resting = False  # no retry waits and no call is watched: only rows_came or schedule can give it work
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Rows that wait for their next attempt."""
        return len(self._retries)

    def schedule(self, call: Call) -> None:
        assert call.retry_in is not None
        due = time.monotonic() + call.retry_in
        call.retry_in = None
        heappush(self._retries, (due, next(self._numbers), call))
        if self._thread is None:
            self._start()
        elif self._retries[0][2] is call:
            self._wakeup.set()

    def rows_came(self) -> None:
        if not self._engine.watches:
            return
        if self._thread is None:
            self._start()
        elif self._resting:
            self._wakeup.set()

    def wake(self) -> None:
        self._wakeup.set()

    def join(self) -> None:
        """After the last running call has ended or was given up on."""
        self._closed = True
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="manytail-timer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._closed:
                wait = self._look()
                if not self._closed:
                    self._wakeup.wait(wait)
        except BaseException as error:
            self._engine.fail(error)

    def _look(self) -> float | None:
        """Do what is due; how long to wait then."""
        engine = self._engine
        with engine.state():
            self._wakeup.clear()
            now = time.monotonic()
            self._put_back(now)
            overdue, deadline = engine.overdue_calls(now)
            if self._retries:
                deadline = min(self._retries[0][0], deadline)
            self._resting = deadline == math.inf
        for call in overdue:
            engine.attempt_failed(call, TimeoutError(f"timeout: no result within {engine.settings.timeout} s"))
        return None if deadline == math.inf else min(max(0.0, deadline - now), threading.TIMEOUT_MAX)

    def _put_back(self, now: float) -> None:
        if self._engine.stopping:
            self._retries.clear()
        while self._retries and self._retries[0][0] <= now:
            self._engine.lanes.retry(heappop(self._retries)[2])
