"""The runners behind Caller and AsyncCaller. Items come one by one. Each result goes to the one who waits for it.

The scheduler is that of maps, with order="completion" and errors="return". A Call is an item that was handed in. It
waits in `_handed` while the window is full, and leaves the window when it is done. The thread that handles the end of a
Call also settles it, after it has released the lock: it gives the result to the one who waits. No user code runs under
the lock. Callbacks of Futures run when all Calls that ended together are settled. A worker runs them itself. Any other
thread passes them to a thread that is started for them.

Once only it is decided whether a Call begins or never begins. The first who asks decides: a worker, just before the
first call of fn (`begin`); who waits for it and gives up (`decide`); the end of the Caller (`drop`). `begin` also asks
the Future, which its user may have cancelled.

A signal handler may raise inside `settle` and `drop` of a Call. Both may be called again.

Invariants
    open      Calls that were handed in, and neither went to `_done` nor were dropped; without those of `direct`
    direct    the same of Calls that go past the scheduler (ThreadCalls)
    _handed   those of `open` that wait for a free slot of the window
    _awaited  those of `open` that a running call of the same Caller waits for; each with that running call
"""

from __future__ import annotations

import asyncio
import math
import operator
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

from manytail._sync import Event, Held
from manytail.errors import ShutDown

from . import _logs
from ._errors import own_copy
from ._item import Item, ItemBatch, Work, note_item
from ._loop_runner import LoopRunner
from ._runner import Runner, no_step
from ._thread_runner import ThreadRunner
from ._threads import Thread, holds_lock_of
from ._window import WINDOW_LIMIT


class _Here(threading.local):
    """What the current thread does for Callers."""

    runner: Runner | None = None  # the one whose worker or loop this thread is
    call: Item | None = None  # the call that it runs
    kept: list[CallFuture] | None = None  # futures whose callbacks it calls later. None: it calls them at once
    succeeded: list[int]  # one number: direct calls that it has made with success


here = _Here()
# Of a Caller: its runner and the call, while that runs.
_in_thread: ContextVar[list[Any] | None] = ContextVar("manytail: the call of a Caller", default=None)
_in_call: ContextVar[tuple[Runner, Item] | None] = ContextVar("manytail: the call of an AsyncCaller", default=None)


# ---------------------------------------------------------------------------------------------------- what is handed in
_call: Any = operator.call  # its exact type tells checkers that it takes no second argument
_BEGIN = object()  # the claim of all who want a call to begin: its worker, and who settles it


class Call(Item):
    """An item that was handed in, for one who waits."""

    __slots__ = ("_claims", "begins", "came", "direct", "entry", "refusal")

    waits_for_entry = False

    def __init__(self, *arguments: Any) -> None:
        Item.__init__(self, *arguments)
        self._claims: list[object] = []  # the first decides. A list: its append is atomic, and needs no lock
        self.begins: bool | None = None  # True: begun, or done without a call. False: cancelled. None: not decided
        self.came = False  # its arrival is handled
        self.direct = False  # it goes past the scheduler, which does not know it
        self.entry: Event | None = None  # set when the window has room for it; None: it had
        self.refusal: BaseException | None = None  # the Caller had ended before

    def decide(self, by: object) -> bool:
        """Whether the caller decides what becomes of this item. by: who asks. The same one gets the same answer, so one
        that was interrupted may ask again."""
        self._claims.append(by)
        return self._claims[0] is by

    def begin(self) -> bool:
        """Let its call begin, or its result be used. False: it was cancelled."""
        if self.begins is None and self.decide(_BEGIN):
            self.begins = self._begin()
        return bool(self.begins)

    def settle(self) -> None:
        """It is done: give the one who waits its result or error."""
        if self.begin():
            if self.error is not None:
                note_item(self.error, self)
            self._set()

    def drop(self, error: BaseException | None, final: bool, by: object) -> bool:
        """The Caller has ended: no call begins. error: why; None: what is left is cancelled. final: nor does one run,
        so those that had begun get the error, too. by: as in `decide`. Returns whether it needs no other `drop`."""
        if self.decide(by):
            self.error = CancelledError() if error is None else own_copy(error)
            self._drop(error)
            return True
        if final and self.begins:
            self.error = CancelledError() if error is None else own_copy(error)
            self._set()
        return final

    def _begin(self) -> bool:
        return True

    def _set(self) -> None:
        """Give the error or the result to the one who waits."""
        raise NotImplementedError

    def _drop(self, error: BaseException | None) -> None:
        self._set()


