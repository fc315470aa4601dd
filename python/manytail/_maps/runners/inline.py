"""The driver of workers="inline": no threads, for debuggers and tests. All is done by the thread that takes results,
inside `wait`: one step, read, call or sleep after another, until there is a result.

An item is read when nothing else can be done; where keys, priorities or batches choose among items, the window is
filled first. No call starts, and takes anything of a limit, before it is to be made: the scheduler may start none
(`allowed` is 0) but in the step just before.

Ctrl-C and the end of a debugger's session are no failure of an item: they end the map, as does whatever a signal
handler raises here. Then the scheduler may be in the middle of a step, and is not asked again.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from manytail._progress import INTERVAL
from manytail._sync import Event, Held
from manytail._timings import Timings

from ..engine.events import Fail, Failed, InputEnded, Missed, Returned
from ..engine.item import Call, Item, Kind, Verdict
from ..engine.scheduler import Scheduler
from ..verdicts import Judge
from .driver import Driver, overdue
from .resources import exit_arguments


def interrupts(error: object) -> bool:
    """Whether the error is no failure of an item, but of Ctrl-C or of a debugger that is left."""
    debugger: Any = sys.modules.get("bdb")
    return isinstance(error, KeyboardInterrupt) or (debugger is not None and isinstance(error, debugger.BdbQuit))


class Patience:
    """As an Event: set once the map waits for nothing but the records of its results."""

    def __init__(self, driver: InlineDriver) -> None:
        self._driver = driver

    def is_set(self) -> bool:
        scheduler, now = self._driver.scheduler, self._driver.now()
        return self._driver.halted or scheduler.expired or scheduler.deadline_at <= now

    def wait(self, timeout: float) -> object:
        return Event().wait(max(0.0, min(timeout, self._driver.scheduler.deadline_at - self._driver.now())))


class InlineDriver(Driver):
    def __init__(
        self,
        scheduler: Scheduler,
        call_with: Callable[[ExitStack], Callable[[Any], Any]],
        judge: Judge,
    ) -> None:
        """As of ThreadDriver."""
        super().__init__(scheduler, time.monotonic)
        self._call_with, self._judge = call_with, judge
        self._fills = scheduler.rules.chooses or scheduler.rules.calls_items > 1
        self._function: Callable[[Any], Any] | None = None  # from the first call on
        self._stack = ExitStack()  # closes the resource
        self.late: BaseException | None = None  # why the call that runs fails when it returns
        self._changed = Event()  # something was posted
        self._timer_at = math.inf
        self._read_limit = 0.0
        self._calls_in, self._reads_in = self.context.copy(), self.context.copy()
        self._report_at = math.inf  # when the next report of progress is due
        self._turn = threading.RLock()  # held by the thread that does the map's work
        self._whole = True  # no interruption has left that work in the middle
        self._times = Timings()
        self.add_timings(self._times)

    # ------------------------------------------------------------------------------------------------ for the consumer
    def start(self, source: Iterator[list[Item]], never_blocks: bool = False) -> None:
        self._source = source
        self._report_at = math.inf if self.progress is None else self.now() + INTERVAL
        self._step()

    def wait(self) -> None:
        """Go on until the output has `wanted` items, or the map has ended; or until `wait_until`."""
        with Held(self._turn):
            self._whole = False
            self.waiting = True
            while self.waiting and not (len(self.output) >= self.wanted or self.ended or self.wait_until <= self.now()):
                self._changed.clear()  # what is posted from here on is seen by the next round
                self._go_on()
            self._work(early=True)
            self._whole = True

    def runs_here(self) -> bool:
        """Never: a function that ends its own map waits for nothing."""
        return False

    def abandon(self) -> None:
        super().abandon()
        self.join()

    def join(self) -> None:
        """After `stop`: end the map, and close the resource. Not inside `wait`, which does so."""
        if self.exits or self._turn._is_owned():  # type: ignore[attr-defined]
            return
        with Held(self._turn):
            self._end_here()

    def exit(self) -> None:
        super().exit()
        if self._turn.acquire(blocking=False):  # else a daemon is in `wait`
            try:
                self._end_here()
            finally:
                self._turn.release()

    def _end_here(self) -> None:
        if not self.ended and not self._whole:
            self.crash(None)
        while not self.ended:
            self._step()
        self._source = None
        self._work(early=True)
        if self._report_at < math.inf:
            self._report_at = math.inf
            self._report()
        try:
            self._calls_in.run(self._stack.__exit__, *exit_arguments(self.error()))
        except BaseException as error:
            if interrupts(error):
                raise
            self.inbox.append(Fail(error))
            self._step()

    # ------------------------------------------------------------------------------------------------ the work
    def _go_on(self) -> None:
        """Do one thing."""
        scheduler = self.scheduler
        if self._report_at <= self.now():
            self._report_at = self.now() + INTERVAL
            self._report()
        elif self.inbox or self._timer_at <= self.now():
            self._step()
        elif self._due_at() <= self.now():
            self._work()
        elif self._fills and self._may_read():
            self._read_one()
        elif self._ready or (scheduler.lanes.waiting and self._step(starts=1)):
            self._calls_in.run(self._make, self._ready.popleft())
        elif self._may_read():
            self._read_one()
        elif len(self.output) < self.wanted and not self.ended and not self.inbox:
            wait = min(self._timer_at, self._report_at, self._due_at(), self.wait_until) - self.now()
            self._changed.wait(None if wait > threading.TIMEOUT_MAX else max(0.0, wait))

    def _report(self) -> None:
        """KeyboardInterrupt and SystemExit of the function end the map."""
        if self.progress is not None:
            before, self._whole = self._whole, True
            self.context.copy().run(self.progress)
            self._whole = before

    def _due_at(self) -> float:
        """When a stage has statements to make, which elsewhere a thread makes."""
        return min([stage.due_at() for stage in self.scheduler.stages], default=math.inf)

    def _work(self, early: bool = False) -> None:
        for stage in self.scheduler.stages:
            stage.work(Patience(self), early)

    def _step(self, starts: int = 0) -> bool:
        """starts: how many calls may run. Returns whether there is a call to make."""
        self._timer_at = math.inf
        self.scheduler.allowed = starts
        try:
            self._handle()
        finally:
            self.scheduler.allowed = 1
        return bool(self._ready)

    def _handle(self) -> None:
        """As of Driver, but what is raised here is a signal handler's, and ends the map."""
        while True:
            self._carry_out(self.scheduler.step(self.inbox, self.now()))
            if not self.inbox:
                break

    def _may_read(self) -> bool:
        return self._source is not None and self._items_read < self._read_limit and not self.halted

    def _read_one(self) -> None:
        items: list[Item] | None = None
        error = None
        try:
            items = self._reads_in.run(next, self._source, None)
        except BaseException as raised:
            error = raised
        for one in (error, *(item.error for item in items or ())):
            if isinstance(one, BaseException) and interrupts(one):
                self._whole = True
                raise one
        if items is None:
            self._source = None
            self.inbox.append(InputEnded(error))
        else:
            self._items_read += len(items)
            self.inbox.append(items)

    def _make(self, call: Call) -> None:
        """Make a call, as a worker thread does."""
        error = None
        try:
            if self._function is None:
                self.hold()
                self._function = self._call_with(self._stack)
        except BaseException as raised:
            self._whole = interrupts(raised)
            if self._whole:
                self._interrupted(call, raised)
                raise
            self.inbox.extend((Fail(raised), Missed(call)))
            return
        call.attempts += 1
        call.began = self.now()
        self._times.begin()
        try:
            call.result = self._function(call)
        except BaseException as raised:
            error = raised
        self._times.end_attempt()
        try:
            self._ended(call, error)
        finally:
            del call, error  # its traceback refers to this frame

    def _ended(self, call: Any, error: BaseException | None) -> None:
        if interrupts(error):
            self._interrupted(call, error)
        if self.scheduler.rules.timeout is not None or self.scheduler.rules.deadline is not None:
            self._step()  # which may find that its time is over
        late, self.late = self.late, None
        if late is not None:
            call.result = None
            error = overdue(late, error)
        event: Item | Failed | Returned = call
        if error is None and self.scheduler.batched:
            event = self._judge.returned(call)
        elif late is not None and (self.scheduler.expired or self.closed):  # there is no retry to decide on
            event = Failed(call, Verdict(Kind.FAIL, error=late, timed_out=True))
        elif error is not None:
            event = self._judge.failed(call, error, overdue=late is not None)
        if isinstance(event, Item):
            self._times.last_began(call.began, call.read)
            self.weigh(event)
            self.inbox.append(event)
            return
        verdicts = [event.verdict] if isinstance(event, Failed) else event.verdicts
        for item, verdict in zip(call.items(), verdicts, strict=False):
            if verdict is None:
                self._times.last_began(call.began, item.read)
                self.weigh(item)
            elif interrupts(verdict.error):  # of `on`, `backoff` or `fatal`
                self._interrupted(call, verdict.error)
        self.inbox.append(event)

    def _interrupted(self, call: Call, error: BaseException | None) -> None:
        """The call has ended, and so does the map. Raises the error."""
        self.inbox.append(Failed(call, Verdict(Kind.FAIL, error=error, fatal=True)))
        self._step()
        self._whole = True
        assert error is not None
        raise error

    # ------------------------------------------------------------------------------------------------ effects
    def poke(self) -> None:
        self._changed.set()

    def show(self) -> None:
        """Nothing: `wait` looks."""

    def hand(self, calls: list[Call]) -> None:
        self._ready.extend(calls)

    def cancel(self, call: Call, error: BaseException) -> None:
        """It has ended: this thread makes it."""
        self.late = error

    def read(self, most: float) -> None:
        self._read_limit = most

    def set_timer(self, at: float) -> None:
        self._timer_at = at

    def end(self) -> None:
        """Nothing waits."""
