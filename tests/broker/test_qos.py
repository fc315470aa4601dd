"""Limits on what a channel (global) and its consumers together may hold."""

import itertools
import time
from typing import Any

import pytest
from support.threads import DEADLINE

from broker.sides import Recorder, Side


def limited(side: Side, limit: int) -> Any:
    channel = side.channel()
    channel.basic_qos(prefetch_count=limit, global_qos=True)
    return channel


def held(side: Side, limit: int) -> tuple[Any, str, Recorder]:
    """A limited channel, a queue of five messages more than its consumer may hold, and that consumer."""
    channel = limited(side, limit)
    queue = side.queue(channel)
    side.publish(channel, queue, *range(limit + 5))
    recorder = side.consume(channel, queue)
    assert len(recorder.tags) == limit
    return channel, queue, recorder


def test_a_limit_of_a_channel_is_none_of_its_connection(side: Side) -> None:
    """`global_qos` was to mean the connection in AMQP. To RabbitMQ it means the channel."""
    first, queue, recorder = held(side, 2)
    second = side.channel(first.connection)
    others = side.consume(second, queue)
    assert (len(recorder.tags), len(others.tags)) == (2, 5)
    third = limited(side, 1)
    side.publish(third, queue, 8, 9)
    thirds = side.consume(third, queue)
    assert (len(recorder.tags), len(others.tags), len(thirds.tags)) == (2, 7, 0)
    second.basic_nack(others.tags[0])
    assert len(recorder.tags) == 2


def test_a_consumer_that_need_not_acknowledge_uses_nothing_up(side: Side, channel: Any, queue: str) -> None:
    recorder = side.consume(channel, queue, auto_ack=True)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    side.publish(channel, queue, *range(4))
    assert len(recorder.bodies) == 4


def test_an_exhausted_limit_holds_back_those_that_need_not_acknowledge(side: Side) -> None:
    channel = limited(side, 1)
    held, free = side.queue(channel), side.queue(channel)
    holder = side.consume(channel, held)
    watcher = side.consume(channel, free, auto_ack=True)
    side.publish(channel, held, "held")
    side.publish(channel, free, 1, 2)
    assert (holder.bodies, watcher.bodies) == ([b"held"], [])
    channel.basic_ack(holder.tags[0])
    assert watcher.bodies == [b"1", b"2"]


@pytest.mark.parametrize(("limit", "multiple", "queues"), list(itertools.product((1, 2), (False, True), (1, 2))))
def test_exactly_the_limit_is_delivered(side: Side, limit: int, multiple: bool, queues: int) -> None:
    channel = limited(side, limit)
    names = [side.queue(channel) for _ in range(queues)]
    recorders = [side.consume(channel, name) for name in names]
    for name in names:
        side.publish(channel, name, *range(6))

    def tags() -> list[int]:
        return sorted(tag for each in recorders for tag in each.tags)

    got, _, _ = channel.basic_get(names[0])
    assert got is not None  # basic_get is not limited
    seen = tags()
    assert len(seen) == limit
    if multiple:
        channel.basic_ack(max(seen), multiple=True)
    else:
        for tag in seen:
            channel.basic_ack(tag)
    seen = tags()
    assert len(seen) == 2 * limit
    if not (multiple and got.delivery_tag < max(seen[:limit])):
        channel.basic_ack(got.delivery_tag)  # frees no credit
        assert tags() == seen


def test_queues_that_share_a_limit_all_get_on(side: Side) -> None:
    channel = limited(side, 1)
    queues = [side.queue(channel) for _ in range(3)]
    for queue in queues:
        side.publish(channel, queue, *[queue] * 60)
    recorder = [
        side.consume(channel, queue, then=lambda ch, method, *_: ch.basic_ack(method.delivery_tag)) for queue in queues
    ]
    side.eventually(lambda: sum(len(each.bodies) for each in recorder) == 180, "all messages")
    assert {len(each.bodies) for each in recorder} == {60}


def test_a_cancelled_consumer_gets_nothing_and_the_limit_stays(side: Side) -> None:
    channel = limited(side, 1)
    queue = side.queue(channel)
    side.publish(channel, queue, *range(4))
    for turn in range(2):
        recorder = side.consume(channel, queue)
        assert recorder.bodies == [str(turn).encode()]
        channel.basic_cancel(recorder.tag)
        channel.basic_ack(recorder.tags[0])
        assert len(recorder.bodies) == 1


