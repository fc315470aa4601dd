"""Fixtures of the core's tests: the contract suite runs over every multi-queue class, with integers as items."""
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `support`, whatever the import mode

from support import event_loops

from manytail import IndexMultiQueue, MultiQueue

kind_of_loop = event_loops.kind_of_loop


@pytest.fixture(params=[MultiQueue, IndexMultiQueue], ids=["objects", "index"])
def new(request: pytest.FixtureRequest) -> type:
    """A multi-queue class. Its tests use integers as items, and `support.queues.as_list` on results of bulk gets."""
    return request.param


@pytest.fixture
def new_bulk(new: type) -> type:
    """The same for tests that call get_many, which needs numpy on an IndexMultiQueue."""
    if issubclass(new, IndexMultiQueue):
        pytest.importorskip("numpy")
    return new
