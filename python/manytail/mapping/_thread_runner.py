"""The runner whose reader, timer and workers are threads.

The consumer's thread takes finished items. A reader thread reads the input, because that may block for ever, and
finished items must not wait for it. Workers (`_workers`) make the calls. A timer thread calls `tick`, and abandons
overdue calls. All are made here and joined by `close`, except abandoned calls and a reader whose input blocks.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from manytail._progress import Meter
from manytail._sync import Event

from ._item import Item
from ._progress import Ticker
from ._runner import JOIN_TIMEOUT, Runner, no_step
from ._scheduler import Scheduler
from ._threads import Thread
from ._workers import CoroutineWorkers, ThreadWorkers

INPUT_TIMEOUT = 0.05  # seconds that `close` waits for an input, which may block for ever

def wait_for_databases(runner: Runner) -> None:
    """After `close`: wait until the databases have all results, and what calls took of shared limits. After the
    deadline this is no long wait: the threads of the databases go on without the map."""
    flushes = [exchange.flushed for exchange in (() if runner.owner is None else runner.owner.exchanges)]
    if runner.memory is not None:
        flushes.append(runner.memory.flushed)
    for flushed in flushes:
        told = Event()
        flushed(told.set)
        told.wait(runner.last_wait())


class ThreadRunner(Runner):
    """The runner whose reader, timer and workers are threads."""

    def __init__(self, scheduler: Scheduler, *arguments: Any, **keywords: Any) -> None:
        super().__init__(scheduler, *arguments, **keywords)
        self.now = time.monotonic
        # Our own Event: Ctrl-C in `set` of `threading.Event`, which is Python code, can leave its lock held.
        self.output_changed = Event()
        self.read_next = Event()
        self.workers = (CoroutineWorkers if self.options.is_async else ThreadWorkers)(self)
        self._timer = _Timer(self)
        self._reader: Thread | None = None
        self._in_input = False  # the reader runs code of the input, or is about to: that may block for ever
        self._left_reader = False  # it was given its time to end

    def start(self, source: Iterator[list[Item]], never_blocks: bool = False) -> None:
        """Begin to read. never_blocks: the source returns at most `room` items at once and runs no user code. Whoever
        fills the window then reads it, under the lock, unless it computes idempotency keys."""
        self._gathers = self.scheduler.is_uniform and self.memory is None and not self.options.is_async
        if never_blocks and not self.options.identifies:
            self.source = source
            self.locked(self.go_on)
            return
        self._reader = self.thread(self._read, "manytail-reader", source)
        self.locked(self.go_on)
        self._reader.start()

    def thread(self, target: Callable[..., object], name: str, *arguments: Any) -> Thread:
        """A thread whose code runs in a copy of the map's context."""
        return Thread(partial(self.context.copy().run, target, *arguments), name)

    def _read(self, source: Iterator[list[Item]]) -> None:
        try:
            self._read_all(source)
        except BaseException as error:
            self.fail(error)

    def _read_all(self, source: Iterator[list[Item]]) -> None:
        room = 0
        while True:
            items = error = None  # a waiting reader keeps no item alive
            if room <= 0:
                self.read_next.wait()  # type: ignore[attr-defined]
                room = self.room
            self._in_input = True  # before the look at `stopping`: `close` waits long only for what is false here
            if self.stopping:
                return
            try:
                items = next(source, None)
            except BaseException as raised:
                error = raised
            self._in_input = False
            room -= len(items or ())
            if items is not None and room > 0 and self.memory is None:
                self._pending.extend(items)
                if self.is_hungry():
                    self.report(no_step)
                continue
            room = 0
            self.locked(self._items_read, items, error)
            if items is None:
                return

    def ticker(self, meter: Meter) -> Ticker:
        """What shows the meter's reports. It is to be started and stopped."""
        return Ticker(meter, self.fail, self.context.copy())

    def _items_read(self, items: list[Item] | None, error: BaseException | None) -> None:
        if not self.stopping:
            self.items_read(items, error)

    def set_timer(self, at: float) -> None:
        self._timer.set(at)

    # ------------------------------------------------------------------------------------------------ the consumer's
    def wait(self, wanted: int = 1, timeout: float | None = None) -> None:
        """Wait until `wanted` items are in the output, no more come, the map is idle or stopped, or `timeout` seconds
        have passed."""
        if self.locked(self._has_to_wait, wanted):
            self.output_changed.wait(timeout)  # type: ignore[attr-defined]

    def _has_to_wait(self, wanted: int) -> bool:
        scheduler = self.scheduler
        self._wanted = wanted
        waits = len(scheduler.output) < wanted and not (scheduler.window.buffer_full or scheduler.over or self.stopping)
        if waits:
            self.output_changed.clear()
            self._slack = min(self._slack, wanted - len(scheduler.output) - 1)
        return waits

    def close(self, cancel: bool = False) -> None:
        """Stop, and wait for running calls. Threads may remain that run abandoned calls, or whose input blocks.

        RuntimeError: the caller is a thread that this would wait for. A signal handler that has interrupted a holder
        of the map's locks only stops the map, and returns: the code that it interrupts ends it."""
        here = threading.current_thread()
        if here is self._reader or here in self.workers.threads() or self._timer.runs_in(here):
            raise RuntimeError("close: called by a function or the input of the same map (expected: by another thread)")
        self.stop(cancel)
        if self.interrupts_itself():
            return
        self.locked(no_step)  # waits for the lock's holder, which may be starting a thread that is to be joined
        self.workers.join()
        self._timer.join()
        self._join_reader()
        self.locked(no_step)  # handles what the last calls reported

    def _join_reader(self) -> None:
        """Wait for the reader. One whose input blocks gets a moment to end, once: an input that does not block should
        not be in use when the map has ended."""
        if self._reader is not None and not self._left_reader:
            self._reader.join(INPUT_TIMEOUT if self._in_input else JOIN_TIMEOUT)
            self._left_reader = True

    def calls_ended(self) -> None:
        super().calls_ended()
        self._timer.close()

    def poke(self) -> None:
        self._timer.poke()

    flush = wait_for_databases


