"""What this broker adds to the rules of the server: callbacks on an executor, calls from any thread."""

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from support.threads import Threads, acting_when, ctrl_c, run_all, wait_asleep, wait_until

from broker.own import broker, channel, connection
from broker.sides import DEADLINE
from manytail import ClosedError
from manytail.broker import Broker, Channel, Connection, _runtime, exceptions
from manytail.broker._runtime import PoolLane, Timer
from manytail.executor import KeyedExecutor

__all__ = ["broker", "channel", "connection"]  # fixtures


def awaited(event: threading.Event) -> None:
    assert event.wait(DEADLINE), "it did not happen"


def test_a_callback_may_publish_to_a_queue_that_only_its_own_channel_drains(connection: Connection) -> None:
    """More messages than any bound of a lane, with a prefetch of one: no callback waits for itself."""
    channel = connection.channel()
    channel.queue_declare("own", arguments={"x-max-length": 100_000})
    channel.basic_qos(prefetch_count=1)
    seen = 0

    def callback(channel: Channel, method: Any, properties: Any, body: Any) -> None:
        nonlocal seen
        seen += 1
        if body == b"first":
            for number in range(3000):
                channel.basic_publish("", "own", number)
        channel.basic_ack(method.delivery_tag)
        if seen == 3001:
            channel.stop_consuming()

    channel.basic_consume("own", callback)
    channel.basic_publish("", "own", b"first")
    channel.start_consuming()
    assert seen == 3001


class Acknowledging:
    """The consumers of one channel. Every seventh message is requeued once."""

    def __init__(self, expected: int) -> None:
        self.expected, self.done = expected, threading.Event()
        self.tags: list[int] = []
        self.bodies: list[tuple[int, int]] = []
        self.busy, self.overlapped = threading.Lock(), False

    def __call__(self, channel: Channel, method: Any, properties: Any, body: tuple[int, int]) -> None:
        alone = self.busy.acquire(blocking=False)
        self.overlapped |= not alone
        self.tags.append(method.delivery_tag)
        if not method.redelivered and body[1] % 7 == 0:
            channel.basic_nack(method.delivery_tag)
        else:
            channel.basic_ack(method.delivery_tag)
            self.bodies.append(body)
            if len(self.bodies) == self.expected:
                self.done.set()
        if alone:
            self.busy.release()


@pytest.mark.parametrize("workers", [1, 4])
def test_order_and_one_callback_at_a_time_per_channel(broker: Broker, workers: int) -> None:
    """Several publishers, channels with two consumers each, acks and requeues. In each channel the tags ascend, and
    callbacks never overlap."""
    connection = broker.connect(max_workers=workers)
    connection.channel().exchange_declare("all", "fanout")
    bodies = [(publisher, number) for publisher in range(3) for number in range(300)]
    consumers = [Acknowledging(len(bodies)) for _ in range(4)]
    for index, consumer in enumerate(consumers):
        channel = connection.channel()
        channel.queue_declare(f"q{index}")
        channel.queue_bind(f"q{index}", "all")
        channel.basic_qos(prefetch_count=10)
        for _ in range(2):
            channel.basic_consume(f"q{index}", consumer)

    def publish(publisher: int) -> None:
        channel = connection.channel()
        for number in range(300):
            channel.basic_publish("all", "", (publisher, number))

    run_all(*[partial(publish, publisher) for publisher in range(3)])
    for consumer in consumers:
        awaited(consumer.done)
        assert not consumer.overlapped
        assert consumer.tags == sorted(set(consumer.tags))
        assert sorted(consumer.bodies) == bodies


def test_channels_run_in_parallel(connection: Connection) -> None:
    meeting = threading.Barrier(3)
    for index in range(2):
        channel = connection.channel()
        channel.queue_declare(f"q{index}")
        channel.basic_consume(f"q{index}", lambda *_: meeting.wait(DEADLINE), auto_ack=True)
        channel.basic_publish("", f"q{index}", b"")
    meeting.wait(DEADLINE)


def test_a_callback_that_raises_with_nobody_waiting(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    done = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: (told.append(args.exc_value), done.set()))
    error = LookupError("mine")

    def callback(*_: Any) -> None:
        raise error

    channel.basic_consume("q", callback)
    channel.basic_publish("", "q", b"1")
    awaited(done)
    assert told == [error]
    with pytest.raises(LookupError):  # start_consuming raises it, however late it is called
        channel.start_consuming()
    with pytest.raises(exceptions.ChannelWrongStateError):
        channel.basic_get("q")


