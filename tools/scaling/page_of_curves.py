"""Draws a result of measure.py: a page that loads nothing, RESULT.html, and the losses, which it prints; or pictures
and the table of docs/design/record.md, from docs/scaling.json."""

from __future__ import annotations

import html
import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import page
from harness import number
from matplotlib import pyplot
from matplotlib.axes import Axes

OURS = "manytail"
DOCS = Path(__file__).resolve().parents[2] / "docs"
MADE = re.compile(r"(?<=<!-- made of scaling.json -->\n\n).*?(?=\n<!-- end -->)", re.DOTALL)
PICTURES = {
    "scaling-queues": ["pairs", "fan-in", "pubsub", "entries"],
    "scaling-handoffs": ["pairs-handoff", "fan-in-handoff", "entries-handoff", "executor-handoff"],
    "scaling-calls": ["executor-computing", "map-computing", "map-sleeping", "arrays"],
}
INTERPRETERS = {"gil": "with the GIL", "free": "without the GIL"}
Line = list[tuple[int, float]]


def lines_of(points: list[dict[str, Any]], of: str | None = None) -> dict[str, Line]:
    """The medians of each contestant, by place: of the value, or of what else was measured."""
    lines: dict[str, Line] = {}
    for point in points:
        for name, values in point["rounds"].items():
            chosen = values if of is None else point["more"].get(name, {}).get(of, [])
            if chosen:
                lines.setdefault(name, []).append((point["x"], statistics.median(chosen)))
    return lines


def picture(curve: dict[str, Any], interpreter: str) -> str:
    return page.picture(lambda axes: paint(axes, curve, interpreter), 5, 3.4)


def paint(axes: Axes, curve: dict[str, Any], interpreter: str) -> None:
    lines = lines_of(curve["points"][interpreter])
    names = list(dict.fromkeys(name for some in curve["points"].values() for name in lines_of(some)))
    colours = page.colours(names, OURS)  # the same in both pictures of a curve
    for name, line in lines.items():
        places, values = zip(*line, strict=True)
        axes.plot(places, values, marker="o", markersize=4, color=colours[name], label=name)
    axes.set_xscale("log", base=2)
    places = [point["x"] for point in curve["points"][interpreter]]
    axes.set_xticks(places, [str(place) for place in places])
    axes.minorticks_off()
    title = f"{curve['name']}, {INTERPRETERS.get(interpreter, interpreter)}"
    axes.set_yscale("linear")  # the other picture of a row has made it logarithmic
    page.plain(axes, title, curve["x"], curve["unit"])
    axes.autoscale(axis="y")
    axes.set_yscale("log")


def table(curve: dict[str, Any]) -> Iterator[str]:
    """A row for each contestant and interpreter, a column for each place."""
    places = sorted({point["x"] for some in curve["points"].values() for point in some})
    cells = "".join(f"<th class=number>{place}</th>" for place in places)
    yield f"<tr><th>{html.escape(curve['x'])}</th><th></th>{cells}</tr>"
    for interpreter, points in curve["points"].items():
        for name, line in lines_of(points).items():
            at = dict(line)
            cells = "".join(f"<td class=number>{number(at[place]) if place in at else ''}</td>" for place in places)
            words = INTERPRETERS.get(interpreter, interpreter)
            yield f"<tr><td>{html.escape(name)}</td><td>{words}</td>{cells}</tr>"


def losses(data: dict[str, Any]) -> Iterator[str]:
    """Each place at which a rival is better than ours by more than a tenth, worst first within a curve."""
    for curve in data["curves"]:
        for interpreter, points in curve["points"].items():
            lines = {name: dict(line) for name, line in lines_of(points).items()}
            ours = lines.pop(OURS, {})
            behind: dict[str, list[str]] = {}
            for name, line in lines.items():
                for place, value in line.items():
                    times = value / ours[place] if ours.get(place) else 0
                    times = times if curve["more_is_better"] else (1 / times if times else 0)
                    if times > 1.1 and not name.startswith(OURS):
                        behind.setdefault(name, []).append(f"{times:.2g} x at {place}")
            for name, found in behind.items():
                yield f"{curve['name']}, {INTERPRETERS.get(interpreter, interpreter)}: {name} {', '.join(found)}"


def errors(data: dict[str, Any]) -> Iterator[str]:
    for curve in data["curves"]:
        for interpreter, points in curve["points"].items():
            for point in points:
                for name, error in point["errors"].items():
                    yield f"{curve['name']} at {point['x']}, {interpreter}, {name}: {error}"


