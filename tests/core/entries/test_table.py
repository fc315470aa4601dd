"""README.md in this directory maps the contract's sentences to tests: those tests must exist."""
import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_named_in_the_table_exists():
    named = set(re.findall(r"`(test_\w+)`", (HERE / "README.md").read_text(encoding="utf-8")))
    there = {
        name
        for path in HERE.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) > 100
    assert named - there == set()


def test_every_row_of_the_table_names_a_test():
    rows = [
        line
        for line in (HERE / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and "sentence |" not in line
    ]
    assert len(rows) > 90
    assert [row for row in rows if "`test_" not in row] == []
