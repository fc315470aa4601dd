"""The PubSubQueue as a specification: what every call does at one instant.

Written from the contract, independent of the code. The state is the log of all messages and, for each subscriber, the
number of its next message. A message is retained until the slowest open subscriber has taken it. The plan names the
subscribers.

Not at one instant, and named step by step:
- publish_many into a bounded queue: one step per message;
- a publish with slow="drop_oldest": each subscriber at the bound is moved, then the message goes in. A take in between
  may free a slot that was freed already; another publisher may use the slot, so that they are moved again. No
  subscriber is moved for a message that a shutdown refuses;
- a get_many that lingers: one step per message;
- shutdown: publishers see it first, then subscribers; with immediate=True each subscriber's rest is dropped last.
A get_many may return fewer messages than are there, never none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .checker import Maybe
from .history import CLOSED, EMPTY, FULL, SHUT, Call, Raised

ATTEMPTS = 3  # how often a publisher frees slots; a history hardly ever needs more


class Reader(NamedTuple):
    name: str
    at: int = 0
    missed: int = 0
    closed: bool = False


class State(NamedTuple):
    readers: tuple[Reader, ...]  # open and closed ones
    log: tuple[Any, ...] = ()
    shut: bool = False  # for publishers
    ended: bool = False  # for subscribers

    def reader(self, name: str) -> Reader:
        return next(reader for reader in self.readers if reader.name == name)

    def with_reader(self, reader: Reader) -> "State":
        return self._replace(readers=tuple(reader if old.name == reader.name else old for old in self.readers))

    @property
    def end(self) -> int:
        return len(self.log)

    @property
    def oldest(self) -> int:
        return min((reader.at for reader in self.readers if not reader.closed), default=self.end)


class PubSubSpec:
    def __init__(
        self, readers: Iterable[str], maxsize: int = 0, slow: str = "block", later: Iterable[str] = ()
    ) -> None:
        """later: the names of subscribers that subscribe calls make."""
        self.initial = State(tuple(Reader(name) for name in readers))
        self.names = (*readers, *later)
        self.maxsize, self.slow = maxsize, slow

    def steps(self, call: Call) -> Sequence[Any]:
        if call.name == "publish":
            return self._publish_steps(1, [call.result])
        if call.name == "publish_many":
            return self._publish_many_steps(call)
        if call.name == "linger" and not isinstance(call.result, Raised):
            return [[item] for item in call.result]
        if call.name == "shutdown":
            return ["shut", "ended", *(reversed(self.names) if call.args[0] else ())]
        return [None]

    def _publish_steps(self, n: int, results: Sequence[Any]) -> Sequence[Any]:
        drops = self.slow == "drop_oldest" and self.maxsize > 0 and SHUT not in results
        moves = [Maybe(("move", name, n)) for name in self.names] if drops else []
        return [*moves * ATTEMPTS, *(("in", result) for result in results)]

    def _publish_many_steps(self, call: Call) -> Sequence[Any]:
        """The items that went in, at once or one by one, then what ended it."""
        failed = isinstance(call.result, Raised)
        went_in = call.args[0][: call.result.count if failed else call.result]
        runs = [(item,) for item in went_in] if self.maxsize > 0 or not went_in else [went_in]
        steps: list[Any] = []
        for number, run in enumerate(runs):
            steps += [*self._publish_steps(len(went_in) - number, []), ("run", run)]
        return (
            [*steps, *self._publish_steps(len(call.args[0]) - len(went_in), [Raised(call.result.error)])]
            if failed
            else steps
        )

    def apply(self, state: State, call: Call, step: Any) -> Iterable[State]:
        if call.name in ("publish", "publish_many"):
            return self._published(state, call, step)
        if call.name == "shutdown":
            return self._shutdown(state, step)
        if call.name == "subscribe":
            return self._subscribe(state, call.result, *call.args)
        if call.name == "linger":
            call = replace(call, name="get_many", result=call.result if step is None else step)
        following = getattr(self, "_" + call.name)(state, call.result, *call.args)
        return () if following is None else (following,)

    # ---------------------------------------------------------------- publishing
    def _published(self, state: State, call: Call, step: Any) -> Iterable[State]:
        if step[0] == "move":
            return self._moved(state, *step[1:])
        full = 0 < self.maxsize <= state.end - state.oldest
        if step[0] == "run":
            return () if state.shut or full else (state._replace(log=(*state.log, *step[1])),)
        if state.shut or full:
            return (state,) if step[1] == (SHUT if state.shut else FULL) else ()
        return (state._replace(log=(*state.log, call.args[0])),) if step[1] == state.end else ()

    def _moved(self, state: State, name: str, n: int) -> Iterable[State]:
        """A publisher of n messages that found no free slot moves the subscriber past the oldest messages."""
        reader = next((reader for reader in state.readers if reader.name == name), None)
        if reader is None or reader.closed or state.shut or state.end - reader.at < self.maxsize:
            return
        for to in range(reader.at + 1, min(state.end, state.end + n - self.maxsize) + 1):
            yield state.with_reader(reader._replace(at=to, missed=reader.missed + to - reader.at))

    # ---------------------------------------------------------------- taking
    def _refusal(self, state: State, reader: Reader) -> Raised | None:
        """What a get raises in this state if it cannot take."""
        if reader.closed:
            return CLOSED
        if reader.missed:
            return Raised("Lagged", reader.missed)
        if reader.at < state.end:
            return None
        return SHUT if state.ended else EMPTY

    def _get(self, state: State, result: Any, name: str) -> State | None:
        return self._get_many(state, result if isinstance(result, Raised) else [result], name, 1)

    def _get_many(self, state: State, result: Any, name: str, limit: int) -> State | None:
        reader = state.reader(name)
        refusal = self._refusal(state, reader)
        if isinstance(result, Raised) or refusal is not None:
            return state.with_reader(reader._replace(missed=0)) if result == refusal else None
        there = list(state.log[reader.at : reader.at + min(limit, len(result))])
        return state.with_reader(reader._replace(at=reader.at + len(result))) if result and result == there else None

    # ---------------------------------------------------------------- coming and going
    def _subscribe(self, state: State, result: Any, name: str, start: Any) -> Iterable[State]:
        at = {"next": state.end, "oldest": state.oldest}.get(start, start)
        retained = state.oldest <= at <= state.end
        if retained and result is None:
            yield state._replace(readers=(*state.readers, Reader(name, at)))
        elif not retained and result is not None:
            yield state

    def _close(self, state: State, result: Any, name: str) -> State | None:
        return state.with_reader(state.reader(name)._replace(closed=True))

    def _shutdown(self, state: State, step: str) -> Iterable[State]:
        if step in ("shut", "ended"):
            return [state._replace(**{step: True})]
        reader = next((reader for reader in state.readers if reader.name == step), None)
        if reader is None or reader.closed:
            return [state]
        given_up = state.with_reader(reader._replace(at=state.end))
        early = any(reader.name == step for reader in self.initial.readers)
        return [given_up] if early else [given_up, state]  # a concurrent subscribe may find what is retained

    # ---------------------------------------------------------------- figures
    def _qsize(self, state: State, result: Any) -> State | None:
        return state if result == state.end - state.oldest else None

    def _subscribers(self, state: State, result: Any) -> State | None:
        return state if result == sum(not reader.closed for reader in state.readers) else None

    def _position(self, state: State, result: Any, name: str) -> State | None:
        return state if result == state.reader(name).at else None

    def _lag(self, state: State, result: Any, name: str) -> State | None:
        reader = state.reader(name)
        return state if result == (0 if reader.closed else state.end - reader.at) else None
