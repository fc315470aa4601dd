"""The pairs of a PubSubQueue: who waits for a message, and who waits at the bound.

A second subscriber is there where it is needed for one event to wake exactly one waiter.
"""
import functools
import random
from typing import Any, ClassVar

from manytail import PubSubQueue

from .pairs import LINGER, MANY, Anew, Full, Larger, Pair, Wait, pairs


class Get(Pair):
    maxsize: ClassVar[int] = 0
    subscriber: Any = None

    def open(self) -> None:
        self.queue = PubSubQueue(maxsize=self.maxsize)
        self.subscriber = self.queue.subscribe()

    def side(self) -> Any:
        return self.subscriber

    def fill(self) -> None:
        self.queue.publish(1)

    def take(self) -> None:
        self.subscriber.get()

    def close(self) -> None:
        self.subscriber.close()


class GetManyLinger(Get):
    """Who waits for five messages, and who waits for one, share a subscriber: the one message goes to either."""

    has_async = False

    def waiting(self) -> Wait:
        lingering = functools.partial(self.subscriber.get_many, 5, linger=LINGER)
        return random.choice([lingering, lingering, self.subscriber.get])


class Publish(Full, Get):
    maxsize: ClassVar[int] = 1
    waits = "publish"

    def side(self) -> Any:
        return self.queue


class PublishClose(Publish):
    """The slowest subscriber closes. The next slowest has a message left, so exactly one slot becomes free."""

    def open(self) -> None:
        super().open()
        self.end()

    def wake(self) -> None:
        self.slow.close()

    def end(self) -> None:
        self.slow = self.queue.subscribe(start="oldest")
        self.take()

    def close(self) -> None:
        super().close()
        self.slow.close()


PUBSUB_PAIRS = pairs({
    "get/publish": (Get,),
    "get_many/publish_many": (Get, {
        **MANY, "has_async": False, "wake": lambda self: self.queue.publish_many([1]),
    }),
    "lingering get_many/publish": (GetManyLinger,),
    "get/close": (Anew, Get, {"wake": Get.close}),
    "get/pubsub shutdown": (Anew, Get),
    "publish/get": (Publish,),
    "publish_many/get_many": (Publish, {
        "waits": "publish_many", "arguments": ([1],), "has_async": False,
        "wake": lambda self: self.subscriber.get_many(5),
    }),
    "publish/close": (PublishClose,),
    "publish/maxsize": (Larger, Publish),
    "publish/shutdown": (Anew, Publish),
})
