"""The pairs of an EntryQueue and a Consumer: who waits for an entry, who waits for a free slot.

Where the number of woken waiters stays the same, the waiters use two subscriptions: a wake-up that one subscription has
no use for must reach the other. The pair keeps what a waiter got. It acks it at the end of the round, or uses it for
the next wake-up.
"""
import functools
import random
import time
from collections.abc import Callable
from typing import Any, ClassVar

from manytail import Consumer, EntryQueue, LastValueQueue

from .pairs import LINGER, Pair, Wait

SOON = 0.0002  # seconds


# -------------------------------------------------------------------------------------------- who waits for an entry
class Get(Pair):
    subscriptions = 2
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.queue: Any = EntryQueue("a", **self.options)
        self.subs: list[Any] = [self.queue.subscribe() for _ in range(self.subscriptions)]
        self.taken: list[Any] = []

    def waiting(self) -> Wait:
        return random.choice(self.subs).get

    def waiting_async(self) -> Callable[[], Any]:
        return random.choice(self.subs).aget

    def took(self, result: Any) -> None:
        self.taken.append(result)

    def wake(self) -> None:
        self.queue.put(1)

    def end(self) -> None:
        assert self.taken.pop().ack()

    def close(self) -> None:
        for sub in self.subs:
            sub.close()


class GetManyPutMany(Get):
    has_async = False

    def waiting(self) -> Wait:
        return functools.partial(random.choice(self.subs).get_many, 5)

    def took(self, result: Any) -> None:
        self.taken.extend(result)

    def wake(self) -> None:
        self.queue.put_many([1])


class GetManyLinger(GetManyPutMany):
    def waiting(self) -> Wait:
        return functools.partial(random.choice(self.subs).get_many, 5, linger=LINGER)


class GetSelected(Get):
    """Two subscriptions with the same selector: each entry wakes both, and one gets it."""

    def __init__(self) -> None:
        self.queue = EntryQueue("a")
        self.subs = [self.queue.subscribe(selector="colour = 'red'") for _ in range(2)]
        self.taken = []

    def wake(self) -> None:
        self.queue.put(0, headers={"colour": "blue"})
        self.queue.put(1, headers={"colour": "red"})

    def end(self) -> None:
        super().end()
        self.queue.purge()


class GetPutImmediate(Get):
    """The entry goes straight to a waiter. One that gives up at that moment leaves it to the other. The put is repeated
    until a waiter is seen: the restless one may have gone, and the patient one may not have come."""

    wake_waits = True

    def wake(self) -> None:
        while self.queue.put(1, immediate=True) is None:
            time.sleep(SOON)


class GetRelease(Get):
    """One entry is used again and again: its last holder releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.queue.put(1)
        self.taken.append(self.subs[0].get())

    def wake(self) -> None:
        assert self.taken.pop().release()

    def end(self) -> None:
        assert len(self.taken) == 1


class GetReleaseDelayed(GetRelease):
    """Only the shared timer notices that it is due."""

    def wake(self) -> None:
        assert self.taken.pop().release(delay=random.random() * SOON)


class GetPutDelayed(Get):
    def wake(self) -> None:
        self.queue.put(1, delay=random.random() * SOON)


class GetMaintain(Get):
    """The caller of maintain finds it due, before or after the timer does."""

    def wake(self) -> None:
        self.queue.put(1, delay=SOON)
        time.sleep(SOON)
        self.queue.maintain()


class GetClose(Get):
    """Another subscription holds the entry and is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.queue.put(1)
        self.hold()

    def hold(self) -> None:
        self.holder = self.queue.subscribe()
        self.entry = self.holder.get(block=False)

    def wake(self) -> None:
        self.holder.close()

    def end(self) -> None:
        for sub in self.subs:
            sub.suspend()       # a waiter that was left waiting gets nothing
        assert self.taken.pop().release()
        self.hold()
        for sub in self.subs:
            sub.resume()

    def close(self) -> None:
        super().close()
        self.holder.close()


