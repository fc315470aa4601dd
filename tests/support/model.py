"""A sequential multi-queue that says what the real one must do: plain lists, each rule of the contract written once.

A `Tail` is a sub-queue. Round robin: per priority a ring of the sub-queues that are enabled, attached and not empty. A
sub-queue that becomes so joins at the end. It leaves when it ceases to be so. Serving the front of the ring (or the
choice of a callable) moves it to the end if it is not empty. `left` is how many more items a weighted sub-queue may
give in its round; 0 outside its round.
"""
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any


@dataclass(eq=False)
class Tail:
    key: Any
    priority: int = 0
    maxsize: int = 0
    weight: int = 1
    enabled: bool = True
    sizer: Callable[[Any], int] | None = None
    attached: bool = True
    items: list[tuple[int, Any]] = field(default_factory=list)  # (arrival number, item)
    left: int = 0

    def qsize(self) -> int:
        return len(self.items)

    def size_of(self, item: Any) -> int:
        return 1 if self.sizer is None else self.sizer(item)

    def size(self) -> int:
        return sum(self.size_of(item) for _, item in self.items)

    def room(self) -> float:
        return float("inf") if self.maxsize <= 0 else max(0, self.maxsize - self.size())

    def too_large(self, item: Any) -> bool:
        return self.sizer is not None and 0 < self.maxsize < self.sizer(item)

    def fits(self, item: Any) -> bool:
        return self.maxsize <= 0 or self.size() + self.size_of(item) <= self.maxsize

    @property
    def ready(self) -> bool:
        return self.attached and self.enabled and bool(self.items)


class Model:
    def __init__(self, selection: str | Callable[[list[Tail]], Tail] = "round_robin") -> None:
        self.selection = selection
        self.tails: dict[Any, Tail] = {}
        self.rings: dict[int, list[Tail]] = {}
        self.arrivals = count()
        self.unfinished = self.put_count = self.got_count = 0

    # ------------------------------------------------------------------ tails
    def add(self, key: Any, **options: Any) -> Tail:
        tail = self.tails[key] = Tail(key, **options)
        return tail

    def remove(self, key: Any) -> Tail:
        tail = self.tails.pop(key)
        tail.attached = False
        self.unfinished -= len(tail.items)
        self._stand(tail, tail.priority)
        return tail

    def set_priority(self, tail: Tail, priority: int) -> None:
        if priority != tail.priority:
            self._leave(tail, tail.priority)
            tail.priority = priority
            self._stand(tail, priority)

    def set_enabled(self, tail: Tail, enabled: bool) -> None:
        tail.enabled = enabled
        self._stand(tail, tail.priority)

    def _leave(self, tail: Tail, priority: int) -> None:
        ring = self.rings.get(priority, [])
        if tail in ring:
            ring.remove(tail)
            tail.left = 0
        if not ring:
            self.rings.pop(priority, None)

    def _stand(self, tail: Tail, priority: int) -> None:
        """Put the tail into the ring that it belongs to, or into none."""
        if not tail.ready:
            self._leave(tail, priority)
        elif tail not in self.rings.setdefault(priority, []):
            self.rings[priority].append(tail)

    # ------------------------------------------------------------------ items
    def put(self, tail: Tail, item: Any, front: bool = False) -> None:
        assert tail.fits(item)
        assert tail.attached
        tail.items.insert(0 if front else len(tail.items), (next(self.arrivals), item))
        self.put_count += 1
        self.unfinished += 1
        self._stand(tail, tail.priority)

    def clear(self, tail: Tail) -> list[Any]:
        gone = [item for _, item in tail.items]
        tail.items.clear()
        self._dropped(tail, len(gone))
        return gone

    def discard(self, tail: Tail, item: Any) -> bool:
        for place, (_, there) in enumerate(tail.items):
            if there is item or there == item:
                del tail.items[place]
                self._dropped(tail, 1)
                return True
        return False

    def _dropped(self, tail: Tail, n: int) -> None:
        if tail.attached:
            self.unfinished -= n
        self._stand(tail, tail.priority)

    def qsize(self) -> int:
        return sum(len(tail.items) for tail in self.tails.values() if tail.enabled)

    # ------------------------------------------------------------------ turns
    def choice(self) -> Tail | None:
        """The tail whose turn it is. Changes nothing."""
        if not self.rings:
            return None
        ring = self.rings[min(self.rings)]
        if self.selection == "oldest":
            return min(ring, key=lambda tail: tail.items[0][0])
        if callable(self.selection):
            return self.selection(list(ring))
        return ring[0]

    def peek(self) -> Any:
        tail = self.choice()
        assert tail is not None
        return tail.items[0][1]

    def take(self) -> tuple[Any, Any]:
        tail = self.choice()
        assert tail is not None
        item = tail.items.pop(0)[1]
        self.got_count += 1
        ring = self.rings[tail.priority]
        if not tail.items:
            self._leave(tail, tail.priority)
        elif self._turn_is_over(tail):
            ring.remove(tail)
            ring.append(tail)
        return tail.key, item

    def _turn_is_over(self, tail: Tail) -> bool:
        if self.selection != "weighted":
            return True
        tail.left = (tail.left or tail.weight) - 1
        return tail.left == 0
