"""What a map does after failures, and how it forms batches: `Retry`, `Breaker` and `Batch`. Frozen values.

Each field of a class stands once, with its default and its check. `Judge` applies a Retry to an error. It runs the
user's functions, so a worker calls it, without a lock.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from manytail._checks import accepts, bad_type, by, choice, finite, optional_seconds, seconds, whole

from .engine.item import Call, Item, Kind, Verdict
from .errors import add_note, asked, set_cause
from .http import answer_of, check_statuses
from .outcomes import RetryLater

On = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool | RetryLater]
Backoff = float | Callable[[int, BaseException], float]
DEFERRAL, SHORTEST = 0.1, 0.001  # seconds that a deferred item waits at first: where `backoff` is a function; at least


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
    return value.__qualname__ if isinstance(value, type) else repr(value)


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

    times: how often an item is called again. on: the errors to retry: exception classes, or a function that gets the
    error and returns a bool, or a RetryLater to defer the item. backoff, max_backoff: the pause before attempt k + 1 is
    min(backoff * 2**(k-1), max_backoff) x a random factor in [0.5, 1] seconds. backoff may also be a function that gets
    (k, error) and returns the seconds; a bad value fails the item with ValueError. within: seconds after its first call
    after which an item is not called again; it fails with its last error. defer: the seconds that an item may be
    deferred in total. A deferred item waits at least as long as after a failed attempt, twice as long each time. If
    nothing but deferrals happens for `defer` seconds, the map ends with the last error.

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
        """Whether an attempt that failed with this error may be repeated. Runs the user's callable."""
        return answer(self.on, error)


@dataclass(frozen=True, repr=False, kw_only=True)
class Breaker(Policy):
    """Pauses a key whose calls fail. `breaker=5` is `breaker=Breaker(5)`.

    failures: the number of failed calls in a row after which no call of the key starts. Without `key` it counts for the
    whole map. reset: the seconds of the pause; then one call tries whether it works again. when_open: "wait" keeps the
    items of the key waiting, "fail" fails them at once with BreakerOpen.

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

    size: the largest number of items in a list; all have the same key. linger: seconds that a list waits to be filled
    once a worker is free. It starts earlier if it is full, if the input ends or if the window is full. 0 starts with
    what is waiting.

    Raises ValueError or TypeError for bad arguments.
    """

    __module__ = "manytail"

    size: int = field(kw_only=False, metadata=by(whole, low=1))
    linger: float = field(default=0.0, metadata=by(finite))


# ---------------------------------------------------------------------------------------------------- verdicts
class Judge:
    """What follows from the error of a call."""

    def __init__(
        self,
        retry: Retry,
        fatal: On = (),
        never_retry: tuple[type[BaseException], ...] = (),
        chance: Callable[[], float] = random.random,
    ) -> None:
        """never_retry: errors that no Retry names. chance: a random number in [0, 1), which spreads waits."""
        self._retry, self._fatal, self._never_retry, self._chance = retry, fatal, never_retry, chance

    def __call__(self, call: Call, error: BaseException) -> Verdict:
        """Runs the user's `fatal`, `on` and `backoff`. What one of them raises fails the call."""
        assert isinstance(call, Item)
        try:
            return self._judge(call, error, call.attempts)
        except BaseException as wrong:
            if wrong is not error:
                set_cause(wrong, error)
            kinds = self._fatal if isinstance(self._fatal, (type, tuple)) else ()
            return Verdict(Kind.FAIL, error=wrong, fatal=isinstance(wrong, kinds))

    def _judge(self, item: Item, error: BaseException, attempt: int) -> Verdict:
        retry = self._retry
        if isinstance(error, RetryLater):
            return self._defer(item, error, error)
        if self._is_fatal(error):
            return Verdict(Kind.FAIL, error=error, fatal=True)
        if isinstance(error, self._never_retry) or (attempt > retry.times and not callable(retry.on)):
            return Verdict(Kind.FAIL, error=error)
        # A callable is also asked after the last attempt: it may defer the item.
        found = asked("retry: on", retry.answer, error)
        if isinstance(found, RetryLater):
            return self._defer(item, found, error)
        if attempt > retry.times or not found:
            return Verdict(Kind.FAIL, error=error)
        if callable(retry.backoff):
            wait = asked("retry: backoff", retry.backoff, attempt, error)
            return Verdict(Kind.RETRY, checked_seconds(f"backoff: for attempt {attempt}", wait), error)
        return Verdict(Kind.RETRY, self._backoff(retry.backoff, attempt - 1), error)

    def _is_fatal(self, error: BaseException) -> bool:
        return bool(asked("fatal", answer, self._fatal, error))

    def _backoff(self, first: float, doublings: int) -> float:
        wait = min(first * 2.0 ** min(doublings, 1_000), self._retry.max_backoff)
        return wait * (0.5 + self._chance() / 2)

    def _defer(self, item: Item, later: RetryLater, error: BaseException) -> Verdict:
        """The verdict for a call that asks to be made later; error: what it raised. The waits of an item double with
        each deferral, as those of a backoff do: what a server asks for may be 0, for ever."""
        retry = self._retry
        after, longest = checked_seconds("RetryLater.after", later.after), retry.defer
        first = DEFERRAL if callable(retry.backoff) else max(retry.backoff, SHORTEST)
        wait = max(after, self._backoff(first, item.deferrals))
        if item.deferred + wait <= longest:
            return Verdict(Kind.DEFER, wait, error)
        if after > longest:  # nothing pauses for a quota that is spent for days
            note_wait(error, after, longest)
        fatal = error is later and self._is_fatal(error)
        return Verdict(Kind.FAIL, 0.0 if after > longest else after, error, fatal, pauses=after <= longest)


def note_wait(error: BaseException, after: float, longest: float) -> None:
    """Say in the error of an item when its server wants to be asked again, which is too late for it. longest: `defer`
    of the Retry."""
    at = ""
    with suppress(OverflowError):
        at = f", at {datetime.now(UTC) + timedelta(seconds=after):%Y-%m-%d %H:%M:%S} UTC"
    add_note(error, f"manytail: to be called again in {after:g} s{at} (expected: within the {longest:g} s of defer)")


def checked_seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name}: {value!r} (expected: seconds, a finite number >= 0)")
    return float(value)
