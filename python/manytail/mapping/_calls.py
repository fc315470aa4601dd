"""What runs a Caller: items that are handed in one by one, and results that go to those who wait for them.

The scheduler is that of maps, with order="completion" and errors="return". A Call is an item that was handed in. It
waits in `_handed` while the window is full, and leaves the window when it is done. Whoever has handled that settles it
after the lock was released: gives it to the one that waits. No user code runs under the lock. The callbacks of a Future
run after all that were done at the same time are settled: in the worker that has settled it, else in a thread that is
started for them.

The fate of a Call is decided once: it begins, or it never will. The first of these decides: a worker, just before the
first call; who waits for it and gives up; the end of the Caller.

Invariants
    open      what was handed in and is not settled
    _handed   of these, what waits for a free slot of the window
    _awaited  of these, what a call of the same Caller waits for, and that call
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from manytail._queue import Event, Held

from ._item import Batch, Item, add_note
from ._loop_runner import LoopRunner
from ._runner import Runner
from ._thread_runner import ThreadRunner
from ._threads import Thread

log = logging.getLogger("manytail")


class _Here(threading.local):
    """What a thread does for Callers."""

    runner: Runner | None = None  # of which it is a worker, or the loop
    call: Item | None = None  # that it runs
    kept: list[CallFuture] | None = None  # futures that it settles, whose callbacks run later


here = _Here()
_in_call: ContextVar[tuple[Runner, Item] | None] = ContextVar("manytail: the call of an AsyncCaller", default=None)


# ---------------------------------------------------------------------------------------------------- what is handed in
class Call(Item):
    """An item that was handed in, for one who waits."""

    __slots__ = ("_undecided", "begins", "entry", "refused")

    waits_for_entry = False

    def __init__(self, value: Any, key: Any, priority: float, read: float) -> None:
        Item.__init__(self, value, key, priority, read)
        self._undecided = [None]  # who pops it decides
        self.begins = False  # its first call has begun, or it is done without one
        self.entry: Event | None = None  # set when the window has room for it; None: it had
        self.refused: BaseException | None = None  # the Caller had ended before

    def decide(self) -> bool:
        """Whether the fate of this item is the caller's to decide."""
        try:
            self._undecided.pop()
        except IndexError:
            return False
        return True

    def begin(self) -> bool:
        """Let its call begin, or its result be used. False: it was cancelled."""
        if not self.begins and self.decide():
            self.begins = self._begin()
        return self.begins

    def settle(self) -> None:
        """It is done."""
        if self.begin():
            if self.error is not None:
                add_note(self.error, "item", self.key, self.attempts)
            self._set()

    def drop(self, error: BaseException | None, final: bool) -> None:
        """The Caller has ended: no call begins. error: why; None: what is left is cancelled. final: no call runs."""
        if self.decide():
            self.error = CancelledError() if error is None else error
            self._drop(error)
        elif final and self.begins:
            self.error = CancelledError() if error is None else error
            self._set()

    def _begin(self) -> bool:
        return True

    def _set(self) -> None:
        """Give the error or the result to the one that waits. It may be interrupted, and called again."""
        raise NotImplementedError

    def _drop(self, error: BaseException | None) -> None:
        self._set()


class WaitedCall(Call):
    """A thread waits for it."""

    __slots__ = ("_wake", "wait")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        over = threading.Lock()  # makes and wakes a waiter for half of what an Event costs
        over.acquire()
        self.wait = over.acquire
        self._wake = over.release

    def _set(self) -> None:
        with suppress(RuntimeError):  # it was called before
            self._wake()


class CallFuture(Future[Any]):
    """A Future whose callbacks may run later than it is set."""

    def _invoke_callbacks(self) -> None:
        if here.kept is None:
            self.call_back()
        elif self._done_callbacks:  # type: ignore[attr-defined]
            here.kept.append(self)

    def call_back(self) -> None:
        try:
            super()._invoke_callbacks()  # type: ignore[misc]
        except BaseException:  # the standard library logs an Exception
            log.exception("exception calling callback for %r", self)


class FutureCall(Call):
    """Who has handed it in has a Future."""

    __slots__ = ("future",)

    waits_for_entry = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.future = CallFuture()

    def _begin(self) -> bool:
        return self.future.set_running_or_notify_cancel()

    def _set(self) -> None:
        with suppress(InvalidStateError):
            if self.error is None:
                self.future.set_result(self.result)
            else:
                self.future.set_exception(self.error)

    def _drop(self, error: BaseException | None) -> None:
        if error is None:
            self.future.cancel()
        elif self._begin():
            self._set()


