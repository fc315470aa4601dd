"""A signal handler that raises inside put or get of a queue with hooks loses no item and adds none, whenever it comes
between two steps of the code that is ours."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from support.interrupted import each_point

import manytail.queue
from manytail.queue import Queue

SOURCES = tuple(f"{manytail.__path__[0]}/{name}.py" for name in ("queue", "_locked"))
needs_compiled_hooks = pytest.mark.skipif(
    manytail.queue.__file__ == SOURCES[0], reason="an instrumented build is interpreted"
)


class OwnPut(Queue[Any]):
    """Its other hooks are those of the base class."""

    def _put(self, item: Any) -> None:
        self.queue.append(item)


class OwnInit(Queue[Any]):
    """Its `_put` and `_get` are those of the base class."""

    def _init(self, maxsize: int) -> None:
        self.queue = deque()


@needs_compiled_hooks
@pytest.mark.thread_unsafe(reason="stops the collector")
@pytest.mark.parametrize("kind", [OwnPut, OwnInit])
def test_a_handler_that_raises_in_a_hook_of_ours_changes_nothing(kind: type[Queue[int]]) -> None:
    for interrupter in each_point(SOURCES, least=0):
        queue, got = kind(), list[int]()
        for item in range(5):
            queue.put(item)
        there = {*range(5)}
        try:
            with interrupter:
                got.extend(map(kind.get, [queue]))  # it keeps the item before the next step of this test
                queue.put(5)
                there.add(5)
        except KeyboardInterrupt:
            pass
        assert queue.unfinished_tasks == len(there)
        assert sorted([*got, *_drained(queue)]) == sorted(there)


def _drained(queue: Queue[Any]) -> Iterator[Any]:
    while not queue.empty():
        yield queue.get()
