"""The standard library's `queue` on manytail's core: `from manytail import queue`, and nothing else changes.

Queue and SimpleQueue are those of manytail._queue. LifoQueue and PriorityQueue are subclasses of Queue with their own
_init, _qsize, _put and _get, as in the standard library. Empty, Full and (from Python 3.13 on) ShutDown are the
standard library's own exceptions, so that existing `except` clauses work.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, TypeVar

from manytail._queue import BaseQueue, SimpleQueue, define_put_and_get
from manytail.errors import Empty, Full, ShutDown

__all__ = ["Empty", "Full", "LifoQueue", "PriorityQueue", "Queue", "ShutDown", "SimpleQueue"]

_T = TypeVar("_T")


@define_put_and_get
class Queue(BaseQueue[_T]):
    __doc__ = BaseQueue.__doc__


class LifoQueue(Queue[_T]):
    """A Queue whose newest item is taken first."""

    def _init(self, maxsize: int) -> None:
        self.queue = []

    def _qsize(self) -> int:
        return len(self.queue)

    def _put(self, item: _T) -> None:
        self.queue.append(item)

    def _get(self) -> _T:
        item: _T = self.queue.pop()
        return item


class PriorityQueue(Queue[_T]):
    """A Queue whose smallest item is taken first, by `<`. Items are often tuples (priority, data)."""

    def _init(self, maxsize: int) -> None:
        self.queue = []

    def _qsize(self) -> int:
        return len(self.queue)

    def _put(self, item: Any) -> None:
        heappush(self.queue, item)

    def _get(self) -> _T:
        item: _T = heappop(self.queue)
        return item
