"""`with limit:` and `with limit(cost):`, also `async with`: they take the cost, wait for room if they have to, and give
back.

A limit or a Block may be entered by many threads and tasks at once, and again inside itself: each time it takes anew,
and what `with` gives is the Hold of that one. A Hold is an Owner with one call: itself. Which one ends with a block is
told by the context, or, where a block ends in another context, as that of a generator that another thread closes, it is
the last one that began.

This module is compiled (setup.py): a signal handler that raises is served where a block waits, and then it gives back
what it took.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any
from weakref import ref

from manytail import _checks
from manytail._sync import Event

from .ledger import Never, Wait
from .sections import Owner, held_here, seconds_until


class Hold(Owner):
    """What one block has taken. `with limit as hold:` gives it."""

    def __init__(self, limit: Any, cost: float) -> None:
        if limit.per_key:
            raise ValueError(f"{limit!r}: with per_key it cannot be used without a map (expected: per_key=False)")
        if limit.per_task:
            raise ValueError(f"{limit!r}: only a map in Spark has tasks (expected: per_task=False)")
        super().__init__((limit,), _no_wake)
        self._cost = cost
        self._spent: float | None = None
        self._error: BaseException | None = None  # the database of the limit is away for too long
        self.fail = partial(_fail, ref(self))

    def __reduce__(self) -> Any:
        raise TypeError("cannot copy or pickle what a block holds: it belongs to the block")

    def spent(self, amount: float | None = None, /, **amounts: float) -> None:
        """Report what the block really takes, instead of its cost, without a name or with that of the limit. Amounts of
        other names are ignored. Raises RuntimeError if the block has ended."""
        limit = self.limits[0]
        mine = [] if amount is None else [_checks.amount("spent", amount)]
        for name, each in amounts.items():
            checked = _checks.amount(f"spent: {name}", each)
            mine += [checked] if name == limit.name else []
        if not self.held:
            raise RuntimeError("spent: the block has ended, or has not begun")
        if mine and not limit.is_settled:
            raise ValueError("spent: a Concurrency is never settled (expected: a Rate or a Budget)")
        if mine:
            self._spent = mine[-1]

    def try_to_take(self) -> float | None:
        """Take the cost. Returns None, or when to try again."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        answer = self.take(self, self.waiters, self.accounts, (self._cost,), time.monotonic())
        limit = self.limits[0]
        if isinstance(answer, Never):
            raise limit.refusal(self._cost)
        if not isinstance(answer, Wait):
            return None
        if self.waits_for_itself(answer.account, self._cost):
            raise RuntimeError(f"{limit!r}: the caller already holds it, and would wait for itself")
        return answer.at

    def finish(self, begun: bool = True) -> None:
        """Give back."""
        spent: tuple[float, ...] | None = None if self._spent is None else (self._spent,)
        self.end(self, spent if begun else (0.0,), time.monotonic())
        self.leave()
        held_here.set(tuple([one for one in held_here.get() if one() not in (None, self)]))


def _no_wake() -> None:
    """Nothing waits yet."""


def _fail(hold: ref[Hold], error: BaseException) -> None:
    if (waiting := hold()) is not None:
        waiting._error = error
        waiting.wake()


def _wake_in_loop(hold: ref[Hold], loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(changed.set)
    except RuntimeError:  # the loop is closed: its waiter leaves the queue to others
        if (waiting := hold()) is not None:
            waiting.leave()


class Enterable:
    """What `with` takes: a limit, or a Block."""

    def __init__(self) -> None:
        self._open: dict[Hold, None] = {}  # those that have begun

    def _new_hold(self) -> Hold:
        raise NotImplementedError

    def __enter__(self) -> Hold:
        changed, hold = Event(), self._new_hold()
        hold.wake = changed.set
        try:
            while (retry_at := hold.try_to_take()) is not None:
                changed.wait(seconds_until(retry_at, time.monotonic()))
                changed.clear()
        except BaseException:
            hold.finish(begun=False)
            raise
        return self._begun(hold)

    async def __aenter__(self) -> Hold:
        loop, changed, hold = asyncio.get_running_loop(), asyncio.Event(), self._new_hold()
        hold.loop, hold.wake = loop, partial(_wake_in_loop, ref(hold), loop, changed)
        timer = None
        try:
            while (retry_at := hold.try_to_take()) is not None:
                wait = seconds_until(retry_at, time.monotonic())
                timer = None if wait is None else loop.call_later(wait, changed.set)
                await changed.wait()
                changed.clear()
                if timer is not None:
                    timer.cancel()
        except BaseException:
            if timer is not None:
                timer.cancel()
            hold.finish(begun=False)
            raise
        return self._begun(hold)

    def _begun(self, hold: Hold) -> Hold:
        self._open[hold] = None
        hold.hold()
        return hold

    def __exit__(self, *error: object) -> None:
        for one in reversed(held_here.get()):
            hold: Any = one()
            if hold in self._open and self._open.pop(hold, self) is None:
                hold.finish()
                return
        try:
            self._open.popitem()[0].finish()
        except KeyError:
            raise RuntimeError(f"{self!r}: no block of it has begun") from None

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)


class Block(Enterable):
    """`limit(cost)`."""

    def __init__(self, limit: Any, cost: float) -> None:
        super().__init__()
        self._limit = limit
        self._cost = cost

    def __reduce__(self) -> Any:
        return Block, (self._limit, self._cost)

    def __repr__(self) -> str:
        return f"{self._limit!r}({self._cost:g})"

    def _new_hold(self) -> Hold:
        return Hold(self._limit, self._cost)
