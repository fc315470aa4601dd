"""`Caller` and `AsyncCaller`: items that come one by one, from any thread or task. The scheduler is that of maps, with
order="completion" and errors="return". `Intake` is what a Caller adds to a driver: a source, and a sink.

    the source   `line`: items that were handed in. The step lets in as many as the window has room for, and then sets
                 `entry` of those whose threads wait for it
    the sink     `deliver`: who makes a step settles the futures of the items that are done, when it has released the
                 lock
    open         items that the scheduler or the line has: their futures are to be settled

Direct calls (`ThreadIntake`). Where nothing chooses among items, and the window has much room, an item goes to the
workers' queue at once, in a tuple. The worker that takes it settles its future: a round trip costs no step. The
scheduler learns of such a call (`Began`) only if it fails, or if a pause keeps it from starting.

Callbacks of a future are the user's code, and may block. They run in threads of their own (`Callbacks`), on which
nothing else depends, or in the thread that cancels the future.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, PENDING, RUNNING
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial
from os import PathLike
from queue import SimpleQueue
from textwrap import indent
from typing import Any, Generic, NoReturn, Self, TypeVar
from weakref import WeakSet

from manytail import _checks
from manytail._lifecycle import after_fork_in_child, refuse_copy
from manytail._progress import Meter
from manytail._sync import Condition, Event, Held, Mutex
from manytail._timings import Timings, now
from manytail.errors import Empty, ShutDown

from . import options as table
from .database.shared import Shared
from .engine.events import Began, InputEnded, Recalled
from .engine.item import Call, Item, Lane
from .engine.lanes import IDLE_LIMIT, Lanes
from .engine.scheduler import Scheduler
from .engine.stages import GO, Decision, Refuse, Stage
from .engine.window import WINDOW_LIMIT
from .errors import own_copy
from .limits.objects import Limit
from .maps import Plan, concurrent_map, note_item, plan_of
from .outcomes import Stats
from .policies import Batch, Breaker, Retry
from .runners.driver import Driver
from .runners.loop import LoopDriver, OwnLoopDriver, running_loop
from .runners.threads import ThreadDriver, Worker
from .verdicts import Judge

_T = TypeVar("_T")
_R = TypeVar("_R")
_Class = TypeVar("_Class", bound=type)
log = logging.getLogger("manytail")
WAKE: Any = object()  # in the queue of calls: a worker that takes it makes a step
ROOMY = 1_000  # a window of that size has room for direct calls: threads that look at once do not fill its second half

# The calls of Callers that this code runs in, each as a list that holds its driver until the call ends.
_inside: ContextVar[tuple[list[Any], ...]] = ContextVar("manytail: calls of Callers", default=())


def is_inside(driver: Any) -> bool:
    """Whether this code runs in a call of that Caller, or in what the call has started and not outlived."""
    return any(driver in call for call in _inside.get())


# ---------------------------------------------------------------------------------------------------- what is handed in
class CallFuture(Future[Any]):
    """What is settled by a thread of the Caller runs its callbacks in threads for them.

    A signal handler that raises in a method of the standard library's may leave its condition locked, and the thread
    that settles the future would wait for ever. So it has one that does not."""

    def __init__(self, callbacks: Callbacks) -> None:
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

    def _invoke_callbacks(self) -> None:
        if getattr(threading.current_thread(), "driver", None) is None:  # of a user who cancels it
            super()._invoke_callbacks()  # type: ignore[misc]
        elif self._done_callbacks:  # type: ignore[attr-defined]
            self._callbacks.add(super()._invoke_callbacks)  # type: ignore[misc]


class Waiting:
    """The future of `caller(item)`, which alone waits for it: with the methods of CallFuture that the Caller needs."""

    __slots__ = ("_answer", "_claims", "_done", "_error")

    def __init__(self) -> None:
        self._claims: list[bool] = []  # the first says whether it begins. A list: its append is atomic
        self._done = Event()
        self._answer: Any = None
        self._error: BaseException | None = None

    @property
    def skipped(self) -> bool:
        return self._claims[:1] == [False]

    def begin(self) -> bool:
        self._claims.append(True)
        return self._claims[0]

    def cancel(self) -> bool:
        self._claims.append(False)
        if not self._claims[0]:
            self._done.set()
        return not self._claims[0]

    def set_result(self, result: Any) -> None:
        self._answer = result
        self._done.set()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._done.set()

    def result(self) -> Any:
        self._done.wait()
        if self.skipped:
            raise CancelledError
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame
        return self._answer


class Callbacks:
    """Threads that call what may block: each its own, unless one is idle. Only threads of the map use this, but for
    `join` and `runs_here`: a signal handler must not leave it half way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def add(self, call: Callable[[], object]) -> None:
        with Held(self._lock):
            if self._idle:
                self._idle -= 1
                self._calls.put(call)
                return
            thread = threading.Thread(target=self._run, args=(call,), name="manytail-callbacks", daemon=True)
            try:
                thread.start()
                self._threads.add(thread)
                return
            except RuntimeError:  # the system has no more threads to give
                pass
        call()

    def _run(self, call: Callable[[], object] | None) -> None:
        while call is not None:
            try:
                call()
            except BaseException:  # the standard library logs an Exception
                log.exception("callback of a future")
            call = None  # an idle thread keeps nothing alive
            with Held(self._lock):
                if self._closed:
                    break
                self._idle += 1
            call = self._calls.get()
        with Held(self._lock):
            self._threads.discard(threading.current_thread())

    def close(self) -> None:
        """No more than one call of each thread follows."""
        with Held(self._lock):
            self._closed = True
            for _ in range(self._idle):
                self._calls.put(None)
            self._idle = 0

    def runs_here(self) -> bool:
        return threading.current_thread() in self._threads

    def join(self) -> None:
        while threads := list(self._threads):
            threads[0].join()


