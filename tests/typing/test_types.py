"""What mypy and pyright say of programs that use manytail: the types that assert_type names, and these errors only.

A line of a program that ends with `# error: codes` is refused by both checkers; the codes that start with "report" are
pyright's. Every other line passes both.
"""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
DEADLINE = 900.0

# For each line of each program the codes of its errors.
Found = dict[tuple[str, int], set[str]]


def expected() -> Found:
    errors: Found = {}
    for program in PROGRAMS:
        for number, line in enumerate(program.read_text(encoding="utf-8").splitlines(), 1):
            if comment := re.search(r"# error: (.*)$", line):
                errors[program.name, number] = set(comment[1].split(", "))
    return errors


def run(*command: str) -> str:
    """What a checker prints. Its exit status says whether it found errors; any other status fails the test."""
    environ = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    files = [str(program.relative_to(ROOT)) for program in PROGRAMS]
    whole = [sys.executable, "-m", *command, *files]
    ran = subprocess.run(whole, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert ran.returncode in (0, 1), f"{command}: status {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def mypys_errors() -> dict[tuple[str, int], list[tuple[str, str]]]:
    found = defaultdict(list)
    for line in run("mypy", "--strict", "--output=json", "--cache-dir=.mypy_cache/programs").splitlines():
        error = json.loads(line)
        if error["severity"] == "error":
            found[Path(error["file"]).name, error["line"]].append((error["code"], error["message"]))
    return found


def pyrights_errors() -> dict[tuple[str, int], list[tuple[str, str]]]:
    found = defaultdict(list)
    report = json.loads(run("pyright", "--outputjson", f"--pythonpath={sys.executable}"))
    assert report["summary"]["filesAnalyzed"] == len(PROGRAMS)
    for error in report["generalDiagnostics"]:
        place = Path(error["file"]).name, error["range"]["start"]["line"] + 1
        found[place].append((error.get("rule", error["severity"]), error["message"]))
    return found


@pytest.mark.parametrize(
    ("errors_of", "is_pyrights"),
    [pytest.param(mypys_errors, False, id="mypy"), pytest.param(pyrights_errors, True, id="pyright")],
)
def test_a_checker_finds_these_errors_and_no_others(
    errors_of: Callable[[], dict[tuple[str, int], list[tuple[str, str]]]], is_pyrights: bool
) -> None:
    found = errors_of()
    wrong = []
    due = {
        place: {code for code in codes if code.startswith("report") == is_pyrights}
        for place, codes in expected().items()
    }
    for place in sorted(found.keys() | due.keys()):
        codes = {code for code, _ in found.get(place, [])}
        if codes != due.get(place, set()):
            wrong.append(f"{place[0]}:{place[1]}: expected {sorted(due.get(place, []))}, found {found.get(place, [])}")
    assert not wrong, "\n".join(wrong)


def test_both_checkers_refuse_each_marked_line() -> None:
    """A mark with the codes of one checker only would let the other pass the line."""
    for place, codes in expected().items():
        assert {code.startswith("report") for code in codes} == {True, False}, place
