"""The runner whose reader, timer and workers run in the running loop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from ._item import Item
from ._loop_event import loop_event, running_loop
from ._runner import Runner, insist
from ._scheduler import Scheduler
from ._workers import LoopWorkers


class LoopRunner(Runner):
    """The runner whose reader, timer and workers run in the running loop."""

    def __init__(self, scheduler: Scheduler, *arguments: Any, **keywords: Any) -> None:
        super().__init__(scheduler, *arguments, **keywords)
        self.loop = running_loop()
        self.now = time.monotonic  # the clock of limits, which maps of other loops and threads may share
        self.output_changed = loop_event()
        self.read_next = loop_event()
        self.workers = self.coroutines = LoopWorkers(self, self.loop)
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._will_settle = False  # a later step of the loop calls `_settle_ended`

    def succeeded(self, item: Item) -> None:
        """The calls that end in one step of the loop are handled together, in the next one."""
        if self.memory is not None:
            self.memory.add(item)
        self._events.append(item)
        if not self._will_settle:
            self._will_settle = True
            self.loop.call_soon(self._settle_ended)

    def _settle_ended(self) -> None:
        self._will_settle = False
        self.settle()

    def set_timer(self, at: float) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later(max(0.0, at - self.now()), self._tick)

    def fail(self, error: BaseException) -> None:
        if not self.loop.is_closed():  # else no consumer is left
            super().fail(error)

    def calls_ended(self) -> None:
        super().calls_ended()
        if self._timer is not None:
            self._timer.cancel()

    def poke(self) -> None:
        self.from_thread(self._do_due)

    def from_thread(self, function: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing is left to do
            self.loop.call_soon_threadsafe(function, *arguments)

    async def flush(self) -> None:
        """After the last call: wait until all results are recorded, and what calls took of shared limits."""
        for exchange in () if self.owner is None else self.owner.exchanges:
            await self._called(exchange.flushed)
        if self.memory is not None:
            self.memory.stop()
            await self._called(self.memory.flushed)
            await asyncio.sleep(0)  # what the thread reported before its end is handled first

    async def _called(self, calls: Callable[[Callable[[], object]], None]) -> None:
        """Wait until it calls its argument, in whatever thread. Not for long after the deadline: that thread goes on
        without the map."""
        called = loop_event()
        calls(partial(self.from_thread, called.set))
        wait = self.last_wait()
        late = None if wait is None else self.loop.call_later(wait, called.set)
        await called.wait()
        if late is not None:
            late.cancel()

    def _tick(self) -> None:
        self._timer = None
        self._do_due()

    def _do_due(self) -> None:
        for step in self.locked(self.do_due):
            step()

    async def read(self, items: AsyncGenerator[list[Item], None]) -> None:
        """Read the input when asked to, until its end. Then close it, which Python does not do where it is left."""
        try:
            async with aclosing(items):
                await self._read(items)
        except BaseException as error:
            if not self.stopping:  # `close` cancels the reader
                self.fail(error)
            raise

    async def _read(self, items: AsyncIterator[list[Item]]) -> None:
        got: list[Item] | None = []
        error = None
        while got is not None:
            await self.read_next.wait()  # type: ignore[attr-defined]
            if self.stopping:
                return
            try:
                got = await anext(items, None)
            except BaseException as raised:
                if self.scheduler.halted:  # `close` cancels the reader
                    raise
                got, error = None, raised
            if self.stopping:
                return
            self.locked(self.items_read, got, error)

    def refuse_elsewhere(self, what: str) -> None:
        """RuntimeError: this is called in another loop than its own, which is open. Nothing of it can be awaited."""
        if not self.loop.is_closed() and self.loop is not running_loop():
            raise RuntimeError(elsewhere(what))

    async def close(self, reader: asyncio.Task[None] | None = None) -> None:
        """Stop, and wait for all tasks. A cancellation or Ctrl-C meanwhile is raised when all have ended."""
        if self.loop.is_closed():  # its tasks never run again
            self.stop_threads()
            return
        interruption = insist(partial(self.stop, cancel=True))
        if reader is not None:
            reader.cancel()
        ending = self.loop.create_task(self._ended(reader))
        while not ending.done():
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError as error:
                interruption = error
        ending.result()
        if interruption is not None:
            raise interruption

    def abandon(self, *tasks: asyncio.Task[None] | None) -> None:
        """Stop without waiting: the calls and these tasks are cancelled, and the resource is closed. In the loop."""
        self.stop(cancel=True)
        for task in tasks:
            if task is not None:
                task.add_done_callback(retrieve)
                task.cancel()
        self.coroutines.when_ended(self.calls_ended)

    def stop_threads(self) -> None:
        if self.memory is not None:
            self.memory.stop()
        if self.scheduler.gate is not None:
            self.scheduler.gate.calls_ended(self.now())

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # A second Ctrl-C has closed the loop, and `close` was not called. At the interpreter's end no thread may start.
        if hasattr(self, "workers") and not finalizing():
            insist(self.stop_threads)

    async def _ended(self, reader: asyncio.Task[None] | None) -> None:
        if reader is not None:
            await asyncio.wait([reader])
            retrieve(reader)  # `fail` has reported it
        await self.coroutines.ended()
        self.calls_ended()
        await self.flush()


def elsewhere(what: str) -> str:
    return f"{what} was first called in another loop (expected: in the same one)"


def retrieve(task: asyncio.Task[Any] | None) -> None:
    """asyncio logs an exception of a task that nobody asks for."""
    if task is not None and task.done() and not task.cancelled():
        task.exception()
