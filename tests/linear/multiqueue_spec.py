"""The MultiQueue as a specification: what every call does at one instant, on a state of tuples.

Written from the contract, independent of support/model.py and of the code. Per priority a ring of the tails
(sub-queues) that are attached, enabled and not empty, in round-robin order. A tail joins at the end and, once served,
goes to the end. Results are checked, not computed: apply() gets what the call returned and says which state follows,
if any.

Not at one instant, and named step by step:
- bulk calls where tails are bounded: one step per item, because the slot of the first may be reused before the last;
- a get_many by weight: a tail that runs empty loses its turn, even if it is refilled before the call ends;
- remove: first the key is free, then the tail is detached;
- shutdown(immediate=True): first puts stop, then each tail is emptied.
A get_many may return fewer items than are there, never none.
"""
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, NamedTuple

from .history import EMPTY, SHUT, Call, Raised


class Tail(NamedTuple):
    key: str
    priority: int = 0
    maxsize: int = 0
    weight: int = 1
    enabled: bool = True
    attached: bool = True
    named: bool = True  # its key leads to it
    items: tuple[Any, ...] = ()
    turn: int = 0  # items left in its turn; 0: not begun
    sized: bool = False  # items have sizes, see size_of()

    def refuses(self, item: Any) -> str | None:
        """The error of a put at an instant."""
        if not self.sized:
            return "Full" if 0 < self.maxsize <= len(self.items) else None
        if 0 < self.maxsize < size_of(item):
            return "ValueError"
        return "Full" if 0 < self.maxsize < self.size + size_of(item) else None

    @property
    def size(self) -> int:
        return sum(map(size_of, self.items))


def size_of(item: int) -> int:
    """The sizer of sized tails."""
    return item % 3


class State(NamedTuple):
    tails: tuple[Tail, ...]
    rings: tuple[tuple[int, tuple[str, ...]], ...] = ()  # by priority; no ring is empty
    shut: bool = False
    stopped: tuple[str, ...] | None = None  # immediate shutdown: the keys that it found
    unfinished: int = 0

    def tail(self, key: str) -> Tail:
        return next(tail for tail in self.tails if tail.key == key)

    def ring(self, priority: int) -> tuple[str, ...]:
        return dict(self.rings).get(priority, ())

    def with_ring(self, priority: int, ring: tuple[str, ...]) -> "State":
        rings = {**dict(self.rings), priority: ring}
        return self._replace(rings=tuple(sorted((level, keys) for level, keys in rings.items() if keys)))

    def with_tail(self, tail: Tail) -> "State":
        """The tail as it is after the change, in the ring that it belongs to, or in none."""
        before = self.tail(tail.key)
        ready = tail.attached and tail.enabled and bool(tail.items) and self.stopped is None
        state = self
        ring = self.ring(before.priority)
        if tail.key in ring and (not ready or tail.priority != before.priority):
            state = state.with_ring(before.priority, tuple(key for key in ring if key != tail.key))
            tail = tail._replace(turn=0)
        if ready and tail.key not in state.ring(tail.priority):
            state = state.with_ring(tail.priority, (*state.ring(tail.priority), tail.key))
        return state._replace(tails=tuple(tail if old.key == tail.key else old for old in state.tails))


