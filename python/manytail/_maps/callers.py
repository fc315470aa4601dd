"""`Caller` and `AsyncCaller`: items that come one by one, from any thread or task. The scheduler is that of maps, with
order="completion" and errors="return". The one who hands an item in has a future, which gets its result.

    the line     items that were handed in. The step lets in as many as the window has room for, and then sets `entry`
                 of those whose threads wait for it
    open         items whose futures are not settled, nor about to be
    output       items that are done: settled by the thread that made the step, after it has released the lock

Callbacks of a future are the user's code, and may block. They run in threads of their own (`Callbacks`), on which
nothing else depends. So does `repr` of the item of an error that the engine has made, for its note.

A future that its user has cancelled is skipped: by a stage at its item's turn, or where its call begins.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, Self, TypeVar
from weakref import WeakSet

from manytail import _checks
from manytail._lifecycle import after_fork_in_child
from manytail._progress import Meter
from manytail._sync import Condition, Event, Held, Mutex
from manytail._timings import now
from manytail.errors import ShutDown

from . import options as table
from .engine.events import Failed, InputEnded, Returned
from .engine.item import Batch as Members
from .engine.item import Call, Item, Kind, Lane, Verdict
from .engine.lanes import Lanes
from .engine.scheduler import Scheduler
from .engine.stages import GO, Decision, Refuse, Stage
from .engine.window import WINDOW_LIMIT
from .errors import own_copy
from .maps import Plan, note_item
from .outcomes import Stats
from .policies import Batch, Breaker, Retry
from .runners.driver import Driver
from .runners.loop import LoopDriver, OwnLoopDriver
from .runners.threads import ThreadDriver
from .verdicts import Judge

_T = TypeVar("_T")
_R = TypeVar("_R")
log = logging.getLogger("manytail")
WAKE: Any = object()  # in the queue of calls: a worker that takes it makes a step
_here: ContextVar[list[Any]] = ContextVar("manytail: the Caller's driver whose fn runs here", default=[])  # noqa: B039


# ---------------------------------------------------------------------------------------------------- what is handed in
class CallFuture(Future[Any]):
    """Its callbacks run in threads for them, unless its user cancels it.

    A signal handler that raises in a method of the standard library's may leave its condition locked, and the thread
    that settles the future would wait for ever. So it has one that does not."""

    def __init__(self, callbacks: Callbacks) -> None:
        super().__init__()
        self._condition: Any = Condition(Mutex())
        self.callbacks: Callbacks | None = callbacks  # None: they run where it is settled
        self.skipped = False  # its user has cancelled it
        self.asked = False  # whether it begins
        self.began = False  # it cannot be cancelled

    def cancel(self) -> bool:
        callbacks, self.callbacks = self.callbacks, None
        cancelled = super().cancel()
        self.skipped, self.callbacks = cancelled, callbacks
        return cancelled

    def __repr__(self) -> str:  # that of Future takes the lock again where it is held
        return f"<CallFuture at {id(self):#x} {self._state.lower()}>"

    def begin(self) -> bool:
        """Its call begins, or its result is there. Returns False if it was cancelled. One thread at a time calls it."""
        if not self.asked:
            self.asked = True
            self.began = self.set_running_or_notify_cancel()
        return self.began

    def _invoke_callbacks(self) -> None:
        if self.callbacks is None:
            super()._invoke_callbacks()  # type: ignore[misc]
        elif self._done_callbacks:  # type: ignore[attr-defined]
            self.callbacks.add(super()._invoke_callbacks)  # type: ignore[misc]


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
        return Refuse(CancelledError()) if all(map(is_skipped, call.items())) else GO


def is_skipped(item: Item) -> bool:
    future = item.future
    return future.skipped if isinstance(future, CallFuture) else future.done()


class SharedLanes(Lanes):
    """Lanes that several threads assign. Keys are compared without a lock."""

    def __init__(self, **options: Any) -> None:
        self._counting = threading.RLock()  # a signal handler may hand in, too
        super().__init__(**options)

    def assign(self, item: Item) -> None:
        while True:
            lane = self.lone or self._lanes.get(item.key) or self._made(item)
            with Held(self._counting):
                if not lane.forgotten:
                    lane.assigned += 1
                    item.lane = lane
                    return

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
            self._limit = max(self._limit, 2 * (len(self._lanes) - len(forgotten)))
        for key, lane in forgotten:
            if self._lanes.pop(key, None) is lane and self._forget is not None:
                self._forget(lane)


class NotingJudge(Judge):
    """Adds to an error that fails an item which item that is. In a worker, as `repr` is the user's."""

    def failed(self, call: Call, error: BaseException, overdue: bool = False) -> Failed | Returned:
        if all(map(is_skipped, call.items())):  # whatever `on` says
            verdict = Verdict(Kind.FAIL, error=error)
            return Failed(call, verdict) if isinstance(call, Item) else Returned(call, [verdict] * len(call.members))
        event: Failed | Returned = noted(super().failed(call, error, overdue))
        return event

    def returned(self, batch: Members) -> Returned:
        event: Returned = noted(super().returned(batch))
        return event


