"""Limits in cost that is settled after the call use what a server grants, and are hardly ever refused."""

import pytest
from support.counts import LONG

from simulation.quota import Quota

pytestmark = pytest.mark.thread_unsafe(reason="a world has no threads: four at once find no more than one")

SECONDS = 7_200.0 if LONG else 1_800.0  # of the virtual clock


@pytest.mark.parametrize(("share", "used", "refused"), [(0.95, 0.93, 0.01), (1.0, 0.97, 1.0)])
def test_estimates_that_are_off_use_the_quota_all_the_same(share: float, used: float, refused: float) -> None:
    outcome = Quota(share, SECONDS, seed=1).run()
    assert outcome.used >= used
    assert outcome.refused <= refused
    assert outcome.failed == 0
