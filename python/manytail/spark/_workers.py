"""Who runs the calls: daemon threads for a plain function, coroutines in one event loop for an `async def`.

Both take rows from the scheduler's queue with a blocking get and report to the scheduler; neither decides anything. A crew is started by the first
rows, so an empty partition has no worker and no setup.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from manytail import ShutDown

from ._call import Call

if TYPE_CHECKING:
    from ._engine import Engine

log = logging.getLogger("manytail.spark")

Closer = Callable[[BaseException | None], Any]


def _exit_arguments(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def _open(setup: Callable[[], Any] | None) -> tuple[dict[str, Any], Closer]:
    """What a worker thread's calls get, and how it is given back."""
    if setup is None:
        return {}, lambda error: None
    made = setup()
    if hasattr(type(made), "__enter__") and hasattr(type(made), "__exit__"):
        return {"resource": made.__enter__()}, lambda error: made.__exit__(*_exit_arguments(error))
    close = getattr(made, "close", None)
    return {"resource": made}, (lambda error: close()) if callable(close) else (lambda error: None)


async def _open_async(setup: Callable[[], Any] | None) -> tuple[dict[str, Any], Closer]:
    """The same inside a loop, where asynchronous ways to enter and close come first."""
    if setup is None:
        return {}, lambda error: None
    made = setup()
    if inspect.isawaitable(made):
        made = await made
    if hasattr(type(made), "__aenter__") and hasattr(type(made), "__aexit__"):
        return {"resource": await made.__aenter__()}, lambda error: made.__aexit__(*_exit_arguments(error))
    if hasattr(type(made), "__enter__") and hasattr(type(made), "__exit__"):
        return {"resource": made.__enter__()}, lambda error: made.__exit__(*_exit_arguments(error))
    close = getattr(made, "aclose", None) or getattr(made, "close", None)
    return {"resource": made}, (lambda error: close()) if callable(close) else (lambda error: None)


class _Worker:
    """One thread, and the call it runs if calls have a timeout.

    `end` and `give_up` decide under the worker's lock which of them was first: a call that was given up on reports nothing, and a thread that
    reported in time goes on.
    """

    __slots__ = ("abandoned", "call", "deadline", "lock", "thread")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.call: Call | None = None
        self.deadline = 0.0
        self.abandoned = False
        self.thread: threading.Thread

    def begin(self, call: Call, deadline: float) -> None:
        with self.lock:
            self.deadline = deadline
            self.call = call

    def end(self) -> bool:
        with self.lock:
            self.call = None
            return not self.abandoned

    def give_up(self, now: float) -> Call | None:
        with self.lock:
            if self.call is None or now < self.deadline:
                return None
            self.abandoned = True
            call, self.call = self.call, None
            return call


