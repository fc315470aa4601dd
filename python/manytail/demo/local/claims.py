"""What must hold after a run of the demo, and its curves. Told from what came out and from the API's own log; pure."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from manytail import Stats

from .api import Event

AT_ONCE = 1.0  # seconds: a result is recorded at most 0.5 s after it came; twice that for a busy machine
Points = list[tuple[float, float]]


class Claim(NamedTuple):
    text: str
    found: str
    holds: bool


@dataclass(frozen=True)
class Seen:
    """What a run of the demo came to. `resumed`: "job" again, after the process of the first "job" was killed."""

    items: int
    quota: int  # answers of the API within a second, to each run
    events: Sequence[Event]  # of the API, in the order of the answers
    pool: list[str | None]
    mapped: list[str]
    stats: Stats  # of the map
    killed: float  # when, by the API's clock
    recorded: int  # results in run.db then
    resumed_at: float
    resumed: list[str]
    resumed_stats: Stats

    def of(self, run: str, *statuses: int) -> list[Event]:
        return [event for event in self.events if event.run == run and (not statuses or event.status in statuses)]

    def paid(self, run: str) -> Counter[int]:
        """How often each number was paid for, by the API's count."""
        return Counter(event.number for event in self.of(run, 200))

    @property
    def killed_job(self) -> list[Event]:
        """Answers that were paid for by the process that was killed."""
        return [event for event in self.of("job", 200) if event.came < self.resumed_at]

    @property
    def twice(self) -> set[int]:
        return {number for number, times in self.paid("job").items() if times > 1}


def claims(seen: Seen) -> list[Claim]:
    whole = [f"answer {number}" for number in range(seen.items)]
    lost, refused = seen.pool.count(None), len(seen.of("pool", 429))
    asked_later = len(seen.of("map", 429))
    paid = seen.paid("map")
    first_paid = {event.number: event.done for event in reversed(seen.killed_job)}
    early = [number for number in seen.twice if first_paid.get(number, 0.0) < seen.killed - AT_ONCE]
    saved, called_again = seen.resumed_stats.remembered, seen.paid("job").total() - len(seen.killed_job)
    of = f"of {seen.items:,}"
    return [
        Claim(
            "The pool lost each result that was refused, or whose first call failed",
            f"{lost:,} {of} lost; {refused:,} refused",
            lost == seen.items - seen.paid("pool").total() and 0 < refused <= lost,
        ),
        Claim(
            "The map lost nothing, and its results came in the order of the input",
            f"{len(seen.mapped):,} {of}",
            seen.mapped == whole,
        ),
        Claim(
            "The map was refused less often than the pool, and each refused call came later",
            f"{asked_later:,} refused, {seen.stats.deferred:,} deferred",
            asked_later == seen.stats.deferred and asked_later < refused,
        ),
        Claim(
            "The map paid for each item once",
            f"{paid.total():,} answers for {len(paid):,} items",
            len(paid) == seen.items == paid.total(),
        ),
        Claim(
            "The killed run was resumed, and every result is there, in order",
            f"{len(seen.resumed):,} {of}, {len(seen.killed_job):,} paid for before the kill",
            seen.resumed == whole and 0 < len(seen.killed_job) < seen.items,
        ),
        Claim(
            "What was recorded before the kill was not called again",
            f"{seen.recorded:,} recorded, {saved:,} taken from run.db, {called_again:,} called",
            saved == seen.recorded > 0 and saved + called_again == seen.items,
        ),
        Claim(
            f"Only answers of the last {AT_ONCE:.0f} s before the kill were paid for twice",
            f"{len(seen.twice):,} {of}; {len(early):,} of them older",
            not early and seen.paid("job").total() == seen.items + len(seen.twice),
        ),
    ]


def answers(events: Sequence[Event], zero: float, first: int = 0) -> Points:
    """How many answers there are, over time: `first` at the beginning, one more for each."""
    return [(0.0, first), *((event.done - zero, first + n) for n, event in enumerate(events, 1))]


def requests_per_second(events: Sequence[Event], until: float, step: float = 0.1) -> Points:
    """How many requests came within the last second, over time, from the first request on."""
    came = sorted(event.came for event in events)
    moments = (came[0] + n * step for n in range(int(until / step) + 1))
    return [(now - came[0], bisect_right(came, now) - bisect_right(came, now - 1)) for now in moments]
