"""A map whose `workers` is a pair, and a server, on one virtual clock. The server works on `capacity` calls at once;
others wait in its line: its latency is flat up to the capacity, and grows beyond. It refuses what is more than twice
its capacity, with a RetryLater of one latency. A test may change the capacity while calls run."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, NamedTuple

from manytail import Limit, RetryLater
from manytail.mapping._options import Options

from .code import Code
from .served import Served

LATENCY = 1.0  # seconds that the server works on a call, on average


class Server(NamedTuple):
    capacity: int
    scatter: float = 0.2  # a call takes LATENCY x (1 +- scatter)


class Stretch(NamedTuple):
    """What the map got done in some calls."""

    calls: int  # that succeeded
    seconds: float
    refused: int
    most: int  # calls at once

    @property
    def rate(self) -> float:
        return self.calls / self.seconds


class Load(Served):
    """The map, with an input that never ends, and the server."""

    def __init__(
        self, server: Server, workers: tuple[int, ...], seed: int, code: Code, keys: int = 0,
        limits: tuple[Limit, ...] = (),
    ) -> None:  # fmt: skip
        least, *start, most = workers
        self.code = code
        options = Options(
            workers=most, least=least, start=sum(start), order="completion", errors="return", limits=limits,
            keyed=keys > 0,
        )  # fmt: skip
        self.server, self.capacity = server, server.capacity
        super().__init__(code.scheduler.Scheduler(options), Random(f"{seed} {server}"))
        self.keys = keys
        self.served = 0  # calls that the server works on
        self.line: deque[Any] = deque()
        self.done = self.refused = self.most = 0

    def run(self, calls: int) -> Stretch:
        """Until so many more calls have succeeded."""
        began, refused, end = self.now, self.refused, self.done + calls
        self.most = 0
        self.go_on()
        while self.done < end:
            self.step()
        return Stretch(calls, self.now - began, self.refused - refused, self.most)

    # ------------------------------------------------------------------------------------------------ the map
    def has_worker(self) -> bool:
        return True

    def new_item(self) -> Any:
        item = self.code.scheduler.Item(None, self.rng.randrange(self.keys) if self.keys else None)
        self.scheduler.assign([item])
        return item

    def begin(self, item: Any) -> None:
        if self.scheduler.gate.late(item, self.now):
            self.scheduler.missed(item, self.now)
            self.scheduler.dispatch(self.now)
            return
        item.attempts += 1
        self.most = max(self.most, self.served + len(self.line) + 1)
        if self.served + len(self.line) >= 2 * self.capacity:
            self.refused += 1
            later = RetryLater(LATENCY)
            self.scheduler.failed(item, self.scheduler.judge(item, later, self.rng.random()), self.now)
            self.scheduler.dispatch(self.now)
        else:
            self.line.append(item)
            self.serve()

    # ------------------------------------------------------------------------------------------------ the server
    def serve(self) -> None:
        while self.line and self.served < self.capacity:
            self.served += 1
            scatter = self.server.scatter
            self.at(self.now + LATENCY * self.rng.uniform(1 - scatter, 1 + scatter), self.end, self.line.popleft())

    def end(self, item: Any) -> None:
        self.served -= 1
        self.done += 1
        self.serve()
        item.result = None
        self.scheduler.succeeded(item, self.now)
