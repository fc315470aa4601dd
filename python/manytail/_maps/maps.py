"""`concurrent_map`: checks the options, makes a scheduler and a driver, and returns the iterator over their results.

Threads. `Results` is the consumer's: it takes from the output of the driver, and posts to its inbox. `Plan` is
immutable: the reader makes items with it, workers make calls with it.
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
    Awaitable,
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from os import PathLike
from types import CoroutineType
from typing import Any, ClassVar, Literal, NoReturn, Self, TypeVar
from weakref import WeakSet

from manytail import _checks
from manytail._lifecycle import after_fork_in_child, refuse_copy
from manytail._progress import Meter, display_of
from manytail._sync import Held
from manytail._timings import now

from . import options as table
from .database.shared import Shared
from .engine.adaptive import AdaptiveStage
from .engine.batched import BatchScheduler
from .engine.batches import Batches
from .engine.breaker import BreakerStage
from .engine.equal import EqualStage
from .engine.item import Batch as Members
from .engine.item import Call, Item
from .engine.lanes import Lanes
from .engine.scheduler import Rules, Scheduler
from .engine.stages import Stage
from .engine.window import LIGHT
from .engine.within import WithinStage
from .errors import add_note, note_option, shortened
from .limits.objects import Limit, Rate
from .limits.stage import LimitsStage
from .options import Options
from .outcomes import Delivery, Outcome, Stats
from .policies import Batch, Breaker, On, Retry
from .results.identity import key as key_of
from .runners.driver import Driver
from .runners.inline import InlineDriver
from .runners.inline_loop import InlineLoopDriver
from .runners.loop import LoopDriver, OwnLoopDriver
from .runners.resources import enter_setup, enter_setup_async
from .runners.threads import ThreadDriver
from .verdicts import Judge, batch_result

_T = TypeVar("_T")
_R = TypeVar("_R")
NEVER_BLOCK = (list, tuple, range)  # types of inputs
STRIDES = 8  # of the window: what the consumer takes in one of them becomes free together
NO_GIL = not getattr(sys, "_is_gil_enabled", lambda: True)()
CHUNK = 64  # items that are read at a time of an input that never blocks


@_checks.names_options
def concurrent_map(
    fn: Callable[..., _R],
    items: Iterable[_T],
    *,
    workers: int | tuple[int, int] | tuple[int, int, int] | Literal["inline"] = 16,
    max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None,
    weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None,
    batch: int | Batch | None = None,
    timeout: float | None = None,
    deadline: float | None = None,
    retry: int | Retry = 0,
    breaker: int | Breaker | None = None,
    errors: Literal["raise", "return", "drop"] = "raise",
    max_failures: int | None = None,
    fatal: On = (),
    limits: Limit | Sequence[Limit] = (),
    item_id: Callable[[_T], Any] | None = None,
    dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None,
    setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> Results[_R]:
    """Call `fn(item)` on every item, many calls at once, and return an iterator over the results.

    fn: a plain function, which runs in threads, or an `async def` function, which runs in a loop of the map. It may
    have a parameter `delivery`, and with `setup` a parameter `resource`. items: an iterable, which a thread reads. If
    reading it raises an exception, that is raised after the results of the items before it. To end early, call
    `close()` on the iterator or use it in a `with` block: no further call starts, and running calls are waited for. The
    garbage collector does the same without waiting.

    workers: the number of concurrent calls. A plain function runs in that many threads, an `async def` function in that
        many coroutines. If you do not know how many concurrent calls the server tolerates, pass (least, most) or
        (least, start, most), and the map finds out. It begins with `start` calls (by default `least`) and doubles the
        number after each round of successes, until the first refusal. A refusal is a deferral, a timeout or a failure
        that is retried. From then on, each round of successes adds one, and a refusal halves the number, at most once
        in the time that one call takes. A round counts only if all workers were busy and calls had to wait only for a
        worker. Options that depend on `workers` use `most`. "inline" is for debugging and tests: calls are made one at
        a time, in the thread that takes the results, and no thread is started. The timeout and the deadline of a plain
        function are then checked only when it returns, and options that depend on `workers` treat it as 1.
    max_in_flight: the maximum number of items taken from the input and not yet yielded. None: the limit begins at 4 x
        workers x batch. It doubles whenever a worker is idle because all items in the window are finished, or wait for
        an earlier item, for their key or for their look-up in `remember`. It grows up to 10,000, or 4 x workers x batch
        if that is more. Growth that only look-ups cause stops at 16 x workers x batch. A slow consumer never makes it
        grow, and it stops growing while the waiting items and results occupy 256 MB or more, according to nbytes or
        sys.getsizeof.
    order: the order of the results. "input": the order of the items. "key": the order of the items within each key;
        results of different keys may overtake each other. "completion": the order in which calls finish. With "input"
        and "key", a slow item delays the results that come after it, but other calls continue.
    key: a function that returns the group of an item, for example its host or tenant. Groups take turns, and `per_key`,
        `weights`, `order="key"`, breakers and limits with per_key=True apply to each group. None: all items are one
        group.
    per_key: the maximum number of concurrent calls of each key. None: no limit. It needs `key`. An item that is waiting
        for its next attempt still counts.
    weights: how many calls a key starts when it is its turn, by key. A key that is not in the mapping starts one. Needs
        `key`.
    priority: a function that returns the priority of an item. Lower numbers start first; None starts last. It applies
        to the items that are in flight, and affects when calls start, never the order of the results.
    batch: calls fn with a list of up to this many items of one key; fn returns a sequence with one result for each.
        Batch(size, linger) also sets how long a batch waits for more items. If one of these results is an exception,
        only its item fails; if it is a RetryLater, only its item is deferred. A batch counts as one call for workers,
        per_key and timeout; its cost is the sum of the costs of its items. If a batch fails for good, each half is
        called separately. All items of a batch fail if the result is not a sequence of the right length, if the call
        times out, or if the deadline passes. None: one item per call.
    timeout: how many seconds one attempt may take; after that it fails with TimeoutError. None: no limit. A coroutine
        is cancelled. A plain function cannot be stopped: it continues in its thread and its result is dropped. If more
        than `workers` such calls are running, the map fails. Give your client a timeout that is a little shorter.
    deadline: the seconds that the whole map may take, counted from the first item. After that, every unfinished item
        fails with DeadlineExceeded, and the rest of the input is read without making any calls. None: no limit.
    retry: how many times a failed call is made again: a number, or a Retry, which also says for which errors and after
        what pauses. Retry.http() knows the errors of HTTP clients. 0: never. An item that waits for its next attempt
        occupies no worker, and starts before new items with the same key and priority. RetryLater defers an item
        without using up an attempt.
    breaker: pauses a key (without `key`, the whole map) after this many failed calls in a row. After the pause, one
        call tests whether the key works again. A Breaker also sets the length of the pause. None: never.
    errors: what happens to an item that fails for good. "raise": no further call starts; the results before it are
        yielded, then its exception is raised, with a note that names the item. "return": every item yields an Outcome,
        with its result or its error. "drop": the item is left out.
    max_failures: the number of items that may fail. If more fail, the map ends with TooManyFailures, as with
        errors="raise". Needs errors="return" or "drop". None: no limit.
    fatal: errors of fn that end the map at once, whatever `errors` says: exception classes, or a function that gets the
        error and returns a bool. They are not retried.
    limits: a Rate, a Budget, a Concurrency, or a list of them. A call starts when all of them have room for it. Maps
        that use the same limit object share the limit and take turns; a limit with `shared` is shared by everything
        that uses a limit of the same name in the same database. An item that can never fit a Budget fails with
        BudgetExceeded; a retry that cannot fit fails with the error that fn raised; all other items continue. A
        deferred call costs a Budget nothing.
    item_id: a function that returns the value that identifies an item, for `dedup`, `remember` and the idempotency key.
        None: the item itself. The value may be None, a bool, int, float, str, bytes, date, time, Decimal or UUID, or a
        tuple, list, dict, NamedTuple or dataclass of them. With dedup or remember, an item whose value has any other
        type fails with TypeError.
    dedup: lets equal items share one call while it runs. Later equal items get the same result object, if it is among
        the results of the last `dedup` calls. After a failure, the next equal item causes a new call. None: a call is
        made for every item.
    remember: records results in a database, so that the next run does not make these calls again: a path or URL, or a
        Shared. A path is short for a Shared with that path, named after the module and qualified name of fn. If fn has
        changed since results were recorded, a UserWarning says so once. Items are identified by `item_id`. Results are
        looked up in bulk when items are read. They are recorded after at most 0.5 s or 200 results, and always before
        the map ends. After a kill -9, you pay twice for at most the calls that were running and the results that were
        not recorded yet, of which there are at most 200. Failures are not recorded. If a result cannot be recorded, it
        is yielded, and then the map fails with TypeError; a Caller logs the first such error and continues. While the
        database is unavailable, no call starts; after the `outage_timeout` of the Shared, the map fails with
        SharedUnavailable.
    setup: a function that creates what fn gets as `resource=`, for example a client or a connection. It is called once
        per worker thread, before the first call of that thread; for an `async def` fn, it is called once, in the event
        loop. If it returns a context manager, it is entered first and exited at the end. Any other object is closed
        with its close() method, if it has one.
    progress: True shows a line of progress. A function is called with a Stats at most 5 times a second, and once at the
        end.

    Raises ValueError or TypeError for a bad option before any item is taken. Blocking.

    >>> list(concurrent_map(str.upper, ["a", "b"], workers=2))
    ['A', 'B']
    """
    plan = plan_of(fn, locals())
    if not isinstance(items, Iterable):
        raise _checks.bad_type("items", items, "an iterable")
    return Results(plan, items if type(items) in NEVER_BLOCK else iter(items))


@_checks.names_options
def aconcurrent_map(
    fn: Callable[..., Awaitable[_R]],
    items: Iterable[_T] | AsyncIterable[_T],
    *,
    workers: int | tuple[int, int] | tuple[int, int, int] = 16,
    max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None,
    weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None,
    batch: int | Batch | None = None,
    timeout: float | None = None,
    deadline: float | None = None,
    retry: int | Retry = 0,
    breaker: int | Breaker | None = None,
    errors: Literal["raise", "return", "drop"] = "raise",
    max_failures: int | None = None,
    fatal: On = (),
    limits: Limit | Sequence[Limit] = (),
    item_id: Callable[[_T], Any] | None = None,
    dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None,
    setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> AsyncResults[_R]:
    """`concurrent_map` for asyncio: fn is an `async def` function, and everything runs in your event loop.

    Use it as `async with aconcurrent_map(...) as results: async for result in results: ...`. A plain iterable is read
    in the loop, so it must not block. If your task is cancelled, the map ends as with aclose(); this never counts as
    the failure of an item. Threads are started only for database access, with `remember` or `shared`.

    It has the same options and errors as concurrent_map, except that workers="inline" is not allowed. The map waits in
    your event loop and does not block other tasks there."""
    if not _checks.is_async(fn):
        raise _checks.bad_type("fn", fn, "an `async def` function; concurrent_map takes plain ones")
    plan = plan_of(fn, locals())
    if plan.options.inline:
        raise _checks.bad_value("workers", "inline", "an int >= 1, (least, most) or (least, start, most)")
    if not isinstance(items, (Iterable, AsyncIterable)):
        raise _checks.bad_type("items", items, "an iterable or an asynchronous iterable")
    return AsyncResults(plan, items)


# ---------------------------------------------------------------------------------------------------- a map to be run
def plan_of(fn: Callable[..., Any], given: Mapping[str, Any]) -> Plan:
    """given: the options, among other variables of the function that was called."""
    options = table.check(fn, given)
    table.refuse_limits_of_frames(options.limits)
    return Plan(fn, options)


@dataclass(frozen=True)
class Plan:
    """A map before it runs: its checked options, and how items and calls are made."""

    fn: Callable[..., Any]
    options: Options
    makes: ClassVar[type[Scheduler]] = Scheduler
    makes_batches: ClassVar[type[BatchScheduler]] = BatchScheduler

    def scheduler(self, kind: type[Lanes] = Lanes, skips: Sequence[Stage] = ()) -> Scheduler:
        """skips: stages that come next to that of equal items, which goes on with the next item if one is skipped."""
        options = self.options
        weights = options.weights
        spent: dict[str, float] = {}
        limits = self.limits(spent)
        lanes = kind(
            keyed=options.keyed,
            prioritised=options.prioritised,
            in_order=options.order == "key",
            per_key=options.per_key,
            weight_of=None if weights is None else self.weight_of,
            shows=None if options.breaker is None else lambda key: f", key {shortened(key)}",
            prepare=None if limits is None else limits.prepare,
            forget=None if limits is None else limits.forget,
        )
        most = options.max_failures
        rules = Rules(
            workers=options.workers,
            max_in_flight=options.max_in_flight,
            calls_items=options.calls_items,
            order=options.order,
            chooses=options.keyed or options.prioritised,
            timeout=options.timeout,
            deadline=options.deadline,
            within=math.inf if options.retry.within is None else options.retry.within,
            raises=options.errors == "raise",
            drops=options.errors == "drop",
            max_failures=math.inf if most is None else most,
            spreads=not any(isinstance(limit, Rate) for limit in options.limits),
            delivers=options.wants_delivery,
            settled=None if options.settled_limit is None else options.settled_limit.name,
        )
        memory = self.memory()
        stages = [*self.stages(memory), *([] if limits is None else [limits])]
        if stages or options.batch is not None:  # else an item that was cancelled takes nothing before its call
            place = 1 + max((at for at, stage in enumerate(stages) if isinstance(stage, EqualStage)), default=-1)
            stages[place:place] = skips
        if options.batch is None:
            return self.makes(rules, lanes, stages, spent, memory)
        batches = Batches(options.batch.size, options.batch.linger, options.order == "key")
        return self.makes_batches(batches, rules, lanes, stages, spent, memory)

    def weight_of(self, item: Item) -> int:
        """Of the item's key, with the option `weights`."""
        assert self.options.weights is not None
        return self.options.weights.get(item.key, 1)

    def memory(self) -> Any:
        """What `remember` needs. Imports sqlite3."""
        shared = self.options.remember
        if shared is None:
            return None
        from .results.memory import Memory

        return Memory(shared, shared.codec, inline=self.options.inline)

    def limits(self, spent: dict[str, float]) -> LimitsStage | None:
        options = self.options
        if not options.limits:
            return None
        return LimitsStage(
            options.limits, options.settled_limit, spent, keyed=options.keyed, says=options.wants_delivery,
            workers=options.workers, inline=options.inline,
        )  # fmt: skip

    def stages(self, memory: Any) -> list[Stage]:
        """In their order, without that of the limits. An option that is not given adds none."""
        stages: list[Stage] = []
        options, breaker = self.options, self.options.breaker
        if options.dedup is not None:
            stages.append(EqualStage(options.dedup))
        if options.retry.within is not None:
            stages.append(WithinStage(options.retry.within))
        if memory is not None:
            stages.append(memory)
        if breaker is not None:
            stages.append(BreakerStage(breaker.failures, breaker.reset, breaker.when_open == "fail"))
        if options.least:
            stages.append(AdaptiveStage(options.least, options.begins_with, options.workers))
        return stages

    def judge(self) -> Judge:
        return Judge(self.options.retry, self.options.fatal, self.options.never_retry)

    def driver(self) -> ThreadDriver | InlineDriver:
        kinds: Any = (InlineLoopDriver, OwnLoopDriver) if self.options.is_async else (InlineDriver, ThreadDriver)
        return self.driven_by(kinds[not self.options.inline], self.scheduler())  # type: ignore[no-any-return]

    def driven_by(self, kind: Callable[..., Any], scheduler: Scheduler) -> Any:
        """A driver of that kind."""
        call_with = self.call_with_in_loop if self.options.is_async else self.call_with
        return kind(scheduler, partial(call_with, scheduler.memory), self.judge())

    def item(self, scheduler: Scheduler, value: Any, number: int | None) -> Item:
        """The item of a value. What `key`, `priority` or `item_id` raises fails the item without a call. With a key it
        keeps its place in the order."""
        item = Item(value, None, now(), number)
        if scheduler.window.weighs and type(value) not in LIGHT:
            scheduler.window.weigh(item, value)
        try:
            self.describe(item, value)
            scheduler.lanes.assign(item)
        except BaseException as error:
            item.error = error
            item.lane = scheduler.lanes.new()
        return item

    def describe(self, item: Item, value: Any) -> None:
        """Set what the options compute from the value. Raises what `key` raises."""
        options, asked = self.options, "key"
        try:
            if options.key is not None:
                item.key = options.key(value)
            asked = "priority"
            if options.priority is not None:
                item.priority = priority_of(options.priority(value))
            if options.has_costs:
                asked = "cost"
                item.costs = tuple([1.0 if limit.cost is None else cost_of(limit, value) for limit in options.limits])
            asked = "item_id"
            if options.identifies:
                item.identity = self.identity(value)
        except BaseException as error:
            note_option(error, asked)
            if asked == "key":
                raise
            item.error = error

    def identity(self, value: Any) -> str:
        """The idempotency key of an item."""
        options = self.options
        if options.item_id is not None:
            return key_of(options.item_id(value), "item_id")
        option = "remember" if options.remember is not None else "dedup" if options.dedup is not None else "delivery"
        return key_of(value, option, "; or item_id=, a function that makes one of them")

    def call_with(self, memory: Any, stack: ExitStack) -> Callable[[Any], Any]:
        """Set a worker thread up. Returns what it calls with each item, or batch of items."""
        call = self.calling(enter_setup(stack, self.options.setup))
        return call if memory is None else memory.encoding(call, self.options.batch is not None)

    async def call_with_in_loop(self, memory: Any, stack: AsyncExitStack) -> Callable[[Any], Any]:
        """The same for all coroutines of a loop. It calls an `async def`."""
        call = self.calling_async(await enter_setup_async(stack, self.options.setup))
        return call if memory is None else memory.encoding_async(call, self.options.batch is not None)

    def calling(self, resource: dict[str, Any]) -> Callable[[Any], Any]:
        """What a worker calls.

        An error of fn refers to the frames of its callers. None of these holds the item, which will hold the error:
        such a cycle would keep all that fn worked on until the collector comes."""
        fn = self.fn
        if not self.begins_calls(resource):

            def call(item: Item) -> Any:
                value = item.value
                del item
                result = fn(value)
                return refuse_awaitable(result) if type(result) is CoroutineType else result  # most often no call

            return call

        def begin_and_call(made: Call) -> Any:
            values, number, delivery, extra = self.begin(made, resource)
            del made
            with delivery:
                result = refuse_awaitable(fn(values, **extra))
                return result if number is None else batch_result(result, number)

        return begin_and_call

    def calling_async(self, resource: dict[str, Any]) -> Callable[[Any], Any]:
        """What a worker of a loop awaits."""
        fn = self.fn
        if not self.begins_calls(resource):
            return lambda item: fn(item.value)

        async def begin_and_call(made: Call) -> Any:
            values, number, delivery, extra = self.begin(made, resource)
            del made
            with delivery:
                result = await fn(values, **extra)
                return result if number is None else batch_result(result, number)

        return begin_and_call

    def begins_calls(self, resource: dict[str, Any]) -> bool:
        """Whether fn gets more, or other things, than the value of an item."""
        options = self.options
        return options.wants_delivery or options.batch is not None or bool(resource and not options.own_resource)

    def begin(self, made: Call, resource: dict[str, Any]) -> tuple[Any, int | None, Any, dict[str, Any]]:
        """A call begins. Returns the value for fn, or the values of a batch and their number, because fn may change the
        list; what ends the Delivery; and the keyword arguments for fn."""
        extra = {} if self.options.own_resource else resource
        number = None
        if isinstance(made, Item):
            values = made.value
        else:
            values = made.begin()
            number = len(values)
        if not self.options.wants_delivery:
            return values, number, nullcontext(), extra
        made.delivery = delivery = self.delivery(made)
        return values, number, delivery, {"delivery": delivery, **extra}

    def delivery(self, call: Call) -> Delivery:
        """The Delivery of a call that begins. It does not refer to the item, which refers to it."""
        items, batch = call.items(), isinstance(call, Members)
        last = max(items, key=lambda item: item.attempts)
        ids, values = [], [item.value for item in items]
        if self.options.identifies:
            ids = [item.identity for item in items]

        def identify() -> Any:
            keys = ids or list(map(self.identity, values))
            return keys if batch else keys[0]

        names = self.options.spent_names
        return Delivery(last.attempts, 0, last.key, last.last_error, batch=batch, identify=identify, names=names)

    def results(
        self, driver: ThreadDriver | InlineDriver, meter: Meter, values: Iterable[Any]
    ) -> Generator[Any, None, None]:
        """What a map yields. It runs from the first `next` on."""
        return taking(self, driver, meter, values)

    def result(self, item: Item) -> Any:
        """What the consumer gets for a finished item."""
        if self.options.errors != "return":
            return item.result
        error, item.error = item.error, None  # its traceback may refer to the item, through a function of an option
        return Outcome(item.value, None if error is not None else item.result, error, item.attempts, item.key)


