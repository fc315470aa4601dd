"""Measures every curve within a given time, whatever the machine: measure.py RESULT.json [--seconds=N] PYTHON...

Each PYTHON is an interpreter to measure with: a name and a command, as gil=/path/to/python. A curve runs in a process
of its own for each of them. The time that is left is shared out anew before each of these processes, by how many
contestants they have yet to measure; at a place on a curve the contestants take turns, on as many items as fit. What
fails or hangs is written down as an error of its contestant or place, and the rest goes on.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "bench"))  # in a checkout; the archive has all in one folder

import threaded  # noqa: E402
from curves import CURVES, Curve, Figure, Measure  # noqa: E402

ROUNDS = 3
SECONDS = 420.0  # in all; the rest of eight minutes is for what ends late
GRACE = 10.0  # of a step of a contestant: who is silent for longer hangs
LATE = 20.0  # beyond all of it, nothing runs
LEAST = 0.02  # seconds of a round
SHARE = 0.8  # of a place's time is for the rounds, and one more that finds out how many items fit
START = 0.4  # seconds of an interpreter's start


@dataclass
class Point:
    """What was measured at a place of a curve."""

    x: int
    rounds: dict[str, list[float]] = field(default_factory=dict)
    more: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    items: dict[str, int] = field(default_factory=dict)  # in the last round
    errors: dict[str, str] = field(default_factory=dict)


# ------------------------------------------------------------------------------------- one place, in a child process


def measure_place(curve: Curve, x: int, without: Sequence[str], seconds: float) -> Point:
    point = Point(x)
    end = time.monotonic() + seconds
    with ExitStack() as stack:
        runs = set_up(curve, without, stack, point)
        slice_ = max(LEAST, seconds * SHARE / ((ROUNDS + 1) * max(1, len(runs))))
        paces: dict[str, Pace] = {}
        for name, run in runs.items():
            kept(point, name, partial(set_pace, paces, point, name, run, slice_))
        names = [name for name, pace in paces.items() if not pace.too_slow]
        for done in range(ROUNDS):
            if done and time.monotonic() > end + ROUNDS * LEAST * len(names):
                break
            shift = done % max(1, len(names))
            for name in names[shift:] + names[:shift]:
                if name not in point.errors:
                    kept(point, name, partial(note, point, name, paces[name]))
    return point


def set_pace(paces: dict[str, Pace], point: Point, name: str, run: Measure, seconds: float) -> None:
    paces[name] = pace = Pace(run, seconds)
    if pace.too_slow:
        point.items[name] = pace.n
        keep(point, name, pace.figure)


def set_up(curve: Curve, without: Sequence[str], stack: ExitStack, point: Point) -> dict[str, Measure]:
    runs: dict[str, Measure] = {}
    for name, contestant in curve.contestants.items():
        if name in without:
            continue
        kept(point, name, partial(enter, runs, name, stack, contestant(point.x)))
    return runs


def enter(runs: dict[str, Measure], name: str, stack: ExitStack, made: AbstractContextManager[Measure]) -> None:
    runs[name] = stack.enter_context(made)


def kept(point: Point, name: str, step: Callable[[], None]) -> None:
    """Take a step of a contestant. A failure is its error. A hang ends this process: its threads go on."""
    print(json.dumps({"at": name}), flush=True)  # tells who hangs
    try:
        step()
    except TimeoutError:
        raise
    except Exception as failure:
        point.errors[name] = f"{type(failure).__name__}: {failure}"
        point.rounds.pop(name, None)


class Pace:
    """How many items of a contestant fit into a time. A moment in which the machine does other work makes a small count
    look slow, so this goes by the best pace so far, and no single measurement settles it. Who takes much longer for a
    few items is too slow for more than one round, which is `figure`."""

    def __init__(self, run: Measure, seconds: float) -> None:
        self.run = run
        self.seconds = seconds
        self.rate = 0.0
        timed(run, 1)  # imports what it needs
        self.n, enough = 32, 0
        while enough < 2:
            self.figure, took = self.timed(self.n)
            self.too_slow = took > max(4 * seconds, 0.2)
            if self.too_slow:
                break
            enough = enough + 1 if took >= seconds / 3 else 0
            self.n = min(self.fitting(), 8 * self.n)

    def fitting(self) -> int:
        return max(1, int(self.rate * self.seconds))

    def timed(self, n: int) -> tuple[Figure, float]:
        figure, took = timed(self.run, n)
        self.rate = max(self.rate, n / max(took, 1e-9))
        return figure, took


def note(point: Point, name: str, pace: Pace) -> None:
    """Measure a round."""
    point.items[name] = pace.fitting()
    keep(point, name, pace.timed(point.items[name])[0])


def keep(point: Point, name: str, figure: Figure) -> None:
    point.rounds.setdefault(name, []).append(figure.value)
    for what, value in figure.more.items():
        point.more.setdefault(name, {}).setdefault(what, []).append(value)


def timed(run: Measure, n: int) -> tuple[Figure, float]:
    """A measurement with the garbage collector off: a pass of it would count against the contestant that runs."""
    gc.collect()
    gc.disable()
    try:
        began = time.monotonic()
        figure = run(n)
        return figure, time.monotonic() - began
    finally:
        gc.enable()


def child(name: str, places: Sequence[int], without: Sequence[str], seconds: float) -> None:
    """Print a line of JSON for each place of a curve, and for each step on the way."""
    curve = next(curve for curve in CURVES if curve.name == name)
    end = time.monotonic() + seconds
    threaded.DEADLINE = 1e6  # the process that started this one sees who hangs
    for done, x in enumerate(places):
        if time.monotonic() > end + seconds / 2 + 1:
            print(json.dumps(asdict(Point(x, errors={"all": "no time was left"}))), flush=True)
            continue
        try:
            point = measure_place(curve, x, without, max(0.0, end - time.monotonic()) / (len(places) - done))
        except TimeoutError as late:
            print(late, file=sys.stderr, flush=True)
            os._exit(1)
        print(json.dumps(asdict(point)), flush=True)
    sys.stdout.flush()
    os._exit(0)


# ------------------------------------------------------------------------------------------------ all, in this process


def measure_all(pythons: dict[str, str], seconds: float) -> list[dict[str, Any]]:
    end = time.monotonic() + seconds
    last = end + LATE
    steps = [(curve, name) for curve in CURVES for name in pythons]
    measured: list[dict[str, Any]] = []
    for done, (curve, name) in enumerate(steps):
        left = sum(weight(one) for one, _ in steps[done:])
        share = max(0.0, end - time.monotonic()) * weight(curve) / left
        if name == next(iter(pythons)):
            about = {"name": curve.name, "what": curve.what, "x": curve.x, "unit": curve.unit}
            measured.append(about | {"more_is_better": curve.more_is_better, "points": {}})
        print(f"{done + 1}/{len(steps)} {curve.name}, {name}: {share:.1f} s", file=sys.stderr, flush=True)
        measured[-1]["points"][name] = list(points(pythons[name], curve, share, last))
    return measured


def weight(curve: Curve) -> int:
    return len(curve.places) * len(curve.contestants)


def points(python: str, curve: Curve, seconds: float, last: float) -> Iterator[dict[str, Any]]:
    """The points of a curve. Who hangs or ends the process is left out from there on, and another process goes on."""
    end = time.monotonic() + seconds
    places = list(curve.places)
    errors: dict[str, str] = {}
    while places:
        if "all" not in errors and time.monotonic() >= min(end + GRACE, last):
            errors["all"] = "no time was left"
        if "all" in errors or len(errors) == len(curve.contestants):
            yield from (asdict(Point(x, errors=errors)) for x in places)
            return
        said = ask(python, curve.name, places, list(errors), max(0.0, end - time.monotonic() - START), last)
        for point in said.points:
            point["errors"] |= errors
            yield point
        places = places[len(said.points) :]
        if places:
            errors[said.at] = f"at {places[0]}: {said.failure or 'the process ended and said nothing'}"


@dataclass
class Said:
    """What a process measured; who was at it when it ended, and why it ended early, if it did."""

    points: list[dict[str, Any]]
    at: str
    failure: str


def ask(python: str, name: str, places: Sequence[int], without: list[str], seconds: float, last: float) -> Said:
    command = [python, __file__, "--child", name, json.dumps([*places]), json.dumps(without), f"{seconds:.3f}"]
    silence = GRACE + seconds / len(places)
    out, failure = b"", ""
    with tempfile.TemporaryFile() as err, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err) as ran:
        assert ran.stdout is not None
        while True:
            heard = select.select([ran.stdout], [], [], max(0.0, min(silence, last - time.monotonic())))[0]
            if not heard:
                ran.kill()
                failure = "no time was left" if time.monotonic() >= last else f"took more than {silence:.0f} s"
                break
            if not (more := os.read(ran.stdout.fileno(), 1 << 16)):
                break
            out += more
        ran.wait()
        err.seek(0)
        complaint = " ".join(err.read().decode(errors="replace").split())[-300:]
    lines = [json.loads(line) for line in out.decode().splitlines() if line.startswith("{") and line.endswith("}")]
    if ran.returncode and not failure:
        failure = f"exit status {ran.returncode}: {complaint}"
    at = [line["at"] for line in lines if "at" in line]
    return Said([line for line in lines if "x" in line], at[-1] if at else "all", failure)


# ---------------------------------------------------------------------------------------------------------- environment


def environment(pythons: dict[str, str]) -> dict[str, Any]:
    """What must be known to read the figures."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "siblings": sorted({read(path) for path in cpu_files("topology/thread_siblings_list")}),
        "quota": read(Path("/sys/fs/cgroup/cpu.max")),
        "nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
        "kernel": platform.release(),
        "load": os.getloadavg(),
        "pythons": {name: version(python) for name, python in pythons.items()},
        "made": json.loads(read(HERE / "made.json") or "{}"),
    }


