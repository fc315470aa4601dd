"""A world: the threads of a runner as events on a virtual clock, with a scheduler that they call and the model that
checks it.

The world keeps what a runner promises the scheduler. One event is handled at a time. A worker reports a start before
the end of the call. Reports stay in a queue until one thread handles them all, so they may be late and in any order
between workers. A verdict is found when the call ends; `failed` is handled later. An abandoned call reports nothing or,
as a coroutine, reports its own end. `halted` is set as soon as a verdict fails the map, and the queue `ready` is shut
down with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from manytail import (
    Batch,
    Breaker,
    Budget,
    Concurrency,
    DeadlineExceeded,
    Empty,
    Limit,
    Rate,
    Retry,
    RetryLater,
    ShutDown,
)
from manytail.mapping._item import Unfit
from manytail.mapping._ledger import Tokens
from manytail.mapping._options import Options

from . import functions
from .batches import BatchModel, Outcome, Tried, Unit
from .code import Code
from .lanes import Record, Violation
from .limits import GatedModel
from .model import Model
from .settings import KINDS, Settings, draw
from .verdicts import kind_of, waits

AFTER = (0.0, 0.25, 0.5, 1.0, 4.0)
NO_AFTER = (math.inf, math.nan, -1.0, "1", True, 10**400)  # no valid number of seconds
MOST_EVENTS = 60_000  # more events mean that the world makes no progress


class Call:
    """One call under way."""

    __slots__ = ("abandoned", "cancelled", "ended", "number", "record", "swallows")

    def __init__(self, record: Record, number: int, swallows: bool) -> None:
        self.record, self.number, self.swallows = record, number, swallows
        self.ended = self.abandoned = False
        self.cancelled: BaseException | None = None


class World:
    """One run of one seed."""

    def __init__(self, settings: Settings, code: Code, trace: list[str] | None = None) -> None:
        self.settings, self.code, self.trace = settings, code, trace
        self.rng = Random(f"world {settings.seed}")
        self.costs = Random(f"costs {settings.seed}")
        self.memory = Random(f"memory {settings.seed}")
        self.now = 0.0
        self.events: list[tuple[float, float, Callable[..., None], tuple[Any, ...]]] = []
        code.admission.IDLE_LIMIT = settings.idle_limit
        code.window.WINDOW_LIMIT = settings.window_limit
        code.adaptive.ROUND = settings.round
        code.scheduler.SPREAD = settings.spread
        self.scheduler = code.scheduler.Scheduler(
            options_of(settings),
            weight_of=None if settings.weights is None else self._weight_of,
            buffer=settings.buffer,
            sizeof=self._sizeof if settings.sized else None,
            buffer_bytes=settings.buffer_bytes if settings.sized else math.inf,
            window_bytes=settings.window_bytes if settings.sized else math.inf,
        )
        self.model: Any = _model_of(settings)(settings, 4 * settings.workers)
        self.gate = self.scheduler.gate
        self.limit_names = [name for name, limit in settings.limits.items() if limit is not None]
        self.last_output = 0.0  # when the consumer had something last
        self.stamp: float | None = None  # of this event, where it has one
        self.made_items: dict[Record, Any] = {}  # items in flight, where there is a gate
        size = self.scheduler.window.size
        self.model.demand(size == self.model.window, f"the window is {size} at first")
        self.reports: deque[tuple[Any, ...]] = deque()
        self.idle = settings.workers
        self.calls: dict[Record, Call] = {}  # running calls, without abandoned ones
        self.abandoned = 0  # abandoned calls that still run
        self.made = self.calls_made = 0
        self.pending: list[Any] = []  # read, not in flight
        self.reading = self.stopping = self.closed = self.settling = self.late_worker = False
        self.consumer_waits = True
        self.timer_at = math.inf
        # A start's time is taken before its report enters the queue: another start may come in between.
        self.slack = settings.lag

    # ------------------------------------------------------------------------------------------------ the clock
    def at(self, delay: float, what: Callable[..., None], *arguments: Any) -> None:
        """Schedule an event in `delay` seconds. Events at one instant happen in any order."""
        grain = self.settings.grain
        heappush(self.events, (self.now + math.ceil(delay / grain) * grain, self.rng.random(), what, arguments))

    def run(self) -> None:
        """Run until no event is left. Raises Violation."""
        settings = self.settings
        if settings.close_at is not None:
            self.at(settings.close_at, self.close)
        if settings.break_at is not None:
            self.at(settings.break_at, self.break_down)
        self.go_on()
        events = 0
        while self.events:
            self.now, _, what, arguments = heappop(self.events)
            what(*arguments)
            self.offer()
            events += 1
            self.model.demand(events < MOST_EVENTS, "the world does not come to an end")
        self.note("quiet")
        self.model.check_end(self.scheduler)

    def note(self, event: str, what: object = "", effect: str = "") -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:10.4f}  {event:<10} {what!s:<22} {effect}".rstrip())

    def check(self, event: str, what: object = "") -> None:
        """Check the model after an event."""
        scheduler = self.scheduler
        self.judge_failures()
        if self.gate is not None:
            self.look_at_gate()
        fresh = self.model.check_output(scheduler.output)
        if self.trace is not None:
            effect = f"in flight {scheduler.window.in_flight}/{scheduler.window.size}, wake at {scheduler.wake_at:.4f}"
            effect += "".join(f", emits {record}" for record in fresh) + (", halted" if scheduler.halted else "")
            effect += "".join(f", overdue {item.value}" for item, _ in scheduler.overdue)
            self.note(event, what, effect)
        self.model.check_figures(scheduler, self.slack)
        if fresh and self.consumer_waits:
            self.consumer_waits = False
            self.at(self._about(self.settings.rest), self.consume)

    # ------------------------------------------------------------------------------------------------ the gate
    def look_at_ready(self) -> dict[Record, Any]:
        """Tell the model which items went back from `ready`."""
        for item in self.gate._ready:
            if self.settings.group > 1:
                records = [each.value for each in item.items]
                if item.value is None or item.value.records != records:  # what is answered leaves its batch
                    item.value = Unit(records)
        waiting = {item.value: item for item in self.gate._ready}
        for record in [record for record in self.model.offered if record not in waiting]:
            self.note("goes back", record)
            self.model.take_back(record, self.now if self.stamp is None else self.stamp)
            self.see_given_back(record)
        return waiting

    def see_given_back(self, record: Record) -> None:
        """The slots of an item that went back are free."""
        self.model.next_slots.update({place: (at, at) for place, at in self.next_slots(record.lane.key).items()})

    def next_slots(self, key: Any) -> dict[Any, float]:
        """From when on each rate has slots, of the map and of that key."""
        limits = self.scheduler.options.limits
        found = {}
        for limit, name in zip(limits, self.limit_names, strict=True):
            account = limit._accounts.get(key) if limit.per_key else limit._account
            if isinstance(account, Tokens):
                found[name, key if limit.per_key else None] = account._tat
        return found

    def look_at_gate(self) -> None:
        """Tell the model what has changed in the gate."""
        gate, model, now = self.gate, self.model, self.now
        places: dict[Any, float] = {}
        waiting = self.look_at_ready()
        for record in [record for record in model.flying if self.made_items[record].error is not None]:
            self.note("refuse", record, repr(self.made_items[record].error))
            model.refuse(record, self.made_items[record].error, now if self.stamp is None else self.stamp)
        self.look_at_dedup({record for record in waiting if record not in model.offered})
        for record, item in waiting.items():
            if record not in model.offered:
                self.note("offer", record, f"until {gate.starts[item].until}")
                model.offer(record, gate.starts[item].until, now)
                places.update(self.next_slots(record.lane.key))
        model.see_slots(places)
        model.fail_refused()
        model.check_gate(now)
        self.stamp = None

    def look_at_dedup(self, passed: set[Record]) -> None:
        gate, model = self.gate, self.model
        if gate._dedup is None:
            return
        followers = {item.value: None for queue in gate._dedup._followers.values() for item in queue}
        for record in [record for record in model.following if record not in followers]:
            item = self.made_items[record]
            if not item.done and item.error is None:
                self.note("leads", record)
                model.lead(record)
        for record in [record for record in followers if record not in model.following]:
            self.note("follows", record)
            model.follow(record, gate._dedup._leaders[record.identity].value, passed)
        for record in [record for record in model.flying if self.made_items[record].done]:
            if self.made_items[record].error is None:
                self.note("answered", record)
                model.answer(record, self.made_items[record].result)

    def judge_failures(self) -> bool:
        """Ask `fatal` about items that failed without a call. The runner's timer does it. Returns whether there were
        any."""
        scheduler = self.scheduler
        unjudged, scheduler.unjudged = scheduler.unjudged, []
        for item, error in unjudged:
            self.note("judged", item.value)
            scheduler.judged(item, scheduler.failure(error))
        return bool(unjudged)

    def dispatch(self) -> None:
        """Start what may start."""
        scheduler = self.scheduler
        self.model.dispatch_begins(self.now)
        scheduler.dispatch(self.now)
        while self.judge_failures():  # followers of what has failed
            scheduler.dispatch(self.now)
        self.check("dispatch")
        self.model.dispatched(self.now, scheduler.wake_at, self.gate.allowed)

    def _about(self, seconds: float) -> float:
        return seconds * 2 * self.rng.random()

    # ------------------------------------------------------------------------------------------------ the input
    def pull(self) -> None:
        """The reader has pulled a batch, or the input's end."""
        settings, rng = self.settings, self.rng
        self.settle()
        if self.stopping:
            return
        self.reading = False
        if self.made == settings.items:
            error = OSError("input") if settings.input_raises else None
            self.model.ended = True
            self.scheduler.input_ended(error)
            self.model.demand(self.scheduler.input_error is error, "the input's exception is lost")
            self.check("input ends", error or "")
        else:
            self.pending = [
                self._item() for _ in range(min(settings.items - self.made, rng.randint(1, settings.batch)))
            ]
        self.go_on()

    def _item(self) -> Any:
        settings, rng = self.settings, self.rng
        key = None
        if settings.keyed:
            key = rng.choice([*range(settings.keys), *settings.shares])
        priority = self._priority() if settings.prioritised else 0
        size = rng.randint(1, 20)
        record = Record(self.made, key, priority, size, self.costs.choice(settings.costs) if settings.costs else 1.0)
        self.made += 1
        item = self.code.scheduler.Item(record, key, priority)
        if settings.costs:
            costed = ("cost_rate", "budget", "concurrency")
            item.costs = tuple(record.cost if name in costed else 1.0 for name in self.limit_names)
        if settings.dedup:
            item.identity = record.identity = self.costs.randrange(settings.identities)
        if rng.random() < settings.bad_items:
            record.error = item.error = ValueError("no key")
            self.scheduler.admission.assign_alone(item)
        else:
            self.scheduler.assign([item])
            if self.memory.random() < settings.known:
                record.known = item.known = True
                record.result = item.result = (record.number, "recorded")
        return item

    def _priority(self) -> float:
        """Nested priorities, each between 0 and the one before, leave no label free between them."""
        if self.settings.nested and self.rng.random() < 0.8:
            return 2 ** max(1, 70 - self.made)
        return self.rng.choice(self.settings.priorities)

    def feed(self) -> None:
        """Fill the window, as far as there are items."""
        scheduler, rng = self.scheduler, self.rng
        while True:
            room = scheduler.room()
            self.model.check_room(room, scheduler.window.size)
            if room <= 0 or not self.pending:
                break
            number = room if rng.random() < 0.7 else rng.randint(1, room)
            items, self.pending = self.pending[:number], self.pending[number:]
            self.model.arrived([item.value for item in items], self.now)
            self.made_items.update({item.value: item for item in items} if self.gate is not None else {})
            scheduler.arrived(items, self.now)
            self.check("arrive", [item.value for item in items])
            if self.gate is not None:
                self.dispatch()
            if scheduler.halted:
                break
        if room > 0 and not self.pending and not self.reading:
            self.reading = True
            self.at(self._about(self.settings.pull), self.pull)

    # ------------------------------------------------------------------------------------------------ reports
    def report(self, *event: Any) -> None:
        """Handle it at once, or when the holder of the runner's lock releases that."""
        self.reports.append(event)
        if self.settings.lag and self.rng.random() < 0.3:
            self.at(self._about(self.settings.lag) / 2, self.settle)
        else:
            self.settle()

    def settle(self) -> None:
        if self.settling or not self.reports:
            return
        self.settling = True
        while self.reports:
            event = self.reports.popleft()
            getattr(self, "handle_" + event[0])(*event[1:])
            if self.rng.random() < 0.2:
                self.offer()
        self.settling = False
        self.go_on()

    def handle_started(self, item: Any, stamp: float) -> None:
        self.model.started(item.value, stamp)
        self.scheduler.started(item, stamp)
        if self.model.expired:
            self.model.late_start(item.value, [(late.value, error) for late, error in self.scheduler.overdue])
        self.check("started", item.value)

    def handle_succeeded(self, item: Any, result: Any) -> None:
        self.model.succeeded(item.value, result)
        self.scheduler.succeeded(item, self.now)
        self.check("succeeded", item.value)

    def handle_failed(self, item: Any, verdict: Any, error: Any, stamp: float) -> None:
        seconds, pause = waits(verdict)
        self.model.failed(item.value, kind_of(verdict), seconds, error, stamp, pause)
        self.scheduler.failed(item, verdict, stamp)
        self.stamp = stamp
        self.check(kind_of(verdict), f"{item.value} {verdict.seconds:.4f}")

    def handle_missed(self, item: Any, stamp: float) -> None:
        self.model.take_back(item.value, self.now)
        self.scheduler.missed(item, stamp)
        self.see_given_back(item.value)
        self.stamp = stamp
        self.check("missed", item.value)

    def handle_took(self, number: int) -> None:
        self.model.consumed(number)
        self.scheduler.took(number)
        self.consumer_waits = self.consumer_waits or bool(self.settings.buffer)
        self.check("took", number)

    def handle_stop(self) -> None:
        self.check("stop")

    def handle_fail(self, error: BaseException) -> None:
        self.model.halted = True
        if self.model.error is None:
            self.model.error = error
        self.scheduler.fail(error)
        self.check("map fails", repr(error))

    def go_on(self) -> None:
        """Do what the scheduler decided."""
        scheduler = self.scheduler
        if self.gate is not None:
            self.dispatch()
        if scheduler.halted and not self.stopping:
            self.stopping = True
            scheduler.ready.shutdown(immediate=True)
            if self.gate is not None:
                self.model.shut_down()
        if self.stopping:
            self.pending = []
        else:
            self.feed()
            if scheduler.halted:
                self.go_on()
                return
        if scheduler.output and self.consumer_waits and not self.closed:
            self.consumer_waits = False
            self.at(self._about(self.settings.rest), self.consume)
        self._set_timer()

    # ------------------------------------------------------------------------------------------------ time
    def _set_timer(self) -> None:
        at = self.now if self.scheduler.overdue else self.scheduler.wake_at
        if at < self.timer_at and not (self.stopping and not self.calls):
            self.timer_at = at
            late = self._about(self.settings.lag) / 2 if self.rng.random() < 0.3 else 0.0
            heappush(self.events, (max(at, self.now) + late, self.rng.random(), self.tick, (at,)))

    def tick(self, at: float) -> None:
        """The timer rings."""
        scheduler, model = self.scheduler, self.model
        if at == self.timer_at:
            self.timer_at = math.inf
        self.settle()
        if scheduler.wake_at <= self.now:
            late = len(scheduler.overdue)
            scheduler.tick(self.now)
            if self.gate is not None:
                self.look_at_ready()
            model.ticked(self.now, [(item.value, error) for item, error in scheduler.overdue[late:]], self.slack)
            model.demand(scheduler.wake_at > self.now, "the timer rings again at once")
            self.check("tick")
        overdue, scheduler.overdue[:] = list(scheduler.overdue), []
        for item, error in overdue:
            self.give_up(item, error)
        self.go_on()

    def give_up(self, item: Any, error: BaseException) -> None:
        call = self.calls.get(item.value)
        if call is None or call.ended:
            self.note("in time", item.value)  # the end of the call was, or will be, reported
            return
        if self.settings.coroutines:
            if call.cancelled is None:
                call.cancelled = error
                if not call.swallows:
                    self.at(self._about(self.settings.lag), self.end, item, call, error)
            return
        call.abandoned = True
        self._leave(item, call)
        self.abandoned += 1
        if not self.model.expired:
            self.idle += 1  # another worker replaces it
            if self.abandoned > self.settings.workers:
                self.scheduler.halted = self.model.halted = True
                self.reports.append(("fail", RuntimeError("too many abandoned calls")))
        self.note("abandon", item.value)
        if self.settings.group > 1:
            self._end_batch(item, call, error)
            return
        self._judge(item, error, self.scheduler.give_up, isinstance(error, DeadlineExceeded))

    # ------------------------------------------------------------------------------------------------ workers
    def offer(self) -> None:
        """Idle workers take what is ready."""
        while self.idle and not self.scheduler.halted:
            if self.settings.sloth and not self.late_worker and self.rng.random() < self.settings.sloth:
                self.late_worker = True
                self.at(self._about(self.settings.grain), self.wake_worker)
                return
            if self.late_worker:
                return
            if not self.take():
                return

    def wake_worker(self) -> None:
        self.late_worker = False
        while self.idle and not self.scheduler.halted and self.take():
            continue

    def take(self) -> bool:
        """One worker looks for an item."""
        try:
            item = self.scheduler.ready.get_nowait()
        except Empty:
            self.model.idle()
            return False
        except ShutDown:
            return False
        self.note("take", item.value)
        if self.gate is None:
            self.model.start(item.value, self.now)
        elif self.gate.late(item, self.now):
            self.model.comes_late(item.value, self.now)
            self.report("missed", item, self.now)
            return True
        else:
            self.model.begin(item.value, self.now)
        self.idle -= 1
        item.attempts += 1
        self.calls_made += 1
        seconds = self._latency()
        swallows = seconds < math.inf and self.rng.random() < 0.1  # the call ignores its cancellation
        call = self.calls[item.value] = Call(item.value, self.calls_made, swallows)
        if self.settings.lag and self.rng.random() < 0.2:
            self.at(self._about(self.settings.lag), self.begin, item, call, seconds)
        else:
            self.begin(item, call, seconds)
        return True

    def begin(self, item: Any, call: Call, seconds: float) -> None:
        """The call begins, after its start was reported."""
        if self.scheduler.reports_starts:
            self.report("started", item, self.now)
        if seconds < math.inf:
            self.at(seconds, self.end, item, call, None)

    def _latency(self) -> float:
        settings, rng = self.settings, self.rng
        if rng.random() < settings.hangs:
            return math.inf
        seconds = settings.latency * rng.choice([0.0, 0.25, 0.5, 1.0, 1.0, 2.0])
        return 20 * seconds if rng.random() < settings.tail else seconds

    def end(self, item: Any, call: Call, cancelled: BaseException | None) -> None:
        """The call returns or raises. The end of an abandoned call is not reported."""
        if call.abandoned:
            self.abandoned -= 1
            self.note("late end", item.value)
            return
        if call.ended:
            return
        self._leave(item, call)
        self.idle += 1
        if self.settings.group > 1:
            self._end_batch(item, call, cancelled)
            return
        if cancelled is not None:
            self._judge(item, cancelled, self.scheduler.give_up, isinstance(cancelled, DeadlineExceeded))
            return
        error = self._error(item.value)
        if error is None:
            item.result = (item.value.number, call.number)
            self.report("succeeded", item, item.result)
        else:
            self._judge(item, error, self.scheduler.judge, False)

    # ----------------------------------------------------------------------------------------------- calls with batches
    def _end_batch(self, batch: Any, call: Call, given_up: BaseException | None) -> None:
        """What the runner does when such a call ends, up to its report."""
        chance = self.rng.choice([0.0, 0.5, 0.999999])
        unit, error = batch.value, given_up or self._error(batch.value)
        if given_up is not None:
            verdicts: Any = self.scheduler.lost(batch, given_up)
        elif error is not None:
            verdicts = self.scheduler.judge_batch(batch, error, chance)
            if not isinstance(verdicts, list):
                self._report_whole(batch, verdicts, error)
                return
            deferred = isinstance(error, RetryLater) or (self.settings.retry_on == "later" and functions.is_odd(error))
            whole = deferred or len(batch.items) == 1 or verdicts[0].fatal
            self.model.demand(whole, f"{unit} has failed for good, and is not split")
        else:
            batch.result = self._results(unit, call)
            verdicts = self.scheduler.judge_results(batch, chance)
        outcomes = []
        for record, verdict, place in zip(unit.records, verdicts, range(len(verdicts)), strict=True):
            cause = error or (batch.result.error if isinstance(batch.result, Unfit) else batch.result[place])
            outcomes.append(
                self._outcome(record, cause, verdict, given_up is not None or isinstance(batch.result, Unfit))
            )
        self.note("returns", unit, " ".join(outcome.kind for outcome in outcomes))
        if any(self._ends_map(verdict) for verdict in verdicts if verdict is not None):
            self.scheduler.halted = self.model.halted = True
        self._report_late("returned", batch, verdicts, outcomes)

    def _results(self, unit: Any, call: Call) -> Any:
        if self.rng.random() < self.settings.fails / 20:
            return Unfit(ValueError("no results"))
        few = [self._error(record) if self.rng.random() < 0.3 else None for record in unit.records]
        return [error or (record.number, call.number) for record, error in zip(unit.records, few, strict=True)]

    def _outcome(self, record: Record, cause: Any, verdict: Any, final: bool) -> Outcome:
        """Check that the verdict is what the contract says."""
        failed = isinstance(cause, BaseException)
        self.model.demand((verdict is None) is not failed, f"{record} ends with {cause!r}: {verdict}")
        if verdict is None:
            return Outcome("result", result=cause)
        tried = Tried(record.tries, record.deferred, repr(record), record.deferrals)
        seconds, pause = waits(verdict)
        return Outcome(kind_of(verdict), seconds, self.model.check_verdict(tried, cause, verdict, final), pause=pause)

    def _report_whole(self, batch: Any, verdict: Any, error: BaseException) -> None:
        """The whole batch is tried again, or it is split."""
        unit, split = batch.value, verdict.kind.value == "split"
        self.model.demand(not split or len(unit.records) > 1, f"{unit} is split")
        judged = verdict._replace(kind=self.code.scheduler.Kind.FAIL) if split else verdict
        fails_with = self.model.check_verdict(unit.tried, error, judged, False)
        self.note("raises", unit, f"{error!r}: {verdict.kind.value}")
        self._report_late("whole", batch, verdict, verdict.error if split else fails_with)

    def _report_late(self, event: str, *what: Any) -> None:
        if self.settings.lag and self.rng.random() < 0.3:
            self.at(self._about(self.settings.lag), self._report_now, event, *what)
        else:
            self._report_now(event, *what)

    def _report_now(self, event: str, *what: Any) -> None:
        self.report(event, *what, self.now)

    def handle_returned(self, batch: Any, verdicts: Any, outcomes: list[Outcome], stamp: float) -> None:
        self.model.returned(batch.value, outcomes, stamp)
        self.scheduler.returned(batch, verdicts, stamp)
        self.stamp = stamp
        self.check("returned", batch.value)

    def handle_whole(self, batch: Any, verdict: Any, error: Any, stamp: float) -> None:
        self.model.failed_batch(batch.value, verdict.kind.value, verdict.seconds, error, stamp)
        self.scheduler.failed(batch, verdict, stamp)
        self.stamp = stamp
        self.check(verdict.kind.value, batch.value)

    def _leave(self, item: Any, call: Call) -> None:
        call.ended = True
        del self.calls[item.value]
        self.model.call_ended(item.value)

    def _error(self, record: Record) -> BaseException | None:
        settings, rng = self.settings, self.rng
        if self.now < settings.storm_end and rng.random() < settings.storm:
            return RetryLater(rng.choice(NO_AFTER) if rng.random() < 0.03 else rng.choice(AFTER))
        if rng.random() < settings.fails:
            return rng.choice(KINDS)(record.number)
        return None

    def _judge(self, item: Any, error: BaseException, judge: Callable[..., Any], final: bool) -> None:
        """Runs outside the lock: the report may come later, with its own time."""
        verdict = judge(item, error, self.rng.choice([0.0, 0.5, 0.999999]))
        kind = verdict.kind.value
        fails_with = self.model.check_verdict(item.value, error, verdict, final)
        self.note("raises", item.value, f"{error!r}: {kind}")
        if self._ends_map(verdict):
            self.scheduler.halted = self.model.halted = True
        if self.settings.lag and self.rng.random() < 0.3:
            self.at(self._about(self.settings.lag), self.report_failed, item, verdict, fails_with)
        else:
            self.report_failed(item, verdict, fails_with)

    def _ends_map(self, verdict: Any) -> bool:
        """What the runner sets `halted` for at once."""
        return verdict.kind.value == "fail" and (verdict.fatal or self.settings.errors == "raise")

    def report_failed(self, item: Any, verdict: Any, error: Any) -> None:
        self.report("failed", item, verdict, error, self.now)

    # ---------------------------------------------------------------------------------------- the consumer, and the end
    def consume(self) -> None:
        if self.closed:
            return
        output, number = self.scheduler.output, 0
        wanted = self.rng.randint(1, self.settings.greed)
        while output and number < wanted:
            output.popleft()
            number += 1
        self.model.popped += number
        if number:
            self.last_output = self.now
            self.note("consume", number)
            # A consumer of batches waits until the last one was counted; a consumer of single items need not.
            self.consumer_waits = not self.settings.buffer
            self.report("took", number)
        else:
            self.consumer_waits = True

    def close(self) -> None:
        """The user closes the map."""
        self.closed = True
        self.scheduler.halted = self.model.halted = True
        self.report("stop")

    def break_down(self) -> None:
        """The map fails for a reason of its own, such as a setup that raises."""
        self.scheduler.halted = self.model.halted = True
        self.report("fail", RuntimeError("setup"))

    # ----------------------------------------------------------------------------------------- what the scheduler calls
    def _weight_of(self, item: Any) -> int:
        assert self.settings.weights is not None
        return self.settings.weights.get(item.value.key, 1)

    def _sizeof(self, item: Any) -> float:
        """Bytes of an item and its result."""
        return item.value.size * (1 if item.result is None else 2)