def priority_of(value: Any) -> float:
    """The priority that a function has returned, as lanes have it."""
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int):
        raise _checks.bad_type("priority", value, "an int or None")
    return value


def cost_of(limit: Any, value: Any) -> float:
    """What the item takes of the limit. Runs the user's function."""
    cost = limit.cost(value)
    try:
        return _checks.amount("cost", cost)
    except TypeError as error:
        raise ValueError(str(error)) from None


def refuse_awaitable(value: Any) -> Any:
    """The value, unless it is a coroutine that nothing would run."""
    if type(value) is CoroutineType:
        value.close()  # otherwise Python warns that it was never awaited
        raise TypeError("fn returned a coroutine (expected: a result, or an `async def` function)")
    return value


# ---------------------------------------------------------------------------------------------------- the input
class Source(Iterator[list[Item]]):
    """The items of an input that may block, or whose items need the user's functions: one at a time, because an item
    that was read must not wait for the next one. No generator: its frame would keep the last item alive while the input
    waits."""

    def __init__(self, plan: Plan, scheduler: Scheduler, values: Iterable[Any]) -> None:
        self._plan = plan
        self._scheduler = scheduler
        self._values = iter(values)
        self._numbers = count()

    def __next__(self) -> list[Item]:
        return [self._plan.item(self._scheduler, next(self._values), next(self._numbers))]


