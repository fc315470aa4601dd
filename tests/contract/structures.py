"""Every queue under the same names, for suites that ask all of them the same.

An item is an integer; a test puts rising ones, which every queue keeps in order. A structure of maxsize=1 is full after
one item. `item` makes the item of what a get returned, and settles it. Whoever needs a second one who waits calls
again: the calls take turns among the ways out.

test_async.py looks that every coroutine function of a public class is one of CALLS.
"""
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from support.queues import as_list

from manytail import (
    ClosedError,
    Consumer,
    EntryQueue,
    IndexMultiQueue,
    LastValueQueue,
    MultiQueue,
    PriorityEntryQueue,
    PubSubQueue,
    ShutDown,
    SortedEntryQueue,
)


class Numbers:
    """Rising numbers for all threads. Without the GIL, itertools promises them to one."""

    def __init__(self) -> None:
        self.lock, self.last = threading.Lock(), 0

    def __call__(self) -> int:
        with self.lock:
            self.last += 1
            return self.last


class Structure:
    """A queue with one way in and one or more ways out."""

    new: Callable[..., Any]
    gets: tuple[str, ...] = ("aget",)   # coroutine functions of a way out
    puts: str = "aput"                  # coroutine function of the way in
    ended: tuple[type[Exception], ...] = (ShutDown,)
    queue: Any
    into: Any                           # the way in: has put, put_many and aput
    outs: list[Any]

    def __init__(self, maxsize: int = 0) -> None:
        self.open(maxsize)
        self.turn = Numbers()

    def open(self, maxsize: int) -> None:
        raise NotImplementedError

    def out(self) -> Any:
        return self.outs[self.turn() % len(self.outs)]

    def put(self, item: Any, **wait: Any) -> None:
        self.into.put(item, **wait)

    def put_many(self, items: Any, **wait: Any) -> int:
        return self.into.put_many(items, **wait)

    def get(self, **wait: Any) -> Any:
        return self.item(self.out().get(**wait))

    def get_many(self, n: int, **wait: Any) -> list[Any]:
        return [self.item(got) for got in as_list(self.out().get_many(n, **wait))]

    def aput(self, item: Any) -> Any:
        return getattr(self.into, self.puts)(item)

    def aget(self, name: str = "aget") -> Any:
        """The coroutine. What it returns is for `item`."""
        return getattr(self.out(), name)(*([1] if name == "aget_many" else []))

    def item(self, got: Any) -> Any:
        return got

    def drain(self) -> list[Any]:
        """All that is in it."""
        return [self.get(block=False) for _ in range(self.inside())]

    def inside(self) -> int:
        return self.queue.qsize()

    def shutdown(self, immediate: bool = False) -> None:
        self.queue.shutdown(immediate)

    def close(self) -> None:
        """Of a structure that is to warn of nothing."""


class OfMultiQueue(Structure):
    new = MultiQueue
    gets = ("aget", "aget_with_key", "aget_many")

    def open(self, maxsize: int) -> None:
        self.queue = self.new()
        self.into = self.queue.add("a", maxsize=maxsize)
        self.outs = [self.queue]

    def item(self, got: Any) -> Any:
        if isinstance(got, tuple):
            return got[1]
        return got if not hasattr(got, "__len__") else as_list(got)[0]


class OfIndexMultiQueue(OfMultiQueue):
    new = IndexMultiQueue


class OfEntryQueue(Structure):
    new = EntryQueue
    options: ClassVar[dict[str, Any]] = {}

    def open(self, maxsize: int) -> None:
        self.queue = self.into = self.new("q", maxsize=maxsize, **self.options)
        self.outs = [self.queue.subscribe(), self.queue.subscribe()]

    def item(self, got: Any) -> Any:
        assert got.ack()
        return got.item

    def close(self) -> None:
        for out in self.outs:
            out.close()


class OfPriorityEntryQueue(OfEntryQueue):
    new = PriorityEntryQueue


class OfSortedEntryQueue(OfEntryQueue):
    new = SortedEntryQueue
    options: ClassVar[dict[str, Any]] = {"key": int}


class OfLastValueQueue(OfSortedEntryQueue):
    new = LastValueQueue


