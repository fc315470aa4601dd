"""tests/mutants.toml: each mutant fits the source as often as it says, so `make mutants` can plant it."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MUTANTS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["name"])
def test_a_mutant_fits_the_source(mutant):
    text = (ROOT / mutant["file"]).read_text()
    assert text.count(mutant["old"]) == mutant.get("times", 1), mutant["file"]
    assert mutant["new"] != mutant["old"]
