"""Types of subscriptions to entry queues; what each member does is said in its docstring and in docs/."""

from collections.abc import AsyncIterator, Iterator
from types import GenericAlias
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar, final

from manytail._entries import Entry

_T = TypeVar("_T")

@final
class Subscription(Generic[_T]):
    """Gets entries of a queue, and holds them until they are acked, released or rejected. Create it with
    EntryQueue.subscribe, and close it or use it in a `with` block: the entries that it holds then return to their old
    places.

    Several threads may share it. Iterating over it gets entries until get would raise ShutDown or ClosedError. If it is
    garbage-collected before being closed, it closes itself with a ResourceWarning. Its locks and algorithm are the same
    as in its queue (see there for the source).
    """
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    def __del__(self) -> None: ...
    def _may_be_forgotten(self) -> None: ...
    def get(self, block: bool = True, timeout: float | None = None) -> Entry[_T]:
        """Return the first available entry that matches the filters of this subscription. Waits if there is none, if
        prefetch is used up, or while the subscription is suspended.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait. Raises Empty if no
        entry comes in time, ShutDown if the queue is shut down and empty, ClosedError if the subscription is closed,
        and ValueError if timeout is negative or NaN.
        """
    def get_many(
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> list[Entry[_T]]:
        """Return a list of up to max_items entries, at most as many as prefetch allows. Waits for the first one, then
        takes all that are available. If max_items <= 0, it returns [] at once. Raises the same errors as get.

        linger: how many seconds it waits for more entries after the first one. It returns earlier if it has max_items
        entries, times out, is closed or has used up its prefetch, or if the queue is shut down. If an exception
        interrupts it, for example one from a signal handler, the entries are released. block=False ignores linger.
        Raises ValueError if linger is negative or NaN.
        """
    async def aget(self) -> Entry[_T]:
        """The version of get() for asyncio and trio coroutines. If it is cancelled, no entry and no wake-up is lost."""
    def __iter__(self) -> Iterator[Entry[_T]]: ...
    def __aiter__(self) -> AsyncIterator[Entry[_T]]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def ack_up_to(self, entry: Entry[_T]) -> int:
        """Ack that entry and all entries received before it that are still held. Returns their number; 0 if that entry
        is not held.
        """
    prefetch: int
    @property
    def unacked(self) -> int:
        """The number of entries that it holds."""
    def suspend(self) -> None:
        """Make get wait, even if there are entries, until resume()."""
    def resume(self) -> None:
        """Undo suspend()."""
    @property
    def interest(self) -> Literal["interested", "notified", "not_interested", "non_acquiring", "closed"]:
        """"interested": it would take another entry. "not_interested": it is suspended, or prefetch is used up.
        "notified": a waiting get was woken and has not run yet. "non_acquiring": it browses. "closed".
        """
    @property
    def closed(self) -> bool:
        """True once close() has been called."""
    def close(self) -> None:
        """Release what it holds. Gets that are waiting, and all later gets, raise ClosedError. May be called again."""

@final
class EntryIterator(Generic[_T]):
    """The iterator of a Subscription or a Consumer, for `for` and `async for`: calls get() or aget() until that raises
    ShutDown or ClosedError. Then it stays at its end, even if an entry is released later; another `for` makes a new
    one.
    """
    def __reduce__(self) -> NoReturn: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Entry[_T]: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Entry[_T]: ...

@final
class Browser(Generic[_T]):
    """The iterator of EntryQueue.browse(). Several threads may share one: each entry goes to one of them."""
    def __reduce__(self) -> NoReturn: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Entry[_T]: ...
