"""Types of the consumer over several entry queues; what each member does is said in its docstring and in docs/."""

from collections.abc import AsyncIterator, Callable, Iterator
from types import GenericAlias
from typing import Any, Generic, Literal, NoReturn, Protocol, Self, TypedDict, TypeVar, Unpack, final

from manytail._entries import Entry, EntryQueue
from manytail._subscriptions import Subscription

_T = TypeVar("_T")

class _SubscribeOptions(TypedDict, Generic[_T], total=False):
    """Keywords of EntryQueue.subscribe that a Consumer does not have itself."""

    selector: Callable[[Entry[_T]], bool] | str | None
    browse: bool
    exclusive: bool
    start: Literal["oldest", "newest"]
    origin: object | None

class _Executor(Protocol):
    def submit(self, fn: Callable[[], object], /) -> object: ...

@final
class Consumer(Generic[_T]):
    """Gets entries from several queues, in round-robin order.

    prefetch: how many unacked entries it may hold in all its queues together; 0: no limit. priority: the priority of
    all its subscriptions; higher numbers come first. Close it, or use it in a `with` block; if it is garbage-collected
    before being closed, it closes itself with a ResourceWarning. Raises ValueError if prefetch < 0. Source: the
    ConsumerTarget of Qpid's consumer-queue design.
    Blocking: it uses the locks of its queues.

    >>> a, b = EntryQueue("a"), EntryQueue("b")
    >>> with Consumer() as both:
    ...     sub_a, sub_b = both.subscribe(a), both.subscribe(b)
    ...     a.put(1), a.put(2), b.put(3)
    ...     [both.get().item for _ in range(3)]
    (<Entry ...>, <Entry ...>, <Entry ...>)
    [1, 3, 2]
    """
    def __init__(self, *, prefetch: int = 0, priority: int = 0) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    def __del__(self) -> None: ...
    def subscribe(self, queue: EntryQueue[_T], **options: Unpack[_SubscribeOptions[_T]]) -> Subscription[_T]:
        """Subscribe to one more queue and return the subscription. Takes the options of EntryQueue.subscribe, except
        prefetch and priority, which belong to the consumer. Raises the same errors, and ClosedError if the consumer is
        closed.
        """
    def get(self, block: bool = True, timeout: float | None = None) -> Entry[_T]:
        """Return the next entry of its queues, in round robin. Waits for one if there is none, even if it has no queue
        yet.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait. Raises Empty if no
        entry comes in time, ShutDown if all its queues are shut down and empty, ClosedError if it is closed or listens,
        and ValueError if timeout is negative or NaN.
        """
    def get_many(
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> list[Entry[_T]]:
        """Return a list of up to max_items entries. Waits for the first one, then takes all that are available. If
        max_items <= 0, it returns [] at once. Raises the same errors as get; linger works as in
        Subscription.get_many.
        """
    async def aget(self) -> Entry[_T]:
        """The version of get() for asyncio and trio coroutines. If it is cancelled, no entry and no wake-up is lost."""
    def __iter__(self) -> Iterator[Entry[_T]]: ...
    def __aiter__(self) -> AsyncIterator[Entry[_T]]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def listen(self, callback: Callable[[Entry[_T]], object], *, executor: _Executor) -> None:
        """Call callback(entry) for every entry, one call at a time, on an executor. The callback must ack the entry. If
        it raises, sys.unraisablehook is called, and the entry is released unless its delivery has ended. From then on,
        get raises ClosedError. Listening ends when all queues are shut down and empty, or at close(). Raises TypeError
        if callback is not callable or executor has no submit(), and ClosedError if it is closed or already listens.
        """
    @property
    def unacked(self) -> int:
        """The number of entries that it holds from all its queues."""
    def suspend(self) -> None:
        """Make get wait, even if there are entries, until resume()."""
    def resume(self) -> None:
        """Undo suspend()."""
    def close(self) -> None:
        """Close all its subscriptions, which releases what they hold. Gets that are waiting, and all later gets, raise
        ClosedError. Waits for a running callback of listen() to finish, unless that callback calls close().
        May be called again.
        """