class LoopCall(Call):
    """A coroutine of the runner's loop waits for it. Only in that loop."""

    __slots__ = ("future", "running")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.running: tuple[asyncio.Task[Any], Item] | None = None  # its call, while that runs

    def _begin(self) -> bool:
        return not self.future.done()

    def _set(self) -> None:
        if self.future.done():
            return
        error = self.error
        if isinstance(error, (StopIteration, StopAsyncIteration)):  # no coroutine can raise it
            error = RuntimeError(f"{type(error).__qualname__}: {error}")
            error.__cause__ = self.error
        if error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(error)

    def drop(self, error: BaseException | None, final: bool) -> None:
        if error is None and (final or not self.begins):
            self.future.cancel()
        else:
            super().drop(error, final)


# ---------------------------------------------------------------------------------------------------- all runners
class CallRunner(Runner):
    """What a Caller needs of a runner instead of an input and an output."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.open: set[Call] = set()
        self._handed: deque[Call] = deque()
        self._awaited: dict[Call, Item] = {}
        self._done: deque[Call] = deque()  # to be settled
        self._dropped: deque[tuple[Call, BaseException | None, bool]] = deque()  # and the arguments of their `drop`
        self._ending = False  # nothing more is handed in
        self._callbacks = _Callbacks()
        self.asks = True
        self.makes_call, self.call_with = self.call_with, self.watched_call

    def watched_call(self, resource: dict[str, Any]) -> Callable[[Item], Any]:
        """As `makes_call`, and it is known which call runs."""
        raise NotImplementedError

    def hand_in(self, call: Call, by: Item | None = None) -> None:
        """by: a call of this Caller that hands it in. It does not wait for the window, because that may wait for it."""
        self.report(self._came, call, by)

    def nest(self, call: Call, by: Item) -> None:
        """Note that a call of this Caller waits for this one. RuntimeError: for ever."""
        self.locked(self._nest, call, by)

    def unnest(self, call: Call) -> None:
        self.report(self._awaited.pop, call, None)

    # ------------------------------------------------------------------------------------------------ under the lock
    def _came(self, call: Call, by: Item | None) -> None:
        scheduler = self.scheduler
        if self._ending or scheduler.halted:
            call.refused = RuntimeError("the Caller is closed" if scheduler.error is None else "the Caller has failed")
            call.refused.__cause__ = scheduler.error
            self._dropped.append((call, call.refused, False))
            return
        self.open.add(call)
        if by is None and scheduler.room() <= self._looking:
            if call.waits_for_entry:
                call.entry = Event()
            self._handed.append(call)
        else:
            self._let_in([call])

    def _let_in(self, calls: list[Call]) -> None:
        """The window has room for them."""
        for call in calls:
            if call.entry is not None:
                call.entry.set()
        if self.memory is None:
            self.more_read(calls)  # type: ignore[arg-type]
            self._feed(len(calls))
        else:
            self._looking += len(calls)
            self.memory.look_up(calls)  # type: ignore[arg-type]

    def go_on(self) -> None:
        scheduler = self.scheduler
        while True:
            if output := scheduler.output:
                scheduler.took(len(output))
                self._done.extend(output)  # type: ignore[arg-type]
                output.clear()
            waits = self._handed or self._pending or self._ending or scheduler.halted
            if waits or scheduler.gate is not None or scheduler.overdue or scheduler.wake_at < math.inf:
                super().go_on()
            if not output:
                return

    def _refill(self, hungry: bool) -> None:
        scheduler = self.scheduler
        if self._pending:
            self._feed(len(self._pending))  # looked up: they had room
        if self._handed and (room := scheduler.room() - self._looking) > 0:
            self._let_in([self._handed.popleft() for _ in range(min(room, len(self._handed)))])
        if self._ending and not (self._handed or self._looking or scheduler.ended):
            scheduler.input_ended()
            if scheduler.gate is not None:
                scheduler.dispatch(self.now())  # no batch lingers

    def _nest(self, call: Call, by: Item) -> None:
        stuck = {**self._awaited, call: by}
        while begun := [one for one in stuck if self._can_begin(one, set(stuck.values()))]:
            for one in begun:
                del stuck[one]
        if call in stuck:
            raise RuntimeError("a call from inside fn that would wait for itself (expected: submit, or more workers)")
        self._awaited[call] = by

    def _can_begin(self, call: Call, stuck: set[Item]) -> bool:
        """Whether the call can end while all of `stuck` run: it is none of them and equal to none, and there are a
        worker, a slot of its key and room in the limits."""
        options = self.options
        if call.done or call.error is not None:
            return True
        members = {each for one in stuck for each in one.members()}
        if call in members or len(stuck) >= options.workers:
            return False
        if options.per_key is not None and sum(one.lane is call.lane for one in stuck) >= options.per_key:
            return False
        if options.dedup is not None and any(getattr(each, "identity", "") == call.identity for each in members):
            return False
        return self.scheduler.gate is None or self.scheduler.gate.has_room_beside(call, stuck)

    def _handle(self) -> None:
        before, self._holder = self._holder, get_ident()  # a finalizer here may hand an item in
        try:
            super()._handle()
        except BaseException as error:
            self._failure = RuntimeError("a signal handler has raised inside the Caller's own work")
            self._failure.__cause__ = error
            raise
        finally:
            self._holder = before

    # ------------------------------------------------------------------------------------------------ the end
    def end(self) -> None:
        """Nothing more is handed in. What was is called."""
        self.report(self._end)

    def _end(self) -> None:
        self._ending = True

    def _stop(self) -> None:
        super()._stop()
        self._ending = True
        self._drop(final=False)
        while self._handed:
            if (entry := self._handed.popleft().entry) is not None:
                entry.set()

    def calls_ended(self) -> None:
        super().calls_ended()
        self.report(self._drop, True)

    def _drop(self, final: bool) -> None:
        for call in list(self.open):
            if not call.done:
                call.done = final
                self._dropped.append((call, self.scheduler.error, final))

    # ------------------------------------------------------------------------------------------------ without the lock
    def skip_late(self, item: Item) -> bool:
        """Skip a call that nobody waits for, too. A batch is called without such items."""
        if self.scheduler.gate is not None and super().skip_late(item):
            return True
        if isinstance(item, Call) and item.begin():
            return False
        members: Any = item.members()
        gone = [each for each in members if each.error is None and not each.known and not each.begin()]
        for each in gone:
            each.error = CancelledError()
        if gone and len(gone) == len(members):
            self._refuse(item, [each.error for each in gone])
            return True
        return False

    def settle(self) -> None:
        super().settle()
        if self._done or self._dropped:
            self._deliver()

    def succeeded(self, item: Item) -> None:
        super().succeeded(item)
        if self._done:
            self._deliver()

    def succeeded_next(self, item: Item) -> None:
        """A worker that may run callbacks keeps no call."""
        self.succeeded(item)

    def _deliver(self) -> None:
        """Settle what is done. What an interruption leaves, the next event settles."""
        before, here.kept = here.kept, []
        try:
            _each(self._done, self._settle_one)
            if self._dropped:
                _each(self._dropped, self._drop_one)
        finally:
            kept, here.kept = here.kept, before
        if kept:
            self._call_back(kept)

    def _settle_one(self, call: Call) -> None:
        call.settle()
        self.open.discard(call)

    def _drop_one(self, dropped: tuple[Call, BaseException | None, bool]) -> None:
        call, error, final = dropped
        call.drop(error, final)
        if final or not call.begins:
            self.open.discard(call)

    def _call_back(self, futures: list[CallFuture]) -> None:
        if here.runner is self and not self.options.is_async:
            for future in futures:
                future.call_back()
        else:
            self._callbacks.add(futures)


def _each(things: deque[Any], step: Callable[[Any], object]) -> None:
    """Take each thing and call `step`. An interrupted one is put back. A `for`, as in `Runner.settle`."""
    try:
        for thing in iter(things.popleft, None):
            try:
                step(thing)
            except BaseException:
                things.appendleft(thing)
                raise
    except IndexError:  # there are no more
        return


class _Callbacks:
    """Runs callbacks of futures in a thread, which lasts while there are any."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # finalizers take it again
        self._futures: deque[CallFuture] = deque()
        self._runs = False
        self._thread: Thread | None = None

    def add(self, futures: Iterable[CallFuture]) -> None:
        with Held(self._lock):
            self._futures.extend(futures)
            starts, self._runs = not self._runs, True
        if starts:
            self._thread = Thread(self._run, "manytail-callbacks")
            try:
                self._thread.start()
            except RuntimeError:  # the system has no more threads to give
                self._run()

    def _run(self) -> None:
        while True:
            with Held(self._lock):
                if not self._futures:
                    self._runs = False
                    return
                future = self._futures.popleft()
            future.call_back()

    def runs_in(self, thread: threading.Thread) -> bool:
        return self._thread is thread

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()


