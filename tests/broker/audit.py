"""`audit`: the invariants of a broker's state, checked from outside when no call runs."""

from queue import Empty
from typing import Any

from manytail.broker._state import UNLIMITED, ChannelState, Queue, VirtualHost


def ready_of(queue: Queue) -> list[Any]:
    """The ready deliveries in order: taken, and put back."""
    ready = []
    while (entry := _next_entry(queue)) is not None:
        ready.append(entry)
    for entry in reversed(ready):
        entry.release()
    return [entry.item for entry in ready]


def _next_entry(queue: Queue) -> Any:
    try:
        return queue._ready_list._get(False)
    except Empty:
        return None


def audit(host: VirtualHost, channels: list[ChannelState]) -> int:
    """Check counts, credit and waiting consumers. Returns how many deliveries are ready or unacknowledged."""
    assert not host.effects
    assert not host.dead_letters
    total = 0
    for queue in host.queues.values():
        ready = ready_of(queue)
        assert queue.ready == len(ready), f"{queue.name}: {len(ready)} are ready, it counts {queue.ready}"
        total += len(ready)
        able = [each for each in queue.consumers if each.credit and not each.channel.at_limit]
        assert not (ready and able), f"{queue.name}: {len(ready)} are ready, and {len(able)} consumers could take them"
    for channel in channels:
        total += _audit_channel(channel)
    return total


def _audit_channel(channel: ChannelState) -> int:
    settled = [delivery for _, deliveries in channel._settlements for delivery in deliveries.values()]
    held = [*channel.unacked.values(), *settled]
    assert list(channel.unacked) == sorted(channel.unacked)
    for consumer in channel.consumers.values():
        mine = sum(delivery.consumer is consumer for delivery in held)
        if consumer.prefetch != UNLIMITED or consumer.credit != UNLIMITED:
            assert consumer.prefetch - consumer.credit == mine, f"{consumer.tag}: credit for {mine} is not in use"
    assert all(delivery.entry is not None for delivery in held)
    assert not channel.gone or not (held or channel.consumers or channel._publishes)
    return len(held)
