"""The ledger of limits in simulated worlds: totals are kept, every owner comes to its turn, and a world with a planted
fault is caught."""

import math

import pytest

from manytail._maps.limits import ledger
from manytail._maps.limits.ledger import LATE, Permits, Spending, Tokens, Wait, Waiter

from .ledger_world import Owner, Violation, World, random_world

pytestmark = pytest.mark.thread_unsafe(reason="it is pure: one run shows as much as four")
WORLDS = 120


def worlds(number: int = WORLDS) -> None:
    for seed in range(number):
        world = random_world(seed)
        try:
            world.run()
            world.check_end()
        except Violation as found:
            raise Violation(f"world {seed}: {found}") from None


def test_totals_are_kept_and_nobody_waits_for_ever():
    worlds()


def full_at_both(rivals: int = 3) -> tuple[World, Owner]:
    """One needs a Rate and a Concurrency, which others use up, each by itself: one of them is full whenever the other
    has room."""
    world = World(0)
    rate, permits = Tokens(None, False, None, 0.1, 0.0, 1.0), Permits(None, False, None, 1.0)
    both = Owner("both", [rate, permits], 20, [1.0, 1.0], lambda: 0.05)
    world.owners = [both]
    for number in range(rivals):
        world.owners.append(Owner(f"rate {number}", [rate], 10_000, [1.0], lambda: 0.001, workers=4))
        world.owners.append(Owner(f"permit {number}", [permits], 10_000, [1.0], lambda: world.random.uniform(0.1, 1)))
    return world, both


def test_who_needs_two_limits_that_others_use_up_is_not_starved():
    world, both = full_at_both()
    world.run(until=400.0)
    assert both.calls == 0
    assert both.longest < 30.0


def test_who_has_taken_goes_behind_those_that_wait():
    world = World(0)
    permits = Permits(None, False, None, 1.0)
    world.owners = [Owner(str(number), [permits], 1_000, [1.0], lambda: 1.0) for number in range(5)]
    world.run(until=500.0)
    assert max(owner.started for owner in world.owners) - min(owner.started for owner in world.owners) <= 25
    assert max(owner.longest for owner in world.owners) < 6.0


def test_a_large_cost_is_not_passed_for_ever_by_small_ones():
    world = World(0)
    permits = Permits(None, False, None, 4.0)
    large = Owner("large", [permits], 10, [4.0], lambda: 0.5)
    small = [Owner(str(number), [permits], 10_000, [1.0], lambda: 1.0, workers=3) for number in range(3)]
    world.owners = [*small, large]
    world.run(until=100.0)
    assert large.calls == 0


def test_a_blocked_owner_holds_nobody_up_for_longer_than_a_start_may_be_late():
    world = World(0)
    permits = Permits(None, False, None, 1.0)
    blocked = Owner("blocked", [permits], 2, [1.0], lambda: 0.1)
    others = [Owner(str(number), [permits], 2, [1.0], lambda: 0.1) for number in range(3)]
    world.owners = [Owner("first", [permits], 1, [1.0], lambda: 0.5), blocked, *others]
    world.at(0.2, lambda: world.block(blocked, 1e6))
    world.run(until=1e5)
    assert [owner.calls for owner in others] == [0, 0, 0]
    assert all(owner.longest < 1.0 + 8 * LATE for owner in others)


def test_a_rate_that_calls_wait_for_is_used_up():
    world = World(0)
    rate = Tokens(None, False, None, 0.01, 0.0, 1.0)
    owners = [Owner(str(number), [rate], 500, [1.0], lambda: 0.001, workers=4) for number in range(4)]
    world.owners = owners
    world.run()
    world.check_end()
    assert world.now < 2_000 * 0.01 / 0.95


def test_what_was_estimated_too_high_is_used_within_a_period_and_not_after():
    rate = Tokens(None, False, None, 0.1, 0.0, 1.0)
    waiter = Waiter(None)
    assert isinstance(ledger.take([waiter], [rate], [10.0], 0.0, []), float)
    ledger.end([rate], [10.0], [2.0], 0.5, [])
    assert rate.room_at(1.0, 0.5) <= 0.5
    taken = 0
    while isinstance(ledger.take([waiter], [rate], [1.0], 0.5, []), float):
        taken += 1
    assert taken == 4  # of the 5 units of 0.5 s, 2 are spent; one start more may bring it into debt
    assert isinstance(ledger.take([waiter], [rate], [1.0], 0.5, []), Wait)


def test_a_budget_refuses_what_will_never_fit_and_lets_wait_what_may():
    budget = Spending(None, False, None, 3.0)
    waiter = Waiter(None)
    ledger.take([waiter], [budget], [2.0], 0.0, [])
    assert isinstance(ledger.take([waiter], [budget], [2.0], 0.0, []), Wait)
    ledger.end([budget], [2.0], [2.0], 0.0, [])
    assert ledger.take([waiter], [budget], [2.0], 0.0, []) == ledger.Never(budget)
    assert not budget.queue
    assert ledger.take([waiter], [budget], [1.0], 0.0, []) == math.inf


FAULTS = {
    "an end gives nothing back": ("settle", lambda self, cost, spent, now, wakes: None),
    "nobody is woken": ("call_first", lambda self, wakes: None),
    "the first does not come first": ("turn_of", lambda self, waiters, now, wakes: -math.inf),
    "the second is not woken": ("call_first", lambda self, wakes: wakes.extend(self.queue[:1])),
}


def all_worlds() -> None:
    worlds()
    test_a_large_cost_is_not_passed_for_ever_by_small_ones()
    test_a_blocked_owner_holds_nobody_up_for_longer_than_a_start_may_be_late()


@pytest.mark.thread_unsafe(reason="it replaces methods of a class")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch):
    name, other = FAULTS[fault]
    monkeypatch.setattr(ledger.Account, name, other)
    with pytest.raises(AssertionError):
        all_worlds()


@pytest.mark.thread_unsafe(reason="it replaces what a module has")
def test_planted_faults_of_the_module_are_found(monkeypatch):
    def takes_one(waiters, accounts, costs, now, wakes):
        return take(waiters[:1], accounts[:1], costs[:1], now, wakes)

    take = ledger.take
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "take", takes_one)
        with pytest.raises(Violation):
            worlds()
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "MOVES", math.inf)
        with pytest.raises(AssertionError):
            test_who_needs_two_limits_that_others_use_up_is_not_starved()
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "leave", lambda waiter, now, wakes: None)
        with pytest.raises((Violation, AssertionError)):
            worlds()
