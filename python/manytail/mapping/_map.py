"""`concurrent_map` and `aconcurrent_map`: check the options, run a scheduler (`_runner`), return its results.

Threads. `Results` belongs to the consumer, one thread at a time. `Plan` is immutable; the reader makes items with it,
workers make calls with it.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from types import CoroutineType
from typing import Any, NoReturn, Self, TypeVar
from weakref import WeakSet

from manytail import _checks
from manytail._lifecycle import after_fork_in_child, refuse_copy
from manytail._progress import INTERVAL, Meter, display_of
from manytail._timings import now

from . import _options
from ._errors import note_option
from ._idempotency import idempotency_key
from ._inline_runner import InlineRunner
from ._item import Item, ItemBatch, Work, batch_result, deliver_call, note_item
from ._limits import Limit, checked_amount
from ._loop_event import running_loop
from ._loop_runner import LoopRunner
from ._options import Option, Options
from ._progress import InlineTicker, Ticker
from ._remember import Memory
from ._runner import Runner, insist
from ._scheduler import Scheduler
from ._thread_runner import ThreadRunner
from ._types import Delivery, Outcome, Stats
from ._window import LIGHT, SHORT
from ._workers import refuse_awaitable

_R = TypeVar("_R")
_I = TypeVar("_I", bound=Item)
NEVER_BLOCK = (list, tuple, range)  # types of inputs
STRIDES = 8  # of the window: what the consumer takes in one of them becomes free together
CHUNK = 64  # items that are read at a time of an input that never blocks


@_options.described(_options.OPTIONS)
def concurrent_map(fn: Callable[..., Any], items: Iterable[Any], **options: Any) -> Results[Any]:
    """Call `fn(item)` on every item, with many calls at once, and return an iterator over the results.

    The results come in input order, unless `order` says otherwise. The input is read lazily, in a separate thread: an
    item is taken only when there is room for it (see `max_in_flight`). If reading `items` raises an exception, it is
    raised after the results of the items before it. If fn has a parameter named `delivery`, it gets a Delivery, which
    describes the call. To end early, call `close()` on the iterator or use it in a `with` block: no further call
    starts, and running calls are waited for. The garbage collector does the same without waiting.

    Options: those of docs/reference/options.md.

    Raises ValueError or TypeError for a bad option before any item is taken. Blocking.

    >>> list(concurrent_map(str.upper, ["a", "b"], workers=2))
    ['A', 'B']
    """
    if not isinstance(items, Iterable):
        raise _checks.bad_type("items", items, "an iterable")
    plan = plan_of("concurrent_map", fn, options)
    values = items if type(items) in NEVER_BLOCK else iter(items)
    return Results(plan, values, items)


@_options.described(_options.LOOP_OPTIONS)
def aconcurrent_map(
    fn: Callable[..., Any], items: Iterable[Any] | AsyncIterable[Any], **options: Any
) -> AsyncResults[Any]:
    """`concurrent_map` for asyncio: fn is an `async def` function, and everything runs in your event loop.

    Use it as `async with aconcurrent_map(...) as results: async for result in results: ...`. A plain iterable is read
    in the loop, so it must not block. If your task is cancelled, the map ends as with aclose(); this never counts as
    the failure of an item. Threads are started only for database access, with `remember` or `shared`.

    It has the same options and errors as concurrent_map, except that workers="inline" is not allowed. The map waits in
    your event loop and does not block other tasks there.
    """
    if not isinstance(items, (Iterable, AsyncIterable)):
        raise _checks.bad_type("items", items, "an iterable or async iterable")
    if not _checks.is_async(fn):
        raise _checks.bad_type("fn", fn, "an `async def` function; concurrent_map takes plain ones")
    if options.get("workers") == "inline":
        raise _checks.bad_value("workers", "inline", "an int >= 1; concurrent_map takes it, where no loop runs")
    return AsyncResults(plan_of("aconcurrent_map", fn, options), items, copy_context())


# ---------------------------------------------------------------------------------------------------- what both share
@dataclass(frozen=True)
class Plan:
    """A map before it runs: its checked options, and how items and calls are made."""

    fn: Callable[..., Any]
    options: Options
    describes: bool  # whether something of an item is computed from its value: key, priority, costs, identity

    def memory(self) -> Memory | None:
        shared = self.options.remember
        return None if shared is None else Memory(shared, shared.codec, inline=self.options.inline)

    def runner(self) -> ThreadRunner | InlineRunner:
        return runner_of(self.options)(self.scheduler(), self.call_with, memory=self.memory())

    def start(self, runner: ThreadRunner | InlineRunner, values: Iterable[Any]) -> None:
        """Begin to read the input."""
        source = Source(self, runner, values)
        runner.start(source, never_blocks=source.never_blocks)

    def scheduler(self, shared: bool = False) -> Scheduler:
        """shared: many threads make its items."""
        weights = self.options.weights
        weight_of = None if weights is None else lambda item: weights.get(item.key, 1)
        return Scheduler(self.options, weight_of=weight_of, shared=shared, weighs=not shared)

    def item(
        self,
        scheduler: Scheduler,
        value: Any,
        kind: type[_I] = Item,  # type: ignore[assignment]
        number: int | None = None,
    ) -> _I:
        """The item of a value. What `key`, `priority`, a limit's `cost` or `item_id` raises fails the item without a
        call. With a key it keeps its place in the order."""
        item = kind(value, None, 0, now(), number)
        try:
            if self.describes:
                self._describe(item, value, scheduler.expired)
            scheduler.admission.assign((item,))
        except BaseException as error:
            item.error = error
            scheduler.admission.assign_alone(item)
        if item.error is not None:
            failure = scheduler.failure(item.error)
            item.error, item.fatal = failure.error, failure.fatal
            del failure  # the error's traceback refers to this frame
        return item

    def _describe(self, item: Item, value: Any, expired: bool) -> None:
        """Set what the options compute from the value. Raises what `key` raises."""
        asked = "key"
        try:
            if self.options.key is not None:
                item.key = self.options.key(value)
            asked = "priority"
            if self.options.priority is not None:
                item.priority = priority_of(self.options.priority(value))
            asked = "cost"
            if self.options.has_costs:
                limits = self.options.limits
                item.costs = tuple(1.0 if limit.cost is None else cost_of(limit, value) for limit in limits)
            asked = "item_id"
            if self.options.remember is not None or (self.options.dedup is not None and not expired):
                item.identity = self.identity(value)
        except BaseException as error:
            note_option(error, asked)
            if asked == "key":
                raise
            item.error = error

    def identity(self, value: Any) -> str:
        options = self.options
        if options.item_id is not None:
            return idempotency_key(options.item_id(value), "item_id")
        option = "remember" if options.remember is not None else "dedup" if options.dedup is not None else "delivery"
        return idempotency_key(value, option, "; or item_id=, a function that makes one of them")

    def call_with(self, resource: dict[str, Any]) -> Callable[[Any], Any]:
        """The function that a worker calls with each item. resource: keyword arguments for fn, from `setup`.

        An error of fn refers to the frames of its callers. None of these holds the item, which will hold the error:
        such a cycle would keep all that fn worked on until the collector comes."""
        fn, delivers = self.fn, self.options.wants_delivery
        if self.options.batch is not None:
            return self._call_batches_with(resource)
        if self.options.is_async:
            if not delivers:
                return lambda item: fn(item.value, **resource)

            async def deliver_async(item: Item) -> Any:
                value = item.value
                with self.delivery(item) as delivery:
                    del item
                    return await fn(value, delivery=delivery, **resource)

            return deliver_async
        if not resource and not delivers:

            def call(item: Item) -> Any:
                value = item.value
                del item
                result = fn(value)
                return refuse_awaitable(result) if type(result) is CoroutineType else result  # most often no call

            return call
        if not delivers:

            def call_with_resource(item: Item) -> Any:
                value = item.value
                del item
                return refuse_awaitable(fn(value, **resource))

            return call_with_resource

        def deliver(item: Item) -> Any:
            value = item.value
            with self.delivery(item) as delivery:
                del item
                return refuse_awaitable(fn(value, delivery=delivery, **resource))

        return deliver

    def _call_batches_with(self, resource: dict[str, Any]) -> Callable[[Any], Any]:
        fn, delivers = self.fn, self.options.wants_delivery

        def call(batch: ItemBatch) -> Any:
            values = [item.value for item in batch.to_call()]
            if not values:
                return batch.with_known([])
            given = len(values)  # first: the list is fn's, which may change it
            try:
                with self.delivery(batch) if delivers else nullcontext() as delivery:
                    extra = {"delivery": delivery, **resource} if delivers else resource
                    return batch.with_known(batch_result(refuse_awaitable(fn(values, **extra)), given))
            finally:
                del batch

        async def call_async(batch: ItemBatch) -> Any:
            values = [item.value for item in batch.to_call()]
            if not values:
                return batch.with_known([])
            given = len(values)
            try:
                with self.delivery(batch) if delivers else nullcontext() as delivery:
                    extra = {"delivery": delivery, **resource} if delivers else resource
                    return batch.with_known(batch_result(await fn(values, **extra), given))
            finally:
                del batch

        return call_async if self.options.is_async else call

    def delivery(self, call: Work) -> Delivery:
        """The Delivery of a call that begins. It does not refer to the item, which refers to it."""
        items = call.to_call()
        if self.options.identifies:
            keys = [item.identity for item in items]
            identify: Callable[[], Any] = (lambda: keys) if isinstance(call, ItemBatch) else (lambda: keys[0])
        elif isinstance(call, ItemBatch):
            identify = partial(self._identities, [item.value for item in items])
        else:
            identify = partial(self.identity, items[0].value)
        return deliver_call(call, identify, self.options.spent_names)

    def _identities(self, values: list[Any]) -> list[str]:
        return [self.identity(value) for value in values]

    def result(self, item: Item) -> Any:
        """What the consumer gets for a finished item."""
        if self.options.errors != "return":
            return item.result
        error = item.error
        if error is None:
            return Outcome(item.value, item.result, None, item.attempts, item.key)
        item.error = None  # its traceback may refer to the item, through a function of an option
        return Outcome(item.value, None, error, item.attempts, item.key)


def plan_of(
    function: str, fn: Callable[..., Any], given: dict[str, Any], allowed: Sequence[Option] = _options.OPTIONS
) -> Plan:
    """The plan of a map, or of a Caller, with these options, which it checks."""
    _checks.refuse_unknown(function, given, [one.name for one in allowed])
    options = _options.check(fn, given)
    _options.refuse_per_task(options.limits)
    for limit in options.limits:
        if limit.cost is not None and not callable(limit.cost):
            raise _checks.bad_value("limits", limit, "a cost that is a function; names of columns are for frames")
    costs = any(limit.cost is not None for limit in options.limits)
    return Plan(fn, options, options.identifies or options.keyed or options.prioritised or costs)


def runner_of(options: Options) -> type[ThreadRunner] | type[InlineRunner]:
    """What runs a map whose results a thread takes."""
    return InlineRunner if options.inline else ThreadRunner


def priority_of(value: Any) -> float:
    """The priority that a function has returned, as the scheduler has it."""
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int):
        raise _checks.bad_type("priority", value, "an int or None")
    return value


def cost_of(limit: Limit, value: Any) -> float:
    """What an item takes of the limit. ValueError: of any type that it cannot be, as of a bad number."""
    cost = limit.cost(value)
    try:
        return checked_amount("cost", cost)
    except TypeError as error:
        raise ValueError(str(error)) from None


class Source(Iterator[list[Item]]):
    """The items of an input.

    One at a time, because the input and the functions of an item (`key`, ...) may block: an item that was read must not
    wait for the next one. Several at a time of a list, tuple or range without such functions: reading these never
    blocks and runs no user code, so the runner may do without a reader thread.

    No generator: its frame would keep the last item alive while the input waits.
    """

    def __init__(self, plan: Plan, runner: Runner, values: Iterable[Any]) -> None:
        self._plan = plan
        self._runner = runner
        self._input = values  # kept: the last reference to a list is not dropped under a lock
        self._values = iter(values)
        self._numbers = count()
        options = plan.options
        asks = any(function is not None for function in (options.key, options.priority, options.item_id))
        asks = asks or any(limit.cost is not None for limit in options.limits)
        self.never_blocks = type(values) in NEVER_BLOCK and not asks
        # What the input keeps alive needs no memory of the window.
        self._weighs = runner.scheduler.window.weighs and type(values) not in NEVER_BLOCK

    def __next__(self) -> list[Item]:
        make, scheduler, numbers = self._plan.item, self._runner.scheduler, self._numbers
        if not self.never_blocks:
            value = next(self._values)
            item: Item = make(scheduler, value, number=next(numbers))
            if self._weighs and (type(value) not in LIGHT or (type(value) is str and len(value) > SHORT)):
                scheduler.window.weigh(item, value)
            return [item]
        values = islice(self._values, min(self._runner.room, CHUNK))
        if self._plan.describes:
            pairs = zip(values, numbers, strict=False)  # in this order: else the end of `values` takes a number
            items = [make(scheduler, value, number=number) for value, number in pairs]
        else:
            read = now()
            items = [Item(value, None, 0, read, number) for value, number in zip(values, numbers, strict=False)]
            scheduler.admission.assign(items)
        if not items:
            raise StopIteration
        return items


def final_error(runner: Runner) -> BaseException | None:
    """What the map raises after its last result."""
    scheduler = runner.scheduler
    error = scheduler.input_error if scheduler.error is None and scheduler.over else scheduler.error
    if error is None:
        return None
    if isinstance(error, (StopIteration, StopAsyncIteration)):  # raised by an iterator it would end the results
        wrapped = RuntimeError(f"{type(error).__qualname__}: {error}")
        wrapped.__cause__ = error
        error = wrapped
    if scheduler.failing is not None and scheduler.error is scheduler.failing.error:
        note_item(error, scheduler.failing)
    return error


class Taken:
    """Counts the items that the consumer has taken and whose slots are not free. They become free in strides: each
    report may wake the reader and a worker."""

    def __init__(self, runner: Runner, meter: Meter) -> None:
        self._runner = runner
        self._meter = meter
        self._stride = 1
        self._window = runner.scheduler.window

    def add_one(self, item: Item) -> None:
        runner = self._runner
        if self._window.has_weights:
            self._window.left(item)
        runner.taken += 1
        if runner.taken >= self._stride:
            self.report()

    def report(self) -> None:
        items, self._runner.taken = self._runner.taken, 0
        if items:
            scheduler = self._runner.scheduler
            self._runner.report(scheduler.took, items)
            self._meter.sample()
            self._stride = scheduler.window.size // STRIDES


# ---------------------------------------------------------------------------------------------------- in threads
class Results(Iterator[_R]):
    """The iterator that `concurrent_map` returns.

    Any exception from next() ends the iteration, including one raised by a signal handler. Take results in one thread
    at a time; `stop`, `close` and `stats` may be called in any thread. If you drop the iterator, the garbage collector
    ends the map. In a forked child, `next` and `stats` raise RuntimeError, and `close` does nothing. All methods except
    `stop` and `stats` may block.
    """

    def __init__(self, plan: Plan, values: Iterable[Any], items: Iterable[Any]) -> None:
        """values: what is read of `items`."""
        self._plan = plan
        self._values: Iterable[Any] | None = values
        self._items: Iterable[Any] | None = items
        self._over = False  # there are no more results
        self._ended = False  # `close` has done its work
        self._is_parents = False  # this process is a child that was forked since: the map runs in the parent alone
        self._make_turn()
        self._ticker: Ticker | InlineTicker | None = None
        self._runner = plan.runner()
        self._scheduler = scheduler = self._runner.scheduler
        self._output = scheduler.output
        self._meter = Meter(self._runner.stats)
        self._taken = Taken(self._runner, self._meter)
        if not plan.options.inline:
            _results.add(self)

    def _make_turn(self) -> None:
        turn = threading.Lock()
        self._take_turn, self._end_turn = partial(turn.acquire, False), turn.release

    def _after_fork(self) -> None:
        """In the child: the threads are the parent's, and so are the results."""
        self._over = self._ended = self._is_parents = True
        self._make_turn()

    def _refuse_in_child(self) -> None:
        if self._is_parents:
            raise RuntimeError("results of a map of the parent process (expected: a map that this process makes)")

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "a map runs once, in this process", "pass on a list of its results")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _R:
        if self._is_parents:
            self._refuse_in_child()
        try:
            for _ in iter(self._take_turn, False):  # a `for`, as in `Runner.settle`
                try:
                    return self._next()
                finally:
                    self._end_turn()
        except BaseException:  # also after a result was taken, which is lost then
            self._stop()
            raise
        raise ValueError("results already executing: next() runs in another thread, or was interrupted by this call")

    def _next(self) -> _R:
        if self._over:
            raise StopIteration
        while not self._output:
            self._taken.report()
            self._wait()
        item = self._output.popleft()
        self._taken.add_one(item)
        result: _R = self._plan.result(item)
        return result

    def _wait(self) -> None:
        """Wait until the output has an item. At the end raises StopIteration or the error of the map."""
        runner = self._runner
        if self._values is not None and not runner.stopping:
            self._start()
        runner.wait()
        if self._output or not (runner.stopping or self._scheduler.over):
            if self._scheduler.over:
                runner.stop()  # its threads end, and the last results do not wait for them
            return
        runner.close()
        if runner.stopped_by_user:
            runner.locked(self._scheduler.emit_done)
        if not self._output:
            runner.flush()
            self._scheduler.drop()  # before the last report of progress
            self._end()
            error = self._final_error()
            self._scheduler.forget_errors()
            try:
                raise StopIteration if error is None else error
            finally:
                del error  # it refers to this frame

    def _final_error(self) -> BaseException | None:
        return final_error(self._runner)

    def _start(self) -> None:
        plan, values, items = self._plan, self._values, self._items
        self._values = self._items = None
        if values is None:  # a signal handler has closed the map since `_wait` looked
            return
        show = display_of(plan.options.progress, items)
        self._meter.begin()
        if show is not None:
            self._ticker = self._runner.ticker(Meter(self._runner.stats, show))
            self._ticker.start()
        plan.start(self._runner, values)

    def _stop(self) -> None:
        """No more results come, and no call starts. Waits for nothing."""
        self._over = True
        if not self._ended:
            self._runner.drop()
            if self._ticker is not None:
                self._ticker.stop(wait=False)

    def _end(self) -> None:
        self._over = True
        self._runner.source = None
        if self._ticker is not None:
            self._ticker.stop()
        self._ended = True

    def stop(self) -> None:
        """End gracefully: no further item is taken and no call starts. The results of running calls are still yielded.
        Returns at once, and may be called in a signal handler."""
        if self._is_parents:
            return
        self._runner.stopped_by_user = True
        self._runner.stop()

    def stats(self) -> Stats:
        """Return the progress of the map. If a signal handler raises an exception during this call, the map ends, as in
        `next`."""
        self._refuse_in_child()
        try:
            seen: Stats = self._meter.seen()
        except BaseException:  # perhaps after a success was taken from the events, which is lost then
            self._stop()
            raise
        return seen

    def close(self) -> None:
        """End now: no further call starts, coroutines are cancelled, running calls are waited for, and their results
        are dropped.

        If it is interrupted, call it again to continue. Raises RuntimeError if fn or the input of this map calls it,
        because it would wait for itself. In a signal handler that interrupts this map's own work, it does not wait.
        """
        if self._is_parents:
            return
        self._values = self._items = None
        self._runner.close(cancel=True)
        if self._runner.interrupts_itself():
            return
        self._runner.flush()
        self._runner.locked(self._scheduler.drop)
        self._end()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end all threads are gone or frozen, and modules lose their names.
        if hasattr(self, "_runner") and not finalizing():
            interruption = insist(self._stop)
            self._output.clear()
            if interruption is not None:
                raise interruption


