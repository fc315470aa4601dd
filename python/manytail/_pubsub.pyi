"""Types of the PubSubQueue; what each member does is said in its docstring and in docs/pubsub.md."""

from collections.abc import AsyncIterator, Iterable, Iterator
from types import GenericAlias
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar, final

from typing_extensions import disjoint_base

from manytail._values import PubSubStats as PubSubStats

_T = TypeVar("_T")

@disjoint_base
class PubSubQueue(Generic[_T]):
    """Publish and subscribe: every message reaches every subscriber that is subscribed when it is published.

    All subscribers see the messages in the same order, each at its own pace. A message is freed when the last of its
    subscribers has received it. Sequence numbers start at 0 and have no gaps. Publishing, getting, subscribing and
    unsubscribing do not block each other.

    maxsize: how many messages the slowest subscriber may be behind; <= 0: no limit. slow: what publish does when that
    limit is reached. "block", the default: it waits.
        "raise": it raises Full at once, whatever `block` is.
        "drop_oldest": the slowest subscriber loses its oldest message. Its next get raises Lagged, with the number of
        messages that it missed. Others lose nothing.

    Cost: publish is O(1), plus O(1) per waiting subscriber; get is O(1), but O(subscribers) if its subscriber was the
    slowest. Without subscribers a message is not kept. subscribe is O(subscribers); close is O(1), plus the freeing of
    messages. It is lock-free without the GIL, with these exceptions. publish waits for a free slot. A publish that
    drops a subscriber's message waits for other publishers that do the same, and for threads that are getting from that
    subscriber. Threads that share a subscriber wait for each other, and so do concurrent calls of subscribe.
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

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Full if the slowest subscriber is still maxsize messages behind after that time, ShutDown if the queue is
        shut down (also during the wait), and ValueError if timeout is negative or NaN. If it raises, nothing was
        published, except in one case: if there is no memory for the sequence number that it returns, it raises
        MemoryError after the message was published.
        """
    def publish_many(self, items: Iterable[_T], block: bool = True, timeout: float | None = None) -> int:
        """Publish all items of an iterable in order and return how many there were.

        Of a list or tuple, as many items as maxsize allows are published together, with consecutive sequence numbers.
        Any other iterable is read one item at a time. timeout applies to the whole call. If it raises Full, ShutDown or
        KeyboardInterrupt, the exception's `count` is the number of items that were published. If the iterable raises,
        the items before that point have been published.
        """
    async def apublish(self, item: _T) -> int:
        """The version of publish() for asyncio and trio coroutines. If it is cancelled before it returns, nothing was
        published.
        """
    def subscribe(self, *, start: Literal["next", "oldest"] | int = "next") -> Subscriber[_T]:
        """Create a subscriber. Close it, or use it in a `with` block. After a shutdown, it can still get the messages
        that are retained.

        start: where it begins: "next", the default, with the next message that is published; "oldest" with the oldest
        retained one; an int with the message of that sequence number. Raises ValueError if that message is neither
        retained nor the next one, or for another str, and TypeError for another type.
        """
    @property
    def subscribers(self) -> int:
        """The number of subscribers."""
    def qsize(self) -> int:
        """Return the number of messages that at least one subscriber has not received yet."""
    def shutdown(self, immediate: bool = False) -> None:
        """Accept no more messages: publish raises ShutDown. get returns what is left and then raises ShutDown.
        immediate=True drops the messages that are left. Wakes all waiting calls.
        """
    @property
    def is_shutdown(self) -> bool:
        """True once shutdown() has been called."""
    def stats(self) -> PubSubStats:
        """Return a PubSubStats: messages retained, published and dropped, subscribers, and the lag of the slowest
        one.
        """

@final
class Subscriber(Generic[_T]):
    """\
    Gets the messages of a PubSubQueue. Create it with PubSubQueue.subscribe, and close it or use it in a `with` block.

    If several threads share a Subscriber, each message goes to one of them. Iterating over it gets messages until get
    would raise ShutDown or ClosedError. If it is garbage-collected before being closed, it closes itself with a
    ResourceWarning. Its locks and algorithm are the same as in its queue (see there for the source).
    """
    def __init__(self, *args: object, **options: object) -> None: ...  # raises: PubSubQueue.subscribe() makes them
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...
    def __reduce__(self) -> NoReturn: ...
    def get(self, block: bool = True, timeout: float | None = None) -> _T:
        """Return the next message. Waits for one if there is none.

        timeout: seconds for the whole call; None waits without limit. block=False does not wait and ignores timeout.
        Raises Empty if no message comes in time, ShutDown if the queue is shut down and no message is left, ClosedError
        if the subscriber is closed, and ValueError if timeout is negative or NaN. Raises Lagged once after messages
        were dropped; the next call returns a message.
        """
    def get_many(
        self, max_items: int, block: bool = True, timeout: float | None = None, *, linger: float = 0.0
    ) -> list[_T]:
        """Return a list of up to max_items messages in order. Waits for the first one, then takes all that are
        available. If max_items <= 0, it returns [] at once. Raises the same errors as get.

        linger: how many seconds it waits for more messages after the first one. It returns earlier if it has max_items
        messages, times out, is closed or has missed messages (the next get raises Lagged), or if the queue is shut
        down. If an exception interrupts it, for example one from a signal handler, the messages that it has taken are
        in a list, the exception's `items`. block=False ignores linger. Raises ValueError if linger is negative or
        NaN.
        """
    async def aget(self) -> _T:
        """The version of get() for asyncio and trio coroutines. If it is cancelled, no message is lost, and its wake-up
        goes to another getter.
        """
    def __iter__(self) -> Iterator[_T]: ...
    def __aiter__(self) -> AsyncIterator[_T]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    @property
    def position(self) -> int:
        """The sequence number of the message that the next get returns; after close, of the message that it would have
        returned.
        """
    @property
    def lag(self) -> int:
        """The number of messages that it can get now; 0 after close."""
    @property
    def closed(self) -> bool:
        """Whether close() was called."""
    def close(self) -> None:
        """Unsubscribe. Messages that it has not received are freed. Gets that are waiting, and all later gets, raise
        ClosedError. May be called again.
        """

@final
class MessageIterator(Generic[_T]):
    """The iterator of a Subscriber, for `for` and `async for`. Several threads may share one."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> _T: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> _T: ...
