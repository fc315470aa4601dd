"""Spark Connect, and executors that are processes of their own.

Each is a process: a JVM holds one kind of session.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from support.counts import LONG, count
from support.databases import Database

HERE = Path(__file__).resolve().parent
CONNECT = {
    "map_concurrent": [
        "test_appended_columns_keep_type_nullability_and_metadata_and_results_are_nullable",
        "test_timestamps_are_naive_in_session_time_both_ways[Asia/Tokyo]",
        "test_raise_fails_the_job_with_the_functions_exception_key_and_attempts",
        "test_key_of_the_error_column_is_text",
        "test_unknown_columns_are_analysis_exceptions_at_the_call",
    ],
    "udf": ["test_decorator_forms"],
    "fan_out": [
        "test_one_row_per_task_and_sink",
        "test_result_is_null_on_error_and_its_columns_are_null_for_none",
        "test_an_error_that_is_no_utf_8_fails_the_job_and_does_not_hang_it",
    ],
    "failures": [],
    "options": ["test_names_are_compared_as_the_session_does"],
    "delivery": ["test_key_is_none_without_one_and_as_in_a_row_with_one"],
    "limits": ["test_an_async_fn_gets_batches_of_one_key_and_a_delivery_for_each_batch"],
    "streaming": [],
    "on_connect": ["test_the_example_of_the_page"],
}


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


def run(directory: Path, *command: str, **changes: str) -> str:
    """What Python prints. `changes`: environment variables; without them it uses the machine's Java."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {name: os.environ[name] for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")}
    environment["SPARK_WORKER_DIR"] = environment["SPARK_LOCAL_DIRS"] = str(directory)
    environment |= changes
    timeout = 7_200 if LONG else 600
    command = (sys.executable, *command)
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-10_000:]
    return done.stdout


def run_script(directory: Path, name: str, *arguments: str, **changes: str) -> None:
    """It says that all was well."""
    said = run(directory, str(HERE / "scripts" / f"{name}.py"), *arguments, **changes)
    assert said.endswith(f"{name}: ok\n")
    print(f"\n{said}")


def test_connect_where_no_java_is_installed(tmp_path: Path) -> None:
    """In a long run every test of the files, else some."""
    cache = tmp_path / "cache"
    without_java = {"PATH": path_without_java(tmp_path), "JAVA_HOME": "", "XDG_CACHE_HOME": str(cache)}
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--rootdir", str(HERE.parents[1])]
    some = [f"{HERE}/test_{file}.py::{test}" for file, tests in CONNECT.items() for test in tests]
    chosen = [f"{HERE}/test_{file}.py" for file in CONNECT] if LONG else some
    settings = {"MANYTAIL_CONNECT": "1", "MANYTAIL_LONG": "0", **without_java}
    said = run(tmp_path, "-m", "pytest", *options, *chosen, **settings)
    assert LONG or f"{len(some)} passed" in said
    assert list((cache / "manytail").iterdir())  # the Java that was used


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
    run_script(tmp_path, "cluster", directory_for_notes(tmp_path), str(count(1, 7)), **bare_python(tmp_path))


if LONG:

    def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
        """Of one task, in the resident set of its worker."""
        run_script(tmp_path, "memory", directory_for_notes(tmp_path), "100000", "10000000")

    def test_a_rate_holds_over_executors_and_a_killed_worker(tmp_path: Path, postgresql: Database) -> None:
        run_script(tmp_path, "rate", postgresql.url, directory_for_notes(tmp_path))

    def test_speculation(tmp_path: Path) -> None:
        run_script(tmp_path, "speculation", directory_for_notes(tmp_path))