def _model_of(settings: Settings) -> type[Model]:
    if settings.group > 1:
        return BatchModel
    return GatedModel if settings.gated else Model


def limits_of(settings: Settings) -> tuple[Limit, ...]:
    """Their costs are in the items."""
    cost = float if settings.costs else None
    made: dict[str, Callable[[float], Limit]] = {
        "rate": Rate,
        "per_key_rate": lambda amount: Rate(amount, per_key=True),
        "cost_rate": lambda amount: Rate(amount, cost=cost),
        "budget": lambda amount: Budget(amount, cost=cost),
        "concurrency": lambda amount: Concurrency(amount, cost=cost),
    }
    return tuple(made[name](amount) for name, amount in settings.limits.items() if amount is not None)


def options_of(settings: Settings) -> Options:
    when_open: Any = settings.breaker_open
    breaker = Breaker(settings.breaker or 1, reset=settings.breaker_reset, when_open=when_open)
    remember: Any = settings if settings.known else None  # any object: the scheduler only asks whether there is one
    return Options(
        workers=settings.workers,
        least=settings.least,
        start=settings.start,
        max_in_flight=settings.max_in_flight or None,
        order=settings.order,
        keyed=settings.keyed,
        per_key=settings.per_key or None,
        prioritised=settings.prioritised,
        timeout=settings.timeout,
        deadline=settings.deadline,
        retry=Retry(
            settings.retries,
            functions.retry_on(settings),
            backoff=functions.backoff(settings),
            max_backoff=settings.max_backoff,
            defer=settings.defer_timeout,
            within=settings.within,
        ),
        never_retry=functions.never_retry(settings),
        errors=settings.errors,
        max_failures=settings.max_failures,
        fatal=functions.fatal(settings),
        breaker=breaker if settings.breaker else None,
        limits=limits_of(settings),
        dedup=settings.dedup or None,
        remember=remember,
        batch=Batch(settings.group, linger=settings.linger) if settings.group > 1 else None,
    )


def run(seed: int, code: Code) -> None:
    """Raise a Violation that shows the seed and its trace if a promise is broken in that world."""
    try:
        World(draw(seed), code).run()
    except Exception:
        raise Violation(replay(seed, code)) from None


def replay(seed: int, code: Code) -> str:
    """The trace of a seed: event, time, item, effect."""
    settings, trace = draw(seed), []
    try:
        World(settings, code, trace).run()
        end = "every promise is kept"
    except Violation as violation:
        end = f"VIOLATION: {violation}"
    except Exception as error:
        end = f"VIOLATION: {error!r} is raised"
        tb = error.__traceback__
        while tb is not None and tb.tb_next is not None:
            tb = tb.tb_next
        if tb is not None:
            end += f" in {tb.tb_frame.f_code.co_filename}:{tb.tb_lineno}"
    return "\n".join([f"seed {seed}: {settings}", *trace, end, f"replay: python -m simulation {seed}   (in tests/)"])
