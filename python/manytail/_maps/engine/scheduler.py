"""The scheduler of a map. It is told what happened, and returns what the driver must do: no threads, no clock, no I/O.

    step(inbox, now) -> Effects

handles every event of the inbox (`events`), does what is due at `now`, starts what may start, and returns what the
driver has to carry out. One thread at a time calls it. Threads, a loop and the inline runner are drivers of the same
step.

    an item is
    waiting         in its lane (`lanes`), until it is its turn, a worker is free and every stage (`stages`) says GO
    handed          given to the driver: its call runs, or is queued for a worker
    resting         until its next attempt, because its call failed or was deferred
    kept            by a stage, while the call of an equal item runs, whose result it may share
    done            it has a result or an error, and no call follows
    emitted         in the output. An item is emitted once every item before it in the order of the map has been

`hands_ahead`: without stages, keys, priorities, timeout and deadline nothing chooses among the items, so all of them
are handed at once, and workers need not wait for a step. Otherwise at most `allowed` calls are handed at a time.

The end. `halted`: no call starts any more, because a failure ended the map, the map was stopped, or the input has ended
and everything is emitted. What was handed and has not begun is recalled; running calls end, and what is next in order
is emitted. Then the step sets Effects.ended. `expired`: the deadline has passed: every item that is not done fails,
those that arrive later too.

Invariants, after each step until the map is halted
    window.pending = lanes.waiting + batches that linger + handed + resting + kept by stages + done and not emitted
                     (in items, not calls)
    handed <= allowed, unless hands_ahead
    an item is emitted once, in the order of the map
    each stage that said GO to a call gets one `undo` or `after` for it
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from ..outcomes import DeadlineExceeded, TooManyFailures
from .adaptive import AdaptiveStage
from .breaker import BreakerStage
from .events import Began, Effects, Event, Fail, Failed, InputEnded, LookedUp, Missed, Recalled, Stop, Woken
from .item import Call, Ended, Item, Kind, Lane, Verdict, said_by
from .lanes import Lanes
from .stages import GO, KEEP, Answer, Decision, Refuse, Stage, Wait
from .window import Window


class Rules(NamedTuple):
    """What the scheduler needs of a map's options."""

    workers: int = 16
    max_in_flight: int | None = None
    calls_items: int = 1  # the most items of one call
    order: str = "input"
    chooses: bool = False  # whether keys or priorities decide what starts next
    timeout: float | None = None
    deadline: float | None = None
    within: float = math.inf  # seconds, as of Retry
    raises: bool = True  # errors="raise"
    drops: bool = False  # errors="drop"
    max_failures: float = math.inf
    spreads: bool = True  # space out the starts after a pause; False if a Rate does
    delivers: bool = False  # calls have a Delivery
    settled: str | None = None  # the name of the limit that `Delivery.spent` means without one


ENDED = {Kind.RETRY: Ended.RETRIED, Kind.DEFER: Ended.DEFERRED, Kind.FAIL: Ended.FAILED}


