"""No Python code runs under a lock of a structure: a build that counts locks (setup.py) ends where it would."""
import subprocess
import sys

import pytest
from support.process import environment
from support.threads import DEADLINE

from manytail import _build

# Takes a lock, as the structures do in C, and runs Python code: a function, a generator that goes on, a finalizer.
UNDER_A_LOCK = """
import ctypes
from manytail import _lock

capsule, api = _lock.__pyx_capi__["count_lock"], ctypes.pythonapi
name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))
pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
count_lock = ctypes.PYFUNCTYPE(None, ctypes.c_int)(pointer(capsule, name(capsule)))

class Item:
    def __del__(self):
        pass

def generator():
    yield
    yield

begun = generator()
next(begun)
items = [Item()]
user_code = {"function": lambda: None, "generator": begun.__next__, "finalizer": items.clear}
count_lock(1)
count_lock(-1)
(lambda: None)()
count_lock(1)
user_code[KIND]()
count_lock(-1)
print("done")
"""


@pytest.mark.thread_unsafe(reason="a process of its own")
@pytest.mark.parametrize("kind", ["function", "generator", "finalizer"])
def test_python_code_under_a_lock_ends_a_process_that_counts_locks(kind):
    script = [sys.executable, "-c", f"KIND = {kind!r}{UNDER_A_LOCK}"]
    ran = subprocess.run(script, env=environment(), capture_output=True, text=True, timeout=DEADLINE, check=False)
    counts = _build.assertions or _build.sanitizer == "address"
    assert (ran.returncode != 0) is counts, ran.stderr
    assert ("Python code runs under a lock of manytail" in ran.stderr) is counts, ran.stderr
