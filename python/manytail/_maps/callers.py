"""`Caller` and `AsyncCaller`: items that come one by one, from any thread or task. The scheduler is that of maps, with
order="completion" and errors="return". `Intake` is what a Caller adds to a driver: a source, and a sink.

    the source   `line`: items that were handed in. The step lets in as many as the window has room for, and then sets
                 `entry` of those whose threads wait for it
    the sink     `deliver`: who makes a step settles the futures of the items that are done, when it has released the
                 lock
    open         items that the scheduler or the line has: their futures are to be settled

Direct calls (`ThreadIntake`). Where nothing chooses among items, and the window has much room, an item goes to the
workers' queue at once, in a tuple. The worker that takes it settles its future: a round trip costs no step. The
scheduler learns of such a call (`Began`) only if it fails, or if it is recalled.

Invariants
    a user's thread hands an item in by one append or put, which an interruption leaves done or not done
    who settles an item has taken it out of `open`, or has made its direct call; whether a call begins or is cancelled
    is decided by its future
    the user's `repr`, `__hash__` and callbacks run without the lock
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, PENDING, RUNNING
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial
from os import PathLike
from textwrap import indent
from typing import Any, Generic, NoReturn, Self, TypeVar
from weakref import WeakSet

from manytail import _checks
from manytail._lifecycle import after_fork_in_child, refuse_copy
from manytail._progress import Meter
from manytail._sync import Condition, Event, Held, Mutex
from manytail._timings import Timings, now
from manytail.errors import ShutDown

from . import options as table
from .database.shared import Shared
from .engine.events import Began, InputEnded, Recalled
from .engine.item import Call, Item
from .engine.lanes import IDLE_LIMIT, Lanes
from .engine.stages import GO, Decision, Refuse, Stage
from .engine.window import WINDOW_LIMIT
from .errors import own_copy
from .limits.objects import Limit
from .maps import concurrent_map, note_item, plan_of
from .outcomes import Stats
from .policies import Batch, Breaker, Retry
from .runners.driver import Driver
from .runners.loop import LoopDriver, OwnLoopDriver, running_loop
from .runners.threads import ThreadDriver
from .verdicts import Judge

_T = TypeVar("_T")
_R = TypeVar("_R")
_Class = TypeVar("_Class", bound=type)
log = logging.getLogger("manytail")
WAKE: Any = object()  # in the queue of calls: a worker that takes it makes a step
ROOMY = 1_000  # a window of that size has room for direct calls: threads that look at once do not fill its second half
MOST_CALLBACKS = 1_000  # threads

# The calls of Callers that this code runs in, each as a list that holds its driver until the call ends: what copies the
# context and outlives the call is not inside.
_inside: ContextVar[tuple[list[Any], ...]] = ContextVar("manytail: calls of Callers", default=())


def is_inside(driver: Any) -> bool:
    """Whether this code runs in a call of that Caller, or in what the call has started and not outlived."""
    return any(driver in call for call in _inside.get())


# ---------------------------------------------------------------------------------------------------- what is handed in
class CallFuture(Future[Any]):
    """Callbacks are the user's code, and may block. They run in the thread that cancels the future, or else in a thread
    of `callbacks`, on which no call depends.

    The condition of the standard library's would stay locked if a signal handler raised in one of its methods, and the
    thread that settles the future would wait for ever."""

    def __init__(self, callbacks: ThreadPoolExecutor) -> None:
        super().__init__()
        self._condition: Any = Condition(Mutex())
        self._callbacks = callbacks

    def __repr__(self) -> str:  # that of Future takes the lock again where it is held
        return f"<CallFuture at {id(self):#x} {self._state.lower()}>"

    @property
    def skipped(self) -> bool:
        """Whether its user has cancelled it. Without the lock."""
        return self._state in (CANCELLED, CANCELLED_AND_NOTIFIED)

    def begin(self) -> bool:
        """Its call begins, or its result is there: from here on nobody cancels it. Returns False if it was cancelled.
        Any thread may call it, any number of times."""
        with Held(self._condition):
            if self._state == PENDING:
                self._state = RUNNING
            elif self._state == CANCELLED:  # as in set_running_or_notify_cancel: tell concurrent.futures.wait
                self._state = CANCELLED_AND_NOTIFIED
                for waiter in self._waiters:
                    waiter.add_cancelled(self)
            return self._state != CANCELLED_AND_NOTIFIED

    skip = Future.cancel  # unless its call has begun

    def _invoke_callbacks(self) -> None:
        if getattr(threading.current_thread(), "driver", None) is None:  # of a user who cancels it
            super()._invoke_callbacks()  # type: ignore[misc]
        elif self._done_callbacks:  # type: ignore[attr-defined]
            call = partial(call_logging, super()._invoke_callbacks)  # type: ignore[misc]
            try:
                self._callbacks.submit(call)
            except RuntimeError:  # they have ended; or the system has no more threads to give
                call()


def name_thread() -> None:
    threading.current_thread().name = "manytail-callbacks"


def call_logging(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:  # the standard library logs an Exception
        log.exception("callback of a future")


class Waiting:
    """The future of `caller(item)`, which alone waits for it: what a Caller needs of CallFuture, in a third of the
    time."""

    __slots__ = ("_claims", "_done", "_error", "_result")

    def __init__(self) -> None:
        self._claims: list[bool] = []  # the first says whether it begins. A list: its append is atomic
        self._done = Event()
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def skipped(self) -> bool:
        return self._claims[:1] == [False]

    def begin(self) -> bool:
        self._claims.append(True)
        return self._claims[0]

    def cancel(self) -> bool:
        self._claims.append(False)
        if self.skipped:
            self._done.set()
        return self.skipped

    skip = cancel

    def set_result(self, result: Any) -> None:
        self._result = result
        self._done.set()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._done.set()

    def result(self) -> Any:
        self._done.wait()
        if self.skipped:
            raise CancelledError
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            self._error = None  # it refers to this frame


class LoopFuture(asyncio.Future[Any]):
    begun = False

    @property
    def skipped(self) -> bool:
        return self.done()

    def begin(self) -> bool:
        self.begun = True
        return not self.done()

    def skip(self) -> bool:
        return not self.begun and self.cancel()


class SkipStage(Stage):
    """What was cancelled is not called."""

    of_items = True

    def before(self, call: Call, now: float) -> Decision:
        return Refuse(CancelledError()) if all(item.future.skipped for item in call.items()) else GO


class Skipped(CancelledError):
    """What was cancelled just before its call began. No Retry names it."""


class SharedLanes(Lanes):
    """Lanes that several threads assign. Keys are compared without a lock, but where idle lanes are dropped.

    A lane that is `forgotten` is being dropped by a thread of the Caller, or in the loop that alone assigns: who brings
    its key waits until that is done. No signal handler that hands in interrupts it there."""

    def __init__(self, **options: Any) -> None:
        self._counting = threading.RLock()  # a signal handler may hand in, too
        self._dropping = threading.Lock()
        super().__init__(**options)

    def assign(self, item: Item) -> None:
        if self.lone is not None:
            item.lane = self.lone
            return
        while True:
            lane = self._lanes.get(item.key) or self._lanes.setdefault(item.key, self._prepared(item))
            with Held(self._counting):
                if not lane.forgotten:
                    lane.assigned += 1
                    item.lane = lane
                    return
            with Held(self._dropping):
                pass

    def drop_idle(self) -> None:
        """For a thread of the Caller, without the lock."""
        if len(self._lanes) < self._limit:
            return
        with Held(self._dropping, 0.0) as free:
            idle = list(self._lanes.items()) if free else []  # else another thread drops them
            try:
                with Held(self._counting):
                    idle = [(key, lane) for key, lane in idle if self.is_idle(lane)]
                    for _, lane in idle:
                        lane.forgotten = True
                while idle:
                    del self._lanes[idle[-1][0]]
                    lane = idle.pop()[1]
                    if self._forget is not None:
                        self._forget(lane)
            except Exception:  # of a `__hash__`
                pass
            finally:
                for _, lane in idle:  # in a loop, also if a signal handler has raised
                    lane.forgotten = False
            self._limit = max(IDLE_LIMIT, 2 * len(self._lanes))


# ---------------------------------------------------------------------------------------------------- drivers
class Intake(Driver):
    """What the drivers of Callers have in common, in place of an input and an output."""

    def __init__(self, scheduler: Any, call_with: Any, judge: Judge) -> None:
        super().__init__(scheduler, partial(self._calling, call_with), judge)  # type: ignore[call-arg]
        self.line: deque[Item] = deque()
        self.open: set[Item] = set()
        self.callbacks = ThreadPoolExecutor(MOST_CALLBACKS, initializer=name_thread)
        self.finishing = False  # nothing more is handed in
        self.stopped = False  # what has not started is cancelled
        self._room = self.scheduler.window.size  # for how many items of the line
        self._input_over = False
        self.meter = Meter(self.stats)

    # ------------------------------------------------------------------------------------------------ for any thread
    def begin(self) -> None:
        """Start, without a source."""
        driver: Any = self
        driver.start(None, True)
        driver._claim.setdefault("runs", True)  # else a close before the thread has begun would drop what is there

    def _calling(self, call_with: Any, stack: Any) -> Any:
        """Set a worker up. Returns what makes its calls."""
        raise NotImplementedError

    def _mark(self, outside: tuple[list[Any], ...], made: Call) -> list[Any]:
        """A call begins in this context. Returns what is to be emptied at its end. Skipped: all its items were
        cancelled. A batch keeps what was cancelled after its turn."""
        begun = [item.future.begin() for item in made.items()]  # of all: none can be cancelled from here on
        if not any(begun):
            raise Skipped
        mark = [self]
        _inside.set((*outside, mark))
        return mark

    def hand_in(self, item: Item) -> Event | None:
        """Returns what is set when the window has room for the item; None: it had. RuntimeError: the Caller has
        ended."""
        if self.finishing or self.halted:
            raise self.refusal()
        self.open.add(item)
        if is_inside(self):  # fn may wait for it, and so waits for no room
            self.inbox.append([item])
        else:
            if len(self.line) >= self._room:
                item.entry = Event()
            self.line.append(item)
            self.inbox.append(0)
        self.wake()
        if self.ended:
            self.line.clear()  # the thread that ended the map may have done so before the item was there
            with suppress(KeyError):  # that thread has settled it
                self.open.remove(item)
                raise self.refusal()
        return item.entry  # type: ignore[no-any-return]

    def refusal(self) -> BaseException:
        error = self.scheduler.error
        refusal = RuntimeError("the Caller is closed" if error is None else "the Caller has failed")
        refusal.__cause__ = error
        return refusal

    def wake(self) -> None:
        self.poke()

    def finish(self) -> None:
        """Nothing more is handed in."""
        self.finishing = True
        self.inbox.append(0)
        self.poke()

    def stop(self, keeps: bool) -> None:
        self.stopped = True
        super().stop(keeps)

    def is_idle(self) -> bool:
        """Whether no call runs that the scheduler does not know."""
        return True

    # ------------------------------------------------------------------------------------------------ under the lock
    def read(self, most: float) -> None:
        self._room = int(most) - self.scheduler.window.arrived
        self._admit()
        if self.finishing and not self.line and not self._input_over and self.is_idle():
            self._input_over = True
            self.inbox.append(InputEnded(None))

    def _admit(self) -> None:
        """Let in what the window has room for."""
        items: list[Item] = []
        while self.line and self._room > 0:
            item = self.line.popleft()
            items.append(item)
            self._room -= 1
            if item.entry is not None:
                item.entry.set()
        if items:
            self.inbox.append(items)

    def _handle(self) -> None:
        if self.line and not self.halted:  # else it takes another step
            self._admit()
        super()._handle()

    def _carry_out(self, effects: Any) -> None:
        if effects.emit:
            self.open.difference_update(effects.emit)
            self.scheduler.window.taken += len(effects.emit)  # nobody holds them back
            effects.read += len(effects.emit) if effects.read else 0
        super()._carry_out(effects)

    def _set_slack(self) -> None:
        """No success waits for a later step: somebody waits for each."""

    def crash(self, error: BaseException | None) -> None:
        super().crash(error)
        self.deliver()

    # ------------------------------------------------------------------------------------------------ without it
    def deliver(self) -> None:
        """Settle what is done; at the end also what is left. If the Caller was stopped, cancel what has not started."""
        while self.output:
            with suppress(IndexError):  # another thread has taken it
                self.settle_one(self.output.popleft())
        if self.ended:
            self.line.clear()
            while self.open:
                with suppress(KeyError):  # another thread has taken it
                    self._settle_left(self.open.pop())
            self.callbacks.shutdown(wait=False)
        elif self.stopped:
            for item in list(self.open):
                if item.future.skip():
                    self.open.discard(item)
                    self._settle_left(item)
        elif self.scheduler.lanes.lone is None:
            self.scheduler.lanes.drop_idle()  # type: ignore[attr-defined]

    def _settle_left(self, item: Any) -> None:
        """It is cancelled, or gets the error of the Caller."""
        error = self.scheduler.error
        if item.entry is not None:
            item.entry.set()
        if error is not None or not item.future.cancel():
            item.error = CancelledError() if error is None else own_copy(error)
        self.settle_one(item)

    def settle_one(self, item: Any) -> None:
        """Whatever the user's `repr` raises here, the future is settled."""
        future, error = item.future, item.error
        item.error = None  # its traceback may refer to the item
        if not future.begin():
            return
        with suppress(InvalidStateError):  # the user has settled it
            if error is None:
                future.set_result(item.result)
                return
            with suppress(BaseException):
                if not isinstance(error, CancelledError):
                    note_item(error, item)
            future.set_exception(error)


