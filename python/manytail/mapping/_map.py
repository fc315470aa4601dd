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
)
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Self, TypeVar

from . import _checks, _options
from ._idempotency import idempotency_key
from ._item import Batch, Item, batch_result
from ._loop_runner import LoopRunner
from ._options import Options
from ._permits import own_limits, permits_of
from ._progress import INTERVAL, Meter, Ticker, counts_of, display_of
from ._remember import Memory
from ._runner import Runner, insist
from ._scheduler import Scheduler
from ._thread_runner import ThreadRunner
from ._types import Delivery, Failure
from ._workers import refuse_awaitable

_R = TypeVar("_R")
NEVER_BLOCK = (list, tuple, range)  # types of inputs
STRIDES = 8  # of the window: what the consumer takes in one of them becomes free together
CHUNK = 64  # items that are read at a time of an input that never blocks


@_options.described(
    """Call `fn(item)` on every item, many calls at once. Returns an iterator over the results.

    Lazy: an item is taken from `items` only while the window has a free slot, in a separate thread, so that a slow
    input delays no finished result. An exception of `items` is raised after the results of all items before it. close()
    on the iterator: no further call starts, coroutines are cancelled, running calls are joined. The garbage collector
    does the same without waiting. fn gets `delivery=` (a Delivery) if it has a parameter of that name.

    {options}

    ValueError, TypeError: a bad option, or options that do not fit together, before an item is taken. Blocking.

    >>> list(concurrent_map(str.upper, ["a", "b"], workers=2))
    ['A', 'B']
    """
)
def concurrent_map(fn: Callable[..., Any], items: Iterable[Any], **options: Any) -> Results[Any]:
    if not isinstance(items, Iterable):
        raise _checks.bad_type("items", items, "an iterable")
    plan = _plan("concurrent_map", fn, options)
    values = items if type(items) in NEVER_BLOCK else iter(items)
    return Results(plan, values, items)


@_options.described(
    """`concurrent_map` for asyncio: fn is `async def`, and everything runs in the caller's loop. There are threads only
    with `remember` and `shared`, for their database.

    A plain iterable is read in the loop and must not block. The caller's own cancellation is never an item's failure.
    Use it in `async with contextlib.aclosing(aconcurrent_map(...)) as results: async for result in results: ...`.
    Options and errors are concurrent_map's. Progress: waits for results in the caller's loop, and blocks nothing else
    there.
    """
)
def aconcurrent_map(
    fn: Callable[..., Any], items: Iterable[Any] | AsyncIterable[Any], **options: Any
) -> AsyncGenerator[Any, None]:
    if not isinstance(items, (Iterable, AsyncIterable)):
        raise _checks.bad_type("items", items, "an iterable or async iterable")
    if not _checks.is_async(fn):
        raise _checks.bad_type("fn", fn, "an `async def` function; concurrent_map takes plain ones")
    return _run_in_loop(_plan("aconcurrent_map", fn, options), items, copy_context())


