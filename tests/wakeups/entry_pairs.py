"""The pairs of an EntryQueue and a Consumer: who waits for an entry, who waits for a free slot.

Where the number of woken waiters stays the same, the waiters use two subscriptions: a wake-up that one subscription has
no use for must reach the other. The pair keeps what a waiter got. It acks it at the end of the round, or uses it for
the next wake-up.
"""
import random
import time
from typing import Any, ClassVar

from manytail import Consumer, EntryQueue, LastValueQueue

from .pairs import LINGERING, MANY, PUT_MANY, Anew, Full, Larger, Pair, pairs

SOON = 0.0002  # seconds


def soon() -> float:
    return random.random() * SOON


# -------------------------------------------------------------------------------------------- who waits for an entry
class Get(Pair):
    subscriptions = 2
    beside: tuple[str, ...] = ()  # what else is to be closed
    of_queue: ClassVar[dict[str, Any]] = {}
    of_subscription: ClassVar[dict[str, Any]] = {}

    def open(self) -> None:
        self.queue = EntryQueue("a", **self.of_queue)
        self.subs: list[Any] = [self.queue.subscribe(**self.of_subscription) for _ in range(self.subscriptions)]
        self.taken: list[Any] = []

    def side(self) -> Any:
        return random.choice(self.subs)

    def took(self, result: Any) -> None:
        self.taken += result if isinstance(result, list) else [result]

    def fill(self) -> None:
        self.queue.put(1)

    def end(self) -> None:
        assert self.taken.pop().ack()

    def close(self) -> None:
        for one in [*self.subs, *(getattr(self, name) for name in self.beside)]:
            one.close()

    def suspend(self) -> None:
        for sub in self.subs:
            sub.suspend()

    def resume(self) -> None:
        for sub in random.sample(self.subs, len(self.subs)):
            sub.resume()


class GetSelected(Get):
    """Two subscriptions with the same selector: each entry wakes both, and one gets it."""

    of_subscription: ClassVar[dict[str, Any]] = {"selector": "colour = 'red'"}

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


class Again(Get):
    """One entry is used again and again: its last holder releases it."""

    def open(self) -> None:
        super().open()
        self.fill()
        self.took(self.subs[0].get())

    def wake(self) -> None:
        assert self.taken.pop().release()

    def end(self) -> None:
        assert len(self.taken) == 1


class GetMaintain(Get):
    """The caller of maintain finds it due, before or after the timer does."""

    def wake(self) -> None:
        self.queue.put(1, delay=SOON)
        time.sleep(SOON)
        self.queue.maintain()


class GetClose(Get):
    """Another subscription holds the entry and is closed."""

    beside = ("holder",)

    def open(self) -> None:
        super().open()
        self.fill()
        self.hold()

    def hold(self) -> None:
        self.holder = self.queue.subscribe()
        self.entry = self.holder.get(block=False)

    def wake(self) -> None:
        self.holder.close()

    def end(self) -> None:
        self.suspend()              # a waiter that was left waiting gets nothing
        assert self.taken.pop().release()
        self.hold()
        self.resume()


class GetGroup(Get):
    """Another subscription holds an entry of the group until it acks it."""

    of_queue: ClassVar[dict[str, Any]] = {"groups": "shared"}
    beside = ("holder",)

    def open(self) -> None:
        super().open()
        self.holder = self.queue.subscribe()

    def begin(self) -> None:
        self.suspend()
        self.queue.put(1, group="g")
        self.entry = self.holder.get(block=False)
        self.queue.put(2, group="g")
        self.resume()

    def wake(self) -> None:
        assert self.entry.ack()


class GetResume(Get):
    def begin(self) -> None:
        self.suspend()
        self.fill()

    def wake(self) -> None:
        self.resume()


class GetAck(Again):
    """The only credit, for one queue or for several, is used up until the last entry is acked."""

    subscriptions = 1
    of_subscription: ClassVar[dict[str, Any]] = {"prefetch": 1}

    def begin(self) -> None:
        self.fill()

    def wake(self) -> None:
        assert self.taken.pop().ack()


