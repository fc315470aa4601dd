"""Types of the maps: overloads by what fn is and by `errors`. What each option does is said in the docstrings.

fn may have further parameters: `delivery`, `resource`, and what has a default.
"""

from collections.abc import AsyncIterable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Literal, TypeAlias, TypeVar, overload

from ._map import AsyncResults, Results
from ._options import RetryOn
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
    "AsyncResults", "BreakerOpen", "BudgetExceeded", "DeadlineExceeded", "Delivery", "Outcome", "Quantiles", "Results",
    "RetryLater", "Shared",
    "SharedUnavailable", "Stats", "TooManyFailures",
    "aconcurrent_map", "concurrent_map",
]  # fmt: skip

_T = TypeVar("_T")
_R = TypeVar("_R")

# Both forms: mypy refuses lambdas for the second, which is for functions with further parameters.
_Call: TypeAlias = Callable[[_T], _R] | Callable[Concatenate[_T, ...], _R]
_AsyncCall: TypeAlias = _Call[_T, Coroutine[Any, Any, _R]]
_Order: TypeAlias = Literal["input", "key", "completion"]
_Backoff: TypeAlias = float | Callable[[int, BaseException], float]

@overload
def concurrent_map(
    fn: _AsyncCall[_T, _R], items: Iterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: Literal[1] = 1, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> Results[_R]: ...
@overload
def concurrent_map(
    fn: _AsyncCall[_T, _R], items: Iterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: Literal[1] = 1, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["return"], max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> Results[Outcome[_T, _R]]: ...
@overload
def concurrent_map(
    fn: _Call[_T, _R], items: Iterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: Literal[1] = 1, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> Results[_R]: ...
@overload
def concurrent_map(
    fn: _Call[_T, _R], items: Iterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: Literal[1] = 1, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["return"], max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> Results[Outcome[_T, _R]]: ...
@overload
def concurrent_map(
    fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], items: Iterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> Results[_R]: ...
@overload
def concurrent_map(
    fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], items: Iterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["return"], max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> Results[Outcome[_T, _R]]: ...
@overload
def concurrent_map(
    fn: _Call[list[_T], Sequence[_R | BaseException]], items: Iterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> Results[_R]: ...
@overload
def concurrent_map(
    fn: _Call[list[_T], Sequence[_R | BaseException]], items: Iterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["return"], max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> Results[Outcome[_T, _R]]: ...
@overload
def aconcurrent_map(
    fn: _AsyncCall[_T, _R], items: Iterable[_T] | AsyncIterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: Literal[1] = 1, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> AsyncResults[_R]: ...
@overload
def aconcurrent_map(
    fn: _AsyncCall[_T, _R], items: Iterable[_T] | AsyncIterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: Literal[1] = 1, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["return"], max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> AsyncResults[Outcome[_T, _R]]: ...
@overload
def aconcurrent_map(
    fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], items: Iterable[_T] | AsyncIterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["raise", "drop"] = "raise", max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> AsyncResults[_R]: ...
@overload
def aconcurrent_map(
    fn: _AsyncCall[list[_T], Sequence[_R | BaseException]], items: Iterable[_T] | AsyncIterable[_T], *,
    workers: int = 16, max_in_flight: int = 0, order: _Order = "input",
    key: Callable[[_T], Hashable] | None = None, per_key: int = 0, weights: Mapping[Any, int] | None = None,
    priority: Callable[[_T], int | None] | None = None, batch: int, linger: float = 0.0,
    timeout: float | None = None, deadline: float | None = None,
    retries: int = 0, backoff: _Backoff = 0.1, max_backoff: float = 60.0, retry_on: RetryOn = Exception,
    defer_timeout: float = 600.0, breaker: int = 0, breaker_reset: float = 30.0,
    breaker_open: Literal["wait", "fail"] = "wait",
    errors: Literal["return"], max_failures: int | None = None,
    fatal: RetryOn = (), rate: float | None = None, per_key_rate: float | None = None,
    cost: Callable[[_T], float] | None = None, cost_rate: float | None = None, budget: float | None = None,
    dedup: int = 0, item_id: Callable[[_T], Any] | None = None,
    shared: Shared | None = None, remember: bool = False, codec: Any = None,
    setup: Callable[[], Any] | None = None, progress: bool | Callable[[Stats], None] = False,
) -> AsyncResults[Outcome[_T, _R]]: ...
