"""Random plans for an EntryQueue: all threads share two or three subscriptions, and any may end any delivery."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import Empty, Full
from typing import Any, ClassVar

from manytail import ClosedError, EntryQueue, PriorityEntryQueue, ShutDown

from .entry_spec import NO_HANDLE, EntrySpec, Subscriber
from .history import Call, Planned, Raised, record
from .plan import SHORT, Listed, Plan, waits

PUTTING, TAKING = (Full, ShutDown), (Empty, ShutDown, ClosedError)
ENDINGS = {"ack": 6, "release": 6, "reject": 1}
ITEMS = {"put": 8, "put_immediate": 3, "get": 10, "get_many": 2, "linger": 1} | ENDINGS
CHANGES = {"unlock": 2, "lock": 1, "ack_up_to": 1, "close": 1, "purge": 1, "qsize": 1, "depth": 1, "unacked": 1}


@dataclass
class EntryPlan(Plan):
    few: ClassVar[int] = 4
    weights: ClassVar[dict[str, int]] = ITEMS | CHANGES
    changes_only: ClassVar[tuple[str, ...]] = tuple(CHANGES)

    calls: int = 5

    def draw(self) -> None:
        rng = self.rng
        self.subscribers = [Subscriber(name, rng.choice([0, 0, 1, 2])) for name in "abc"[: rng.randint(1, 3)]]
        self.deliveries: list[Any] = []
        self.spec = EntrySpec(
            self.subscribers,
            levels=rng.choice([1, 1, 3]),
            maxsize=rng.choice([0, 0, 0, 1, 2]),
            overflow=rng.choice(["block", "reject", "drop_oldest"]),
            groups=rng.choice([None, None, "shared"]),
        )

    def call(self) -> Listed:
        name, timeout = self.name_and_timeout()
        rng, numbers, subscriber = self.rng, self.numbers, self.rng.choice(self.subscribers)
        if timeout is None and subscriber.prefetch and name in ("get", "get_many", "linger"):
            timeout = SHORT  # without credit a get keeps waiting after a shutdown
        delivery = f"d{len(self.deliveries)}"
        known = rng.choice(self.deliveries[-4:]) if self.deliveries else (delivery, "never")
        if name == "get":
            self.deliveries.append(delivery)
        elif name in ("get_many", "linger"):
            self.deliveries.append((delivery, rng.randint(0, 1)))

        def entry() -> tuple[Any, ...]:
            group = rng.choice([None, "g", "h"]) if self.spec.groups else None
            return next(numbers), rng.randrange(self.spec.levels), group

        arguments: dict[str, Callable[[], tuple[Any, ...]]] = {
            "put": entry,
            "put_immediate": entry,
            "get": lambda: (subscriber.name, delivery),
            "get_many": lambda: (subscriber.name, rng.randint(1, 3), delivery),
            "linger": lambda: (subscriber.name, rng.randint(2, 3), delivery),
            "ack_up_to": lambda: (subscriber.name, known),
            "close": lambda: (subscriber.name,),
            "unacked": lambda: (subscriber.name,),
        }
        if name in ENDINGS or name in ("lock", "unlock"):
            return name, (known,), 0
        return name, arguments.get(name, tuple)(), timeout

    def history(self) -> list[Call]:
        spec = self.spec
        options = {"maxsize": spec.maxsize, "overflow": spec.overflow, "groups": spec.groups}
        leveled = functools.partial(PriorityEntryQueue, levels=spec.levels, mapping="direct")
        queue = (leveled if spec.levels > 1 else EntryQueue)(**options)
        subscriptions = {each.name: queue.subscribe(prefetch=each.prefetch) for each in spec.initial.subscribers}
        handles: dict[Any, Any] = {}
        calls = record([[bind(queue, subscriptions, handles, *call) for call in calls] for calls in self.lists])
        for subscription in subscriptions.values():
            subscription.close()
        return [replace(call, result=plain(call)) for call in calls]


def plain(call: Call) -> Any:
    if isinstance(call.result, Raised) or call.name not in ("put", "get", "get_many", "close", "shutdown"):
        return call.result
    if call.name == "get":
        return call.result.item
    return [entry.item for entry in call.result] if call.name == "get_many" else None


def bind(
    queue: Any,
    subscriptions: dict[str, Any],
    handles: dict[Any, Any],
    name: str,
    args: tuple[Any, ...],
    timeout: float | None,
) -> Planned:
    wait = waits(timeout)
    partial = functools.partial
    if name in ("put", "put_immediate"):
        put = partial(queue.put, args[0], **wait, priority=args[1], group=args[2])
        return Planned(name, args, put if name == "put" else lambda: put(immediate=True) is not None, PUTTING)
    if name in ("purge", "qsize", "depth", "shutdown"):
        return Planned(name, args, partial(getattr(queue, name), *args))
    if name == "linger":  # a get_many to the specification
        name, wait = "get_many", {"linger": SHORT, **wait}
    if name in ("get", "get_many"):
        subscription, keep = subscriptions[args[0]], partial(kept, handles, args[-1])
        call = partial(getattr(subscription, name), *args[1:-1], **wait)
        return Planned(name, args, lambda: keep(call()), TAKING)
    if name == "close":
        return Planned(name, args, subscriptions[args[0]].close)
    if name == "unacked":
        return Planned(name, args, lambda: subscriptions[args[0]].unacked)
    if name == "ack_up_to":
        return Planned(name, args, lambda: on_handle(handles, args[1], subscriptions[args[0]].ack_up_to))
    return Planned(name, args, lambda: on_handle(handles, args[0], lambda entry: getattr(entry, name)()))


def kept(handles: dict[Any, Any], delivery: Any, got: Any) -> Any:
    """What a get returned. Its entries are stored under the names of their deliveries."""
    handles.update(
        {(delivery, number): entry for number, entry in enumerate(got)} if isinstance(got, list) else {delivery: got}
    )
    return got


def on_handle(handles: dict[Any, Any], delivery: Any, act: Callable[[Any], Any]) -> Any:
    entry = handles.get(delivery)
    return NO_HANDLE if entry is None else act(entry)
