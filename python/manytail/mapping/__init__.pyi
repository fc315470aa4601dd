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

    The results come in input order, unless `order` says otherwise. The input is read lazily, in a separate thread: an
    item is taken only when there is room for it (see `max_in_flight`). If reading `items` raises an exception, it is
    raised after the results of the items before it. If fn has a parameter named `delivery`, it gets a Delivery, which
    describes the call. To end early, call `close()` on the iterator or use it in a `with` block: no further call
    starts, and running calls are waited for. The garbage collector does the same without waiting.

    workers: the number of concurrent calls. A plain function runs in that many threads, an `async def` function in that
    many coroutines. If you do not know how many concurrent calls the server tolerates, pass (least, most) or (least,
    start, most), and the map finds out. It begins with `start` calls (by default `least`) and doubles the number after
    each round of successes, until the first refusal. A refusal is a deferral, a timeout or a failure that is retried.
    From then on, each round of successes adds one, and a refusal halves the number, at most once in the time that one
    call takes. A round counts only if all workers were busy and calls had to wait only for a worker. Options that
    depend on `workers` use `most`. "inline" is for debugging and tests: calls are made one at a time, in the thread
    that takes the results, and no thread is started. The timeout and the deadline of a plain function are then checked
    only when it returns, and options that depend on `workers` treat it as 1.
    max_in_flight: the maximum number of items taken from the input and not yet yielded. None: the limit begins at 4 x
    workers x batch. It doubles whenever a worker is idle because all items in the window are finished, or wait for an
    earlier item, for their key or for their look-up in `remember`. It grows up to 10,000, or 4 x workers x batch if
    that is more. Growth that only look-ups cause stops at 16 x workers x batch. A slow consumer never makes it grow,
    and it stops growing while the waiting items and results occupy 256 MB or more, according to nbytes or
    sys.getsizeof.
    order: the order of the results. "input": the order of the items. "key": the order of the items within each key;
    results of different keys may overtake each other. "completion": the order in which calls finish. With "input" and
    "key", a slow item delays the results that come after it, but other calls continue.
    key: a function that returns the group of an item, for example its host or tenant. Groups take turns, and `per_key`,
    `weights`, `order="key"`, breakers and limits with per_key=True apply to each group. None: all items are one group.
    per_key: the maximum number of concurrent calls of each key. None: no limit. It needs `key`. An item that is waiting
    for its next attempt still counts.
    weights: a mapping from keys to the number of calls that a key starts in each of its turns. Keys that are not in the
    mapping have a weight of 1. It needs `key`.
    priority: a function that returns the priority of an item. Lower numbers start first; None starts last. It applies
    to the items that are in flight, and affects when calls start, never the order of the results.
    batch: calls fn with a list of up to this many items of one key; fn returns a sequence with one result for each.
    Batch(size, linger) also sets how long a batch waits for more items. If one of these results is an exception, only
    its item fails; if it is a RetryLater, only its item is deferred. A batch counts as one call for workers, per_key
    and timeout; its cost is the sum of the costs of its items. If a batch fails for good, each half is called
    separately. All items of a batch fail if the result is not a sequence of the right length, if the call times out, or
    if the deadline passes. None: one item per call.
    timeout: how many seconds one attempt may take; after that it fails with TimeoutError. None: no limit. A coroutine
    is cancelled. A plain function cannot be stopped: it continues in its thread and its result is dropped. If more than
    `workers` such calls are running, the map fails. Give your client a timeout that is a little shorter.
    deadline: the seconds that the whole map may take, counted from the first item. After that, every unfinished item
    fails with DeadlineExceeded, and the rest of the input is read without making any calls. None: no limit.
    retry: how many times a failed call is made again: a number, or a Retry, which also says for which errors and after
    what pauses. Retry.http() knows the errors of HTTP clients. 0: never. An item that waits for its next attempt
    occupies no worker, and starts before new items with the same key and priority. RetryLater defers an item without
    using up an attempt.
    breaker: pauses a key (without `key`, the whole map) after this many failed calls in a row. After the pause, one
    call tests whether the key works again. A Breaker also sets the length of the pause. None: never.
    errors: what happens to an item that fails for good. "raise": no further call starts; the results before it are
    yielded, then its exception is raised, with a note that names the item. "return": every item yields an Outcome, with
    its result or its error. "drop": the item is left out.
    max_failures: the number of items that may fail. If more fail, the map ends with TooManyFailures, as with
    errors="raise". Needs errors="return" or "drop". None: no limit.
    fatal: errors that end the map at once, whatever `errors` says: exception classes, or a function that gets the error
    and returns a bool. They are not retried. Errors that do not come from fn, such as BudgetExceeded, count too.
    limits: a Rate, a Budget, a Concurrency, or a list of them. A call starts when all of them have room for it. Maps
    that use the same limit object share the limit, and are served in the order in which they began to wait; a limit
    with `shared` is shared by everything that uses a limit of the same name in the same database. An item that can
    never fit a Budget fails with BudgetExceeded; a retry that cannot fit fails with the error that fn raised; all other
    items continue. A deferred call costs a Budget nothing.
    item_id: a function that returns the value that identifies an item, for `dedup`, `remember` and the idempotency key.
    None: the item itself. The value may be None, a bool, int, float, str, bytes, date, time, Decimal or UUID, or a
    tuple, list, dict, NamedTuple or dataclass of them. With dedup or remember, an item whose value has any other type
    fails with TypeError.
    dedup: lets equal items share one call while it runs. Later equal items get the same result object, if it is among
    the results of the last `dedup` calls. After a failure, the next equal item causes a new call. None: a call is made
    for every item.
    remember: records results in a database, so that the next run does not make these calls again: a path or URL, or a
    Shared. A path is short for a Shared with that path, named after the module and qualified name of fn. If fn has
    changed since results were recorded, a UserWarning says so once. Items are identified by `item_id`. Results are
    looked up in bulk, at most 1 s before the call. They are recorded after at most 0.5 s or 200 results, and always
    before the map ends. After a kill -9, you pay twice for at most the calls that were running and the results that
    were not recorded yet, of which there are at most 200. Failures are not recorded. If a result cannot be recorded, it
    is yielded, and then the map fails with TypeError; a Caller logs the first such error and continues. While the
    database is unavailable, no call starts; after the `outage_timeout` of the Shared, the map fails with
    SharedUnavailable.
    setup: a function that creates what fn gets as `resource=`, for example a client or a connection. It is called once
    per worker thread, before the first call of that thread; for an `async def` fn, it is called once, in the event
    loop. If it returns a context manager, it is entered first and exited at the end. Any other object is closed with
    its close() method, if it has one.
    progress: True shows a line of progress. A function is called with a Stats at most 5 times a second, and once at the
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
    in the loop, so it must not block. If your task is cancelled, the map ends as with aclose(); this never counts as
    the failure of an item. Threads are started only for database access, with `remember` or `shared`.

    It has the same options and errors as concurrent_map, except that workers="inline" is not allowed. The map waits in
    your event loop and does not block other tasks there.
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
    of the same key and priority start in the order in which they were submitted. An `async def` function runs in its
    own event loop, in a separate thread. fn runs in a copy of the context in which the Caller was created. So do the
    functions of an item (key, priority, cost, item_id), in the thread that submits the item.

    workers: the number of concurrent calls. A plain function runs in that many threads, an `async def` function in that
    many coroutines. With (least, most) or (least, start, most), the Caller finds a suitable number in that range, as a
    map does.
    max_in_flight: the maximum number of submitted items that are not finished; beyond that, submitting an item waits
    until another one finishes. None: 10,000, or workers x batch if that is more.
    key: a function that returns the group of an item, for example its host or tenant. Groups take turns, and `per_key`,
    `weights`, `order="key"`, breakers and limits with per_key=True apply to each group. None: all items are one group.
    per_key: the maximum number of concurrent calls of each key. None: no limit. It needs `key`. An item that is waiting
    for its next attempt still counts.
    weights: a mapping from keys to the number of calls that a key starts in each of its turns. Keys that are not in the
    mapping have a weight of 1. It needs `key`.
    priority: a function that returns the priority of an item. Lower numbers start first; None starts last. It applies
    to the items that are in flight, and affects when calls start, never the order of the results.
    batch: calls fn with a list of up to this many items of one key; fn returns a sequence with one result for each.
    Batch(size, linger) also sets how long a batch waits for more items. If one of these results is an exception, only
    its item fails; if it is a RetryLater, only its item is deferred. A batch counts as one call for workers, per_key
    and timeout; its cost is the sum of the costs of its items. If a batch fails for good, each half is called
    separately. All items of a batch fail if the result is not a sequence of the right length, if the call times out, or
    if the deadline passes. None: one item per call.
    timeout: how many seconds one attempt may take; after that it fails with TimeoutError. None: no limit. A coroutine
    is cancelled. A plain function cannot be stopped: it continues in its thread and its result is dropped. If more than
    `workers` such calls are running, the map fails. Give your client a timeout that is a little shorter.
    retry: how many times a failed call is made again: a number, or a Retry, which also says for which errors and after
    what pauses. Retry.http() knows the errors of HTTP clients. 0: never. An item that waits for its next attempt
    occupies no worker, and starts before new items with the same key and priority. RetryLater defers an item without
    using up an attempt.
    breaker: pauses a key (without `key`, the whole map) after this many failed calls in a row. After the pause, one
    call tests whether the key works again. A Breaker also sets the length of the pause. None: never.
    limits: a Rate, a Budget, a Concurrency, or a list of them. A call starts when all of them have room for it. Maps
    that use the same limit object share the limit, and are served in the order in which they began to wait; a limit
    with `shared` is shared by everything that uses a limit of the same name in the same database. An item that can
    never fit a Budget fails with BudgetExceeded; a retry that cannot fit fails with the error that fn raised; all other
    items continue. A deferred call costs a Budget nothing.
    item_id: a function that returns the value that identifies an item, for `dedup`, `remember` and the idempotency key.
    None: the item itself. The value may be None, a bool, int, float, str, bytes, date, time, Decimal or UUID, or a
    tuple, list, dict, NamedTuple or dataclass of them. With dedup or remember, an item whose value has any other type
    fails with TypeError.
    dedup: lets equal items share one call while it runs. Later equal items get the same result object, if it is among
    the results of the last `dedup` calls. After a failure, the next equal item causes a new call. None: a call is made
    for every item.
    remember: records results in a database, so that the next run does not make these calls again: a path or URL, or a
    Shared. A path is short for a Shared with that path, named after the module and qualified name of fn. If fn has
    changed since results were recorded, a UserWarning says so once. Items are identified by `item_id`. Results are
    looked up in bulk, at most 1 s before the call. They are recorded after at most 0.5 s or 200 results, and always
    before the map ends. After a kill -9, you pay twice for at most the calls that were running and the results that
    were not recorded yet, of which there are at most 200. Failures are not recorded. If a result cannot be recorded, it
    is yielded, and then the map fails with TypeError; a Caller logs the first such error and continues. While the
    database is unavailable, no call starts; after the `outage_timeout` of the Shared, the map fails with
    SharedUnavailable.
    setup: a function that creates what fn gets as `resource=`, for example a client or a connection. It is called once
    per worker thread, before the first call of that thread; for an `async def` fn, it is called once, in the event
    loop. If it returns a context manager, it is entered first and exited at the end. Any other object is closed with
    its close() method, if it has one.

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

