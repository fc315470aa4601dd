"""The report of both runs: the page of `manytail.demo.report`, with the figures, texts and plots of this example."""

import numpy as np
import pandas as pd
from job import PER_KEY, TASKS, WORKERS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tally import BACKLOG, Tally

from manytail.demo.report import BLUE, GREY, ORANGE, TABLE, document, plot

RED = "#b91c1c"
LEAD = f"""A paid HTTP service is asked about every package: what does an installation download, with all that the
package depends on? {TASKS} Spark tasks with {WORKERS} calls at once each, at most {PER_KEY} for one section. At 60
% of the calls the service killed the job with SIGKILL, and it was started again with the same database."""
GOOD = """Every package came out once. Each result that the database had at the kill was remembered by the second
run and not paid again. The service billed no more than the budget, in both runs together."""
NOTE = """The service bills an answer with 1 credit, and 1 for each dependency of the package. It bills no refusal
(429) and no question that it cannot answer (422); the budget counts the calls that the job started, and those with
422 too."""
TWICE = """The first run was billed for {paid:,} calls and recorded {recorded:,} of them before it was killed.
{flying:,} of the others were in flight: their answers never arrived. {waiting:,} had just been answered, and their
results still waited to be recorded together, which takes at most half a second or {backlog} results of a task. Only
these {lost:,} were open to being paid twice, and {twice:,} were: {share:.2%} of all packages."""
BUDGET = """The budget is a number in the database, so the second run began where the first one ended: {first:,.0f} of
{budget:,} credits. A call starts only if its price still fits. For {left:,} packages it did not: they are dead letters
with the reason BudgetExceeded. A run with a higher budget and the same database would call these, and none whose result
is recorded. The bill of both runs is {bill:,}."""
RATE = """The rate in the database holds for both tasks together: {rate:.0f} calls a second, on average over the
first run. The service refused {refused:,} calls with 429 and Retry-After. The section of a refused call waited as
long as it was told, without using up an attempt; other sections went on."""
SECTIONS = """The sections with the most packages. Remembered: paid by the first run and not called by the second."""
SIZES = """The answers that were paid for: megabytes that an installation downloads, by section; the highest on top.
The dot is the median, the line goes from the 5th to the 95th percentile."""
EDGES = """One pass over the output made three more: the dead letters, the answers by section, and these {edges:,}
edges, one from a package to each package that it may depend on. The packages that most others name:"""
DEAD = """Unresolvable: no package of the index meets a dependency (422). BudgetExceeded: no call was made."""


def figures(tally: Tally) -> dict[str, str]:
    """The figures of both runs, for the terminal and for the page."""
    status, bill = tally.calls["status"], int(tally.billed["price"].sum())
    return {
        "packages": f"{len(tally.asked):,}",
        "answers": f"{(tally.rows['reason'] == '').sum():,}",
        "dead letters": f"{(tally.rows['reason'] != '').sum():,}",
        "calls": f"{len(tally.calls):,}",
        "billed": f"{len(tally.billed):,}",
        "refused (429)": f"{(status == 429).sum():,}",
        "unresolved (422)": f"{(status == 422).sum():,}",
        "remembered": f"{tally.rows['remembered'].sum():,}",
        "in flight at the kill": f"{len(tally.in_flight):,}",
        "paid twice": f"{len(tally.twice):,}",
        "budget": f"{tally.budget:,}",
        "spent": f"{tally.spent[1]:,.0f}",
        "bill": f"{bill:,}",
        "seconds to the kill": f"{tally.killed:,.1f}",
        "seconds of run 2": f"{tally.seconds:,.1f}",
    }


def page(tally: Tally, command: str, data: str) -> str:
    """The page, as HTML that loads nothing from anywhere."""
    reasons = tally.rows["reason"]
    named = tally.edges["depends_on"].value_counts().head(10).to_frame("edges").to_html(**TABLE)
    dead = reasons[reasons != ""].value_counts().to_frame("packages").to_html(**TABLE)
    sections = [
        ("What was paid twice", _twice(tally), _table(tally)),
        ("Over time", _rate(tally), plot(draw_over_time, tally, height=3.2)),
        ("What the budget did", _budget(tally), plot(draw_budget, tally, height=2.8)),
        ("By section", SECTIONS, plot(draw_sections, tally, height=5.6)),
        ("What an installation downloads", SIZES, plot(draw_sizes, tally, height=5.6)),
        ("Dead letters", DEAD, dead),
        ("Dependency edges", EDGES.format(edges=len(tally.edges)), named),
    ]
    title = f"{len(tally.asked):,} Debian packages, a paid call each, killed at 60 %"
    return document(title, LEAD, tally.faults(), GOOD, figures(tally), NOTE, sections, command, data)


