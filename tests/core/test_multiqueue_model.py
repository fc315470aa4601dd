"""MultiQueue against a sequential model: hypothesis draws any calls; every answer must be the model's.

One state machine per selection and class. After each step the figures are compared. At the end the remaining items must
come in the model's order.
"""
from queue import Empty, Full
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.counts import count
from support.model import Model
from support.queues import as_list

from manytail import IndexMultiQueue, ShutDown

KEYS = ["a", "b", "c", "d"]
keys = st.sampled_from(KEYS)
items = st.integers(0, 9)  # few values, so that discard finds some
# Long runs are drawn as single seeds, because hypothesis limits how much is drawn per example.
batches = st.sampled_from([0, 1, 2, 3, 5, 8, 70, 140]).map(lambda n: [item * 7 % 10 for item in range(n)])
seeds = st.integers(0, 2**32 - 1)
# Mostly several enabled tails of one priority with free slots: only those take part in the round robin.
sizes = st.sampled_from([0, 0, 0, 6, 3, 1, -1])
priorities = st.sampled_from([0, 0, 0, 1, -1])
switches = st.sampled_from([True, True, True, False])
weights = st.integers(1, 4)
sized = st.booleans()
counts = st.integers(-1, 8) | st.just(1000)


def own_size(item):
    return item


SELECTIONS = {
    "round_robin": "round_robin",
    "weighted": "weighted",
    "oldest": "oldest",
    "last of the ring": lambda ready: ready[-1],
    "longest": lambda ready: max(ready, key=lambda tail: tail.qsize()),
    "first by key": lambda ready: min(ready, key=lambda tail: tail.key),
}


