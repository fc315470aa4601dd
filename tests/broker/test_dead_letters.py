"""Dead letters: reasons, routes, x-death, cycles."""

import itertools
from typing import Any

import pytest
from support.threads import before, in_time

from broker.sides import Side, server_versions


def letters(side: Side, **arguments: Any) -> tuple[Any, str, str, str]:
    """A channel, a queue whose dead letters go to a fanout exchange, the queue bound to that, and the exchange."""
    channel = side.channel()
    exchange = side.exchange(channel, "fanout")
    dead = side.queue(channel)
    channel.queue_bind(dead, exchange, "")
    queue = side.queue(channel, x_dead_letter_exchange=exchange, **arguments)
    return channel, queue, dead, exchange


def kill(side: Side, channel: Any, queue: str) -> None:
    side.settle()
    method, _, _ = channel.basic_get(queue)
    channel.basic_reject(method.delivery_tag, requeue=False)
    side.settle()


def deaths(properties: Any) -> list[dict[str, Any]]:
    """x-death without its times."""
    return [{name: value for name, value in death.items() if name != "time"} for death in properties.headers["x-death"]]


def test_the_exchange_may_come_later(side: Side, channel: Any) -> None:
    arguments = {"x-dead-letter-exchange": side.unique("x")}
    queue = side.queue(channel, arguments=arguments)
    channel.queue_declare(queue, arguments=arguments)
    side.publish(channel, queue, 1)
    kill(side, channel, queue)
    assert side.drain(channel, queue) == []
    for other in ({"x-dead-letter-exchange": "another"}, {}, arguments | {"x-dead-letter-routing-key": "key"}):
        assert side.code(lambda ch, other=other: ch.queue_declare(queue, arguments=other)) == 406


