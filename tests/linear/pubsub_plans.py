"""Random plans for a PubSubQueue: threads share two subscribers, and each may make one for itself. A seed is a plan."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from queue import Empty, Full
from typing import Any

from manytail import ClosedError, Lagged, ShutDown

from .history import Call, Planned, Raised, record
from .pubsub_spec import PubSubSpec

PUBLISHING, TAKING = (Full, ShutDown), (Empty, ShutDown, ClosedError, Lagged)
SHORT = 0.0003

WEIGHTS = {
    "publish": 8,
    "publish_many": 2,
    "get": 8,
    "get_many": 3,
    "linger": 2,
    "close": 1,
    "probe": 1,
    "position": 1,
    "lag": 1,
}
ITEMS = ("publish", "publish_many", "get", "get_many", "linger")


@dataclass
class PubSubPlan:
    seed: int
    threads: int = 3
    calls: int = 4
    changes: bool = True
    waits: bool = True
    spec: PubSubSpec = field(init=False)
    # Each call: (name, args, timeout). Timeout 0: do not wait.
    lists: list[list[tuple[str, tuple[Any, ...], float | None]]] = field(init=False)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        maxsize, slow = rng.choice([0, 0, 1, 2]), rng.choice(["block", "raise", "drop_oldest"])
        # Several bulk calls at the same time that free slots one by one have too many explanations.
        self.weights = {name: weight for name, weight in WEIGHTS.items() if self.changes or name in ITEMS}
        if maxsize and slow == "drop_oldest":
            del self.weights["publish_many"]
        numbers = iter(range(1, 1_000_000))
        self.lists = [self._thread(rng, number, numbers) for number in range(self.threads)]
        # Ends every wait. Thread 0 itself never waits without a timeout.
        self.lists[0].append(("shutdown", (rng.random() < 0.3,), 0))
        later = [args[0] for calls in self.lists for name, args, _ in calls if name == "subscribe"]
        self.spec = PubSubSpec("ab", maxsize, slow, later)

    def _thread(self, rng: random.Random, number: int, numbers: Any) -> list[tuple[str, tuple[Any, ...], float | None]]:
        own = f"own{number}" if self.changes and rng.random() < 0.5 else None
        calls: list[tuple[str, tuple[Any, ...], float | None]] = []
        made = rng.randrange(self.calls)
        for at in range(self.calls):
            if own and at == made:
                calls.append(("subscribe", (own, rng.choice(["next", "oldest"])), 0))
            reader = rng.choice(["a", "b", own] if own and at >= made else ["a", "b"])
            (name,) = rng.choices(list(self.weights), list(self.weights.values()))
            timeout = rng.choice([0, 0, SHORT, None]) if self.waits else 0
            if number == 0 and timeout is None:
                timeout = SHORT
            arguments: dict[str, Callable[[], tuple[Any, ...]]] = {
                "publish": lambda: (next(numbers),),
                "publish_many": lambda: (tuple(next(numbers) for _ in range(rng.randint(1, 3))),),
                "get_many": lambda reader=reader: (reader, rng.randint(1, 3)),
                "linger": lambda reader=reader: (reader, rng.randint(2, 4)),
                "probe": lambda at=at: (f"probe{number}.{at}", rng.randint(0, 4)),
            }
            args = arguments.get(name, lambda reader=reader: (reader,))()
            calls.append(("subscribe" if name == "probe" else name, args, timeout))
        return calls

    def run(self, new: Callable[..., Any]) -> list[Call]:
        """The history of the calls on a queue made here."""
        queue = new(maxsize=self.spec.maxsize, slow=self.spec.slow)
        readers = {reader.name: queue.subscribe() for reader in self.spec.initial.readers}
        planned = [[bind(queue, readers, *call) for call in calls] for calls in self.lists]
        calls = [replace(call, result=plain(call)) for call in record(planned)]
        now = max(call.end for call in calls) + 1
        # Figures are exact when no other call runs at the same time.
        calls += [
            Call(-1, now, now, "qsize", (), queue.qsize()),
            Call(-1, now, now, "subscribers", (), queue.subscribers),
        ]
        for reader in readers.values():
            reader.close()
        return calls


def plain(call: Call) -> Any:
    return None if call.name == "subscribe" and not isinstance(call.result, Raised) else call.result


def bind(queue: Any, readers: dict[str, Any], name: str, args: tuple[Any, ...], timeout: float | None) -> Planned:
    wait = {"block": False} if timeout == 0 else {"timeout": timeout}
    partial = functools.partial
    if name in ("publish", "publish_many"):
        return Planned(name, args, partial(getattr(queue, name), *args, **wait), PUBLISHING)
    if name == "subscribe":

        def subscribe() -> Any:
            readers[args[0]] = queue.subscribe(start=args[1])

        return Planned(name, args, subscribe, (ValueError,))
    if name == "shutdown":
        return Planned(name, args, partial(getattr(queue, name), *args))
    reader = readers.get(args[0])  # a subscriber that a thread makes for itself is looked up once it exists
    if name in ("position", "lag"):
        return Planned(name, args, lambda: getattr(readers[args[0]], name))
    if name == "close":
        return Planned(name, args, reader.close if reader else lambda: readers[args[0]].close())
    if name == "linger":  # a get_many to the specification
        name, wait = "get_many", {"linger": SHORT, **wait}
    call = (
        partial(getattr(reader, name), *args[1:], **wait)
        if reader
        else lambda: getattr(readers[args[0]], name)(*args[1:], **wait)
    )
    return Planned(name, args, call, TAKING)