_results: WeakSet[Results[Any]] = WeakSet()


def _leave_all() -> None:
    for results in list(_results):
        results._after_fork()


after_fork_in_child(_leave_all)


# ---------------------------------------------------------------------------------------------- in the caller's loop
class AsyncResults(AsyncIterator[_R]):
    """The asynchronous iterator that `aconcurrent_map` returns.

    Any exception from anext() ends the iteration. Take results in one task at a time. If that task is cancelled, the
    map ends as with `aclose`, and another `anext` raises RuntimeError. If a coroutine that iterates over the results is
    closed or garbage-collected, the map ends without waiting. The iterator waits in your event loop and does not block
    other tasks there.
    """

    def __init__(self, plan: Plan, items: Iterable[Any] | AsyncIterable[Any], context: Context) -> None:
        self._plan = plan
        self._items: Any = items
        self._context = context
        self._run: _Run | None = None  # from the first `anext` on
        self._taking = False
        self._over = False  # there are no more results
        self._cancelled = False  # an `anext` was, and has ended the map: results are missing

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "a map runs once, in this process", "pass on a list of its results")

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def __anext__(self) -> _R:
        if self._taking:
            raise RuntimeError("results already executing: anext() runs in another task")
        if self._cancelled:
            raise RuntimeError("results are missing: a cancelled anext has ended the map (expected: no other one)")
        if self._over:
            raise StopAsyncIteration
        self._taking = True
        try:
            return await self._next()
        except GeneratorExit:
            self._cancelled = True
            self._abandon()
            raise
        except asyncio.CancelledError:
            self._cancelled = not self._over
            await self.aclose()
            raise
        except BaseException:
            await self.aclose()
            raise
        finally:
            self._taking = False

    async def _next(self) -> _R:
        if self._run is None:
            self._run = _Run(self._plan, self._items, self._context)
            self._items = None
        runner, scheduler = self._run.runner, self._run.runner.scheduler
        if not scheduler.output:
            self._run.taken.report()  # before the look at `over`, which it may change
        while not scheduler.output and not scheduler.over and not runner.stopping:
            runner.output_changed.clear()
            await runner.output_changed.wait()  # type: ignore[attr-defined]
        if not scheduler.output and runner.stopping:
            await runner.coroutines.ended()  # results before the failed item may still come
            if runner.stopped_by_user:
                runner.locked(scheduler.emit_done)
        if self._over:  # closed meanwhile
            raise StopAsyncIteration
        if scheduler.output:
            item = scheduler.output.popleft()
            self._run.taken.add_one(item)
            result: _R = self._plan.result(item)
            return result
        await self._run.end()
        error = final_error(runner)
        scheduler.forget_errors()
        try:
            raise StopAsyncIteration if error is None else error
        finally:
            del error  # it refers to this frame

    def stop(self) -> None:
        """End gracefully: no further item is taken and no call starts. The results of running calls are still yielded.
        Returns at once, and may be called in any thread and in a signal handler."""
        if self._run is None:
            self._over, self._items = True, None
            return
        runner = self._run.runner
        runner.stopped_by_user = runner.scheduler.halted = True
        runner.from_thread(runner.stop)

    def stats(self) -> Stats:
        """Return the progress of the map."""
        return Stats(workers=self._plan.options.begins_with) if self._run is None else self._run.meter.seen()

    async def aclose(self) -> None:
        """End now: no further call starts, coroutines are cancelled, and results that were not taken are dropped. If
        you cancel it, the cancellation is raised when everything has ended. In another event loop than that of the
        first anext, it raises RuntimeError, unless that loop is closed."""
        if self._run is not None:
            self._run.runner.refuse_elsewhere("the map")
        self._over, self._items = True, None
        if self._run is not None:
            await self._run.close()

    def _abandon(self) -> None:
        """End the map without waiting, from any thread."""
        self._over = True
        if self._run is not None:
            self._run.abandon()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_run") and not self._over and not finalizing():
            interruption = insist(self._abandon)
            if interruption is not None:
                raise interruption


