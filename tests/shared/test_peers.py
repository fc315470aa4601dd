"""What happens beside a map on a database while it runs: peers that are stopped, forks at random moments, a disk that
becomes full, a server that becomes read-only. All but forks with threads, inline, and in the caller's loop.
"""

import contextlib
import os
import signal
import sqlite3
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from support.maps import CALLERS, INLINE, Way, threads_of_maps
from support.process import run_script, start_script
from support.threads import DEADLINE, Threads, wait_until

from manytail import Concurrency, Shared, SharedUnavailable

pytestmark = pytest.mark.thread_unsafe(reason="processes of its own for each test")

posix = pytest.mark.skipif(sys.platform == "win32", reason="stops processes, or forks")
WAYS = [Way("threads", is_async=False), INLINE[0], CALLERS[0]]
ways = pytest.mark.parametrize("mapped", WAYS, ids=[way.name for way in WAYS])


LEASE = 0.6

# It holds both permits in calls that run, and has two items that wait for them.
HOLDS = """
import os, sys
from manytail import Concurrency, Shared, concurrent_map

limit = Concurrency(2.0, lease=float(sys.argv[2]), shared=Shared(sys.argv[1], "a"), name="c")

def fn(item):
    if item < 2:
        os.write(1, b"holds\\n")  # as one piece: there are two of them
        sys.stdin.readline()
    return item

assert list(concurrent_map(fn, range(4), workers=4, limits=limit)) == [0, 1, 2, 3]
with limit:
    print("ended")
"""


def stop(process, database):
    """In no transaction of SQLite, whose lock it would keep: nobody else can end that. A server ends a transaction."""
    while True:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        try:
            if database.kind == "sqlite":
                with contextlib.closing(sqlite3.connect(database.url.removeprefix("sqlite:///"), timeout=0)) as own:
                    own.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError:
            os.kill(process.pid, signal.SIGCONT)


@posix
@ways
def test_permits_of_a_process_that_is_stopped_for_three_leases_are_free(database, mapped):
    """This process gets them when the lease has run out, and keeps them for three leases. The other one goes on when it
    is continued: its calls end, and it waits for permits as anybody."""
    process = start_script(HOLDS, database.url, str(LEASE))
    limit = Concurrency(2.0, lease=LEASE, shared=Shared(database.url, "a"), name="c")

    def fn(item):
        if item < 2:
            threading.Event().wait(1.5 * LEASE)
        return item

    try:
        assert [process.stdout.readline() for _ in range(2)] == ["holds\n"] * 2
        stop(process, database)
        with Threads() as threads:
            running = threads.start(mapped, fn, range(4), limits=limit)
            assert running.result() == [0, 1, 2, 3]
    finally:
        os.kill(process.pid, signal.SIGCONT)
    said, errors = process.communicate("go\ngo\n", timeout=4 * DEADLINE)
    assert (process.returncode, said) == (0, "ended\n"), errors
    with limit:  # nothing of the stopped process is left
        pass


FORKS = """
import os, random, signal, sys, threading, warnings
from manytail import Concurrency, Rate, Shared, concurrent_map

warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
shared = Shared(sys.argv[1], "a", outage_timeout=20.0)
chance = random.Random(int(sys.argv[2]))
limits = [Rate(1e6, shared=shared, name="r"), Concurrency(50.0, shared=shared, name="c", lease=20.0)]

def fn(item):
    return item + 1

def fork():
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(20)  # a child that hangs
        assert list(concurrent_map(fn, range(30, 60), limits=limits, remember=shared)) == list(range(31, 61))
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
    os._exit(1)

children, results = [], []
moments = sorted(chance.sample(range(600), 5))
for result in concurrent_map(fn, range(600), workers=8, limits=limits, remember=shared):
    results.append(result)
    while moments and len(results) > moments[0]:
        moments.pop(0)
        threading.Event().wait(chance.random() / 500)
        children.append(fork())
assert results == list(range(1, 601)), results
ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert ends == [0] * 5, ends
assert shared.remembered() == 600
"""


@posix
@pytest.mark.parametrize("seed", [1, 2])
def test_forks_at_random_moments_of_a_map_that_remembers_and_has_limits(database, seed):
    """In each child a map of its own runs to its end, as the parent's does."""
    run_script(FORKS, arguments=[database.url, str(seed)])


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
