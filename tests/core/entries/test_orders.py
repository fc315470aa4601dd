"""Priority levels, sorted keys, last value per key: mappings, keys, thousands of entries, threads."""
import asyncio
import bisect
import random
import time
from functools import partial
from itertools import pairwise
from queue import Empty

import pytest
from support.counts import LONG, PART
from support.entry_model import level_of
from support.process import run_script
from support.threads import Threads, run_all, wait_asleep

from manytail import EntryState, LastValueQueue, PriorityEntryQueue, SortedEntryQueue


def items_of(entries):
    return [entry.item for entry in entries]


# ------------------------------------------------------------------------------------------------ priority
# levels -> the level of each priority -2..12, from the mapping of AMQP 0-10 and JMS
MAPPING = {
    1: [0] * 15,
    2: [0] * 7 + [1] * 8,
    3: [0] * 6 + [1] + [2] * 8,
    4: [0] * 6 + [1, 2] + [3] * 7,
    5: [0] * 5 + [1, 2, 3] + [4] * 7,
    9: [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8],
    10: [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9],
    11: [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10],
    20: [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17],
}


def level_order(levels, mapping, priorities):
    """The order in which entries of these priorities are got, when they are put in this order."""
    queue = PriorityEntryQueue("q", levels=levels, mapping=mapping)
    for priority in priorities:
        queue.put(priority, priority=priority)
    return items_of(queue.subscribe().get_many(len(priorities)))


@pytest.mark.parametrize("levels", MAPPING)
def test_priorities_map_to_levels_as_amqp_and_jms_say(levels):
    expected = dict(zip(range(-2, 13), MAPPING[levels], strict=True))
    assert {priority: level_of(priority, levels) for priority in expected} == expected
    for priorities in (list(expected), list(expected)[::-1]):
        assert level_order(levels, "jms", priorities) == sorted(priorities, key=lambda priority: -expected[priority])


@pytest.mark.parametrize("levels", [1, 2, 3, 10])
def test_direct_mapping_takes_the_priority_as_level(levels):
    priorities = [-5, 0, 12, 1, 2, 3, 9, 10]
    assert level_order(levels, "direct", priorities) == sorted(
        priorities, key=lambda priority: -min(max(priority, 0), levels - 1)
    )


def test_levels_are_shown_and_checked():
    assert (PriorityEntryQueue().levels, PriorityEntryQueue("q", levels=3).levels) == (10, 3)
    for bad in (0, -1):
        with pytest.raises(ValueError, match="levels"):
            PriorityEntryQueue("q", levels=bad)
    with pytest.raises(ValueError, match="mapping"):
        PriorityEntryQueue("q", mapping="amqp")
    with pytest.raises(TypeError, match="levels"):
        PriorityEntryQueue("q", levels=2.5)


def test_extreme_priorities_are_clamped():
    queue = PriorityEntryQueue()
    for item, priority in [("min", -(2**31)), ("max", 2**31 - 1), ("nine", 9)]:
        queue.put(item, priority=priority)
    assert items_of(queue.browse()) == ["max", "nine", "min"]
    assert [entry.priority for entry in queue.browse()] == [2**31 - 1, 9, -(2**31)]


# ------------------------------------------------------------------------------------------------ sorted


def test_key_is_required_and_called_once_per_put():
    with pytest.raises(TypeError, match="key"):
        SortedEntryQueue("q")
    with pytest.raises(TypeError, match="key"):
        SortedEntryQueue("q", key=5)
    calls = []
    queue = SortedEntryQueue("q", key=lambda item: calls.append(item) or item)
    queue.put_many([3, 1, 2])
    subscription = queue.subscribe()
    subscription.get(False).release()
    subscription.get(False).ack()
    assert calls == [3, 1, 2]