# ---------------------------------------------------------------------------------------------------- in threads
class ThreadCalls(CallRunner, ThreadRunner):
    """Of a Caller. A coroutine function runs in a loop of its own."""

    def watched_call(self, resource: dict[str, Any]) -> Callable[[Item], Any]:
        call = self.makes_call(resource)
        here.runner = self
        if self.options.is_async:
            return call

        def watched(item: Item) -> Any:
            here.call = item
            try:
                return call(item)
            finally:
                here.call = None

        return watched

    def inside(self) -> Item | None:
        """The call that runs in this thread, if it is one of this Caller's. A callback runs for none of its items."""
        if here.runner is not self:
            return None
        return _nothing() if here.call is None else here.call

    def wait_for(self, call: WaitedCall) -> None:
        """Hand it in, and wait for it. RuntimeError: it would wait for itself."""
        by = self.inside()
        if by is None:
            if self.held_here():
                raise RuntimeError("a call in a signal handler that has interrupted this Caller's own work")
            self.hand_in(call)
            call.wait()
            return
        if self.options.is_async:
            raise RuntimeError("a call that blocks the loop of its own fn (expected: submit)")
        self.nest(call, by)
        try:
            self.hand_in(call, by)
            call.wait()
        finally:
            self.unnest(call)

    def submit(self, call: FutureCall) -> None:
        """Hand it in, and wait until the window has room for it; not in a worker of this Caller."""
        by = self.inside()
        if self.held_here():
            self.hand_in(call, by)
            return
        self._events.append((self._came, call, by))
        self.locked(int)
        if call.entry is not None:
            call.entry.wait()

    def timed_out(self, item: Item, error: BaseException, final: bool = False) -> None:
        if self._awaited:
            self.report(self._abandoned, item)
        super().timed_out(item, error, final)

    def _abandoned(self, by: Item) -> None:
        """The call holds no worker any more."""
        self._awaited = {call: one for call, one in self._awaited.items() if one is not by}

    def close(self, cancel: bool = False) -> None:
        """cancel: what has not begun never does. Else all that was handed in is waited for."""
        this = threading.current_thread()
        if this in self.workers.threads() or self._callbacks.runs_in(this):
            raise RuntimeError("close: called by fn or a callback of the same Caller (expected: by another thread)")
        self.end()
        if cancel:
            self.stop()
        if self.held_here():
            return
        while not (self.stopping or self.scheduler.over):
            self.wait()
        super().close()
        self._callbacks.join()


