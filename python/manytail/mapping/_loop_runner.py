"""The runner whose reader, timer and workers run in the running loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from ._item import Item
from ._runner import Runner
from ._scheduler import Scheduler
from ._workers import LoopWorkers


class LoopRunner(Runner):
    """The runner whose reader, timer and workers run in the running loop."""

    def __init__(self, scheduler: Scheduler, *arguments: Any, **keywords: Any) -> None:
        super().__init__(scheduler, *arguments, **keywords)
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.output_changed = asyncio.Event()
        self.read_next = asyncio.Event()
        self.workers = self.coroutines = LoopWorkers(self)
        self._timer: asyncio.TimerHandle | None = None

    def set_timer(self, at: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(max(at, self.now()), self._tick)

    def from_thread(self, function: Callable[..., object], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing is left to do
            self.loop.call_soon_threadsafe(function, *arguments)

    async def flush(self) -> None:
        """After the last call: wait until all results are recorded, and costs that were given back are stored."""
        if self.permits is not None:
            self.permits.stop()
            await asyncio.wrap_future(self.permits.flushed())
        if self.memory is not None:
            self.memory.stop()
            await asyncio.wrap_future(self.memory.flushed())
            await asyncio.sleep(0)  # what the thread reported before its end is handled first

    def _tick(self) -> None:
        self._timer = None
        with self.state():
            self.give_up_overdue()

    async def read(self, items: AsyncIterator[list[Item]]) -> None:
        """Read the input when asked to, until its end."""
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
            with self.state():
                if self.stopping:
                    return
                self.items_read(got, error)

    async def close(self, reader: asyncio.Task[None]) -> None:
        self.stop(cancel=True)
        reader.cancel()
        await asyncio.wait([reader])
        await self.coroutines.ended()
        await self.flush()
        if self._timer is not None:
            self._timer.cancel()