def test_a_sorted_queue_initialised_during_a_put_refuses_it():
    """In a process: an entry that is made before has no memory for a key."""
    run_script("""
from collections.abc import Mapping
from manytail import SortedEntryQueue

class Headers(Mapping):
    def __iter__(self):
        queue.__init__(key=lambda item: item)
        return iter(())
    def __len__(self):
        return 0
    def __getitem__(self, name):
        raise KeyError(name)

for _ in range(100):
    queue = SortedEntryQueue.__new__(SortedEntryQueue)
    try:
        queue.put(1, headers=Headers())
    except RuntimeError:
        pass
    else:
        raise AssertionError("put")
    queue.put(3), queue.put(2)
    assert [entry.item for entry in queue.browse()] == [2, 3]
""")


def test_if_key_or_comparison_raises_put_raises_and_nothing_changed():
    def key(item):
        if item == "bad":
            raise KeyError("mine")
        return item

    queue = SortedEntryQueue("q", key=key)
    queue.put_many([1, 5, 3])
    for item, error in (("bad", KeyError), ("text", TypeError)):
        with pytest.raises(error):
            queue.put(item)
        assert items_of(queue.browse()) == [1, 3, 5]
        assert (queue.stats().enqueued, queue.depth()) == (3, 3)
    queue.put(4)
    assert items_of(queue.browse()) == [1, 3, 4, 5]


def test_only_less_than_is_asked_and_it_may_use_the_queue():
    class Key:
        def __init__(self, value):
            self.value = value

        def __lt__(self, other):
            queue.qsize()
            list(queue.browse())
            return self.value < other.value

        __eq__ = __gt__ = __le__ = __ge__ = None
        __hash__ = None

    queue = SortedEntryQueue("q", key=Key)
    queue.put_many([3, 1, 2, 1])
    assert items_of(queue.browse()) == [1, 1, 2, 3]


def up_and_down(chance):
    """Rising and falling runs side by side, and many random keys between them."""
    for n in range(1200):
        yield from (n, 20_000 - n, 30_000 + n, 50_000 - n, chance.randrange(20_000, 30_000))


@pytest.mark.thread_unsafe(reason="takes long, and shows no more in four threads")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_sorted_with_thousands(seed, policy):
    """The index fills, splits and drops leaves. Order, ties and the age of the oldest stay right throughout."""
    chance = random.Random(seed)
    queue, model, put_at = SortedEntryQueue("q", key=lambda item: item[0], overflow=policy), [], {}
    subscription = queue.subscribe()

    def check():
        assert items_of(queue.browse()) == sorted(model)
        if model:
            now, age = time.monotonic(), queue.stats().oldest_age
            assert age >= now - put_at[min(item[1] for item in model)]

    for n, key in enumerate(up_and_down(chance)):
        queue.put((key, n))
        put_at[n] = time.monotonic()
        bisect.insort(model, (key, n))
        if n % 1500 == 0:
            check()
    check()
    while model:
        got = subscription.get_many(min(len(model), 1 + chance.randrange(700)))
        chance.shuffle(got)
        for entry in got:
            if chance.random() < 0.2:
                entry.release()
            else:
                entry.ack()
                del model[bisect.bisect_left(model, entry.item)]
        check()
    assert queue.stats().oldest_age is None
    subscription.close()


ENDS = {place for end in (0, 256, 512, 766) for place in range(end - 2, end + 3)}
EVERY = 1 if LONG else 5 * PART
PLACES = [place for place in range(767) if place % EVERY == 0 or place in ENDS]


