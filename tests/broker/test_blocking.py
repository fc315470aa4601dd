"""BlockingConnection does what pika's own acceptance tests of its blocking adapter expect, where that needs no socket.

They run on a server through pika, too. What all channels do is in the other files, which run on this side as well.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from broker.sides import Side

SIDES = ["blocking"]


@contextmanager
def raises(side: Side, name: str, code: int | None = None) -> Iterator[Any]:
    with pytest.raises(getattr(side.exceptions, name)) as caught:
        yield caught
    if code is not None:
        assert caught.value.args[0] == code


def filled(side: Side, channel: Any, *bodies: bytes) -> str:
    """An exclusive queue with these messages, published with confirms."""
    queue = side.queue(channel, exclusive=True)
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, mandatory=True)
    return queue


def ready(channel: Any, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def arrives(side: Side, channel: Any, queue: str, count: int) -> None:
    side.eventually(lambda: ready(channel, queue) == count, f"{count} messages")


def until(connection: Any, done: Callable[[], object]) -> None:
    while not done():
        connection.process_data_events(time_limit=None)


def later(call: Callable[[], object]) -> None:
    threading.Thread(target=call).start()


def test_opens_and_closes(side: Side, connection: Any, channel: Any) -> None:
    assert (connection.is_open, connection.is_closed) == (True, False)
    assert (channel.is_open, channel.is_closed, channel.connection) == (True, False, connection)
    channel.close()
    assert (channel.is_open, channel.is_closed) == (False, True)
    with raises(side, "ChannelWrongStateError"):
        channel.close()
    connection.close()
    assert (connection.is_open, connection.is_closed) == (False, True)
    with raises(side, "ConnectionWrongStateError"):
        connection.close()


def test_with_closes_a_connection_and_passes_what_is_raised(side: Side, connection: Any) -> None:
    for error in (LookupError, SystemExit):
        with pytest.raises(error, match="mine"), side.connect() as other:
            raise error("mine")
        assert other.is_closed
    with connection:
        connection.close()
    assert connection.is_closed


def test_with_closes_a_channel(side: Side, connection: Any, channel: Any) -> None:
    with channel:
        assert channel.is_open
    assert channel.is_closed
    with connection.channel() as other:
        other.close()
    assert other.is_closed
    with raises(side, "ChannelClosedByBroker", 404), connection.channel() as refused:
        refused.exchange_declare(side.unique(), passive=True)
    assert refused.is_closed


def test_knows_what_it_supports(connection: Any) -> None:
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported
    assert connection.exchange_exchange_bindings_supported
    assert connection.publisher_confirms_supported
    connection.add_on_connection_blocked_callback(print)
    connection.add_on_connection_unblocked_callback(print)
    connection.sleep(0)


def test_updates_a_secret(side: Side, connection: Any, channel: Any) -> None:
    connection.update_secret("new", "reason")
    assert (connection.is_open, channel.is_open) == (True, True)
    with pytest.raises(AssertionError):
        connection.update_secret(1, "reason")
    with pytest.raises(AssertionError):
        connection.update_secret("new", 1)
    connection.close()
    with raises(side, "ConnectionWrongStateError"):
        connection.update_secret("new", "reason")


def test_waits_as_long_as_it_is_told(connection: Any) -> None:
    for wait in (connection.process_data_events, connection.sleep):
        wait(0)
        began = time.monotonic()
        wait(0.005)
        assert time.monotonic() - began >= 0.005


def test_runs_threadsafe_callbacks_of_another_thread(side: Side, connection: Any) -> None:
    ran: list[int] = []
    later(lambda: connection.add_callback_threadsafe(lambda: ran.append(threading.get_ident())))
    until(connection, lambda: ran)
    assert ran == [threading.get_ident()]
    connection.close()
    with raises(side, "ConnectionWrongStateError"):
        connection.add_callback_threadsafe(print)


def test_runs_timers_once_unless_removed(connection: Any) -> None:
    ran: list[str] = []
    first = connection.call_later(0.005, lambda: ran.append("first"))
    until(connection, lambda: ran)
    connection.remove_timeout(first)
    connection.remove_timeout(connection.call_later(0.001, lambda: ran.append("removed")))
    connection.process_data_events(0.1)
    assert ran == ["first"]


def test_timers_of_equal_time_and_callback_are_two(connection: Any) -> None:
    ran: list[int] = []
    one, other = (connection.call_later(0, lambda: ran.append(1)) for _ in range(2))
    assert one is not other
    connection.remove_timeout(one)
    until(connection, lambda: ran)
    connection.process_data_events(0.01)
    assert ran == [1]


def test_a_timer_removes_timers(connection: Any) -> None:
    ran: list[int] = []
    never = connection.call_later(5, print)

    def remove() -> None:
        connection.remove_timeout(never)
        connection.remove_timeout(itself)
        ran.append(1)

    itself = connection.call_later(0, remove)
    until(connection, lambda: ran)
    connection.process_data_events(0)
    assert ran == [1]


def test_what_is_due_runs_in_the_next_round(connection: Any) -> None:
    ran: list[int] = []
    connection.add_callback_threadsafe(lambda: ran.append(1))
    connection.call_later(0, lambda: ran.append(2))
    assert ran == []
    connection.sleep(0.01)
    assert sorted(ran) == [1, 2]


def test_answers_are_named(side: Side, channel: Any) -> None:
    exchange, queue = side.exchange(channel, side.pika.exchange_type.ExchangeType.direct), side.queue(channel)
    other = side.exchange(channel)
    for call, arguments, name in (
        ("exchange_declare", (exchange,), "DeclareOk"),
        ("exchange_bind", (other, exchange, "key"), "BindOk"),
        ("exchange_unbind", (other, exchange, "key"), "UnbindOk"),
        ("exchange_delete", (other,), "DeleteOk"),
        ("queue_declare", (queue,), "DeclareOk"),
        ("queue_bind", (queue, exchange, "key"), "BindOk"),
        ("queue_unbind", (queue, exchange, "key"), "UnbindOk"),
        ("queue_purge", (queue,), "PurgeOk"),
        ("queue_delete", (queue,), "DeleteOk"),
        ("tx_select", (), "SelectOk"),
        ("tx_commit", (), "CommitOk"),
        ("tx_rollback", (), "RollbackOk"),
    ):
        assert type(getattr(channel, call)(*arguments).method).__name__ == name
    with pytest.raises(TypeError):
        channel.queue_declare([1, 2, 3])



@pytest.mark.parametrize("confirms", ["never", "before", "after"])
def test_returned_messages_wait_for_the_next_round(side: Side, connection: Any, channel: Any, confirms: str) -> None:
    exchange, got = side.exchange(channel), []
    channel.add_on_return_callback(lambda *arguments: got.append(arguments))
    if confirms == "before":
        channel.confirm_delivery()
    for body in (b"1", b"2"):
        try:
            channel.basic_publish(exchange, "key", body, mandatory=True)
        except side.exceptions.UnroutableError:
            assert confirms == "before"
    if confirms == "after":
        channel.confirm_delivery()
    side.fence(channel)
    assert got == []
    connection.process_data_events()
    assert [(on is channel, method.reply_code, method.exchange, method.routing_key) for on, method, _, _ in got] == [
        (True, 312, exchange, "key")
    ] * 2
    assert [body for *_, body in got] == [b"1", b"2"]



@pytest.mark.parametrize("confirms", [True, False])
def test_prefetch_of_one_and_the_end_of_the_queue(side: Side, connection: Any, channel: Any, confirms: bool) -> None:
    exchange, queue = side.exchange(channel), side.queue(channel, exclusive=True)
    channel.queue_bind(queue, exchange, "key")
    if confirms:
        channel.confirm_delivery()
    channel.basic_publish(exchange, "key", b"1", side.Properties(headers={"a": "b"}), mandatory=True)
    channel.basic_publish(exchange, "key", b"2")
    arrives(side, channel, queue, 2)
    channel.basic_qos(prefetch_count=1)
    got = side.consume(channel, queue)
    for number in (1, 2):
        until(connection, lambda: len(got.deliveries) == number)  # noqa: B023
        assert (got.tags[-1], got.redelivered[-1], got.bodies[-1]) == (number, False, b"%d" % number)
        channel.basic_ack(number)
    assert [properties.headers for _, properties, _ in got.deliveries] == [{"a": "b"}, None]
    arrives(side, channel, queue, 0)
    connection.process_data_events(0.005)
    assert len(got.deliveries) == 2
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.queue_delete(queue)
    channel.start_consuming()
    assert [frame.method.consumer_tag for frame in cancelled] == [got.tag]


@pytest.mark.parametrize("how", ["basic_consume", "consume"])
def test_acks_of_another_thread(side: Side, connection: Any, channel: Any, how: str) -> None:
    queue, acked = filled(side, channel, b"1", b"last"), []
    channel.basic_qos(prefetch_count=1)

    def work(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        def settle() -> None:
            channel.basic_ack(method.delivery_tag)
            acked.append(body)
            if body == b"last":
                channel.cancel() if how == "consume" else channel.basic_cancel(method.consumer_tag)

        later(lambda: connection.add_callback_threadsafe(settle))

    if how == "consume":
        for method, properties, body in channel.consume(queue):
            work(channel, method, properties, body)
    else:
        channel.basic_consume(queue, work)
        channel.start_consuming()
    assert acked == [b"1", b"last"]


@pytest.mark.parametrize("what", ["stop_consuming", "close", "connection.close"])
def test_a_callback_ends_it(side: Side, connection: Any, channel: Any, what: str) -> None:
    queue = side.queue(channel)
    channel.confirm_delivery()
    for body in (b"1", b"2"):
        channel.basic_publish("", queue, body, mandatory=True)

    def end(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if what == "stop_consuming":
            channel.stop_consuming()
            channel.basic_ack(method.delivery_tag)
        else:
            (channel if what == "close" else connection).close()

    channel.basic_consume(queue, end)
    channel.start_consuming()
    assert (channel.is_closed, connection.is_closed) == (what != "stop_consuming", what == "connection.close")
    if channel.is_open:
        channel.close()
    other = side.channel(side.connect())
    left = [b"2"] if what == "stop_consuming" else [b"1", b"2"]
    arrives(side, other, queue, len(left))
    assert [other.basic_get(queue)[2] for _ in range(3)] == (left + [None] * 3)[:3]


@pytest.mark.parametrize("how", ["basic_consume", "consume"])
def test_who_consumes_learns_that_its_channel_failed(side: Side, connection: Any, channel: Any, how: str) -> None:
    queue = side.queue(channel, exclusive=True)
    connection.add_callback_threadsafe(lambda: channel.basic_publish(side.unique("missing"), "key", b""))
    with raises(side, "ChannelClosedByBroker", 404):
        if how == "consume":
            next(channel.consume(queue))
        else:
            channel.basic_consume(queue, print)
            channel.start_consuming()


def test_cancelling_forgets_the_brokers_cancellation(side: Side, connection: Any, channel: Any) -> None:
    queue = filled(side, channel, b"1")
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    tag = channel.basic_consume(queue, print)
    while ready(channel, queue) != 0:  # no callback runs
        pass
    channel.queue_delete(queue)
    connection.channel().close()
    assert channel.basic_cancel(tag) == []
    connection.process_data_events()
    assert cancelled == []


@pytest.mark.parametrize("cancels", [True, False])
def test_the_generator_ends_when_the_broker_cancels(side: Side, connection: Any, channel: Any, cancels: bool) -> None:
    queue = side.queue(channel, exclusive=True)
    for number, got in enumerate(channel.consume(queue, inactivity_timeout=0.001)):
        assert got == (None, None, None)
        if not number:
            channel.queue_delete(queue)
        if cancels:
            connection.process_data_events()
            channel.cancel()
    assert channel.get_waiting_message_count() == 0
