"""Random plans: what a few threads call. A seed fixes the plan, the machine the schedule.

Some calls wait without a timeout: thread 0, which never does, ends with a shutdown, which ends them all.
"""
import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .checker import Specification, check
from .history import Call

SHORT = 0.0003  # seconds; long enough for some waits to succeed, short enough for some not to
Listed = tuple[str, tuple[Any, ...], float | None]  # name, arguments, timeout; timeout 0: do not wait


def waits(timeout: float | None) -> dict[str, Any]:
    return {"block": False} if timeout == 0 else {"timeout": timeout}


@dataclass
class Plan:
    few: ClassVar[int] = 3      # calls per thread of a small plan of four threads
    many: ClassVar[int] = 25    # calls per thread of a long plan of three
    weights: ClassVar[dict[str, int]]  # what is drawn, and how often
    changes_only: ClassVar[tuple[str, ...]]  # some plans have none of these, so that other calls contend too

    seed: int
    threads: int = 3
    calls: int = 4  # per thread
    changes: bool = True
    waits: bool = True
    spec: Any = field(init=False)
    lists: list[list[Listed]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.numbers = iter(range(1, 1_000_000))
        self.weights = {
            name: weight for name, weight in self.weights.items() if self.changes or name not in self.changes_only
        }
        self.draw()
        self.lists = [self.calls_of(number) for number in range(self.threads)]
        self.lists[0] = [(name, args, SHORT if timeout is None else timeout) for name, args, timeout in self.lists[0]]
        self.lists[0].append(("shutdown", (self.rng.random() < 0.3,), 0))

    def draw(self) -> None:
        """Sets what the calls are about, and the specification."""
        raise NotImplementedError

    def calls_of(self, thread: int) -> list[Listed]:
        return [self.call() for _ in range(self.calls)]

    def call(self) -> Listed:
        raise NotImplementedError

    def name_and_timeout(self) -> tuple[str, float | None]:
        (name,) = self.rng.choices(list(self.weights), list(self.weights.values()))
        return name, self.rng.choice([0, 0, SHORT, None]) if self.waits else 0

    def history(self) -> list[Call]:
        """What the calls did, on a queue made here."""
        raise NotImplementedError

    def knowing(self, history: list[Call]) -> Specification:
        return self.spec

    def check(self) -> None:
        try:
            history = self.history()
            check(history, self.knowing(history))
        except AssertionError as error:
            error.add_note(f"the plan: {self}")
            raise