class _Run:
    """What runs of an AsyncResults, in the caller's loop."""

    def __init__(self, plan: Plan, items: Any, context: Context) -> None:
        running_loop()  # first: its error leaves nothing begun
        scheduler = plan.scheduler()
        self.runner = runner = LoopRunner(scheduler, plan.call_with, memory=plan.memory())
        runner.context = context
        task: Callable[..., asyncio.Task[None]] = partial(context.copy().run, runner.loop.create_task)  # type: ignore[arg-type]
        self._reader = task(runner.read(_read_async(plan, runner, items)))
        show = display_of(plan.options.progress, items)
        self.meter = Meter(runner.stats)
        self._shown = None if show is None else Meter(runner.stats, show)
        self._ticker = None if self._shown is None else task(_tick(self._shown, runner))
        self.taken = Taken(runner, self.meter)
        runner.locked(runner.go_on)

    async def end(self) -> None:
        """Wait until nothing of the map runs. Its limits are left first: a database that is away holds up nothing."""
        await self.runner.close(self._reader)

    async def close(self) -> None:
        """It may be called again until it has ended."""
        if self._ticker is not None:
            self._ticker.cancel()
        await self.end()
        self.runner.locked(self.runner.scheduler.drop)
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.report()

    def abandon(self) -> None:
        runner = self.runner
        runner.scheduler.halted = True
        if runner.loop.is_closed():
            runner.stop_threads()
        else:
            runner.from_thread(runner.abandon, self._reader, self._ticker)


async def _tick(meter: Meter, runner: LoopRunner) -> None:
    try:
        while True:
            await asyncio.sleep(INTERVAL)
            meter.report()
    except (KeyboardInterrupt, SystemExit) as error:  # of the callback
        runner.fail(error)
        raise


async def _read_async(
    plan: Plan, runner: Runner, items: Iterable[Any] | AsyncIterable[Any]
) -> AsyncGenerator[list[Item], None]:
    if isinstance(items, AsyncIterable):
        values, numbers = aiter(items), count()
        try:
            async for value in values:
                item: Item = plan.item(runner.scheduler, value, number=next(numbers))
                if runner.scheduler.window.weighs:
                    runner.scheduler.window.weigh(item, value)
                yield [item]
                del item, value  # must not be kept during the wait for the next one
        finally:
            if isinstance(values, (AsyncGenerator, AsyncResults)):  # what else has an aclose() may be used on
                await values.aclose()
    else:
        for made in Source(plan, runner, items):
            yield made
            await asyncio.sleep(0)  # lets the loop run: a long input must not delay its calls
