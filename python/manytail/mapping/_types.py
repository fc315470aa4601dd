"""What users of a map see besides its results: what a call gets, what it may raise, and what reports a failure."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from manytail._checks import shown
from manytail._sync import Held
from manytail._values import initialised_repr
from manytail.errors import ManytailError

_T = TypeVar("_T")
_R = TypeVar("_R")


class SpentNames(NamedTuple):
    """What `Delivery.spent` needs to know of the map's limits: the names of those that were given `cost` (the unnamed
    form means the only one; None: that has no name), and of those that are never settled."""

    costed: tuple[str | None, ...] = ()
    unsettled: tuple[str, ...] = ()


NO_NAMES = SpentNames()
_ENDED = "spent: the call has ended (expected: a call that is running)"


class Delivery:
    """Describes a call, for a function that has a parameter named `delivery`. A batch gets one Delivery.

    attempt: the number of this call of the item, counted from 1 without deferred calls. For a batch, it is the largest
    number among its items. task_attempt: `TaskContext.attemptNumber()` in Spark, otherwise 0. key: the key of the item,
    or None. error: the error of the previous attempt, or None. Its methods hold a lock for a few instructions.
    """

    __module__ = "manytail"
    __slots__ = (
        "_batch", "_identified", "_identify", "_lock", "_names", "_open", "attempt", "error", "key", "said",
        "task_attempt",
    )  # fmt: skip

    attempt: int
    task_attempt: int
    key: Any
    error: BaseException | None

    def __init__(
        self,
        attempt: int = 1,
        task_attempt: int = 0,
        key: Any = None,
        error: BaseException | None = None,
        *,
        batch: bool = False,
        identify: Callable[[], Any] = str,
        names: SpentNames = NO_NAMES,
    ) -> None:
        """A map makes them; a test of a function may. identify: makes the idempotency key; the list of them if the call
        has a batch."""
        self.attempt = attempt
        self.task_attempt = task_attempt
        self.key = key
        self.error = error
        self._batch = batch
        self._identify = identify
        self._identified: Any = None
        self._names = names
        self._open = True
        self.said: dict[str | None, float] | None = None  # what `spent` was told, by name; None: without a name
        self._lock = threading.Lock()

    @property
    def idempotency_key(self) -> str:
        """A hex string that identifies the item. It is the same for items of equal type and value in every attempt,
        process, partition, job and release of manytail. Raises TypeError if the call is for a batch, or if the item
        has a type that `item_id` may not return."""
        if self._batch:
            raise TypeError("idempotency_key: of a call with a batch (expected: idempotency_keys)")
        key: str = self._keys()
        return key

    @property
    def idempotency_keys(self) -> Sequence[str]:
        """One idempotency key for each item of a batch. Raises TypeError if the call is not that of a batch."""
        if not self._batch:
            raise TypeError("idempotency_keys: of a call without a batch (expected: idempotency_key)")
        keys: list[str] = self._keys()
        return keys

    def _keys(self) -> Any:
        if self._identified is None:
            self._identified = self._identify()
        return self._identified

    def spent(self, amount: float | None = None, /, **amounts: float) -> None:
        """Report what this call really cost, instead of its estimate: `spent(1_200)` for the one limit that has a
        `cost`, or by name, `spent(tokens=1_200, dollars=0.03)`. A name that does not belong to a limit is counted only
        in Stats. The most recent report counts, even if the call fails afterwards. May be called in any thread.

        Raises ValueError if an amount is not finite and >= 0, if it has no name and there is not exactly one limit with
        a `cost`, or if the name belongs to a Concurrency. Raises TypeError if an amount is not a number, and
        RuntimeError after the call has ended.
        """
        if not self._open:
            raise RuntimeError(_ENDED)
        costed = self._names.costed
        said: dict[str | None, float] = {} if amount is None else {None: _amount("spent", amount)}
        if said and len(costed) != 1:
            raise ValueError(f"spent: {amount!r}, and {len(costed)} limits were given cost (expected: one, or a name)")
        for name, value in amounts.items():
            # The name of the only limit that was given `cost` means the same as no name: the last word counts.
            said[None if costed == (name,) else name] = _amount(f"spent: {name}", value)
        for unsettled in said.keys() & self._names.unsettled:
            raise ValueError(f"spent: {unsettled} (expected: no Concurrency, whose costs are given back whole)")
        with Held(self._lock):
            if not self._open:
                raise RuntimeError(_ENDED)
            self.said = {**(self.said or {}), **said}

    def _end(self) -> None:
        """The call has ended, or was abandoned: what was said stays. It may be called again."""
        with Held(self._lock):
            self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    @initialised_repr
    def __repr__(self) -> str:
        return f"Delivery(attempt={self.attempt!r}, task_attempt={self.task_attempt!r}, key={self.key!r})"


def _amount(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: {shown(value)} of type {type(value).__qualname__} (expected: a finite number >= 0)")
    if not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name}: {shown(value)} (expected: a finite number >= 0)")
    return float(value)


class Outcome(NamedTuple, Generic[_T, _R]):
    """What `errors="return"` yields for every item: its result or its error.

    result: None if the item failed. error: None if it succeeded. attempts: the number of calls, not counting deferred
    ones; 0 means that the item was never called. key: the key of the item, or None without the option `key`.
    """

    item: _T
    result: _R | None
    error: BaseException | None
    attempts: int
    key: Any

    @property
    def ok(self) -> bool:
        """Whether the item has a result."""
        return self.error is None


class Quantiles(NamedTuple):
    """Quantiles of durations: the 50th, 95th and 99th percentiles, accurate to 5 %, and the longest. All are 0 if there
    are no durations.
    """

    p50: float
    p95: float
    p99: float
    max: float


NO_QUANTILES = Quantiles(0.0, 0.0, 0.0, 0.0)


class Stats(NamedTuple):
    """The progress of a map, with counts since its start.

    done: finished items, including failed ones. in_flight: items taken from the input and not yet yielded. calls:
    finished calls, including retries and deferred ones. retried, deferred: how many times items were retried and
    deferred. remembered: items that needed no call, because a recorded result, or the result of an equal item, was
    used. workers: the number of concurrent calls allowed now. rate: items finished per second in the last 5 s. seconds:
    since the start. waited: from reading an item to the start of its last call. ran: the durations of calls. spent:
    what calls cost, keyed by the names passed to `Delivery.spent`.
    """

    done: int = 0
    failed: int = 0
    in_flight: int = 0
    calls: int = 0
    retried: int = 0
    deferred: int = 0
    remembered: int = 0
    workers: int = 0
    rate: float = 0.0
    seconds: float = 0.0
    waited: Quantiles = NO_QUANTILES
    ran: Quantiles = NO_QUANTILES
    spent: Mapping[str, float] = MappingProxyType({})

    def __reduce__(self) -> tuple[Any, ...]:
        return _stats, (type(self), *self[:-1], dict(self.spent))  # a MappingProxyType has neither pickle nor copy


def _stats(kind: type[Stats], *counts: Any) -> Stats:
    *others, spent = counts
    return kind._make([*others, MappingProxyType(spent)])


class RetryLater(ManytailError):
    """Raise this in fn when the server says "not now", for example with status 429, or 503 and Retry-After. The item is
    deferred.

    A deferred call uses up no attempt. The item is called again after at least `after` seconds, and not before a
    backoff that doubles with each deferral. Until then no call of its key starts (without `key`, no call of the map);
    running calls continue. After the pause, calls start spread over a tenth of its length (at most 1 s), unless a Rate
    spreads them. `after` must be finite and >= 0; otherwise the item fails with ValueError.

    An item fails with this exception when its deferrals would add up to more than `Retry(defer=...)`; the pause still
    applies. If `after` alone is longer than that, nothing pauses, and a note on the error says when to call again.
    """

    __module__ = "manytail"

    def __init__(self, after: float = 1.0, message: str = "") -> None:
        super().__init__(message or f"retry after {shown(after)} s")
        self.after = after
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.after, self.message)


class DeadlineExceeded(ManytailError):
    """The item was not finished when the map's `deadline` passed."""

    __module__ = "manytail"


class BudgetExceeded(ManytailError):
    """The item would have cost more than a Budget had left."""

    __module__ = "manytail"


class BreakerOpen(ManytailError):
    """Too many calls of this item's key failed in a row (without `key`, of the map). `__cause__` is the last error of
    the item, if it has one."""

    __module__ = "manytail"


class TooManyFailures(ManytailError):
    """More than `max_failures` items failed. `__cause__` is the error of the last of them."""

    __module__ = "manytail"


class SharedUnavailable(ManytailError):
    """The database of `shared` or `remember` was unavailable for longer than its outage_timeout."""

    __module__ = "manytail"
