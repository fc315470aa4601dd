"""What must add up, and the check that it does.

The two sides are counted by different parties: rows by reading the input and the three outputs, calls by the service and, apart from it, by the
job as attempts of its rows. A cancelled flight is an attempt without a call; every other attempt is one call.
"""

import dataclasses
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .job import Outputs
from .service import Counts

WITHOUT_CALL = "Cancelled"


@dataclasses.dataclass(frozen=True)
class Tally:
    """The figures of one run."""

    rows_in: int
    enriched: int
    dead: int
    doubled: int  # rows of the outputs beyond the first of each flight
    in_order: bool  # `seq` rises in the transform's own output and in what was read from it; nobody sorts after the transform
    reasons: dict[str, int]
    attempts: dict[int, int]  # rows by number of attempts, of rows that called
    service: Counts
    seconds: float

    @property
    def lost(self) -> int:
        return self.rows_in - (self.enriched + self.dead - self.doubled)

    @property
    def calls(self) -> int:
        """Calls as the job counts them."""
        return sum(attempts * rows for attempts, rows in self.attempts.items())

    @property
    def retries(self) -> int:
        return sum((attempts - 1) * rows for attempts, rows in self.attempts.items())

    @property
    def rows_per_second(self) -> float:
        return self.rows_in / self.seconds

    @property
    def one_at_a_time(self) -> float:
        """Seconds that these calls take at least, one after another: the service's latencies, with nothing added for either side's work."""
        return self.service.slept

    @property
    def speed_up(self) -> float:
        return self.one_at_a_time / self.seconds

    def faults(self) -> list[str]:
        """What does not add up, one sentence each; empty if all does."""
        checks = [
            (self.lost == 0, f"{self.rows_in:,} rows in, but {self.enriched:,} enriched + {self.dead:,} dead letters: {self.lost:,} lost"),
            (self.doubled == 0, f"{self.doubled:,} rows came out more than once"),
            (self.in_order, "the output is not in schedule order"),
            (self.service.calls == self.calls, f"the service counted {self.service.calls:,} calls, the job {self.calls:,}"),
            (self.service.refused == self.retries, f"the service refused {self.service.refused:,} calls, the job retried {self.retries:,}"),
            (self.service.in_flight == 0, f"{self.service.in_flight:,} calls were still open at the end"),
        ]
        return [sentence for holds, sentence in checks if not holds]


def count(rows_in: int, outputs: Outputs, service: Counts, seconds: float) -> Tally:
    """Reads the outputs of a run and counts."""
    calls = pq.read_table(outputs.calls, columns=["seq"])
    enriched = pq.read_table(outputs.enriched, columns=["seq", "attempts"])
    dead = pq.read_table(outputs.dead, columns=["seq", "reason", "attempts"])
    called = dead.filter(pc.not_equal(dead["reason"], WITHOUT_CALL))
    out = pa.chunked_array([*enriched["seq"].chunks, *dead["seq"].chunks], pa.int64())
    return Tally(
        rows_in=rows_in,
        enriched=enriched.num_rows,
        dead=dead.num_rows,
        doubled=len(out) - pc.count_distinct(out).as_py(),
        in_order=all(rises(table["seq"]) for table in (calls, enriched, dead)),
        reasons=dict(Counter(dead["reason"].to_pylist()).most_common()),
        attempts=dict(sorted(Counter([*enriched["attempts"].to_pylist(), *called["attempts"].to_pylist()]).items())),
        service=service,
        seconds=seconds,
    )


def rises(numbers: pa.ChunkedArray) -> bool:
    """Whether every number is greater than the one before it."""
    return len(numbers) < 2 or bool(pc.all(pc.greater(numbers.slice(1), numbers.slice(0, len(numbers) - 1))).as_py())
