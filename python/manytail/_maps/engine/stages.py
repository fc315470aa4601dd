"""The stages between the next call and its start: small objects, each of which may say "not now".

    remembered -> equal calls (dedup) -> batches -> breaker -> adaptive -> limits

Lanes say which call is next. The scheduler then asks the stages in this order whether it may start. An option that is
not given adds no stage; a plain map has none. All or nothing: if a stage says anything but GO, the scheduler calls
`undo` of the stages before it, the last one first. So what takes something (limits) comes last.

    before   GO               the call may start, as far as this stage is concerned; what it took is the call's
             Wait(until)      not now: ask again then, or after a wake. The call keeps its place
             KEEP             the stage keeps the call: it waits in no lane, holds no slot and no worker, until `after`
                              of another call lets it go. Only of calls that have not started before
             Answer(result)   the item has this result without a call
             Refuse(error)    the item fails with this error without a call
    undo     the call does not start now: a later stage said no, or the worker came later than `begin_by`
    after    the call has ended; or a later stage refused it (Ended.REFUSED), which only those before that one are told

`before` may lower `begin_by` of the call, which is infinite when the first stage is asked.

Each call that got GO of every stage ends in exactly one of `undo` and `after`. A stage is called by the scheduler
alone, one call at a time, with its clock's `now`. It runs no user code and takes no lock but that of a ledger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .item import Call, Ended, Item


class Go:
    """See GO."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "GO"


class Keep:
    """See KEEP."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "KEEP"


GO = Go()
KEEP = Keep()


class Wait(NamedTuple):
    """until: when to ask again; inf: only after a wake. of_lane: the call's lane waits, others may go first. Otherwise
    the whole map waits, and this call stays the next one unless a more urgent one arrives."""

    until: float = math.inf
    of_lane: bool = False


class Answer(NamedTuple):
    result: Any


class Refuse(NamedTuple):
    """error: why the item fails. halves: a batch of several is halved instead, and each half asked on its own."""

    error: BaseException
    halves: bool = False


Decision = Go | Keep | Wait | Answer | Refuse
Released = tuple[Item, Go | Answer | Refuse]  # an item that a stage kept: GO: it is called before new items of its lane


class Stage:
    """A stage that lets everything pass. Subclasses override what they need."""

    __slots__ = ("_wake",)

    paces = False  # whether it lowers `begin_by` of calls
    of_items = False  # it is asked for each item of a batch, and told of each; stages that are not come after it

    def __init__(self) -> None:
        self._wake: Callable[[Any], None] = _nobody

    def connect(self, wake: Callable[[Any], None], fail: Callable[[BaseException], None]) -> None:
        """Before the first call. wake(lane): for any thread: a call that waits may be asked again, of that lane, or of
        the map (None). fail(error): the map fails. Neither keeps the map alive, waits, or calls the stage back."""
        self._wake = wake

    def hold(self) -> None:
        """In each context in which calls run: they hold what the stage has taken for them."""

    def before(self, call: Call, now: float) -> Decision:
        return GO

    def undo(self, call: Call, now: float) -> None:
        pass

    def after(self, call: Call, ended: Ended, now: float) -> Iterable[Released]:
        """Return what the stage kept and lets go now."""
        return ()

    def wake_at(self) -> float:
        """When to ask again besides the times of Wait."""
        return math.inf

    def paused(self, call: Call, until: float, now: float) -> None:
        """The call was deferred, and its lane pauses until then."""

    def due_at(self) -> float:
        """Inline, where a stage has no thread: when `work` is to be called."""
        return math.inf

    def work(self, patience: Any, early: bool = False) -> None:
        """Inline: make the statements that are due. patience: an Event; once it is set, nothing waits for a database.
        early: also those that are not due yet, because nobody makes any until the next result is asked for."""

    def kept(self) -> list[Item]:
        """Every item that the stage keeps, which it forgets: the deadline has passed, or the map ends."""
        return []

    def leave(self, now: float) -> None:
        """The map has ended, and no call runs that counts."""


def _nobody(lane: Any) -> None:
    """Wakes nobody, until the stage is connected."""
