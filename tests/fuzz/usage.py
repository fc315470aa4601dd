"""Random calls of a queue from several threads, with signals, cancellations, forks, collections and hostile items.

Producer threads put numbered items. Consumer threads take them until the queue is shut down. Coroutines put and take,
and are cancelled. Meanwhile the main thread makes the same calls under a timer whose handler returns, raises, puts,
takes, or waits until another thread has got an item. What went in is what came out and what is left, each item once;
the items of a producer come in its order; nobody hangs. The structures are in queues.py.
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
from types import CodeType
from typing import Any

from support.forks import status_of_child
from support.threads import DEADLINE, Hang, Threads

from manytail import Lagged
from manytail.errors import Empty, Full, ShutDown

from .interrupts import Interrupt, Interrupted, inside

Call = Callable[[], Any]
Id = tuple[int, int]  # of an item: its producer, and its number there


class Hostile(Exception):
    """Raised by an item's methods and by functions of items."""


EXPECTED = (Empty, Full, ShutDown, Hostile, Lagged, Interrupt)


class Item:
    """hostile: what it does while it is compared, hashed or freed."""

    def __init__(self, number: Id, key: int = 0, hostile: Callable[[], object] | None = None) -> None:
        self.id, self.key, self.hostile = number, key, hostile

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
    """What one thread, or its signal handler, put and took."""

    def __init__(self, number: int) -> None:
        self.number, self.made = number, 0
        self.put: list[Id] = []
        self.perhaps_put: list[Id] = []  # by a call that does not say
        self.taken: list[Id] = []
        self.returned: list[Any] = []  # by the call in progress
        self.error: BaseException | None = None

    def attempt(self, call: Call) -> None:
        self.error = None
        try:
            self.make(call)
        except EXPECTED as error:
            self.error = error
            self.returned += getattr(error, "items", ())  # what a get_many had taken

    def make(self, call: Call) -> None:
        """No bytecode runs between the end of the call and the moment when its result is in the list."""
        self.returned.extend(map(operator.call, (call,)))


