"""What users of a map see besides its results: what a call is told, what it may raise, and what a failed item is told by."""

from __future__ import annotations

from typing import Any, NamedTuple

from manytail.errors import ManytailError


class Delivery(NamedTuple):
    """What a function that has a parameter named `delivery` is told about the call that it is running.

    attempt: which call of this item it is in this map, from 1; a deferred call does not count. task_attempt: `TaskContext.attemptNumber()` in
    Spark, else 0. key: of the item, None without one. idempotency_key: hex; equal for items that are equal in type and value, in every attempt,
    process, partitioning and job.
    """

    attempt: int
    task_attempt: int
    key: Any
    idempotency_key: str


class Failure(NamedTuple):
    """What `errors="return"` yields in the place of a result."""

    item: Any
    error: BaseException
    attempts: int
    key: Any


class Progress(NamedTuple):
    """A look at a running map. done: finished items, failed ones among them. rate: done per second over the last 5 s. seconds: since the start."""

    done: int
    failed: int
    in_flight: int
    retried: int
    deferred: int
    remembered: int
    rate: float
    seconds: float


class RetryLater(ManytailError):
    """Raised by fn when the other side said "not now" (429 or 503 with Retry-After): the item is deferred.

    A deferred call is no attempt: it uses up none of `retries`. The item is called again after `after` seconds (finite, >= 0; otherwise it fails
    with ValueError) at the earliest. Until then no call of its key starts (without key: of this map); calls under way are not touched. An item
    whose deferrals would add up to more than `defer_timeout` fails with this exception at once.
    """

    __module__ = "manytail"

    def __init__(self, after: float = 1.0, message: str = "") -> None:
        super().__init__(message or f"retry after {after!r} s")
        self.after = after
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.after, self.message)


class DeadlineExceeded(ManytailError):
    """The map's deadline passed before this item was done."""

    __module__ = "manytail"


class BudgetExceeded(ManytailError):
    """Starting this item would have spent more than `budget`."""

    __module__ = "manytail"


class BreakerOpen(ManytailError):
    """Too many calls of this item's key failed in a row (without key: of this map). `__cause__`: the last error of the item itself, if any."""

    __module__ = "manytail"


class SharedUnavailable(ManytailError):
    """The database of `shared` was away for longer than its outage_timeout."""

    __module__ = "manytail"