class WaitedCall(Call):
    """A thread waits for it."""

    __slots__ = ("_wake", "wait")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        over = threading.Lock()  # it costs half of an Event
        over.acquire()
        self.wait = over.acquire
        self._wake = over.release

    def _set(self) -> None:
        try:
            self._wake()
        except RuntimeError:  # it was released before. (`suppress` is interpreted code, and costs more than the rest)
            return


class CallFuture(Future[Any]):
    """A Future whose callbacks may run later, when others are settled."""

    def _invoke_callbacks(self) -> None:
        if here.kept is None:  # the user's own `cancel`
            super()._invoke_callbacks()  # type: ignore[misc]
        elif self._done_callbacks:  # type: ignore[attr-defined]
            here.kept.append(self)

    def call_back(self) -> None:
        try:
            super()._invoke_callbacks()  # type: ignore[misc]
        except BaseException:  # the standard library logs an Exception
            _logs.error("exception calling callback for %r", self, exc_info=True)


class FutureCall(Call):
    """Its result goes to a Future."""

    __slots__ = ("future",)

    waits_for_entry = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.future = CallFuture()

    def _begin(self) -> bool:
        try:
            return self.future.running() or self.future.set_running_or_notify_cancel()
        except RuntimeError:  # an interrupted call of this method has notified of the cancellation
            return False

    def _set(self) -> None:
        with suppress(InvalidStateError):
            if self.error is None:
                self.future.set_result(self.result)
            else:
                self.future.set_exception(self.error)
        self.error = None  # its traceback may refer to this

    def _drop(self, error: BaseException | None) -> None:
        if error is None:
            if self.future.cancel():
                self._begin()  # tells those in concurrent.futures.wait
        elif self._begin():
            self._set()


class LoopCall(Call):
    """A coroutine of the runner's loop waits for it. Used in that loop alone."""

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
            self.error = None  # its traceback may refer to this

    def drop(self, error: BaseException | None, final: bool, by: object) -> bool:
        if error is None and (final or not self.begins):
            self.future.cancel()
            return True
        return super().drop(error, final, by)


