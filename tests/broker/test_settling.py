"""ack, nack, reject, recover: which tags they take, and where the messages go."""

from typing import Any

import pytest

from broker.behaviours import behaviour
from broker.sides import Side

KINDS: dict[str, dict[str, Any]] = {"classic": {}, "quorum": {"durable": True, "arguments": {"x-queue-type": "quorum"}}}


def filled(side: Side, *bodies: object, **options: Any) -> tuple[Any, str]:
    channel = side.channel()
    queue = side.queue(channel, **options)
    side.publish(channel, queue, *bodies)
    return channel, queue


def take(channel: Any, queue: str, count: int) -> list[int]:
    return [channel.basic_get(queue)[0].delivery_tag for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
@behaviour(55)
def test_requeued_is_redelivered_to_another(side: Side, kind: str) -> None:
    channel, queue = filled(side, "one", **KINDS[kind])
    side.settle()
    (tag,) = take(channel, queue, 1)
    other = side.channel()
    recorder = side.consume(other, queue)
    channel.basic_reject(tag, requeue=True)
    side.fence(channel)
    side.eventually(lambda: recorder.bodies, "redelivery")
    assert (recorder.bodies, recorder.redelivered) == ([b"one"], [True])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["nack", "reject"])
@behaviour(56)
def test_rejected_for_good_is_gone(side: Side, kind: str, method: str) -> None:
    channel, queue = filled(side, "one", **KINDS[kind])
    side.settle()
    (tag,) = take(channel, queue, 1)
    getattr(channel, f"basic_{method}")(tag, requeue=False)
    side.fence(channel)
    channel.close()
    assert side.drain(side.channel(), queue) == []


@pytest.mark.parametrize("method", ["ack", "nack", "reject"])
@pytest.mark.parametrize("again", ["ack", "nack", "reject"])
@behaviour(57, 64)
def test_a_settled_tag_is_unknown(side: Side, method: str, again: str) -> None:
    channel, queue = filled(side, "one")
    (tag,) = take(channel, queue, 1)
    getattr(channel, f"basic_{method}")(tag)
    assert side.code(lambda ch: getattr(ch, f"basic_{again}")(tag), channel) == 406
    assert channel.is_closed


@behaviour(58)
def test_multiple_skips_the_gap(side: Side) -> None:
    channel, queue = filled(side, *range(4))
    tags = take(channel, queue, 4)
    channel.basic_ack(tags[1])
    channel.basic_nack(tags[2], multiple=True, requeue=True)
    assert side.drain(channel, queue) == [b"0", b"2"]


@behaviour(59)
def test_multiple_without_requeue_empties(side: Side) -> None:
    channel, queue = filled(side, *range(4))
    tags = take(channel, queue, 4)
    channel.basic_nack(tags[3], multiple=True, requeue=False)
    side.fence(channel)
    channel.close()
    assert side.drain(side.channel(), queue) == []


@behaviour(60)
def test_multiple_of_tag_zero_is_all(side: Side) -> None:
    channel, queue = filled(side, *range(4))
    take(channel, queue, 4)
    channel.basic_nack(0, multiple=True, requeue=True)
    assert side.drain(channel, queue) == [b"0", b"1", b"2", b"3"]
    channel.basic_ack(0, multiple=True)  # all of nothing is no error
    side.fence(channel)


@behaviour(65)
@pytest.mark.parametrize(("tag", "multiple"), [(1, False), (1, True), (0, False), (7, False)])
def test_a_tag_that_was_never_delivered(side: Side, tag: int, multiple: bool) -> None:
    assert side.code(lambda channel: channel.basic_ack(tag, multiple)) == 406


@behaviour(65)
def test_multiple_needs_a_tag_that_is_unacknowledged_itself(side: Side) -> None:
    channel, queue = filled(side, *range(3))
    tags = take(channel, queue, 3)
    channel.basic_ack(tags[1])
    assert side.code(lambda ch: ch.basic_ack(tags[1], multiple=True), channel) == 406
    assert side.drain(side.channel(), queue) == [b"0", b"2"]


