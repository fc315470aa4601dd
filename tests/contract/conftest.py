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


@pytest.fixture(params=STRUCTURES)
def structure(request):
    """Makes a structure of each class, and closes all of them at the end."""
    without_numpy(request.param)
    made = []

    def make(maxsize=0):
        made.append(STRUCTURES[request.param](maxsize))
        return made[-1]

    make.kind = STRUCTURES[request.param]
    yield make
    for one in made:
        one.close()


@pytest.fixture(params=CALLS)
def call(request):
    """A call of each coroutine function, waiting."""
    without_numpy(request.param)
    one = CALLS[request.param]()
    yield one
    one.close()