# ---------------------------------------------------------------------------------------------------- all runners
class CallRunner(Runner):
    """What a Caller needs of a runner instead of an input and an output."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.open: set[Call] = set()
        self.direct: set[Call] = set()
        self._handed: deque[Call] = deque()
        self._awaited: dict[Call, Item] = {}
        self._done: deque[Call] = deque()  # to be settled
        self._dropped: deque[tuple[Call, BaseException | None, bool]] = deque()  # with arguments of `drop`
        self._ending = False  # nothing more is handed in
        self._callbacks = _Callbacks()
        self.asks = True
        self.makes_call, self.call_with = self.call_with, self.watched_call

    def watched_call(self, resource: dict[str, Any]) -> Callable[[Any], Any]:
        """As `makes_call`, and it is known which call runs."""
        raise NotImplementedError

    def hand_in(self, call: Call, by: Item | None = None) -> None:
        """by: the running call of this Caller that hands it in. Then `call` needs no free slot of the window: one that
        holds a slot may wait for it."""
        self.open.add(call)  # first: if `_came` is interrupted, the Caller that fails still finds the call
        self.report(self._came, call, by)

    def nest(self, call: Call, by: Item) -> None:
        """Note that a call of this Caller waits for this one. RuntimeError: it would wait for ever."""
        self.locked(self._nest, call, by)

    def unnest(self, call: Call) -> None:
        self.report(self._awaited.pop, call, None)

    # ------------------------------------------------------------------------------------------------ under the lock
    def _came(self, call: Call, by: Item | None) -> None:
        if self._ending or self.scheduler.halted:
            call.refusal = self._refusal()
            self._dropped.append((call, call.refusal, False))
            return
        call.came = True
        if by is None and self.scheduler.room() <= self._looking:
            if call.waits_for_entry:
                call.entry = Event()
            self._handed.append(call)
        else:
            self._let_in([call])

    def _refusal(self) -> BaseException:
        """What a call raises that is handed in after the end."""
        error = self.scheduler.error
        refusal = RuntimeError("the Caller is closed" if error is None else "the Caller has failed")
        refusal.__cause__ = error
        return refusal

    def _adopt(self, call: Call) -> None:
        """The scheduler gets a call that went past it: nobody is to call it, or it has failed."""
        call.direct = False
        self.open.add(call)
        self.direct.discard(call)
        self.scheduler.window.in_flight += 1

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
                self.open.difference_update(output)
                output.clear()
            waits = self._handed or self._pending or self._ending or scheduler.halted
            if waits or scheduler.gate is not None or scheduler.overdue or scheduler.wake_at < math.inf:
                super().go_on()
            if not scheduler.output:
                return

    def _refill(self, hungry: bool) -> None:
        scheduler = self.scheduler
        if self._pending:
            self._feed(len(self._pending))  # they had room already, and come back from the look-up
        if self._handed and (room := scheduler.room() - self._looking) > 0:
            self._let_in([self._handed.popleft() for _ in range(min(room, len(self._handed)))])
        if self._ending and not (self._handed or self._looking or self.direct or scheduler.ended):
            scheduler.input_ended()
            if scheduler.gate is not None:
                scheduler.dispatch(self.now())  # batches that are not full start now

    def _nest(self, call: Call, by: Item) -> None:
        """Of the calls that are waited for, leave out what can begin, until nothing more can. The rest is stuck."""
        stuck = {**self._awaited, call: by}
        while begun := [one for one in stuck if self._can_begin(one, set(stuck.values()))]:
            for one in begun:
                del stuck[one]
        if call in stuck:
            raise RuntimeError("fn calls its own Caller and would wait for itself (expected: submit, or more workers)")
        self._awaited[call] = by

    def _can_begin(self, call: Call, stuck: set[Item]) -> bool:
        """Whether the call can end while all of `stuck` run: it is none of them and equal to none, and there are a
        worker, a slot of its key and room in the limits."""
        options = self.options
        if call.done or call.error is not None:
            return True
        members = {each for one in stuck for each in one.members()}
        if call in members or len(stuck) >= options.always:
            return False
        if options.per_key is not None and sum(one.lane is call.lane for one in stuck) >= options.per_key:
            return False
        if options.dedup is not None and any(getattr(each, "identity", "") == call.identity for each in members):
            return False
        return self.scheduler.gate is None or self.scheduler.gate.has_room_beside(call, stuck)

    def _handle(self) -> None:
        before, self._holder = self._holder, get_ident()  # `held_here` is true for a finalizer that runs here
        failing = self._failure is not None
        try:
            super()._handle()
            # The failure is that of an interrupted event, or of successes that were handled together. They are lost:
            # their calls are in `open` alone. Where the Caller had stopped before, `_stop` does not come again to drop
            # them.
            if failing and self.stopping:
                self._drop(final=not self.workers.busy())
        except BaseException as error:
            self._failure = RuntimeError("a signal handler has raised inside the Caller's own work")
            self._failure.__cause__ = error
            raise
        finally:
            self._holder = before

    def interrupts_itself(self) -> bool:
        return super().interrupts_itself() or holds_lock_of(self._callbacks)

    # ------------------------------------------------------------------------------------------------ the end
    def forget(self, call: Call) -> None:
        """Who has handed it in, or was about to, was interrupted. What that one had to handle is handled here."""
        self.open.discard(call)
        self.report(no_step)

    def end(self) -> None:
        """Nothing more is handed in. What was is called."""
        self.report(self._end)

    def _end(self) -> None:
        self._ending = True

    def _stop(self) -> None:
        self._ending = True
        self._drop(final=False)
        self._handed.clear()
        super()._stop()  # last: it notes that all of this is done, so an interrupted `_stop` is repeated whole

    def calls_ended(self) -> None:
        super().calls_ended()
        self.report(self._drop, True)

    def _drop(self, final: bool) -> None:
        error = self.scheduler.error
        for call in [*self.open, *self.direct]:
            if error is None and not call.came:  # nothing was lost: it will come, and is refused then
                continue
            if call.entry is not None:
                call.entry.set()
            call.done = call.done or final
            self._dropped.append((call, error if call.came else self._refusal(), final))

    # ------------------------------------------------------------------------------------------------ without the lock
    def skip_late(self, item: Work) -> bool:
        """Skip a call that nobody waits for, too: it was cancelled, or dropped with its error. A batch is called
        without such items."""
        if self.scheduler.gate is not None and super().skip_late(item):
            return True
        if isinstance(item, Call) and item.begin():
            return False
        members: Any = item.members()
        # An item of a batch that has its result or an error is not called. An item alone may have that of its `drop`.
        asked = [each for each in members if not each.known and (each is item or each.error is None)]
        gone = [each for each in asked if not each.begin()]
        for each in gone:
            each.error = CancelledError() if each.error is None else each.error
        if gone and len(gone) == len(members):
            if gone[0].direct:
                self._events.append((self._adopt, gone[0]))
            self._report_uncalled(item, [each.error for each in gone])
            return True
        return False

    def settle(self) -> None:
        super().settle()
        if (self._done or self._dropped) and not self.held_here():  # else after the release
            self._deliver()

    def succeeded(self, item: Item) -> None:
        super().succeeded(item)
        if self._done or self._dropped:  # the latter: of another thread's event
            self._deliver()

    def succeeded_next(self, item: Item) -> None:
        """The worker takes no next call here, because callbacks may hold it up."""
        self.succeeded(item)

    def _deliver(self) -> None:
        """Settle what is done. What an interruption leaves, the next event settles."""
        before, here.kept = here.kept, []
        try:
            _each(self._done, Call.settle)
            if self._dropped:
                _each(self._dropped, self._drop_one)
        finally:
            kept, here.kept = here.kept, before
            if kept:  # also where an interruption leaves some unsettled: these are set
                self._call_back(kept)

    def _drop_one(self, dropped: tuple[Call, BaseException | None, bool]) -> None:
        call, error, final = dropped
        if call.drop(error, final, dropped):
            self.open.discard(call)
            self.direct.discard(call)

    def _call_back(self, futures: list[CallFuture]) -> None:
        if here.runner is self and not self.options.is_async:
            for future in futures:
                future.call_back()
        else:
            self._callbacks.add(futures)


def _each(things: deque[Any], step: Callable[[Any], object]) -> None:
    """Take each thing and call `step`. An interrupted one is put back. A `for`: no signal handler runs between the end
    of `popleft` and the `try`."""
    steps = False
    try:
        for thing in iter(things.popleft, None):
            try:
                steps = True
                step(thing)
                steps = False
            except BaseException:
                things.appendleft(thing)
                raise
    except IndexError:
        if steps:
            raise  # else there are no more


class _Callbacks:
    """Runs callbacks of futures in a thread, which lasts while there are any. If its start is interrupted, the next
    `add` or `join` starts one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # finalizers take it again
        self._futures: deque[CallFuture] = deque()
        self._runs = False
        self._thread: Thread | None = None

    def add(self, futures: Iterable[CallFuture]) -> None:
        try:
            with Held(self._lock):
                self._futures.extend(futures)
                thread = None if self._is_running() or not self._futures else Thread(self._run, "manytail-callbacks")
                if thread is not None and not self._is_running():  # no finalizer has started one
                    self._runs, self._thread = True, thread
                    thread.start()
        except RuntimeError:  # the system has no more threads to give
            self._run()

    def _is_running(self) -> bool:
        return self._runs and self._thread is not None and not self._thread.never_runs()

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
        self.add(())
        if self._thread is not None:
            self._thread.join()


