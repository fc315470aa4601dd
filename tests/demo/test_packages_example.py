"""examples/packages: a real index, a real service in its own process, a real Spark job that is killed and run again.

packages.txt holds 800 records of the index of Debian 12 (bookworm), main, amd64: some packages with all that they
depend on, and eight that depend on one that is not there.
"""

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from manytail import Budget, Shared

pytestmark = pytest.mark.spark

DEADLINE = 1200
EXAMPLE = Path(__file__).parents[2] / "examples" / "packages"
EXCERPT = Path(__file__).with_name("packages.txt")
MODULES = ("index", "job", "tally", "report", "run")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the example, which import one another as the programs of one folder do."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


def test_a_killed_job_pays_again_only_for_what_was_not_recorded(tmp_path: Path, example: Any) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").touch()
    command = [sys.executable, EXAMPLE / "run.py", "--index", EXCERPT, "--busy", "100", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr

    asked = pq.read_table(out / "asked.parquet").to_pandas().set_index("package")
    log = json.loads((out / "log.json").read_text())
    calls = pd.DataFrame(log["calls"], columns=["time", "run", "package", "status"])
    billed = calls[calls["status"] == 200]
    first, second = (set(billed.loc[billed["run"] == number, "package"]) for number in (1, 2))
    shared = Shared(f"sqlite:///{out / 'shared.db'}", example.job.NAME)

    # The service killed the job at 60 % of 800 packages: at most the calls under way were billed after that.
    assert len(asked) == 800
    assert 480 <= len(first) <= 480 + 64
    # What was lost is what was in flight and what waited to be recorded; so something was recorded.
    rows = pq.read_table(out / "calls").to_pandas()
    remembered = set(rows.loc[rows["_call"].map(lambda call: call["remembered"]), "package"])
    assert len(first) - 2 * (32 + 200) <= len(remembered)
    assert len(remembered) > 0
    assert remembered <= first
    assert not remembered & second  # nothing recorded was paid again
    assert shared.remembered() == len(remembered) + len(second)

    # Every package once: answered, unresolvable, or out of budget. The answers are right.
    assert sorted(rows["package"]) == sorted(asked.index)
    good = rows[rows["_error"].isna()].set_index("package")
    assert set(good.index) == remembered | second
    alone = asked[asked["depends"].map(len) == 0].index.intersection(good.index)
    assert len(alone) > 20
    assert (good.loc[alone, "bytes"] == asked.loc[alone, "size"]).all()
    assert (good.loc[alone, "packages"] == 1).all()
    dead = [
        json.loads(line) for file in (out / "results").glob("dead-*.jsonl") for line in file.read_text().splitlines()
    ]
    reasons = {row["package"]: row["reason"] for row in dead}
    assert sorted(reasons) == sorted(set(asked.index) - set(good.index))
    assert set(reasons.values()) <= {"Unresolvable", "BudgetExceeded"}
    unresolved = set(calls.loc[calls["status"] == 422, "package"])
    assert {package for package, reason in reasons.items() if reason == "Unresolvable"} <= unresolved

    # Refused calls came back; the bill stays within the budget.
    assert (calls["status"] == 429).sum() >= len(calls) // 100
    spent = Budget(1, shared=shared, name="money").used()
    assert asked.loc[billed["package"], "price"].sum() <= spent <= int(0.97 * asked["price"].sum())
    edges = pd.concat(map(pd.read_parquet, (out / "results").glob("edges-*.parquet")))
    assert len(edges) == sum(len(group) for groups in asked["depends"] for group in groups)
    assert "It adds up." in (out / "report.html").read_text(encoding="utf-8")
    results = {"index.parquet", "asked.parquet", "calls", "results", "shared.db", "job.json", "log.json", "report.html"}
    assert {path.name for path in out.iterdir()} - {"shared.db-shm", "shared.db-wal"} == results | {"mine", "spark.log"}


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "has no apt-cache"), ("", "is no file"), ("Package: local\n", "has no package that can be downloaded")],
)
def test_a_machine_without_an_index_is_told_what_to_do(
    tmp_path: Path, example: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, content: str | None, said: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "Packages"
    if content:
        file.write_text(content)
    which = [] if content is None else ["--index", str(file)]
    assert example.run.main(["--out", str(tmp_path / "out"), *which]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert "apt-get update" in errors


def test_a_record_becomes_a_row(tmp_path: Path, example: Any) -> None:
    record = """Package: a
Version: 1:2-3
Section: contrib/net
Pre-Depends: dpkg (>= 1.15.6~)
Depends: libc6:any (>= 2.11), b | c (<< 2) [amd64]
Provides: d (= 1), e
Filename: pool/a.deb
Size: 42
Tag: role::program,
 use::gameplaying
"""
    (tmp_path / "Packages").write_text(f"Comment: an excerpt\n\n{record}\nPackage: installed-here\nVersion: 1\n")
    assert example.index.read(tmp_path / "Packages").to_pylist() == [
        {
            "package": "a", "version": "1:2-3", "section": "contrib/net", "size": 42,
            "depends": [["dpkg"], ["libc6"], ["b", "c"]], "provides": ["d", "e"], "price": 4,
        }
    ]  # fmt: skip


def counted(example: Any) -> Any:
    """Two packages: the first run paid for both and recorded one, so the second paid for the other again."""
    asked = pd.DataFrame(
        {"package": ["a", "b"], "section": "net", "price": [1, 2], "depends": [[], [["c", "d"]]], "size": 7}
    )
    rows = asked.assign(_error=[None, None], _call=[{"remembered": True}, {"remembered": False}], packages=1, bytes=7)
    log = {"calls": [[5.0, 1, "a", 200], [5.1, 1, "b", 200], [6.0, 2, "b", 429], [7.0, 2, "b", 200]],
           "killed": {"time": 5.1, "in_flight": ["b"]}}  # fmt: skip
    edges = pd.DataFrame({"package": ["b", "b"], "group": 0, "depends_on": ["c", "d"]})
    return example.tally.Tally.of(
        asked, rows, log, [(1, 3.0), (2, 5.0)], budget=5, edges=edges, answered=2, seconds=1.0
    )


def test_what_adds_up_has_no_fault_and_a_page(example: Any) -> None:
    tally = counted(example)
    assert tally.faults() == []
    assert (tally.twice, tally.unrecorded, tally.in_flight) == ({"b"}, 1, {"b"})
    page = example.report.page(tally, "run.py", "a test")
    assert "It adds up." in page
    assert page.count("<img ") == 4


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"recorded": (2, 2)}, ["2 results were recorded, but 1 were remembered", "1 were paid twice, but 0 results"]),
        ({"recorded": (-463, 2)}, ["remembered", "465 results were lost (at most 464)"]),
        ({"budget": 4}, ["billed 5, spent 5, budget 4"]),
        ({"spent": (3.0, 4.0)}, ["billed 5, spent 4, budget 5"]),
        ({"answered": 1}, ["2 answers, but the sink counted 1"]),
        ({"edges": pd.DataFrame({"depends_on": []})}, ["2 dependency edges, but the sink wrote 0"]),
    ],
    ids=["recorded", "lost", "budget", "spent", "answered", "edges"],
)
def test_what_does_not_add_up_is_said(example: Any, changed: dict[str, Any], said: list[str]) -> None:
    faults = dataclasses.replace(counted(example), **changed).faults()
    assert len(faults) == len(said)
    assert all(part in fault for part, fault in zip(said, faults, strict=True))


def test_rows_and_calls_that_are_too_many_are_said(example: Any) -> None:
    tally = counted(example)
    doubled = dataclasses.replace(tally, rows=pd.concat([tally.rows, tally.rows[1:]]))
    assert "not every package is in the output exactly once" in doubled.faults()
    again = dataclasses.replace(tally, calls=pd.concat([tally.calls, tally.calls[:1]]), budget=9, spent=(3.0, 9.0))
    assert again.faults() == ["1 packages were billed twice within one run"]
