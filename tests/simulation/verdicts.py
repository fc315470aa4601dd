"""The model of what follows from an exception: another attempt, a deferral, or the item's failure."""

from __future__ import annotations

from typing import Any, NamedTuple

from manytail import RetryLater

from . import functions
from .lanes import Error, Record
from .settings import Never, Settings, Trouble


class Expected(NamedTuple):
    kind: str  # "retry", "defer", "fail", or "over": it fails because it was deferred for too long, and its key pauses
    low: float = 0.0  # seconds that the item waits
    high: float = 0.0
    error: Error = None
    pause: float = 0.0  # of the key of an item that fails; that of another one waits as long as the item


def expected(settings: Settings, record: Record, error: BaseException, kind: str) -> Expected:
    """What the contract says of a call that ended so. kind: that of the verdict, where chance decides."""
    attempt = record.attempts
    if isinstance(error, RetryLater):
        return _deferral(settings, record, error.after, error, kind)
    if functions.is_fatal(settings, error):
        return Expected("fail", error=error)
    if settings.never_retry and isinstance(error, Never):
        return Expected("fail", error=error)
    if settings.retry_on == "raises":
        return Expected("fail", error=functions.Raised)
    if settings.retry_on == "later" and functions.is_odd(error):
        return _deferral(settings, record, settings.base, error, kind)
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


def _deferral(settings: Settings, record: Record, after: Any, error: BaseException, kind: str) -> Expected:
    """The item waits as long as the other side says, and as long as a backoff would that doubles with each deferral. A
    wait that alone is too long pauses nothing."""
    if not is_seconds(after):
        return Expected("fail", error=ValueError)
    first = max(settings.base, 0.001) if settings.backoff == "number" else 0.1
    least = min(first * 2**record.deferrals, settings.max_backoff)
    low, high = max(after, least / 2), max(after, least)
    if after > settings.defer_timeout:
        return Expected("over", error=error)
    surely, perhaps = (record.deferred + wait > settings.defer_timeout for wait in (low, high))
    if surely or (perhaps and kind == "over"):
        return Expected("over", error=error, pause=after)
    return Expected("defer", low, high)


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


def waits(verdict: Any) -> tuple[float, float]:
    """How long the item waits, and how long its key pauses."""
    if verdict.kind.value == "defer":
        return verdict.seconds, verdict.seconds
    return (0.0, verdict.seconds) if verdict.pauses else (verdict.seconds, 0.0)


def is_seconds(value: Any) -> bool:
    """A finite number >= 0 that a clock can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e300
