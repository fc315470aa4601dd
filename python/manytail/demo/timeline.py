"""When which row waited, ran and ended, read from the transform's own output.

A row's times are those of its last attempt, as `fetch` returned them; failed rows have none. Rows are taken in order, so a row is there as soon as
one behind it is called: from that call to its own it was held back, by its carrier's turn or limit.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Timeline(NamedTuple):
    """One entry per row, in output order. Seconds from the start of the first call; NaN where there is none."""

    zero: float  # the first start, seconds of the epoch
    carrier: NDArray[np.str_]
    started: Floats
    finished: Floats
    held: Floats  # how long each row was held back, of those whose first attempt went well

    @property
    def carriers(self) -> list[tuple[str, int]]:
        """Every carrier and its rows, the busiest first."""
        names, rows = np.unique(self.carrier, return_counts=True)
        return sorted(zip(names.tolist(), rows.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))

    def of(self, carrier: str) -> "Timeline":
        rows = self.carrier == carrier
        return Timeline(self.zero, self.carrier[rows], self.started[rows], self.finished[rows], self.held[rows])


def read(calls: Path) -> Timeline:
    """The timeline of an output of the transform."""
    table = pq.read_table(calls, columns=["carrier", "attempts", "started", "finished"])
    attempts, started, finished = (table[name].to_numpy().astype(float) for name in ("attempts", "started", "finished"))
    zero = float(np.nanmin(started)) if np.isfinite(started).any() else 0.0
    started, finished = started - zero, finished - zero
    first_behind = np.fmin.accumulate(started[::-1])[::-1]  # of the row and all behind it
    held = np.where(attempts == 1, started - first_behind, np.nan)
    return Timeline(zero, table["carrier"].to_numpy().astype(str), started, finished, held)


def most_in_hand(timeline: Timeline) -> int:
    """The most rows from the first that has not ended to the last that has started, at any moment: what must be held to keep the order."""
    known = np.isfinite(timeline.started)
    ended = np.maximum.accumulate(timeline.finished[known])
    places = np.arange(1, len(ended) + 1)
    return int((places - np.searchsorted(ended, timeline.started[known], side="right")).max(initial=0))


def rate(finished: Floats, parts: int = 100) -> tuple[Floats, Floats]:
    """Middles of up to `parts` equal spans of time, and rows per second in each."""
    ends = finished[np.isfinite(finished)]
    if not len(ends):
        return np.zeros(0), np.zeros(0)
    spans = int(min(parts, max(1, len(ends) // 20)))
    counts, edges = np.histogram(ends, bins=spans, range=(0.0, max(float(ends.max()), 1e-9)))
    return (edges[:-1] + edges[1:]) / 2, counts / np.diff(edges)


def in_flight(started: Floats, finished: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Times of change, and how many calls were open from each on."""
    known = np.isfinite(started)
    times = np.concatenate([started[known], finished[known]])
    steps = np.repeat([1, -1], [known.sum(), known.sum()])
    order = np.lexsort((steps, times))  # where an end and a start coincide, the end comes first
    return times[order], np.cumsum(steps[order])


def most_at_once(timeline: Timeline) -> int:
    """The most calls that were open at one moment."""
    _, open_calls = in_flight(timeline.started, timeline.finished)
    return int(open_calls.max(initial=0))


class Wait(NamedTuple):
    """For how long one carrier's rows were held back, in seconds: the half-way row, and the row that one in twenty exceeds."""

    carrier: str
    rows: int
    median: float
    high: float
    at_once: int


def waits(timeline: Timeline) -> list[Wait]:
    """One entry per carrier that has called, the busiest first."""
    found = []
    for carrier, rows in timeline.carriers:
        own = timeline.of(carrier)
        known = own.held[np.isfinite(own.held)]
        if len(known):
            found.append(Wait(carrier, rows, float(np.median(known)), float(np.quantile(known, 0.95)), most_at_once(own)))
    return found