# ---------------------------------------------------------------------------------------------------- in threads
class ThreadCalls(CallRunner, ThreadRunner):
    """Runs the calls of a Caller in threads, those of a coroutine function in a loop of its own.

    Where the scheduler has nothing to decide, a WaitedCall goes past it, straight into the queue of the workers. It is
    in `direct` until it succeeds. If it is not to be called, or fails, the scheduler adopts it."""

    workers: Any  # ThreadWorkers; or CoroutineWorkers, which get no direct calls

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        scheduler = self.scheduler
        is_plain = scheduler.is_plain and self.memory is None and not self.options.is_async
        is_plain = is_plain and scheduler.window.size >= WINDOW_LIMIT  # more than there are threads: it limits none
        # What a direct call goes through. None: no call is direct.
        self._direct_steps = (self.direct.add, scheduler.admission.put) if is_plain else None
        self._succeeded: list[list[int]] = []  # how many direct calls have, by worker

    @property
    def finished(self) -> int:
        return self.scheduler.finished + sum(number for (number,) in self._succeeded)

    @property
    def in_flight(self) -> int:
        return self.scheduler.window.in_flight + len(self.direct)

    def watched_call(self, resource: dict[str, Any]) -> Callable[[Any], Any]:
        call = self.makes_call(resource)
        here.runner = self
        if self.options.is_async:
            return call
        here.succeeded = [0]
        self._succeeded.append(here.succeeded)

        def watched(item: Item) -> Any:
            here.call = item
            running = [self, item]
            token = _in_thread.set(running)  # the threads of a map that fn makes have it, too
            try:
                return call(item)
            finally:
                here.call = None
                running.clear()
                _in_thread.reset(token)
                del item

        return watched

    def inside(self) -> Item | None:
        """The call that runs in this thread, or waits for a map that this thread works for, if it is one of this
        Caller's. In a callback: one that stands for none, because the worker is taken all the same."""
        if here.runner is not self:
            running = tuple(_in_thread.get() or ())  # a copy: it is cleared where the call ends
            return running[1] if running and running[0] is self else None
        return _nothing() if here.call is None else here.call

    def wait_for(self, call: WaitedCall) -> None:
        """Hand it in, and wait for it. RuntimeError: it would wait for itself; it would block the loop of its own fn; a
        signal handler has interrupted the Caller's own work."""
        by = self.inside()
        if by is None:
            if self.held_here():
                raise RuntimeError("a call in a signal handler that has interrupted this Caller's own work")
            if self._direct_steps is None or self._ending or self.scheduler.halted:
                self.hand_in(call)
            else:
                self._hand_to_workers(call, self._direct_steps)
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

    def _hand_to_workers(self, call: WaitedCall, steps: tuple[Callable[[Call], object], ...]) -> None:
        """Hand it in past the scheduler. No signal handler runs between the steps, which the interpreter does not carry
        out: each call in `direct` is in the queue, and is taken out by the worker that gets it."""
        call.direct = call.came = True
        try:
            deque(map(_call, steps, (call, call)), 0)
        except ShutDown:  # the Caller has ended since the caller of this looked
            self.direct.discard(call)
            if call.decide(steps):  # else its end has dropped the call
                raise self._refusal() from None
        if self.workers.lacks(len(self.direct) + self.scheduler.window.in_flight):
            self.report(self.workers.items_came, 1)

    def succeeded(self, item: Item) -> None:
        if self._direct_steps is None or not (isinstance(item, WaitedCall) and item.direct):
            super().succeeded(item)
            return
        item.done = True
        here.succeeded[0] += 1
        self.direct.discard(item)
        if self._ending:
            self.report(no_step)  # `close` may wait for this one
        item._set()

    def failed(self, item: Work, error: BaseException) -> None:
        if isinstance(item, WaitedCall) and item.direct:
            self._events.append((self._adopt, item))
        super().failed(item, error)

    def submit(self, call: FutureCall) -> None:
        """Hand it in, and wait until the window has room for it. A worker of this Caller does not wait."""
        by = self.inside()
        if self.held_here():
            self.hand_in(call, by)
            return
        self.open.add(call)
        self._events.append((self._came, call, by))
        self.locked(no_step)
        if call.entry is not None:
            call.entry.wait()

    def timed_out(self, item: Work, error: BaseException, final: bool = False) -> None:
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
        if self.interrupts_itself():
            return
        while not (self.stopping or self.scheduler.over):
            self.wait()
        super().close()
        self._callbacks.join()

    def flush(self) -> None:
        super().flush()
        self._callbacks.join()  # of calls whose results the thread of a database has found last


