"""The driver: hands events to the scheduler, and carries out its effects. Here is what all drivers share.

The user's threads own nothing. Whoever iterates, stops, closes, runs a signal handler or a finalizer only appends to
the inbox, wakes the map's own thread (`poke`), and waits for the output. Every step is made in a thread of the map: by
the worker, reader or service thread that finds something in the inbox and the lock free (`pump`). Nobody waits for that
lock: who finds it held leaves its event to the holder, which looks at the inbox again after it has released the lock.
Python runs signal handlers in the main thread alone, so none interrupts a step. No user code runs under the lock.

Successes of a plain map may be handled some at a time: as many may wait in the inbox as `slack` says. It is so small
that no worker is idle, and no consumer waits, while one of them waits.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from types import MappingProxyType
from typing import Any
from weakref import WeakMethod, WeakSet

from manytail._sync import Held
from manytail._timings import Timings

from ..engine.events import Effects, Event, Fail, Failed, InputEnded, Recalled, Returned, Stop, Woken
from ..engine.item import Batch, Call, Item, Kind, Lane
from ..engine.scheduler import Scheduler
from ..engine.window import LIGHT
from ..errors import set_cause
from ..outcomes import Quantiles, Stats
from ..verdicts import Judge

SLACK = 256  # successes that may wait at most


def overdue(late: BaseException, error: BaseException | None) -> BaseException:
    """The error of a call whose time was over, and which raised `error` when it was cancelled or returned."""
    if error is not None and not isinstance(error, (asyncio.CancelledError, type(late))):
        set_cause(late, error)
    return late


def weakly(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Calls the method as long as its object is there."""
    reference = WeakMethod(method)

    def call(argument: Any) -> None:
        if (method := reference()) is not None:
            method(argument)

    return call


drivers: WeakSet[Driver] = WeakSet()


@atexit.register
def exit_all() -> None:
    """End the maps that nobody has ended, as long as there are modules."""
    for reference in list(drivers.data):  # type: ignore[attr-defined]  # a copy: other threads may make maps
        driver = reference()
        if driver is not None:
            with suppress(Exception):
                driver.exit()
            driver.exits = True