class MultiQueueSpec:
    def __init__(self, tails: Iterable[Tail], selection: str = "round_robin", bounded: bool | None = None) -> None:
        """bounded: whether any tail may ever have a bound; None: as the tails are at the start."""
        self.initial = State(tuple(tails))
        self.selection = selection
        self.bounded = any(tail.maxsize > 0 for tail in self.initial.tails) if bounded is None else bounded
        # False: an IndexMultiQueue does not promise it.
        self.get_many_is_one_instant = not self.bounded and selection == "round_robin"
        self.taken: dict[Any, tuple[float, float]] = {}  # by item: the interval of its get, from knowing()
        self.left_behind: tuple[float, float] | None = None

    def knowing(self, history: Iterable[Call]) -> "MultiQueueSpec":
        """This specification with knowledge of the whole history: it refuses a put at once that would bring an item
        behind one that is certainly got later. Otherwise the search tries overlapping puts in every order, and finds
        out which order was wrong only when the items are got."""
        history = list(history)
        for call in history:
            if call.name in ("get", "get_many", "linger") and not isinstance(call.result, Raised):
                for item in call.result[1:] if call.name == "get" else call.result:
                    self.taken[item] = (call.start, call.end)
        if not any(call.name in ("clear", "discard", "remove") for call in history):
            # An item leaves only by a get, or by the end.
            self.left_behind = (
                min((call.start for call in history if call.name == "shutdown" and call.args[0]), default=inf),
                inf,
            )
        return self

    def _may_stand(self, ahead: Iterable[Any], behind: Iterable[Any]) -> bool:
        ends = min((self.taken[item][1] for item in behind if item in self.taken), default=inf)
        begins = max(
            (when[0] for item in ahead if (when := self.taken.get(item, self.left_behind)) is not None), default=-inf
        )
        return begins <= ends

    def steps(self, call: Call) -> Sequence[Any]:
        if call.name == "put_many":
            return self._put_many_steps(call)
        if call.name == "linger" and not isinstance(call.result, Raised):
            return [(item,) for item in call.result]
        if call.name == "get_many" and not isinstance(call.result, Raised) and not self.get_many_is_one_instant:
            return [(item,) for item in call.result]
        if call.name == "remove" and not isinstance(call.result, Raised):
            return ["unname", "detach"]
        if call.name == "shutdown" and call.args[0]:
            return ["stop", *(tail.key for tail in self.initial.tails)]
        return [None]

    def _put_many_steps(self, call: Call) -> Sequence[Any]:
        """(items, what ended it): all at once, or one step per item, then one for the item that was refused."""
        items = call.args[1]
        failed = isinstance(call.result, Raised)
        went_in = items[:call.result.count if failed else call.result]
        steps: list[Any] = [((item,), None) for item in went_in] if self.bounded else [(went_in, None)]
        return [*steps, (items[call.result.count:][:1], call.result.error)] if failed else steps

    def apply(self, state: State, call: Call, step: Any) -> Iterable[State]:
        if call.name == "shutdown":
            return self._shutdown(state, step)
        following = getattr(self, "_" + call.name)(state, call.result, step, *call.args)
        return () if following is None else (following,)

    # ---------------------------------------------------------------- putting
    def _put(self, state: State, result: Any, step: Any, key: str, item: Any, front: bool = False) -> State | None:
        tail = state.tail(key)
        refused = "ShutDown" if state.shut or not tail.attached else tail.refuses(item)
        if refused is not None:
            return state if result is not None and result.error == refused else None
        if result is not None:
            return None
        items = (item, *tail.items) if front else (*tail.items, item)
        if not (self._may_stand([item], tail.items) if front else self._may_stand(tail.items, [item])):
            return None
        return state._replace(unfinished=state.unfinished + 1).with_tail(tail._replace(items=items))

    def _put_front(self, state: State, result: Any, step: Any, key: str, item: Any) -> State | None:
        return self._put(state, result, step, key, item, front=True)

    def _put_many(self, state: State, result: Any, step: Any, key: str, items: Any) -> State | None:
        went_in, error = step
        if error is not None:
            return self._put(state, Raised(error), None, key, *went_in)
        following: State | None = state
        for item in went_in:
            following = following and self._put(following, None, None, key, item)
        return following

    # ---------------------------------------------------------------- taking
    def _nothing(self, state: State, result: Any) -> bool:
        """Whether a get may end with that exception in this state."""
        return not state.rings and result == (SHUT if state.shut else EMPTY)

    def _get(self, state: State, result: Any, step: Any = None) -> State | None:
        if isinstance(result, Raised):
            return state if self._nothing(state, result) else None
        if not state.rings:
            return None
        priority, ring = state.rings[0]
        tail = state.tail(ring[0])
        if (tail.key, tail.items[0]) != result:
            return None
        turn = (tail.turn or (tail.weight if self.selection == "weighted" else 1)) - 1
        state = state.with_tail(tail._replace(items=tail.items[1:], turn=turn))
        if turn == 0 and state.ring(priority)[:1] == ring[:1]:
            state = state.with_ring(priority, (*state.ring(priority)[1:], tail.key))
        return state

    def _get_many(self, state: State, result: Any, step: Any, limit: int) -> State | None:
        if isinstance(result, Raised):
            return state if self._nothing(state, result) else None
        following: State | None = state if 0 < len(result) <= limit else None
        for item in result if step is None else step:
            if following is None or not following.rings:
                return None
            following = self._get(following, (following.rings[0][1][0], item))
        return following

    _linger = _get_many  # one step per item

    def _peek(self, state: State, result: Any, step: Any) -> State | None:
        there = state.tail(state.rings[0][1][0]).items[0] if state.rings else EMPTY
        return state if result == there else None

    # ---------------------------------------------------------------- taking away
    def _without(self, state: State, tail: Tail, items: tuple[Any, ...]) -> State:
        gone = len(tail.items) - len(items) if tail.attached else 0
        return state._replace(unfinished=max(0, state.unfinished - gone)).with_tail(tail._replace(items=items))

    def _clear(self, state: State, result: Any, step: Any, key: str) -> State | None:
        tail = state.tail(key)
        return self._without(state, tail, ()) if result == len(tail.items) else None

    def _discard(self, state: State, result: Any, step: Any, key: str, item: Any) -> State | None:
        tail = state.tail(key)
        if result != (item in tail.items):
            return None
        return self._without(state, tail, tuple(other for other in tail.items if other != item))  # items are unique

    def _remove(self, state: State, result: Any, step: Any, key: str) -> State | None:
        tail = state.tail(key)
        if step is None:
            return None if tail.named else state  # KeyError
        if step == "unname":
            return state.with_tail(tail._replace(named=False)) if tail.named else None
        left = max(0, state.unfinished - len(tail.items))
        return state._replace(unfinished=left).with_tail(tail._replace(attached=False))

    # ---------------------------------------------------------------- changes, figures, the end
    def _set(self, state: State, result: Any, step: Any, key: str, name: str, value: Any) -> State | None:
        return state.with_tail(state.tail(key)._replace(**{name: value}))

    def _qsize_of(self, state: State, result: Any, step: Any, key: str) -> State | None:
        return state if result == len(state.tail(key).items) else None

    def _size(self, state: State, result: Any, step: Any, key: str) -> State | None:
        tail = state.tail(key)
        return state if result == (tail.size if tail.sized else len(tail.items)) else None

    def _qsize(self, state: State, result: Any, step: Any) -> State | None:
        return state if result == sum(len(state.tail(key).items) for _, ring in state.rings for key in ring) else None

    def _task_done(self, state: State, result: Any, step: Any) -> State | None:
        if state.unfinished == 0:
            return state if result == Raised("ValueError") else None
        return state._replace(unfinished=state.unfinished - 1) if result is None else None

    def _join(self, state: State, result: Any, step: Any) -> State | None:
        return state if result == (state.unfinished == 0) else None

    def _shutdown(self, state: State, step: Any) -> Iterable[State]:
        if step is None:
            return [state._replace(shut=True)]
        if step == "stop":
            return [state._replace(shut=True, rings=(), stopped=tuple(tail.key for tail in state.tails if tail.named))]
        tail = state.tail(step)
        emptied = self._without(state, tail, ())
        if tail.named:
            return [emptied]
        # A concurrent remove may be faster.
        return [state, emptied] if tail.key in (state.stopped or ()) else [state]
