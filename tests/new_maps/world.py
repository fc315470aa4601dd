"""A world for the scheduler of maps: random options, items, calls and consumers under a virtual clock, and the promises
that hold after every step. `run(seed)` raises AssertionError where one does not.

The world is the driver: it carries effects out as runners do, but late: a worker may take a handed call long after it
was handed, the consumer takes when it likes, the input comes in pieces. So what may happen at once happens in any
order.
"""

import math
import random
from collections import Counter, deque
from dataclasses import dataclass, field

from manytail._maps.engine.adaptive import AdaptiveStage
from manytail._maps.engine.batched import BatchScheduler
from manytail._maps.engine.batches import Batches
from manytail._maps.engine.breaker import BreakerStage
from manytail._maps.engine.chunks import ChunkBatchScheduler, ChunkScheduler
from manytail._maps.engine.equal import EqualStage
from manytail._maps.engine.events import Fail, Failed, InputEnded, Missed, Recalled, Returned, Stop, Woken
from manytail._maps.engine.item import Batch, Item, Kind, Verdict
from manytail._maps.engine.lanes import Lanes
from manytail._maps.engine.scheduler import Rules, Scheduler
from manytail._maps.engine.stages import GO, Refuse, Stage, Wait
from manytail._maps.engine.within import WithinStage
from manytail._maps.limits.objects import Budget, Concurrency, Rate
from manytail._maps.limits.stage import LimitsStage
from manytail._maps.outcomes import DeadlineExceeded, TooManyFailures


class Slots(Stage):
    """Takes one of so many slots, as a Concurrency does; of each lane, or of the map. Wakes sometimes instead of
    leaving it to the next step."""

    def __init__(self, slots, of_lane, rng):
        super().__init__()
        self.slots, self.of_lane, self.rng = slots, of_lane, rng
        self.held = Counter()
        self.open = set()  # calls that took a slot
        self.waits = set()

    def place(self, call):
        return call.lane if self.of_lane else None

    def before(self, call, now):
        place = self.place(call)
        if self.held[place] >= self.slots:
            self.waits.add(place)
            return Wait(math.inf, self.of_lane)
        assert call not in self.open
        self.open.add(call)
        self.held[place] += 1
        return GO

    def undo(self, call, now):
        self.open.remove(call)
        place = self.place(call)
        self.held[place] -= 1
        if place in self.waits:
            self.waits.discard(place)
            self._wake(place)

    def after(self, call, ended, now):
        self.undo(call, now)
        return ()


class Pace(Stage):
    """Lets a call start every so often, as a Rate does."""

    def __init__(self, step, of_lane):
        super().__init__()
        self.step, self.of_lane, self.next = step, of_lane, Counter()
        self.open = set()

    def before(self, call, now):
        place = call.lane if self.of_lane else None
        if self.next[place] > now:
            return Wait(self.next[place], self.of_lane)
        self.next[place] = now + self.step
        call.begin_by = min(call.begin_by, now + 0.1)
        self.open.add(call)
        return GO

    def undo(self, call, now):
        self.open.remove(call)
        self.next[call.lane if self.of_lane else None] = now

    def after(self, call, ended, now):
        self.open.remove(call)
        return ()


class Refuser(Stage):
    """Refuses items whose value is a multiple of 11, before their first call."""

    def __init__(self):
        super().__init__()
        self.open = set()

    def before(self, call, now):
        items = call.items()
        if items[0].value % 11 == 0 and not items[0].attempts:
            return Refuse(KeyError(items[0].value), halves=len(items) > 1)
        self.open.add(call)
        return GO

    def undo(self, call, now):
        self.open.remove(call)

    def after(self, call, ended, now):
        self.open.remove(call)
        return ()