class SkipStage(Stage):
    """What was cancelled is not called."""

    of_items = True

    def before(self, call: Call, now: float) -> Decision:
        return Refuse(CancelledError()) if all(item.future.skipped for item in call.items()) else GO


class Skipped(CancelledError):
    """What was cancelled just before its call began. No Retry names it."""


class SharedLanes(Lanes):
    """Lanes that several threads assign. Keys are compared without a lock, but where an idle lane is dropped."""

    def __init__(self, **options: Any) -> None:
        self._counting = threading.RLock()  # a signal handler may hand in, too
        self._dropping = threading.RLock()
        super().__init__(**options)

    def assign(self, item: Item) -> None:
        if self.lone is not None:
            item.lane = self.lone
            return
        while True:
            lane = self._lanes.get(item.key) or self._made(item)
            with Held(self._counting):
                if not lane.forgotten:
                    lane.assigned += 1
                    item.lane = lane
                    return
            self._drop(item.key, lane)  # perhaps nobody else does: who marked it may have been interrupted

    def _made(self, item: Item) -> Lane:
        if len(self._lanes) >= self._limit:
            self._forget_idle()
        return self._lanes.setdefault(item.key, self._prepared(item))

    def _forget_idle(self) -> None:
        forgotten = []
        with Held(self._counting):
            for key, lane in list(self._lanes.items()):
                if lane.assigned == lane.emitted and not (lane.rests or lane.pinned):
                    lane.forgotten = True
                    forgotten.append((key, lane))
            self._limit = max(IDLE_LIMIT, 2 * (len(self._lanes) - len(forgotten)))
        for key, lane in forgotten:
            self._drop(key, lane)

    def _drop(self, key: Hashable, lane: Lane) -> None:
        """Take a forgotten lane out, unless another thread has done so, and a new one is there. While it is there
        nobody can put another one in its place, so those who drop it need exclude each other alone."""
        with Held(self._dropping):
            if self._lanes.get(key) is lane:
                del self._lanes[key]
                if self._forget is not None:
                    self._forget(lane)


