"""Random histories of the real queues, each explained by a sequential run of its specification.

The same seeds on every run; the schedules differ. MANYTAIL_HISTORIES says how many (default 300 of each kind). A build
with MANYTAIL_DELAYS=1 (`make stress`) makes calls overlap that otherwise hardly ever do.
"""

import pytest
from support.counts import count
from support.threads import switching_often

from linear.entry_plans import EntryPlan
from linear.multiqueue_plans import IndexPlan, MultiQueuePlan
from linear.pubsub_plans import PubSubPlan

HISTORIES = count(300, 3_000, "MANYTAIL_HISTORIES")
PLANS = {"MultiQueue": MultiQueuePlan, "IndexMultiQueue": IndexPlan, "EntryQueue": EntryPlan, "PubSubQueue": PubSubPlan}
KINDS = {
    "items only": lambda plan: {"changes": False},
    "items only, no waiting": lambda plan: {"changes": False, "waits": False, "threads": 4, "calls": plan.few},
    "everything": lambda plan: {},
    "everything, four threads": lambda plan: {"threads": 4, "calls": plan.few},
    "everything, no waiting": lambda plan: {"waits": False, "threads": 2, "calls": 2 * plan.few},
}
pytestmark = pytest.mark.thread_unsafe(reason="changes the switch interval and starts threads")


@pytest.fixture(params=PLANS)
def plan(request):
    if request.param == "IndexMultiQueue":
        pytest.importorskip("numpy")  # what its get_many returns
    with switching_often():
        yield PLANS[request.param]


@pytest.mark.parametrize("kind", KINDS)
def test_small_histories(plan, kind):
    for seed in range(HISTORIES):
        plan(seed, **KINDS[kind](plan)).check()


@pytest.mark.parametrize("changes", [False, True], ids=["items only", "everything"])
def test_longer_histories(plan, changes):
    """Threads start one after the other and small histories are short. In these, the middle parts certainly overlap."""
    for seed in range(HISTORIES // 6):
        plan(seed, threads=3, calls=plan.many, changes=changes, waits=False).check()