class ThreadIntake(Intake, ThreadDriver):
    """A plain fn."""

    def __init__(self, scheduler: Any, call_with: Any, judge: Judge) -> None:
        super().__init__(scheduler, call_with, judge)
        self._wakes = self._queue.add("wakes")  # type: ignore[arg-type]
        self._put: Callable[[Any], None] = self._calls.put
        self._direct = scheduler.hands_ahead and scheduler.window.size >= ROOMY
        self._running: set[Item] = set()  # direct calls
        self._succeeded: list[list[int]] = []  # how many direct calls each worker has made with success

    # ------------------------------------------------------------------------------------------------ for any thread
    def hand_in(self, item: Item) -> Event | None:
        if not self._direct or not self._goes_directly():
            return super().hand_in(item)
        try:
            self._put((item,))
        except ShutDown:
            raise self.refusal() from None
        if self._wants_worker():
            self.poke()
        return None

    def _goes_directly(self) -> bool:
        """Whether no item waits, and the window is at most half full."""
        lane: Any = self.scheduler.lanes.lone
        if self.line or self.halted or self.finishing or lane.waiting or lane.rests:
            return False
        window = self.scheduler.window
        return 2 * (self._calls.qsize() + len(self._running) + window.pending) <= window.size

    def _wants_worker(self) -> bool:
        count = self._worker_count
        return count < self.scheduler.allowed and count < self._calls.qsize() + len(self._running)

    def is_idle(self) -> bool:
        return not (self._running or self._calls.qsize())

    def wake(self) -> None:
        """Have a step made: by an idle worker, which makes the call too; if there is none, and another worker may be
        started, by the service thread; else by the first worker that is free."""
        count = self._worker_count
        if count and (self.scheduler.handed < count or count >= self.scheduler.allowed):
            if not self._wakes.qsize():
                with suppress(ShutDown):  # the workers have ended; whoever ended them settles what is open
                    self._wakes.put(WAKE)
        else:
            self.poke()

    def stats(self) -> Stats:
        stats, done = super().stats(), sum(number for (number,) in self._succeeded)
        direct = 0 if self.ended else max(0, self._calls.qsize() - self.scheduler.handed) + len(self._running)
        return stats._replace(done=stats.done + done, in_flight=stats.in_flight + direct)

    # ------------------------------------------------------------------------------------------------ workers
    def _calling(self, call_with: Any, stack: Any) -> Any:
        function, outside = call_with(stack), _inside.get()

        def call(made: Any) -> Any:
            mark = self._mark(outside, made)
            try:
                return function(made)
            finally:
                mark.clear()
                del made  # an error refers to this frame

        return call

    def calls_of(self, function: Callable[[Any], Any], timings: Timings) -> Callable[[], Any]:
        succeeded = [0]
        self._succeeded.append(succeeded)
        make_direct = partial(self._make_direct, function, timings, succeeded)

        def next_call() -> Any:
            while True:
                call: Any = None  # an idle worker keeps nothing alive
                call = self._queue.get()
                if call is WAKE:
                    call = self._make_step()
                elif type(call) is tuple:
                    call = make_direct(*call)
                if call is not None:
                    return call

        return next_call

    def _make_direct(self, function: Any, timings: Timings, succeeded: list[int], item: Item) -> Call | None:
        """Make a direct call. Returns the next one, if a step was made that has handed it out."""
        lane: Any = self.scheduler.lanes.lone
        if self.stopped or self.scheduler.error is not None or lane.rests or lane.spread is not None:
            self.open.add(item)  # it comes before all that waits in the lane, if anything of it is still called
            self.inbox += [Began(item), Recalled([item])]
            return self._make_step()
        self._running.add(item)
        item.attempts = 1
        timings.begin()
        try:
            item.result = function(item)
        except Skipped:
            self._running.discard(item)
        except BaseException as error:
            item.began = timings.end_attempt()
            self.open.add(item)
            self._running.discard(item)
            self.inbox.append(Began(item))
            self.report_end(self._judge.failed(item, error))
            self.deliver()  # perhaps it waits for another attempt, and the Caller has ended
        else:
            timings.end(item.read)
            succeeded[0] += 1
            self._running.discard(item)
            self.settle_one(item)
        del item  # an error refers to this frame: that would be a cycle
        if self.finishing:
            self.poke()
        return None

    # ------------------------------------------------------------------------------------------------ steps
    def _carry_out(self, effects: Any) -> None:
        super()._carry_out(effects)
        while not self.halted and self._wants_worker():
            self._add_worker()

    def take_back(self) -> list[Call]:
        calls: list[Any] = [call for call in super().take_back() if call is not WAKE]
        direct = [call[0] for call in calls if type(call) is tuple]
        self.open.update(direct)
        self.inbox.extend(map(Began, direct))
        return [call[0] if type(call) is tuple else call for call in calls]

    def end(self) -> None:
        self._queue.shutdown()
        self.take_back()
        super().end()

    def pump(self) -> None:
        super().pump()
        self.deliver()

    def _make_step(self) -> Call | None:
        call = super()._make_step()
        if self.output or self.stopped or self.ended:
            self.deliver()
        return call


