"""put(immediate=True) overtakes nothing: none gets its entry while one that it would take first is AVAILABLE.

Coroutines wait in the gets, and the tests resume them. So a test decides which gets have been notified and have not
tried yet: then an earlier entry is AVAILABLE while another get waits.
"""
import asyncio
import functools
from random import Random

import pytest
from support.counts import count
from support.entry_model import EntryModel, level_of

from manytail import Consumer, EntryQueue, LastValueQueue, PriorityEntryQueue, SortedEntryQueue


class Get:
    """An aget that is resumed by hand."""

    def __init__(self, of):
        self.entry = self.waits = None
        self.coroutine = of.aget()
        self.resume()

    def resume(self):
        """Run it until it waits or ends."""
        try:
            while (waits := self.coroutine.send(None)) is None:
                continue
            self.waits = waits
        except StopIteration as done:
            self.entry = done.value

    @property
    def notified(self):
        return self.entry is None and self.waits.done()

    @property
    def waiting(self):
        return self.entry is None and not self.waits.done()


def in_a_loop(test):
    """Runs a test that is a coroutine function."""

    @functools.wraps(test)
    def run(*args, **options):
        asyncio.run(test(*args, **options))

    return run


async def resume(gets):
    """Resume the gets that were notified. Returns the items that they got."""
    await asyncio.sleep(0)  # the loop delivers notifications
    resumed = [get for get in gets if get.notified]
    for get in resumed:
        get.resume()
    return [get.entry.item for get in resumed if get.entry is not None]


KINDS = {
    "fifo": EntryQueue,
    "priority": PriorityEntryQueue,
    "sorted": functools.partial(SortedEntryQueue, key=lambda item: item),
    "last value": functools.partial(LastValueQueue, key=lambda item: item),
}
of_each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def end(*gets):
    for get in gets:
        get.coroutine.close()


@of_each_kind
@pytest.mark.parametrize("groups", [None, "shared", "assigned"])
@pytest.mark.parametrize("subscriptions", [1, 2])
@pytest.mark.parametrize("shared_credit", [False, True])
@in_a_loop
async def test_what_came_before_goes_first(make, groups, subscriptions, shared_credit):
    """Two gets wait, in one subscription or in two. One is notified of the old entry, so the other would overtake."""
    queue, consumers = make(groups=groups), [Consumer() for _ in range(subscriptions if shared_credit else 0)]
    getters = consumers or [queue.subscribe() for _ in range(subscriptions)]
    for consumer in consumers:
        consumer.subscribe(queue)
    gets = [Get(getters[0]), Get(getters[-1])]
    group = groups and "g"
    queue.put(1, group=group)
    assert queue.put(2, group=group, immediate=True) is None
    assert await queue.aput(2, group=group, immediate=True) is None
    assert await resume(gets) == [1]
    assert await resume(gets) == []  # with groups it was notified too
    others = bool(group) and subscriptions == 2  # the group is another subscription's now
    assert (queue.put(3, group=group, immediate=True) is None) == others
    assert await resume(gets) == ([] if others else [3])
    assert queue.stats()[:3] == (0, 1 if others else 2, 0)
    end(*gets)
    for one in getters:
        one.close()


@of_each_kind
@in_a_loop
async def test_what_was_released_goes_first(make):
    queue = make()
    with queue.subscribe() as one, queue.subscribe() as two:
        queue.put(1)
        held = one.get()
        gets = [Get(two), Get(two)]
        assert queue.put(2, immediate=True) is not None
        assert await resume(gets) == [2]
        gets.append(Get(two))
        held.release()
        assert queue.put(3, immediate=True) is None
        assert await resume(gets) == [1]
        end(*gets)


