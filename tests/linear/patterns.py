"""Bad patterns of long runs with unique values: what no queue may show. Takes O(n log n), where a search never ends.

Source: T. Henzinger, A. Sezgin, V. Vafeiadis, "Aspect-oriented linearizability proofs" (2013), for one FIFO queue;
here per tail (sub-queue), and with priorities. Times are those of history.py. An item is certainly inside from the end
of its put to the start of its get.

    got never put     also: got before its put began
    got twice
    order inverted    a was put into the tail before b, and b was got before a; or a was never got at all
    passed over       the call returned nothing, or an item of lower priority, though at every instant of the call
                      a better item was certainly inside ("empty while surely non-empty" is the case of nothing)
"""
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

NEVER = float("inf")


class Put(NamedTuple):
    item: Hashable
    tail: Hashable
    start: float
    end: float
    priority: int = 0


class Got(NamedTuple):
    item: Hashable
    start: float
    end: float


class Nothing(NamedTuple):
    """A get that raised Empty, or ShutDown, which says that the queue is drained."""

    start: float
    end: float


def bad_patterns(puts: Sequence[Put], gots: Sequence[Got], nothings: Sequence[Nothing] = ()) -> list[str]:
    """Everything that is wrong, in words. An empty list: no bad pattern."""
    put_of = {put.item: put for put in puts}
    if len(put_of) != len(puts):
        raise ValueError("an item was put twice: expected unique values")
    got_of: dict[Any, Got] = {}
    wrong = []
    for got in gots:
        if got.item not in put_of:
            wrong.append(f"got never put: {got}")
            continue
        if got.end < put_of[got.item].start:
            wrong.append(f"got before it was put: {got}, {put_of[got.item]}")
        if got.item in got_of:
            wrong.append(f"got twice: {got_of[got.item]}, {got}")
        got_of.setdefault(got.item, got)
    tails: dict[Any, list[Put]] = {}
    for put in puts:
        tails.setdefault(put.tail, []).append(put)
    for members in tails.values():
        wrong += _inverted(members, got_of)
    return wrong + list(_passed_over(puts, put_of, got_of, nothings))


def _inverted(puts: list[Put], got_of: dict[Any, Got]) -> Iterable[str]:
    """For each b compare with the latest get among all a that were put before it; no other a need be compared."""
    by_end = sorted(puts, key=lambda put: put.end)
    latest, latest_put, at = -NEVER, None, 0
    for b in sorted(puts, key=lambda put: put.start):
        while at < len(by_end) and by_end[at].end < b.start:
            a = by_end[at]
            got_at = got_of[a.item].start if a.item in got_of else NEVER
            if got_at > latest:
                latest, latest_put = got_at, a
            at += 1
        if b.item in got_of and got_of[b.item].end < latest and latest_put is not None:
            yield f"order inverted: {b} {got_of[b.item]} before {latest_put} {got_of.get(latest_put.item, 'never got')}"


def _passed_over(
    puts: Sequence[Put], put_of: dict[Any, Put], got_of: dict[Any, Got], nothings: Sequence[Nothing]
) -> Iterable[str]:
    levels = sorted({put.priority for put in puts})
    for number, level in enumerate(levels):
        better = Cover(
            (put.end, got_of[put.item].start if put.item in got_of else NEVER) for put in puts if put.priority <= level
        )
        worse = set(levels[number + 1:])
        for got in got_of.values():
            if put_of[got.item].priority in worse and better.holds(got.start, got.end):
                yield (
                    f"passed over: {got}, {put_of[got.item]} "
                    f"while something of priority {level} or better was surely inside"
                )
    everything = Cover((put.end, got_of[put.item].start if put.item in got_of else NEVER) for put in puts)
    for nothing in nothings:
        if everything.holds(nothing.start, nothing.end):
            yield f"empty while surely non-empty: {nothing}"


class Cover:
    """The instants that at least one of many intervals covers."""

    def __init__(self, intervals: Iterable[tuple[float, float]]) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []
        for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
            if self.ends and start < self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.starts.append(start)
                self.ends.append(end)

    def holds(self, start: float, end: float) -> bool:
        """Whether the whole of [start, end] lies strictly inside one covered stretch."""
        at = bisect_right(self.starts, start) - 1
        return at >= 0 and self.starts[at] < start and end < self.ends[at]
