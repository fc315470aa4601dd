"""An item of a map, a batch of items that one call gets, and the lane of a key."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from ._errors import add_note, shortened
from ._types import Delivery, SpentNames


class Spread:
    """When calls of a key start after its pause: one at `at`, the next ones `step` seconds after one another, until
    `end`. All at once they would meet the server that has just asked for a pause."""

    __slots__ = ("_begin", "_starts", "at", "end", "step")

    def __init__(self, begin: float, seconds: float, steps: int) -> None:
        self.at = self._begin = begin
        self.end, self.step = begin + seconds, seconds / steps
        self._starts = 0

    def advance(self) -> None:
        """To the next start."""
        self._starts += 1
        self.at = min(self._begin + self._starts * self.step, self.end)


class Lane:
    """The items of one key."""

    __slots__ = (
        "accounts", "assigned", "emitted", "held", "key", "level", "limits", "line", "next_start", "open",
        "paused_until", "pinned", "queues", "recheck_at", "shown", "spread", "unsecured", "unstarted", "waiters",
        "waiting", "weight",
    )  # fmt: skip

    def __init__(self, key: Hashable, weight: int, waiting: Any) -> None:
        self.key = key
        self.shown = ""  # the key for messages; only with `shows_keys`
        self.weight = weight
        # Items that are not ready: a deque or, with priorities, a heap of (priority, number, item).
        self.waiting = waiting
        self.line: deque[Item] = deque()  # for order="key": items in input order, until they are emitted
        self.queues: dict[float, list[Any]] = {}  # priority -> [sub-queue, items that are ready, running or resting]
        # Where waiting items go by priority: items whose slot a more urgent one may take, and their numbers.
        self.unsecured: list[tuple[int, Work]] = []
        self.level: float = 0  # the priority of the unstarted items
        self.paused_until = -math.inf
        self.next_start = -math.inf  # where there is a gate: nothing starts before, because starts are spread
        self.spread: Spread | None = None  # of its starts after that pause
        self.open: dict[float, Any] = {}  # priority -> the sub-queue of items that may start in a disabled lane
        self.limits: Any = None  # the gate's limits of this key
        self.accounts: Any = ()  # of this key and of the map, in the ledger
        self.waiters: Any = None  # what waits for each of them
        self.recheck_at = math.inf  # when the gate rechecks its limits; a timer is set
        self.pinned = False  # a limit of this key, or its pause, is in force: the lane is kept although it is idle
        self.assigned = self.emitted = self.held = self.unstarted = 0  # see the invariants of `_admission`


class Item:
    """One item of a map. One thread at a time uses it: the scheduler's owner, or the worker that runs it."""

    __slots__ = (
        "attempts", "began", "costs", "deferral", "deferred", "delivery", "done", "error", "fatal", "first_start",
        "identity", "key", "known", "lane", "last_error", "looked_up", "number", "passed", "priority", "read", "result",
        "size", "value",
    )  # fmt: skip

    lane: Lane
    began: float  # when its last call began; only if that has failed, was timed or has a batch
    passed: bool  # it passed the gate before, or was refused there; only where there is a gate
    last_error: Any  # of its last attempt; only where there is a gate, a limit of `shared` or a delivery
    deferral: tuple[int, Any]  # how often it was deferred, and the last error; only if it was
    first_start: float  # when its first attempt passed the gate; only where there is a gate
    delivery: Delivery  # of its last call; only where fn gets one
    costs: tuple[float, ...]  # what it takes of the limits; only where one of them has a cost
    identity: str  # its idempotency key; only with dedup or remember
    looked_up: float  # when the database was last asked for its result; only with remember
    size: float  # bytes of the item and its result; only where the scheduler has `sizeof`
    noun = "item"  # what messages call it
    has_slot = True

    def __init__(
        self, value: Any, key: Any = None, priority: float = 0, read: float = 0.0, number: int | None = None
    ) -> None:
        """read: when it was taken from the input, by the clock of Timings. number: its place there, from 0."""
        self.value = value
        self.number = number
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

    def shown_key(self) -> Any:
        """The key for messages."""
        return self.key

    def shown(self) -> str:
        """Which item it is, for messages: its place in the input and its value."""
        place = "" if self.number is None else f"items[{self.number}], "
        return f"{place}{shortened(self.value)}: "

    def members(self) -> list[Item]:
        """The items of this call."""
        return [self]

    def to_call(self) -> list[Item]:
        """The items for fn: not those that have failed, or whose results were found recorded."""
        return [self]


