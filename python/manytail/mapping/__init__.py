"""Call a slow function on every item of an iterable, many calls at once, in order, within limits.

`concurrent_map` calls plain functions in threads and `async def` functions in its own loop; `aconcurrent_map` is the
same for asyncio. `Caller` and `AsyncCaller` are the same for items that come one by one. `manytail` exports every name
of this module too.
"""

from ._caller import AsyncCaller, Caller
from ._limits import Budget, Concurrency, Limit, Rate
from ._map import AsyncResults, Results, aconcurrent_map, concurrent_map
from ._policies import Batch, Breaker, Retry
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
