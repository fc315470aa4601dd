"""Asks a paid service about every Debian package that apt knows; killed at 60 %, it pays for the rest when run again.

    python examples/packages/run.py [--packages N] [--out DIR] [--index FILE]

The steps: read the index, start the service, run the job until the service kills it, run it again, count, and write the
report. Exit status: 0 all adds up, 1 it does not or the second run failed, 2 there is no index, 130 stopped.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import index
import pandas as pd
import pyarrow.parquet as pq
import report
import urllib3
from job import NAME
from tally import Tally

from manytail import Budget, Shared

HERE = Path(__file__).parent
RESULTS = (
    "index.parquet",
    "asked.parquet",
    "job.json",
    "log.json",
    "calls",
    "results",
    "shared.db*",
    "report.html",
    ".spark-*",
)
KILL_AT, BUDGET = 0.6, 0.97  # of the packages that are asked for, and of what all of them cost


def perform(options: argparse.Namespace) -> Tally:
    """Both runs, and what they came to."""
    out = options.out.resolve()
    packages = index.read(options.index)
    out.mkdir(parents=True, exist_ok=True)
    clear(out)
    pq.write_table(packages, out / "index.parquet")
    asked = packages.slice(0, options.packages)
    pq.write_table(asked, out / "asked.parquet")
    rows = asked.to_pandas()
    price = int(rows["price"].sum())
    budget, kill_at = int(BUDGET * price), max(1, int(KILL_AT * len(rows)))
    say(f"{len(rows):,} packages cost {price:,} credits; the budget is {budget:,}")
    shared = Shared(out / "shared.db", NAME)
    accounts = []
    with serving(out, options) as url:
        for number, limit in ((1, kill_at), (2, 0)):
            status = run(out, url, options.rate, budget, limit)
            accounts.append((shared.remembered(), Budget(budget, shared=shared, name="money").used()))
            say(f"run {number}: status {status}; {accounts[-1][0]:,} results recorded, {accounts[-1][1]:,.0f} spent")
            if status != (-9 if limit else 0):
                raise RuntimeError(f"run {number} ended with status {status}; see {out / 'spark.log'}")
        log = urllib3.request("GET", f"{url}/log").json()
    (out / "log.json").write_text(json.dumps(log), encoding="utf-8")
    job = json.loads((out / "job.json").read_text(encoding="utf-8"))
    sinks = {name: [one for one in job["outputs"] if one["sink"] == name] for name in ("edges", "answered")}
    edges = pd.concat(pd.read_parquet(one["file"]) for one in sinks["edges"])
    answered = sum(one["rows"] for one in sinks["answered"])
    done = pd.read_parquet(out / "calls")
    return Tally.of(rows, done, log, accounts, budget=budget, edges=edges, answered=answered, seconds=job["seconds"])


def clear(out: Path) -> None:
    """Remove what an earlier run left: with its database nothing would be paid for."""
    for path in (each for name in RESULTS for each in out.glob(name)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def run(out: Path, url: str, rate: int, budget: int, kill_at: int) -> int:
    """Run the job in processes of its own; its exit status, negative if a signal ended it."""
    command: list[Any] = [sys.executable, HERE / "job.py", out, url, f"--rate={rate}", f"--budget={budget}"]
    with subprocess.Popen(command) as job:
        urllib3.request("POST", f"{url}/runs", json={"pid": job.pid, "kill_at": kill_at})
        status = job.wait()
    for left in out.glob(".spark-*"):  # what a killed session could not remove
        shutil.rmtree(left, ignore_errors=True)
    return status


@contextmanager
def serving(out: Path, options: argparse.Namespace) -> Iterator[str]:
    """The URL of the service, whose process ends with its standard input."""
    command: list[Any] = [sys.executable, HERE / "service.py", out / "index.parquet"]
    command += [f"--rate={options.rate}", f"--busy={options.busy}"]
    pipe = subprocess.PIPE
    # In a session of its own: Ctrl-C ends the job, and then this program ends the service.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as service:
        assert service.stdout is not None
        url = service.stdout.readline().strip()
        if not url:
            raise RuntimeError("the service did not start")
        yield url


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Asks a paid service about Debian packages; killed and run again.")
    parser.add_argument("--packages", type=int, metavar="N", help="only the first N packages, by name (default: all)")
    parser.add_argument("--index", type=Path, metavar="FILE", help="a Packages file, instead of what apt has")
    parser.add_argument("--rate", type=int, default=500, metavar="N", help="calls per second (default: 500)")
    parser.add_argument("--busy", type=int, default=1000, metavar="N", help="each N-th call gets 429 (default: 1000)")
    parser.add_argument("--out", type=Path, default=Path("out/packages"), metavar="DIR", help="default: out/packages")
    options = parser.parse_args(arguments)
    for name in ("packages", "rate", "busy"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"argument --{name}: {value} (expected: 1 or more)")
    try:
        tally = perform(options)
    except index.NoIndex as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except RuntimeError as error:
        print(f"Failed: {error}", file=sys.stderr)
        return 1
    data = "apt's package index of this machine" if options.index is None else str(options.index)
    page = report.page(tally, "python examples/packages/run.py", f"{data}, from the Debian project")
    (options.out / "report.html").write_text(page, encoding="utf-8")
    for name, value in report.figures(tally).items():
        say(f"{name:<24}{value:>14}")
    say(f"report                  {options.out / 'report.html'}")
    for fault in tally.faults():
        print(f"Does not add up: {fault}.", file=sys.stderr)
    return int(bool(tally.faults()))


if __name__ == "__main__":
    sys.exit(main())
