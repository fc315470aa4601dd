"""The pairs of manytail.queue: in kernel mode, in locked mode, and with hooks of a subclass."""
import functools
from collections.abc import Callable
from typing import Any

from manytail.queue import LifoQueue, Queue, SimpleQueue

from .pairs import Pair, Wait


def locked(maxsize: int = 0) -> Any:
    """A Queue that has entered locked mode."""
    queue: Queue[Any] = Queue(maxsize)
    assert not queue.mutex.locked()
    return queue


class QueuePair(Pair):
    has_async = False
    make: Callable[[int], Any] = Queue

    def __init__(self) -> None:
        self.queue = type(self).make(1)


class QueueGet(QueuePair):
    def waiting(self) -> Wait:
        return self.queue.get

    def wake(self) -> None:
        self.queue.put(1)


class QueuePut(QueuePair):
    """Full whenever a round begins."""

    def __init__(self) -> None:
        super().__init__()
        self.queue.put(1)

    def waiting(self) -> Wait:
        return functools.partial(self.queue.put, 1)

    def wake(self) -> None:
        self.queue.get()


class QueueMaxsize(QueuePut):
    def wake(self) -> None:
        self.queue.maxsize = 2

    def end(self) -> None:
        self.queue.maxsize = 1
        self.queue.get()


class QueueJoin(QueuePair):
    wakes = "all"

    def begin(self) -> None:
        self.queue.put(1)
        self.queue.get()

    def waiting(self) -> Wait:
        return self.queue.join

    def wake(self) -> None:
        self.queue.task_done()


class QueueShutdown(QueuePair):
    wakes = "all"
    rounds = 0

    def begin(self) -> None:
        QueuePair.__init__(self)
        self.rounds += 1

    def waiting(self) -> Wait:
        return self.queue.get

    def wake(self) -> None:
        self.queue.shutdown(immediate=self.rounds % 2 == 0)


class QueuePutShutdown(QueueShutdown):
    def begin(self) -> None:
        super().begin()
        self.queue.put(1)

    def waiting(self) -> Wait:
        return functools.partial(self.queue.put, 1)


class SimpleGet(QueueGet):
    def __init__(self) -> None:
        self.queue = SimpleQueue()


OF_QUEUES = {
    "get/put": QueueGet, "put/get": QueuePut, "put/maxsize": QueueMaxsize, "join/task_done": QueueJoin,
    "get/shutdown": QueueShutdown, "put/shutdown": QueuePutShutdown,
}
KINDS = {"kernel": Queue, "locked": locked, "lifo": LifoQueue}
QUEUE_PAIRS = {
    "simple get/put": SimpleGet,
    **{
        f"queue {name}, {kind}": type(f"{pair.__name__}_{kind}", (pair,), {"make": staticmethod(make)})
        for name, pair in OF_QUEUES.items()
        for kind, make in KINDS.items()
    },
}
