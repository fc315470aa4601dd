"""`Caller` and `AsyncCaller`: the scheduler of maps for items that come one by one. `_calls` runs them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NoReturn, Self, TypeVar
from weakref import WeakSet

from manytail import _checks
from manytail._lifecycle import after_fork_in_child, refuse_copy
from manytail._progress import Meter
from manytail._sync import Held

from . import _options
from ._calls import Call, FutureCall, LoopCall, LoopCalls, ThreadCalls, WaitedCall
from ._loop_event import running_loop
from ._loop_runner import elsewhere
from ._map import Plan, plan_of
from ._runner import Runner, insist, no_step
from ._types import Stats
from ._window import WINDOW_LIMIT

_T = TypeVar("_T")
_R = TypeVar("_R")
_C = TypeVar("_C", bound=Call)


def _plan(function: str, fn: Callable[..., Any], given: dict[str, Any]) -> Plan:
    if given.get("workers") == "inline":
        raise _checks.bad_value("workers", "inline", "an int >= 1: items come from several threads")
    plan = plan_of(function, fn, given, _options.CALLER_OPTIONS)
    window = plan.options.max_in_flight or max(WINDOW_LIMIT, plan.options.workers * plan.options.calls_items)
    return replace(plan, options=replace(plan.options, order="completion", errors="return", max_in_flight=window))


def _made(plan: Plan, context: Context, runner: Runner, item: Any, kind: type[_C]) -> _C:
    """What is handed in. Runs the functions of an item, if there are any."""
    if plan.describes:
        return context.copy().run(plan.item, runner.scheduler, item, kind)
    return plan.item(runner.scheduler, item, kind)


@_options.described(_options.CALLER_OPTIONS)
class Caller(Generic[_T, _R]):
    """Calls `fn(item)` for items that arrive one by one, for example from request handlers. All threads that use one
    Caller share its workers, batches, limits and breakers.

    `caller(item)` waits for the result and returns it, or raises what fn raised. `submit(item)` returns a Future. Items
    of the same key and priority start in the order in which they were submitted. An `async def` function runs in its
    own event loop, in a separate thread. fn runs in a copy of the context in which the Caller was created. So do the
    functions of an item (key, priority, cost, item_id), in the thread that submits the item.

    Options: those of docs/reference/options.md.

    Leaving the `with` block waits for all items; after an exception, items that have not started are cancelled. If the
    Caller itself fails, for example because its database is gone, all items fail with that error, and submitting more
    raises RuntimeError.

    Inside fn, `caller(item)` raises RuntimeError if it would wait for itself. This is the case if calls that wait in
    this way occupy all workers (if `workers` is a range, `least` of them) or all slots that `per_key` gives to the
    item's key, or if the call of an equal item is one of them (with `dedup`). With an `async def` fn, it always raises
    RuntimeError, because it would block the loop. Inside fn, submitting an item does not wait for max_in_flight.
    Waiting for a submitted future is not checked for deadlock.

    Ctrl-C in `caller(item)` cancels the item, unless its call is running. In a forked child, a Caller starts afresh;
    its earlier futures belong to the parent. A Caller that is garbage-collected without being closed cancels the items
    that have not started. Raises ValueError or TypeError for a bad option. Blocking.

    >>> with Caller(str.upper, workers=2) as upper:
    ...     upper("a"), upper.submit("b").result()
    ('A', 'B')
    """

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self._plan = _plan("Caller", fn, options)
        self._context = copy_context()
        self._closed = False
        self._after_fork()
        _callers.add(self)

    def _after_fork(self) -> None:
        """It begins at its first call."""
        self._lock = threading.RLock()  # finalizers take it again
        self._runner: ThreadCalls | None = None
        self._meter: Meter

    def __reduce__(self) -> NoReturn:
        why = "its workers and items are of this process"
        refuse_copy(self, why, "share it between threads, and make another one in another process")

    def _begun(self) -> ThreadCalls:
        runner = self._runner
        if runner is None:
            with Held(self._lock):
                if self._closed:
                    raise RuntimeError("the Caller is closed")
                runner = self._runner
                if runner is None:
                    runner = self._context.copy().run(self._begin)
        return runner

    def _begin(self) -> ThreadCalls:
        plan = self._plan
        runner = ThreadCalls(plan.scheduler(shared=True), plan.call_with, memory=plan.memory())
        self._meter = Meter(runner.stats)
        self._runner = runner
        return runner

    def __call__(self, item: _T) -> _R:
        """Hand an item in and wait for its result. Raises what fn raised; CancelledError if the Caller ends before; and
        RuntimeError after that, or if it would wait for itself."""
        runner = self._begun()
        call = _made(self._plan, self._context, runner, item, WaitedCall)
        try:
            runner.wait_for(call)
        except BaseException:
            call.decide(self)  # it does not begin, if it has not
            runner.forget(call)
            raise
        self._meter.sample()
        error, call.error = call.error, None  # its traceback may refer to the call
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame
        result: _R = call.result
        return result

    def submit(self, item: _T) -> Future[_R]:
        """Submit an item and return a Future. Waits while max_in_flight items are unfinished. If you cancel the future
        before its call starts, the item is skipped. Callbacks of the future run in a worker or in a separate thread.
        Raises RuntimeError if the Caller is closed or has failed."""
        runner = self._begun()
        call = _made(self._plan, self._context, runner, item, FutureCall)
        try:
            runner.submit(call)
        except BaseException:
            call.future.cancel()
            runner.forget(call)
            raise
        if call.refusal is not None:
            raise call.refusal
        self._meter.sample()
        return call.future

    def stats(self) -> Stats:
        """Return the progress of the Caller. Cancelled items count as failed."""
        return Stats(workers=self._plan.options.begins_with) if self._runner is None else self._meter.seen()

    def close(self, *, cancel: bool = False) -> None:
        """Accept no more items, and wait for all that were submitted.

        cancel=True cancels items that have not started, waits for running calls, and retries nothing. If it is
        interrupted, call it again. In a signal handler that interrupts this Caller's own work, it does not wait. Raises
        RuntimeError if fn or a callback calls it, because it would wait for itself.
        """
        with Held(self._lock):
            self._closed = True
            runner = self._runner
        if runner is None:
            return
        try:
            runner.close(cancel)
            if not runner.interrupts_itself():
                runner.flush()
        except BaseException:
            runner.report(no_step)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.close(cancel=kind is not None)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        runner = getattr(self, "_runner", None)
        if runner is not None and not finalizing():
            interruption = insist(partial(runner.stop, cancel=True))
            if interruption is not None:
                raise interruption


_callers: WeakSet[Caller[Any, Any]] = WeakSet()


def _begin_all() -> None:
    for caller in list(_callers):
        caller._after_fork()


after_fork_in_child(_begin_all)


@_options.described(_options.CALLER_OPTIONS)
class AsyncCaller(Generic[_T, _R]):
    """Caller for asyncio: fn is an `async def` function, and everything runs in the event loop of the first call.

    `await caller(item)` returns the result. From other threads, use asyncio.run_coroutine_threadsafe. If you cancel the
    await, the item is cancelled, unless its call has started. A running call is cancelled only if nobody else is
    waiting for it, through the same batch or an equal item.

    Options: those of docs/reference/options.md.

    Leaving the `async with` block, exceptions, and calls inside fn work as in Caller. Threads are started only for
    database access, with `remember` or `shared`. Raises ValueError or TypeError for a bad option. The AsyncCaller waits
    in the event loop and does not block other tasks there.
    """

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        if not _checks.is_async(fn):
            raise _checks.bad_type("fn", fn, "an `async def` function; Caller takes plain ones")
        self._plan = _plan("AsyncCaller", fn, options)
        self._context = copy_context()
        self._closed = False
        self._runner: LoopCalls | None = None
        self._meter: Meter

    def __reduce__(self) -> NoReturn:
        why = "its items are of one event loop"
        refuse_copy(self, why, "share it between tasks, and make another one in another loop or process")

    def _begun(self) -> LoopCalls:
        loop = running_loop()
        if self._runner is None:
            if self._closed:
                raise RuntimeError("the AsyncCaller is closed")
            self._runner = self._context.copy().run(self._begin)
            self._meter = Meter(self._runner.stats)
        elif self._runner.loop is not loop:
            raise RuntimeError(elsewhere("the AsyncCaller"))
        return self._runner

    def _begin(self) -> LoopCalls:
        plan = self._plan
        return LoopCalls(plan.scheduler(shared=True), plan.call_with, memory=plan.memory())

    async def __call__(self, item: _T) -> _R:
        """Hand an item in and wait for its result. Raises what fn raised, and RuntimeError as Caller."""
        runner = self._begun()
        call = _made(self._plan, self._context, runner, item, LoopCall)
        result: _R = await runner.wait_for(call)
        self._meter.sample()
        return result

    def stats(self) -> Stats:
        """Return the progress of the Caller. Cancelled items count as failed."""
        return Stats(workers=self._plan.options.begins_with) if self._runner is None else self._meter.seen()

    async def aclose(self, *, cancel: bool = False) -> None:
        """Like Caller.close. If you cancel it, everything that has not ended is cancelled, and the cancellation is
        raised once everything has ended. In another event loop than that of the first call, it raises RuntimeError; if
        that loop is closed, it drops everything instead."""
        if self._runner is not None:
            self._runner.refuse_elsewhere("the AsyncCaller")
        self._closed = True
        if self._runner is not None:
            await self._runner.aclose(cancel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        await self.aclose(cancel=kind is not None)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        runner = getattr(self, "_runner", None)
        if runner is not None and not self._closed and not finalizing():
            if runner.loop.is_closed():
                runner.stop_threads()
            else:
                runner.from_thread(runner.abandon)
