"""`metrics=True`: the times and costs of each row's calls, as a column. Its sums are the job's totals.

    attempts     calls, without deferred ones
    ran          seconds in calls; a batch's are divided among its rows. An abandoned call counts up to its timeout
    deferred     seconds that RetryLater asked for
    waited       all other seconds between the reading of the row's batch and the row's end
    remembered   it has a result without a call: a recorded one, or that of an equal row
    cost         cost of the row x attempts

The worker measures the call. An abandoned call may never end: the next attempt of its row, or the output, counts it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from manytail.mapping.frames import Options

NAME = "_call"
_FIELDS = [
    pa.field("attempts", pa.int32()), pa.field("waited", pa.float64()), pa.field("ran", pa.float64()),
    pa.field("deferred", pa.float64()), pa.field("remembered", pa.bool_()), pa.field("cost", pa.float64()),
]  # fmt: skip
CALL = pa.struct(_FIELDS)


class Measure:
    """What is measured of one row. One thread at a time uses it, as the row. But an abandoned call may end at any time:
    by `running` it sees that it was counted already."""

    __slots__ = ("began", "calls", "ended", "ran", "running")

    def __init__(self, began: float) -> None:
        self.began = self.ended = began
        self.ran = 0.0
        self.calls = 0
        # When the unfinished call began. Each call has its own list, whose identity names the call.
        self.running: list[float] | None = None

    def settle(self, limit: float, now: float) -> None:
        """Count an unfinished call, which was abandoned, with at most `limit` seconds. Its end is ignored."""
        if (running := self.running) is not None:
            self.running = None
            self.ran += min(limit, now - running[0])
            self.ended = max(self.ended, min(running[0] + limit, now))


class CallMeter:
    """Measures the calls of one task, and makes the column."""

    def __init__(self, options: Options) -> None:
        self._limit = math.inf if options.timeout is None else options.timeout
        limit = options.settled_limit
        self._place = None if limit is None else options.limits.index(limit)
        self._is_async = options.is_async

    def measured(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, with its time measured for each of its rows. Its arguments: a row, or a batch and its rows."""

        def plain(*given: Any) -> Any:
            measures, running = self._begin(given)
            try:
                return call(*given)
            finally:
                _end(measures, running)

        async def asynchronous(*given: Any) -> Any:
            measures, running = self._begin(given)
            try:
                return await call(*given)
            finally:
                _end(measures, running)

        return asynchronous if self._is_async else plain

    def _begin(self, given: Any) -> tuple[list[Measure], list[float]]:
        now = time.monotonic()
        rows: Sequence[Any] = given if len(given) == 1 else given[1]
        measures: list[Measure] = [row.measure for row in rows]
        running = [now]
        for measure in measures:
            measure.settle(self._limit, now)
            measure.calls += 1
            measure.running = running
        return measures, running

    def column(self, rows: Sequence[Any]) -> pa.Array:
        """The column of finished rows."""
        now = time.monotonic()
        columns = zip(*[self._values(row, now) for row in rows], strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, _FIELDS, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=_FIELDS)

    def _cost(self, row: Any) -> float:
        """Of one call of the row."""
        return 1.0 if self._place is None else float(row.costs[self._place])

    def _values(self, row: Any, now: float) -> tuple[int, float, float, float, bool, float]:
        measure: Measure = row.measure
        measure.settle(self._limit, now)
        # `attempts` includes calls of a batch without this row, `calls` deferred ones.
        attempts = min(row.attempts, measure.calls)
        remembered = row.error is None and (row.known or measure.calls == 0)
        deferred = row.deferred or 0.0
        end = measure.ended if measure.calls and not row.known else now
        waited = max(0.0, end - measure.began - measure.ran - deferred)
        return attempts, waited, measure.ran, deferred, remembered, attempts * self._cost(row)


def _end(measures: list[Measure], running: list[float]) -> None:
    now = time.monotonic()
    ran = (now - running[0]) / max(1, len(measures))
    for measure in measures:
        if measure.running is running:
            measure.running = None
            measure.ran += ran
            measure.ended = now
