"""The pairs of a PubSubQueue: who waits for a message, and who waits at the bound.

A second subscriber is there where it is needed for one event to wake exactly one waiter.
"""
import functools
import random
from collections.abc import Callable
from typing import Any

from manytail import PubSubQueue

from .pairs import LINGER, Pair, Wait


class GetPublish(Pair):
    def __init__(self) -> None:
        self.queue: Any = PubSubQueue()
        self.subscriber: Any = self.queue.subscribe()

    def waiting(self) -> Wait:
        return self.subscriber.get

    def waiting_async(self) -> Callable[[], Any]:
        return self.subscriber.aget

    def wake(self) -> None:
        self.queue.publish(1)

    def close(self) -> None:
        self.subscriber.close()


class GetManyPublishMany(GetPublish):
    has_async = False

    def waiting(self) -> Wait:
        return functools.partial(self.subscriber.get_many, 5)

    def wake(self) -> None:
        self.queue.publish_many([1])


class GetManyLinger(GetPublish):
    """Who waits for five messages, and who waits for one, share a subscriber: the one message goes to either."""

    def waiting(self) -> Wait:
        lingering = functools.partial(self.subscriber.get_many, 5, linger=LINGER)
        return random.choice([lingering, lingering, self.subscriber.get])


class GetClose(GetPublish):
    wakes = "all"

    def begin(self) -> None:
        self.subscriber.close()
        self.subscriber = self.queue.subscribe()

    def wake(self) -> None:
        self.subscriber.close()


class GetShutdown(GetPublish):
    wakes = "all"
    rounds = 0

    def begin(self) -> None:
        self.subscriber.close()
        GetPublish.__init__(self)
        self.rounds += 1

    def wake(self) -> None:
        self.queue.shutdown(immediate=self.rounds % 2 == 0)


# -------------------------------------------------------------------------------------------- who waits for a free slot
class PublishGet(Pair):
    """The queue of one slot is full whenever a round begins."""

    def __init__(self) -> None:
        self.queue = PubSubQueue(maxsize=1)
        self.subscriber: Any = self.queue.subscribe()
        self.queue.publish(1)

    def waiting(self) -> Wait:
        return functools.partial(self.queue.publish, 1)

    def waiting_async(self) -> Callable[[], Any]:
        return functools.partial(self.queue.apublish, 1)

    def wake(self) -> None:
        self.subscriber.get()

    def close(self) -> None:
        self.subscriber.close()


class PublishManyGetMany(PublishGet):
    has_async = False

    def waiting(self) -> Wait:
        return functools.partial(self.queue.publish_many, [1])

    def wake(self) -> None:
        self.subscriber.get_many(5)


class PublishClose(PublishGet):
    """The slowest subscriber closes. The next slowest has a message left, so exactly one slot becomes free."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = self.queue.subscribe(start="oldest")
        self.subscriber.get()

    def wake(self) -> None:
        self.slow.close()

    def end(self) -> None:
        self.slow = self.queue.subscribe(start="oldest")
        self.subscriber.get()

    def close(self) -> None:
        super().close()
        self.slow.close()


class PublishMaxsize(PublishGet):
    def wake(self) -> None:
        self.queue.maxsize = 2

    def end(self) -> None:
        self.queue.maxsize = 1
        self.subscriber.get()


class PublishShutdown(PublishGet):
    wakes = "all"

    def begin(self) -> None:
        self.subscriber.close()
        PublishGet.__init__(self)

    def wake(self) -> None:
        self.queue.shutdown()


PUBSUB_PAIRS = {
    "get/publish": GetPublish,
    "get_many/publish_many": GetManyPublishMany,
    "lingering get_many/publish": GetManyLinger,
    "get/close": GetClose,
    "get/pubsub shutdown": GetShutdown,
    "publish/get": PublishGet,
    "publish_many/get_many": PublishManyGetMany,
    "publish/close": PublishClose,
    "publish/maxsize": PublishMaxsize,
    "publish/shutdown": PublishShutdown,
}
