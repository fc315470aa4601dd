"""tools/build_freethreaded.sh finds the interpreter without the GIL that it is asked for. What it builds, other targets
use: `make test-freethreaded` is the test of that."""

import os
from pathlib import Path

import pytest
from support.process import run_command

SCRIPT = Path(__file__).parents[2] / "tools" / "build_freethreaded.sh"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="a shell script")


@pytest.fixture
def asked(tmp_path):
    """Runs the script where python3.13t and python3.15t are on PATH and python3.14t is in the cache, all of them fakes
    that say they have no GIL."""
    cached = tmp_path / "cache" / "manytail" / "cpython-3.14t"
    fakes = [tmp_path / "bin" / "python3.13t", tmp_path / "bin" / "python3.15t", cached / "bin" / "python3.14t"]
    for fake in fakes:
        fake.parent.mkdir(parents=True, exist_ok=True)
        fake.write_text("#!/bin/sh\nexit 0\n")
        fake.chmod(0o755)
    (cached / "complete").touch()
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environ.pop("MANYTAIL_FREETHREADED", None)
    return lambda *arguments, **more: run_command("bash", SCRIPT, *arguments, env={**environ, **more})


@pytest.mark.parametrize(
    ("arguments", "found"),
    [((), "python3.15t"), (("3.13",), "python3.13t"), (("3.14",), "python3.14t"), (("3.15",), "python3.15t")],
    ids=["any", "3.13", "3.14 in the cache", "3.15"],
)
def test_the_version_that_is_asked_for(asked, arguments, found):
    ran = asked(*arguments)
    assert (ran.returncode, Path(ran.stdout.strip()).name) == (0, found), ran.stderr


def test_one_of_the_environment_is_taken_where_no_version_is_asked_for(asked):
    assert asked(MANYTAIL_FREETHREADED="/bin/true").stdout.strip() == "/bin/true"
    assert Path(asked("3.13", MANYTAIL_FREETHREADED="/bin/true").stdout.strip()).name == "python3.13t"


@pytest.mark.parametrize("arguments", [("3.9",), ("3.13", "3.14")], ids=["unknown", "two"])
def test_another_version_is_refused(asked, arguments):
    ran = asked(*arguments)
    assert ran.returncode == 2
    assert "expected: one of 3.15 3.14 3.13" in ran.stderr
