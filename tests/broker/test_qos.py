"""Limits on what a channel (global) and its consumers together may hold."""

import itertools
import time

import pytest
from support.threads import DEADLINE

from broker.behaviours import behaviour
from broker.sides import Recorder, Side


def limited(side: Side, limit: int, connection: object = None) -> object:
    channel = side.channel(connection)
    channel.basic_qos(prefetch_count=limit, global_qos=True)
    return channel


@behaviour(24)
def test_prefetch_size_is_not_implemented(side: Side) -> None:
    assert side.code(lambda channel: channel.basic_qos(prefetch_size=1)) == 540


@behaviour(25, 35)
def test_a_limit_of_zero_is_no_limit(side: Side) -> None:
    channel = limited(side, 0)
    queue = side.queue(channel)
    recorder = side.consume(channel, queue)
    side.publish(channel, queue, *range(5))
    side.settle()
    assert len(recorder.bodies) == 5


@behaviour(26)
def test_a_consumer_that_need_not_acknowledge_uses_nothing_up(side: Side) -> None:
    channel = side.channel()
    queue = side.queue(channel)
    recorder = side.consume(channel, queue, auto_ack=True)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    side.publish(channel, queue, *range(4))
    side.settle()
    assert len(recorder.bodies) == 4


@behaviour(27)
def test_an_exhausted_limit_holds_back_those_that_need_not_acknowledge(side: Side) -> None:
    channel = limited(side, 1)
    held, free = side.queue(channel), side.queue(channel)
    holder = side.consume(channel, held)
    watcher = side.consume(channel, free, auto_ack=True)
    side.publish(channel, held, "held")
    side.settle()
    side.publish(channel, free, 1, 2)
    side.settle()
    assert (holder.bodies, watcher.bodies) == ([b"held"], [])
    channel.basic_ack(holder.tags[0])
    side.settle()
    assert watcher.bodies == [b"1", b"2"]


@pytest.mark.parametrize(("limit", "multiple", "queues"), list(itertools.product((1, 2), (False, True), (1, 2))))
@behaviour(28)
def test_exactly_the_limit_is_delivered(side: Side, limit: int, multiple: bool, queues: int) -> None:
    channel = limited(side, limit)
    recorder = Recorder()
    names = [side.queue(channel) for _ in range(queues)]
    recorders = [side.consume(channel, name) for name in names]
    for name in names:
        side.publish(channel, name, *range(6))

    def tags() -> list[int]:
        side.settle()
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
    assert recorder.bodies == []


@pytest.mark.parametrize("limit", [1, 2])
@behaviour(28)
def test_transacted_acks_free_the_limit_at_the_commit(side: Side, limit: int) -> None:
    channel = limited(side, limit)
    queue = side.queue(channel)
    side.publish(channel, queue, *range(6))
    channel.tx_select()
    recorder = side.consume(channel, queue)
    side.settle()
    assert len(recorder.tags) == limit
    channel.basic_ack(0, multiple=True)
    side.settle()
    assert len(recorder.tags) == limit
    channel.tx_rollback()
    side.settle()
    assert len(recorder.tags) == limit
    channel.basic_ack(0, multiple=True)
    channel.tx_commit()
    side.settle()
    assert len(recorder.tags) == 2 * limit


@behaviour(29)
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


@behaviour(30)
def test_two_consumers_of_a_channel_share_a_queue(side: Side) -> None:
    channel = limited(side, 2)
    queue = side.queue(channel)
    first, second = side.consume(channel, queue), side.consume(channel, queue)
    side.publish(channel, queue, 1, 2)
    side.settle()
    assert (len(first.bodies), len(second.bodies)) == (1, 1)


@behaviour(31)
def test_a_cancelled_consumer_gets_nothing_and_the_limit_stays(side: Side) -> None:
    channel = limited(side, 1)
    queue = side.queue(channel)
    side.publish(channel, queue, *range(4))
    for turn in range(2):
        recorder = side.consume(channel, queue)
        side.settle()
        assert recorder.bodies == [str(turn).encode()]
        channel.basic_cancel(recorder.tag)
        channel.basic_ack(recorder.tags[0])
        side.settle()
        assert len(recorder.bodies) == 1


