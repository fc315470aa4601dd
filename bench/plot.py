"""Draws a result file of run.py as one picture: how far each figure is from its target.

    python bench/plot.py build/bench/bench-....json [picture.png]

The scale is logarithmic, and left is better for every row: 1 is the target itself.
"""
from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from harness import Result, number

REACHED, MISSED, INK = "#2a7f62", "#c0492f", "#333333"


def bars(results: list[Result]) -> list[tuple[str, float, bool, str]]:
    """Label, distance from the target (1: just reached), reached or not, the figures in words."""
    lines = []
    for result in results:
        if result.error:
            continue
        for target in result.targets:
            figure = result.figure(target)
            away = figure / target.bound if target.relation == "<=" else target.bound / figure
            words = f"{number(result.value(result.ours))} {result.unit}"
            if target.against:
                words += f" : {number(result.value(target.against))} ({target.against})"
            lines.append((f"{result.name}\n{target}", away, target.met(figure), words))
    return lines


def draw(axes: Axes, lines: list[tuple[str, float, bool, str]]) -> None:
    places = range(len(lines))
    colours = [REACHED if met else MISSED for _, _, met, _ in lines]
    values = [away for _, away, _, _ in lines]
    axes.hlines(places, 1.0, values, color=colours, linewidth=5)
    axes.scatter(values, places, color=colours, s=60, zorder=3)
    axes.axvline(1.0, color=INK, linewidth=1)
    axes.set_xscale("log")
    low, high = min([*values, 0.5]), max([*values, 2.0])
    axes.set_xlim(low / 1.5, high * 12)                       # room for the figures on the right
    for place, (_, away, _, words) in zip(places, lines, strict=True):
        axes.annotate(
            words,
            (max(away, 1.0), place),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
        )
    axes.set_yticks(list(places), [label for label, _, _, _ in lines], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("measured / target, left of the line: reached")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def main(arguments: list[str]) -> None:
    if len(arguments) not in (1, 2):
        sys.exit("usage: python bench/plot.py RESULT.json [PICTURE.png]")
    source = Path(arguments[0])
    picture = Path(arguments[1]) if len(arguments) == 2 else source.with_suffix(".png")
    data = json.loads(source.read_text(encoding="utf-8"))
    lines = bars([Result.from_json(row) for row in data["rows"]])
    if not lines:
        sys.exit(f"{source}: no row with a target was measured (expected: a result file of bench/run.py)")
    figure, axes = pyplot.subplots(figsize=(11, 1 + 0.5 * len(lines)), layout="constrained")
    draw(axes, lines)
    where = data["environment"]
    axes.set_title(
        f"{where['date'][:10]}, commit {where['commit']}, {where['machine']['cpus']} x {where['machine']['cpu']}",
        fontsize=9,
        loc="left",
    )
    figure.savefig(picture, dpi=150)
    print(picture)


if __name__ == "__main__":
    main(sys.argv[1:])
