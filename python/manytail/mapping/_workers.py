"""The workers, which run the calls: daemon threads for a plain function, coroutines for an `async def`.

Both take items from the scheduler's queue with a blocking get and report to the runner. Neither decides anything. The
first items start the workers: an empty input starts none, and calls no setup.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from types import CoroutineType
from typing import Any

from manytail._sync import Event, Held
from manytail._timings import Timings, now
from manytail.errors import ShutDown

from . import _logs
from ._item import Work
from ._runner import Runner
from ._threads import Thread
from ._window import LIGHT, SHORT

JOIN_TIMEOUT = 0.05  # seconds that the end of a map waits for calls that it has abandoned
# For how long a worker whose calls never wait keeps its loop.
TURN_CALLS = 16
TURN_TIME = 0.0005  # seconds


def exit_arguments(error: BaseException | None) -> tuple[Any, Any, Any]:
    """The arguments for `__exit__` of a resource: the error of the map, or None."""
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def enter_setup(stack: ExitStack, setup: Callable[[], Any] | None) -> dict[str, Any]:
    """Call `setup`. Returns keyword arguments for the calls of one worker thread. The stack closes the resource."""
    if setup is None:
        return {}
    made = setup()
    if hasattr(type(made), "__enter__") and hasattr(type(made), "__exit__"):
        return {"resource": stack.enter_context(made)}
    if callable(close := getattr(made, "close", None)):
        stack.callback(close)
    return {"resource": made}


async def enter_setup_async(stack: AsyncExitStack, setup: Callable[[], Any] | None) -> dict[str, Any]:
    """`enter_setup` for the coroutines of a loop. Asynchronous methods that enter or close go before plain ones."""
    if setup is None:
        return {}
    made: Any = setup()
    if inspect.isawaitable(made):
        made = await made
    if hasattr(type(made), "__aenter__") and hasattr(type(made), "__aexit__"):
        return {"resource": await stack.enter_async_context(made)}
    if hasattr(type(made), "__enter__") and hasattr(type(made), "__exit__"):
        return {"resource": stack.enter_context(made)}
    if callable(close := getattr(made, "aclose", None) or getattr(made, "close", None)):
        stack.push_async_callback(_close, close)
    return {"resource": made}


async def _close(close: Callable[[], Any]) -> None:
    closing = close()
    if inspect.isawaitable(closing):
        await closing


def refuse_awaitable(value: Any) -> Any:
    """The value, unless it is a coroutine that nothing would run."""
    if type(value) is CoroutineType:
        value.close()  # otherwise Python warns that it was never awaited
        raise TypeError("fn returned a coroutine (expected: a result, or an `async def` function)")
    return value


class _Worker:
    """One thread and, if calls are timed, the item that it runs.

    When the thread ends a call while the timer abandons it, the first of `end` and `give_up` wins. An abandoned call
    reports nothing, and its thread ends.
    """

    __slots__ = ("abandoned", "item", "lock", "overdue", "thread")

    def __init__(self, overdue: tuple[Work, BaseException] | None) -> None:
        self.lock = threading.Lock()
        self.item: Work | None = None
        self.overdue = overdue
        self.abandoned = False
        self.thread: Thread

    def begin(self, item: Work) -> None:
        with Held(self.lock):
            self.item = item

    def end(self) -> bool:
        """The call has ended. False: it was abandoned before."""
        with Held(self.lock):
            self.item = None
            return not self.abandoned

    def give_up(self, item: Work) -> bool:
        """Abandon the call. False: it has ended."""
        with Held(self.lock):
            if self.item is not item:
                return False
            self.abandoned, self.item = True, None
            return True


class ThreadWorkers:
    """As many threads as calls may run at once, at most `workers`. A thread whose call was abandoned is replaced, and
    does not count."""

    def __init__(self, runner: Runner) -> None:
        self._runner: Any = runner  # a ThreadRunner, which imports this module
        self._limit = runner.options.workers
        self._timed = runner.options.timeout is not None or runner.options.deadline is not None
        self._threads: list[Thread] = []  # started and perhaps alive, including abandoned ones
        self._counting: list[_Worker] = []  # at most `workers`
        self._abandoned: list[_Worker] = []
        self._at_work: dict[Work, _Worker] = {}  # where calls are timed
        self._items = 0  # that came, until all threads are started
        self._made = 0  # threads, for their names
        self._over = False  # the map has ended: an abandoned thread does not close its resource
        self._lock = threading.RLock()  # guards the two lists of workers; finalizers take it again
        self._left = Event()  # a worker has left `_counting`

    # ------------------------------------------------------------------------------------------ under the runner's lock
    def items_came(self, items: int) -> None:
        """Start threads, no more than items have come or are in flight."""
        if len(self._counting) < self._limit:
            self._items += items
            scheduler = self._runner.scheduler
            wanted = min(scheduler.allowed, self._items, self._runner.in_flight)
            for _ in range(wanted - len(self._counting)):
                if scheduler.halted or not self._add():
                    return

    def lacks(self, items: int) -> bool:
        """Whether a thread should be started when so many items are in flight. Any thread may ask."""
        return len(self._counting) < min(items, self._limit)

    def abandon(self, item: Work, error: BaseException) -> bool:
        worker = self._at_work.get(item)
        if worker is None or not worker.give_up(item):
            return False
        del self._at_work[item]
        with Held(self._lock):  # in one step: `join` waits for nobody who is in neither list
            self._leave(worker)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._abandoned = [other for other in self._abandoned if other.thread.is_alive()]
            self._abandoned.append(worker)
        scheduler = self._runner.scheduler
        if scheduler.expired:
            return True  # no call starts: no thread is replaced, and the limit on abandoned calls does not apply
        if len(self._abandoned) > self._limit:
            seconds = self._runner.options.timeout
            scheduler.fail(
                RuntimeError(
                    f"timeout: {len(self._abandoned)} calls still run after {seconds} s "
                    f"(expected: at most workers, {self._limit})"
                )
            )
        elif not self._runner.stopping and self._add((item, error)):
            return False
        return True

    def _add(self, overdue: tuple[Work, BaseException] | None = None) -> bool:
        """Start a thread. overdue: a call that was abandoned, and why. The thread reports it first: `on` and
        `backoff` may take their time, so the timer must not call them."""
        worker = _Worker(overdue)
        self._made += 1
        worker.thread = self._runner.thread(self._work, f"manytail-worker-{self._made}", worker)
        with Held(self._lock):
            self._counting.append(worker)  # before the thread runs: at its end it removes itself from the list
        self._threads.append(worker.thread)  # before it runs: it may ask whether it is one of them
        try:
            worker.thread.start()
        except RuntimeError as error:  # the system has no more threads to give
            self._threads.remove(worker.thread)
            self._leave(worker)
            error.add_note(f"manytail: after {self._made - 1} worker threads (workers={self._limit})")
            self._runner.scheduler.fail(error)
            return False
        except MemoryError:
            self._leave(worker)  # its thread may run all the same: then `join` waits for that
            raise
        return True

    def _leave(self, worker: _Worker) -> bool:
        """Whether it was the last one. `join` waits for this, so it must not fail for want of memory."""
        while True:
            try:
                with Held(self._lock):
                    if worker in self._counting:
                        self._counting.remove(worker)
                    self._left.set()
                    return not self._counting
            except MemoryError:
                continue

    def stop(self, cancel: bool) -> None:
        """The queue has been shut down: threads end after the call that they run."""

    def busy(self) -> bool:
        with Held(self._lock):
            return self._are_counting()

    def _are_counting(self) -> bool:
        """Drop those whose start was interrupted: nothing else takes them off the list. Under `_lock`."""
        self._counting = [worker for worker in self._counting if not worker.thread.never_runs()]
        return bool(self._counting)

    def _has_to_wait(self) -> bool:
        with Held(self._lock):
            waits = self._are_counting()
            if waits:  # else another thread in `join` may still wait for what the last one has set
                self._left.clear()
            return waits

    def threads(self) -> Sequence[threading.Thread]:
        return self._threads

    # ---------------------------------------------------------------------- the end, in the consumer's thread
    def join(self) -> None:
        """Wait until all threads have ended. Abandoned ones get JOIN_TIMEOUT, and are logged if they stay."""
        while self._has_to_wait():
            self._left.wait()
        with Held(self._lock):
            abandoned = {worker.thread for worker in self._abandoned}
        for thread in self._threads:
            if thread not in abandoned:
                thread.join()
        if self._over:  # these have had their time
            return
        end = time.monotonic() + JOIN_TIMEOUT
        for thread in abandoned:
            thread.join(max(0.0, end - time.monotonic()))
        self._over = True
        if stuck := [thread.name for thread in abandoned if thread.is_alive()]:
            _logs.warning("%d calls that ran out of time are still running: %s", len(stuck), ", ".join(stuck))

    # ------------------------------------------------------------------------------------------------ a worker thread
    def _work(self, worker: _Worker) -> None:
        runner = self._runner
        try:
            if runner.owner is not None:
                runner.owner.hold()
            stack = ExitStack()
            if worker.overdue is not None:
                runner.timed_out(*worker.overdue)
                worker.overdue = None  # an idle worker keeps no item alive
            try:
                call = runner.call_with(enter_setup(stack, runner.options.setup))
                timings = Timings()
                runner.worker_came(timings)
                try:
                    self._serve(worker, call, timings)
                finally:
                    runner.worker_left(timings)
            finally:
                if not (worker.abandoned and self._over):
                    stack.__exit__(*exit_arguments(runner.error()))
        except BaseException as error:
            if worker.abandoned:
                _logs.warning("closing the resource of a call that ran out of time failed", exc_info=True)
            else:
                runner.fail(error)
        finally:
            if self._leave(worker) and runner.stopping:
                runner.calls_ended()

    def _serve(self, worker: _Worker, call: Callable[[Any], Any], timings: Timings) -> None:
        """Make calls, until the queue is shut down, the map is halted, or a call is abandoned."""
        runner, scheduler = self._runner, self._runner.scheduler
        get, reports_starts, timed = scheduler.ready.get, scheduler.reports_starts, self._timed
        single, begin, end = runner.options.batch is None, timings.begin, timings.end
        memory = runner.memory
        succeeded = runner.succeeded if single else runner.returned
        asks, skip = runner.asks, runner.skip_late if memory is None else runner.skip
        window = scheduler.window
        weighs = window.weighs and single  # the results of a batch are weighed one by one
        if single and not timed and scheduler.gate is not None and memory is None:
            succeeded = runner.succeeded_next
        following = None  # its next call
        while True:
            item = result = None  # an idle worker keeps no item alive
            try:
                item = get() if following is None else following
            except ShutDown:
                return
            following = None
            if scheduler.halted:
                return
            if asks and skip(item):
                continue
            item.attempts += 1
            if timed:
                self._at_work[item] = worker
                item.began = now()
                worker.begin(item)
            if reports_starts:
                runner.report(scheduler.started, item, runner.now())
            begin()
            try:
                result = call(item)
            except BaseException as error:
                if timed and not self._end_timed(worker, item):
                    return
                item.began = timings.end_attempt()
                runner.failed(item, error)
            else:
                if timed and not self._end_timed(worker, item):
                    return
                item.result = result
                if weighs and (type(result) not in LIGHT or (type(result) is str and len(result) > SHORT)):
                    window.weigh(item, result)
                if single:
                    end(item.read)
                else:
                    item.began = timings.end_attempt()
                following = succeeded(item)
                if memory is not None and (recorded := memory.wait_for_backlog()) is not None:
                    recorded.result()

    def _end_timed(self, worker: _Worker, item: Work) -> bool:
        """False: the call was abandoned before. Then nothing of it counts."""
        return worker.end() and self._at_work.pop(item) is worker


class _AttemptTimeout:
    """Cancels one call of a coroutine when its time is over."""

    __slots__ = ("error", "open", "timeout")

    def __init__(self) -> None:
        self.timeout = asyncio.timeout(None)
        self.error: BaseException | None = None
        self.open = True

    def expire(self, error: BaseException) -> None:
        """Cancel the call, unless it has ended. Only in the loop."""
        if self.open and self.error is None:
            self.error = error
            self.timeout.reschedule(0.0)


class LoopWorkers:
    """As many coroutines in the running loop as calls may run at once, each with one item at a time; an overdue call is
    cancelled.

    Tasks are made in a later step of the loop, without the runner's lock: an eager task runs user code at once."""

    def __init__(self, runner: Runner, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._runner = runner
        self._loop = loop
        self._items = 0  # that came, until all coroutines are started
        self._started = 0
        self._group: asyncio.TaskGroup | None = None
        self._call: Callable[[Any], Any]
        self._timed = runner.options.timeout is not None or runner.options.deadline is not None
        self._timeouts: dict[Work, _AttemptTimeout] = {}
        self._task: asyncio.Task[None] | None = None
        self._closing = False  # whether all calls have ended, and the resource is being closed
        self._timings = Timings()
        runner.add_timings(self._timings)  # no event, which would begin to read

    def items_came(self, items: int) -> None:
        if self._started < self._runner.options.workers:
            self._items += items
            self._in_loop(self._add)

    def _in_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call it in a later step of the loop. No effect once that is closed: nothing is left to do."""
        assert self._loop is not None
        with suppress(RuntimeError):
            self._loop.call_soon(function, *arguments)

    def _add(self) -> None:
        """Start coroutines, no more than items have come."""
        if self._task is None and not self._runner.stopping:
            assert self._loop is not None
            self._task = self._runner.context.copy().run(self._loop.create_task, self.main())
        scheduler = self._runner.scheduler
        while self._group is not None and self._started < min(self._items, scheduler.allowed):
            if scheduler.halted:
                return
            self._started += 1
            self._runner.context.copy().run(self._group.create_task, self._serve(self._call))

    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def threads(self) -> Sequence[threading.Thread]:
        return []

    def abandon(self, item: Work, error: BaseException) -> bool:
        if item in self._timeouts:
            self._timeouts[item].expire(error)
        return False  # the coroutine reports the end of the call

    def stop(self, cancel: bool) -> None:
        if cancel:
            self._cancel_calls()

    def _cancel_calls(self) -> None:
        """Cancel what runs, but not the end of the resource: that would stay open. Only in the loop."""
        if self._task is not None and not self._closing:
            self._task.cancel()

    def join(self) -> None:
        raise NotImplementedError

    def when_ended(self, call: Callable[[], object]) -> None:
        """Call it when the last coroutine has ended."""
        if self._task is None or self._task.done():
            call()
        else:
            self._task.add_done_callback(lambda _: call())

    async def ended(self) -> None:
        """Wait until the last coroutine has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def main(self) -> None:
        runner, self._task = self._runner, asyncio.current_task()
        try:
            stack = AsyncExitStack()
            try:
                self._call = runner.call_with(await enter_setup_async(stack, runner.options.setup))
                await self._serve_all()
            finally:
                self._closing = True
                if not self._is_lost():
                    await stack.__aexit__(*exit_arguments(runner.error()))
        except asyncio.CancelledError:
            if not runner.stopping:
                runner.fail(RuntimeError("the loop of the map was cancelled"))
        except GeneratorExit:
            runner.fail(RuntimeError("the loop of the map was closed"))
            raise
        except BaseException as error:
            runner.fail(error)

    async def _serve_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._group:
                self._add()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    def _is_lost(self) -> bool:
        """Whether this code does not run in its loop: that is closed, and the coroutine is being collected."""
        return asyncio._get_running_loop() is not self._loop

    async def _serve(self, call: Callable[[Any], Any]) -> None:
        runner, scheduler = self._runner, self._runner.scheduler
        succeeded = runner.succeeded if runner.options.batch is None else runner.returned
        memory, reports_starts = runner.memory, scheduler.reports_starts
        if runner.owner is not None:
            runner.owner.hold()
        task: Any = asyncio.current_task()
        calls, turn_began = 0, now()  # since this worker has let the other tasks of the loop run
        while True:
            item: Any = None
            try:
                item = await scheduler.ready.aget()
            except ShutDown:
                return
            if scheduler.halted:
                return
            if memory is not None and not memory.is_fresh(item):
                await asyncio.wrap_future(memory.recall(item))
                if runner.skip_recalled(item):
                    continue
            if runner.skip_late(item):
                continue
            item.attempts += 1
            if reports_starts and not self._timed:
                runner.report(scheduler.started, item, runner.now())
            began = item.began = now()
            try:
                item.result = await (self._timed_call(call, item) if self._timed else call(item))
            except BaseException as error:
                if self._cancels_worker(error):
                    raise
                attempt = self._timeouts.pop(item, None)
                if attempt is not None and attempt.error is not None:
                    runner.timed_out(item, attempt.error)
                else:
                    self._timings.ended(began)
                    runner.failed(item, error)
            else:
                self._timeouts.pop(item, None)
                self._timings.ended(began)
                if runner.options.batch is None:
                    self._timings.last_began(began, item.read)
                    runner.weigh_result(item)
                succeeded(item)
            calls += 1
            if calls == TURN_CALLS or now() - turn_began > TURN_TIME or task.cancelling():
                try:
                    await asyncio.sleep(0)  # calls that never wait must not keep the others from running
                except asyncio.CancelledError as error:  # perhaps by the call, which ended before its next wait
                    if self._cancels_worker(error):
                        raise
                calls, turn_began = 0, now()
            if memory is not None and (recorded := memory.wait_for_backlog()) is not None:
                await asyncio.wrap_future(recorded)

    def _cancels_worker(self, error: BaseException) -> bool:
        """Whether the error ends the worker: the map or its loop ends. Any other CancelledError is the user's own. That
        of a call which has cancelled its own task is removed from the task."""
        if isinstance(error, GeneratorExit):
            return self._is_lost()
        if not isinstance(error, asyncio.CancelledError):
            return False
        assert self._task is not None
        if self._task.cancelling():
            return True
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        return False

    async def _timed_call(self, call: Callable[[Any], Any], item: Work) -> Any:
        runner = self._runner
        attempt = self._timeouts[item] = _AttemptTimeout()
        try:
            async with attempt.timeout:
                runner.report(runner.scheduler.started, item, runner.now())
                result = await call(item)
        except BaseException as error:
            if attempt.error is not None and attempt.error is not error and not isinstance(error, TimeoutError):
                attempt.error.__cause__ = error
            raise
        finally:
            attempt.open = False
        if attempt.error is not None:
            raise attempt.error  # the call ignored its cancellation
        return result


class CoroutineWorkers(LoopWorkers):
    """LoopWorkers in their own loop, which runs in its own thread."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self._thread: Thread | None = None
        self._running = False
        self._cancelled = False

    def items_came(self, items: int) -> None:
        if self._thread is None:
            self._items += items
            self._running = True
            run: Any = self._runner.context.copy().run
            self._thread = Thread(partial(run, self._run), "manytail-loop")
            self._thread.start()
        else:
            super().items_came(items)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._runner.fail(error)
        finally:
            self._running = False
            if self._runner.stopping:
                self._runner.calls_ended()

    async def _main(self) -> None:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        if not self._cancelled:
            await self.main()

    def _in_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        if self._loop is not None:  # else it begins, and looks at what has come by then
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *arguments)

    def busy(self) -> bool:
        return self._running and self._thread is not None and not self._thread.never_runs()

    def threads(self) -> Sequence[threading.Thread]:
        return [] if self._thread is None else [self._thread]

    def abandon(self, item: Work, error: BaseException) -> bool:
        if (attempt := self._timeouts.get(item)) is not None:
            self._in_loop(attempt.expire, error)
        return False

    def stop(self, cancel: bool) -> None:
        if cancel and not self._cancelled:
            self._cancelled = True
            self._in_loop(self._cancel_calls)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()
