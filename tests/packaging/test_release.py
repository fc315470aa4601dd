"""A release is refused while a field is empty that only its owner can fill."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from support.process import run_command

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from release import URLS, missing  # noqa: E402

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
    """But CodeQL's, which is GitHub's own and is moved with its queries."""
    workflow = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    uses = re.findall(r"uses: (.*)$", workflow, re.MULTILINE)
    assert uses
    pinned = (ROOT / "wheels.yml").read_text(encoding="utf-8")
    assert [one for one in uses if one not in pinned and not one.startswith("github/codeql-action/")] == []


def test_outsiders_can_see_what_ci_runs():
    assert "run: .ci/run" in (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")


def test_a_tag_runs_it_before_anything_is_published():
    workflow = (ROOT / "wheels.yml").read_text(encoding="utf-8")
    assert 0 < workflow.index('python tools/release.py "$GITHUB_REF_NAME"') < workflow.index("  publish:")
