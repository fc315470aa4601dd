"""Types of the other orders of entry queues; what each member does is said in its docstring and in docs/."""

from collections.abc import Callable, Hashable
from typing import Any, Literal, TypeVar, Unpack

from manytail._entries import EntryQueue, _QueueOptions

_T = TypeVar("_T")

class PriorityEntryQueue(EntryQueue[_T]):
    """\
    An EntryQueue with priorities: entries with the highest priority number are delivered first, and equal ones in order
    of arrival.

    levels: the number of priorities, 10 by default. mapping="jms", the default: as in AMQP 0-10 and JMS; with fewer
    than 10 levels, several of the lowest priorities share a level, and so do several of the highest. mapping="direct":
    level = min(max(priority, 0), levels - 1). Raises ValueError if levels is < 1 or > 65535 or the mapping is unknown,
    and TypeError if levels is not an int. It has the same other options, locking and algorithm as EntryQueue (see there
    for the source).
    """
    def __init__(
        self,
        name: str = "",
        *,
        levels: int = 10,
        mapping: Literal["jms", "direct"] = "jms",
        **options: Unpack[_QueueOptions[_T]],
    ) -> None: ...
    @property
    def levels(self) -> int:
        """The number of levels."""

class SortedEntryQueue(EntryQueue[_T]):
    """An EntryQueue that is sorted by a key, in ascending order. Entries with equal keys keep their order of arrival.

    key: a function of the item, called once per put, while no lock is held. A put makes O(log n) comparisons. If key or
    `<` raises, put raises that error and puts nothing. Raises TypeError if key is not callable. The other options and
    the locking are the same as in EntryQueue. Source: binary search in a two-level B+ tree (_eq_sorted.pxd).
    """
    def __init__(self, name: str = "", *, key: Callable[[_T], Any], **options: Unpack[_QueueOptions[_T]]) -> None: ...

class LastValueQueue(EntryQueue[_T]):
    """An EntryQueue that keeps only the last entry of each key: a put removes the older entry of the same key.

    key: a function of the item, called once per put, while no lock is held. Its result must be hashable; an entry with
    the key None is never replaced. If a subscription holds the older entry, it is dropped when it is released.
    QueueStats.dropped counts replaced entries. A replacement needs no free slot in a full queue. Raises TypeError if
    key is not callable. It has the same other options, locking and algorithm as EntryQueue (see there for the
    source).
    """
    def __init__(
        self, name: str = "", *, key: Callable[[_T], Hashable | None], **options: Unpack[_QueueOptions[_T]]
    ) -> None: ...
