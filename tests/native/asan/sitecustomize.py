"""Imported by each interpreter of `make asan` (tools/native.py puts this folder on its path).

Before a fork, wait until no other thread runs. A thread that ends gives its memory back under locks of ASan, after it
has released the GIL. ASan of gcc 12 does not take these locks before a fork, so the child may find one taken for ever.
A thread that waits for the GIL, or for anything else, sleeps and has no such lock. Another thread may still begin to
end between the wait and the fork. That is rare.
"""

import os
import time
from _thread import get_native_id
from contextlib import suppress

LONGEST_WAIT = 0.2  # seconds


def others_run() -> bool:
    """Whether a thread but this one runs, by the third field of its line in /proc."""
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != get_native_id():
            with suppress(OSError), open(f"/proc/self/task/{thread}/stat", encoding="ascii", errors="replace") as line:
                if line.read().rpartition(")")[2].split()[0] == "R":
                    return True
    return False


def wait_until_no_other_runs() -> None:
    end = time.monotonic() + LONGEST_WAIT
    while others_run() and time.monotonic() < end:
        time.sleep(0.0005)


os.register_at_fork(before=wait_until_no_other_runs)
