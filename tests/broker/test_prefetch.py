"""How much each consumer may hold."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.sides import Recorder, Side

PREFETCH = 5


def prefetching(side: Side, messages: int = 15, prefetch: int = PREFETCH, **options: Any) -> tuple[Any, str, Recorder]:
    channel, queue = side.filled(*range(messages))
    channel.basic_qos(prefetch_count=prefetch)
    recorder = side.consume(channel, queue, **options)
    side.settle()
    return channel, queue, recorder


SETTLING: dict[str, Callable[[Any, list[int]], object]] = {
    "single ack": lambda channel, tags: [channel.basic_ack(tag) for tag in tags],
    "multiple ack": lambda channel, tags: channel.basic_ack(tags[-1], multiple=True),
    "single nack": lambda channel, tags: [channel.basic_nack(tag, requeue=False) for tag in tags],
    "multiple nack": lambda channel, tags: channel.basic_nack(tags[-1], multiple=True, requeue=False),
    "multiple nack, requeued": lambda channel, tags: channel.basic_nack(tags[-1], multiple=True),
    "recover": lambda channel, tags: channel.basic_recover(requeue=True),
}


@pytest.mark.parametrize("how", SETTLING)
def test_settling_brings_as_many_more(side: Side, how: str) -> None:
    channel, _, recorder = prefetching(side)
    assert recorder.bodies == [b"0", b"1", b"2", b"3", b"4"]
    SETTLING[how](channel, recorder.tags)
    assert len(recorder.bodies) == 2 * PREFETCH
    again = how in ("multiple nack, requeued", "recover")
    assert recorder.bodies[PREFETCH:] == ([b"0", b"1", b"2", b"3", b"4"] if again else [b"5", b"6", b"7", b"8", b"9"])


def test_a_get_gives_no_credit(side: Side) -> None:
    channel, queue, recorder = prefetching(side)
    method, _, body = channel.basic_get(queue)
    assert body == b"5"
    channel.basic_ack(method.delivery_tag)
    assert len(recorder.bodies) == PREFETCH


def test_publishing_tops_up_to_the_prefetch(side: Side) -> None:
    channel, queue, recorder = prefetching(side, messages=2)
    assert len(recorder.bodies) == 2
    side.publish(channel, queue, *range(10))
    assert len(recorder.bodies) == PREFETCH


@pytest.mark.parametrize("options", [{"auto_ack": True}, {"prefetch": 0}], ids=str)
def test_without_acknowledgements_or_with_zero_there_is_no_prefetch(side: Side, options: dict[str, Any]) -> None:
    _, _, recorder = prefetching(side, **options)
    assert len(recorder.bodies) == 15


def test_a_prefetch_is_for_consumers_that_start_later(side: Side, channel: Any, queue: str) -> None:
    before = side.consume(channel, queue)
    channel.basic_qos(prefetch_count=1)
    after = side.consume(channel, queue)
    side.publish(channel, queue, *range(10))
    assert (len(before.bodies), len(after.bodies)) == (9, 1)


def test_both_limits_hold(side: Side, channel: Any, queue: str) -> None:
    channel.basic_qos(prefetch_count=2)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    first, second = side.consume(channel, queue), side.consume(channel, queue)
    side.publish(channel, queue, *range(10))
    assert sorted((len(first.bodies), len(second.bodies))) == [1, 2]