def test_a_limit_set_late_counts_what_is_held(side: Side, channel: Any, queue: str) -> None:
    recorder = side.consume(channel, queue)
    side.publish(channel, queue, 1, 2)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    side.publish(channel, queue, 3)
    assert len(recorder.bodies) == 2
    channel.basic_ack(recorder.tags[0])
    assert len(recorder.bodies) == 3


@pytest.mark.parametrize("multiple", [False, True])
def test_uncommitted_acks_do_not_count_in_a_limit_set_late(
    side: Side, channel: Any, queue: str, multiple: bool
) -> None:
    """Nor does their commit let more through."""
    other = side.channel()
    channel.tx_select()
    recorder = side.consume(channel, queue)
    side.publish(other, queue, *range(5))
    for tag in [0] if multiple else recorder.tags:
        channel.basic_ack(tag, multiple)
    side.fence(channel)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    channel.tx_commit()
    side.publish(other, queue, *range(20))
    assert len(recorder.bodies) == 5 + 3


def test_a_limit_set_late_leaves_consumers_of_quorum_queues_alone(side: Side, channel: Any) -> None:
    """What they hold then counts, and what they ack gives credit. What they get later does not count."""
    other = side.channel()
    queues = side.queue(channel), side.queue(channel, durable=True, arguments={"x-queue-type": "quorum"})
    classic, quorum = (side.consume(channel, queue) for queue in queues)

    def counts(of_quorum: int) -> tuple[int, int]:
        for queue in queues:
            side.publish(other, queue, 1, 2, 3)
        gets(of_quorum)
        return len(classic.bodies), len(quorum.bodies)

    def gets(number: int) -> None:
        """A quorum queue of a server delivers later than it answers."""
        end = time.monotonic() + DEADLINE
        while len(quorum.bodies) < number and time.monotonic() < end:
            side.wait(0.02)
            side.settle()

    side.publish(other, queues[1], 1)
    gets(1)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    assert counts(4) == (1, 4)
    assert counts(7) == (1, 7)
    channel.basic_ack(quorum.tags[-1])
    assert counts(10) == (2, 10)


@pytest.mark.parametrize("count", [-1, 65536])
def test_a_prefetch_is_a_number_of_sixteen_bits(channel: Any, count: int) -> None:
    import struct

    for global_qos in (False, True):
        with pytest.raises((ValueError, struct.error)):
            channel.basic_qos(prefetch_count=count, global_qos=global_qos)


@pytest.mark.parametrize(
    ("limit", "qos", "more"),
    [
        (1, {"prefetch_count": 2, "global_qos": True}, 1),
        (1, {"prefetch_count": 0, "global_qos": True}, 5),
        (1, {"prefetch_count": 1}, 5),  # that of consumers takes the channel's away
    ],
)
def test_a_higher_limit_or_none_lets_more_through(side: Side, limit: int, qos: dict[str, Any], more: int) -> None:
    channel, _, recorder = held(side, limit)
    channel.basic_qos(**qos)
    assert len(recorder.bodies) == limit + more


def test_lowering_the_limit_stops_until_enough_is_acknowledged(side: Side) -> None:
    channel, _, recorder = held(side, 2)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    for tag, delivered in zip(recorder.tags, (2, 3), strict=True):
        channel.basic_ack(tag)
        assert len(recorder.bodies) == delivered


@pytest.mark.parametrize("limit", [1, 2])
def test_transacted_acks_free_the_limit_at_the_commit(side: Side, limit: int) -> None:
    channel, _, recorder = held(side, limit)
    channel.tx_select()
    for end, delivered in ((channel.tx_rollback, limit), (channel.tx_commit, 2 * limit)):
        channel.basic_ack(0, multiple=True)
        assert len(recorder.tags) == limit
        end()
        assert len(recorder.tags) == delivered


def test_recover_frees_the_limit_and_redelivers(side: Side) -> None:
    channel, _, recorder = held(side, 1)
    channel.basic_recover(requeue=True)
    assert (recorder.bodies, recorder.redelivered, recorder.tags) == ([b"0", b"0"], [False, True], [1, 2])


@pytest.mark.parametrize("limits", [(2,), (1, 2)])
def test_consumers_of_a_queue_take_turns_within_the_limits_of_their_channels(side: Side, limits: Any) -> None:
    channels = [limited(side, limit) for limit in limits]
    queue = side.queue(channels[0])
    recorders = [side.consume(channel, queue) for channel in (channels[0], channels[-1])]
    side.publish(channels[0], queue, *range(2 * len(limits) + 2))
    assert [len(each.bodies) for each in recorders] == ([1, 1] if len(limits) == 1 else [1, 2])
