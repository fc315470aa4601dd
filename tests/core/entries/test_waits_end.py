"""No get waits while a new one would end: random scripts in one event loop, with nothing beside it.

Whoever may go on is woken by what happened, through subscriptions that outrank, filters, groups, credit, delays and the
end of the queue. After each step every subscription whose aget still waits is asked again, without a wait: it has to
find nothing. The timer is off: times pass where the script says so.
"""
import asyncio
import time
from queue import Empty
from random import Random

import pytest
from support.counts import count

from manytail import ClosedError, EntryQueue, LastValueQueue, PriorityEntryQueue, ShutDown, SortedEntryQueue, _timer

KINDS = {
    "fifo": EntryQueue,
    "priorities": lambda name, **options: PriorityEntryQueue(name, levels=3, **options),
    "sorted": lambda name, **options: SortedEntryQueue(name, key=lambda item: item % 7, **options),
    "last value": lambda name, **options: LastValueQueue(name, key=lambda item: item % 5, **options),
}
SELECTORS = [None, None, None, lambda entry: entry.item % 2 == 0, "n > 4"]
ORIGINS = [["a"], ["b"]]
STEPS = 60
SOON = 0.01             # seconds: a short delay or ttl
SAFE = 0.004            # seconds before its end in which no step begins


class Script:
    def __init__(self, random, kind):
        self.random, self.log = random, []
        self.queue = KINDS[kind]("q", groups=random.choice([None, None, "shared", "assigned"]))
        self.subscriptions, self.waits, self.entries = [], {}, []
        self.due = []           # (earliest, latest) time at which a delay or ttl ends, in order

    def put(self):
        item = self.random.randrange(10)
        times = self.random.choice([{}, {}, {}, {"delay": SOON}, {"ttl": SOON}, {"delay": 3600, "ttl": SOON}])
        group, origin = self.random.choice([None, "g", "h"]), self.random.choice([None, None, *ORIGINS])
        immediate = {"immediate": True} if self.random.random() < 0.2 and "delay" not in times else {}
        before = time.monotonic()
        try:
            self.queue.put(item, priority=self.random.choice([0, 4, 9]), group=group, origin=origin,
                           headers={"n": item}, **times, **immediate)
        except ShutDown:
            return
        if times:
            self.due.append((before + SOON, time.monotonic() + SOON))

    def subscribe(self):
        if len(self.subscriptions) < 5:
            self.subscriptions.append(self.queue.subscribe(
                prefetch=self.random.choice([0, 0, 1, 2]), priority=self.random.choice([0, 0, 1]),
                selector=self.random.choice(SELECTORS), origin=self.random.choice([None, None, *ORIGINS]),
                start=self.random.choice(["oldest", "oldest", "newest"]), browse=self.random.random() < 0.1,
            ))

    def get(self):
        idle = [each for each in self.subscriptions if each not in self.waits]
        if idle:
            subscription = self.random.choice(idle)
            self.waits[subscription] = asyncio.ensure_future(subscription.aget())

    def end_delivery(self):
        if self.entries:
            entry = self.entries.pop(self.random.randrange(len(self.entries)))
            getattr(entry, self.random.choice(["ack", "release", "release", "reject"]))()

    def change(self):
        if self.subscriptions:
            subscription = self.random.choice(self.subscriptions)
            match self.random.randrange(4):
                case 0:
                    subscription.suspend()
                case 1:
                    subscription.resume()
                case 2:
                    subscription.prefetch = self.random.randrange(3)
                case 3:
                    self.subscriptions.remove(subscription)
                    subscription.close()

    def cancel(self):
        if self.waits:
            self.random.choice(list(self.waits.values())).cancel()

    def purge(self):
        self.queue.purge()

    def shut_down(self):
        self.queue.shutdown(immediate=self.random.random() < 0.1)

    def pass_time(self):
        """Wait for the delays and ttls that end within SAFE, and let the queue act on them."""
        while self.is_due_by(time.monotonic() + SAFE):
            _, latest = self.due.pop(0)
            while time.monotonic() <= latest:
                time.sleep(SAFE / 10)
        self.queue.maintain()

    def is_due_by(self, moment):
        return bool(self.due) and self.due[0][0] <= moment

    async def settle(self):
        """Let everybody who was woken go on, and those whom they wake."""
        for _ in range(4 * len(self.waits) + 4):
            await asyncio.sleep(0)
        for subscription, wait in list(self.waits.items()):
            if wait.done():
                del self.waits[subscription]
                if not wait.cancelled() and not isinstance(wait.exception(), ShutDown | ClosedError):
                    self.entries.append(wait.result())

    def ask(self):
        """Fail if somebody waits in vain. False: nobody can say, a delay or ttl has ended since pass_time()."""
        for subscription in self.waits:
            try:
                found = repr(subscription.get(False))
            except Empty:
                continue
            except (ShutDown, ClosedError) as error:
                found = repr(error)
            if self.is_due_by(time.monotonic()):
                return False
            pytest.fail(f"{subscription!r} waits, though a new get finds {found}: {' '.join(self.log)}")
        return True

    async def run(self):
        steps = [self.put] * 6 + [self.get] * 6 + [self.end_delivery] * 4 + [self.subscribe] * 3 + [self.change] * 2
        steps += [self.cancel, self.purge]
        for number in range(STEPS):
            step = self.shut_down if number == STEPS * 2 // 3 else self.random.choice(steps)
            self.log.append(step.__name__)
            step()
            await self.settle()
            self.pass_time()
            await self.settle()
            if not self.ask():
                break
        for wait in self.waits.values():
            wait.cancel()
        await asyncio.gather(*self.waits.values(), return_exceptions=True)
        for subscription in self.subscriptions:
            subscription.close()


@pytest.mark.thread_unsafe(reason="the timer of the process is off")
@pytest.mark.parametrize("kind", KINDS)
def test_no_get_waits_while_a_new_one_would_end(kind, monkeypatch):
    monkeypatch.setattr(_timer.Timer, "arm", lambda *_: None)
    for seed in range(count(150, 2_000)):
        asyncio.run(Script(Random(seed), kind).run())
