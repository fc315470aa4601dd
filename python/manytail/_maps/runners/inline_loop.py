"""The inline driver of an async fn: its loop is made before the first call, runs while a call does, and is closed when
the map ends. One task of it enters and leaves the resource.

Ctrl-C cancels the task that the loop runs for, and is raised when that has ended. Raised inside asyncio it could leave
a loop that seems to run for ever, and in a thread with such a loop no other one may run.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from contextvars import copy_context
from functools import partial
from typing import Any

from manytail._progress import log

from ..engine.item import Call
from ..engine.scheduler import Scheduler
from ..verdicts import Judge
from .inline import InlineDriver
from .resources import exit_arguments

CallWith = Callable[[AsyncExitStack], Awaitable[Callable[[Any], Awaitable[Any]]]]
RESOLUTION = time.get_clock_info("monotonic").resolution  # the loop may call a timer too early by that


class InlineLoopDriver(InlineDriver):
    def __init__(self, scheduler: Scheduler, call_with: CallWith, judge: Judge) -> None:
        super().__init__(scheduler, partial(self._enter, call_with), judge)
        self._loop: asyncio.AbstractEventLoop | None = None  # from the first call to the end
        self._task: asyncio.Task[Any] | None = None  # that makes a call
        self._main: asyncio.Task[None]  # that holds the resource
        self._over: asyncio.Future[None]  # it waits for this

    def wait(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("workers: 'inline', an async fn and a running loop (expected: aconcurrent_map)")
        super().wait()

    def stop(self, keeps: bool) -> None:
        super().stop(keeps)
        if not keeps and self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._cancel_call)

    def _cancel_call(self) -> None:
        """The map is closed by another thread, or by the call itself."""
        if self._task is not None:
            self.late = asyncio.CancelledError()
            self._task.cancel()

    # ------------------------------------------------------------------------------------------------ in the loop
    def _enter(self, call_with: CallWith, stack: ExitStack) -> Callable[[Call], Any]:
        """Make the loop and the resource. Returns what makes a call."""
        self._loop = loop = asyncio.new_event_loop()
        entered: asyncio.Future[Any] = loop.create_future()
        self._over = loop.create_future()
        self._main = loop.create_task(self._hold(call_with, entered))
        self._context = copy_context()
        stack.push(self._leave)
        function = self._run(self._main, entered)
        if isinstance(function, BaseException):
            raise function
        return partial(self._call, loop, function)

    async def _hold(self, call_with: CallWith, entered: asyncio.Future[Any]) -> None:
        """entered: what makes calls, or why there is none. A task that raises might end the loop on the spot."""
        stack = AsyncExitStack()
        try:
            try:
                entered.set_result(await call_with(stack))
            except BaseException as error:
                entered.set_result(error)
            await self._over
        finally:
            if asyncio._get_running_loop() is self._loop:  # else it is collected
                await stack.__aexit__(*exit_arguments(self.error()))

    def _call(self, loop: asyncio.AbstractEventLoop, function: Callable[[Call], Any], call: Call) -> Any:
        self._task = task = loop.create_task(function(call), context=self._context)
        del call  # the traceback of an error refers to this frame
        due, timer = self._due(), None
        if due < math.inf:
            timer = loop.call_at(due + RESOLUTION, task.cancel)  # the step after the call finds that its time is over
        try:
            return self._run(task, task)
        finally:
            self._task = None
            if timer is not None:
                timer.cancel()
            del task

    def _due(self) -> float:
        """When the time of a call that begins is over."""
        timeout = self.scheduler.rules.timeout
        return min(math.inf if timeout is None else self.now() + timeout, self.scheduler.deadline_at)

    @staticmethod
    def _run(task: asyncio.Task[Any], awaited: asyncio.Future[Any]) -> Any:
        """Run the loop until that is done, which the task does. Ctrl-C cancels the task."""
        interrupted: list[int] = []
        loop, tasks = task.get_loop(), [task]

        def interrupt(number: int, frame: object) -> None:
            interrupted.append(number)
            if len(interrupted) > 1:  # the task goes on
                raise KeyboardInterrupt
            tasks[0].cancel()
            loop.call_soon_threadsafe(int)  # wakes the loop

        is_main = threading.current_thread() is threading.main_thread()
        handles = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        try:
            if handles:
                signal.signal(signal.SIGINT, interrupt)
            return loop.run_until_complete(awaited)
        except BaseException:
            if not interrupted:
                raise
        finally:
            if handles:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            if task.done() and not task.cancelled():
                task.exception()  # else asyncio logs that nobody has asked for it
            if interrupted:
                raise KeyboardInterrupt
            tasks.clear()  # the traceback of an error refers to this frame, and a task to its error
            del task, awaited

    def _leave(self, *error: object) -> None:
        """Close the resource and the loop."""
        loop = self._loop
        assert loop is not None
        if asyncio._get_running_loop() is not None:  # dropped or closed inside a coroutine
            if not self._main.done():
                self._main._log_destroy_pending = False  # type: ignore[attr-defined]
                log.warning("setup: the resource stays open, because the map has ended where a loop runs")
            loop.close()
            return
        if not self._over.done():
            self._over.set_result(None)
        with asyncio.Runner(loop_factory=lambda: loop):  # it cancels all other tasks, and closes the loop
            self._run(self._main, self._main)