@pytest.mark.parametrize(
    ("arguments", "end"), [({"x_message_ttl": 0}, ""), ({"x_message_ttl": 20}, ""), ({}, "nack"), ({}, "reject")]
)
def test_expired_or_rejected(side: Side, arguments: dict[str, int], end: str) -> None:
    channel, queue, dead, _ = letters(side, **arguments)
    side.publish(channel, queue, 1, headers={"mine": 1}, message_id="7")
    if end:
        getattr(channel, f"basic_{end}")(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    side.eventually(lambda: side.count(channel, dead) == 1, "the dead letter")
    method, properties, body = channel.basic_get(dead, True)
    assert (body, method.routing_key, method.redelivered) == (b"1", queue, False)
    assert (properties.message_id, properties.headers["mine"]) == ("7", 1)
    reason = "rejected" if end else "expired"
    assert deaths(properties) == [
        {"count": 1, "reason": reason, "queue": queue, "exchange": "", "routing-keys": [queue]}
    ]
    first = {name: value for name, value in properties.headers.items() if name.startswith("x-first-death")}
    assert first == {"x-first-death-reason": reason, "x-first-death-queue": queue, "x-first-death-exchange": ""}


def test_expired_in_time_also_after_a_requeue(side: Side) -> None:
    def attempt(ttl: float) -> tuple[Any, str]:
        channel, queue, dead, _ = letters(side, x_message_ttl=int(1000 * ttl))
        with before(ttl):
            side.publish(channel, queue, 1, 2)
            method, _, _ = channel.basic_get(queue)
            channel.basic_nack(method.delivery_tag)
            assert side.count(channel, dead) == 0
        return channel, dead

    channel, dead = in_time(attempt, 0.3, 2, 20)
    side.eventually(lambda: side.count(channel, dead) == 2, "both")
    assert side.drain(channel, dead) == [b"1", b"2"]


def test_the_exchange_goes_and_comes_back(side: Side) -> None:
    channel, queue, dead, exchange = letters(side)
    side.publish(channel, queue, 1, 2, 3)
    kill(side, channel, queue)
    assert side.drain(channel, dead) == [b"1"]
    channel.exchange_delete(exchange)
    kill(side, channel, queue)
    side.exchange(channel, "fanout", exchange)
    channel.queue_bind(dead, exchange, "")
    kill(side, channel, queue)
    assert side.drain(channel, dead) == [b"3"]


def test_the_expiration_is_taken_off(side: Side) -> None:
    channel, queue, dead, _ = letters(side)
    side.publish(channel, queue, 1, expiration="20")
    side.eventually(lambda: side.count(channel, dead) == 1, "the dead letter")
    side.wait(0.1)
    _, properties, body = channel.basic_get(dead, True)
    assert (body, properties.expiration) == (b"1", None)
    assert properties.headers["x-death"][0]["original-expiration"] == "20"


def test_dying_twice(side: Side, channel: Any) -> None:
    last = side.queue(channel)
    middle = side.queue(channel, dead=last)
    first = side.queue(channel, dead=middle, x_message_ttl=0)
    side.publish(channel, first, 1)
    side.eventually(lambda: side.count(channel, middle) == 1, "the first death")
    kill(side, channel, middle)
    _, properties, _ = channel.basic_get(last, True)
    assert [(death["queue"], death["reason"], death["count"]) for death in deaths(properties)] == [
        (middle, "rejected", 1),
        (first, "expired", 1),
    ]
    assert (properties.headers["x-first-death-queue"], properties.headers["x-first-death-reason"]) == (first, "expired")


@pytest.mark.parametrize("length", [1, 2])
def test_a_cycle_of_expired_ones_drops_them(side: Side, channel: Any, length: int) -> None:
    """A queue that is its own dead letter, or two that are each other's."""
    first, witness = side.unique(), side.queue(channel)
    second = side.queue(channel, dead=first, x_message_ttl=1) if length == 2 else first
    exchange = side.exchange(channel, "fanout")
    side.queue(channel, first, arguments={"x-dead-letter-exchange": exchange, "x-message-ttl": 1})
    for name in (second, witness):
        channel.queue_bind(name, exchange, "")
    channel.basic_publish("", first, b"1")
    side.eventually(lambda: side.count(channel, witness) >= 1, "the death")
    side.wait(0.1)
    assert (side.drain(channel, first), side.drain(channel, second), side.count(channel, witness)) == ([], [], 1)


def test_a_cycle_with_a_rejection_goes_on(side: Side, channel: Any) -> None:
    queue = side.unique()
    side.queue(channel, queue, dead=queue)
    side.publish(channel, queue, 1)
    for count in range(10):
        side.settle()
        method, properties, _ = channel.basic_get(queue)
        assert count == 0 or properties.headers["x-death"][0]["count"] == count
        channel.basic_reject(method.delivery_tag, requeue=False)
    assert side.count(channel, queue) == 1


def test_a_new_key_takes_the_place_of_all(side: Side, channel: Any) -> None:
    dead, copy = side.queue(channel), side.queue(channel)
    queue = side.queue(channel, dead=dead, x_message_ttl=0)
    side.publish(channel, queue, 1, headers={"CC": [copy], "BCC": ["secret"]})
    side.eventually(lambda: side.count(channel, dead) == 1, "the dead letter")
    method, properties, _ = channel.basic_get(dead, True)
    assert (method.routing_key, method.exchange) == (dead, "")
    assert "CC" not in properties.headers
    assert "BCC" not in properties.headers
    assert deaths(properties)[0]["routing-keys"] == [queue, copy]
    assert side.drain(channel, copy) == [b"1"]


def test_without_a_new_key_all_old_ones_are_used(side: Side, channel: Any) -> None:
    exchange = side.exchange(channel)
    queue = side.queue(channel, arguments={"x-dead-letter-exchange": exchange, "x-message-ttl": 0})
    dead = {name: side.queue(channel) for name in ("own", "cc", "bcc")}
    channel.queue_bind(dead["own"], exchange, queue)
    channel.queue_bind(dead["cc"], exchange, "cc")
    channel.queue_bind(dead["bcc"], exchange, "bcc")
    side.publish(channel, queue, 1, headers={"CC": ["cc"], "BCC": ["bcc"]})
    side.eventually(lambda: side.count(channel, dead["own"]) == 1, "the dead letter")
    assert [side.drain(channel, name) for name in dead.values()] == [[b"1"]] * 3


@server_versions(since="3.13")
def test_x_death_does_not_grow(side: Side, channel: Any) -> None:
    """Three queues in a ring by expiry, with a rejection every other time round. Entries are counted, not added.

    Servers before 3.13 reorder the entries with every death, and take this cycle for one without rejections."""
    names = [side.unique() for _ in range(3)]
    for name, following in itertools.pairwise(names):
        side.queue(channel, name, dead=following, x_message_ttl=0)
    side.queue(channel, names[2], dead=names[0])
    side.publish(channel, names[0], 1)
    for _ in range(9):
        side.eventually(lambda: side.count(channel, names[2]) == 1, "the message")
        kill(side, channel, names[2])
    side.eventually(lambda: side.count(channel, names[2]) == 1, "the message")
    _, properties, _ = channel.basic_get(names[2], True)
    counted = {(death["queue"], death["reason"]): death["count"] for death in deaths(properties)}
    assert counted == {(names[0], "expired"): 10, (names[1], "expired"): 10, (names[2], "rejected"): 9}


def test_a_refused_publish_can_become_a_dead_letter(side: Side) -> None:
    channel, queue, dead, _ = letters(side, x_max_length=1, x_overflow="reject-publish-dlx")
    side.publish(channel, queue, 1, 2)
    assert (side.drain(channel, queue), side.drain(channel, dead)) == ([b"1"], [b"2"])


def test_a_delivery_limit(side: Side, channel: Any) -> None:
    """A limit of N allows N redeliveries. Their order is not compared."""
    dead = side.queue(channel)
    queue = side.queue(channel, dead=dead, durable=True, x_queue_type="quorum", x_delivery_limit=2)
    side.publish(channel, queue, 1)
    counts = []
    for _ in range(3):
        side.eventually(lambda: side.count(channel, queue) == 1, "it is back")
        method, properties, _ = channel.basic_get(queue)
        counts.append(((properties.headers or {}).get("x-delivery-count", 0), method.redelivered))
        channel.basic_nack(method.delivery_tag)
    assert counts == [(0, False), (1, True), (2, True)]
    side.eventually(lambda: side.count(channel, dead) == 1, "the dead letter")
    _, properties, _ = channel.basic_get(dead, True)
    assert deaths(properties)[0]["reason"] == "delivery_limit"
