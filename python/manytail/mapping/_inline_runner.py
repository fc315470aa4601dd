"""The runner without threads, for debuggers and tests. All is done in the consumer's thread, inside `next`.

`wait` does one step after another until there is a result. A step reads an item, looks items up, makes a call,
exchanges with a database, or sleeps until one of these is due. It is chosen under the lock, and done without it.

Nobody does anything between two calls of `next`. So before `wait` returns, all results are recorded, and what calls
took of shared limits is reported; and no call takes anything of a limit before it begins.

An item is read when nothing else can be done. Where keys, priorities, batches or look-ups choose among items, the
window is filled first.

Ctrl-C ends `next` at once, wherever it comes: also in fn, whose KeyboardInterrupt is no failure of its item.
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import threading
import time
import weakref
from _thread import get_ident
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

from manytail._progress import Meter
from manytail._sync import Event
from manytail._timings import Timings, now
from manytail.errors import Empty, ShutDown

from . import _logs
from ._exchange import Exchange
from ._item import Item, Work
from ._loop_runner import retrieve
from ._progress import InlineTicker
from ._runner import Runner, no_step
from ._scheduler import Scheduler, Verdict
from ._thread_runner import wait_for_databases
from ._workers import enter_setup, enter_setup_async, exit_arguments

_T = TypeVar("_T")


def interrupts(error: object) -> bool:
    """Whether the error is no failure of an item, but of Ctrl-C or of a debugger that is left."""
    debugger: Any = sys.modules.get("bdb")
    return isinstance(error, KeyboardInterrupt) or (debugger is not None and isinstance(error, debugger.BdbQuit))


def _apart(step: Callable[[], object]) -> Iterator[None]:
    """Do the step in a generator, whose frame does not refer to its caller's: else an error that the user keeps would
    keep Results alive, which would not end when it is dropped."""
    step()
    del step  # it refers to an item
    yield


class _Patience:
    """An event that is set at the deadline too, for waits in which nobody looks at the time."""

    def __init__(self, event: Event, scheduler: Scheduler) -> None:
        self._event = event
        self._scheduler = weakref.ref(scheduler)  # results that are recorded at exit keep no map alive

    def _seconds(self) -> float:
        scheduler = self._scheduler()
        return math.inf if scheduler is None else scheduler._deadline_at - time.monotonic()

    def is_set(self) -> bool:
        return self._event.is_set() or self._seconds() <= 0

    def wait(self, timeout: float) -> bool:
        self._event.wait(max(0.0, min(timeout, self._seconds())))
        return self.is_set()


class InlineRunner(Runner):
    """The runner whose reader, timer and worker are the consumer's own thread."""

    def __init__(self, scheduler: Scheduler, *arguments: Any, **keywords: Any) -> None:
        super().__init__(scheduler, *arguments, **keywords)
        self.now = time.monotonic
        self._wakeup = self.output_changed = Event()
        self.read_next = Event()  # nobody waits for it
        self.worker = (_LoopWorker if self.options.is_async else _Worker)(self)
        self.workers = self.worker
        self.is_timed = self.options.timeout is not None or self.options.deadline is not None
        self.late: BaseException | None = None  # why the call that runs comes too late
        if self.owner is not None:
            self.owner.inline = True
        self._single = self.options.batch is None
        self._working = 0  # the thread that does the map's work, in `wait` or at the end; 0: none
        self._left = Event()  # it does not any longer
        self._drops = False  # closed: what is in the output when `wait` ends is dropped
        self._takes = False  # a call that may start is made at once
        self._reader: Iterator[list[Item]] | None = None
        self._fills = self.options.keyed or self.options.prioritised or not self._single or self.memory is not None
        self._reads_in, self._calls_in = self.context.copy(), self.context.copy()
        self._ticker: InlineTicker | None = None
        self._call: Callable[[Any], Any] | None = None  # from the first call on
        if self.memory is not None:
            self.memory.patience = _Patience(self.memory.give_up, scheduler)
        self._times = Timings()
        self.add_timings(self._times)

    def start(self, source: Iterator[list[Item]], never_blocks: bool = False) -> None:
        """Begin to read. never_blocks: as of ThreadRunner."""
        self.worker.check_thread()
        if never_blocks and not self.options.identifies:
            self.source = source
        else:
            self._reader = source
        self.locked(self.go_on)

    def ticker(self, meter: Meter) -> InlineTicker:
        self._ticker = InlineTicker(meter, self.context.copy())
        return self._ticker

    # ------------------------------------------------------------------------------------------------ the consumer's
    def wait(self, wanted: int = 1, timeout: float | None = None) -> None:
        """Go on until `wanted` items are in the output, no more come, the map is stopped, or `timeout` seconds have
        passed. RuntimeError: a loop runs in this thread, and fn is `async def`."""
        self.worker.check_thread()
        here, end = get_ident(), math.inf if timeout is None else self.now() + timeout
        try:
            self._begin_work()
            while (step := self.locked(self._next_step, wanted, end)) is not None:
                next(_apart(step))
                if self._ticker is not None:
                    self._ticker.tick()
            if not self.stopping:
                self._report_to_databases()
        finally:
            if self._working == here:  # no function is called before: what a handler raised there would keep it claimed
                self._working = 0
                self._left.set()
        if self._drops:
            self.locked(self.scheduler.drop)

    def _begin_work(self) -> None:
        """The map's work is this thread's from here on. Waits for another one that does it."""
        while not self.locked(self._is_mine):
            self._left.wait()

    def _is_mine(self) -> bool:
        """Whether this thread does the map's work, from here on if no other one does."""
        self._left.clear()  # before the look: what is set after it wakes the wait
        if not self._working:
            self._working = get_ident()
        return self._working == get_ident()

    def _next_step(self, wanted: int, end: float) -> Callable[[], object] | None:
        """What to do now. None: return to the consumer."""
        self._wakeup.clear()  # what is set from here on is seen by the next step
        self._wanted = wanted
        scheduler, memory, time_is = self.scheduler, self.memory, self.now()
        if self._has_enough() or time_is >= end:
            return None
        if scheduler.wake_at <= time_is or scheduler.overdue:
            return self.do_what_is_due
        if self._fills and self._can_read():
            return self._read_one
        if memory is not None and not memory.due_in():
            return memory.work
        call = self._take_call()
        if call is not None:
            return partial(self._calls_in.run, partial(self._make_call, call))
        if self._has_enough():
            return None
        if self._can_read():
            return self._read_one
        due = [end, scheduler.wake_at, math.inf if self._ticker is None else self._ticker.at]
        if memory is not None:
            due.append(time_is + memory.due_in())
        for exchange in () if self.owner is None else self.owner.exchanges:
            if not (wait := exchange.due_in()):
                return partial(self._exchange, exchange)
            due.append(time_is + wait)
        wait = min(due) - time_is
        return partial(self._wakeup.wait, None if wait > threading.TIMEOUT_MAX else max(0.0, wait))

    def _has_enough(self) -> bool:
        scheduler = self.scheduler
        return len(scheduler.output) >= self._wanted or scheduler.window.buffer_full or scheduler.over or self.stopping

    def _can_read(self) -> bool:
        return self._reading and self._reader is not None

    def _take_call(self) -> Work | None:
        """The next call. Where there is a gate, this is the only time that it lets one start."""
        self._takes = True
        try:
            self.go_on()
        finally:
            self._takes = False
        try:
            return None if self.stopping else self.scheduler.ready.get_nowait()
        except (Empty, ShutDown):
            return None

    def _dispatch(self) -> None:
        if self._takes:
            super()._dispatch()

    def set_timer(self, at: float) -> None:
        """Nothing: `_next_step` looks at the time."""

    def do_what_is_due(self) -> None:
        for step in self.locked(self.do_due):
            step()

    def poke(self) -> None:
        self._wakeup.set()

    def _read_one(self) -> None:
        items = error = None
        try:
            items = self._reads_in.run(self._read_next)
        except BaseException as raised:
            if interrupts(raised):
                raise
            error = raised
        for item in items or ():
            if interrupts(item.error):  # of `key` or another function of the item
                raise item.error
        if items is None:
            self._reader = None
        if not self.stopping:
            self.locked(self.items_read, items, error)

    def _read_next(self) -> list[Item] | None:
        assert self._reader is not None
        return next(self._reader, None)

    def _report_to_databases(self) -> None:
        if self.memory is not None:
            self.memory.work(early=True)
        for exchange in () if self.owner is None else self.owner.exchanges:
            self._exchange(exchange, early=True)

    def _exchange(self, exchange: Exchange, early: bool = False) -> None:
        exchange.work(early, _Patience(exchange.give_up, self.scheduler))

    # ------------------------------------------------------------------------------------------------ one call
    def _make_call(self, item: Work) -> None:
        """As a worker of ThreadWorkers does."""
        if self._call is None and not self._enter():
            return
        if (self.asks or self.is_timed) and self.skip(item):
            return
        error = None
        item.attempts += 1
        item.began = now()
        try:
            self.worker.runs = True
            if self.scheduler.reports_starts:
                self.report(self.scheduler.started, item, self.now())
            self._times.begin()
            item.result = self.worker.call(self._call, item)
        except BaseException as raised:
            if interrupts(raised):
                raise
            error = raised
        finally:
            self.worker.runs = False
        self._times.end_attempt()
        try:
            if not (self.is_cancelled() and isinstance(error, asyncio.CancelledError)):
                self._call_ended(item, error)
        finally:
            del item, error  # the error's traceback refers to this frame

    def _call_ended(self, item: Any, error: BaseException | None) -> None:
        if self.is_timed:
            self.do_what_is_due()
        late, self.late = self.late, None
        if late is not None:
            item.result, late.__cause__ = None, error
            self.timed_out(item, late)
        elif error is not None:
            self.failed(item, error)
        elif self._single:
            self._times.last_began(item.began, item.read)
            self.weigh_result(item)
            self.succeeded(item)
        else:
            self.returned(item)

    def _call_timed_out(self, began: float) -> None:
        """Nothing: `_make_call` has counted its time."""

    def _report_end(self, verdicts: Sequence[Verdict | None], *event: Any) -> None:
        for verdict in verdicts:
            if verdict is not None and interrupts(verdict.error):  # of `on`, `backoff` or `fatal`
                raise verdict.error
        super()._report_end(verdicts, *event)

    def _enter(self) -> bool:
        """Before the first call. False: what `setup` raised has failed the map."""
        if self.owner is not None:
            self.owner.hold()
        try:
            self._call = self.call_with(self.worker.enter(self.options.setup))
        except BaseException as error:
            if interrupts(error):
                raise
            self.fail(error)
            return False
        return True

    # ------------------------------------------------------------------------------------------------ the end
    def held_here(self) -> bool:
        """Whether this thread is inside the map's work. Then fn calls this, or a signal handler."""
        return super().held_here() or self._working == get_ident()

    def is_cancelled(self) -> bool:
        """Whether a coroutine that runs is to be cancelled."""
        return self.stopping and self._cancel

    def close(self, cancel: bool = False) -> None:
        """Stop, and wait for the call that another thread makes. Inside `wait` it only stops the map."""
        self._drops = self._drops or cancel
        self.stop(cancel)
        if not self.held_here():
            self._leave()
            self.locked(no_step)

    def drop(self) -> None:
        super().drop()
        if not self._working:
            self._leave()

    def _leave(self) -> None:
        """Close the resource."""
        here = get_ident()
        try:
            self._begin_work()
            self._calls_in.run(self.worker.leave, self.error)
        except BaseException as error:
            if interrupts(error):
                raise
            self.fail(error)
        finally:
            if self._working == here:
                self._working = 0
                self._left.set()

    flush = wait_for_databases


