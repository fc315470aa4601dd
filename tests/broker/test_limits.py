"""Length limits and priorities."""

from typing import Any

import pytest

from broker.sides import Side


@pytest.mark.parametrize("letters", [False, True])
@pytest.mark.parametrize("length", range(4))
def test_the_oldest_make_room(side: Side, channel: Any, length: int, letters: bool) -> None:
    dead = side.queue(channel)
    queue = side.queue(channel, dead=dead if letters else None, x_max_length=length)
    side.publish(channel, queue, *range(5))
    assert side.drain(channel, queue) == side.bodies(*range(5 - length, 5))
    if letters:
        _, properties, body = channel.basic_get(dead, True)
        assert (body, properties.headers["x-death"][0]["reason"]) == (b"0", "maxlen")
        assert side.drain(channel, dead) == side.bodies(*range(1, 5 - length))
    else:
        assert side.drain(channel, dead) == []


@pytest.mark.parametrize("letters", [False, True])
@pytest.mark.parametrize("length", [1, 3])
def test_requeueing_into_a_full_queue_drops_what_comes_back(
    side: Side, channel: Any, length: int, letters: bool
) -> None:
    dead = side.queue(channel)
    queue = side.queue(channel, dead=dead if letters else None, x_max_length=length)
    side.publish(channel, queue, *range(length))
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(length)]
    side.publish(channel, queue, *range(10, 10 + length))
    channel.basic_nack(tags[-1], multiple=True)
    assert side.drain(channel, queue) == side.bodies(*range(10, 10 + length))
    assert side.drain(channel, dead) == (side.bodies(*range(length)) if letters else [])


def test_a_length_of_zero_with_somebody_who_takes(side: Side) -> None:
    channel, queue = side.filled(x_max_length=0)
    recorder = side.consume(channel, queue)
    side.publish(channel, queue, 1, 2)
    assert recorder.bodies == [b"1", b"2"]


def test_reject_publish_looks_at_the_limit_before_the_consumers(side: Side) -> None:
    channel, queue = side.filled(x_max_length=0, x_overflow="reject-publish")
    recorder = side.consume(channel, queue)
    side.publish(channel, queue, 1)
    assert recorder.bodies == []


def test_reject_publish_drops_nothing_that_comes_back(side: Side) -> None:
    channel, queue = side.filled(x_max_length=1, x_overflow="reject-publish")
    side.publish(channel, queue, 1)
    tag = channel.basic_get(queue)[0].delivery_tag
    side.publish(channel, queue, 2, 3)
    channel.basic_nack(tag)
    assert side.drain(channel, queue) == [b"1", b"2"]


def test_the_highest_priority_first(side: Side, channel: Any) -> None:
    queue = side.queue(channel, arguments={"x-max-priority": 3})
    for body, priority in (("1a", 1), ("3a", 3), ("2a", 2), ("none", None), ("3b", 3), ("9", 9), ("1b", 1)):
        side.publish(channel, queue, body, priority=priority)
    assert side.drain(channel, queue) == [b"3a", b"3b", b"9", b"2a", b"1a", b"1b", b"none"]


def test_requeued_inside_its_priority(side: Side, channel: Any) -> None:
    queue = side.queue(channel, arguments={"x-max-priority": 2})
    for body, priority in (("2a", 2), ("2b", 2), ("1a", 1)):
        side.publish(channel, queue, body, priority=priority)
    tag = channel.basic_get(queue)[0].delivery_tag
    channel.basic_nack(tag)
    assert side.drain(channel, queue) == [b"2a", b"2b", b"1a"]


def test_the_highest_priority_is_dropped_first(side: Side, channel: Any) -> None:
    queue = side.queue(channel, arguments={"x-max-priority": 2, "x-max-length": 2})
    for body, priority in (("1a", 1), ("2a", 2), ("1b", 1)):
        side.publish(channel, queue, body, priority=priority)
    assert side.drain(channel, queue) == [b"1a", b"1b"]
