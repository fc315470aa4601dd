"""Types of the other orders of entry queues; what each member does is said in its docstring and in docs/."""

from collections.abc import Callable, Hashable
from typing import Any, Literal, TypeVar, Unpack

from manytail._entries import EntryQueue, _QueueOptions

_T = TypeVar("_T")

class PriorityEntryQueue(EntryQueue[_T]):
    """As many strict FIFOs as `levels`, the most urgent first.

    mapping="jms": priorities map to levels as in AMQP 0-10 and JMS, bigger is more urgent; with fewer than 10 levels
    the outer priorities share one. mapping="direct": level = min(max(priority, 0), levels - 1). An arrival ahead of a
    subscription's cursor moves that cursor back. ValueError: levels < 1 or > 65535, an unknown mapping. TypeError:
    levels is no int. Options, progress and source as EntryQueue.
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
    """Ascending by key, equal keys in order of arrival. A put makes O(log n) comparisons.

    key: a callable of the item, run once per put, before anything is linked. If key or `<` raises, put raises that and
    puts nothing. No lock is held while they run. TypeError: key is not callable. Options and progress as EntryQueue.
    Source: binary search in a two-level B+ tree (_eq_sorted.pxd).
    """
    def __init__(self, name: str = "", *, key: Callable[[_T], Any], **options: Unpack[_QueueOptions[_T]]) -> None: ...

class LastValueQueue(EntryQueue[_T]):
    """\
    A put appends an entry and removes the older entry of its key if that is AVAILABLE or HELD; an ACQUIRED older one is
    dropped when it is released. QueueStats.dropped counts both. A replacement needs no free slot in a full queue.

    key: a callable of the item, run without any lock, once per put; its result must be hashable. None: the entry is
    never replaced. TypeError: key is not callable. Options, progress and source as EntryQueue.
    """
    def __init__(
        self, name: str = "", *, key: Callable[[_T], Hashable | None], **options: Unpack[_QueueOptions[_T]]
    ) -> None: ...
