"""`loop_event()`: an asyncio.Event whose wait takes no lock. `running_loop()`: the loop of asyncio that runs.

At its first wait an asyncio.Event takes a lock that all of asyncio's primitives in the process share. On CPython 3.14
and 3.15 a signal handler that raises there leaves it held (cpython issue 148874), and no new one could wait any more.
The lock is for events that do not know their loop yet."""

import asyncio
from typing import Any


def running_loop() -> asyncio.AbstractEventLoop:
    """RuntimeError: no loop of asyncio runs. One of trio may run instead, so the message says what is needed."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("no event loop of asyncio is running (expected: asyncio, or anyio on asyncio)") from None


def loop_event() -> asyncio.Event:
    """For the running loop."""
    event: Any = asyncio.Event()
    event._loop = asyncio.get_running_loop()
    return event  # type: ignore[no-any-return]
