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
    """Call `fn(item)` on every item, with many calls at once, and return an iterator over the results.

    The results come in input order, unless `order` says otherwise. The input is read lazily, in a thread of its own: an
    item is taken only when the window has room. If reading `items` raises an exception, it is raised after the results
    of the items before it. If fn has a parameter `delivery`, it gets a Delivery, with facts about the call. Call
    `close()` on the iterator, or use it in a `with` block, to end early: no further call starts, and it waits for
    running calls. The garbage collector does the same without waiting.

    workers: the number of concurrent calls. A plain function runs in that many threads, an `async def` function in that
    many coroutines. (least, most), or (least, start, most): if you do not know how many concurrent calls the server
    tolerates, the map finds out. It begins with `start`, or else `least`, and doubles the number after each round of
    successes, until the first refusal: a deferral, a timeout or a failure that is retried. From then on it adds one per
    round, and each refusal halves it, at most once in the time of one call. A round counts only if all workers were
    busy and calls waited only for a worker. Other options that depend on `workers` use `most`. "inline", for debuggers
    and tests: one call at a time, in the thread that takes the results; no thread is started, and timeout and deadline
    of a plain function are checked when it returns. Options that depend on `workers` use 1.
    max_in_flight: items taken from the input and not yet yielded, at most. None: begins at 4 x workers x batch and
    doubles, up to 10,000 (or 4 x workers x batch, if that is more), whenever a worker is idle only because the other
    items wait for an earlier one, for their key or for their look-up (for look-ups up to 16 x workers x batch). A slow
    consumer never makes it grow, and it stops growing while the items and results that wait have 256 MB, by their
    nbytes or sys.getsizeof.
    order: the order of the results. "input": that of the items. "key": that of the items within each key; different
    keys overtake each other. "completion": as calls finish. A slow item holds back the results behind it, but other
    calls continue.
    key: a function that returns the group of an item, for example its host or tenant. Groups take turns, and `per_key`,
    `weights`, `order="key"`, breakers and limits with per_key=True apply to each group. None: all items are one group.
    per_key: the number of concurrent calls of each key. None: no limit. Needs `key`. An item that waits for its next
    attempt keeps its place.
    weights: the number of calls that a key starts when it is its turn: a mapping from keys to numbers. Other keys have
    1. Needs `key`.
    priority: a function that returns the priority of an item. Lower numbers start first; None starts last. It applies
    to the items in the window, and changes when calls start, never the order of the results.
    batch: calls fn with a list of up to this many items of one key; fn returns a sequence with one result for each.
    Batch(size, linger) also says how long a batch waits to be filled. An element that is an exception fails only its
    item, and a RetryLater defers it. A batch is one call for workers, per_key and timeout, and costs the sum of its
    items. If a batch fails for good, each half is called separately. A result that is no sequence or has another
    length, a timeout, and the deadline fail all its items. None: one item per call.
    timeout: seconds that one attempt may take; then it fails with TimeoutError. None: no limit. A coroutine is
    cancelled. A plain function cannot be stopped: it continues in its thread and its result is dropped. If more than
    `workers` such calls are running, the map fails. Give your client a timeout that is a little shorter.
    deadline: seconds from the first item that the whole map may take. Then every item that is not finished fails with
    DeadlineExceeded, and the rest of the input is read without calls. None: no limit.
    retry: how often a failed call is made again: a number, or a Retry, which also says for which errors and after which
    pauses. Retry.http() knows the errors of HTTP clients. 0: never. An item that waits for its next attempt occupies no
    worker, and starts before new items of its key and priority. RetryLater defers an item without using up an attempt.
    breaker: pauses a key after this many failed calls in a row (without `key`, the whole map); then one call tries
    whether it works again. A Breaker also says for how long. None: never.
    errors: what happens to an item that fails for good. "raise": no further call starts; the results before it are
    yielded, then its exception is raised, with a note that names the item. "return": every item yields an Outcome, with
    its result or its error. "drop": the item is left out.
    max_failures: the number of items that may fail. If more fail, the map ends with TooManyFailures, as with
    errors="raise". Needs errors="return" or "drop". None: no limit.
    fatal: errors that end the map at once, whatever `errors` says: exception classes, or a function that gets the error
    and returns a bool. They are not retried. Errors that fn has not raised count too, such as BudgetExceeded.
    limits: a Rate, a Budget, a Concurrency, or a list of them. A call starts when all of them have room for it. Maps
    that use the same limit object share the limit, and are served in the order in which they began to wait; with
    `shared`, so does everything that uses its name in that database. An item that can never fit a Budget fails with
    BudgetExceeded, a retry that cannot fit fails with the error of fn, and others continue. A deferred call costs a
    Budget nothing.
    item_id: a function that returns the value that identifies an item, for `dedup`, `remember` and the idempotency key.
    None: the item itself. The value may be None, a bool, int, float, str, bytes, date, time, Decimal or UUID, or a
    tuple, list, dict, NamedTuple or dataclass of them. With dedup and remember, an item with another value fails with
    TypeError.
    dedup: lets equal items share one call while it runs, and the results of the last `dedup` calls (the same object).
    After a failure the next equal item is called. None: every item is called.
    remember: records results in a database, so that the next run does not make these calls again: a path or URL, or a
    Shared. A path stands for Shared(path, module and name of fn); if fn has changed since results were recorded, a
    UserWarning says so once. Items are identified by `item_id`. Results are looked up in bulk, at most 1 s before the
    call, and recorded at most 0.5 s or 200 results after they arrived, and before the map ends. After a kill -9, at
    most the running calls and those 200 are paid for twice. Failures are not recorded. If a result cannot be recorded,
    it is yielded, and then the map fails with TypeError; a Caller continues and logs the first one. While the database
    is unavailable no call starts; after its outage_timeout the map fails with SharedUnavailable.
    setup: a function that creates what fn gets as `resource=`, for example a client or a connection. It is called once
    per worker thread, before its first call; for an `async def` fn once, in the event loop. A context manager is
    entered, and exited at the end; of anything else close() is called, if there is one.
    progress: True shows one line of progress. A function is called with Stats at most 5 times a second, and once at the
    end.

    Raises ValueError or TypeError for a bad option before any item is taken. Blocking.

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
    """`concurrent_map` for asyncio: fn is an `async def` function, and everything runs in your event loop.

    Use it as `async with aconcurrent_map(...) as results: async for result in results: ...`. A plain iterable is read
    in the loop, so it must not block. If your task is cancelled, the map ends as with aclose(); this is never an item's
    failure. Threads are started only for the database of `remember` and `shared`.

    Options and errors are those of concurrent_map, except workers="inline". Progress: waits in your loop and blocks
    nothing else there.
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
    """Calls `fn(item)` for items that arrive one by one, for example from request handlers. All threads that use one
    Caller share its workers, batches, limits and breakers.

    `caller(item)` waits for the result and returns it, or raises what fn raised. `submit(item)` returns a Future. Items
    of the same key and priority start in the order in which they were submitted. An `async def` function runs in an
    event loop of its own, in a thread. fn runs in a copy of the context in which the Caller was created; functions of
    an item (key, priority, cost, item_id) also do, in the thread that submits it.

    workers: the number of concurrent calls. A plain function runs in that many threads, an `async def` function in that
    many coroutines. (least, most), or (least, start, most): the Caller finds a number between them, as a map does.
    max_in_flight: items submitted and not finished, at most; submitting more waits. None: 10,000, or workers x batch if
    that is more.
    key: a function that returns the group of an item, for example its host or tenant. Groups take turns, and `per_key`,
    `weights`, `order="key"`, breakers and limits with per_key=True apply to each group. None: all items are one group.
    per_key: the number of concurrent calls of each key. None: no limit. Needs `key`. An item that waits for its next
    attempt keeps its place.
    weights: the number of calls that a key starts when it is its turn: a mapping from keys to numbers. Other keys have
    1. Needs `key`.
    priority: a function that returns the priority of an item. Lower numbers start first; None starts last. It applies
    to the items in the window, and changes when calls start, never the order of the results.
    batch: calls fn with a list of up to this many items of one key; fn returns a sequence with one result for each.
    Batch(size, linger) also says how long a batch waits to be filled. An element that is an exception fails only its
    item, and a RetryLater defers it. A batch is one call for workers, per_key and timeout, and costs the sum of its
    items. If a batch fails for good, each half is called separately. A result that is no sequence or has another
    length, a timeout, and the deadline fail all its items. None: one item per call.
    timeout: seconds that one attempt may take; then it fails with TimeoutError. None: no limit. A coroutine is
    cancelled. A plain function cannot be stopped: it continues in its thread and its result is dropped. If more than
    `workers` such calls are running, the map fails. Give your client a timeout that is a little shorter.
    retry: how often a failed call is made again: a number, or a Retry, which also says for which errors and after which
    pauses. Retry.http() knows the errors of HTTP clients. 0: never. An item that waits for its next attempt occupies no
    worker, and starts before new items of its key and priority. RetryLater defers an item without using up an attempt.
    breaker: pauses a key after this many failed calls in a row (without `key`, the whole map); then one call tries
    whether it works again. A Breaker also says for how long. None: never.
    limits: a Rate, a Budget, a Concurrency, or a list of them. A call starts when all of them have room for it. Maps
    that use the same limit object share the limit, and are served in the order in which they began to wait; with
    `shared`, so does everything that uses its name in that database. An item that can never fit a Budget fails with
    BudgetExceeded, a retry that cannot fit fails with the error of fn, and others continue. A deferred call costs a
    Budget nothing.
    item_id: a function that returns the value that identifies an item, for `dedup`, `remember` and the idempotency key.
    None: the item itself. The value may be None, a bool, int, float, str, bytes, date, time, Decimal or UUID, or a
    tuple, list, dict, NamedTuple or dataclass of them. With dedup and remember, an item with another value fails with
    TypeError.
    dedup: lets equal items share one call while it runs, and the results of the last `dedup` calls (the same object).
    After a failure the next equal item is called. None: every item is called.
    remember: records results in a database, so that the next run does not make these calls again: a path or URL, or a
    Shared. A path stands for Shared(path, module and name of fn); if fn has changed since results were recorded, a
    UserWarning says so once. Items are identified by `item_id`. Results are looked up in bulk, at most 1 s before the
    call, and recorded at most 0.5 s or 200 results after they arrived, and before the map ends. After a kill -9, at
    most the running calls and those 200 are paid for twice. Failures are not recorded. If a result cannot be recorded,
    it is yielded, and then the map fails with TypeError; a Caller continues and logs the first one. While the database
    is unavailable no call starts; after its outage_timeout the map fails with SharedUnavailable.
    setup: a function that creates what fn gets as `resource=`, for example a client or a connection. It is called once
    per worker thread, before its first call; for an `async def` fn once, in the event loop. A context manager is
    entered, and exited at the end; of anything else close() is called, if there is one.

    Leaving the `with` block waits for all items; after an exception, items that have not started are cancelled. If the
    Caller itself fails, for example because its database is gone, all items fail with that error, and later ones with
    RuntimeError.

    Inside fn, `caller(item)` raises RuntimeError if it would wait for itself: if all workers wait in such calls (with a
    range as workers, `least` of them), or all calls of its per_key places, or the call with an equal item (dedup). With
    an `async def` fn it always does, because it would block the loop. Inside fn, max_in_flight is not waited for.
    Waiting for a submitted future is not checked for deadlock.

    Ctrl-C in `caller(item)` cancels the item, unless its call is running. In a forked child a Caller starts anew; its
    earlier futures belong to the parent. A Caller that is garbage-collected without close cancels what has not started.
    Raises ValueError or TypeError for a bad option. Blocking.

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
    """Caller for asyncio: fn is an `async def` function, and everything runs in the event loop of the first call.

    `await caller(item)` returns the result. From other threads, use asyncio.run_coroutine_threadsafe. If you cancel the
    await, the item is cancelled if its call has not started. A running call is cancelled only if nobody else waits for
    it, in its batch or with an equal item.

    workers: the number of concurrent calls. A plain function runs in that many threads, an `async def` function in that
    many coroutines. (least, most), or (least, start, most): the Caller finds a number between them, as a map does.
    max_in_flight: items submitted and not finished, at most; submitting more waits. None: 10,000, or workers x batch if
    that is more.
    key: a function that returns the group of an item, for example its host or tenant. Groups take turns, and `per_key`,
    `weights`, `order="key"`, breakers and limits with per_key=True apply to each group. None: all items are one group.
    per_key: the number of concurrent calls of each key. None: no limit. Needs `key`. An item that waits for its next
    attempt keeps its place.
    weights: the number of calls that a key starts when it is its turn: a mapping from keys to numbers. Other keys have
    1. Needs `key`.
    priority: a function that returns the priority of an item. Lower numbers start first; None starts last. It applies
    to the items in the window, and changes when calls start, never the order of the results.
    batch: calls fn with a list of up to this many items of one key; fn returns a sequence with one result for each.
    Batch(size, linger) also says how long a batch waits to be filled. An element that is an exception fails only its
    item, and a RetryLater defers it. A batch is one call for workers, per_key and timeout, and costs the sum of its
    items. If a batch fails for good, each half is called separately. A result that is no sequence or has another
    length, a timeout, and the deadline fail all its items. None: one item per call.
    timeout: seconds that one attempt may take; then it fails with TimeoutError. None: no limit. A coroutine is
    cancelled. A plain function cannot be stopped: it continues in its thread and its result is dropped. If more than
    `workers` such calls are running, the map fails. Give your client a timeout that is a little shorter.
    retry: how often a failed call is made again: a number, or a Retry, which also says for which errors and after which
    pauses. Retry.http() knows the errors of HTTP clients. 0: never. An item that waits for its next attempt occupies no
    worker, and starts before new items of its key and priority. RetryLater defers an item without using up an attempt.
    breaker: pauses a key after this many failed calls in a row (without `key`, the whole map); then one call tries
    whether it works again. A Breaker also says for how long. None: never.
    limits: a Rate, a Budget, a Concurrency, or a list of them. A call starts when all of them have room for it. Maps
    that use the same limit object share the limit, and are served in the order in which they began to wait; with
    `shared`, so does everything that uses its name in that database. An item that can never fit a Budget fails with
    BudgetExceeded, a retry that cannot fit fails with the error of fn, and others continue. A deferred call costs a
    Budget nothing.
    item_id: a function that returns the value that identifies an item, for `dedup`, `remember` and the idempotency key.
    None: the item itself. The value may be None, a bool, int, float, str, bytes, date, time, Decimal or UUID, or a
    tuple, list, dict, NamedTuple or dataclass of them. With dedup and remember, an item with another value fails with
    TypeError.
    dedup: lets equal items share one call while it runs, and the results of the last `dedup` calls (the same object).
    After a failure the next equal item is called. None: every item is called.
    remember: records results in a database, so that the next run does not make these calls again: a path or URL, or a
    Shared. A path stands for Shared(path, module and name of fn); if fn has changed since results were recorded, a
    UserWarning says so once. Items are identified by `item_id`. Results are looked up in bulk, at most 1 s before the
    call, and recorded at most 0.5 s or 200 results after they arrived, and before the map ends. After a kill -9, at
    most the running calls and those 200 are paid for twice. Failures are not recorded. If a result cannot be recorded,
    it is yielded, and then the map fails with TypeError; a Caller continues and logs the first one. While the database
    is unavailable no call starts; after its outage_timeout the map fails with SharedUnavailable.
    setup: a function that creates what fn gets as `resource=`, for example a client or a connection. It is called once
    per worker thread, before its first call; for an `async def` fn once, in the event loop. A context manager is
    entered, and exited at the end; of anything else close() is called, if there is one.

    Leaving the block, exceptions, and calls inside fn are as with Caller. Threads are started only for the database of
    `remember` and `shared`. Raises ValueError or TypeError for a bad option. Progress: waits in the loop and blocks
    nothing else there.
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