class CoroutineIntake(Intake):
    """An `async def` fn."""

    async def _calling(self, call_with: Any, stack: Any) -> Any:
        function, outside = await call_with(stack), _inside.get()

        async def call(made: Any) -> Any:
            mark = self._mark(outside, made)
            try:
                return await function(made)
            finally:
                mark.clear()
                del made

        return call

    def _step(self) -> None:
        super()._step()  # type: ignore[misc]
        self.deliver()


class OwnLoopIntake(CoroutineIntake, OwnLoopDriver):
    """In a loop of its own."""


class LoopIntake(CoroutineIntake, LoopDriver):
    """In the caller's loop."""

    def begin(self) -> None:
        self.loop = running_loop()
        self.loop.call_soon(self._add_workers)  # the main task, which `join` waits for

    def wake(self) -> None:
        self.inbox.append(0)
        self.pump()

    def runs_here(self) -> bool:
        if self.is_lost():
            raise RuntimeError("the AsyncCaller was first called in another loop (expected: in the same one)")
        return super().runs_here()

    def deliver(self) -> None:
        if self.finishing and not self.stopped and all(item.future.done() for item in self.open):
            self.stop(keeps=True)  # nobody waits for what is left
        super().deliver()

    def _cancel_all(self) -> None:
        """A cancelled aclose cancels everything."""
        if not self.stopped:
            self.stop(keeps=True)
        super()._cancel_all()

    def settle_one(self, item: Any) -> None:
        error = item.error
        if isinstance(error, (StopIteration, StopAsyncIteration)):  # no coroutine can raise it
            item.error = RuntimeError(f"{type(error).__qualname__}: {error}")
            item.error.__cause__ = error
        super().settle_one(item)

    def gave_up(self, item: Item) -> None:
        """The one who waits for the item does so no longer: cancel its call if it runs, and nobody else waits for it,
        in its batch or with an equal item."""
        identity = getattr(item, "identity", None)
        for call, worker in self._running.items():
            members = call.items()
            ids = {getattr(one, "identity", None) for one in members} - {None}
            if item in members or identity in ids:
                sharers = [one for one in self.open if one in members or getattr(one, "identity", None) in ids]
                if all(one.future.done() for one in sharers):
                    worker.cancel(asyncio.CancelledError())
                break
        if self.finishing:
            self.wake()