class List:
    """The items of a list, tuple or range without such functions. Reading these never blocks and runs no user code."""

    def __init__(self, scheduler: Scheduler, values: Sequence[Any]) -> None:
        self._lanes = scheduler.lanes
        self._input = values  # kept: the last reference to a list is not dropped under a lock
        self._values = iter(values)
        self._numbers = count()

    def take(self, most: int) -> list[Item]:
        read, assign = now(), self._lanes.assign
        values = islice(self._values, min(most, CHUNK))
        items = [Item(value, None, read, number) for value, number in zip(values, self._numbers, strict=False)]
        for item in items:
            assign(item)
        return items


def source_of(plan: Plan, scheduler: Scheduler, values: Any) -> List | Source:
    """What reads the input. Inline items are read one by one, when nothing else can be done."""
    if type(values) in NEVER_BLOCK and not (plan.options.asks or plan.options.inline):
        return List(scheduler, values)
    return Source(plan, scheduler, values)


# ---------------------------------------------------------------------------------------------------- the results
class Results(Iterator[_R]):
    """The iterator that `concurrent_map` returns. No thread of the map refers to it, so the garbage collector can free
    it, which ends the map.

    After the first exception from `next` it has no more results. One thread at a time takes results; `stop`, `close`
    and `stats` are for any. In a forked child `next` and `stats` raise RuntimeError, and `close` does nothing. All
    methods except `stop` and `stats` may block."""

    def __init__(self, plan: Plan, values: Iterable[Any], counted: Any = None) -> None:
        """counted: the input of which progress shows the length, if that is not `values`."""
        self._is_parents = False  # this process is a child that was forked since: the map runs in the parent alone
        self._driver = driver = plan.driver()
        self._meter = meter_of(plan, driver, values if counted is None else counted)
        results = plan.results(driver, self._meter, values)
        self._results: Generator[_R, None, None] | Alone | Parents = Alone(results) if NO_GIL else results
        if not plan.options.inline:
            with_threads.add(self)

    def leave(self) -> None:
        """In a forked child: the threads are the parent's, and so are the results."""
        parents.append(self._results)  # never freed: its end would wake threads that are not there
        self._is_parents, self._results = True, Parents()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _R:
        return next(self._results)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "a map runs once, in this process", "pass on a list of its results")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def stop(self) -> None:
        """No further item is taken and no call starts. Running calls are waited for, and their results are the last
        ones. Returns at once; also for a signal handler."""
        if not self._is_parents:
            self._driver.stop(keeps=True)

    def close(self) -> None:
        """No further call starts, running calls are joined. Results not taken are dropped.

        RuntimeError: it is called by a function or the input of this map, for which it would wait."""
        driver = self._driver
        if self._is_parents:
            return
        if driver.runs_here():
            raise RuntimeError("close: called by a function or the input of the same map (expected: by another thread)")
        driver.stop(keeps=False)
        driver.join()
        driver.output.clear()
        with suppress(ValueError):  # another thread is in `next`
            self._results.close()  # it refers to the input, and to the result that was taken last

    def stats(self) -> Stats:
        """Where the map stands."""
        if self._is_parents:
            next(self._results)  # raises
        seen: Stats = self._meter.seen()
        return seen


