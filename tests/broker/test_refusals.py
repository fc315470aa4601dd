"""What a broker refuses with a reply code, whatever came before."""

from collections.abc import Callable
from typing import Any

import pytest

from broker.sides import Side, ack


def declare(options: dict[str, bool] | None = None, **arguments: Any) -> Callable[..., Any]:
    """A queue with these options, and arguments whose names begin with x-."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return lambda side, channel, queue: channel.queue_declare(side.unique(), arguments=named, **options or {})


def publish(**properties: Any) -> Callable[..., Any]:
    return lambda side, channel, queue: channel.basic_publish("", queue, b"1", side.Properties(**properties))


def consume(priority: object) -> Callable[..., Any]:
    return lambda side, channel, queue: channel.basic_consume(queue, ack, arguments={"x-priority": priority})


def delete_of_quorum(flag: str) -> Callable[..., Any]:
    def call(side: Side, channel: Any, queue: str) -> None:
        name = side.queue(side.channel(), durable=True, x_queue_type="quorum")
        try:
            channel.queue_delete(name, **{flag: True})
        finally:
            side.channel(side.connect()).queue_delete(name)

    return call


# The number in docs/design/broker.md or 0, the code, and a call on a channel of its own that has declared no queue.
REFUSED: list[tuple[int, int, Callable[[Side, Any, str], object]]] = [
    (24, 540, lambda side, channel, queue: channel.basic_qos(prefetch_size=1)),
    (0, 540, lambda side, channel, queue: channel.flow(False)),
    *((48, 406, consume(priority)) for priority in ("high", {"a": 1}, None, [1])),
    (0, 404, lambda side, channel, queue: channel.basic_consume(side.unique(), ack)),
    (63, 540, lambda side, channel, queue: channel.basic_recover(requeue=False)),
    (65, 406, lambda side, channel, queue: channel.basic_ack(1, False)),
    (65, 406, lambda side, channel, queue: channel.basic_ack(1, True)),
    (65, 406, lambda side, channel, queue: channel.basic_ack(0, False)),
    (65, 406, lambda side, channel, queue: (channel.tx_select(), channel.basic_ack(1))),
    (82, 406, lambda side, channel, queue: channel.tx_commit()),
    (82, 406, lambda side, channel, queue: channel.tx_rollback()),
    (85, 404, lambda side, channel, queue: channel.basic_get(side.unique())),
    (86, 404, lambda side, channel, queue: channel.queue_purge(side.unique())),
    (91, 404, lambda side, channel, queue: channel.queue_declare(side.unique(), passive=True)),
    (91, 404, lambda side, channel, queue: channel.exchange_declare(side.unique(), "direct", passive=True)),
    (92, 404, lambda side, channel, queue: channel.queue_bind(queue, side.unique("x"), "key")),
    (92, 404, lambda side, channel, queue: channel.queue_bind(side.unique(), "amq.direct", "key")),
    (92, 404, lambda side, channel, queue: channel.exchange_bind("amq.direct", side.unique("x"), "key")),
    (100, 406, lambda side, channel, queue: channel.queue_bind(queue, "amq.headers", "", {"x-match": 23})),
    (100, 406, lambda side, channel, queue: channel.queue_bind(queue, "amq.headers", "", {"x-match": "nonsense"})),
    (101, 404, lambda side, channel, queue: channel.basic_publish(side.unique("x"), "key", b"1")),
    (103, 403, lambda side, channel, queue: channel.queue_bind(queue, "", "key")),
    (104, 403, lambda side, channel, queue: channel.queue_unbind(queue, "", "key")),
    (105, 403, lambda side, channel, queue: channel.exchange_declare("", "direct")),
    (105, 403, lambda side, channel, queue: channel.exchange_declare("", "direct", passive=True)),
    (106, 403, lambda side, channel, queue: channel.exchange_delete("")),
    (106, 403, lambda side, channel, queue: channel.exchange_bind("amq.direct", "", "key")),
    (0, 403, lambda side, channel, queue: channel.queue_declare("amq.mine")),
    (0, 403, lambda side, channel, queue: channel.exchange_declare("amq.mine", "direct")),
    (0, 403, lambda side, channel, queue: channel.exchange_delete("amq.direct")),
    (115, 406, publish(headers={"CC": "key"})),
    (115, 406, publish(headers={"BCC": "key"})),
    (124, 406, declare(dead_letter_exchange=5)),
    (124, 406, declare(dead_letter_routing_key="key")),
    (124, 406, declare(dead_letter_exchange="", dead_letter_routing_key=5)),
    *((137, 406, declare(message_ttl=ttl)) for ttl in ("foobar", -1, "10")),
    *((137, 406, publish(expiration=text)) for text in ("foobar", "10000foobar", "-1", "", "+", " 1", "1 ", "1.0")),
    (0, 406, publish(expiration="315360000001")),  # more than ten years
    *((0, 406, declare(**{name: 315_360_000_001})) for name in ("message_ttl", "expires")),
    *((0, 406, declare(max_length=length)) for length in (-1, "1")),
    (0, 406, declare(max_length=1, overflow="nonsense")),
    *((150, 406, declare(max_priority=priorities)) for priorities in (-10, 260)),
    *((151, 406, declare(expires=lease)) for lease in (0, -1, "10")),
    (0, 406, declare(queue_type="quorum")),  # which has to be durable, not exclusive and without priorities
    (0, 406, declare({"durable": True, "exclusive": True}, queue_type="quorum")),
    (0, 406, declare({"durable": True}, queue_type="quorum", max_priority=2)),
    *((0, 540, delete_of_quorum(flag)) for flag in ("if_unused", "if_empty")),
    (0, 404, lambda side, channel, queue: channel.basic_get("")),  # "" is the queue that the channel declared last
    (0, 404, lambda side, channel, queue: channel.queue_purge("")),
    (0, 404, lambda side, channel, queue: channel.queue_delete("")),
    (0, 404, lambda side, channel, queue: channel.queue_bind("", "amq.direct", "key")),
    (0, 404, lambda side, channel, queue: channel.queue_unbind("", "amq.direct", "key")),
]


def declared(side: Side) -> tuple[set[Any], set[Any]]:
    """The names of all queues and exchanges; of a server, none."""
    if side.name == "server":
        return set(), set()
    host = side.broker._runtime.host
    return set(host.queues), set(host.exchanges.by_name)


@pytest.mark.parametrize(("number", "code", "call"), REFUSED)
def test_what_is_refused(side: Side, queue: str, number: int, code: int, call: Callable[..., object]) -> None:
    """A channel that is refused something is closed, and nothing else changes."""
    before = declared(side)
    assert side.code(lambda channel: call(side, channel, queue)) == code
    assert declared(side) == before
