"""Types of the maps and Callers: overloads by what fn is, by `batch` and by `errors`. Docstrings say what each option
does. Written by tools/mapping_stub.py.

fn may have further parameters: `delivery`, `resource`, and what has a default.
"""

from collections.abc import AsyncIterable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from typing import Any, Concatenate, Generic, Literal, Self, TypeAlias, TypeVar, overload

from ._limits import Budget, Concurrency, Limit, Rate
from ._map import AsyncResults, Results
from ._policies import Batch, Breaker, Retry
from ._policies import On as On
from ._shared import Shared
from ._types import (
    BreakerOpen,
    BudgetExceeded,
    DeadlineExceeded,
    Delivery,
    Outcome,
    Quantiles,
    RetryLater,
    SharedUnavailable,
    Stats,
    TooManyFailures,
)

__all__ = [
    "AsyncCaller", "AsyncResults", "Batch", "Breaker", "BreakerOpen", "Budget", "BudgetExceeded", "Caller",
    "Concurrency", "DeadlineExceeded", "Delivery", "Limit", "Outcome", "Quantiles", "Rate", "Results", "Retry",
    "RetryLater", "Shared", "SharedUnavailable", "Stats", "TooManyFailures", "aconcurrent_map", "concurrent_map",
]  # fmt: skip

_T = TypeVar("_T")
_R = TypeVar("_R")

# Both forms: mypy refuses lambdas for the second, which is for functions with further parameters.
_Call: TypeAlias = Callable[[_T], _R] | Callable[Concatenate[_T, ...], _R]
_AsyncCall: TypeAlias = _Call[_T, Coroutine[Any, Any, _R]]

@overload
def concurrent_map(
    fn: _AsyncCall[_T, _R], items: Iterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] | Literal["inline"] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: None = None, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None, fatal: On = (),
    limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> Results[_R]:
    """Call `fn(item)` on every item, many calls at once. Returns an iterator over the results.

    Lazy: an item is taken from `items` only while the window has a free slot, in a separate thread, so that a slow
    input delays no finished result. An exception of `items` is raised after the results of all items before it. close()
    on the iterator: no further call starts, coroutines are cancelled, running calls are joined. The garbage collector
    does the same without waiting. fn gets `delivery=` (a Delivery) if it has a parameter of that name.

    workers: calls at once. A plain fn runs in so many threads, an `async def` in so many coroutines. (least, most): a
    number between them, found while the map runs. It begins with `least`, that of (least, start, most) with `start`. It
    doubles after each round of successes in which all workers were busy and calls waited only for a worker, until the
    first refusal: a deferral, a timeout or a failure that is retried. From then on it grows by one a round, and each
    refusal halves it, at most once in a round trip. What is said of `workers` elsewhere holds for `most`. "inline", for
    debuggers and tests: one call at a time, in the thread that takes the results, while it takes one; no thread is
    started. An `async def` runs in a loop that is kept for the map. The input is read, and the database asked, there
    too. timeout and deadline of a plain fn act between calls: a call that took too long fails when it returns. Where a
    text says `workers`, it is 1.
    max_in_flight: items taken and not emitted. None: starts at 4 x workers x batch, and doubles up to 10,000 (or 4 x
    workers x batch, if that is more) when a worker has nothing to run only because other items wait for an earlier one,
    for their key or (up to 16 x workers x batch) for their look-up. A slow consumer never makes it grow.
    order: "input"; "key": items of one key in input order, keys overtake one another; "completion": as calls finish.
    key: the key of an item, for what is said of keys here.
    per_key: calls of a key at once, at most.
    weights: keys are served round robin, by weight. An absent key has 1.
    priority: of an item; the lowest starts first, None is last. Like keys it applies to the items in the window, and
    changes when calls start, never the promised order.
    batch: a Batch, or its size: fn gets a list of up to so many items of one key and returns a sequence of as many
    results. An element that is an exception fails that item alone; a RetryLater defers it. It is one call for workers,
    per_key and timeout; what it costs is the sum of its items'. When a batch of several fails for good, each half is
    called on its own. A result that is no sequence or has another length, a timeout, and the deadline fail all its
    items.
    timeout: seconds per attempt, then TimeoutError. A coroutine is cancelled; a plain call is abandoned and its late
    result dropped; more than `workers` live abandoned calls fail the map.
    deadline: seconds from the first item, for everything. Then every item that is not done fails with DeadlineExceeded,
    and the input is read to its end without calls.
    retry: a Retry, or its times: how often and after what waits an item is called again whose call failed. A waiting
    item holds no worker, and goes before new items of its key and priority. RetryLater defers an item without using up
    a retry.
    breaker: a Breaker, or its failures: after so many failed calls of a key in a row (no key: of the map) none of it
    starts for a while, then one probe.
    errors: "raise": once an item has failed for good no call starts; the results before it are yielded, then fn's
    exception is raised with a note that names key and attempts. "return": an Outcome for every item. "drop": the item
    has no result.
    max_failures: as soon as more items than that have failed, the map ends as with errors="raise", by TooManyFailures.
    fatal: an error that it names, as `on` of a Retry does, ends the map as with errors="raise", whatever errors says,
    and is not retried. Errors that fn has not raised count, too, such as BudgetExceeded.
    limits: a Rate, a Budget, a Concurrency, or a list of them. A call starts when all have room for it, and takes from
    all or from none. A limit that several maps use at the same time is kept by them together, in the order in which
    they came to wait. An item that can never fit a Budget fails with BudgetExceeded, a retry that cannot with fn's
    error; others continue. A deferred call costs a Budget nothing. A limit with `shared` holds for everything that uses
    its name there, in database time.
    item_id: what the idempotency key of an item is made of, or else the item: None, bool, int, float, str, bytes,
    dates, times, Decimal, UUID, and tuples, lists, dicts, NamedTuples and dataclasses of them. With dedup and remember
    another type fails the item with TypeError.
    dedup: items of equal idempotency key share one call while it runs, and its result (the same object) among the last
    `dedup` ones. After a failure the next equal item is called.
    remember: a Shared; or a path or URL, which stands for Shared(path, module and name of fn); then a UserWarning says
    once if fn has changed since results were recorded. Results are looked up there (in bulk, at most 1 s before the
    call or before a slot that it missed), and new ones recorded (at most 0.5 s or 200 results after they came, and
    before the map ends). An item whose result was recorded when it was looked up is not called. After a kill -9 at most
    the calls that ran and that last group are paid for twice. Failures are not recorded. Items are told apart by their
    idempotency key. A result that the codec refuses is emitted, not recorded, and logged once. While the database is
    away no call starts; after its outage_timeout the map fails with SharedUnavailable.
    setup: called once per worker thread before its first call, for an async fn once in the loop. What it returns is
    passed to fn as `resource=`. A context manager is entered, and left at the end; of another resource close() is
    called, if it has one.
    progress: True draws a line; a callable gets Stats at most 5 times a second and once at the end.

    ValueError, TypeError: a bad option, or options that do not fit together, before an item is taken. Blocking.

    >>> list(concurrent_map(str.upper, ["a", "b"], workers=2))
    ['A', 'B']
    """
