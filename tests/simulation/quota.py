"""A map and a server on one virtual clock. The server has a quota of tokens and requests for each minute of the clock,
as APIs of language models have it. The map estimates what a call costs, and hears the true cost when it has ended."""

from __future__ import annotations

import math
from functools import partial
from random import Random
from typing import NamedTuple

from manytail import Rate, RetryLater
from manytail.mapping._item import Item
from manytail.mapping._options import Options
from manytail.mapping._scheduler import Scheduler
from manytail.mapping._types import Delivery

from .served import Served

MINUTE, TOKENS, REQUESTS = 60.0, 90_000.0, 500  # of the server
CALL, REFUSAL = 5.0, 0.2  # seconds that they take


class Outcome(NamedTuple):
    used: float  # tokens, as a fraction of those of all minutes
    refused: float  # of the calls, as a fraction
    failed: int


class Quota(Served):
    """The map, whose rates are `share` of the quota, and the server."""

    def __init__(self, share: float, seconds: float, seed: int) -> None:
        # `cost` says only that this limit has one: `new_item` gives each item its costs, as the reader of a map does.
        rates = Rate(share * REQUESTS, "minute"), Rate(share * TOKENS, "minute", cost=str)
        options = Options(workers=64, order="completion", errors="return", limits=rates, wants_delivery=True)
        super().__init__(Scheduler(options), Random(seed))
        self.seconds = seconds
        self.minute = 0  # of the clock, for which the server counts
        self.tokens = self.requests = 0.0  # of this minute
        self.used = 0.0
        self.calls = self.refused = 0
        self.idle = options.workers

    def run(self) -> Outcome:
        self.go_on()
        while self.next_at() < self.seconds:
            self.step()
        failed = self.scheduler.failures
        return Outcome(self.used / (TOKENS * self.seconds / MINUTE), self.refused / self.calls, failed)

    def has_worker(self) -> bool:
        return self.idle > 0

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
