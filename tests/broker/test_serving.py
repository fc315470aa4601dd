"""Which thread runs the callbacks of a BlockingConnection, what ends its waits, and what an interruption leaves."""

import contextlib
import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from support.interrupted import interrupt, needs_a_timer
from support.threads import DEADLINE, Threads, wait_until

from broker.sides import ack
from manytail import broker
from manytail.broker import BlockingConnection, exceptions


@pytest.fixture
def connection() -> Iterator[BlockingConnection]:
    broker.reset()
    with BlockingConnection() as made:
        yield made
    broker.reset()


@pytest.fixture
def channel(connection: BlockingConnection) -> Any:
    made = connection.channel()
    made.queue_declare("q")
    return made


def publish(channel: Any, *bodies: Any) -> None:
    for body in bodies:
        channel.basic_publish("", "q", body)


def stop_at(body: Any, then: Callable[..., object]) -> Callable[..., None]:
    """A callback that acks, calls then(body), and ends the consumers at that body."""

    def callback(channel: Any, method: Any, properties: Any, got: Any) -> None:
        channel.basic_ack(method.delivery_tag)
        then(got)
        if got == body:
            channel.stop_consuming()

    return callback


WAITS = {
    "start_consuming": lambda connection, channel: channel.start_consuming(),
    "process_data_events": lambda connection, channel: connection.process_data_events(None),
    "sleep": lambda connection, channel: connection.sleep(0),
    "consume": lambda connection, channel: next(channel.consume("other", inactivity_timeout=0), None),
}


@pytest.mark.parametrize("wait", WAITS)
def test_callbacks_run_in_the_thread_that_waits(connection: BlockingConnection, channel: Any, wait: str) -> None:
    """An object of sqlite3 raises in any other thread."""
    ran: list[str] = []
    base = sqlite3.connect(":memory:")

    def record(what: str, *_: Any) -> None:
        ran.append(base.execute("select ?", (what,)).fetchone()[0])

    channel.queue_declare("other")
    channel.add_on_return_callback(partial(record, "return"))
    channel.basic_consume("q", stop_at(b"1", lambda body: record("delivery")))
    with Threads() as threads:
        threads.start(publish, channel, b"1").result()
        threads.start(channel.basic_publish, "", "nowhere", b"", mandatory=True).result()
        threads.start(connection.add_callback_threadsafe, partial(record, "threadsafe")).result()
        connection.call_later(0, partial(record, "timer"))
    assert ran == []
    WAITS[wait](connection, channel)
    assert sorted(ran) == ["delivery", "return", "threadsafe", "timer"]
    base.close()


def test_no_other_call_runs_a_callback(connection: BlockingConnection, channel: Any) -> None:
    ran: list[Any] = []
    channel.basic_consume("q", lambda *delivery: ran.append(delivery[3]))
    channel.add_on_cancel_callback(ran.append)
    publish(channel, b"1")
    connection.call_later(0, lambda: ran.append("timer"))
    channel.basic_get("q")
    channel.confirm_delivery()
    channel.basic_recover(requeue=True)
    connection.channel().queue_delete("q")
    assert ran == []


def test_a_connection_that_nobody_serves_holds_messages_up_to_its_prefetch(channel: Any) -> None:
    channel.basic_qos(prefetch_count=3)
    channel.basic_consume("q", print)
    publish(channel, *range(10))
    assert channel.queue_declare("q", passive=True).method.message_count == 7
    channel.close()


def test_the_connections_own_callbacks_go_first_then_channel_by_channel(connection: BlockingConnection) -> None:
    ran: list[Any] = []
    channels = [connection.channel() for _ in range(2)]
    for number, each in enumerate(channels):
        each.queue_declare(f"q{number}")
        each.basic_consume(f"q{number}", lambda *delivery: ran.append(delivery[3]))
    for body in range(4):
        channels[0].basic_publish("", f"q{body % 2}", body)
    connection.add_callback_threadsafe(lambda: ran.append("own"))
    connection.process_data_events()
    assert ran == ["own", 0, 2, 1, 3]


def test_what_comes_during_a_round_waits_for_the_next(connection: BlockingConnection, channel: Any) -> None:
    """So a callback that requeues for ever keeps no timer waiting."""
    ran: list[Any] = []
    channel.basic_consume("q", lambda channel, method, *_: (ran.append(1), channel.basic_nack(method.delivery_tag)))
    publish(channel, b"")
    for rounds in range(1, 4):
        connection.process_data_events()
        assert len(ran) == rounds
    connection.call_later(0.01, channel.stop_consuming)
    channel.start_consuming()


