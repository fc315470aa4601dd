"""Fixtures of the tests of entry queues: the contract's tests run over every class, with integers as items."""
import functools
import gc
import sys
import warnings
from pathlib import Path

import pytest

from manytail import EntryQueue, LastValueQueue, PriorityEntryQueue, SortedEntryQueue

HERE = Path(__file__).parent
# Without the GIL, this looks at every object.
freeze = gc.freeze if getattr(sys, "_is_gil_enabled", lambda: True)() else lambda: None

# For rising items every class keeps arrival order: tests that take `new` put rising integers at equal priority.
MAKERS = {
    "fifo": EntryQueue,
    "priority": PriorityEntryQueue,
    "sorted": functools.partial(SortedEntryQueue, key=lambda item: item),
    "last value": functools.partial(LastValueQueue, key=lambda item: item),
}


@pytest.fixture(params=MAKERS)
def new(request):
    """Makes a queue of each class. Rising integers are got in the order in which they were put."""
    return MAKERS[request.param]


def pytest_configure(config):
    """Most tests leave their subscriptions to the collector, which closes them with a warning. Tests of that warning
    expect it."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed (subscription|consumer|<):ResourceWarning")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Collect what the last test left unclosed. Between tests the filter does not apply: a warning there would be an
    error of the next test. pytest calls this for the tests of other folders too."""
    if HERE in item.path.parents:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        freeze()  # so that the next collection looks only at what this test makes
    return (yield)


@pytest.fixture(scope="package", autouse=True)
def leave_no_garbage():
    """Collect at the end too: after pytest's end the filter does not apply, and a warning would fail the whole run."""
    yield
    gc.collect()


@pytest.fixture
def planted_pauses():
    """A short, rare pause that test threads call between their steps, to vary how these overlap. Pauses inside the
    algorithms are in builds with MANYTAIL_DELAYS=1 (`make stress`)."""
    import random
    import time

    chance = random.Random(20)

    def pause():
        kind = chance.random()
        if kind < 0.05:
            time.sleep(0.0005)
        elif kind < 0.3:
            time.sleep(0)

    return pause


@pytest.fixture
def keep():
    """Keeps a subscription until the test ends: `keep(queue.subscribe()).get()`. An unreferenced one closes and
    releases what it got."""
    kept = []

    def keep(subscription):
        kept.append(subscription)
        return subscription

    yield keep
    for subscription in kept:
        subscription.close()
