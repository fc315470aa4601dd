"""Types of subscriptions to entry queues; what each member does is said in its docstring and in docs/."""

from collections.abc import AsyncIterator, Iterator
from types import GenericAlias
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar, final

from manytail._entries import Entry

_T = TypeVar("_T")

@final
class Subscription(Generic[_T]):
    """One consumer's view of a queue: its filters, its credit, and the entries that it holds. Usable from several
    threads. Closing it releases what it holds, each entry at its old place.

    Made by EntryQueue.subscribe. A context manager and an iterable: iteration ends where get would raise ShutDown or
    ClosedError. Collected unclosed, it closes itself with a ResourceWarning.
    Progress: as the queue's. Source: as the queue's.
    """
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    def __del__(self) -> None: ...
    def _may_be_forgotten(self) -> None: ...
    def get(self, block: bool = True, timeout: float | None = None) -> Entry[_T]:
        """Acquire the first AVAILABLE entry in the order that it wants and may take, waiting for one if need be.

        Without credit, or suspended, it waits too. timeout: seconds for the whole call; None waits for ever.
        block=False does not wait. Empty: nothing came in time. ShutDown: the queue was shut down and nothing is left.
        ClosedError: the subscription is closed. ValueError: timeout is negative or NaN.
        """
    def get_many(
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> list[Entry[_T]]:
        """A list of up to max_items entries, or as many as its credit allows: waits for the first as get does, then
        takes what is there. max_items <= 0: [] at once. Errors as get.

        linger: seconds, counted from the first entry, for which it waits for more before it returns fewer than
        max_items. The timeout, a shutdown, closing and the end of its credit end that wait too. An exception, for
        instance of a signal handler, first releases what it has. block=False ignores linger. ValueError: linger is
        negative or NaN.
        """
    async def aget(self) -> Entry[_T]:
        """get for coroutines of asyncio and trio. Cancelling it loses no entry and no wake-up."""
    def __iter__(self) -> Iterator[Entry[_T]]: ...
    def __aiter__(self) -> AsyncIterator[Entry[_T]]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def ack_up_to(self, entry: Entry[_T]) -> int:
        """Ack all entries that it got no later than that entry and holds. Returns how many; 0: it does not hold it."""
    prefetch: int
    @property
    def unacked(self) -> int:
        """How many entries it holds."""
    def suspend(self) -> None:
        """Let get wait, whatever is there, until resume()."""
    def resume(self) -> None:
        """Undo suspend()."""
    @property
    def interest(self) -> Literal["interested", "notified", "not_interested", "non_acquiring", "closed"]:
        """One of: "interested": open, not suspended, with credit. "not_interested": suspended or without credit.
        "notified": interested, and a notified waiter has not tried again. "non_acquiring": it browses. "closed".
        """
    @property
    def closed(self) -> bool:
        """True from close() on."""
    def close(self) -> None:
        """Release what it holds; waiting and later gets raise ClosedError. Idempotent."""

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
