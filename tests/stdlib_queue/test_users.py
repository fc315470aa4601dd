"""Programs that use the standard library's queue run on ours, in a process where `sys.modules["queue"]` is
manytail.queue."""
import pytest
from support.process import run_script

pytestmark = pytest.mark.thread_unsafe(reason="each test is a process of its own")

REPLACED = """
import sys
from manytail import queue as ours
for name in ("logging.handlers", "concurrent.futures.thread", "multiprocessing.pool", "multiprocessing.managers"):
    assert name not in sys.modules, name
sys.modules["queue"] = ours
"""


def test_thread_pools():
    assert run_script(REPLACED + """
import concurrent.futures.thread, asyncio
assert concurrent.futures.thread.queue is ours
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    assert isinstance(pool._work_queue, ours.SimpleQueue)
    assert list(pool.map(abs, range(-1000, 0))) == list(range(1000, 0, -1))
    pending = [pool.submit(pow, 2, n) for n in range(100)]
    assert [future.result() for future in concurrent.futures.as_completed(pending)]
dropped = concurrent.futures.ThreadPoolExecutor(2)
dropped.submit(int)
threads = list(dropped._threads)
del dropped
for thread in threads:
    thread.join()                       # told to end by the weak reference's callback, which puts into the queue
async def main():
    return await asyncio.gather(*[asyncio.to_thread(pow, 2, n) for n in range(50)])
assert asyncio.run(main()) == [2**n for n in range(50)]
concurrent.futures.ThreadPoolExecutor(2).submit(int)        # ends with the interpreter
print("done")
""") == "done\n"


def test_multiprocessing_pools():
    assert run_script(REPLACED + """
import multiprocessing, multiprocessing.pool, os
assert multiprocessing.pool.queue is ours
with multiprocessing.pool.ThreadPool(4) as pool:
    assert isinstance(pool._taskqueue, ours.SimpleQueue)
    assert pool.map(abs, range(-1000, 0)) == list(range(1000, 0, -1))
    assert sorted(pool.imap_unordered(abs, range(-100, 0))) == list(range(1, 101))
with multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn").Pool(2) as pool:
    assert pool.map(abs, range(-1000, 0)) == list(range(1000, 0, -1))
print("done")
""") == "done\n"