def test_a_generator_that_always_has_messages_lets_timers_run(connection: BlockingConnection, channel: Any) -> None:
    channel.basic_qos(prefetch_count=1)
    connection.call_later(0.01, channel.cancel)
    publish(channel, 0)
    for method, _, body in channel.consume("q"):
        publish(channel, body + 1)
        channel.basic_ack(method.delivery_tag)


@pytest.mark.parametrize("how", [*WAITS, "nested sleep"])
def test_waits_in_a_callback_run_no_callback(connection: BlockingConnection, channel: Any, how: str) -> None:
    ran: list[Any] = []

    def callback(channel: Any, method: Any, properties: Any, body: Any) -> None:
        ran.append(body)
        if how in ("start_consuming", "process_data_events"):
            with pytest.raises(exceptions.ReentrancyError):
                WAITS[how](connection, channel)
        elif how == "nested sleep":
            began = time.monotonic()
            connection.sleep(0.01)
            connection.process_data_events(0.01)
            assert time.monotonic() - began >= 0.02
        else:
            WAITS[how](connection, channel)
        ran.append("end")

    channel.queue_declare("other")
    channel.basic_consume("q", callback)
    publish(channel, 1, 2)
    connection.process_data_events()
    assert ran == [1, "end", 2, "end"]


def test_a_callback_gets_a_message_with_consume(connection: BlockingConnection, channel: Any) -> None:
    got: list[Any] = []
    channel.queue_declare("other")

    def callback(channel: Any, method: Any, properties: Any, body: Any) -> None:
        threads.start(channel.basic_publish, "", "other", b"2")
        got.append(next(channel.consume("other"))[2])

    with Threads() as threads:
        channel.basic_consume("q", callback)
        publish(channel, b"1")
        connection.process_data_events()
    assert got == [b"2"]


def test_what_a_callback_raises_is_raised_and_closes_nothing(connection: BlockingConnection, channel: Any) -> None:
    """The other messages wait for the next round."""
    got: list[Any] = []

    def callback(channel: Any, method: Any, properties: Any, body: Any) -> None:
        got.append(body)
        if body == 1:
            raise LookupError("mine")
        if body == 3:
            channel.stop_consuming()

    channel.basic_consume("q", callback)
    publish(channel, 1, 2, 3)
    with pytest.raises(LookupError, match="mine"):
        channel.start_consuming()
    assert (got, channel.is_open) == ([1], True)
    channel.start_consuming()
    assert got == [1, 2, 3]
    channel.basic_ack(3, multiple=True)
    assert channel.basic_get("q")[0] is None


ENDS = {
    "stop_consuming": lambda connection, channel: channel.stop_consuming(),
    "close": lambda connection, channel: channel.close(),
    "connection.close": lambda connection, channel: connection.close(),
    "reset": lambda connection, channel: broker.reset(),
    "threadsafe": lambda connection, channel: connection.add_callback_threadsafe(channel.stop_consuming),
    "queue_delete": lambda connection, channel: connection.channel().queue_delete("q"),
}


@pytest.mark.parametrize("end", ENDS)
def test_another_thread_ends_start_consuming(connection: BlockingConnection, channel: Any, end: str) -> None:
    channel.basic_consume("q", ack)
    with Threads() as threads:
        consumes = threads.start(channel.start_consuming)
        wait_until(lambda: connection._dispatch._server)
        ENDS[end](connection, channel)
        consumes.result()
    assert channel.consumer_tags == []


def test_a_timer_of_another_thread_shortens_the_wait(connection: BlockingConnection, channel: Any) -> None:
    ran: list[int] = []
    connection.call_later(DEADLINE * 10, print)
    with Threads() as threads:
        serves = threads.start(connection.process_data_events, DEADLINE * 10)
        wait_until(lambda: connection._dispatch._server)
        connection.call_later(0.01, lambda: ran.append(threading.get_ident()))
        serves.result()
    assert ran
    assert ran != [threading.get_ident()]


def test_of_two_threads_one_serves_and_the_other_takes_over(connection: BlockingConnection) -> None:
    """Never two callbacks at once, and no message is left when the first thread leaves."""
    running, most = threading.Semaphore(1), []
    channels = [connection.channel() for _ in range(2)]

    def alone(body: Any) -> None:
        most.append(running.acquire(blocking=False))
        running.release()

    for number, each in enumerate(channels):
        each.queue_declare(f"q{number}")
        each.basic_consume(f"q{number}", stop_at(200 * (number + 1), alone))
    with Threads() as threads:
        consume = [threads.start(each.start_consuming) for each in channels]
        for number in (0, 1):
            for body in range(1, 200 * (number + 1) + 1):
                channels[0].basic_publish("", f"q{number}", body)
        for each in consume:
            each.result()
    assert most == [True] * 600