class GetPrefetch(GetAck):
    def wake(self) -> None:
        self.subs[0].prefetch = 2

    def end(self) -> None:
        self.subs[0].prefetch = 1
        assert self.taken.pop().ack()


# ----------------------------------------------------------------------------------- who waits behind a higher priority
class Lower(Get):
    """The entry is available, but a subscription of higher priority may take it first, until it is suspended."""

    beside = ("higher",)

    def open(self) -> None:
        super().open()
        self.higher: Any = self.queue.subscribe(priority=1)

    def begin(self) -> None:
        self.higher.resume()
        self.queue.put(1)

    def wake(self) -> None:
        self.higher.suspend()


class LowerAfterClose(Lower):
    def begin(self) -> None:
        self.higher.close()
        self.higher = self.queue.subscribe(priority=1)
        self.queue.put(1)

    def wake(self) -> None:
        self.higher.close()


class LowerAfterCredit(Lower):
    """The subscription of higher priority takes the first entry and has no credit for the second."""

    def open(self) -> None:
        super().open()
        self.higher.prefetch = 1
        self.spends = self.higher

    def begin(self) -> None:
        self.queue.put_many([1, 2])

    def wake(self) -> None:
        self.first = self.spends.get(block=False)

    def end(self) -> None:
        super().end()
        assert self.first.ack()


class LowerAfterCreditElsewhere(LowerAfterCredit):
    """A Consumer of higher priority takes an entry of another queue, and has no credit for this one."""

    def open(self) -> None:
        Get.open(self)
        self.elsewhere = EntryQueue("b")
        self.higher = Consumer(prefetch=1, priority=1)
        self.higher.subscribe(self.queue)
        self.spends = self.higher.subscribe(self.elsewhere)

    def begin(self) -> None:
        self.queue.put(1)
        self.elsewhere.put(2)


# ------------------------------------------------------------------------------------------ who waits for a free slot
class Put(Full):
    of_queue: ClassVar[dict[str, Any]] = {}

    def open(self) -> None:
        self.queue = EntryQueue("a", maxsize=1, **self.of_queue)
        self.sub: Any = self.queue.subscribe()
        self.fill()

    def fill(self) -> None:
        self.queue.put(1)

    def take(self) -> None:
        assert self.sub.get(block=False).ack()

    def close(self) -> None:
        self.sub.close()


class PutReplaces(Put):
    """The entry with the same key is held. Once it is released the put replaces it, which needs no free slot."""

    wakes = "all"
    delay = 0

    def open(self) -> None:
        self.queue = LastValueQueue("a", key=int, maxsize=1)
        self.sub = self.queue.subscribe()
        self.fill()

    def begin(self) -> None:
        self.entry = self.sub.get(block=False)

    def wake(self) -> None:
        assert self.entry.release(delay=self.delay)


# ------------------------------------------------------------------------------------------- what wakes all waiters
class GetLastAfterShutdown(Anew, Get):
    """One waiter may get the last entry when it falls due. For the other nothing is left to wait for."""

    def wake(self) -> None:
        self.queue.put(1, delay=soon())
        self.queue.shutdown()


class GetPurgeAfterShutdown(Anew, Get):
    def begin(self) -> None:
        super().begin()
        self.queue.put(1, delay=3600)
        self.queue.shutdown()

    def wake(self) -> None:
        assert self.queue.purge() == 1


# ---------------------------------------------------------------------------------- who waits in several queues at once
class OfConsumer(Get):
    """Two consumers of the same two queues."""

    def open(self) -> None:
        self.queues = [EntryQueue("a"), EntryQueue("b")]
        self.subs = [Consumer(**self.of_subscription) for _ in range(self.subscriptions)]
        for consumer in self.subs:
            for queue in self.queues:
                consumer.subscribe(queue)
        self.taken = []

    def fill(self) -> None:
        random.choice(self.queues).put(1)


class ConsumerBeside(OfConsumer):
    """A consumer, and a subscription to the queue that gets the entries."""

    subscriptions = 1

    def open(self) -> None:
        super().open()
        self.subs.append(self.queues[0].subscribe())

    def wake(self) -> None:
        self.queues[0].put(1)


