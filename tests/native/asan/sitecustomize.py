"""Imported by each interpreter of `make asan` (tools/native.py puts this folder on its path).

A fork waits until the system has ended the threads that have ended for Python. A thread that ends gives its memory back
under locks of ASan, and ASan of gcc 12 does not take these before a fork: the child would find them locked for ever.
Whoever forks has the GIL, so no other thread begins to end between the wait and the fork.
"""

import os
import sys
import time

LONGEST = 0.2  # seconds; some threads are not Python's and stay (pyarrow's)


def wait_for_ended_threads() -> None:
    end = time.monotonic() + LONGEST
    while len(os.listdir("/proc/self/task")) > len(sys._current_frames()) and time.monotonic() < end:
        time.sleep(0.0005)


os.register_at_fork(before=wait_for_ended_threads)
