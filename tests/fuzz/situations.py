"""Situations in which faults were found: owners that are reached while they are freed, allocations that fail, keys of
classes of one name, and exceptions of odd shape. A case draws where one of them happens."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import make_dataclass
from functools import partial
from random import Random
from typing import Any, NamedTuple

from manytail import EntryQueue, LastValueQueue, MultiQueue, PriorityEntryQueue, PubSubQueue, SortedEntryQueue
from manytail import queue as stdlib
from manytail.broker import Broker
from manytail.errors import Empty
from manytail.executor import KeyedExecutor

try:
    from _testcapi import remove_mem_hooks, set_nomemory
except ImportError:  # an interpreter without CPython's own tests, or without these hooks
    set_nomemory = remove_mem_hooks = None


class Made(NamedTuple):
    owner: Any
    put: Callable[[Any], object]
    get: Callable[[], Any]
    settle: Callable[[Any], Any] = lambda got: got  # the item of what get has returned


def multiqueue(kind: Any) -> Made:
    queue = kind()
    return Made(queue, queue.add("key").put, partial(queue.get, False))


def pubsub(kind: Any) -> Made:
    queue = kind()
    subscriber = queue.subscribe()
    return Made(subscriber, queue.publish, partial(subscriber.get, False))


def of_stdlib(kind: Any) -> Made:
    queue = kind()
    return Made(queue, queue.put, partial(queue.get, False))


def entries(kind: Any, **options: Any) -> Made:
    queue = kind("q", **options)

    def settle(entry: Any) -> Any:
        assert entry.ack()
        return entry.item

    return Made(queue, queue.put, partial(queue.subscribe().get, False), settle)


class Item:
    """Looks for its owner when it is freed."""

    owner: Any = staticmethod(lambda: None)  # a weak reference

    def __init__(self, number: int, reached: list[Any]) -> None:
        self.number, self.reached = number, reached

    def __lt__(self, other: Item) -> bool:
        return self.number < other.number

    def __del__(self) -> None:
        if (owner := self.owner()) is not None:
            self.reached.append(repr(owner))


def number_of(item: Item) -> int:
    return item.number


MAKERS: dict[str, tuple[Callable[[Any], Made], type[Any]]] = {
    "MultiQueue": (multiqueue, MultiQueue),
    "PubSubQueue": (pubsub, PubSubQueue),
    "EntryQueue": (entries, EntryQueue),
    "PriorityEntryQueue": (entries, PriorityEntryQueue),
    "SortedEntryQueue": (partial(entries, key=number_of), SortedEntryQueue),
    "LastValueQueue": (partial(entries, key=number_of), LastValueQueue),
    **{name: (of_stdlib, getattr(stdlib, name)) for name in ("Queue", "SimpleQueue")},
}


class Situation:
    kind: str

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.name = self.random.choice([*MAKERS])
        self.derived, self.size = self.random.random() < 0.5, self.random.choice([1, 3, 10])
        self.draw()
        hidden = {name: value for name, value in vars(self).items() if name != "random"}
        self.text = f"{self.kind} {hidden}"

    def __str__(self) -> str:
        return self.text

    def draw(self) -> None:
        """Its other options."""

    def make(self) -> Made:
        make, kind = MAKERS[self.name]
        return make(type("Derived", (kind,), {}) if self.derived else kind)

    def run(self) -> None:
        raise NotImplementedError


class Freed(Situation):
    """No finalizer of an item reaches the queue that is being freed."""

    kind = "freed"

    def run(self) -> None:
        owner, put, get, settle = self.make()
        reached: list[Any] = []
        items = [Item(number, reached) for number in range(self.size)]
        for item in items:
            put(item)
            item.owner = weakref.ref(owner)
        gone = weakref.ref(owner)
        del item, items, owner, put, get, settle
        gc.collect()
        assert gone() is None
        assert not reached, f"reached while it was freed: {reached}"


class NoMemory(Situation):
    """A call in which an allocation fails has done nothing."""

    kind = "memory"

    def draw(self) -> None:
        self.calls = [(self.random.random() < 0.6, self.random.randrange(25)) for _ in range(self.size * 10)]

    def run(self) -> None:
        made, there, out = self.make(), set[int](), list[int]()
        for number, (puts, failing) in enumerate(self.calls):
            call = partial(made.put, Item(number, [])) if puts else made.get
            try:
                returned = without(failing, call)
            except MemoryError:
                continue
            except Empty:
                assert not there, f"nothing to get, but {there} are there"
                continue
            if puts:
                there.add(number)
            else:
                out.append(made.settle(returned).number)
                there.remove(out[-1])
        while there:
            there.remove(made.settle(made.get()).number)


def without(number: int, call: Callable[[], Any]) -> Any:
    """Call while this allocation, counted from now on, fails."""
    set_nomemory(number, number + 1)
    try:
        return call()
    finally:
        remove_mem_hooks()


class OneName(Situation):
    """Keys that are equal in all but their classes are different keys."""

    kind = "names"

    def draw(self) -> None:
        self.keys = [(self.random.randrange(2), self.random.randrange(3)) for _ in range(self.size)]

    def run(self) -> None:
        kinds = [make_dataclass("Key", [("number", int)], frozen=True) for _ in range(2)]
        keys = [kinds[which](number) for which, number in self.keys]
        different = set(self.keys)
        multi: Any = MultiQueue()
        assert len({multi.setdefault(key) for key in keys}) == len(multi.subqueues) == len(different)
        last: Any = LastValueQueue("q", key=lambda item: item)
        for key in keys:
            last.put(key)
        assert last.depth() == len(different)
        grouped: Any = EntryQueue("q", groups="shared")
        for key in keys:
            grouped.put(key, group=key)
        subscriptions = [grouped.subscribe() for _ in different]  # each gets the first entry of a group of its own
        assert {subscription.get(False).group for subscription in subscriptions} == {*keys}
        for subscription in subscriptions:
            subscription.close()
        with KeyedExecutor(1) as executor:
            assert len({executor.lane(key) for key in keys}) == len(different)


# --------------------------------------------------------------------------------------------- exceptions of odd shape
class False_(Exception):
    def __len__(self) -> int:
        return 0


class Frozen(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("cannot be changed")


class Unreadable(Exception):
    def __str__(self) -> str:
        raise LookupError

    __repr__ = __str__


class NoException(BaseException):
    """Not an Exception, as of pyo3's PanicException."""


