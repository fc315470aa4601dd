"""What a run came to: what must add up, and when each row was held back, ran and ended.

Rows are counted in the input and the outputs. Calls are counted by the service and, independently, by the job as the
attempts of each row. Times are those that `fetch` measured in a row's last call; failed rows have none.
"""

import dataclasses
from functools import cached_property

import numpy as np
import pandas as pd

from .service import Service


@dataclasses.dataclass(frozen=True)
class Tally:
    """The outputs of a run as written, the service that it called, and how long the run took."""

    rows_in: int
    calls: pd.DataFrame
    enriched: pd.DataFrame
    dead_letters: pd.DataFrame
    service: Service
    seconds: float
    busy: float  # share of this machine's processor time in use, by any process

    @cached_property
    def lost(self) -> int:
        return self.rows_in - len(set(self.enriched["seq"]) | set(self.dead_letters["seq"]))

    @cached_property
    def attempts(self) -> pd.Series:  # of each row that called
        return pd.concat([self.enriched["attempts"], self.dead_letters.query("reason != 'Cancelled'")["attempts"]])

    def faults(self) -> list[str]:
        """What does not add up, one sentence each; empty if everything does."""
        enriched, dead, calls = len(self.enriched), len(self.dead_letters), self.attempts.sum()
        doubled, retries = enriched + dead + self.lost - self.rows_in, calls - len(self.attempts)
        in_order = all(rows["seq"].is_monotonic_increasing for rows in (self.calls, self.enriched, self.dead_letters))
        counted, refused, still_open = (self.service.counts[name] for name in ("calls", "503", "open"))
        rows = f"{self.rows_in:,} rows in, but {enriched:,} enriched + {dead:,} dead letters"
        checks = {
            f"{rows}: {self.lost:,} lost": self.lost == 0,
            f"{doubled:,} rows came out more than once": doubled == 0,
            "the output is not in schedule order": in_order,
            f"the service counted {counted:,} calls, the job {calls:,}": counted == calls,
            f"the service refused {refused:,} calls, the job retried {retries:,}": refused == retries,
            f"{still_open:,} calls were still open at the end": still_open == 0,
        }
        return [sentence for sentence, holds in checks.items() if not holds]

    @cached_property
    def times(self) -> pd.DataFrame:
        """carrier, started, finished, held: a row per flight, in order; seconds since the first call, `attrs["zero"]`.

        Rows are read in order, so a row has been read once a row behind it is called. From that call to its own call
        the row is `held` back by round robin or by its carrier's limit. NaN after a retry: the first start is unknown.
        """
        times = self.calls[["carrier", "started", "finished"]].copy()
        zero = times.attrs["zero"] = times["started"].min()
        times[["started", "finished"]] -= zero
        first_behind = np.fmin.accumulate(times["started"][::-1])[::-1]  # of the row and all behind it
        times["held"] = (times["started"] - first_behind).where(self.calls["attempts"] == 1)
        return times

    @cached_property
    def waits(self) -> pd.DataFrame:
        """One row per carrier that has calls, the busiest first: its `rows`; how long `half` of them and `most` of
        them (19 in 20) were held back, in seconds; and its highest number of calls in flight, `at_once`."""
        groups = self.times.groupby("carrier")
        at_once = {carrier: in_flight(times).max() for carrier, times in groups}
        held = {"half": groups["held"].median(), "most": groups["held"].quantile(0.95)}
        found = pd.DataFrame({"rows": groups.size(), **held, "at_once": at_once})
        return found.dropna().sort_values("rows", ascending=False, kind="stable")


def in_flight(times: pd.DataFrame) -> pd.Series:
    """How many calls are in flight after each change."""
    changes = pd.concat([pd.Series(1, times["started"].dropna()), pd.Series(-1, times["finished"].dropna())])
    return changes.groupby(level=0).sum().cumsum()