# ---------------------------------------------------------------------------------------------------- drivers
class Intake(Driver):
    """What the drivers of Callers have in common, in place of an input and an output."""

    def _open(self) -> None:
        self.line: deque[Item] = deque()
        self.open: set[Item] = set()
        self.callbacks = Callbacks()
        self.finishing = False  # nothing more is handed in
        self._let_in = self.scheduler.window.size  # how many items the window has room for
        self._input_over = False

    # ------------------------------------------------------------------------------------------------ for any thread
    def hand_in(self, item: Item) -> Event | None:
        """Returns what is set when the window has room for the item; None: it had. RuntimeError: the Caller has
        ended."""
        inside, entry = is_inside(self), None
        if self.finishing or self.halted:
            raise self.refusal()
        if not inside and len(self.line) >= self._let_in:
            entry = item.entry = Event()
        self.open.add(item)
        if inside:  # fn may wait for it, and so waits for no room
            self.inbox.append([item])
        else:
            self.line.append(item)
            self.inbox.append(0)
        self.wake()
        if self.ended:
            self.line.clear()  # the thread that ended the map may have done so before the item was there
            with suppress(KeyError):  # that thread has settled it
                self.open.remove(item)
                raise self.refusal()
        return entry

    def refusal(self) -> BaseException:
        error = self.scheduler.error
        refusal = RuntimeError("the Caller is closed" if error is None else "the Caller has failed")
        refusal.__cause__ = error
        return refusal

    def finish(self) -> None:
        """Nothing more is handed in."""
        self.finishing = True
        self.inbox.append(0)
        self.poke()

    def wake(self) -> None:
        self.poke()

    def is_idle(self) -> bool:
        """Whether no call runs that the scheduler does not know."""
        return True

    # ------------------------------------------------------------------------------------------------ under the lock
    def read(self, most: float) -> None:
        self._let_in = int(most) - self.scheduler.window.arrived
        self._admit()
        if self.finishing and not self.line and not self._input_over and self.is_idle():
            self._input_over = True
            self.inbox.append(InputEnded(None))

    def _admit(self) -> None:
        """Let in what the window has room for."""
        items: list[Item] = []
        while self.line and self._let_in > 0:
            item = self.line.popleft()
            items.append(item)
            self._let_in -= 1
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
        """Settle what is done. At the end also what is left: it is cancelled, or gets the error of the Caller."""
        while self.output:
            with suppress(IndexError):  # another thread has taken it
                self.settle_one(self.output.popleft())
        if not self.ended:
            return
        self.line.clear()
        error = self.scheduler.error
        while self.open:
            with suppress(KeyError):  # another thread has taken it
                item: Any = self.open.pop()
                if item.entry is not None:
                    item.entry.set()
                if error is not None or not item.future.cancel():
                    item.error = CancelledError() if error is None else own_copy(error)
                self.settle_one(item)
        self.callbacks.close()

    def settle_one(self, item: Any) -> None:
        """Whatever the user's `repr` raises here, the future is settled."""
        future, error = item.future, item.error
        item.error = None  # its traceback may refer to the item
        if not future.begin():
            return
        if error is not None and not isinstance(error, CancelledError):
            with suppress(BaseException):
                note_item(error, item)
        try:
            if error is None:
                future.set_result(item.result)
            else:
                future.set_exception(error)
        except InvalidStateError:  # an abandoned call has ended it
            pass


def begin(made: Call) -> None:
    """The call begins. Skipped: all its items were cancelled. A batch keeps what was cancelled after its turn."""
    begun = [item.future.begin() for item in made.items()]  # of all: none can be cancelled from here on
    if not any(begun):
        raise Skipped


