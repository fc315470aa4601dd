"""Worlds with shared limits: several processes, each with its own maps, one database, and one service that they call.

All on one virtual clock, drawn from a seed. Processes are killed and run again, and end early because the database is
away for too long. The maps of a process use the same limits. The database is slow or away, and answers get lost after
the transaction was done, so that it is made again. Each process does what `_exchange` does, and each map what a runner
does: it looks results up, and records new ones in groups.

The service's log decides, whoever made the call:

    rates        in any t seconds at most burst + the largest + rate * (t + LATE + the longest answer) calls start, of
                 all and of each key; the same in cost
    budget       what ended calls spent and running calls cost is never more than the amount
    concurrency  what runs costs never more than the amount
    asks         those of at most as many keys as a map has workers are on their way at a time
    remember     no call of an item whose result was recorded when it was looked up, at most a second before, or before
                 the slot that it missed; what is paid for twice ran, or was not recorded, when its process was killed
    output       of each map that ends: every item once, in the promised order
    the end      no process that ended well holds anything; a Budget has settled what calls spent, and what killed
                 processes had reserved
    progress     every map ends; in a calm world the starts are as frequent as the rate allows, or half so if the
                 database is slow
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

from manytail import Budget, Concurrency, Empty, Rate, Retry, RetryLater, Shared
from manytail.mapping._idempotency import idempotency_key
from manytail.mapping._item import Item
from manytail.mapping._leased import Requests, places_of
from manytail.mapping._options import Options

from .code import Code
from .lanes import Violation

LATE = LEASE = 0.1  # seconds: after its slot a call may start; of starts in a lease
FRESH, RECORD_AFTER, GROUP = 0.9, 0.4, 4  # seconds, seconds, results
HOLD = 5.0  # seconds after which permits of a process that died are free
NEARLY = 1e-6
CLOCK = 1e-9  # seconds; a timer rings a little late, never early because of rounding
FAR = 80_000.0  # seconds; a gate that waits to be woken looks by itself after a day
MOST_EVENTS = 150_000


@dataclass
class SharedSettings:
    seed: int
    processes: int
    maps: int  # of each process
    items: int  # of each map
    keys: int
    workers: int
    order: str
    rate: float | None
    per_key_rate: float | None
    cost_rate: float | None
    burst: float
    costs: tuple[float, ...]
    budget: float | None
    concurrency: float | None
    spends: bool  # calls say what they took really
    remember: bool
    boldness: float  # the rates that the processes ask for, in terms of those that hold for all
    fails: float
    storm: float  # probability of RetryLater
    latency: float
    lag: float  # how late a worker, the timer or a report may be
    trip: float  # the longest half of a round trip to the database
    lost: float  # probability that an answer is lost
    outages: list[tuple[float, float]]
    patience: float  # outage_timeout
    kills: list[tuple[float, int]]  # when, and which process
    copied: bool  # the first process has a speculative copy
    prioritised: bool

    @property
    def calm(self) -> bool:
        quick = not self.latency and not self.lag
        return quick and not (self.kills or self.outages or self.fails or self.storm or self.lost or self.copied)


def draw(seed: int) -> SharedSettings:
    rng = Random(f"shared {seed}")

    def some(options: list[Any], chance: float) -> Any:
        return rng.choice(options) if rng.random() < chance else None

    processes, rough = rng.choice([1, 2, 2, 3]), rng.random() < 0.75
    trouble = rough and rng.random() < 0.7
    outages = [(at, at + rng.choice([0.3, 2.0, 30.0])) for at in some([[0.0], [1.1], [0.4, 9.0]], 0.3) or []]
    kills = [(rng.uniform(0.0, 6.0), rng.randrange(processes)) for _ in range(rng.choice([0, 1, 3]))]
    return SharedSettings(
        seed=seed,
        processes=processes,
        maps=rng.choice([1, 1, 2]),
        items=rng.choice([3, 12, 25]),
        keys=rng.choice([1, 2, 5]),
        workers=rng.choice([1, 2, 4]),
        order=rng.choice(["input", "key", "completion"]),
        rate=some([0.5, 3.0, 20.0, 200.0], 0.5),
        per_key_rate=some([0.5, 4.0, 30.0], 0.5),
        cost_rate=some([2.0, 10.0, 300.0], 0.25),
        burst=rng.choice([0.0, 0.0, 5.0]),
        costs=rng.choice([(1.0,), (0.0, 1.0, 2.5), (3.0, 7.0)]),
        budget=some([0.0, 10.0, 50.0], 0.2),
        concurrency=some([7.0, 10.0], 0.25),
        spends=rng.random() < 0.2,
        remember=rng.random() < 0.4,
        boldness=rng.choice([1.0, 1.0, 2.0]),
        fails=rng.choice([0.0, 0.0, 0.3]) if trouble else 0.0,
        storm=rng.choice([0.0, 0.0, 0.2]) if trouble else 0.0,
        latency=rng.choice([0.0, 0.05, 1.5]) if rough else 0.0,
        lag=rng.choice([0.0, 0.0, 0.02, 0.15]) if rough else 0.0,
        trip=rng.choice([0.0, 0.002, 0.01, 0.02]) if seed % 5 else 0.3,
        lost=rng.choice([0.0, 0.2]) if trouble else 0.0,
        outages=outages if trouble else [],
        patience=rng.choice([1.0, 60.0]),
        kills=kills if trouble else [],
        copied=trouble and rng.random() < 0.3,
        prioritised=rng.random() < 0.3,
    )


class Call(Item):
    """An item, with what its call costs and takes really."""

    __slots__ = ("cost", "takes")


class Database:
    """What the tables hold. Each method is one transaction."""

    def __init__(self, world: SharedWorld) -> None:
        self.world = world
        self.terms = {_group(limit): limit.terms for limit in limits_of(world.settings, 1.0)}
        self.rows: dict[bytes, Any] = {}
        self.holds: dict[bytes, dict[bytes, Any]] = {}
        self.results: dict[Any, float] = {}  # when they were recorded

    def exchange(self, ahead: float, asks: list[Any], calls: list[Any]) -> tuple[list[Any], float]:
        grants, now = self.world.code.grants, self.world.now
        for ask in asks:
            self.rows.setdefault(ask.limit, grants.Row())
            self.holds.setdefault(ask.limit, {})
            self.world.returned[ask.limit] += max(0.0, -ask.spent)
        return grants.grant(now, ahead, self.terms, self.rows, self.holds, asks, calls), now

    def reserved(self, limit: bytes) -> float:
        return math.fsum(hold.reserved for hold in self.holds.get(limit, {}).values())

    def look_up(self, items: list[Any]) -> list[bool]:
        return [item.value in self.results for item in items]

    def record(self, values: list[Any]) -> None:
        for value in values:
            self.results.setdefault(value, self.world.now)


class Process:
    """One attempt of a process: its limits, its maps, and what it tells the database. It is an `_exchange.Exchange`."""

    def __init__(self, world: SharedWorld, number: int, name: str) -> None:
        self.world, self.number, self.name = world, number, name
        self.rng = Random(f"process {world.settings.seed} {name}")
        self.alive = True
        self.statements: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self.asking = self.exchanging = self.returning = False
        self.requests = Requests(name.encode() + b" ")
        self.owners: set[Any] = set()
        self.limits = limits_of(world.settings, world.settings.boldness)
        for limit in self.limits:
            limit.exchange = self
            limit._account = limit._new_account(None)
        self.ended = 0  # maps
        self.renewed_at = -math.inf  # when it last told which permits it has
        self.maps = [Map(self, part) for part in range(world.settings.maps)]

    # ------------------------------------------------------------------------------------------------ the exchange
    def join(self, owner: Any) -> None:
        self.owners.add(owner)

    def leave(self, owner: Any) -> None:
        self.owners.discard(owner)
        if not self.owners:
            self.requests.forget_calls()
        self.returning = self.requests.is_due_sooner = self.returning or not self.owners
        self.wake()

    def wake(self, inline: bool = False) -> None:
        if self.requests.is_due_sooner:
            self.later(self.about(self.world.settings.lag), self._look)

    def _look(self) -> None:
        """What the thread of the exchange does in its turn."""
        if self.exchanging:
            return
        due = self.requests.begin_wait()
        if due <= self.world.now or self.returning:
            self._exchange()
        elif due < math.inf:
            self.later(due - self.world.now + CLOCK, self._look)

    def _exchange(self) -> None:
        returns, self.returning = self.returning, False
        needs, calls = {}, []
        self.requests.gather(needs, calls, returns, self.world.now)
        if not needs:
            self._end()
            return
        sent, self.exchanging = self.world.now, True
        asks = [account.report(need, returns, sent, []) for account, need in needs.items()]
        work = partial(self.world.database.exchange, self.requests.ahead, asks, places_of(needs, calls))
        self.world.note(self, "asks", [(ask.limit, ask.want, ask.kept, ask.spent) for ask in asks])
        self.request(work, partial(self._answered_exchange, sent, needs))

    def _answered_exchange(self, sent: float, needs: dict[Any, float], answered: tuple[list[Any], float]) -> None:
        answers, at = answered
        self.exchanging = False
        if any(account.group.startswith(b"concurrency") for account in needs):
            self.renewed_at = sent
        offset, wakes = self.requests.took(sent, self.world.now, at), []
        self.world.demand(-NEARLY <= offset <= self.world.settings.trip + NEARLY, f"{offset} between clocks")
        for (account, need), answer in zip(needs.items(), answers, strict=True):
            self.world.note(self, "gets", (account.limit_id, answer.granted, answer.retry_at))
            account.answered(answer, need, offset, self.world.now, wakes)
        for waiter in wakes:
            waiter.owner.woken.append(waiter)
            waiter.owner.wake()
        self._look()
        self._end()

    def _end(self) -> None:
        if self.ended == len(self.maps) and not (self.exchanging or self.requests.calls or self.requests.open):
            self.world.end(self, None)

    # ------------------------------------------------------------------------------------------------ the database
    def later(self, seconds: float, what: Callable[..., None], *arguments: Any) -> None:
        self.world.at(seconds, self._if_alive, what, arguments)

    def _if_alive(self, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.alive:
            what(*arguments)

    def about(self, seconds: float) -> float:
        return seconds * self.rng.random()

    def _trip(self) -> float:
        """Half of a round trip to the database."""
        longest = self.world.settings.trip
        return longest * (0.7 + 0.3 * self.rng.random()) if longest >= LATE else self.about(longest)

    def request(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """One after the other: a process has one connection. It is repeated when its answer is lost."""
        self.statements.append((work, then))
        if not self.asking:
            self._ask()

    def _ask(self) -> None:
        self.asking = bool(self.statements)
        if self.asking:
            self.later(self._trip(), self._execute, *self.statements.popleft(), None)

    def _execute(self, work: Callable[[], Any], then: Callable[[Any], None], since: float | None) -> None:
        world, settings = self.world, self.world.settings
        if any(begin <= world.now < end for begin, end in settings.outages):
            since = world.now if since is None else since
            if world.now - since >= settings.patience:
                world.end(self, "the database is away")
            else:
                self.later(0.05 + self.about(0.5), self._execute, work, then, since)
            return
        answer = work()
        if self.rng.random() < settings.lost:
            self.later(0.05, self._execute, work, then, since)
        else:
            self.later(self._trip(), self._answered, then, answer)

    def _answered(self, then: Callable[[Any], None], answer: Any) -> None:
        self.asking = False
        then(answer)
        if self.alive and not self.asking:
            self._ask()


class Map:
    """One map of a process: a scheduler, and what a runner does for it."""

    def __init__(self, process: Process, part: int) -> None:
        self.process, self.world, self.part = process, process.world, part
        self.name, self.later, self.about = f"{process.name}.{part}", process.later, process.about
        self.rng = process.rng
        self.scheduler: Any = self.world.code.scheduler.Scheduler(options_of(self.world.settings, process.limits))
        gate = self.scheduler.gate
        self.owner = None if gate is None else gate.owner
        if self.owner is not None:
            self.owner.wake = self._poke
        self.over = self.flushing = self.poked = False
        self.idle, self.timer_at = self.world.settings.workers, math.inf
        self.running: set[Any] = set()
        self.missed: set[Any] = set()  # calls whose slots were over after their look-up
        self.unrecorded: list[Any] = []
        self.recording: list[Any] = []  # by statements whose answers have not come
        self.emitted: list[Any] = []
        self.pending = [self._item(index) for index in range(self.world.settings.items)]
        self.looked_up = not self.world.settings.remember
        if self.world.settings.remember:
            asked = partial(self._known, self.pending, self.world.now)
            process.request(partial(self.world.database.look_up, self.pending), self._then(asked))
        self.later(0.0, self.go_on)

    def _item(self, index: int) -> Any:
        settings, number = self.world.settings, self.process.number
        first = 0 if number == settings.processes else number  # a copy has the items of the first process
        value, rng = (first, self.part, index), Random(f"item {settings.seed} {first} {self.part} {index}")
        item = Call(value, rng.randrange(settings.keys))
        item.cost = rng.choice(settings.costs)
        item.costs = tuple(1.0 if limit.cost is None else item.cost for limit in self.process.limits)
        item.takes = item.cost * (rng.choice([0.3, 1.0, 3.0]) if settings.spends else 1.0)
        item.priority = rng.randrange(2) if settings.prioritised else 0
        item.looked_up = -math.inf
        self.scheduler.assign([item])
        return item

    def _then(self, handle: Callable[[Any], None]) -> Callable[[Any], None]:
        def handled(answer: Any) -> None:
            handle(answer)
            self.go_on()

        return handled

    def _poke(self) -> None:
        if not self.poked:
            self.poked = True
            self.later(self.about(self.world.settings.lag), self._woken)

    def _woken(self) -> None:
        self.poked = False
        self.go_on()

    def _known(self, items: list[Any], asked_at: float, known: list[bool]) -> None:
        self.looked_up = True
        for item, found in zip(items, known, strict=True):
            item.looked_up = asked_at
            if found:
                item.known, item.result = True, "recorded"

    def _flush(self) -> None:
        self.flushing = False
        values, self.unrecorded = self.unrecorded, []
        if values:
            self.recording += values
            recorded = self._then(partial(self._recorded, len(values)))
            self.process.request(partial(self.world.database.record, values), recorded)

    def _recorded(self, count: int, _: None) -> None:
        del self.recording[:count]

    # ------------------------------------------------------------------------------------------------ the runner
    def go_on(self) -> None:
        scheduler, now = self.scheduler, self.world.now
        if self.over:
            return
        if scheduler.gate is not None:
            scheduler.dispatch(now)
        self._consume()
        while self.looked_up and self.pending and (room := scheduler.room()) > 0:
            items, self.pending = self.pending[:room], self.pending[room:]
            scheduler.arrived(items, now)
            if scheduler.gate is not None:
                scheduler.dispatch(now)
            self._consume()
        if self.looked_up and not self.pending and not scheduler.ended:
            scheduler.input_ended()
        if scheduler.gate is not None:
            asking = scheduler.gate._asking
            self.world.demand(0 <= asking <= self.world.settings.workers, f"{asking} keys ask for more")
        if scheduler.wake_at < self.timer_at:
            self.timer_at = scheduler.wake_at
            late = self.about(self.world.settings.lag)
            self.later(max(0.0, scheduler.wake_at - now) + CLOCK + late, self._tick, self.timer_at)
        if scheduler.over:
            self._flush()
            if not self.recording:
                self._end()
        else:
            self._offer()

    def _end(self) -> None:
        self.over = True
        self.process.ended += 1
        self.world.check_output(self)
        if self.owner is not None:
            self.scheduler.gate.calls_ended(self.world.now)
        self.process._end()

    def _consume(self) -> None:
        while self.scheduler.output:
            self.emitted.append(self.scheduler.output.popleft())
            self.scheduler.took(1)

    def _tick(self, at: float) -> None:
        if at != self.timer_at:
            return  # the timer was set to an earlier time
        self.timer_at = math.inf
        if self.scheduler.wake_at <= self.world.now:
            self.scheduler.tick(self.world.now)
        self.go_on()

    def _offer(self) -> None:
        while self.idle:
            try:
                item = self.scheduler.ready.get_nowait()
            except Empty:
                return
            self.idle -= 1
            self.later(self.about(self.world.settings.lag), self._look_again, item)

    def _done(self, event: Callable[..., None], *arguments: Any) -> None:
        """A worker reports an event, and is idle."""
        self.idle += 1
        event(*arguments)
        self.go_on()

    def _look_again(self, item: Any) -> None:
        world = self.world
        fresh = world.now - item.looked_up <= FRESH or item in self.missed
        self.missed.discard(item)
        if world.settings.remember and not fresh:
            asked = self._then(partial(self._recalled, item, world.now))
            self.process.request(partial(world.database.look_up, [item]), asked)
        else:
            self._begin(item)

    def _recalled(self, item: Any, asked_at: float, known: list[bool]) -> None:
        self._known([item], asked_at, known)
        if item.known:
            self._done(self.scheduler.recalled, item, self.world.now)
        else:
            self._begin(item)

    def _begin(self, item: Any) -> None:
        if self.scheduler.gate is not None and self.scheduler.gate.late(item, self.world.now):
            self.missed.add(item)
            self._done(self.scheduler.missed, item, self.world.now)
            return
        item.attempts += 1
        self.running.add(item)
        self.world.starts(self, item)
        if self.scheduler.reports_starts:
            self.scheduler.started(item, self.world.now)
        self.later(self.about(self.world.settings.latency), self._finish, item)

    def _finish(self, item: Any) -> None:
        settings, scheduler, chance = self.world.settings, self.scheduler, self.rng.random()
        self.running.discard(item)
        if settings.spends:
            item.delivery = Said({"budget": item.takes, "cost_rate": item.takes})
        if chance < settings.fails + settings.storm:
            error = OSError() if chance < settings.fails else RetryLater(self.rng.choice([0.0, 0.25, 1.0]))
            verdict = scheduler.judge(item, error, 0.5)
            self.world.ends(item, verdict.kind.value == "defer" and not settings.spends)
            if verdict.kind.value != "defer":
                item.last_error = error
            self._done(scheduler.failed, item, verdict, self.world.now)
            return
        self.world.ends(item, False)
        item.result = "called"
        self.world.paid[item.value] += 1
        if settings.remember:
            self.unrecorded.append(item.value)
            if len(self.unrecorded) >= GROUP or not self.flushing:
                self.later(0.0 if len(self.unrecorded) >= GROUP else RECORD_AFTER, self._flush)
                self.flushing = True
        self._done(scheduler.succeeded, item, self.world.now)


class Said:
    """What a call said that it took, as Delivery keeps it."""

    def __init__(self, said: dict[str, float]) -> None:
        self.said = said


class SharedWorld:
    """One run of one seed."""

    def __init__(self, settings: SharedSettings, code: Code, trace: list[str] | None = None) -> None:
        self.settings, self.code, self.trace = settings, code, trace
        code.grants.FORGET_AFTER = math.inf  # else the holds of the dead are dropped in the end, and faults with them
        self.numbers = Random(f"world {settings.seed}")
        self.now = 0.0
        self.events: list[tuple[float, float, Callable[..., None], tuple[Any, ...]]] = []
        self.database = Database(self)
        self.log: dict[Any, list[tuple[float, float]]] = {}  # by limit: the times and costs of starts
        self.returned: Counter[bytes] = Counter()  # to Rates: by calls that took less than they cost, or did not begin
        self.paid: Counter[Any] = Counter()  # calls that returned, by item
        self.spent = 0.0  # by ended calls, in this order: what it cost, or said
        self.beyond = 0.0  # their costs
        self.running = 0.0  # what running calls cost
        self.lost = 0  # calls that ran, or were not recorded, when their process was killed
        self.ended_badly = False
        self.ended_at = 0.0
        self.processes: list[Process] = []
        for number in range(settings.processes + settings.copied):
            self.run_process(number, 0)
        for at, number in settings.kills:
            self.at(at, self.kill, number)

    def demand(self, right: bool, what: str) -> None:
        if not right:
            raise Violation(f"{self.now:.4f}: {what}")

    def note(self, who: Any, event: str, what: object = "") -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:10.4f}  {who.name:<8} {event:<10} {what!s}")

    def at(self, seconds: float, what: Callable[..., None], *arguments: Any) -> None:
        heappush(self.events, (self.now + seconds, self.numbers.random(), what, arguments))

    def run(self) -> None:
        """Run until no event is left. Raises Violation."""
        events = 0
        while self.events:
            self.now, _, what, arguments = heappop(self.events)
            what(*arguments)
            events += 1
            self.demand(events < MOST_EVENTS, "the world does not come to an end")
        self.demand(self.ended_at < FAR, f"the last process ends at {self.ended_at}: somebody was not woken")
        unfinished = [process.name for process in self.processes if process.alive]
        self.demand(not unfinished, f"nothing happens any more, and these have not ended: {unfinished}")
        if self.settings.remember and not self.settings.copied:
            twice = sum(number - 1 for number in self.paid.values())
            self.demand(twice <= self.lost, f"{twice} calls are paid for twice (expected: at most {self.lost})")
        self.check_end()
        if self.settings.calm:
            self.check_frequency()

    # ------------------------------------------------------------------------------------------------ processes
    def run_process(self, number: int, attempt: int) -> None:
        self.processes.append(Process(self, number, f"{number}.{attempt}"))

    def kill(self, number: int) -> None:
        for process in self.processes:
            if process.number == number and process.alive:
                self.end(process, "killed")
                return

    def end(self, process: Process, error: str | None) -> None:
        """The attempt ends. One that failed is repeated."""
        self.note(process, "ends", error or "well")
        process.alive, self.ended_at = False, self.now
        if error is not None:
            self.ended_badly = True
            for each in process.maps:
                self.lost += len(each.running) + len(each.unrecorded) + len(each.recording)
                self.running -= math.fsum(item.cost for item in each.running)
                self.spent += math.fsum(item.cost for item in each.running)
            number, attempt = map(int, process.name.split("."))
            self.at(0.5, self.run_process, number, attempt + 1)

    def check_output(self, each: Map) -> None:
        settings = self.settings
        indexes = [item.value[2] for item in each.emitted]
        self.demand(sorted(indexes) == list(range(settings.items)), f"map {each.name} emits {indexes}")
        lanes: dict[Any, list[int]] = {}
        for item in each.emitted:
            lanes.setdefault({"input": 0, "key": item.key}.get(settings.order, item.value), []).append(item.value[2])
        self.demand(all(lane == sorted(lane) for lane in lanes.values()), f"map {each.name} emits {indexes}")
        failed = [item for item in each.emitted if item.error is not None]
        allowed = bool(settings.fails) or settings.budget is not None
        self.demand(allowed or not failed, f"map {each.name}: these fail: {failed}")

    # ------------------------------------------------------------------------------------------------ the service
    def starts(self, each: Map, item: Any) -> None:
        """A call starts."""
        settings, now = self.settings, self.now
        self.note(each, "starts", f"{item.value} key {item.key} cost {item.cost}")
        for option, key, cost in (("rate", None, 1.0), ("cost_rate", None, item.cost), ("per_key_rate", item.key, 1.0)):
            if cost and (rate := getattr(settings, option)) is not None:
                log = self.log.setdefault((option, key), [])
                largest = max(settings.costs) if option == "cost_rate" else 1.0
                spare = settings.burst + largest - cost + self.returned[place(option, key)]
                total = 0.0
                for begin, before in reversed(log):
                    total += before
                    most = spare + rate * (now - begin + LATE + settings.trip) + NEARLY
                    self.demand(total <= most, f"{option} {key}: {total} and {cost} start in {now - begin} s")
                log.append((now, cost))
        self.running += item.cost
        if settings.budget is not None:
            most = settings.budget + self.beyond + NEARLY
            self.demand(self.spent + self.running <= most, f"the calls cost {self.spent} and {self.running}")
        if settings.concurrency is not None and item.cost:
            held = each.process.renewed_at + HOLD + LATE
            self.demand(now <= held, f"{item.value} starts, and its process has permits until {held}")
        if settings.concurrency is not None and not any(end - begin > 1.0 for begin, end in settings.outages):
            self.demand(self.running <= settings.concurrency + NEARLY, f"{self.running} run at once")
        if settings.remember:
            recorded = self.database.results.get(item.value, math.inf)
            self.demand(recorded >= item.looked_up, f"{item.value} is called, and was recorded at {recorded}")

    def ends(self, item: Any, is_free: bool) -> None:
        """A call has ended. is_free: it was deferred, and said nothing."""
        self.running -= item.cost
        spent = 0.0 if is_free else item.takes if self.settings.spends else item.cost
        self.spent += spent
        self.beyond += max(0.0, spent - item.cost)
        if self.settings.spends:
            self.returned[place("cost_rate", None)] += max(0.0, item.cost - spent)

    # ------------------------------------------------------------------------------------------------ the end
    def check_end(self) -> None:
        """Every hold has ended once."""
        database, budget = self.database, b"budget:budget"
        if not self.ended_badly:
            for limit in database.holds:
                self.demand(database.reserved(limit) == 0.0, f"{limit} is still reserved: {database.holds[limit]}")
        if budget in database.rows:
            settled = database.rows[budget].settled
            accounted = settled + database.reserved(budget)
            self.demand(accounted >= self.spent - self.beyond - NEARLY, f"{accounted} settled of {self.spent}")
            if not self.ended_badly:
                self.demand(abs(settled - self.spent) < NEARLY, f"{settled} settled of {self.spent}")

    def check_frequency(self) -> None:
        """Nothing disturbed the maps: their starts are as frequent as their one rate allows."""
        settings = self.settings
        limits = [name for name in ("rate", "per_key_rate", "cost_rate") if getattr(settings, name) is not None]
        others = settings.budget is not None or settings.concurrency is not None or settings.remember or settings.spends
        if len(limits) != 1 or others or limits == ["cost_rate"]:
            return
        rate = getattr(settings, limits[0])
        for limit, log in self.log.items():
            took, needed = log[-1][0] - log[0][0], len(log) / rate
            trips = 2 * settings.trip
            spare = settings.processes * (LEASE + 2 / rate + 5 * trips) + len(log) * min(trips, 1 / rate)
            self.demand(took <= needed + spare, f"{limit}: {len(log)} starts take {took} s (expected: some {needed})")


def limits_of(settings: SharedSettings, boldness: float) -> tuple[Any, ...]:
    """The limits of one process. boldness: its rates, in terms of those that hold for all."""
    shared = Shared("never made.db", "a")  # nothing opens it
    rates = {"rate": settings.rate, "per_key_rate": settings.per_key_rate, "cost_rate": settings.cost_rate}
    limits: list[Any] = [
        Rate(
            rate * boldness, per_key=name == "per_key_rate", cost=float if name == "cost_rate" else None,
            burst=settings.burst, shared=shared, name=name,
        )
        for name, rate in rates.items() if rate is not None
    ]  # fmt: skip
    if settings.budget is not None:
        limits.append(Budget(settings.budget, cost=float, shared=shared, name="budget"))
    if settings.concurrency is not None:
        limits.append(Concurrency(settings.concurrency, cost=float, lease=HOLD, shared=shared, name="concurrency"))
    return tuple(limits)


def place(option: str, key: Any) -> bytes:
    """What names a Rate in the database."""
    group = f"rate:{option}".encode()
    return group if key is None else b"%b:%b" % (group, bytes.fromhex(idempotency_key(key)))


def _group(limit: Any) -> bytes:
    return f"{limit._kind}:{limit.name}".encode()


def options_of(settings: SharedSettings, limits: tuple[Any, ...]) -> Options:
    remember: Any = settings if settings.remember else None  # any object: the scheduler only asks whether there is one
    return Options(
        workers=settings.workers, order=settings.order, keyed=True, retry=Retry(2, backoff=0.1), errors="return",
        prioritised=settings.prioritised, limits=limits, remember=remember, wants_delivery=settings.spends,
    )  # fmt: skip


def run(seed: int, code: Code) -> None:
    """Raise a Violation that shows the seed and its trace if a promise is broken in that world."""
    try:
        SharedWorld(draw(seed), code).run()
    except Exception:
        raise Violation(replay(seed, code)) from None


def replay(seed: int, code: Code) -> str:
    """The trace of a seed."""
    settings, trace = draw(seed), []
    try:
        SharedWorld(settings, code, trace).run()
        end = "every promise is kept"
    except Exception as error:
        end = f"VIOLATION: {error!r}"
    return "\n".join([f"seed {seed}: {settings}", *trace, end, f"replay: python -m simulation --shared {seed}"])