def _nothing() -> Item:
    """What a worker does that runs callbacks."""
    item = Item(None)
    item.lane = None  # type: ignore[assignment]
    return item


# ---------------------------------------------------------------------------------------------- in the caller's loop
class LoopCalls(CallRunner, LoopRunner):
    """Of an AsyncCaller."""

    def watched_call(self, resource: dict[str, Any]) -> Callable[[Item], Any]:
        call = self.makes_call(resource)

        async def watched(item: Item) -> Any:
            members: Any = item.members()
            running = asyncio.current_task(), item
            _in_call.set((self, item))
            for each in members:
                each.running = running
            try:
                return await call(item)
            finally:
                for each in members:
                    each.running = None

        return watched

    def inside(self) -> Item | None:
        """The call in whose context this runs, if it is one of this Caller's and has not ended."""
        runner, item = _in_call.get() or (None, None)
        if runner is not self or item is None:
            return None
        return None if all(each.running is None for each in item.members()) else item  # type: ignore[attr-defined]

    async def wait_for(self, call: LoopCall) -> Any:
        """Hand it in, and return its result. RuntimeError: it would wait for itself."""
        if (by := self.inside()) is not None:
            self.nest(call, by)
        try:
            self.hand_in(call, by)
            return await call.future
        except BaseException:
            if call.future.cancel() or call.future.cancelled():
                self._gave_up(call)
            raise
        finally:
            if by is not None:
                self.unnest(call)

    def _gave_up(self, call: LoopCall) -> None:
        """Cancel what runs for this item, if nobody else waits for it."""
        gate = self.scheduler.gate
        leader: Any = call if gate is None else gate.leader(call)
        if leader.running is not None:
            task, item = leader.running
            if not self._is_awaited(item):
                task.cancel()

    def _is_awaited(self, call: Item) -> bool:
        gate = self.scheduler.gate
        items: list[Any] = list(call.members())
        if gate is not None:
            items += [follower for item in call.members() for follower in gate.followers(item)]
        return any(not item.future.done() for item in items)

    def failed(self, item: Item, error: BaseException) -> None:
        if not isinstance(error, asyncio.CancelledError) or self._is_awaited(item):
            super().failed(item, error)
        elif isinstance(item, Batch):
            self._report_batch(item, self.scheduler.lost(item, error))
        else:
            self._report_failure(item, self.scheduler.failure(error))

    async def aclose(self, cancel: bool) -> None:
        """As `ThreadCalls.close`. A cancellation meanwhile cancels what has not ended."""
        if self.inside() is not None:
            raise RuntimeError("aclose: called by fn of the same AsyncCaller (expected: by another task)")
        self.end()
        if cancel:
            self.stop()
        try:
            while not (self.stopping or self.scheduler.over):
                self.output_changed.clear()
                await self.output_changed.wait()  # type: ignore[attr-defined]
            self.stop()
            await self.coroutines.ended()
        finally:
            await self.close()
