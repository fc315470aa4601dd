"""A signal handler that raises inside put or get of a queue with hooks loses no item and adds none, whenever it comes:
between two steps of the hooks, or in `<` of an item."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.interrupted import Interrupted, each_point

import manytail.queue
from manytail.queue import LifoQueue, PriorityQueue, Queue

SOURCE = f"{manytail.__path__[0]}/queue.py"
needs_compiled_hooks = pytest.mark.skipif(
    manytail.queue.__file__ == SOURCE, reason="an instrumented build is interpreted"
)


class OwnPut(Queue[Any]):
    """Its other hooks are those of the base class."""

    def _put(self, item: Any) -> None:
        self.queue.append(item)


@needs_compiled_hooks
@pytest.mark.thread_unsafe(reason="stops the collector")
@pytest.mark.parametrize("kind", [LifoQueue, PriorityQueue, OwnPut])
def test_a_handler_that_raises_in_a_hook_of_ours_changes_nothing(kind: type[Queue[int]]) -> None:
    for interrupter in each_point((SOURCE,), least=0):
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


class Item:
    """Its comparisons raise when `left` of them were made, and `left` is not negative."""

    left = -1

    def __init__(self, value: int, counter: list[int]) -> None:
        self.value, self._counter = value, counter

    def __lt__(self, other: "Item") -> bool:
        if self._counter[0] == 0:
            raise Interrupted
        self._counter[0] -= 1
        return self.value < other.value


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 20])
@pytest.mark.parametrize("call", ["get", "put"])
def test_a_comparison_that_raises_changes_nothing(size: int, call: str) -> None:
    luck, refused = random.Random(size), 0
    while True:  # one comparison more each time, until the call makes no more
        comparisons = [-1]
        items = [Item(luck.randrange(5), comparisons) for _ in range(size)]
        queue: PriorityQueue[Item] = PriorityQueue()
        for item in items:
            queue.put(item)
        before, new = list(queue.queue), Item(-1, comparisons)
        comparisons[0] = refused
        try:
            queue.get() if call == "get" else queue.put(new)
        except Interrupted:
            refused += 1
            assert list(queue.queue) == before
            assert queue.unfinished_tasks == size
        else:
            break
    comparisons[0] = -1
    values = [item.value for item in _drained(queue)]
    left = [item.value for item in items] + [new.value] * (call == "put")
    assert values == sorted(left)[call == "get" :]
    assert refused >= (size > 2)
