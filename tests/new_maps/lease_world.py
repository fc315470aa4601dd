"""A simulated world of processes that share limits through a database: virtual time, seeded, checked after each event.

Each process has owners, as in `ledger_world`, whose accounts are leased, and does what `limits/exchange.py` does. A
round trip takes time; its answer may get lost, so that the same report is told again; a process may be killed, after
which its calls do not count and its maps are not made again. The database decides with `grants.grant`, by a clock of
its own.

What holds over all processes: in any t seconds at most burst + the largest cost + rate * (t + LATE + a trip) starts;
what was spent and what running calls cost is at most the amount of a Budget; what runs at most that of a Concurrency.
In the end every call was made, and if no process was killed nothing is reserved, and a Budget has settled what was
spent.
"""

from __future__ import annotations

import math
from functools import partial
from random import Random
from typing import Any

from manytail._maps.limits import grants
from manytail._maps.limits.grants import Terms
from manytail._maps.limits.leases import LeasedPermits, LeasedSpending, LeasedTokens, Requests, places_of
from manytail._maps.limits.ledger import LATE

from .ledger_world import Owner, Violation, World

CLOCK = 1_000.0  # of the database, less ours
NEARLY = 1e-6
MOST_EVENTS = 30_000


class Database:
    def __init__(self, world: LeaseWorld) -> None:
        self.world = world
        self.rows: dict[bytes, grants.Row] = {}
        self.holds: dict[bytes, grants.Holds] = {}

    def exchange(self, ahead: float, asks: list[Any], calls: list[Any]) -> tuple[list[Any], float]:
        for ask in asks:
            self.rows.setdefault(ask.limit, grants.Row())
            self.holds.setdefault(ask.limit, {})
        now = self.world.now + CLOCK
        return grants.grant(now, ahead, self.world.terms, self.rows, self.holds, asks, calls), now


class Process:
    """Its accounts, and the thread of its exchange."""

    def __init__(self, world: LeaseWorld, number: int) -> None:
        self.world, self.number = world, number
        self.requests = Requests(b"%d " % number, lambda: True)
        self.accounts = {limit: self.account(limit, terms) for limit, terms in world.terms.items()}
        self.owners: list[Owner] = []
        self.alive, self.exchanging, self.returned = True, False, False
        self.timer = math.inf

    def account(self, limit: bytes, terms: Terms) -> Any:
        name = limit.partition(b":")[0]
        if name == b"rate":
            account: Any = LeasedTokens(limit, False, None, terms.interval, terms.burst, terms.per)
        else:
            account = (LeasedSpending if name == b"budget" else LeasedPermits)(limit, False, None, terms.amount)
        account.lease_from(self.requests, limit, limit, terms)
        return account

    def look(self) -> None:
        """Exchange what is due, as the thread does when it is woken."""
        if self.exchanging or not self.alive:
            return
        now = self.world.now
        is_over = not any(owner.calls or owner.running for owner in self.owners)
        returns = is_over and not self.returned and bool(self.requests.open)
        self.returned = self.returned or returns
        due = self.requests.begin_wait([])
        if due > now and not returns:
            if due < self.timer:
                self.timer = due
                self.world.at(due, partial(self.ring, due))
            return
        needs: dict[Any, float] = {}
        calls: list[Any] = []
        self.requests.gather(needs, calls, returns, now, [])
        if not needs:
            return
        self.exchanging = True
        asks = [account.report(need, returns, now, []) for account, need in needs.items()]
        work = partial(self.world.database.exchange, self.requests.ahead, asks, places_of(needs, calls))
        self.world.after_trip(partial(self.execute, work, needs, now))

    def ring(self, due: float) -> None:
        """The thread has one timer."""
        if self.timer == due:
            self.timer = math.inf
            self.look()

    def execute(self, work: Any, needs: dict[Any, float], sent: float) -> None:
        if not self.alive:
            return
        answered = work()
        if self.world.random.random() < self.world.lost:
            self.world.after_trip(partial(self.execute, work, needs, sent))  # nobody hears of it
        else:
            self.world.after_trip(partial(self.answered, answered, needs, sent))

    def answered(self, answered: tuple[list[Any], float], needs: dict[Any, float], sent: float) -> None:
        if not self.alive:
            return
        answers, at = answered
        self.exchanging, wakes = False, []
        self.requests.took(self.world.now - sent)
        offset = self.world.now - at
        for (account, need), answer in zip(needs.items(), answers, strict=True):
            account.answered(answer, need, offset, self.world.now, wakes)
        self.world.deliver(wakes, None)
        self.look()


