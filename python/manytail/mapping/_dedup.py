"""Equal items share one call: the first to start leads, the others follow until it ends. The last results are kept.

    leader     running, or waiting for another attempt
    follower   waits for its leader, without worker, slot or cost

When a leader succeeds its followers get its result. When it fails for good, the first follower is called in its place,
and the others follow that one. Results are kept for `limit` identities; the oldest is dropped first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from ._item import Item


class Dedup:
    __slots__ = ("_followers", "_leaders", "_limit", "_results", "following")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._leaders: dict[str, Item] = {}
        self._followers: dict[str, deque[Item]] = {}
        self._results: OrderedDict[str, Any] = OrderedDict()  # the newest last; quicker than a dict to drop the oldest
        self.following = 0

    def leads(self, item: Item) -> bool:
        """Whether the item is to be called. If not, it follows its leader. Only if `answered` returned False."""
        leader = self._leaders.setdefault(item.identity, item)
        if leader is not item:
            self._followers.setdefault(item.identity, deque()).append(item)
            self.following += 1
        return leader is item

    def leader(self, item: Item) -> Item:
        """The one that leads items equal to this one; else the item."""
        return self._leaders.get(getattr(item, "identity", ""), item)

    def answered(self, item: Item) -> bool:
        """Whether an equal item's result is known. If so the item gets it."""
        if item.identity not in self._results:
            return False
        item.result = self._results[item.identity]
        return True

    def succeeded(self, leader: Item) -> list[Item]:
        """Keep the result of a leader. Returns its followers, which have the same result."""
        identity = leader.identity
        self._results[identity] = leader.result
        if len(self._results) > self._limit:
            self._results.popitem(last=False)
        del self._leaders[identity]
        if identity not in self._followers:
            return []
        followers = list(self._followers.pop(identity))
        self.following -= len(followers)
        for item in followers:
            item.result = leader.result
        return followers

    def failed(self, item: Item) -> Item | None:
        """The item has failed for good. Returns the follower that leads in its place, if it led and has followers."""
        identity = getattr(item, "identity", "")  # an item that arrived with an error may have none
        if identity not in self._leaders or self._leaders[identity] is not item:
            return None
        del self._leaders[identity]
        if identity not in self._followers:
            return None
        followers = self._followers[identity]
        self.following -= 1
        leader = self._leaders[identity] = followers.popleft()
        if not followers:
            del self._followers[identity]
        return leader

    def drain(self) -> list[Item]:
        """All followers."""
        items = [item for followers in self._followers.values() for item in followers]
        self._followers.clear()
        self.following = 0
        return items