@behaviour(65)
def test_a_wrong_tag_in_a_transaction(side: Side) -> None:
    channel = side.channel()
    channel.tx_select()
    assert side.code(lambda ch: ch.basic_ack(1), channel) == 406


@behaviour(61)
def test_recover_redelivers_to_the_same_consumer(side: Side) -> None:
    channel, queue = filled(side, "one")
    recorder = side.consume(channel, queue)
    side.settle()
    channel.basic_recover(requeue=True)
    side.settle()
    assert (recorder.bodies, recorder.redelivered, recorder.tags) == ([b"one", b"one"], [False, True], [1, 2])


@behaviour(62)
def test_recover_does_not_bring_back_what_needed_no_ack(side: Side) -> None:
    channel, queue = filled(side, "one")
    recorder = side.consume(channel, queue, auto_ack=True)
    side.settle()
    channel.basic_recover(requeue=True)
    side.settle()
    assert recorder.bodies == [b"one"]


@behaviour(63)
def test_recover_without_requeue_is_not_implemented(side: Side) -> None:
    assert side.code(lambda channel: channel.basic_recover(requeue=False)) == 540


@behaviour(66, 67)
def test_closing_requeues_what_was_got_and_not_acknowledged(side: Side) -> None:
    channel, queue = filled(side, *range(3))
    tags = take(channel, queue, 3)
    channel.basic_ack(tags[1])
    side.fence(channel)
    channel.close()
    other = side.channel()
    assert side.drain(other, queue) == [b"0", b"2"]


@pytest.mark.parametrize("what", ["channel", "connection"])
@behaviour(67, 68)
def test_closing_requeues_deliveries(side: Side, what: str) -> None:
    channel, queue = filled(side, *range(3))
    mine = side.connect()
    consuming = side.channel(mine)
    recorder = side.consume(consuming, queue)
    side.settle()
    assert len(recorder.bodies) == 3
    (consuming if what == "channel" else mine).close()
    side.settle()
    got = [channel.basic_get(queue, True) for _ in range(4)]
    assert [(method.redelivered, body) for method, _, body in got[:3]] == [(True, b"0"), (True, b"1"), (True, b"2")]
    assert got[3][0] is None


@pytest.mark.parametrize("what", ["channel", "connection"])
@behaviour(69)
def test_thousands_in_flight_all_come_back_once(side: Side, what: str) -> None:
    channel = side.channel()
    queue = side.queue(channel)
    for number in range(2000):
        channel.basic_publish("", queue, str(number).encode())
    side.settle()
    mine = side.connect()
    consuming = side.channel(mine)
    side.consume(consuming, queue)
    (consuming if what == "channel" else mine).close()
    assert side.drain(channel, queue) == [str(number).encode() for number in range(2000)]


@pytest.mark.parametrize("acked", [0, 3])
@pytest.mark.parametrize("cancel", [False, True])
@behaviour(70, 71, 72, 73)
def test_what_a_partial_consumer_did_not_acknowledge_comes_back(side: Side, acked: int, cancel: bool) -> None:
    channel, queue = filled(side, *range(10))
    consuming = side.channel()
    consuming.basic_qos(prefetch_count=5)
    recorder = side.consume(consuming, queue)
    side.settle()
    assert len(recorder.bodies) == 5
    if cancel:
        consuming.basic_cancel(recorder.tag)
    for tag in recorder.tags[:acked]:
        consuming.basic_ack(tag)
    side.settle()
    consuming.close()
    assert side.drain(channel, queue) == [str(number).encode() for number in range(acked, 10)]


@behaviour(55)
def test_requeued_messages_return_to_their_places(side: Side) -> None:
    channel, queue = filled(side, *range(6))
    tags = take(channel, queue, 4)
    channel.basic_nack(tags[2])
    channel.basic_nack(tags[0])
    assert side.drain(channel, queue) == [b"0", b"2", b"4", b"5"]