# ---------------------------------------------------------------------------------------------------- what users make
class Entrance(Generic[_T, _R]):
    """What Caller and AsyncCaller have in common."""

    _makes: Any  # the class of the driver

    def _set_up(self, fn: Callable[..., Any], given: Mapping[str, Any]) -> None:
        """given: the options, among other variables of `__init__`."""
        if given["workers"] == "inline":
            raise _checks.bad_value("workers", "inline", "an int >= 1: items come one by one")
        plan = plan_of(fn, given)
        window = plan.options.max_in_flight or max(WINDOW_LIMIT, plan.options.workers * plan.options.calls_items)
        fixed: dict[str, Any] = {"order": "completion", "errors": "return", "never_retry": (Skipped,)}
        self._plan = replace(plan, options=replace(plan.options, max_in_flight=window, **fixed))
        self._context = copy_context()
        self._closed = False
        self._begin_anew()
        _entrances.add(self)

    def _begin_anew(self) -> None:
        self._lock = threading.RLock()  # finalizers and signal handlers take it again
        self._driver: Any = None

    def _begun(self) -> Any:
        """The driver."""
        if self._driver is not None:
            return self._driver
        with Held(self._lock):
            if self._closed:
                raise RuntimeError(f"the {type(self).__name__} is closed")
            return self._driver or self._context.copy().run(self._begin)

    def _begin(self) -> Any:
        plan = self._plan
        scheduler = plan.scheduler(SharedLanes, [SkipStage()])
        driver = plan.driven_by(self._makes, scheduler)
        try:
            driver.begin()
            self._driver = driver
        except BaseException:
            self._driver = None
            driver.stop(keeps=True)
            raise
        return driver

    def _item(self, driver: Any, value: Any, future: Any) -> Item:
        """What is handed in. The functions of an item, and what fails there, are the user's."""
        scheduler = driver.scheduler
        if self._plan.options.asks:
            item: Item = self._context.copy().run(self._plan.item, scheduler, value, None)
        else:  # no code of the user's: what is raised here is a signal handler's, and no failure of the item
            item = Item(value, None, now())
            scheduler.lanes.assign(item)
        item.future = future
        driver.meter.sample()
        return item

    def stats(self) -> Stats:
        """Return how far it is. Cancelled items count as failed."""
        driver = self._driver
        return Stats(workers=self._plan.options.begins_with) if driver is None else driver.meter.seen()

    def _finish(self, name: str, cancel: bool) -> Any:
        """Accept nothing more. name: of the method that wants this. Returns the driver."""
        with Held(self._lock):
            driver = self._driver
            if driver is not None and (driver.runs_here() or is_inside(driver)):
                raise RuntimeError(f"{name}: called by fn of the same {type(self).__name__} (expected: outside of it)")
            self._closed = True
        if driver is not None:
            driver.finish()
            if cancel:
                driver.stop(keeps=True)
        return driver

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)
        if driver is not None and not driver.ended:
            driver.stop(keeps=True)


