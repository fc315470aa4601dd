"""A multi-queue in plain Python that is right, and mutants with one fault each: the checkers have to catch them.

The right one is the sequential model under one condition variable. A mutant overrides one method of it. Where the fault
is a race, `meet` forces the schedule that shows it.
"""
import threading
from collections.abc import Callable
from queue import Empty, Full
from time import monotonic
from typing import Any

from support.model import Model
from support.model import Tail as ModelTail

from manytail import ShutDown


class Toy:
    def __init__(self, selection: str = "round_robin") -> None:
        self.model = Model(selection)
        self.changed = threading.Condition()
        self.shut = self.stopped = False

    def add(self, key: str, **options: Any) -> "ToyTail":
        return ToyTail(self, self.model.add(key, **options))

    def waiting(self, attempt: Callable[[], Any], refused: type[Exception], block: bool, timeout: float | None) -> Any:
        """attempt() until it does not raise `refused`."""
        deadline = None if timeout is None else monotonic() + timeout
        with self.changed:
            while True:
                try:
                    result = attempt()
                except refused:
                    left = None if deadline is None else deadline - monotonic()
                    if not block or (left is not None and left <= 0):
                        raise
                    self.changed.wait(left)
                else:
                    self.changed.notify_all()
                    return result

    def take(self) -> tuple[str, Any]:
        if self.stopped or not self.model.rings:
            raise ShutDown if self.shut else Empty
        return self.model.take()

    def get_with_key(self, block: bool = True, timeout: float | None = None) -> tuple[str, Any]:
        return self.waiting(self.take, Empty, block, timeout)

    def get_many(self, n: int, block: bool = True, timeout: float | None = None, linger: float = 0.0) -> list[Any]:
        # it may return fewer at once: how long a get lingers is not linearizability's business
        def attempt() -> list[Any]:
            taken = [self.take()[1]]
            while len(taken) < n and self.model.rings:
                taken.append(self.take()[1])
            return taken

        return self.waiting(attempt, Empty, block, timeout)

    def at_once(self, function: Callable[[], Any]) -> Any:
        with self.changed:
            self.changed.notify_all()
            return function()

    def peek(self) -> Any:
        def look() -> Any:
            if self.stopped or not self.model.rings:
                raise Empty
            return self.model.peek()

        return self.at_once(look)

    def qsize(self) -> int:
        return self.at_once(lambda: 0 if self.stopped else self.model.qsize())

    def remove(self, key: str) -> None:
        self.at_once(lambda: self.drop(self.model.remove, key))

    def task_done(self) -> None:
        def done() -> None:
            if self.model.unfinished == 0:
                raise ValueError("too many")
            self.model.unfinished -= 1

        self.at_once(done)

    def join(self, timeout: float) -> bool:
        return self.at_once(lambda: self.model.unfinished == 0)

    def shutdown(self, immediate: bool) -> None:
        def shut() -> None:
            self.shut, self.stopped = True, self.stopped or immediate
            for tail in self.model.tails.values() if immediate else ():
                self.drop(self.model.clear, tail)

        self.at_once(shut)

    def drop(self, function: Callable[..., Any], *args: Any) -> Any:
        """Items that are removed count as done; those that task_done() has counted already do not count twice."""
        result = function(*args)
        self.model.unfinished = max(0, self.model.unfinished)
        return result


