"""Random plans for a multi-queue: a few tails (sub-queues), and the calls of a few threads on them."""
import functools
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Full
from typing import Any, ClassVar

from manytail import IndexMultiQueue, MultiQueue, ShutDown

from .history import Call, Planned, record
from .multiqueue_spec import MultiQueueSpec, Tail, size_of
from .plan import SHORT, Listed, Plan, waits

PUTTING, TAKING = (Full, ShutDown, ValueError), (Empty, ShutDown)
REFUSALS = {"remove": (KeyError,), "task_done": (ValueError,), "peek": TAKING}
ITEMS = {"put": 8, "put_front": 2, "put_many": 2, "get": 8, "get_many": 2, "linger": 2}
CHANGES = {
    "peek": 2, "clear": 1, "discard": 2, "enable": 3, "priority": 1, "maxsize": 1, "weight": 1, "remove": 1,
    "qsize_of": 1, "size": 1, "qsize": 1, "task_done": 2, "join": 1,
}


@dataclass
class MultiQueuePlan(Plan):
    many: ClassVar[int] = 40
    weights: ClassVar[dict[str, int]] = ITEMS | CHANGES
    changes_only: ClassVar[tuple[str, ...]] = tuple(CHANGES)
    new: ClassVar[Callable[..., Any]] = MultiQueue

    def draw(self) -> None:
        rng = self.rng
        self.keys = "abc"[:rng.randint(1, 3)]
        bounded = rng.random() < 0.6
        tails = [
            Tail(
                key,
                priority=rng.choice([0, 0, 1]),
                maxsize=rng.choice([0, 1, 2]) if bounded else 0,
                weight=rng.randint(1, 3),
                enabled=rng.random() < 0.8,
            )
            for key in self.keys
        ]
        if rng.random() < 0.4:
            tails = [
                tail._replace(sized=rng.random() < 0.6, maxsize=tail.maxsize and tail.maxsize + 1) for tail in tails
            ]
        bounded = bounded and (self.changes or any(tail.maxsize for tail in tails))
        self.spec = MultiQueueSpec(tails, rng.choice(["round_robin", "weighted"]), bounded)
        if not bounded:
            self.weights.pop("maxsize", None)

    def call(self) -> Listed:
        name, timeout = self.name_and_timeout()
        rng, numbers, key = self.rng, self.numbers, self.rng.choice(self.keys)
        arguments: dict[str, Callable[[], tuple[Any, ...]]] = {
            "put": lambda: (key, next(numbers)),
            "put_front": lambda: (key, next(numbers)),
            "put_many": lambda: (key, tuple(next(numbers) for _ in range(rng.randint(1, 3)))),
            "get_many": lambda: (rng.randint(1, 3),),
            "linger": lambda: (rng.randint(1, 4),),
            "clear": lambda: (key,),
            "size": lambda: (key,),
            "qsize_of": lambda: (key,),
            "discard": lambda: (key, rng.randint(1, 6)),
            "enable": lambda: (key, "enabled", rng.random() < 0.6),
            "priority": lambda: (key, "priority", rng.choice([0, 1])),
            "maxsize": lambda: (key, "maxsize", rng.choice([1, 2, 3])),
            "weight": lambda: (key, "weight", rng.randint(1, 3)),
            "remove": lambda: (key,),
        }
        return name, arguments.get(name, tuple)(), timeout

    def history(self) -> list[Call]:
        return record(self.planned(type(self).new))

    def knowing(self, history: list[Call]) -> MultiQueueSpec:
        return self.spec.knowing(history)

    def planned(self, new: Callable[..., Any]) -> list[list[Planned]]:
        """The calls, bound to a real queue that is made here."""
        queue = new(selection=self.spec.selection)
        if new is IndexMultiQueue:
            self.spec.get_many_is_one_instant = False
            unsized = tuple(tail._replace(sized=False) for tail in self.spec.initial.tails)
            self.spec.initial = self.spec.initial._replace(tails=unsized)
        options = ("priority", "maxsize", "weight", "enabled")
        tails = {
            tail.key: queue.add(
                tail.key, sizer=size_of if tail.sized else None, **{name: getattr(tail, name) for name in options}
            )
            for tail in self.spec.initial.tails
        }
        return [[bind(queue, tails, *call) for call in calls] for calls in self.lists]


class IndexPlan(MultiQueuePlan):
    new: ClassVar[Callable[..., Any]] = IndexMultiQueue


def bind(queue: Any, tails: dict[str, Any], name: str, args: tuple[Any, ...], timeout: float | None) -> Planned:
    """One call as a function without arguments that runs no bytecode; through the SubQueue where it has the method."""
    wait = waits(timeout)
    partial = functools.partial
    if name in ("put", "put_front", "put_many"):
        return Planned(name, args, partial(getattr(tails[args[0]], name), args[1], **wait), PUTTING)
    if name == "get":
        return Planned(name, args, partial(queue.get_with_key, **wait), TAKING)
    if name in ("get_many", "linger"):
        linger = {"linger": SHORT} if name == "linger" else {}
        return Planned(name, args, partial(queue.get_many, *args, **linger, **wait), TAKING)
    if name in ("enable", "priority", "maxsize", "weight"):
        return Planned("set", args, partial(setattr, tails[args[0]], *args[1:]))
    if name in ("clear", "discard"):
        return Planned(name, args, partial(getattr(tails[args[0]], name), *args[1:]))
    if name == "qsize_of":
        return Planned(name, args, tails[args[0]].qsize)
    if name == "size":
        return Planned(name, args, partial(getattr, tails[args[0]], "size"))
    if name == "join":
        return Planned(name, args, partial(queue.join, 0))
    return Planned(name, args, partial(getattr(queue, name), *args), REFUSALS.get(name, ()))
