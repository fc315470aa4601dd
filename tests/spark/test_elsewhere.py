"""Spark Connect, and executors that are processes of their own. Each is a script in its own process: a JVM holds one kind of session."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


def run(script: str, directory: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment["SPARK_WORKER_DIR"] = environment["SPARK_LOCAL_DIRS"] = str(directory)
    done = subprocess.run([sys.executable, str(SCRIPTS / script)], cwd=directory, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-10_000:]
    return done.stdout


@pytest.mark.skipif(find_spec("grpc") is None, reason="Spark Connect needs grpcio and protobuf: pip install 'pyspark[connect]'")
def test_connect(tmp_path: Path) -> None:
    assert "connect: ok" in run("connect.py", tmp_path)


def test_cluster(tmp_path: Path) -> None:
    assert "cluster: ok" in run("cluster.py", tmp_path)