class _Worker:
    """Makes the calls of a plain function, in the place of the workers of other runners. It has no threads."""

    def __init__(self, runner: InlineRunner) -> None:
        self._runner = runner
        self._stack = ExitStack()  # closes the resource
        self.runs = False  # a call runs

    def check_thread(self) -> None:
        """RuntimeError: a call cannot run in this thread."""

    def enter(self, setup: Callable[[], Any] | None) -> dict[str, Any]:
        return enter_setup(self._stack, setup)

    def call(self, call: Any, item: Work) -> Any:
        try:
            return call(item)
        finally:
            del item

    def leave(self, error: Callable[[], BaseException | None]) -> None:
        """error: says why the map ends."""
        self._stack.__exit__(*exit_arguments(error()))

    # ------------------------------------------------------------------------------------------ under the runner's lock
    def items_came(self, items: int) -> None:
        """`_next_step` looks for them."""

    def busy(self) -> bool:
        return self.runs

    def threads(self) -> Sequence[threading.Thread]:
        return []

    def abandon(self, item: Work, error: BaseException) -> bool:
        """The call has ended, or this thread makes it, so nothing is abandoned: the error is noted."""
        self._runner.late = error
        return False

    def stop(self, cancel: bool) -> None:
        """The call that runs is waited for."""

    def join(self) -> None:
        """Nothing runs in another thread."""


