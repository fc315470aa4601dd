"""asyncio and trio for tests that run under both: how to run a program, and a call that is cancelled at some moment."""
import asyncio

import trio


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


# By name: run(function), and cancelled_after(coroutine, turns).
LIBRARIES = {"asyncio": (lambda function: asyncio.run(function()), in_asyncio), "trio": (trio.run, in_trio)}
