"""`python -m manytail demo`, run as a user runs it: real flights, real service, real Spark."""

import os
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from manytail.demo.service import temper

pytestmark = pytest.mark.spark

DEADLINE = 240
ROOT = Path(__file__).parents[2]


@pytest.fixture
def out(tmp_path, inputs):
    """An output folder that has its input already."""
    folder = tmp_path / "here" / "out"
    shutil.copytree(inputs.flights.parent, folder / "cache")
    return folder


def start(out: Path, *command: str) -> subprocess.Popen[str]:
    """Starts a command in a session of its own, in the folder above `out`."""
    return subprocess.Popen(
        [sys.executable, *command, "--out", out.name],
        cwd=out.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Its output to the end. Standard error is the service's, too: both have ended. So have, within a deadline, the JVM and its Python workers."""
    output, errors = process.communicate(timeout=DEADLINE)
    for pid in session(process.pid):
        wait_for_end(pid)
    return output, errors


def session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == leader:
                found.append(int(entry.name))
        except ProcessLookupError:
            continue
    return found


def wait_for_end(pid: int) -> None:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([watched], [], [], 30)[0], f"process {pid} was left behind"
    finally:
        os.close(watched)


def table(output: str, first: str) -> dict[str, str]:
    """The row below the head that starts with `first`."""
    lines = output.splitlines()
    head = next(number for number, line in enumerate(lines) if line.strip().startswith(first))
    names, values = (re.split(r"\s{2,}", lines[number].strip()) for number in (head, head + 2))
    return dict(zip(names, values, strict=True))


def comparison(output: str, name: str) -> list[str]:
    """A line of the table of --compare."""
    return next(line for line in output.splitlines() if line.strip().startswith(name)).split()[len(name.split()) :]


def test_a_small_run_from_end_to_end(out, inputs):
    process = start(out, "-m", "manytail", "demo", "--rows", "500", "--compare")
    output, errors = finish(process)
    assert errors == ""
    assert process.returncode == 0

    enriched, dead = pq.read_table(out / "enriched"), pq.read_table(out / "dead_letters")
    figures = table(output, "rows in")
    assert figures["rows in"] == "500"
    assert figures["lost"] == "0"
    assert (int(figures["enriched"]), int(figures["dead"])) == (enriched.num_rows, dead.num_rows)
    assert enriched.num_rows + dead.num_rows == 500

    # Schedule order, each flight once, with the weather of its hour and not of another.
    assert sorted(enriched["seq"].to_pylist() + dead["seq"].to_pylist()) == list(range(500))
    assert enriched["seq"].to_pylist() == sorted(enriched["seq"].to_pylist())
    assert enriched["temp"].to_pylist() == temperatures(inputs.weather, enriched)

    # Cancelled flights called nobody; each other row called until it was answered.
    reasons = Counter(dead["reason"].to_pylist())
    assert reasons["Cancelled"] == dead["dep_time"].null_count > 0
    called = 500 - reasons["Cancelled"]
    assert int(figures["calls"]) == called + int(figures["retries"])
    assert int(figures["retries"]) > 0
    assert sum(attempts - 1 for attempts in enriched["attempts"].to_pylist()) <= int(figures["retries"])

    # The usual way beside it has the same rows.
    for name, key in [("enriched", "enriched"), ("dead letters", "dead")]:
        assert comparison(output.split("Speed-up")[1], name) == [figures[key]] * 2
    assert "Beside the usual way" in (out / "report.html").read_text()

    # Nothing else is left.
    assert {path.name for path in out.iterdir()} == {"cache", "calls", "compare", "dead_letters", "enriched", "report.html", "spark.log"}
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def temperatures(weather: Path, flights: pa.Table) -> list[float]:
    """What the weather table says about each flight."""
    with closing(sqlite3.connect(weather)) as database:
        query = "SELECT temp FROM weather WHERE origin = ? AND hour = ?"
        asked = zip(flights["origin"].to_pylist(), pc.strftime(flights["time_hour"], "%Y-%m-%dT%H").to_pylist(), strict=True)
        return [temperature for one in asked for (temperature,) in database.execute(query, one)]


# The demo, but something happens to its service once it runs.
PLANTED = """
import sys, urllib.request
from manytail.demo import launch
from manytail.demo.cli import main

enter = launch.Running.__enter__

def entered(self):
    service = enter(self)
    {event}
    return service

launch.Running.__enter__ = entered
sys.exit(main(sys.argv[1:]))
"""


def test_a_call_that_the_job_did_not_make_fails_the_run(out):
    assert temper(13, "/weather/EWR/2013-01-01T11")[1] == 0
    event = 'urllib.request.urlopen(service.url + "/weather/EWR/2013-01-01T11").close()'
    process = start(out, "-c", PLANTED.format(event=event), "--rows", "40")
    output, errors = finish(process)
    calls = int(table(output, "rows in")["calls"])
    assert errors == f"Does not add up: the service counted {calls} calls, the job {calls - 1}.\n"
    assert process.returncode == 1
    assert "Does not add up" in (out / "report.html").read_text()


def test_a_job_that_fails_says_why_and_leaves_no_results(out):
    process = start(out, "-c", PLANTED.format(event='service.url = "http://127.0.0.1:none"'), "--rows", "40")
    _, errors = finish(process)
    assert errors.startswith("manytail demo failed: ValueError: Port could not be cast to integer value as 'none'\nSpark's log is ")
    assert process.returncode == 1
    assert {path.name for path in out.iterdir()} == {"cache", "spark.log"}


def test_ctrl_c_ends_job_service_and_spark_with_one_sentence(out):
    process = start(out, "-m", "manytail", "demo")
    assert process.stdout is not None
    while "rows called" not in (line := process.stdout.readline()):
        assert line, process.communicate()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    _, errors = finish(process)
    assert errors == "Stopped: the job, the service and Spark have ended; out holds no result of this run.\n"
    assert process.returncode == 130
    assert {path.name for path in out.iterdir()} == {"cache", "spark.log"}
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_the_example_runs(out):
    process = start(out, str(ROOT / "examples" / "flights" / "enrich_flights.py"))
    output, errors = finish(process)
    assert errors == ""
    assert process.returncode == 0
    assert "Cancelled" in output
