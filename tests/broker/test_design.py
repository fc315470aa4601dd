"""docs/design/broker.md and the tests agree: it lists each numbered behaviour with exactly the tests that name it."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIRED = {*range(1, 12), 16, *range(24, 52), *range(53, 120), 123, *range(124, 154)}
ROW = re.compile(r"^\| (\d+) \| .+ \| (.+) \|$", re.MULTILINE)


def listed() -> dict[int, set[str]]:
    text = (ROOT / "docs/design/broker.md").read_text()
    return {int(number): set(re.findall(r"`([\w.]+)`", tests)) for number, tests in ROW.findall(text)}


def marked() -> dict[int, set[str]]:
    """From the sources: numbers in `behaviour` marks, and in the names of the work pool's tests."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            for mark in getattr(node, "decorator_list", []) if isinstance(node, ast.FunctionDef) else []:
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "behaviour":
                    for number in mark.args:
                        found[ast.literal_eval(number)].add(f"{path.stem}.{node.name}")
    pool = ROOT / "tests/executor/test_work_pool.py"
    for number, name in re.findall(r"^def (?=test_(\d+)_)(\w+)", pool.read_text(), re.MULTILINE):
        found[int(number)].add(f"test_work_pool.{name}")
    return dict(found)


def test_every_behaviour_is_listed_with_its_tests() -> None:
    assert listed() == marked()
    assert set(listed()) == REQUIRED


def test_every_script_says_which_servers_it_holds_for() -> None:
    without = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        text = path.read_text()
        for node in ast.parse(text).body if "def connection(" not in text else []:
            if (
                isinstance(node, ast.FunctionDef)
                and node.name.startswith("test_")
                and {"side", "connection", "channel"} & {arg.arg for arg in node.args.args}
            ):
                marks = [getattr(mark.func, "id", "") for mark in node.decorator_list if isinstance(mark, ast.Call)]
                if "behaviour" not in marks:
                    without.append(f"{path.stem}.{node.name}")
    assert without == []