class Fails:
    """An item or key whose methods raise."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def fail(self, *_: object) -> Any:
        raise self.error

    __hash__ = __lt__ = fail  # type: ignore[assignment]


class Odd(Situation):
    """What the user's code raises is raised, itself, and nothing has changed."""

    kind = "odd"

    def draw(self) -> None:
        self.shape = self.random.choice([False_, Frozen, Unreadable, NoException])
        self.place = self.random.choice([sizer, selection, iterable, key, hashing, call, after])

    def run(self) -> None:
        error = self.shape()
        attempt, look = self.place(Fails(error))
        before = look()
        raised: BaseException | None = None
        try:
            attempt()
        except BaseException as caught:
            raised = caught
        assert raised is error, type(raised)
        assert look() == before


Place = tuple[Callable[[], object], Callable[[], object]]


def sizer(fails: Fails) -> Place:
    tail: Any = MultiQueue().add("key", maxsize=5, sizer=fails.fail)
    return partial(tail.put, 1), lambda: (tail.qsize(), tail.size)


def selection(fails: Fails) -> Place:
    queue: Any = MultiQueue(selection=fails.fail)
    queue.add("key").put(1)
    return queue.get, queue.stats


def iterable(fails: Fails) -> Place:
    def items() -> Iterator[None]:
        fails.fail()
        yield

    queue: Any = EntryQueue("q")
    return partial(queue.put_many, items()), queue.stats


def key(fails: Fails) -> Place:
    queue: Any = SortedEntryQueue("q", key=fails.fail)
    return partial(queue.put, 1), queue.stats


def hashing(fails: Fails) -> Place:
    queue: Any = MultiQueue()
    return partial(queue.add, fails), queue.stats


def call(fails: Fails) -> Place:
    def attempt() -> None:
        with KeyedExecutor(1) as executor:
            error = executor.submit(fails.fail).exception()
        assert error is not None
        raise error

    return attempt, lambda: None


def after(fails: Fails) -> Place:
    """Two calls after a section of a broker: the first error counts."""
    runtime = Broker()._runtime

    def attempt() -> None:
        with runtime:
            runtime.after(fails.fail)
            runtime.after(Fails(LookupError()).fail)

    return attempt, runtime.locked


KINDS = [Freed, OneName, Odd, *[NoMemory] * (set_nomemory is not None)]


def draw(seed: int) -> Situation:
    return Random(f"situation {seed}").choice(KINDS)(seed)
