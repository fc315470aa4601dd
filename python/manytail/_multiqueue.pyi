"""Types of the MultiQueue; what each member does is said in its docstring and in docs/."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import GenericAlias
from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypeVar, final

from typing_extensions import disjoint_base

from manytail._values import MultiQueueStats as MultiQueueStats
from manytail._values import SubQueueView as SubQueueView

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")

_Selection: TypeAlias = (
    Literal["round_robin", "weighted", "oldest"] | Callable[[Sequence[SubQueue[_K, _T]]], SubQueue[_K, _T]]
)

@disjoint_base
class MultiQueue(Generic[_K, _T]):
    """Many sub-queues that you read as one queue: one `get` waits for all of them. Each sub-queue has its own capacity,
    priority, weight and on/off switch. Lower `priority` numbers are served first, as in `queue.PriorityQueue`.

    Sub-queues of the same priority take turns. Those that have items and are enabled form a ring; a sub-queue that gets
    its first item, is enabled or gets a new priority joins at the end.

    selection: how the next sub-queue of the best priority is chosen.
        "round_robin", the default: one item per turn.
        "weighted": `weight` items per turn; a sub-queue that becomes empty loses the rest of its turn.
        "oldest": the sub-queue whose first item was put first.
        A function: it gets the ready sub-queues of the best priority in the order of the ring, and returns one of them.
        It is called for each item, from several threads. If it raises, get raises that error and nothing is lost; a
        get_many that has already taken items returns them, or puts them back if the error is not an
        Exception, for example KeyboardInterrupt.

    Cost of get: O(1) for round_robin and weighted, O(log n) for oldest, O(ready) for a callable. Sub-queues that are
    not ready cost nothing.
    Progress: blocking (a short lock per sub-queue for puts, one for gets); no lock is held while Python code runs.
    Source: LinkedBlockingMultiQueue by Mariano Barrios, after Doug Lea's LinkedBlockingQueue.

    >>> q = MultiQueue()
    >>> urgent, bulk = q.add("urgent", priority=0), q.add("bulk", priority=1, maxsize=1000)
    >>> bulk.put("later"); urgent.put("now")
    >>> q.get(), q.get_with_key()
    ('now', ('bulk', 'later'))
    """
    def __init__(self, *, selection: _Selection[_K, _T] = "round_robin") -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    def add(
        self, key: _K, *, priority: int = 0, maxsize: int = 0, weight: int = 1, enabled: bool = True,
        sizer: Callable[[_T], int] | None = None,
    ) -> SubQueue[_K, _T]:
        """Create the sub-queue of a new key and return it.

        maxsize: the capacity; <= 0: no limit. weight: items per turn, for selection="weighted". enabled=False: the
        sub-queue accepts items, but hides them from getters. sizer: a function that returns the size of an item, an
        int >= 0; maxsize then limits the sum of the sizes. It is called once per item, before the item is put and
        without a lock; put_many of a list or tuple calls it for all items first. A put of a small item may overtake a
        waiting put of a large one.
        Raises ValueError if the key exists or weight < 1; TypeError if priority, maxsize or weight is no int, the key
        cannot be hashed, or sizer is not callable or is given for an IndexMultiQueue; ShutDown after shutdown().

        >>> q = MultiQueue()
        >>> pages = q.add("pages", maxsize=1_000_000, sizer=len)      # at most a million bytes
        >>> pages.put(b"<html>")
        >>> pages.size, pages.remaining()
        (6, 999994)
        """
    def setdefault(
        self, key: _K, *, priority: int = 0, maxsize: int = 0, weight: int = 1, enabled: bool = True,
        sizer: Callable[[_T], int] | None = None,
    ) -> SubQueue[_K, _T]:
        """Return the sub-queue of that key; it is made atomically if missing. An existing one is returned unchanged.
        Options and errors are those of add().
        """
    def remove(self, key: _K) -> SubQueue[_K, _T]:
        """Remove the sub-queue of that key and return it. Its items no longer count in qsize(), count as done, and can
        still be iterated. Waiting and later puts into it raise ShutDown. The key may be added again. Raises KeyError if
        there is no such key.
        """
    def __getitem__(self, key: _K, /) -> SubQueue[_K, _T]: ...
    def __contains__(self, key: object, /) -> bool: ...
    @property
    def subqueues(self) -> Mapping[_K, SubQueue[_K, _T]]:
        """Read-only live view: key -> SubQueue. Iterating it takes a snapshot."""
    def get(self, block: bool = True, timeout: float | None = None) -> _T:
        """Remove and return the next item of all enabled sub-queues. Waits for one if there is none.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Empty if no item came in time, ShutDown if the queue is shut down and empty, and ValueError if timeout is
        negative or NaN.
        """
    def get_nowait(self) -> _T:
        """get(block=False)"""
    def get_with_key(self, block: bool = True, timeout: float | None = None) -> tuple[_K, _T]:
        """As get, but returns (key of the sub-queue, item)."""
    def get_many(
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> list[_T]:
        """Return a list of up to max_items items, in the order of get. Waits for the first one, then takes all that are
        there. If max_items <= 0, it returns [] at once. Errors are those of get.

        linger: seconds after the first item for which it waits for more. It returns earlier with max_items items, at
        the timeout and at a shutdown. If an exception, for example of a signal handler, interrupts it, all items are
        put back at the heads of their sub-queues. block=False ignores linger. Raises ValueError if linger is negative
        or NaN.
        """
    def peek(self) -> _T:
        """Return the item that get would return, without removing it. Raises Empty if there is none."""
    async def aget(self) -> _T:
        """get for coroutines of asyncio and trio. Cancelling it loses no item; its wake-up goes to another getter."""
    async def aget_with_key(self) -> tuple[_K, _T]:
        """get_with_key for coroutines."""
    async def aget_many(self, max_items: int, *, linger: float = 0.0) -> list[_T]:
        """get_many for coroutines. Cancelling it puts back what it has taken."""
    def qsize(self) -> int:
        """The number of items in enabled, attached sub-queues. Other threads may have changed it when this returns."""
    def empty(self) -> bool:
        """Whether get would have to wait."""
    def task_done(self) -> None:
        """Count one item as done. Raises ValueError if it is called more often than items were put."""
    def join(self, timeout: float | None = None) -> bool:
        """Wait until every item that was put is done. Returns True, or False after `timeout` seconds."""
    async def ajoin(self) -> None:
        """join for coroutines."""
    def shutdown(self, immediate: bool = False) -> None:
        """Accept no more items: put and add raise ShutDown. get returns what is left in enabled sub-queues and then
        raises ShutDown. immediate=True removes the items of all sub-queues; they count as done. Wakes all waiting
        calls.
        """
    @property
    def is_shutdown(self) -> bool:
        """True from the first shutdown() on."""
    def stats(self) -> MultiQueueStats:
        """Return a MultiQueueStats: items, sub-queues, waiting getters and putters, and how many items were put and
        got.
        """

@final
class SubQueue(Generic[_K, _T]):
    """A sub-queue of a MultiQueue, into which items are put. Create it with MultiQueue.add or setdefault.

    All methods may be called in any thread. Puts to different sub-queues hardly wait for each other. priority, weight,
    maxsize and enabled may be assigned at any time; after the sub-queue was removed this has no effect.
    Progress: as the MultiQueue's. Source: the sub-queues of the LinkedBlockingMultiQueue, each with its own put lock.
    """
    def __init__(self, *args: object, **options: object) -> None: ...  # raises: MultiQueue.add() makes them
    @property
    def key(self) -> _K:
        """The key of the sub-queue."""
    @property
    def attached(self) -> bool:
        """False after it was removed from its MultiQueue."""
    @property
    def priority(self) -> int:
        """Lower numbers are served first. A new priority moves the sub-queue to the end of the ring of that
        priority.
        """
    @priority.setter
    def priority(self, value: int, /) -> None: ...
    @property
    def weight(self) -> int:
        """Items per turn, for selection="weighted". A new weight applies from its next turn on."""
    @weight.setter
    def weight(self, value: int, /) -> None: ...
    @property
    def maxsize(self) -> int:
        """The capacity: the number of items, or with a sizer the sum of their sizes. 0 or less: no limit. Raising it
        wakes waiting putters. Lowering it removes no items.
        """
    @maxsize.setter
    def maxsize(self, value: int, /) -> None: ...
    @property
    def enabled(self) -> bool:
        """If False, the sub-queue accepts items up to maxsize, but hides them from getters."""
    @enabled.setter
    def enabled(self, value: bool, /) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    def put(self, item: _T, block: bool = True, timeout: float | None = None) -> None:
        """Append an item. Waits for a free slot if the sub-queue is full.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Full if there is no free slot in time; ShutDown if the queue is shut down or this sub-queue removed, also
        while it waits; ValueError if timeout is negative or NaN, or the item's size is negative or larger than maxsize;
        and what the sizer raises. If it raises, nothing was put.
        """
    def put_nowait(self, item: _T) -> None:
        """put(item, block=False)"""
    def put_front(self, item: _T, block: bool = True, timeout: float | None = None) -> None:
        """Put an item at the head of this sub-queue, so that it is the next one. Waits and raises like put."""
    def put_many(self, items: Iterable[_T], block: bool = True, timeout: float | None = None) -> int:
        """Append all items of an iterable in order and return how many there were.

        The items of a list or tuple (for an IndexMultiQueue, of an int64 buffer or Arrow array) become visible to
        getters together, as many as fit. Another iterable is read one item at a time. timeout is for the whole call. If
        it raises Full, ShutDown or KeyboardInterrupt, or ValueError, TypeError or OverflowError for an item, the
        exception's `count` is the number of items that were put. If the iterable or the sizer raises, the items before
        it were put.
        """
    async def aput(self, item: _T) -> None:
        """put for coroutines of asyncio and trio. Cancelling it before it returns puts nothing."""
    def qsize(self) -> int:
        """Return the number of items, whether the sub-queue is enabled or not."""
    @property
    def size(self) -> int:
        """The sum of the sizes of its items, at one instant; qsize() without a sizer."""
    def remaining(self) -> int | None:
        """Return how many items, or with a sizer what total size, would fit now. None: there is no limit."""
    def empty(self) -> bool:
        """Return whether there is no item."""
    def full(self) -> bool:
        """Return whether put would have to wait; with a sizer, for an item of a size > 0."""
    def __iter__(self) -> Iterator[_T]: ...
    def __contains__(self, item: object, /) -> bool: ...
    def discard(self, item: object) -> bool:
        """Remove the first item that is or equals `item`, and return whether there was one. Compares without a lock;
        safe while iterating.
        """
    def clear(self) -> int:
        """Remove all items and return how many there were. They count as done."""
