"""Transacted channels."""

from typing import Any

import pytest

from broker.behaviours import behaviour
from broker.sides import Side, ack


def transacted(side: Side, *bodies: object) -> tuple[Any, str]:
    channel = side.channel()
    queue = side.queue(channel)
    side.publish(channel, queue, *bodies)
    channel.tx_select()
    return channel, queue


def take(channel: Any, queue: str, count: int) -> list[int]:
    return [channel.basic_get(queue)[0].delivery_tag for _ in range(count)]


@behaviour(74)
def test_publishes_are_seen_at_the_commit(side: Side) -> None:
    channel, queue = transacted(side)
    side.publish(channel, queue, 1, 2)
    assert side.count(channel, queue) == 0
    channel.tx_commit()
    assert side.drain(side.channel(), queue) == [b"1", b"2"]


@pytest.mark.parametrize("how", ["rollback", "close"])
@behaviour(75)
def test_publishes_are_dropped(side: Side, how: str) -> None:
    channel, queue = transacted(side)
    side.publish(channel, queue, 1)
    if how == "rollback":
        channel.tx_rollback()
        channel.tx_commit()
    else:
        channel.close()
    assert side.drain(side.channel(), queue) == []


@behaviour(76)
def test_closing_requeues_uncommitted_acks(side: Side) -> None:
    channel, queue = transacted(side, *range(3))
    tags = take(channel, queue, 3)
    channel.basic_ack(tags[1])
    channel.basic_nack(tags[0], requeue=False)
    side.fence(channel)
    channel.close()
    assert side.drain(side.channel(), queue) == [b"0", b"1", b"2"]


@behaviour(77, 78)
def test_acks_that_were_rolled_back_can_be_made_again(side: Side) -> None:
    channel, queue = transacted(side, *range(3))
    tags = take(channel, queue, 3)
    for tag in tags:
        channel.basic_ack(tag)
    channel.tx_rollback()
    assert side.count(channel, queue) == 0  # nothing was requeued
    for tag in reversed(tags):
        channel.basic_ack(tag)
    channel.tx_commit()
    channel.close()
    assert side.drain(side.channel(), queue) == []


@behaviour(79)
@pytest.mark.parametrize("method", ["ack", "nack", "reject"])
def test_a_wrong_tag_fails_before_the_commit(side: Side, method: str) -> None:
    channel, queue = transacted(side, 1)
    take(channel, queue, 1)
    assert side.code(lambda ch: getattr(ch, f"basic_{method}")(5), channel) == 406


@behaviour(79)
def test_a_tag_acknowledged_but_not_committed_is_unknown(side: Side) -> None:
    channel, queue = transacted(side, 1)
    (tag,) = take(channel, queue, 1)
    channel.basic_ack(tag)
    assert side.code(lambda ch: ch.basic_ack(tag), channel) == 406


@behaviour(80)
def test_automatic_acks_are_outside(side: Side) -> None:
    channel, queue = transacted(side, *range(2))
    side.consume(channel, queue, auto_ack=True)
    side.settle()
    channel.tx_rollback()
    channel.close()
    assert side.drain(side.channel(), queue) == []


@behaviour(81)
def test_committing_an_ack_of_all(side: Side) -> None:
    channel, queue = transacted(side, *range(3))
    take(channel, queue, 3)
    channel.basic_ack(0, multiple=True)
    channel.tx_commit()
    channel.close()
    assert side.drain(side.channel(), queue) == []


@behaviour(82)
@pytest.mark.parametrize("method", ["commit", "rollback"])
def test_without_select(side: Side, method: str) -> None:
    assert side.code(lambda channel: getattr(channel, f"tx_{method}")()) == 406


@behaviour(83)
def test_recover_leaves_uncommitted_acks_alone(side: Side) -> None:
    channel, queue = transacted(side, 1)
    recorder = side.consume(channel, queue, then=ack)
    side.settle()
    channel.basic_recover(requeue=True)
    side.settle()
    assert recorder.bodies == [b"1"]
    channel.tx_commit()
    channel.close()
    assert side.drain(side.channel(), queue) == []


@pytest.mark.parametrize("method", ["nack", "reject"])
@pytest.mark.parametrize("commit", [True, False])
@behaviour(84)
def test_nack_and_reject_commit_and_roll_back(side: Side, method: str, commit: bool) -> None:
    channel, queue = transacted(side, 1)
    (tag,) = take(channel, queue, 1)
    getattr(channel, f"basic_{method}")(tag, requeue=True)
    assert side.count(channel, queue) == 0
    if commit:
        channel.tx_commit()
        assert side.count(channel, queue) == 1
    else:
        channel.tx_rollback()
        assert side.count(channel, queue) == 0
        channel.basic_ack(tag)
        channel.tx_commit()


@behaviour(102)
def test_a_transacted_message_is_returned_after_the_commit(side: Side) -> None:
    channel, _ = transacted(side)
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda ch, method, properties, body: returned.append(body))
    side.publish(channel, side.unique(), 1, mandatory=True)
    side.settle()
    assert returned == []
    channel.tx_commit()
    side.settle()
    assert returned == [b"1"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
@behaviour(74, 145)
def test_a_commit_that_a_queue_refuses_closes_the_channel(side: Side, overflow: str) -> None:
    """All the rest of the transaction takes effect before that."""
    channel, queue = transacted(side, "acked", "got", "left")
    full = side.queue(channel, arguments={"x-max-length": 1, "x-overflow": overflow})
    channel.basic_ack(take(channel, queue, 2)[0])
    side.publish(channel, full, 1, 2, 3)
    assert side.code(lambda ch: ch.tx_commit(), channel) == 406
    assert side.drain(side.channel(), full) == [b"1"]
    assert side.drain(side.channel(), queue) == [b"got", b"left"]


@behaviour(74, 102)
def test_the_queues_of_a_message_are_looked_up_at_the_commit(side: Side) -> None:
    """By their names. The exchange is asked at the publish."""
    channel, other = transacted(side)[0], side.channel()
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda ch, method, properties, body: returned.append(body))
    fanout = side.exchange(other, "fanout")
    gone, again = side.queue(other), side.queue(other)
    for queue in (gone, again):
        other.queue_bind(queue, fanout, "")
    side.publish(channel, "", "both", exchange=fanout, mandatory=True)
    side.publish(channel, gone, "gone", mandatory=True)
    side.publish(channel, gone, "not mandatory")
    for queue in (gone, again):
        other.queue_delete(queue)
    side.queue(other, again)
    channel.tx_commit()
    side.settle()
    assert returned == [b"gone"]
    assert side.drain(other, again) == [b"both"]


@behaviour(123)
def test_transactions_and_confirms_exclude_one_another(side: Side) -> None:
    channel = side.channel()
    channel.tx_select()
    assert side.code(lambda ch: ch.confirm_delivery(), channel) == 406
    channel = side.channel()
    channel.confirm_delivery()
    assert side.code(lambda ch: ch.tx_select(), channel) == 406