class Machine(RuleBasedStateMachine):
    new: type
    selection: object

    def __init__(self):
        super().__init__()
        self.queue = self.new(selection=self.selection)
        self.model = Model(self.selection)
        self.detached = []
        self.down = False

    def pair(self, key):
        return self.queue[key], self.model.tails[key]

    # ---------------------------------------------------------------- tails
    @initialize(tails=st.lists(st.tuples(priorities, sizes, weights, switches, sized), min_size=2, max_size=4))
    def begin(self, tails):
        for key, (priority, maxsize, weight, enabled, sized) in zip(KEYS, tails, strict=False):
            self.add(key, priority=priority, maxsize=maxsize, weight=weight, enabled=enabled, sized=sized)

    @rule(key=keys, priority=priorities, maxsize=sizes, weight=weights, enabled=switches, sized=sized)
    def add(self, key, sized, **options):
        if sized and self.new is not IndexMultiQueue:
            options["sizer"] = own_size
        if self.down:
            with pytest.raises((ShutDown, ValueError) if key in self.model.tails else ShutDown):
                self.queue.add(key, **options)
        elif key in self.model.tails:
            with pytest.raises(ValueError, match=repr(key)):
                self.queue.add(key, **options)
            assert self.queue.setdefault(key, **options) is self.queue[key]
        else:
            self.queue.add(key, **options)
            self.model.add(key, **options)

    def known(self):
        return bool(self.model.tails)

    @precondition(lambda self: len(self.model.tails) > 2 or (self.down and self.known()))
    @rule(data=st.data())
    def remove(self, data):
        key = self.draw_key(data)
        mine, theirs = self.pair(key)
        assert self.queue.remove(key) is mine
        self.model.remove(key)
        self.detached.append((mine, theirs))
        with pytest.raises(ShutDown):
            mine.put(0)

    def draw_key(self, data):
        return data.draw(st.sampled_from(sorted(self.model.tails)))

    @precondition(known)
    @rule(data=st.data(), value=priorities)
    def set_priority(self, data, value):
        mine, theirs = self.pair(self.draw_key(data))
        mine.priority = value
        self.model.set_priority(theirs, value)

    @precondition(known)
    @rule(data=st.data(), value=weights)
    def set_weight(self, data, value):
        mine, theirs = self.pair(self.draw_key(data))
        mine.weight = theirs.weight = value

    @precondition(known)
    @rule(data=st.data(), value=sizes)
    def set_maxsize(self, data, value):
        mine, theirs = self.pair(self.draw_key(data))
        mine.maxsize = theirs.maxsize = value

    @precondition(known)
    @rule(data=st.data(), value=switches)
    def set_enabled(self, data, value):
        mine, theirs = self.pair(self.draw_key(data))
        mine.enabled = value
        self.model.set_enabled(theirs, value)

    # ---------------------------------------------------------------- putting
    @precondition(known)
    @rule(data=st.data(), item=items, front=st.booleans())
    def put(self, data, item, front):
        mine, theirs = self.pair(self.draw_key(data))
        put = mine.put_front if front else mine.put
        if self.down:
            with pytest.raises(ShutDown):
                put(item, block=False)
        elif theirs.too_large(item):
            with pytest.raises(ValueError, match="maxsize"):
                put(item, block=False)
        elif not theirs.fits(item):
            with pytest.raises(Full):
                put(item, block=False)
        else:
            put(item, block=False)
            self.model.put(theirs, item, front)

    @precondition(lambda self: self.known() and not self.down)
    @rule(data=st.data(), batch=batches, shape=st.sampled_from([list, tuple, iter]))
    def put_many(self, data, batch, shape):
        mine, theirs = self.pair(self.draw_key(data))
        fits = 0
        for item in batch:
            if not theirs.fits(item):
                break
            self.model.put(theirs, item)
            fits += 1
        expected = None if fits == len(batch) else ValueError if theirs.too_large(batch[fits]) else Full
        try:
            count = mine.put_many(shape(batch), block=False)
            refused = None
        except (Full, ValueError) as error:
            count, refused = error.count, type(error)
        assert (count, refused) == (fits, expected)

    # ---------------------------------------------------------------- taking
    def nothing(self):
        return ShutDown if self.down else Empty

    @rule(with_key=st.booleans())
    def get(self, with_key):
        get = self.queue.get_with_key if with_key else self.queue.get
        if not self.model.rings:
            with pytest.raises(self.nothing()):
                get(block=False)
            return
        expected = self.model.take()
        assert get(block=False) == (expected if with_key else expected[1])

    @rule(n=counts)
    def get_many(self, n):
        if n > 0 and not self.model.rings:
            with pytest.raises(self.nothing()):
                self.queue.get_many(n, block=False)
            return
        expected = [self.model.take()[1] for _ in range(min(n, self.model.qsize()))]
        assert as_list(self.queue.get_many(n, block=False)) == expected

    @precondition(lambda self: self.known() and not self.down)
    @rule(seed=seeds)
    def put_and_get_for_a_while(self, seed):
        """Many puts, gets and changes in one step: turns show only in long runs."""
        chance = Random(seed)
        changes = chance.choice([0, 0.2, 0.5])
        for _ in range(chance.randrange(10, 60)):
            mine, theirs = self.pair(chance.choice(sorted(self.model.tails)))
            for item in range(chance.randrange(4)):
                if theirs.fits(item):
                    mine.put(item, block=False)
                    self.model.put(theirs, item)
            if chance.random() < changes:
                self.change(mine, theirs, chance)
            if self.model.rings:
                assert self.queue.peek() == self.model.peek()
            for _ in range(min(chance.randrange(4), self.model.qsize())):
                assert self.queue.get_with_key(block=False) == self.model.take()

    def change(self, mine, theirs, chance):
        """Leave the ring in one of all ways, mostly to come back."""
        what = chance.choice(["move", "disable", "clear", "discard"])
        if what == "move":
            for priority in (9, chance.choice([0, 0, 1])):
                mine.priority = priority
                self.model.set_priority(theirs, priority)
        elif what == "disable":
            for enabled in (False, chance.random() < 0.8):
                mine.enabled = enabled
                self.model.set_enabled(theirs, enabled)
        elif what == "clear":
            assert mine.clear() == len(self.model.clear(theirs))
        else:
            for item in chance.choice([range(2), list(mine)]):
                assert mine.discard(item) == self.model.discard(theirs, item)

    @rule()
    def peek(self):
        if not self.model.rings:
            with pytest.raises((Empty, ShutDown)):
                self.queue.peek()
        else:
            assert self.queue.peek() == self.model.peek()

    @precondition(known)
    @rule(data=st.data(), item=items)
    def discard(self, data, item):
        mine, theirs = self.pair(self.draw_key(data))
        assert (item in mine) == any(item == there for _, there in theirs.items)
        assert mine.discard(item) == self.model.discard(theirs, item)

    @precondition(known)
    @rule(data=st.data())
    def clear(self, data):
        mine, theirs = self.pair(self.draw_key(data))
        assert mine.clear() == len(self.model.clear(theirs))

    @precondition(lambda self: self.detached)
    @rule(data=st.data(), item=items, act=st.sampled_from(["discard", "clear", "enable", "disable", "move"]))
    def use_detached(self, data, item, act):
        mine, theirs = data.draw(st.sampled_from(self.detached))
        if act == "discard":
            assert mine.discard(item) == self.model.discard(theirs, item)
        elif act == "clear":
            assert mine.clear() == len(self.model.clear(theirs))
        elif act == "move":
            mine.priority = theirs.priority = item
        else:
            mine.enabled = theirs.enabled = act == "enable"

    # ---------------------------------------------------------------- ending
    def in_order(self):
        """Whether the next task_done is for an item that was got, or is one too many."""
        inside = sum(len(tail.items) for tail in self.model.tails.values())
        return self.model.unfinished == 0 or self.model.unfinished > inside

    @precondition(in_order)
    @rule()
    def task_done(self):
        if self.model.unfinished == 0:
            with pytest.raises(ValueError, match="task_done"):
                self.queue.task_done()
        else:
            self.queue.task_done()
            self.model.unfinished -= 1

    @precondition(lambda self: self.model.put_count > 500)
    @rule(immediate=st.booleans())
    def shutdown(self, immediate):
        self.queue.shutdown(immediate)
        self.down = True
        if immediate:
            for tail in self.model.tails.values():
                self.model.clear(tail)

    @invariant()
    def figures_agree(self):
        stats, tails = self.queue.stats(), self.model.tails
        enabled = sum(tail.enabled for tail in tails.values())
        assert stats == (self.model.qsize(), len(tails), enabled, 0, 0, self.model.put_count, self.model.got_count)
        assert self.queue.qsize() == stats.qsize
        assert self.queue.empty() == (stats.qsize == 0)
        assert self.queue.join(0) == (self.model.unfinished == 0)
        assert sorted(self.queue.subqueues) == sorted(tails)

    @invariant()
    def tails_agree(self):
        pairs = [self.pair(key) for key in self.model.tails] + self.detached
        for mine, theirs in pairs:
            assert list(mine) == [item for _, item in theirs.items]
            assert mine.qsize() == len(theirs.items)
            assert mine.size == (theirs.size() if theirs.sizer else len(theirs.items))
            assert (mine.key, mine.priority, mine.weight) == (theirs.key, theirs.priority, theirs.weight)
            assert (mine.enabled, mine.attached) == (theirs.enabled, theirs.attached)
            room = theirs.room()
            assert mine.remaining() == (None if room == float("inf") else room)
            assert mine.full() == (room <= 0)

    def teardown(self):
        left = [self.model.take() for _ in range(self.model.qsize())]
        assert [self.queue.get_with_key(block=False) for _ in left] == left
        with pytest.raises(self.nothing()):
            self.queue.get_with_key(block=False)


