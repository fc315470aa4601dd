"""`python -m manytail demo --spark`, run as a user runs it: real flights, real service, real Spark."""

import os
import re
import select
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.counts import some

from manytail.demo import data

pytestmark = pytest.mark.spark

DEADLINE = 600
ROOT = Path(__file__).parents[2]


@pytest.fixture
def out(tmp_path):
    """An output folder that does not exist yet."""
    return tmp_path / "here" / "out"


def start(out: Path, *command: str) -> subprocess.Popen[str]:
    """Start a command in its own session, in the folder above `out`."""
    out.parent.mkdir()
    return subprocess.Popen(
        [sys.executable, *command, "--out", out.name],
        cwd=out.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Its complete output. Standard error belongs to the service too, so both have ended. Waits for the JVM and its
    Python workers to end."""
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
        assert select.select([watched], [], [], DEADLINE)[0], f"process {pid} was left behind"
    finally:
        os.close(watched)


def figures(output: str) -> dict[str, list[str]]:
    """The table: figures by name, of each way."""
    lines = output[output.index("rows in") : output.index("results ")].splitlines()
    return {cells[0]: cells[1:] for line in lines if (cells := re.split(r"\s{2,}", line.strip()))[0]}


def test_a_small_run_from_end_to_end(out):
    process = start(out, "-m", "manytail", "demo", "--spark", "--rows", "500", "--compare")
    output, errors = finish(process)
    assert errors == ""
    assert process.returncode == 0

    enriched, dead = pq.read_table(out / "enriched"), pq.read_table(out / "dead_letters")
    shown = figures(output)
    assert shown["rows in"] == ["500"] * 2
    assert shown["lost"] == ["0"] * 2
    assert shown["enriched"] == [str(enriched.num_rows)] * 2
    assert shown["dead letters"] == [str(dead.num_rows)] * 2
    assert enriched.num_rows + dead.num_rows == 500
    assert int(shown["most of a carrier"][0]) <= 16

    # Schedule order, each flight once, with the weather of its hour and not of another.
    assert sorted(enriched["seq"].to_pylist() + dead["seq"].to_pylist()) == list(range(500))
    assert enriched["seq"].to_pylist() == sorted(enriched["seq"].to_pylist())
    weather = data.weather()
    hours = pc.strftime(enriched["time_hour"], "%Y-%m-%dT%H").to_pylist()
    asked = zip(enriched["origin"].to_pylist(), hours, strict=True)
    assert enriched["temp"].to_pylist() == [weather[place]["temp"] for place in asked]

    # Cancelled flights made no call; every other row was called until it was answered.
    reasons = Counter(dead["reason"].to_pylist())
    assert reasons["Cancelled"] == dead["dep_time"].null_count > 0
    retries = int(shown["retries"][0])
    assert int(shown["calls"][0]) == 500 - reasons["Cancelled"] + retries
    assert retries > 0
    assert sum(attempts - 1 for attempts in enriched["attempts"].to_pylist()) <= retries

    # Nothing else is left.
    assert "Beside the usual way" in (out / "report.html").read_text()
    results = {"calls", "compare", "dead_letters", "enriched", "flights.parquet", "report.html"}
    assert {path.name for path in out.iterdir()} == results | {"spark.log"}
    assert [path.name for path in out.parent.iterdir()] == ["out"]


# The demo, with an event in the middle of the run: when its service has answered twenty calls.
PLANTED = """
import os, signal, sys, urllib.request
from manytail.demo import service
from manytail.demo.cli import main

class Planted(service.Service):
    done = False

    async def answer(self, request):
        if self.counts["200"] >= 20 and not self.done:
            self.done = True
            {event}
        return await super().answer(request)

service.Service = Planted
sys.exit(main(sys.argv[1:]))
"""


def test_a_call_that_the_job_did_not_make_fails_the_run(out):
    process = start(out, "-c", PLANTED.format(event='self.counts["calls"] += 1'), "--rows", "60")
    output, errors = finish(process)
    calls = int(figures(output)["calls"][0])
    assert errors == f"Does not add up: map_concurrent: the service counted {calls} calls, the job {calls - 1}.\n"
    assert process.returncode == 1
    assert "Does not add up" in (out / "report.html").read_text()


BROKEN = """
import sys
from manytail.demo import enrich, run
from manytail.demo.cli import main

run.enrich = lambda flights, url, **options: enrich.enrich(flights, "http://127.0.0.1:none", **options)
sys.exit(main(sys.argv[1:]))
"""


def test_a_job_that_fails_says_why_and_leaves_no_results(out):
    process = start(out, "-c", BROKEN, "--rows", "40")
    _, errors = finish(process)
    assert errors.startswith("manytail demo failed: ")
    assert "127.0.0.1:none" in errors.splitlines()[0]
    assert errors.splitlines()[1:] == ["Spark's log is out/spark.log."]
    assert process.returncode == 1
    assert {path.name for path in out.iterdir()} == {"spark.log"}


@pytest.mark.parametrize("signals", some(1, ["SIGTERM, SIGINT", "SIGINT"]))
def test_a_signal_ends_job_service_and_spark_with_one_sentence(out, signals):
    # To every process of the group, as a terminal does. The second signal comes while the first is handled.
    event = f"[os.killpg(os.getpid(), each) for each in map(signal.Signals.__getitem__, {signals.split(', ')})]"
    process = start(out, "-c", PLANTED.format(event=event))
    _, errors = finish(process)
    assert errors == "Stopped: job, service and Spark have ended; out holds no result of this run.\n"
    assert process.returncode == 130
    assert {path.name for path in out.iterdir()} == {"spark.log"}
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("example", "said"),
    some(1, [("enrich_flights.py", "Cancelled"), ("fan_out.py", "flights left 120 minutes late")]),
)
def test_an_example_runs(out, example, said):
    process = start(out, str(ROOT / "examples" / "flights" / example))
    output, errors = finish(process)
    assert errors == ""
    assert process.returncode == 0
    assert said in output
