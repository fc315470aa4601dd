"""A release is refused while a field is empty that only its owner can fill."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from support.process import run_command

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from release import URLS, WHEELS, missing, missing_files, notes  # noqa: E402

READY = {"authors": [{"name": "A. N. Author"}], "urls": dict.fromkeys(URLS, "https://example.org")}
DATED = "# Changelog\n\n## 1.2.3 (2027-01-31)\n\n- A line.\n"


def test_a_release_with_all_of_it_is_not_refused():
    assert missing("v1.2.3", "1.2.3", READY, DATED) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("v1.2.4", "1.2.3", READY, DATED), "tag: v1.2.4"),
        (("v1.2.3", "1.2.3", {**READY, "authors": []}, DATED), "authors is empty"),
        (("v1.2.3", "1.2.3", {**READY, "urls": {**READY["urls"], "Source": ""}}, DATED), "urls has no Source"),
        (("v1.2.3", "1.2.3", READY, DATED.replace("2027-01-31", "not released")), "no dated section of 1.2.3"),
    ],
    ids=["tag", "authors", "urls", "changelog"],
)
def test_what_is_missing_is_named(arguments, said):
    (found,) = missing(*arguments)
    assert said in found


def test_no_address_is_invented():
    """Until there are some, the fields stand empty, and the script that a tag runs says so."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ran = run_command(sys.executable, ROOT / "tools" / "release.py", "v0.1.0")
    empty = [name for name in URLS if not project["urls"].get(name)]
    assert ran.returncode == int(bool(empty) or not project["authors"])
    assert [f"urls has no {name}" in ran.stderr for name in empty] == [True] * len(empty)


@pytest.mark.parametrize("name", ["test.yml", "codeql.yml"])
def test_other_workflows_take_the_actions_that_wheels_yml_takes(name):
    """But CodeQL's, which only one takes; it is pinned as the others are."""
    workflow = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    uses = re.findall(r"uses: (.*)$", workflow, re.MULTILINE)
    assert uses
    pinned = (ROOT / "wheels.yml").read_text(encoding="utf-8")
    other = [one for one in uses if one not in pinned]
    assert [one for one in other if not re.fullmatch(r"github/codeql-action/\w+@[0-9a-f]{40} # v[\d.]+", one)] == []


def test_outsiders_can_see_what_ci_runs():
    """Each target that `make check` runs is a job of the workflow, or a part of one."""
    run = re.findall(r"^(?:run|begin) (?!\.venv)(.*)$", (ROOT / "tools" / "check.sh").read_text(), re.MULTILINE)
    targets = {word for line in run for word in line.split() if not word.startswith("-")}
    assert targets > {"test", "lint", "typecheck", "docs", "test-freethreaded", "asan", "model"}
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    shown = set(re.findall(r"[\w-]+", " ".join(re.findall(r"(?:run: make|targets:) (.*)", workflow))))
    assert targets - shown == set()


def test_a_tag_runs_it_before_anything_is_built_and_before_anything_is_published():
    workflow = (ROOT / "wheels.yml").read_text(encoding="utf-8")
    first, second = (found.start() for found in re.finditer(r'python tools/release.py "\$GITHUB_REF_NAME"', workflow))
    assert first < workflow.index("python -m build") < second < workflow.index("  publish:")


def test_a_missing_file_of_a_release_is_named(tmp_path):
    for number in range(WHEELS):
        (tmp_path / f"manytail-1.2.3-cp3{number}.whl").touch()
    (tmp_path / "manytail-1.2.3.tar.gz").touch()
    assert missing_files("1.2.3", tmp_path) == []
    (tmp_path / "manytail-1.2.3-cp37.whl").rename(tmp_path / "manytail-1.2.2-cp37.whl")
    (tmp_path / "manytail-1.2.3.tar.gz").unlink()
    sdist, wheels = missing_files("1.2.3", tmp_path)
    assert "no manytail-1.2.3.tar.gz" in sdist
    assert f"{WHEELS - 1} wheels of 1.2.3 (expected: {WHEELS})" in wheels


def test_the_notes_are_the_section_of_the_version():
    assert notes("1.2.3", DATED + "\n## 1.2.2 (2027-01-01)\n\n- Another.\n") == "- A line.\n"
    assert notes("1.2.3", DATED) == "- A line.\n"
    with pytest.raises(SystemExit, match=r"no section of 1\.2\.4"):
        notes("1.2.4", DATED)