def test_the_brokers_refusal_in_a_callback_is_raised_by_start_consuming(channel: Channel) -> None:
    channel.basic_publish("", "q", b"1")

    def callback(channel: Channel, *_: Any) -> None:
        with pytest.raises(exceptions.ChannelClosedByBroker):
            channel.basic_ack(99)

    channel.basic_consume("q", callback)
    with pytest.raises((exceptions.ChannelClosedByBroker, exceptions.ChannelWrongStateError)):
        channel.start_consuming()


def test_a_given_executor_is_not_shut_down_ours_is(broker: Broker) -> None:
    with ThreadPoolExecutor(1) as given:
        connection = broker.connect(executor=given)
        connection.close()
        assert given.submit(int).result(DEADLINE) == 0
    connection = broker.connect()
    executor = connection._dispatch.executor
    assert isinstance(executor, KeyedExecutor)
    connection.close()
    with pytest.raises(RuntimeError):
        executor.submit(int)


def test_executors_that_are_none(broker: Broker) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="executor"):
        broker.connect(executor=pool, max_workers=2)
    with ProcessPoolExecutor(1) as processes, pytest.raises(TypeError, match="ProcessPoolExecutor"):
        broker.connect(executor=processes)
    with pytest.raises(TypeError, match=r"executor: 3 \(expected: "):
        broker.connect(executor=3)  # type: ignore[arg-type]
    broker.close()
    with pytest.raises(ClosedError):
        broker.connect()


def test_an_executor_that_refuses_closes_the_connection(broker: Broker) -> None:
    executor = ThreadPoolExecutor(1)
    connection = broker.connect(executor=executor)
    channel, other = connection.channel(), broker.connect(max_workers=1).channel()
    channel.queue_declare("q")
    channel.basic_consume("q", lambda *_: None)
    executor.shutdown()
    channel.basic_publish("", "q", b"1")
    assert connection.is_closed
    assert other.basic_get("q")[2] == b"1"
    with pytest.raises(exceptions.ConnectionWrongStateError):
        connection.channel()


def test_start_consuming_from_a_callback_or_its_executor(broker: Broker) -> None:
    with ThreadPoolExecutor(2) as executor:
        connection = broker.connect(executor=executor)
        channel = connection.channel()
        channel.queue_declare("q")
        raised: list[type[BaseException]] = []
        done = threading.Event()

        def callback(channel: Channel, *_: Any) -> None:
            try:
                channel.start_consuming()
            except BaseException as error:
                raised.append(type(error))
            done.set()

        channel.basic_consume("q", callback, auto_ack=True)
        channel.basic_publish("", "q", b"")
        awaited(done)
        assert raised == [exceptions.ReentrancyError]
        with pytest.raises(exceptions.ReentrancyError):
            executor.submit(channel.start_consuming).result(DEADLINE)
        connection.close()


