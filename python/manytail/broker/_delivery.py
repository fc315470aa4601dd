"""What one channel was handed and has not settled yet: its delivery tags, its unacknowledged parcels, its credit.

Credit is counted twice. Per consumer: it starts at the prefetch, goes down with each delivery and up with each settling of that. Per channel:
`_volume` is what its consumers hold, and nothing of the channel is handed over, even to consumers that need not acknowledge, while that has
reached `_limit`. basic_get is in neither. A limit that is set first inherits what is unacknowledged then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from manytail.broker._consumers import Consumer
from manytail.broker._messages import Parcel
from manytail.broker._methods import Basic
from manytail.broker._refusals import precondition_failed

if TYPE_CHECKING:
    from manytail.broker._dispatch import Lane
    from manytail.broker._queues import Queue
    from manytail.broker.channel import Channel

__all__ = ["Ledger"]

_Deliver = Basic.Deliver


class Ledger:
    __slots__ = ("_lane", "_limit", "_tag", "_turn", "_volume", "at_limit", "channel", "prefetch", "unacked")

    def __init__(self, channel: Channel, lane: Lane) -> None:
        self.channel = channel
        self._lane = lane
        self._tag = 0
        self.unacked: dict[int, Parcel] = {}  # by tag, ascending
        self.prefetch = 0  # of consumers that start from now on
        self._limit = 0
        self._volume = 0
        self.at_limit = False
        self._turn = 0  # which consumer is looked at first when the channel falls below its limit

    # ------------------------------------------------------------------ out
    def hand_over(self, consumer: Consumer, parcel: Parcel) -> None:
        """One delivery: it has its tag and its place in the lane before anything else of the queue moves."""
        tag = self._tag = self._tag + 1
        message = parcel.message
        if consumer.auto_ack:
            parcel.entry.ack()
        else:
            parcel.consumer = consumer
            self.unacked[tag] = parcel
            consumer.credit -= 1
            if self._limit:
                self._volume += 1
                self.at_limit = self._volume >= self._limit
        item = (consumer, _Deliver(consumer.tag, tag, parcel.redelivered, message.exchange, message.keys[0]), message, parcel.returns)
        if consumer.callback is None:
            consumer.buffer.append(item)
            self.channel.wake()
            return
        if consumer.auto_ack:
            consumer.buffer.append(item)
        self._lane.add(item)

    def got(self, parcel: Parcel, auto_ack: bool) -> int:
        """The tag of a parcel that basic_get took."""
        tag = self._tag = self._tag + 1
        if auto_ack:
            parcel.entry.ack()
        else:
            parcel.consumer = None
            self.unacked[tag] = parcel
        return tag

    # ------------------------------------------------------------------ back
    def collect(self, tag: int, multiple: bool) -> dict[int, Parcel]:
        """Take out what an ack, nack or reject names: one tag, or all up to one that is itself unacknowledged, or (0, multiple) all."""
        unacked = self.unacked
        if multiple and tag == 0:
            collected = dict(unacked)
            unacked.clear()
            return collected
        if tag not in unacked:
            precondition_failed(f"unknown delivery tag {tag}")
        if not multiple:
            return {tag: unacked.pop(tag)}
        collected = {}
        for earlier, parcel in unacked.items():
            if earlier > tag:
                break
            collected[earlier] = parcel
        for earlier in collected:
            del unacked[earlier]
        return collected

    def restore(self, collected: dict[int, Parcel]) -> None:
        """A transaction that settled these was rolled back."""
        self.unacked = dict(sorted((self.unacked | collected).items()))

    def ack_one(self, parcel: Parcel) -> None:
        """`ack` of one parcel, which is what nearly all are."""
        parcel.entry.ack()
        consumer = parcel.consumer
        if consumer is None:
            return
        consumer.credit += 1
        if consumer.parked or self._limit or parcel.queue.single_active:
            self._free((parcel,), ())

    def ack(self, parcels: Iterable[Parcel]) -> None:
        """Done with."""
        parcels = list(parcels)
        for parcel in parcels:
            parcel.entry.ack()
            if parcel.consumer is not None:
                parcel.consumer.credit += 1
        self._free(parcels, ())

    def reject(self, parcels: Iterable[Parcel]) -> None:
        """Dead letters, or dropped."""
        parcels = list(parcels)
        for parcel in parcels:
            parcel.queue.discard(parcel)
            if parcel.consumer is not None:
                parcel.consumer.credit += 1
        self._free(parcels, ())

    def requeue(self, parcels: Iterable[Parcel]) -> None:
        """Back to their places, those of one queue together."""
        parcels = list(parcels)
        by_queue: dict[Queue, list[Parcel]] = {}
        for parcel in parcels:
            by_queue.setdefault(parcel.queue, []).append(parcel)
            if parcel.consumer is not None:
                parcel.consumer.credit += 1
        for queue, back in by_queue.items():
            queue.requeue(back)
        self._free(parcels, by_queue)

    def _free(self, parcels: Iterable[Parcel], changed: Iterable[Queue]) -> None:
        """Let go on whoever waited for the credit of these parcels; `changed` are queues that have more to hand over."""
        queues = dict.fromkeys(changed)
        for parcel in parcels:
            consumer = parcel.consumer
            if consumer is not None:
                parcel.consumer = None
                if consumer.parked:
                    consumer.queue.unpark(consumer)
                    queues[consumer.queue] = None
                if self._limit:
                    self._volume -= 1
                if parcel.queue.single_active:
                    parcel.queue.settled()
                    queues[parcel.queue] = None
        if self.at_limit and self._volume < self._limit:
            queues.update(self._below_limit())
        for queue in queues:
            queue.pump()

    # ------------------------------------------------------------------ the channel's limit
    def set_limit(self, limit: int) -> None:
        """Of all consumers of the channel together; 0: none."""
        if limit and not self._limit:
            self._volume = len(self.unacked)
        self._limit = limit
        blocked = 0 < limit <= self._volume
        if blocked:
            self.at_limit = True
        elif self.at_limit:
            for queue in self._below_limit():
                queue.pump()

    def _below_limit(self) -> dict[Queue, None]:
        """The consumers that the limit parked join in again; which queue comes first changes from time to time, so that each gets on."""
        self.at_limit = False
        consumers = list(self.channel.consumers.values())
        self._turn += 1
        start = self._turn % len(consumers) if consumers else 0
        queues: dict[Queue, None] = {}
        for consumer in consumers[start:] + consumers[:start]:
            consumer.queue.unpark(consumer)
            queues[consumer.queue] = None
        return queues

    @property
    def limited(self) -> bool:
        return self._limit > 0

    def holds_for(self, consumer: Consumer) -> bool:
        return any(parcel.consumer is consumer for parcel in self.unacked.values())