def _twice(tally: Tally) -> str:
    flying = len(tally.in_flight)
    return TWICE.format(
        paid=len(tally.paid(1)), recorded=tally.recorded[0], flying=flying, waiting=max(0, tally.unrecorded - flying),
        backlog=BACKLOG, lost=tally.unrecorded, twice=len(tally.twice), share=len(tally.twice) / len(tally.asked),
    )  # fmt: skip


def _rate(tally: Tally) -> str:
    calls = (tally.calls["run"] == 1).sum()
    return RATE.format(rate=calls / max(tally.killed, 1e-9), refused=(tally.calls["status"] == 429).sum())


def _budget(tally: Tally) -> str:
    left, bill = (tally.rows["reason"] == "BudgetExceeded").sum(), int(tally.billed["price"].sum())
    return BUDGET.format(first=tally.spent[0], budget=tally.budget, left=left, bill=bill)


def _table(tally: Tally) -> str:
    """Both runs side by side."""
    runs = {f"run {run}": tally.calls[tally.calls["run"] == run] for run in (1, 2)}
    lines = {
        "calls": [f"{len(calls):,}" for calls in runs.values()],
        "billed calls": [f"{(calls['status'] == 200).sum():,}" for calls in runs.values()],
        "credits billed": [f"{calls.loc[calls['status'] == 200, 'price'].sum():,}" for calls in runs.values()],
        "results recorded at its end": [f"{number:,}" for number in tally.recorded],
        "budget spent at its end": [f"{number:,.0f}" for number in tally.spent],
    }
    return str(pd.DataFrame(lines, index=list(runs)).T.to_html(**TABLE))


def draw_over_time(figure: Figure, tally: Tally) -> None:
    """Answers and refusals per second over time"""
    axes = figure.subplots()
    edges = np.arange(0, tally.calls["seconds"].max() + 2)
    for run, colour in ((1, BLUE), (2, ORANGE)):
        times = tally.billed.loc[tally.billed["run"] == run, "seconds"]
        axes.stairs(np.histogram(times, edges)[0], edges, color=colour, label=f"billed calls of run {run}")
    refused = tally.calls.loc[tally.calls["status"] == 429, "seconds"]
    axes.stairs(np.histogram(refused, edges)[0], edges, color=RED, label="refused with 429")
    _mark_kill(axes, tally)
    axes.set(xlabel="seconds from the first call", ylabel="calls per second", xlim=(0, None), ylim=(0, None))


def draw_budget(figure: Figure, tally: Tally) -> None:
    """Credits billed over time, and the budget"""
    axes = figure.subplots()
    billed = tally.billed.sort_values("seconds")
    axes.step(billed["seconds"], billed["price"].cumsum(), BLUE, where="post", label="credits billed")
    axes.axhline(tally.budget, color=GREY, linestyle="--", linewidth=1, label="budget")
    _mark_kill(axes, tally)
    axes.set(xlabel="seconds from the first call", ylabel="credits", xlim=(0, None), ylim=(0, None))


def draw_sections(figure: Figure, tally: Tally) -> None:
    """Packages of each section, by what became of them"""
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    rows = tally.rows
    counts = rows["section"].value_counts().head(24)
    places, begin = np.arange(len(counts)), np.zeros(len(counts))

    def number(chosen: pd.Series) -> pd.Series:
        return rows.loc[chosen, "section"].value_counts().reindex(counts.index, fill_value=0)

    good = rows["reason"] == ""
    kinds = {"remembered": rows["remembered"], "paid by run 2": good & ~rows["remembered"], "dead letters": ~good}
    for (name, chosen), colour in zip(kinds.items(), (BLUE, ORANGE, GREY), strict=True):
        left.barh(places, number(chosen), left=begin, color=colour, label=name)
        begin += number(chosen)
    right.barh(places, number(rows["package"].isin(tally.twice)), color=RED, label="paid twice")
    left.set_yticks(places, counts.index)
    left.invert_yaxis()
    left.set(xlabel="packages")
    right.set(xlabel="packages")


def draw_sizes(figure: Figure, tally: Tally) -> None:
    """Megabytes that an installation downloads, by section"""
    axes = figure.subplots()
    answers = tally.rows[tally.rows["reason"] == ""]
    sizes = answers.groupby("section")["bytes"].quantile([0.05, 0.5, 0.95]).unstack() / 1e6
    sizes = sizes.loc[answers["section"].value_counts().head(24).index].sort_values(0.5, ascending=False)
    places = np.arange(len(sizes))
    axes.hlines(places, sizes[0.05], sizes[0.95], color=BLUE, alpha=0.3, linewidth=6, label="18 in 20 packages")
    axes.plot(sizes[0.5], places, "o", color=BLUE, markersize=5, label="median")
    axes.set_yticks(places, sizes.index)
    axes.invert_yaxis()
    axes.set(xlabel="MB", xscale="log")


def _mark_kill(axes: Axes, tally: Tally) -> None:
    axes.axvline(tally.killed, color="black", linestyle=":", linewidth=1, label="SIGKILL")
