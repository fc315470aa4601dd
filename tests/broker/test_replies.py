"""Direct reply-to: replies to a channel without a queue of its own."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.sides import Recorder, Side

REPLIES = "amq.rabbitmq.reply-to"


def asked(side: Side) -> tuple[Any, str, Recorder, str]:
    """A channel with a queue and a consumer of replies, and the address that its request to this queue carried."""
    channel, queue = side.filled()
    recorder = side.consume(channel, REPLIES, auto_ack=True)
    side.publish(channel, queue, "request", reply_to=REPLIES)
    address = channel.basic_get(queue, True)[1].reply_to
    assert address.startswith(REPLIES + ".")
    return channel, queue, recorder, address


def test_replies_come_to_the_channel_that_asked(side: Side) -> None:
    channel, _, recorder, address = asked(side)
    others = side.consume(side.channel(), REPLIES, auto_ack=True)
    server = side.channel(side.connect())
    server.queue_declare(address, passive=True)
    side.publish(server, address, 1, 2, correlation_id="7", expiration="0")
    assert [(properties.correlation_id, body) for _, properties, body in recorder.deliveries] == [
        ("7", b"1"), ("7", b"2"),
    ]  # fmt: skip
    assert [(method.exchange, method.routing_key, method.redelivered) for method, _, _ in recorder.deliveries] == [
        ("", address, False)
    ] * 2
    assert recorder.tags == [2, 2]  # the next one: replies are not counted
    assert others.bodies == []
    assert channel.consumer_tags == [recorder.tag]


def test_a_generator_yields_replies(side: Side) -> None:
    channel, queue = side.filled()
    replies = channel.consume(REPLIES, auto_ack=True, inactivity_timeout=0.01)
    assert next(replies) == (None, None, None)
    side.publish(channel, queue, "request", reply_to=REPLIES)
    side.publish(channel, channel.basic_get(queue, True)[1].reply_to, "reply")
    assert next(body for method, _, body in replies if method is not None) == b"reply"
    channel.cancel()
    assert channel.consumer_tags == []


def test_who_has_left_gets_nothing_and_another_address(side: Side) -> None:
    channel, queue, recorder, address = asked(side)
    assert list(channel.basic_cancel(recorder.tag)) == []
    side.publish(channel, address, "lost")
    again = side.consume(channel, REPLIES, auto_ack=True)
    side.publish(channel, queue, "request", reply_to=REPLIES)
    other = channel.basic_get(queue, True)[1].reply_to
    assert other != address
    side.publish(channel, address, "lost too")
    side.publish(channel, other, "reply")
    assert (recorder.bodies, again.bodies) == ([], [b"reply"])
    channel.close()
    side.publish(side.channel(), other, "lost again")
    assert side.code(lambda ch: ch.queue_declare(other, passive=True)) == 404
    assert again.bodies == [b"reply"]


def test_a_mandatory_reply_arrives_and_is_returned(side: Side) -> None:
    _, _, recorder, address = asked(side)
    server = side.channel()
    returned = side.returned(server)
    side.publish(server, address, 1, mandatory=True)
    assert recorder.bodies == [b"1"]
    assert [(method.reply_code, body) for method, _, body in returned] == [(312, b"1")]
    server.confirm_delivery()
    with pytest.raises(side.exceptions.UnroutableError):
        server.basic_publish("", address, b"2", mandatory=True)
    server.basic_publish("", address, b"3")
    assert recorder.bodies == [b"1", b"2", b"3"]


def test_limits_and_transactions_hold_up_no_reply(side: Side) -> None:
    channel, queue, recorder, address = asked(side)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    held = side.consume(channel, queue)
    side.publish(channel, queue, "held")
    assert held.bodies == [b"held"]
    server = side.channel()
    server.tx_select()
    side.publish(server, address, 1)
    assert recorder.bodies == [b"1"]
    server.tx_rollback()
    channel.basic_ack(held.tags[0])
    assert recorder.bodies == [b"1"]


def test_copies_and_dead_letters_are_replies_through_the_default_exchange(side: Side) -> None:
    channel, queue, recorder, address = asked(side)
    side.publish(channel, queue, "copied", headers={"CC": [address, address]})
    side.publish(channel, queue, "elsewhere", exchange="amq.direct", headers={"CC": [address]})
    assert [(method.routing_key, body) for method, _, body in recorder.deliveries] == [(queue, b"copied")]
    dying = side.queue(channel, dead=address)
    side.publish(channel, dying, "dead")
    channel.basic_reject(channel.basic_get(dying)[0].delivery_tag, requeue=False)
    assert recorder.bodies == [b"copied", b"dead"]
    assert recorder.deliveries[1][1].headers["x-death"][0]["queue"] == dying
    assert side.drain(channel, queue) == [b"copied"]


# The call, and the reply code with which it closes its channel.
REFUSED: list[tuple[Callable[[Any, Side], object], int | None]] = [
    (lambda channel, side: channel.basic_consume(REPLIES, print), 406),
    (lambda channel, side: [channel.basic_consume(REPLIES, print, auto_ack=True) for _ in range(2)], 406),
    (lambda channel, side: channel.basic_consume(REPLIES, print, True, True, arguments={"x-priority": "x"}), None),
    (lambda channel, side: channel.basic_publish("", "q", b"", side.Properties(reply_to=REPLIES)), 406),
    (
        lambda channel, side: (
            channel.tx_select(),
            channel.basic_publish("", "q", b"", side.Properties(reply_to=REPLIES)),
        ),
        406,
    ),
    (lambda channel, side: channel.basic_publish("", "q", b"", side.Properties(reply_to=REPLIES + ".x")), None),
    (lambda channel, side: channel.queue_declare(REPLIES, exclusive=True, arguments={"x-expires": "x"}), None),
    (lambda channel, side: channel.queue_declare(REPLIES, passive=True), None),
    (lambda channel, side: (channel.queue_declare(REPLIES), channel.queue_purge("")), 404),
    *((lambda channel, side, end=end: channel.queue_declare(REPLIES + end), 404) for end in ("x", ".x")),
    *((lambda channel, side, end=end: channel.basic_consume(REPLIES + end, print, True), 404) for end in ("x", ".x")),
    (lambda channel, side: channel.basic_get(REPLIES), 404),
    (lambda channel, side: channel.queue_purge(REPLIES), 404),
    (lambda channel, side: channel.queue_delete(REPLIES), None),
    (lambda channel, side: channel.queue_bind(REPLIES, "amq.direct", "x"), 404),
    (lambda channel, side: channel.queue_unbind(REPLIES, "amq.direct", "x"), None),
]


@pytest.mark.parametrize(("call", "code"), REFUSED)
def test_what_is_refused(side: Side, call: Callable[..., object], code: int | None) -> None:
    assert side.code(lambda channel: call(channel, side)) == code


def test_an_address_is_no_queue_to_its_holder_either(side: Side) -> None:
    _, _, _, address = asked(side)
    assert side.channel().queue_declare(address).method.consumer_count == 1
    assert side.code(lambda channel: channel.basic_get(address)) == 404
    assert side.code(lambda channel: channel.basic_consume(address, print, True)) == 404
    assert side.code(lambda channel: channel.queue_bind(address, "amq.direct", "x")) == 404