ENDS: dict[str, Callable[[Connection, Channel], object]] = {
    "cancel": lambda connection, channel: channel.basic_cancel("tag"),
    "close channel": lambda connection, channel: channel.close(),
    "close connection": lambda connection, channel: connection.close(),
    "stop": lambda connection, channel: channel.stop_consuming(),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_callback_may_end_what_it_runs_in(connection: Connection, channel: Channel, how: str) -> None:
    done = threading.Event()
    channel.basic_consume("q", lambda *_: (ENDS[how](connection, channel), done.set()), consumer_tag="tag")
    channel.basic_publish("", "q", b"")
    awaited(done)


FROM_OUTSIDE = ENDS | {"close broker": lambda connection, channel: connection._broker.close()}
CLOSED: dict[str, Callable[[Connection, Channel], object]] = {
    "nothing": lambda connection, channel: None,
    "channel": lambda connection, channel: channel.close(),
    "channel, by the broker": lambda connection, channel: channel.basic_ack(99),
    "connection": lambda connection, channel: connection.close(),
}


@pytest.mark.parametrize(
    ("closed", "how"),
    [
        *(("nothing", how) for how in ("cancel", "close channel", "close connection")),
        *(("channel", how) for how in ("close connection", "close broker")),
        *(("channel, by the broker", how) for how in ("close connection", "close broker")),
        ("connection", "close broker"),
    ],
)
def test_an_end_waits_for_the_callback_whatever_that_has_closed(
    connection: Connection, channel: Channel, closed: str, how: str
) -> None:
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def callback(*_: Any) -> None:
        with contextlib.suppress(exceptions.ChannelClosedByBroker):
            CLOSED[closed](connection, channel)
        entered.set()
        awaited(leave)
        left.set()

    channel.basic_consume("q", callback, consumer_tag="tag")
    channel.basic_publish("", "q", b"")
    awaited(entered)
    with Threads() as threads:
        end = threads.start(lambda: (FROM_OUTSIDE[how](connection, channel), left.is_set()))
        wait_until(lambda: not channel.consumer_tags if closed == "nothing" else connection.is_closed)
        wait_asleep(end)
        leave.set()
        assert end.result()[1]


def test_callbacks_that_close_each_others_connection_do_not_wait_for_one_another(broker: Broker) -> None:
    connections = [broker.connect(max_workers=1) for _ in range(2)]
    together, ended = threading.Barrier(2), threading.Semaphore(0)

    def close(other: Connection) -> None:
        together.wait(DEADLINE)
        other.close()
        ended.release()

    connections[0].add_callback_threadsafe(lambda: close(connections[1]))
    connections[1].add_callback_threadsafe(lambda: close(connections[0]))
    for _ in connections:
        assert ended.acquire(timeout=DEADLINE)


def test_a_callback_of_the_connection_that_waits_for_its_turn_does_not_run_after_the_end(broker: Broker) -> None:
    connection = broker.connect(max_workers=1)
    entered, leave = threading.Event(), threading.Event()
    ran: list[str] = []
    connection.add_callback_threadsafe(lambda: (entered.set(), awaited(leave)))
    connection.add_callback_threadsafe(lambda: ran.append("after the end"))
    awaited(entered)
    with Threads() as threads:
        threads.start(connection.close)
        wait_until(lambda: connection.is_closed)
        leave.set()
    connection._lane.wait_idle()
    assert ran == []


def test_closing_a_connection_of_many_channels_requeues_a_message_once(broker: Broker) -> None:
    """Not from channel to channel of that connection: each time would count for x-delivery-limit, which is 20."""
    connection, other = broker.connect(max_workers=1), broker.connect(max_workers=1).channel()
    other.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
    for _ in range(25):
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("q", lambda *_: None)
    other.basic_publish("", "q", b"1")
    connection.close()
    _, properties, body = other.basic_get("q")
    assert (body, properties.headers) == (b"1", {"x-delivery-count": 1})


def test_ctrl_c_while_basic_cancel_waits_requeues_what_was_not_seen(channel: Channel) -> None:
    entered, leave = threading.Event(), threading.Event()

    def callback(*_: Any) -> None:
        entered.set()
        awaited(leave)

    tag = channel.basic_consume("q", callback)
    for _ in range(3):
        channel.basic_publish("", "q", b"")
    awaited(entered)
    with pytest.raises(KeyboardInterrupt), acting_when(lambda: not channel.consumer_tags, ctrl_c):
        channel.basic_cancel(tag)
    leave.set()
    assert channel.queue_declare("q", passive=True).method.message_count == 2


def test_cancelling_on_a_closed_channel_is_nothing(channel: Channel) -> None:
    tag = channel.basic_consume("q", lambda *_: None)
    channel.close()
    assert channel.basic_cancel(tag) == []
    channel.stop_consuming(tag)


def test_what_a_callback_raises_last_is_raised_by_start_consuming_alone_and_closes_the_channel(
    connection: Connection, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no consumer any more, and start_consuming waits for the end of the callback."""
    hooked: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: hooked.append(args.exc_value))
    waits = threading.Event()
    wait_idle = PoolLane.wait_idle
    monkeypatch.setattr(PoolLane, "wait_idle", lambda lane: (waits.set(), wait_idle(lane)))

    def callback(channel: Channel, *_: Any) -> None:
        channel.stop_consuming()
        awaited(waits)
        raise LookupError("mine")

    channel.basic_consume("q", callback)
    channel.basic_publish("", "q", b"")
    with pytest.raises(LookupError, match="mine"):
        channel.start_consuming()
    assert (hooked, channel.is_closed) == ([], True)
    method, _, body = connection.channel().basic_get("q")
    assert (body, method.redelivered) == (b"", True)


@pytest.mark.parametrize("cancel", ["cancel", "basic_cancel"])
def test_cancelling_a_generator_requeues_what_it_has_not_yielded(channel: Channel, cancel: str) -> None:
    """What it has yielded stays with the channel, to be acknowledged."""
    for number in range(3):
        channel.basic_publish("", "q", number)
    messages = channel.consume("q", consumer_tag="tag")
    method, _, body = next(messages)
    with pytest.raises(ValueError, match="consume"):
        next(channel.consume("other"))
    assert channel.get_waiting_message_count() == 2
    assert channel.cancel() == 0 if cancel == "cancel" else channel.basic_cancel("tag") == []
    assert channel.get_waiting_message_count() == 0
    assert list(messages) == []
    assert channel.queue_declare("q", passive=True).method.message_count == 2
    channel.basic_ack(method.delivery_tag)
    assert [body, channel.basic_get("q", True)[2], channel.basic_get("q", True)[2]] == [0, 1, 2]


def test_two_threads_that_consume_share_one_consumer(connection: Connection) -> None:
    """Finding and making the generator's consumer is one atomic step."""
    for _ in range(50):
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", 0)
        channel.basic_publish("", "q", 1)
        together = threading.Barrier(2)

        def take(channel: Channel = channel, together: threading.Barrier = together) -> int:
            messages = channel.consume("q")
            together.wait(DEADLINE)
            body: int = next(messages)[2]
            return body

        with ThreadPoolExecutor(2) as pool:
            taken = [pool.submit(take) for _ in range(2)]
            assert sorted(future.result(DEADLINE) for future in taken) == [0, 1]
        assert len(channel.consumer_tags) == 1
        channel.close()


def test_use_of_a_queue_that_expires_leaves_one_timer(broker: Broker, connection: Connection) -> None:
    channel = connection.channel()
    channel.queue_declare("q", arguments={"x-expires": 600_000})
    for _ in range(1000):
        channel.basic_get("q")
    assert len(broker._runtime.timers) == 1
    channel.queue_delete("q")
    assert len(broker._runtime.timers) == 0


def test_timers_of_the_connection_that_are_removed_are_dropped(broker: Broker, connection: Connection) -> None:
    for number in [connection.call_later(600, int) for _ in range(1000)]:
        connection.remove_timeout(number)
    assert len(broker._runtime.timers) == 0


@pytest.mark.parametrize("limit", [DEADLINE, None])
def test_process_data_events_returns_as_soon_as_something_was_dispatched(
    connection: Connection, limit: float | None
) -> None:
    """At once for events that were dispatched since it last returned: a program that checks first and then waits misses
    nothing."""
    ran = threading.Event()
    connection.add_callback_threadsafe(ran.set)
    awaited(ran)
    began = time.monotonic()
    connection.process_data_events(limit)
    connection.call_later(0.05, int)
    connection.process_data_events(limit)
    assert time.monotonic() - began < DEADLINE


def test_consume_ends_with_its_queue_and_tells_of_inactivity(channel: Channel) -> None:
    messages = channel.consume("q", inactivity_timeout=0.01)
    assert next(messages) == (None, None, None)
    channel.basic_publish("", "q", b"1")
    assert next(body for method, _, body in messages if method) == b"1"
    channel.queue_delete("q")
    assert list(messages) == []


def test_callbacks_of_the_connection(connection: Connection) -> None:
    order: list[str] = []
    done = threading.Event()
    connection.add_callback_threadsafe(lambda: order.append("now"))
    gone = connection.call_later(3_600, lambda: order.append("never"))
    connection.remove_timeout(gone)
    connection.call_later(0.05, lambda: (order.append("later"), done.set()))
    awaited(done)
    assert order == ["now", "later"]
    connection.process_data_events(0)
    connection.sleep(0.01)
    connection.close()
    for call in (
        lambda: connection.add_callback_threadsafe(int),
        lambda: connection.call_later(1, int),
        lambda: connection.process_data_events(0),
    ):
        with pytest.raises(exceptions.ConnectionWrongStateError):
            call()


def test_when_no_thread_can_be_started_for_timers_the_next_use_tries_again(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = connection.channel()
    channel.queue_declare("q", arguments={"x-message-ttl": 1})

    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(_runtime, "start_daemon", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            channel.basic_publish("", "q", b"1")
    channel.basic_publish("", "q", b"2")
    wait_until(lambda: channel.queue_declare("q", passive=True).method.message_count == 0)


def test_no_thread_is_taken_for_a_timer_thread_that_has_ended(
    broker: Broker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads are told apart by numbers that the system uses again."""
    timers = broker._runtime.timers
    monkeypatch.setattr(timers, "IDLE_GRACE", 0)
    ran = threading.Event()
    connection.call_later(0, ran.set)
    awaited(ran)
    wait_until(lambda: timers._ended is None)
    wait_until(lambda: timers.ident == 0)


def test_when_no_thread_can_be_started_for_users_code_the_timer_thread_runs_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is not submitted would leave its lane without one for ever."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "manytail-broker-effects":
            raise RuntimeError("can't start new thread")
        start(thread)

    with ThreadPoolExecutor(1) as executor, broker.connect(executor=executor) as connection:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            first, second = threading.Event(), threading.Event()
            connection.call_later(0, first.set)
            awaited(first)
        connection.call_later(0, second.set)
        awaited(second)


def test_the_timer_thread_waits_for_another_timer_before_it_ends(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a timer that it awaited for longer than that."""
    timers = broker._runtime.timers
    monkeypatch.setattr(timers, "IDLE_GRACE", -1.0)
    with broker._runtime:
        timers._pending.append(Timer(timers, time.monotonic(), 1, lambda now: None))
        assert timers._wait_and_call()
        assert len(timers) == 0
        assert not timers._wait_and_call()


def test_process_data_events_without_a_limit_waits_for_a_callback(connection: Connection, channel: Channel) -> None:
    ran: list[int] = []
    channel.basic_consume("q", lambda *_: ran.append(1), auto_ack=True)
    timer = threading.Timer(0.05, channel.basic_publish, ("", "q", b""))
    timer.start()
    connection.process_data_events(None)
    assert ran == [1]
    timer.join()


def test_calls_that_interrupt_another_call_are_put_off(
    broker: Broker, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a signal handler, or of a finalizer that the collector runs. What a late call raises is reported."""
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_value.reply_code))
    with broker._runtime:
        channel.basic_publish("", "q", b"late")
        channel.basic_ack(99)
        with pytest.raises(exceptions.ReentrancyError):
            channel.basic_get("q")
    assert (told, channel.is_closed) == ([406], True)
    with pytest.raises(exceptions.ChannelWrongStateError):
        channel.basic_publish("", "q", b"too late")
    assert [channel.connection.channel().basic_get("q", True)[2] for _ in range(2)] == [b"late", None]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs an interval timer")
def test_a_signal_handler_may_publish(channel: Channel) -> None:
    published: list[int] = []  # a handler may interrupt itself

    def handler(*_: Any) -> None:
        published.append(1)
        channel.basic_publish("", "q", b"signal")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        deadline = time.monotonic() + DEADLINE
        calls = 0
        while len(published) < 100:
            channel.basic_publish("", "q", b"main")
            calls += 1
            assert time.monotonic() < deadline
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert channel.queue_purge("q").method.message_count == calls + len(published)


def test_properties_are_copied_at_publish_and_at_each_delivery(channel: Channel) -> None:
    from manytail.broker import BasicProperties

    headers: dict[str, Any] = {"list": [1], "table": {"a": 1}}
    properties = BasicProperties(headers=headers, message_id="1")
    channel.basic_publish("", "q", b"", properties)
    headers["list"].append(2)
    properties.message_id = "2"
    _, first, _ = channel.basic_get("q")
    assert (first.headers, first.message_id) == ({"list": [1], "table": {"a": 1}}, "1")
    first.headers["table"]["a"] = 5
    channel.basic_recover(requeue=True)
    _, second, _ = channel.basic_get("q")
    assert second.headers == {"list": [1], "table": {"a": 1}}
    channel.basic_publish("", "q", "text")
    _, nothing, body = channel.basic_get("q")
    assert (nothing, body) == (BasicProperties(), b"text")
    channel.basic_publish("", "q", headers)  # any other object passes as it is
    assert channel.basic_get("q")[2] is headers


@pytest.mark.parametrize("properties", ["headers", {"headers": {"a": 1}}, 3])
def test_what_has_no_property_is_refused_and_nothing_is_published(channel: Channel, properties: object) -> None:
    with pytest.raises(TypeError, match=re.escape(f"properties: {properties!r} (expected: BasicProperties)")):
        channel.basic_publish("", "q", b"", properties)
    assert channel.queue_purge("q").method.message_count == 0


def test_a_hard_error_closes_the_connection_and_its_channels(connection: Connection) -> None:
    channel, other = connection.channel(), connection.channel()
    with pytest.raises(exceptions.ConnectionClosedByBroker) as raised:
        channel.basic_recover(requeue=False)
    assert raised.value.reply_code == 540
    assert (connection.is_closed, channel.is_closed, other.is_closed) == (True, True, True)
    with pytest.raises(exceptions.ChannelWrongStateError):
        other.queue_declare("q")


def test_channel_numbers(connection: Connection) -> None:
    assert [connection.channel().channel_number for _ in range(2)] == [1, 2]
    assert int(connection.channel(7)) == 7
    for number in (7, 0, 65536):
        with pytest.raises(exceptions.InvalidChannelNumber):
            connection.channel(number)
