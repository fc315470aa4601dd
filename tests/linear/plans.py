"""Random plans: a few tails (sub-queues), and the calls of a few threads on them. A seed fixes the plan, the machine
the schedule.

Some calls wait without a timeout: thread 0 ends with a shutdown, which ends them all.
"""
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, Full
from typing import Any

from manytail import IndexMultiQueue, ShutDown

from .history import Planned
from .multiqueue_spec import MultiQueueSpec, Tail, size_of

PUTTING, TAKING, ENDING = (Full, ShutDown, ValueError), (Empty, ShutDown), (ValueError,)
SHORT = 0.0003  # seconds; long enough for some waits to succeed, short enough for some not to

# What is drawn, and how often. Some plans have no `changes`, so that other calls contend too.
ITEMS = {"put": 8, "put_front": 2, "put_many": 2, "get": 8, "get_many": 2, "linger": 2}
CHANGES = {
    "peek": 2,
    "clear": 1,
    "discard": 2,
    "enable": 3,
    "priority": 1,
    "maxsize": 1,
    "weight": 1,
    "remove": 1,
    "qsize_of": 1,
    "size": 1,
    "qsize": 1,
    "task_done": 2,
    "join": 1,
}


@dataclass
class Plan:
    seed: int
    threads: int = 3
    calls: int = 4  # per thread
    changes: bool = True
    waits: bool = True
    spec: MultiQueueSpec = field(init=False)
    # Each call: (name, args, timeout). Timeout 0: do not wait.
    lists: list[list[tuple[str, tuple[Any, ...], float | None]]] = field(init=False)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        keys = "abc"[:rng.randint(1, 3)]
        bounded = rng.random() < 0.6
        tails = [
            Tail(
                key,
                rng.choice([0, 0, 1]),
                rng.choice([0, 1, 2]) if bounded else 0,
                rng.randint(1, 3),
                rng.random() < 0.8,
            )
            for key in keys
        ]
        if rng.random() < 0.4:
            tails = [
                tail._replace(sized=rng.random() < 0.6, maxsize=tail.maxsize and tail.maxsize + 1) for tail in tails
            ]
        bounded = bounded and (self.changes or any(tail.maxsize for tail in tails))
        self.spec = MultiQueueSpec(tails, rng.choice(["round_robin", "weighted"]), bounded)
        weights = ITEMS | CHANGES if self.changes else ITEMS
        if not bounded:
            weights = {name: weight for name, weight in weights.items() if name != "maxsize"}
        numbers = iter(range(1, 1_000_000))
        self.lists = [[self._call(rng, weights, keys, numbers) for _ in range(self.calls)] for _ in range(self.threads)]
        # The thread that shuts down must get there: none of its calls waits without a timeout.
        self.lists[0] = [(name, args, SHORT if timeout is None else timeout) for name, args, timeout in self.lists[0]]
        self.lists[0].append(("shutdown", (rng.random() < 0.3,), 0))

    def _call(
        self, rng: random.Random, weights: dict[str, int], keys: str, numbers: Any
    ) -> tuple[str, tuple[Any, ...], float | None]:
        name, = rng.choices(list(weights), list(weights.values()))
        key = rng.choice(keys)
        timeout = rng.choice([0, 0, SHORT, None]) if self.waits else 0
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

    def planned(self, new: Callable[..., Any]) -> list[list[Planned]]:
        """The calls, bound to a real queue that is made here."""
        queue = new(selection=self.spec.selection)
        if new is IndexMultiQueue:
            self.spec.get_many_is_one_instant = False
            unsized = tuple(tail._replace(sized=False) for tail in self.spec.initial.tails)
            self.spec.initial = self.spec.initial._replace(tails=unsized)
        tails = {
            tail.key: queue.add(
                tail.key,
                priority=tail.priority,
                maxsize=tail.maxsize,
                weight=tail.weight,
                enabled=tail.enabled,
                sizer=size_of if tail.sized else None,
            )
            for tail in self.spec.initial.tails
        }
        return [[bind(queue, tails, *call) for call in calls] for calls in self.lists]


def bind(queue: Any, tails: dict[str, Any], name: str, args: tuple[Any, ...], timeout: float | None) -> Planned:
    """One call as a function without arguments that runs no bytecode; through the SubQueue where it has the method."""
    wait = {"block": False} if timeout == 0 else {"timeout": timeout}
    partial = functools.partial
    if name in ("put", "put_front", "put_many"):
        return Planned(name, args, partial(getattr(tails[args[0]], name), args[1], **wait), PUTTING)
    if name == "get":
        return Planned(name, args, partial(queue.get_with_key, **wait), TAKING)
    if name == "get_many":
        return Planned(name, args, partial(queue.get_many, *args, **wait), TAKING)
    if name == "linger":
        return Planned(name, args, partial(queue.get_many, *args, linger=SHORT, **wait), TAKING)
    if name in ("enable", "priority", "maxsize", "weight"):
        return Planned("set", args, partial(setattr, tails[args[0]], *args[1:]))
    if name in ("clear", "discard"):
        return Planned(name, args, partial(getattr(tails[args[0]], name), *args[1:]))
    if name == "qsize_of":
        return Planned(name, args, tails[args[0]].qsize)
    if name == "size":
        return Planned(name, args, partial(getattr, tails[args[0]], "size"))
    if name == "remove":
        return Planned(name, args, partial(queue.remove, *args), (KeyError,))
    if name == "join":
        return Planned(name, args, partial(queue.join, 0))
    if name == "task_done":
        return Planned(name, args, queue.task_done, ENDING)
    if name == "peek":
        return Planned(name, args, queue.peek, TAKING)
    return Planned(name, args, partial(getattr(queue, name), *args))
