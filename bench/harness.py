"""What a figure is, how it is measured and how it is shown.

A Row has contestants. Each is set up once. In every round all of them are measured one after the other, each round
starting with another one. So a slow moment of a shared machine affects neighbours alike: a row's ratio is the median
over rounds of the ratio inside one round, and its values are medians over rounds.
"""
from __future__ import annotations

import gc
import math
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

@dataclass(frozen=True)
class Sample:
    """A measured value, and how many items were waiting on the way: the median and the 99th percentile."""

    value: float
    depth: int
    deepest: int


@dataclass(frozen=True)
class Counted:
    """A measured value, and what else was counted, by name."""

    value: float
    counts: Mapping[str, int]


Measure = Callable[[int], "float | Sample | Counted"]                   # how many items -> the value, in the row's unit
Factory = Callable[[], AbstractContextManager[Measure]]


class Unavailable(Exception):
    """What a row needs is not on this machine; the message says what."""


@dataclass(frozen=True)
class Target:
    """`ours relation bound x against`, or with against=None `ours relation bound` in the row's unit."""

    relation: str
    bound: float
    against: str | None = None

    def __post_init__(self) -> None:
        if self.relation not in ("<=", ">="):
            raise ValueError(f"relation: {self.relation!r} (expected: '<=' or '>=')")

    def met(self, figure: float) -> bool:
        return figure <= self.bound if self.relation == "<=" else figure >= self.bound

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:g}" + (f" x {self.against}" if self.against else "")


@dataclass(frozen=True)
class Row:
    """One line of the table: who runs, on how many items, and what ours has to reach."""

    name: str
    what: str
    unit: str
    contestants: Mapping[str, Factory]
    n: int
    targets: tuple[Target, ...] = ()
    rounds: int = 15
    tiny: int = 2_000                                         # n of a smoke run
    note: str = ""
    ours: str = "ours"
    slow: Mapping[str, int] = field(default_factory=dict)     # contestant -> divisor of n, for slow contestants
    warm: bool = True                                         # a first round that is not kept


@dataclass
class Result:
    """The figures of a row, as plain data: it can come from another process as JSON."""

    name: str
    what: str
    unit: str
    ours: str
    rounds: dict[str, list[float]]
    targets: list[Target]
    interpreter: str
    note: str = ""
    error: str | None = None
    depths: dict[str, tuple[float, float]] = field(default_factory=dict)    # of contestants whose queue fills
    counts: dict[str, dict[str, float]] = field(default_factory=dict)       # what else was counted
    missing: dict[str, str] = field(default_factory=dict)     # contestant -> what it needs that is not here

    def shown_more(self, contestant: str) -> str:
        """Median and 99th percentile of the depth, and what was counted, or nothing."""
        parts = [f"{count:,.0f} {name}" for name, count in self.counts.get(contestant, {}).items()]
        if contestant in self.depths:
            middle, deepest = self.depths[contestant]
            parts.append(f"depth {middle:,.0f} / {deepest:,.0f}")
        return "".join(f", {part}" for part in parts)

    @classmethod
    def from_json(cls, data: dict) -> Result:
        known = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        return cls(
            **{
                **known,
                "targets": [
                    Target(**{key: t[key] for key in ("relation", "bound", "against")}) for t in data["targets"]
                ],
            }
        )

    def value(self, contestant: str) -> float:
        return statistics.median(self.rounds[contestant])

    def shown(self, contestant: str) -> str:
        values = self.rounds[contestant]
        figure = f"{number(statistics.median(values))} {self.unit} ±{spread(values):.0%}"
        return figure + self.shown_more(contestant)

    def figure(self, target: Target) -> float:
        """The value that the target compares with its bound."""
        ours = self.rounds[self.ours]
        if target.against is None:
            return statistics.median(ours)
        pairs = zip(ours, self.rounds[target.against], strict=True)
        return statistics.median(mine / theirs if theirs else math.inf for mine, theirs in pairs)  # 0: too few to tell

    def reached(self) -> bool | None:
        """None: no target, or nothing measured."""
        if self.error or not self.targets:
            return None
        return all(target.met(self.figure(target)) for target in self.targets)

    def as_json(self) -> dict:
        data = asdict(self)
        if not self.error:
            data["median"] = {name: self.value(name) for name in self.rounds}
            data["spread"] = {name: spread(values) for name, values in self.rounds.items()}
            data["targets"] = [
                {**asdict(target), "figure": self.figure(target), "reached": target.met(self.figure(target))}
                for target in self.targets
            ]
            data["reached"] = self.reached()
        return data


