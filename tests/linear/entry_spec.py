"""The EntryQueue as a specification: a strict order of entries. Each is acquired, acknowledged, released or taken away
at one instant.

Written from the contract, independent of the code. An entry's place in the order is (level, arrival number); it keeps
that through acquire and release. Every delivery has a name, which the plan gives to its get. ack, release, reject, lock
and unlock act on that delivery or, once it is over, on nothing.

put_immediate acquires its entry for one of the subscriptions, of which a later get returns it: the entry is RESERVED in
between. It may return False, and put nothing, at any time: whether a get waits is not known here.

Not at one instant: get_many (one step per entry; each is the first that its subscription may take at that step); ack
and reject, which first win the entry and then free its slot, its credit and its group. So sizes are exact only when no
other call runs at the same time.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .history import CLOSED, EMPTY, FULL, SHUT, Call, Raised

WON = object()
RESERVED = "reserved"
NO_HANDLE = "no handle"  # the get of that delivery returned nothing


class Place(NamedTuple):
    rank: tuple[int, int]  # (distance from the most urgent level, arrival number)
    item: Any
    group: Any = None
    delivery: Any = None  # None: AVAILABLE
    taken: int = 0  # number of that delivery among all deliveries
    owner: str | None = None
    locked: bool = False

    @property
    def won(self) -> bool:
        """Acknowledged or rejected, and not removed yet."""
        return isinstance(self.delivery, tuple) and self.delivery[0] is WON


class Subscriber(NamedTuple):
    name: str
    prefetch: int = 0
    closed: bool = False


class State(NamedTuple):
    subscribers: tuple[Subscriber, ...]
    places: tuple[Place, ...] = ()  # in order
    arrivals: int = 0
    deliveries: int = 0
    shut: bool = False
    stopped: bool = False

    def subscriber(self, name: str) -> Subscriber:
        return next(subscriber for subscriber in self.subscribers if subscriber.name == name)

    def held(self, name: str) -> list[Place]:
        return [place for place in self.places if place.owner == name]

    def of(self, delivery: Any) -> Place | None:
        return next((place for place in self.places if place.delivery == delivery), None)

    def without(self, gone: Iterable[Place]) -> "State":
        ranks = {place.rank for place in gone}
        return self._replace(places=tuple(place for place in self.places if place.rank not in ranks))

    def with_place(self, place: Place) -> "State":
        return self._replace(places=tuple(sorted((*self.without([place]).places, place), key=lambda each: each.rank)))


class EntrySpec:
    def __init__(self, subscribers: Iterable[Subscriber], levels: int = 1, maxsize: int = 0, overflow: str = "block",
                 groups: str | None = None) -> None:
        """maxsize: 0, 1 or 2, so that resume_at makes no difference."""
        self.initial = State(tuple(subscribers))
        self.levels, self.maxsize, self.overflow, self.groups = levels, maxsize, overflow, groups

    def steps(self, call: Call) -> Sequence[Any]:
        if call.result == NO_HANDLE:
            return []
        if call.name == "get_many" and not isinstance(call.result, Raised):
            return list(enumerate(call.result))
        if call.name in ("ack", "reject") and call.result is True:
            return ["win", "settle"]
        return [None]

    def apply(self, state: State, call: Call, step: Any) -> Iterable[State]:
        if call.name == "put_immediate" and call.result is True:
            return self._handed_over(state, *call.args)
        if call.name == "get_many" and step is not None:
            number, item = step
            following = self._get(state, item, call.args[0], (call.args[-1], number))
        elif step in ("win", "settle"):
            following = getattr(self, "_" + step)(state, *call.args)
        else:
            following = getattr(self, "_" + call.name)(state, call.result, *call.args)
        return () if following is None else (following,)

    # ---------------------------------------------------------------- putting
    def _put(self, state: State, result: Any, item: Any, level: int = 0, group: Any = None) -> State | None:
        if state.shut:
            return state if result == SHUT else None
        if 0 < self.maxsize <= len(state.places):
            if self.overflow != "drop_oldest":
                return state if result == FULL else None
            state = self._dropped(state, 1)
        if result is not None:
            return None
        place = Place((self.levels - 1 - level, state.arrivals), item, group)
        return state._replace(arrivals=state.arrivals + 1).with_place(place)

    def _put_immediate(self, state: State, result: Any, *args: Any) -> State | None:
        return state if self._put(state, None if result is False else result, *args) else None

    def _handed_over(self, state: State, *args: Any) -> Iterable[State]:
        """To any subscription that would take it next: it overtakes nothing."""
        after = self._put(state, None, *args)
        for each in after.subscribers if after else ():
            first = self._first(after, each.name)
            if first and first.item == args[0] and not each.closed and self._has_credit(state, each):
                yield after.with_place(first._replace(delivery=RESERVED, owner=each.name, locked=True))

    def _dropped(self, state: State, needed: int = 0) -> State:
        """drop_oldest: drop entries until the bound holds with `needed` free slots, as far as entries may be dropped.
        Also applied when an entry becomes droppable. The least urgent level first, in it the oldest arrival."""
        if self.overflow != "drop_oldest" or self.maxsize <= 0:
            return state
        droppable = sorted(
            (place for place in state.places if not place.locked), key=lambda place: (-place.rank[0], place.rank[1])
        )
        return state.without(droppable[: max(0, len(state.places) + needed - self.maxsize)])

    # ---------------------------------------------------------------- taking
    def _first(self, state: State, name: str) -> Place | None:
        for place in state.places:
            if place.delivery is None and self._allowed(state, place, name):
                return place
        return None

    def _allowed(self, state: State, place: Place, name: str) -> bool:
        if self.groups is None or place.group is None:
            return True
        return all(other.owner in (None, name) for other in state.places if other.group == place.group)

    def _has_credit(self, state: State, subscriber: Subscriber) -> bool:
        return subscriber.prefetch <= 0 or len(state.held(subscriber.name)) < subscriber.prefetch

    def _get(self, state: State, result: Any, name: str, delivery: Any) -> State | None:
        subscriber, first = state.subscriber(name), self._first(state, name)
        for place in state.held(name):
            if place.delivery == RESERVED and place.item == result:
                return self._taken(state, place, name, delivery)
        if subscriber.closed:
            return state if result == CLOSED else None
        credit = self._has_credit(state, subscriber)
        if first is None or not credit:
            ended = state.shut and first is None
            return state if result == (SHUT if ended else EMPTY) or (ended and not credit and result == EMPTY) else None
        return self._taken(state, first, name, delivery) if result == first.item else None

    def _taken(self, state: State, place: Place, name: str, delivery: Any) -> State:
        number = state.deliveries + 1
        taken = place._replace(delivery=delivery, taken=number, owner=name, locked=True)
        return state._replace(deliveries=number).with_place(taken)

    def _get_many(self, state: State, result: Any, name: str, limit: int, delivery: Any) -> State | None:
        return self._get(state, result, name, delivery) if isinstance(result, Raised) else None

    # ---------------------------------------------------------------- what ends a delivery
    def _win(self, state: State, delivery: Any) -> State | None:
        place = state.of(delivery)
        return None if place is None else state.with_place(place._replace(delivery=(WON, delivery), locked=True))

    def _settle(self, state: State, delivery: Any) -> State:
        return state.without(place for place in state.places if place.delivery == (WON, delivery))

    def _ack(self, state: State, result: Any, delivery: Any) -> State | None:
        return state if result is False and state.of(delivery) is None else None

    _reject = _ack

    def _release(self, state: State, result: Any, delivery: Any) -> State | None:
        place = state.of(delivery)
        if result != (place is not None):
            return None
        return state if place is None else self._freed(state, place)

    def _freed(self, state: State, place: Place) -> State:
        if state.stopped:
            return state.without([place])
        return self._dropped(state.with_place(place._replace(delivery=None, owner=None, locked=False)))

    def _unlock(self, state: State, result: Any, delivery: Any) -> State | None:
        place = state.of(delivery)
        if result != (place is not None and place.locked):
            return None
        return state if place is None else self._dropped(state.with_place(place._replace(locked=False)))

    def _lock(self, state: State, result: Any, delivery: Any) -> State | None:
        place = state.of(delivery)
        if result != (place is not None):
            return None
        return state if place is None else state.with_place(place._replace(locked=True))

    def _ack_up_to(self, state: State, result: Any, name: str, delivery: Any) -> State | None:
        place = state.of(delivery)
        mine = place is not None and place.owner == name
        held = [other for other in state.held(name) if not other.won and other.delivery != RESERVED]
        gone = [other for other in held if other.taken <= place.taken] if mine else []
        return state.without(gone) if result == len(gone) else None

    def _close(self, state: State, result: Any, name: str) -> State | None:
        held = state.held(name)
        for place in held:
            state = state.with_place(place._replace(owner=None)) if place.won else self._freed(state, place)
        closed = state.subscriber(name)._replace(closed=True)
        return state._replace(subscribers=tuple(closed if old.name == name else old for old in state.subscribers))

    # ---------------------------------------------------------------- taking away, figures, the end
    def _purge(self, state: State, result: Any) -> State | None:
        gone = [place for place in state.places if not place.locked]
        return state.without(gone) if result == len(gone) else None

    def _shutdown(self, state: State, result: Any, immediate: bool) -> State | None:
        if immediate:
            state = state.without(place for place in state.places if place.delivery is None)
        return state._replace(shut=True, stopped=state.stopped or immediate)

    def _qsize(self, state: State, result: Any) -> State | None:
        return state if result == sum(place.delivery is None for place in state.places) else None

    def _depth(self, state: State, result: Any) -> State | None:
        return state if result == len(state.places) else None

    def _unacked(self, state: State, result: Any, name: str) -> State | None:
        return state if result == len(state.held(name)) else None