class Threads:
    """At most `workers` threads that count. One whose call has timed out counts no longer and is replaced."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._context: Context = copy_context()
        self._working: list[_Worker] = []  # those that count
        self._abandoned: list[_Worker] = []
        self._rows = 0
        self._made = 0
        self._over = False  # the task has ended: an abandoned thread touches nothing any more
        self._left = threading.Condition()

    # ------------------------------------------------------------------------------------------------ under the scheduler's lock
    def rows_came(self, rows: int) -> None:
        """No more threads than rows."""
        limit = self._engine.settings.workers
        if len(self._working) < limit:
            self._rows += rows
            while len(self._working) < min(limit, self._rows) and not self._engine.stopping:
                self._add()

    def give_up(self, now: float) -> tuple[list[Call], float]:
        """Abandon the threads whose call is over its time; those calls, and the next deadline."""
        overdue: list[Call] = []
        for worker in list(self._working):
            call = worker.give_up(now)
            if call is not None:
                overdue.append(call)
                self._abandon(worker)
        deadlines = [worker.deadline for worker in self._working if worker.call is not None]
        return overdue, min(deadlines, default=float("inf"))

    def _abandon(self, worker: _Worker) -> None:
        engine = self._engine
        with self._left:
            self._working.remove(worker)
            self._abandoned = [other for other in self._abandoned if other.thread.is_alive()]
            self._abandoned.append(worker)
            self._left.notify_all()
        limit = engine.settings.workers
        if len(self._abandoned) > limit:
            seconds = engine.settings.timeout
            engine.fail_locked(RuntimeError(f"timeout: {len(self._abandoned)} calls run on after {seconds} s (expected: at most workers, {limit})"))
        elif not engine.stopping:
            self._add()

    def _add(self) -> None:
        worker = _Worker()
        self._made += 1
        worker.thread = threading.Thread(
            target=self._context.copy().run, args=(self._work, worker), name=f"manytail-worker-{self._made}", daemon=True
        )
        with self._left:
            self._working.append(worker)  # before it runs, because it takes itself off the list when it ends
        try:
            worker.thread.start()
        except RuntimeError as error:  # the system has no more threads to give
            with self._left:
                self._working.remove(worker)
            error.add_note(f"manytail: after {self._made - 1} worker threads (workers={self._engine.settings.workers})")
            self._engine.fail_locked(error)

    # ------------------------------------------------------------------------------------------------ the end, in the task's thread
    def join(self) -> None:
        """Until no thread that counts is left. The queue has been shut down."""
        threads = [worker.thread for worker in self._working]
        with self._left:
            self._left.wait_for(lambda: not self._working)
            abandoned = {worker.thread for worker in self._abandoned}
        for thread in threads:
            if thread not in abandoned:
                thread.join()

    def part(self, seconds: float) -> list[threading.Thread]:
        """Give abandoned threads a last moment; those that stay."""
        end = time.monotonic() + seconds
        for worker in self._abandoned:
            worker.thread.join(max(0.0, end - time.monotonic()))
        self._over = True
        return [worker.thread for worker in self._abandoned if worker.thread.is_alive()]

    # ------------------------------------------------------------------------------------------------ a worker thread
    def _work(self, worker: _Worker) -> None:
        engine = self._engine
        try:
            arguments, close = _open(engine.settings.setup)
            try:
                invoke = engine.caller(arguments)
                if engine.settings.timeout is None:
                    self._serve(invoke)
                else:
                    self._serve_timed(worker, invoke, engine.settings.timeout)
            finally:
                if not (worker.abandoned and self._over):
                    close(engine.failure)
        except BaseException as error:
            if worker.abandoned:
                log.warning("manytail: closing the resource of a call that ran out of time failed", exc_info=True)
            else:
                engine.fail(error)
        finally:
            with self._left:
                if worker in self._working:
                    self._working.remove(worker)
                self._left.notify_all()

    def _serve(self, invoke: Callable[[Call], Any]) -> None:
        engine, get = self._engine, self._engine.queue.get
        started, succeeded = engine.attempt_started, engine.attempt_succeeded
        while True:
            call = value = None  # an idle worker keeps no row alive
            try:
                call = get()
            except ShutDown:
                return
            if engine.halted:
                return
            started(call)
            try:
                value = invoke(call)
            except BaseException as error:
                engine.attempt_failed(call, error)
            else:
                succeeded(call, value)

    def _serve_timed(self, worker: _Worker, invoke: Callable[[Call], Any], timeout: float) -> None:
        engine, get = self._engine, self._engine.queue.get
        while True:
            call = value = None
            try:
                call = get()
            except ShutDown:
                return
            if engine.halted:
                return
            engine.attempt_started(call)
            worker.begin(call, time.monotonic() + timeout)
            try:
                value = invoke(call)
            except BaseException as error:
                if not worker.end():
                    return
                engine.attempt_failed(call, error)
            else:
                if not worker.end():
                    return
                engine.attempt_succeeded(call, value)


class Coroutines:
    """`workers` coroutines in a loop of their own, each with one row at a time; at a timeout the call is cancelled."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread: threading.Thread | None = None

    def rows_came(self, rows: int) -> None:
        if self._thread is None:
            context = copy_context()
            self._thread = threading.Thread(target=context.run, args=(self._run,), name="manytail-loop", daemon=True)
            self._thread.start()

    def give_up(self, now: float) -> tuple[list[Call], float]:
        return [], float("inf")

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def part(self, seconds: float) -> list[threading.Thread]:
        return []

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._engine.fail(error)

    async def _main(self) -> None:
        engine = self._engine
        arguments, close = await _open_async(engine.settings.setup)
        try:
            invoke = engine.caller(arguments)
            runners = [asyncio.create_task(self._serve(invoke)) for _ in range(engine.settings.workers)]
            await asyncio.gather(*runners)
        finally:
            closing = close(engine.failure)
            if inspect.isawaitable(closing):
                await closing

    async def _serve(self, invoke: Callable[[Call], Any]) -> None:
        engine = self._engine
        while True:
            call = value = None
            try:
                call = await engine.queue.aget()
            except ShutDown:
                return
            if engine.halted:
                return
            engine.attempt_started(call)
            try:
                value = await self._attempt(invoke, call)
            except BaseException as error:
                engine.attempt_failed(call, error)
            else:
                engine.attempt_succeeded(call, value)
            await asyncio.sleep(0)  # a call that never waited must not keep the others from going on

    async def _attempt(self, invoke: Callable[[Call], Any], call: Call) -> Any:
        seconds = self._engine.settings.timeout
        if seconds is None:
            return await invoke(call)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                value = await invoke(call)
        except BaseException as error:
            if limit.expired() and not isinstance(error, TimeoutError):
                raise TimeoutError(f"timeout: no result within {seconds} s") from error
            raise
        if limit.expired():  # it swallowed its cancellation
            raise TimeoutError(f"timeout: no result within {seconds} s")
        return value
