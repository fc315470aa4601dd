"""Values that methods of the queues return: statistics, states, reasons, and a view of sub-queues."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, NamedTuple, TypeVar, cast

_K = TypeVar("_K")
_S = TypeVar("_S")


class MultiQueueStats(NamedTuple):
    """What MultiQueue.stats() returns. No get and no change to the sub-queues happens between two of its numbers. A put
    may, so put >= got + qsize."""

    qsize: int
    subqueues: int
    enabled: int
    getters_waiting: int
    putters_waiting: int
    put: int
    got: int


class PubSubStats(NamedTuple):
    """What PubSubQueue.stats() returns. Not a snapshot: other threads may change the queue between the numbers.

    retained: messages that some subscriber has yet to receive. published: all messages published so far. slowest_lag:
    the lag of the slowest subscriber, 0 without subscribers. dropped: messages that slow="drop_oldest" took from
    subscribers, added up over all of them."""

    retained: int
    published: int
    subscribers: int
    slowest_lag: int
    dropped: int


class SubQueueView(Mapping[_K, _S]):
    """Key -> SubQueue, read-only and live; iterating it, or its items() or values(), walks over a snapshot."""

    __slots__ = ("_subs",)

    def __init__(self, subs: dict[_K, _S]) -> None:
        self._subs = subs

    def __getitem__(self, key: _K) -> _S:
        return self._subs[key]

    def __contains__(self, key: object) -> bool:
        return key in self._subs

    def __iter__(self) -> Iterator[_K]:
        return iter(list(self._subs))

    def __len__(self) -> int:
        return len(self._subs)

    def keys(self) -> KeysView[_K]:
        return self._subs.copy().keys()

    def values(self) -> ValuesView[_S]:
        return self._subs.copy().values()

    def items(self) -> ItemsView[_K, _S]:
        return self._subs.copy().items()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._subs!r})"


class EntryState(enum.IntEnum):
    """The state of an entry. HELD: not available until a given time. DEQUEUED and DELETED: removed from the queue."""

    AVAILABLE = 0
    HELD = 1
    ACQUIRED = 2
    DEQUEUED = 3
    DELETED = 4


class DeadReason(enum.StrEnum):
    """Why an entry became a dead letter."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAX_DELIVERIES = "max_deliveries"
    OVERFLOW = "overflow"
    DELETED = "deleted"


class QueueStats(NamedTuple):
    """What EntryQueue.stats() returns: a consistent snapshot, taken under the order lock.

    enqueued = acked + rejected + expired + dropped + purged + depth. dropped: entries removed by overflow, replacement,
    max_deliveries or shutdown. dead_lettered: how many of the rejected, expired and dropped entries became dead
    letters. high_water: the largest depth. oldest_age: seconds since the put of the oldest entry, None if there is
    none."""

    available: int
    acquired: int
    held: int
    depth: int
    enqueued: int
    delivered: int
    acked: int
    released: int
    expired: int
    rejected: int
    dropped: int
    purged: int
    dead_lettered: int
    selector_errors: int
    high_water: int
    subscriptions: int
    oldest_age: float | None


_Repr = TypeVar("_Repr", bound=Callable[[Any], str])


def initialised_repr(method: _Repr) -> _Repr:
    """A `__repr__` for debuggers and tracebacks: they may show an object whose `__init__` did not run, or raised."""

    @functools.wraps(method)
    def show(self: Any) -> str:
        try:
            return method(self)
        except AttributeError:
            return f"<{type(self).__name__}, not initialised>"

    return cast(_Repr, show)