class ThreadIntake(Intake, ThreadDriver):
    """A plain fn."""

    def __init__(self, scheduler: Scheduler, call_with: Any, judge: Judge) -> None:
        ThreadDriver.__init__(self, scheduler, call_with, judge)
        self._open()
        self._wakes = self._queue.add("wakes")  # type: ignore[arg-type]
        self.next_call = self._next
        self._put: Callable[[Any], None] = self._calls.put
        self._direct = scheduler.hands_ahead and scheduler.window.size >= ROOMY
        self._running: set[Item] = set()  # direct calls
        self._succeeded: list[list[int]] = []  # how many direct calls each worker has made with success
        self._stopped = False  # what has not started is cancelled
        self._here = threading.local()  # of a worker: what `_make_direct` needs

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
        window, direct = self.scheduler.window, self._calls.qsize() + len(self._running)
        return 2 * (direct + window.pending) <= window.size

    def _wants_worker(self) -> bool:
        count = self._worker_count
        return count < self.scheduler.allowed and count < self._calls.qsize() + len(self._running)

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

    def stop(self, keeps: bool) -> None:
        self._stopped = True
        super().stop(keeps)

    def stats(self) -> Stats:
        stats, done = super().stats(), sum(number for (number,) in self._succeeded)
        direct = 0 if self.ended else max(0, self._calls.qsize() - self.scheduler.handed) + len(self._running)
        return stats._replace(done=stats.done + done, in_flight=stats.in_flight + direct)

    def is_idle(self) -> bool:
        return not (self._running or self._calls.qsize())

    # ------------------------------------------------------------------------------------------------ workers
    def _make_calls(self, worker: Worker, function: Callable[[Any], Any], timings: Timings) -> None:
        function = self._calling(function)
        succeeded = [0]
        self._succeeded.append(succeeded)
        self._here.tools = function, timings, succeeded
        super()._make_calls(worker, function, timings)

    def _calling(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`function` for what was not cancelled."""
        outside = _inside.get()

        def call(made: Any) -> Any:
            begin(made)
            inside = [self]
            _inside.set((*outside, inside))
            try:
                return function(made)
            finally:
                inside.clear()  # what has copied the context, and outlives the call, is not inside
                del made

        return call

    def _next(self) -> Any:
        while True:
            call: Any = None  # an idle worker keeps nothing alive
            call = self._queue.get()
            if call is WAKE:
                call = self._make_step()
            elif type(call) is tuple:
                call = self._make_direct(*call)
            if call is not None:
                return call

    def _make_direct(self, item: Item) -> Call | None:
        """Make a direct call. Returns the next one, if a step was made that has handed it out."""
        function, timings, succeeded = self._here.tools
        lane: Any = self.scheduler.lanes.lone
        if self._stopped or self.scheduler.error is not None:
            self._leave(item)
            return None
        if lane.rests or lane.spread is not None:  # it comes before all that waits in the lane
            self.open.add(item)
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
            if self.ended:  # perhaps it waits for another attempt
                self.deliver()
        else:
            timings.end(item.read)
            succeeded[0] += 1
            self._running.discard(item)
            self.settle_one(item)
        del item  # an error refers to this frame: that would be a cycle
        if self.finishing:
            self.poke()
        return None

    def _leave(self, item: Item) -> None:
        """It is not called."""
        self.open.add(item)
        if self.ended:
            self.deliver()

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
        with suppress(Empty, ShutDown):
            while True:
                calls: list[Any] = self._queue.get_many(1_024, block=False)
                self.open.update(call[0] for call in calls if type(call) is tuple)
        super().end()

    def pump(self) -> None:
        super().pump()
        self.deliver()

    def _make_step(self) -> Call | None:
        call = super()._make_step()
        if self.output or self.ended:
            self.deliver()
        return call


async def calling_in_loop(driver: Any, call_with: Any, stack: Any) -> Callable[[Any], Any]:
    """What calls an `async def` for what was not cancelled. Each call is a context of its own, and known there."""
    function, outside = await call_with(stack), _inside.get()

    async def call(made: Any) -> Any:
        begin(made)
        inside = [driver]
        _inside.set((*outside, inside))
        try:
            return await function(made)
        finally:
            inside.clear()  # tasks that fn has made, and that outlive it, are not inside
            del made

    return call


class OwnLoopIntake(Intake, OwnLoopDriver):
    """An `async def` fn, in a loop of its own."""

    def __init__(self, scheduler: Scheduler, call_with: Any, judge: Judge) -> None:
        OwnLoopDriver.__init__(self, scheduler, partial(calling_in_loop, self, call_with), judge)
        self._open()

    def _step(self) -> None:
        super()._step()
        self.deliver()


class LoopFuture(asyncio.Future[Any]):
    @property
    def skipped(self) -> bool:
        return self.done()

    def begin(self) -> bool:
        return not self.done()


class LoopIntake(Intake, LoopDriver):
    """An `async def` fn, in the caller's loop."""

    def __init__(self, scheduler: Scheduler, call_with: Any, judge: Judge) -> None:
        LoopDriver.__init__(self, scheduler, partial(calling_in_loop, self, call_with), judge)
        self._open()
        self._closers: list[asyncio.Future[None]] = []  # those that wait for the end

    def start(self) -> None:  # type: ignore[override]
        self.loop = running_loop()
        self.wake()

    def wake(self) -> None:
        self.inbox.append(0)
        self.pump()

    def _step(self) -> None:
        super()._step()
        self.deliver()
        if self.ended:
            for future in self._closers:
                self._wake(future)

    def settle_one(self, item: Any) -> None:
        error = item.error
        if isinstance(error, (StopIteration, StopAsyncIteration)):  # no coroutine can raise it
            item.error = RuntimeError(f"{type(error).__qualname__}: {error}")
            item.error.__cause__ = error
        super().settle_one(item)

    def gave_up(self, item: Item) -> None:
        """The one who waits for the item does so no longer: cancel its call if it runs, and nobody else waits for it,
        in its batch or with an equal item."""
        ids = {getattr(item, "identity", "")} - {""}
        for call, worker in self._running.items():
            members = call.items()
            ids_of_call = {getattr(one, "identity", "") for one in members} - {""}
            if item in members or ids & ids_of_call:
                followers = [one for one in self.open if getattr(one, "identity", None) in ids_of_call]
                if all(one.future.done() for one in (*members, *followers)):
                    worker.cancel(asyncio.CancelledError())
                return

    async def over(self) -> None:
        """Wait until everything has ended. A cancellation meanwhile cancels what has not, and is raised then."""
        interruption = None
        while not self.ended:
            assert self.loop is not None
            self._closers.append(self.loop.create_future())
            try:
                await self._closers[-1]
            except asyncio.CancelledError as error:
                interruption = error
                self._cancels = True
                self.stop(keeps=True)
        await self.join()
        if interruption is not None:
            raise interruption


# ---------------------------------------------------------------------------------------------------- what users make
def plan(fn: Callable[..., Any], given: Mapping[str, Any]) -> Plan:
    if given["workers"] == "inline":
        raise _checks.bad_value("workers", "inline", "an int >= 1: items come one by one")
    options = plan_of(fn, given).options
    window = options.max_in_flight or max(WINDOW_LIMIT, options.workers * options.calls_items)
    return Plan(fn, replace(options, order="completion", errors="return", max_in_flight=window, never_retry=(Skipped,)))


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
class Caller(Generic[_T, _R]):
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
        self._plan = plan(fn, locals())
        self._context = copy_context()
        self._closed = False
        self._begin_anew()
        _callers.add(self)

    def _begin_anew(self) -> None:
        self._lock = threading.RLock()  # finalizers and signal handlers take it again
        self._driver: ThreadIntake | OwnLoopIntake | None = None
        self._meter: Meter | None = None

    def _begun(self) -> ThreadIntake | OwnLoopIntake:
        if self._driver is not None:
            return self._driver
        with Held(self._lock):
            if self._closed:
                raise RuntimeError("the Caller is closed")
            return self._driver or self._context.copy().run(self._begin)

    def _begin(self) -> ThreadIntake | OwnLoopIntake:
        plan = self._plan
        scheduler = plan.scheduler(SharedLanes, [SkipStage()])
        kind = OwnLoopIntake if plan.options.is_async else ThreadIntake
        driver: ThreadIntake | OwnLoopIntake = plan.driven_by(kind, scheduler)
        try:
            driver.start(None, True)
            driver._claim.setdefault("runs", True)  # else a close before the thread has begun would drop what is there
            self._meter = Meter(driver.stats)
            self._driver = driver
        except BaseException:
            self._driver = None
            driver.stop(keeps=True)
            raise
        return driver

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
        made = make_item(self._plan, self._context, driver, item, future)
        if self._meter is not None:
            self._meter.sample()
        try:
            entry = driver.hand_in(made)
            if entry is not None:
                entry.wait()
        except BaseException:
            future.cancel()
            driver.poke()
            raise

    def stats(self) -> Stats:
        """Return how far the Caller is. Cancelled items count as failed."""
        return Stats(workers=self._plan.options.begins_with) if self._meter is None else self._meter.seen()

    def close(self, *, cancel: bool = False) -> None:
        """Accept no more items, and wait for all that were submitted, and for callbacks. cancel=True cancels items that
        have not started, waits for running calls, and retries none. If it is interrupted, call it again. Raises
        RuntimeError if fn or a callback calls it, because it would wait for itself."""
        with Held(self._lock):
            self._closed = True
            driver = self._driver
        if driver is None:
            return
        if driver.runs_here() or driver.callbacks.runs_here() or is_inside(driver):
            raise RuntimeError("close: called by fn or a callback of the same Caller (expected: by another thread)")
        driver.finish()
        if cancel:
            driver.stop(keeps=True)
        driver.join()
        driver.callbacks.join()

    def __reduce__(self) -> NoReturn:
        why = "its workers and items are of this process"
        refuse_copy(self, why, "share it between threads, and make another one in another process")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.close(cancel=kind is not None)

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)
        if driver is not None and not driver.ended:
            driver.finish()
            driver.stop(keeps=True)


