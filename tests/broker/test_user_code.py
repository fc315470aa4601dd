"""User code never runs inside a section of the broker's lock, nor on its timer thread. Spies check every place."""

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from support.threads import wait_until

from broker.own import broker, channel, connection
from broker.sides import DEADLINE
from manytail.broker import BasicProperties, Broker, Channel, Connection, exceptions

__all__ = ["broker", "channel", "connection"]  # fixtures


class Spy:
    """Records which user code is called, and checks where."""

    def __init__(self, broker: Broker) -> None:
        self._runtime = broker._runtime
        self.calls: list[str] = []
        self.wrong: list[str] = []

    def __call__(self, name: str) -> None:
        self.calls.append(name)
        if self._runtime.interrupted():
            self.wrong.append(f"{name} in a section")
        if threading.get_ident() == self._runtime.timers.ident:
            self.wrong.append(f"{name} on the timer thread")


def spied(spy: Spy, base: type, *methods: str) -> Any:
    """A subclass of `base` whose methods report to the spy."""

    def method(name: str) -> Callable[..., Any]:
        def called(self: Any, *arguments: Any) -> Any:
            spy(f"{base.__name__}.{name}")
            return getattr(base, name)(self, *arguments)

        return called

    return type(f"Spied{base.__name__}", (base,), {name: method(name) for name in methods})


class Thing:
    """An object of a type that AMQP does not know."""

    spy: Spy

    def __eq__(self, other: object) -> bool:
        self.spy("Thing.__eq__")
        return self is other

    def __hash__(self) -> int:
        self.spy("Thing.__hash__")
        return 1

    def __repr__(self) -> str:
        self.spy("Thing.__repr__")
        return "Thing"

    def __bool__(self) -> bool:
        self.spy("Thing.__bool__")
        return False

    def __int__(self) -> int:
        self.spy("Thing.__int__")
        return 1


class Body:
    """Reports to the spy when it is freed."""

    def __init__(self, spy: Spy, gone: threading.Event | None = None) -> None:
        self._spy = spy
        self._gone = gone

    def __del__(self) -> None:
        self._spy("Body.__del__")
        if self._gone is not None:
            self._gone.set()


@pytest.fixture
def spy(broker: Broker) -> Iterator[Spy]:
    """The collector is off: it could run a finalizer anywhere, also in a section."""
    gc.collect()
    gc.disable()
    made = Spy(broker)
    yield made
    gc.enable()
    assert made.calls, "no spy was called: the test proves nothing"
    assert made.wrong == []


def test_names_keys_tags_and_flags_of_a_users_classes(connection: Connection, spy: Spy) -> None:
    text = spied(spy, str, "__hash__", "__eq__", "__len__", "startswith", "encode", "__repr__")
    number = spied(spy, int, "__hash__", "__eq__", "__lt__", "__gt__", "__index__", "__bool__")
    thing = type("SpiedThing", (Thing,), {"spy": spy})()
    channel = connection.channel()
    channel.exchange_declare(text("x"), text("topic"), passive=thing)
    channel.queue_declare(
        text("q"), durable=thing, arguments={text("x-max-length"): number(100), text("x-overflow"): text("drop-head")}
    )
    channel.queue_declare(
        text("q"), durable=thing, arguments={"x-max-length": number(100), "x-overflow": text("drop-head")}
    )
    channel.queue_bind(text("q"), text("x"), text("a.*"), {text("k"): number(1)})
    channel.basic_publish(
        text("x"),
        text("a.b"),
        text("body"),
        BasicProperties(priority=number(3), expiration=text("60000")),
        mandatory=thing,
    )
    channel.basic_publish(text(""), text("q"), b"2")
    channel.basic_qos(thing, number(5), thing) if not thing.__int__() else channel.basic_qos(0, number(5), thing)
    method, _, _ = channel.basic_get(text("q"), thing)
    channel.basic_nack(number(method.delivery_tag), thing, requeue=number(1))
    tag = channel.basic_consume(text("q"), lambda *_: None, thing, thing, text("tag"), {text("x-priority"): number(3)})
    connection.process_data_events(DEADLINE)
    channel.basic_ack(number(2), multiple=number(1))
    channel.basic_cancel(text(tag))
    channel.queue_unbind(text("q"), text("x"), text("a.*"), {text("k"): number(1)})
    channel.queue_purge(text("q"))
    channel.queue_delete(text("q"), if_unused=thing)
    channel.exchange_delete(text("x"))


