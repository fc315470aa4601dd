"""The structures that usage.py makes random calls of: MultiQueue, those of manytail.queue, EntryQueues with
subscriptions or consumers, PubSubQueue, a broker's queue."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from broker.audit import audit
from support.threads import wait_until

from manytail import Consumer, EntryQueue, MultiQueue, PriorityEntryQueue, PubSubQueue, SortedEntryQueue
from manytail import queue as stdlib
from manytail.broker import Broker
from manytail.errors import ShutDown

from .usage import Call, Case, Hostile, Id, Item, Side, check_order


class MultiQueues(Case):
    kind = "multiqueue"

    def draw(self, random: Random) -> None:
        self.coroutines = random.choice([0, 0, 3])
        self.keys = random.choice([1, 1, 3])
        self.selection = random.choice(["round_robin", "weighted", "oldest", "function" if self.hostile else "oldest"])
        if self.selection == "function":  # others wait for the call that runs it, so its handler must not for them
            self.actions = ("return", "raise")
        self.fronts = random.random() < 0.3
        self.many = random.random() < 0.5
        self.ordered = self.keys == 1 and not self.fronts and not self.many

    def open(self) -> None:
        calls = iter(range(10**9))

        def choose(ready: Any) -> Any:
            if next(calls) % 7 == 6:
                raise Hostile
            return ready[-1]

        self.queue: Any = MultiQueue(selection=choose if self.selection == "function" else self.selection)
        self.subs = [self.queue.add(key, priority=key % 2, maxsize=self.bound) for key in range(self.keys)]

    def putting(self, item: Item, random: Random, *wait: Any) -> Call:
        sub = self.subs[item.key % self.keys]
        return partial(sub.put_front if self.fronts and random.random() < 0.3 else sub.put, item, *wait)

    def putting_many(self, items: list[Item], random: Random, *wait: Any) -> Call:
        return partial(self.subs[0].put_many, items, *wait)

    def getting(self, side: Side, random: Random, *wait: Any) -> Call:
        if self.many and random.random() < 0.4:
            return partial(self.queue.get_many, random.choice([1, 2, 5]), *wait, linger=random.choice([0, 0, 0.0005]))
        return partial(random.choice([self.queue.get, self.queue.get_with_key]), *wait)

    def settle(self, side: Side, taken: Any, random: Random) -> Id | None:
        if random.random() < 0.05:
            sub = random.choice(self.subs)
            sub.priority, sub.weight = random.randrange(3), random.choice([1, 4])
            sub.enabled = False
            sub.maxsize = random.choice([0, 3]) if self.bound else 0
            sub.enabled = True
            assert len(shown := [item.id for item in sub]) == len(set(shown))
            with suppress(ShutDown):
                self.queue.remove(self.queue.add(object(), priority=random.randrange(3)).key)
            stats = self.queue.stats()
            assert stats.put >= stats.got + stats.qsize
        return (taken[1] if isinstance(taken, tuple) else taken).id  # type: ignore[no-any-return]

    def aputting(self, item: Item) -> Any:
        return self.subs[item.key % self.keys].aput(item)

    def agetting(self, side: Side) -> Any:
        return self.queue.aget_many(2) if self.many and side.made % 3 == 0 else self.queue.aget()


class LastFirst(stdlib.Queue[Any]):
    """It overrides hooks."""

    def _get(self) -> Any:
        return self.queue.pop()


class Queues(Case):
    """Those of manytail.queue."""

    kind = "queue"
    hooks = (LastFirst._get.__code__,)

    def draw(self, random: Random) -> None:
        self.name = random.choice(["Queue", "Queue", "SimpleQueue", "LastFirst"])
        self.ordered = self.name in ("Queue", "SimpleQueue")
        self.hostile = False

    def open(self) -> None:
        make = LastFirst if self.name == "LastFirst" else getattr(stdlib, self.name)
        self.queue: Any = make(*[self.bound] * (self.name != "SimpleQueue"))

    def putting(self, item: Item, random: Random, *wait: Any) -> Call:
        return partial(self.queue.put, item, *wait)

    def getting(self, side: Side, random: Random, *wait: Any) -> Call:
        return partial(self.queue.get, *wait)

    def settle(self, side: Side, taken: Any, random: Random) -> Id | None:
        if taken is None:
            side.error = ShutDown()
            return None
        if self.name == "LastFirst" and random.random() < 0.05:
            with self.queue.mutex:
                len(self.queue.queue)
        return taken.id  # type: ignore[no-any-return]

    def shut_down(self) -> None:
        if self.name != "SimpleQueue":
            self.queue.shutdown()
            return
        for _ in self.consuming:
            self.queue.put(None)


class Entries(Case):
    """A taken entry is acknowledged, released or rejected: released entries return, and priorities overtake. Others
    expire, or fall to whoever may drop them. At the end the counts of each queue add up."""

    kind = "entries"
    puts = 0.5

    def draw(self, random: Random) -> None:
        self.coroutines = random.choice([0, 0, 3])
        self.overflow = random.choice(["block", "block", "reject", "drop_oldest"])
        self.max_deliveries = random.choice([0, 2])
        self.fails = random.choice([0, 0, 0.1])
        self.makers = random.choices([EntryQueue, EntryQueue, PriorityEntryQueue, SortedEntryQueue], k=2)
        self.makers = self.makers[: random.choice([1, 2])]
        self.prefetch = random.choice([0, 1, 3])
        self.groups = random.choice([None, None, "shared", "assigned"])
        self.expires = random.choice([0, 0, 0.2])
        self.unlocks = random.choice([0, 0, 0.1])
        self.consumes = len(self.makers) > 1 or random.random() < 0.3
        self.shares = random.random() < 0.5
        if self.groups == "assigned" and not self.shares:
            self.bound = 0  # a group may belong to who gets nothing while producers wait

    def open(self) -> None:
        def key(item: Item) -> Any:
            if item.id[1] % 5 == 4 and self.hostile:
                raise Hostile
            return item.id[1]

        dead: Any = EntryQueue("dead")
        self.graveyard = dead.subscribe()
        options = {"maxsize": self.bound, "overflow": self.overflow, "max_deliveries": self.max_deliveries}
        options |= {"dead_letter": dead, "groups": self.groups}
        self.queues: list[Any] = [
            make(str(number), **options, **({"key": key} if make is SortedEntryQueue else {}))
            for number, make in enumerate(self.makers)
        ]
        self.queue = self.queues[0]
        shared = self.source() if self.shares else None
        self.sources = {side.number: shared or self.source() for side in self.sides}

    def source(self) -> Any:
        if not self.consumes:
            return self.queue.subscribe(prefetch=self.prefetch)
        consumer: Any = Consumer(prefetch=self.prefetch)
        for queue in self.queues:
            consumer.subscribe(queue)
        return consumer

    def putting(self, item: Item, random: Random, *wait: Any) -> Call:
        options = {"delay": 0.001} if random.random() < 0.1 else {}
        if random.random() < self.expires:
            options["ttl"] = random.choice([0.0001, 0.003])
        if self.groups and random.random() < 0.5:
            options["group"] = random.choice("gh")
        return partial(random.choice(self.queues).put, item, *wait, priority=random.randrange(10), **options)

    def putting_many(self, items: list[Item], random: Random, *wait: Any) -> Call:
        return partial(self.queue.put_many, items, *wait)

    def getting(self, side: Side, random: Random, *wait: Any) -> Call:
        source = self.sources[side.number]
        return partial(source.get_many, 2, *wait) if random.random() < 0.2 else partial(source.get, *wait)

    def settle(self, side: Side, taken: Any, random: Random) -> Id | None:
        item = taken.item  # which an ended entry has not
        fails = random.random() < self.fails
        if random.random() < 0.05:
            assert len(seen := [entry.seq for entry in self.queue.browse()]) == len(set(seen))
        if random.random() < self.unlocks and taken.unlock() and not taken.lock():
            return None  # it has been dropped
        end = random.choice([taken.reject, taken.release]) if fails else taken.ack
        assert end(), f"{taken} was not ours"
        return None if fails else item.id

    def agetting(self, side: Side) -> Any:
        return self.sources[side.number].aget()

    def look(self) -> Any:
        return [queue.stats() for queue in self.queues]

    def shut_down(self) -> None:
        for queue in self.queues:
            queue.shutdown()

    def left(self) -> list[list[Id]]:
        self.fails = 0
        drained = [self.drain(source.get, True, 0.05 if self.depth() else 0) for source in {*self.sources.values()}]
        assert not self.depth(), f"entries that nobody gets: {self.look()}"
        buried: list[Id] = []
        wanted = sum(queue.stats().dead_lettered for queue in self.queues)
        wait_until(lambda: buried.extend(self.drain(self.graveyard.get)) or len(buried) >= wanted, "the dead letters")
        for stats in self.look():
            assert stats.enqueued == stats.acked + stats.rejected + stats.expired + stats.dropped, stats
        return [*drained, buried]

    def depth(self) -> int:
        return sum(queue.depth() for queue in self.queues)

    def close(self) -> None:
        for source in {*self.sources.values(), self.graveyard}:
            source.close()


class PubSub(Case):
    """Each subscriber gets everything. Where publishers wait for the slowest, the main thread only publishes."""

    kind = "pubsub"

    def draw(self, random: Random) -> None:
        self.slow = random.choice(["block", "drop_oldest"])
        self.waits = self.bound > 0 and self.slow == "block"
        self.coroutines = 0 if self.waits else random.choice([0, 0, 3])
        if self.waits:
            self.puts = 1.0
            self.actions = ("return", "raise", "put", "wait")

    def open(self) -> None:
        self.queue: Any = PubSubQueue(maxsize=self.bound, slow=self.slow)
        subscribed = self.consuming if self.waits else [*self.sides[:2], *self.sides[2 + self.producers :]]
        self.subscribers: dict[int, Any] = {side.number: self.queue.subscribe() for side in subscribed}

    def putting(self, item: Item, random: Random, *wait: Any) -> Call:
        return partial(self.queue.publish, item, *wait)

    def putting_many(self, items: list[Item], random: Random, *wait: Any) -> Call:
        return partial(self.queue.publish_many, items, *wait)

    def getting(self, side: Side, random: Random, *wait: Any) -> Call:
        subscriber = self.subscribers.get(side.number) or next(iter(self.subscribers.values()))
        return partial(subscriber.get_many, 3, *wait) if random.random() < 0.3 else partial(subscriber.get, *wait)

    def aputting(self, item: Item) -> Any:
        return self.queue.apublish(item)

    def agetting(self, side: Side) -> Any:
        return self.subscribers[side.number].aget()

    def left(self) -> list[list[Id]]:
        return [self.drain(subscriber.get) for subscriber in self.subscribers.values()]

    def check(self, left: list[list[Id]]) -> None:
        put = Counter(one for side in self.sides for one in side.put)
        seen = [self.sides[number].taken + more for number, more in zip(self.subscribers, left, strict=True)]
        for taken in seen:
            out = Counter(taken)
            assert not out - put, f"doubled or never published: {sorted(out - put)[:9]}"
            assert self.slow != "block" or out == put, f"lost: {sorted(put - out)[:9]}"
            assert self.slow != "block" or taken == seen[0], "two subscribers see different orders"
            check_order(taken)


class Brokers(Case):
    """A queue of a broker: each side has a channel. At the end what is left agrees with what is known, and with the
    broker's own counts."""

    kind = "broker"
    tells = False

    def draw(self, random: Random) -> None:
        self.hostile = self.forks = False
        self.acts = ["raise"]  # no call waits
        self.consumers = random.choice([0, 1])

    def open(self) -> None:
        self.broker = Broker()
        self.channels = [self.broker.connect().channel() for _ in self.sides]
        self.channels[0].queue_declare("queue")
        self.perhaps_settled: set[Id] = set()
        self.over = False

    def putting(self, item: Item, random: Random, *wait: Any) -> Call:
        return partial(self.channels[item.id[0]].basic_publish, "", "queue", b"%d %d" % item.id)

    def getting(self, side: Side, random: Random, *wait: Any) -> Call:
        return partial(self.channels[side.number].basic_get, "queue")

    def settle(self, side: Side, taken: Any, random: Random) -> Id | None:
        """Acknowledge the message, give it back, or leave it: then it returns when the channel is closed."""
        method, _, body = taken
        if method is None:
            side.error = ShutDown() if self.over else None
            return None
        producer, number = map(int, body.split())
        channel, chance = self.channels[side.number], random.random()
        if chance < 0.5:
            side.attempt(partial(channel.basic_ack, method.delivery_tag))
            if side.returned:
                side.returned.clear()
                return producer, number
            self.perhaps_settled.add((producer, number))
        elif chance < 0.8:
            side.attempt(partial(random.choice([channel.basic_nack, channel.basic_reject]), method.delivery_tag))
        elif chance < 0.9:
            side.attempt(channel.close)
            if channel.is_open:
                channel.close()
            self.channels[side.number] = channel.connection.channel()
        side.returned.clear()
        return None

    def look(self) -> Any:
        return self.channels[0].queue_declare("queue", passive=True)

    def shut_down(self) -> None:
        self.over = True

    def left(self) -> list[list[Id]]:
        for channel in self.channels:
            channel.close()
        with self.broker._runtime:
            audit(self.broker._runtime.host, [])
        channel, drained = self.broker.connect().channel(), []
        while (body := channel.basic_get("queue", auto_ack=True)[2]) is not None:
            producer, number = map(int, body.split())
            drained.append((producer, number))
        return [drained, [*self.perhaps_settled.difference(drained, *[side.taken for side in self.sides])]]

    def close(self) -> None:
        self.broker.close()


# The broker's cases are the quickest, and need to be fewer.
STRUCTURES = [MultiQueues, Queues, Entries, PubSub] * 2 + [Brokers]


def draw(seed: int) -> Case:
    return Random(f"structure {seed}").choice(STRUCTURES)(seed)
