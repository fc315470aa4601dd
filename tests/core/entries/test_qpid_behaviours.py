"""docs/qpid-behaviours.md says of each behaviour of Qpid's queues which test here stands for it: it exists."""
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "qpid-behaviours.md"


@pytest.mark.skipif(not PAGE.exists(), reason="these tests run away from the source tree, without docs/")
def test_each_of_the_93_behaviours_has_a_test_or_a_reason():
    rows = dict(re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert list(map(int, rows)) == list(range(1, 94))
    tests = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", " ".join(rows.values())))
    assert named <= set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))
    assert sum("`test_" in cell for cell in rows.values()) == 79
