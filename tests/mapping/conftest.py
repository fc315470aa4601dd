"""What several files of tests of maps use."""

import gc
from collections.abc import Iterator

import pytest
from support.maps import threads_of_maps
from support.threads import wait_until


@pytest.fixture
def no_thread_stays() -> Iterator[None]:
    """The test begins without threads of maps, and those of its own maps end."""
    wait_until(lambda: not threads_of_maps(), "threads of another test")
    yield
    gc.collect()
    wait_until(lambda: not threads_of_maps(), "threads of maps that have ended")
