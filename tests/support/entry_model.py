"""A sequential entry queue that says what the real one must do: plain lists, each rule of the contract written once.

A `Place` is an entry of the queue. `EntryModel.places` has them by arrival; `order` is the key that a queue class sorts
them by. A delivery of a place is current while the place is acquired by that very delivery. A place in the state HELD
is delayed: it may not be acquired yet.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

AVAILABLE, HELD, ACQUIRED, DELETED = "available", "held", "acquired", "deleted"
COUNTS = ("enqueued", "delivered", "acked", "released", "expired", "rejected", "dropped", "purged", "dead_lettered")


def level_of(priority: int, levels: int, mapping: str = "jms") -> int:
    """AMQP 0-10 and JMS: the ten priorities are spread over the levels; the default, 4, lies in the middle."""
    if mapping == "direct":
        return min(max(priority, 0), levels - 1)
    return min(max(priority - (5 - (levels + 1) // 2), 0), levels - 1)


@dataclass(eq=False)
class Place:
    seq: int
    item: Any
    order: Any
    priority: int = 4
    headers: dict[str, Any] = field(default_factory=dict)
    group: Any = None
    origin: Any = None
    state: str = AVAILABLE
    owner: SubscriptionModel | None = None
    locked: bool = False
    redelivered: bool = False
    superseded: bool = False
    deliveries: int = 0
    always_available: bool = True  # since it was put: every browser must see it


class DeliveryModel:
    """One delivery of a place to a subscription."""

    def __init__(self, place: Place, owner: SubscriptionModel) -> None:
        self.place, self.owner, self.number = place, owner, place.deliveries

    @property
    def current(self) -> bool:
        return self.place.state == ACQUIRED and self.place.owner is self.owner and self.place.deliveries == self.number


@dataclass(eq=False)
class SubscriptionModel:
    queue: EntryModel
    selector: Callable[[Any], bool] | None = None
    prefetch: int = 0
    priority: int = 0
    origin: Any = None
    after: int = 0
    browse: bool = False
    suspended: bool = False
    closed: bool = False
    got: list[DeliveryModel] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)  # of a browser

    @property
    def held(self) -> list[DeliveryModel]:
        return [held for held in self.got if held.current]

    @property
    def interested(self) -> bool:
        return (
            not self.browse
            and not self.closed
            and not self.suspended
            and (self.prefetch <= 0 or len(self.held) < self.prefetch)
        )

    def wants(self, place: Place) -> bool:
        if place.seq <= self.after or (self.origin is not None and place.origin is self.origin):
            return False
        return self.selector is None or bool(self.selector(place))

    def may_take(self, place: Place) -> bool:
        owner = self.queue.group_owner(place.group)
        if owner is not None and owner is not self:
            return False
        return not any(
            other.priority > self.priority and other.interested and other.wants(place) and other.group_allows(place)
            for other in self.queue.subscriptions
        )

    def group_allows(self, place: Place) -> bool:
        return self.queue.group_owner(place.group) in (None, self)

    def next(self) -> Place | None:
        if not self.interested:
            return None
        for place in self.queue.in_order():
            if place.state == AVAILABLE and self.wants(place) and self.may_take(place):
                return place
        return None

    def take(self, place: Place) -> DeliveryModel:
        place.state, place.owner, place.locked, place.always_available = ACQUIRED, self, True, False
        place.deliveries += 1
        self.queue.counts["delivered"] += 1
        if self.queue.groups == "assigned" and place.group is not None:
            self.queue.assigned.setdefault(place.group, self)
        held = DeliveryModel(place, self)
        self.got.append(held)
        return held

    # ------------------------------------------------------------------ browsing
    def may_see(self, place: Place) -> bool:
        return place.state == AVAILABLE and place.seq not in self.seen and self.wants(place)

    def must_see(self) -> Place | None:
        """The first place that this browser must still return."""
        return next((place for place in self.queue.in_order() if self.may_see(place) and place.always_available), None)

    # ------------------------------------------------------------------ ending
    def ack_up_to(self, held: DeliveryModel) -> int:
        if not held.current or held.owner is not self:
            return 0
        ready = [one for one in self.got[: self.got.index(held) + 1] if one.current]
        for one in ready:
            self.queue.ack(one)
        return len(ready)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.queue.subscriptions.remove(self)
        for held in self.held:
            self.queue.release(held)
        self.queue.assigned = {group: owner for group, owner in self.queue.assigned.items() if owner is not self}


class Full(Exception):
    pass


@dataclass(eq=False)
class EntryModel:
    """The four queue classes: `order` sorts the places, `last_value_key` says which entry a new one replaces."""

    maxsize: int = 0
    overflow: str = "block"
    resume_at: float = 0.8
    max_deliveries: int = 0
    groups: str | None = None
    dead_letter: bool = False
    order: Callable[[Any, int], Any] | None = None
    level: Callable[[int], int] | None = None
    last_value_key: Callable[[Any], Any] | None = None
    places: list[Place] = field(default_factory=list)
    subscriptions: list[SubscriptionModel] = field(default_factory=list)
    assigned: dict[Any, SubscriptionModel] = field(default_factory=dict)
    latest: dict[Any, Place] = field(default_factory=dict)
    stopped: bool = False
    down: bool = False
    down_now: bool = False
    dead: list[tuple[Any, str]] = field(default_factory=list)
    arrivals: int = 0
    high_water: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    # ------------------------------------------------------------------ looking
    def in_order(self) -> list[Place]:
        return sorted(self.places, key=lambda place: place.order)

    def count(self, state: str) -> int:
        return sum(place.state == state for place in self.places)

    def depth(self) -> int:
        return len(self.places)

    def group_owner(self, group: Any) -> SubscriptionModel | None:
        if group is None or self.groups is None:
            return None
        if self.groups == "assigned":
            return self.assigned.get(group)
        return next((place.owner for place in self.places if place.state == ACQUIRED and place.group == group), None)

    # ------------------------------------------------------------------ putting
    def put(self, item: Any, *, priority: int = 4, held: bool = False, **rest: Any) -> Place:
        """A put that does not wait."""
        key = self.last_value_key(item) if self.last_value_key else None
        older = self.latest.get(key) if key is not None else None
        replaced = older is not None and older.state in (AVAILABLE, HELD)
        if not replaced:
            self._make_room()
        place = self.new_place(item, priority=priority, **rest)
        self.arrivals = place.seq
        if held:
            place.state, place.always_available = HELD, False
        self.places.append(place)
        self.counts["enqueued"] += 1
        if key is not None:
            self.latest[key] = place
        if older is not None:
            self._supersede(older)
        self._drop_oldest(place)
        self.high_water = max(self.high_water, self.depth())
        return place

    def new_place(self, item: Any, *, priority: int = 4, **rest: Any) -> Place:
        """The place of the next entry, which is not put yet."""
        seq = self.arrivals + 1
        if self.level:
            order: Any = (-self.level(priority), seq)
        else:
            order = (self.order(item, seq), seq) if self.order else seq
        return Place(seq, item, order, priority=priority, **rest)

    def takers(self, place: Place, waiting: Collection[SubscriptionModel]) -> list[SubscriptionModel]:
        """To which subscriptions an immediate put may hand its entry; empty: it puts nothing. waiting: those in which
        a get waits. None of them gets it while an earlier entry is available that it would take first."""
        wanting = [one for one in self.subscriptions if one.interested and one.wants(place) and one.group_allows(place)]
        urgent = max((one.priority for one in wanting), default=0)
        return [
            one
            for one in wanting
            if one.priority == urgent
            and one in waiting
            and ((first := one.next()) is None or place.order < first.order)
        ]

    def _make_room(self) -> None:
        if self.maxsize <= 0 or self.overflow == "drop_oldest":
            return
        if self.overflow == "reject":
            if self.depth() >= self.maxsize:
                raise Full
            return
        if self.stopped and self.depth() <= math.floor(self.resume_at * self.maxsize):
            self.stopped = False
        if not self.stopped and self.depth() >= self.maxsize:
            self.stopped = True
        if self.stopped:
            raise Full

    def settle(self) -> None:
        """An entry was removed: puts may continue."""
        if self.maxsize <= 0 or self.depth() <= math.floor(self.resume_at * self.maxsize):
            self.stopped = False

    def set_maxsize(self, maxsize: int) -> None:
        """Raising it lets puts continue, whatever `resume_at` says."""
        if maxsize <= 0 or maxsize > self.maxsize:
            self.stopped = False
        self.maxsize = maxsize
        self.settle()

    def _supersede(self, older: Place) -> None:
        if older.state in (AVAILABLE, HELD):
            self._end(older, "dropped")
        elif older.state == ACQUIRED:
            older.superseded = True

    def _drop_oldest(self, new: Place | None) -> None:
        """Drop the oldest until the bound holds or no entry may be dropped. `new` is the entry that is being put."""
        if self.overflow != "drop_oldest" or self.maxsize <= 0:
            return
        while self.depth() > self.maxsize:
            loose = [
                place for place in self.places if place is not new and not (place.state == ACQUIRED and place.locked)
            ]
            if not loose:
                return
            oldest = min(loose, key=lambda place: (self.level(place.priority) if self.level else 0, place.seq))
            self._end(oldest, "dropped", "overflow")

    # ------------------------------------------------------------------ subscribing
    def subscribe(self, start: str = "oldest", **options: Any) -> SubscriptionModel:
        made = SubscriptionModel(self, after=self.arrivals if start == "newest" else 0, **options)
        self.subscriptions.append(made)
        return made

    # ------------------------------------------------------------------ ends of a delivery
    def ack(self, held: DeliveryModel) -> bool:
        if not held.current:
            return False
        self._end(held.place, "acked")
        return True

    def reject(self, held: DeliveryModel) -> bool:
        if not held.current:
            return False
        self._end(held.place, "rejected", "rejected")
        return True

    def release(self, held: DeliveryModel, *, delayed: bool = False) -> bool:
        if not held.current:
            return False
        place = held.place
        if self.max_deliveries and place.deliveries >= self.max_deliveries:
            self._end(place, "dropped", "max_deliveries")
        elif self.down_now:
            self._end(place, "dropped", "deleted")
        elif place.superseded:
            self._end(place, "dropped")
        else:
            self.counts["released"] += 1
            place.state = HELD if delayed else AVAILABLE
            place.owner, place.locked, place.redelivered = None, False, True
            self._drop_oldest(None)  # an entry that was acquired when the queue grew may be dropped from here on
        return True

    def unlock(self, held: DeliveryModel) -> bool:
        if not held.current or not held.place.locked:
            return False
        held.place.locked = False
        self._drop_oldest(None)
        return True

    def lock(self, held: DeliveryModel) -> bool:
        if not held.current:
            return False
        held.place.locked = True
        return True

    def expire(self, place: Place) -> None:
        self._end(place, "expired", "expired")

    def unhold(self, place: Place) -> None:
        place.state = AVAILABLE

    def purge(self) -> int:
        loose = [place for place in self.places if not (place.state == ACQUIRED and place.locked)]
        for place in loose:
            self._end(place, "purged")
        return len(loose)

    def shutdown(self, immediate: bool) -> None:
        self.down = True
        if immediate:
            self.down_now = True
            for place in [place for place in self.in_order() if place.state in (AVAILABLE, HELD)]:
                self._end(place, "dropped", "deleted")

    def _end(self, place: Place, count: str, dead: str | None = None) -> None:
        place.state, place.owner = DELETED, None
        self.places.remove(place)
        self.counts[count] += 1
        if dead and self.dead_letter:
            self.counts["dead_lettered"] += 1
            self.dead.append((place.item, dead))
        self.settle()
