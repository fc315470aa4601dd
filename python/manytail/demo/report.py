"""One HTML file that shows a run: figures, plots (drawn here, inlined as SVG), reasons of the dead letters. It loads nothing from anywhere."""

import base64
import html
import io
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import timeline
from .service import Counts
from .tally import Tally
from .timeline import Timeline

INK, DIM, FIRST, SECOND = "#1f2937", "#9ca3af", "#2563eb", "#d97706"


class Run(NamedTuple):
    """All that the report shows of one run."""

    title: str
    workers: int
    per_key: int
    tally: Tally
    times: Timeline
    history: Sequence[Counts]  # what the service said while it ran


def write(path: Path, run: Run, compared: str = "") -> None:
    """Writes the page. `compared`: the section of --compare, as HTML."""
    page = Template(resources.files("manytail.demo").joinpath("report.html").read_text(encoding="utf-8"))
    text = page.substitute(
        title=html.escape(run.title),
        subtitle=f"One HTTP call per flight, {run.workers} at once in one Spark task, turns between {len(run.times.carriers)} carriers, "
        f"at most {run.per_key} calls at once for one carrier, results in schedule order.",
        verdict=_verdict(run.tally),
        figures="".join(f"<div><dt>{html.escape(name)}</dt><dd>{value}</dd></div>" for name, value in figures(run.tally)),
        speed_up=html.escape(speed_up_note(run.tally)),
        sections="".join(_sections(run)) + compared,
        made=time.strftime("%Y-%m-%d %H:%M"),
    )
    path.write_text(text, encoding="utf-8")


def figures(tally: Tally) -> list[tuple[str, str]]:
    """The table of a run: what the terminal shows, and the page."""
    return [
        ("rows in", f"{tally.rows_in:,}"),
        ("enriched", f"{tally.enriched:,}"),
        ("dead", f"{tally.dead:,}"),
        ("lost", f"{tally.lost:,}"),
        ("calls", f"{tally.service.calls:,}"),
        ("retries", f"{tally.retries:,}"),
        ("seconds", f"{tally.seconds:,.1f}"),
        ("rows/s", f"{tally.rows_per_second:,.0f}"),
        ("speed-up", f"{tally.speed_up:,.1f} x"),
    ]


def speed_up_note(tally: Tally) -> str:
    """How the speed-up is computed."""
    return (
        f"Speed-up over one call at a time: the service took {tally.one_at_a_time:,.0f} s in all for these calls, which is the least they take "
        f"one after another; that, divided by the {tally.seconds:,.1f} s from asking a warm Spark for the result to its last row on disk."
    )


def table(caption: str, head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """An HTML table."""
    titles = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row) + "</tr>" for row in rows)
    above = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{above}<tr>{titles}</tr>{body}</table>"


def _verdict(tally: Tally) -> str:
    faults = tally.faults()
    if faults:
        return "".join(f'<p class="bad">Does not add up: {html.escape(fault)}.</p>' for fault in faults)
    return (
        '<p class="good">It adds up.</p><p class="dim">Every row came out once, in schedule order; the calls that the service counted are those that '
        "the job counted, and so are the refusals and the retries.</p>"
    )


def _sections(run: Run) -> Iterable[str]:
    yield _section("Rows per second", "Calls that ended well, by the time they ended.", _plot(_draw_rate, run))
    yield _section("In flight", "Calls open at a time: as the job's rows tell it, and as the service said while it ran.", _plot(_draw_in_flight, run))
    yield _section("Held back per carrier", fairness(timeline.waits(run.times)), _plot(_draw_waits, run, height=5.2))
    yield _section("Attempts", "Rows by the number of calls they took. The scale is logarithmic.", _plot(_draw_attempts, run, height=2.2))
    reasons = table("Dead letters by reason", ["reason", "rows"], ((reason, f"{rows:,}") for reason, rows in run.tally.reasons.items()))
    yield _section("Dead letters", "Cancelled: the flight never left, so no call was made. NoWeather: the service answered 404.", reasons)


def _section(title: str, text: str, body: str) -> str:
    return f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>{body}"


