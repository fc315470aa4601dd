"""What happens to the database of a map while it runs: its disk becomes full, its server read-only. With threads,
inline, and in the caller's loop.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from support.maps import CALLERS, INLINE, Way, threads_of_maps
from support.threads import Threads, wait_until

from manytail import Shared, SharedUnavailable

pytestmark = pytest.mark.thread_unsafe(reason="processes of its own for each test")

WAYS = [Way("threads", is_async=False), INLINE[0], CALLERS[0]]
ways = pytest.mark.parametrize("mapped", WAYS, ids=[way.name for way in WAYS])


@pytest.fixture
def small_disk():
    """A file system of 1 MB."""
    folder = Path(tempfile.mkdtemp(prefix="manytail-disk-"))  # not below tmp_path, which pytest could not remove
    mount = f"mount -t tmpfs -o size=1m tmpfs {folder} 2>/dev/null"
    if sys.platform != "linux" or os.geteuid() != 0 or os.system(mount):
        folder.rmdir()
        pytest.skip("a file system of 1 MB cannot be mounted here: that takes root and CAP_SYS_ADMIN")
    yield folder
    assert os.system(f"umount --lazy {folder}") == 0
    folder.rmdir()


@ways
def test_a_disk_that_becomes_full_ends_a_map_that_records(small_disk, mapped):
    shared = Shared(small_disk / "a.db", "a", outage_timeout=0.3)
    results: list[str] = []
    with Threads() as threads:
        running = threads.start(mapped, lambda item: str(item) * 30_000, range(1, 1_000), results, remember=shared)
        with pytest.raises(SharedUnavailable, match=r"full|space|disk"):
            running.result()
    assert results == [str(item) * 30_000 for item in range(1, len(results) + 1)]
    wait_until(lambda: not threads_of_maps())


@ways
def test_a_database_that_becomes_read_only_ends_a_map_that_records(postgresql, mapped):
    """As where a server fails over to a standby."""
    shared = Shared(postgresql.url, "a", outage_timeout=0.3)
    shared.remembered()

    def fn(item):
        if item == 0:
            postgresql.query(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', "
                "current_database()); END $$"
            )
            postgresql.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'manytail' AND datname = current_database()"
            )
        return item

    with Threads() as threads:
        running = threads.start(mapped, fn, range(3), remember=shared)
        with pytest.raises((SharedUnavailable, PermissionError), match=r"read-only"):
            running.result()
    wait_until(lambda: not threads_of_maps())
