"""Several processes on one database: they see each other's records, survive forks and kills, and share limits."""

import itertools
import os

import pytest
from support.process import KILL, begin_together, run_script, start_script
from support.threads import DEADLINE

from manytail import Shared
from manytail.mapping import _shared_tables

pytestmark = pytest.mark.thread_unsafe(reason="a database, an environment or a process of its own for each test")


def ended(process):
    out, err = process.communicate(timeout=4 * DEADLINE)
    assert process.returncode == 0, err
    return out


# The processes wait for each other: they make the tables, record and lease at the same time.
TOGETHER = """
import sys
from manytail import Shared
from manytail.mapping._grants import Ask, Terms
shared = Shared(sys.argv[1], "a")
me = int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
store = shared._store()
store.agree("codec", "schema")
for group in range(20):
    store.record({(me * 1_000 + group * 10 + row).to_bytes(16, "big"): b"mine" for row in range(10)})
    store.record({(90_000 + group * 10 + row).to_bytes(16, "big"): b"%d" % me for row in range(10)})
    spent = Ask(b"budget:b", b"budget:b", b"%d" % me, 6.0, 0.0, 3.0 * group, group)
    asks = [Ask(b"rate:r", b"rate:r", b"h", 2.0), spent]
    terms = {b"rate:r": Terms(100.0, 1.0), b"budget:b": Terms(1e9)}
    (lease, budget), now = store.exchange(1e9, terms, asks, [[(0, 2.0), (1, 6.0)]])
    print(lease.begin, budget.granted)
"""


def test_processes_that_begin_at_once_share_one_database(database):
    processes = [start_script(TOGETHER, database.url, str(number)) for number in range(4)]
    begin_together(processes)
    lines = [line.split() for process in processes for line in ended(process).splitlines()]
    starts = sorted(float(line[0]) for line in lines)
    assert all(other - one >= 0.02 - 1e-3 for one, other in itertools.pairwise(starts))
    shared = Shared(database.url, "a")
    assert shared.remembered() == 4 * 200 + 200
    assert {line[1] for line in lines} == {"6.0"}
    assert shared._store().spent(b"budget:b") == 4 * 3.0 * sum(range(20))
    assert database.query("SELECT version FROM manytail_layout") == [(_shared_tables.VERSION,)]


FORK = """
import gc, os, sys, threading, warnings
from manytail import Shared
from manytail.mapping import _shared_database
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
shared = Shared(sys.argv[1], "a")
shared._store().record({b"0" * 16: b"parent"})
inside, go_on = threading.Event(), threading.Event()
_shared_database.FORK_TIMEOUT = 0.01  # the thread does not leave the connection

def hold(connection, name):
    inside.set()
    go_on.wait()

threads = [threading.Thread(target=shared._store().run, args=(hold,), kwargs={"writes": False})]
threads[0].start()
inside.wait()  # a fork while a thread of the parent uses the connection
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        try:
            assert shared._store().look_up([b"0" * 16]) == {b"0" * 16: b"parent"}
            shared._store().record({bytes([65 + number]) * 16: b"child"})
            del shared
            gc.collect()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0) if number else sys.exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
go_on.set()
threads[0].join()
assert shared.remembered() == 4
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_of_a_fork_has_a_connection_of_its_own(database):
    run_script(FORK, arguments=[database.url])


KILLED = """
import sys
from manytail import Shared
store = Shared(sys.argv[1], "a")._store()
number = int(sys.argv[2])
while True:
    store.record({(number + row).to_bytes(16, "big"): b"x" * 100 for row in range(200)})
    number += 200
    print(number, flush=True)
"""


def test_what_was_recorded_survives_kill_9_and_nothing_is_half_there(database):
    reached, shared = 0, Shared(database.url, "a")
    for _ in range(5):
        process = start_script(KILLED, database.url, str(reached))
        lines = [process.stdout.readline() for _ in range(5)]
        os.kill(process.pid, KILL)
        lines += process.stdout.readlines()
        process.communicate()
        reached = int(([line for line in lines if line.endswith("\n")] or [str(reached)])[-1])
        count = shared.remembered()
        assert count % 200 == 0  # only whole groups
        assert count >= reached  # everything that was reported as recorded
        reached = count
