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
    """\
    Many sub-queues, got from as one: each has its own capacity, priority, weight and on/off switch, and any number of
    getters block on all of them at once. Lower `priority` numbers go first, as in `queue.PriorityQueue`.

    The ready sub-queues (enabled and not empty) of one priority form a ring. One that becomes ready (first item,
    enable, new priority) joins at the end. After its turn it goes to the end if it is not empty.

    selection: how the next sub-queue of the best priority is chosen.
        "round_robin": one item per turn.
        "weighted": `weight` items per turn; one that runs empty loses the rest of its turn.
        "oldest": the sub-queue whose first item was put first.
        a callable: is called for each item with the ready sub-queues of the best priority, in the order of the ring,
        and returns one of them. It may be called from several threads. If it raises, get raises that and nothing is
        lost. A get_many that has taken items returns them instead. If it raises what is no Exception, such as
        KeyboardInterrupt, get_many puts them back and raises that.

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
        """Make the sub-queue of a new key and return it.

        maxsize <= 0: no limit. weight: items per turn, for selection="weighted". enabled=False: it accepts items and
        hides them from getters. sizer: maxsize limits the sum of sizer(item), an int >= 0, instead of the number of
        items. The sizer is called once per item, before the item is put and with no lock held; the item keeps that
        size. put_many of a list or tuple calls it for all items first. A waiting put of a small item may overtake one
        of a large item. ValueError: the key is taken, or weight < 1.
        TypeError: priority, maxsize or weight is no int, the key cannot be hashed, or sizer is not callable or for an
        IndexMultiQueue. ShutDown: the queue was shut down.

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
        """The sub-queue of that key, made atomically if missing. An existing one is returned unchanged. Options and
        errors as add().
        """
    def remove(self, key: _K) -> SubQueue[_K, _T]:
        """Detach the sub-queue of that key and return it. Its items leave qsize() at once, count as done, and can still
        be iterated in the handle. Blocked and later puts raise ShutDown. The turns of others do not change. The key may
        be added again. KeyError: no such key.
        """
    def __getitem__(self, key: _K, /) -> SubQueue[_K, _T]: ...
    def __contains__(self, key: object, /) -> bool: ...
    @property
    def subqueues(self) -> Mapping[_K, SubQueue[_K, _T]]:
        """Read-only live view: key -> SubQueue. Iterating it takes a snapshot."""
    def get(self, block: bool = True, timeout: float | None = None) -> _T:
        """Take the next item of all enabled sub-queues, waiting for one if need be.

        timeout: seconds for the whole call; None waits for ever. block=False does not wait and ignores timeout.
        Empty: nothing came in time. ShutDown: shut down and drained. ValueError: timeout is negative or NaN.
        """
    def get_nowait(self) -> _T:
        """get(block=False)"""
    def get_with_key(self, block: bool = True, timeout: float | None = None) -> tuple[_K, _T]:
        """As get, but returns (key of the sub-queue, item)."""
    def get_many(
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> list[_T]:
        """A list of up to max_items items, in the order of get: waits for the first as get does, then takes what is
        there. max_items <= 0: [] at once. Errors as get.

        linger: seconds, counted from the first item, for which it waits for more before it returns fewer than
        max_items. The timeout and a shutdown end that wait too, and what was taken is returned. An exception, for
        instance of a signal handler, puts it all back at the heads of the sub-queues. block=False ignores linger.
        ValueError: linger is negative or NaN.
        """
    def peek(self) -> _T:
        """The item that get would return, without taking it or changing turns. Empty: there is none."""
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
        """Count one item as done. ValueError: called more often than items were put."""
    def join(self, timeout: float | None = None) -> bool:
        """Wait until every item ever put is done: True. False: they are not within `timeout` seconds."""
    async def ajoin(self) -> None:
        """join for coroutines."""
    def shutdown(self, immediate: bool = False) -> None:
        """Accept no more puts: put and add raise ShutDown, get drains the enabled sub-queues and then raises it.
        immediate=True removes the items of all sub-queues, disabled ones too; they count as done. Wakes all waiting
        calls.
        """
    @property
    def is_shutdown(self) -> bool:
        """True from the first shutdown() on."""
    def stats(self) -> MultiQueueStats:
        """MultiQueueStats: items, sub-queues, waiting getters and putters, and how many items were ever put and got."""

@final
class SubQueue(Generic[_K, _T]):
    """A sub-queue of a MultiQueue: where items are put. Made by MultiQueue.add and setdefault only.

    put, put_nowait, put_front, put_many and aput are safe from any thread. Puts to different sub-queues do not wait for
    each other, except for a moment if they find theirs empty, and in put_front. priority, weight, maxsize and enabled
    may be assigned at any time; for a detached handle only the value changes.
    Progress: as the MultiQueue's. Source: the sub-queues of the LinkedBlockingMultiQueue, each with its own put lock.
    """
    def __init__(self, *args: object, **options: object) -> None: ...  # raises: MultiQueue.add() makes them
    @property
    def key(self) -> _K:
        """The key it was added under."""
    @property
    def attached(self) -> bool:
        """False after it was removed from its MultiQueue."""
    @property
    def priority(self) -> int:
        """Smaller goes first. Assigning another one moves the sub-queue to the end of that priority's ring."""
    @priority.setter
    def priority(self, value: int, /) -> None: ...
    @property
    def weight(self) -> int:
        """Items per turn, for selection="weighted". A new weight applies from its next turn on."""
    @weight.setter
    def weight(self, value: int, /) -> None: ...
    @property
    def maxsize(self) -> int:
        """The capacity: how many items fit, or with a sizer the sum of their sizes. 0 or less: no limit. Assigning
        it wakes all putters that wait; those whose items do not fit wait again. Lowering it removes no items.
        """
    @maxsize.setter
    def maxsize(self, value: int, /) -> None: ...
    @property
    def enabled(self) -> bool:
        """False: the sub-queue accepts items up to maxsize and hides them from getters."""
    @enabled.setter
    def enabled(self, value: bool, /) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    def put(self, item: _T, block: bool = True, timeout: float | None = None) -> None:
        """Append an item, waiting for a free slot if the sub-queue is full.

        timeout: seconds for the whole call; None waits for ever. block=False does not wait and ignores timeout.
        Full: no free slot in time. ShutDown: the queue was shut down or this sub-queue removed; also while waiting.
        ValueError: timeout is negative or NaN, or the item's size is negative or larger than maxsize. An exception of
        the sizer passes through. Nothing is put when it raises.
        """
    def put_nowait(self, item: _T) -> None:
        """put(item, block=False)"""
    def put_front(self, item: _T, block: bool = True, timeout: float | None = None) -> None:
        """Put an item at the head of this sub-queue: it is the next one got from it. Waits and raises as put does."""
    def put_many(self, items: Iterable[_T], block: bool = True, timeout: float | None = None) -> int:
        """Append all items of an iterable in order and return how many there were.

        Lists and tuples (for an IndexMultiQueue: int64 buffers and Arrow arrays) become visible to getters at once, as
        far as capacity allows. Of another iterable at most one item is consumed that is not put. timeout is for the
        whole call. If it raises Full, ShutDown or KeyboardInterrupt, or ValueError, TypeError or OverflowError for an
        item, the exception's `count` is the number of items that were put; they stay. An exception of the iterable or
        of the sizer passes through; the items before it are put.
        """
    async def aput(self, item: _T) -> None:
        """put for coroutines of asyncio and trio. Cancelling it before it returns puts nothing."""
    def qsize(self) -> int:
        """The number of items at one instant, whether the sub-queue is enabled or not."""
    @property
    def size(self) -> int:
        """The sum of the sizes of its items, at one instant; qsize() without a sizer."""
    def remaining(self) -> int | None:
        """How many items, or with a sizer what sum of sizes, fit at this moment; >= 0. None: there is no limit."""
    def empty(self) -> bool:
        """Whether it has no item."""
    def full(self) -> bool:
        """Whether put would have to wait; with a sizer, for an item of a size > 0."""
    def __iter__(self) -> Iterator[_T]: ...
    def __contains__(self, item: object, /) -> bool: ...
    def discard(self, item: object) -> bool:
        """Remove the first item that is or equals `item`: True. No lock is held while comparing; safe while
        iterating.
        """
    def clear(self) -> int:
        """Remove all items at one instant and return how many there were. They count as done."""
