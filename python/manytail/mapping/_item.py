"""An item of a map, a batch of items that one call gets, and the lane of a key."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

from ._types import Delivery, SpentNames


class Lane:
    """The items of one key."""

    __slots__ = (
        "accounts", "assigned", "emitted", "held", "key", "level", "limits", "line", "paused_until",
        "pinned", "queues", "ready", "recheck_at", "shown", "unstarted", "waiters", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, key: Hashable, weight: int, waiting: Any) -> None:
        self.key = key
        self.shown = ""  # the key for messages; only with `shows_keys`
        self.weight = weight
        # Items that are not ready: a deque or, with priorities, a heap of (priority, number, item).
        self.waiting = waiting
        self.line: deque[Item] = deque()  # for order="key": items in input order, until they are emitted
        self.queues: dict[float, list[Any]] = {}  # priority -> [sub-queue, items that are ready, running or resting]
        # Where waiting items go by priority: items with a slot that may be taken back, and their numbers.
        self.ready: list[tuple[int, Item]] = []
        self.level: float = 0  # the priority of the unstarted items
        self.paused_until = -math.inf
        self.limits: Any = None  # the gate's limits of this key
        self.accounts: Any = ()  # of this key and of the map, in the ledger
        self.waiters: Any = None  # what waits for each of them
        self.recheck_at = math.inf  # when the gate rechecks its limits; a timer is set
        self.pinned = False  # a limit of this key, or its pause, is in force: the lane is kept although it is idle
        self.assigned = self.emitted = self.held = self.unstarted = 0


class Item:
    """One item of a map. One thread at a time uses it: the scheduler's owner, or the worker that runs it."""

    __slots__ = (
        "attempts", "began", "begun", "costs", "deferred", "delivery", "done", "error", "fatal", "first_start",
        "identity", "key", "known", "lane", "last_error", "looked_up", "priority", "read", "result", "size", "value",
    )  # fmt: skip

    lane: Lane
    began: float  # when its last call began; only if that has failed, was timed or has a batch
    begun: bool  # it passed the gate before; only where there is a gate
    last_error: Any  # of its last attempt; only where there is a gate, a limit of `shared` or a delivery
    first_start: float  # when its first attempt passed the gate; only where there is a gate
    delivery: Delivery  # of its last call; only where fn gets one
    cost: float  # what it takes of shared limits with a cost; only where the options have one
    costs: tuple[float, ...]  # what it takes of the other limits; only where one of them has a cost
    identity: str  # its idempotency key; only with dedup or remember
    looked_up: float  # when the database was last asked for its result; only with remember
    size: float  # bytes of the item and its result; only where the scheduler has `sizeof`
    noun = "item"  # what messages call it

    def __init__(self, value: Any, key: Any = None, priority: float = 0, read: float = 0.0) -> None:
        """read: when it was taken from the input, by the clock of Timings."""
        self.value = value
        self.read = read
        self.key = key
        self.priority = priority
        self.attempts = 0
        self.deferred: float | None = None  # seconds that it was deferred for in all; None: never
        self.done = False
        self.known = False  # its result was recorded before
        self.result: Any = None
        self.error: Any = None  # why it failed; an item that arrives with one fails without a call
        self.fatal = False  # that error was found before a call, and ends the map

    @property
    def spent(self) -> dict[str, float] | None:
        """What its last call said that it took, by name; "": of the only limit that was given a cost. None: nothing.
        Final when the call has ended or was abandoned."""
        delivery: Delivery | None = getattr(self, "delivery", None)
        return None if delivery is None else delivery.said

    def shown_key(self) -> Any:
        """The key for messages."""
        return self.key

    # Without batches an item is a call of its own.
    def members(self) -> list[Item]:
        """The items of this call."""
        return [self]

    def to_call(self) -> list[Item]:
        """The items for fn: not those that have failed, or whose results were found recorded."""
        return [self]


class Batch(Item):
    """The items of one call. They have one key and, unless calls of a key start in input order, one priority.

    `attempts` counts the calls of the batch. A part that is called again continues the count. A half of a split batch
    starts at 0.
    """

    __slots__ = ("has_slot", "items")

    def __init__(self, items: list[Item], attempts: int = 0, priority: float | None = None) -> None:
        """priority: of the batch that this is a part of. The part may keep its slot, which belongs to that priority."""
        first = items[0]
        super().__init__(None, first.key, first.priority if priority is None else priority)
        self.lane = first.lane
        self.attempts = attempts
        self.items = items
        self.begun = False
        self.last_error = None
        self.has_slot = True  # whether it keeps its key's slot while it rests

    def members(self) -> list[Item]:
        return self.items

    def to_call(self) -> list[Item]:
        return [item for item in self.items if self.is_called(item)]

    def is_called(self, item: Item) -> bool:
        return not item.known and item.error is None

    def _not_called(self, item: Item) -> Any:
        """The error or the result of an item that fn does not get."""
        return item.result if item.error is None else item.error

    def with_known(self, results: Any) -> Any:
        """The results of the items that fn got, and those of the other items, in the order of the batch."""
        if isinstance(results, Unfit) or len(results) == len(self.items):
            return results
        called = iter(results)
        return [next(called) if self.is_called(item) else self._not_called(item) for item in self.items]

    def __repr__(self) -> str:
        return f"Batch({[item.value for item in self.items]})"


def deliver_call(
    call: Item, identify: Callable[[], Any], names: SpentNames, task_attempt: int = 0, key: Any = None
) -> Delivery:
    """A new Delivery for a call that begins. identify: makes its idempotency key, or those of a batch. key: the one
    that is shown, if it is not the call's."""
    last = max(call.to_call(), key=lambda item: item.attempts)
    key = call.key if key is None else key
    error = getattr(last, "last_error", None)
    batch = isinstance(call, Batch)
    call.delivery = Delivery(last.attempts, task_attempt, key, error, batch=batch, identify=identify, names=names)
    return call.delivery


class Unfit:
    """Replaces the result of a batch if it has the wrong type or length: all its items fail with `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def batch_result(result: Any, length: int) -> Any:
    """The results that fn returned for a batch of that many items, or Unfit."""
    expected = f"a sequence of {length} results, one for each item"
    if not isinstance(result, Sequence) or isinstance(result, (str, bytes, bytearray, memoryview)):
        return Unfit(TypeError(f"batch: fn returned {type(result).__qualname__} (expected: {expected})"))
    results = list(result)  # what a lazy sequence raises fails the call
    if len(results) != length:
        return Unfit(ValueError(f"batch: fn returned {len(results)} results (expected: {expected})"))
    return results


def note_of(item: Item) -> str:
    """What the error of an item that has failed says of it."""
    attempts = f"{item.attempts} attempt{'' if item.attempts == 1 else 's'}"
    return f"manytail: the {item.noun} with key {item.shown_key()!r} failed after {attempts}"


def add_note(error: BaseException, item: Item) -> None:
    """Say in the error of an item which one has failed. The error of a batch says it once."""
    with suppress(Exception):  # a frozen dataclass refuses attributes: it goes without a note
        if (note := note_of(item)) not in getattr(error, "__notes__", ()):
            error.add_note(note)
