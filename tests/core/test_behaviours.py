"""docs/design/lbmq-behaviours.md and qpid-behaviours.md say of each behaviour of the originals which test stands for
it: it exists."""
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGES = TESTS.parent / "docs" / "design"


@pytest.mark.skipif(not PAGES.exists(), reason="these tests run away from the source tree, without docs/")
@pytest.mark.parametrize(("page", "number", "tested"), [("lbmq", 79, 76), ("qpid", 93, 79)])
def test_each_behaviour_has_a_test_or_a_reason(page, number, tested):
    text = (PAGES / f"{page}-behaviours.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", text, re.MULTILINE))
    assert list(map(int, rows)) == list(range(1, number + 1))
    paths = [path for folder in ("core", "contract", "wakeups") for path in (TESTS / folder).rglob("test_*.py")]
    tests = "".join(path.read_text(encoding="utf-8") for path in paths)
    named = set(re.findall(r"`(test_\w+)`", " ".join(rows.values())))
    assert named <= set(re.findall(r"^def (test_\w+)", tests, re.MULTILINE))
    assert sum("`test_" in cell for cell in rows.values()) == tested