@overload
def concurrent_map(
    fn: _AsyncCall[_T, _R], items: Iterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] | Literal["inline"] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: None = None, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["return"], max_failures: int | None = None, fatal: On = (), limits: Limit | Sequence[Limit] = (),
    item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> Results[Outcome[_T, _R]]: ...
@overload
def concurrent_map(
    fn: _Call[_T, _R], items: Iterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] | Literal["inline"] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: None = None, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None, fatal: On = (),
    limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> Results[_R]: ...
@overload
def concurrent_map(
    fn: _Call[_T, _R], items: Iterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] | Literal["inline"] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: None = None, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["return"], max_failures: int | None = None, fatal: On = (), limits: Limit | Sequence[Limit] = (),
    item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> Results[Outcome[_T, _R]]: ...
@overload
def concurrent_map(
    fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], items: Iterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] | Literal["inline"] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int | Batch, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None, fatal: On = (),
    limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> Results[_R]: ...
@overload
def concurrent_map(
    fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], items: Iterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] | Literal["inline"] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int | Batch, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["return"], max_failures: int | None = None, fatal: On = (), limits: Limit | Sequence[Limit] = (),
    item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> Results[Outcome[_T, _R]]: ...
@overload
def concurrent_map(
    fn: _Call[list[_T], Sequence[_R | BaseException]], items: Iterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] | Literal["inline"] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int | Batch, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None, fatal: On = (),
    limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> Results[_R]: ...
@overload
def concurrent_map(
    fn: _Call[list[_T], Sequence[_R | BaseException]], items: Iterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] | Literal["inline"] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int | Batch, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["return"], max_failures: int | None = None, fatal: On = (), limits: Limit | Sequence[Limit] = (),
    item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> Results[Outcome[_T, _R]]: ...
