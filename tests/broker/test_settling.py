"""ack, nack, reject, recover: which tags they take, and where the messages go."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.sides import Side

KINDS: dict[str, dict[str, Any]] = {"classic": {}, "quorum": {"durable": True, "arguments": {"x-queue-type": "quorum"}}}


@pytest.mark.parametrize("kind", KINDS)
def test_requeued_is_redelivered_to_another(side: Side, kind: str) -> None:
    channel, queue = side.filled("one", **KINDS[kind])
    side.settle()
    (tag,) = side.take(channel, queue, 1)
    other = side.channel()
    recorder = side.consume(other, queue)
    channel.basic_reject(tag, requeue=True)
    side.fence(channel)
    side.eventually(lambda: recorder.bodies, "redelivery")
    assert (recorder.bodies, recorder.redelivered) == ([b"one"], [True])


@pytest.mark.parametrize("method", ["ack", "nack", "reject"])
@pytest.mark.parametrize("again", ["ack", "nack", "reject"])
def test_a_settled_tag_is_unknown(side: Side, method: str, again: str) -> None:
    channel, queue = side.filled("one")
    (tag,) = side.take(channel, queue, 1)
    getattr(channel, f"basic_{method}")(tag)
    assert side.code(lambda ch: getattr(ch, f"basic_{again}")(tag), channel) == 406
    assert channel.is_closed


@pytest.mark.parametrize("what", ["channel", "connection"])
def test_thousands_in_flight_all_come_back_once(side: Side, channel: Any, queue: str, what: str) -> None:
    for number in range(2000):
        channel.basic_publish("", queue, str(number).encode())
    side.settle()
    mine = side.connect()
    consuming = side.channel(mine)
    side.consume(consuming, queue)
    (consuming if what == "channel" else mine).close()
    assert side.drain(channel, queue) == side.bodies(*range(2000))


@pytest.mark.parametrize("acked", [0, 3])
@pytest.mark.parametrize("cancel", [False, True])
def test_what_a_partial_consumer_did_not_acknowledge_comes_back(side: Side, acked: int, cancel: bool) -> None:
    channel, queue = side.filled(*range(10))
    consuming = side.channel()
    consuming.basic_qos(prefetch_count=5)
    recorder = side.consume(consuming, queue)
    assert len(recorder.bodies) == 5
    if cancel:
        consuming.basic_cancel(recorder.tag)
    for tag in recorder.tags[:acked]:
        consuming.basic_ack(tag)
    side.settle()
    if cancel:
        assert side.count(channel, queue) == 5
    consuming.close()
    assert side.drain(channel, queue) == side.bodies(*range(acked, 10))


SETTLED: list[tuple[Callable[[Any, list[int]], object], bytes]] = [
    (lambda channel, tags: None, b"0123"),
    (lambda channel, tags: channel.basic_ack(tags[1]), b"023"),
    (lambda channel, tags: (channel.basic_nack(tags[2]), channel.basic_nack(tags[0])), b"0123"),  # in their places
    (lambda channel, tags: (channel.basic_ack(tags[1]), channel.basic_nack(tags[2], True, requeue=False)), b"3"),
    (lambda channel, tags: (channel.basic_ack(tags[1]), channel.basic_ack(tags[1], True)), b"023"),  # 406
    (lambda channel, tags: [channel.basic_reject(tag, requeue=False) for tag in tags], b""),
    (lambda channel, tags: channel.basic_nack(tags[3], True, requeue=False), b""),
    (lambda channel, tags: (channel.basic_ack(0, True), channel.basic_ack(0, True)), b""),  # all of nothing: no error
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("settle", "left"), SETTLED)
def test_what_was_not_settled_comes_back_at_the_end(side: Side, kind: str, settle: Any, left: bytes) -> None:
    channel, queue = side.filled(*range(4), **KINDS[kind])
    tags = side.take(channel, queue, 4)
    refused = side.code(lambda ch: settle(ch, tags), channel)
    assert refused == (406 if channel.is_closed else None)
    if not refused:
        channel.close()
    got = side.drain(side.channel(), queue)
    assert b"".join(sorted(got) if kind == "quorum" else got) == left  # the order of a quorum queue is not compared