def spread(values: list[float]) -> float:
    """Half the distance of the quartiles, relative to the median: how much single rounds vary."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    middle = statistics.median(values)
    return (high - low) / 2 / middle if middle else 0.0


def measure(row: Row, *, rounds: int, n: int, tick: Callable[[str], None]) -> Result:
    """Set up all contestants, alternate them, and keep every round's value."""
    with ExitStack() as stack:
        runs, missing = set_up(row, stack, tick)
        names = list(runs)
        values: dict[str, list[float]] = {name: [] for name in names}
        samples: dict[str, list[Sample | Counted]] = {name: [] for name in names}
        for done in range(-1 if row.warm else 0, rounds):     # round -1 warms up and is not kept
            tick(f"{row.name}: round {done + 1}/{rounds}")
            shift = done % len(names)
            for name in names[shift:] + names[:shift]:
                sample = quiet(runs[name], max(1, n // row.slow.get(name, 1)))
                value = sample.value if isinstance(sample, (Sample, Counted)) else sample
                if not (math.isfinite(value) and value >= 0):
                    raise ValueError(f"{row.name}, {name}: {value} (expected: a finite number)")
                if done >= 0:
                    values[name].append(value)
                    samples[name] += [sample] if isinstance(sample, (Sample, Counted)) else []
    return Result(
        row.name, row.what, row.unit, row.ours, values, list(row.targets), interpreter(), row.note,
        depths={name: depth(some) for name, some in samples.items() if some and isinstance(some[0], Sample)},
        counts={name: counts(some) for name, some in samples.items() if some and isinstance(some[0], Counted)},
        missing=missing,
    )


def depth(samples: list[Sample]) -> tuple[float, float]:
    return statistics.median(one.depth for one in samples), statistics.median(one.deepest for one in samples)


def counts(samples: list[Counted]) -> dict[str, float]:
    return {name: statistics.median(one.counts[name] for one in samples) for name in samples[0].counts}


def set_up(row: Row, stack: ExitStack, tick: Callable[[str], None]) -> tuple[dict[str, Measure], dict[str, str]]:
    """The contestants that this machine can run, and what the others need. Raises Unavailable if ours, or one that a
    target names, is missing."""
    needed = {row.ours, *(target.against for target in row.targets)}
    runs, lacking = {}, {}
    for name, factory in row.contestants.items():
        tick(f"{row.name}: setting up {name}")
        try:
            runs[name] = stack.enter_context(factory())
        except ModuleNotFoundError as missing:
            if name in needed:
                raise Unavailable(f"skipped: {missing.name} is not installed for {interpreter()}") from missing
            lacking[name] = f"{missing.name} is not installed for {interpreter()}"
        except Unavailable as reason:
            if name in needed:
                raise
            lacking[name] = str(reason).removeprefix("skipped: ")
    return runs, lacking


def quiet(run: Measure, n: int) -> float | Sample:
    """One measurement with the garbage collector off: a pass of it would count against the contestant that runs."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return run(n)
    finally:
        if enabled:
            gc.enable()


# ------------------------------------------------------------------------------------------------------------ output

class Progress:
    """A line that is rewritten on a terminal, a line per row elsewhere."""

    def __init__(self) -> None:
        self._tty = sys.stderr.isatty()
        self._last = ""

    def __call__(self, text: str) -> None:
        if self._tty:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            return
        row = text.partition(":")[0]
        if row != self._last:
            self._last = row
            print(f"{row} ...", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._tty:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def number(value: float) -> str:
    if value >= 100_000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"


HEAD = ("", "ours", "against", "", "ours / that", "target", "")


def table_lines(results: Sequence[Result]) -> list[str]:
    """Under each row's headline one line per rival, and one for a target that is no ratio."""
    blocks = [(f"{result.name}: {result.what}", _lines_of(result)) for result in results]
    body = [line for _, lines in blocks for line in lines]
    widths = [max(len(line[column]) for line in [HEAD, *body]) for column in range(len(HEAD))]

    def shown(line: tuple[str, ...]) -> str:
        return "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()

    text = [shown(HEAD), "-" * len(shown(HEAD).ljust(sum(widths) + 2 * len(widths)))]
    for result, (headline, lines) in zip(results, blocks, strict=True):
        text += [headline, *map(shown, lines)]
        text += [f"  skipped: {name}, {reason}" for name, reason in result.missing.items()]
        if result.error:
            text.append(f"  not measured, {result.error}; target: {', '.join(map(str, result.targets)) or 'none'}")
    return text


def _lines_of(result: Result) -> list[tuple[str, ...]]:
    if result.error:
        return []
    ours = result.shown(result.ours)
    lines = [
        ("", ours, "", "", "", f"{target.relation} {target.bound:g} {result.unit}", verdict(result, target))
        for target in result.targets if target.against is None
    ]
    bound = {target.against: target for target in result.targets}
    for rival in result.rounds:
        if rival == result.ours:
            continue
        target = bound.get(rival)
        goal = (f"{target.relation} {target.bound:g}", verdict(result, target)) if target else ("", "")
        ratio = result.figure(Target("<=", 0.0, rival))
        theirs = number(result.value(rival)) + result.shown_more(rival)
        lines.append(("", "" if lines else ours, rival, theirs, f"{ratio:.3g}", *goal))
    return lines or [("", ours, "", "", "", "", "")]


def verdict(result: Result, target: Target) -> str:
    return "reached" if target.met(result.figure(target)) else "MISSED"


# ----------------------------------------------------------------------------------------------------------- context

def interpreter() -> str:
    free = "" if gil() else ", free-threaded"
    return f"{platform.python_implementation()} {platform.python_version()}{free}"


def gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


PACKAGES = ("manytail", "culsans", "numpy", "cython", "pyspark", "pyarrow")
PACKAGES += ("pyarallel", "aiometer", "joblib", "async-batch-llm", "httpx")


def environment() -> dict[str, object]:
    """What must be known to interpret a figure."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "machine": {"cpu": cpu_model(), "cpus": os.cpu_count(), "platform": platform.platform(), "load": load()},
        "python": {
            "version": sys.version,
            "compiler": platform.python_compiler(),
            "gil": gil(),
            "cflags": sysconfig.get_config_var("CFLAGS"),
        },
        "versions": {name: version(name) for name in PACKAGES},
        "commit": commit(),
    }


def machine() -> str:
    """The machine in one line."""
    return f"{os.cpu_count()} x {cpu_model()}, {platform.platform()}, load {' '.join(map(str, load()))}"


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def load() -> list[float]:
    return [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else []


def version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str:
    """The commit measured, with + if the sources differ from it."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--", "pyx", "include", "python", "bench", "setup.py")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()