class LeaseWorld(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng: Random = self.random
        self.trip = rng.choice([0.0, 0.002, 0.02, 0.1])  # the longest way to the database, or from it
        self.lost = rng.choice([0.0, 0.0, 0.2])
        self.terms: dict[bytes, Terms] = {}
        if rng.random() < 0.6:
            rate = rng.choice([3.0, 30.0, 200.0])
            self.terms[b"rate:r"] = Terms(rate, 1.0, rng.choice([0.0, 0.0, 3.0 / rate]))
        if rng.random() < 0.4 or not self.terms:
            self.terms[b"concurrency:c"] = Terms(rng.choice([1.0, 2.0, 6.0]), lease=5.0)
        if rng.random() < 0.4:
            self.terms[b"budget:b"] = Terms(rng.choice([10.0, 50.0, 1_000.0]))
        self.database = Database(self)
        self.processes = [Process(self, number) for number in range(rng.randint(1, 3))]
        self.homes: dict[int, Process] = {}
        for process in self.processes:
            for number in range(rng.randint(1, 3)):
                self.add_owner(process, number)
            if rng.random() < 0.2:
                self.at(rng.uniform(0.0, 3.0), partial(self.kill, process))
        self.killed = False
        self.checks = 0
        self.log: list[tuple[float, float]] = []  # starts under the Rate
        self.spent = self.given_back = 0.0

    def add_owner(self, process: Process, number: int) -> None:
        rng = self.random
        chosen = [account for account in process.accounts.values() if rng.random() < 0.8]
        chosen = chosen or list(process.accounts.values())
        cost = min([1.0, *(terms.amount for name, terms in self.terms.items() if name == b"concurrency:c")])
        mean = rng.choice([0.001, 0.05, 0.5])
        owner = Owner(
            f"{process.number}.{number}", chosen, rng.randint(1, 40), [cost] * len(chosen),
            lambda: rng.expovariate(1 / mean), rng.choice([lambda cost: cost, lambda cost: cost / 2]),
            rng.choice([1, 4]),
        )  # fmt: skip
        self.homes[id(owner)] = process
        process.owners.append(owner)
        self.owners.append(owner)

    def after_trip(self, call: Any) -> None:
        self.at(self.now + self.trip * self.random.uniform(0.7, 1.0), call)

    # ------------------------------------------------------------------------------------------------ events
    def ask(self, owner: Owner) -> None:
        super().ask(owner)
        if not owner.left:
            self.homes[id(owner)].look()

    def end(self, owner: Owner, spent: list[float]) -> None:
        if owner.left:
            return
        for account, cost, real in zip(owner.accounts, owner.costs, spent, strict=True):
            if isinstance(account, LeasedSpending):
                self.spent += real
            elif isinstance(account, LeasedTokens):
                self.given_back += cost - real
        super().end(owner, spent)

    def start(self, owner: Owner, until: float) -> None:
        super().start(owner, until)
        for account, cost in zip(owner.accounts, owner.costs, strict=True):
            if isinstance(account, LeasedTokens):
                self.log.append((self.now, cost))

    def kill(self, process: Process) -> None:
        """Its running calls end with it. What a Budget had reserved for it counts as spent from then on."""
        process.alive, self.killed = False, True
        for owner in process.owners:
            owner.left = True
        for account in process.accounts.values():
            held = self.held.pop(account, [])
            self.spent += sum(held) if isinstance(account, LeasedSpending) else 0.0

    # ------------------------------------------------------------------------------------------------ invariants
    def check(self) -> None:
        self.checks += 1
        if self.checks > MOST_EVENTS:
            raise Violation("the world does not come to an end")
        for name, terms in self.terms.items():
            accounts = [process.accounts[name] for process in self.processes]
            held = sum(sum(self.held.get(account, ())) for account in accounts)
            if name == b"concurrency:c" and held > terms.amount + NEARLY:
                raise Violation(f"a Concurrency of {terms.amount}: {held} run")
            if name == b"budget:b" and self.spent + held > terms.amount + NEARLY:
                raise Violation(f"a Budget of {terms.amount}: {self.spent} spent, {held} run")

    def check_end(self) -> None:
        for owner in self.owners:
            if owner.calls and not owner.left:
                raise Violation(f"{owner.name} waits for ever, with {owner.calls} calls")
        self.check_starts()
        if self.killed:
            return
        for name, holds in self.database.holds.items():
            if any(hold.reserved > NEARLY for hold in holds.values()):
                raise Violation(f"{name!r} is still reserved")
        if b"budget:b" in self.database.rows:
            settled = self.database.rows[b"budget:b"].settled
            if abs(settled - self.spent) > NEARLY:
                raise Violation(f"settled {settled}, spent {self.spent}")

    def check_starts(self) -> None:
        terms = self.terms.get(b"rate:r")
        if terms is None or not self.log:
            return
        rate = terms.amount / terms.per
        allowed = terms.burst * rate + 1.0 + self.given_back + rate * (LATE + 2 * self.trip) + NEARLY
        lowest, total = 0.0, 0.0
        for time, cost in self.log:
            lowest = min(lowest, total - time * rate)
            total += cost
            if total - time * rate - lowest > allowed:
                raise Violation(f"a Rate of {rate:g} a second: too many starts up to {time:.3f}")


def frequency(trip: float, rate: float) -> float:
    """What a process that waits for a Rate alone reaches of it in the long run, where that is the time of a round
    trip."""
    world = LeaseWorld(0)
    world.terms, world.lost, world.trip = {b"rate:r": Terms(rate, 1.0)}, 0.0, trip / 2
    world.owners, world.events, world.homes = [], [], {}
    process = Process(world, 0)
    world.processes = [process]
    owner = Owner("0", list(process.accounts.values()), int(6 * rate), [1.0], lambda: 0.001, workers=8)
    world.homes[id(owner)] = process
    process.owners, world.owners = [owner], [owner]
    world.run()
    world.check_end()
    log = world.log[len(world.log) // 3 :]
    return (len(log) - 1) / (log[-1][0] - log[0][0]) / rate
