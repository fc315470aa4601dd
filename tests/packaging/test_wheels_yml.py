"""The workflow that builds the wheels, and the plan that cibuildwheel derives from our configuration."""

import itertools
import os
import re
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.process import run_command

ROOT = Path(__file__).parents[2]
PYTHONS = ["cp311", "cp312", "cp313", "cp314", "cp314t", "cp315", "cp315t"]
TARGETS = {
    "linux": ["manylinux_x86_64", "manylinux_aarch64", "musllinux_x86_64", "musllinux_aarch64"],
    "macos": ["macosx_x86_64", "macosx_arm64"],
    "windows": ["win_amd64", "win_arm64"],
}


def test_the_workflow_is_an_equal_copy():
    assert (ROOT / ".github" / "workflows" / "wheels.yml").read_bytes() == (ROOT / "wheels.yml").read_bytes()


@pytest.mark.packaging
@pytest.mark.parametrize("platform", TARGETS)
def test_cibuildwheel_plans_every_wheel(platform):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CIBW_")}
    command = [sys.executable, "-m", "cibuildwheel", "--platform", platform, "--print-build-identifiers", ROOT]
    ran = run_command(*command, env=environ)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.split()) == sorted(
        "-".join(pair) for pair in itertools.product(PYTHONS, TARGETS[platform])
    )


def test_a_wheel_is_imported_whole_and_its_tests_exist():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    commands = " ".join(settings["test-command"])
    named = re.findall(r"tests/[\w/.]+", commands)
    assert {"tests/support/every_module.py", "tests/core", "tests/mapping", "tests/executor"} <= set(named)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_workflow_runs_on_every_change_of_what_it_builds():
    """Pushes and pull requests run it for each file that a build needs, and for the tests that run on the wheel."""
    triggers = (ROOT / "wheels.yml").read_text().partition("\njobs:")[0]
    pushed, requested = (re.findall(r'^ {6}- "(.*)"$', part, re.MULTILINE) for part in triggers.split("pull_request:"))
    assert pushed == requested
    patterns = requested
    folders = ("include", "pyx", "python/manytail", "tests/core", "tests/support")
    built = [path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.*")]
    built += ["setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "wheels.yml"]
    built += [".github/workflows/wheels.yml"]
    assert [path for path in built if not any(fnmatch(path, pattern) for pattern in patterns)] == []


def test_every_action_is_pinned_by_the_hash_of_a_commit():
    """A tag can be moved to other code; the release that the hash stands for is beside it, for those who update it."""
    uses = re.findall(r"^ +(?:- )?uses: (.*)$", (ROOT / "wheels.yml").read_text(), re.MULTILINE)
    assert len(uses) >= 10
    assert [action for action in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


def test_publishing_waits_for_every_build_and_stores_no_token():
    publish = (ROOT / "wheels.yml").read_text().partition("\n  publish:\n")[2]
    assert "if: startsWith(github.ref, 'refs/tags/v')" in publish
    assert "needs: [wheels, sdist]" in publish
    assert "id-token: write" in publish
    assert "attestations: true" in publish
    assert "sbom-path:" in publish
    assert "secrets." not in publish
