"""Event loops for tests that run under each: the kinds of asyncio's, trio, and anyio on asyncio."""
import asyncio
import contextlib
import functools
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

from .threads import DEADLINE

# ---------------------------------------------------------------------------------------------------- asyncio's kinds
plain = asyncio.new_event_loop  # kind_of_loop puts another in its place


def in_debug_mode():
    """It refuses what another thread calls that is for its own thread alone."""
    loop = plain()
    loop.set_debug(True)
    return loop


def with_eager_tasks():
    """A task begins where it is made, and may end there."""
    loop = plain()
    loop.set_task_factory(asyncio.eager_task_factory)
    return loop


# By name: makes a loop.
KINDS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": plain,
    "debug mode": in_debug_mode,
}
if hasattr(sys, "gettotalrefcount"):
    # A debug build of CPython aborts where that mode shows a slow coroutine of Cython, whose frame is not as others.
    del KINDS["debug mode"]
if hasattr(asyncio, "eager_task_factory"):
    KINDS["eager tasks"] = with_eager_tasks
with contextlib.suppress(ImportError):  # it has no wheel for Windows, nor for an interpreter without the GIL
    import uvloop

    KINDS["uvloop"] = uvloop.new_event_loop


def run_in(kind: str, main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=KINDS[kind]) as runner:
        return runner.run(main)


# By name: runs a coroutine to its end.
ASYNCIO: dict[str, Callable[[Any], Any]] = {kind: functools.partial(run_in, kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def kind_of_loop(request):
    """asyncio.run() and asyncio.new_event_loop() make loops of each kind. Its name."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (asyncio, asyncio.events):
            patched.setattr(module, "new_event_loop", KINDS[request.param])
        yield request.param


in_every_kind_of_loop = pytest.mark.usefixtures("kind_of_loop")


# ------------------------------------------------------------------------------------------- cancelled after some turns
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
LIBRARIES = {
    **{kind: (lambda function, run=run: run(function()), in_asyncio) for kind, run in ASYNCIO.items()},
    "trio": (trio.run, in_trio),
}


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


def of_asyncio(run: Callable[..., Any]) -> Loop:
    return Loop(
        lambda function: run(function()), asyncio.TaskGroup, AsyncioTask, lambda: asyncio.sleep(0), anyio.fail_after
    )


def of_scopes(library: Any, group: Callable[[], Any]) -> Loop:
    task = functools.partial(ScopedTask, library)
    return Loop(library.run, group, task, library.lowlevel.checkpoint, library.fail_after)


LOOPS = {
    **{kind: of_asyncio(run) for kind, run in ASYNCIO.items()},
    "trio": of_scopes(trio, trio.open_nursery),
    "anyio": of_scopes(anyio, anyio.create_task_group),
}