@pytest.mark.thread_unsafe(reason="takes long, and shows no more in four threads")
@pytest.mark.parametrize(
    "gone", [(), range(100), range(260, 400), range(600, 700)], ids=["none", "first", "middle", "last"]
)
def test_sorted_at_every_place_of_full_leaves(gone):
    """A leaf has up to 256 entries. A full leaf is split."""
    rising = list(range(0, 2 * 766, 2))         # fills three leaves except one slot each in the first and the second
    for place in PLACES:
        queue = SortedEntryQueue("q", key=int)
        handles = [queue.put(item) for item in [*rising, 1, 511]]
        with queue.subscribe(selector=lambda entry: entry.seq in gone) as subscription:
            for entry in subscription.get_many(len(gone)):
                entry.ack()
        left = [handle.item for handle in handles if handle.state is EntryState.AVAILABLE]
        more = [*[2 * place - 1] * 3, 2 * place + 1, 2 * place - 3, *range(-1, 2 * 766, 16)]
        queue.put_many(more)
        with queue.subscribe() as subscription:
            taken = subscription.get_many(2 * 766)
            assert items_of(taken) == sorted(left + more)
            assert all(one.seq < after.seq for one, after in pairwise(taken) if one.item == after.item)
            assert sum(entry.ack() for entry in taken) == len(left + more)
        assert queue.depth() == 0
        queue.put_many([2, 1])
        assert items_of(queue.browse()) == [1, 2]


# ------------------------------------------------------------------------------------------------ last value
def by_first():
    return LastValueQueue("q", key=lambda item: item[0])


def test_a_replacement_that_meets_a_full_queue_stops_nobody():
    """It needs no slot, so it does not find the queue full: later puts wait for a free slot, not for resume_at."""
    queue = LastValueQueue("q", key=lambda item: item[0], maxsize=4, resume_at=0.5)
    queue.put_many([(n, 0) for n in range(4)])
    queue.put((0, 1), False)
    with queue.subscribe() as subscription:
        subscription.get(False).ack()
    queue.put((4, 0), False)
    assert queue.depth() == 4


def test_keys_are_hashable_and_compare_by_hash_and_equality():
    with pytest.raises(TypeError, match="key"):
        LastValueQueue("q")
    queue = LastValueQueue("q", key=lambda item: item)
    with pytest.raises(TypeError):
        queue.put([])
    assert (queue.depth(), queue.stats().enqueued) == (0, 0)
    queue.put_many([1, 1.0, True])
    assert queue.depth() == 1


def test_replacing_from_several_threads_leaves_one_entry_per_key():
    queue = by_first()
    subscription = queue.subscribe()
    taken = []

    def put(thread):
        for n in range(500):
            queue.put((n % 3, thread, n))

    def take():
        for _ in range(500):
            try:
                entry = subscription.get(False)
            except Empty:
                continue
            taken.append(entry.item)
            entry.ack()

    run_all(*[lambda thread=thread: put(thread) for thread in range(3)], take)
    assert sorted(item[0] for item in items_of(queue.browse())) == sorted(
        {item[0] for item in items_of(queue.browse())}
    )
    stats = queue.stats()
    assert stats.enqueued == 1500 == stats.acked + stats.dropped + stats.depth
    assert len(set(taken)) == len(taken) == stats.acked


def test_putters_of_one_key_that_wait_together_need_one_free_slot():
    """The first takes the slot, the others replace what it has put."""
    queue = LastValueQueue("q", key=lambda item: item[0], maxsize=2)
    queue.put_many([("a", 1), ("b", 1)])
    subscription = queue.subscribe()
    with Threads() as threads:
        putters = [threads.start(queue.put, ("c", n)) for n in range(3)]
        wait_asleep(*putters)
        subscription.get().ack()
        for putter in putters:
            putter.result()
    assert [key for key, _ in items_of(queue.browse())] == ["b", "c"]


# ------------------------------------------------------------------------- sorted, while other entries come and go
class Watched:
    """A key; `meanwhile` is called once, during the comparison of a number of one's choice."""

    def __init__(self, value):
        self.value, self.comparisons, self.meanwhile = value, 0, None

    def __lt__(self, other):
        self.comparisons -= 1
        if self.comparisons == 0 and self.meanwhile is not None:
            self.meanwhile()
        return self.value < other.value


def put_while(queue, value, comparison, meanwhile):
    key = Watched(value)
    key.comparisons, key.meanwhile = comparison, meanwhile
    queue.put(key)


