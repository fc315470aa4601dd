"""Every public class, whatever befalls its objects: made twice or by __new__ alone, used after close, copied, collected in a cycle, half iterated,
cleared in any order, subclassed with hostile overrides, left to the interpreter's exit. asked.py has the questions, samples.py the classes.

Each class is asked in an interpreter of its own with -W error and PYTHONMALLOC=debug, so that a crash, a use after free or a write past a block is
the failure of that class.
"""
import subprocess
import sys
from pathlib import Path

import pytest
from samples import SAMPLES, public_classes
from support.process import environment
from support.threads import DEADLINE

HERE = Path(__file__).parent


def test_every_public_class_has_a_sample():
    found = {name for name, _ in public_classes()}
    assert found == set(SAMPLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_life_cycle(name):
    ran = subprocess.run([sys.executable, "-W", "error", "-X", "faulthandler", HERE / "asked.py", name], capture_output=True, text=True, check=False,
                         env={**environment(), "PYTHONMALLOC": "debug", "OPENBLAS_NUM_THREADS": "1"}, timeout=10 * DEADLINE)  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
