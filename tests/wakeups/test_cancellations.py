"""No cancellation loses an item or a wake-up: each pair of calls that has coroutines, on asyncio, trio and anyio.

A round as in race.py, but both waiters are tasks of one event loop. The restless one is cancelled after some iterations
of the loop: before it waits, while it waits, between its wake-up and its next step, or after it. The wake-up comes from
the loop's own thread or from another one. If nobody was woken when the restless one has ended, the patient one must
be. A wake-up that the cancelled one keeps, or an item that it took, leaves the patient one waiting for ever.

MANYTAIL_CANCELLATIONS says how many there are of each pair and library; in asyncio's debug mode, where each costs ten
times as much, a third. Mutants of tests/mutants.toml show that the rounds notice a wake-up that is lost.
"""
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.counts import count
from support.event_loops import LOOPS
from support.threads import DEADLINE

from . import race
from .entry_pairs import ENTRY_PAIRS
from .pairs import PAIRS
from .pubsub_pairs import PUBSUB_PAIRS
from .race import OVER, WOKEN

CANCELLATIONS = count(30, 10_000, "MANYTAIL_CANCELLATIONS")
WITH_COROUTINES = {
    name: pair for name, pair in {**PAIRS, **PUBSUB_PAIRS, **ENTRY_PAIRS}.items() if pair.has_async
}
pytestmark = pytest.mark.thread_unsafe(reason="event loops")


class Rounds:
    """Rounds of one pair in one event loop. `waker` runs what is called from another thread."""

    def __init__(self, pair, library, waker):
        self.pair, self.loop, self.waker = pair, LOOPS[library], waker
        self.most = max(1, CANCELLATIONS // 3) if library == "debug mode" else CANCELLATIONS
        self.random = random.Random(7)
        self.patient = None  # the task that has waited since an earlier round, if there is one
        self.cancelled = 0

    async def attempt(self):
        try:
            result = await self.pair.waiting_async()()
        except OVER:
            return WOKEN
        except BaseException as error:
            if race.has_taken(error):
                return WOKEN
            raise
        self.pair.took(result)
        return WOKEN

    async def turns(self, most):
        for _ in range(self.random.randrange(most)):
            await self.loop.turn()

    def wake(self):
        """What waits for its end."""
        if self.pair.wake_waits or self.random.random() < 0.5:
            return self.waker.submit(self.pair.wake).result
        assert self.pair.wake() is not False
        return lambda timeout: None

    async def start(self, group):
        """The restless task; the patient one too, if it does not wait already."""
        restless = None
        for patient in self.random.sample([True, False], 2):
            if not patient:
                restless = self.loop.task(group, self.attempt)
            elif self.patient is None:
                self.patient = self.loop.task(group, self.attempt)
            await self.turns(3)
        return restless

    async def let_go(self):
        """The patient task was woken."""
        with self.loop.fail_after(race.DEADLINE):
            assert await self.patient.outcome() == WOKEN
        self.patient = None

    async def one_round(self, group):
        self.pair.begin()
        restless = await self.start(group)
        awake = self.wake()
        await self.turns(5)
        restless.cancel()
        gave_up = await restless.outcome() is None
        self.cancelled += gave_up
        if gave_up or self.pair.wakes == "all":
            await self.let_go()
        awake(DEADLINE)
        self.pair.end()

    async def main(self):
        async with self.loop.group() as group:
            while self.cancelled < self.most:
                await self.one_round(group)
            if self.patient is not None:
                self.pair.begin()
                awake = self.wake()
                await self.let_go()
                awake(DEADLINE)


def play(pair, library):
    with ThreadPoolExecutor(1) as waker:
        LOOPS[library].run(Rounds(pair, library, waker).main)


@pytest.mark.parametrize("library", LOOPS)
@pytest.mark.parametrize("name", WITH_COROUTINES)
def test_no_cancellation_loses_an_item_or_a_wake_up(name, library):
    pair = WITH_COROUTINES[name]()
    play(pair, library)
    pair.close()