def values_of(queue):
    return [entry.item.value for entry in queue.browse()]


@pytest.mark.parametrize("meanwhile", [[0], [0, 5], [0, 5, 3]], ids=str)
def test_an_entry_that_is_removed_while_a_put_compares_with_it_bounds_its_place_no_more(meanwhile):
    queue = SortedEntryQueue(key=lambda key: key)
    subscription = queue.subscribe()
    queue.put(Watched(2))

    def other_threads():
        subscription.get().ack()
        for value in meanwhile:
            queue.put(Watched(value))

    put_while(queue, 1, 1, other_threads)
    assert values_of(queue) == sorted([1, *meanwhile])


@pytest.mark.parametrize("leaves", [False, True])
def test_a_put_finds_its_place_whatever_comes_and_goes_while_it_compares(leaves):
    for seed in range(30 if leaves else 400):
        chance = random.Random(seed)
        world = Disturbed(chance)
        for _ in range(chance.randrange(400, 900) if leaves else chance.randrange(1, 9)):
            world.queue.put(Watched(chance.randrange(8)))
        for _ in range(3):
            world.put(2)
        values = values_of(world.queue)
        assert values == sorted(values), seed


class Disturbed:
    """A sorted queue. While a put compares, entries are got, put and purged at random: searches go on within others."""

    def __init__(self, chance):
        self.chance = chance
        self.queue = SortedEntryQueue(key=lambda key: key)
        self.subscription = self.queue.subscribe()

    def put(self, depth):
        place = self.chance.randrange(1, 9 if depth == 2 else 4)
        put_while(self.queue, self.chance.randrange(8), place, partial(self.disturb, depth))

    def disturb(self, depth):
        for _ in range(self.chance.randrange(1, 6)):
            choice = self.chance.random()
            if choice < 0.5 and self.queue.depth():
                for entry in self.subscription.get_many(self.chance.randrange(1, 4), block=False):
                    entry.ack()
            elif choice > 0.95:
                self.queue.purge()
            elif depth:
                self.put(depth - 1)


def test_a_put_that_waited_for_a_free_slot_looks_for_its_place_again():
    async def main():
        queue = SortedEntryQueue(key=lambda key: key, maxsize=2)
        subscription = queue.subscribe()
        queue.put_many([Watched(2), Watched(9)])
        put = asyncio.create_task(queue.aput(Watched(1)))       # its place is before 2
        await asyncio.sleep(0)
        subscription.get().ack()
        queue.put(Watched(0))                                   # at the old place of 2
        first = subscription.get()
        subscription.get().ack()
        await put
        first.release()
        assert values_of(queue) == [0, 1]

    asyncio.run(main())


def test_a_forked_child_continues_the_search_of_a_put():
    """The thread that forks in `<` puts at the right place in the child; the search of another thread is forgotten."""
    run_script("""
import os, sys, threading
from manytail import SortedEntryQueue

class Key:
    def __init__(self, value, meanwhile=None):
        self.value, self.meanwhile = value, meanwhile
    def __lt__(self, other):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return self.value < other.value

queue = SortedEntryQueue(key=lambda key: key)
subscription = queue.subscribe()
for value in (2, 4, 6):
    queue.put(Key(value))
compares, goes_on = threading.Event(), threading.Event()
def other():
    queue.put(Key(3, lambda: (compares.set(), goes_on.wait())))
thread = threading.Thread(target=other)
thread.start()
compares.wait()
child = None
def fork():
    global child
    child = os.fork()
    if child == 0:
        for _ in range(3):
            subscription.get().ack()
        for value in (1, 9, 7):
            queue.put(Key(value))
queue.put(Key(5, fork))
values = [entry.item.value for entry in queue.browse()]
if child == 0:
    os._exit(0 if values == [1, 5, 7, 9] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
goes_on.set()
thread.join()
assert [entry.item.value for entry in queue.browse()] == [2, 3, 4, 5, 6]
""")