class AsyncCaller(Generic[_T, _R]):
    """Caller for asyncio: fn is an `async def` function, and everything runs in the event loop of the first call.

    `await caller(item)` returns the result. From other threads, use asyncio.run_coroutine_threadsafe. If you cancel the
    await, the item is cancelled, unless its call has started. A running call is cancelled only if nobody else is
    waiting for it, through the same batch or an equal item.

    workers: the number of concurrent calls. A plain function runs in that many threads, an `async def` function in that
    many coroutines. With (least, most) or (least, start, most), the Caller finds a suitable number in that range, as a
    map does.
    max_in_flight: the maximum number of submitted items that are not finished; beyond that, submitting an item waits
    until another one finishes. None: 10,000, or workers x batch if that is more.
    key: a function that returns the group of an item, for example its host or tenant. Groups take turns, and `per_key`,
    `weights`, `order="key"`, breakers and limits with per_key=True apply to each group. None: all items are one group.
    per_key: the maximum number of concurrent calls of each key. None: no limit. It needs `key`. An item that is waiting
    for its next attempt still counts.
    weights: a mapping from keys to the number of calls that a key starts in each of its turns. Keys that are not in the
    mapping have a weight of 1. It needs `key`.
    priority: a function that returns the priority of an item. Lower numbers start first; None starts last. It applies
    to the items that are in flight, and affects when calls start, never the order of the results.
    batch: calls fn with a list of up to this many items of one key; fn returns a sequence with one result for each.
    Batch(size, linger) also sets how long a batch waits for more items. If one of these results is an exception, only
    its item fails; if it is a RetryLater, only its item is deferred. A batch counts as one call for workers, per_key
    and timeout; its cost is the sum of the costs of its items. If a batch fails for good, each half is called
    separately. All items of a batch fail if the result is not a sequence of the right length, if the call times out, or
    if the deadline passes. None: one item per call.
    timeout: how many seconds one attempt may take; after that it fails with TimeoutError. None: no limit. A coroutine
    is cancelled. A plain function cannot be stopped: it continues in its thread and its result is dropped. If more than
    `workers` such calls are running, the map fails. Give your client a timeout that is a little shorter.
    retry: how many times a failed call is made again: a number, or a Retry, which also says for which errors and after
    what pauses. Retry.http() knows the errors of HTTP clients. 0: never. An item that waits for its next attempt
    occupies no worker, and starts before new items with the same key and priority. RetryLater defers an item without
    using up an attempt.
    breaker: pauses a key (without `key`, the whole map) after this many failed calls in a row. After the pause, one
    call tests whether the key works again. A Breaker also sets the length of the pause. None: never.
    limits: a Rate, a Budget, a Concurrency, or a list of them. A call starts when all of them have room for it. Maps
    that use the same limit object share the limit, and are served in the order in which they began to wait; a limit
    with `shared` is shared by everything that uses a limit of the same name in the same database. An item that can
    never fit a Budget fails with BudgetExceeded; a retry that cannot fit fails with the error that fn raised; all other
    items continue. A deferred call costs a Budget nothing.
    item_id: a function that returns the value that identifies an item, for `dedup`, `remember` and the idempotency key.
    None: the item itself. The value may be None, a bool, int, float, str, bytes, date, time, Decimal or UUID, or a
    tuple, list, dict, NamedTuple or dataclass of them. With dedup or remember, an item whose value has any other type
    fails with TypeError.
    dedup: lets equal items share one call while it runs. Later equal items get the same result object, if it is among
    the results of the last `dedup` calls. After a failure, the next equal item causes a new call. None: a call is made
    for every item.
    remember: records results in a database, so that the next run does not make these calls again: a path or URL, or a
    Shared. A path is short for a Shared with that path, named after the module and qualified name of fn. If fn has
    changed since results were recorded, a UserWarning says so once. Items are identified by `item_id`. Results are
    looked up in bulk, at most 1 s before the call. They are recorded after at most 0.5 s or 200 results, and always
    before the map ends. After a kill -9, you pay twice for at most the calls that were running and the results that
    were not recorded yet, of which there are at most 200. Failures are not recorded. If a result cannot be recorded, it
    is yielded, and then the map fails with TypeError; a Caller logs the first such error and continues. While the
    database is unavailable, no call starts; after the `outage_timeout` of the Shared, the map fails with
    SharedUnavailable.
    setup: a function that creates what fn gets as `resource=`, for example a client or a connection. It is called once
    per worker thread, before the first call of that thread; for an `async def` fn, it is called once, in the event
    loop. If it returns a context manager, it is entered first and exited at the end. Any other object is closed with
    its close() method, if it has one.

    Leaving the `async with` block, exceptions, and calls inside fn work as in Caller. Threads are started only for
    database access, with `remember` or `shared`. Raises ValueError or TypeError for a bad option. The AsyncCaller waits
    in the event loop and does not block other tasks there.
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
