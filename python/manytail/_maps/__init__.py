"""The maps, built anew: see docs/design/new-maps.md. Not in wheels, and nothing but its tests imports it, until it
takes the place of `manytail.mapping`.

    engine/     decides; pure: no thread, clock, lock, I/O or randomness
    limits/     Rate, Budget, Concurrency: objects, their accounts, what a database granted to this process
    results/    idempotency keys; looks recorded results up, and records new ones
    database/   SQLite and PostgreSQL
    runners/    carry out what the engine decided: in threads, in a loop, inline
"""

from .callers import AsyncCaller, Caller
from .database.shared import Shared
from .limits.objects import Budget, Concurrency, Limit, Rate
from .maps import AsyncResults, Results, aconcurrent_map, concurrent_map
from .outcomes import (
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
from .policies import Batch, Breaker, Retry
from .policies import On as On  # for signatures

__all__ = [
    "AsyncCaller", "AsyncResults", "Batch", "Breaker", "BreakerOpen", "Budget", "BudgetExceeded", "Caller",
    "Concurrency", "DeadlineExceeded", "Delivery", "Limit", "Outcome", "Quantiles", "Rate", "Results", "Retry",
    "RetryLater", "Shared", "SharedUnavailable", "Stats", "TooManyFailures", "aconcurrent_map", "concurrent_map",
]  # fmt: skip