def machine_of(new, selection):
    # staticmethod: a function in a class body would become a method
    chosen = selection if isinstance(selection, str) else staticmethod(selection)
    return type("Machine", (Machine,), {"new": new, "selection": chosen})


@pytest.mark.thread_unsafe(reason="one hypothesis machine at a time")
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_any_sequence_of_calls_answers_as_the_model_does(new_bulk, selection):
    limits = settings(max_examples=count(25, 1_000), stateful_step_count=50, deadline=None, database=None,
                      suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    run_state_machine_as_test(machine_of(new_bulk, selection), settings=limits)


@pytest.mark.thread_unsafe(reason="takes long, and shows no more in four threads")
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_long_runs_answer_as_the_model_does(new, selection):
    """From fixed seeds, so that it always finds what it once found."""
    for seed in range(count(200, 2_000)):
        chance, machine = Random(seed), machine_of(new, selection)()
        machine.begin([
            (chance.choice([0, 0, 1]), chance.choice([0, 0, 6]), chance.randint(1, 4), True, chance.random() < 0.2)
            for _ in range(3)
        ])  # fmt: skip
        for _ in range(3):
            machine.put_and_get_for_a_while(chance.randrange(2**32))
        machine.figures_agree()
        machine.tails_agree()
        machine.teardown()
