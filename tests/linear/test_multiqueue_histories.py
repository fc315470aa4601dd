"""Small random histories of the real multi-queues, each explained by a sequential run of the specification.

The same seeds on every run; the schedules differ. MANYTAIL_HISTORIES says how many (default 300 of each kind). A build
with MANYTAIL_DELAYS=1 (`make stress`) makes calls overlap that otherwise hardly ever do.
"""

import pytest
from support.counts import count
from support.threads import switching_often

from linear.checker import check
from linear.history import record
from linear.plans import Plan
from manytail import IndexMultiQueue, MultiQueue

HISTORIES = count(300, 3_000, "MANYTAIL_HISTORIES")
KINDS = {
    "items only": {"changes": False},
    "items only, no waiting": {"changes": False, "waits": False, "threads": 4, "calls": 3},
    "everything": {},
    "everything, four threads": {"threads": 4, "calls": 3},
    "everything, no waiting": {"waits": False, "threads": 2, "calls": 6},
}
# Threads start one after the other and small histories are short. In these, the middle parts certainly overlap.
LONGER = {"threads": 3, "calls": 40, "waits": False}

pytestmark = pytest.mark.thread_unsafe(reason="changes the switch interval and starts threads")


@pytest.fixture(params=[MultiQueue, IndexMultiQueue], ids=["objects", "index"])
def new(request):
    if issubclass(request.param, IndexMultiQueue):
        pytest.importorskip("numpy")  # what its get_many returns
    return request.param


@pytest.fixture(autouse=True)
def often():
    with switching_often():
        yield


def check_histories(new, seeds, **options):
    for seed in seeds:
        plan = Plan(seed, **options)
        try:
            history = record(plan.planned(new))
            check(history, plan.spec.knowing(history))
        except AssertionError as error:
            error.add_note(f"the plan: Plan({seed}, **{options})")
            raise


@pytest.mark.parametrize("kind", KINDS)
def test_small_histories(new, kind):
    check_histories(new, range(HISTORIES), **KINDS[kind])


@pytest.mark.parametrize("changes", [False, True], ids=["items only", "everything"])
def test_longer_histories(new, changes):
    check_histories(new, range(HISTORIES // 6), changes=changes, **LONGER)
