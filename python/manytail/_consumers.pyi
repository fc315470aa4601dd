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
    """One consumer of several queues: blocks on all of them, takes entries from them in round robin, has one credit for
    all.

    prefetch: how many entries it may hold unacked, of all its queues; 0: no limit. priority: of all its subscriptions,
    bigger first. A context manager and an iterable. Collected unclosed, it closes itself with a ResourceWarning.
    ValueError: prefetch < 0. Source: the ConsumerTarget of Qpid's consumer-queue design.
    Progress: as the queues'.

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
        """A subscription of this consumer to one more queue. Options and errors as EntryQueue.subscribe, without
        prefetch and priority, which are the consumer's. ClosedError: the consumer is closed.
        """
    def get(self, block: bool = True, timeout: float | None = None) -> Entry[_T]:
        """Acquire the next entry of its queues in round robin, waiting for one if need be, also while it has no queue.

        timeout: seconds for the whole call; None waits for ever. block=False does not wait. Empty: nothing came in
        time. ShutDown: all its queues are shut down and drained. ClosedError: it is closed, or listens. ValueError:
        timeout is negative or NaN.
        """
    def get_many(
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> list[Entry[_T]]:
        """A list of up to max_items entries: waits for the first as get does, then takes what is there. max_items <= 0:
        [] at once. Errors as get. linger: as Subscription.get_many.
        """
    async def aget(self) -> Entry[_T]:
        """get for coroutines of asyncio and trio. Cancelling it loses no entry and no wake-up."""
    def __iter__(self) -> Iterator[Entry[_T]]: ...
    def __aiter__(self) -> AsyncIterator[Entry[_T]]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def listen(self, callback: Callable[[Entry[_T]], object], *, executor: _Executor) -> None:
        """Call callback(entry) for every entry, one call at a time, on the executor, which has submit(). The callback
        acks the entry. If it raises, sys.unraisablehook is called, and the entry is released unless its delivery has
        ended. get raises ClosedError from then on. It ends when all its queues are shut down and drained, or at
        close(). TypeError: callback is not callable, or executor has no submit(). ClosedError: it is closed, or listens
        already.
        """
    @property
    def unacked(self) -> int:
        """How many entries it holds, of all its queues."""
    def suspend(self) -> None:
        """Let get wait, whatever is there, until resume()."""
    def resume(self) -> None:
        """Undo suspend()."""
    def close(self) -> None:
        """Close all its subscriptions, which releases what they hold. Waiting and later gets raise ClosedError. Waits
        for a running call of listen(), except from inside it. Idempotent.
        """
