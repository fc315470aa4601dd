"""Transacted channels."""

from typing import Any

import pytest

from broker.sides import Side


def transacted(side: Side, *bodies: object) -> tuple[Any, str]:
    channel, queue = side.filled(*bodies)
    channel.tx_select()
    return channel, queue


@pytest.mark.parametrize("calls", [["tx_commit"], ["tx_rollback", "tx_commit"], ["close"]])
def test_publishes_are_seen_at_the_commit_or_dropped(side: Side, calls: list[str]) -> None:
    channel, queue = transacted(side)
    side.publish(channel, queue, 1, 2)
    assert side.count(channel, queue) == 0
    for call in calls:
        getattr(channel, call)()
    assert side.drain(side.channel(), queue) == ([b"1", b"2"] if calls == ["tx_commit"] else [])


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_commit_that_a_queue_refuses_closes_the_channel(side: Side, overflow: str) -> None:
    """All the rest of the transaction takes effect before that."""
    channel, queue = transacted(side, "acked", "got", "left")
    full = side.queue(channel, arguments={"x-max-length": 1, "x-overflow": overflow})
    channel.basic_ack(side.take(channel, queue, 2)[0])
    side.publish(channel, full, 1, 2, 3)
    assert side.code(lambda ch: ch.tx_commit(), channel) == 406
    assert side.drain(side.channel(), full) == [b"1"]
    assert side.drain(side.channel(), queue) == [b"got", b"left"]


def test_the_queues_of_a_message_are_looked_up_at_the_commit(side: Side) -> None:
    """By their names. The exchange is asked at the publish. Messages without a queue are returned then."""
    channel, other = transacted(side)[0], side.channel()
    returned = side.returned(channel)
    fanout = side.exchange(other, "fanout")
    gone, again = side.queue(other), side.queue(other)
    for queue in (gone, again):
        other.queue_bind(queue, fanout, "")
    side.publish(channel, "", "both", exchange=fanout, mandatory=True)
    side.publish(channel, gone, "gone", mandatory=True)
    side.publish(channel, gone, "not mandatory")
    side.publish(channel, side.unique(), "nowhere", mandatory=True)
    for queue in (gone, again):
        other.queue_delete(queue)
    side.queue(other, again)
    assert returned == []
    channel.tx_commit()
    side.settle()
    assert [body for *_, body in returned] == [b"gone", b"nowhere"]
    assert side.drain(other, again) == [b"both"]


def test_transactions_and_confirms_exclude_one_another(side: Side, channel: Any) -> None:
    channel.tx_select()
    assert side.code(lambda ch: ch.confirm_delivery(), channel) == 406
    channel = side.channel()
    channel.confirm_delivery()
    assert side.code(lambda ch: ch.tx_select(), channel) == 406


SETTLE = ("ack", "nack", "reject")


@pytest.mark.parametrize("method", SETTLE)
@pytest.mark.parametrize("tag", ["unknown", "uncommitted"])
def test_a_wrong_tag_fails_before_the_commit(side: Side, method: str, tag: str) -> None:
    channel, queue = transacted(side, 1)
    (known,) = side.take(channel, queue, 1)
    if tag == "uncommitted":
        channel.basic_ack(known)
    wrong = known if tag == "uncommitted" else 5
    assert side.code(lambda ch: getattr(ch, f"basic_{method}")(wrong), channel) == 406


@pytest.mark.parametrize("method", SETTLE)
@pytest.mark.parametrize("end", ["commit", "rollback", "recover", "close"])
def test_settling_takes_effect_at_the_commit(side: Side, method: str, end: str) -> None:
    """Until then, and after a rollback, the messages stay with the channel. What is settled does not recover."""
    channel, queue = transacted(side, *range(3))
    tags = side.take(channel, queue, 3)
    for tag in tags:
        getattr(channel, f"basic_{method}")(tag)
    assert side.count(side.channel(), queue) == 0
    if end == "recover":
        channel.basic_recover(requeue=True)
        assert side.count(side.channel(), queue) == 0
    elif end == "rollback":
        channel.tx_rollback()
        channel.basic_ack(0, multiple=True)
        method = "ack"
    if end != "close":
        channel.tx_commit()
    channel.close()
    left = [] if method == "ack" and end != "close" else [b"0", b"1", b"2"]
    assert side.drain(side.channel(), queue) == left


def test_automatic_acks_are_outside(side: Side) -> None:
    channel, queue = transacted(side, *range(2))
    assert len(side.consume(channel, queue, auto_ack=True).bodies) == 2
    channel.basic_recover(requeue=True)
    channel.tx_rollback()
    channel.close()
    assert side.drain(side.channel(), queue) == []