class GetGroup(Get):
    """Another subscription holds an entry of the group until it acks it."""

    options: ClassVar[dict[str, Any]] = {"groups": "shared"}

    def __init__(self) -> None:
        super().__init__()
        self.holder = self.queue.subscribe()

    def begin(self) -> None:
        for sub in self.subs:
            sub.suspend()
        self.queue.put(1, group="g")
        self.entry = self.holder.get(block=False)
        self.queue.put(2, group="g")
        for sub in self.subs:
            sub.resume()

    def wake(self) -> None:
        assert self.entry.ack()

    def close(self) -> None:
        super().close()
        self.holder.close()


class GetResume(Get):
    def begin(self) -> None:
        for sub in self.subs:
            sub.suspend()
        self.queue.put(1)

    def wake(self) -> None:
        for sub in random.sample(self.subs, 2):
            sub.resume()


class GetAck(Get):
    """The subscription's only credit is used up until the last entry is acked."""

    subscriptions = 1

    def __init__(self) -> None:
        super().__init__()
        self.subs[0].prefetch = 1
        self.queue.put(1)
        self.taken.append(self.subs[0].get())

    def begin(self) -> None:
        self.queue.put(1)

    def wake(self) -> None:
        assert self.taken.pop().ack()

    def end(self) -> None:
        assert len(self.taken) == 1


class GetReject(GetAck):
    def wake(self) -> None:
        assert self.taken.pop().reject()


class GetAckUpTo(GetAck):
    def wake(self) -> None:
        assert self.subs[0].ack_up_to(self.taken.pop()) == 1


class GetPrefetch(GetAck):
    def wake(self) -> None:
        self.subs[0].prefetch = 2

    def end(self) -> None:
        self.subs[0].prefetch = 1
        assert self.taken.pop().ack()


# ----------------------------------------------------------------------------------- who waits behind a higher priority
class LowerAfterSuspend(Get):
    """The entry is available, but a subscription of higher priority may take it first."""

    def __init__(self) -> None:
        super().__init__()
        self.higher = self.queue.subscribe(priority=1)

    def begin(self) -> None:
        self.higher.resume()
        self.queue.put(1)

    def wake(self) -> None:
        self.higher.suspend()

    def close(self) -> None:
        super().close()
        self.higher.close()


class LowerAfterClose(LowerAfterSuspend):
    def begin(self) -> None:
        self.higher.close()
        self.higher = self.queue.subscribe(priority=1)
        self.queue.put(1)

    def wake(self) -> None:
        self.higher.close()


class LowerAfterCredit(LowerAfterSuspend):
    """The subscription of higher priority takes the first entry and has no credit for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.higher.prefetch = 1

    def begin(self) -> None:
        self.queue.put_many([1, 2])

    def wake(self) -> None:
        self.first = self.higher.get(block=False)

    def end(self) -> None:
        super().end()
        assert self.first.ack()


class LowerAfterCreditElsewhere(LowerAfterSuspend):
    """A Consumer of higher priority takes an entry of another queue, and has no credit for this one."""

    def __init__(self) -> None:
        Get.__init__(self)
        self.elsewhere = EntryQueue("b")
        self.higher = Consumer(prefetch=1, priority=1)
        self.higher.subscribe(self.queue)
        self.other = self.higher.subscribe(self.elsewhere)

    def begin(self) -> None:
        self.queue.put(1)
        self.elsewhere.put(2)

    def wake(self) -> None:
        self.first = self.other.get(block=False)

    def end(self) -> None:
        super().end()
        assert self.first.ack()


# ------------------------------------------------------------------------------------------ who waits for a free slot
class Put(Pair):
    """The queue of one slot is full whenever a round begins."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.queue: Any = EntryQueue("a", maxsize=1, **self.options)
        self.sub: Any = self.queue.subscribe()
        self.queue.put(1)

    def waiting(self) -> Wait:
        return functools.partial(self.queue.put, 1)

    def waiting_async(self) -> Callable[[], Any]:
        return functools.partial(self.queue.aput, 1)

    def wake(self) -> None:
        assert self.sub.get(block=False).ack()

    def close(self) -> None:
        self.sub.close()


class PutManyAck(Put):
    has_async = False

    def waiting(self) -> Wait:
        return functools.partial(self.queue.put_many, [1])


class PutReject(Put):
    def wake(self) -> None:
        assert self.sub.get(block=False).reject()