def noted(event: Any) -> Any:
    verdicts = [event.verdict] if isinstance(event, Failed) else event.verdicts
    items = event.call.items() if isinstance(event, Failed) else event.batch.members
    for item, verdict in zip(items, verdicts, strict=False):
        if verdict is not None and verdict.kind is Kind.FAIL:
            note_item(verdict.error, item)
            item.noted = True
    return event


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
    def hand_in(self, item: Item) -> None:
        """RuntimeError: the Caller has ended."""
        inside = self in _here.get()
        if self.finishing or self.halted:
            raise self.refusal()
        if not inside and len(self.line) >= self._let_in:
            item.entry = Event()
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

    # ------------------------------------------------------------------------------------------------ under the lock
    def read(self, most: float) -> None:
        self._let_in = int(most) - self.scheduler.window.arrived
        self._admit()
        if self.finishing and not self.line and not self._input_over:
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

    def crash(self, error: BaseException | None) -> None:
        super().crash(error)
        self.deliver()

    # ------------------------------------------------------------------------------------------------ without it
    def deliver(self) -> None:
        """Settle what is done."""
        output = self.output
        while output:
            try:
                item: Any = output.popleft()
            except IndexError:  # another thread has taken it
                break
            if item.error is not None and not item.noted and not isinstance(item.error, CancelledError):
                self._later(partial(self._note, item))
            else:
                self.settle_one(item)
        if self.ended and (self.open or self.line):
            self._sweep()
        if self.ended:
            self.callbacks.close()

    def _note(self, item: Item) -> None:
        note_item(item.error, item)
        self.settle_one(item)

    def settle_one(self, item: Any) -> None:
        future, error = item.future, item.error
        item.error = None  # its traceback may refer to the item
        if not future.begin():
            return
        with suppress(InvalidStateError):
            if error is None:
                future.set_result(item.result)
            else:
                future.set_exception(error)

    def _sweep(self) -> None:
        """The Caller has ended: what is left is cancelled, or gets the error of the Caller."""
        self.line.clear()
        error = self.scheduler.error
        while self.open:
            try:
                item: Any = self.open.pop()
            except KeyError:  # another thread has taken it
                return
            if item.entry is not None:
                item.entry.set()
            item.error = CancelledError() if error is None else own_copy(error)
            self._later(partial(self._drop, item))

    def _later(self, call: Callable[[], object]) -> None:
        """Have what runs the user's code called."""
        self.callbacks.add(call)

    def _drop(self, item: Any) -> None:
        if isinstance(item.error, CancelledError) and item.future.cancel():
            item.future.begin()  # tells those in concurrent.futures.wait
        else:
            self.settle_one(item)


def begin(made: Call) -> list[Item]:
    """The call begins: for what was not cancelled, which is all that a batch has until `ended`. Returns all items.
    CancelledError: everything was."""
    items = made.items()
    live = [item for item in items if item.future.begin()]
    if not live:
        raise CancelledError
    if len(live) < len(items):
        assert isinstance(made, Members)
        made.members = live
    return items


def ended(made: Any, items: list[Item], results: Any) -> Any:
    """What the call returned; of a batch: with an error for each item that was left out."""
    if made.items() is not items and isinstance(made, Members):
        found = dict(zip(made.members, results, strict=True))
        return [found.get(item, CancelledError()) for item in items]
    return results


