"""What both runs came to, from three sources that know nothing of one another: the service's log of calls, the database
of `Shared`, and the job's output. Nothing here does I/O."""

import dataclasses
from functools import cached_property
from typing import Any

import pandas as pd
from job import TASKS, WORKERS

BACKLOG = 200  # results of a task that may wait to be recorded; docs/guides/shared.md


@dataclasses.dataclass(frozen=True)
class Tally:
    asked: pd.DataFrame  # the packages, with `section` and `price`
    rows: pd.DataFrame  # the output of the second run, with `reason`, empty where there is an answer, and `remembered`
    calls: pd.DataFrame  # the service's log: seconds since the first call, `run`, `package`, `status`, and `price`
    killed: float  # when, in the same seconds
    in_flight: frozenset[str]  # packages whose billed call had no answer at the kill
    recorded: tuple[int, int]  # results in the database after each run
    spent: tuple[float, float]  # of the budget, after each run
    budget: int
    edges: pd.DataFrame
    answered: int  # as the sink counted them
    seconds: float  # of the second run

    @classmethod
    def of(
        cls,
        asked: pd.DataFrame,
        rows: pd.DataFrame,
        log: dict[str, Any],
        accounts: list[tuple[int, float]],
        **others: Any,
    ) -> "Tally":
        """`rows` as the job wrote them, `log` as the service sent it, `accounts`: (recorded, spent) after each run."""
        calls = pd.DataFrame(log["calls"], columns=["seconds", "run", "package", "status"])
        zero = calls["seconds"].min()
        calls["seconds"] -= zero
        killed = log["killed"]["time"] - zero
        late = calls.query("run == 1 and seconds > @killed")["package"]  # sent before the kill, read after it
        (recorded, spent), (recorded_at_end, spent_at_end) = accounts
        return cls(
            asked=asked,
            rows=rows.assign(
                remembered=rows["_call"].map(lambda call: call["remembered"]),
                reason=rows["_error"].map(lambda error: "" if error is None else error["type"].rpartition(".")[2]),
            ),
            calls=calls.merge(asked[["package", "price"]], on="package"),
            killed=killed,
            in_flight=frozenset(log["killed"]["in_flight"]) | frozenset(late),
            recorded=(recorded, recorded_at_end),
            spent=(spent, spent_at_end),
            **others,
        )

    @cached_property
    def billed(self) -> pd.DataFrame:
        return self.calls[self.calls["status"] == 200]

    def paid(self, run: int) -> set[str]:
        """The packages that a run was billed for."""
        return set(self.billed.loc[self.billed["run"] == run, "package"])

    @cached_property
    def twice(self) -> set[str]:
        return self.paid(1) & self.paid(2)

    @cached_property
    def unrecorded(self) -> int:
        """Calls that the first run was billed for, and whose results died with it."""
        return len(self.paid(1)) - self.recorded[0]

    def faults(self) -> list[str]:
        """What does not add up, one sentence each; empty if everything does."""
        bill, bound = int(self.billed["price"].sum()), TASKS * (WORKERS + BACKLOG)
        remembered, good = int(self.rows["remembered"].sum()), int((self.rows["reason"] == "").sum())
        once_each = len(self.billed) - len(self.paid(1)) - len(self.paid(2))
        edges = sum(len(group) for groups in self.asked["depends"] for group in groups)
        checks = {
            "not every package is in the output exactly once": sorted(self.rows["package"])
            == sorted(self.asked["package"]),
            f"{once_each:,} packages were billed twice within one run": once_each == 0,
            f"{self.recorded[0]:,} results were recorded, but {remembered:,} were remembered": self.recorded[0]
            == remembered,
            f"{len(self.twice):,} were paid twice, but {self.unrecorded:,} results were lost": len(self.twice)
            <= self.unrecorded,
            f"{self.unrecorded:,} results were lost (at most {bound:,})": self.unrecorded <= bound,
            f"billed {bill:,}, spent {self.spent[1]:,.0f}, budget {self.budget:,}": bill
            <= self.spent[1]
            <= self.budget,
            f"{good:,} answers, but {len(self.paid(1) | self.paid(2)):,} packages billed": good
            <= len(self.paid(1) | self.paid(2)),
            f"{good:,} answers, but the sink counted {self.answered:,}": good == self.answered,
            f"{edges:,} dependency edges, but the sink wrote {len(self.edges):,}": edges == len(self.edges),
        }
        return [sentence for sentence, holds in checks.items() if not holds]
