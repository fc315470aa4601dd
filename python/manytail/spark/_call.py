"""A row on its way through the scheduler, and what became of it. Plain records: the modules round this one do the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ._lanes import Lane


class Delivery(NamedTuple):
    """What a function that has a parameter named `delivery` is told about the call it is running.

    Attributes
    ----------
    attempt : int
        Which call of this row in this task it is, from 1.
    task_attempt : int
        `TaskContext.attemptNumber()`, from 0.
    key : Any
        The row's key, None without one.
    idempotency_key : str
        The same in every attempt, task and partitioning; rows that are equal in all columns share it unless `row_id` tells them apart.
    """

    attempt: int
    task_attempt: int
    key: Any
    idempotency_key: str


class Failure(NamedTuple):
    """Why a row has no result, in the fields of the error column (`key` is added where the column is built)."""

    type: str
    message: str
    attempts: int


class Call:
    """One row in flight. One thread at a time works on it: the one that holds the scheduler's lock, or the worker it was given to."""

    __slots__ = ("attempt", "batch", "done", "error", "failure", "index", "lane", "number", "priority", "retry_in", "value")

    def __init__(self, batch: Any, index: int, lane: Lane) -> None:
        self.batch = batch
        self.index = index
        self.lane = lane
        self.attempt = 0
        self.done = False
        self.value: Any = None
        self.failure: Failure | None = None
        self.retry_in: float | None = None

    # Only set where they are used, so that a row without them does not pay for them:
    priority: float
    number: int  # among the rows of its priority, in input order
    error: BaseException


def result_bytes(value: Any) -> int:
    """Roughly the memory of a result: that of its text and bytes, and 8 for anything else."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, (list, tuple)):
        return 8 + sum(map(result_bytes, value))
    if isinstance(value, dict):
        return 8 + sum(result_bytes(key) + result_bytes(item) for key, item in value.items())
    return 8


MESSAGE_LIMIT = 4_000


def describe(error: BaseException, attempts: int) -> Failure:
    """The error as text that fits a Spark string: at most 4,000 characters, no lone surrogates, even if `str(error)` itself fails."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception as inner:
        message = f"<no message: str() of it raised {type(inner).__qualname__}>"
    message = message[:MESSAGE_LIMIT].encode("utf-8", "replace").decode("utf-8")
    return Failure(name, message, attempts)