# ---------------------------------------------------------------------------------------------------- what both share
@dataclass(frozen=True)
class Plan:
    """A map before it runs: its checked options, and how items and calls are made."""

    fn: Callable[..., Any]
    options: Options
    describes: bool  # whether something of an item is computed from its value: key, priority, cost, identity

    def memory(self) -> Memory | None:
        shared = self.options.remember
        return None if shared is None else Memory(shared, shared.codec)

    def scheduler(self) -> Scheduler:
        weights = self.options.weights
        return Scheduler(
            own_limits(self.options), weight_of=None if weights is None else lambda item: weights.get(item.key, 1)
        )

    def item(self, scheduler: Scheduler, value: Any) -> Item:
        """The item of a value. What `key`, `priority`, `cost` or `item_id` raises fails the item without a call. With a
        key it keeps its place in the order."""
        item = Item(value)
        try:
            if self.describes:
                self._describe(item, value, scheduler.expired)
            scheduler.admission.assign((item,))
        except BaseException as error:
            item.error = error
            scheduler.admission.assign_alone(item)
        return item

    def _describe(self, item: Item, value: Any, expired: bool) -> None:
        """Set what the options compute from the value. Raises what `key` raises."""
        if self.options.key is not None:
            item.key = self.options.key(value)
        try:
            if self.options.priority is not None:
                item.priority = _priority(self.options.priority(value))
            if self.options.cost is not None:
                item.cost = _cost(self.options.cost(value))
            if self.options.remember is not None or (self.options.dedup is not None and not expired):
                item.identity = self.identity(value)
        except BaseException as error:
            item.error = error

    def identity(self, value: Any) -> str:
        return idempotency_key(value if self.options.item_id is None else self.options.item_id(value))

    def call_with(self, resource: dict[str, Any]) -> Callable[[Item], Any]:
        """The function that a worker calls with each item. resource: keyword arguments for fn, from `setup`."""
        fn, delivers = self.fn, self.options.wants_delivery
        if self.options.batch is not None:
            return self._call_batches_with(resource)
        if self.options.is_async:
            if not delivers:
                return lambda item: fn(item.value, **resource)

            async def deliver(item: Item) -> Any:
                return await fn(item.value, delivery=self.delivery(item), **resource)

            return deliver
        if not resource and not delivers:
            return lambda item: refuse_awaitable(fn(item.value))
        if not delivers:
            return lambda item: refuse_awaitable(fn(item.value, **resource))
        return lambda item: refuse_awaitable(fn(item.value, delivery=self.delivery(item), **resource))

    def _call_batches_with(self, resource: dict[str, Any]) -> Callable[[Any], Any]:
        def arguments(batch: Batch) -> tuple[list[Any], dict[str, Any]]:
            items = batch.to_call()
            extra = {"delivery": [self.delivery(item) for item in items]} if self.options.wants_delivery else {}
            return [item.value for item in items], {**extra, **resource}

        def call(batch: Batch) -> Any:
            values, extra = arguments(batch)
            return batch.with_known(
                batch_result(refuse_awaitable(self.fn(values, **extra)), len(values)) if values else []
            )

        async def call_async(batch: Batch) -> Any:
            values, extra = arguments(batch)
            return batch.with_known(batch_result(await self.fn(values, **extra), len(values)) if values else [])

        return call_async if self.options.is_async else call

    def delivery(self, item: Item) -> Delivery:
        return Delivery(
            item.attempts,
            0,
            item.key,
            item.identity if self.options.identifies else self.identity(item.value),
        )

    def result(self, item: Item) -> Any:
        """What the consumer gets for a finished item."""
        if item.error is None:
            return item.result
        return Failure(item.value, item.error, item.attempts, item.key)


def _plan(function: str, fn: Callable[..., Any], given: dict[str, Any]) -> Plan:
    _checks.refuse_unknown(function, given, _options.NAMES)
    options = _options.check(fn, given)
    return Plan(fn, options, options.identifies or options.keyed or options.prioritised or options.costed)


def _priority(value: Any) -> float:
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int):
        raise _checks.bad_type("priority", value, "an int or None")
    return value