class _Timer:
    """One thread that calls `tick` at the earliest time that was set, or before. The first `set` starts it."""

    def __init__(self, runner: ThreadRunner) -> None:
        self._runner = runner
        self._at = math.inf
        self._wakeup = Event()
        self._closed = False
        self._thread: Thread | None = None

    def set(self, at: float) -> None:
        """Only under the runner's lock."""
        if at >= self._at or self._closed:
            return
        if self._thread is None or self._thread.never_runs():
            self._thread = self._runner.thread(self._run, "manytail-timer")
            try:
                self._thread.start()
            except RuntimeError:  # the system has no thread to give: it is not asked again
                self._closed = True
                raise
        self._at = at  # last: the next `set` repeats a start that was interrupted
        self._wakeup.set()

    def poke(self) -> None:
        """Have the thread look at once. It runs, or will be started with the next `set`."""
        self._wakeup.set()

    def runs_in(self, thread: threading.Thread) -> bool:
        return self._thread is thread

    def close(self) -> None:
        """Let the thread end: nothing is left to time."""
        self._closed = True
        self._wakeup.set()

    def join(self) -> None:
        """Only after the last running call has ended or was abandoned."""
        self.close()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closed:
                self._wakeup.wait(self._tick())
        except BaseException as error:
            self._runner.fail(error)

    def _tick(self) -> float | None:
        """Do what is due. Returns how long to wait then."""
        runner = self._runner
        for step in runner.locked(self._due):
            step()
        wait = self._at - runner.now()
        return None if wait == math.inf else min(max(0.0, wait), threading.TIMEOUT_MAX)

    def _due(self) -> list[Callable[[], object]]:
        self._at = math.inf
        steps = self._runner.do_due()
        self._wakeup.clear()
        if self._closed or self._runner.is_woken():  # since `do_due` looked
            self._wakeup.set()
        return steps
