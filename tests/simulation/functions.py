"""The callables that users pass to a map: good and bad forms of backoff and retry_on, each with what the contract
demands of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from manytail import BreakerOpen, BudgetExceeded, DeadlineExceeded, RetryLater

from .settings import Never, Settings, Trouble


class Raised(LookupError):
    """What callables of the kind "raises" raise: a new one each time, because the scheduler sets its cause."""


RETURNED: dict[str, Any] = {
    "inf": math.inf,
    "nan": math.nan,
    "negative": -1.0,
    "text": "1",
    "bool": True,
    "huge": 10**400,
}


def backoff(settings: Settings) -> float | Callable[[int, BaseException], float]:
    """The option. "same" raises the error that it was given; the kinds of RETURNED return no number of seconds."""
    kind, base = settings.backoff, settings.base

    def of_kind(attempt: int, error: BaseException) -> Any:
        if kind == "raises":
            raise Raised
        if kind == "same":
            raise error
        return base * attempt if kind == "linear" else RETURNED[kind]

    return base if kind == "number" else of_kind


def retry_on(settings: Settings) -> Any:
    """The option."""
    kind = settings.retry_on

    def predicate(error: BaseException) -> bool | RetryLater:
        if kind == "raises":
            raise Raised
        return RetryLater(settings.base) if kind == "later" and is_odd(error) else kind == "later" or is_odd(error)

    return {"Exception": Exception, "everything": BaseException, "tuple": (Trouble, OSError, TimeoutError)}.get(
        kind, predicate
    )


def is_odd(error: BaseException) -> bool:
    """The predicate of kind "odd"; that of kind "later" defers these errors. A TimeoutError is raised by the map and
    has no number."""
    return isinstance(error, TimeoutError) or bool(error.args and isinstance(error.args[0], int) and error.args[0] % 2)


FATAL: dict[str, Any] = {
    "": (),
    "classes": (OSError, TimeoutError, DeadlineExceeded),
    "one": Never,
    "asked": (OSError, TimeoutError, DeadlineExceeded, BudgetExceeded, BreakerOpen),
}


def fatal(settings: Settings) -> Any:
    """The option."""
    if settings.fatal == "asked":
        return lambda error: isinstance(error, FATAL["asked"])
    return FATAL.get(settings.fatal, is_odd)


def is_fatal(settings: Settings, error: Any) -> bool:
    """Whether the option names the error, of which the class may be all that is known."""
    if settings.fatal == "odd":
        return isinstance(error, BaseException) and is_odd(error)
    kind = error if isinstance(error, type) else type(error)
    return issubclass(kind, FATAL[settings.fatal])


def never_retry(settings: Settings) -> tuple[type[BaseException], ...]:
    return (Never,) if settings.never_retry else ()
