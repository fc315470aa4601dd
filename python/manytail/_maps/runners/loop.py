"""The drivers whose calls are coroutines: in the caller's loop, or in a loop of the map's own thread.

Steps are made in callbacks of the loop alone. Other threads append to the inbox and have the loop call `_step` by
`call_soon_threadsafe`. What is reported within one turn of the loop is handled together, in the next one.

    main      one task, made for the first calls: enters the resource, starts the workers, waits for the end of the map
              and of the workers, and closes the resource
    workers   tasks that make one call after another: as many as calls were handed at once, up to `workers`
    reader    in the caller's loop: a task that reads the input. A list is read by the step

Tasks are made by callbacks of their own and never within a step, because an eager task runs user code at once.

A call is cancelled through its worker's task. `Worker.error` says that it was this driver which did so, and why. If the
main task is cancelled, the loop ends: so do the workers. Any other CancelledError is the user's own, and fails an item.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from typing import Any

from manytail._progress import INTERVAL
from manytail._timings import Timings, now

from ..engine.events import Fail, Failed, InputEnded, Missed
from ..engine.item import Call, Item, Kind, Verdict
from ..engine.scheduler import Scheduler
from ..verdicts import Judge
from .driver import Driver, overdue
from .resources import exit_arguments
from .threads import ThreadDriver

CallWith = Callable[[AsyncExitStack], Awaitable[Callable[[Any], Awaitable[Any]]]]
# For how long a task whose calls or reads never wait keeps its loop.
TURN, TURN_TIME = 16, 0.0005
LONGEST_TIMER = 1e6  # seconds


def running_loop() -> asyncio.AbstractEventLoop:
    """RuntimeError: no loop of asyncio runs. One of trio may run instead, so the message says what is needed."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("no event loop of asyncio is running (expected: asyncio, or anyio on asyncio)") from None


