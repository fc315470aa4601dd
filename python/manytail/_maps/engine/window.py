"""The window: how many items may be in flight, and how many are.

    arrived    items that came in
    emitted    of these: put into the output, or dropped there because they failed
    taken      of these: taken out of the output by the consumer, or dropped
    in flight  arrived - taken <= size
    pending    arrived - emitted: in a lane, with a worker, resting, kept by a stage, or done behind an earlier item

size is max_in_flight, or else starts at 4 x workers x batch and doubles, up to WINDOW_LIMIT, when a worker has nothing
to run only because the window is full of items that wait for an earlier one or for their key.
"""

from __future__ import annotations

WINDOW_LIMIT = 10_000  # items that the automatic window holds at most, unless 4 x workers x batch is more


class Window:
    __slots__ = ("arrived", "emitted", "grows", "largest", "size", "taken")

    def __init__(self, max_in_flight: int | None, calls_items: int) -> None:
        """calls_items: of how many items calls may be made at once: workers x batch."""
        base = 4 * calls_items
        self.size = max_in_flight or base
        self.largest = max(WINDOW_LIMIT, base)
        self.grows = max_in_flight is None  # whether `grow` may help
        self.arrived = self.emitted = self.taken = 0

    @property
    def in_flight(self) -> int:
        return self.arrived - self.taken

    @property
    def pending(self) -> int:
        return self.arrived - self.emitted

    @property
    def is_full(self) -> bool:
        return self.arrived - self.taken >= self.size

    @property
    def untaken(self) -> int:
        """Items in the output."""
        return self.emitted - self.taken

    def grow(self) -> None:
        self.size = min(2 * self.size, self.largest)
        self.grows = self.size < self.largest
