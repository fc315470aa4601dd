"""Times to live, of queues and of messages."""

from typing import Any

import pytest
from support.threads import before, in_time

from broker.sides import Side

LONG = 3_600_000


def test_ttls_that_are_fine(side: Side) -> None:
    channel, queue = side.filled(x_message_ttl=10)
    channel.queue_declare(queue, arguments={"x-message-ttl": 10})
    side.queue(channel, arguments={"x-message-ttl": 0})
    assert side.code(lambda ch: ch.queue_declare(queue, arguments={"x-message-ttl": 11})) == 406
    assert side.code(lambda ch: ch.queue_declare(queue)) == 406


def test_ten_years_are_fine(side: Side, channel: Any) -> None:
    years = 315_360_000_000
    queue = side.queue(channel, x_message_ttl=years, x_expires=years)
    for text in (str(years), f"+{years}", "00700000", "-0", "+0"):
        side.publish(channel, queue, text, expiration=text)
    assert side.drain(channel, queue) == [str(years).encode(), f"+{years}".encode(), b"00700000"]


def test_what_is_expired_is_not_got(side: Side) -> None:
    channel, queue = side.filled(x_message_ttl=LONG)
    side.publish(channel, queue, 1, expiration="20")
    side.publish(channel, queue, 2)
    side.publish(channel, queue, 3, expiration="1000000")
    side.eventually(lambda: side.count(channel, queue) == 2, "the first one's end")
    assert side.drain(channel, queue) == [b"2", b"3"]


def test_in_a_transaction_the_clock_starts_at_the_commit(side: Side) -> None:
    def attempt(ttl: float) -> None:
        channel, queue = side.filled(x_message_ttl=int(1000 * ttl))
        channel.tx_select()
        side.publish(channel, queue, 1)
        side.wait(1.5 * ttl)
        with before(ttl):
            channel.tx_commit()
            assert side.drain(side.channel(), queue) == [b"1"]

    in_time(attempt, 0.2, 2, 20)


def test_a_requeue_keeps_the_clock(side: Side) -> None:
    def attempt(ttl: float) -> None:
        channel, queue = side.filled(x_message_ttl=int(1000 * ttl))
        with before(ttl):
            side.publish(channel, queue, 1)
            method, _, _ = channel.basic_get(queue)
            assert method is not None
        side.wait(1.5 * ttl)
        channel.basic_nack(method.delivery_tag)
        assert side.drain(channel, queue) == []

    in_time(attempt, 0.1, 2, 20)


def test_a_ttl_of_zero_is_for_consumers_that_are_there(side: Side) -> None:
    channel, queue = side.filled("nobody there", x_message_ttl=0)
    assert side.count(channel, queue) == 0
    recorder = side.consume(channel, queue)
    side.publish(channel, queue, "somebody there")
    assert recorder.bodies == [b"somebody there"]
    channel.basic_nack(recorder.tags[0])
    assert recorder.bodies == [b"somebody there"]
    assert side.count(channel, queue) == 0


def test_an_expired_message_behind_a_live_one(side: Side) -> None:
    channel, queue = side.filled("live", x_message_ttl=LONG)
    side.publish(channel, queue, "short", expiration="10")
    side.wait(0.2)
    assert side.count(channel, queue) == 2  # it stays, and is counted
    recorder = side.consume(channel, queue)
    assert recorder.bodies == [b"live"]
    assert side.count(channel, queue) == 0


def test_what_comes_to_the_head_expires_then(side: Side, channel: Any) -> None:
    """By the timer too, without another event of the queue."""
    dead = side.queue(channel)
    queue = side.queue(channel, dead=dead)
    side.publish(channel, queue, "live")
    side.publish(channel, queue, "expired", expiration="0")
    side.publish(channel, queue, "short", expiration="200")
    method, _, _ = channel.basic_get(queue)
    assert method.message_count <= 1
    side.eventually(lambda: side.count(channel, dead) == 2, "two dead letters")
    assert side.drain(channel, dead) == [b"expired", b"short"]


@pytest.mark.parametrize(("queue_ttl", "message_ttl"), [(20, LONG), (LONG, 20)])
def test_the_shorter_one_holds(side: Side, queue_ttl: int, message_ttl: int) -> None:
    channel, queue = side.filled(x_message_ttl=queue_ttl)
    side.publish(channel, queue, 1, expiration=str(message_ttl))
    side.eventually(lambda: side.count(channel, queue) == 0, "its end")
