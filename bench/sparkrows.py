"""Rows of map_concurrent. They need Spark: bench/spark_map_concurrent.py measures them in a process of its own."""
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import harness
from harness import Progress, Result, Target

SCRIPT = Path(__file__).resolve().parent / "spark_map_concurrent.py"
IDEAL = "ideal"
ARROW, POOL = "mapInArrow, to_pylist + from_pylist", "mapInArrow, a pool per batch"
ROWS = {
    "spark-sleep": Result(
        "spark-sleep",
        "map_concurrent, fn sleeps 10 ms, 64 workers, one task, 19,200 rows, "
        "from the first input batch to the last yield",
        "rows/s",
        "ours",
        {},
        [Target(">=", 0.85, IDEAL)],
        harness.interpreter(),
    ),
    "spark-constant": Result(
        "spark-constant",
        "map_concurrent, fn returns a constant, 8 columns, one task, all 336,776 flights, warm worker, job wall",
        "s",
        "ours",
        {},
        [Target("<=", 1.6, ARROW)],
        harness.interpreter(),
    ),
    "spark-long-tail": Result(
        "spark-long-tail",
        "map_concurrent, fn sleeps 5 to 15 ms, 1 % of 500 ms, 64 workers, one task, 20,000 rows in batches of 1,000, "
        "in order, job wall",
        "rows/s",
        "ours",
        {},
        [Target(">=", 2.0, POOL)],
        harness.interpreter(),
    ),
}
NAMES = list(ROWS)


def run(names: Sequence[str], *, quick: bool, smoke: bool, progress: Progress) -> tuple[list[Result], bool]:
    """The rows asked for, and whether the script failed. Where Spark is missing, the script's exit status is 3."""
    if not SCRIPT.exists():
        return [left_out(name, f"skipped: {SCRIPT.name} is not here") for name in names], False
    progress("spark: starting")
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "rows.json"
        command = [sys.executable, str(SCRIPT), "--json", str(answer)]
        command += [word for name in names for word in ("--only", name)]
        command += [flag for flag, on in (("--quick", quick), ("--smoke", smoke)) if on]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        progress.clear()
        if not answer.exists():
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            skipped = done.returncode == 3
            return [left_out(name, f"{'skipped' if skipped else 'failed'}: {reason}") for name in names], not skipped
        rounds = json.loads(answer.read_text(encoding="utf-8"))["rounds"]
    return [filled(name, rounds[name]) for name in names], bool(done.returncode)


def filled(name: str, rounds: dict[str, list[float]]) -> Result:
    return Result(**{**vars(ROWS[name]), "rounds": rounds})


def left_out(name: str, reason: str) -> Result:
    return Result(**{**vars(ROWS[name]), "error": reason})