@behaviour(32, 37)
def test_a_limit_set_late_counts_what_is_held(side: Side) -> None:
    channel = side.channel()
    queue = side.queue(channel)
    recorder = side.consume(channel, queue)
    side.publish(channel, queue, 1, 2)
    side.settle()
    channel.basic_qos(prefetch_count=2, global_qos=True)
    side.publish(channel, queue, 3)
    side.settle()
    assert len(recorder.bodies) == 2
    channel.basic_ack(recorder.tags[0])
    side.settle()
    assert len(recorder.bodies) == 3


@pytest.mark.parametrize("multiple", [False, True])
@behaviour(32, 37)
def test_uncommitted_acks_do_not_count_in_a_limit_set_late(side: Side, multiple: bool) -> None:
    """Nor does their commit let more through."""
    channel, other = side.channel(), side.channel()
    queue = side.queue(channel)
    channel.tx_select()
    recorder = side.consume(channel, queue)
    side.publish(other, queue, *range(5))
    side.settle()
    for tag in [0] if multiple else recorder.tags:
        channel.basic_ack(tag, multiple)
    side.fence(channel)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    channel.tx_commit()
    side.publish(other, queue, *range(20))
    side.settle()
    assert len(recorder.bodies) == 5 + 3


@behaviour(32)
def test_a_limit_set_late_leaves_consumers_of_quorum_queues_alone(side: Side) -> None:
    """What they hold then counts, and what they ack gives credit. What they get later does not count."""
    channel, other = side.channel(), side.channel()
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
        side.settle()
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


@behaviour(33)
def test_raising_the_limit_lets_that_many_more_through(side: Side) -> None:
    channel = limited(side, 1)
    queue = side.queue(channel)
    side.publish(channel, queue, *range(4))
    recorder = side.consume(channel, queue)
    side.settle()
    assert len(recorder.bodies) == 1
    channel.basic_qos(prefetch_count=2, global_qos=True)
    side.settle()
    assert len(recorder.bodies) == 2


@behaviour(34)
def test_lowering_the_limit_stops_until_enough_is_acknowledged(side: Side) -> None:
    channel = limited(side, 2)
    queue = side.queue(channel)
    side.publish(channel, queue, *range(5))
    recorder = side.consume(channel, queue)
    side.settle()
    assert len(recorder.bodies) == 2
    channel.basic_qos(prefetch_count=1, global_qos=True)
    channel.basic_ack(recorder.tags[0])
    side.settle()
    assert len(recorder.bodies) == 2
    channel.basic_ack(recorder.tags[1])
    side.settle()
    assert len(recorder.bodies) == 3


@behaviour(35)
def test_taking_the_limit_away_lets_the_rest_flow(side: Side) -> None:
    channel = limited(side, 1)
    queue = side.queue(channel)
    side.publish(channel, queue, *range(5))
    recorder = side.consume(channel, queue)
    side.settle()
    channel.basic_qos(prefetch_count=0, global_qos=True)
    side.settle()
    assert len(recorder.bodies) == 5


@behaviour(35)
def test_a_prefetch_of_consumers_takes_the_limit_away(side: Side) -> None:
    channel = limited(side, 1)
    queue = side.queue(channel)
    side.publish(channel, queue, *range(5))
    recorder = side.consume(channel, queue)
    side.settle()
    assert len(recorder.bodies) == 1
    channel.basic_qos(prefetch_count=1)
    side.settle()
    assert len(recorder.bodies) == 5


@behaviour(36)
def test_channels_have_limits_of_their_own(side: Side) -> None:
    one, two = limited(side, 1), limited(side, 2)
    queue = side.queue(one)
    first, second = side.consume(one, queue), side.consume(two, queue)
    side.publish(one, queue, *range(6))
    side.settle()
    assert (len(first.bodies), len(second.bodies)) == (1, 2)


@behaviour(38)
def test_recover_frees_the_limit_and_redelivers(side: Side) -> None:
    channel = limited(side, 1)
    queue = side.queue(channel)
    side.publish(channel, queue, 1, 2)
    recorder = side.consume(channel, queue)
    side.settle()
    assert recorder.bodies == [b"1"]
    channel.basic_recover(requeue=True)
    side.settle()
    assert recorder.bodies == [b"1", b"1"]
    assert recorder.redelivered == [False, True]


@behaviour(11)
@pytest.mark.parametrize("count", [-1, 65536])
def test_a_prefetch_is_a_number_of_sixteen_bits(side: Side, count: int) -> None:
    channel = side.channel()
    import struct

    for global_qos in (False, True):
        with pytest.raises((ValueError, struct.error)):
            channel.basic_qos(prefetch_count=count, global_qos=global_qos)