def listed(lines: Iterator[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else "<p>None.</p>"


def description(where: dict[str, Any]) -> str:
    made = where.get("made", {})
    return (
        f"{where['date']}, commit {made.get('commit', 'unknown')}. {where['cpus']} x {where['cpu']}, Linux "
        f"{where['kernel']}, {made.get('libc', '')}, load {where['load'][0]:.1f} before and "
        f"{where['load at the end'][0]:.1f} after, {where['seconds']:.0f} s. {'; '.join(where['pythons'].values())}."
    )


def whole(data: dict[str, Any]) -> str:
    parts = [
        "<h1>manytail: how it scales</h1>", f"<p>{html.escape(description(data['environment']))}</p>",
        "<p>Medians over rounds in which the contestants take turns. Both axes are logarithmic.</p>",
        "<h2>Where we lose, by more than a tenth</h2>", listed(losses(data)),
        "<h2>What could not be measured</h2>", listed(errors(data)), "<h2>Curves</h2>",
    ]  # fmt: skip
    for curve in data["curves"]:
        pictures = "".join(picture(curve, one) for one, points in curve["points"].items() if lines_of(points))
        parts += [
            f"<h3>{html.escape(curve['what'])}: {html.escape(curve['unit'])}</h3><div class=curves>{pictures}</div>",
            f"<div class=table><table>{''.join(table(curve))}</table></div>",
        ]
    viewport = "<meta name=viewport content='width=device-width, initial-scale=1'>"
    top = f"<!doctype html><html lang=en><meta charset=utf-8>{viewport}<title>manytail: how it scales</title>"
    return f"{top}<style>{page.STYLE}</style><body>{''.join(parts)}</body></html>"


def write(result: Path) -> list[str]:
    """Write RESULT.html. What is worth reading at once: its name, the losses and the errors."""
    data = json.loads(result.read_text(encoding="utf-8"))
    target = result.with_suffix(".html")
    target.write_text(whole(data), encoding="utf-8")
    return [str(target), *losses(data), *errors(data)]


# ---------------------------------------------------------------------------------------------------------------- docs


def draw_pictures(data: dict[str, Any], folder: Path) -> list[Path]:
    """A file for each group of curves: a row for each curve, with the GIL on the left."""
    curves = {curve["name"]: curve for curve in data["curves"]}
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "manytail"}
    written = []
    for name, chosen in PICTURES.items():
        shape = {"nrows": len(chosen), "ncols": len(INTERPRETERS), "squeeze": False}
        figure, grid = pyplot.subplots(**shape, figsize=(10, 3.2 * len(chosen)), layout="constrained", sharey="row")
        for row, curve in zip(grid, chosen, strict=True):
            for axes, interpreter in zip(row, INTERPRETERS, strict=True):
                paint(axes, curves[curve], interpreter)
        written.append(folder / f"{name}.svg")
        figure.savefig(written[-1], metadata={"Date": None})
        pyplot.close(figure)
    return written


def markdown(data: dict[str, Any]) -> str:
    """A row for each curve and interpreter: ours at its first and last place, and how many times better than the best
    other contestant it is at each."""
    rows = ["| curve | | unit | ours | ours is better than the best other, times |", "|---|---|---|---|---|"]
    for curve in data["curves"]:
        for interpreter, points in curve["points"].items():
            lines = {name: dict(line) for name, line in lines_of(points).items()}
            ours = lines[OURS]
            others = {name: line for name, line in lines.items() if not name.startswith(OURS)}
            compared = []
            for place, value in ours.items():
                found = {name: line[place] for name, line in others.items() if place in line}
                best = (max if curve["more_is_better"] else min)(found, key=found.__getitem__)
                times = value / found[best] if curve["more_is_better"] else found[best] / value
                compared.append(f"{place}: {times:.2g}" + (f" ({best})" if times < 0.9 else ""))
            first, last = next(iter(ours)), list(ours)[-1]
            values = f"{first}: {number(ours[first])}, {last}: {number(ours[last])}"
            words = INTERPRETERS.get(interpreter, interpreter)
            unit = curve["unit"].replace(" (99th percentile)", ", p99")
            rows.append(f"| `{curve['name']}` | {words} | {unit} | {values} | {'; '.join(compared)} |")
    return "\n".join(rows) + "\n"


def write_docs() -> list[str]:
    data = json.loads((DOCS / "scaling.json").read_text(encoding="utf-8"))
    target = DOCS / "design" / "record.md"
    text = target.read_text(encoding="utf-8")
    target.write_text(MADE.sub(lambda _: markdown(data), text), encoding="utf-8")
    return [str(target), *map(str, draw_pictures(data, DOCS / "assets"))]
