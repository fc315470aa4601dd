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
    built += [".github/workflows/wheels.yml", ".github/requirements/wheels.txt", "tools/release.py"]
    assert [path for path in built if not any(fnmatch(path, pattern) for pattern in patterns)] == []


def test_every_action_is_pinned_by_the_hash_of_a_commit():
    """A tag can be moved to other code; the release that the hash stands for is beside it, for those who update it."""
    uses = re.findall(r"^ +(?:- )?uses: (.*)$", (ROOT / "wheels.yml").read_text(), re.MULTILINE)
    assert len(uses) >= 10
    assert [action for action in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


def jobs():
    """The text of each job, by name."""
    parts = re.split(r"^  (\w+):$", (ROOT / "wheels.yml").read_text().partition("\njobs:\n")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def steps(job):
    return re.findall(r"^      - (?:name: .*\n {8}(?:if: .*\n {8})?)?(uses|run): ([\w./-]*)", job, re.MULTILINE)


def test_publishing_waits_for_every_build_and_stores_no_token():
    made = jobs()
    assert "needs: [wheels, sdist]" in made["release"]
    assert "needs: [release]" in made["publish"]
    assert "needs: [publish]" in made["github"]
    for name in ("publish", "github"):
        assert "if: startsWith(github.ref, 'refs/tags/v')" in made[name]
    assert "attestations: true" in made["publish"]
    assert "sbom-path:" in made["publish"]
    assert "secrets." not in "".join(made.values())


def test_who_may_write_runs_nothing_of_this_repository():
    """What builds and looks could be made to run what a dependency wants; who has rights downloads and uploads."""
    workflow = (ROOT / "wheels.yml").read_text()
    made = jobs()
    assert "\npermissions:\n  contents: read\n" in workflow  # all that a job has which asks for nothing
    assert {name for name, job in made.items() if "permissions:" in job} == {"publish", "github"}
    allowed = {"actions/download-artifact", "actions/attest", "pypa/gh-action-pypi-publish", "gh"}
    assert {what for name in ("publish", "github") for _, what in steps(made[name])} <= allowed
    assert [len(steps(made[name])) for name in ("publish", "github")] == [5, 3]
    assert re.findall(r"(\w[\w-]*): write", made["publish"]) == ["id-token", "attestations"]
    assert re.findall(r"(\w[\w-]*): write", made["github"]) == ["contents"]


def test_a_release_is_not_cancelled_by_the_next_push():
    cancel = re.search(r"cancel-in-progress: (.*?) #", (ROOT / "wheels.yml").read_text())[1]
    assert cancel == "${{ github.ref_type != 'tag' }}"


def test_what_a_release_is_built_with_is_pinned_by_hashes_where_dependabot_looks():
    workflow = (ROOT / "wheels.yml").read_text()
    installs = re.findall(r"python -m pip install (.*)", workflow)
    assert len(installs) == 3
    assert all(install.startswith("--require-hashes -r .github/requirements/") for install in installs)
    files = sorted({install.rpartition(" ")[2] for install in installs})
    assert files == [f".github/requirements/{name}.txt" for name in ("release", "wheels")]
    for file in files:
        wanted = (ROOT / file).with_suffix(".in").read_text().splitlines()
        pinned = re.findall(r"^([\w.-]+)==\S+.*\\\n +--hash=sha256:", (ROOT / file).read_text(), re.MULTILINE)
        asked = {re.match(r"[\w-]+", line)[0] for line in wanted if not line.startswith("#")}
        assert asked <= set(pinned)
        assert len(pinned) == len(re.findall(r"^[\w.-]+==", (ROOT / file).read_text(), re.MULTILINE))
    assert "directory: /.github/requirements" in (ROOT / ".github" / "dependabot.yml").read_text()


def test_the_audits_of_cibuildwheel_leave_a_wheel_as_it_is():
    """Its own audit is of wheels for the stable ABI, and ours are for one CPython each; we set no other."""
    from cibuildwheel import audit
    from cibuildwheel.util import resources

    usual = tomllib.loads(resources.DEFAULTS.read_text())["tool"]["cibuildwheel"]
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert "abi3" in usual["audit-command"]
    assert [name for name in ours if name.startswith("audit")] == []
    for python in PYTHONS:
        wheel = f"manytail-0.1.0-{python.removesuffix('t')}-{python}-manylinux_2_28_x86_64.whl"
        assert not audit.needs_audit([usual["audit-command"]], wheel)


def test_a_release_is_refused_that_lacks_one_of_these_wheels():
    sys.path.insert(0, str(ROOT / "tools"))
    import release

    assert len(PYTHONS) * sum(map(len, TARGETS.values())) == release.WHEELS
