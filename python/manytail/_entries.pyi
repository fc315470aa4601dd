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
    """A handle of one entry: of its place in the strict order of its queue.

    get returns a handle of one delivery. ack, release, reject, lock and unlock act only for that delivery, by one
    atomic compare-and-swap. A delivery ends by the first ack, release or reject, if its subscription closes, and if
    expiry, purge or overflow takes the entry away. After that these calls return False and change nothing, even if
    another subscription holds the entry. On handles from put() and browse() they always return False. Handles of one
    entry are equal and hash alike. A handle can always be read, and keeps no other entry alive.
    Progress: lock-free which call ends a delivery; the rest as the queue's. Source: as the queue's.
    """
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def queue(self) -> EntryQueue[_T]:
        """The queue it was put into."""
    @property
    def item(self) -> _T:
        """What was put."""
    @property
    def headers(self) -> Mapping[str, Any]:
        """A read-only mapping; empty if the entry was put without headers."""
    @property
    def seq(self) -> int:
        """Arrival number, unique in its queue."""
    @property
    def state(self) -> EntryState:
        """The EntryState at this moment."""
    @property
    def priority(self) -> int:
        """As given to put."""
    @property
    def group(self) -> Hashable | None:
        """The message group, or None."""
    @property
    def deliveries(self) -> int:
        """How often the entry was delivered to an acquiring subscription."""
    @property
    def redelivered(self) -> bool:
        """Whether the entry was ever released."""
    @property
    def expires_at(self) -> float | None:
        """The value of time.monotonic() at which it expires, or None."""
    def ack(self) -> bool:
        """ACQUIRED -> DEQUEUED -> DELETED. False: this delivery has ended, nothing changed."""
    def release(self, *, delay: float = 0.0) -> bool:
        """ACQUIRED -> AVAILABLE (or HELD for `delay` seconds), at its old place in the order. If deliveries >=
        max_deliveries, it goes to the dead letter instead. False: this delivery has ended, nothing changed. ValueError:
        delay is negative or NaN.
        """
    def reject(self) -> bool:
        """ACQUIRED -> DEQUEUED -> DELETED; the entry goes to the dead letter if there is one. False: this delivery has
        ended, nothing changed.
        """
    def unlock(self) -> bool:
        """Let expiry, purge and overflow take the entry away. False: this delivery has ended, or it is not locked."""
    def lock(self) -> bool:
        """Undo unlock(): only the holder may end the delivery. True also if it was locked. False: it has ended."""

@disjoint_base
class EntryQueue(Generic[_T]):
    """Strict FIFO of entries, kept through acquire and release. Competing, browsing, selecting, exclusive, prioritised
    subscriptions; credit; time to live; delivery limit; dead letters; message groups; overflow policies.

    maxsize: limit of depth(), in entries; <= 0: no limit.
    overflow: what a put into a full queue does. "block": once a put finds depth() >= maxsize, every put waits (or
    raises Full) until depth() <= floor(resume_at * maxsize). "reject": Full at once. "drop_oldest": drops AVAILABLE,
    HELD or unlocked entries, the least urgent level first, in a level the oldest first; if there is none the queue
    grows.
    ttl: seconds from put until an entry expires; the shorter of the queue's and the entry's holds.
    max_deliveries=N: a release with deliveries >= N goes to the dead letter; 0: no limit.
    dead_letter: another EntryQueue, or a callable of (entry, reason). The callable runs in the thread whose call caused
    it; for expired entries, in a daemon thread that runs these calls in order. A queue that is its own dead letter, or
    a ring of such queues, drops an entry that overflow would bring back to a queue that it has left.
    groups: "shared": a subscription owns a group while it holds unacked entries of it. "assigned": from the first entry
    that it gets until it closes. Other subscriptions do not get entries of the group.
    ValueError, TypeError: an argument is not one of these.

    Progress: blocking (one short lock per queue without the GIL); lock-free which call ends a delivery.
    Source: the strictly ordered queue of Qpid.

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
        """As given."""
    @property
    def overflow(self) -> str:
        """As given."""
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
        """Append an item and return a handle of its entry.

        headers: a mapping for selectors, copied. priority: bigger is more urgent, for a PriorityEntryQueue.
        ttl, delay: seconds from now until it expires, or is available. group: the message group, any hashable.
        origin: subscriptions with the same origin (`is`) do not get it.
        immediate: hand it to a subscription that waits for it at this moment, else put nothing and return None. It
        overtakes none: while an earlier entry is left that the subscription would get first, that is None too.
        block, timeout: for a full queue with overflow="block"; timeout in seconds, None waits for ever.
        Full: no free slot (in time). ShutDown: the queue was shut down. ValueError: ttl <= 0, delay or timeout negative
        or NaN, delay with immediate. TypeError: an option of another type. Nothing is put when it raises.
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
        """Put each item of an iterable, with the same options (of put: headers, priority, ttl, delay, group, origin),
        and return how many there were. If it raises Full, ShutDown or KeyboardInterrupt, the exception's `count` is the
        number of items that were put; they stay. timeout is for the whole call. Other exceptions as put.
        """
    @overload
    async def aput(
        self, item: _T, *, immediate: Literal[False] = False, **options: Unpack[_PutOptions]
    ) -> Entry[_T]:
        """put for coroutines of asyncio and trio; options as put, but no block and timeout. Cancelling it before it
        returns puts nothing.
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
        """A new subscription: a cursor into this queue's order.

        prefetch: how many entries it may hold unacked; 0: no limit. selector: a callable of an entry, or a str in the
        SQL-92 subset of JMS over headers. exclusive: no other subscription may be open. priority: while a subscription
        with a bigger one is interested and wants an entry, others do not get it. start="newest": only entries that are
        put later. origin: entries put with the same origin are not delivered to it. browse: it gets each AVAILABLE
        entry at most once and acquires none. ExclusiveError: another one is, or this one would be, exclusive.
        ValueError: a bad selector, with the position; prefetch < 0. TypeError: an option of another type.
        """
    def browse(self) -> Iterator[Entry[_T]]:
        """Iterate over the AVAILABLE, HELD and ACQUIRED entries in order, each at most once. Weakly consistent: entries
        that come or go during the iteration may or may not be seen.
        """
    def qsize(self) -> int:
        """The number of AVAILABLE entries."""
    def depth(self) -> int:
        """The number of AVAILABLE, HELD and ACQUIRED entries."""
    def purge(self) -> int:
        """Remove AVAILABLE, HELD and unlocked entries, without dead letters, and return how many there were."""
    def maintain(self) -> None:
        """Expire, or make available, what is due. The timer thread does it anyway while entries with a ttl or delay
        exist. The dead letter of an expired entry may come a moment later.
        """
    def shutdown(self, immediate: bool = False) -> None:
        """Accept no more puts: put raises ShutDown. get works while something is left that it may take, then raises
        ShutDown. ack, release and reject work, and a released entry can be got. immediate: AVAILABLE and HELD entries,
        and all that are released later, go to the dead letter (DELETED) or are dropped. Wakes all waiting calls.
        """
    @property
    def is_shutdown(self) -> bool:
        """True from the first shutdown() on."""
    def interests(self) -> dict[str, int]:
        """How many of its open subscriptions are in each state of Subscription.interest: a dict with all four. Together
        they are stats().subscriptions. It looks at each of them, under the lock.
        """
    def stats(self) -> QueueStats:
        """QueueStats: a consistent snapshot of the counters."""
