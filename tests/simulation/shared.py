"""Worlds with shared limits: several tasks, each with its own scheduler, one database, and one service that they call.

All on one virtual clock, drawn from a seed. Tasks are killed and run again, are copied (speculation), and end early
because the database is away for too long. The database is slow or away, and answers get lost after the statement was
done, so that a lease is wasted and the statement is made again. Each task does what a runner does: it passes on leases
that the gate wants, asks the budget before a call and keeps what it has paid for when its slots are over, looks results
up, and records new ones in groups.

The service's log decides, whoever made the call:

    rates      in any t seconds at most 1 + rate * (t + LATE + the longest answer) calls start, of the map and of each
               key; the same in cost
    leases     those of at most as many keys as there are workers are asked for at a time; none has room for more than
               LEASE seconds and the lead, or one call; no task has leased more ahead
    budget     what the calls cost is never more
    remember   no call of an item whose result was recorded when it was looked up, at most a second before, or before
               the slot that it missed; what is paid for twice ran, or was not recorded, when its task was killed
    output     of each task that ends: every item once, in the promised order
    progress   every task ends; in a calm world the starts are as frequent as the rate allows, or half so if the
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

from manytail import BudgetExceeded, Empty, Rate, Retry, RetryLater, Shared
from manytail.mapping._options import Options

from .code import Code
from .lanes import Violation

LATE = LEASE = 0.1  # seconds: after its slot a call may start; of starts in a lease
FRESH, RECORD_AFTER, GROUP = 0.9, 0.4, 4  # seconds, seconds, results
NEARLY = 1e-6
MOST_EVENTS = 60_000
GIVES_BACK_AGAIN = False  # a cost that is given back twice would be spent twice


@dataclass
class SharedSettings:
    seed: int
    tasks: int
    items: int  # of each task
    keys: int
    workers: int
    order: str
    rate: float | None
    per_key_rate: float | None
    cost_rate: float | None
    costs: tuple[float, ...]
    budget: float | None
    remember: bool
    boldness: float  # the rates that the tasks ask for, in terms of those that hold for all
    fails: float
    storm: float  # probability of RetryLater
    latency: float
    lag: float  # how late a worker, the timer or a report may be
    trip: float  # the longest half of a round trip to the database
    lost: float  # probability that an answer is lost
    outages: list[tuple[float, float]]
    patience: float  # outage_timeout
    kills: list[tuple[float, int]]  # when, and which task
    copied: bool  # the first task has a speculative copy
    prioritised: bool

    @property
    def calm(self) -> bool:
        quick = not self.latency and not self.lag
        return quick and not (self.kills or self.outages or self.fails or self.storm or self.lost or self.copied)


def draw(seed: int) -> SharedSettings:
    rng = Random(f"shared {seed}")

    def some(options: list[Any], chance: float) -> Any:
        return rng.choice(options) if rng.random() < chance else None

    tasks, rough = rng.choice([1, 2, 2, 3]), rng.random() < 0.75
    trouble = rough and rng.random() < 0.7
    outages = [(at, at + rng.choice([0.3, 2.0, 30.0])) for at in some([[0.0], [1.1], [0.4, 9.0]], 0.3) or []]
    return SharedSettings(
        seed=seed,
        tasks=tasks,
        items=rng.choice([3, 12, 25]),
        keys=rng.choice([1, 2, 5]),
        workers=rng.choice([1, 2, 4]),
        order=rng.choice(["input", "key", "completion"]),
        rate=some([0.5, 3.0, 20.0, 200.0], 0.5),
        per_key_rate=some([0.5, 4.0, 30.0], 0.7),
        cost_rate=some([2.0, 10.0, 300.0], 0.25),
        costs=rng.choice([(1.0,), (0.0, 1.0, 2.5), (3.0, 7.0)]),
        budget=some([0.0, 10.0, 50.0], 0.2),
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
        kills=[(rng.uniform(0.0, 6.0), rng.randrange(tasks)) for _ in range(rng.choice([0, 1, 3]))] if trouble else [],
        copied=trouble and rng.random() < 0.3,
        prioritised=rng.random() < 0.3,
    )


class Database:
    """What the tables hold. Each method is one transaction."""

    def __init__(self, world: SharedWorld) -> None:
        self.world = world
        self.tats: dict[bytes, float] = {}
        self.spent = 0.0
        self.results: dict[Any, float] = {}  # when they were recorded

    def lease(self, task: Task, wanted: list[Any]) -> list[tuple[Any, ...]]:
        """The answers, in database time."""
        if any(len(each.parts) > 1 for each in wanted) or task.scheduler.gate._joint:
            return self._grant(wanted)
        now, leases = self.world.now, []
        for each in wanted:
            limit, group, own, amount = each.parts[0]
            rate = self._rate(group)
            start = max(self.tats.get(limit, now), now)
            self.tats[limit] = start + amount / rate
            self._check_lease(task, each.parts[0], amount / own, start + amount / rate)
            leases.append((each, start, rate, True, False))
        return leases

    def _rate(self, group: bytes) -> float:
        return float(getattr(self.world.settings, group.decode().partition(":")[0]))

    def _check_lease(self, task: Task, part: Any, length: float, end: float) -> None:
        """length: in seconds, as far as the task knows."""
        world, settings = self.world, self.world.settings
        single = max(settings.costs) if part.group == b"cost_rate:cost_rate" else 1.0
        world.demand(length <= max(LEASE + task.longest, single / part.rate) + NEARLY, f"{part} is for {length} s")
        ahead = world.ends.get((part.limit, task), world.now) - world.now
        if not settings.lost:
            world.demand(
                ahead <= LEASE + task.longest + NEARLY, f"{part} is asked for {ahead} s before the last one ends"
            )
        world.ends[part.limit, task] = end

    def _grant(self, wanted: list[Any]) -> list[tuple[Any, ...]]:
        now = self.world.now
        groups = {part.group for each in wanted for part in each.parts}
        rates = {group: self._rate(group) for group in groups}
        answers = self.world.code.rates.grant(now, self.tats, rates, [each.parts for each in wanted])
        for each, answer in zip(wanted, answers, strict=True):
            ahead = answer.start - now if answer.granted else 0.0
            self.world.demand(ahead <= 2 * LEASE + NEARLY, f"{each} is granted {ahead} s ahead")
        return [
            (each, answer.start, 0.0, answer.granted, answer.by_map)
            for each, answer in zip(wanted, answers, strict=True)
        ]

    def spend(self, costs: list[float]) -> list[bool]:
        budget, taken = self.world.settings.budget, []
        assert budget is not None
        for cost in costs:
            taken.append(self.spent + cost <= budget)
            self.spent += cost if taken[-1] else 0.0
        return taken

    def give_back(self, cost: float) -> None:
        self.spent -= cost

    def look_up(self, items: list[Any]) -> list[bool]:
        return [item.value in self.results for item in items]

    def record(self, values: list[Any]) -> None:
        for value in values:
            self.results.setdefault(value, self.world.now)


class Task:
    """One attempt of one task: a scheduler, and what a runner does for it."""

    def __init__(self, world: SharedWorld, number: int, name: str) -> None:
        self.world, self.number, self.name = world, number, name
        self.rng = Random(f"task {world.settings.seed} {name}")
        self.scheduler: Any = world.code.scheduler.Scheduler(options_of(world.settings))
        self.alive = True
        self.requests: deque[tuple[Callable[[], Any], Callable[[Any], None], bool]] = deque()
        self.asking = self.flushing = False
        self.lead = world.code.rates.Lead()
        self.longest = 0.0  # of all leads
        self.keys_asking = 0  # leases for keys on their way
        self.idle, self.timer_at = world.settings.workers, math.inf
        self.running: set[Any] = set()
        self.missed: set[Any] = set()  # calls whose slots were over after their look-up
        self.paid: dict[Any, None] = {}  # and not called: their slots were over
        self.unrecorded: list[Any] = []
        self.recording: list[Any] = []  # by statements whose answers have not come
        self.emitted: list[Any] = []
        self.pending = [self._item(index) for index in range(world.settings.items)]
        self.looked_up = not world.settings.remember
        if world.settings.remember:
            self.request(partial(world.database.look_up, self.pending), partial(self._known, self.pending, world.now))
        self.go_on()

    def _item(self, index: int) -> Any:
        settings = self.world.settings
        part = 0 if self.number == settings.tasks else self.number  # a copy has the items of the first task
        value, rng = (part, index), Random(f"item {settings.seed} {part} {index}")
        item = self.world.code.scheduler.Item(value, rng.randrange(settings.keys))
        item.cost = rng.choice(settings.costs)
        item.priority = rng.randrange(2) if settings.prioritised else 0
        item.looked_up = -math.inf
        self.scheduler.assign([item])
        return item

    # ------------------------------------------------------------------------------------------------ the database
    def later(self, seconds: float, what: Callable[..., None], *arguments: Any) -> None:
        self.world.at(seconds, self._if_alive, what, arguments)

    def _if_alive(self, what: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.alive:
            what(*arguments)

    def _about(self, seconds: float) -> float:
        return seconds * self.rng.random()

    def _trip(self) -> float:
        """Half of a round trip to the database."""
        longest = self.world.settings.trip
        return longest * (0.7 + 0.3 * self.rng.random()) if longest >= LATE else self._about(longest)

    def request(self, work: Callable[[], Any], then: Callable[[Any], None], again: bool = True) -> None:
        """One after the other, as the one thread of a map makes them. again: repeat it when its answer is lost."""
        self.requests.append((work, then, again))
        if not self.asking:
            self._ask()

    def _ask(self) -> None:
        self.asking = bool(self.requests)
        if self.asking:
            self.later(self._trip(), self._execute, *self.requests.popleft(), None)

    def _execute(self, work: Callable[[], Any], then: Callable[[Any], None], again: bool, since: float | None) -> None:
        world, settings = self.world, self.world.settings
        if any(begin <= world.now < end for begin, end in settings.outages):
            since = world.now if since is None else since
            if world.now - since >= settings.patience:
                world.end(self, "the database is away")
            else:
                self.later(0.05 + self._about(0.5), self._execute, work, then, again, since)
            return
        answer = work()
        if self.rng.random() < settings.lost and again:
            self.later(0.05, self._execute, work, then, again, since)
        else:
            self.later(self._trip(), self._answered, then, answer)

    def _answered(self, then: Callable[[Any], None], answer: Any) -> None:
        then(answer)
        self._ask()
        self.go_on()

    def _known(self, items: list[Any], asked_at: float, known: list[bool]) -> None:
        self.looked_up = True
        for item, found in zip(items, known, strict=True):
            item.looked_up = asked_at
            if found:
                item.known, item.result = True, "recorded"

    def _leased(self, asked_at: float, executed: list[float], leases: list[tuple[Any, ...]]) -> None:
        ahead = self.world.now - executed[0]
        self.lead.took(self.world.now - asked_at)
        self.keys_asking -= sum(each.lane is not None for each, *_ in leases)
        self.longest = max(self.longest, self.lead.seconds)
        self.world.note(self, "leased", [(str(each.parts[0].limit)[:9], *answer) for each, *answer in leases])
        lead = self.lead.seconds
        self.scheduler.leased([(each, start + ahead, *rest, lead) for each, start, *rest in leases], self.world.now)

    def _lease(self, wanted: list[Any]) -> None:
        executed = [0.0]  # by the database's clock
        self.keys_asking += sum(each.lane is not None for each in wanted)
        self.world.demand(self.keys_asking <= self.world.settings.workers, f"{self.keys_asking} keys ask for leases")

        def work() -> Any:
            executed[0] = self.world.now
            return self.world.database.lease(self, wanted)

        self.request(work, partial(self._leased, self.world.now, executed))

    def _flush(self) -> None:
        self.flushing = False
        values, self.unrecorded = self.unrecorded, []
        if values:
            self.recording += values
            self.request(partial(self.world.database.record, values), partial(self._recorded, len(values)))

    def _recorded(self, count: int, _: None) -> None:
        del self.recording[:count]

    # ------------------------------------------------------------------------------------------------ the runner
    def go_on(self) -> None:
        scheduler, now = self.scheduler, self.world.now
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
        if scheduler.gate is not None and scheduler.gate.leasing.to_lease:
            leasing = scheduler.gate.leasing
            wanted, leasing.to_lease = leasing.to_lease, []
            self._lease(wanted)
        if scheduler.wake_at < self.timer_at:
            self.timer_at = scheduler.wake_at
            late = self._about(self.world.settings.lag)
            self.later(max(0.0, scheduler.wake_at - now) + late, self._tick, self.timer_at)
        if scheduler.over:
            self._flush()
            if not self.recording:
                self.world.end(self, None)
        else:
            self._offer()

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
            self.later(self._about(self.world.settings.lag), self._look_again, item)

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
            asked = partial(self._recalled, item, world.now)
            self.request(partial(world.database.look_up, [item]), asked)
        else:
            self._pay(item)

    def _recalled(self, item: Any, asked_at: float, known: list[bool]) -> None:
        self._known([item], asked_at, known)
        if item.known:
            if self.paid.pop(item, self) is None:
                self._give_back(item)
            self._done(self.scheduler.recalled, item, self.world.now)
        else:
            self._pay(item)

    def _is_late(self, item: Any) -> bool:
        return self.scheduler.gate is not None and self.scheduler.gate.late(item, self.world.now)

    def _pay(self, item: Any) -> None:
        database = self.world.database
        if self._is_late(item):
            self._miss(item)
        elif self.world.settings.budget is None or self.paid.pop(item, self) is None:
            self._begin(item)
        else:
            self.request(partial(database.spend, [item.cost]), partial(self._paid, item))

    def _miss(self, item: Any) -> None:
        self.missed.add(item)
        self._done(self.scheduler.missed, item, self.world.now)

    def _paid(self, item: Any, affordable: list[bool]) -> None:
        if not affordable[0]:
            error = getattr(item, "last_error", None) or BudgetExceeded()
            self._done(self.scheduler.refused, item, [error], self.world.now)
        elif self._is_late(item):
            self.paid[item] = None
            self._miss(item)
        else:
            self._begin(item)

    def _give_back(self, item: Any) -> None:
        if self.world.settings.budget is not None:
            self.request(partial(self.world.database.give_back, item.cost), lambda _: None, GIVES_BACK_AGAIN)

    def _begin(self, item: Any) -> None:
        item.attempts += 1
        self.running.add(item)
        self.world.starts(self, item)
        if self.scheduler.reports_starts:
            self.scheduler.started(item, self.world.now)
        self.later(self._about(self.world.settings.latency), self._end, item)

    def _end(self, item: Any) -> None:
        settings, scheduler, chance = self.world.settings, self.scheduler, self.rng.random()
        self.running.discard(item)
        if chance < settings.fails + settings.storm:
            error = OSError() if chance < settings.fails else RetryLater(self.rng.choice([0.0, 0.25, 1.0]))
            verdict = scheduler.judge(item, error, 0.5)
            if verdict.kind.value == "defer":
                self.world.costs -= item.cost
                self._give_back(item)
            item.last_error = error
            self._done(scheduler.failed, item, verdict, self.world.now)
            return
        item.result = "called"
        self.world.paid[item.value] += 1
        if settings.remember:
            self.unrecorded.append(item.value)
            if len(self.unrecorded) >= GROUP or not self.flushing:
                self.later(0.0 if len(self.unrecorded) >= GROUP else RECORD_AFTER, self._flush)
                self.flushing = True
        self._done(scheduler.succeeded, item, self.world.now)


class SharedWorld:
    """One run of one seed."""

    def __init__(self, settings: SharedSettings, code: Code, trace: list[str] | None = None) -> None:
        self.settings, self.code, self.trace = settings, code, trace
        self.numbers = Random(f"world {settings.seed}")
        self.now = 0.0
        self.events: list[tuple[float, float, Callable[..., None], tuple[Any, ...]]] = []
        self.database = Database(self)
        self.ends: dict[tuple[bytes, Task], float] = {}  # of the last lease of each task
        self.log: dict[Any, list[tuple[float, float]]] = {}  # by limit: the times and costs of starts
        self.paid: Counter[Any] = Counter()  # calls that returned, by item
        self.costs = 0.0  # of calls that were not deferred
        self.lost = 0  # calls that ran, or were not recorded, when their task was killed
        self.tasks: list[Task] = []
        self.ended: set[int] = set()
        for number in range(settings.tasks + settings.copied):
            self.run_task(number, 0)
        for at, number in settings.kills:
            self.at(at, self.kill, number)

    def demand(self, right: bool, what: str) -> None:
        if not right:
            raise Violation(f"{self.now:.4f}: {what}")

    def note(self, task: Task, event: str, what: object = "") -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:10.4f}  {task.name:<8} {event:<10} {what!s}")

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
        unfinished = [task.name for task in self.tasks if task.alive]
        self.demand(not unfinished, f"nothing happens any more, and these have not ended: {unfinished}")
        if self.settings.remember and not self.settings.copied:
            twice = sum(number - 1 for number in self.paid.values())
            self.demand(twice <= self.lost, f"{twice} calls are paid for twice (expected: at most {self.lost})")
        if self.settings.calm:
            self.check_frequency()

    # ------------------------------------------------------------------------------------------------ tasks
    def run_task(self, number: int, attempt: int) -> None:
        self.tasks.append(Task(self, number, f"{number}.{attempt}"))

    def kill(self, number: int) -> None:
        for task in self.tasks:
            if task.number == number and task.alive:
                self.end(task, "killed")
                return

    def end(self, task: Task, error: str | None) -> None:
        """The attempt ends. One that failed is repeated."""
        self.note(task, "ends", error or "well")
        task.alive = False
        if error is not None:
            self.lost += len(task.running) + len(task.unrecorded) + len(task.recording)
            number, attempt = map(int, task.name.split("."))
            self.at(0.5, self.run_task, number, attempt + 1)
            return
        self.check_output(task)

    def check_output(self, task: Task) -> None:
        settings = self.settings
        indexes = [item.value[1] for item in task.emitted]
        self.demand(sorted(indexes) == list(range(settings.items)), f"task {task.name} emits {indexes}")
        lanes: dict[Any, list[int]] = {}
        for item in task.emitted:
            lanes.setdefault({"input": 0, "key": item.key}.get(settings.order, item.value), []).append(item.value[1])
        self.demand(all(lane == sorted(lane) for lane in lanes.values()), f"task {task.name} emits {indexes}")
        failed = [item for item in task.emitted if item.error is not None]
        allowed = bool(settings.fails) or settings.budget is not None
        self.demand(allowed or not failed, f"task {task.name}: these fail: {failed}")

    # ------------------------------------------------------------------------------------------------ the service
    def starts(self, task: Task, item: Any) -> None:
        """A call starts."""
        settings, now = self.settings, self.now
        self.note(task, "starts", f"{item.value} key {item.key} cost {item.cost}")
        for option, key, cost in (("rate", None, 1.0), ("cost_rate", None, item.cost), ("per_key_rate", item.key, 1.0)):
            if cost and (rate := getattr(settings, option)) is not None:
                log = self.log.setdefault((option, key), [])
                total = 0.0
                for begin, before in reversed(log):
                    total += before
                    most = rate * (now - begin + LATE + settings.trip) + NEARLY
                    self.demand(total <= most, f"{option} {key}: {total} and {cost} start in {now - begin} s")
                log.append((now, cost))
        self.costs += item.cost
        if settings.budget is not None:
            self.demand(self.costs <= settings.budget + NEARLY, f"the calls cost {self.costs}")
        if settings.remember:
            recorded = self.database.results.get(item.value, math.inf)
            self.demand(recorded >= item.looked_up, f"{item.value} is called, and was recorded at {recorded}")

    def check_frequency(self) -> None:
        """Nothing disturbed the tasks: their starts are as frequent as their one rate allows."""
        settings = self.settings
        limits = [name for name in ("rate", "per_key_rate", "cost_rate") if getattr(settings, name) is not None]
        if len(limits) != 1 or settings.budget is not None or settings.remember or limits == ["cost_rate"]:
            return
        rate = getattr(settings, limits[0])
        for limit, log in self.log.items():
            took, needed = log[-1][0] - log[0][0], len(log) / rate
            trips = 2 * settings.trip
            spare = settings.tasks * (LEASE + 2 / rate + 5 * trips) + len(log) * min(trips, 1 / rate)
            self.demand(took <= needed + spare, f"{limit}: {len(log)} starts take {took} s (expected: some {needed})")


def options_of(settings: SharedSettings) -> Options:
    own = {"rate": settings.rate, "per_key_rate": settings.per_key_rate, "cost_rate": settings.cost_rate}
    shared = Shared("never made.db", "a")  # nothing opens it
    remember: Any = settings if settings.remember else None  # any object: the scheduler only asks whether there is one
    limits = tuple(
        Rate(
            rate * settings.boldness, per_key=name == "per_key_rate", cost=float if name == "cost_rate" else None,
            shared=shared, name=name,
        )
        for name, rate in own.items() if rate is not None
    )  # fmt: skip
    return Options(
        workers=settings.workers, order=settings.order, keyed=True, retry=Retry(2, backoff=0.1), errors="return",
        prioritised=settings.prioritised, limits=limits, remember=remember,
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
