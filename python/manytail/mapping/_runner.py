"""The runner: reports events to a scheduler and carries out its effects. Here is what all runners share;
`_thread_runner`, `_loop_runner` and `_inline_runner` add the reader, the timer and the workers.

The end of a map. `stop` begins it, from any thread and without waiting: no call starts any more, and each thread and
task of the map ends by itself as soon as its call or read has ended. The timer lasts as long as calls may run. `close`
of a runner stops and then waits for each of them in turn. Interrupted at any point, it may be called again: it waits
for what is left. So a map that is dropped leaves nothing behind but calls that run, and those end.

One lock makes the scheduler single-threaded. A worker waits for it only after a RetryLater and at its end. A thread
with an event appends it to `_events` and *tries* the lock. If it gets the lock, it handles all events, and checks again
after the release. If not, the holder does that. So an event is handled at once, and sixteen workers with a fast
function do not form a lock convoy, in which each holds the lock while it waits for the GIL. No user code runs under the
lock.

Successes of a plain map in threads may be handled some at a time: as many may wait as `_slack` says. It is so small
that no worker is idle, no reader waits to be asked, and no consumer waits for a result while one of them waits.
"""

from __future__ import annotations

import math
import random
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakMethod

from manytail._timings import Timings

from ._errors import own_copy
from ._item import Item, ItemBatch, Work
from ._scheduler import Kind, Scheduler, Verdict
from ._threads import holds_lock_of
from ._types import Quantiles, Stats
from ._window import LIGHT

if TYPE_CHECKING:
    from ._remember import Memory

_T = TypeVar("_T")
_A = TypeVar("_A")

ATTEMPTS = 3  # of `insist`
no_step: Callable[[], object] = int  # only has events handled. C code, in which no signal handler runs
JOIN_TIMEOUT = 1.0  # seconds that `close` waits for a thread that may not end
LAST_WAIT = 2.0  # seconds after the deadline, and after its last call, that a map waits for its databases
SLACK = 32  # successes that may wait at most: what they hold is in no account of bytes


def insist(step: Callable[[], object]) -> BaseException | None:
    """Call a step, and again if a signal handler has interrupted it: for a caller that nobody calls again. Returns the
    interruption. The last of ATTEMPTS raises it."""
    interruption = None
    for _ in range(ATTEMPTS - 1):
        try:
            step()
            return interruption
        except BaseException as error:
            interruption = error
    step()
    return interruption


def _with_own_errors(verdicts: Sequence[Verdict | None]) -> list[Verdict | None]:
    """Where items of a batch fail with one error, the others get copies: each is raised for another caller, which adds
    a traceback and a note."""
    seen: set[int] = set()
    own: list[Verdict | None] = []
    for verdict in verdicts:
        if verdict is not None and verdict.kind is Kind.FAIL:
            if id(verdict.error) in seen:
                verdict = verdict._replace(error=own_copy(verdict.error))
            seen.add(id(verdict.error))
        own.append(verdict)
    return own


def _weakly(method: Callable[[_A], object]) -> Callable[[_A], None]:
    """A function that calls a method of a runner, in a thread where workers may. A thread that waits for requests calls
    it: that must not keep the map alive."""
    found = WeakMethod(method)

    def call(argument: _A) -> None:
        bound: Any = found()
        if bound is not None:
            bound.__self__.from_thread(bound, argument)

    return call


def _weakly_called(method: Callable[[], object]) -> Callable[[], None]:
    """A function that calls a method of a runner, while that lives."""
    found = WeakMethod(method)

    def call() -> None:
        bound = found()
        if bound is not None:
            bound()

    return call


class Signal(Protocol):
    """What our `Event`, `threading.Event` and `asyncio.Event` share."""

    def set(self) -> None: ...
    def clear(self) -> None: ...


