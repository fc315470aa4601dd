"""Random plans for a PubSubQueue: threads share two subscribers, and each may make one for itself."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Full
from typing import Any, ClassVar

from manytail import ClosedError, Lagged, PubSubQueue, ShutDown

from .history import Call, Planned, record
from .plan import SHORT, Listed, Plan, waits
from .pubsub_spec import PubSubSpec

PUBLISHING, TAKING = (Full, ShutDown), (Empty, ShutDown, ClosedError, Lagged)
ITEMS = {"publish": 8, "publish_many": 2, "get": 8, "get_many": 3, "linger": 2}
CHANGES = {"close": 1, "probe": 1, "position": 1, "lag": 1}


@dataclass
class PubSubPlan(Plan):
    weights: ClassVar[dict[str, int]] = ITEMS | CHANGES
    changes_only: ClassVar[tuple[str, ...]] = tuple(CHANGES)

    def __post_init__(self) -> None:
        super().__post_init__()
        later = [args[0] for calls in self.lists for name, args, _ in calls if name == "subscribe"]
        self.spec = PubSubSpec("ab", *self.bound, later)

    def draw(self) -> None:
        rng = self.rng
        self.own = [f"own{n}" if self.changes and rng.random() < 0.5 else None for n in range(self.threads)]
        self.bound = rng.choice([0, 0, 1, 2]), rng.choice(["block", "raise", "drop_oldest"])
        if self.bound[0] and self.bound[1] == "drop_oldest":
            # Several bulk calls at the same time that free slots one by one have too many explanations.
            del self.weights["publish_many"]

    def calls_of(self, thread: int) -> list[Listed]:
        rng, numbers, own = self.rng, self.numbers, self.own[thread]
        calls: list[Listed] = []
        made = rng.randrange(self.calls)
        for at in range(self.calls):
            if own and at == made:
                calls.append(("subscribe", (own, rng.choice(["next", "oldest"])), 0))
            reader = rng.choice(["a", "b", own] if own and at >= made else ["a", "b"])
            name, timeout = self.name_and_timeout()
            arguments: dict[str, Callable[[], tuple[Any, ...]]] = {
                "publish": lambda: (next(numbers),),
                "publish_many": lambda: (tuple(next(numbers) for _ in range(rng.randint(1, 3))),),
                "get_many": lambda reader=reader: (reader, rng.randint(1, 3)),
                "linger": lambda reader=reader: (reader, rng.randint(2, 4)),
                "probe": lambda at=at: (f"probe{thread}.{at}", rng.randint(0, 4)),
            }
            args = arguments.get(name, lambda reader=reader: (reader,))()
            calls.append(("subscribe" if name == "probe" else name, args, timeout))
        return calls

    def history(self) -> list[Call]:
        queue = PubSubQueue(maxsize=self.spec.maxsize, slow=self.spec.slow)
        readers = {reader.name: queue.subscribe() for reader in self.spec.initial.readers}
        planned = [[bind(queue, readers, *call) for call in calls] for calls in self.lists]
        calls = record(planned)
        now = max(call.end for call in calls) + 1
        # Figures are exact when no other call runs at the same time.
        figures = {"qsize": queue.qsize(), "subscribers": queue.subscribers}
        calls += [Call(-1, now, now, name, (), figure) for name, figure in figures.items()]
        for reader in readers.values():
            reader.close()
        return calls


def bind(queue: Any, readers: dict[str, Any], name: str, args: tuple[Any, ...], timeout: float | None) -> Planned:
    wait = waits(timeout)
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
    method, wait = ("get_many", {"linger": SHORT, **wait}) if name == "linger" else (name, wait)
    if reader:
        return Planned(name, args, partial(getattr(reader, method), *args[1:], **wait), TAKING)
    return Planned(name, args, lambda: getattr(readers[args[0]], method)(*args[1:], **wait), TAKING)
