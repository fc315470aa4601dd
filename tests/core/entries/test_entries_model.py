"""Every entry-queue class with every overflow policy against a sequential model: hypothesis draws any calls.

One state machine per class and policy; groups, delivery limit and dead letters are drawn. After each step the figures,
the order and the state of every handle are compared. Browsers are compared by what they must see and may see
(support.entry_model). A ttl or delay is either very long or passes within the step that sets it, so that nothing falls
due between steps.
"""
import time
from queue import Empty, Full
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support import entry_model
from support.counts import count
from support.entry_model import ACQUIRED, AVAILABLE, DELETED, HELD, EntryModel, level_of
from support.threads import wait_until

from manytail import ClosedError, EntryQueue, EntryState, LastValueQueue, PriorityEntryQueue, ShutDown, SortedEntryQueue

FAR, SOON = 10_000.0, 1e-4
STATES = {
    AVAILABLE: EntryState.AVAILABLE,
    HELD: EntryState.HELD,
    ACQUIRED: EntryState.ACQUIRED,
    DELETED: EntryState.DELETED,
}
ENDS = ["ack", "ack", "ack", "reject", "lock", "unlock"]
ACTS = ["put"] * 6 + ["get"] * 8 + ENDS + ["release"] * 3 + ["ack_up_to", "close", "subscribe", "suspend", "purge"]
ORIGINS = [["equal"], ["equal"]]  # told apart by identity
SELECTORS = {"all": None, "even": lambda entry: entry.item % 2 == 0, "text": "n > 4"}
MODEL_SELECTORS = {
    "all": None,
    "even": lambda place: place.item % 2 == 0,
    "text": lambda place: place.headers.get("n", 0) > 4,
}

items = st.integers(0, 9)
priorities = st.sampled_from([4, 4, 4, 0, 9, 6, -1])
group_names = st.sampled_from([None, None, "g", "h"])
origins = st.sampled_from([None, None, *ORIGINS])
sizes = st.sampled_from([0, 2, 4, 8])
counts = st.integers(-1, 4)


