"""The breaker of a lane: after `failures` failed calls in a row none starts for `reset` seconds, then one: the probe.

    state       calls          next state
    closed      start          after `failures` in a row: open
    open        do not start   after `reset` seconds: half open
    half open   only the probe it succeeds: closed; it fails: open; it is deferred or undone: the next call is the probe

A call belongs to the period in which it started. Opening and closing begin a new period, and the end of a call of an
older period changes nothing. A deferred call counts neither as a success nor as a failure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..errors import set_cause
from ..outcomes import BreakerOpen
from .item import Call, Ended, Item, Lane
from .stages import GO, Decision, Refuse, Released, Stage, Wait


class State:
    """The breaker of one lane."""

    __slots__ = ("awaited", "failures", "period", "probing", "until")

    def __init__(self) -> None:
        self.period = 0
        self.begin(-math.inf)

    def begin(self, until: float) -> None:
        """A new period: open until then; -inf: closed."""
        self.period += 1
        self.until = until
        self.failures = 0  # in a row, in this period
        self.probing = False  # the probe runs
        self.awaited = False  # its lane waits for the probe's end


class BreakerStage(Stage):
    __slots__ = ("_limit", "_periods", "_reset", "fails", "opened")

    def __init__(self, failures: int, reset: float, fails: bool) -> None:
        """fails: the items of a lane whose breaker opens fail, and those whose turn comes while it is open."""
        super().__init__()
        self._limit, self._reset, self.fails = failures, reset, fails
        self.opened: list[Lane] = []  # lanes whose breakers have opened, for the scheduler
        self._periods: dict[Call, int] = {}  # of the calls that started

    def before(self, call: Call, now: float) -> Decision:
        state: State | None = call.lane.breaker
        if state is None:
            state = call.lane.breaker = State()
        if state.until > now and self.fails:
            return Refuse(self.error_of(call.items()[0]))
        if state.until > now:
            return Wait(state.until, of_lane=True)
        if state.probing:
            state.awaited = True
            return Wait(of_lane=True)
        state.probing = state.until > -math.inf
        self._periods[call] = state.period
        return GO

    def error_of(self, item: Item) -> BreakerOpen:
        error = BreakerOpen(f"breaker: {self._limit} calls in a row failed{item.lane.shown}")
        set_cause(error, item.last_error)
        return error

    def undo(self, call: Call, now: float) -> None:
        state: State = call.lane.breaker
        if self._periods.pop(call) == state.period and state.probing:
            state.probing = False
            self._end_wait(call.lane, state)

    def _end_wait(self, lane: Lane, state: State) -> None:
        if state.awaited:
            state.awaited = False
            self._wake(lane)

    def after(self, call: Call, ended: Ended, now: float) -> Iterable[Released]:
        state: State = call.lane.breaker
        if ended in (Ended.DEFERRED, Ended.REFUSED):
            self.undo(call, now)
        elif self._periods.pop(call) == state.period:
            if ended is Ended.SUCCEEDED:
                self._succeeded(call.lane, state)
            else:
                self._failed(call.lane, state, now)
        return ()

    def _succeeded(self, lane: Lane, state: State) -> None:
        state.failures = 0
        lane.pinned = False
        if state.probing:
            self._end_wait(lane, state)
            state.begin(-math.inf)

    def _failed(self, lane: Lane, state: State, now: float) -> None:
        state.failures += 1
        lane.pinned = True
        if state.probing or state.failures >= self._limit:
            self._end_wait(lane, state)  # it waits for that time then
            state.begin(now + self._reset)
            self.opened.append(lane)