_entrances: WeakSet[Entrance[Any, Any]] = WeakSet()


def _begin_all() -> None:
    for one in list(_entrances):
        one._begin_anew()


after_fork_in_child(_begin_all)


THE_REST = (
    "The other options are those of `concurrent_map` without order, errors, max_failures, fatal, deadline and progress."
)


def described(kind: _Class) -> _Class:
    """Puts what `concurrent_map` says of the other options into the docstring of a Caller, for `help`."""
    text, said = inspect.getdoc(kind) or "", inspect.getdoc(concurrent_map) or ""
    others = [one.name for one in table.OPTIONS if one.name not in (*table.OF_MAPS, "workers", "max_in_flight")]
    texts = re.findall(rf"^(?:{'|'.join(others)}): .*(?:\n    .*)*", said, re.MULTILINE)
    kind.__doc__ = indent(text.replace(THE_REST, "\n".join(texts)), "    ").lstrip()
    return kind


@described
class Caller(Entrance[_T, _R]):
    """Calls `fn(item)` for items that arrive one by one, for example from request handlers. All threads that use one
    Caller share its workers, batches, limits and breakers.

    `caller(item)` waits for the result and returns it, or raises what fn raised. `submit(item)` returns a Future. Items
    of the same key and priority start in the order in which they were submitted. An `async def` function runs in an
    event loop of its own, in a thread. fn and the functions of options run in a copy of the context in which the Caller
    was made; key, priority, cost and item_id in the thread that submits.

    workers: the number of concurrent calls. A plain function runs in that many threads, an `async def` function in that
        many coroutines. With (least, most) or (least, start, most), the Caller finds a suitable number in that range,
        as a map does.
    max_in_flight: the maximum number of submitted items that are not finished; beyond that, submitting an item waits
        until another one finishes. None: 10,000, or workers x batch if that is more.
    The other options are those of `concurrent_map` without order, errors, max_failures, fatal, deadline and progress.

    Leaving the `with` block waits for all items; after an exception, items that have not started are cancelled. If the
    Caller itself fails, all items fail with that error, and later ones with RuntimeError. Inside fn, `caller(item)`
    raises RuntimeError, and `submit` waits for no room in the window. Ctrl-C in `caller(item)` cancels the item, unless
    its call is running. In a forked child a Caller begins anew; its earlier futures belong to the parent. One that is
    collected cancels what has not started. Raises ValueError or TypeError for a bad option. Blocking.

    >>> with Caller(str.upper, workers=2) as upper:
    ...     upper("a"), upper.submit("b").result()
    ('A', 'B')
    """

    @_checks.names_options
    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        workers: int | tuple[int, int] | tuple[int, int, int] = 16,
        max_in_flight: int | None = None,
        key: Callable[[_T], Hashable] | None = None,
        per_key: int | None = None,
        weights: Mapping[Any, int] | None = None,
        priority: Callable[[_T], int | None] | None = None,
        batch: int | Batch | None = None,
        timeout: float | None = None,
        retry: int | Retry = 0,
        breaker: int | Breaker | None = None,
        limits: Limit | Sequence[Limit] = (),
        item_id: Callable[[_T], Any] | None = None,
        dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None,
        setup: Callable[[], Any] | None = None,
    ) -> None:
        self._makes = OwnLoopIntake if _checks.is_async(fn) else ThreadIntake
        self._set_up(fn, locals())

    def __call__(self, item: _T) -> _R:
        """Hand an item in and wait for its result. Raises what fn raised; CancelledError if the Caller ends before; and
        RuntimeError after that, or inside fn."""
        driver = self._begun()
        if is_inside(driver) or driver.runs_here():
            raise RuntimeError("a call from inside fn that would wait for itself (expected: submit)")
        future = Waiting()
        try:
            self._hand_in(driver, item, future)
            result: _R = future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            del future  # its exception refers to this frame
        return result

    def submit(self, item: _T) -> Future[_R]:
        """Submit an item and return a Future. Waits while max_in_flight items are unfinished. If you cancel the future
        before its call starts, the item is skipped. Callbacks of the future run in threads for them. Raises
        RuntimeError if the Caller has ended."""
        driver = self._begun()
        future: Future[_R] = CallFuture(driver.callbacks)
        self._hand_in(driver, item, future)
        return future

    def _hand_in(self, driver: Any, item: _T, future: Any) -> None:
        made = self._item(driver, item, future)
        try:
            entry = driver.hand_in(made)
            if entry is not None:
                entry.wait()
        except BaseException:
            future.cancel()
            driver.poke()
            raise

    def close(self, *, cancel: bool = False) -> None:
        """Accept no more items, and wait for all that were submitted, and for callbacks. cancel=True cancels items that
        have not started, waits for running calls, and retries none. If it is interrupted, call it again. Raises
        RuntimeError if fn or a callback calls it, because it would wait for itself."""
        driver = self._finish("close", cancel)
        if driver is not None:
            driver.join()
            driver.callbacks.shutdown()

    def __reduce__(self) -> NoReturn:
        why = "its workers and items are of this process"
        refuse_copy(self, why, "share it between threads, and make another one in another process")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.close(cancel=kind is not None)