class ConsumerAckElsewhere(OfConsumer):
    """The waiter waits in one subscription. The entry that used up the credit came from another queue. Only the
    credit's own list of waiters leads from the ack to the waiter."""

    def open(self) -> None:
        self.queues = [EntryQueue("a"), EntryQueue("b")]
        self.consumer = Consumer(prefetch=1)
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


class ConsumerSubscribe(OfConsumer):
    """A queue that is added after the wait began."""

    subscriptions = 1

    def wake(self) -> None:
        new = EntryQueue("new")
        new.put(1)
        self.sub = self.subs[0].subscribe(new)

    def end(self) -> None:
        super().end()
        self.sub.close()


class ConsumerAnew(Anew, OfConsumer):
    """All its queues are shut down."""

    def wake(self) -> None:
        for queue in self.queues:
            queue.shutdown()


MANY_ENTRIES, FEW_BY_FEW = MANY | {"has_async": False}, LINGERING | {"has_async": False}
ENTRY_PAIRS = pairs({
    "entry get/put": (Get,),
    "entry get_many/put_many": (Get, {**MANY_ENTRIES, "wake": lambda self: self.queue.put_many([1])}),
    "entry lingering get_many/put_many": (Get, {**FEW_BY_FEW, "wake": lambda self: self.queue.put_many([1])}),
    "consumer lingering get_many/put": (OfConsumer, FEW_BY_FEW),
    "entry get/put selected": (GetSelected,),
    "entry get/put immediate": (GetPutImmediate,),
    "entry get/release": (Again,),
    # Only the shared timer notices that it is due.
    "entry get/release delayed": (Again, {"wake": lambda self: self.taken.pop().release(delay=soon())}),
    "entry get/put delayed": (Get, {"wake": lambda self: self.queue.put(1, delay=soon())}),
    "entry get/maintain": (GetMaintain,),
    "entry get/holder closes": (GetClose,),
    "entry get/group acked": (GetGroup,),
    "entry get/resume": (GetResume,),
    "entry get/ack": (GetAck,),
    "entry get/reject": (GetAck, {"wake": lambda self: self.taken.pop().reject()}),
    "entry get/ack_up_to": (GetAck, {"wake": lambda self: self.subs[0].ack_up_to(self.taken.pop()) == 1}),
    "entry get/prefetch": (GetPrefetch,),
    "entry lower get/higher suspends": (Lower,),
    "entry lower get/higher closes": (LowerAfterClose,),
    "entry lower get/higher out of credit": (LowerAfterCredit,),
    "entry lower get/higher consumer out of credit": (LowerAfterCreditElsewhere,),
    "entry put/ack": (Put,),
    "entry put_many/ack": (Put, PUT_MANY),
    "entry put/reject": (Put, {"wake": lambda self: self.sub.get(block=False).reject()}),
    "entry put/delivered too often": (Put, {
        "of_queue": {"max_deliveries": 1}, "wake": lambda self: self.sub.get(block=False).release(),
    }),
    "entry put/purge": (Put, {"wake": lambda self: self.queue.purge() == 1}),
    "entry put/maxsize": (Larger, Put),
    "entry put/release of the replaced": (PutReplaces,),
    "entry put/delayed release of the replaced": (PutReplaces, {"delay": 3600}),
    "entry get/shutdown": (Anew, Get),
    "entry get/last after shutdown": (GetLastAfterShutdown,),
    "entry get/purge after shutdown": (GetPurgeAfterShutdown,),
    "entry get/closed": (Anew, Get, {"wake": lambda self: self.close()}),
    "entry put/shutdown": (Anew, Put, {"wake": lambda self: self.queue.shutdown()}),
    "consumer get/put": (OfConsumer,),
    "consumer get/put, beside": (ConsumerBeside,),
    "consumer get/release": (Again, OfConsumer),
    "consumer get/ack": (GetAck, OfConsumer),
    "consumer get/ack elsewhere": (ConsumerAckElsewhere,),
    "consumer get/resume": (GetResume, OfConsumer),
    "consumer get/subscribe": (ConsumerSubscribe,),
    "consumer get/shutdown": (ConsumerAnew,),
    "consumer get/closed": (ConsumerAnew, {"wake": lambda self: self.close()}),
})
