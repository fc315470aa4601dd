"""The pairs of manytail.queue: in kernel mode, and in locked mode."""
from collections.abc import Callable
from typing import Any, ClassVar

from manytail.queue import Queue, SimpleQueue

from .pairs import Anew, Full, Join, Larger, Pair, pairs


class Locked(Queue[Any]):
    """A Queue in locked mode: it overrides a hook."""

    def _put(self, item: Any) -> None:
        super()._put(item)


class Get(Pair):
    has_async = False
    make: ClassVar[Callable[[int], Any]] = Queue

    def open(self) -> None:
        self.queue = type(self).make(1)

    def fill(self) -> None:
        self.queue.put(1)

    def take(self) -> None:
        self.queue.get()


class JoinShutdown(Anew, Join):
    """An immediate shutdown takes away what is not done."""

    def begin(self) -> None:
        super().begin()
        self.fill()

    def wake(self) -> None:
        self.queue.shutdown(immediate=True)


OF_QUEUES: dict[str, tuple[type[Pair], ...]] = {
    "get/put": (Get,), "put/get": (Full, Get), "put/maxsize": (Larger, Get), "join/task_done": (Join, Get),
    "get/shutdown": (Anew, Get), "put/shutdown": (Anew, Full, Get), "join/shutdown": (JoinShutdown, Get),
}
KINDS = {"kernel": Queue, "locked": Locked}
QUEUE_PAIRS = pairs({
    "simple get/put": (Get, {"make": staticmethod(lambda maxsize: SimpleQueue())}),
    **{
        f"queue {name}, {kind}": (*pair, {"make": staticmethod(make)})
        for name, pair in OF_QUEUES.items()
        for kind, make in KINDS.items()
    },
})
