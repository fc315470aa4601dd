"""How many calls run at once where `workers` is a range."""

from collections import deque

import pytest

from manytail._maps.engine.adaptive import ROUND, AdaptiveStage
from manytail._maps.engine.events import Failed
from manytail._maps.engine.item import Item, Kind, Verdict
from manytail._maps.engine.lanes import Lanes
from manytail._maps.engine.scheduler import Rules, Scheduler

RETRY, DEFER = Verdict(Kind.RETRY, 1e9, OSError()), Verdict(Kind.DEFER, 0.0, OSError())
GIVES_UP = Verdict(Kind.FAIL, 0.0, OSError(), pauses=True)


class Engine:
    """A scheduler with as many items as its window holds, and calls that run."""

    def __init__(self, least=1, start=1, most=64, timeout=None):
        stage = AdaptiveStage(least, start, most)
        rules = Rules(workers=most, raises=False, spreads=False, timeout=timeout)
        self.scheduler = Scheduler(rules, Lanes(), [stage])
        self.running, self.events, self.now = deque(), [], 0.0
        self.add(4 * most)

    def add(self, number):
        items = [Item(0) for _ in range(number)]
        for item in items:
            self.scheduler.lanes.assign(item)
        self.step(items)

    def step(self, *events):
        effects = self.scheduler.step(deque(events), self.now)
        self.running.extend(effects.start)
        for call in effects.start:
            call.began = self.now
        return effects

    def end(self, verdict=None, call=None):
        call = call or self.running[0]
        self.running.remove(call)
        call.result = 0
        self.step(call if verdict is None else Failed(call, verdict))
        self.add(1)

    def round(self):
        for _ in range(self.scheduler.allowed):
            self.end()
        return self.scheduler.allowed


def test_the_number_doubles_a_round_until_the_first_refusal_and_grows_by_one_from_then_on():
    engine = Engine()
    assert [engine.round() for _ in range(4)] == [2, 4, 8, 16]
    small = Engine(most=5)
    assert [small.round() for _ in range(4)] == [2, 4, 5, 5]
    engine.end(RETRY)
    assert engine.scheduler.allowed == 8
    while len(engine.running) > 8:
        engine.end()
    for _ in range(ROUND - 1):
        engine.end()
    assert engine.scheduler.allowed == 8
    engine.end()
    assert engine.scheduler.allowed == len(engine.running) == 9


@pytest.mark.parametrize("verdict", [RETRY, DEFER, GIVES_UP], ids=["retry", "deferral", "too many deferrals"])
def test_only_a_call_that_started_after_the_last_halving_halves_the_number(verdict):
    engine = Engine(least=2, start=16)
    before = list(engine.running)
    engine.end(verdict)
    assert engine.scheduler.allowed == 8
    for call in before[1:]:
        engine.end(verdict, call)
    assert engine.scheduler.allowed == 8
    for expected in (4, 2, 2):
        while engine.running[-1] in before:
            engine.end()
        engine.end(verdict, engine.running[-1])
        assert engine.scheduler.allowed == expected
        before += engine.running


def test_a_timeout_halves_the_number_and_a_failure_does_not():
    engine = Engine(start=16, timeout=10.0)
    engine.end(Verdict(Kind.FAIL, error=OSError()))
    assert engine.scheduler.allowed == 16
    engine.now = 10.0
    ((call, error), *_) = engine.step(0).cancel
    engine.end(Verdict(Kind.FAIL, error=error), call)
    assert engine.scheduler.allowed == 8


def test_successes_while_a_worker_is_idle_do_not_count():
    engine = Engine(start=2, most=4)
    while engine.scheduler.lanes.waiting:
        call = engine.running.popleft()
        call.result = 0
        engine.step(call)
    allowed = engine.scheduler.allowed
    engine.running.popleft()
    for _ in range(100):  # one worker is idle
        call = engine.running.popleft()
        engine.step(call)
        item = Item(0)
        engine.scheduler.lanes.assign(item)
        engine.step([item])
    assert engine.scheduler.allowed == allowed