def test_headers_are_compared_without_a_users_code(connection: Connection, spy: Spy) -> None:
    thing = type("SpiedThing", (Thing,), {"spy": spy})()
    text = spied(spy, str, "__hash__", "__eq__", "__repr__")
    channel = connection.channel()
    channel.exchange_declare("x", "headers")
    channel.queue_declare(
        "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q2", "x-max-length": 0}
    )
    channel.queue_declare("q2")
    channel.queue_bind("q", "x", "", {"x-match": text("any"), "a": text("b"), "c": None, "list": [1, {"a": text("z")}]})
    for headers in (
        {text("a"): thing},
        {"a": text("b")},
        {"c": thing},
        {"list": [1, {"a": "z"}], "x-death": [{"queue": thing, "count": thing}]},
    ):
        channel.basic_publish("x", "", b"", BasicProperties(headers=headers))
    assert channel.queue_declare("q2", passive=True).method.message_count == 3
    assert channel.basic_get("q2", True)[1].headers["a"] == "b"


@pytest.mark.parametrize(
    "call",
    [
        lambda channel, thing: channel.queue_declare("new", arguments={"x-max-length": thing}),
        lambda channel, thing: channel.queue_declare("new", arguments={"x-thing": [thing]}),
        lambda channel, thing: channel.queue_bind("q", "amq.headers", "", {"x-match": thing}),
        lambda channel, thing: channel.exchange_declare("x", thing),
        lambda channel, thing: channel.exchange_declare("x", "direct", arguments={"alternate-exchange": thing}),
        lambda channel, thing: channel.basic_consume("q", print, arguments={"x-priority": thing}),
        lambda channel, thing: channel.basic_publish("", "q", b"", BasicProperties(expiration=thing)),
        lambda channel, thing: channel.basic_publish("", "q", b"", BasicProperties(headers={"CC": thing})),
        lambda channel, thing: channel.basic_publish("", "q", b"", BasicProperties(headers=thing)),
        lambda channel, thing: channel.basic_publish("", "q", b"", BasicProperties(priority=thing)),
        lambda channel, thing: channel.basic_publish(thing, "q", b""),
        lambda channel, thing: channel.basic_ack(thing),
        lambda channel, thing: channel.basic_cancel(thing),
    ],
)
def test_what_is_refused_is_shown_outside(
    connection: Connection, channel: Channel, spy: Spy, call: Callable[[Channel, Thing], object]
) -> None:
    with pytest.raises((TypeError, exceptions.AMQPError)):
        call(channel, type("SpiedThing", (Thing,), {"spy": spy})())


ENDS: dict[str, Callable[[Channel], object]] = {
    "ack": lambda channel: channel.basic_ack(channel.basic_get("q")[0].delivery_tag),
    "multiple": lambda channel: (channel.basic_get("q"), channel.basic_ack(0, multiple=True)),
    "auto_ack": lambda channel: channel.basic_get("q", True),
    "reject": lambda channel: channel.basic_reject(channel.basic_get("q")[0].delivery_tag, requeue=False),
    "drop-head": lambda channel: channel.basic_publish("", "q", b"next"),
    "purge": lambda channel: channel.queue_purge("q"),
    "delete": lambda channel: channel.queue_delete("q"),
    "close": lambda channel: channel.connection._broker.close(),
}


@pytest.mark.parametrize("how", ENDS)
def test_bodies_are_let_go_outside(connection: Connection, spy: Spy, how: str) -> None:
    channel = connection.channel()
    channel.queue_declare("q", arguments={"x-max-length": 1})
    channel.basic_publish("", "q", Body(spy))
    ENDS[how](channel)
    assert spy.calls == ["Body.__del__"]


def test_bodies_that_reach_no_queue_are_let_go_outside(connection: Connection, spy: Spy) -> None:
    channel = connection.channel()
    channel.basic_publish("", "none", Body(spy))
    channel.queue_declare(
        "full",
        arguments={"x-max-length": 0, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "amq.fanout"},
    )
    channel.basic_publish("", "full", Body(spy))
    channel.tx_select()
    channel.basic_publish("", "none", Body(spy))
    channel.basic_publish("", "full", Body(spy))
    with pytest.raises(exceptions.ChannelClosedByBroker):
        channel.tx_commit()
    channel = connection.channel()
    channel.tx_select()
    channel.basic_publish("", "full", Body(spy))
    channel.tx_rollback()
    channel.basic_publish("", "full", Body(spy))
    channel.close()
    assert spy.calls == ["Body.__del__"] * 6