def make_item(plan: Plan, context: Any, driver: Intake, value: Any, future: Any) -> Item:
    """What is handed in. The functions of an item, and what fails there, are the user's."""
    scheduler = driver.scheduler
    if plan.options.asks:
        item: Item = context.copy().run(plan.item, scheduler, value, None)
    else:  # no code of the user's: what is raised here is a signal handler's, and no failure of the item
        item = Item(value, None, now())
        scheduler.lanes.assign(item)
    item.future = future
    return item


_callers: WeakSet[Caller[Any, Any]] = WeakSet()


def _begin_all() -> None:
    for caller in list(_callers):
        caller._begin_anew()


after_fork_in_child(_begin_all)


@described
class AsyncCaller(Generic[_T, _R]):
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
        self._plan = plan(fn, locals())
        self._context = copy_context()
        self._closed = False
        self._driver: LoopIntake | None = None
        self._meter: Meter | None = None

    def _begun(self) -> LoopIntake:
        if self._driver is None:
            if self._closed:
                raise RuntimeError("the AsyncCaller is closed")
            self._driver = self._context.copy().run(self._begin)
        elif self._driver.is_lost():
            raise RuntimeError("the AsyncCaller was first called in another loop (expected: in the same one)")
        return self._driver

    def _begin(self) -> LoopIntake:
        plan = self._plan
        scheduler = plan.scheduler(SharedLanes, [SkipStage()])
        driver: LoopIntake = plan.driven_by(LoopIntake, scheduler)
        driver.start()
        self._meter = Meter(driver.stats)
        return driver

    async def __call__(self, item: _T) -> _R:
        """Hand an item in and wait for its result. Raises what fn raised, and RuntimeError as Caller."""
        driver = self._begun()
        if is_inside(driver):
            raise RuntimeError("a call from inside fn that would wait for itself (expected: a task that outlives it)")
        made = make_item(self._plan, self._context, driver, item, LoopFuture())
        driver.hand_in(made)
        if self._meter is not None:
            self._meter.sample()
        try:
            result: _R = await made.future
        except BaseException:
            if made.future.cancel() or made.future.cancelled():
                driver.gave_up(made)
            raise
        return result

    def stats(self) -> Stats:
        """Return how far the AsyncCaller is. Cancelled items count as failed."""
        return Stats(workers=self._plan.options.begins_with) if self._meter is None else self._meter.seen()

    async def aclose(self, *, cancel: bool = False) -> None:
        """As Caller.close. If you cancel it, everything that has not ended is cancelled, and the cancellation is raised
        when all has ended."""
        self._closed = True
        driver = self._driver
        if driver is None:
            return
        if is_inside(driver) or driver.runs_here():
            raise RuntimeError("aclose: called by fn of the same AsyncCaller (expected: by another task)")
        driver.finish()
        if cancel:
            driver.stop(keeps=True)
        await driver.over()

    def __reduce__(self) -> NoReturn:
        why = "its items are of one event loop"
        refuse_copy(self, why, "share it between tasks, and make another one in another loop or process")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        await self.aclose(cancel=kind is not None)

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)
        if driver is not None and not driver.ended:
            driver.stop(keeps=False)