def limits_of(rng, keyed):
    """Limits of a map; a Budget may be too small for all calls."""
    of_key = keyed and rng.random() < 0.5
    some = [Concurrency(2.0, per_key=of_key), Rate(rng.choice([1.0, 10.0]), per_key=keyed and rng.random() < 0.5)]
    some.append(Budget(rng.choice([20.0, 1_000.0])))
    return rng.sample(some, rng.randint(1, 3))


@dataclass
class World:
    rng: random.Random
    now: float = 0.0
    inbox: deque = field(default_factory=deque)
    queue: deque = field(default_factory=deque)  # handed, not taken by a worker
    running: dict = field(default_factory=dict)  # call -> when it ends
    output: deque = field(default_factory=deque)
    taken: list = field(default_factory=list)
    starts: list = field(default_factory=list)  # items in the order in which their first calls began
    done: set = field(default_factory=set)
    calls: Counter = field(default_factory=Counter)
    wake_at: float = math.inf
    read: float = 0
    ended: bool = False
    stopped: Stop | None = None
    splits: int = 0
    first: dict = field(default_factory=dict)  # call -> when it first began
    paused: Counter = field(default_factory=Counter)  # lane -> until when it pauses
    has_limits: bool = False
    in_chunks: bool = False  # items come in chunks, which may be larger than the window, and go out many at a time

    def __post_init__(self):
        rng = self.rng
        self.total = rng.choice([0, 1, 7, 40, 120])
        self.plain = rng.random() < 0.3
        some = (lambda chance: False) if self.plain else (lambda chance: rng.random() < chance)
        self.keyed = some(0.6)
        self.prioritised = some(0.4)
        self.order = rng.choice(["input", "completion"] + ["key"] * self.keyed)
        self.per_key = rng.choice([1, 2, 3]) if self.keyed and some(0.6) else None
        self.weights = {key: rng.randint(1, 3) for key in range(5)} if self.keyed and some(0.3) else None
        self.workers = rng.choice([1, 2, 5])
        self.failure_rate = rng.choice([0, 0.1, 0.5])
        self.deferral_rate = rng.choice([0, 0, 0.1, 0.2])
        self.times = rng.choice([0, 1, 3])
        self.stops = rng.random() < 0.2
        self.misses = rng.random() < 0.3  # workers come too late for some calls
        stages = []
        self.modulo = rng.choice([7, 40]) if some(0.3) else 10**9  # items of equal value modulo that are equal
        if self.modulo < 10**9:
            stages.append(EqualStage(rng.choice([1, 3, 100])))
        self.within = rng.choice([0.5, 2.0]) if some(0.2) else math.inf
        if self.within < math.inf:
            stages.append(WithinStage(self.within))
        self.adaptive = AdaptiveStage(1, rng.choice([1, self.workers]), self.workers) if some(0.3) else None
        if self.adaptive is not None:
            stages.append(self.adaptive)
        if some(0.2):
            stages.append(Refuser())
        if some(0.3):
            stages.append(Pace(rng.choice([0.1, 1.0]), self.keyed and some(0.5)))
        if some(0.4):
            stages.append(Slots(rng.choice([1, 2]), self.keyed and some(0.5), rng))
        self.limited = None
        if self.has_limits:
            self.limited = LimitsStage(limits_of(rng, self.keyed), None, {}, keyed=self.keyed)
            stages.append(self.limited)
        self.size = rng.choice([2, 5]) if some(0.4) else 1  # items of a call
        calls_items = self.workers * self.size
        self.rules = Rules(
            workers=self.workers,
            max_in_flight=rng.choice([None, calls_items, 4 * calls_items]),
            calls_items=self.size,
            order=self.order,
            chooses=self.keyed or self.prioritised,
            timeout=3.0 if some(0.2) else None,
            deadline=rng.choice([2.0, 20.0]) if some(0.2) else None,
            raises=some(0.3) or (self.plain and rng.random() < 0.3),
            drops=rng.random() < 0.2,
            within=self.within,
            max_failures=2 if rng.random() < 0.1 else math.inf,
            spreads=rng.random() < 0.5,
        )
        lanes = Lanes(
            keyed=self.keyed, prioritised=self.prioritised, in_order=self.order == "key", per_key=self.per_key,
            weight_of=None if self.weights is None else lambda item: self.weights[item.key],
            prepare=None if self.limited is None else self.limited.prepare,
        )  # fmt: skip
        if some(0.3):
            stages.insert(sum(stage.of_items for stage in stages), BreakerStage(2, 1.5, rng.random() < 0.3))
        if self.size > 1:
            batches = Batches(self.size, rng.choice([0.0, 1.0, 1e9]), self.order == "key")
            kind = ChunkBatchScheduler if self.in_chunks else BatchScheduler
            self.scheduler = kind(batches, self.rules, lanes, stages)
        else:
            self.scheduler = (ChunkScheduler if self.in_chunks else Scheduler)(self.rules, lanes, stages)
        if self.in_chunks:
            self.most = rng.choice([1, 4, 30])  # items that are taken at once
            self.scheduler.gather(self.most, lambda item: 8)
        for stage in stages:
            stage.connect(lambda lane: self.inbox.append(Woken(lane)), self.inbox.append)
        self.items = [self.item(number) for number in range(self.total)]

    def item(self, number):
        item = Item(number, self.rng.randrange(5) if self.keyed else None, number=number)
        if self.prioritised:
            item.priority = self.rng.choice([0, 1, 5, math.inf])
        item.identity = str(number % self.modulo)
        if self.rng.random() < 0.03:
            item.error = ValueError(number)
        elif self.rng.random() < 0.03:
            item.known, item.result = True, number
        return item

    # ---------------------------------------------------------------------------------------------------- the driver
    def step(self):
        for event in self.inbox:
            if isinstance(event, Failed) and event.verdict.kind is Kind.DEFER:
                self.pause(event.call.lane, event.verdict)
            if isinstance(event, Returned):
                for verdict in event.verdicts:
                    if verdict is not None and verdict.kind is Kind.DEFER:
                        self.pause(event.batch.lane, verdict)
        effects = self.scheduler.step(self.inbox, self.now)
        assert not (effects.start and (effects.recall or self.scheduler.halted)), "started while it recalls or ends"
        self.output.extend(effects.emit)
        if effects.recall:
            self.inbox.append(Recalled(list(self.queue)))
            self.queue.clear()
        for call in effects.start:
            self.check_start(call)
        self.queue.extend(effects.start)
        if self.adaptive is not None:
            assert 1 <= self.adaptive.allowed <= self.workers, "the number of workers"
            assert not effects.start or self.scheduler.handed <= self.adaptive.allowed, "more handed than allowed"
        for call, error in effects.cancel:
            began = self.running.pop(call, None)
            if began is None:
                ends = [getattr(event, "call", getattr(event, "batch", event)) for event in self.inbox]
                assert call in ends, "cancelled what does not run"
                continue
            assert isinstance(error, DeadlineExceeded) or began + self.rules.timeout <= self.now, "too early"
            if isinstance(call, Batch) and isinstance(error, TimeoutError):
                self.inbox.append(Returned(call, [Verdict(Kind.FAIL, error=error)] * len(call.members)))
                continue
            later = isinstance(error, TimeoutError) and call.attempts <= self.times
            self.inbox.append(Failed(call, Verdict(Kind.RETRY if later else Kind.FAIL, 0.1 if later else 0.0, error)))
        self.read = max(self.read, effects.read)
        self.wake_at = effects.wake_at
        self.ended = effects.ended
        self.check()

    def pause(self, lane, verdict):
        self.paused[lane] = max(self.paused[lane], self.now + verdict.seconds)

    def check_start(self, call):
        assert call not in self.queue, "handed twice"
        assert call not in self.running, "handed while it runs"
        assert self.paused[call.lane] <= self.now, "handed while its lane pauses"
        if call.lane.breaker is not None:
            assert call.lane.breaker.until <= self.now, "handed while the breaker is open"
        assert isinstance(call, Batch) == (self.size > 1), "an item is no batch"
        assert 1 <= len(call.items()) <= self.size, "the size of a batch"
        for item in call.items():
            assert not item.done, "handed after it was done"
            assert item not in self.members(), "an item of two calls"
            assert item.lane is call.lane, "the items of a batch have one lane"
            assert item.priority == call.priority or self.order == "key", "the items of a batch have one priority"
            assert not item.known, "a call of an item whose result is recorded"
            assert item.error is None, "a call of an item that has failed"

    def members(self):
        """The items that are handed or called."""
        return {item for call in (*self.queue, *self.running) for item in call.items()}

    def settle(self):
        for _ in range(1_000):
            if not self.inbox:
                return
            self.step()
        raise AssertionError("steps for ever")

    # ---------------------------------------------------------------------------------------------------- what happens
    def happen(self):
        """One thing, chosen at random of those that may happen now."""
        rng = self.rng
        choices = [self.pass_time]
        if self.queue and len(self.running) < self.workers:
            choices += [self.take_call] * 3
        if self.running:
            choices += [self.end_call] * 2
        if self.count < min(self.read, self.total):
            choices += [self.arrive] * 2
        elif self.count == self.total and not self.scheduler.input_ended and InputEnded(None) not in self.inbox:
            choices.append(self.end_input)
        if self.output:
            choices += [self.consume] * 2
        if self.stops and rng.random() < 0.01 and self.stopped is None:
            choices = [self.stop]
        rng.choice(choices)()

    count = 0

    def arrive(self):
        read = self.total if self.in_chunks else min(self.read, self.total)
        number = self.rng.randint(1, int(read) - self.count)
        items = self.items[self.count : self.count + number]
        self.count += number
        for item in items:
            self.scheduler.lanes.assign(item)
        self.inbox.append(items)

    def end_input(self):
        self.inbox.append(InputEnded(None))

    def take_call(self):
        call = self.queue.popleft()
        if call.lane.breaker is not None:
            assert call.lane.breaker.until <= self.now or call.lane.breaker.probing, "begun while the breaker is open"
        assert self.paused[call.lane] <= self.now, "begun while its lane pauses"
        if call.begin_by < self.now or (self.misses and self.rng.random() < 0.1):
            self.misses = True  # so calls of its key need not start in input order
            self.inbox.append(Missed(call))
            return
        equal = {item.identity for one in self.running for item in one.items()}
        for item in call.items():
            if not self.calls[item]:
                self.starts.append(item)
            assert self.now <= self.first.setdefault(item, self.now) + self.within, "an attempt after `within`"
            assert item.identity not in equal, "equal calls at once"
            equal.add(item.identity)
            item.attempts += 1
            self.calls[item] += 1
        if isinstance(call, Batch):
            call.attempts += 1
        call.began = self.now
        self.running[call] = self.now
        if self.per_key:
            assert sum(one.lane is call.lane for one in self.running) <= self.per_key, "per_key"

    def end_call(self):
        call = self.rng.choice(list(self.running))
        del self.running[call]
        if isinstance(call, Item):
            verdict = self.verdict(call, call.attempts)
            self.inbox.append(call if verdict is None else Failed(call, verdict))
        elif self.rng.random() < self.failure_rate / 2:
            kind = Kind.RETRY if call.attempts <= self.times else Kind.SPLIT if len(call.members) > 1 else Kind.FAIL
            self.splits += kind is Kind.SPLIT
            self.inbox.append(Failed(call, Verdict(kind, self.rng.choice([0.0, 1.0]), RuntimeError())))
        else:
            verdicts = [self.verdict(item, call.attempts) for item in call.members]
            self.inbox.append(Returned(call, verdicts))

    def verdict(self, item, attempts):
        """How the call of an item ends. None: it has a result."""
        chance = self.rng.random()
        if chance < self.deferral_rate:
            return Verdict(Kind.DEFER, self.rng.choice([0.0, 0.5, 2.0]), OSError())
        if chance < self.deferral_rate + self.failure_rate:
            kind = Kind.RETRY if attempts <= self.times else Kind.FAIL
            return Verdict(kind, self.rng.choice([0.0, 1.0]), RuntimeError(item.value))
        item.result = item.value
        return None

    def consume(self):
        if self.in_chunks:
            rows = self.scheduler.pop(self.output)
            assert len(rows) <= self.most, "too many at once"
            self.taken += rows
            self.inbox.append(len(rows))
            return
        number = self.rng.randint(1, len(self.output))
        self.taken += [self.output.popleft() for _ in range(number)]
        self.inbox.append(number)

    def pass_time(self):
        self.now += self.rng.choice([0.0, 0.01, 0.3, 1.5])
        if self.wake_at <= self.now:
            self.step()
            assert self.wake_at > self.now or self.inbox, "asks to be called at once, for ever"

    def stop(self):
        self.stopped = self.rng.choice([Stop(True), Stop(False), Fail(MemoryError())])
        self.inbox.append(self.stopped)

    # ---------------------------------------------------------------------------------------------------- promises
    def check(self):
        scheduler, window = self.scheduler, self.scheduler.window
        self.check_output()
        if scheduler.ended:
            return
        assert scheduler.handed >= len(self.queue) + len(self.running)
        assert scheduler.hands_ahead or scheduler.handed <= self.workers, "more handed than workers"
        assert window.in_flight <= window.size, "window"
        if self.in_chunks:
            dropped = window.emitted - len(self.taken) - len(self.output) if self.rules.drops else 0
            assert window.taken <= len(self.taken) + dropped + self.most, "more count as taken than are taken at once"
        if not scheduler.halted:
            kept = sum(len(some) for stage in scheduler.stages for some in getattr(stage, "_followers", {}).values())
            behind = sum(item.done for item in self.items[: window.arrived]) - window.emitted
            waiting = scheduler.lanes.waiting
            if self.size > 1:
                lanes = {item.lane for item in self.items[: self.count]}
                lingering = scheduler.batches._lingering
                waits = [*lingering, *(each for lane in lanes for each in calls_of(lane))]
                assert waiting == len(waits) - len(lingering)
                waiting = sum(len(call.members) for call in waits)
                assert scheduler.handed_items == sum(len(call.items()) for call in self.open_calls())
            counted = waiting + scheduler.called() + scheduler.resting + kept + behind
            assert window.pending == counted, "an item is lost"
        self.check_limits()
        breaker = scheduler._breaker
        if breaker is not None and breaker.fails and not (scheduler.halted or scheduler.expired):
            self.check_breakers()
        for lane in {item.lane for item in self.items[: self.count]}:
            assert not self.per_key or 0 <= lane.held <= self.per_key, "slots"

    def open_calls(self):
        """What is handed, as the scheduler sees it: also calls whose ends wait in the inbox."""
        events = [getattr(event, "call", getattr(event, "batch", event)) for event in self.inbox]
        recalled = [call for event in self.inbox if isinstance(event, Recalled) for call in event.calls]
        return [*self.queue, *self.running, *recalled, *(one for one in events if isinstance(one, Item | Batch))]

    def check_limits(self):
        """A Concurrency and a Budget hold, whatever is handed and runs."""
        if self.limited is None:
            return
        taken = Counter()
        for accounts, costs in self.limited.owner.held.values():
            for account, cost in zip(accounts, costs, strict=True):
                taken[account] += cost
        for account, cost in taken.items():
            if isinstance(account.limit, Concurrency):
                assert cost == account._reserved <= 2.0, "Concurrency"
            elif isinstance(account.limit, Budget):
                assert account.settled + cost <= account.limit.amount, "Budget"

    def check_output(self):
        out = self.taken + list(self.output)
        numbers = [item.number for item in out]
        assert len(set(numbers)) == len(numbers), "emitted twice"
        if self.order == "input":
            assert numbers == sorted(numbers), "order"
        if self.order == "key":
            for key in range(5):
                of_key = [item.number for item in out if item.key == key]
                assert of_key == sorted(of_key), "order of a key"
        assert not (self.rules.drops and any(item.error for item in out)), "a failed item was not dropped"

    def accounts(self, lane):
        return (lane.accounts or ()) if self.limited.owner.keyed else self.limited.owner.accounts

    def check_starts(self):
        for key in range(5):
            numbers = [item.number for item in self.starts if item.key == key or not self.keyed]
            assert numbers == sorted(numbers), "calls of a key start in input order"

    def check_breakers(self):
        """Where items of an open breaker fail, none of them rests, nor waits with a slot."""
        for _, _, call in self.scheduler._timers:
            state = call.lane.breaker
            assert state is None or state.until <= self.now, "an item rests although its breaker is open"

    def check_end(self):
        scheduler, error = self.scheduler, self.scheduler.error
        assert not self.queue, "calls are left"
        assert not self.running, "calls run on"
        for stage in scheduler.stages:
            assert not open_calls(stage), "a stage has a call that has ended"
        if self.limited is not None:
            lanes = {item.lane for item in self.items[: self.count]}
            for account in {account for lane in lanes for account in self.accounts(lane)}:
                assert not account.queue, "who has ended stands in a queue"
                assert isinstance(account.limit, Rate) or not account._reserved, "a call gave nothing back"
                if isinstance(account.limit, Budget):
                    assert account.settled <= self.calls.total(), "calls were paid for that did not begin"
        if self.stopped is None and error is None:
            emitted = self.total - (sum(item.error is not None for item in self.items) if self.rules.drops else 0)
            assert len(self.taken) + len(self.output) == emitted, "an item is missing"
            for item in self.items:
                assert item.done, "not done"
                wrong = item.error is None and (item.result - item.value) % self.modulo
                assert not wrong, "a wrong result"
                most = (self.times + 1) * (self.size if self.splits else 1) + item.deferrals
                assert self.calls[item] <= most, "too many calls"
            if not (self.prioritised or self.misses or self.modulo < 10**9 or self.limited or self.size > 1):
                self.check_starts()
        if error is not None and self.stopped is None:
            assert self.rules.raises or isinstance(error, TooManyFailures)
        if self.rules.deadline is None:
            assert not any(isinstance(item.error, DeadlineExceeded) for item in self.items)
        if self.stopped == Stop(True) and error is None and not self.rules.drops:
            done = sum(item.done for item in self.items)
            assert len(self.taken) + len(self.output) == done, "stop keeps what is done"

    def run(self):
        self.step()
        for _ in range(10_000):
            self.happen()
            if self.rng.random() < 0.7:
                self.settle()
            if self.ended:
                break
        else:
            raise AssertionError("does not end")
        self.settle()
        self.check_end()


def calls_of(lane):
    """The calls that wait in a lane."""
    waits = []
    for queue in (lane.again, lane.waiting):
        waits += queue if isinstance(queue, deque) else [entry[2] for entry in queue._heap]
    return waits


def open_calls(stage):
    """What a stage keeps of calls that have started."""
    if isinstance(stage, WithinStage | EqualStage):
        return ()
    if isinstance(stage, AdaptiveStage):
        return {**stage._started, **dict.fromkeys(stage._refused)}
    if isinstance(stage, LimitsStage):
        return stage.owner.held
    return getattr(stage, "_periods" if isinstance(stage, BreakerStage) else "open")


def run(seed, has_limits=False, in_chunks=False):
    World(random.Random(seed), has_limits=has_limits, in_chunks=in_chunks).run()