def fairness(waits: Sequence[timeline.Wait]) -> str:
    """Fair or not, in words: whether somebody is held back because others have more flights."""
    how = "How long a row stood back while a row behind it was being called, the busiest carrier on top. "
    if len(waits) < 2:
        return how + "With one carrier there is nothing to compare."
    busiest, others = waits[0], waits[1:]
    worst = max(others, key=lambda wait: wait.median)
    figures = (
        f"Half of the flights of {busiest.carrier} ({busiest.rows:,}) were held back for {busiest.median * 1e3:.0f} ms or less; "
        f"the longest such time of another carrier is {worst.median * 1e3:.0f} ms ({worst.carrier}, {worst.rows:,} flights). "
    )
    fair = worst.median <= max(1.25 * busiest.median, busiest.median + 0.005)
    if fair:
        return how + figures + "Fair: nobody is held back longer than the carrier with the most flights, which is held back by itself."
    return how + figures + "Not fair: a carrier with fewer flights is held back longer than the one with the most."


def _plot(draw: Callable[[Figure, Run], None], run: Run, height: float = 2.6) -> str:
    figure = Figure(figsize=(10, height), layout="constrained")
    draw(figure, run)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=9)
    file = io.BytesIO()
    figure.savefig(file, format="svg")
    return f'<img alt="{draw.__doc__}" src="data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}">'


def _draw_rate(figure: Figure, run: Run) -> None:
    """Rows per second over time"""
    axes = figure.subplots()
    middles, rates = timeline.rate(run.times.finished)
    axes.fill_between(middles, rates, step="mid", color=FIRST, alpha=0.15, linewidth=0)
    axes.step(middles, rates, where="mid", color=FIRST, linewidth=1.5)
    axes.set(ylabel="rows/s", ylim=(0, None))
    _from_first_call(axes)


def _draw_in_flight(figure: Figure, run: Run) -> None:
    """Calls in flight over time"""
    axes = figure.subplots()
    times, open_calls = timeline.in_flight(run.times.started, run.times.finished)
    if len(times):
        instants = np.linspace(0.0, times[-1], 600)
        shown = open_calls[np.searchsorted(times, instants, side="right") - 1]
        axes.step(instants, shown, where="post", color=FIRST, linewidth=1, label="the job's rows")
    said = [(counts.at - run.times.zero, counts.in_flight) for counts in run.history[:: len(run.history) // 200 + 1]]
    axes.plot(*zip(*said, strict=True), ".", color=SECOND, markersize=4, label="the service")
    axes.axhline(run.workers, color=DIM, linewidth=1, linestyle="--", label=f"workers={run.workers}")
    axes.set(ylabel="calls", ylim=(0, run.workers * 1.15))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=9)
    _from_first_call(axes)


def _draw_waits(figure: Figure, run: Run) -> None:
    """How long rows of each carrier were held back, and its calls at once"""
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    waits = timeline.waits(run.times)
    places = np.arange(len(waits))
    left.hlines(places, 0, [wait.high * 1e3 for wait in waits], color=FIRST, alpha=0.25, linewidth=6, label="19 in 20 less")
    left.plot([wait.median * 1e3 for wait in waits], places, "o", color=FIRST, markersize=5, label="half of its rows less")
    left.set_yticks(places, [f"{wait.carrier}  {wait.rows:,}" for wait in waits])
    left.set(xlabel="ms", xlim=(0, None))
    left.invert_yaxis()
    left.legend(loc="lower right", frameon=False, fontsize=9)
    right.barh(places, [wait.at_once for wait in waits], color=FIRST, height=0.6)
    if run.per_key:
        right.axvline(run.per_key, color=DIM, linewidth=1, linestyle="--", label=f"per_key={run.per_key}")
        right.legend(loc="lower right", frameon=False, fontsize=9)
    right.set(xlabel="most calls at once")


def _draw_attempts(figure: Figure, run: Run) -> None:
    """Rows by attempts"""
    axes = figure.subplots()
    attempts = run.tally.attempts
    bars = axes.barh([str(number) for number in attempts], list(attempts.values()), color=FIRST, height=0.6, log=True)
    axes.bar_label(bars, [f"{rows:,}" for rows in attempts.values()], padding=4, fontsize=9)
    axes.set(ylabel="attempts", xlabel="rows", xlim=(0.7, None))
    axes.margins(x=0.1)
    axes.invert_yaxis()


def _from_first_call(axes: Axes) -> None:
    axes.set_xlabel("seconds from the first call")
    axes.set_xlim(0, None)
