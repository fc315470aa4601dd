"""Fixtures of the suites that hold for every class."""
import sys
from pathlib import Path

import pytest

# For `support`, `contract` and `samples`.
sys.path.insert(0, str(Path(__file__).parent / "lifecycle"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import event_loops

from contract.structures import CALLS, STRUCTURES

kind_of_loop = event_loops.kind_of_loop


def without_numpy(name: str) -> None:
    """What of an IndexMultiQueue returns an array needs numpy."""
    if name.startswith("Index"):
        pytest.importorskip("numpy")


def closing(make):
    """`make`, and at the end all that it has made is closed."""
    made = []

    def new(**options):
        one = make(**options)
        made.append(one)  # several threads may call this: the last of `made` may be another's
        return one

    yield new
    for one in made:
        one.close()


@pytest.fixture(params=STRUCTURES)
def structure(request):
    """Makes a structure of each class."""
    without_numpy(request.param)
    yield from closing(STRUCTURES[request.param])


@pytest.fixture(params=CALLS)
def new_call(request):
    """Makes a call of each coroutine function. A test may run in several threads at once: each makes its own."""
    without_numpy(request.param)
    yield from closing(CALLS[request.param])