class Workers(Protocol):
    """What runs the calls. All methods except `join` are called under the runner's lock."""

    def items_came(self, items: int) -> None:
        """So many more calls may be made, or more of them at once. Runs no user code: that comes in a thread, or in a
        later step of the loop."""
        ...

    def busy(self) -> bool:
        """Whether calls may still run."""
        ...

    def threads(self) -> Sequence[threading.Thread]:
        """Those that `join` waits for."""
        ...

    def abandon(self, item: Work, error: BaseException) -> bool:
        """Abandon a running call. True: it reports nothing more. False: its end is or will be reported."""
        ...

    def stop(self, cancel: bool) -> None: ...
    def join(self) -> None: ...


class Runner:
    """What all runners share: events in, effects out. `call_with(resource)` makes what a worker calls per item."""

    output_changed: Signal  # wakes the consumer: the output may have what it waits for, or the map has ended
    read_next: Signal  # wakes the reader: the window has free slots, or the map has ended
    workers: Workers

    def __init__(
        self,
        scheduler: Scheduler,
        call_with: Callable[[dict[str, Any]], Callable[[Any], Any]],
        replace_error: Callable[[BaseException, int], Any] | None = None,
        *,
        input_error_first: bool = False,
        memory: Memory | None = None,
    ) -> None:
        """replace_error: gets the error and the attempts of an item that failed for good. Returns what stands for the
        error where the map goes on. input_error_first: an exception of the input fails the map at once, not after the
        results of the items before it. memory: where results are looked up and recorded."""
        self.scheduler = scheduler
        self.options = scheduler.options
        self.call_with = (lambda resource: call_with({})) if self.options.own_resource else call_with
        self.context = copy_context()  # of the call that made the map: fn, setup, the input and all functions see it
        self.stopping = False  # the queue has been shut down
        self.stopped_by_user = False  # who wants the results of running calls
        self._timings: tuple[Timings, ...] = (scheduler.timings,)  # and those of the workers
        self._failure: BaseException | None = None  # set by `fail`, which must not need memory
        self.idle_since: float | None = None  # no item is in flight, and more input was asked for
        self._replace_error = replace_error
        self._input_error_first = input_error_first
        self._lock = threading.Lock()
        self._try_lock = partial(self._lock.acquire, False)
        self._events: deque[Any] = deque()  # an Item that succeeded, or a tuple: method and arguments
        self._uniform = scheduler.is_uniform  # successes that came one after the other are handled together
        self._gathers = False  # whether successes may wait
        self._slack = 0.0  # how many. Written under the lock; who lowers it looks at the events after the release
        self._pending: deque[Item] = deque()  # read (and looked up), not in flight; the reader appends without the lock
        self._reading = False  # whether the reader was asked for items and has not delivered them
        self._wanted: float = 1  # items in the output that the consumer waits for
        # The window is filled to the brim, and again when no more items than `_refill_at` are in flight.
        self._filling = True
        self._refill_at = scheduler.window.size
        self._holder = 0  # the thread that holds the lock and may run signal handlers; 0: none
        self._cancel = False  # whether `stop` cancels coroutines
        self.memory = memory
        self.taken = 0  # items that the consumer has taken and whose slots are not free
        self.room = 0  # items that may be read at once
        self.source: Iterator[list[Item]] | None = None  # an input that never blocks: read here, without a reader
        self._looking = 0  # items between the reader and `_pending`, which are being looked up
        self._waits_until = math.inf  # for its databases
        self.asks = scheduler.gate is not None or memory is not None  # whether a worker is to call `skip`
        if memory is not None:
            memory.arrive = _weakly(self.looked_up)
            memory.fail = _weakly(self.fail)
            memory.unrecordable = scheduler.unrecordable
        gate = scheduler.gate
        self.owner = None if gate is None else gate.owner
        if self.owner is not None:
            self.owner.wake = _weakly_called(self.poke)
            self.owner.fail = _weakly(self.fail)

    # ------------------------------------------------------------------------------------------------ the lock
    def locked(self, step: Callable[..., _T], *arguments: Any) -> _T:
        """Call `step` under the lock, for threads that may wait for it. Events are handled before and after.

        A `for` over acquisitions, as in `settle`."""
        here = get_ident()  # before: a handler may run after a call, and would find the lock held by nobody
        try:
            for _ in iter(self._lock.acquire, False):
                try:
                    self._holder = here
                    self._handle()
                    return step(*arguments)
                finally:
                    self._holder = 0
                    self._lock.release()
        finally:
            self.settle()
        raise AssertionError("a lock that was not acquired")

    def held_here(self) -> bool:
        """Whether this thread holds the lock. Then the caller is a signal handler that interrupts it."""
        return self._holder == get_ident()

    def interrupts_itself(self) -> bool:
        """Whether this thread holds a lock of the map. Then the caller is a signal handler that interrupts it there,
        and must not wait: threads of the map may need that lock to end."""
        exchanges = () if self.owner is None else self.owner.exchanges
        return self.held_here() or holds_lock_of(self.workers, self.memory, self.scheduler.admission, *exchanges)

    def report(self, *event: Any) -> None:
        """Add an event: a method of the scheduler or of this runner, and its arguments. Never blocks, so that
        finalizers may call it."""
        self._events.append(event)
        self.settle()

    def settle(self) -> None:
        """Handle the events, unless another thread holds the lock: that checks again after the release.

        A `for` over acquisitions: Ctrl-C may raise after a call, but not between a step of an iterator and the `try`.
        """
        here = get_ident()
        for _ in iter(self._try_lock, False) if self._events or self._failure is not None else ():
            try:
                self._holder = here
                self._handle()
            finally:
                self._holder = 0
                self._lock.release()
            if not self._events:
                return

    def _handle(self) -> None:
        events, succeeded = self._events, self.scheduler.succeeded
        if not events and self._failure is None:
            return
        now = 0.0 if self.owner is None else self.now()
        while events:
            event = events.popleft()
            if type(event) is tuple:
                event[0](*event[1:])
            elif events and self._uniform:
                alike = [event]
                while events and type(events[0]) is not tuple:
                    alike.append(events.popleft())
                self.scheduler.succeeded_alike(alike)
            else:
                succeeded(event, now)
        if self._failure is not None:
            error, self._failure = self._failure, None
            self.scheduler.fail(error)
        self.go_on()

    # ------------------------------------------------------------------------------------------------ what workers call
    # Before a call a worker asks for each reason not to make it. If there is one, `skip` reports it and returns True.
    def skip(self, item: Work) -> bool:
        """Skip a call whose result was found recorded, that the gate no longer allows, or for which the map has no time
        left."""
        memory = self.memory
        if memory is not None and not memory.is_fresh(item):
            memory.recall(item).result()
            if self.skip_recalled(item):
                return True
        return self.skip_late(item)

    def _report_uncalled(self, call: Work, errors: list[BaseException]) -> None:
        """Report the failure of all items of a call that is not made."""
        failures = [self.scheduler.failure(error) for error in errors]
        failures = [self._replaced(one, item) for one, item in zip(failures, call.members(), strict=True)]
        for failure, item in zip(failures, call.members(), strict=True):
            item.fatal = failure.fatal
        self._report_end(failures, self.scheduler.uncalled, call, [failure.error for failure in failures], self.now())

    def skip_late(self, item: Work) -> bool:
        """Skip a call that the gate no longer allows."""
        gate = self.scheduler.gate
        if gate is None or not gate.late(item, now := self.now()):
            return False
        if self.memory is not None:
            self.memory.extend_lookups(item)
        self.report(self.scheduler.missed, item, now)
        return True

    def skip_recalled(self, item: Work) -> bool:
        """After an item was looked up again: skip its call if the result is recorded, or if the map ends."""
        scheduler = self.scheduler
        if scheduler.halted:
            return True
        if isinstance(item, ItemBatch):
            if not scheduler.expired:
                return False
            self._report_failure(item, scheduler.failure(scheduler.deadline_exceeded()))
        elif item.error is not None:  # the recorded result cannot be read
            self._report_uncalled(item, [item.error])
        elif item.known:
            self.report(scheduler.recalled, item, self.now())
        elif scheduler.expired:  # nothing was looked up
            self._report_failure(item, scheduler.failure(scheduler.deadline_exceeded()))
        else:
            return False
        return True

    def succeeded(self, item: Item) -> None:
        if self.memory is not None:
            self.memory.add(item)
        events = self._events
        events.append(item)
        if len(events) <= self._slack:
            return
        # `settle`, inlined because this runs once per item. Without `_holder`: workers run no signal handlers.
        for _ in iter(self._try_lock, False):
            try:
                self._handle()
            finally:
                self._lock.release()
            if not events:
                return

    def succeeded_next(self, item: Item) -> Work | None:
        """`succeeded`, where there is a gate and no memory, for a worker that is free then. Returns its next call, if
        there is one: that goes through no queue, and wakes no other worker."""
        events, gate, call = self._events, self.scheduler.gate, None
        assert gate is not None
        events.append(item)
        for _ in iter(self._try_lock, False):
            try:
                gate.hands_over = call is None
                self._handle()
                if call is None:
                    call, gate.handed = gate.handed, None
            finally:
                gate.hands_over = False
                self._lock.release()
            if not events:
                break
        return call

    def failed(self, item: Work, error: BaseException) -> None:
        """Judge the error, and report the verdict. Without the lock, because `on` and `backoff` are user code."""
        if isinstance(item, ItemBatch):
            self._report_batch(item, self.scheduler.judge_batch(item, error, random.random()))
        else:
            self._report_failure(item, self.scheduler.judge(item, error, random.random()))

    def returned(self, batch: Work) -> None:
        """Replaces `succeeded` where a call gets a batch."""
        assert isinstance(batch, ItemBatch)
        verdicts = self.scheduler.judge_results(batch, random.random())
        if self.memory is not None:
            for item, verdict in zip(batch.items, verdicts, strict=True):
                if verdict is None and not item.known:
                    self.memory.add(item)
        for item, verdict in zip(batch.items, verdicts, strict=True):
            if verdict is None and not item.known:
                self.weigh_result(item)
        self._report_batch(batch, verdicts)

    def weigh_result(self, item: Item) -> None:
        if self.scheduler.window.weighs and (type(item.result) not in LIGHT or type(item.result) is str):
            self.scheduler.window.weigh(item, item.result)

    def _report_batch(self, batch: ItemBatch, verdict: Verdict | list[Verdict | None]) -> None:
        if isinstance(verdict, Verdict):
            self._report_failure(batch, verdict)
            return
        pairs = zip(_with_own_errors(verdict), batch.items, strict=True)
        reported = [one if one is None else self._replaced(one, item) for one, item in pairs]
        self._report_end(reported, self.scheduler.returned, batch, reported, self.now())

    def _report_failure(self, item: Work, verdict: Verdict) -> None:
        self._report_end([verdict], self.scheduler.failed, item, self._replaced(verdict, item), self.now())

    def _replaced(self, verdict: Verdict, item: Work) -> Verdict:
        """What is reported of a verdict: where the map goes on, `replace_error` gives the error of a failure."""
        if verdict.kind is Kind.FAIL and not self._ends_map(verdict) and self._replace_error is not None:
            return verdict._replace(error=self._replace_error(verdict.error, item.attempts))
        return verdict

    def _ends_map(self, verdict: Verdict) -> bool:
        return verdict.kind is Kind.FAIL and (verdict.fatal or self.options.errors == "raise")

    def _report_end(self, verdicts: Sequence[Verdict | None], *event: Any) -> None:
        """Report the end of a call, and the verdicts on it."""
        self._events.append(event)
        known = [verdict for verdict in verdicts if verdict is not None]
        if any(map(self._ends_map, known)):
            # Halt the map at once, but after the event: who sees it halted and asks for `error` must get this one.
            self.scheduler.halted = True
        if any(verdict.defers for verdict in known):
            # Handle the deferral before the worker continues: otherwise it could take the next call of the same key.
            self.locked(no_step)
        self.settle()

    # ------------------------------------------------------------------------------------------------ what threads call
    def looked_up(self, items: list[Item]) -> None:
        """From the thread of `memory`."""
        for item in items:
            if item.known:
                self.weigh_result(item)
        self.report(self._looked_up, items)

    # ------------------------------------------------------------------------------------------------ under the lock
    def go_on(self) -> None:
        """Do what the scheduler decided: fill the window, ask for more input, wake the consumer and the timer."""
        scheduler = self.scheduler
        gate = scheduler.gate
        if gate is not None:
            self._dispatch()
            if gate.grew:
                gate.grew = False
                self.workers.items_came(0)
        if scheduler.halted and not self.stopping:
            self._stop()
        if scheduler.overdue or scheduler.wake_at < math.inf:
            self.set_timer(-math.inf if scheduler.overdue else scheduler.wake_at)
        if self.stopping:
            return
        # Refill in strides, because each refill may wake workers, and at once if a worker may find nothing to do. A
        # reader is asked for more as soon as nothing is pending.
        window = scheduler.window
        hungry = self._filling or window.in_flight <= self._refill_at or scheduler.ready.qsize() < self.options.workers
        wants_more = hungry or scheduler.admission.paused or not (self._pending or self.source is not None)
        if wants_more and not self._is_refill_useless():
            self._refill(hungry)
            # Halted by an item that failed before its call, or because no thread could be started. Stop here: perhaps
            # no further event comes.
            if scheduler.halted:
                self._stop()
                return
        if self._reading and not window.in_flight and not self._looking and self.idle_since is None:
            self.idle_since = self.now()
            self.output_changed.set()
        if len(scheduler.output) >= self._wanted or window.buffer_full or (scheduler.ended and scheduler.over):
            self.output_changed.set()
            if self._gathers:
                self._wanted = math.inf  # the consumer waits for nothing
        if self._gathers:
            self._slack = self._find_slack()

    def _find_slack(self) -> float:
        """How many successes may wait: fewer than the consumer waits for, and so few that one more is handled before
        a worker finds the queue empty. 0 where the first free slot has the reader asked for more."""
        scheduler = self.scheduler
        if not (self._reading or self._pending or self.source or scheduler.ended):
            return 0
        return min(SLACK, scheduler.ready.qsize() - self.options.workers, self._wanted - len(scheduler.output) - 1)

    def _dispatch(self) -> None:
        """Let calls start that may, where a gate decides that."""
        if self.scheduler.gate is not None:
            self.scheduler.dispatch(self.now())

    def _is_refill_useless(self) -> bool:
        """Nothing is pending, and the reader reads or need not, because the window is full of what is to be taken."""
        window = self.scheduler.window
        if self._pending or self.memory is not None:
            return False
        is_full = window.in_flight >= window.size and len(self.scheduler.output) > window.buffered
        return self._reading or is_full

    def _refill(self, hungry: bool) -> None:
        """Fill the window's free slots, and ask for more input if some are left."""
        scheduler = self.scheduler
        room = scheduler.room()
        if hungry and self._pending and room > 0:
            room = self._feed(room)
        if 0 < room <= self._looking and not self._pending and scheduler.grow_for_lookups():
            room = scheduler.room()
        if self.source is not None:
            self._read_here(room)
        elif room > self._looking and not self._pending and not self._reading:
            self._reading, self.room = True, room - self._looking
            self.read_next.set()
        # Priorities and weights reach as far as the window: it is kept full where they count.
        choosy = self.options.prioritised or self.options.weights is not None
        window = scheduler.window
        self._filling = choosy or not scheduler.is_full()
        largest, most = (window.in_flight, window.base) if window.is_bounded else (window.size, window.size)
        self._refill_at = largest - (most - self.options.workers) // 2

    def _read_here(self, room: int) -> None:
        """Fill the window from an input that never blocks."""
        assert self.source is not None
        while room > 0:
            self.room = room
            items = next(self.source, None)
            if items is None:
                self._input_ended(None)
                self._dispatch()  # no batch lingers
                return
            self._pending.extend(items)
            room = self._feed(room)

    def _feed(self, room: int) -> int:
        """Put items into flight. Returns how many more the window has free slots for."""
        scheduler = self.scheduler
        now = self.now()
        while room > 0 and self._pending:
            items = [self._pending.popleft() for _ in range(min(room, len(self._pending)))]
            scheduler.arrived(items, now)
            self._dispatch()
            if scheduler.wake_at < math.inf:
                self.set_timer(scheduler.wake_at)
            calls = len(items) if self.memory is None else sum(not item.known for item in items)
            if calls and not scheduler.expired:  # else no worker starts, and no setup is called
                self.workers.items_came(calls)
            self.idle_since = None
            room = scheduler.room()
        return room

    def is_hungry(self) -> bool:
        """Whether a worker may have nothing to do before another event comes. If not, items that were read may wait for
        that one."""
        scheduler = self.scheduler
        if scheduler.gate is not None:
            return len(scheduler.gate.starts) < scheduler.gate.allowed
        return scheduler.ready.qsize() < self.options.workers or bool(scheduler.admission.paused)

    def more_read(self, items: list[Item]) -> None:
        """From the reader: some of the items that it was asked for."""
        if not self.stopping:
            self._pending.extend(items)

    def items_read(self, items: list[Item] | None, error: BaseException | None = None) -> None:
        """From the reader: the items, or None at the end of the input. error: what the input raised instead."""
        self.read_next.clear()
        if items is None and self._looking and self.memory is not None:
            self.memory.after_lookups(partial(self.from_thread, self.report, self._input_ended, error))
            return
        if items is None:
            self._input_ended(error)
        elif self.memory is None:
            self.more_read(items)
        else:
            self.scheduler.first_came(self.now())
            self._looking += len(items)
            self.memory.look_up(items)
        self._reading = False
        self.go_on()

    def _input_ended(self, error: BaseException | None) -> None:
        if not self.scheduler.halted:
            self._feed(len(self._pending))  # looked up, not in flight: after the end `room` is 0
        if error is not None and self._input_error_first:
            self.scheduler.fail(error)
        else:
            self.scheduler.input_ended(error)

    def _looked_up(self, items: list[Item]) -> None:
        """These items were looked up: they may come into flight. The window has free slots for them."""
        self._looking -= len(items)
        self._pending.extend(items)

    def do_due(self) -> list[Callable[[], object]]:
        """Call `tick` if it is time. Returns what is to be called outside the lock, because it runs user code: it
        reports abandoned calls that nobody else reports, and judges failures without a call."""
        scheduler = self.scheduler
        now = self.now()
        if scheduler.wake_at <= now:
            scheduler.tick(now)
        if scheduler.expired and self.memory is not None:
            self.memory.expire()
        overdue = [(item, error) for item, error in scheduler.overdue if self.workers.abandon(item, error)]
        scheduler.overdue.clear()
        unjudged, scheduler.unjudged = scheduler.unjudged, []
        self.go_on()
        # The map ends, so no call follows: else the worker's replacement would report these.
        steps: list[Callable[[], object]] = [partial(self.timed_out, *each, final=True) for each in overdue]
        return steps + [partial(self._ask_fatal, *each) for each in unjudged]

    def _ask_fatal(self, item: Item, error: BaseException) -> None:
        """The item has failed without a call: does that end the map?"""
        verdict = self.scheduler.failure(error)
        self._report_end([verdict], self.scheduler.judged, item, verdict)

    def timed_out(self, item: Work, error: BaseException, final: bool = False) -> None:
        """Report a call that ran out of time. final: no call follows, so `on` and `backoff` are not asked."""
        delivery = getattr(item, "delivery", None)  # None: fn gets none, or has not begun
        if delivery is not None:
            delivery._end()
        self._events.append((self._call_timed_out, item.began))
        if isinstance(item, ItemBatch):
            # A batch whose time is over is neither called again nor split.
            self._report_batch(item, self.scheduler.lost(item, error))
        elif final:
            self._report_failure(item, self.scheduler.failure(error))
        else:
            self._report_failure(item, self.scheduler.give_up(item, error, random.random()))

    def _call_timed_out(self, began: float) -> None:
        self.scheduler.timings.ended(began)

    def worker_came(self, timings: Timings) -> None:
        """From a worker, which keeps the times of its calls there."""
        self.report(self.add_timings, timings)

    def add_timings(self, timings: Timings) -> None:
        self._timings = (*self._timings, timings)

    def worker_left(self, timings: Timings) -> None:
        self.report(self._worker_left, timings)

    def _worker_left(self, timings: Timings) -> None:
        self.scheduler.timings = first = self.scheduler.timings + timings
        self._timings = (first, *(one for one in self._timings[1:] if one is not timings))

    @property
    def finished(self) -> int:
        """How many items are done."""
        return self.scheduler.finished

    @property
    def in_flight(self) -> int:
        """How many items have come in and are not done, or their results were not taken."""
        return self.scheduler.window.in_flight

    def stats(self) -> Stats:
        """Where the map stands, read without the lock: each number is right, but they may be of different moments."""
        scheduler = self.scheduler
        if self._gathers:
            self.settle()
        times = sum(self._timings, Timings())
        waited, ran = (Quantiles(*four) for four in times.quantiles())
        return Stats(
            done=self.finished + scheduler.failures_that_end, failed=scheduler.failures,
            in_flight=max(0, self.in_flight - self.taken), calls=times.calls,
            retried=scheduler.retried, deferred=scheduler.deferred,
            remembered=scheduler.remembered, workers=scheduler.allowed, waited=waited, ran=ran,
            spent=MappingProxyType(scheduler.spent.copy()),
        )  # fmt: skip

    def fail(self, error: BaseException) -> None:
        """The map fails for a reason that is not an item's: perhaps that there is no memory, so this needs none."""
        if self._failure is None:
            self._failure = error
        self.scheduler.halted = True
        self.output_changed.set()  # if there is no memory to go on, the consumer does
        self.settle()

    def error(self) -> BaseException | None:
        """What the map raises, or None. For a worker that ends: it waits for the lock."""
        return self.locked(lambda: self.scheduler.error)

    def stop(self, cancel: bool = False) -> None:
        """No further call starts; coroutines are cancelled if `cancel`. Does not wait."""
        self.scheduler.halted = True
        self._cancel = self._cancel or cancel
        self.report(self._stop)

    def drop(self) -> None:
        """Nobody takes results any more. Does not wait."""
        self.stop(cancel=True)

    def _stop(self) -> None:
        self.scheduler.halted = True
        self._gathers, self._slack = False, 0
        self.scheduler.fail_unjudged()
        if self.owner is not None and self.scheduler.gate is not None:
            self.scheduler.gate.stop(self.now())
        self.scheduler.ready.shutdown(immediate=True)
        self.stopping = True  # after it: a step that is interrupted is repeated by the next call
        self.workers.stop(self._cancel)
        if not self.workers.busy():
            self.calls_ended()
        if self.memory is not None:
            self.memory.stop()
        self.read_next.set()
        self.output_changed.set()

    def last_wait(self) -> float | None:
        """Seconds that the map, whose last call has ended, may wait for its databases. None: it has no deadline."""
        now = self.now()
        self._waits_until = min(self._waits_until, max(now, self.scheduler._deadline_at) + LAST_WAIT)
        return None if self._waits_until == math.inf else min(max(0.0, self._waits_until - now), threading.TIMEOUT_MAX)

    # --------------------------------------------------------------------------------------------- where runners differ
    now: Callable[[], float]

    def set_timer(self, at: float) -> None:
        raise NotImplementedError

    def calls_ended(self) -> None:
        """The map has been stopped, and its last call has ended: nothing is left to time."""
        if self.owner is not None:
            self.report(self._release_limits)

    def _release_limits(self) -> None:
        if self.scheduler.gate is not None:
            self.scheduler.gate.calls_ended(self.now())

    def is_woken(self) -> bool:
        """Whether limits may have room, and nobody has looked."""
        return self.owner is not None and bool(self.owner.woken) and self.scheduler._open

    def poke(self) -> None:
        """From any thread: limits may have room. The map's own thread or loop looks. Must not wait."""
        raise NotImplementedError

    def from_thread(self, function: Callable[..., object], *arguments: Any) -> None:
        """For the threads of databases: call a method of this runner in a thread where workers may."""
        function(*arguments)
