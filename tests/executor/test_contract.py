"""README.md beside this file maps the contract's sentences to tests: those tests must exist."""
import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_that_the_map_names_exists():
    named = set(re.findall(r"`(test_\w+)`", (HERE / "README.md").read_text(encoding="utf-8")))
    sources = [*HERE.glob("test_*.py"), HERE.parent / "wakeups" / "test_lost_wakeups.py"]
    there = {name for path in sources for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    assert named - there == set()
    assert len(named) > 40