class Worker:
    """A task that makes calls."""

    __slots__ = ("error", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.error: BaseException | None = None  # its call is being cancelled, and fails with this

    def cancel(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
            self.task.cancel()


class Coroutines(Driver):
    """What both drivers have in common: the calls."""

    loop: asyncio.AbstractEventLoop | None
    _call_with: Any  # a CallWith
    _judge: Judge

    def _prepare(self) -> None:
        self.loop = None  # until it runs
        self._running: dict[Call, Worker] = {}
        self._idle: list[asyncio.Future[None]] = []  # of workers that wait for a call
        self._tasks: set[asyncio.Task[None]] = set()  # the workers
        self._main: asyncio.Task[None] | None = None
        self._function: Callable[[Any], Awaitable[Any]] | None = None  # once the resource is entered
        self._over: asyncio.Future[None] | None = None  # main waits for it
        self._soon_step: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._cancels = False  # running calls are to be cancelled
        self._paced = any(stage.paces for stage in self.scheduler.stages)
        self._times = Timings()
        self.add_timings(self._times)

    # ------------------------------------------------------------------------------------------------ for any thread
    def stop(self, keeps: bool) -> None:
        if not keeps:
            self._cancels = True
        super().stop(keeps)

    def poke(self) -> None:
        if self.loop is not None and not self.exits:  # without a loop: it makes a step when it begins
            try:
                self.loop.call_soon_threadsafe(self._step)
            except RuntimeError:  # it is closed
                self._lose_loop()

    def _lose_loop(self) -> None:
        """No call goes on, and none reports its end: give back what they hold of limits."""
        if not self.ended:
            self.ended = self.halted = self.crashed = True
            for stage in self.scheduler.stages:
                stage.leave(self.now())

    # ------------------------------------------------------------------------------------------------ steps
    def pump(self) -> None:
        """Make a step in the next turn of the loop."""
        if self._soon_step is None:
            assert self.loop is not None
            self._soon_step = self.loop.call_soon(self._step)

    def _step(self) -> None:
        self._soon_step = None
        while self.inbox:
            self._handle()
        if self._cancels:
            self._cancel_all()

    def crash(self, error: BaseException | None) -> None:
        self._cancels = True
        super().crash(error)

    def settle(self) -> None:
        self._step()

    def set_timer(self, at: float) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        assert self.loop is not None
        self._timer_at = at
        self._timer = self.loop.call_later(min(max(0.0, at - self.now()), LONGEST_TIMER), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.inbox.append(0)  # without effect: a step is made
        self._step()

    # ------------------------------------------------------------------------------------------------ effects
    def hand(self, calls: list[Call]) -> None:
        self._ready.extend(calls)
        for _ in range(min(len(calls), len(self._idle))):
            self._wake(self._idle.pop())
        if len(self._tasks) < min(self.scheduler.allowed, self.scheduler.handed):
            assert self.loop is not None
            self.loop.call_soon(self._add_workers)

    @staticmethod
    def _wake(future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_result(None)

    queued, take_back = Driver.queued, Driver.take_back  # in a loop of the map's own thread, too

    def cancel(self, call: Call, error: BaseException) -> None:
        worker = self._running.get(call)
        if worker is not None:  # else it has ended
            worker.cancel(error)

    def _cancel_all(self) -> None:
        self._cancel_setup()
        for worker in self._running.values():
            worker.cancel(asyncio.CancelledError())

    def _cancel_setup(self) -> None:
        if self._main is not None and self._function is None:
            self._main.cancel()

    def end(self) -> None:
        self._cancel_setup()
        for future in (self._over, *self._idle):
            if future is not None:
                self._wake(future)
        self._idle.clear()
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------------------------------------------ tasks
    def task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task in a copy of the map's context."""
        assert self.loop is not None
        return self.context.copy().run(self.loop.create_task, coroutine)

    def is_lost(self) -> bool:
        """Whether this code does not run in the loop. Of a coroutine: that is closed, and collects the coroutine."""
        return self.loop is None or asyncio._get_running_loop() is not self.loop

    def _add_workers(self) -> None:
        if self._main is None and not self.halted:
            self._main = self.task(self._run_main())
        while self._function is not None and not self.halted:
            if len(self._tasks) >= min(self.scheduler.allowed, self.scheduler.handed):
                return
            task = self.task(self._make_all(self._function))
            self._tasks.add(task)

    async def _run_main(self) -> None:
        assert self.loop is not None
        self._main, self._over = asyncio.current_task(), self.loop.create_future()
        stack = AsyncExitStack()
        try:
            try:
                function = await self._call_with(stack)
                if not self.ended:
                    self._function = function
                    self._add_workers()
                    await self._over
            finally:
                if not self.is_lost():
                    await self._end_workers()
                    self._function = self._function or _nothing  # the end of the resource is not cancelled
                    await stack.__aexit__(*exit_arguments(self.error()))
        except BaseException as error:
            if isinstance(error, GeneratorExit) and self.is_lost():
                raise
            if isinstance(error, asyncio.CancelledError):
                if self.ended or self._cancels:
                    return
                error = RuntimeError("the loop of the map was cancelled")
            self.halted = True
            self.inbox.append(Fail(error))
            self._step()

    async def _end_workers(self) -> None:
        """Wait for all workers. If the loop ends, end them."""
        while self._tasks:
            if self._main is not None and self._main.cancelling():
                self.halted = True
                for task in self._tasks:
                    task.cancel()
            with suppress(asyncio.CancelledError):
                self._tasks -= (await asyncio.wait(self._tasks))[0]

    async def _make_all(self, function: Callable[[Any], Awaitable[Any]]) -> None:
        """A worker."""
        worker = Worker(asyncio.current_task())  # type: ignore[arg-type]
        ready, running, inbox, times = self._ready, self._running, self.inbox, self._times
        batched = self.scheduler.batched
        self._tasks.add(worker.task)  # an eager task is here before `_add_workers` has it
        self.hold()
        calls, turn_began = 0, now()
        while True:
            call: Any = None  # an idle worker keeps no item alive
            if self.halted or not ready:
                if self.ended or not await self._wait(worker):
                    return
                calls, turn_began = 0, now()
                continue
            call = ready.popleft()
            if self._paced and call.begin_by < self.now():
                inbox.append(Missed(call))
                self.pump()
                continue
            call.attempts += 1
            running[call] = worker
            began = call.began = now()
            try:
                call.result = await function(call)
            except BaseException as error:
                del running[call]
                if isinstance(error, GeneratorExit) and self.is_lost():
                    raise
                times.ended(began)
                if not self._raised(worker, call, error):
                    return
            else:
                del running[call]
                times.ended(began)
                if worker.error is not None:  # it ignored its cancellation
                    self._raised(worker, call, worker.error)
                elif batched:
                    self.report_end(self.batch_returned(call, began, times, self._judge))
                else:
                    times.last_began(began, call.read)
                    self.weigh(call)
                    inbox.append(call)
            if self._soon_step is None:
                self.pump()
            calls += 1
            if calls == TURN or now() - turn_began > TURN_TIME:
                if not await self._wait(worker, turn=True):
                    return
                calls, turn_began = 0, now()

    async def _wait(self, worker: Worker, turn: bool = False) -> bool:
        """Wait for a call; or let the other tasks have their turn. Returns False if the worker is to end."""
        assert self.loop is not None
        future = None if turn else self.loop.create_future()
        try:
            if future is None:
                await asyncio.sleep(0)
            else:
                self._idle.append(future)
                await future
        except asyncio.CancelledError:  # perhaps of a call that has ended
            return self._goes_on(worker)
        return True

    def _goes_on(self, worker: Worker) -> bool:
        """The worker's task was cancelled. Returns whether it goes on, because the loop does not end."""
        if self._main is not None and self._main.cancelling():
            return False
        while worker.task.cancelling():
            worker.task.uncancel()
        return True

    def _raised(self, worker: Worker, call: Any, error: BaseException) -> bool:
        """The call has failed. Returns False if the worker is to end."""
        late, worker.error = worker.error, None
        goes_on = self._goes_on(worker) if isinstance(error, asyncio.CancelledError) or late is not None else True
        if late is not None:
            error = overdue(late, error)
        if not goes_on or self._cancels or (late is not None and self.scheduler.expired):  # there is no retry
            self.report(Failed(call, Verdict(Kind.FAIL, error=error, timed_out=True)))
        else:
            self.report_end(self._judge.failed(call, error, overdue=late is not None))
        return goes_on


async def _nothing(item: Any) -> None:
    """What is called by no worker."""


class LoopDriver(Coroutines):
    """In the caller's loop."""

    def __init__(self, scheduler: Scheduler, call_with: CallWith, judge: Judge) -> None:
        """call_with: enters the resource, and returns the function that a worker awaits for each call. judge: as of
        ThreadDriver."""
        super().__init__(scheduler, time.monotonic)
        self._call_with, self._judge = call_with, judge
        self._prepare()
        self._changed: asyncio.Future[None] | None = None  # the consumer waits for it
        self._reader: asyncio.Task[None] | None = None
        self._may_read: asyncio.Future[None] | None = None  # the reader waits for it
        self._read_limit = 0.0
        self._reports: asyncio.TimerHandle | None = None  # the next report
        self._reads = False  # the reader is to be cancelled at the end: it does not close the input

    # ------------------------------------------------------------------------------------------------ for the consumer
    def start(self, source: Any) -> None:
        """Begin to read. source: an asynchronous generator or an iterator of lists of items; or, if the input never
        blocks, as of ThreadDriver."""
        self.loop = running_loop()
        if hasattr(source, "take"):
            self._source = source
        else:
            made = by_turns(source) if isinstance(source, Iterator) else source
            self._reader = self.task(self._read_all(made))
        self.inbox.append(0)
        self.pump()
        if self.progress is not None:
            self._reports = self.loop.call_later(INTERVAL, self._report_on)

    def _report_on(self) -> None:
        assert self.loop is not None
        self._report()
        self._reports = self.loop.call_later(INTERVAL, self._report_on)

    def _report(self) -> None:
        """What the function raises that is no Exception ends the map."""
        try:
            if self.progress is not None:
                self.context.copy().run(self.progress)
        except BaseException as error:
            self.fail(error)

    async def wait(self) -> None:
        """Wait until the output has an item, or the map has ended."""
        assert self.loop is not None
        self._changed = self.loop.create_future()
        self.waiting = True
        if self.inbox:
            self.pump()
        await self._changed

    def took(self, number: int) -> None:
        super().took(number)
        self.pump()

    async def join(self) -> None:
        """Wait until all tasks have ended. A cancellation meanwhile is raised then."""
        interruption = None
        while running := [one for one in (self._main, self._reader) if one is not None and not one.done()]:
            try:
                await asyncio.wait(running)
            except asyncio.CancelledError as error:
                interruption = error
                self._cancels = True
                self._step()
        self._source = None
        if self._reports is not None:
            self._reports.cancel()
            self._reports = None
            self._report()
        self._step()  # counts what the consumer took last
        try:
            await self._flush_in_loop()
        except asyncio.CancelledError as error:
            interruption = error
        if interruption is not None:
            raise interruption

    async def _flush_in_loop(self) -> None:
        """As `flush`. A cancellation meanwhile is raised then."""
        memory, interruption = self.scheduler.memory, None
        if memory is None:
            return
        loop, flushed = asyncio.get_running_loop(), asyncio.Event()
        memory.leave(self.now())
        memory.flushed(partial(loop.call_soon_threadsafe, flushed.set))
        while not flushed.is_set():
            try:
                await flushed.wait()
            except asyncio.CancelledError as error:
                interruption = error
        if interruption is not None:
            raise interruption

    def runs_here(self) -> bool:
        """Whether the caller is a task of this map. RuntimeError: it runs in another loop, and would wait for ever."""
        if self.loop is None:
            return False
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("the map was first called in another loop (expected: one loop for a map)")
        task: Any = asyncio.current_task()
        return task is not None and (task is self._main or task is self._reader or task in self._tasks)

    # ------------------------------------------------------------------------------------------------ effects
    def show(self) -> None:
        if self._changed is not None:
            self._wake(self._changed)

    def end(self) -> None:
        super().end()
        if self._reader is not None and self._reads:
            self._reader.cancel()

    def read(self, most: float) -> None:
        self._read_limit = most
        self.read_here(most)
        if self._may_read is not None and self._items_read < most:
            self._wake(self._may_read)

    # ------------------------------------------------------------------------------------------------ the reader
    async def _read_all(self, source: AsyncGenerator[list[Item]]) -> None:
        assert self.loop is not None
        error = None
        try:
            async with aclosing(source):
                self._reads = True
                try:
                    while not self.halted:
                        if self._items_read >= self._read_limit:
                            self._may_read = self.loop.create_future()
                            await self._may_read
                            continue
                        items = await anext(source, None)
                        if items is None:
                            break
                        self._items_read += len(items)
                        self.inbox.append(items)
                        self.pump()
                        items = None  # a reader that waits keeps no item alive
                finally:
                    self._reads = False
        except BaseException as raised:
            if isinstance(raised, GeneratorExit) and self.is_lost():
                raise
            error = raised
        if not (self.halted or self.ended):
            self.inbox.append(InputEnded(error))
            self.pump()


async def by_turns(source: Iterator[list[Item]]) -> AsyncGenerator[list[Item]]:
    """The items of a plain iterable. The other tasks have their turn now and then."""
    began = now()
    for number, items in enumerate(source, 1):
        yield items
        del items
        if number % TURN == 0 or now() - began > TURN_TIME:
            await asyncio.sleep(0)
            began = now()


class OwnLoopDriver(Coroutines, ThreadDriver):
    """In a loop that the service thread runs. Consumer and reader are those of ThreadDriver."""

    def __init__(self, scheduler: Scheduler, call_with: CallWith, judge: Judge) -> None:
        ThreadDriver.__init__(self, scheduler, call_with, judge)  # type: ignore[arg-type]
        self._prepare()
        self._all_over: asyncio.Future[None]  # the thread waits for it

    def _serve(self) -> None:
        if not self._claim.setdefault("runs", True):
            return
        try:
            asyncio.run(self._serve_loop())
        except BaseException as error:  # the system has no more files to give; or a task's SystemExit ended the loop
            self.crash(error)
        finally:
            self._count_ended()

    async def _serve_loop(self) -> None:
        loop = asyncio.get_running_loop()
        self._all_over = loop.create_future()
        self.loop = loop  # from here on it is poked
        self._start_others()
        self.inbox.append(0)
        self._step()
        await self._all_over
        if self._main is not None:
            await asyncio.wait([self._main])

    def pump(self) -> None:
        if asyncio._get_running_loop() is self.loop:
            super().pump()
        else:
            self.poke()

    def end(self) -> None:
        super().end()
        ThreadDriver.end(self)
        if self.loop is not None and not self.loop.is_closed():
            self._wake(self._all_over)
