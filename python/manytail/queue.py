"""The standard library's `queue` on manytail's core: `from manytail import queue`, and nothing else changes.

Queue and SimpleQueue come from manytail._queue; _locked.py has what a Queue does whose class overrides hooks.
LifoQueue, PriorityQueue, Empty, Full and (from Python 3.13 on) ShutDown are the standard library's own classes.

This file is compiled: in interpreted code a signal handler could raise after `_get` of a class that overrides other
hooks has removed an item and before it returns it, and the item would be lost.
"""

from __future__ import annotations

from collections import deque
from queue import LifoQueue, PriorityQueue
from typing import Any, TypeVar

from manytail._locked import OfTheMutex
from manytail._queue import BaseQueue, SimpleQueue, complete
from manytail.errors import Empty, Full, ShutDown

__all__ = ["Empty", "Full", "LifoQueue", "PriorityQueue", "Queue", "ShutDown", "SimpleQueue"]

_T = TypeVar("_T")


@complete
class Queue(BaseQueue[_T]):
    __doc__ = BaseQueue.__doc__
    mutex = OfTheMutex()
    not_empty = OfTheMutex()
    not_full = OfTheMutex()
    all_tasks_done = OfTheMutex()
    queue = OfTheMutex()

    def _init(self, maxsize: int) -> None:
        """Make `queue`. Called once, by __init__, if a hook is overridden."""
        self.queue = deque()

    def _qsize(self) -> int:
        """The number of items. Called with the mutex held."""
        return len(self.queue)

    def _put(self, item: _T) -> None:
        """Add an item. Called with the mutex held."""
        self.queue.append(item)

    def _get(self) -> Any:
        """Remove and return an item. Called with the mutex held, and only if there is one."""
        return self.queue.popleft()
