"""The model of what follows from an exception: another attempt, a deferral, or the item's failure."""

from __future__ import annotations

from typing import Any, NamedTuple

from manytail import RetryLater

from . import functions
from .lanes import Error, Record
from .settings import Never, Settings, Trouble


class Expected(NamedTuple):
    kind: str  # "retry", "defer", "fail", or "over": it fails because it was deferred for too long, and its key pauses
    low: float = 0.0  # seconds
    high: float = 0.0
    error: Error = None


def expected(settings: Settings, record: Record, error: BaseException) -> Expected:
    """What the contract says of a call that ended so."""
    attempt = record.attempts
    if isinstance(error, RetryLater):
        if not is_seconds(error.after):
            return Expected("fail", error=ValueError)
        if record.deferred + error.after > settings.defer_timeout:
            return Expected("over", error.after, error.after, error)
        return Expected("defer", error.after, error.after)
    if functions.is_fatal(settings, error):
        return Expected("fail", error=error)
    if settings.never_retry and isinstance(error, Never):
        return Expected("fail", error=error)
    if settings.retry_on == "raises":
        return Expected("fail", error=functions.Raised)
    if settings.retry_on == "later" and functions.is_odd(error):
        if record.deferred + settings.base > settings.defer_timeout:
            return Expected("over", settings.base, settings.base, error)
        return Expected("defer", settings.base, settings.base)
    if attempt > settings.retries:
        return Expected("fail", error=error)
    retries_on = {
        "Exception": isinstance(error, Exception),
        "everything": True,
        "later": True,
        "tuple": isinstance(error, (Trouble, OSError, TimeoutError)),
        "odd": functions.is_odd(error),
    }
    return _backoff(settings, attempt, error) if retries_on[settings.retry_on] else Expected("fail", error=error)


def _backoff(settings: Settings, attempt: int, error: BaseException) -> Expected:
    kind, base = settings.backoff, settings.base
    if kind == "number":
        wait = min(base * 2 ** (attempt - 1), settings.max_backoff)
        return Expected("retry", wait / 2, wait)
    if kind == "linear":
        return Expected("retry", base * attempt, base * attempt)
    return Expected("fail", error={"raises": functions.Raised, "same": error}.get(kind, ValueError))


def kind_of(verdict: Any) -> str:
    """That of an Expected, or "split"."""
    kind: str = verdict.kind.value
    return "over" if verdict.pauses else kind


def is_seconds(value: Any) -> bool:
    """A finite number >= 0 that a clock can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e300
