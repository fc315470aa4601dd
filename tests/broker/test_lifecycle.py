"""Queues that end: leases, exclusive and automatic ones; what a redeclaration may say."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.threads import before, in_time

from broker.sides import Side, ack, server_versions


def test_unused_queues_expire(side: Side, channel: Any) -> None:
    queue = side.queue(channel, arguments={"x-expires": 50})
    side.wait(0.2)
    side.eventually(lambda: not side.exists(queue), "its end", pause=0.2)  # because a look is a use


def test_use_keeps_a_queue(side: Side) -> None:
    def attempt(lease: float) -> tuple[list[str], float]:
        channel, used = side.channel(), time.monotonic()
        arguments = {"x-expires": int(1000 * lease)}
        queues = [side.queue(channel, arguments=arguments) for _ in range(3)]
        recorder = side.consume(channel, queues[2])
        for _ in range(8):
            with before(lease, since=used):
                side.wait(lease / 4)
                used = time.monotonic()
                channel.queue_declare(queues[0], arguments=arguments)
                channel.queue_declare(queues[1], passive=True)
        channel.queue_declare(queues[2], passive=True)
        channel.basic_cancel(recorder.tag)
        return queues, lease

    queues, lease = in_time(attempt, 0.3, 2, 20)
    side.wait(1.5 * lease)
    for queue in queues:
        side.eventually(lambda queue=queue: not side.exists(queue), "its end", pause=1.5 * lease)


EIGHT: dict[str, Callable[[Any, str], object]] = {
    "declare": lambda channel, queue: channel.queue_declare(queue, exclusive=True),
    "passive": lambda channel, queue: channel.queue_declare(queue, passive=True),
    "consume": lambda channel, queue: channel.basic_consume(queue, ack),
    "get": lambda channel, queue: channel.basic_get(queue),
    "purge": lambda channel, queue: channel.queue_purge(queue),
    "delete": lambda channel, queue: channel.queue_delete(queue),
    "bind": lambda channel, queue: channel.queue_bind(queue, "amq.direct", "key"),
    "unbind": lambda channel, queue: channel.queue_unbind(queue, "amq.direct", "key"),
}


@pytest.mark.parametrize("operation", EIGHT)
def test_another_connections_exclusive_queue(side: Side, operation: str) -> None:
    mine, other = side.connect(), side.connect()
    queue = side.unique()
    channel = side.channel(mine)
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, "amq.direct", "key")
    assert side.code(lambda ch: EIGHT[operation](ch, queue), side.channel(other)) == 405
    EIGHT[operation](channel, queue)


def test_exclusive_queues_end_with_their_connection(side: Side) -> None:
    mine = side.connect()
    queue = side.unique()
    channel = side.channel(mine)
    channel.queue_declare(queue, exclusive=True)
    recorder = side.consume(channel, queue)
    channel.basic_cancel(recorder.tag)
    assert channel.queue_declare(queue, passive=True).method.queue == queue  # it is not auto-delete
    channel.close()
    other = side.connect()
    assert side.code(lambda ch: ch.queue_declare(queue, passive=True), side.channel(other)) == 405
    mine.close()
    side.eventually(
        lambda: side.code(lambda ch: ch.queue_declare(queue, passive=True), side.channel(other)) == 404, "its end"
    )


@pytest.mark.parametrize(
    "change",
    [{"durable": True}, {"auto_delete": True}, {"exclusive": True}, {"arguments": {"x-max-length": 5}}],
    ids=str,
)
def test_redeclaring_a_queue_otherwise(side: Side, channel: Any, queue: str, change: dict[str, Any]) -> None:
    channel.queue_declare(queue)
    code = side.code(lambda ch: ch.queue_declare(queue, **change), channel)
    assert code == (405 if "exclusive" in change else 406)


def test_redeclaring_ones_own_exclusive_queue(side: Side, channel: Any) -> None:
    """Exclusive queues are never durable."""
    queue = side.queue(channel, exclusive=True, durable=True)
    channel.queue_declare(queue, exclusive=True)
    channel.queue_declare(queue, exclusive=True, durable=True)
    for options in ({}, {"durable": True}, {"arguments": {"x-max-length": 5}}):
        assert side.code(lambda ch, options=options: ch.queue_declare(queue, **options)) == 405  # type: ignore[misc]
    assert side.code(lambda ch: ch.queue_declare(queue, exclusive=True, auto_delete=True)) == 406


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_automatic_queues_end_with_their_last_consumer(side: Side, channel: Any, how: str) -> None:
    other = side.channel()
    queue = side.queue(channel, auto_delete=True)
    side.publish(channel, queue, 1)
    assert side.count(channel, queue) == 1  # it never had a consumer
    first, second = side.consume(channel, queue), side.consume(channel, queue)
    channel.basic_cancel(first.tag)
    assert side.consumers(other, queue) == 1
    if how == "cancel":
        channel.basic_cancel(second.tag)
    else:
        channel.close()
    assert not side.exists(queue)


def test_names(side: Side, channel: Any) -> None:
    with pytest.raises(side.exceptions.ShortStringTooLong):
        channel.queue_declare("q" * 256)
    if side.name == "manytail":  # a server removes line ends too, but pika waits for an answer that contains them
        assert channel.queue_declare("line\r\nend").method.queue == "lineend"
    generated = channel.queue_declare("", exclusive=True).method.queue
    assert generated.startswith("amq.gen-")
    assert channel.queue_purge("").method.message_count == 0  # the queue declared last
    assert side.code(lambda ch: ch.queue_declare("", passive=True), channel) == 404


ASKED: list[tuple[dict[str, Any], int | None]] = [
    ({"arguments": {"x-delivery-limit": 2}}, 406),
    ({"arguments": {"x-queue-type": "nonsense"}}, 406),
    ({"arguments": {"x-single-active-consumer": "yes"}}, 406),
    ({"arguments": {"x-max-length": True}}, 406),
    *(({"arguments": {"x-max-priority": priorities}}, None) for priorities in (0, 1, 255)),
    ({"durable": True, "arguments": {"x-queue-type": "quorum", "x-delivery-limit": -1}}, None),
    ({"durable": True, "arguments": {"x-queue-type": "quorum", "x-overflow": "reject-publish-dlx"}}, None),
]


@pytest.mark.parametrize(("asked", "code"), ASKED, ids=str)
@server_versions(since="3.10")
def test_what_a_declaration_may_ask_for(side: Side, channel: Any, asked: dict[str, Any], code: int | None) -> None:
    assert side.code(lambda ch: side.queue(ch, **asked), channel) == code


def test_the_empty_name_of_a_queue_that_is_gone(side: Side, channel: Any) -> None:
    channel.queue_delete(side.queue(channel))
    assert channel.queue_delete("").method.message_count == 0
    channel.queue_unbind("", "amq.direct", "key")
    assert side.code(lambda ch: ch.queue_purge(""), channel) == 404