@pytest.mark.parametrize(("make", "urgent", "late"), [
    (PriorityEntryQueue, {"item": 2, "priority": 9}, {"item": 3, "priority": 4}),
    (KINDS["sorted"], {"item": 2}, {"item": 9}),
])  # fmt: skip
@in_a_loop
async def test_it_may_pass_what_is_behind_it(make, urgent, late):
    queue = make()
    with queue.subscribe() as subscription:
        gets = [Get(subscription), Get(subscription)]
        queue.put(5, priority=4)
        assert queue.put(**late, immediate=True) is None
        assert queue.put(**urgent, immediate=True) is not None
        assert sorted(await resume(gets)) == [2, 5]


class Asked:
    """A selector that counts how often it is asked."""

    def __init__(self, wants):
        self.wants, self.times = wants, 0

    def __call__(self, entry):
        self.times += 1
        return self.wants(entry.item)


@pytest.mark.parametrize("groups", [None, "shared"])
@pytest.mark.parametrize("old", [1, 50])
@in_a_loop
async def test_what_the_subscription_does_not_want_holds_nothing_back(groups, old):
    """All gets but one were notified of an old entry, and have not asked the selector. The put asks it, once for each
    entry."""
    queue, selector = EntryQueue(groups=groups), Asked(lambda item: item > 100)
    with queue.subscribe(selector=selector) as subscription:
        gets = [Get(subscription) for _ in range(old + 1)]
        for item in range(old):
            queue.put(item, group=groups and f"g{item}")
        assert queue.put(101, group=groups and "h", immediate=True) is not None
        assert selector.times == old + 1
        assert await resume(gets) == [101]
        end(*gets)


@pytest.mark.parametrize(("options", "put"), [
    ({"start": "newest"}, {}),
    ({"origin": "me"}, {"origin": "me"}),
    ({"selector": lambda entry: entry.item > 1}, {}),
])  # fmt: skip
@pytest.mark.parametrize("groups", [None, "assigned"])
@in_a_loop
async def test_another_subscription_may_take_it(options, put, groups):
    """The first would overtake. The other does not want the old entry."""
    queue = EntryQueue(groups=groups)
    queue.put(0)
    with queue.subscribe() as one, queue.subscribe(**options) as other:
        held = one.get()
        one_gets, other_gets = [Get(one), Get(one)], [Get(other)]
        if "start" in options:
            held.release()
        else:
            queue.put(1, **put)
        await resume(other_gets)  # it looks, and waits again
        assert queue.put(2, immediate=True) is not None
        assert await resume(other_gets) == [2]
        assert await resume(one_gets) == [0 if "start" in options else 1]
        end(*one_gets)


@pytest.mark.parametrize("groups", [None, "shared"])
@in_a_loop
async def test_what_a_rival_wants_holds_nothing_back(groups):
    """The old entry is the rival's, who gets it later: the waiting get would not take it."""
    queue = EntryQueue(groups=groups)
    with queue.subscribe(priority=1, selector=lambda entry: entry.item % 2) as rival, queue.subscribe() as low:
        gets = [Get(low), Get(low)]
        queue.put(1)
        assert queue.put(2, immediate=True) is not None
        queue.put(4)
        assert queue.put(6, immediate=True) is None
        assert sorted(await resume(gets)) == [2, 4]
        assert rival.get().item == 1
        end(*gets)