def _nothing() -> Item:
    """What a worker does that runs callbacks."""
    item = Item(None)
    item.lane = None  # type: ignore[assignment]
    return item


# ---------------------------------------------------------------------------------------------- in the caller's loop
class LoopCalls(CallRunner, LoopRunner):
    """Runs the calls of an AsyncCaller in the loop of its first call."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        # With dedup: what is waited for, by identity. The gate knows followers only: not equal items in its queue.
        self._equal: dict[str, set[LoopCall]] = {}

    def watched_call(self, resource: dict[str, Any]) -> Callable[[Any], Any]:
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
        identity = "" if self.options.dedup is None else getattr(call, "identity", "")
        if identity:
            self._equal.setdefault(identity, set()).add(call)
        try:
            self.hand_in(call, by)
            return await call.future
        except BaseException:
            # A closed loop leaves nothing to cancel: it refuses the callbacks of the future.
            if not self.loop.is_closed() and (call.future.cancel() or call.future.cancelled()):
                self._gave_up(call)
            raise
        finally:
            if identity:
                self._equal[identity].discard(call)
                if not self._equal[identity]:
                    del self._equal[identity]
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

    def _is_awaited(self, call: Work) -> bool:
        items: list[Any] = list(call.members())
        if self._equal:
            items += [equal for item in items for equal in self._equal.get(item.identity, ())]
        return any(not item.future.done() for item in items)

    def failed(self, item: Work, error: BaseException) -> None:
        if not isinstance(error, asyncio.CancelledError) or self._is_awaited(item):
            super().failed(item, error)
        elif isinstance(item, ItemBatch):
            self._report_batch(item, self.scheduler.lost(item, error))
        else:
            self._report_failure(item, self.scheduler.failure(error))

    def _stop(self) -> None:
        super()._stop()
        # Nobody else does it when the workers have failed: who waits for a call that they ran would wait on.
        self.coroutines.when_ended(partial(self.report, self._drop, True))

    async def aclose(self, cancel: bool) -> None:
        """As `ThreadCalls.close`. A cancellation meanwhile cancels what has not ended. In another loop, once this one
        is closed, it drops everything: no task of a closed loop runs again, so none can be waited for."""
        if self.loop.is_closed():
            self.stop_threads()
            self.open.clear()
            self.direct.clear()
            return
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