class _LoopWorker(_Worker):
    """Makes the calls of an `async def`, in a loop that is kept for the map and runs while a call does. One task of it
    enters and leaves the resource."""

    def __init__(self, runner: InlineRunner) -> None:
        super().__init__(runner)
        self._loops: list[asyncio.Runner] = []  # one, from the first call to the end
        self._loop: asyncio.AbstractEventLoop
        self._resource: asyncio.Task[None] | None = None  # the task that enters and leaves it
        self._over: asyncio.Event
        self._task: asyncio.Task[Any] | None = None  # that makes the call
        self._timeout: asyncio.Timeout | None = None  # of the call that runs
        self._watching: asyncio.TimerHandle | None = None  # calls `_watch` again
        self._context: Context  # of all that runs in the loop

    def check_thread(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("workers: 'inline', an async fn and a running loop (expected: aconcurrent_map)")

    def enter(self, setup: Callable[[], Any] | None) -> dict[str, Any]:
        self._loops.append(asyncio.Runner(loop_factory=asyncio.new_event_loop))
        self._loop, self._context = self._loops[0].get_loop(), copy_context()
        return {} if setup is None else self._run(self._enter(setup))

    async def _enter(self, setup: Callable[[], Any]) -> dict[str, Any]:
        entered: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._over = asyncio.Event()
        self._resource = self._loop.create_task(self._hold(setup, entered))
        either: list[asyncio.Future[Any]] = [self._resource, entered]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            await self._resource  # raises what setup raised
        return entered.result()

    async def _hold(self, setup: Callable[[], Any], entered: asyncio.Future[dict[str, Any]]) -> None:
        stack = AsyncExitStack()
        try:
            entered.set_result(await enter_setup_async(stack, setup))
            await self._over.wait()
        finally:
            if asyncio._get_running_loop() is self._loop:  # else it is collected
                await stack.__aexit__(*exit_arguments(self._runner.error()))

    def call(self, call: Any, item: Work) -> Any:
        return self._run(self._timed(call, item) if self._runner.is_timed else self._untimed(call, item))

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run it in the loop. asyncio.Runner does so once in a program: what it does before and after may be
        interrupted, and it shows the exception of a task while its handler is in place.

        Ctrl-C cancels the task, so it raises nothing inside the loop, where a step would be lost. A second one does."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return self._loop.run_until_complete(self._loop.create_task(coroutine, context=self._context))
        task: asyncio.Task[_T] | None = None
        interrupted: list[int] = []

        def interrupt(number: int, frame: Any) -> None:
            interrupted.append(number)
            if len(interrupted) > 1:
                raise KeyboardInterrupt
            if task is not None:
                task.cancel()
                self._loop.call_soon_threadsafe(int)  # wakes the loop

        try:
            signal.signal(signal.SIGINT, interrupt)
            task = self._loop.create_task(coroutine, context=self._context)
            if interrupted:  # before there was a task to cancel
                task.cancel()
            self._loop.run_until_complete(task)
        except BaseException:
            if task is not None:
                task.cancel()
            if not interrupted:
                raise
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if task is None:
                coroutine.close()
        if interrupted:
            retrieve(task)
            raise KeyboardInterrupt
        assert task is not None
        return task.result()

    async def _untimed(self, call: Callable[[Any], Coroutine[Any, Any, Any]], item: Work) -> Any:
        self._task = asyncio.current_task()
        try:
            if self._runner.is_cancelled():  # before there was a task to cancel
                raise asyncio.CancelledError
            return await call(item)
        finally:
            self._task = None

    async def _timed(self, call: Callable[[Any], Coroutine[Any, Any, Any]], item: Work) -> Any:
        try:
            async with asyncio.timeout(None) as self._timeout:
                self._watch()
                return await self._untimed(call, item)
        finally:
            self._timeout = None
            if self._watching is not None:  # the loop goes on with the next call
                self._watching.cancel()

    def _watch(self) -> None:
        """Cancel the call when its time is over."""
        runner = self._runner
        runner.do_what_is_due()
        wait = runner.scheduler.wake_at - runner.now()
        if self._timeout is not None and wait < math.inf:
            self._watching = self._loop.call_later(max(0.0, wait), self._watch)

    def abandon(self, item: Work, error: BaseException) -> bool:
        if self._timeout is not None and self._runner.late is None:
            self._timeout.reschedule(0.0)
        return super().abandon(item, error)

    def stop(self, cancel: bool) -> None:
        if cancel and self.runs:
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def leave(self, error: Callable[[], BaseException | None]) -> None:
        if self._loops and asyncio._get_running_loop() is not None:  # dropped or closed in a coroutine
            if self._resource is not None:
                _logs.warning("setup: the resource stays open, because the map has ended where a loop runs")
                self._resource._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio would say it again
            self._loops.pop().get_loop().close()
        for loop in self._loops:
            try:
                if self._resource is not None and not self._resource.done():
                    self._run(self._leave(self._resource))
            finally:
                loop.close()
                retrieve(self._resource)  # an interruption of it has been raised through the loop
        self._loops.clear()

    async def _leave(self, resource: asyncio.Task[None]) -> None:
        self._over.set()
        await resource
