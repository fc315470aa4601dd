"""Types of the entry queues; what each member does is said in its docstring and in docs/."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from types import GenericAlias
from typing import (
    Any,
    Generic,
    Literal,
    NoReturn,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    final,
    overload,
)

from typing_extensions import disjoint_base

from manytail._subscriptions import Subscription
from manytail._values import DeadReason as DeadReason
from manytail._values import EntryState as EntryState
from manytail._values import QueueStats as QueueStats

_T = TypeVar("_T")

_Overflow: TypeAlias = Literal["block", "reject", "drop_oldest"]
_Groups: TypeAlias = Literal["shared", "assigned"] | None

class _QueueOptions(TypedDict, Generic[_T], total=False):
    """Keywords of every queue."""

    maxsize: int
    overflow: _Overflow
    resume_at: float
    ttl: float | None
    max_deliveries: int
    dead_letter: EntryQueue[_T] | Callable[[Entry[_T], DeadReason], object] | None
    groups: _Groups

class _PutOptions(TypedDict, total=False):
    """Keywords of put, but immediate."""

    headers: Mapping[str, Any] | None
    priority: int
    ttl: float | None
    delay: float
    group: Hashable | None
    origin: object | None

@final
class Entry(Generic[_T]):
    """A handle to one entry and to its place in the strict order of its queue.

    get returns a handle for one delivery, which lasts from that get until ack, release or reject. The delivery also
    ends if the subscription closes, or if expiry, purge or overflow removes an unlocked entry. After that, ack,
    release, reject, lock and unlock return False and change nothing, even if another subscription holds the entry now.
    They always return False on handles from put() and browse(). Handles of the same entry are equal. If several
    calls try to end the same delivery, the winner is decided without a lock; the other locks are the queue's. Source:
    see EntryQueue.
    """
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def queue(self) -> EntryQueue[_T]:
        """The queue of the entry."""
    @property
    def item(self) -> _T:
        """What was put."""
    @property
    def headers(self) -> Mapping[str, Any]:
        """A read-only mapping; empty if the entry was put without headers."""
    @property
    def seq(self) -> int:
        """The number of its arrival, unique in its queue."""
    @property
    def state(self) -> EntryState:
        """The EntryState at this moment."""
    @property
    def priority(self) -> int:
        """The priority given to put."""
    @property
    def group(self) -> Hashable | None:
        """The message group, or None."""
    @property
    def deliveries(self) -> int:
        """How many times the entry has been delivered. Browsing does not count."""
    @property
    def redelivered(self) -> bool:
        """Whether the entry has ever been released."""
    @property
    def expires_at(self) -> float | None:
        """The value of time.monotonic() at which it expires, or None."""
    def ack(self) -> bool:
        """Finish the entry and remove it from the queue. Returns False if this delivery has already ended; nothing
        changes then.
        """
    def release(self, *, delay: float = 0.0) -> bool:
        """Return the entry to its old place in the order. It is delivered again, but not before `delay` seconds have
        passed. If deliveries >= max_deliveries, it goes to `dead_letter` instead. Returns False if this delivery has
        already ended. Raises ValueError if delay is negative or NaN.
        """
    def reject(self) -> bool:
        """Remove the entry from the queue as failed: it goes to `dead_letter`, if the queue has one. Returns False if
        this delivery has already ended.
        """
    def unlock(self) -> bool:
        """Allow expiry, purge and overflow to remove the entry. Returns False if this delivery has ended or is not
        locked.
        """
    def lock(self) -> bool:
        """Undo unlock(). Returns whether the entry is still yours; False if this delivery has ended."""

@disjoint_base
class EntryQueue(Generic[_T]):
    """\
    A strictly ordered queue with acknowledgement: an entry keeps its place until it is acked. Subscribe to get entries.

    maxsize: the maximum depth(), in entries; <= 0: no limit.
    overflow: what put does if the queue is full. "block", the default: it waits until depth() <= floor(resume_at *
    maxsize), or raises Full. "reject": it raises Full at once. "drop_oldest": it drops entries that no subscription
    holds, or that are unlocked, beginning with the oldest of the least urgent level; if there are none, the queue
    grows.
    ttl: seconds after which an entry expires; if the entry has a ttl of its own, the shorter one applies.
    max_deliveries=N: an entry that is released after its N-th delivery goes to `dead_letter`; 0: no limit.
    dead_letter: another EntryQueue, or a function of (entry, reason). The function runs in the thread of the call that
    removes the entry; for expired entries, it runs in a daemon thread, in order. If two queues are each other's
    dead-letter queue, an entry is dropped if an overflow would return it to a queue that it has already left.
    groups: "shared": a subscription owns a group while it holds unacked entries of it. "assigned": it owns the group
    from the first entry that it gets until it closes. Other subscriptions do not get entries of the group.
    Raises ValueError or TypeError for invalid arguments.

    Blocking: one short lock per queue, without the GIL. If several calls try to end the same delivery, the winner is
    decided without a lock. Source: the strictly ordered queue of Qpid.

    >>> q = EntryQueue("jobs")
    >>> q.put("first").seq, q.put("second").seq
    (0, 1)
    >>> with q.subscribe() as sub:
    ...     entry = sub.get()
    ...     entry.item, entry.release(), sub.get().item
    ('first', True, 'first')
    """
    def __init__(
        self,
        name: str = "",
        *,
        maxsize: int = 0,
        overflow: _Overflow = "block",
        resume_at: float = 0.8,
        ttl: float | None = None,
        max_deliveries: int = 0,
        dead_letter: EntryQueue[_T] | Callable[[Entry[_T], DeadReason], object] | None = None,
        groups: _Groups = None,
    ) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    @property
    def name(self) -> str:
        """The name that was given."""
    @property
    def overflow(self) -> str:
        """What put does if the queue is full: the option that was given."""
    maxsize: int
    @overload
    def put(
        self,
        item: _T,
        block: bool = True,
        timeout: float | None = None,
        *,
        headers: Mapping[str, Any] | None = None,
        priority: int = 4,
        ttl: float | None = None,
        delay: float = 0.0,
        group: Hashable | None = None,
        origin: object | None = None,
        immediate: Literal[False] = False,
    ) -> Entry[_T]:
        """Append an item and return a handle to its entry.

        headers: a mapping for selectors; it is copied. priority: for a PriorityEntryQueue; higher numbers are more
        urgent. ttl: seconds until it expires. delay: seconds until it is available. group: the message group, any
        hashable. origin: subscriptions with the same origin (compared with `is`) do not get it.
        immediate=True: gives the item to a subscription that is waiting for it at this moment; if there is none, puts
        nothing and returns None. The item does not overtake an earlier entry that this subscription would get first.
        block, timeout: how put waits if the queue is full and overflow="block"; timeout is in seconds, and None waits
        without limit. Raises Full if no slot becomes free in time; ShutDown after shutdown(); ValueError if ttl <= 0,
        if delay or timeout is negative or NaN, or if delay is combined with immediate; and TypeError for an option of
        the wrong type. If it raises, nothing was put.
        """
    @overload
    def put(
        self,
        item: _T,
        block: bool = True,
        timeout: float | None = None,
        *,
        headers: Mapping[str, Any] | None = None,
        priority: int = 4,
        ttl: float | None = None,
        group: Hashable | None = None,
        origin: object | None = None,
        immediate: Literal[True],
    ) -> Entry[_T] | None: ...
    def put_many(
        self, items: Iterable[_T], block: bool = True, timeout: float | None = None, **options: Unpack[_PutOptions]
    ) -> int:
        """Put each item of an iterable with the same options, and return how many there were. The options headers,
        priority, ttl, delay, group and origin work as in put. If it raises Full, ShutDown or KeyboardInterrupt, the
        exception's `count` is the number of items that were put. timeout applies to the whole call.
        """
    @overload
    async def aput(
        self, item: _T, *, immediate: Literal[False] = False, **options: Unpack[_PutOptions]
    ) -> Entry[_T]:
        """The version of put() for asyncio and trio coroutines. It has the options of put, except block and timeout. If
        it is cancelled before it returns, nothing was put.
        """
    @overload
    async def aput(self, item: _T, *, immediate: Literal[True], **options: Unpack[_PutOptions]) -> Entry[_T] | None: ...
    def subscribe(
        self,
        *,
        prefetch: int = 0,
        selector: Callable[[Entry[_T]], bool] | str | None = None,
        browse: bool = False,
        exclusive: bool = False,
        priority: int = 0,
        start: Literal["oldest", "newest"] = "oldest",
        origin: object | None = None,
    ) -> Subscription[_T]:
        """Create a subscription, through which you get entries.

        prefetch: how many unacked entries it may hold; 0: no limit. selector: which entries it gets. It is a function
        that gets an entry and returns a bool, or a string with a condition on the headers, in the SQL-92 subset of JMS.
        exclusive=True: no other subscription may be open. priority: an entry goes to the subscription with the highest
        priority that can take it. start="newest": only entries that are put later. origin: it does not get entries that
        were put with the same origin. browse=True: it sees each available entry once and takes none. Raises
        ExclusiveError if this or another open subscription is exclusive, ValueError for an invalid selector (with the
        position) or prefetch < 0, and TypeError for an option of the wrong type.
        """
    def browse(self) -> Iterator[Entry[_T]]:
        """Iterate over all entries in order: available ones, delayed ones, and those that subscriptions hold. Entries
        that are put or removed during the iteration may or may not be seen.
        """
    def qsize(self) -> int:
        """Return the number of available entries."""
    def depth(self) -> int:
        """Return the number of all entries: available, delayed, and held by subscriptions."""
    def purge(self) -> int:
        """Remove all entries that no subscription holds, or that are unlocked, without sending them to `dead_letter`.
        Returns their number.
        """
    def maintain(self) -> None:
        """Remove entries whose ttl has passed, and make entries whose delay has passed available. A timer thread does
        this anyway. Expired entries may reach `dead_letter` a moment later.
        """
    def shutdown(self, immediate: bool = False) -> None:
        """Accept no more items: put raises ShutDown. get returns what is left and then raises ShutDown. ack, release
        and reject still work. immediate=True: entries that no subscription holds, and those that are released later, go
        to `dead_letter` or are dropped. Wakes all waiting calls.
        """
    @property
    def is_shutdown(self) -> bool:
        """True once shutdown() has been called."""
    def interests(self) -> dict[str, int]:
        """Return a dict with the number of open subscriptions in each of the four states of Subscription.interest. It
        looks at each subscription, while it holds the queue's lock.
        """
    def stats(self) -> QueueStats:
        """Return a QueueStats: a consistent snapshot of the counters."""