def beginning(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`function` for what was not cancelled."""

    def call(made: Any) -> Any:
        items = begin(made)
        try:
            return ended(made, items, function(made))
        finally:
            if len(items) > 1:
                made.members = items
            del made, items

    return call


async def beginning_in_loop(driver: Any, call_with: Any, stack: Any) -> Callable[[Any], Any]:
    """The same for an `async def`. It is known in the context of a call that it runs inside the Caller."""
    function = await call_with(stack)

    async def call(made: Any) -> Any:
        items, inside = begin(made), [driver]
        token = _here.set(inside)
        try:
            return ended(made, items, await function(made))
        finally:
            inside.clear()  # tasks that fn has made, and that outlive it, are not inside
            _here.reset(token)
            if len(items) > 1:
                made.members = items
            del made, items

    return call


class ThreadIntake(Intake, ThreadDriver):
    """A plain fn."""

    def __init__(self, scheduler: Scheduler, call_with: Any, judge: Judge) -> None:
        ThreadDriver.__init__(self, scheduler, lambda stack: beginning(call_with(stack)), judge)
        self._open()
        self._wakes = self._queue.add("wakes")  # type: ignore[arg-type]
        self.next_call = self._next

    def start(self, source: Any, never_blocks: bool) -> None:
        super().start(source, never_blocks)
        self._claim.setdefault("runs", True)  # else a close before the thread has begun would drop what was handed in

    def hold(self) -> None:
        super().hold()
        _here.set([self])  # also for the threads of a map that fn makes

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

    def _next(self) -> Any:
        while True:
            call: Any = self._queue.get()
            if call is WAKE:
                call = self._make_step()
            if call is not None:
                return call

    def take_back(self) -> list[Call]:
        return [call for call in super().take_back() if call is not WAKE]

    def pump(self) -> None:
        super().pump()
        self.deliver()

    def _make_step(self) -> Call | None:
        call = super()._make_step()
        if self.output or self.ended:
            self.deliver()
        return call


class OwnLoopIntake(Intake, OwnLoopDriver):
    """An `async def` fn, in a loop of its own."""

    def __init__(self, scheduler: Scheduler, call_with: Any, judge: Judge) -> None:
        OwnLoopDriver.__init__(self, scheduler, partial(beginning_in_loop, self, call_with), judge)
        self._open()

    def start(self, source: Any, never_blocks: bool) -> None:
        super().start(source, never_blocks)
        self._claim.setdefault("runs", True)  # else a close before the thread has begun would drop what was handed in

    def _step(self) -> None:
        super()._step()
        self.deliver()


class LoopFuture(asyncio.Future[Any]):
    def begin(self) -> bool:
        return not self.done()


class LoopIntake(Intake, LoopDriver):
    """An `async def` fn, in the caller's loop."""

    def __init__(self, scheduler: Scheduler, call_with: Any, judge: Judge) -> None:
        LoopDriver.__init__(self, scheduler, partial(beginning_in_loop, self, call_with), judge)
        self._open()
        self._closers: list[asyncio.Future[None]] = []  # those that wait for the end

    def wake(self) -> None:
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

    def _later(self, call: Callable[[], object]) -> None:
        assert self.loop is not None
        self.loop.call_soon(call)

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
def plan_of(fn: Callable[..., Any], given: dict[str, Any]) -> Plan:
    if given["workers"] == "inline":
        raise _checks.bad_value("workers", "inline", "an int >= 1: items come one by one")
    options = table.check(fn, {name: value for name, value in given.items() if name not in ("self", "fn")})
    table.refuse_limits_of_frames(options.limits)
    window = options.max_in_flight or max(WINDOW_LIMIT, options.workers * options.calls_items)
    return Plan(fn, replace(options, order="completion", errors="return", max_in_flight=window))


class Caller(Generic[_T, _R]):
    """Calls `fn(item)` for items that arrive one by one, for example from request handlers. All threads that use one
    Caller share its workers, batches, limits and breakers.

    `caller(item)` waits for the result and returns it, or raises what fn raised. `submit(item)` returns a Future. Items
    of the same key and priority start in the order in which they were submitted. An `async def` function runs in an
    event loop of its own, in a thread. fn and the functions of options run in a copy of the context in which the Caller
    was made; key, priority, cost and item_id in the thread that submits.

    Leaving the `with` block waits for all items; after an exception, items that have not started are cancelled. If the
    Caller itself fails, all items fail with that error, and later ones with RuntimeError. Inside fn, `caller(item)`
    raises RuntimeError, and `submit` waits for no room in the window. Ctrl-C in `caller(item)` cancels the item, unless
    its call is running. In a forked child a Caller begins anew. One that is collected cancels what has not started.

    >>> with Caller(str.upper, workers=2) as upper:
    ...     upper("a"), upper.submit("b").result()
    ('A', 'B')
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        workers: int | tuple[int, int] | tuple[int, int, int] = 16,
        max_in_flight: int | None = None,
        key: Callable[[Any], Hashable] | None = None,
        per_key: int | None = None,
        weights: Mapping[Any, int] | None = None,
        priority: Callable[[Any], int | None] | None = None,
        batch: int | Batch | None = None,
        timeout: float | None = None,
        retry: int | Retry = 0,
        breaker: int | Breaker | None = None,
        limits: Any = (),
        item_id: Callable[[Any], Any] | None = None,
        dedup: int | None = None,
        remember: Any = None,
        setup: Callable[[], Any] | None = None,
    ) -> None:
        self._plan = plan_of(fn, locals())
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
        options = plan.options
        judge = NotingJudge(options.retry, options.fatal, options.never_retry)
        driver: ThreadIntake | OwnLoopIntake
        if options.is_async:
            driver = OwnLoopIntake(scheduler, partial(plan.call_with_in_loop, scheduler.memory), judge)
        else:
            driver = ThreadIntake(scheduler, partial(plan.call_with, scheduler.memory), judge)
        try:
            driver.start(None, True)
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
        if driver in _here.get() or driver.runs_here():
            raise RuntimeError("a call from inside fn that would wait for itself (expected: submit)")
        future = self.submit(item)
        try:
            result: _R = future.result()
        except BaseException:
            if not future.done():
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
        made = make_item(self._plan, self._context, driver, item, CallFuture(driver.callbacks))
        try:
            driver.hand_in(made)
            if made.entry is not None:
                made.entry.wait()
        except BaseException:
            made.future.cancel()
            driver.poke()
            raise
        if self._meter is not None:
            self._meter.sample()
        future: Future[_R] = made.future
        return future

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
        if driver.runs_here() or driver.callbacks.runs_here() or driver in _here.get():
            raise RuntimeError("close: called by fn or a callback of the same Caller (expected: by another thread)")
        driver.finish()
        if cancel:
            driver.stop(keeps=True)
        driver.join()
        driver.callbacks.join()

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
    if item.error is not None:
        note_item(item.error, item)
        item.noted = True
    return item


_callers: WeakSet[Caller[Any, Any]] = WeakSet()


def _begin_all() -> None:
    for caller in list(_callers):
        caller._begin_anew()


after_fork_in_child(_begin_all)


class AsyncCaller(Generic[_T, _R]):
    """Caller for asyncio: fn is an `async def` function, and everything runs in the event loop of the first call.

    `await caller(item)` returns the result. From other threads, use asyncio.run_coroutine_threadsafe. If you cancel the
    await, the item is cancelled if its call has not started. A running call is cancelled only if nobody else waits for
    it, in its batch or with an equal item.

    Leaving the block, exceptions, and calls inside fn are as with Caller. Threads are started only for a database.
    Raises ValueError or TypeError for a bad option. Progress: waits in the loop and blocks nothing else there.
    """

    def __init__(
        self,
        fn: Callable[..., Awaitable[Any]],
        *,
        workers: int | tuple[int, int] | tuple[int, int, int] = 16,
        max_in_flight: int | None = None,
        key: Callable[[Any], Hashable] | None = None,
        per_key: int | None = None,
        weights: Mapping[Any, int] | None = None,
        priority: Callable[[Any], int | None] | None = None,
        batch: int | Batch | None = None,
        timeout: float | None = None,
        retry: int | Retry = 0,
        breaker: int | Breaker | None = None,
        limits: Any = (),
        item_id: Callable[[Any], Any] | None = None,
        dedup: int | None = None,
        remember: Any = None,
        setup: Callable[[], Any] | None = None,
    ) -> None:
        if not _checks.is_async(fn):
            raise _checks.bad_type("fn", fn, "an `async def` function; Caller takes plain ones")
        self._plan = plan_of(fn, locals())
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
        plan, options = self._plan, self._plan.options
        judge = NotingJudge(options.retry, options.fatal, options.never_retry)
        scheduler = plan.scheduler(SharedLanes, [SkipStage()])
        driver = LoopIntake(scheduler, partial(plan.call_with_in_loop, scheduler.memory), judge)
        driver.start(NO_INPUT)
        self._meter = Meter(driver.stats)
        return driver

    async def __call__(self, item: _T) -> _R:
        """Hand an item in and wait for its result. Raises what fn raised, and RuntimeError as Caller."""
        driver = self._begun()
        if driver in _here.get():
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
        if driver in _here.get() or driver.runs_here():
            raise RuntimeError("aclose: called by fn of the same AsyncCaller (expected: by another task)")
        driver.finish()
        if cancel:
            driver.stop(keeps=True)
        await driver.over()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        await self.aclose(cancel=kind is not None)

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)
        if driver is not None and not driver.ended:
            driver.stop(keeps=False)


class _NoInput:
    def take(self, most: int) -> list[Item]:
        raise AssertionError(most)  # the line is read instead


NO_INPUT = _NoInput()
