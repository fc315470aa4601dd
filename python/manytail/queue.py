# cython: infer_types=True
"""The standard library's `queue` on manytail's core: `from manytail import queue`, and nothing else changes.

Queue and SimpleQueue come from manytail._queue. LifoQueue and PriorityQueue are subclasses of Queue with their own
_init, _qsize, _put and _get, as in the standard library. Empty, Full and (from Python 3.13 on) ShutDown are the
standard library's own exceptions, so that existing `except` clauses work.

This file is compiled: in interpreted code a signal handler could raise after `_get` has removed an item and before it
returns it, and the item would be lost.
"""

from __future__ import annotations

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
    """A Queue that returns its smallest item first, compared with `<`. Items are often tuples (priority, data)."""

    def _init(self, maxsize: int) -> None:
        self.queue = []

    def _qsize(self) -> int:
        return len(self.queue)

    def _put(self, item: Any) -> None:
        push(self.queue, item)

    def _get(self) -> _T:
        item: _T = pop(self.queue)
        return item


# As heapq.heappush and heappop, with the same comparisons. But all of them come before the first change of the heap:
# `<` of an item may raise, by itself or because a signal handler does, and heapq then loses or keeps an item.
def push(heap: list[Any], item: Any) -> None:
    hole = place = len(heap)
    while place and item < heap[(place - 1) >> 1]:
        place = (place - 1) >> 1
    heap.append(item)
    while hole > place:
        heap[hole] = heap[(hole - 1) >> 1]
        hole = (hole - 1) >> 1
    heap[place] = item


def pop(heap: list[Any]) -> Any:
    end = len(heap) - 1
    last = heap[end]
    place, child = 0, 1
    while child < end:  # the path of the smaller children, down to a leaf
        if child + 1 < end and not heap[child] < heap[child + 1]:
            child += 1
        place, child = child, 2 * child + 1
    while place and last < heap[place]:  # and up again to where the last item goes
        place = (place - 1) >> 1
    item = heap.pop()
    while place:  # what is above it on the path moves up
        item, heap[place] = heap[place], item
        place = (place - 1) >> 1
    if end:
        item, heap[0] = heap[0], item
    return item