class Scheduler:
    """One run of one map, whose calls are its items. `batched.py` has the one whose calls are batches."""

    batched = False

    ahead: Any = ()  # items that were read, and wait for room in the window; see `chunks`

    def __init__(
        self,
        rules: Rules,
        lanes: Lanes,
        stages: Sequence[Stage] = (),
        spent: dict[str, float] | None = None,
        memory: Any = None,
    ) -> None:
        """spent: counts what calls took, by names. memory: the stage that looks items up when they arrive
        (`results/memory.py`)."""
        self.memory = memory
        self.rules = rules
        self.spent = {} if spent is None else spent
        self._delivers = rules.delivers
        self.lanes = lanes
        self.stages = tuple(stages)
        self._of_calls = self.stages  # those that are asked for a call
        self.window = Window(rules.max_in_flight, rules.workers * rules.calls_items)
        self.allowed = rules.workers
        self._adaptive = next((stage for stage in stages if isinstance(stage, AdaptiveStage)), None)
        if self._adaptive is not None:
            self.allowed = self._adaptive.allowed
        self._breaker = next((stage for stage in stages if isinstance(stage, BreakerStage)), None)
        self._timed = rules.timeout is not None or rules.deadline is not None
        self.hands_ahead = not (self.stages or self._timed or rules.chooses or self.batched)
        plain = self.hands_ahead and rules.order == "input" and not rules.delivers
        self._counted: Any = Item if plain else None  # what of which a success is only counted
        self.handed = 0  # calls
        self.resting = 0  # items
        self._running: dict[Call, float] = {}  # where calls are timed: those that are handed, by when each is due
        self._timers: list[tuple[float, int, Call]] = []  # a heap: resting calls
        self._numbers = count()
        self._cancels_running = False  # all of them, in this step
        self._blocked_until = -math.inf  # a stage lets no call start before; infinite: until a call ends
        self.deadline_at = math.inf
        self._line: deque[Item] | None = deque() if rules.order == "input" else None
        self._by_key = rules.order == "key"
        # The end.
        self.input_ended = self.halted = self.expired = self.ended = False
        self.input_error: BaseException | None = None
        self.error: BaseException | None = None  # what the map raises
        self.failing: Item | None = None  # whose failure ends the map
        self._keeps: bool | None = None  # whether results are emitted after a Stop; None: there was none
        self._recalled_all = False  # asked for since the map was halted
        # Counts, which others read at any time.
        self.finished = self.failures = self.retried = self.deferred = self.remembered = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            Item: self._succeeded, list: self._read, int: self._took, Failed: self._failed, Missed: self._missed,
            Recalled: self._recalled, Woken: self._woken, InputEnded: self._end_input, LookedUp: self._looked_up,
            Fail: self._fail_map, Stop: self._stop, Began: self._began,
        }  # fmt: skip
        self._now = 0.0
        self._inbox: deque[Event] = deque()
        self._effects = Effects()

    def step(self, inbox: deque[Event], now: float) -> Effects:
        self._now, self._inbox = now, inbox
        effects = self._effects = Effects()
        self._handle(inbox)
        if self._breaker is not None and self._breaker.opened:
            self._opened(self._breaker)
        self._tick()
        if not self.halted and not self.expired and not effects.recall:
            if self._adaptive is None:
                self._start()
            else:
                self._start_adapting(self._adaptive)
        if self._line is not None:
            self._emit_line(self._line)
        window = self.window
        if self.input_ended and window.arrived == window.emitted:
            self.halted = True
        if self.halted:
            self._end()
        else:
            if window.grows and window.is_full:
                self._grow()
            if not self.input_ended:
                effects.read = window.read_limit(self._to_run())
        effects.wake_at = self._next_wake()
        return effects

    def _handle(self, inbox: deque[Event]) -> None:
        """Handle every event. Most are successes. Where these are only counted, they are handled here: a call of
        `_succeeded` for each would take longer than all the rest of it."""
        handlers, counted, ended = self._handlers, self._counted, 0
        while inbox:
            event = inbox.popleft()
            if type(event) is counted:
                event.done = True
                self.finished += 1
                ended += 1
            else:
                handlers[type(event)](event)
        self.handed -= ended

    # ------------------------------------------------------------------------------------------------ items come and go
    def _read(self, items: list[Item]) -> None:
        """Items that a reader has read one by one are handled together, and batches are formed of all of them."""
        inbox = self._inbox
        if inbox and type(inbox[0]) is list:
            items = items.copy()
            while inbox and type(inbox[0]) is list:
                items += inbox.popleft()
        self._arrived(items)

    def _arrived(self, items: list[Item]) -> None:
        if self.deadline_at == math.inf and self.rules.deadline is not None:
            self.deadline_at = self._now + self.rules.deadline
        self.window.arrived += len(items)
        if self._line is not None:
            self._line.extend(items)
        elif self._by_key:
            for item in items:
                item.lane.line.append(item)
        to_call = items
        if uncalled := [item for item in items if item.error is not None or item.known]:
            to_call = [item for item in items if item.error is None and not item.known]
            self._finish_uncalled(uncalled)
        if self.expired:
            for item in to_call:
                self._fail(item, self._deadline_exceeded())
        elif self.memory is not None and to_call:
            self.memory.look_up(to_call)
        elif not self.halted:
            self._admit(to_call)

    def called(self) -> int:
        """The items of calls that are handed."""
        return self.handed

    def _to_run(self) -> int:
        """Items that are called or may be."""
        return self.called() + self.lanes.waiting * self.rules.calls_items

    def _admit(self, items: list[Item]) -> None:
        self.lanes.admit(items)

    def _looked_up(self, event: LookedUp) -> None:
        """Items that the deadline has given up have failed."""
        items = self.memory.looked_up(event.items)
        self._finish_uncalled([item for item in items if item.error is not None or item.known])
        if not self.halted:
            self._admit([item for item in items if item.error is None and not item.known])

    def _finish_uncalled(self, items: list[Item]) -> None:
        """Items that arrived with an error, or with their recorded result."""
        for item in items:
            if item.error is not None:
                self._fail(item, item.error, item.fatal)
            else:
                self.remembered += 1
                self._complete(item)

    def _began(self, event: Began) -> None:
        self.window.arrived += 1
        self.handed += 1

    def _took(self, number: int) -> None:
        self.window.taken += number

    def _end_input(self, event: InputEnded) -> None:
        self.input_ended = True
        self.input_error = event.error

    def _grow(self) -> None:
        """Double the window if a worker is idle and every pending item waits for an earlier one or for its key. Not if
        the consumer has items to take: a larger window would only cost memory."""
        window = self.window
        idle = self.handed < self.allowed and self.lanes.next() is None
        called = self.resting + self.called()
        if idle and not window.untaken and window.pending > called and not self._lone_rests():
            window.grow()

    def _lone_rests(self) -> bool:
        """Whether the only lane pauses."""
        lone = self.lanes.lone
        return lone is not None and lone.rests

    # ------------------------------------------------------------------------------------------------ calls start
    def _start(self) -> None:
        lanes, effects = self.lanes, self._effects
        if self.hands_ahead:
            lone = lanes.lone
            if lone is None or lone.spread is None:
                if lanes.waiting:
                    effects.start = lanes.take_all()
                    self.handed += len(effects.start)
                return
        if self._blocked_until > self._now:
            return
        while self.handed < self.allowed:
            lane = lanes.next()
            if lane is None:
                return
            if self.stages or self.batched:
                if self._try(lane, lanes.first(lane)):
                    return
            else:
                self._hand(lanes.take(lane))

    def _start_adapting(self, adaptive: AdaptiveStage) -> None:
        grows = True
        while grows:
            self.allowed = adaptive.allowed
            self._start()
            grows = not self.halted and adaptive.grows(self.handed)

    def _try(self, lane: Lane, call: Call) -> bool:
        """Start the lane's first call, if the stages say so. Returns whether no other call may start now."""
        call.begin_by = math.inf
        decision, granted = self._ask(call, self._of_calls)
        if decision is GO:
            self._hand(self._take(lane))
            return False
        return self._carry_out(lane, call, decision, granted)

    def _take(self, lane: Lane) -> Call:
        return self.lanes.take(lane)

    def _hand(self, call: Call) -> None:
        self.handed += 1
        if self._timed:
            call.began = None
            self._running[call] = self._now + (self.rules.timeout or math.inf)
        if call.lane.spread is not None:
            self.lanes.started(call.lane, self._now)
        self._effects.start.append(call)

    def _ask(self, call: Call, stages: Sequence[Stage]) -> tuple[Decision, Sequence[Stage]]:
        """GO if every stage says so. Otherwise the decision of the first one that does not, and the stages before it,
        which said GO, in reverse order."""
        for number, stage in enumerate(stages):
            decision = stage.before(call, self._now)
            if decision is not GO:
                return decision, stages[:number][::-1]
        return GO, ()

    def _carry_out(self, lane: Lane, call: Call, decision: Decision, granted: Sequence[Stage]) -> bool:
        """Carry out what a stage said of the first call of the lane, other than GO. granted: the stages that said GO
        before it. Returns whether no other call may start now."""
        if isinstance(decision, Wait):
            self._undo(call, granted)
            if not decision.of_lane:
                self._blocked_until = decision.until
                return True
            self.lanes.rest(lane, decision.until)
            return False
        self._take(lane)
        self.lanes.finished(lane)
        self._refused(call, decision, granted)
        return self.halted

    def _undo(self, call: Call, granted: Sequence[Stage]) -> None:
        """The call does not start now. granted: what said GO to it, in reverse order."""
        for stage in granted:
            stage.undo(call, self._now)

    def _refused(self, call: Any, decision: Decision, granted: Sequence[Stage]) -> None:
        """The call is not made."""
        self._answer(call, decision, granted)

    def _answer(self, item: Item, decision: Decision, granted: Sequence[Stage]) -> None:
        """The item is not called. granted: the stages that said GO before one decided so."""
        if isinstance(decision, Refuse):
            self._tell(granted, item, Ended.REFUSED)
        else:
            for stage in granted:
                stage.undo(item, self._now)
        if decision is not KEEP:
            self._apply(item, decision)

    def _apply(self, item: Item, decision: Any) -> None:
        """What a stage says of an item that is in no lane."""
        if decision is GO:
            self._readmit(item)
        elif isinstance(decision, Answer):
            item.result = decision.result
            self.remembered += 1
            self._complete(item)
        else:
            assert isinstance(decision, Refuse)
            self._fail(item, decision.error)

    def _readmit(self, item: Item) -> None:
        self.lanes.readmit(item)

    def _woken(self, event: Woken) -> None:
        if event.lane is None:
            self._blocked_until = -math.inf
        else:
            self.lanes.wake(event.lane, self._now)

    def _recalled(self, event: Recalled) -> None:
        """These calls did not begin. After the deadline, whatever is still handed is running, and is cancelled."""
        for call in reversed(event.calls):
            self._take_back(call)
        self._cancels_running = self.expired

    def _missed(self, event: Missed) -> None:
        self._take_back(event.call)

    def _take_back(self, call: Call) -> None:
        self._left(call)
        self._undo(call, self._of_calls[::-1])
        if self.expired:
            for item in call.items():
                self._fail(item, self._deadline_exceeded())
        elif not self.halted:
            self.lanes.put_back(call, any(item.attempts or item.deferrals for item in call.items()))

    # ------------------------------------------------------------------------------------------------ calls end
    def _succeeded(self, item: Item) -> None:
        self.handed -= 1
        if self._delivers:
            self._book(item)
        if not self.hands_ahead:
            if self._timed:
                self._running.pop(item, None)
            self.lanes.finished(item.lane)
            if self.stages:
                self._tell_stages(item, Ended.SUCCEEDED)
        self.finished += 1
        item.done = True
        if self._line is None:
            self._emit_done(item)

    def _book(self, call: Call) -> None:
        """Count what a call that has ended said that it took."""
        for name, amount in said_by(call).items():
            if (name := self.rules.settled if name is None else name) is not None:
                self.spent[name] = self.spent.get(name, 0.0) + amount

    def _left(self, call: Call) -> None:
        """The call is not handed any longer."""
        self.handed -= 1
        self._running.pop(call, None)

    def _tell_stages(self, call: Call, ended: Ended) -> None:
        self._blocked_until = -math.inf if self._blocked_until == math.inf else self._blocked_until
        self._tell(self._of_calls, call, ended)

    def _opened(self, breaker: BreakerStage) -> None:
        """Recall what was handed before breakers opened. If they say so, items fail."""
        self._effects.recall = True
        while breaker.opened:
            lane = breaker.opened.pop()
            if breaker.fails and not (self.expired or self.halted):
                self._fail_lane(lane, breaker)

    def _fail_lane(self, lane: Lane, breaker: BreakerStage) -> None:
        """Fail every item of the lane that waits or rests."""
        resting = [call for _, _, call in sorted(self._timers) if call.lane is lane]
        self._timers = [entry for entry in self._timers if entry[2].lane is not lane]
        heapify(self._timers)
        self.resting -= sum(len(call.items()) for call in resting)
        with_slot = len(lane.again) + sum(call.has_slot for call in resting)
        calls = [*resting, *self._drain(lane)]
        lane.held -= with_slot
        for call in calls:
            for item in call.items():
                self._tell([stage for stage in self.stages if stage.of_items], item, Ended.REFUSED)
                self._fail(item, breaker.error_of(item))

    def _drain(self, lane: Lane | None = None) -> list[Call]:
        """Take out all calls that wait, of the lane or of all."""
        return self.lanes.drain(None if lane is None else [lane])

    def _tell(self, stages: Sequence[Stage], call: Call, ended: Ended) -> None:
        for stage in stages:
            for item, decision in stage.after(call, ended, self._now):
                if self.expired:
                    self._fail(item, self._deadline_exceeded())
                else:
                    self._apply(item, decision)

    def _failed(self, event: Failed) -> None:
        call, verdict = event
        if self._delivers:
            self._book(call)
        self._left(call)
        self._judged(call, self._in_time(call.items(), verdict))

    def _judged(self, call: Any, verdict: Verdict) -> None:
        """What follows from a failure."""
        if verdict.kind is Kind.FAIL:
            self.lanes.finished(call.lane)
            if verdict.pauses:
                self._pause(call, self._now + verdict.seconds)
            self._tell_stages(call, Ended.FAILED)
            self._fail(call, verdict.error, verdict.fatal)
            return
        self._note_end(call, verdict)
        if verdict.kind is Kind.DEFER:
            self._pause(call, self._now + verdict.seconds)
        self._tell_stages(call, ENDED[verdict.kind])
        self._rest(call, verdict.seconds)

    def _in_time(self, items: Sequence[Item], verdict: Verdict) -> Verdict:
        """The verdict, or a failure if there is no time for another call."""
        if verdict.kind is Kind.FAIL:
            return verdict
        if self.expired:
            return Verdict(Kind.FAIL, error=self._deadline_exceeded())
        within, then = self.rules.within, self._now + verdict.seconds
        if within == math.inf or any(then <= item.first_start + within for item in items):
            return verdict
        return verdict._replace(kind=Kind.FAIL, pauses=verdict.kind is Kind.DEFER)

    def _note_end(self, item: Item, verdict: Verdict) -> None:
        """The item will be called again."""
        if verdict.kind is Kind.DEFER:
            item.attempts -= 1
            item.deferrals += 1
            item.deferred += verdict.seconds
            item.deferral_error = verdict.error
            self.deferred += 1
        else:
            item.last_error = verdict.error
            self.retried += 1

    def _rest(self, call: Call, seconds: float) -> None:
        """The call waits for its next attempt."""
        self.resting += len(call.items())
        heappush(self._timers, (self._now + seconds, next(self._numbers), call))

    def _pause(self, call: Call, until: float) -> None:
        """The server said "not now": nothing of the call's lane starts before that time."""
        self.lanes.pause(call.lane, until, self._now, self.allowed, self.rules.spreads)
        for stage in self.stages:
            stage.paused(call, until, self._now)
        self._effects.recall = True

    # ------------------------------------------------------------------------------------------------ time
    def _tick(self) -> None:
        now = self._now
        if self.deadline_at <= now and not self.expired:
            self._expire()
        while self._timers and self._timers[0][0] <= now:
            call = heappop(self._timers)[2]
            self.resting -= len(call.items())
            if not self.halted:
                self._rested(call)
        if self.lanes.wake_at <= now:
            self.lanes.tick(now)
        if self._cancels_running:
            self._cancels_running = False
            self._effects.cancel = [(call, self._deadline_exceeded()) for call in self._running]
            self._running.clear()
        elif self._running and self.rules.timeout is not None:
            self._cancel_overdue(self.rules.timeout)

    def _rested(self, call: Call) -> None:
        self.lanes.again(call)

    def _cancel_overdue(self, timeout: float) -> None:
        """Calls are in the order in which they are due. The time of a call that began later than it was handed counts
        from there: it is put back with that time."""
        began_later = {}
        for call, due in list(self._running.items()):
            if due > self._now:
                break
            del self._running[call]
            began = self._now if call.began is None else call.began
            if began + timeout > self._now:
                began_later[call] = began + timeout
            else:
                self._effects.cancel.append((call, TimeoutError(f"timeout: no result within {timeout} s")))
                if self._adaptive is not None:
                    self._adaptive.overdue(call)
        if began_later:
            self._running = dict(sorted((self._running | began_later).items(), key=lambda pair: pair[1]))

    def _next_wake(self) -> float:
        at = self.lanes.wake_at
        if self._timers:
            at = min(at, self._timers[0][0])
        if self._running:
            at = min(at, next(iter(self._running.values())))
        if not self.expired:
            at = min(at, self.deadline_at)
        if self._blocked_until > self._now:
            at = min(at, self._blocked_until)
        for stage in self.stages:
            at = min(at, stage.wake_at())
        return math.inf if self.ended else at

    def _expire(self) -> None:
        """The deadline: every item that is not handed fails. What was handed is recalled; once the driver has reported
        that, the calls that are still handed are cancelled."""
        self.expired = True
        self._effects.recall = True
        if self.halted:  # nothing waits: calls that run are all that it waits for
            return
        waiting = [call for _, _, call in sorted(self._timers)] + self._drain()
        self._timers.clear()
        self.resting = 0
        for call in waiting:
            for item in call.items():
                self._fail(item, self._deadline_exceeded())
        for stage in self.stages:
            for item in stage.kept():
                self._fail(item, self._deadline_exceeded())

    def _deadline_exceeded(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"deadline: not done within {self.rules.deadline} s")

    # ------------------------------------------------------------------------------------------------ the output
    def _complete(self, item: Item) -> None:
        """The item is done without a successful call of its own, and the map goes on."""
        self.finished += 1
        item.done = True
        if self._line is None:
            self._emit_done(item)

    def _fail(self, item: Item, error: BaseException, fatal: bool = False) -> None:
        """The item has failed for good."""
        item.error = error
        self.failures += 1
        too_many = self.failures > self.rules.max_failures
        if not (self.rules.raises or fatal or too_many):
            self._complete(item)
            return
        self.halted = True  # the item is not done: nothing behind it is emitted
        self.finished += 1
        if self.failing is None:
            self.failing = item
            if self.error is None:
                self.error = error if fatal or not too_many else self._too_many(error)

    def _too_many(self, last: BaseException) -> TooManyFailures:
        most = self.rules.max_failures
        error = TooManyFailures(f"max_failures: {self.failures} items failed (expected: {most} at most)")
        error.__cause__ = last
        return error

    def _emit_done(self, item: Item) -> None:
        if self._by_key:
            self._emit_line(item.lane.line)
        elif self.failing is None:
            self._emit([item])

    def _emit_line(self, line: deque[Item]) -> None:
        ready = 0
        for item in line:
            if not item.done:
                break
            ready += 1
        if ready:
            self._emit([line.popleft() for _ in range(ready)])

    def _emit(self, items: list[Item]) -> None:
        self.window.emitted += len(items)
        if self.rules.chooses:
            for item in items:
                item.lane.emitted += 1
        if self.rules.drops:
            kept = [item for item in items if item.error is None]
            self.window.taken += len(items) - len(kept)
            if self.window.has_weights:
                for item in items:
                    if item.error is not None:
                        self.window.left(item)
            items = kept
        if self._keeps is not False:
            self._effects.emit += items

    # ------------------------------------------------------------------------------------------------ the end
    def forget_errors(self) -> None:
        """The map has ended, and its error is raised. Break the cycle: error, traceback, consumer, scheduler."""
        self.error = self.input_error = self.failing = None
        if self._line is not None:
            self._line.clear()

    def _fail_map(self, event: Fail) -> None:
        self.error = event.error if self.error is None else self.error
        self.halted = True

    def _stop(self, event: Stop) -> None:
        self.halted = True
        self._keeps = event.keeps and self._keeps is not False

    def _end(self) -> None:
        """No call starts. Recall what has not begun, once; end when nothing runs."""
        effects = self._effects
        started, effects.start = effects.start, []
        for call in reversed(started):
            self._take_back(call)
        if self.handed and not self.ended:
            effects.recall = effects.recall or not self._recalled_all
            self._recalled_all = True
            return
        if self._keeps:
            for line in self.lanes.lines() if self._line is None else [self._line]:
                self._emit_rest(line)
        if not self.ended:
            for stage in self.stages:
                stage.leave(self._now)
        self.ended = effects.ended = True

    def _emit_rest(self, line: deque[Item]) -> None:
        """The user has stopped the map: emit every item that is done, and skip the others, but end at the failure that
        ended the map."""
        while line and (line[0].done or line[0].error is None):
            item = line.popleft()
            if item.done:
                self._emit([item])
