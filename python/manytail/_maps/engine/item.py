"""Items, the calls that a worker makes with them, and the lanes that they wait in.

An item of the input is a call itself, unless the map has batches: then a Batch, made of items of one lane, is the call.
Exactly one part of the map uses an item at a time: the reader that makes it, the engine, or the worker that calls it.

Invariants
    a call has at most one hold in the stages: taken when it starts, given back by `undo` or `after`, never both
    item.done        no call of the item follows; it has a result, or an error
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple


class Lane:
    """The items of one key; of a map without keys, all of them."""

    __slots__ = (
        "accounts", "again", "assigned", "breaker", "emitted", "entry", "forgotten", "held", "key", "level", "line",
        "paused_until", "pinned", "rest_until", "rests", "shown", "spread", "turns", "waiters", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, waiting: Any, again: Any, key: Hashable = None, weight: int = 1) -> None:
        """waiting, again: empty queues, see `lanes`."""
        self.key = key
        self.weight = weight
        self.shown = ""  # the key for messages that the engine makes; it runs no user code
        # Owned by `lanes`.
        self.waiting = waiting  # items without a slot
        self.again = again  # calls with a slot
        self.held = 0  # slots in use
        self.turns = weight  # calls that it may start before the next lane's turn
        self.entry: Any = None  # its entry in a ring
        self.level: float = 0  # the priority of that ring
        self.rests = False  # nothing of it starts
        self.rest_until = -math.inf  # before that time; inf: before it is woken
        self.paused_until = -math.inf  # nor before that time, also if it is woken
        self.spread: Any = None  # of its starts after a pause
        self.assigned = self.emitted = 0  # items; the first is the reader's
        self.forgotten = False  # of a Caller: no item may be assigned to it
        self.line: deque[Item] = deque()  # order="key": items in input order, until they are emitted
        # Owned by stages.
        self.pinned = False  # what they keep of it matters although it has no items
        self.breaker: Any = None
        self.accounts: Any = None  # of the limits with per_key
        self.waiters: Any = None


class Item:
    """One item of the input."""

    __slots__ = (
        "attempts", "began", "begin_by", "costs", "deferral_error", "deferrals", "deferred", "delivery", "done",
        "entry", "error", "fatal", "first_start", "future", "hold", "identity", "key", "known", "lane", "last_error",
        "noted", "number", "priority", "read", "record", "result", "size", "value",
    )  # fmt: skip

    has_slot = True
    lane: Lane
    # What few items have is set when they get it (`__getattr__`).
    began: Any  # when its last call began, by the clock of Timings; only if that has failed or was timed
    begin_by: float  # a worker that comes later gives the call back
    costs: tuple[float, ...] | None  # what it takes of each limit; None: 1 of each
    deferral_error: Any  # of its last call that was deferred
    deferrals: int  # how often it was deferred
    deferred: float  # seconds that it was deferred for in all
    fatal: bool  # its error ends the map whatever `errors` says
    first_start: float  # when its first call started; only with `within`
    hold: Any  # what its stages keep with a call that runs; only if there are stages
    identity: str  # its idempotency key; only with dedup or remember
    last_error: Any  # of its last attempt
    priority: float
    size: int  # bytes that the window counts for it
    delivery: Any  # of its last call; only where fn wants it
    record: Any  # of the result of its call; an error: its codec refuses it; only with remember
    # Of a Caller:
    future: Any  # of the one who has handed it in
    entry: Any  # an event that is set when the window has room for it; None: nobody waits for that
    noted: bool  # its error says which item it is of

    def __init__(self, value: Any, key: Any = None, read: float = 0.0, number: int | None = None) -> None:
        """read: when it was taken from the input, by the clock of Timings. number: its place there, from 0."""
        self.value = value
        self.key = key
        self.read = read
        self.number = number
        self.attempts = 0  # calls, this one included; without deferred ones
        self.done = False
        self.known = False  # its result was recorded before
        self.result: Any = None
        self.error: Any = None  # why it failed; an item that arrives with one is not called

    def __getattr__(self, name: str) -> Any:
        """The value of an attribute that was not set: most items never need it."""
        try:
            return UNSET[name]
        except KeyError:
            raise AttributeError(name) from None

    def items(self) -> list[Item]:
        """The items of this call."""
        return [self]


UNSET = {
    "began": None, "begin_by": math.inf, "costs": None, "deferral_error": None, "deferrals": 0, "deferred": 0.0,
    "delivery": None, "entry": None, "fatal": False, "future": None, "hold": None, "last_error": None, "noted": False,
    "priority": 0, "record": None, "size": 0,
}  # fmt: skip


class Batch:
    """The items of one call: of one lane and, unless the calls of a key start in input order, of one priority.

    `attempts` counts the calls of the batch. A part that is called again goes on counting; a half of a split batch
    begins at 0."""

    __slots__ = (
        "attempts", "began", "begin_by", "delivery", "has_slot", "hold", "lane", "members", "priority", "result",
        "verdicts",
    )  # fmt: skip

    hold: Any

    def __init__(self, members: list[Item], attempts: int = 0) -> None:
        self.members = members
        self.lane = members[0].lane
        self.priority = members[0].priority
        self.attempts = attempts
        self.began: Any = None
        self.begin_by = math.inf
        self.result: Any = None  # what fn returned: one element for each member
        self.delivery: Any = None
        self.has_slot = True  # whether it keeps a slot of its lane while it rests
        self.verdicts: Sequence[Verdict | None] = ()  # of its last call, if each item has one of its own

    def items(self) -> list[Item]:
        return self.members

    def begin(self) -> list[Any]:
        """Its call begins. Returns the values for fn."""
        for item in self.members:
            item.attempts += 1
        return [item.value for item in self.members]


Call = Item | Batch  # what a worker takes


def said_by(call: Call) -> Mapping[str | None, float]:
    """What its last call has said that it took (`Delivery.spent`), by name; None: of the only limit with a cost."""
    delivery = call.delivery
    return {} if delivery is None else delivery.said or {}


class Ended(Enum):
    """How a call ended, for the stages."""

    SUCCEEDED = "succeeded"
    RETRIED = "retried"  # it failed, and another attempt follows
    FAILED = "failed"  # for good
    DEFERRED = "deferred"  # RetryLater: the server said "not now"
    REFUSED = "refused"  # it did not start: a later stage refused it, and it has failed


class Kind(Enum):
    RETRY = "retry"
    DEFER = "defer"
    FAIL = "fail"
    SPLIT = "split"


class Verdict(NamedTuple):
    """What follows from an exception. RETRY: another attempt in `seconds`. DEFER: the same, which is no attempt, and
    its key pauses. FAIL: the item has failed for good. SPLIT: a batch has, and each half is called on its own.

    error: the exception. fatal: the failure ends the map whatever `errors` says. pauses: of a FAIL: the server said
    "not now", and its key pauses for `seconds` all the same. timed_out: the call was abandoned or cancelled."""

    kind: Kind
    seconds: float = 0.0
    error: Any = None
    fatal: bool = False
    pauses: bool = False
    timed_out: bool = False
