"""Concurrent queues for Python threads, and ordered, fair, loss-free concurrent work inside Spark partitions.

The map of the package
    MultiQueue, SubQueue            many sub-queues, one consumer side: block on all of them at once, with priorities
                                    and fairness
    IndexMultiQueue                 the same for 64-bit integers, moved in bulk without the GIL
    EntryQueue, Subscription        strict order kept through acquire, release and redelivery
    Consumer                        takes from several EntryQueues
    PriorityEntryQueue, SortedEntryQueue, LastValueQueue    EntryQueues in other orders
    PubSubQueue, Subscriber         every message once to every subscriber, each at its own pace
    concurrent_map, aconcurrent_map call a slow function on every item, many calls at once, in order, within limits
    Caller, AsyncCaller             the same for items that come one by one, from handlers or threads
    manytail.queue                  a drop-in replacement of the standard library's queue module
    manytail.executor               KeyedExecutor: concurrent.futures with a lane per key, fair, ordered, bounded
    manytail.broker                 RabbitMQ's exchanges, queues and channels in this process, with pika's names
    manytail.arrow                  map_arrow: the same for rows of Arrow batches; needs pyarrow
    manytail.spark                  map_concurrent and concurrent_udf; the only part that needs pyspark
    python -m manytail demo         the flights job on real data
    python -m manytail doctor       what is installed here, and a self-check with threads
    cimport manytail, get_include() the structures themselves, without Python objects, for Cython and C
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manytail import (
    _interpreter,  # noqa: F401 - refuses subinterpreters, so it comes first
    _nogil,
)
from manytail._consumers import Consumer
from manytail._entries import DeadReason, Entry, EntryQueue, EntryState, QueueStats
from manytail._indexqueue import IndexMultiQueue
from manytail._multiqueue import MultiQueue, MultiQueueStats, SubQueue
from manytail._orders import LastValueQueue, PriorityEntryQueue, SortedEntryQueue
from manytail._pubsub import PubSubQueue, PubSubStats, Subscriber
from manytail._subscriptions import Subscription
from manytail._version import __version__
from manytail.errors import ClosedError, Empty, ExclusiveError, Full, Lagged, ManytailError, ShutDown

if TYPE_CHECKING:
    from manytail.mapping import (
        AsyncCaller,
        AsyncResults,
        Batch,
        Breaker,
        BreakerOpen,
        Budget,
        BudgetExceeded,
        Caller,
        Concurrency,
        DeadlineExceeded,
        Delivery,
        Limit,
        Outcome,
        Quantiles,
        Rate,
        Results,
        Retry,
        RetryLater,
        Shared,
        SharedUnavailable,
        Stats,
        TooManyFailures,
        aconcurrent_map,
        concurrent_map,
    )

__all__ = [
    "AsyncCaller",
    "AsyncResults",
    "Batch",
    "Breaker",
    "BreakerOpen",
    "Budget",
    "BudgetExceeded",
    "Caller",
    "ClosedError",
    "Concurrency",
    "Consumer",
    "DeadReason",
    "DeadlineExceeded",
    "Delivery",
    "Empty",
    "Entry",
    "EntryQueue",
    "EntryState",
    "ExclusiveError",
    "Full",
    "IndexMultiQueue",
    "Lagged",
    "LastValueQueue",
    "Limit",
    "ManytailError",
    "MultiQueue",
    "MultiQueueStats",
    "Outcome",
    "PriorityEntryQueue",
    "PubSubQueue",
    "PubSubStats",
    "Quantiles",
    "QueueStats",
    "Rate",
    "Results",
    "Retry",
    "RetryLater",
    "Shared",
    "SharedUnavailable",
    "ShutDown",
    "SortedEntryQueue",
    "Stats",
    "SubQueue",
    "Subscriber",
    "Subscription",
    "TooManyFailures",
    "__version__",
    "aconcurrent_map",
    "concurrent_map",
    "get_include",
]

# Names of manytail.mapping. It imports asyncio, so it is loaded only when one of these names is first read.
_LAZY = frozenset(
    {
        "AsyncCaller",
        "AsyncResults",
        "Batch",
        "Breaker",
        "BreakerOpen",
        "Budget",
        "BudgetExceeded",
        "Caller",
        "Concurrency",
        "DeadlineExceeded",
        "Delivery",
        "Limit",
        "Outcome",
        "Quantiles",
        "Rate",
        "Results",
        "Retry",
        "RetryLater",
        "Shared",
        "SharedUnavailable",
        "Stats",
        "TooManyFailures",
        "aconcurrent_map",
        "concurrent_map",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("manytail.mapping"), name)
    globals()[name] = value
    return value


# `cimport manytail` resolves C functions in the package itself.
__pyx_capi__ = _nogil.__pyx_capi__


def get_include() -> str:
    """Return the directory to put on the include path of a module that uses `cimport manytail` or includes
    `manytail/*.h`."""
    package = Path(__file__).resolve().parent
    installed = package / "include"
    if installed.is_dir():
        return str(installed)
    return str(package.parent.parent / "include")  # an editable install: the checkout's own headers
