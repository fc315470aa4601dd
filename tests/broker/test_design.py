"""docs/design/broker.md lists every numbered behaviour, with tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIRED = {*range(1, 12), 16, *range(24, 52), *range(53, 120), 123, *range(124, 154)}
ROW = re.compile(r"^\| (\d+) \| .+ \| (.+) \|$", re.MULTILINE)


def test_every_behaviour_is_listed_with_its_tests() -> None:
    files = [*Path(__file__).parent.glob("test_*.py"), ROOT / "tests/executor/test_work_pool.py"]
    defined = re.compile(r"^def (test_\w+)", re.MULTILINE)
    tests = {f"{path.stem}.{name}" for path in files for name in defined.findall(path.read_text())}
    rows = ROW.findall((ROOT / "docs/design/broker.md").read_text())
    listed = {int(number): set(re.findall(r"`([\w.]+)`", named)) for number, named in rows}
    assert {number for number, named in listed.items() if named} == REQUIRED
    assert set().union(*listed.values()) <= tests
