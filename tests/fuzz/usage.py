"""Random calls of the queues from several threads, with signals, cancellations, forks, collections, hostile items.

Producer threads put numbered items, consumer threads take them until the queue is shut down, coroutines put and take
and are cancelled. Meanwhile the main thread calls the same methods under a timer whose handler returns, raises, puts,
takes, or waits until another thread has got an item. At the end, what went in is what came out and what is left, each
item once; the items of a producer come in its order; nobody hangs. `brokers.py` has the cases of the broker.
"""

from __future__ import annotations

import asyncio
import gc
import operator
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from support.forks import status_of_child
from support.threads import DEADLINE, Hang, Threads

from manytail import Consumer, EntryQueue, Lagged, MultiQueue, PriorityEntryQueue, PubSubQueue, SortedEntryQueue
from manytail import queue as stdlib
from manytail.errors import Empty, Full, ShutDown

from . import brokers
from .interrupts import Interrupt, Interrupted

Call = Callable[[], Any]
ACTIONS = ["return", "raise", "raise", "put", "get", "wait"]


class Hostile(Exception):
    """Raised by an item's methods and by functions of items."""


EXPECTED = (Empty, Full, ShutDown, Hostile, Lagged, Interrupt)


class Item:
    """The n-th item of a producer. `hostile`: what it does while it is compared, hashed or freed."""

    def __init__(self, producer: int, number: int, key: int, hostile: Callable[[], object] | None) -> None:
        self.id = (producer, number)
        self.key = key
        self.hostile = hostile

    def act(self, other: object = None) -> bool:
        if self.hostile is not None:
            self.hostile()
        return self is other

    __eq__ = act
    __hash__ = act  # type: ignore[assignment]
    __del__ = act

    def __lt__(self, other: Item) -> bool:
        return self.id < other.id


