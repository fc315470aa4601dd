"""The benchmarks run: every row, with very few items, gives finite figures; their tools read the result files.

No test checks how fast anything is.
"""
from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.counts import LONG
from support.process import run_command

pytest.importorskip("numpy", reason="the rows of IndexMultiQueue move arrays")
pytest.importorskip("psutil", reason="the memory row reads the resident set")

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
DEADLINE = 600.0
# Rows that need Maven, a free-threaded interpreter, PySpark, RabbitMQ or a compiler, and say so where that is missing.
NEED_MORE = ("original", "ft-", "spark-", "broker-rabbitmq", "published-", "entry-java")
# Those that start a server or a JVM, and all but one kind of item without the GIL, run in `make test-long`.
COSTLY = re.compile(r"original|(ft-)?entry-java|spark-|broker-rabbitmq|ft-.*-(none|shared|int|bytes)$")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    done = run_command(sys.executable, *words, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result file of one run of the rows with very few items."""
    return tmp_path_factory.mktemp("bench") / "rows.json"


@pytest.fixture(scope="module")
def rows(results: Path) -> dict[str, dict]:
    """The rows of that run by name. A row that fails does not stop the others."""
    names = run(str(BENCH / "run.py"), "--list").stdout.split()
    chosen = [name for name in names if LONG or not COSTLY.match(name)]
    only = [word for name in chosen for word in ("--only", name)]
    done = subprocess.run(
        [sys.executable, str(BENCH / "run.py"), "--smoke", "--json", str(results), *only],
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE,
        cwd=ROOT,
    )
    found = {row["name"]: row for row in json.loads(results.read_text(encoding="utf-8"))["rows"]}
    failed = [row for row in found.values() if row["error"] and not row["error"].startswith("skipped: ")]
    assert done.returncode == bool(failed), done.stderr
    assert sorted(found) == sorted(chosen)
    return found


def assert_finite(row: dict) -> None:
    assert row["error"] is None
    assert row["ours"] in row["rounds"]
    for contestant, values in row["rounds"].items():
        assert values, contestant
        assert all(math.isfinite(value) and value >= 0 for value in values), contestant
    for target in row["targets"]:
        assert math.isfinite(target["figure"])
        assert target["reached"] in (True, False)


def test_every_row_has_finite_figures_or_says_what_it_needs(rows: dict[str, dict]) -> None:
    for name, row in rows.items():
        if row["error"] is None:
            assert_finite(row)
        else:
            assert name.startswith(NEED_MORE), name
            assert row["error"].startswith("skipped: "), name


def test_original_is_left_out_without_maven(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    empty = tmp_path / "empty"
    empty.mkdir()
    words = [str(BENCH / "run.py"), "--smoke", "--only", "original", "--json", str(path)]
    done = run_command(sys.executable, *words, cwd=ROOT, env={**os.environ, "PATH": str(empty)})
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert row["error"] == "skipped: no Maven or no Java on PATH, so no original to compare with"
    assert "not measured" in done.stdout


def test_unknown_row_is_named() -> None:
    done = run_command(sys.executable, str(BENCH / "run.py"), "--only", "pear")
    assert done.returncode == 1
    assert "'pear' (expected: one of pair, " in done.stderr


def test_tables_and_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, picture = tmp_path / "rows.json", tmp_path / "rows.png"
    shown = run(str(BENCH / "run.py"), "--smoke", "--only", "bulk", "--json", str(path)).stdout
    assert "bulk: put_many + get_many of 1,000" in shown
    assert "<= 0.4" in shown
    assert "| <= 0.4 |" in run(str(BENCH / "table.py"), str(path)).stdout
    run(str(BENCH / "plot.py"), str(path), str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = path.with_suffix(".html").read_text(encoding="utf-8")
    assert "bulk: put_many + get_many of 1,000" in text
    assert "<svg" in text
    assert "Where we lose" in text


def test_page_has_each_curve_that_was_measured(rows: dict[str, dict], results: Path) -> None:
    pytest.importorskip("matplotlib")
    text = Path(run(str(BENCH / "page.py"), str(results)).stdout.strip()).read_text(encoding="utf-8")
    for title in (
        "Cost against idle sub-queues",
        "Cost against depth",
        "Publishing against subscribers",
        "Wake-up of a blocked getter",
    ):
        assert title in text
    assert rows["pair"]["what"] in text


def test_wakeup(tmp_path: Path) -> None:
    path = tmp_path / "wakeup.json"
    run(str(BENCH / "wakeup.py"), "--quick", "--json", str(path))
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    assert {"ours", "SimpleQueue", "Queue"} == set(figures)
    for values in figures.values():
        assert all(math.isfinite(value) for value in values.values())
        assert 0 < values["handoff_p50_us"] <= values["handoff_p99_us"]


def test_microbenchmarks() -> None:
    pytest.importorskip("pytest_benchmark")
    files = [str(BENCH / name) for name in ("test_single_thread.py", "test_structures.py")]
    done = run("-m", "pytest", *files, "--benchmark-disable", "-q", "-p", "no:cacheprovider")
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def test_spark_window(tmp_path: Path) -> None:
    """Every contestant runs both loads as Spark jobs, and the report compares them."""
    pytest.importorskip("pyspark")
    path = tmp_path / "window.json"
    shown = run(str(BENCH / "spark_window.py"), "--smoke", "--json", str(path)).stdout
    measured = json.loads(path.read_text(encoding="utf-8"))
    assert len(measured) == 2
    for values in measured.values():
        assert set(values) == {"ours", "completion", "pool"}
        assert all(math.isfinite(speed) and speed > 0 for speeds in values.values() for speed in speeds)
    assert shown.count("ours / pool: ") == shown.count("ours / completion: ") == 2
