"""Soak: random mixed loads for minutes, on one or more interpreters at once; checks invariants and memory.

    python bench/soak.py --minutes 10 .venv/bin/python .venv-ft/bin/python

Each interpreter runs soak_load.py in its own process, whose resident memory is sampled once a second. The results are a
line per interpreter, build/soak/rss.png and build/soak/soak.json. The exit status is 1 if an invariant was violated, or
if memory at the end is more than 5 % above that of minute 1 (medians over half a minute: epochs differ in size).
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import matplotlib
import psutil

matplotlib.use("Agg")
from matplotlib import pyplot

LOAD = Path(__file__).with_name("soak_load.py")
WINDOW = 30  # samples, one a second
GROWTH = 1.05
MIB = 2**20


@dataclass
class Run:
    """One interpreter under load."""

    python: str
    rss: list[float] = field(default_factory=list)  # MiB, once a second
    violations: list[str] = field(default_factory=list)
    summary: dict[str, object] = field(default_factory=dict)
    status: int | None = None

    def minute_1(self) -> float:
        at = min(60, len(self.rss) // 2)  # the middle of a run that is shorter
        return statistics.median(self.rss[max(0, at - WINDOW // 2):at + WINDOW // 2] or [0.0])

    def end(self) -> float:
        return statistics.median(self.rss[-WINDOW:] or [0.0])

    def good(self) -> bool:
        return (
            self.status == 0 and not self.violations and bool(self.summary) and self.end() <= GROWTH * self.minute_1()
        )

    def line(self) -> str:
        name = f"CPython {self.summary.get('python', '?')}{'' if self.summary.get('gil', True) else ' without the GIL'}"
        change = 100 * (self.end() / self.minute_1() - 1) if self.minute_1() else float("nan")
        return (
            f"{name}: {len(self.rss)} s, {self.summary.get('epochs', '?')} epochs, "
            f"{self.summary.get('items', '?')} items, {len(self.violations)} violations, "
            f"RSS {self.minute_1():.1f} MiB in minute 1, {self.end():.1f} MiB at the end ({change:+.1f} %), "
            f"exit {self.status}: {'good' if self.good() else 'BAD'}"
        )


def watch(runs: list[Run], seconds: float, seed: int, folder: Path) -> None:
    """Start the loads, sample their memory until all have ended, and read what they printed."""
    started = []
    for number, run in enumerate(runs):
        output = (folder / f"load-{number}.jsonl").open("w+")
        command = [run.python, str(LOAD), "--seconds", str(seconds), "--seed", str(seed + number)]
        process = psutil.Popen(command, stdout=output, env={**os.environ, "PYTHONFAULTHANDLER": "1"})
        started.append((run, process, output))
    second = time.monotonic()
    while any(process.poll() is None for _, process, _ in started):
        second += 1
        time.sleep(max(0.0, second - time.monotonic()))
        for run, process, _ in started:
            sample(run, process)
    for run, process, output in started:
        run.status = process.returncode
        read(run, output)


def sample(run: Run, process: psutil.Popen) -> None:
    try:
        rss = process.memory_info().rss
    except psutil.Error:
        return
    if rss:  # 0 for a process that has ended and was not waited for
        run.rss.append(rss / MIB)


def read(run: Run, output: IO[str]) -> None:
    output.seek(0)
    for line in output:
        said = json.loads(line)
        if "violation" in said:
            run.violations.append(said["violation"])
        else:
            run.summary = said
    output.close()


def draw(runs: list[Run], picture: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for run in runs:
        label = f"CPython {run.summary.get('python', run.python)}{'' if run.summary.get('gil', True) else ', no GIL'}"
        line, = axes.plot([n / 60 for n in range(len(run.rss))], run.rss, linewidth=0.8, label=label)
        axes.axhline(GROWTH * run.minute_1(), color=line.get_color(), linestyle=":", linewidth=1)
    axes.set(
        xlabel="minutes",
        ylabel="resident memory, MiB",
        ylim=(0, None),
        title="Random mixed loads; dotted: 5 % above minute 1",
    )
    axes.legend(frameon=False)
    figure.savefig(picture, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument(
        "pythons", nargs="*", default=[sys.executable], help="interpreters that can import manytail (default: this one)"
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("build/soak"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    runs = [Run(python) for python in options.pythons]
    watch(runs, 60 * options.minutes, options.seed, options.folder)
    draw(runs, options.folder / "rss.png")
    (options.folder / "soak.json").write_text(json.dumps([asdict(run) for run in runs], indent=1))
    for run in runs:
        for words in run.violations:
            print(f"VIOLATION {words}")
        print(run.line())
    sys.exit(0 if all(run.good() for run in runs) else 1)


if __name__ == "__main__":
    main()