class Alone(Iterator[Any]):
    """A generator of an interpreter without the GIL. There two threads that enter one at once crash the interpreter;
    with the GIL the generator refuses the second one itself."""

    def __init__(self, results: Generator[Any, None, None]) -> None:
        self._results = results
        self._lock = threading.Lock()

    def __next__(self) -> Any:
        with Held(self._lock, 0) as alone:
            if not alone:
                raise ValueError("generator already executing")
            return next(self._results)

    def close(self) -> None:
        with Held(self._lock, 0) as alone:
            if alone:
                self._results.close()


class Parents(Iterator[Any]):
    """What is taken in a forked child of a map of its parent."""

    def __next__(self) -> Any:
        raise RuntimeError("results of a map of the parent process (expected: a map that this process makes)")

    def close(self) -> None:
        """Nothing: the map is not this process's."""


with_threads: WeakSet[Results[Any]] = WeakSet()
parents: list[Any] = []


def leave_all() -> None:
    for results in list(with_threads):
        results.leave()


after_fork_in_child(leave_all)


class Taker:
    """Takes finished items from the output, one at a time, and tells the driver: a stride of them together."""

    def __init__(self, plan: Plan, driver: Driver, meter: Meter) -> None:
        self._plan, self._driver, self._meter = plan, driver, meter
        self._output, self._window = driver.output, driver.scheduler.window
        self._memory = driver.scheduler.memory
        self._returns = plan.options.errors == "return"
        self._taken, self._stride = 0, 1
        self._refused: BaseException | None = None
        self.is_last = False  # the result taken last cannot be recorded, and ends the map

    def take(self) -> Any:
        """The result of the next item, which is in the output."""
        item = self._output.popleft()
        self._taken += 1
        if self._taken >= self._stride:
            self._stride = self._window.size // STRIDES
            self.report()
        if self._window.has_weights:
            self._window.left(item)
        if self._memory is not None and item in self._memory.unrecordable:
            self._refused, self.is_last = self._memory.unrecordable.pop(item), True
            self._driver.stop(keeps=False)
        return self._plan.result(item) if self._returns else item.result

    def report(self) -> None:
        """Tell the driver what was taken."""
        if self._taken:
            self._driver.took(self._taken)
            self._taken = 0
            self._meter.sample()

    def raise_error(self) -> None:
        """The map has ended: raise its error, if it has one. The traceback refers to the frames, which keep no error:
        that would be a cycle."""
        error, self._refused = self._refused or final_error(self._driver), None
        if error is not None:
            try:
                raise error
            finally:
                del error


