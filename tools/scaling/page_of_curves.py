"""Draws a result of measure.py: a page that loads nothing, RESULT.html, and the losses, which it prints."""

from __future__ import annotations

import html
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page
from harness import number
from matplotlib.axes import Axes

OURS = "manytail"
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
    lines = lines_of(curve["points"][interpreter])
    names = list(dict.fromkeys(name for some in curve["points"].values() for name in lines_of(some)))
    colours = page.colours(names, OURS)  # the same in both pictures of a curve

    def paint(axes: Axes) -> None:
        for name, line in lines.items():
            places, values = zip(*line, strict=True)
            axes.plot(places, values, marker="o", markersize=4, color=colours[name], label=name)
        axes.set_xscale("log", base=2)
        places = [point["x"] for point in curve["points"][interpreter]]
        axes.set_xticks(places, [str(place) for place in places])
        axes.minorticks_off()
        title = f"{curve['name']}, {INTERPRETERS.get(interpreter, interpreter)}"
        page.plain(axes, title, curve["x"], curve["unit"])
        axes.autoscale(axis="y")
        axes.set_yscale("log")

    return page.picture(paint, 5, 3.4)


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
