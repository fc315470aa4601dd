"""The life cycle of every public class: made twice or by __new__ alone, used after close, copied, collected in a cycle,
half iterated, cleared in any order, subclassed with hostile overrides, alive at the interpreter's exit. asked.py has
the questions, samples.py the classes.

Each class is asked in its own interpreter with -W error and PYTHONMALLOC=debug, so that a crash, a use after free or a
write past a block fails the test of that class.
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
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-X", "faulthandler", HERE / "asked.py", name],
        capture_output=True,
        text=True,
        check=False,
        env={**environment(), "PYTHONMALLOC": "debug", "OPENBLAS_NUM_THREADS": "1"},
        timeout=10 * DEADLINE,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
