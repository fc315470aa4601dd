"""Exchanges bound to exchanges, internal ones, alternates, carbon copies, equivalence."""

from typing import Any

import pytest

from broker.sides import Side


def bodies(side: Side, channel: Any, *queues: str) -> list[list[bytes]]:
    return [side.drain(channel, queue) for queue in queues]


def test_two_ways_and_loops_bring_one_copy(side: Side, channel: Any) -> None:
    first, second, third = (side.exchange(channel, "fanout") for _ in range(3))
    queues = [side.queue(channel) for _ in range(3)]
    for exchange, queue in zip((first, second, third), queues, strict=True):
        channel.queue_bind(queue, exchange, "")
    for source, destination in ((first, second), (second, third), (third, first), (first, third)):
        channel.exchange_bind(destination, source)
    for number, exchange in enumerate((first, second, third)):
        side.publish(channel, "", number, exchange=exchange)
    assert bodies(side, channel, *queues) == [[b"0", b"1", b"2"]] * 3


def test_the_default_exchange_as_an_alternate_leads_nowhere(side: Side, channel: Any) -> None:
    """It has no bindings: what is published to it goes by the names of queues."""
    exchange = side.exchange(channel, "fanout", arguments={"alternate-exchange": ""})
    queue = side.queue(channel)
    returned = side.returned(channel)
    side.publish(channel, queue, 1, exchange=exchange, mandatory=True)
    side.publish(channel, queue, 2, exchange=exchange, headers={"CC": [queue]})
    assert (side.drain(channel, queue), [body for _, _, body in returned]) == ([], [b"1"])


def test_topic_to_direct_to_fanout(side: Side, channel: Any) -> None:
    topic, direct, fanout = (side.exchange(channel, kind) for kind in ("topic", "direct", "fanout"))
    queue = side.queue(channel)
    for _ in range(2):
        channel.exchange_bind(direct, topic, "#.warn")
        channel.exchange_bind(fanout, direct, "disk.warn")
        channel.queue_bind(queue, fanout, "")
    for key in ("disk.warn", "disk.info", "net.warn"):
        side.publish(channel, key, key, exchange=topic)
    assert side.drain(channel, queue) == [b"disk.warn"]
    for _ in range(2):
        channel.exchange_unbind(fanout, direct, "disk.warn")
    side.publish(channel, "disk.warn", 2, exchange=topic)
    assert side.drain(channel, queue) == []


def test_automatic_exchanges_end_one_another_in_a_loop(side: Side, channel: Any) -> None:
    first, second = (side.exchange(channel, "fanout", auto_delete=True) for _ in range(2))
    queue = side.queue(channel)
    channel.exchange_bind(second, first)
    channel.exchange_bind(first, second)
    channel.queue_bind(queue, second, "")
    channel.queue_unbind(queue, second, "")
    channel.exchange_unbind(first, second)
    assert not side.exists(second, "exchange")
    assert not side.exists(first, "exchange")


def test_internal_exchanges_take_messages_only_through_bindings(side: Side, channel: Any) -> None:
    outer, inner = side.exchange(channel, "fanout"), side.exchange(channel, "fanout", internal=True)
    queue = side.queue(channel)
    channel.exchange_bind(inner, outer)
    channel.queue_bind(queue, inner, "")
    side.publish(channel, "", 1, exchange=outer)
    assert side.drain(channel, queue) == [b"1"]
    assert side.code(lambda ch: ch.basic_publish(inner, "", b"2"), channel) == 403


def test_alternates(side: Side, channel: Any) -> None:
    last = side.exchange(channel, "fanout")
    middle = side.exchange(channel, "direct", arguments={"alternate-exchange": last})
    first = side.exchange(channel, "direct", arguments={"alternate-exchange": middle})
    lost = side.exchange(channel, "direct", arguments={"alternate-exchange": side.unique("x")})
    queues = [side.queue(channel) for _ in range(3)]
    for queue, exchange in zip(queues, (first, middle, last), strict=True):
        channel.queue_bind(queue, exchange, exchange)
    returned = side.returned(channel)
    for number, key in enumerate((first, middle, "none")):
        side.publish(channel, key, number, exchange=first, mandatory=True)
    side.publish(channel, "none", "lost", exchange=lost, mandatory=True)
    assert bodies(side, channel, *queues) == [[b"0"], [b"1"], [b"2"]]
    assert [body for *_, body in returned] == [b"lost"]


def test_a_cycle_of_alternates_ends(side: Side, channel: Any) -> None:
    first, second = side.unique("x"), side.unique("x")
    side.exchange(channel, "direct", first, arguments={"alternate-exchange": second})
    side.exchange(channel, "direct", second, arguments={"alternate-exchange": first})
    queue = side.queue(channel)
    channel.queue_bind(queue, second, "second")
    returned = side.returned(channel)
    side.publish(channel, "second", 1, exchange=first, mandatory=True)
    side.publish(channel, "nowhere", 2, exchange=first, mandatory=True)
    assert side.drain(channel, queue) == [b"1"]
    assert [body for *_, body in returned] == [b"2"]


def test_a_binding_that_leads_nowhere_is_one(side: Side, channel: Any) -> None:
    alternate, empty = side.exchange(channel, "fanout"), side.exchange(channel, "direct")
    exchange = side.exchange(channel, "direct", arguments={"alternate-exchange": alternate})
    queue = side.queue(channel)
    channel.queue_bind(queue, alternate, "")
    channel.exchange_bind(empty, exchange, "key")
    side.publish(channel, "key", 1, exchange=exchange)
    side.publish(channel, "other", 2, exchange=exchange)
    assert side.drain(channel, queue) == [b"2"]


def test_carbon_copies(side: Side, channel: Any) -> None:
    queues = [side.queue(channel) for _ in range(3)]
    headers = {"CC": [queues[1], queues[0], side.unique()], "BCC": [queues[2]]}
    side.publish(channel, queues[0], 1, headers=headers)
    for queue in queues:
        _, properties, body = channel.basic_get(queue, True)
        assert body == b"1"
        assert "BCC" not in properties.headers
        assert properties.headers["CC"] == headers["CC"]
        assert channel.basic_get(queue, True)[0] is None


@pytest.mark.parametrize(
    "change",
    [{"exchange_type": "fanout"}, {"durable": True}, {"auto_delete": True}, {"arguments": {"alternate-exchange": "x"}}],
    ids=str,
)
def test_redeclaring_an_exchange_otherwise(side: Side, channel: Any, change: dict[str, Any]) -> None:
    exchange = side.exchange(channel)
    channel.exchange_declare(exchange, "direct")
    assert (
        side.code(
            lambda ch: ch.exchange_declare(**({"exchange": exchange, "exchange_type": "direct"} | change)), channel
        )
        == 406
    )
