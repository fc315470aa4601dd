"""The pairs of manytail.queue: in kernel mode, in locked mode, and with hooks of a subclass."""
from collections.abc import Callable
from typing import Any, ClassVar

from manytail.queue import LifoQueue, Queue, SimpleQueue

from .pairs import Anew, Pair, pairs


def locked(maxsize: int = 0) -> Any:
    """A Queue that has entered locked mode."""
    queue: Queue[Any] = Queue(maxsize)
    assert not queue.mutex.locked()
    return queue


class QueueGet(Pair):
    has_async = False
    make: ClassVar[Callable[[int], Any]] = Queue

    def open(self) -> None:
        self.queue = type(self).make(1)

    def wake(self) -> None:
        self.queue.put(1)


class QueuePut(QueueGet):
    """Full whenever a round begins."""

    waits = "put"
    arguments = (1,)

    def open(self) -> None:
        super().open()
        self.queue.put(1)

    def wake(self) -> None:
        self.queue.get()


class QueueMaxsize(QueuePut):
    def wake(self) -> None:
        self.queue.maxsize = 2

    def end(self) -> None:
        self.queue.maxsize = 1
        self.queue.get()


class QueueJoin(QueueGet):
    wakes = "all"
    waits = "join"

    def begin(self) -> None:
        self.queue.put(1)
        self.queue.get()

    def wake(self) -> None:
        self.queue.task_done()


OF_QUEUES = {
    "get/put": QueueGet, "put/get": QueuePut, "put/maxsize": QueueMaxsize, "join/task_done": QueueJoin,
    "get/shutdown": type("GetAnew", (Anew, QueueGet), {}), "put/shutdown": type("PutAnew", (Anew, QueuePut), {}),
}
KINDS = {"kernel": Queue, "locked": locked, "lifo": LifoQueue}
QUEUE_PAIRS = pairs({
    "simple get/put": (QueueGet, {"make": staticmethod(lambda maxsize: SimpleQueue())}),
    **{
        f"queue {name}, {kind}": (pair, {"make": staticmethod(make)})
        for name, pair in OF_QUEUES.items()
        for kind, make in KINDS.items()
    },
})
