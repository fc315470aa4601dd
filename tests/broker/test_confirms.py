"""Confirms: what basic_publish raises, and that everything else is confirmed."""

import pickle
from typing import Any

import pytest

from broker.sides import Side
from manytail.broker import exceptions


def confirming(side: Side) -> Any:
    channel = side.channel()
    channel.confirm_delivery()
    return channel


@pytest.mark.parametrize("delivery_mode", [1, 2])
@pytest.mark.parametrize("mandatory", [False, True])
def test_routed_messages_are_confirmed(side: Side, delivery_mode: int, mandatory: bool) -> None:
    channel = confirming(side)
    queue = side.queue(channel)
    for number in range(20):
        channel.basic_publish("", queue, str(number).encode(), side.Properties(delivery_mode=delivery_mode), mandatory)
    assert side.count(channel, queue) == 20


def test_unroutable_messages(side: Side) -> None:
    channel = confirming(side)
    nowhere = side.unique()
    returned = side.returned(channel)
    channel.basic_publish("", nowhere, b"dropped")
    with pytest.raises(side.exceptions.UnroutableError) as raised:
        channel.basic_publish("", nowhere, b"returned", side.Properties(message_id="7"), mandatory=True)
    (message,) = raised.value.messages
    assert (message.body, message.properties.message_id) == (b"returned", "7")
    assert (message.method.reply_code, message.method.routing_key) == (312, nowhere)
    side.settle()
    assert [body for *_, body in returned] == [b"returned"]
    assert channel.is_open


def test_confirmed_whatever_becomes_of_them(side: Side) -> None:
    channel = confirming(side)
    for ttl in (0, 1):
        queue = side.queue(channel, arguments={"x-message-ttl": ttl})
        for _ in range(5):
            channel.basic_publish("", queue, b"short-lived", mandatory=True)
    queue = side.queue(channel)
    channel.basic_publish("", queue, b"rejected")
    side.settle()
    channel.basic_reject(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    channel.basic_publish("", queue, b"recovered")
    side.settle()
    channel.basic_get(queue)
    channel.basic_recover(requeue=True)
    channel.basic_publish("", queue, b"purged")
    channel.queue_purge(queue)
    channel.basic_publish("", queue, b"deleted")
    channel.queue_delete(queue)
    channel.basic_publish("", queue, b"to nothing")


def test_a_queue_that_refuses_nacks(side: Side) -> None:
    channel = confirming(side)
    queue = side.queue(channel, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    other, exchange = side.queue(channel), side.exchange(channel, "fanout")
    for name in (queue, other):
        channel.queue_bind(name, exchange, "")
    channel.basic_publish(exchange, "", b"1")
    with pytest.raises(side.exceptions.NackError):
        channel.basic_publish(exchange, "", b"2")
    assert (side.drain(channel, queue), side.drain(channel, other)) == ([b"1"], [b"1", b"2"])


def test_what_a_publish_raises_survives_pickling() -> None:
    for error in (exceptions.UnroutableError(["message"]), exceptions.NackError([])):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.messages) == (type(error), str(error), error.messages)