@overload
def aconcurrent_map(
    fn: _AsyncCall[_T, _R], items: Iterable[_T] | AsyncIterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: None = None, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None, fatal: On = (),
    limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> AsyncResults[_R]:
    """`concurrent_map` for asyncio: fn is `async def`, and everything runs in the caller's loop. There are threads only
    with `remember` and `shared`, for their database.

    A plain iterable is read in the loop and must not block. The caller's own cancellation is never an item's failure.
    Use it in `async with aconcurrent_map(...) as results: async for result in results: ...`. Cancelled or collected it
    ends as by aclose().
    Options and errors are concurrent_map's, but for workers="inline". Progress: waits for results in the caller's loop,
    and blocks nothing else there.
    """
@overload
def aconcurrent_map(
    fn: _AsyncCall[_T, _R], items: Iterable[_T] | AsyncIterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: None = None, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["return"], max_failures: int | None = None, fatal: On = (), limits: Limit | Sequence[Limit] = (),
    item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> AsyncResults[Outcome[_T, _R]]: ...
@overload
def aconcurrent_map(
    fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], items: Iterable[_T] | AsyncIterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int | Batch, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None, fatal: On = (),
    limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> AsyncResults[_R]: ...
@overload
def aconcurrent_map(
    fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], items: Iterable[_T] | AsyncIterable[_T], *,
    workers: int | tuple[int, int] | tuple[int, int, int] = 16, max_in_flight: int | None = None,
    order: Literal["input", "key", "completion"] = "input", key: Callable[[_T], Hashable] | None = None,
    per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int | Batch, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["return"], max_failures: int | None = None, fatal: On = (), limits: Limit | Sequence[Limit] = (),
    item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> AsyncResults[Outcome[_T, _R]]: ...

class Caller(Generic[_T, _R]):
    """Calls `fn(item)` for whoever hands an item in: request handlers, consumers, other threads. They share workers,
    batches, limits, breakers and equal calls, as the items of one map do.

    caller(item) hands an item in, waits, and returns its result or raises what fn raised. submit(item) returns a
    Future. Items of one key and priority start in the order in which they were handed in. An `async def` runs in a loop
    of its own, in a thread. fn, and the functions of an item (key, priority, cost, item_id), run in a copy of the
    context in which the Caller was made; those of an item in the thread that hands it in.

    workers: calls at once. A plain fn runs in so many threads, an `async def` in so many coroutines. (least, most),
    (least, start, most): a number between them, found while the Caller runs, as that of a map.
    max_in_flight: items handed in and not done (None: 10,000, or workers x batch if that is more). Handing in waits
    while there are so many.
    key: the key of an item, for what is said of keys here.
    per_key: calls of a key at once, at most.
    weights: keys are served round robin, by weight. An absent key has 1.
    priority: of an item; the lowest starts first, None is last. Like keys it applies to the items in the window, and
    changes when calls start, never the promised order.
    batch: a Batch, or its size: fn gets a list of up to so many items of one key and returns a sequence of as many
    results. An element that is an exception fails that item alone; a RetryLater defers it. It is one call for workers,
    per_key and timeout; what it costs is the sum of its items'. When a batch of several fails for good, each half is
    called on its own. A result that is no sequence or has another length, a timeout, and the deadline fail all its
    items.
    timeout: seconds per attempt, then TimeoutError. A coroutine is cancelled; a plain call is abandoned and its late
    result dropped; more than `workers` live abandoned calls fail the map.
    retry: a Retry, or its times: how often and after what waits an item is called again whose call failed. A waiting
    item holds no worker, and goes before new items of its key and priority. RetryLater defers an item without using up
    a retry.
    breaker: a Breaker, or its failures: after so many failed calls of a key in a row (no key: of the map) none of it
    starts for a while, then one probe.
    limits: a Rate, a Budget, a Concurrency, or a list of them. A call starts when all have room for it, and takes from
    all or from none. A limit that several maps use at the same time is kept by them together, in the order in which
    they came to wait. An item that can never fit a Budget fails with BudgetExceeded, a retry that cannot with fn's
    error; others continue. A deferred call costs a Budget nothing. A limit with `shared` holds for everything that uses
    its name there, in database time.
    item_id: what the idempotency key of an item is made of, or else the item: None, bool, int, float, str, bytes,
    dates, times, Decimal, UUID, and tuples, lists, dicts, NamedTuples and dataclasses of them. With dedup and remember
    another type fails the item with TypeError.
    dedup: items of equal idempotency key share one call while it runs, and its result (the same object) among the last
    `dedup` ones. After a failure the next equal item is called.
    remember: a Shared; or a path or URL, which stands for Shared(path, module and name of fn); then a UserWarning says
    once if fn has changed since results were recorded. Results are looked up there (in bulk, at most 1 s before the
    call or before a slot that it missed), and new ones recorded (at most 0.5 s or 200 results after they came, and
    before the map ends). An item whose result was recorded when it was looked up is not called. After a kill -9 at most
    the calls that ran and that last group are paid for twice. Failures are not recorded. Items are told apart by their
    idempotency key. A result that the codec refuses is emitted, not recorded, and logged once. While the database is
    away no call starts; after its outage_timeout the map fails with SharedUnavailable.
    setup: called once per worker thread before its first call, for an async fn once in the loop. What it returns is
    passed to fn as `resource=`. A context manager is entered, and left at the end; of another resource close() is
    called, if it has one.

    Where a text says map, it is the Caller: when it fails, all items fail with its error, and later ones with
    RuntimeError. Leaving the block waits for all items; on an exception what has not started is cancelled.

    A call inside fn: caller(item) may wait for an item that is served only after that call has ended. RuntimeError if
    it would: when all workers wait in such calls (with a pair as workers, `least` of them), or those that hold all
    per_key slots of its key, or one with an equal item (dedup); with an `async def` fn always, because it blocks the
    loop. Neither caller(item) nor submit waits there for max_in_flight. A wait for the Future of a submit is not seen.

    A KeyboardInterrupt cancels the item of the call that it interrupts, as Future.cancel does: unless its call runs. In
    a forked child a Caller begins anew at its first call; the futures of before are the parent's. Collected without
    close it cancels what has not started, and its threads end. ValueError, TypeError: a bad option. Blocking.

    >>> with Caller(str.upper, workers=2) as upper:
    ...     upper("a"), upper.submit("b").result()
    ('A', 'B')
    """
    @overload
    def __init__(
        self: Caller[_T, _R], fn: _AsyncCall[_T, _R], *,
        workers: int | tuple[int, int] | tuple[int, int, int] = 16, max_in_flight: int | None = None,
        key: Callable[[_T], Hashable] | None = None, per_key: int | None = None,
        weights: Mapping[Any, int] | None = None, priority: Callable[[_T], int | None] | None = None,
        batch: None = None, timeout: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
        limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Caller[_T, _R], fn: _Call[_T, _R], *,
        workers: int | tuple[int, int] | tuple[int, int, int] = 16, max_in_flight: int | None = None,
        key: Callable[[_T], Hashable] | None = None, per_key: int | None = None,
        weights: Mapping[Any, int] | None = None, priority: Callable[[_T], int | None] | None = None,
        batch: None = None, timeout: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
        limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Caller[_T, _R], fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], *,
        workers: int | tuple[int, int] | tuple[int, int, int] = 16, max_in_flight: int | None = None,
        key: Callable[[_T], Hashable] | None = None, per_key: int | None = None,
        weights: Mapping[Any, int] | None = None, priority: Callable[[_T], int | None] | None = None,
        batch: int | Batch, timeout: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
        limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Caller[_T, _R], fn: _Call[list[_T], Sequence[_R | BaseException]], *,
        workers: int | tuple[int, int] | tuple[int, int, int] = 16, max_in_flight: int | None = None,
        key: Callable[[_T], Hashable] | None = None, per_key: int | None = None,
        weights: Mapping[Any, int] | None = None, priority: Callable[[_T], int | None] | None = None,
        batch: int | Batch, timeout: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
        limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    ) -> None: ...
    def __call__(self, item: _T) -> _R: ...
    def submit(self, item: _T) -> Future[_R]: ...
    def stats(self) -> Stats: ...
    def close(self, *, cancel: bool = False) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, *error: object) -> None: ...
    def __del__(self, finalizing: Callable[[], bool] = ...) -> None: ...

