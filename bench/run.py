"""`make bench`: every figure of docs/design/record.md beside its rivals, in one run.

    python bench/run.py [--quick] [--only NAME ...] [--list] [--out DIR]

Prints a table and writes the same as JSON into DIR (build/bench), with every round's value and the machine's data.
A missed target is a figure, not a failure: the exit status is 1 only if a row could not be run at all. A row that needs
what this machine lacks (Maven, a free-threaded interpreter, PySpark) is left out with a reason.
"""
from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import beside
import brokers
import callers
import entries
import executors
import harness
import index
import lbmq
import maps
import memory
import pairs
import published
import pubsub
import qpid
import queues
import single
import sparkrows
import throttled
import wakeup
from harness import Progress, Result, Row, Unavailable

HERE = [
    *single.ROWS, *pairs.GIL_ROWS, *lbmq.ROWS, *index.ROWS, *memory.ROWS, *executors.ROWS,
    *brokers.ROWS, *pubsub.ROWS, *entries.ROWS, *published.ROWS, *qpid.ROWS, *queues.ROWS, *maps.ROWS,
    *callers.ROWS,
]
FREE_THREADED = [
    *pairs.FREE_THREADED_ROWS,
    *pubsub.FREE_THREADED_ROWS,
    *entries.FREE_THREADED_ROWS,
    *published.FREE_THREADED_ROWS,
    *qpid.FREE_THREADED_ROWS,
    *queues.FREE_THREADED_ROWS,
    *maps.FREE_THREADED_ROWS,
    *executors.FREE_THREADED_ROWS,
    *brokers.FREE_THREADED_ROWS,
]
BESIDE = [*beside.ROWS, *throttled.ROWS, *beside.MEMORY_ROWS]
SPARK = sparkrows.NAMES
NAMES = [row.name for row in [*HERE, *FREE_THREADED, *BESIDE]] + SPARK


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    if options.list:
        print("\n".join(NAMES))
        return 0
    wanted = select(options.only)
    environment = harness.environment()
    path = options.json or default_file(options.out)
    progress = Progress()
    results: list[Result] = []
    broken = False
    for result, failed in run_all(wanted, options, progress):
        results.append(result)
        broken |= failed
        save(results, environment, path)                      # a run that is interrupted keeps what it has
    latency = None
    if options.smoke or not options.only:
        progress("wake-ups")
        latency = wakeup.curves(*((100, 1) if options.smoke else (5_000, 5)))
    save(results, environment, path, latency)
    progress.clear()
    report(results, environment, path)
    return 1 if broken else 0


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a third of the rounds on a quarter of the items")
    parser.add_argument(
        "--smoke", action="store_true", help="one round on next to nothing: does it run, the figures mean nothing"
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="this row; may be a pattern (ft-*), may be given again"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument(
        "--out",
        type=Path,
        default=harness.ROOT / "build" / "bench",
        help="directory of the JSON file (default: build/bench)",
    )
    parser.add_argument("--json", type=Path, help="the JSON file itself")
    return parser.parse_args(argv)


def select(patterns: list[str] | None) -> list[str]:
    if not patterns:
        return NAMES
    for pattern in patterns:
        if not fnmatch.filter(NAMES, pattern):
            sys.exit(f"--only: {pattern!r} (expected: one of {', '.join(NAMES)}, or a pattern that fits one)")
    return [name for name in NAMES if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def run_all(wanted: list[str], options: argparse.Namespace, progress: Progress) -> Iterator[tuple[Result, bool]]:
    """Each row with its result, and whether it failed."""
    for row in HERE:
        if row.name in wanted:
            yield run_row(row, options, progress)
    free_threaded = [row for row in FREE_THREADED if row.name in wanted]
    if free_threaded:
        results, failed = run_free_threaded(free_threaded, options, progress)
        yield from ((result, failed) for result in results)
    if rows := [row for row in BESIDE if row.name in wanted]:
        results, failed = run_beside(rows, options, progress)
        yield from ((result, failed) for result in results)
    spark = [name for name in SPARK if name in wanted]
    if spark:
        results, failed = sparkrows.run(spark, quick=options.quick, smoke=options.smoke, progress=progress)
        yield from ((result, failed) for result in results)


def run_row(row: Row, options: argparse.Namespace, progress: Progress) -> tuple[Result, bool]:
    rounds, n = scale(row, options)
    try:
        return harness.measure(row, rounds=rounds, n=n, tick=progress), False
    except Unavailable as reason:
        return left_out(row, str(reason)), False
    except Exception as failure:
        progress.clear()
        traceback.print_exc()
        return left_out(row, f"failed: {failure!r}"), True


def scale(row: Row, options: argparse.Namespace) -> tuple[int, int]:
    if options.smoke:
        return 1, row.tiny
    if options.quick:
        return max(3, row.rounds // 3), max(row.tiny, row.n // 4)
    return row.rounds, row.n


def left_out(row: Row, reason: str) -> Result:
    return Result(
        row.name, row.what, row.unit, row.ours, {}, list(row.targets), harness.interpreter(), row.note, error=reason
    )


# ------------------------------------------------------------------------------------------------ other interpreters

def run_free_threaded(rows: list[Row], options: argparse.Namespace, progress: Progress) -> tuple[list[Result], bool]:
    """In this process if it has no GIL, else in the interpreter that `make test-freethreaded` sets up."""
    if not harness.gil():
        return run_rows(rows, options, progress)
    python = harness.ROOT / ".venv-ft" / "bin" / "python"
    if not python.exists():
        reason = "skipped: no free-threaded interpreter in .venv-ft; `make test-freethreaded` sets one up"
        return [left_out(row, reason) for row in rows], False
    return run_with(python, rows, options, progress, PYTHON_GIL="0")


def run_beside(rows: list[Row], options: argparse.Namespace, progress: Progress) -> tuple[list[Result], bool]:
    """In the CPython 3.14 that `make rivals` sets up, or in this process, without the rivals that it lacks."""
    python = harness.ROOT / ".venv-rivals" / "bin" / "python"
    if sys.version_info >= (3, 14) or not python.exists():
        return run_rows(rows, options, progress)
    return run_with(python, rows, options, progress)


def run_rows(rows: list[Row], options: argparse.Namespace, progress: Progress) -> tuple[list[Result], bool]:
    done = [run_row(row, options, progress) for row in rows]
    return [result for result, _ in done], any(failed for _, failed in done)


def run_with(
    python: Path, rows: list[Row], options: argparse.Namespace, progress: Progress, **variables: str
) -> tuple[list[Result], bool]:
    """The same with another interpreter."""
    progress.clear()
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "rows.json"
        command = [str(python), __file__, "--json", str(answer)]
        command += [word for row in rows for word in ("--only", row.name)]
        command += [flag for flag, on in (("--quick", options.quick), ("--smoke", options.smoke)) if on]
        done = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
        if not answer.exists():
            reason = f"failed: {python.name} in {python.parts[-3]} ended with {done.returncode}"
            return [left_out(row, reason) for row in rows], True
        data = json.loads(answer.read_text(encoding="utf-8"))
    return [Result.from_json(row) for row in data["rows"]], bool(done.returncode)


# ------------------------------------------------------------------------------------------------------------ report

def default_file(directory: Path) -> Path:
    return directory / f"bench-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"


def report(results: list[Result], environment: dict[str, object], path: Path) -> None:
    print("\n".join(harness.table_lines(results)))
    measured = [result for result in results if result.reached() is not None]
    reached = sum(1 for result in measured if result.reached())
    print(
        f"\n{reached} of {len(measured)} rows with a target reached it; "
        f"{len(results) - len(measured)} have none or were not measured."
    )
    print(f"{environment['date']}, commit {environment['commit']}, {harness.interpreter()}, {harness.machine()}")
    print(f"every round's values: {path}")
    try:
        import page
    except ModuleNotFoundError as missing:
        print(f"no page of them: {missing.name} is not installed")
    else:
        print(f"the same as a page, with curves: {page.write(path)}")


def save(
    results: list[Result], environment: dict[str, object], path: Path, latency: dict[str, list[float]] | None = None
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "environment": {**environment, "load at the end": harness.load()},
        "rows": [result.as_json() for result in results],
        "latency": latency,
    }
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
