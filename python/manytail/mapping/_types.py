"""What users of a map see besides its results: what a call gets, what it may raise, and what reports a failure."""

from __future__ import annotations

from typing import Any, NamedTuple

from manytail.errors import ManytailError


class Delivery(NamedTuple):
    """What a function with a parameter named `delivery` gets: facts about the call.

    attempt: the number of this call of the item in this map, from 1; a deferred call does not count. task_attempt:
    `TaskContext.attemptNumber()` in Spark, otherwise 0. key: the item's, or None. idempotency_key: hex; equal for items
    that are equal in type and value, in every attempt, process, partitioning and job.
    """

    attempt: int
    task_attempt: int
    key: Any
    idempotency_key: str


class Failure(NamedTuple):
    """What `errors="return"` yields in the place of a result. attempts: calls of the item, without deferred ones. key:
    None without `key`."""

    item: Any
    error: BaseException
    attempts: int
    key: Any


class Progress(NamedTuple):
    """The state of a running map. The counts are those since its start.

    done: finished items, including failed ones. in_flight: items that were taken from the input and not emitted.
    retried, deferred: how often items were. remembered: items that got a recorded result or that of an equal item,
    without a call. rate: items done per second, over the last 5 s. seconds: since the start.
    """

    done: int
    failed: int
    in_flight: int
    retried: int
    deferred: int
    remembered: int
    rate: float
    seconds: float


class RetryLater(ManytailError):
    """Raised by fn when the other side says "not now" (429 or 503 with Retry-After): the item is deferred.

    A deferred call is no attempt: it uses up none of `times`. The item is called again after at least `after` seconds
    (finite, >= 0; otherwise it fails with ValueError). Until then no call of its key starts (without key: of this map);
    running calls continue. An item whose deferrals would add up to more than the `defer` of its Retry fails with this
    exception at once.
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
    """Too many calls of this item's key failed in a row (without key: of this map). `__cause__`: the last error of the
    item itself, if it has one."""

    __module__ = "manytail"


class SharedUnavailable(ManytailError):
    """The database of `shared` was away for longer than its outage_timeout."""

    __module__ = "manytail"
