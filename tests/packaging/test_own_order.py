"""The order that docs/design/entryqueue.md shows as an example: built into a copy of the entry queues, and used."""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.process import run_command

import manytail

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("gcc") or shutil.which("clang")

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(COMPILER is None, reason="builds with gcc or clang"),
    pytest.mark.thread_unsafe(reason="one build for the whole module"),
]

USE = """
from queue import Empty, Full

from manytail import EntryState
from manytail._orders import NewestFirstQueue

q = NewestFirstQueue("stack")
with q.subscribe() as one, q.subscribe() as other, q.subscribe(selector=lambda e: e.item % 2) as odd:
    q.put_many([1, 2])
    two, first = one.get(), other.get()
    assert (two.item, first.item) == (2, 1)
    q.put(3)                                                        # before every pointer: they come back
    assert [e.item for e in q.browse()] == [3, 2, 1]
    assert first.release() and two.release()
    assert [e.item for e in (odd.get(), one.get(), odd.get())] == [3, 2, 1]
    try:
        one.get(False)
        raise SystemExit("got from an empty queue")
    except Empty:
        pass

q = NewestFirstQueue(maxsize=2, overflow="drop_oldest")
old = [q.put(n) for n in range(4)]
assert [e.item for e in q.browse()] == [3, 2] and old[0].state is old[1].state is EntryState.DELETED
assert q.stats().oldest_age is not None and q.purge() == 2 and q.stats().oldest_age is None

q = NewestFirstQueue(maxsize=1, overflow="reject")
q.put("a")
try:
    q.put("b")
    raise SystemExit("put into a full queue")
except Full:
    pass
print("NewestFirstQueue: used")
"""


NEEDS = """
from libc.stdint cimport UINT64_MAX, uint64_t
from manytail._entry cimport list_insert
from manytail._eq_cursors cimport locked_return_to_cursors


"""


def example():
    text = (ROOT / "docs" / "design" / "entryqueue.md").read_text()
    return re.search(r"```cython\n(cdef int place_newest_first.*?)```", text, re.DOTALL)[1]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package whose module of other orders has that order too."""
    place = tmp_path_factory.mktemp("order")
    package = shutil.copytree(
        Path(manytail.__file__).parent, place / "manytail", ignore=shutil.ignore_patterns("__pycache__", "_orders.*.so")
    )
    source = shutil.copytree(ROOT / "pyx", place / "pyx") / "manytail"
    with (source / "_orders.pyx").open("a") as orders:
        orders.write("\n\n" + NEEDS + example())
    made, suffix = place / "_orders.c", sysconfig.get_config_var("EXT_SUFFIX")
    directives = "freethreading_compatible=True,binding=True"
    folders = ["-I", ROOT / "python", "-I", source.parent]
    cython = [sys.executable, "-m", "cython", "-3", "-X", directives, *folders, "--module-name", "manytail._orders"]
    subprocess.run([*cython, "-o", made, source / "_orders.pyx"], check=True, cwd=source)
    include = [f"-I{ROOT / 'include'}", f"-I{sysconfig.get_paths()['include']}"]
    flags = ["-std=gnu11", "-fno-strict-aliasing", "-O0", "-w", "-shared", "-fPIC"]
    if sys.platform == "darwin":
        flags += ["-undefined", "dynamic_lookup"]
    subprocess.run([COMPILER, *flags, *include, made, "-o", package / f"_orders{suffix}"], check=True)
    return place


def test_the_order_of_the_documentation_can_be_built_and_used(package):
    used = run_command(sys.executable, "-c", USE, env={"PYTHONPATH": str(package)}, cwd=package)
    assert used.returncode == 0, used.stderr
    assert used.stdout == "NewestFirstQueue: used\n"
