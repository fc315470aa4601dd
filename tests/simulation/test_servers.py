"""A map with a pair as `workers` finds how many calls a server bears, and follows it when it halves. Limits in cost
that is settled after the call use what a server grants, and are hardly ever refused."""

import math

import pytest
from support.counts import LONG

from manytail import Rate
from simulation.code import Code
from simulation.quota import Quota
from simulation.servers import Load, Server

pytestmark = pytest.mark.thread_unsafe(reason="a world has no threads: four at once find no more than one")

CODE = Code()
CAPACITIES = [4, 16, 64, 200]
SEEDS = range(1, 6) if LONG else [1]
MOST = 1_000


@pytest.mark.parametrize("scatter", [0.2, 0.9] if LONG else [0.5])
@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_map_finds_what_a_server_bears_and_is_hardly_refused(capacity: int, scatter: float, seed: int) -> None:
    """No fixed number gets more done than the capacity."""
    load = Load(Server(capacity, scatter), (1, MOST), seed, CODE)
    load.run(200 * capacity)
    found = load.run(50 * capacity)
    assert found.rate >= 0.9 * capacity
    assert found.most <= 2 * capacity + 1
    half = load.capacity = capacity // 2  # while calls run
    load.run(400 * half)
    assert load.run(50 * half).rate >= 0.9 * half
    assert load.refused <= 0.02 * load.done


@pytest.mark.parametrize("keys", [1, 5])
def test_a_map_with_keys_finds_it_too(keys: int) -> None:
    """A refusal pauses its key alone: calls of the others tell of the same excess."""
    load = Load(Server(16), (1, MOST), 1, CODE, keys=keys)
    load.run(200 * 16)
    found = load.run(100 * 16)
    assert found.rate >= 0.9 * 16
    assert found.refused <= 0.02 * found.calls


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_where_a_rate_holds_the_number_does_not_grow(capacity: int) -> None:
    """The rate is half of what the server bears."""
    rate = capacity // 2
    load = Load(Server(capacity), (1, MOST), 1, CODE, limits=(Rate(rate),))
    load.run(200 * capacity)
    found = load.run(50 * capacity)
    assert found.rate >= 0.9 * rate
    assert load.scheduler.allowed <= 2 * (1.3 * rate + 2)  # the last doubling was one too many
    assert load.refused == 0


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_it_doubles_until_the_first_refusal(capacity: int) -> None:
    """Of twice its capacity: a round takes about as long as a call of twice the latency."""
    load = Load(Server(capacity), (1, MOST), 1, CODE)
    while not load.refused:
        load.run(1)
        assert load.scheduler.allowed in {1 << number for number in range(10)}
    assert load.now <= 4 * math.log2(4 * capacity)


def test_it_begins_with_the_number_between() -> None:
    load = Load(Server(64), (2, 9, 40), 1, CODE)
    assert load.run(1).most == 9
    load.capacity = 1
    load.run(30)
    assert load.scheduler.allowed < 9


def test_it_begins_with_the_least_and_never_exceeds_the_most() -> None:
    load = Load(Server(64), (5, 9), 1, CODE)
    assert load.scheduler.allowed == 5
    assert load.run(1).most == 5
    load.run(200)
    found = load.run(200)
    assert found.most == load.scheduler.allowed == 9
    load.capacity = 1  # refuses the third
    assert load.run(100).refused > 0
    assert load.scheduler.allowed == 5


# ---------------------------------------------------------------------------------------------------- quotas
SECONDS = 7_200.0 if LONG else 1_800.0  # of the virtual clock


@pytest.mark.parametrize(("share", "used", "refused"), [(0.95, 0.93, 0.01), (1.0, 0.97, 1.0)])
def test_estimates_that_are_off_use_the_quota_all_the_same(share: float, used: float, refused: float) -> None:
    outcome = Quota(share, SECONDS, seed=1).run()
    assert outcome.used >= used
    assert outcome.refused <= refused
    assert outcome.failed == 0