class PutDeliveredTooOften(Put):
    options: ClassVar[dict[str, Any]] = {"max_deliveries": 1}

    def wake(self) -> None:
        assert self.sub.get(block=False).release()


class PutPurge(Put):
    def wake(self) -> None:
        assert self.queue.purge() == 1


class PutMaxsize(Put):
    def wake(self) -> None:
        self.queue.maxsize = 2

    def end(self) -> None:
        self.queue.maxsize = 1
        assert self.sub.get(block=False).ack()


class PutReplaces(Put):
    """The entry with the same key is held. Once it is released the put replaces it, which needs no free slot."""

    wakes = "all"

    def __init__(self) -> None:
        self.queue = LastValueQueue("a", key=int, maxsize=1)
        self.sub = self.queue.subscribe()
        self.queue.put(1)

    def begin(self) -> None:
        self.entry = self.sub.get(block=False)

    def wake(self) -> None:
        assert self.entry.release()


class PutReplacesHeld(PutReplaces):
    """The same when the release delays the entry."""

    def wake(self) -> None:
        assert self.entry.release(delay=3600)


# ------------------------------------------------------------------------------------------- what wakes all waiters
class GetShutdown(Get):
    wakes = "all"
    rounds = 0

    def begin(self) -> None:
        for sub in self.subs:
            sub.close()
        Get.__init__(self)
        self.rounds += 1

    def wake(self) -> None:
        self.queue.shutdown(immediate=self.rounds % 2 == 0)

    def end(self) -> None:
        """Nothing to do: begin gives up what was got."""


class GetLastAfterShutdown(GetShutdown):
    """One waiter may get the last entry when it falls due. For the other nothing is left to wait for."""

    def wake(self) -> None:
        self.queue.put(1, delay=random.random() * SOON)
        self.queue.shutdown()


class GetPurgeAfterShutdown(GetShutdown):
    def begin(self) -> None:
        super().begin()
        self.queue.put(1, delay=3600)
        self.queue.shutdown()

    def wake(self) -> None:
        assert self.queue.purge() == 1


class GetClosed(GetShutdown):
    def wake(self) -> None:
        for sub in self.subs:
            sub.close()


class PutShutdown(Put):
    wakes = "all"

    def begin(self) -> None:
        self.sub.close()
        Put.__init__(self)

    def wake(self) -> None:
        self.queue.shutdown()


# ---------------------------------------------------------------------------------- who waits in several queues at once
class ConsumerGet(Get):
    """Two consumers of the same two queues."""

    consumers = 2
    prefetch = 0

    def __init__(self) -> None:
        self.queues = [EntryQueue("a"), EntryQueue("b")]
        self.subs = [Consumer(prefetch=self.prefetch) for _ in range(self.consumers)]
        for consumer in self.subs:
            for queue in self.queues:
                consumer.subscribe(queue)
        self.taken = []

    def wake(self) -> None:
        random.choice(self.queues).put(1)


class ConsumerGetManyLinger(ConsumerGet):
    has_async = False

    def waiting(self) -> Wait:
        return functools.partial(random.choice(self.subs).get_many, 5, linger=LINGER)

    def took(self, result: Any) -> None:
        self.taken.extend(result)


class ConsumerBeside(ConsumerGet):
    """A consumer, and a subscription to the queue that gets the entries."""

    consumers = 1

    def __init__(self) -> None:
        super().__init__()
        self.subs.append(self.queues[0].subscribe())

    def wake(self) -> None:
        self.queues[0].put(1)


class ConsumerRelease(ConsumerGet):
    def __init__(self) -> None:
        super().__init__()
        random.choice(self.queues).put(1)
        self.taken.append(self.subs[0].get())

    def wake(self) -> None:
        assert self.taken.pop().release()

    def end(self) -> None:
        assert len(self.taken) == 1


class ConsumerAck(ConsumerRelease):
    """The consumer's one credit for all queues is used up until the entry it got from one of them is acked."""

    consumers = 1
    prefetch = 1

    def begin(self) -> None:
        random.choice(self.queues).put(1)

    def wake(self) -> None:
        assert self.taken.pop().ack()