class Script:
    """Random calls of a queue and of its sequential model, in lockstep."""

    def __init__(self, seed):
        chance = self.chance = Random(seed)
        groups = chance.choice([None, "shared", "assigned"])
        make, rules = chance.choice([
            (EntryQueue, {}),
            (PriorityEntryQueue, {"level": lambda priority: level_of(priority, 10)}),
            (functools.partial(SortedEntryQueue, key=lambda item: item % 4), {"order": lambda item, _: item % 4}),
        ])  # fmt: skip
        self.queue, self.model = make(groups=groups), EntryModel(groups=groups, **rules)
        self.subscriptions = [self.subscribe() for _ in range(chance.randint(1, 3))]
        self.gets = {theirs: [] for _, theirs in self.subscriptions}
        self.reserved = {theirs: [] for _, theirs in self.subscriptions}
        self.held, self.items, self.handed = [], 0, 0

    def subscribe(self):
        options = {"priority": self.chance.choice([0, 0, 0, 1]), "prefetch": self.chance.choice([0, 0, 1, 2])}
        parity = self.chance.choice([None, None, 0, 1])
        selector = None if parity is None else lambda entry: entry.item % 3 == parity  # of an entry, or of a place
        return self.queue.subscribe(selector=selector, **options), self.model.subscribe(selector=selector, **options)

    async def run(self):
        try:
            for _ in range(60):
                getattr(self, self.chance.choice(ACTS))()
                await asyncio.sleep(0)
            while any(get.notified for gets in self.gets.values() for get in gets):
                self.go_on()
                await asyncio.sleep(0)
            self.no_get_waits_for_nothing()
        finally:
            end(*(get for gets in self.gets.values() for get in gets))
            for mine, _ in self.subscriptions:
                mine.close()

    def draw(self):
        self.items += 1
        return self.items, {"priority": self.chance.choice([0, 4, 9]), "group": self.chance.choice([None, "g", "h"])}

    def put(self):
        item, options = self.draw()
        self.queue.put(item, **options)
        self.model.put(item, **options)

    def put_immediate(self):
        item, options = self.draw()
        place = self.model.new_place(item, **options)
        waiting = [theirs for theirs, gets in self.gets.items() if any(get.waiting for get in gets)]
        takers = self.model.takers(place, waiting)
        before = {theirs: mine.unacked for mine, theirs in self.subscriptions}
        assert (self.queue.put(item, immediate=True, **options) is not None) == bool(takers)
        if takers:
            (taker,) = (theirs for mine, theirs in self.subscriptions if mine.unacked > before[theirs])
            assert taker in takers
            self.reserved[taker].append(taker.take(self.model.put(item, **options)))
            self.handed += 1

    def get(self):
        mine, theirs = self.chance.choice(self.subscriptions)
        if len(self.gets[theirs]) < 3:
            place = theirs.next()
            self.gets[theirs].append(Get(mine))
            self.got(theirs, self.gets[theirs][-1], place and theirs.take(place))

    def go_on(self):
        """Resume a get that was notified."""
        notified = [(theirs, get) for theirs, gets in self.gets.items() for get in gets if get.notified]
        if not notified:
            return
        theirs, get = self.chance.choice(notified)
        if self.reserved[theirs]:
            held = self.reserved[theirs].pop(0)
        else:
            place = theirs.next()
            held = place and theirs.take(place)
        get.resume()
        self.got(theirs, get, held)

    def got(self, theirs, get, held):
        assert (get.entry and get.entry.item) == (held and held.place.item)
        if held:
            self.gets[theirs].remove(get)
            self.held.append((get.entry, held))

    def end_one(self, how):
        if self.held:
            entry, held = self.held.pop(self.chance.randrange(len(self.held)))
            assert getattr(entry, how)() is getattr(self.model, how)(held) is True

    def ack(self):
        self.end_one("ack")

    def release(self):
        self.end_one("release")

    def suspend_or_resume(self):
        mine, theirs = self.chance.choice(self.subscriptions)
        theirs.suspended = self.chance.random() < 0.3
        (mine.suspend if theirs.suspended else mine.resume)()

    def no_get_waits_for_nothing(self):
        for theirs, gets in self.gets.items():
            assert not gets or theirs.next() is None


ACTS = [*["put"] * 2, *["put_immediate"] * 5, *["get"] * 5, *["go_on"] * 4, "ack", "release", "suspend_or_resume"]


def test_random_scripts_agree_with_the_model():
    handed = 0
    for seed in range(count(60, 10_000)):
        print("seed", seed)  # pytest shows the last one if it fails
        script = Script(seed)
        asyncio.run(script.run())
        handed += script.handed
    assert handed  # else nothing was shown
