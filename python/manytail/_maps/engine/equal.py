"""Equal items share one call (dedup). Items are equal if their idempotency keys are.

    leader      the first of equal items whose turn came: it waits for its start, runs, or rests until its next attempt
    follower    came to its turn meanwhile. It is kept here, without slot, worker, limit or attempt

When the leader succeeds its followers get its result. When it fails, or is refused, the first follower leads, and the
others follow that one. A leader that is deferred or called again keeps its followers. The results of the last `limit`
leaders are kept for items that come later; the oldest one is dropped first.

Invariants
    an item is a leader, or a follower, or neither: never two of them
    who has followers is a leader
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

from .item import Call, Ended, Item
from .stages import GO, KEEP, Answer, Decision, Released, Stage

NEVER_CALLED_AGAIN = (Ended.SUCCEEDED, Ended.FAILED, Ended.REFUSED)


class EqualStage(Stage):
    __slots__ = ("_followers", "_leaders", "_limit", "_results")

    of_items = True

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._leaders: dict[str, Call] = {}
        self._followers: dict[str, deque[Item]] = {}
        self._results: OrderedDict[str, Any] = OrderedDict()  # the newest last; quicker than a dict to drop the oldest

    def before(self, call: Call, now: float) -> Decision:
        assert isinstance(call, Item)
        identity = call.identity
        if identity in self._results:
            return Answer(self._results[identity])
        leader = self._leaders.setdefault(identity, call)
        if leader is call:
            return GO
        self._followers.setdefault(identity, deque()).append(call)
        return KEEP

    def undo(self, call: Call, now: float) -> None:
        """Without followers it does not lead any longer: its lane may wait, and an equal item of another lane start."""
        assert isinstance(call, Item)
        if call.identity not in self._followers:
            del self._leaders[call.identity]

    def after(self, call: Call, ended: Ended, now: float) -> Iterable[Released]:
        assert isinstance(call, Item)
        identity = call.identity
        if ended not in NEVER_CALLED_AGAIN or self._leaders.get(identity) is not call:
            return ()
        del self._leaders[identity]
        followers = self._followers.pop(identity, None)
        if ended is Ended.SUCCEEDED:
            self._keep(identity, call.result)
            return [(item, Answer(call.result)) for item in followers or ()]
        if followers is None:
            return ()
        leader = self._leaders[identity] = followers.popleft()
        if followers:
            self._followers[identity] = followers
        return [(leader, GO)]

    def _keep(self, identity: str, result: Any) -> None:
        self._results[identity] = result
        if len(self._results) > self._limit:
            self._results.popitem(last=False)

    def kept(self) -> list[Item]:
        items = [item for followers in self._followers.values() for item in followers]
        self._followers.clear()
        return items
