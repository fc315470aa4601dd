"""What `setup` makes for the calls: how it is entered and closed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any


def enter_setup(stack: ExitStack, setup: Callable[[], Any] | None) -> dict[str, Any]:
    """Call `setup`. Returns keyword arguments for the calls of one worker thread. The stack closes the resource."""
    if setup is None:
        return {}
    made = setup()
    if hasattr(type(made), "__enter__") and hasattr(type(made), "__exit__"):
        return {"resource": stack.enter_context(made)}
    if callable(close := getattr(made, "close", None)):
        stack.callback(close)
    return {"resource": made}


async def enter_setup_async(stack: AsyncExitStack, setup: Callable[[], Any] | None) -> dict[str, Any]:
    """`enter_setup` for the coroutines of a loop. Asynchronous methods that enter or close go before plain ones."""
    if setup is None:
        return {}
    made: Any = setup()
    if inspect.isawaitable(made):
        made = await made
    if hasattr(type(made), "__aenter__") and hasattr(type(made), "__aexit__"):
        return {"resource": await stack.enter_async_context(made)}
    if hasattr(type(made), "__enter__") and hasattr(type(made), "__exit__"):
        return {"resource": stack.enter_context(made)}
    if callable(close := getattr(made, "aclose", None) or getattr(made, "close", None)):
        stack.push_async_callback(_close, close)
    return {"resource": made}


async def _close(close: Callable[[], Any]) -> None:
    closing = close()
    if inspect.isawaitable(closing):
        await closing


def exit_arguments(error: BaseException | None) -> tuple[Any, Any, Any]:
    """The arguments for `__exit__` of a resource: the error of the map, or None."""
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)
