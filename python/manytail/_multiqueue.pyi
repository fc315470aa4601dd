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

    Sub-queues of the same priority take turns. The sub-queues that have items and are enabled form a ring. A sub-queue
    joins the end of the ring when it gets its first item, is enabled, or gets a new priority.

    selection: how the next sub-queue is chosen from those with the most urgent priority.
        "round_robin", the default: one item per turn.
        "weighted": `weight` items per turn; a sub-queue that becomes empty loses the rest of its turn.
        "oldest": the sub-queue whose first item is the oldest. A function: it gets the ready sub-queues with the most
        urgent priority, in the order of the ring, and returns one of them. It is called for each item, and from several
        threads. If it raises, get raises that error and nothing is lost; what a get_many has already taken is in a
        list, the error's `items`.

    Cost of get: O(1) for round_robin and weighted, O(log n) for oldest, O(ready sub-queues) for a function. Sub-queues
    that are not ready cost nothing.
    Blocking: one short lock per sub-queue for puts and one for gets; no lock is held while Python code runs. Source:
    LinkedBlockingMultiQueue by Mariano Barrios, after Doug Lea's LinkedBlockingQueue.

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
        int >= 0; maxsize then limits the sum of the sizes. It is called once per item, before the item is put and while
        no lock is held; put_many of a list or tuple calls it for all items first. A put of a small item may overtake a
        waiting put of a large one.
        Raises ValueError if the key exists or weight < 1, and ShutDown after shutdown(). Raises TypeError if priority,
        maxsize or weight is not an int, if the key is not hashable, if sizer is not callable, or if an IndexMultiQueue
        is given a sizer.

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
        """Return the sub-queue of that key; it is created atomically if it does not exist. An existing one is returned
        unchanged. Takes the same options and raises the same errors as add().
        """
    def remove(self, key: _K) -> SubQueue[_K, _T]:
        """Remove the sub-queue of that key and return it. Its items count as done and are not in qsize(), but you can
        still iterate over them. Puts that are waiting, and all later puts, raise ShutDown. The key may be added again.
        Raises KeyError if there is no such key.
        """
    def __getitem__(self, key: _K, /) -> SubQueue[_K, _T]: ...
    def __contains__(self, key: object, /) -> bool: ...
    @property
    def subqueues(self) -> Mapping[_K, SubQueue[_K, _T]]:
        """A read-only live view that maps keys to sub-queues. Iterating over it takes a snapshot."""
    def get(self, block: bool = True, timeout: float | None = None) -> _T:
        """Remove and return the next item of all enabled sub-queues. Waits for one if there is none.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Empty if no item comes in time, ShutDown if the queue is shut down and empty, and ValueError if timeout
        is negative or NaN.
        """
    def get_nowait(self) -> _T:
        """get(block=False)"""
    def get_with_key(self, block: bool = True, timeout: float | None = None) -> tuple[_K, _T]:
        """Like get, but returns (key of the sub-queue, item)."""
    def get_many(
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> list[_T]:
        """Return a list of up to max_items items, in the order of get. Waits for the first one, then takes all that are
        available. If max_items <= 0, it returns [] at once. Raises the same errors as get.

        linger: how many seconds it waits for more items after the first one. It returns earlier if it has max_items
        items, times out, or the queue is shut down. If an exception interrupts it, for example one from a signal
        handler, the items that it has taken are in a list, the exception's `items`. block=False ignores linger. Raises
        ValueError if linger is negative or NaN.
        """
    def peek(self) -> _T:
        """Return the item that get would return, without removing it. Raises Empty if there is none."""
    async def aget(self) -> _T:
        """The version of get() for asyncio and trio coroutines. If it is cancelled, no item is lost, and its wake-up
        goes to another getter.
        """
    async def aget_with_key(self) -> tuple[_K, _T]:
        """get_with_key for coroutines."""
    async def aget_many(self, max_items: int, *, linger: float = 0.0) -> list[_T]:
        """get_many for coroutines. If it is cancelled, what it has taken is in a list, the exception's `items`."""
    def qsize(self) -> int:
        """Return the number of items in enabled, attached sub-queues. Other threads may have changed it by the time
        this returns.
        """
    def empty(self) -> bool:
        """Return whether get would have to wait."""
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
        """True once shutdown() has been called."""
    def stats(self) -> MultiQueueStats:
        """Return a MultiQueueStats: items, sub-queues, waiting getters and putters, and how many items have been put
        and taken.
        """

@final
class SubQueue(Generic[_K, _T]):
    """A sub-queue of a MultiQueue, into which items are put. Create it with MultiQueue.add or setdefault.

    All methods may be called in any thread. Puts to different sub-queues hardly wait for each other. priority, weight,
    maxsize and enabled may be assigned at any time; once the sub-queue has been removed, this has no effect.
    Blocking: it uses short locks, as the MultiQueue does. Source: the sub-queues of the LinkedBlockingMultiQueue, each
    with its own put lock.
    """
    def __init__(self, *args: object, **options: object) -> None: ...  # raises: MultiQueue.add() makes them
    @property
    def key(self) -> _K:
        """The key of the sub-queue."""
    @property
    def attached(self) -> bool:
        """False once it has been removed from its MultiQueue."""
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
        Raises Full if no slot becomes free in time; ShutDown if the queue is shut down or this sub-queue is removed
        (also during the wait); ValueError if timeout is negative or NaN, or if the item's size is negative or larger
        than maxsize; and any error that the sizer raises. If it raises, nothing was put.
        """
    def put_nowait(self, item: _T) -> None:
        """put(item, block=False)"""
    def put_front(self, item: _T, block: bool = True, timeout: float | None = None) -> None:
        """Put an item at the head of this sub-queue, so that it is the next to be taken. Waits and raises like put."""
    def put_many(self, items: Iterable[_T], block: bool = True, timeout: float | None = None) -> int:
        """Append all items of an iterable in order and return how many there were.

        Of a list or tuple (for an IndexMultiQueue, an int64 buffer), as many items as fit become visible
        to getters at the same moment. Any other iterable is read one item at a time. timeout applies to the whole call.
        If it raises Full, ShutDown or KeyboardInterrupt, or ValueError, TypeError or OverflowError for an item, the
        exception's `count` is the number of items that were put. If the iterable or the sizer raises, the items before
        that point have been put.
        """
    async def aput(self, item: _T) -> None:
        """The version of put() for asyncio and trio coroutines. If it is cancelled before it returns, nothing was
        put.
        """
    def qsize(self) -> int:
        """Return the number of items, whether the sub-queue is enabled or not."""
    @property
    def size(self) -> int:
        """The total size of its items at a single moment; the same as qsize() if there is no sizer."""
    def remaining(self) -> int | None:
        """Return how many more items fit at this moment, or with a sizer, what total size. Returns None if there is no
        limit.
        """
    def empty(self) -> bool:
        """Return True if there are no items."""
    def full(self) -> bool:
        """Return whether put would have to wait; with a sizer, for an item whose size is > 0."""
    def __iter__(self) -> Iterator[_T]: ...
    def __contains__(self, item: object, /) -> bool: ...
    def discard(self, item: object) -> bool:
        """Remove the first item that is or equals `item`, and return whether there was one. No lock is held while items
        are compared. You may call it during an iteration.
        """
    def clear(self) -> int:
        """Remove all items and return how many there were. They count as done."""