@described
class AsyncCaller(Entrance[_T, _R]):
    """Caller for asyncio: fn is an `async def` function, and everything runs in the event loop of the first call.

    `await caller(item)` returns the result. From other threads, use asyncio.run_coroutine_threadsafe. If you cancel the
    await, the item is cancelled if its call has not started. A running call is cancelled only if nobody else waits for
    it, in its batch or with an equal item.

    workers: the number of concurrent calls, each of which is a coroutine. With (least, most) or (least, start, most),
        the Caller finds a suitable number in that range, as a map does.
    max_in_flight: the maximum number of submitted items that are not finished; beyond that, submitting an item waits
        until another one finishes. None: 10,000, or workers x batch if that is more.
    The other options are those of `concurrent_map` without order, errors, max_failures, fatal, deadline and progress.

    Leaving the `async with` block, exceptions, and calls inside fn work as in Caller. Threads are started only for
    database access, with `remember` or `shared`. Raises ValueError or TypeError for a bad option. The AsyncCaller waits
    in the event loop and does not block other tasks there.
    """

    _makes = LoopIntake

    @_checks.names_options
    def __init__(
        self,
        fn: Callable[..., Awaitable[Any]],
        *,
        workers: int | tuple[int, int] | tuple[int, int, int] = 16,
        max_in_flight: int | None = None,
        key: Callable[[_T], Hashable] | None = None,
        per_key: int | None = None,
        weights: Mapping[Any, int] | None = None,
        priority: Callable[[_T], int | None] | None = None,
        batch: int | Batch | None = None,
        timeout: float | None = None,
        retry: int | Retry = 0,
        breaker: int | Breaker | None = None,
        limits: Limit | Sequence[Limit] = (),
        item_id: Callable[[_T], Any] | None = None,
        dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None,
        setup: Callable[[], Any] | None = None,
    ) -> None:
        if not _checks.is_async(fn):
            raise _checks.bad_type("fn", fn, "an `async def` function; Caller takes plain ones")
        self._set_up(fn, locals())

    async def __call__(self, item: _T) -> _R:
        """Hand an item in and wait for its result. Raises what fn raised, and RuntimeError as Caller."""
        driver = self._begun()
        if driver.runs_here() or is_inside(driver):
            raise RuntimeError("a call from inside fn that would wait for itself (expected: a task that outlives it)")
        made = self._item(driver, item, LoopFuture())
        driver.hand_in(made)
        try:
            result: _R = await made.future
        except BaseException:
            if made.future.cancel() or made.future.cancelled():
                driver.gave_up(made)
            raise
        return result

    async def aclose(self, *, cancel: bool = False) -> None:
        """As Caller.close. If you cancel it, everything that has not ended is cancelled, and the cancellation is raised
        when all has ended."""
        driver = self._finish("aclose", cancel)
        if driver is not None:
            await driver.join()

    def __reduce__(self) -> NoReturn:
        why = "its items are of one event loop"
        refuse_copy(self, why, "share it between tasks, and make another one in another loop or process")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        await self.aclose(cancel=kind is not None)
