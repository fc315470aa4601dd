"""A map against a server with a quota of tokens and requests in fixed minutes, as APIs of language models have it, on
the virtual clock. What a call costs is known when it has ended; the map estimates it."""

from __future__ import annotations

import math
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, NamedTuple

from manytail import Empty, Rate, RetryLater
from manytail.mapping._item import Item
from manytail.mapping._options import Options
from manytail.mapping._scheduler import Scheduler
from manytail.mapping._types import Delivery

MINUTE, TOKENS, REQUESTS = 60.0, 90_000.0, 500  # of the server
CALL, REFUSAL, LATE = 5.0, 0.2, 0.003  # seconds; a timer is late by at most LATE


class Outcome(NamedTuple):
    used: float  # of the server's tokens, as a fraction
    refused: float  # of the calls, as a fraction
    failed: int


class Quota:
    """One map, whose rates are `share` of what the server has."""

    def __init__(self, share: float, seconds: float, seed: int) -> None:
        rates = Rate(share * REQUESTS, "minute"), Rate(share * TOKENS, "minute", cost=str)
        options = Options(workers=64, order="completion", errors="return", limits=rates, wants_delivery=True)
        self.scheduler = Scheduler(options)
        self.rng = Random(seed)
        self.seconds = seconds
        self.now = 0.0
        self.minute = 0
        self.tokens = self.requests = 0.0  # of this minute
        self.used = 0.0
        self.calls = self.refused = 0
        self.idle = options.workers
        self.events: list[tuple[float, int, Any, Item | None]] = []
        self.numbers = count()
        self.timer_at = math.inf

    def run(self) -> Outcome:
        self.go_on()
        while self.events and self.events[0][0] < self.seconds:
            self.now, _, event, item = heappop(self.events)
            event(item)
            self.go_on()
        failed = self.scheduler.failures
        return Outcome(self.used / (TOKENS * self.seconds / MINUTE), self.refused / self.calls, failed)

    def at(self, time: float, event: Any, item: Item | None = None) -> None:
        heappush(self.events, (time, next(self.numbers), event, item))

    def go_on(self) -> None:
        """What a runner does after each event."""
        scheduler = self.scheduler
        scheduler.took(len(scheduler.output))
        scheduler.output.clear()
        scheduler.arrived([self.new_item() for _ in range(scheduler.room())], self.now)
        scheduler.dispatch(self.now)
        while self.idle:
            try:
                self.begin(scheduler.ready.get_nowait())
            except Empty:
                break
        if scheduler.wake_at < self.timer_at:
            self.timer_at = scheduler.wake_at
            self.at(self.timer_at + self.rng.uniform(0.0, LATE), partial(self.tick, self.timer_at))

    def tick(self, at: float, _: Any) -> None:
        if at == self.timer_at:  # else an earlier one was set after it
            self.timer_at = math.inf
            self.scheduler.tick(self.now)

    def new_item(self) -> Item:
        cost = self.rng.lognormvariate(math.log(1_000) - 0.5**2 / 2, 0.5)  # of mean 1,000
        item = Item(cost)
        item.costs = 1.0, cost * math.exp(self.rng.uniform(math.log(0.3), math.log(3.0)))
        self.scheduler.assign([item])
        return item

    def begin(self, item: Item) -> None:
        scheduler, gate = self.scheduler, self.scheduler.gate
        assert gate is not None
        if gate.late(item, self.now):
            scheduler.missed(item, self.now)
            return
        item.attempts += 1
        item.delivery = Delivery(names=scheduler.options.spent_names)
        if scheduler.reports_starts:
            scheduler.started(item, self.now)
        self.idle -= 1
        self.calls += 1
        minute = int(self.now // MINUTE)
        if minute > self.minute:
            self.minute, self.tokens, self.requests = minute, 0.0, 0
        if self.requests + 1 > REQUESTS or self.tokens + item.value > TOKENS:
            self.refused += 1
            self.at(self.now + REFUSAL, partial(self.refuse, (minute + 1) * MINUTE), item)
        else:
            self.requests += 1
            self.tokens += item.value
            self.used += item.value
            self.at(self.now + CALL, self.succeed, item)

    def succeed(self, item: Item) -> None:
        item.delivery.spent(item.value)
        item.delivery._end()
        item.result = item.value
        self.idle += 1
        self.scheduler.succeeded(item, self.now)

    def refuse(self, until: float, item: Item) -> None:
        item.delivery.spent(0.0)
        item.delivery._end()
        self.idle += 1
        later = RetryLater(max(0.0, until - self.now))
        self.scheduler.failed(item, self.scheduler.judge(item, later, self.rng.random()), self.now)
