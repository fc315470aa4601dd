"""A simulated world of maps that share limits of one ledger: virtual time, seeded, and checked after each event.

An owner (a map, or a block of `with limit:`) has calls to make, one after the other or several at once. It asks the
ledger for its next one when it has a free worker: at first, at the time that the ledger named, and when it is woken. It
asks at no other time, so a ledger that forgets somebody leaves an owner with calls and nothing to wait for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from manytail._maps.limits import ledger
from manytail._maps.limits.ledger import LATE, Account, Never, Permits, Spending, Tokens, Wait, Waiter


@dataclass(eq=False)
class Owner:
    name: str
    accounts: Sequence[Account]
    calls: int  # that are still to be made
    costs: Sequence[float]
    seconds: Callable[[], float]  # that a call takes
    spends: Callable[[float], float] = lambda cost: cost
    workers: int = 1
    running: int = 0
    started: int = 0
    refused: int = 0
    blocked_until: float = -math.inf  # its loop is blocked, and hears of nothing
    heard: bool = False  # of a wake, while it was blocked
    left: bool = False
    timer: int = -1
    waiting_since: float = math.inf
    longest: float = 0.0  # that one call has waited
    waiters: list[Waiter] = field(default_factory=list)
    loop: Any = None

    def __post_init__(self) -> None:
        waiter = Waiter(self)
        lane = Waiter(self, "lane")
        self.waiters = [lane if account.of_key else waiter for account in self.accounts]


class Violation(AssertionError):
    """An invariant does not hold."""


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count()
        self.owners: list[Owner] = []
        self.starts: dict[Account, list[tuple[float, float]]] = {}
        self.refunds: dict[Account, float] = {}
        self.held: dict[Account, list[float]] = {}
        self.settled: dict[Account, float] = {}

    # ------------------------------------------------------------------------------------------------ events
    def at(self, time: float, call: Callable[[], None]) -> None:
        late = self.random.choice([0.0, 0.0, 0.001, 0.003])  # timers ring late
        heapq.heappush(self.events, (max(self.now, time) + late, next(self.numbers), call))

    def run(self, until: float = 1e7) -> None:
        for owner in self.owners:
            self.at(0.0, lambda owner=owner: self.ask(owner))  # type: ignore[misc]
        steps = 0
        while self.events and self.now < until:
            before = self.now
            self.now, _, call = heapq.heappop(self.events)
            steps = steps + 1 if self.now == before else 0
            if steps > 10_000:
                raise Violation(f"{self.now}: time stands still")
            call()
            self.check()

    def ask(self, owner: Owner) -> None:
        if self.now < owner.blocked_until:
            owner.heard = True
            return
        while owner.calls and owner.running < owner.workers and not owner.left:
            wakes: list[Waiter] = []
            answer = ledger.take(owner.waiters, owner.accounts, owner.costs, self.now, wakes)
            self.deliver(wakes, owner)
            owner.waiting_since = min(owner.waiting_since, self.now)
            if isinstance(answer, Wait):
                owner.timer = next(self.numbers)
                if answer.at < math.inf:
                    self.at(answer.at, lambda timer=owner.timer: self.ring(owner, timer))  # type: ignore[misc]
                return
            owner.longest = max(owner.longest, self.now - owner.waiting_since)
            owner.waiting_since = math.inf
            owner.calls -= 1
            if isinstance(answer, Never):
                owner.refused += 1
                continue
            self.start(owner, answer)

    def ring(self, owner: Owner, timer: int) -> None:
        """An owner has one timer: that of its last answer."""
        if owner.timer == timer:
            self.ask(owner)

    def start(self, owner: Owner, until: float) -> None:
        if until < self.now:
            raise Violation(f"{owner.name}: a start that is over at once")
        owner.running += 1
        for account, cost in zip(owner.accounts, owner.costs, strict=True):
            self.starts.setdefault(account, []).append((self.now, cost))
            self.held.setdefault(account, []).append(cost)
        begun = self.random.random() > 0.02  # else the worker came too late: undo
        owner.started += begun
        seconds = owner.seconds() if begun else LATE
        spent = [owner.spends(cost) if begun else 0.0 for cost in owner.costs]
        for place, account in enumerate(owner.accounts):
            if type(account) is Permits:
                spent[place] = owner.costs[place] if begun else 0.0
        owner.calls += not begun
        self.at(self.now + seconds, lambda: self.end(owner, spent))

    def end(self, owner: Owner, spent: list[float]) -> None:
        owner.running -= 1
        for account, cost, real in zip(owner.accounts, owner.costs, spent, strict=True):
            self.held[account].remove(cost)
            self.settled[account] = self.settled.get(account, 0.0) + real
            self.refunds[account] = self.refunds.get(account, 0.0) + max(0.0, cost - real)
        wakes: list[Waiter] = []
        ledger.end(owner.accounts, owner.costs, spent, self.now, wakes)
        self.deliver(wakes, None)
        self.ask(owner)

    def deliver(self, wakes: list[Waiter], asker: Owner | None) -> None:
        for owner in dict.fromkeys(waiter.owner for waiter in wakes):
            if owner is not asker:
                self.at(self.now, lambda owner=owner: self.ask(owner))  # type: ignore[misc]

    def block(self, owner: Owner, seconds: float) -> None:
        owner.blocked_until = self.now + seconds
        self.at(owner.blocked_until, lambda: self.unblock(owner))

    def unblock(self, owner: Owner) -> None:
        if owner.heard:
            owner.heard = False
            self.ask(owner)

    def leave(self, owner: Owner) -> None:
        owner.left = True
        wakes: list[Waiter] = []
        for waiter in dict.fromkeys(owner.waiters):
            ledger.leave(waiter, self.now, wakes)
        self.deliver(wakes, owner)

    # ------------------------------------------------------------------------------------------------ invariants
    def check(self) -> None:
        for account in {account for owner in self.owners for account in owner.accounts}:
            held = sum(self.held.get(account, ()))
            arrivals = [waiter.arrival for waiter in account.queue]
            if arrivals != sorted(arrivals) or any(account not in waiter.stands for waiter in account.queue):
                raise Violation("a queue out of order")
            if any(waiter.owner.left for waiter in account.queue):
                raise Violation("who has left stands in a queue")
            if not isinstance(account, Permits):
                continue
            if abs(account._reserved - held) > 1e-6:
                raise Violation(f"reserved: {account._reserved}, held by calls: {held}")
            if isinstance(account, Spending):
                settled = self.settled.get(account, 0.0)
                if abs(account.settled - settled) > 1e-6 or settled + held > account._amount + 1e-6:
                    raise Violation(f"a Budget of {account._amount}: settled {settled}, held {held}")
            elif held > account._amount + 1e-6:
                raise Violation(f"a Concurrency of {account._amount}: held {held}")

    def check_end(self) -> None:
        """All calls were made, and no Rate was exceeded."""
        for owner in self.owners:
            if owner.calls and not owner.left:
                raise Violation(f"{owner.name} waits for ever, with {owner.calls} calls")
        for account, starts in self.starts.items():
            if isinstance(account, Tokens):
                self.check_rate(account, starts)

    def check_rate(self, account: Tokens, starts: list[tuple[float, float]]) -> None:
        """burst + the largest cost + (t + 0.1) / interval in any t seconds, besides what was given back."""
        interval = account._interval
        allowed = account._burst / interval + max(cost for _, cost in starts) + self.refunds.get(account, 0.0) + 1e-6
        lowest = 0.0  # of (sum before) - time / interval
        total = 0.0
        for time, cost in starts:
            lowest = min(lowest, total - time / interval)
            total += cost
            if total - time / interval - lowest > allowed + LATE / interval:
                raise Violation(f"a Rate of {1 / interval:g} a second: too many starts up to {time:.3f}")


# ---------------------------------------------------------------------------------------------------- random worlds
def random_world(seed: int) -> World:
    world = World(seed)
    random = world.random
    accounts = [random_account(random) for _ in range(random.randint(1, 4))]
    for number in range(random.randint(1, 6)):
        chosen = random.sample(accounts, random.randint(1, len(accounts)))
        top = min([account._amount for account in chosen if type(account) is Permits], default=3.0)
        cost = random.choice([1.0, 1.0, 0.5, 3.0])
        costs = [random.choice([0.0, cost]) if random.random() < 0.1 else min(cost, top) for _ in chosen]
        mean = random.choice([0.01, 0.1, 1.0])
        owner = Owner(
            f"map {number}", chosen, random.randint(1, 30), costs,
            lambda mean=mean: random.expovariate(1 / mean),
            random.choice([lambda cost: cost, lambda cost: cost * random.uniform(0.2, 1.0)]),
            random.choice([1, 1, 4]),
        )  # fmt: skip
        world.owners.append(owner)
        if random.random() < 0.3:
            world.at(random.uniform(0, 3), lambda owner=owner: world.block(owner, random.uniform(0.05, 2)))
        if random.random() < 0.15:
            world.at(random.uniform(0, 2), lambda owner=owner: world.leave(owner))
    return world


def random_account(random: Random) -> Any:
    kind = random.choice([Tokens, Permits, Permits, Spending])
    of_key = random.random() < 0.3
    if kind is Tokens:
        rate = random.choice([2.0, 20.0, 200.0])
        return Tokens(None, of_key, None, 1 / rate, random.choice([0.0, 0.0, 3 / rate]), 1.0)
    return kind(None, of_key, None, random.choice([1.0, 2.0, 5.0]) * (20 if kind is Spending else 1))