class Machine(RuleBasedStateMachine):
    """`make` makes the real queue. `model_rules` are the rules of its class, for the model."""

    make: object
    model_rules: dict
    overflow: str

    subscriptions = Bundle("subscriptions")
    deliveries = Bundle("deliveries")

    @initialize(
        maxsize=st.sampled_from([0, 2, 4]),
        limit=st.sampled_from([0, 0, 2]),
        groups=st.sampled_from([None, "shared", "assigned"]),
        dead=st.booleans(),
        resume_at=st.sampled_from([0.8, 0.5, 1.0, 0.0]),
    )
    def begin(self, maxsize, limit, groups, dead, resume_at):
        self.dead = []
        options = {"maxsize": maxsize, "overflow": self.overflow, "resume_at": resume_at, "max_deliveries": limit}
        letter = (lambda entry, reason: self.dead.append((entry.item, str(reason)))) if dead else None
        self.queue = self.make("q", groups=groups, dead_letter=letter, **options)
        self.model = EntryModel(groups=groups, dead_letter=dead, **options, **self.model_rules)
        self.entries = {}  # place -> a handle of it
        self.open = []

    # ---------------------------------------------------------------- putting
    def options(self, item, priority, group, origin):
        return {"priority": priority, "group": group, "origin": origin, "headers": {"n": item}}

    def put(self, item, options, **times):
        """The model's place. None if there was no free slot or the queue is shut down."""
        if self.model.down:
            with pytest.raises(ShutDown):
                self.queue.put(item, False, **options, **times)
            return None
        try:
            place = self.model.put(item, held="delay" in times, **options)
        except entry_model.Full:
            with pytest.raises(Full):
                self.queue.put(item, False, **options, **times)
            return None
        entry = self.entries[place] = self.queue.put(item, False, **options, **times)
        assert (entry.item, entry.priority, entry.group, entry.headers["n"]) == (
            item,
            place.priority,
            place.group,
            item,
        )
        assert entry.ack() is entry.release() is entry.reject() is entry.lock() is entry.unlock() is False
        return place

    @rule(
        item=items,
        priority=priorities,
        group=group_names,
        origin=origins,
        far=st.sampled_from(["", "", "", "ttl", "delay"]),
    )
    def put_one(self, item, priority, group, origin, far):
        self.put(item, self.options(item, priority, group, origin), **({far: FAR} if far else {}))

    @rule(item=items, priority=priorities, group=group_names)
    def put_one_that_expires(self, item, priority, group):
        place = self.put(item, self.options(item, priority, group, None), ttl=SOON)
        if place is not None:
            self.fall_due(self.entries[place].expires_at)
            if place in self.model.places:
                self.model.expire(place)

    @rule(item=items, priority=priorities, group=group_names)
    def put_one_that_is_held_for_a_moment(self, item, priority, group):
        place = self.put(item, self.options(item, priority, group, None), delay=SOON)
        if place is not None:
            self.fall_due(time.monotonic() + SOON)
            if place.state == HELD:
                self.model.unhold(place)

    def fall_due(self, moment):
        while time.monotonic() <= moment:
            pass
        self.queue.maintain()

    @rule(batch=st.lists(items, max_size=6), shape=st.sampled_from([list, tuple, iter]), group=group_names)
    def put_many(self, batch, shape, group):
        if self.model.down:
            with pytest.raises(ShutDown) as shut:
                self.queue.put_many(shape([1]), False)
            assert shut.value.count == 0
            return
        places = []
        for item in batch:
            try:
                places.append(self.model.put(item, group=group))
            except entry_model.Full:
                with pytest.raises(Full) as full:
                    self.queue.put_many(shape(batch), False, group=group)
                assert full.value.count == len(places)
                break
        else:
            assert self.queue.put_many(shape(batch), False, group=group) == len(places)

    @precondition(lambda self: not self.model.last_value_key and self.overflow != "drop_oldest")
    @rule(item=items)
    def put_immediate(self, item):
        """No getter waits, so the entry is withdrawn. A full queue, or one that is shut down, raises as for any put."""
        refused = ShutDown if self.model.down else None
        if refused is None:
            try:
                self.model._make_room()
            except entry_model.Full:
                refused = Full
        if refused is not None:
            with pytest.raises(refused):
                self.queue.put(item, False, immediate=True)
        else:
            assert self.queue.put(item, False, immediate=True) is None
            self.model.settle()

    # ---------------------------------------------------------------- subscribing
    @rule(target=subscriptions, which=st.sampled_from(sorted(SELECTORS)), prefetch=st.sampled_from([0, 0, 1, 3]),
          priority=st.sampled_from([0, 0, 1, -1]), origin=origins,
          start=st.sampled_from(["oldest", "oldest", "newest"]),
          browse=st.sampled_from([False, False, False, True]))  # fmt: skip
    def subscribe(self, which, prefetch, priority, origin, start, browse):
        options = {"prefetch": prefetch, "priority": priority, "origin": origin, "start": start, "browse": browse}
        pair = (
            self.queue.subscribe(selector=SELECTORS[which], **options),
            self.model.subscribe(selector=MODEL_SELECTORS[which], **options),
        )
        self.open.append(pair)
        return pair

    @rule(pair=consumes(subscriptions))
    def close(self, pair):
        mine, theirs = pair
        mine.close()
        theirs.close()
        self.open.remove(pair)
        assert mine.closed
        assert mine.interest == "closed"
        for _ in range(2):
            with pytest.raises(ClosedError):
                mine.get(False)
            mine.close()

    @rule(pair=subscriptions, on=st.booleans())
    def suspend_or_resume(self, pair, on):
        mine, theirs = pair
        (mine.suspend if on else mine.resume)()
        theirs.suspended = on

    @rule(pair=subscriptions, prefetch=st.sampled_from([0, 1, 2]))
    def set_prefetch(self, pair, prefetch):
        mine, theirs = pair
        mine.prefetch = theirs.prefetch = prefetch

    # ---------------------------------------------------------------- getting
    @rule(target=deliveries, pair=subscriptions)
    def get(self, pair):
        mine, theirs = pair
        if theirs.browse:
            self.browse_one(mine, theirs)
            return multiple()
        place = theirs.next()
        if place is None:
            with pytest.raises(self.nothing(theirs)):
                mine.get(False)
            return multiple()
        return self.taken(mine.get(False), theirs.take(place))

    def nothing(self, theirs):
        if not self.model.down:
            return Empty
        left = [place for place in self.model.places if place.state in (AVAILABLE, HELD) and theirs.wants(place)]
        if not left:
            return ShutDown
        return Empty if any(theirs.may_take(place) for place in left) else (Empty, ShutDown)

    def taken(self, entry, held):
        place = held.place
        assert (entry.item, entry.deliveries, entry.redelivered) == (place.item, place.deliveries, place.redelivered)
        assert entry.state is EntryState.ACQUIRED
        if place in self.entries:
            assert entry == self.entries[place]
            assert hash(entry) == hash(self.entries[place])
            assert entry.seq == self.entries[place].seq
        self.entries[place] = entry
        return (entry, held)

    @rule(target=deliveries, pair=subscriptions, n=counts)
    def get_many(self, pair, n):
        mine, theirs = pair
        if theirs.browse:
            return multiple()
        if n <= 0:
            assert mine.get_many(n, False) == []
            return multiple()
        if theirs.next() is None:
            with pytest.raises(self.nothing(theirs)):
                mine.get_many(n, False)
            return multiple()
        got = mine.get_many(n, False)
        pairs = []
        while len(pairs) < n and (place := theirs.next()) is not None:
            held = theirs.take(place)
            assert len(got) > len(pairs)
            pairs.append((got[len(pairs)], held))
            assert pairs[-1][0].item == place.item
            self.entries[place] = pairs[-1][0]
        assert len(got) == len(pairs)
        return multiple(*pairs)

    def browse_one(self, mine, theirs):
        must = None if theirs.suspended else theirs.must_see()
        try:
            entry = mine.get(False)
        except (Empty, ShutDown):
            assert must is None
            return
        assert not theirs.suspended
        place = next((place for place, known in self.entries.items() if known == entry), None)
        if place is None:                       # put_many() put it, and returned no handle: the first one that fits
            place = min((place for place in self.model.places
                         if place not in self.entries and place.item == entry.item and theirs.may_see(place)),
                        key=lambda place: place.order)  # fmt: skip
        assert theirs.may_see(place)
        assert must is None or place.order <= must.order
        assert entry.ack() is entry.release() is entry.lock() is False
        theirs.seen.add(place.seq)

    # ---------------------------------------------------------------- ends of a delivery
    @rule(pair=deliveries, how=st.sampled_from(["ack", "ack", "reject", "lock", "unlock", "unlock"]))
    def end(self, pair, how):
        entry, held = pair
        assert getattr(entry, how)() is getattr(self.model, how)(held)

    @rule(pair=deliveries, delay=st.sampled_from([0.0, 0.0, SOON, FAR]))
    def release(self, pair, delay):
        entry, held = pair
        released = self.model.release(held, delayed=delay > 0)
        assert entry.release(delay=delay) is released
        if released and delay == SOON:
            self.fall_due(time.monotonic() + SOON)
            if held.place.state == HELD:
                self.model.unhold(held.place)

    @rule(pair=deliveries, subscription=subscriptions)
    def ack_up_to(self, pair, subscription):
        entry, held = pair
        assert subscription[0].ack_up_to(entry) == subscription[1].ack_up_to(held)

    # ---------------------------------------------------------------- the queue
    @rule()
    def purge(self):
        assert self.queue.purge() == self.model.purge()

    @rule(maxsize=sizes)
    def set_maxsize(self, maxsize):
        self.queue.maxsize = maxsize
        self.model.set_maxsize(maxsize)

    @precondition(lambda self: self.model.arrivals > 12)
    @rule(immediate=st.booleans())
    def shutdown(self, immediate):
        self.queue.shutdown(immediate)
        self.model.shutdown(immediate)
        assert self.queue.is_shutdown

    # ---------------------------------------------------------------- many calls
    def use_for_a_while(self, chance):
        """What a delivery leads to shows only in long runs."""
        own, got = [], []
        for _ in range(chance.randrange(20, 120)):
            act = chance.choice(ACTS)
            if len(own) < 2 or (act == "subscribe" and len(own) < 4):
                own.append(self.subscribe(which=chance.choice(["all", "all", "even"]), origin=None, start="oldest",
                                          prefetch=chance.choice([0, 0, 1, 3]), priority=chance.choice([0, 0, 1]),
                                          browse=False))  # fmt: skip
            elif act == "put":
                item = chance.randrange(10)
                group = chance.choice([None, "g", "h"])
                self.put(item, self.options(item, chance.choice([4, 4, 0, 9]), group, None))
            elif act == "get":
                taken = self.get(chance.choice(own))
                got += [taken] if isinstance(taken, tuple) else []
            elif act == "close":
                self.close(own.pop(chance.randrange(len(own))))
            elif act == "suspend":
                self.suspend_or_resume(chance.choice(own), chance.random() < 0.4)
            elif act == "purge":
                self.purge()
            elif got and act == "release":
                self.release(chance.choice(got[-4:]), 0.0)
            elif got and act == "ack_up_to":
                self.ack_up_to(chance.choice(got[-4:]), chance.choice(own))
            elif got and act in ENDS:
                self.end(chance.choice(got[-4:]), act)
            self.the_figures_agree()
        self.the_order_agrees()
        self.the_handles_agree()
        self.the_subscriptions_agree()
        for pair in own:
            self.close(pair)

    # ---------------------------------------------------------------- comparing
    @invariant()
    def the_figures_agree(self):
        stats, model = self.queue.stats(), self.model
        mine = (stats.available, stats.held, stats.acquired, stats.depth)
        assert mine == (model.count(AVAILABLE), model.count(HELD), model.count(ACQUIRED), model.depth())
        assert {name: getattr(stats, name) for name in model.counts} == model.counts
        assert (
            stats.enqueued == stats.acked + stats.rejected + stats.expired + stats.dropped + stats.purged + stats.depth
        )
        assert (self.queue.qsize(), self.queue.depth(), stats.subscriptions) == (
            stats.available,
            stats.depth,
            len(model.subscriptions),
        )
        assert stats.high_water >= stats.depth
        if self.overflow != "drop_oldest" and not model.last_value_key:
            assert stats.high_water == model.high_water
        # The timer's thread delivers dead letters of expired entries a moment later.
        wait_until(lambda: len(self.dead) >= len(model.dead), "all dead letters")
        assert sorted(self.dead) == sorted(model.dead)

    @invariant()
    def the_order_agrees(self):
        browsed = list(self.queue.browse())
        assert [entry.item for entry in browsed] == [place.item for place in self.model.in_order()]
        assert [entry.state for entry in browsed] == [STATES[place.state] for place in self.model.in_order()]
        for entry in browsed[:1]:
            assert entry.ack() is entry.release() is entry.reject() is entry.lock() is entry.unlock() is False

    @invariant()
    def the_handles_agree(self):
        for place, entry in self.entries.items():
            assert entry.state is STATES[place.state], (place.item, place.state)
            assert (entry.redelivered, entry.deliveries) == (place.redelivered, place.deliveries)

    @invariant()
    def the_subscriptions_agree(self):
        for mine, theirs in self.open:
            assert (mine.unacked, mine.prefetch) == (len(theirs.held), theirs.prefetch)
            able = not theirs.suspended if theirs.browse else theirs.interested
            assert mine.interest == (("non_acquiring" if theirs.browse else "interested") if able else "not_interested")


