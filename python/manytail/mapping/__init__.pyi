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
from ._policies import Batch, Breaker, On, Retry
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
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: None = None, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None, fatal: On = (),
    limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> Results[_R]: ...
@overload
def concurrent_map(
    fn: _AsyncCall[_T, _R], items: Iterable[_T], *,
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
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
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
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
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
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
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
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
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
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
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
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
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
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
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: None = None, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None, fatal: On = (),
    limits: Limit | Sequence[Limit] = (), item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> AsyncResults[_R]: ...
@overload
def aconcurrent_map(
    fn: _AsyncCall[_T, _R], items: Iterable[_T] | AsyncIterable[_T], *,
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
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
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
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
    workers: int = 16, max_in_flight: int | None = None, order: Literal["input", "key", "completion"] = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int | None = None, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int | Batch, timeout: float | None = None,
    deadline: float | None = None, retry: int | Retry = 0, breaker: int | Breaker | None = None,
    errors: Literal["return"], max_failures: int | None = None, fatal: On = (), limits: Limit | Sequence[Limit] = (),
    item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
    remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    progress: bool | Callable[[Stats], None] = False,
) -> AsyncResults[Outcome[_T, _R]]: ...

class Caller(Generic[_T, _R]):
    @overload
    def __init__(
        self: Caller[_T, _R], fn: _AsyncCall[_T, _R], *,
        workers: int = 16, max_in_flight: int | None = None, key: Callable[[_T], Hashable] | None = None,
        per_key: int | None = None, weights: Mapping[Any, int] | None = None,
        priority: Callable[[_T], int | None] | None = None, batch: None = None, timeout: float | None = None,
        retry: int | Retry = 0, breaker: int | Breaker | None = None, limits: Limit | Sequence[Limit] = (),
        item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Caller[_T, _R], fn: _Call[_T, _R], *,
        workers: int = 16, max_in_flight: int | None = None, key: Callable[[_T], Hashable] | None = None,
        per_key: int | None = None, weights: Mapping[Any, int] | None = None,
        priority: Callable[[_T], int | None] | None = None, batch: None = None, timeout: float | None = None,
        retry: int | Retry = 0, breaker: int | Breaker | None = None, limits: Limit | Sequence[Limit] = (),
        item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Caller[_T, _R], fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], *,
        workers: int = 16, max_in_flight: int | None = None, key: Callable[[_T], Hashable] | None = None,
        per_key: int | None = None, weights: Mapping[Any, int] | None = None,
        priority: Callable[[_T], int | None] | None = None, batch: int | Batch, timeout: float | None = None,
        retry: int | Retry = 0, breaker: int | Breaker | None = None, limits: Limit | Sequence[Limit] = (),
        item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Caller[_T, _R], fn: _Call[list[_T], Sequence[_R | BaseException]], *,
        workers: int = 16, max_in_flight: int | None = None, key: Callable[[_T], Hashable] | None = None,
        per_key: int | None = None, weights: Mapping[Any, int] | None = None,
        priority: Callable[[_T], int | None] | None = None, batch: int | Batch, timeout: float | None = None,
        retry: int | Retry = 0, breaker: int | Breaker | None = None, limits: Limit | Sequence[Limit] = (),
        item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
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
    @overload
    def __init__(
        self: AsyncCaller[_T, _R], fn: _AsyncCall[_T, _R], *,
        workers: int = 16, max_in_flight: int | None = None, key: Callable[[_T], Hashable] | None = None,
        per_key: int | None = None, weights: Mapping[Any, int] | None = None,
        priority: Callable[[_T], int | None] | None = None, batch: None = None, timeout: float | None = None,
        retry: int | Retry = 0, breaker: int | Breaker | None = None, limits: Limit | Sequence[Limit] = (),
        item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncCaller[_T, _R], fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], *,
        workers: int = 16, max_in_flight: int | None = None, key: Callable[[_T], Hashable] | None = None,
        per_key: int | None = None, weights: Mapping[Any, int] | None = None,
        priority: Callable[[_T], int | None] | None = None, batch: int | Batch, timeout: float | None = None,
        retry: int | Retry = 0, breaker: int | Breaker | None = None, limits: Limit | Sequence[Limit] = (),
        item_id: Callable[[_T], Any] | None = None, dedup: int | None = None,
        remember: str | PathLike[str] | Shared | None = None, setup: Callable[[], Any] | None = None,
    ) -> None: ...
    async def __call__(self, item: _T) -> _R: ...
    def stats(self) -> Stats: ...
    async def aclose(self, *, cancel: bool = False) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, kind: object, *error: object) -> None: ...
    def __del__(self, finalizing: Callable[[], bool] = ...) -> None: ...