def test_a_follower_returns_after_a_round_of_the_other_thread(connection: BlockingConnection, channel: Any) -> None:
    channel.basic_consume("q", ack)
    with Threads() as threads:
        consumes = threads.start(channel.start_consuming)
        wait_until(lambda: connection._dispatch._server)
        follows = threads.start(connection.process_data_events, None)
        while follows.is_alive():
            publish(channel, b"")
        follows.result()
        channel.stop_consuming()
        consumes.result()


def test_basic_cancel_waits_for_the_callback_of_another_thread(channel: Any) -> None:
    begun, go_on = threading.Event(), threading.Event()
    tag = channel.basic_consume("q", lambda *_: (begun.set(), go_on.wait(DEADLINE)))
    publish(channel, b"")
    with Threads() as threads:
        consumes = threads.start(channel.start_consuming)
        assert begun.wait(DEADLINE)
        cancels = threads.start(channel.basic_cancel, tag)
        wait_until(lambda: not channel.consumer_tags)
        assert cancels.is_alive()
        go_on.set()
        cancels.result()
        consumes.result()


def close_when(meet: threading.Barrier, connection: BlockingConnection) -> None:
    meet.wait(DEADLINE)
    with contextlib.suppress(exceptions.ConnectionWrongStateError):
        connection.close()


def test_callbacks_of_two_connections_that_close_one_another_wait_for_nobody() -> None:
    broker.reset()
    meet = threading.Barrier(2)
    connections = [BlockingConnection() for _ in range(2)]
    with Threads() as threads:
        for each, other in (connections, connections[::-1]):
            each.add_callback_threadsafe(partial(close_when, meet, other))
            threads.start(each.process_data_events, DEADLINE)
    broker.reset()


def test_what_will_not_run_is_let_go_of(connection: BlockingConnection, channel: Any) -> None:
    """Cancelled consumers and closed channels leave nothing with a connection that nobody serves."""
    for _ in range(3):
        tag = channel.basic_consume("q", print, auto_ack=True)
        publish(channel, 1, 2)
        assert [body for *_, body in channel.basic_cancel(tag)] == [1, 2]
        other = connection.channel()
        other.basic_consume("q", print, auto_ack=True)
        publish(channel, 3)
        other.close()
    assert connection._dispatch._ready == []
    began = time.monotonic()
    connection.process_data_events(0.01)
    assert time.monotonic() - began >= 0.01


@needs_a_timer
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a handler during a collection
@pytest.mark.parametrize("auto_ack", [True, False])
def test_interruptions_lose_no_message(connection: BlockingConnection, channel: Any, auto_ack: bool) -> None:
    """A signal handler raises at random places of the serving thread, callbacks among them. Each interruption costs one
    callback at most. A message that needs an ack comes back when the channel closes."""
    wanted, numbers, got, begun = 100, itertools.count(), set(), 0

    def callback(channel: Any, method: Any, properties: Any, body: int) -> None:
        nonlocal begun
        begun += 1
        got.add(body)

    def prepare() -> Callable[[], object]:
        publish(channel, *itertools.islice(numbers, 20))
        return connection.process_data_events

    tag = channel.basic_consume("q", callback, auto_ack=auto_ack)
    interrupt(prepare, int, wanted)
    connection.process_data_events()
    messages = next(numbers)
    assert begun == len(got) >= messages - wanted
    publish(channel, messages)
    connection.process_data_events()
    assert messages in got
    assert channel.basic_cancel(tag) == []
    channel.close()
    left = connection.channel().queue_declare("q", passive=True).method.message_count
    assert left == (0 if auto_ack else messages + 1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda connection: connection.process_data_events(-1), "time_limit: -1"),
        (lambda connection: connection.sleep(-1), "duration: -1"),
        (lambda connection: connection.sleep(float("nan")), "duration: nan"),
        (lambda connection: connection.call_later(-1, print), "delay: -1"),
        (lambda connection: connection.call_later(float("nan"), print), "delay: nan"),  # before all other timers
    ],
)
def test_times_that_are_wrong(connection: BlockingConnection, call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call(connection)


def test_a_secret_that_is_no_string_is_a_type_error_too(connection: BlockingConnection) -> None:
    with pytest.raises(TypeError, match=r"new_secret: 1 \(expected: a str\)"):
        connection.update_secret(1, "reason")  # type: ignore[arg-type]
