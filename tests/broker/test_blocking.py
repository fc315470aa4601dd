"""BlockingConnection does what pika's own acceptance tests of its blocking adapter expect, where that needs no socket.

Each function below is one behaviour, on a fresh connection and channel. They run on a server through pika, too.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from broker.behaviours import behaviour
from broker.sides import Side, ack

SIDES = ["blocking"]
Script = Callable[[Side, Any, Any], object]
SCRIPTS: list[Script] = []


def script(function: Script) -> Script:
    SCRIPTS.append(function)
    return function


@behaviour()
@pytest.mark.parametrize("does", SCRIPTS, ids=lambda function: function.__name__)  # filled before pytest collects
def test_it_does_as_pika(side: Side, does: Script) -> None:
    connection = side.connect()
    does(side, connection, side.channel(connection))


# ------------------------------------------------------------------------------------------------------------- helpers
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


# --------------------------------------------------------------------------------------------------------- connections
@script
def opens_and_closes(side: Side, connection: Any, channel: Any) -> None:
    assert (connection.is_open, connection.is_closed) == (True, False)
    assert (channel.is_open, channel.is_closed, channel.connection) == (True, False, connection)
    channel.close()
    assert (channel.is_open, channel.is_closed) == (False, True)
    connection.close()
    assert (connection.is_open, connection.is_closed) == (False, True)
    with raises(side, "ConnectionWrongStateError"):
        connection.close()


@script
def needs_no_timeouts(side: Side, connection: Any, channel: Any) -> None:
    parameters = side.pika.URLParameters(side.url)
    parameters.socket_timeout = parameters.stack_timeout = None
    with side.pika.BlockingConnection(parameters) as other:
        assert other.is_open


@script
def with_closes_a_connection_and_passes_what_is_raised(side: Side, connection: Any, channel: Any) -> None:
    for error in (LookupError, SystemExit):
        with pytest.raises(error, match="mine"), side.connect() as other:
            raise error("mine")
        assert other.is_closed
    with connection:
        connection.close()
    assert connection.is_closed


@script
def with_closes_a_channel(side: Side, connection: Any, channel: Any) -> None:
    with channel:
        assert channel.is_open
    assert channel.is_closed
    with connection.channel() as other:
        other.close()
    assert other.is_closed
    with raises(side, "ChannelClosedByBroker", 404), connection.channel() as refused:
        refused.exchange_declare(side.unique(), passive=True)
    assert refused.is_closed


@script
def knows_what_it_supports(side: Side, connection: Any, channel: Any) -> None:
    assert connection.basic_nack_supported
    assert connection.consumer_cancel_notify_supported
    assert connection.exchange_exchange_bindings_supported
    assert connection.publisher_confirms_supported
    connection.add_on_connection_blocked_callback(print)
    connection.add_on_connection_unblocked_callback(print)
    connection.sleep(0)


@script
def updates_a_secret(side: Side, connection: Any, channel: Any) -> None:
    connection.update_secret("new", "reason")
    assert (connection.is_open, channel.is_open) == (True, True)
    with pytest.raises(AssertionError):
        connection.update_secret(1, "reason")
    with pytest.raises(AssertionError):
        connection.update_secret("new", 1)
    connection.close()
    with raises(side, "ConnectionWrongStateError"):
        connection.update_secret("new", "reason")


@script
def closes_with_a_consumer(side: Side, connection: Any, channel: Any) -> None:
    queue = filled(side, channel, b"1")
    channel.basic_consume(queue, print, auto_ack=True)
    connection.close()
    assert (connection.is_closed, channel.is_closed, channel.consumer_tags) == (True, True, [])


@script
def a_closed_channel_refuses(side: Side, connection: Any, channel: Any) -> None:
    channel.close()
    with raises(side, "ChannelWrongStateError"):
        channel.queue_declare("q")
    with raises(side, "ChannelWrongStateError"):
        channel.close()


# -------------------------------------------------------------------------------------------------- events and timers
@script
def waits_as_long_as_it_is_told(side: Side, connection: Any, channel: Any) -> None:
    for wait in (connection.process_data_events, connection.sleep):
        wait(0)
        began = time.monotonic()
        wait(0.005)
        assert time.monotonic() - began >= 0.005


@script
def runs_threadsafe_callbacks_of_this_thread(side: Side, connection: Any, channel: Any) -> None:
    ran: list[int] = []
    connection.add_callback_threadsafe(lambda: ran.append(threading.get_ident()))
    until(connection, lambda: ran)
    assert ran == [threading.get_ident()]


@script
def runs_threadsafe_callbacks_of_another_thread(side: Side, connection: Any, channel: Any) -> None:
    ran: list[int] = []
    later(lambda: connection.add_callback_threadsafe(lambda: ran.append(threading.get_ident())))
    until(connection, lambda: ran)
    assert ran == [threading.get_ident()]
    connection.close()
    with raises(side, "ConnectionWrongStateError"):
        connection.add_callback_threadsafe(print)


@script
def runs_timers_once_unless_removed(side: Side, connection: Any, channel: Any) -> None:
    ran: list[str] = []
    first = connection.call_later(0.005, lambda: ran.append("first"))
    until(connection, lambda: ran)
    connection.remove_timeout(first)
    connection.remove_timeout(connection.call_later(0.001, lambda: ran.append("removed")))
    connection.process_data_events(0.1)
    assert ran == ["first"]


@script
def timers_of_equal_time_and_callback_are_two(side: Side, connection: Any, channel: Any) -> None:
    ran: list[int] = []
    one, other = (connection.call_later(0, lambda: ran.append(1)) for _ in range(2))
    assert one is not other
    connection.remove_timeout(one)
    until(connection, lambda: ran)
    connection.process_data_events(0.01)
    assert ran == [1]


@script
def a_timer_removes_timers(side: Side, connection: Any, channel: Any) -> None:
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


@script
def what_is_due_runs_in_the_next_round(side: Side, connection: Any, channel: Any) -> None:
    ran: list[int] = []
    connection.add_callback_threadsafe(lambda: ran.append(1))
    connection.call_later(0, lambda: ran.append(2))
    assert ran == []
    connection.sleep(0.01)
    assert sorted(ran) == [1, 2]


# --------------------------------------------------------------------------------------------- exchanges and queues
@script
def exchanges_come_and_go(side: Side, connection: Any, channel: Any) -> None:
    name = side.exchange(channel, side.pika.exchange_type.ExchangeType.direct)
    assert type(channel.exchange_declare(name, passive=True).method).__name__ == "DeclareOk"
    assert type(channel.exchange_delete(name).method).__name__ == "DeleteOk"
    with raises(side, "ChannelClosedByBroker", 404):
        channel.exchange_declare(name, passive=True)


@script
def exchanges_are_bound_and_unbound(side: Side, connection: Any, channel: Any) -> None:
    source, destination = side.exchange(channel), side.exchange(channel)
    queue = filled(side, channel)
    channel.queue_bind(queue, destination, "key")
    publish = partial(channel.basic_publish, source, "key", b"", mandatory=True)
    with raises(side, "UnroutableError"):
        publish()
    assert type(channel.exchange_bind(destination, source, "key").method).__name__ == "BindOk"
    publish()
    arrives(side, channel, queue, 1)
    assert type(channel.exchange_unbind(destination, source, "key").method).__name__ == "UnbindOk"
    with raises(side, "UnroutableError"):
        publish()


@script
def queues_come_and_go(side: Side, connection: Any, channel: Any) -> None:
    queue = side.queue(channel, exclusive=True)
    assert type(channel.queue_declare(queue, passive=True).method).__name__ == "DeclareOk"
    assert type(channel.queue_delete(queue).method).__name__ == "DeleteOk"
    with raises(side, "ChannelClosedByBroker", 404):
        channel.queue_declare(queue, passive=True)
    with pytest.raises(TypeError):
        connection.channel().queue_declare([1, 2, 3])


@script
def queues_are_bound_and_unbound_and_purged(side: Side, connection: Any, channel: Any) -> None:
    exchange, queue = side.exchange(channel), filled(side, channel)
    channel.queue_bind(queue, exchange, "key")
    assert ready(channel, queue) == 0
    channel.basic_publish(exchange, "key", b"1", mandatory=True)
    assert ready(channel, queue) == 1
    assert type(channel.queue_unbind(queue, exchange, "key").method).__name__ == "UnbindOk"
    with raises(side, "UnroutableError"):
        channel.basic_publish(exchange, "key", b"2", mandatory=True)
    assert channel.queue_purge(queue).method.message_count == 1
    assert ready(channel, queue) == 0


@script
def flow_keeps_the_consumer(side: Side, connection: Any, channel: Any) -> None:
    queue = side.queue(channel, exclusive=True)
    consumers = lambda: channel.queue_declare(queue, passive=True).method.consumer_count  # noqa: E731
    assert consumers() == 0
    channel.basic_consume(queue, print)
    assert consumers() == 1
    assert channel.flow(True) is True
    assert consumers() == 1


# ------------------------------------------------------------------------------------------------- get, settle, commit
@script
def gets_one_message(side: Side, connection: Any, channel: Any) -> None:
    queue = filled(side, channel)
    assert channel.basic_get(queue) == (None, None, None)
    channel.basic_publish("", queue, b"body", mandatory=True)
    method, properties, body = channel.basic_get(queue)
    assert (method.delivery_tag, method.redelivered, method.exchange, method.routing_key) == (1, False, "", queue)
    assert (method.message_count, properties.headers, body) == (0, None, b"body")
    channel.basic_ack(method.delivery_tag)
    assert channel.basic_get(queue) == (None, None, None)


@behaviour()
@pytest.mark.parametrize("how", ["reject", "nack", "nack multiple"])
@pytest.mark.parametrize("requeue", [True, False])
def test_what_is_refused_comes_back_or_not(side: Side, how: str, requeue: bool) -> None:
    channel = side.channel()
    queue = filled(side, channel, b"1", b"2")
    tags = [channel.basic_get(queue)[0].delivery_tag for _ in range(2)]
    if how == "reject":
        channel.basic_reject(tags[1], requeue=requeue)
    else:
        channel.basic_nack(tags[1], multiple=how != "nack", requeue=requeue)
    back = [b"1", b"2"] if how == "nack multiple" else [b"2"]
    arrives(side, channel, queue, len(back) * requeue)
    assert [channel.basic_get(queue)[2] for _ in back] == (back if requeue else [None] * len(back))


@script
def recovers(side: Side, connection: Any, channel: Any) -> None:
    queue, got = filled(side, channel, b"1", b"2"), []
    for _, _, body in channel.consume(queue):
        got.append(body)
        if len(got) == 2:
            channel.basic_recover(requeue=True)
        if len(got) == 4:
            break
    assert got == [b"1", b"2", b"1", b"2"]


@script
def commits_and_rolls_back(side: Side, connection: Any, channel: Any) -> None:
    queue = side.queue(channel, exclusive=True)
    assert type(channel.tx_select().method).__name__ == "SelectOk"
    for end, left in ((channel.tx_rollback, 0), (channel.tx_commit, 1)):
        channel.basic_publish("", queue, b"body", mandatory=True)
        assert ready(channel, queue) == 0
        end()
        assert ready(channel, queue) == left
    assert channel.basic_get(queue)[2] == b"body"


# ---------------------------------------------------------------------------------------------------- returned messages
@script
def confirms_tell_of_what_is_unroutable(side: Side, connection: Any, channel: Any) -> None:
    exchange = side.exchange(channel)
    channel.confirm_delivery()
    with raises(side, "UnroutableError") as caught:
        channel.basic_publish(exchange, "key", b"", side.Properties(headers={"a": "b"}), mandatory=True)
    (message,) = caught.value.messages
    assert (message.method.reply_code, message.method.exchange, message.method.routing_key) == (312, exchange, "key")
    assert (message.properties.headers, message.body) == ({"a": "b"}, b"")


@behaviour()
@pytest.mark.parametrize("confirms", ["never", "before", "after"])
def test_returned_messages_wait_for_the_next_round(side: Side, confirms: str) -> None:
    connection = side.connect()
    channel = side.channel(connection)
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


@script
def delivers_beside_a_message_that_is_unroutable(side: Side, connection: Any, channel: Any) -> None:
    exchange, queue = side.exchange(channel), side.queue(channel, exclusive=True)
    channel.queue_bind(queue, exchange, "key")
    channel.basic_publish(exchange, "", b"nowhere", mandatory=True)
    connection.channel().close()
    channel.basic_publish(exchange, "key", b"here", mandatory=True)
    arrives(side, channel, queue, 1)
    method, _, body = channel.basic_get(queue)
    assert (method.delivery_tag, body) == (1, b"here")
    channel.basic_ack(method.delivery_tag)
    arrives(side, channel, queue, 0)


# ------------------------------------------------------------------------------------------------------------ consumers
@script
def an_unknown_queue_closes_the_channel(side: Side, connection: Any, channel: Any) -> None:
    with raises(side, "ChannelClosedByBroker", 404):
        channel.basic_consume(side.unique(), print)


@behaviour()
@pytest.mark.parametrize("confirms", [True, False])
def test_prefetch_of_one_and_the_end_of_the_queue(side: Side, confirms: bool) -> None:
    connection = side.connect()
    channel = side.channel(connection)
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


@behaviour()
@pytest.mark.parametrize("how", ["basic_consume", "consume"])
def test_acks_of_another_thread(side: Side, how: str) -> None:
    connection = side.connect()
    channel = side.channel(connection)
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


@script
def two_consumers_of_a_channel(side: Side, connection: Any, channel: Any) -> None:
    bodies = [[b"%d-%d" % (queue, number) for number in range(count)] for queue, count in ((1, 100), (2, 150))]
    queues = [filled(side, channel, *each) for each in bodies]
    got = [side.consume(channel, queue) for queue in queues]
    until(connection, lambda: [len(each.bodies) for each in got] == [100, 150])
    assert [each.bodies for each in got] == bodies
    assert [{method.consumer_tag for method, _, _ in each.deliveries} for each in got] == [{each.tag} for each in got]


@script
def a_callback_publishes(side: Side, connection: Any, channel: Any) -> None:
    source, destination = filled(side, channel, b"body"), side.queue(channel, exclusive=True)

    def forward(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        channel.basic_publish("", destination, body, properties, mandatory=True)
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(source, forward)
    assert next(channel.consume(destination, auto_ack=True))[2] == b"body"


@behaviour()
@pytest.mark.parametrize("what", ["stop_consuming", "close", "connection.close"])
def test_a_callback_ends_it(side: Side, what: str) -> None:
    connection = side.connect()
    channel = side.channel(connection)
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


@behaviour()
@pytest.mark.parametrize("how", ["basic_consume", "consume"])
def test_who_consumes_learns_that_its_channel_failed(side: Side, how: str) -> None:
    connection = side.connect()
    channel = side.channel(connection)
    queue = side.queue(channel, exclusive=True)
    connection.add_callback_threadsafe(lambda: channel.basic_publish(side.unique("missing"), "key", b""))
    with raises(side, "ChannelClosedByBroker", 404):
        if how == "consume":
            next(channel.consume(queue))
        else:
            channel.basic_consume(queue, print)
            channel.start_consuming()


@script
def returns_when_the_broker_cancels(side: Side, connection: Any, channel: Any) -> None:
    queue = side.queue(channel, exclusive=True)
    channel.basic_consume(queue, print)
    connection.add_callback_threadsafe(lambda: connection.channel().queue_delete(queue))
    channel.start_consuming()
    assert channel.consumer_tags == []


# -------------------------------------------------------------------------------------------------- cancelling, closing
@behaviour()
@pytest.mark.parametrize("auto_ack", [True, False])
def test_cancelling_a_consumer_with_pending_messages(side: Side, auto_ack: bool) -> None:
    connection = side.connect()
    channel = side.channel(connection)
    bodies = [b"a" * 1024, b"b" * 2048]
    queue = filled(side, channel, *bodies)
    tag = channel.basic_consume(queue, print, auto_ack=auto_ack)
    arrives_without_dispatch(channel, queue, 0)
    assert [body for _, _, body in channel.basic_cancel(tag)] == (bodies if auto_ack else [])
    channel.close()
    arrives(side, side.channel(connection), queue, 0 if auto_ack else 2)


def arrives_without_dispatch(channel: Any, queue: str, count: int) -> None:
    """Calls other than those that serve the connection run no callback."""
    while ready(channel, queue) != count:
        pass


@script
def cancelling_forgets_the_brokers_cancellation(side: Side, connection: Any, channel: Any) -> None:
    queue = filled(side, channel, b"1")
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    tag = channel.basic_consume(queue, print)
    arrives_without_dispatch(channel, queue, 0)
    channel.queue_delete(queue)
    connection.channel().close()
    assert channel.basic_cancel(tag) == []
    connection.process_data_events()
    assert cancelled == []


@behaviour()
@pytest.mark.parametrize("auto_ack", [True, False])
def test_closing_a_channel_requeues_what_is_unacknowledged(side: Side, auto_ack: bool) -> None:
    connection = side.connect()
    channel = side.channel(connection)
    queue = filled(side, channel, b"1", b"2")
    if auto_ack:
        generator = channel.consume(queue, auto_ack=True)
        assert [next(generator)[0].delivery_tag for _ in range(2)] == [1, 2]
    else:
        got = side.consume(channel, queue)
        until(connection, lambda: got.tags == [1, 2])
    assert ready(channel, queue) == 0
    channel.close()
    arrives(side, side.channel(connection), queue, 0 if auto_ack else 2)


# ----------------------------------------------------------------------------------------------------- the generator
@behaviour()
@pytest.mark.parametrize(("count", "size"), [(1, 1_000_000), (500, 1024)])
def test_consumes_large_and_many_messages(side: Side, count: int, size: int) -> None:
    connection = side.connect()
    channel = side.channel(connection)
    queue = side.queue(channel, exclusive=True)
    for _ in range(count):
        channel.basic_publish("", queue, b"x" * size)
    for number, (method, _, body) in enumerate(channel.consume(queue), 1):
        assert (method.delivery_tag, method.redelivered, body) == (number, False, b"x" * size)
        channel.basic_ack(method.delivery_tag)
        if number == count:
            break
    assert channel.get_waiting_message_count() == 0
    channel.close()
    arrives(side, side.channel(connection), queue, 0)


@script
def yields_nothing_after_a_while(side: Side, connection: Any, channel: Any) -> None:
    queue = side.queue(channel, exclusive=True)
    assert next(channel.consume(queue, inactivity_timeout=0.01)) == (None, None, None)


@behaviour()
@pytest.mark.parametrize("cancels", [True, False])
def test_the_generator_ends_when_the_broker_cancels(side: Side, cancels: bool) -> None:
    connection = side.connect()
    channel = side.channel(connection)
    queue = side.queue(channel, exclusive=True)
    for number, _ in enumerate(channel.consume(queue, inactivity_timeout=0.001)):
        if not number:
            channel.queue_delete(queue)
        if cancels:
            connection.process_data_events()
            channel.cancel()
    assert channel.get_waiting_message_count() == 0


@script
def acks_in_the_callback(side: Side, connection: Any, channel: Any) -> None:
    queue = filled(side, channel, b"1", b"2")
    got = side.consume(channel, queue, ack)
    until(connection, lambda: len(got.bodies) == 2)
    channel.close()
    arrives(side, side.channel(connection), queue, 0)