class ToyTail:
    def __init__(self, queue: Toy, tail: ModelTail) -> None:
        object.__setattr__(self, "queue", queue)
        object.__setattr__(self, "tail", tail)

    def _place(self, item: Any, front: bool) -> None:
        if self.queue.shut or not self.tail.attached:
            raise ShutDown
        if self.tail.too_large(item):
            raise ValueError
        if not self.tail.fits(item):
            raise Full
        self.queue.model.put(self.tail, item, front)

    @property
    def size(self) -> int:
        return self.queue.at_once(self.tail.size)

    def put(self, item: Any, block: bool = True, timeout: float | None = None, front: bool = False) -> None:
        self.queue.waiting(lambda: self._place(item, front), Full, block, timeout)

    def put_front(self, item: Any, **wait: Any) -> None:
        self.put(item, **wait, front=True)

    def put_many(self, items: Any, block: bool = True, timeout: float | None = None) -> int:
        left = list(items)

        def attempt() -> int:
            while left:
                self._place(left[0], False)
                del left[0]
            return len(items)

        try:
            return self.queue.waiting(attempt, Full, block, timeout)
        except (Full, ShutDown, ValueError) as error:
            error.count = len(items) - len(left)
            raise

    def clear(self) -> int:
        return self.queue.at_once(lambda: len(self.queue.drop(self.queue.model.clear, self.tail)))

    def discard(self, item: Any) -> bool:
        return self.queue.at_once(lambda: self.queue.drop(self.queue.model.discard, self.tail, item))

    def qsize(self) -> int:
        return self.queue.at_once(self.tail.qsize)

    def __setattr__(self, name: str, value: Any) -> None:
        model = self.queue.model
        special = {"enabled": model.set_enabled, "priority": model.set_priority}
        self.queue.at_once(
            lambda: special[name](self.tail, value) if name in special else setattr(self.tail, name, value)
        )


# ------------------------------------------------------------------------------------------------ wrong ones
class NewestFirst(Toy):
    """A stack: inverts the order inside a tail."""

    def take(self) -> tuple[str, Any]:
        for ring in self.model.rings.values():
            for tail in ring:
                tail.items.reverse()
        try:
            return super().take()
        finally:
            for tail in self.model.tails.values():
                if len(tail.items) > 1:
                    tail.items.reverse()


class SameTurn(Toy):
    """The tail that was served stays at the front."""

    def take(self) -> tuple[str, Any]:
        before = {priority: list(ring) for priority, ring in self.model.rings.items()}
        taken = super().take()
        for priority, ring in self.model.rings.items():
            ring.sort(key=before[priority].index)
        return taken


class Forgetful(Toy):
    """Now and then takes a second item and drops it."""

    def take(self) -> tuple[str, Any]:
        taken = super().take()
        if self.model.got_count % 3 == 1 and self.model.rings and not self.stopped:
            super().take()
        return taken


class Twice(Toy):
    """Returns every third item twice."""

    last: tuple[str, Any] | None = None

    def take(self) -> tuple[str, Any]:
        if self.last is not None:
            taken, self.last = self.last, None
            return taken
        taken = super().take()
        if self.model.got_count % 3 == 1:
            self.last = taken
        return taken


class StaleEmpty(Toy):
    """Raises Empty because of what it saw at its previous get."""

    seen = 0

    def take(self) -> tuple[str, Any]:
        if self.seen == 0 and not self.shut:
            self.seen = self.model.qsize()
            raise Empty
        self.seen = 0
        return super().take()


class Roomy(Toy):
    """Accepts one item more than the bound allows."""

    def add(self, key: str, maxsize: int = 0, **options: Any) -> ToyTail:
        return super().add(key, maxsize=maxsize + 1 if maxsize > 0 else 0, **options)


class SeesDisabled(Toy):
    """A disabled tail is served."""

    def add(self, key: str, enabled: bool = True, **options: Any) -> ToyTail:
        return super().add(key, **options)


class Undone(Toy):
    """Items that are removed stay unfinished."""

    def drop(self, function: Callable[..., Any], *args: Any) -> Any:
        before = self.model.unfinished
        result = function(*args)
        self.model.unfinished = before
        return result


MUTANTS = [NewestFirst, SameTurn, Forgetful, Twice, StaleEmpty, Roomy, SeesDisabled, Undone]


class Racy(Toy):
    """Looks, then takes; another getter may do the same in between. `meet` makes two getters always meet there."""

    def __init__(self, selection: str = "round_robin") -> None:
        super().__init__(selection)
        self.meet = threading.Barrier(2)

    def get_with_key(self, block: bool = True, timeout: float | None = None) -> tuple[str, Any]:
        with self.changed:
            found = self.model.choice()
            item = None if found is None else found.items[0][1]
        if found is None:
            raise Empty
        self.meet.wait(30)
        with self.changed:
            self.model.discard(found, item)
        return found.key, item