def _cost(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _checks.bad_type("cost", value, "a number >= 0")
    if not 0 <= value <= sys.float_info.max:
        raise _checks.bad_value("cost", value, "a finite number >= 0")
    return float(value)


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
        asks = any(
            function is not None
            for function in (plan.options.key, plan.options.priority, plan.options.cost, plan.options.item_id)
        )
        self.never_blocks = type(values) in NEVER_BLOCK and not asks

    def __next__(self) -> list[Item]:
        make, scheduler = self._plan.item, self._runner.scheduler
        if not self.never_blocks:
            return [make(scheduler, next(self._values))]
        values = islice(self._values, min(self._runner.room, CHUNK))
        if self._plan.describes:
            items = [make(scheduler, value) for value in values]
        else:
            items = [Item(value) for value in values]
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
        with suppress(Exception):  # a frozen dataclass refuses attributes: it goes without a note
            add_note(error, "item", scheduler.failing.key, scheduler.failing.attempts)
    return error


def add_note(error: BaseException, what: str, key: Any, attempts: int) -> None:
    error.add_note(
        f"manytail: the {what} with key {key!r} failed after {attempts} attempt{'' if attempts == 1 else 's'}"
    )


# ---------------------------------------------------------------------------------------------------- in threads
class Results(Iterator[_R]):
    """The iterator that `concurrent_map` returns. No thread of the map refers to it, so the garbage collector can free
    it, which ends the map.

    After the first exception from `next` it has no more results: the last one, that of the map, or one of a signal
    handler, which stops the map and waits for nothing. `close` may be called again until it has ended."""

    def __init__(self, plan: Plan, values: Iterable[Any], items: Iterable[Any]) -> None:
        """values: what is read of `items`."""
        self._plan = plan
        self._values: Iterable[Any] | None = values
        self._items: Iterable[Any] | None = items
        self._over = False  # there are no more results
        self._ended = False  # `close` has done its work
        self._taken = 0  # items whose slots are not free
        self._stride = 1
        turn = threading.Lock()
        self._take_turn, self._end_turn = partial(turn.acquire, False), turn.release
        self._ticker: Ticker | None = None
        scheduler = plan.scheduler()
        self._output = scheduler.output
        self._scheduler = scheduler
        self._runner = ThreadRunner(scheduler, plan.call_with, memory=plan.memory(), permits=permits_of(plan.options))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _R:
        try:
            for _ in iter(self._take_turn, False):  # a `for`, as in `Runner.settle`
                try:
                    return self._next()
                finally:
                    self._end_turn()
        except BaseException:  # also after a result was taken, which is lost then
            self._stop()
            raise
        raise ValueError("next: another thread, or the call that this one interrupts, is taking a result")

    def _next(self) -> _R:
        if self._over:
            raise StopIteration
        while not self._output:
            self._report_taken()
            self._wait()
        item = self._output.popleft()
        self._taken += 1
        if self._taken >= self._stride:
            self._report_taken()
        result: _R = self._plan.result(item)
        return result

    def _report_taken(self) -> None:
        """Free the slots of the items that were taken. In strides: each report may wake the reader and a worker."""
        taken, self._taken = self._taken, 0
        if taken:
            self._runner.report(self._scheduler.took, taken)
            self._stride = self._scheduler.window // STRIDES

    def _wait(self) -> None:
        """Wait until the output has an item. At the end raises StopIteration or the error of the map."""
        runner = self._runner
        if self._values is not None:
            self._start()
        runner.wait()
        if not runner.stopping and not self._scheduler.over:
            return
        runner.close()
        if not self._output:
            runner.flush()
            self._end()
            error = final_error(runner)
            if error is not None:
                raise error
            raise StopIteration

    def _start(self) -> None:
        plan, values, items = self._plan, self._values, self._items
        self._values = self._items = None
        assert values is not None
        show = display_of(plan.options.progress, items)
        if show is not None:
            meter = Meter(partial(counts_of, self._scheduler), show)
            self._ticker = Ticker(meter, self._runner.fail, self._runner.context.copy())
            self._ticker.start()
        source = Source(plan, self._runner, values)
        self._runner.start(source, never_blocks=source.never_blocks)

    def _stop(self) -> None:
        """No more results come, and no call starts. Waits for nothing."""
        self._over = True
        if not self._ended:
            self._runner.stop(cancel=True)
            if self._ticker is not None:
                self._ticker.stop(wait=False)

    def _end(self) -> None:
        self._over = True
        self._runner.source = None
        if self._ticker is not None:
            self._ticker.stop()
        self._ended = True

    def close(self) -> None:
        """No further call starts, coroutines are cancelled, running calls are joined. Results not taken are dropped.

        If it is interrupted, another call goes on with what is left. RuntimeError: it is called by fn, setup or the
        input of this map, for which it would wait. In a signal handler that interrupts this map's own work it does not
        wait: the call that it has interrupted does."""
        self._values = self._items = None
        self._runner.close(cancel=True)
        if self._runner.held_here():
            return
        self._runner.flush()
        self._output.clear()
        self._end()

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end all threads are gone or frozen, and modules lose their names.
        if hasattr(self, "_runner") and not finalizing():
            interruption = insist(self._stop)
            self._output.clear()
            if interruption is not None:
                raise interruption


# ---------------------------------------------------------------------------------------------- in the caller's loop
async def _run_in_loop(
    plan: Plan, items: Iterable[Any] | AsyncIterable[Any], context: Context
) -> AsyncGenerator[Any, None]:
    scheduler = plan.scheduler()
    runner = LoopRunner(scheduler, plan.call_with, memory=plan.memory(), permits=permits_of(plan.options))
    runner.context = context
    output = scheduler.output
    task: Callable[..., asyncio.Task[None]] = partial(context.copy().run, runner.loop.create_task)  # type: ignore[arg-type]
    reader = task(runner.read(_read_async(plan, runner, items)))
    show = display_of(plan.options.progress, items)
    meter = None if show is None else Meter(partial(counts_of, scheduler), show)
    ticker = None if meter is None else task(_tick(meter, runner))
    try:
        runner.locked(runner.go_on)
        while not scheduler.over and not runner.stopping:
            runner.output_changed.clear()
            if not output:
                await runner.output_changed.wait()  # type: ignore[attr-defined]
            while output:
                item = output.popleft()
                runner.report(scheduler.took, 1)
                yield plan.result(item)
        if runner.stopping:
            await runner.coroutines.ended()  # results before the failed item may still come
        while output:
            yield plan.result(output.popleft())
        await runner.flush()
        error = final_error(runner)
        if error is not None:
            raise error
    finally:
        if ticker is not None:
            ticker.cancel()
        await runner.close(reader)
        if meter is not None:
            meter.report()


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
) -> AsyncIterator[list[Item]]:
    if isinstance(items, AsyncIterable):
        async for value in items:
            yield [plan.item(runner.scheduler, value)]
    else:
        for made in Source(plan, runner, items):
            yield made
            await asyncio.sleep(0)  # lets the loop run: a long input must not delay its calls