class OfConsumer(OfEntryQueue):
    """A Consumer, and one of its subscriptions."""

    def open(self, maxsize: int) -> None:
        self.queue = self.into = EntryQueue("q", maxsize=maxsize)
        self.idle, consumer = EntryQueue("idle"), Consumer()
        consumer.subscribe(self.idle)
        self.outs = [consumer, consumer.subscribe(self.queue)]

    def shutdown(self, immediate: bool = False) -> None:
        super().shutdown(immediate)
        self.idle.shutdown(immediate)


class OfPubSubQueue(Structure):
    new = PubSubQueue
    puts = "apublish"

    def open(self, maxsize: int) -> None:
        self.queue = self.into = self.new(maxsize=maxsize)
        self.outs = [self.queue.subscribe()]

    def put(self, item: Any, **wait: Any) -> None:
        self.queue.publish(item, **wait)

    def put_many(self, items: Any, **wait: Any) -> int:
        return self.queue.publish_many(items, **wait)

    def close(self) -> None:
        self.outs[0].close()


STRUCTURES: dict[str, type[Structure]] = {
    kind.__name__.removeprefix("Of"): kind
    for kind in (
        OfMultiQueue,
        OfIndexMultiQueue,
        OfEntryQueue,
        OfPriorityEntryQueue,
        OfSortedEntryQueue,
        OfLastValueQueue,
        OfConsumer,
        OfPubSubQueue,
    )
}


# ------------------------------------------------------------------------------------------------ calls that wait
class Call:
    """A structure on which every call of one coroutine function waits, and what lets one of them go on."""

    wakes_all = False

    def __init__(self, structure: type[Structure], name: str) -> None:
        self.puts = name == structure.puts
        self.on, self.name, self.items = structure(maxsize=int(self.puts)), name, Numbers()
        self.woken = 0
        if self.puts:
            self.on.put(0)

    def __call__(self) -> Any:
        """A coroutine that waits."""
        return self.on.aput(self.items()) if self.puts else self.on.aget(self.name)

    def block(self) -> None:
        """The same call of a thread, which is to be let go on."""
        if self.puts:
            self.on.put(self.items())
        else:
            self.on.get()

    def wake(self) -> None:
        """Let one go on. Nothing of this waits for it."""
        self.woken += 1
        if self.puts:
            self.on.get(block=False)
        else:
            self.on.put(self.items())

    def took(self, result: Any) -> None:
        """It has gone on, and returned this."""
        if not self.puts:
            assert self.on.item(result) > 0

    def full(self) -> int:
        """How many items are in it when nobody's wake-up is on its way."""
        return int(self.puts)

    def end(self) -> None:
        self.on.shutdown()

    def close(self) -> None:
        self.on.close()


class Join(Call):
    """The last task_done lets all of them go on."""

    wakes_all = True

    def __init__(self, structure: type[Structure], name: str) -> None:
        self.on, self.puts, self.woken = structure(), False, 0
        self.on.put(1)

    def __call__(self) -> Any:
        return self.on.queue.ajoin()

    def block(self) -> None:
        self.on.queue.join()

    def wake(self) -> None:
        self.woken += 1
        if self.woken == 1:
            self.on.queue.task_done()

    def took(self, result: Any) -> None:
        assert result is None

    def full(self) -> int:
        return 1

    def end(self) -> None:
        self.on.shutdown(immediate=True)


# Their coroutine functions are those of an EntryQueue, and of a SortedEntryQueue.
INHERIT = {"PriorityEntryQueue", "LastValueQueue"}
# By name, as in "MultiQueue.aget": makes one. A Consumer's queue is an EntryQueue, which puts already.
CALLS: dict[str, Callable[[], Call]] = {
    f"{title}.{name}": lambda structure=structure, name=name: (Join if name == "ajoin" else Call)(structure, name)
    for title, structure in STRUCTURES.items()
    for name in (*structure.gets, structure.puts, *(["ajoin"] if issubclass(structure, OfMultiQueue) else []))
    if title not in INHERIT and (title, name) != ("Consumer", "aput")
}
ENDED = (ShutDown, ClosedError)
