"""What a map does after failures, and how it forms batches: `Retry`, `Breaker` and `Batch`. Frozen values.

Each field of a class stands once, with its default and its check. `verdicts` applies them to errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from manytail import _checks
from manytail._checks import accepts, bad_type, by, choice, finite, optional_seconds, seconds, whole
from manytail._values import initialised_repr

from .http import answer_of, check_statuses
from .outcomes import RetryLater

On = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool | RetryLater]
Backoff = float | Callable[[int, BaseException], float]


# ---------------------------------------------------------------------------------------------------- checks
def check_on(option: str, value: Any) -> On:
    expected = "an exception class, a tuple of them, or a callable that takes the exception"
    if isinstance(value, (type, tuple)):
        for kind in value if isinstance(value, tuple) else (value,):
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise bad_type(option, value, expected)
    elif not callable(value) or not accepts(value, 1):
        raise bad_type(option, value, expected)
    return value  # type: ignore[no-any-return]


def check_backoff(option: str, value: Any) -> Backoff:
    if callable(value):
        if not accepts(value, 2):
            raise bad_type(option, value, "a callable that takes the attempt's number and the exception")
        return value  # type: ignore[no-any-return]
    return finite(option, value)


def answer(on: On, error: BaseException) -> bool | RetryLater:
    """Whether `on` names the error, or defers its item. Runs the user's callable."""
    if isinstance(on, (type, tuple)):
        return isinstance(error, on)
    found = on(error)
    return found if isinstance(found, RetryLater) else bool(found)


# ---------------------------------------------------------------------------------------------------- values
class Policy:
    """Checks the fields where the object is made; shows those that differ from their defaults."""

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, one.name, one.metadata["check"](one.name, getattr(self, one.name)))

    @initialised_repr
    def __repr__(self) -> str:
        first, *others = fields(self)  # type: ignore[arg-type]
        given = [shown(getattr(self, first.name))]
        for one in others:
            value = getattr(self, one.name)
            if value != one.default:
                given.append(f"{one.name}={shown(value)}" if one.kw_only else shown(value))
        return f"{type(self).__name__}({', '.join(given)})"


def shown(value: Any) -> str:
    """Classes by their names, as in source."""
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))}{',' if len(value) == 1 else ''})"
    return value.__qualname__ if isinstance(value, type) else _checks.shown(value)


@dataclass(frozen=True)
class HttpErrors:
    """The `on` of a Retry. An error with one of `statuses` is a RetryLater if it has a Retry-After, else it is tried
    again, as is an error of the connection. Everything else fails at once, unless `also` names it."""

    statuses: tuple[int, ...]
    also: On

    def __repr__(self) -> str:
        return f"HttpErrors(statuses={self.statuses}, also={shown(self.also)})"

    def __call__(self, error: BaseException) -> bool | RetryLater:
        return answer_of(self.statuses, error) or answer(self.also, error)


@dataclass(frozen=True, repr=False, kw_only=True)
class Retry(Policy):
    """Says when a failed call is made again. `retry=3` is `retry=Retry(3)`.

    times: how many times an item is called again. on: the errors to retry: exception classes, or a function that gets
    the error and returns a bool, or a RetryLater to defer the item. backoff, max_backoff: the pause before attempt k +
    1 is min(backoff * 2**(k-1), max_backoff) x a random factor in [0.5, 1] seconds. backoff may also be a function that
    gets (k, error) and returns the seconds; a bad value fails the item with ValueError. within: the seconds after an
    item's first call during which it may be called again; later it fails with its last error. defer: the seconds that
    an item may be deferred in total. A deferred item waits at least as long as it would after a failed attempt, and
    this minimum doubles with each deferral. If nothing but deferrals happens for `defer` seconds, the map ends with the
    last error.

    Raises ValueError or TypeError for bad arguments.
    """

    __module__ = "manytail"

    times: int = field(default=3, kw_only=False, metadata=by(whole, low=0))
    on: On = field(default=Exception, kw_only=False, metadata=by(check_on))
    backoff: Backoff = field(default=0.1, metadata=by(check_backoff))
    max_backoff: float = field(default=60.0, metadata=by(seconds, positive=True))
    within: float | None = field(default=None, metadata=by(optional_seconds))
    defer: float = field(default=600.0, metadata=by(seconds))

    @classmethod
    def http(
        cls,
        times: int = 4,
        *,
        also: On = (),
        statuses: Iterable[int] = (408, 425, 429, 500, 502, 503, 504),
        backoff: Backoff = 0.5,
        max_backoff: float = 60.0,
        within: float | None = None,
        defer: float = 600.0,
    ) -> Retry:
        """Return a Retry for the errors of HTTP clients: urllib, requests, httpx, aiohttp, and SDKs built on them.

        If an error with one of `statuses` has a Retry-After header (seconds, an HTTP date, or retry-after-ms), the item
        is deferred for that long. Without the header it is retried, like timeouts and broken connections. Everything
        else fails at once, unless `also` names it; so does a 429 whose body has the code insufficient_quota. Equal
        arguments return an equal Retry.

        Raises ValueError or TypeError for bad arguments.
        """
        on = HttpErrors(check_statuses("statuses", statuses), check_on("also", also))
        return cls(times, on, backoff=backoff, max_backoff=max_backoff, within=within, defer=defer)

    def answer(self, error: BaseException) -> bool | RetryLater:
        """Return whether an attempt that failed with this error may be repeated. Runs the user's callable."""
        return answer(self.on, error)


@dataclass(frozen=True, repr=False, kw_only=True)
class Breaker(Policy):
    """Pauses a key whose calls fail. `breaker=5` is `breaker=Breaker(5)`.

    failures: the number of failed calls in a row after which no call of the key starts. Without `key`, it counts for
    the whole map. reset: the length of the pause in seconds; after it, one call tests whether the key works again.
    when_open: "wait" keeps the items of the key waiting, "fail" fails them at once with BreakerOpen.

    Raises ValueError or TypeError for bad arguments.
    """

    __module__ = "manytail"

    failures: int = field(default=5, kw_only=False, metadata=by(whole, low=1))
    reset: float = field(default=30.0, metadata=by(finite, positive=True))
    when_open: Literal["wait", "fail"] = field(default="wait", metadata=by(choice, allowed=("wait", "fail")))


@dataclass(frozen=True, repr=False, kw_only=True)
class Batch(Policy):
    """Combines items into lists: fn gets a list of items and returns a sequence with one result for each. `batch=32` is
    `batch=Batch(32)`.

    size: the largest number of items in a list; all have the same key. linger: the seconds that a list waits for more
    items once a worker is free. The call starts earlier if the list is full, if the input ends, or if `max_in_flight`
    items are in flight. With 0, it starts at once with the items that are waiting.

    Raises ValueError or TypeError for bad arguments.
    """

    __module__ = "manytail"

    size: int = field(kw_only=False, metadata=by(whole, low=1))
    linger: float = field(default=0.0, metadata=by(finite))
