"""basic_get, counts, purge, and what goes with what is deleted."""

from typing import Any

import pytest

from broker.sides import Side, ack


def test_get(side: Side, channel: Any, queue: str) -> None:
    assert channel.basic_get(queue) == (None, None, None)
    side.publish(channel, queue, 1, 2)
    method, _, body = channel.basic_get(queue, True)
    assert (body, method.message_count, method.delivery_tag, method.redelivered) == (b"1", 1, 1, False)
    assert (method.exchange, method.routing_key) == ("", queue)
    assert channel.basic_get(queue, True)[2] == b"2"
    assert channel.basic_get(queue, True) == (None, None, None)
    channel.close()
    with pytest.raises(side.exceptions.ChannelWrongStateError):
        channel.queue_purge(queue)


def test_counts_and_purge(side: Side, channel: Any, queue: str) -> None:
    for count in range(1, 3):
        side.publish(channel, queue, count)
        assert side.count(channel, queue) == count
    assert channel.queue_purge(queue).method.message_count == 2
    assert side.count(channel, queue) == 0
    assert side.code(lambda ch: ch.queue_purge(side.unique())) == 404


def test_purge_leaves_the_unacknowledged(side: Side, channel: Any, queue: str) -> None:
    side.publish(channel, queue, 1, 2)
    channel.basic_get(queue)
    assert channel.queue_purge(queue).method.message_count == 1
    channel.basic_recover(requeue=True)
    side.settle()
    method, _, body = channel.basic_get(queue)
    assert (body, method.redelivered) == (b"1", True)
    channel.basic_recover(requeue=True)
    side.settle()
    assert channel.queue_purge(queue).method.message_count == 1
    assert side.drain(channel, queue) == []


def test_deleting_an_exchange_takes_its_bindings(side: Side, channel: Any) -> None:
    queue, exchange = side.queue(channel), side.exchange(channel)
    channel.queue_bind(queue, exchange, "key")
    channel.exchange_delete(exchange)
    side.exchange(channel, name=exchange)
    side.publish(channel, "key", 1, exchange=exchange)
    assert side.drain(channel, queue) == []


def test_an_exchange_in_use(side: Side, channel: Any) -> None:
    queue, exchange = side.queue(channel), side.exchange(channel)
    channel.queue_bind(queue, exchange, "key")
    assert side.code(lambda ch: ch.exchange_delete(exchange, if_unused=True)) == 406
    channel.queue_unbind(queue, exchange, "key")
    channel.exchange_delete(exchange, if_unused=True)
    assert not side.exists(exchange, "exchange")


def test_automatic_exchanges_go_with_their_last_binding(side: Side, channel: Any) -> None:
    first, second = side.exchange(channel, auto_delete=True), side.exchange(channel, auto_delete=True)
    queue, other = side.queue(channel), side.queue(channel)
    channel.exchange_bind(second, first, "key")
    channel.queue_bind(queue, second, "key")
    channel.queue_bind(other, second, "key")
    channel.queue_delete(queue)
    assert side.exists(second, "exchange")
    channel.queue_unbind(other, second, "key")
    assert not side.exists(second, "exchange")
    assert not side.exists(first, "exchange")


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_unbinding_what_is_not_bound(side: Side, channel: Any, kind: str) -> None:
    queue, exchange = side.queue(channel), side.exchange(channel, kind)
    channel.queue_unbind(queue, exchange, "key")
    channel.queue_unbind(queue, side.unique("x"), "key")
    channel.queue_unbind(side.unique(), exchange, "key")
    channel.exchange_unbind(exchange, side.unique("x"), "key")
    assert channel.is_open


def test_deleting_twice(side: Side, channel: Any) -> None:
    queue, exchange = side.queue(channel), side.exchange(channel)
    side.publish(channel, queue, 1)
    assert channel.queue_delete(queue).method.message_count == 1
    assert channel.queue_delete(queue).method.message_count == 0
    channel.exchange_delete(exchange)
    channel.exchange_delete(exchange)


def test_deleting_a_queue_on_conditions(side: Side, channel: Any, queue: str) -> None:
    recorder = side.consume(channel, queue)
    assert side.code(lambda ch: ch.queue_delete(queue, if_unused=True)) == 406
    channel.basic_cancel(recorder.tag)
    side.publish(channel, queue, 1)
    assert side.code(lambda ch: ch.queue_delete(queue, if_empty=True)) == 406
    channel.queue_purge(queue)
    channel.queue_delete(queue, if_unused=True, if_empty=True)
    assert side.code(lambda ch: ch.basic_consume(queue, ack)) == 404


def test_acknowledging_what_a_deleted_queue_delivered(side: Side, channel: Any, queue: str) -> None:
    side.publish(channel, queue, 1, 2)
    first, second = (channel.basic_get(queue)[0].delivery_tag for _ in range(2))
    channel.queue_delete(queue)
    channel.basic_ack(first)
    channel.basic_nack(second)
    side.fence(channel)
    assert channel.is_open