class Side:
    """What one thread, or one level of it, put and took."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.made = 0
        self.put: list[Any] = []
        self.unsure: list[Any] = []  # of a call that does not say
        self.taken: list[Any] = []
        self.raw: list[Any] = []  # what the call in progress has returned: complete, whenever a handler raises
        self.error: BaseException | None = None
        self.calls: tuple[Call, ...] = ()

    def attempt(self) -> None:
        """Make the call. No bytecode runs between its end and the moment when its result is in the list."""
        try:
            self.raw.extend(map(operator.call, self.calls))
        except EXPECTED as error:
            self.error = error


class Case:
    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.seed = seed
        self.kind = random.choice([*FACES, *FACES, "broker"])
        self.producers, self.consumers = random.choice([1, 1, 2, 3]), random.choice([1, 1, 2])
        self.steps = random.choice([5, 20, 100])
        self.bound = random.choice([0, 0, 1, 2, 10])
        self.hostile = random.random() < 0.2
        self.actions = random.choice([["return"], ["raise"], ["wait"], ACTIONS])
        self.pace = random.choice([0.0, 0.0, 0.0005])  # of the producers
        self.delay = random.choice([2e-5, 2e-4, 2e-3])
        self.coroutines = random.choice([0, 0, 3])
        self.forks = random.random() < 0.05 and hasattr(os, "fork")
        self.switches = random.random() < 0.5  # threads switch as often as they can
        self.text = f"{self.kind} {[f'{name}={value}' for name, value in vars(self).items() if name not in SILENT]}"

    def __repr__(self) -> str:
        return self.text

    def run(self) -> None:
        if self.kind == "broker":
            brokers.run(self.random, self.steps, self.delay)
            return
        before = sys.getswitchinterval()
        if self.switches:
            sys.setswitchinterval(1e-6)
        try:
            Run(self).run()
        finally:
            sys.setswitchinterval(before)


SILENT = ("random", "seed", "kind")


def draw(seed: int) -> Case:
    return Case(seed)


class Run:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.got = 0  # results of all threads, about: only that it grows counts
        self.producing: list[Any] = []  # threads
        self.sides = [Side(number) for number in range(case.producers + case.consumers + case.coroutines + 2)]
        self.face: Any = FACES[case.kind](case, self.sides)
        self.main, self.nested, *rest = self.sides
        self.producers, rest = rest[: case.producers], rest[case.producers :]
        self.consumers, self.coroutines = rest[: case.consumers], rest[case.consumers :][: case.coroutines]

    # ------------------------------------------------------------------------------------------------ calls
    def item(self, side: Side, random: Random) -> Item:
        side.made += 1
        hostile = random.choice([self.face.look, self.fail, gc.collect]) if self.case.hostile else None
        return Item(side.number, side.made, random.randrange(3), hostile)

    def fail(self) -> None:
        raise Hostile

    def put(self, side: Side, random: Random, block: bool) -> None:
        many = self.face.put_many is not None and random.random() < 0.2
        items = [self.item(side, random) for _ in range(random.choice([0, 1, 3]) if many else 1)]
        call = self.face.put_many(items, random, block) if many else self.face.put(items[0], random, block)
        self.make(side, call)
        if side.raw:  # it has returned, and perhaps a handler has raised since
            pass
        elif many and isinstance(side.error, Hostile):
            side.unsure += [item.id for item in items]  # those before the one that was refused
            items = []
        else:
            items = items[: getattr(side.error, "count", 0)]
        side.put += [item.id for item in items]
        side.raw.clear()

    def take(self, side: Side, random: Random, block: bool) -> None:
        self.make(side, self.face.get(side, random, block))
        self.keep(side, side.raw, random)

    def keep(self, side: Side, raw: list[Any], random: Random) -> None:
        taken = [one for result in raw for one in (result if isinstance(result, list) else [result])]
        raw.clear()
        for one in taken:
            if (item := self.face.settle(one, random)) is not None:
                side.taken.append(item.id)
                self.got += 1

    def make(self, side: Side, call: Call) -> None:
        side.calls, side.error = (call,), None
        try:
            side.attempt()
        except Interrupt as error:
            side.error = error
        side.calls = ()

    # ------------------------------------------------------------------------------------------------ threads
    def produce(self, side: Side) -> None:
        random = Random(f"{self.case.seed} {side.number}")
        for _ in range(self.case.steps):
            self.put(side, random, True)
            if self.case.pace:
                time.sleep(self.case.pace)

    def consume(self, side: Side) -> None:
        random = Random(f"{self.case.seed} {side.number}")
        while not isinstance(side.error, ShutDown) and not self.face.stopped(side):
            self.take(side, random, True)

    def in_loop(self) -> None:
        async def main() -> None:
            await asyncio.gather(*[self.cooperate(side) for side in self.coroutines])

        asyncio.run(main())

    async def cooperate(self, side: Side) -> None:
        random = Random(f"{self.case.seed} {side.number}")
        for _ in range(self.case.steps):
            putting = random.random() < 0.4
            item = self.item(side, random)
            call = self.face.aput(item) if putting else self.face.aget(side, random)
            task = asyncio.ensure_future(call)
            if random.random() < 0.5:
                await asyncio.wait([task], timeout=random.choice([0, 0.001]))
            else:
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                if putting:
                    side.put.append(item.id)
                else:
                    self.keep(side, [task.result()], random)
            elif not task.cancelled() and not isinstance(task.exception(), EXPECTED):
                task.result()

    def meddle(self) -> None:
        """What the main thread does: calls under a timer."""
        random = self.case.random
        interrupted = Interrupted(Side.attempt.__code__)
        with interrupted:
            for _ in range(self.case.steps):
                action = random.choice([one for one in self.case.actions if one in self.face.actions] or ["return"])
                interrupted.after(random.expovariate(1 / self.case.delay), partial(self.handle, action, random))
                if random.random() < self.face.puts:
                    self.put(self.main, random, False)
                else:
                    self.take(self.main, random, False)
                interrupted.cancel()
                if self.case.forks and random.random() < 0.05:
                    self.fork()

    def handle(self, action: str, random: Random) -> None:
        if action == "raise":
            raise Interrupt
        if action == "put":
            self.put(self.nested, random, False)
        elif action == "get":
            self.take(self.nested, random, False)
        elif action == "wait" and not self.main.raw:  # else this thread holds an entry, and others may wait for that
            before, end = self.got, time.monotonic() + DEADLINE / 2
            while self.got == before and any(one.is_alive() for one in self.producing):
                time.sleep(0.0001)
                if time.monotonic() > end:
                    raise Hang(f"nobody gets an item while a handler runs in a call: {self.face.look()}")

    def fork(self) -> None:
        def child() -> None:
            item = Item(0, 0, 0, None)
            for _ in range(3):
                self.make(self.nested, self.face.put(item, Random(0), False))
                self.make(self.nested, self.face.get(self.main, Random(0), False))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            status = status_of_child(child)
        assert status == 0, f"a forked child ended with status {status}"

    def run(self) -> None:
        with Threads() as threads:
            consuming = [threads.start(self.consume, side) for side in self.consumers]
            self.producing = [threads.start(self.produce, side) for side in self.producers]
            if self.coroutines:
                self.producing.append(threads.start(self.in_loop))
            try:
                self.meddle()
            finally:
                for one in self.producing:
                    try:
                        one.outcome()
                    except Hang as hang:
                        hang.add_note(f"{self.face.look()}")
                        raise
                self.face.end(len(consuming))
            for one in self.producing:
                one.result()
        left: dict[int, list[Any]] = self.face.left(self.sides)
        self.face.check(self.sides, left)
        self.face.close()


# --------------------------------------------------------------------------------------------------------------- faces
class Face:
    """How a kind of queue is called. An op is a C callable: no bytecode runs between its end and its caller."""

    actions = tuple(ACTIONS)
    put_many: Any = None
    puts = 0.4  # how often the main thread puts
    ordered = True

    def __init__(self, case: Case, sides: list[Side]) -> None:
        self.case = case

    def wait(self, random: Random, block: bool) -> tuple[bool, float | None]:
        """block and timeout of a call."""
        if block and random.random() < 0.7:
            return True, None
        return random.random() < 0.8, random.choice([0, 0.0005, 0.005])

    def settle(self, taken: Any, random: Random) -> Any:
        return taken

    def stopped(self, side: Side) -> bool:
        return False

    def look(self) -> Any:
        return self.queue.qsize()  # type: ignore[attr-defined]

    def end(self, consumers: int) -> None:
        self.queue.shutdown()  # type: ignore[attr-defined]

    def close(self) -> None:
        pass

    def left(self, sides: list[Side]) -> dict[int, list[Any]]:
        drained: list[Any] = []
        try:
            while True:
                drained.append(self.settle(self.queue.get(False), Random(0)).id)  # type: ignore[attr-defined]
        except (Empty, ShutDown):
            return {0: drained}

    def check(self, sides: list[Side], left: dict[int, list[Any]]) -> None:
        put = Counter(one for side in sides for one in side.put)
        out = Counter(one for part in [*[side.taken for side in sides], *left.values()] for one in part)
        most = put + Counter(one for side in sides for one in side.unsure)
        assert not put - out, f"lost: {sorted(put - out)[:9]}"
        assert not out - most, f"doubled or never put: {sorted(out - most)[:9]}"
        if self.ordered and not self.case.hostile:
            for side in sides:
                check_order(side.taken)


def check_order(taken: list[Any]) -> None:
    last: dict[int, int] = {}
    for producer, number in taken:
        assert last.get(producer, 0) < number, f"producer {producer}: {number} after {last[producer]}"
        last[producer] = number


class MultiQueues(Face):
    def __init__(self, case: Case, sides: list[Side]) -> None:
        random, self.case = case.random, case
        self.keys = random.choice([1, 1, 3])
        self.ordered = self.keys == 1
        calls = iter(range(10**9))

        def choose(ready: Any) -> Any:
            if next(calls) % 7 == 6:
                raise Hostile
            return ready[-1]

        selection = random.choice(["round_robin", "weighted", "oldest", choose if case.hostile else "oldest"])
        self.queue: Any = MultiQueue(selection=selection)
        self.subs = [self.queue.add(key, priority=random.randrange(2), maxsize=case.bound) for key in range(self.keys)]
        if selection is choose:  # others wait for the one that runs, so a handler in it must not wait for them
            self.actions = ("return", "raise")
        self.fronts = random.random() < 0.3
        self.many = random.random() < 0.5
        self.ordered = self.ordered and not self.fronts and not self.many

    def put(self, item: Item, random: Random, block: bool) -> Call:
        sub = self.subs[item.key % self.keys]
        method = sub.put_front if self.fronts and random.random() < 0.3 else sub.put
        return partial(method, item, *self.wait(random, block))

    def put_many(self, items: list[Item], random: Random, block: bool) -> Call:
        return partial(self.subs[0].put_many, items, *self.wait(random, block))

    def get(self, side: Side, random: Random, block: bool) -> Call:
        wait = self.wait(random, block)
        if self.many and random.random() < 0.4:
            return partial(self.queue.get_many, random.choice([1, 2, 5]), *wait, linger=random.choice([0, 0, 0.0005]))
        return partial(random.choice([self.queue.get, self.queue.get_with_key]), *wait)

    def settle(self, taken: Any, random: Random) -> Any:
        if random.random() < 0.05:
            self.change(random)
        return taken[1] if isinstance(taken, tuple) else taken

    def change(self, random: Random) -> None:
        sub = random.choice(self.subs)
        sub.priority = random.randrange(3)
        sub.weight = random.choice([1, 4])
        sub.enabled = False
        sub.enabled = True
        self.queue.stats()

    def aput(self, item: Item) -> Any:
        return self.subs[item.key % self.keys].aput(item)

    def aget(self, side: Side, random: Random) -> Any:
        return self.queue.aget_many(2) if self.many and random.random() < 0.3 else self.queue.aget()


class Queues(Face):
    """Those of manytail.queue."""

    def __init__(self, case: Case, sides: list[Side]) -> None:
        random, self.case = case.random, case
        kind = random.choice([stdlib.Queue, stdlib.Queue, stdlib.SimpleQueue, stdlib.LifoQueue, stdlib.PriorityQueue])
        self.simple = kind is stdlib.SimpleQueue
        self.queue: Any = kind() if self.simple else kind(case.bound)
        self.ordered = self.simple or kind is stdlib.Queue
        if not self.ordered:  # their _put and _get are Python, as in the standard library: exceptions interrupt them
            self.actions = ("return",)
        case.coroutines = 0
        case.hostile = False
        self.stops = 0

    def put(self, item: Item, random: Random, block: bool) -> Call:
        return partial(self.queue.put, item, *self.wait(random, block))

    def get(self, side: Side, random: Random, block: bool) -> Call:
        return partial(self.queue.get, *self.wait(random, block))

    def settle(self, taken: Any, random: Random) -> Any:
        if taken is None:
            self.stops += 1
        elif not self.simple and random.random() < 0.05:
            with self.queue.mutex:
                len(self.queue.queue)
        return taken

    def stopped(self, side: Side) -> bool:
        return self.simple and self.stops > 0

    def end(self, consumers: int) -> None:
        if not self.simple:
            self.queue.shutdown()
        for _ in range(consumers if self.simple else 0):
            self.queue.put(None)

    def left(self, sides: list[Side]) -> dict[int, list[Any]]:
        drained: list[Any] = []
        try:
            while True:
                drained.append(self.queue.get(False))
        except (Empty, ShutDown):
            return {0: [item.id for item in drained if item is not None]}


class Entries(Face):
    """EntryQueues with subscriptions, or with consumers of several of them. A taken entry is acknowledged, released or
    rejected."""

    puts = 0.5

    def __init__(self, case: Case, sides: list[Side]) -> None:
        random, self.case = case.random, case
        self.dead: Any = EntryQueue("dead")
        self.graveyard = self.dead.subscribe()
        options: dict[str, Any] = {"maxsize": case.bound, "dead_letter": self.dead}
        options["overflow"] = random.choice(["block", "block", "reject", "drop_oldest"])
        options["max_deliveries"] = random.choice([0, 2])
        self.fails = random.choice([0, 0, 0.1])

        def key(item: Item) -> Any:
            if item.id[1] % 5 == 4 and case.hostile:
                raise Hostile
            return item.id[1]

        makers = [EntryQueue, EntryQueue, PriorityEntryQueue, partial(SortedEntryQueue, key=key)]
        number = random.choice([1, 2])
        self.queues = [random.choice(makers)(f"q{one}", **options) for one in range(number)]
        self.queue: Any = self.queues[0]
        prefetch = random.choice([0, 1, 3])
        self.consumes = number > 1 or random.random() < 0.3
        shared = self.source(prefetch) if random.random() < 0.5 else None
        self.sources = {side.number: shared or self.source(prefetch) for side in sides}
        self.ordered = False  # released entries return, and priorities overtake

    def source(self, prefetch: int) -> Any:
        if not self.consumes:
            return self.queue.subscribe(prefetch=prefetch)
        consumer: Any = Consumer(prefetch=prefetch)
        for queue in self.queues:
            consumer.subscribe(queue)
        return consumer

    def put(self, item: Item, random: Random, block: bool) -> Call:
        options: dict[str, Any] = {"priority": random.randrange(10)}
        if random.random() < 0.1:
            options["delay"] = 0.001
        return partial(random.choice(self.queues).put, item, *self.wait(random, block), **options)

    def put_many(self, items: list[Item], random: Random, block: bool) -> Call:
        return partial(self.queue.put_many, items, *self.wait(random, block))

    def get(self, side: Side, random: Random, block: bool) -> Call:
        source = self.sources[side.number]
        if random.random() < 0.2:
            return partial(source.get_many, 2, *self.wait(random, block))
        return partial(source.get, *self.wait(random, block))

    def settle(self, taken: Any, random: Random) -> Any:
        item = taken.item
        if random.random() < self.fails:
            ended = taken.reject() if random.random() < 0.5 else taken.release()
            assert ended, f"{taken} was not ours"
            return None
        assert taken.ack(), f"{taken} was not ours"
        return item

    def aput(self, item: Item) -> Any:
        return self.queue.aput(item)

    def aget(self, side: Side, random: Random) -> Any:
        return self.sources[side.number].aget()

    def look(self) -> Any:
        return [queue.stats() for queue in self.queues]

    def end(self, consumers: int) -> None:
        for queue in self.queues:
            queue.shutdown()

    def left(self, sides: list[Side]) -> dict[int, list[Any]]:
        self.fails = 0
        drained: list[Any] = []
        for source in dict.fromkeys(self.sources.values()):
            while True:
                try:
                    drained.append(self.settle(source.get(timeout=0.05 if self.depth() else 0), Random(0)).id)
                except (Empty, ShutDown):
                    break
        assert not self.depth(), f"entries that nobody gets: {self.look()}"
        buried: list[Any] = []
        deadline = time.monotonic() + DEADLINE
        wanted = sum(queue.stats().dead_lettered for queue in self.queues)
        while len(buried) < wanted and time.monotonic() < deadline:
            try:
                buried.append(self.graveyard.get(timeout=0.05).item.id)
            except Empty:
                continue
        return {0: drained, 1: buried}

    def depth(self) -> int:
        return sum(queue.depth() for queue in self.queues)

    def close(self) -> None:
        for source in {*self.sources.values(), self.graveyard}:
            source.close()


class PubSub(Face):
    """Each subscriber gets everything. Where publishers wait for the slowest, the main thread only publishes."""

    def __init__(self, case: Case, sides: list[Side]) -> None:
        random, self.case = case.random, case
        self.slow = random.choice(["block", "drop_oldest"])
        self.queue: Any = PubSubQueue(maxsize=case.bound, slow=self.slow)
        blocks = case.bound > 0 and self.slow == "block"
        first = 2 + case.producers
        subscribed = sides[first : first + case.consumers] if blocks else [*sides[:2], *sides[first:]]
        if blocks:
            case.coroutines = 0
            self.puts = 1.0
            self.actions = ("return", "raise", "put", "wait")
        self.subscribers = {side.number: self.queue.subscribe() for side in subscribed}

    def put(self, item: Item, random: Random, block: bool) -> Call:
        return partial(self.queue.publish, item, *self.wait(random, block))

    def put_many(self, items: list[Item], random: Random, block: bool) -> Call:
        return partial(self.queue.publish_many, items, *self.wait(random, block))

    def get(self, side: Side, random: Random, block: bool) -> Call:
        subscriber = self.subscribers.get(side.number) or next(iter(self.subscribers.values()))
        if random.random() < 0.3:
            return partial(subscriber.get_many, 3, *self.wait(random, block))
        return partial(subscriber.get, *self.wait(random, block))

    def aput(self, item: Item) -> Any:
        return self.queue.apublish(item)

    def aget(self, side: Side, random: Random) -> Any:
        return self.subscribers[side.number].aget()

    def left(self, sides: list[Side]) -> dict[int, list[Any]]:
        drained: dict[int, list[Any]] = {}
        for number, subscriber in self.subscribers.items():
            drained[number] = []
            while True:
                try:
                    drained[number].append(subscriber.get(False).id)
                except Lagged:
                    continue
                except (Empty, ShutDown):
                    break
        return drained

    def check(self, sides: list[Side], left: dict[int, list[Any]]) -> None:
        put = Counter(one for side in sides for one in side.put)
        seen = [side.taken + left[side.number] for side in sides if side.number in left]
        for taken in seen:
            out = Counter(taken)
            assert not out - put, f"doubled or never published: {sorted(out - put)[:9]}"
            if self.slow == "block":
                assert out == put, f"lost: {sorted(put - out)[:9]}"
                assert taken == seen[0], "two subscribers see different orders"
            check_order(taken)


FACES: dict[str, Any] = {"multiqueue": MultiQueues, "queue": Queues, "entries": Entries, "pubsub": PubSub}
