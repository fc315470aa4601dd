"""LaneTable: the lanes of a KeyedExecutor, by key."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from manytail._workpool import BaseLane, Buckets

_Lane = TypeVar("_Lane", bound=BaseLane)
_Entry = tuple[Hashable, "LaneReference"]
_Bucket = tuple[_Entry, ...]


class LaneReference(weakref.ref[BaseLane]):
    """A weak reference to a lane, with the hash of the lane's key."""

    __slots__ = ("key_hash",)
    key_hash: int


class LaneTable:
    """A hash table of weak references to lanes, by key. The entry of a lane that is collected is removed.

    A bucket is an immutable tuple of the (key, LaneReference) with one hash. Keys are compared with no lock held: `==`
    is user code, and may wait for a thread that asks for a lane. A bucket is replaced by compare-and-swap; if it has
    changed, the keys are compared again. Removing an entry compares no keys.
    Progress: lock-free, except a short critical section on the free-threaded build."""

    def __init__(self) -> None:
        self._buckets: Buckets[_Bucket] = Buckets()
        this = weakref.ref(self)

        def forgotten(reference: Any) -> None:
            """The callback of the references. It does not keep the table alive."""
            table = this()
            if table is not None:
                table._forget(reference)

        self._forgotten = forgotten

    def __len__(self) -> int:
        """The number of entries in all buckets."""
        return len(self._buckets)

    def get(self, key: Hashable, make: Callable[[Any], _Lane]) -> _Lane:
        """The lane of that key. If there is none, or it is closed, make(key) makes one."""
        key_hash = hash(key)
        made: tuple[_Lane, _Entry] | None = None
        while True:
            bucket = self._buckets.get(key_hash)
            entry = _entry_of(bucket, key)
            known: Any = None if entry is None else entry[1]()
            if known is not None and not known.closed:
                return known  # type: ignore[no-any-return]
            if made is None:
                lane = make(key)
                reference = LaneReference(lane, self._forgotten)
                reference.key_hash = key_hash
                made = lane, (key, reference)
            others = [other for other in bucket if other is not entry]
            if self._buckets.replace(key_hash, bucket, (*others, made[1])):
                return made[0]

    def _forget(self, reference: LaneReference) -> None:
        while True:
            bucket = self._buckets.get(reference.key_hash)
            rest = tuple([entry for entry in bucket if entry[1] is not reference])
            if len(rest) == len(bucket) or self._buckets.replace(reference.key_hash, bucket, rest):
                return


def _entry_of(bucket: _Bucket, key: Hashable) -> _Entry | None:
    for entry in bucket:
        if entry[0] is key or entry[0] == key:
            return entry
    return None