class ConsumerAckElsewhere(ConsumerGet):
    """The waiter waits in one subscription. The entry that used up the credit came from another queue. Only the
    credit's own list of waiters leads from the ack to the waiter."""

    consumers = 1
    prefetch = 1

    def __init__(self) -> None:
        self.queues = [EntryQueue("a"), EntryQueue("b")]
        self.consumer = Consumer(prefetch=self.prefetch)
        self.subs = [self.consumer.subscribe(self.queues[0])]
        self.elsewhere = self.consumer.subscribe(self.queues[1])
        self.taken = []

    def begin(self) -> None:
        self.queues[1].put(1)
        self.entry = self.elsewhere.get(block=False)
        self.queues[0].put(1)

    def wake(self) -> None:
        assert self.entry.ack()

    def close(self) -> None:
        self.consumer.close()


class ConsumerResume(ConsumerGet):
    def begin(self) -> None:
        for consumer in self.subs:
            consumer.suspend()
        random.choice(self.queues).put(1)

    def wake(self) -> None:
        for consumer in self.subs:
            consumer.resume()


class ConsumerSubscribe(ConsumerGet):
    """A queue that is added after the wait began."""

    consumers = 1

    def wake(self) -> None:
        new = EntryQueue("new")
        new.put(1)
        self.sub = self.subs[0].subscribe(new)

    def end(self) -> None:
        super().end()
        self.sub.close()


class ConsumerShutdown(ConsumerGet):
    """All its queues are shut down."""

    wakes = "all"

    def begin(self) -> None:
        for consumer in self.subs:
            consumer.close()
        ConsumerGet.__init__(self)

    def wake(self) -> None:
        for queue in self.queues:
            queue.shutdown()

    def end(self) -> None:
        """Nothing to do: nothing was got."""


class ConsumerClosed(ConsumerShutdown):
    def wake(self) -> None:
        for consumer in self.subs:
            consumer.close()


ENTRY_PAIRS = {
    "entry get/put": Get,
    "entry get_many/put_many": GetManyPutMany,
    "entry lingering get_many/put_many": GetManyLinger,
    "consumer lingering get_many/put": ConsumerGetManyLinger,
    "entry get/put selected": GetSelected,
    "entry get/put immediate": GetPutImmediate,
    "entry get/release": GetRelease,
    "entry get/release delayed": GetReleaseDelayed,
    "entry get/put delayed": GetPutDelayed,
    "entry get/maintain": GetMaintain,
    "entry get/holder closes": GetClose,
    "entry get/group acked": GetGroup,
    "entry get/resume": GetResume,
    "entry get/ack": GetAck,
    "entry get/reject": GetReject,
    "entry get/ack_up_to": GetAckUpTo,
    "entry get/prefetch": GetPrefetch,
    "entry lower get/higher suspends": LowerAfterSuspend,
    "entry lower get/higher closes": LowerAfterClose,
    "entry lower get/higher out of credit": LowerAfterCredit,
    "entry lower get/higher consumer out of credit": LowerAfterCreditElsewhere,
    "entry put/ack": Put,
    "entry put_many/ack": PutManyAck,
    "entry put/reject": PutReject,
    "entry put/delivered too often": PutDeliveredTooOften,
    "entry put/purge": PutPurge,
    "entry put/maxsize": PutMaxsize,
    "entry put/release of the replaced": PutReplaces,
    "entry put/delayed release of the replaced": PutReplacesHeld,
    "entry get/shutdown": GetShutdown,
    "entry get/last after shutdown": GetLastAfterShutdown,
    "entry get/purge after shutdown": GetPurgeAfterShutdown,
    "entry get/closed": GetClosed,
    "entry put/shutdown": PutShutdown,
    "consumer get/put": ConsumerGet,
    "consumer get/put, beside": ConsumerBeside,
    "consumer get/release": ConsumerRelease,
    "consumer get/ack": ConsumerAck,
    "consumer get/ack elsewhere": ConsumerAckElsewhere,
    "consumer get/resume": ConsumerResume,
    "consumer get/subscribe": ConsumerSubscribe,
    "consumer get/shutdown": ConsumerShutdown,
    "consumer get/closed": ConsumerClosed,
}
