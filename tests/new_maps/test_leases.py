"""Leases of shared limits in simulated worlds of processes and a database, and planted faults that these find."""

import pytest

from manytail._maps.limits import grants, leases
from manytail._maps.limits.leases import Leased, LeasedPermits, LeasedSpending, LeasedTokens

from .lease_world import LeaseWorld, frequency
from .ledger_world import Violation

pytestmark = pytest.mark.thread_unsafe(reason="it is pure: one run shows as much as four")


def worlds(seeds: range) -> None:
    for seed in seeds:
        world = LeaseWorld(seed)
        try:
            world.run()
            world.check_end()
        except Violation as found:
            raise Violation(f"world {seed}: {found}") from None


def test_totals_hold_over_all_processes_and_nobody_waits_for_ever():
    worlds(range(200))


@pytest.mark.parametrize("rate", [20.0, 300.0])
@pytest.mark.parametrize("trip", [0.0, 0.01, 0.035, 0.1])
def test_a_rate_that_calls_wait_for_is_used_up_whatever_a_round_trip_takes(trip, rate):
    assert 0.95 <= frequency(trip, rate) <= 1.1


FAULTS = [
    (LeasedTokens, "wanted", lambda self, need: 1e9),
    (LeasedPermits, "kept", lambda self, returns, now: self.allotted),
    (LeasedPermits, "open_at", lambda self, now: float("inf")),
    (LeasedSpending, "end", lambda self, cost, spent, now: LeasedPermits.end(self, cost, spent, now)),
    (Leased, "backoff", lambda self: float("inf")),
    (grants._Part, "_others", lambda self, now: 0.0),
    (grants._Part, "start", lambda self, now: now - 1.0 if self.is_rate else float("-inf")),
]


@pytest.mark.thread_unsafe(reason="it replaces methods of a class")
@pytest.mark.parametrize(("owner", "name", "other"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_fault_is_found(owner, name, other, monkeypatch):
    monkeypatch.setattr(owner, name, other)
    try:
        worlds(range(200))
    except Exception:  # also what the broken code raises
        return
    raise AssertionError("no world has found it")


def test_reports_that_come_twice_count_once(monkeypatch):
    monkeypatch.setattr(leases.LeasedSpending, "is_unreported", lambda self: True)

    def forgets(self, now):
        ask, hold = self.ask, self.holds.get(self.ask.holder)
        if hold is not None:
            hold.number = -1  # every report counts as a new one
        report(self, now)
        assert ask is self.ask

    report = grants._Part.report
    monkeypatch.setattr(grants._Part, "report", forgets)
    with pytest.raises(Violation):
        worlds(range(200))