class Driver:
    """What all drivers share."""

    def __init__(self, scheduler: Scheduler, now: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self.now = now
        self.context = copy_context()  # of the call that made the map: fn, setup, the input and all functions see it
        self.inbox: deque[Event] = deque()
        self.output: deque[Item] = deque()
        self.ended = False  # nothing follows what is in the output
        self.crashed = False  # and nobody knows what became of some items: the scheduler makes no step any more
        self.halted = False  # no call begins: set before the scheduler knows it
        self.closed = False  # nothing more is taken, and no error is raised
        self.exits = False  # and the interpreter exits: finalizers that come later find no modules
        self.slack = 0  # see above. Written by the pump and by a consumer that begins to wait
        self.waiting = False  # whether the consumer waits
        self.wanted = 1  # for how many items in the output it does
        self.wait_until = math.inf  # and how long, by `now`
        self.progress: Callable[[], object] | None = None  # reports where the map stands; set before the start
        self._lock = threading.Lock()
        self._ready: deque[Call] = deque()  # calls that no worker has taken; threads have a queue instead
        self._source: Any = None  # an input that never blocks
        self._input_done = False  # and it is exhausted
        self._items_read = 0
        self._timings: tuple[Timings, ...] = ()  # of all workers; replaced whole
        for stage in scheduler.stages:  # limits outlive a map whose loop was closed, and refer to what waits for them
            stage.connect(weakly(self._woken), weakly(self.fail))
        if scheduler.memory is not None:
            scheduler.memory.post = self.post
        drivers.add(self)

    # ------------------------------------------------------------------------------------------------ for any thread
    def post(self, event: Event) -> None:
        """Add an event, and have a thread of the map handle it. Does not wait."""
        self.inbox.append(event)
        self.poke()

    def took(self, number: int) -> None:
        """The consumer took that number of items."""
        self.inbox.append(number)

    def fail(self, error: BaseException) -> None:
        """The map fails for a reason that is not one item's."""
        self.halted = True
        self.post(Fail(error))

    def stop(self, keeps: bool) -> None:
        """No call begins any more. keeps: the results of running calls are emitted. Does not wait."""
        if self.exits:
            return
        self.halted = True
        self.closed = self.closed or not keeps
        self.post(Stop(keeps))

    def abandon(self) -> None:
        """The consumer takes nothing more, whatever the reason: an error, its end, the collector."""
        self.stop(keeps=False)

    def exit(self) -> None:
        """The interpreter exits. Waits for nothing."""
        self.stop(keeps=False)

    def _woken(self, lane: Lane | None) -> None:
        self.post(Woken(lane))

    def error(self) -> BaseException | None:
        """What the map raises when the output is empty."""
        if self.closed:
            return None
        scheduler = self.scheduler
        if scheduler.error is None and scheduler.memory is not None and scheduler.memory.error is not None:
            return scheduler.memory.error  # type: ignore[no-any-return]  # of results that came last
        return scheduler.input_error if scheduler.error is None else scheduler.error

    def stats(self) -> Stats:
        """Where the map stands. Each number is right, but they may be of different moments."""
        scheduler = self.scheduler
        times = sum(self._timings, Timings())
        in_flight = 0
        if not (self.ended and self.closed):  # nobody gets what is in the output of a map that was closed
            in_flight = len(self.output) + (0 if self.ended else scheduler.window.pending)
        waited, ran = (Quantiles(*four) for four in times.quantiles())
        unseen = 0  # successes that wait for a step
        with suppress(RuntimeError):  # the inbox changes at this moment, and so do the numbers
            unseen = sum(isinstance(event, Item) for event in self.inbox.copy())
        return Stats(
            done=scheduler.finished + unseen, failed=scheduler.failures,
            in_flight=in_flight, calls=times.calls, retried=scheduler.retried,
            deferred=scheduler.deferred, remembered=scheduler.remembered, workers=scheduler.allowed,
            waited=waited, ran=ran, spent=MappingProxyType(scheduler.spent.copy()),
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------- in the map's threads
    def report(self, event: Event) -> None:
        self.inbox.append(event)
        self.pump()

    def pump(self) -> None:
        """Handle what is in the inbox, unless another thread does."""
        while self.inbox and self._lock.acquire(False):
            try:
                self._handle()
            finally:
                self._lock.release()
            if not self.inbox:
                return

    def settle(self) -> None:
        """Wait until everything in the inbox has been handled."""
        with Held(self._lock):
            self._handle()
        self.pump()

    def report_end(self, event: Failed | Returned) -> None:
        """A call has failed, or that of a batch has ended."""
        verdicts = [event.verdict] if isinstance(event, Failed) else [one for one in event.verdicts if one is not None]
        if any(one.kind is Kind.FAIL and (self.scheduler.rules.raises or one.fatal) for one in verdicts):
            self.halted = True  # before the step, so that no other worker begins a call
        self.report(event)
        if any(one.kind is not Kind.FAIL or one.pauses for one in verdicts):
            self.settle()  # otherwise a worker could take the next call of a lane that has just been paused

    def _handle(self) -> None:
        """Under the lock: make steps until the inbox is empty."""
        try:
            while not self.crashed:
                self._carry_out(self.scheduler.step(self.inbox, self.now()))
                if not self.inbox:
                    break
        except BaseException as error:  # no memory, or a fault of ours: some calls of this step are lost
            self.crash(error)
        if self.crashed:
            self.inbox.clear()
        self._set_slack()

    def _carry_out(self, effects: Effects) -> None:
        if effects.emit:
            self.output.extend(effects.emit)
            effects.emit = []  # the scheduler keeps the effects until the next step, and results only the output
        if self.waiting and (len(self.output) >= self.wanted or effects.shows):
            self.waiting = False  # it waits for nothing from here on, although it has not woken yet
            self.show()
        if effects.recall:
            self.inbox.append(Recalled(self.take_back()))
        if effects.start:
            self.hand(effects.start)
        for call, error in effects.cancel:
            self.cancel(call, error)
        if effects.read:
            self.read(effects.read)
        if effects.wake_at < math.inf:
            self.set_timer(effects.wake_at)
        if effects.ended and not self.ended:
            self.ended = self.halted = True
            self.end()
            self.show()

    def crash(self, error: BaseException | None) -> None:
        """End the map without its scheduler, which was left in the middle of a step, or never made one. Calls that run
        are joined."""
        self.crashed = True
        self.inbox.clear()
        if self.scheduler.error is None:
            self.scheduler.error = error
        for stage in () if self.ended else self.scheduler.stages:
            with suppress(Exception):  # it may be this stage that has raised
                stage.leave(self.now())
        self.ended = self.halted = True
        self.end()
        self.show()

    def _set_slack(self) -> None:
        slack = 0
        if self.scheduler.hands_ahead and not self.scheduler.halted:
            slack = min(SLACK, self.queued() - self.scheduler.allowed)
        self.slack = slack
        # After it was written: the consumer sets `waiting`, then slack to 0. Whoever waits for many need not wake for
        # each, but then the reader has to have read what comes next.
        if self.waiting and not (self.wanted > 1 and self.scheduler.ahead):
            self.slack = 0

    def flush(self) -> None:
        """The map has ended: wait until its results are recorded."""
        memory = self.scheduler.memory
        if memory is not None:
            memory.leave(self.now())
            memory.ended.wait()

    def hold(self) -> None:
        """From here on calls run in this context."""
        for stage in self.scheduler.stages:
            stage.hold()

    def weigh(self, item: Item) -> None:
        """Count the bytes of its result, in the thread that made the call."""
        if self.scheduler.window.weighs and type(item.result) not in LIGHT:
            self.scheduler.window.weigh(item, item.result)

    def batch_returned(self, batch: Batch, began: float, timings: Timings, judge: Judge) -> Returned:
        """The call of a batch, which began then, has returned. Returns what the scheduler is told of it."""
        event = judge.returned(batch)
        for item, verdict in zip(batch.members, event.verdicts, strict=True):
            if verdict is None:
                timings.last_began(began, item.read)
                self.weigh(item)
        return event

    def read_here(self, most: float) -> None:
        """Read an input that never blocks, until so many items have been read in all."""
        while not self._input_done and self._source is not None and self._items_read < most:
            items = self._source.take(int(most) - self._items_read)
            self._items_read += len(items)
            self.inbox.append(items or InputEnded(None))
            if not items:
                self._input_done = True  # its values may have finalizers: the end of the map drops it, without the lock

    def add_timings(self, timings: Timings) -> None:
        self._timings = (*self._timings, timings)

    # --------------------------------------------------------------------------------------------- where drivers differ
    def poke(self) -> None:
        """Have a thread of the map call `pump` soon."""
        raise NotImplementedError

    def show(self) -> None:
        """Wake the consumer: the output has an item, or the map has ended."""
        raise NotImplementedError

    def hand(self, calls: list[Call]) -> None:
        """Have workers make these calls."""
        raise NotImplementedError

    def queued(self) -> int:
        """Calls that no worker has taken."""
        return len(self._ready)

    def take_back(self) -> list[Call]:
        """Take back the calls that no worker has taken, in their order."""
        calls = list(self._ready)
        self._ready.clear()
        return calls

    def cancel(self, call: Call, error: BaseException) -> None:
        """End a call that runs. It fails with that error, unless it has ended."""
        raise NotImplementedError

    def read(self, most: float) -> None:
        """Read the input until so many items have been read in all."""
        raise NotImplementedError

    def set_timer(self, at: float) -> None:
        """Call `pump` at that time, or before."""
        raise NotImplementedError

    def end(self) -> None:
        """The map has ended: let all its threads end."""
        raise NotImplementedError