class AsyncCaller(Generic[_T, _R]):
    """Caller for asyncio: fn is `async def`, and everything runs in the loop of the first call. `await caller(item)`
    hands an item in. From another thread: asyncio.run_coroutine_threadsafe.

    Cancelling that await cancels the item if it has not started. A call that runs is cancelled only if nobody else
    waits for it, in its batch or with an equal item.

    workers: calls at once. A plain fn runs in so many threads, an `async def` in so many coroutines. (least, most),
    (least, start, most): a number between them, found while the Caller runs, as that of a map.
    max_in_flight: items handed in and not done (None: 10,000, or workers x batch if that is more). Handing in waits
    while there are so many.
    key: the key of an item, for what is said of keys here.
    per_key: calls of a key at once, at most.
    weights: keys are served round robin, by weight. An absent key has 1.
    priority: of an item; the lowest starts first, None is last. Like keys it applies to the items in the window, and
    changes when calls start, never the promised order.
    batch: a Batch, or its size: fn gets a list of up to so many items of one key and returns a sequence of as many
    results. An element that is an exception fails that item alone; a RetryLater defers it. It is one call for workers,
    per_key and timeout; what it costs is the sum of its items'. When a batch of several fails for good, each half is
    called on its own. A result that is no sequence or has another length, a timeout, and the deadline fail all its
    items.
    timeout: seconds per attempt, then TimeoutError. A coroutine is cancelled; a plain call is abandoned and its late
    result dropped; more than `workers` live abandoned calls fail the map.
    retry: a Retry, or its times: how often and after what waits an item is called again whose call failed. A waiting
    item holds no worker, and goes before new items of its key and priority. RetryLater defers an item without using up
    a retry.
    breaker: a Breaker, or its failures: after so many failed calls of a key in a row (no key: of the map) none of it
    starts for a while, then one probe.
    limits: a Rate, a Budget, a Concurrency, or a list of them. A call starts when all have room for it, and takes from
    all or from none. A limit that several maps use at the same time is kept by them together, in the order in which
    they came to wait. An item that can never fit a Budget fails with BudgetExceeded, a retry that cannot with fn's
    error; others continue. A deferred call costs a Budget nothing. A limit with `shared` holds for everything that uses
    its name there, in database time.
    item_id: what the idempotency key of an item is made of, or else the item: None, bool, int, float, str, bytes,
    dates, times, Decimal, UUID, and tuples, lists, dicts, NamedTuples and dataclasses of them. With dedup and remember
    another type fails the item with TypeError.
    dedup: items of equal idempotency key share one call while it runs, and its result (the same object) among the last
    `dedup` ones. After a failure the next equal item is called.
    remember: a Shared; or a path or URL, which stands for Shared(path, module and name of fn); then a UserWarning says
    once if fn has changed since results were recorded. Results are looked up there (in bulk, at most 1 s before the
    call or before a slot that it missed), and new ones recorded (at most 0.5 s or 200 results after they came, and
    before the map ends). An item whose result was recorded when it was looked up is not called. After a kill -9 at most
    the calls that ran and that last group are paid for twice. Failures are not recorded. Items are told apart by their
    idempotency key. A result that the codec refuses is emitted, not recorded, and logged once. While the database is
    away no call starts; after its outage_timeout the map fails with SharedUnavailable.
    setup: called once per worker thread before its first call, for an async fn once in the loop. What it returns is
    passed to fn as `resource=`. A context manager is entered, and left at the end; of another resource close() is
    called, if it has one.

    Where a text says map, it is the AsyncCaller. Leaving the block, exceptions, and calls inside fn are as of Caller.
    There are threads only with `remember` and `shared`, for their database. ValueError, TypeError: a bad option.
    Progress: waits in the loop, and blocks nothing else there.
    """
    @overload
    def __init__(
        self: AsyncCaller[_T, _R], fn: _AsyncCall[_T, _R], *,
        workers: int | tuple[int, int] | tuple[int, int, int] = 16, max_in_flight: int | None = None,
        key: Callable[[_T], Hashable] | None = None, per_key: int | None = None,
        weights: Mapping[Any, int] | None = None, priority: Callable[[_T], int | None] | None = None,
        batch: None = None, timeout: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
        limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncCaller[_T, _R], fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], *,
        workers: int | tuple[int, int] | tuple[int, int, int] = 16, max_in_flight: int | None = None,
        key: Callable[[_T], Hashable] | None = None, per_key: int | None = None,
        weights: Mapping[Any, int] | None = None, priority: Callable[[_T], int | None] | None = None,
        batch: int | Batch, timeout: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
        limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    ) -> None: ...
    async def __call__(self, item: _T) -> _R: ...
    def stats(self) -> Stats: ...
    async def aclose(self, *, cancel: bool = False) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, kind: object, *error: object) -> None: ...
    def __del__(self, finalizing: Callable[[], bool] = ...) -> None: ...
