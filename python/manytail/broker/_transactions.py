"""A transacted channel: what it published and settled since the last commit.

Publishes are routed when they are made, and enter their queues, with the clock of a time to live, at the commit. Acks are checked when they are
made: from then on the parcels are unknown to further acks and to recover, but they count as held until the commit.
"""

from __future__ import annotations

from typing import Any

from manytail.broker._messages import Parcel

__all__ = ["Transaction"]


class Transaction:
    __slots__ = ("publishes", "settlements")

    def __init__(self) -> None:
        self.publishes: list[tuple[Any, ...]] = []
        self.settlements: list[tuple[Any, dict[int, Parcel]]] = []  # what to do with them at the commit, and the parcels by tag

    def take(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, dict[int, Parcel]]]]:
        """Everything since the last commit or rollback, and a new start."""
        taken = self.publishes, self.settlements
        self.publishes, self.settlements = [], []
        return taken

    def settled(self) -> dict[int, Parcel]:
        """The parcels of acks that are not committed."""
        return {tag: parcel for _, parcels in self.settlements for tag, parcel in parcels.items()}
