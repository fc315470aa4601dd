"""Coroutines that need not wait, or not for long, let their event loop run."""


import pytest
from support.event_loops import LIBRARIES, LOOPS
from support.threads import DEADLINE

from manytail import Consumer, EntryQueue

MANY = 1_000  # calls of one coroutine, within which the others must have their turn


class Successor:
    """An item that expires before anybody gets it. Once the try that found it expired has failed, it is released and
    puts another one. So the look before the wait finds that the queue has changed."""

    def __init__(self, queue, seen, made):
        self.queue, self.seen, self.made = queue, seen, made
        made.append(len(made))

    def __del__(self):
        if not self.seen and len(self.made) < MANY:
            self.queue.put(Successor(self.queue, self.seen, self.made), ttl=1e-9)


@pytest.mark.parametrize("library", LOOPS)
@pytest.mark.parametrize("consumer", [False, True])
def test_a_get_that_finds_each_time_that_something_has_changed_lets_its_loop_run(library, consumer):
    loop = LOOPS[library]
    queue = EntryQueue()
    seen, made = [], []

    async def main():
        several = Consumer()
        subscription = several.subscribe(queue) if consumer else queue.subscribe()

        async def other():
            await loop.turn()  # where tasks are eager it has begun before the calls
            seen.append(len(made))
            queue.put("stays")

        async with loop.group() as group:
            loop.task(group, other)
            queue.put(Successor(queue, seen, made), ttl=1e-9)
            with loop.fail_after(DEADLINE):
                entry = await (several.aget() if consumer else subscription.aget())
            assert entry.item == "stays"
            entry.ack()
        subscription.close()
        several.close()

    loop.run(main)
    assert seen[0] < MANY, "the get tried again and again, and the loop did not run"


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("turns", range(5))
def test_a_consumer_cancelled_at_any_turn_keeps_no_notification(library, turns):
    """Another subscription of the queue gets the entry."""
    run, cancelled_after = LIBRARIES[library]
    queue, idle = EntryQueue(), EntryQueue()
    seen, made = [], []

    async def main():
        several = Consumer()
        several.subscribe(idle)
        several.subscribe(queue)
        queue.put(Successor(queue, seen, made), ttl=1e-9)
        got = await cancelled_after(several.aget(), turns)
        seen.append("cancelled")
        assert got is None
        with queue.subscribe() as other:
            queue.put("stays")
            assert other.get(timeout=DEADLINE).item == "stays"
        several.close()

    run(main)
