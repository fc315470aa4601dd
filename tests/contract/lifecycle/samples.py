"""One way to make an object of each public class, and which classes there are.

A class is public if `manytail.__all__`, or `__all__` of a module in MODULES, names it. Values (exceptions, enums, named tuples, plain records) have
no life cycle. Every other class needs a sample here: test_every_public_class_has_a_sample fails for a new one.
"""
import enum
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MODULES = ["manytail", "manytail.executor", "manytail.broker"]
VALUES = {"BasicProperties", "ConnectionParameters", "PlainCredentials", "ReturnedMessage", "URLParameters"}


@dataclass
class Sample:
    make: Callable[[], Any]
    init: tuple[Any, ...] | None = ()               # arguments of __init__; None: others make it
    options: Any = None                             # keyword arguments of __init__
    close: str = ""                                 # what ends it
    put: Callable[[Any, Any], Any] | None = None    # (object, item): have it own an item
    base: bool = False                              # users may subclass it


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


def connection() -> Any:
    from manytail import broker

    return broker.BlockingConnection(broker.ConnectionParameters())


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


SAMPLES = {
    "manytail.MultiQueue": Sample(multiqueue("MultiQueue"), put=lambda q, item: q["k"].put(item), base=True),
    "manytail.IndexMultiQueue": Sample(multiqueue("IndexMultiQueue"), base=True),
    "manytail.SubQueue": Sample(subqueue, None, put=own),
    "manytail.Entry": Sample(entry, None),
    "manytail.EntryQueue": Sample(lambda: entry_queue("EntryQueue"), ("q",), put=own, base=True),
    "manytail.PriorityEntryQueue": Sample(lambda: entry_queue("PriorityEntryQueue"), ("q",), put=own, base=True),
    "manytail.SortedEntryQueue": Sample(lambda: entry_queue("SortedEntryQueue", key=key), ("q",), {"key": key}, put=own, base=True),
    "manytail.LastValueQueue": Sample(lambda: entry_queue("LastValueQueue", key=key), ("q",), {"key": key}, put=own, base=True),
    "manytail.Subscription": Sample(lambda: entry_queue("EntryQueue").subscribe(), None, close="close"),
    "manytail.Consumer": Sample(consumer, close="close"),
    "manytail.PubSubQueue": Sample(pubsub, base=True),
    "manytail.Subscriber": Sample(lambda: pubsub().subscribe(), None, close="close"),
}
# Their own suites (tests/executor, tests/broker) ask these questions of them.
ELSEWHERE = {"manytail.executor.KeyedExecutor", "manytail.executor.Lane", "manytail.broker.BlockingConnection", "manytail.broker.Broker",
             "manytail.broker.Channel", "manytail.broker.Connection"}  # fmt: skip


def is_value(cls: type) -> bool:
    plain = (BaseException, enum.Enum, tuple)
    return issubclass(cls, plain) or cls.__name__ in VALUES


def public_classes() -> Iterator[tuple[str, type]]:
    for module in MODULES:
        it = importlib.import_module(module)
        for name in it.__all__:
            found = getattr(it, name)
            if inspect.isclass(found) and not is_value(found):
                yield f"{module}.{name}", found
