"""Types of the PubSubQueue; what each member does is said in its docstring and in docs/pubsub.md."""

from collections.abc import AsyncIterator, Iterable, Iterator
from types import GenericAlias
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar, final

from typing_extensions import disjoint_base

from manytail._values import PubSubStats as PubSubStats

_T = TypeVar("_T")

@disjoint_base
class PubSubQueue(Generic[_T]):
    """Every message is processed once by every subscriber that is subscribed when it is published.

    Publishing, consuming, subscribing and unsubscribing do not block each other. A message is freed when every
    subscriber that expects it has passed it. Sequence numbers start at 0 and have no gaps; every subscriber sees this
    one order.

    maxsize: the largest lag, in messages, of the slowest subscriber; <= 0: no limit. slow: what a publish does that
    would exceed it:
        "block": it waits.
        "raise": it raises Full at once, whatever `block` is.
        "drop_oldest": it moves the slowest subscriber past the oldest message. The next get of that subscriber takes
        nothing and raises Lagged, with the number of messages that it missed. Others lose nothing.

    Cost: publish O(1), plus O(1) per waiting subscriber; get O(1), plus a look at all subscribers if it was the
    slowest. Without subscribers a message is not kept. subscribe is O(1), or O(subscribers) if it begins at an old
    message. close is O(1), plus what it frees.
    Progress: lock-free without the GIL, with these exceptions. A publish waits for a free slot. With "drop_oldest" and
    no free slot it waits for other such publishers, a shutdown, and takers of the subscriber that it moves. Threads
    that share a subscriber exclude each other, and so do threads that subscribe.
    Source: disclosure IPCOM000185635D, completed in docs/design/pubsub.md.

    >>> q = PubSubQueue()
    >>> with q.subscribe() as audit, q.subscribe() as mail:
    ...     q.publish("order 7"), q.publish("order 8")
    ...     audit.get(), mail.get_many(10), audit.lag
    (0, 1)
    ('order 7', ['order 7', 'order 8'], 1)
    """
    def __init__(self, *, maxsize: int = 0, slow: Literal["block", "raise", "drop_oldest"] = "block") -> None: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    maxsize: int
    def publish(self, item: _T, block: bool = True, timeout: float | None = None) -> int:
        """Publish one message and return its sequence number.

        timeout: seconds for the whole call; None waits for ever. block=False does not wait and ignores timeout.
        Full: no free slot in time, because the slowest subscriber lags by maxsize. ShutDown: the queue was shut down;
        also while waiting. ValueError: timeout is negative or NaN. Nothing is published when it raises, with one
        exception: if there is no memory for the number, MemoryError comes after the message is published.
        """
    def publish_many(self, items: Iterable[_T], block: bool = True, timeout: float | None = None) -> int:
        """Publish all items of an iterable in order and return how many there were.

        Lists and tuples are published as one run, as far as maxsize allows: their sequence numbers are consecutive, and
        subscribers see them at once. Of another iterable at most one item is consumed beyond those published. timeout
        is for the whole call. If it raises Full, ShutDown or KeyboardInterrupt, the exception's `count` is the number
        of items that were published. An exception of the iterable passes through; the items before it are published.
        """
    async def apublish(self, item: _T) -> int:
        """publish for coroutines of asyncio and trio. Cancelling it before it returns publishes nothing."""
    def subscribe(self, *, start: Literal["next", "oldest"] | int = "next") -> Subscriber[_T]:
        """A new subscriber. Close it, or use it in a `with` block. After a shutdown it can get what is retained.

        start: "next" begins with the next message to be published, "oldest" with the oldest retained one, an int with
        the message of that sequence number. ValueError: that message is neither retained nor the next one, or start is
        another str. TypeError: start is of another type.
        """
    @property
    def subscribers(self) -> int:
        """How many are subscribed."""
    def qsize(self) -> int:
        """The number of messages that a subscriber expects. Other threads may have changed it when this returns."""
    def shutdown(self, immediate: bool = False) -> None:
        """Accept no more messages: publish raises ShutDown, get drains the messages and then raises it. immediate=True
        drops all messages that were not taken. Wakes all waiting calls.
        """
    @property
    def is_shutdown(self) -> bool:
        """True from the first shutdown() on."""
    def stats(self) -> PubSubStats:
        """PubSubStats: messages retained, published and dropped, subscribers, and the lag of the slowest."""

@final
class Subscriber(Generic[_T]):
    """One reader of a PubSubQueue. Made by PubSubQueue.subscribe only.

    Threads that share a Subscriber share its messages: each goes to one of them. A context manager and an iterable.
    Collected unclosed, it closes itself with a ResourceWarning.
    Progress: as the queue's. Source: as the queue's.
    """
    def __init__(self, *args: object, **options: object) -> None: ...  # raises: PubSubQueue.subscribe() makes them
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    def get(self, block: bool = True, timeout: float | None = None) -> _T:
        """Take the next message, waiting for one if need be.

        timeout: seconds for the whole call; None waits for ever. block=False does not wait and ignores timeout.
        Empty: nothing came in time. ShutDown: shut down and drained. ClosedError: the subscriber was closed. Lagged:
        messages were dropped; raised once, the next call takes a message. ValueError: timeout is negative or NaN.
        """
    def get_many(
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> list[_T]:
        """A list of up to max_items messages in order: waits for the first as get does, then takes what is there.
        max_items <= 0: [] at once. Errors as get; nothing is taken then.

        linger: seconds, counted from the first message, for which it waits for more before it returns fewer than
        max_items. It takes no message before that wait has ended, so an exception, for instance of a signal handler,
        loses none. The timeout, a shutdown, and as many messages as maxsize allows end the wait too, and what is there
        is returned; closing ends it with ClosedError. block=False ignores linger. ValueError: linger is negative or
        NaN.
        """
    async def aget(self) -> _T:
        """get for coroutines of asyncio and trio. Cancelling it loses no message; its wake-up goes to another
        getter.
        """
    def __iter__(self) -> Iterator[_T]: ...
    def __aiter__(self) -> AsyncIterator[_T]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    @property
    def position(self) -> int:
        """The sequence number of the message that its next get returns, or after close would have returned."""
    @property
    def lag(self) -> int:
        """How many messages it can get: published for it, not taken and not dropped. 0 after close."""
    @property
    def closed(self) -> bool:
        """Whether close() was called."""
    def close(self) -> None:
        """Unsubscribe. Messages that it has not taken are freed; waiting and later gets raise ClosedError.
        Idempotent.
        """

@final
class MessageIterator(Generic[_T]):
    """The iterator of a Subscriber, for `for` and `async for`. Several threads may share one."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> _T: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> _T: ...
