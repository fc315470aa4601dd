"""How to make an object of each public class, and which classes are public.

A class is public if `manytail.__all__`, or `__all__` of a module in MODULES, names it. Values (exceptions, enums, named
tuples, plain records) have no life cycle. Every other class needs a sample here: test_every_public_class_has_a_sample
fails for one that has none.
"""
import enum
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from manytail import ClosedError

MODULES = ["manytail", "manytail.queue", "manytail.executor", "manytail.mapping", "manytail.broker"]
VALUES = {"BasicProperties", "ConnectionParameters", "PlainCredentials", "ReturnedMessage", "Shared", "URLParameters"}
VALUES |= {"Batch", "Breaker", "Delivery", "Retry"}
# Made by a map, kept by maps, or like one: tests/mapping asks them.
OF_MAPS = {"AsyncCaller", "AsyncResults", "Budget", "Caller", "Concurrency", "Limit", "Rate", "Results"}


@dataclass
class Sample:
    make: Callable[[], Any]
    init: tuple[Any, ...] | None = ()               # arguments of __init__; None: other objects make it
    options: Any = None                             # keyword arguments of __init__
    close: str = ""                                 # the method that ends it
    put: Callable[[Any, Any], Any] | None = None    # (object, item): makes it own an item
    owns: tuple[Callable[[Any], Any], ...] = ()     # (item): an object that owns the item in another way
    base: bool = False                              # users may subclass it
    has_init: bool = True                           # False: its __init__ is object's, as the standard library's
    lives: str = ""                                 # other objects keep it until this method is called
    ended: Any = ()                                 # what that method raises if it was called before


def entry_queue(name: str, **options: Any) -> Any:
    import manytail

    return getattr(manytail, name)("q", **options)


def entry() -> Any:
    queue = entry_queue("EntryQueue")
    return queue.put(1)


def subqueue() -> Any:
    import manytail

    return manytail.MultiQueue().add("k")


def consumer() -> Any:
    import manytail

    made = manytail.Consumer()
    made.subscribe(entry_queue("EntryQueue"))
    return made


def executor() -> Any:
    from manytail.executor import KeyedExecutor

    return KeyedExecutor(max_workers=1)


def lane() -> Any:
    return executor().lane("k")


def own_broker() -> Any:
    from manytail.broker import Broker

    return Broker()


def stdlib_queue(kind: str) -> Callable[[], Any]:
    def make() -> Any:
        return getattr(importlib.import_module("manytail.queue"), kind)()

    return make


def connection() -> Any:
    from manytail import broker

    return broker.BlockingConnection(broker.ConnectionParameters())


def channel() -> Any:
    return connection().channel()


def multiqueue(kind: str) -> Callable[[], Any]:
    def make() -> Any:
        import manytail

        queue = getattr(manytail, kind)()
        queue.add("k").put(1)
        return queue

    return make


def pubsub() -> Any:
    import manytail

    return manytail.PubSubQueue()


def key(item: Any) -> int:
    return 1


def own(queue: Any, item: Any) -> None:
    queue.put(item)


def holder(item: Any) -> Callable[..., Any]:
    """A callable that owns an item."""
    return partial(print, item)


def by_selection(kind: str) -> Callable[[Any], Any]:
    return lambda item: getattr(importlib.import_module("manytail"), kind)(selection=holder(item))


def by_sizer(item: Any) -> Any:
    import manytail

    return manytail.MultiQueue().add("k", sizer=holder(item))


def by_dead_letter(item: Any) -> Any:
    return entry_queue("EntryQueue", dead_letter=holder(item))


def entry_of(item: Any) -> Any:
    queue = entry_queue("EntryQueue", maxsize=1, overflow="drop_oldest")
    handle = queue.put(item, origin=[item], headers={"of": item})
    queue.put(None)
    return handle


def by_selector(item: Any) -> Any:
    return entry_queue("EntryQueue").subscribe(selector=holder(item))


def subscriber_of(item: Any) -> Any:
    queue = pubsub()
    subscriber = queue.subscribe()
    queue.publish(item)
    return subscriber


SAMPLES = {
    "manytail.MultiQueue": Sample(
        multiqueue("MultiQueue"),
        put=lambda q, item: q["k"].put(item),
        owns=(by_selection("MultiQueue"),),
        base=True,
    ),
    "manytail.IndexMultiQueue": Sample(
        multiqueue("IndexMultiQueue"), owns=(by_selection("IndexMultiQueue"),), base=True
    ),
    "manytail.SubQueue": Sample(subqueue, None, put=own, owns=(by_sizer,)),
    "manytail.Entry": Sample(entry, None, owns=(entry_of,)),
    "manytail.EntryQueue": Sample(
        lambda: entry_queue("EntryQueue"), ("q",), put=own, owns=(by_dead_letter,), base=True
    ),
    "manytail.PriorityEntryQueue": Sample(lambda: entry_queue("PriorityEntryQueue"), ("q",), put=own, base=True),
    "manytail.SortedEntryQueue": Sample(
        lambda: entry_queue("SortedEntryQueue", key=key), ("q",), {"key": key}, put=own, base=True
    ),
    "manytail.LastValueQueue": Sample(
        lambda: entry_queue("LastValueQueue", key=key), ("q",), {"key": key}, put=own, base=True
    ),
    "manytail.Subscription": Sample(
        lambda: entry_queue("EntryQueue").subscribe(), None, owns=(by_selector,), close="close"
    ),
    "manytail.Consumer": Sample(consumer, close="close"),
    "manytail.PubSubQueue": Sample(pubsub, base=True),
    "manytail.Subscriber": Sample(
        lambda: pubsub().subscribe(), None, owns=(subscriber_of,), close="close"
    ),
    "manytail.queue.Queue": Sample(stdlib_queue("Queue"), put=own, base=True),
    "manytail.queue.SimpleQueue": Sample(stdlib_queue("SimpleQueue"), put=own, base=True, has_init=False),
    "manytail.executor.KeyedExecutor": Sample(executor, (1,), base=True),
    "manytail.executor.Lane": Sample(lane, None),
    "manytail.broker.Broker": Sample(own_broker, base=True),
    "manytail.broker.Connection": Sample(
        lambda: own_broker().connect(), None, has_init=False, lives="close", ended=ClosedError
    ),
    "manytail.broker.BlockingConnection": Sample(connection, base=True, lives="close", ended=ClosedError),
    "manytail.broker.Channel": Sample(channel, None, lives="close", ended=ClosedError),
}
def is_value(cls: type) -> bool:
    plain = (BaseException, enum.Enum, tuple)
    return issubclass(cls, plain) or cls.__name__ in VALUES | OF_MAPS


def public_classes() -> Iterator[tuple[str, type]]:
    """Of manytail: LifoQueue and PriorityQueue are the standard library's."""
    for module in MODULES:
        it = importlib.import_module(module)
        for name in it.__all__:
            found = getattr(it, name)
            if inspect.isclass(found) and found.__module__ != "queue" and not is_value(found):
                yield f"{module}.{name}", found
