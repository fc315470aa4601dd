"""A map that a server serves, on one virtual clock. What the server does is said by subclasses."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from manytail import Empty

MOST_LATE = 0.003  # seconds that a timer rings late


class Served:
    """The map, with an input that never ends."""

    def __init__(self, scheduler: Any, rng: Random) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.now = 0.0
        self._events: list[tuple[float, int, Any, Any]] = []
        self._numbers = count()
        self._timer_at = math.inf

    # ------------------------------------------------------------------------------------------------ of subclasses
    def new_item(self) -> Any:
        raise NotImplementedError

    def begin(self, item: Any) -> None:
        """A call starts, unless it comes too late."""
        raise NotImplementedError

    def has_worker(self) -> bool:
        """Whether a worker is free."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------ the clock
    def at(self, time: float, event: Any, argument: Any) -> None:
        heappush(self._events, (time, next(self._numbers), event, argument))

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, event, argument = heappop(self._events)
        event(argument)
        self.go_on()

    def next_at(self) -> float:
        """When the next event happens."""
        return self._events[0][0]

    # ------------------------------------------------------------------------------------------------ the runner
    def go_on(self) -> None:
        """What a runner does after each event."""
        scheduler = self.scheduler
        scheduler.took(len(scheduler.output))
        scheduler.output.clear()
        scheduler.arrived([self.new_item() for _ in range(scheduler.room())], self.now)
        scheduler.dispatch(self.now)
        while self.has_worker():
            try:
                self.begin(scheduler.ready.get_nowait())
            except Empty:
                break
        if scheduler.wake_at < self._timer_at:
            self._timer_at = scheduler.wake_at
            self.at(max(self.now, self._timer_at) + self.rng.uniform(0.0, MOST_LATE), self._tick, self._timer_at)

    def _tick(self, at: float) -> None:
        if at == self._timer_at:  # else a timer with an earlier time has replaced it
            self._timer_at = math.inf
            self.scheduler.tick(self.now)
