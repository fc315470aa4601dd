"""tests/mutants.toml: each mutant fits the sources, so `make mutants` can plant it."""

import sys
from pathlib import Path

from support.environments import run

ROOT = Path(__file__).parents[2]


def test_mutants_fit_the_sources():
    run(sys.executable, ROOT / "tools" / "mutants.py", "--fit", cwd=ROOT)