class ItemBatch:
    """The items of one call. They have one key and, unless calls of a key start in input order, one priority.

    `attempts` counts the calls of the batch. A part that is called again continues the count. A half of a split batch
    starts at 0. The other attributes mean what they mean in an Item.
    """

    __slots__ = (
        "attempts", "began", "deferred", "delivery", "has_slot", "items", "key", "lane", "last_error", "passed",
        "priority", "result",
    )  # fmt: skip

    began: float
    delivery: Delivery

    def __init__(self, items: list[Item], attempts: int = 0, priority: float | None = None) -> None:
        """priority: of the batch that this is a part of. The part may keep its slot, which belongs to that priority."""
        first = items[0]
        self.lane, self.key = first.lane, first.key
        self.priority = first.priority if priority is None else priority
        self.attempts = attempts
        self.items = items
        self.passed = False
        self.deferred: float | None = None
        self.result: Any = None
        self.last_error: Any = None
        self.has_slot = True  # whether it keeps its key's slot while it rests

    def members(self) -> list[Item]:
        return self.items

    def to_call(self) -> list[Item]:
        return [item for item in self.items if self.is_called(item)]

    def is_called(self, item: Item) -> bool:
        return not item.known and item.error is None

    def with_known(self, results: Any) -> Any:
        """The results of the items that fn got, and the errors or results of the others, in the order of the batch."""
        if isinstance(results, Unfit) or len(results) == len(self.items):
            return results
        called = iter(results)
        known = [item.result if item.error is None else item.error for item in self.items]
        return [next(called) if self.is_called(item) else one for item, one in zip(self.items, known, strict=True)]

    def __repr__(self) -> str:
        return f"ItemBatch({[item.value for item in self.items]})"


Work = Item | ItemBatch  # what a worker takes for one call


def spent_of(call: Work) -> dict[str | None, float]:
    """What its last call said that it took, by name; None: of the only limit that was given a cost. Final when the call
    has ended or was abandoned."""
    delivery: Delivery | None = getattr(call, "delivery", None)
    return (delivery and delivery.said) or {}


def deliver_call(
    call: Work, identify: Callable[[], Any], names: SpentNames, task_attempt: int = 0, key: Any = None
) -> Delivery:
    """A new Delivery for a call that begins. identify: makes its idempotency key, or those of a batch. key: the one
    that is shown, if it is not the call's."""
    last = max(call.to_call(), key=lambda item: item.attempts)
    key = call.key if key is None else key
    error = getattr(last, "last_error", None)
    batch = isinstance(call, ItemBatch)
    call.delivery = Delivery(last.attempts, task_attempt, key, error, batch=batch, identify=identify, names=names)
    return call.delivery


def flat(calls: Iterable[Work]) -> list[Item]:
    """The items of these calls."""
    return [item for call in calls for item in call.members()]


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
    return f"manytail: {item.shown()}the {item.noun} with key {shortened(item.shown_key())} failed after {attempts}"


def note_item(error: BaseException, item: Item) -> None:
    """Say in the error of an item which one has failed."""
    add_note(error, note_of(item))


def note_wait(error: BaseException, after: float, longest: float) -> None:
    """Say in the error of an item when its server wants to be asked again, which is too late for it. longest: `defer`
    of the Retry."""
    at = ""
    with suppress(OverflowError):
        at = f", at {datetime.now(UTC) + timedelta(seconds=after):%Y-%m-%d %H:%M:%S} UTC"
    add_note(error, f"manytail: to be called again in {after:g} s{at} (expected: within the {longest:g} s of defer)")
