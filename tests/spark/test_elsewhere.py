"""Spark Connect, and executors that are processes of their own.

Each is a script in its own process: a JVM holds one kind of session.
"""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from support.counts import LONG, count
from support.databases import Database

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "questions" / "serverless.md"
ON_CONNECT = ("map_concurrent", "udf", "fan_out", "failures", "options", "delivery", "limits", "streaming")


def path_without_java(scratch: Path) -> str:
    """PATH without a java: a directory that has one is replaced by a directory of links to its other files."""
    kept = []
    for number, directory in enumerate(map(Path, os.environ["PATH"].split(os.pathsep))):
        if not (directory / "java").exists():
            kept.append(str(directory))
            continue
        links = scratch / f"path{number}"
        links.mkdir()
        for entry in directory.iterdir():
            if entry.name != "java":
                (links / entry.name).symlink_to(entry)
        kept.append(str(links))
    return os.pathsep.join(kept)


def run(script: str, directory: Path, *arguments: str, **changes: str) -> str:
    """What the script prints. `changes`: environment variables; without them it uses the machine's Java."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {name: os.environ[name] for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")}
    environment["SPARK_WORKER_DIR"] = environment["SPARK_LOCAL_DIRS"] = str(directory)
    environment |= changes
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    timeout = 7_200 if LONG else 600
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr[-10_000:]
    return done.stdout


def connect_example() -> str:
    """The block of the page that runs on Spark Connect."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (example,) = [block for block in blocks if ".remote(" in block]
    return example


def test_connect_where_no_java_is_installed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    example = tmp_path / "example.py"
    example.write_text(connect_example())
    without_java = {"PATH": path_without_java(tmp_path), "JAVA_HOME": "", "XDG_CACHE_HOME": str(cache)}
    home, end = run("connect.py", tmp_path, str(example), **without_java).splitlines()
    assert Path(home).parent == cache / "manytail"
    assert end == "connect: ok"


if LONG:

    def test_the_suite_on_connect(tmp_path: Path) -> None:
        """Every test of these files, through a session of Spark Connect."""
        environment = {**os.environ, "MANYTAIL_CONNECT": "1", "MANYTAIL_LONG": "0"}
        files = [str(Path(__file__).parent / f"test_{name}.py") for name in ON_CONNECT]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *files]
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3_600)
        assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-5_000:]


def directory_for_notes(directory: Path) -> str:
    notes = directory / "notes"
    notes.mkdir()
    return str(notes)


def bare_python(directory: Path) -> dict[str, str]:
    """An interpreter for workers that has all our packages except manytail, however that is installed here: as a wheel,
    or by a .pth file, which is read in our own site-packages directory alone."""
    venv.create(directory / "bare", symlinks=True, with_pip=False)
    packages = directory / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("manytail"):
            (packages / entry.name).symlink_to(entry)
    return {"PYSPARK_PYTHON": str(directory / "bare" / "bin" / "python"), "PYTHONPATH": str(packages)}


def test_cluster(tmp_path: Path) -> None:
    arguments = directory_for_notes(tmp_path), str(count(1, 7))
    assert "cluster: ok" in run("cluster.py", tmp_path, *arguments, **bare_python(tmp_path))


if LONG:

    def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
        """Of one task, in the resident set of its worker."""
        said = run("memory.py", tmp_path, directory_for_notes(tmp_path), "100000", "10000000")
        assert said.endswith("memory: ok\n")
        print(f"\n{said}")

    def test_a_rate_holds_over_executors_and_a_killed_worker(tmp_path: Path, postgresql: Database) -> None:
        said = run("rate.py", tmp_path, postgresql.url, directory_for_notes(tmp_path))
        assert said.endswith("rate: ok\n")
        print(f"\n{said}")

    def test_speculation(tmp_path: Path) -> None:
        assert "speculation: ok" in run("speculation.py", tmp_path, directory_for_notes(tmp_path))