CLASSES = {
    "fifo": (EntryQueue, {}, {}),
    "priority 10": (PriorityEntryQueue, {}, {"level": lambda priority: level_of(priority, 10)}),
    "priority 3": (PriorityEntryQueue, {"levels": 3}, {"level": lambda priority: level_of(priority, 3)}),
    "direct 2": (
        PriorityEntryQueue,
        {"levels": 2, "mapping": "direct"},
        {"level": lambda priority: level_of(priority, 2, "direct")},
    ),
    "sorted": (SortedEntryQueue, {"key": lambda item: item % 4}, {"order": lambda item, arrival: item % 4}),
    "last value": (
        LastValueQueue,
        {"key": lambda item: item % 5 or None},
        {"last_value_key": lambda item: item % 5 or None},
    ),
}


@pytest.fixture(params=CLASSES)
def machine(request, overflow):
    make, options, rules = CLASSES[request.param]
    return type("Machine", (Machine,), {
        "make": staticmethod(lambda label, **rest: make(label, **options, **rest)),
        "model_rules": rules,
        "overflow": overflow,
    })  # fmt: skip


OVERFLOWS = pytest.mark.parametrize("overflow", ["block", "reject", "drop_oldest"])


@pytest.mark.thread_unsafe(reason="takes long, and shows no more in four threads")
@OVERFLOWS
def test_long_runs_answer_as_the_model_does(machine):
    """From fixed seeds, so that it always finds what it once found."""
    for seed in range(count(60, 1_000)):
        chance, one = Random(seed), machine()
        one.begin(
            maxsize=chance.choice([0, 2, 4]),
            limit=chance.choice([0, 0, 2]),
            groups=chance.choice([None, "shared", "assigned"]),
            dead=chance.random() < 0.5,
            resume_at=chance.choice([0.8, 0.5, 1.0, 0.0]),
        )
        for _ in range(2):
            one.use_for_a_while(chance)


@pytest.mark.thread_unsafe(reason="one hypothesis machine at a time")
@OVERFLOWS
def test_anything_in_any_order(machine):
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=max(8, count(12, 500)), stateful_step_count=50, deadline=None, database=None,
                          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]),
    )
