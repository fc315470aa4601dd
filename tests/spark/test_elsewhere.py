"""Spark Connect, and executors that are processes of their own. Each is a script in its own process: a JVM holds one kind of session."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


def path_without_java(scratch: Path) -> str:
    """PATH with every directory that holds a java replaced by one of links to all else in it."""
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


def run(script: str, directory: Path, **changes: str) -> str:
    """What the script prints; where `changes` say nothing else the machine has the Java that it has."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {name: os.environ[name] for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")}
    environment["SPARK_WORKER_DIR"] = environment["SPARK_LOCAL_DIRS"] = str(directory)
    environment |= changes
    done = subprocess.run([sys.executable, str(SCRIPTS / script)], cwd=directory, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-10_000:]
    return done.stdout


@pytest.mark.skipif(find_spec("grpc") is None, reason="Spark Connect needs grpcio and protobuf: pip install 'pyspark[connect]'")
def test_connect_where_no_java_is_installed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    said = run("connect.py", tmp_path, PATH=path_without_java(tmp_path), JAVA_HOME="", XDG_CACHE_HOME=str(cache))
    home, end = said.splitlines()
    assert Path(home).parent == cache / "manytail"
    assert end == "connect: ok"


def test_cluster(tmp_path: Path) -> None:
    assert "cluster: ok" in run("cluster.py", tmp_path)