class Case:
    """A structure, and how it is used. A structure's `putting`, `putting_many` and `getting` give a C callable, so that
    no bytecode runs between the end of a call and its caller."""

    kind: str
    hooks: tuple[CodeType, ...] = ()  # the Python functions that the structure calls under a mutex
    actions = ("return", "raise", "put", "get", "wait")  # what a handler may do
    puts = 0.4  # how often the main thread puts
    tells = True  # whether an interrupted call has put nothing
    ordered = False  # a thread gets the items of a producer in their order
    coroutines = 0
    putting_many: Any = None

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.seed = seed
        self.producers, self.consumers = random.choice([1, 1, 2, 3]), random.choice([1, 1, 2])
        self.steps = random.choice([5, 20, 100])
        self.bound = random.choice([0, 0, 1, 2, 10])
        self.hostile = random.random() < 0.2
        self.acts = random.choice([["return"], ["raise"], ["wait"], self.actions])
        self.pace = random.choice([0.0, 0.0, 0.0005])  # of the producers
        self.delays = random.choice([1e-5, 2e-5, 2e-4, 2e-3])  # of signals, on average
        self.forks = random.random() < 0.05 and hasattr(os, "fork")
        self.switches = random.random() < 0.5  # threads switch as often as they can
        self.draw(random)
        hidden = ("random", "seed", "text")
        self.text = f"{self.kind} { ({name: value for name, value in vars(self).items() if name not in hidden}) }"

    def __str__(self) -> str:
        return self.text

    # --------------------------------------------------------------------------------------- what a structure says
    def draw(self, random: Random) -> None:
        """Its options."""

    def open(self) -> None:
        """Make it."""

    def putting(self, item: Item, random: Random, *wait: Any) -> Call:
        raise NotImplementedError

    def getting(self, side: Side, random: Random, *wait: Any) -> Call:
        raise NotImplementedError

    def settle(self, side: Side, taken: Any, random: Random) -> Id | None:
        """The id of what a call has given. None: it stays in the queue."""
        return taken.id  # type: ignore[no-any-return]

    def look(self) -> Any:
        return self.queue.qsize()  # type: ignore[attr-defined]

    def shut_down(self) -> None:
        self.queue.shutdown()  # type: ignore[attr-defined]

    def left(self) -> list[list[Id]]:
        """What each that gets everything still gets."""
        return [self.drain(self.queue.get)]  # type: ignore[attr-defined]

    def drain(self, get: Callable[..., Any], *wait: Any) -> list[Id]:
        drained = []
        while True:
            try:
                drained.append(self.settle(self.main, get(*wait or (False,)), Random(0)))
            except Lagged:
                continue
            except (Empty, ShutDown):
                return [one for one in drained if one is not None]

    def check(self, left: list[list[Id]]) -> None:
        put = Counter(one for side in self.sides for one in side.put)
        out = Counter(one for part in [*[side.taken for side in self.sides], *left] for one in part)
        most = put + Counter(one for side in self.sides for one in side.perhaps_put)
        assert not put - out, f"lost: {sorted(put - out)[:9]}"
        assert not out - most, f"doubled or never put: {sorted(out - most)[:9]}"
        for side in self.sides if self.ordered and not self.hostile else ():
            check_order(side.taken)

    def close(self) -> None:
        pass

    # --------------------------------------------------------------------------------------------------- one call
    def wait(self, random: Random, block: bool) -> tuple[bool, float | None]:
        """block and timeout of a call."""
        if block and random.random() < 0.7:
            return True, None
        return random.random() < 0.8, random.choice([0, 0.0005, 0.005])

    def item(self, side: Side, random: Random) -> Item:
        side.made += 1
        hostile = random.choice([self.look, self.fail, gc.collect]) if self.hostile else None
        return Item((side.number, side.made), random.randrange(3), hostile)

    def fail(self) -> None:
        raise Hostile

    def put(self, side: Side, random: Random, block: bool) -> None:
        many, wait = self.putting_many is not None and random.random() < 0.2, self.wait(random, block)
        items = [self.item(side, random) for _ in range(random.choice([0, 1, 3]) if many else 1)]
        side.attempt(self.putting_many(items, random, *wait) if many else self.putting(items[0], random, *wait))
        ids = [item.id for item in items]
        if side.returned:
            side.put += ids
        elif not self.tells or (isinstance(side.error, Hostile) and many):  # those before the one that was refused
            side.perhaps_put += ids
        else:
            side.put += ids[: getattr(side.error, "count", 0)]
        side.returned.clear()

    def take(self, side: Side, random: Random, block: bool) -> None:
        side.attempt(self.getting(side, random, *self.wait(random, block)))
        returned = side.returned.copy()
        side.returned.clear()
        for result in returned:
            self.keep(side, result, random)

    def keep(self, side: Side, result: Any, random: Random) -> None:
        for taken in result if isinstance(result, list) else [result]:
            if (number := self.settle(side, taken, random)) is not None:
                side.taken.append(number)
                self.got += 1

    # ---------------------------------------------------------------------------------------------------- threads
    def produce(self, side: Side) -> None:
        random = Random(f"{self.seed} {side.number}")
        for _ in range(self.steps):
            self.put(side, random, True)
            if self.pace:
                time.sleep(self.pace)

    def consume(self, side: Side) -> None:
        random = Random(f"{self.seed} {side.number}")
        while not isinstance(side.error, ShutDown):
            self.take(side, random, True)

    def in_loop(self, sides: list[Side]) -> None:
        async def main() -> None:
            await asyncio.gather(*[self.cooperate(side) for side in sides])

        asyncio.run(main())

    async def cooperate(self, side: Side) -> None:
        random = Random(f"{self.seed} {side.number}")
        for _ in range(self.steps):
            item = self.item(side, random) if random.random() < self.puts else None
            task = asyncio.ensure_future(self.agetting(side) if item is None else self.aputting(item))
            if random.random() < 0.5:
                await asyncio.wait([task], timeout=random.choice([0, 0.001]))
            else:
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            try:
                result = task.result()
            except (asyncio.CancelledError, *EXPECTED) as error:
                self.keep(side, [*getattr(error, "items", ())], random)
                continue
            if item is None:
                self.keep(side, result, random)
            else:
                side.put.append(item.id)

    def agetting(self, side: Side) -> Any:
        return self.queue.aget()  # type: ignore[attr-defined]

    def aputting(self, item: Item) -> Any:
        return self.queue.aput(item)  # type: ignore[attr-defined]

    def meddle(self) -> None:
        """What the main thread does: calls under a timer."""
        random = self.random
        with Interrupted(inside(Side.make.__code__, self.hooks)) as interrupted:
            for _ in range(self.steps):
                action = random.choice([one for one in self.acts if one in self.actions] or ["return"])
                interrupted.after([random.expovariate(1 / self.delays)], partial(self.handle, action))
                (self.put if random.random() < self.puts else self.take)(self.main, random, False)
                interrupted.cancel()
                if self.forks and random.random() < 0.05:
                    self.fork()

    def handle(self, action: str) -> None:
        if action == "raise":
            raise Interrupt
        if action == "put":
            self.put(self.nested, self.random, False)
        elif action == "get":
            self.take(self.nested, self.random, False)
        elif action == "wait" and not self.main.returned:  # an entry that this thread holds may be what others wait for
            before, end = self.got, time.monotonic() + DEADLINE / 2
            while self.got == before and any(one.is_alive() for one in self.producing):
                time.sleep(0.0001)
                if time.monotonic() > end:
                    raise Hang(f"nobody gets an item while a handler runs in a call: {self.look()}")

    def fork(self) -> None:
        def child() -> None:
            for _ in range(3):
                self.nested.attempt(self.putting(Item((0, 0)), Random(0), False))
                self.nested.attempt(self.getting(self.main, Random(0), False))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            status = status_of_child(child)
        assert status == 0, f"a forked child ended with status {status}"

    def run(self) -> None:
        before = sys.getswitchinterval()
        if self.switches:
            sys.setswitchinterval(1e-6)
        try:
            self.run_threads()
        finally:
            sys.setswitchinterval(before)

    def run_threads(self) -> None:
        self.got = 0  # results of all threads, about: only that it grows counts
        self.sides = [Side(number) for number in range(2 + self.producers + self.consumers + self.coroutines)]
        self.main, self.nested, *rest = self.sides
        producers, rest = rest[: self.producers], rest[self.producers :]
        self.consuming, in_loop = rest[: self.consumers], rest[self.consumers :]
        self.open()
        with Threads() as threads:
            for side in self.consuming:
                threads.start(self.consume, side)
            self.producing = [threads.start(self.produce, side) for side in producers]
            if in_loop:
                self.producing.append(threads.start(self.in_loop, in_loop))
            try:
                self.meddle()
            finally:
                for one in self.producing:
                    try:
                        one.outcome()
                    except Hang as hang:
                        hang.add_note(f"{self.look()}")
                        raise
                self.shut_down()
            for one in self.producing:
                one.result()
        self.check(self.left())
        self.close()


def check_order(taken: list[Id]) -> None:
    last: dict[int, int] = {}
    for producer, number in taken:
        assert last.get(producer, 0) < number, f"producer {producer}: {number} after {last[producer]}"
        last[producer] = number
