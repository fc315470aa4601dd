"""The scheduler: decides what a map does next. Pure: no thread, clock, lock, I/O or randomness.

Its owner reports events and carries out the effects. The owner is a runner, which calls everything here from one thread
at a time, or a simulator with its own clock. Other threads may take from `ready`, pop `output`, read attributes, set
`halted`, ask `gate.late`, and call `judge`, `judge_batch`, `judge_results`, `lost`, `give_up` and `failure`. These run
user code and change at most the results of their call. The reader calls `assign`.

    state      the item is                                           leaves it by
    waiting    in its lane: its key has no free slot                 another item of the key: finished
    ready      in the queue `ready`                                  a worker takes it; deadline
    running    with a worker                                         succeeded, failed
    resting    waiting for its next attempt (retry, or deferred)     tick at its time; deadline
    held back  done, behind an item that must be emitted earlier     the earlier item is emitted
    emitted    in `output`                                           took
    failing    the item whose error ends the map                     -

    event                   meaning                                                           may change
    assign(items)           the reader gives items their lanes (no lock needed)               -
    first_came(now)         the first item was read and is looked up: the deadline begins     wake_at
    grow_for_lookups()      workers are idle while look-ups fill the window                   room()
    arrived(items, now)     at most room() items came into flight                             ready, output, wake_at,
                                                                                              halted
    input_ended(error)      the input has no more items, or raised                            over
    started(item, now)      a worker took the item; only where `reports_starts`               ready, wake_at, overdue
    succeeded(item, now)    the call returned; item.result is set                             ready, output
    uncalled(call, errors, now) a worker took it, and its items fail without a call           ready, output, halted
    recalled(item, now)     a worker took the item and found its recorded result: no call     ready, output
    failed(item, verdict, now)  the call raised; the verdict is from judge                    ready, output, wake_at,
                                                                                              halted
    judged(item, verdict)       an item of `unjudged` was judged                              output, halted
    tick(now)               time is `now`: to be called at wake_at or later                   ready, output, wake_at,
                                                                                              overdue, halted
    took(n)                 the consumer popped n items from `output`                         room()
    fail(error)             the map fails for a reason that is not one item's                 halted
  only with `gate`, because something besides keys and priorities decides what starts (`_gate`):
    dispatch(now)           after other events: start what may start                          ready, output, wake_at,
                                                                                              halted
    returned(batch, verdicts, now)   the call of a batch ended: None for each item with a result, else its verdict
    missed(item, now)       a worker took the item, and gate.late(item, now): it goes back    output, halted

    effect                  what the owner does
    ready                   a MultiQueue: take an item, count item.attempts up, report started, call, report the end
    output                  a deque: pop items from its left end and emit them
    room()                  take so many items from the input; grows the window
    allowed                 run so many calls at once: `workers`, or what is found of a pair; `gate.grew` tells of more
    wake_at                 call tick then
    overdue                 a list of (item, error): cancel or abandon this call; if it had not ended, report
                            failed(item, verdict of `give_up`), or returned(batch, `lost`)
    unjudged                a list of (item, error): it failed without a call, and the user's `fatal` is to be asked
                            outside of locks: report judged(item, verdict of `failure`)
    halted                  start no call; let running ones end, report them, emit `output`, then raise `error`

Invariants
    held_back + without_slot + resting + ready + running = in_flight - (len(output) - buffered); until the map is
              halted. With `gate` the sum has more: items of lingering batches and followers
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count, takewhile
from typing import Any, NamedTuple

from manytail._checks import shown
from manytail._timings import Timings

from ._admission import Admission, SharedAdmission
from ._errors import asked, set_cause
from ._gate import AdaptiveGate, Gate
from ._item import Item, ItemBatch, Lane, Spread, Unfit, Work, flat, note_wait, spent_of
from ._limits import Rate
from ._options import Options
from ._types import DeadlineExceeded, RetryLater, TooManyFailures
from ._window import Window

DEFERRAL, SHORTEST = 0.1, 0.001  # seconds that a deferred item waits at first: where `backoff` is a function; at least
SPREAD, LONGEST_SPREAD = 0.1, 1.0  # over which part of a pause the starts after it are spread; seconds at most
STEPS = 16  # starts in that time, or as many as calls may run at once, if that is more
LOOKUPS = 16  # times workers x batch: a larger window does not grow for look-ups; more of them would be too old


class Kind(Enum):
    RETRY = "retry"
    DEFER = "defer"
    FAIL = "fail"
    SPLIT = "split"


class Verdict(NamedTuple):
    """What follows from an exception: another attempt in `seconds`, or the item's failure with `error`. RETRY, DEFER:
    `error` is that of the call. DEFER: its key pauses for `seconds`, too. SPLIT: a batch has failed for good, and each
    half is called on its own. fatal: the failure ends the map whatever `errors` says. pauses: the call was to be
    deferred, and the item fails because it was deferred for too long; its key pauses for `seconds` all the same, unless
    what the call asked for is too long alone: then they are 0."""

    kind: Kind
    seconds: float = 0.0
    error: Any = None
    fatal: bool = False
    pauses: bool = False

    @property
    def defers(self) -> bool:
        """Whether the other side said "not now": the call was no attempt."""
        return self.kind is Kind.DEFER or self.pauses

    @property
    def is_too_much(self) -> bool:
        """Whether the call was deferred or is to be tried again: it has asked too much of the other side."""
        return self.defers or self.kind is Kind.RETRY


class Scheduler:
    """One run of one map."""

    def __init__(
        self,
        options: Options,
        *,
        weight_of: Callable[[Item], int] | None = None,
        shared: bool = False,
        **window: Any,
    ) -> None:
        """shared: many threads call `assign`. window: arguments of Window."""
        self.options = options
        self.admission = (SharedAdmission if shared else Admission)(
            per_key=_needed_per_key(options),
            keyed=options.keyed,
            prioritised=options.prioritised,
            in_order=options.order == "key",
            weight_of=weight_of,
            shows_keys=options.breaker is not None and options.breaker.when_open == "fail",
        )
        self.spent: dict[str, float] = {}  # what calls took, by name of a limit and by names that they gave
        gate = AdaptiveGate if options.least else Gate
        self.gate = gate(options, self.admission, self.spent) if options.gated else None
        self.ready = self.admission.queue if self.gate is None else self.gate.ready
        self.output: deque[Item] = deque()
        self.overdue: list[tuple[Work, BaseException]] = []
        self.unjudged: list[tuple[Item, Any]] = []
        self.wake_at = math.inf
        self.halted = False
        self.error: BaseException | None = None  # what the map raises
        self.failing: Item | None = None  # the item whose failure ends the map
        self._fatal_kinds = options.fatal_kinds
        self._asks_fatal = callable(options.fatal) and not self._fatal_kinds and options.errors != "raise"
        self._most_failures = math.inf if options.max_failures is None else options.max_failures
        self.ended = False  # the input has ended
        self.input_error: BaseException | None = None
        self.expired = False  # the deadline has passed
        self._timed = options.timeout is not None or options.deadline is not None
        self.reports_starts = self._timed or (self.admission.reports_starts and self.gate is None)
        self._line: deque[Item] | None = deque() if options.order == "input" else None
        self._by_key = options.order == "key"
        self._spreads = not any(isinstance(limit, Rate) for limit in options.limits)
        # Of deferrals with nothing else between them: how much had happened before the first one, and when it was.
        self._ends_deferring = not shared and options.retry.defer > 0
        self._happened, self._deferring_since = -1, 0.0
        self._given_up = 0  # of the failures: items that were deferred for too long
        self._slots = options.keyed or options.prioritised  # otherwise no item holds a slot
        self.window = Window(options, **window)
        self.resting = 0
        # Time.
        self._timers: list[tuple[float, int, Work | Lane]] = []  # resting items, and lanes to resume
        self._numbers = count()
        self._running: dict[Work, float] = {}  # where calls are timed: when each is overdue, in this order
        self._deadline_at = math.inf
        # Counts, which `progress` reads without a lock.
        self.finished = self.failures = self.retried = self.deferred = self.dropped = self.remembered = 0
        self.failures_that_end = 0  # of the failures; these items are not finished
        self._delivers = options.wants_delivery
        self.unrecordable: dict[Item, Exception] | None = None if shared else {}  # why a result cannot be recorded
        self._emitted_last = False  # a result that ends the map was emitted
        self.timings = Timings()  # of workers that have left, and of items that have failed

    @property
    def is_uniform(self) -> bool:
        """Whether nothing chooses among the items, or times them: a success lets no other item start."""
        return self.gate is None and self.admission.is_plain and not self.reports_starts

    @property
    def is_plain(self) -> bool:
        """With order="completion": whether an item that came in need only be put into the queue, and its success need
        not be reported."""
        return self.is_uniform and not self._delivers and self.window.sizeof is None

    @property
    def allowed(self) -> int:
        """How many calls may run at once."""
        return self.options.workers if self.gate is None else self.gate.allowed

    # ------------------------------------------------------------------------------------------------ the input
    @property
    def over(self) -> bool:
        """Everything that arrived was emitted, and nothing more arrives."""
        return self.ended and self.window.in_flight + self.window.buffered == len(self.output)

    def assign(self, items: list[Item]) -> None:
        self.admission.assign(items)

    def room(self) -> int:
        """How many items may arrive; none if it is negative. Grows the window if that helps."""
        if self.halted or self.ended:
            return 0
        window = self.window
        if window.in_flight >= window.size and window.grows and not self.expired and self._is_blocked():
            window.grow()
        return window.room(self._to_run())

    def is_full(self) -> bool:
        """Whether no item may arrive until another one ends."""
        window = self.window
        return window.in_flight >= window.size or (window.is_bounded and window.room(self._to_run()) <= 0)

    def _to_run(self) -> int:
        """Calls that run or may run; only where the window asks."""
        if self.expired or not self.window.is_bounded:
            return 0
        if self.gate is not None:
            return self.gate.to_run()
        return self.window.in_flight - len(self.output) - self._blocked() - self.resting

    def _blocked(self) -> int:
        """Items that wait for an earlier one or for their key."""
        blocked = self.window.held_back + self.admission.without_slot
        if self.admission.paused:
            blocked += self.admission.paused_items()
        return blocked

    def _is_blocked(self) -> bool:
        """Whether a worker has nothing to run only because other items wait for an earlier one or for their key.

        Not if the consumer has items to take: a larger window would only cost memory.
        """
        blocked = self._blocked()
        to_run = self.window.in_flight - blocked - self.resting
        if self.gate is not None:
            blocked += self.gate.following
            to_run = self.gate.to_run()
        return bool(blocked) and to_run < self.options.workers and len(self.output) <= self.window.buffered

    def grow_for_lookups(self) -> bool:
        """Double the window if workers have nothing to run while items that are looked up fill it. The next SQL
        statement then looks up more items."""
        window, workers = self.window, self.options.workers
        idle = window.in_flight < workers and len(self.output) <= window.buffered
        small = window.size < min(LOOKUPS * workers * self.options.calls_items, window.largest_size)
        if not (window.grows and idle and small and self._open and not self.ended and window.grow()):
            return False
        window.base = window.size  # else the bound of a window that has grown would leave no room for look-ups
        return True

    def first_came(self, now: float) -> None:
        """Start the deadline, if it has not started. `arrived` calls this too."""
        if self._deadline_at == math.inf and self.options.deadline is not None:
            self._deadline_at = now + self.options.deadline
            self.wake_at = min(self.wake_at, self._deadline_at)

    def arrived(self, items: list[Item], now: float) -> None:
        self.first_came(now)
        window = self.window
        window.in_flight += len(items)
        if window.sizeof is not None and items:
            window.item_bytes = window.sizeof(items[-1])
        if self._line is not None:
            self._line.extend(items)
        elif self._by_key:
            for item in items:
                item.lane.line.append(item)
        if self.expired:
            for item in items:
                if item.error is None:
                    self._fail(item, self.deadline_exceeded())
                else:
                    self._fail(item, item.error, item.fatal)
            return
        bad = [item for item in items if item.error is not None]
        remembers = self.options.remember is not None
        known = [item for item in items if item.known and item.error is None] if remembers else []
        good = [item for item in items if item.error is None and not item.known] if bad or known else items
        if self.gate is None:
            self.admission.admit(good)
        else:
            self.gate.admit(good, now)
            self._apply_gate_effects()
        for item in bad:
            self._fail(item, item.error, item.fatal)
        self._complete_known(known)

    def input_ended(self, error: BaseException | None = None) -> None:
        self.ended = True
        self.input_error = error
        if self.gate is not None:
            self.gate.input_ended()

    # ------------------------------------------------------------------------------------------------ calls
    @property
    def _open(self) -> bool:
        """Whether calls may still start. If not, slots are not valid, and the queue may have been shut down."""
        return not self.expired and not self.halted

    def started(self, item: Work, now: float) -> None:
        if item.attempts == 1:
            self._left_ready(item)
        if self.expired:
            self.overdue.append((item, self.deadline_exceeded()))
        elif self._timed:
            due = self._running[item] = now + (math.inf if self.options.timeout is None else self.options.timeout)
            self.wake_at = min(self.wake_at, due)

    def succeeded(self, item: Item, now: float = 0.0) -> None:
        if self._running:
            self._running.pop(item, None)
        if self._delivers:
            self._book(item)
        gate = self.gate
        if gate is not None:
            gate.succeeded(item, now)
        if self._slots and not self.expired and not self.halted:
            self.admission.finished(item)
        self._complete((item,))
        if gate is not None and gate.answered:
            self._apply_gate_effects()

    def succeeded_alike(self, items: list[Item]) -> None:
        """`succeeded` of each of these, where the scheduler is uniform."""
        for item in items if self._delivers else ():
            self._book(item)
        self._complete(items)

    def _book(self, call: Work) -> None:
        """Count what a call that has ended said that it took."""
        for name, amount in spent_of(call).items():
            if name is None:  # see `spent_of`
                name = self.options.spent_names.costed[0]
            if name is not None:
                self.spent[name] = self.spent.get(name, 0.0) + amount

    def _left_ready(self, item: Work) -> None:
        """A worker took the item, which has not been called before. A gate tells the admission itself."""
        if self.gate is None and self.admission.reports_starts and self._open and item.deferred is None:
            self.admission.started(item.lane)

    def recalled(self, item: Item, now: float) -> None:
        """A worker took the item and found its result recorded: no call."""
        if self.gate is not None:
            self.gate.recalled(item, now)
        elif item.attempts == 0:
            self._left_ready(item)
        if self._slots and self._open:
            self.admission.finished(item)
        self.remembered += 1
        self._complete((item,))
        if self.gate is not None:
            self._apply_gate_effects()

    def uncalled(self, call: Work, errors: list[Any], now: float) -> None:
        """A worker took the call and does not make it. errors: of each of its items. Its recorded result cannot be
        read, or who waits for it has gone."""
        if self.gate is not None:
            self.gate.uncalled(call, now)
        elif call.attempts == 0:
            self._left_ready(call)
        if self._open:
            self.admission.finished(call)
        for item, error in zip(call.members(), errors, strict=True):
            self._fail(item, error, item.fatal)
        if self.gate is not None:
            self._apply_gate_effects()

    def judge(self, item: Work, error: BaseException, chance: float, attempts: int | None = None) -> Verdict:
        """What follows from an exception of the item's call. `chance` in [0, 1) spreads the waits. Runs the user's
        `on` and `backoff`: the owner calls this without its lock, and sets `halted` at once if the verdict fails
        the map. attempts: of the batch that the item was in."""
        try:
            return self._judge(item, error, chance, item.attempts if attempts is None else attempts)
        except BaseException as wrong:
            if wrong is not error:
                set_cause(wrong, error)
            return Verdict(Kind.FAIL, error=wrong, fatal=isinstance(wrong, self._fatal_kinds))

    def failure(self, error: BaseException) -> Verdict:
        """The failure of an item for good, with an error that asks for no other attempt. Runs the user's `fatal`, so
        the owner calls this without its lock."""
        try:
            return Verdict(Kind.FAIL, error=error, fatal=asked("fatal", self.options.is_fatal, error))
        except BaseException as wrong:
            if wrong is not error:
                set_cause(wrong, error)
            return Verdict(Kind.FAIL, error=wrong)

    def _judge(self, item: Work, error: BaseException, chance: float, attempt: int) -> Verdict:
        retry = self.options.retry
        if isinstance(error, RetryLater):
            return self._defer(item, error, error, chance)
        if asked("fatal", self.options.is_fatal, error):
            return Verdict(Kind.FAIL, error=error, fatal=True)
        if isinstance(error, self.options.never_retry) or (attempt > retry.times and not callable(retry.on)):
            return Verdict(Kind.FAIL, error=error)
        # A callable is also asked after the last attempt: it may defer the item.
        answer = asked("retry: on", retry.answer, error)
        if isinstance(answer, RetryLater):
            return self._defer(item, answer, error, chance)
        if attempt > retry.times or not answer:
            return Verdict(Kind.FAIL, error=error)
        if callable(retry.backoff):
            found = asked("retry: backoff", retry.backoff, attempt, error)
            wait = _seconds(f"backoff: for attempt {attempt}", found)
            return Verdict(Kind.RETRY, wait, error)
        wait = min(retry.backoff * 2.0 ** min(attempt - 1, 1_000), retry.max_backoff)
        return Verdict(Kind.RETRY, wait * (0.5 + chance / 2), error)

    def _defer(self, item: Work, later: RetryLater, error: BaseException, chance: float) -> Verdict:
        """The verdict for a call that asks to be made later. error: what it raised. In a batch each item has waits of
        its own."""
        after, longest = _seconds("RetryLater.after", later.after), self.options.retry.defer
        if isinstance(item, ItemBatch):
            return Verdict(Kind.DEFER, after, error)
        wait = max(after, self._least_wait(item, chance))
        if (item.deferred or 0.0) + wait <= longest:
            return Verdict(Kind.DEFER, wait, error)
        if after > longest:
            note_wait(error, after, longest)
        failure = self.failure(error) if error is later else Verdict(Kind.FAIL, error=error)
        return failure._replace(seconds=0.0 if after > longest else after, pauses=True)

    def _least_wait(self, item: Item, chance: float) -> float:
        """Seconds that a deferred item waits at least: what a server asks for may be 0, for ever. They double with
        each deferral, as those of a backoff do. A callable is not asked: it counts attempts."""
        retry, again = self.options.retry, 0 if item.deferred is None else item.deferral[0]
        first = DEFERRAL if callable(retry.backoff) else max(retry.backoff, SHORTEST)
        return min(first * 2.0 ** min(again, 1_000), retry.max_backoff) * (0.5 + chance / 2)

    def judge_batch(self, batch: ItemBatch, error: BaseException, chance: float) -> Verdict | list[Verdict | None]:
        """The same for a call with a batch: a verdict on the batch, or one on each of its items."""
        if isinstance(error, RetryLater):
            batch.result = batch.with_known([error] * len(batch.to_call()))
            return self.judge_results(batch, chance)
        verdict = self.judge(batch, error, chance)
        if verdict.kind is Kind.DEFER:  # `on` has said so
            later, got = RetryLater(verdict.seconds), set(batch.to_call())
            return [
                self._defer(item, later, error, chance) if item in got else one
                for item, one in zip(batch.items, self.lost(batch, error), strict=True)
            ]
        if verdict.kind is Kind.RETRY:
            return verdict
        if verdict.fatal:
            return self.lost(batch, verdict.error)
        return Verdict(Kind.SPLIT, error=verdict.error) if len(batch.items) > 1 else [verdict]

    def lost(self, batch: ItemBatch, error: BaseException) -> list[Verdict | None]:
        """The verdicts for a batch whose call was abandoned or cancelled, or returned no results: `error` for each item
        that fn got. An item that it did not get keeps its own error, or has its recorded result (None)."""
        got = set(batch.to_call())
        errors = [error if item in got else item.error for item in batch.items]
        judged = {id(each): self.failure(each) for each in errors if each is not None}
        failures = [judged.get(id(each)) for each in errors]
        return [None if item.known else failure for item, failure in zip(batch.items, failures, strict=True)]

    def judge_results(self, batch: ItemBatch, chance: float) -> list[Verdict | None]:
        """For a call with a batch that returned `batch.result`: gives each item its result. An exception in it fails
        its item alone."""
        if isinstance(batch.result, Unfit):
            return self.lost(batch, batch.result.error)
        verdicts: list[Verdict | None] = []
        for item, result in zip(batch.items, batch.result, strict=True):
            if item.error is not None:  # why fn did not get it
                verdicts.append(self.failure(item.error))
            elif isinstance(result, BaseException):
                verdicts.append(self.judge(item, result, chance, batch.attempts))
            else:
                item.result = result
                verdicts.append(None)
        return verdicts

    def give_up(self, item: Work, error: BaseException, chance: float) -> Verdict:
        """The verdict for an overdue call: a timeout may be tried again, the deadline is final."""
        return self.failure(error) if isinstance(error, DeadlineExceeded) else self.judge(item, error, chance)

    def failed(self, item: Work, verdict: Verdict, now: float) -> None:
        """verdict: of `judge` or `judge_batch`. RETRY is a failure for good if `within` lets no attempt start."""
        if verdict.defers:
            self._note_deferral(verdict.error, now)
        if self._comes_too_late(item, verdict, now):
            verdict = self._too_late(verdict)
            if isinstance(item, ItemBatch):
                if len(item.items) == 1:
                    self.returned(item, [verdict], now)
                    return
                verdict = Verdict(Kind.SPLIT, error=verdict.error)
        self._running.pop(item, None)
        if self._delivers:
            self._book(item)
        if self.gate is not None:
            self._report_to_gate(item, verdict, now)
            if isinstance(item, ItemBatch) and (self.expired or verdict.kind is Kind.SPLIT):
                self._split(item, now)
                return
        if verdict.kind is Kind.FAIL or self.expired:
            assert isinstance(item, Item)  # a batch was split
            if self._open:
                self.admission.finished(item)
            self._fail_judged(item, verdict, now)
        else:
            if self._delivers and verdict.kind is Kind.RETRY:
                for each in item.members():
                    each.last_error = verdict.error
            self._rest(item, verdict, now)
        if self.gate is not None:
            self._fail_fast(item.lane, now)

    def _comes_too_late(self, call: Work, verdict: Verdict, now: float) -> bool:
        """Whether the next call would start later than the Retry allows for each item of this one."""
        if self.options.retry.within is None or verdict.kind not in (Kind.RETRY, Kind.DEFER):
            return False
        assert self.gate is not None
        return all(self.gate.is_over(item, now + verdict.seconds) for item in call.members())

    def _too_late(self, verdict: Verdict) -> Verdict:
        """The failure for good in place of another call."""
        if verdict.kind is Kind.DEFER:
            return Verdict(Kind.FAIL, verdict.seconds, verdict.error, pauses=True)
        return Verdict(Kind.FAIL, error=verdict.error)

    def _note_deferral(self, error: Any, now: float) -> None:
        """A call was deferred, with this error. Fail the map if nothing else has happened for as long as an item may be
        deferred: else it would take that time for each of its items."""
        happened = self.finished + self.retried - self._given_up
        if happened != self._happened:
            self._happened, self._deferring_since = happened, now
        elif self._ends_deferring and now - self._deferring_since > self.options.retry.defer:
            self.fail(error)

    def _report_to_gate(self, item: Work, verdict: Verdict, now: float) -> None:
        assert self.gate is not None
        if verdict.defers:
            self.gate.deferred(item, now)
        else:
            for each in item.members():
                each.last_error = verdict.error
            self.gate.failed(item, verdict.kind is Kind.RETRY, now)
            self._schedule_rechecks()

    def _rest(self, item: Work, verdict: Verdict, now: float) -> None:
        """The item waits until its next attempt."""
        due = now + verdict.seconds
        if verdict.kind is Kind.DEFER:
            if isinstance(item, ItemBatch):  # its items are counted already, each with its own error
                item.attempts -= 1
                item.deferred = verdict.seconds
            else:
                self._count_deferral(item, verdict)
            self.deferred += len(item.members())
            self._pause(item.lane, due, now)
        else:
            self.retried += len(item.members())
        self.resting += len(item.members())
        heappush(self._timers, (due, next(self._numbers), item))
        self.wake_at = min(self.wake_at, due)

    def _count_deferral(self, item: Item, verdict: Verdict) -> None:
        item.deferral = 1 if item.deferred is None else item.deferral[0] + 1, verdict.error
        item.attempts -= 1
        item.deferred = (item.deferred or 0.0) + verdict.seconds

    def _pause(self, lane: Lane, until: float, now: float) -> None:
        """No call of the key starts before that time. Then they are spread, unless a Rate does that."""
        if until > lane.paused_until:
            seconds = min(SPREAD * (until - now), LONGEST_SPREAD) if self._spreads else 0.0
            lane.spread = Spread(until, seconds, max(self.allowed, STEPS)) if seconds > 0 else None
            if self.gate is None:
                self.admission.pause(lane, until)
            else:
                self.gate.pause(lane, until, now)
            heappush(self._timers, (until, next(self._numbers), lane))
            self.wake_at = min(self.wake_at, until)

    def _resume(self, lane: Lane, now: float) -> None:
        """The pause of a key is over, where no gate decides what starts."""
        spread = lane.spread
        if spread is None or spread.end <= now:
            lane.spread = None
            self.admission.resume(lane)
            return
        while spread.at <= now:
            spread.advance()
            if not self.halted:
                self.admission.release(lane)
        heappush(self._timers, (spread.at, next(self._numbers), lane))

    def fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        self.halted = True

    # ------------------------------------------------------------------------------------------------ batches
    def _split(self, batch: ItemBatch, now: float) -> None:
        """The batch has failed for good: call each half, or fail its items after the deadline."""
        assert self.gate is not None
        if self._open:
            self.gate.split(batch)
            self._fail_fast(batch.lane, now)
        elif self.expired:
            for item in batch.items:
                self._fail(item, self.deadline_exceeded())

    def returned(self, batch: ItemBatch, verdicts: list[Verdict | None], now: float) -> None:
        assert self.gate is not None
        self._running.pop(batch, None)
        verdicts = [
            self._too_late(verdict) if verdict and self._comes_too_late(item, verdict, now) else verdict
            for item, verdict in zip(batch.items, verdicts, strict=True)
        ]
        if self._delivers:
            self._book(batch)
        began = getattr(batch, "began", None)
        for item, verdict in zip(batch.items, verdicts, strict=True):
            if began is not None and batch.is_called(item) and (verdict is None or verdict.kind is Kind.FAIL):
                self.timings.last_began(began, item.read)
        if all(verdict and verdict.defers for verdict in verdicts):
            self._note_deferral(next(verdict.error for verdict in verdicts if verdict), now)
        self.gate.returned(batch, verdicts, now)
        self._schedule_rechecks()
        again: dict[Verdict, list[Item]] = {}  # items with equal verdicts are called again together
        failed = []
        for item, verdict in zip(batch.items, verdicts, strict=True):
            if verdict is None:
                self.remembered += item.known
                self._complete((item,))
            elif verdict.kind is Kind.FAIL or self.expired:
                failed.append((item, verdict))
            else:
                if verdict.kind is Kind.RETRY:
                    item.last_error = verdict.error
                else:
                    self._count_deferral(item, verdict)
                again.setdefault(verdict._replace(error=None), []).append(item)
        self._apply_gate_effects()
        self._rest_in_parts(batch, again, now)
        for item, verdict in failed:
            self._fail_judged(item, verdict, now)
        self._fail_fast(batch.lane, now)

    def _rest_in_parts(self, batch: ItemBatch, again: dict[Verdict, list[Item]], now: float) -> None:
        """The first part keeps the slot of the batch, and its start is not told to the admission again (`passed`). The
        others are readmitted when they are due. Without parts the slot is free."""
        if not again and self._open:
            self.admission.finished(batch)
        for number, (verdict, items) in enumerate(again.items()):
            part = ItemBatch(items, batch.attempts, batch.priority)
            part.passed = part.has_slot = number == 0
            self._rest(part, verdict, now)

    def _call_again(self, call: Work) -> None:
        """The wait of a call is over."""
        if isinstance(call, ItemBatch) and not call.has_slot:
            call.has_slot = True  # it keeps the slot that it gets here when it rests again
            self.admission.readmit(call)
        else:
            self.admission.retry(call)

    # -------------------------------------------------------------------------------------------- where there is a gate
    def dispatch(self, now: float) -> None:
        gate = self.gate
        assert gate is not None
        if not self._open:
            return
        window = self.window
        gate.dispatch(window.in_flight >= window.size, now)
        if gate.refused or gate.answered or gate.rechecks:
            self._apply_gate_effects()
        while gate.leaders and self._open:  # an item failed without a call: its first follower leads
            gate.dispatch(window.in_flight >= window.size, now)
            self._apply_gate_effects()
        self.wake_at = min(self.wake_at, gate.wake_at)
        if gate.error is not None:
            self.fail(gate.error)

    def missed(self, item: Work, now: float) -> None:
        assert self.gate is not None
        self.gate.missed(item, now)
        if self.expired:
            for waiting in self.gate.drain(now):
                self._fail(waiting, self.deadline_exceeded())
        self._fail_fast(item.lane, now)

    def _apply_gate_effects(self) -> None:
        gate = self.gate
        assert gate is not None
        if gate.answered:
            answered, gate.answered = gate.answered, []
            self._complete_known(answered)
        if gate.refused:
            refused, gate.refused = gate.refused, []
            for item, error in refused:
                judged = False if error is item.last_error else None  # that of its last call was judged
                self._fail(item, error, judged)
        self._schedule_rechecks()

    def _schedule_rechecks(self) -> None:
        assert self.gate is not None
        for at, lane in self.gate.rechecks:
            heappush(self._timers, (at, next(self._numbers), lane))
            self.wake_at = min(self.wake_at, at)
        self.gate.rechecks.clear()

    def _fail_fast(self, lane: Lane, now: float) -> None:
        """Fail the waiting and resting items of a key if its breaker is open and the options say so."""
        assert self.gate is not None
        if not self._open or not self.gate.fails_fast(lane, now):
            return
        resting = [each for _, _, each in sorted(self._timers) if not isinstance(each, Lane) and each.lane is lane]
        gone = set(resting)
        self._timers = [entry for entry in self._timers if entry[2] not in gone]
        heapify(self._timers)
        for call in resting:
            self.resting -= len(call.members())
            if call.has_slot:
                self.admission.finished(call)
        for item in flat(resting) + self.gate.drain_lane(lane):
            self._fail(item, self.gate.breaker_open(item))

    # ------------------------------------------------------------------------------------------------ time
    def tick(self, now: float) -> None:
        if self._deadline_at <= now and not self.expired:
            self._expire(now)
        due = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heappop(self._timers)[2])
        for each in reversed(due):  # each goes to the front: the first that was due goes there last
            if isinstance(each, Lane):
                each.recheck_at = math.inf
                if self.gate is not None:
                    self.gate.recheck(each, now)
                elif each.paused_until <= now:
                    self._resume(each, now)
            else:
                self.resting -= len(each.members())
                if not self.halted:
                    self._call_again(each)
        for item in list(takewhile(lambda item: self._running[item] <= now, self._running)):
            del self._running[item]
            self.overdue.append((item, TimeoutError(f"timeout: no result within {self.options.timeout} s")))
            if self.gate is not None:
                self.gate.overdue(item)
        if self.gate is not None:
            self._schedule_rechecks()
        first = next(iter(self._running.values()), math.inf)
        deadline = math.inf if self.expired else self._deadline_at
        self.wake_at = min(first, deadline, self._timers[0][0] if self._timers else math.inf)

    def _expire(self, now: float) -> None:
        """The deadline: every item that is not running fails, every running call is to be abandoned.

        Once the map is halted nothing is decided about waiting items, and the queue may have been shut down.
        """
        self.expired = True
        waiting: list[Item] = []
        if not self.halted:
            waiting = flat(each for _, _, each in self._timers if not isinstance(each, Lane))
            waiting += flat(self.admission.drain()) if self.gate is None else self.gate.drain(now)
        self._timers.clear()
        self.resting = 0
        for item in self._running:
            self.overdue.append((item, self.deadline_exceeded()))
        self._running.clear()
        for item in waiting:
            self._fail(item, self.deadline_exceeded())

    def deadline_exceeded(self) -> DeadlineExceeded:
        return DeadlineExceeded(f"deadline: not done within {self.options.deadline} s")

    # ------------------------------------------------------------------------------------------------ the output
    def _fail(self, item: Item, error: Any, fatal: bool | None = None) -> None:
        """The item has failed for good. fatal: that ends the map, whatever `errors` says; None: the user's `fatal` was
        not asked."""
        if fatal is None and self._asks_fatal and not self.halted:
            self.unjudged.append((item, error))
            self.wake_at = -math.inf
            return
        if self.gate is not None and not self.expired:  # after the deadline no follower is called
            self.gate.failed_for_good(item)
        item.error = error
        if (began := getattr(item, "began", None)) is not None:
            self.timings.last_began(began, item.read)
        self.failures += 1
        too_many = self.failures > self._most_failures
        if self.options.errors == "raise" or too_many or fatal or isinstance(error, self._fatal_kinds):
            if self.error is None:
                self.failing = item
                ends_alone = fatal or not too_many or isinstance(error, self._fatal_kinds)
                self.error = error if ends_alone else self._too_many(error)
            self.failures_that_end += 1
            self.halted = True  # the item stays where it is in the order: nothing behind it is emitted
        else:
            self._complete((item,))

    def _fail_judged(self, item: Item, verdict: Verdict, now: float) -> None:
        """The call of the item has ended, and no other follows: it has failed for good, or the deadline has passed."""
        if verdict.kind is not Kind.FAIL:
            self._fail(item, self.deadline_exceeded())
            return
        if verdict.pauses and not self.expired:
            self._given_up += 1
            if verdict.seconds > 0:
                self._pause(item.lane, now + verdict.seconds, now)
        self._fail(item, verdict.error, verdict.fatal)

    def judged(self, item: Item, verdict: Verdict) -> None:
        self._fail(item, verdict.error, verdict.fatal)

    def fail_unjudged(self) -> None:
        """The map ends: `fatal` is not asked any more."""
        unjudged, self.unjudged = self.unjudged, []
        for item, error in unjudged:
            self._fail(item, error, False)

    def _too_many(self, last: Any) -> TooManyFailures:
        error = TooManyFailures(f"max_failures: {self.failures} items failed (expected: {self._most_failures} at most)")
        if isinstance(last, BaseException):
            error.__cause__ = last
        return error

    def _complete_known(self, items: list[Item]) -> None:
        """These have results without a call: recorded ones, or those of equal items."""
        for item in items:
            self.remembered += 1
            self._complete((item,))

    def _complete(self, items: Sequence[Item]) -> None:
        """No further attempt of these follows: emit what is next in order."""
        self.finished += len(items)
        window = self.window
        window.held_back += len(items)
        for item in items:
            item.done = True
        if window.sizeof is not None:
            window.weigh_done(items)
        if self._line is not None:
            self._emit(self._line)
        elif self._by_key:
            for item in items:
                self._emit(item.lane.line)
        elif self.failing is None:
            self._emit(deque(items))
        else:  # a failure has ended the map: nothing is emitted
            window.held_back -= len(items)

    def _emit(self, line: deque[Item]) -> None:
        """Put the done items at the left end of the line in the output, but for failures that are dropped."""
        emitted: list[Item] = []
        while line and line[0].done:
            emitted.append(line.popleft())
        window = self.window
        window.held_back -= len(emitted)
        for item in () if self.admission.is_plain else emitted:
            item.lane.emitted += 1
        if window.sizeof is not None:
            window.weigh_emitted(emitted)
        if self.unrecordable or self._emitted_last:
            emitted = self._until_unrecordable(emitted)
        if self.options.errors == "drop":
            results = [item for item in emitted if item.error is None]
            self.dropped += len(emitted) - len(results)
            for item in emitted if window.has_weights else ():
                if item.error is not None:
                    window.left(item)
            window.in_flight -= len(emitted) - len(results)
            emitted = results
        self.output.extend(emitted)
        if window.buffer:
            window.fill_buffer(emitted)

    def _until_unrecordable(self, items: list[Item]) -> list[Item]:
        """These up to the first whose result cannot be recorded. That one ends the map: no other one follows."""
        if self._emitted_last:
            return []
        for number, item in enumerate(items, 1):
            if item.error is None and self.unrecordable and item in self.unrecordable:
                self._emitted_last = True
                self.fail(self.unrecordable[item])
                return items[:number]
        return items

    def emit_done(self) -> None:
        """The user has stopped the map, and no call runs: emit what is done, also behind items that are not, in the
        promised order; nothing behind a failure that ends the map."""
        for line in self._lines():
            while line and (line[0].done or line[0].error is None):
                if line[0].done:
                    self._emit(line)
                else:
                    line.popleft()

    def forget_errors(self) -> None:
        """The map has ended, and its error is raised. Its traceback refers to Results, which refers to this."""
        self.error = self.input_error = self.failing = None
        self.drop()

    def drop(self) -> None:
        """The map has been closed, and no call runs: nobody takes what is done."""
        self.output.clear()
        self.window.in_flight = self.window.buffered = 0
        for line in self._lines():
            line.clear()

    def _lines(self) -> list[deque[Item]]:
        """Items in flight in the order in which they are emitted."""
        return self.admission.lines() if self._line is None else [self._line]

    def took(self, number: int) -> None:
        self.window.took(number, self.output)


def _needed_per_key(options: Options) -> int:
    """per_key; or 0 where it is not given, or limits nothing: at most `workers` calls run, and without retries items
    rest only while their key pauses."""
    limit = options.per_key or 0
    return 0 if limit >= options.workers and not options.retry.times else limit


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name}: {shown(value)} (expected: seconds, a finite number >= 0)")
    return float(value)