def taking(
    plan: Plan, driver: ThreadDriver | InlineDriver, meter: Meter, values: Iterable[Any]
) -> Generator[Any, None, None]:
    """Start the map, and yield its results. Whatever ends this, and the collector, ends the map."""
    if driver.halted:  # stopped before it began
        return
    output, taker = driver.output, Taker(plan, driver, meter)
    take = taker.take
    try:
        meter.begin()
        source: Any = source_of(plan, driver.scheduler, values)
        driver.start(source, type(source) is List)
        del source, values
        while not taker.is_last:
            while output and not taker.is_last:
                yield take()
            taker.report()
            if driver.ended and not output:
                break
            driver.wait()
        driver.join()
        taker.raise_error()
    finally:
        driver.abandon()


class AsyncResults(AsyncIterator[_R]):
    """The asynchronous iterator that `aconcurrent_map` returns. No task of the map refers to it, so the garbage
    collector can free it, which ends the map without waiting.

    After the first exception from `anext` it has no more results. One task at a time takes results. If its `anext` is
    cancelled, the map ends as with `aclose`, and another `anext` raises RuntimeError. The iterator waits in your event
    loop and does not block other tasks there."""

    def __init__(self, plan: Plan, values: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._plan = plan
        self._driver: LoopDriver = plan.driven_by(LoopDriver, plan.scheduler())
        self._output = self._driver.output
        self._meter = meter_of(plan, self._driver, values)
        self._taker = Taker(plan, self._driver, self._meter)
        self._values: Any = values  # until the map begins
        self._taking = False
        self._over = False  # there are no more results
        self._cancelled = False  # an `anext` was, and has ended the map: results are missing

    def __aiter__(self) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        refuse_copy(self, "a map runs once, in this process", "pass on a list of its results")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def __anext__(self) -> _R:
        taker = self._taker
        if self._over or self._taking or taker.is_last or not self._output:
            await self._wait()
        result: _R = taker.take()
        return result

    async def _wait(self) -> None:
        """Wait until the output has an item. At the end raises StopAsyncIteration or the error of the map."""
        if self._taking:
            raise RuntimeError("results already executing: another task is in anext")
        if self._cancelled:
            raise RuntimeError("results are missing: a cancelled anext has ended the map (expected: no other one)")
        if self._over:
            raise StopAsyncIteration
        self._taking = True
        try:
            await self._fill()
        except GeneratorExit:  # the coroutine is closed
            self._cancelled = not self._over
            self.__del__()
            raise
        except BaseException as error:
            self._cancelled = isinstance(error, asyncio.CancelledError) and not self._over
            await self.aclose()
            raise
        finally:
            self._taking = False

    async def _fill(self) -> None:
        driver, taker = self._driver, self._taker
        if self._values is not None and not driver.halted:
            self._begin()
        while not (self._output or taker.is_last):
            taker.report()
            if driver.ended or driver.loop is None:
                break
            await driver.wait()
        if self._output and not self._over and not taker.is_last:
            return
        await driver.join()
        closed, self._over = self._over, True
        if not closed:
            taker.raise_error()
        raise StopAsyncIteration

    def _begin(self) -> None:
        values, self._values, scheduler = self._values, None, self._driver.scheduler
        self._meter.begin()
        is_async = isinstance(values, AsyncIterable)
        self._driver.start((reading if is_async else source_of)(self._plan, scheduler, values))

    def stop(self) -> None:
        """No further item is taken and no call starts. Running calls are waited for, and their results are the last
        ones. Returns at once; also for a signal handler."""
        self._driver.stop(keeps=True)

    def stats(self) -> Stats:
        """Where the map stands."""
        if not self._driver.is_lost():  # in its loop: count what was taken
            self._taker.report()
            self._driver.settle()
        seen: Stats = self._meter.seen()
        return seen

    async def aclose(self) -> None:
        """No further call starts, coroutines are cancelled, results not taken are dropped. If you cancel it, the
        cancellation is raised when everything has ended.

        RuntimeError: it is called by a task of this map, for which it would wait."""
        driver = self._driver
        if driver.runs_here():
            raise RuntimeError("aclose: called by fn or the input of the same map (expected: by another task)")
        self._over, self._values = True, None
        driver.stop(keeps=False)
        try:
            await driver.join()
        finally:
            self._output.clear()

    def __del__(self) -> None:
        if hasattr(self, "_taker") and not self._driver.ended:
            self._driver.stop(keeps=False)


async def reading(plan: Plan, scheduler: Scheduler, values: AsyncIterable[Any]) -> AsyncGenerator[list[Item], None]:
    """The items of an asynchronous input."""
    iterator, numbers = aiter(values), count()
    try:
        async for value in iterator:
            items = [plan.item(scheduler, value, next(numbers))]
            del value  # must not be kept during the wait for the next one
            yield items
            del items
    finally:
        if isinstance(iterator, (AsyncGenerator, AsyncResults)):  # what else has an aclose() may be used on
            await iterator.aclose()


def meter_of(plan: Plan, driver: Driver, values: Any) -> Meter:
    show = display_of(plan.options.progress, values)
    if show is None:
        return Meter(driver.stats, begun=False)
    meter = Meter(driver.stats, show, begun=False)
    driver.progress = meter.report
    return meter


def note_item(error: BaseException, item: Item) -> None:
    """Say which item has failed. Runs `repr` of the item and of its key."""
    attempts = f"{item.attempts} attempt{'' if item.attempts == 1 else 's'}"
    place = "" if item.number is None else f"items[{item.number}], "
    shown = f"{place}{shortened(item.value)}: the item with key {shortened(item.key)}"
    add_note(error, f"manytail: {shown} failed after {attempts}")


def final_error(driver: Driver, note: Callable[[BaseException, Any], None] = note_item) -> BaseException | None:
    """What the map raises after its last result. note: adds what is to be said of the item that has failed."""
    scheduler = driver.scheduler
    error = driver.error()
    if error is None:
        return None
    if isinstance(error, (StopIteration, StopAsyncIteration)):  # raised by an iterator it would end the results
        wrapped = RuntimeError(f"{type(error).__qualname__}: {error}")
        wrapped.__cause__ = error
        error = wrapped
    item = scheduler.failing
    if item is not None and scheduler.error is item.error:
        note(error, item)
    scheduler.forget_errors()
    return error
