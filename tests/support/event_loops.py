"""Event loops for tests that run under each: asyncio, trio, and anyio on asyncio; and the kinds of asyncio's."""
import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import trio

from .threads import DEADLINE


async def in_asyncio(call, turns):
    """What the call returned, in a list. None: it was cancelled after so many iterations of the loop."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return [await task]
    except asyncio.CancelledError:
        return None


async def in_trio(call, turns):
    """The same under trio."""
    scope, result = trio.CancelScope(), []

    async def run():
        with scope:
            result.append(await call)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        scope.cancel()
    return result or None


def within(function, *args):
    """Run a trio program that must come to an end."""

    async def main():
        with trio.fail_after(DEADLINE):
            return await function(*args)

    return trio.run(main)


# By name: run(function), and cancelled_after(coroutine, turns).
LIBRARIES = {"asyncio": (lambda function: asyncio.run(function()), in_asyncio), "trio": (trio.run, in_trio)}


# ------------------------------------------------------------------------------------------------ tasks of one loop
class AsyncioTask:
    """An async function that runs in a group of tasks."""

    def __init__(self, group, function):
        self.task = group.create_task(function())

    def cancel(self):
        self.task.cancel()

    async def outcome(self):
        """What it returned. None: it was cancelled."""
        await asyncio.wait({self.task})
        return None if self.task.cancelled() else self.task.result()


class ScopedTask:
    """The same by a cancel scope, which trio and anyio have."""

    def __init__(self, library, group, function):
        self.scope, self.ended, self.value = library.CancelScope(), library.Event(), None
        group.start_soon(self.run, function)

    async def run(self, function):
        try:
            with self.scope:
                self.value = await function()
        finally:
            self.ended.set()

    def cancel(self):
        self.scope.cancel()

    async def outcome(self):
        await self.ended.wait()
        return self.value


@dataclass
class Loop:
    run: Callable[..., Any]  # an async function without arguments
    group: Callable[[], Any]  # an async context manager: a group of tasks
    task: Callable[..., Any]  # (group, function)
    turn: Callable[[], Any]  # to be awaited: lets the other tasks go on
    fail_after: Callable[[float], Any]  # a context manager


LOOPS = {
    "asyncio": Loop(
        lambda function: asyncio.run(function()),
        asyncio.TaskGroup,
        AsyncioTask,
        lambda: asyncio.sleep(0),
        anyio.fail_after,
    ),
    "trio": Loop(
        trio.run,
        trio.open_nursery,
        lambda group, function: ScopedTask(trio, group, function),
        trio.lowlevel.checkpoint,
        trio.fail_after,
    ),
    "anyio": Loop(
        anyio.run,
        anyio.create_task_group,
        lambda group, function: ScopedTask(anyio, group, function),
        anyio.lowlevel.checkpoint,
        anyio.fail_after,
    ),
}


# ------------------------------------------------------------------------------------------- loops that asyncio runs in
# By name: runs a coroutine to its end.
ASYNCIO: dict[str, Callable[[Any], Any]] = {
    "asyncio": asyncio.run,
    "debug mode": lambda main: asyncio.run(main, debug=True),
}
if hasattr(asyncio, "eager_task_factory"):

    def run_eagerly(main: Any) -> Any:
        """A task begins where it is made, and may end there."""

        async def eager() -> Any:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            return await main

        return asyncio.run(eager())

    ASYNCIO["eager tasks"] = run_eagerly
with contextlib.suppress(ImportError):  # it has no wheel for Windows, nor for an interpreter without the GIL
    import uvloop

    ASYNCIO["uvloop"] = uvloop.run