def test_bodies_and_properties_that_expire_are_let_go_off_the_timer_thread(connection: Connection, spy: Spy) -> None:
    """A finalizer that waits does not delay other timers."""
    gone, gone_too, ran = threading.Event(), threading.Event(), threading.Event()
    channel = connection.channel()
    channel.queue_declare("q", arguments={"x-message-ttl": 1})
    channel.queue_declare("dead")
    channel.queue_declare(
        "q2", arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    channel.basic_consume("dead", lambda *_: (spy("callback"), ran.set()), auto_ack=True)
    channel.basic_publish("", "q", Body(spy, gone))
    channel.basic_publish("", "q", b"", BasicProperties(correlation_id=Body(spy, gone_too)))
    channel.basic_publish("", "q2", b"")
    assert ran.wait(DEADLINE)
    # Without the GIL this thread frees them, because it made them.
    wait_until(lambda: gone.is_set() and gone_too.is_set(), "both to be let go")


def test_plain_messages_that_expire_start_no_thread(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    start = threading.Thread.start

    def record(thread: threading.Thread) -> None:
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", record)
    with broker.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("dead")
        arguments = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("q", arguments=arguments)
        channel.basic_publish("", "q", b"")
        wait_until(lambda: channel.queue_declare("dead", passive=True).method.message_count == 1)
    broker.close()  # waits for the end of the timer thread
    assert not started


def test_callbacks_are_let_go_outside(connection: Connection, channel: Channel, spy: Spy) -> None:
    def callback() -> Callable[..., None]:
        body = Body(spy)
        return lambda *_: print(body)

    channel.basic_consume("q", callback(), consumer_tag="tag")
    channel.basic_cancel("tag")
    channel.basic_consume("q", callback())
    channel.close()
    connection.remove_timeout(connection.call_later(60, callback()))
    connection.call_later(60, callback())
    connection.close()
    assert spy.calls == ["Body.__del__"] * 4


def test_an_executor_is_called_outside_and_off_the_timer_thread(broker: Broker, spy: Spy) -> None:
    class Executor(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            spy("submit")
            return super().submit(fn, *args, **kwargs)

    with Executor(1) as executor, broker.connect(executor=executor) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_consume("q", lambda *_: spy("callback"), auto_ack=True)
        channel.basic_publish("", "q", b"")
        ran = threading.Event()
        connection.call_later(0.01, ran.set)
        assert ran.wait(DEADLINE)
    assert spy.calls.count("submit") >= 2


def test_an_executor_that_waits_keeps_no_timer_of_others_waiting(broker: Broker) -> None:
    go_on, ran = threading.Event(), threading.Event()

    class Waits(ThreadPoolExecutor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            assert go_on.wait(DEADLINE)
            return super().submit(fn, *args, **kwargs)

    with Waits(1) as executor, broker.connect(executor=executor) as slow, broker.connect(max_workers=1) as other:
        slow.call_later(0, int)
        other.call_later(0.02, ran.set)
        assert ran.wait(DEADLINE)
        go_on.set()


def test_a_log_handler_is_called_outside(connection: Connection, spy: Spy) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            spy(record.getMessage())

    logger = logging.getLogger("manytail.broker.channel")
    handler = Handler()
    logger.addHandler(handler)
    try:
        connection.channel().basic_cancel("nobody")
    finally:
        logger.removeHandler(handler)
    assert len(spy.calls) == 1


def test_the_first_error_of_the_calls_after_a_section_is_raised_even_if_it_is_false(broker: Broker) -> None:
    class Nothing(Exception):
        def __len__(self) -> int:
            return 0

    made: list[BaseException] = []

    def fail(error: BaseException) -> None:
        made.append(error)
        raise error

    runtime = broker._runtime

    def leave_calls_that_fail() -> None:
        with runtime:
            runtime.after(fail, Nothing())
            runtime.after(fail, LookupError())

    with pytest.raises(Nothing):
        leave_calls_that_fail()
    assert len(made) == 2
