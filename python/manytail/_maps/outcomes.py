"""What users of a map see besides its results: what a call gets, what it may raise, and what reports a failure."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from manytail import _checks
from manytail._sync import Held
from manytail._values import initialised_repr
from manytail.errors import ManytailError

_T = TypeVar("_T")
_R = TypeVar("_R")


class SpentNames(NamedTuple):
    """What `Delivery.spent` needs to know of the map's limits: the names of those that were given `cost` (the unnamed
    form means the only one), and of those that are never settled."""

    costed: tuple[str | None, ...] = ()
    unsettled: tuple[str, ...] = ()


NO_NAMES = SpentNames()
_ENDED = "spent: the call has ended (expected: a call that is running)"


class Delivery:
    """What a function with a parameter named `delivery` gets: facts about the call. A batch gets one.

    attempt: the number of this call of the item in this map, from 1; a deferred call does not count. Of a batch: the
    most of its items. task_attempt: `TaskContext.attemptNumber()` in Spark, otherwise 0. key: the item's, or None.
    error: of the attempt before; None in the first. Its methods hold a lock for a few instructions.
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
        self.said: dict[str | None, float] | None = None  # what `spent` was told, by name; None: without one
        self._lock = threading.Lock()

    @property
    def idempotency_key(self) -> str:
        """Hex. Equal for items that are equal in type and value, in every attempt, process, partitioning, job and
        release. Made when it is read: TypeError for an item of another type than item_id's, or for a batch."""
        if self._batch:
            raise TypeError("idempotency_key: of a call with a batch (expected: idempotency_keys)")
        key: str = self._keys()
        return key

    @property
    def idempotency_keys(self) -> Sequence[str]:
        """Of a batch: one for each item. TypeError: the call has no batch."""
        if not self._batch:
            raise TypeError("idempotency_keys: of a call without a batch (expected: idempotency_key)")
        keys: list[str] = self._keys()
        return keys

    def _keys(self) -> Any:
        if self._identified is None:
            self._identified = self._identify()
        return self._identified

    def spent(self, amount: float | None = None, /, **amounts: float) -> None:
        """Say what this call took really, instead of its estimated cost: of the one limit that was given `cost`, or by
        the names of limits. A name that no limit has counts in Stats alone. From any thread. The last word counts, also
        if the call fails afterwards.

        ValueError: an amount that is not finite and >= 0; no limit or several were given `cost`, and the amount has no
        name; a limit that is not settled. TypeError: an amount that is no number. RuntimeError: the call has ended."""
        if not self._open:
            raise RuntimeError(_ENDED)
        costed = self._names.costed
        said: dict[str | None, float] = {} if amount is None else {None: _amount("spent", amount)}
        if said and len(costed) != 1:
            raise ValueError(f"spent: {amount!r}, and {len(costed)} limits were given cost (expected: one, or a name)")
        for name, value in amounts.items():
            # The name of the only limit that was given `cost` means the same as no name: the last word counts.
            said[None if costed == (name,) else name] = _amount(f"spent: {name}", value)
        for named in said.keys() & self._names.unsettled:
            raise ValueError(f"spent: {named} (expected: no Concurrency, whose costs are given back whole)")
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


def end_delivery(delivery: Delivery | None) -> None:
    """The call is abandoned: what it has said stays, and it can say no more."""
    if delivery is not None:
        delivery._end()


def _amount(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: {value!r} of type {type(value).__qualname__} (expected: a finite number >= 0)")
    if not 0 <= value <= sys.float_info.max:
        raise _checks.bad_value(name, value, "a finite number >= 0")
    return float(value)


class Outcome(NamedTuple, Generic[_T, _R]):
    """What `errors="return"` yields for every item, so that order="completion" says whose result it is.

    result: None if the item failed. error: None if it did not. attempts: calls of the item, without deferred ones; 0:
    it was never called. key: None without `key`."""

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
    """Of durations: the 50th, 95th and 99th percentile, exact to 5 %, and the largest. Zeros if there are none."""

    p50: float
    p95: float
    p99: float
    max: float


NO_QUANTILES = Quantiles(0.0, 0.0, 0.0, 0.0)


class Stats(NamedTuple):
    """Where a map stands. The counts are those since its start.

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


def _stats(kind: type[Stats], *values: Any) -> Stats:
    return kind._make([*values[:-1], MappingProxyType(values[-1])])


class RetryLater(ManytailError):
    """Raised by fn when the other side says "not now" (429 or 503 with Retry-After): the item is deferred.

    A deferred call is no attempt: it uses up none of `times`. The item is called again after at least `after` seconds
    (finite, >= 0; otherwise it fails with ValueError), and after at least as long as a backoff takes, which doubles
    with each deferral. Until then no call of its key starts (without key: of this map); running calls continue. After
    such a pause the starts are spread over a tenth of it, 1 s at most, unless a Rate spreads them. An item whose
    deferrals would add up to more than the `defer` of its Retry fails with this exception at once; it pauses all the
    same. If `after` alone is more than that, nothing pauses, and a note on the error says when to call again.
    """

    __module__ = "manytail"

    def __init__(self, after: float = 1.0, message: str = "") -> None:
        super().__init__(message or f"retry after {_checks.shown(after)} s")
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


class TooManyFailures(ManytailError):
    """More items than `max_failures` have failed. `__cause__`: the error of the last one."""

    __module__ = "manytail"


class SharedUnavailable(ManytailError):
    """The database of `shared` was away for longer than its outage_timeout."""

    __module__ = "manytail"
