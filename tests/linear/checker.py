"""Does a sequential run explain what the threads saw? A checker for any specification.

Source: J. M. Wing and C. Gong, "Testing and verifying concurrent objects" (1993): try every order that respects real
time, and back out of those that the specification refuses. G. Lowe, "Testing for linearizability" (2017): remember the
configurations that were visited. A configuration is the specification's state and one position per thread: a thread's
own calls are in order, so its position says which of them have taken effect. Each configuration is visited once.

A call may take effect in several steps, as a bulk put into a bounded queue does. The specification names the steps.
Each has its own instant; they are in order, all between the call's start and its end. A step that may be left out is
marked. Leaving it out is no step of the search, which would otherwise have to try every instant for it.
"""
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from .history import Call


class Maybe(NamedTuple):
    """A step that may be left out."""

    step: Any


class Specification(Protocol):
    initial: Hashable

    def steps(self, call: Call) -> Sequence[Any]:
        """What happens at one instant each, in order; mostly one step. The last one is no Maybe."""

    def apply(self, state: Any, call: Call, step: Any) -> Iterable[Hashable]:
        """The states that may follow if that step takes effect in `state`; none: the call's result is impossible."""


class NotLinearizable(AssertionError):
    """No sequential run explains the history."""


class _Lane:
    """One thread's calls, split into steps."""

    def __init__(self, calls: list[Call], spec: Specification) -> None:
        calls.sort(key=lambda call: call.start)
        for before, after in pairwise(calls):
            if before.end > after.start:
                raise ValueError(f"{after} began before {before} had ended: expected one call at a time per thread")
        self.steps = [(call, step) for call in calls for step in spec.steps(call)]
        # For each position, when the call ends that its next step belongs to. Past the last step: never.
        self.ends = [call.end for call, _ in self.steps] + [float("inf")]

    def next_steps(self, at: int) -> Iterator[tuple[int, Call, Any]]:
        """The steps that may follow that position: (position after it, call, step)."""
        for after, (call, step) in enumerate(self.steps[at:], at + 1):
            if not isinstance(step, Maybe):
                yield after, call, step
                return
            yield after, call, step.step


def linearization(history: Iterable[Call], spec: Specification) -> list[Call] | None:
    """An order of effects that explains the history, one entry per step. None: there is none."""
    return _search(history, spec)[0]


def check(history: Iterable[Call], spec: Specification) -> None:
    """Raise NotLinearizable unless some order explains the history. The error shows how far the search got."""
    history = list(history)
    order, furthest = _search(history, spec)
    if order is None:
        shown = "\n".join(str(call) for call in sorted(history, key=lambda call: call.start))
        got = "\n".join(f"{call.thread}: {call.name}{call.args} -> {call.result}" for call in furthest)
        raise NotLinearizable(f"no order of these calls is one that {type(spec).__name__} allows:\n{shown}\n"
                              f"the furthest that an order gets:\n{got}\nfrom {spec.initial}")


def _search(history: Iterable[Call], spec: Specification) -> tuple[list[Call] | None, list[Call]]:
    by_thread: dict[int, list[Call]] = {}
    for call in history:
        by_thread.setdefault(call.thread, []).append(call)
    lanes = [_Lane(calls, spec) for _, calls in sorted(by_thread.items())]
    goal = tuple(len(lane.steps) for lane in lanes)
    start = (0,) * len(lanes)
    seen = {(start, spec.initial)}
    path: list[Call] = []
    furthest: list[Call] = []
    stack = [_moves(lanes, start, spec.initial, spec)]
    if start == goal:
        return [], []
    while stack:
        move = next(stack[-1], None)
        if move is None:
            stack.pop()
            if path:
                path.pop()
            continue
        call, positions, state = move
        if (positions, state) in seen:
            continue
        seen.add((positions, state))
        path.append(call)
        if len(path) > len(furthest):
            furthest = path.copy()
        if positions == goal:
            return path, furthest
        stack.append(_moves(lanes, positions, state, spec))
    return None, furthest


def _moves(lanes: list[_Lane], positions: tuple[int, ...], state: Any, spec: Specification) -> Any:
    """Every step that may come next: its call began before any unfinished call ended. Calls that end first are tried
    first. That order is mostly the right one, and a long call that overlaps many others does not mislead the search."""
    first_end = min(lane.ends[at] for lane, at in zip(lanes, positions, strict=True))
    begun = [(lane.ends[at], number) for number, (lane, at) in enumerate(zip(lanes, positions, strict=True))
             if at < len(lane.steps) and lane.steps[at][0].start <= first_end]
    for _, number in sorted(begun):
        for at, call, step in lanes[number].next_steps(positions[number]):
            after = (*positions[:number], at, *positions[number + 1:])
            for following in spec.apply(state, call, step):
                yield call, after, following