def cpu_files(name: str) -> Iterator[Path]:
    for cpu in sorted(os.sched_getaffinity(0)):
        yield Path(f"/sys/devices/system/cpu/cpu{cpu}", name)


def cpu_model() -> str:
    lines = read(Path("/proc/cpuinfo")).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


SAID = "import sys, manytail; print(sys.version, 'GIL', getattr(sys, '_is_gil_enabled', lambda: True)())"


def version(python: str) -> str:
    ran = subprocess.run([python, "-c", SAID], capture_output=True, text=True, check=False)
    return ran.stdout.strip() or ran.stderr.strip()[-300:]


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--child"]:
        name, places, without, seconds = arguments[1:]
        child(name, json.loads(places), json.loads(without), float(seconds))
    parser = argparse.ArgumentParser(prog="measure.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"in all, {SECONDS:g} if not said")
    parser.add_argument("pythons", nargs="+", metavar="NAME=PYTHON")
    options = parser.parse_args(arguments)
    pythons = dict(one.split("=", 1) for one in options.pythons)
    began = time.monotonic()
    about = environment(pythons)
    curves = measure_all(pythons, options.seconds)
    about |= {"load at the end": os.getloadavg(), "seconds": round(time.monotonic() - began, 1)}
    options.result.write_text(json.dumps({"environment": about, "curves": curves}, indent=1) + "\n", encoding="utf-8")
    errors = sum(len(point["errors"]) for curve in curves for some in curve["points"].values() for point in some)
    print(f"{options.result}: {about['seconds']} s, {errors} errors", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
