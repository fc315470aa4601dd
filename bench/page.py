"""Draws a result file of run.py as one HTML page: where we lose, curves, and every figure beside its rivals.

    python bench/page.py build/bench/bench-....json [page.html]

The page loads nothing: its pictures are inlined as SVG.
"""
from __future__ import annotations

import html
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

import plot
from harness import Result, Target, number

# Title, axis, then the rows of the curve with their place on the axis. A row that was not measured is left out.
CURVES: list[tuple[str, str, list[tuple[str, float]]]] = [
    ("Cost against idle sub-queues", "sub-queues", [("five", 5), ("five-of-1k", 1_000), ("five-of-100k", 100_000)]),
    (
        "The same, all used sub-queues filled first",
        "sub-queues",
        [("ready", 5), ("ready-of-1k", 1_000), ("ready-of-100k", 100_000)],
    ),
    ("Cost against depth", "items that wait", [("depth-1", 1), ("depth-1k", 1_000), ("depth-100k", 100_000)]),
    (
        "Publishing against subscribers",
        "subscribers",
        [("pubsub-publish-0", 0), ("pubsub-publish-1", 1), ("pubsub-publish-4", 4)],
    ),
    (
        "Delivery against subscribers",
        "subscribers",
        [("pubsub-delivery-1", 1), ("pubsub-delivery-4", 4), ("pubsub-delivery-16", 16)],
    ),
    ("Threads, with the GIL", "threads", [("pair", 1), ("gil-1+1-tuple", 2), ("gil-2+2-tuple", 4)]),
    ("Threads, without the GIL", "threads", [("ft-pair", 1), ("ft-1+1-tuple", 2), ("ft-2+2-tuple", 4)]),
]
OURS, OTHERS = "#2a7f62", ["#c0492f", "#4c6ef5", "#9c6a00", "#7a4fa3", "#5f6b73", "#2c93a8"]

STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #ccc; --lost: #c0492f; --won: #2a7f62 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --paper: #16181a; --line: #444; --lost: #f0876f; --won: #6fcfa8 } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: auto; padding: 1rem }
figure { margin: 1rem 0; background: #fff; border-radius: 6px; padding: .5rem; overflow-x: auto }
figure svg { max-width: 100%; height: auto }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem }
.table { overflow-x: auto }
table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left }
td.number { text-align: right; white-space: nowrap } .lost { color: var(--lost) } .won { color: var(--won) }
"""


def picture(paint: Callable[[Axes], None], width: float, height: float) -> str:
    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
    paint(axes)
    text = io.StringIO()
    figure.savefig(text, format="svg")
    pyplot.close(figure)
    return f"<figure>{text.getvalue()[text.getvalue().index('<svg'):]}</figure>"


def plain(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=8, frameon=False)


def colours(names: list[str], ours: str) -> dict[str, str]:
    return {name: OURS if name == ours else OTHERS[place % len(OTHERS)] for place, name in enumerate(names)}


# -------------------------------------------------------------------------------------------------------------- curves
def curve(title: str, x: str, points: list[tuple[Result, float]]) -> str:
    """One line per contestant that all points have and that costs at most five times ours: others flatten the rest."""
    ours = points[0][0].ours
    most = 5 * max(result.value(ours) for result, _ in points)
    names = [
        name
        for name in points[0][0].rounds
        if all(name in result.rounds and result.value(name) <= most for result, _ in points)
    ]

    def paint(axes: Axes) -> None:
        for name, colour in colours(names, ours).items():
            axes.plot(
                [place for _, place in points],
                [result.value(name) for result, _ in points],
                marker="o",
                color=colour,
                label=name,
            )
        if max(place for _, place in points) > 100:
            axes.set_xscale("log")
        plain(axes, title, x, points[0][0].unit)

    return picture(paint, 5, 3)


def curves(results: dict[str, Result]) -> Iterator[str]:
    for title, x, rows in CURVES:
        points = [(results[name], place) for name, place in rows if name in results and not results[name].error]
        if len(points) > 1:
            yield curve(title, x, points)


def latency(cuts: dict[str, list[float]]) -> str:
    """How many of 100 handoffs between two threads took at most that long."""

    def paint(axes: Axes) -> None:
        for name, colour in colours(list(cuts), "ours").items():
            axes.plot(cuts[name], range(1, len(cuts[name]) + 1), color=colour, label=name)
        axes.set_xscale("log")
        plain(axes, "Wake-up of a blocked getter", "microseconds", "handoffs in 100 that took no longer")

    return picture(paint, 5, 3)


# --------------------------------------------------------------------------------------------------------------- table
def better(result: Result, rival: str) -> bool:
    """Whether ours is at least as good. The unit gives the direction: a greater rate is better."""
    ratio = result.figure(Target("<=", 0.0, rival))
    return ratio >= 1 if "/s" in result.unit else ratio <= 1


def lines(result: Result) -> Iterator[str]:
    headline = f"<th colspan=5>{html.escape(result.name)}: {html.escape(result.what)}</th>"
    yield f"<tr>{headline}</tr>"
    if result.error:
        yield f"<tr><td colspan=5>not measured, {html.escape(result.error)}</td></tr>"
        return
    ours = result.shown(result.ours)
    yield f"<tr><td>ours</td><td class=number>{ours}</td><td></td><td></td><td>{targets(result, None)}</td></tr>"
    for rival in result.rounds:
        if rival != result.ours:
            ratio = result.figure(Target("<=", 0.0, rival))
            kind, word = ("won", "ahead") if better(result, rival) else ("lost", "behind")
            yield (
                f"<tr><td>{html.escape(rival)}</td>"
                f"<td class=number>{number(result.value(rival))} {result.unit}{result.shown_more(rival)}</td>"
                f"<td class='number {kind}'>{ratio:.3g}</td><td class={kind}>{word}</td>"
                f"<td>{targets(result, rival)}</td></tr>"
            )


def targets(result: Result, rival: str | None) -> str:
    found = [target for target in result.targets if target.against == rival]
    words = (
        f"{target.relation} {target.bound:g}: {'reached' if target.met(result.figure(target)) else 'missed'}"
        for target in found
    )
    return html.escape(", ".join(words))


def losses(results: list[Result]) -> str:
    """Rivals that are ahead of us, and missed targets."""
    found = []
    for result in results:
        if result.error:
            continue
        for rival in result.rounds:
            if rival != result.ours and not better(result, rival):
                ratio = result.figure(Target("<=", 0.0, rival))
                found.append(f"{result.name}: {ratio:.3g} x {rival} ({result.what})")
        missed = [target for target in result.targets if not target.met(result.figure(target))]
        found += [f"{result.name}: target {target} missed with {result.figure(target):.3g}" for target in missed]
    items = "".join(f"<li>{html.escape(line)}</li>" for line in found)
    return f"<ul class=lost>{items}</ul>" if found else "<p>Nowhere in this run.</p>"


# ---------------------------------------------------------------------------------------------------------------- page
def page(data: dict[str, Any]) -> str:
    results = [Result.from_json(row) for row in data["rows"]]
    where = data["environment"]
    bars = plot.bars(results)
    parts = [
        "<h1>manytail: benchmarks</h1>",
        f"<p>{html.escape(description(where))}</p>",
        "<p>Contestants of a row alternate within each round of one run. A value is the median over rounds with half "
        "the distance of its quartiles; a ratio (ours divided by the rival's) is the median of the ratios inside one "
        "round.</p>",
        "<h2>Where we lose</h2>", losses(results),
        "<h2>Curves</h2>", "<div class=curves>", *curves({result.name: result for result in results}),
        *([latency(data["latency"])] if data.get("latency") else []), "</div>",
    ]  # fmt: skip
    if bars:
        parts += ["<h2>Targets</h2>", picture(lambda axes: plot.draw(axes, bars), 11, 1 + 0.5 * len(bars))]
    rows = "".join(line for result in results for line in lines(result))
    head = "<tr><th></th><th>value</th><th>ours / that</th><th></th><th>target</th></tr>"
    parts += ["<h2>All figures</h2>", f"<div class=table><table>{head}{rows}</table></div>"]
    viewport = "<meta name=viewport content='width=device-width, initial-scale=1'>"
    title = f"<meta charset=utf-8>{viewport}<title>manytail benchmarks</title>"
    top = f"<!doctype html><html lang=en>{title}<style>{STYLE}</style>"
    return f"{top}<body>{''.join(parts)}</body></html>"


def description(where: dict[str, Any]) -> str:
    machine, versions = where["machine"], {name: version for name, version in where["versions"].items() if version}
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{where['date']}, commit {where['commit']}. {machine['cpus']} x {machine['cpu']}, {machine['platform']}, "
        f"load {' '.join(map(str, machine['load']))} before "
        f"and {' '.join(map(str, where.get('load at the end', [])))} after. "
        f"Python {where['python']['version'].split()[0]}, {where['python']['compiler']}; {listed}."
    )


def write(source: Path, target: Path | None = None) -> Path:
    target = target or source.with_suffix(".html")
    target.write_text(page(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
    return target


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python bench/page.py RESULT.json [PAGE.html]")
    print(write(*map(Path, sys.argv[1:])))
