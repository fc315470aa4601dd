"""Signal handlers that raise inside the calls of a broker, at any moment: a call takes effect whole, or not at all."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeAlias

import pytest
from support.counts import count
from support.interrupted import Interrupted, interrupt, needs_a_timer

import manytail
from broker.audit import audit
from broker.inside import COMPILED
from manytail.broker import Broker

pytestmark = [
    pytest.mark.skipif(not COMPILED, reason="an instrumented build is interpreted"),
    # A callback of a weak reference raises to nobody.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


PACKAGE = manytail.__path__[0]


class World:
    """A broker whose callbacks run in the calling thread. `call` runs one operation; `settle` ends what it began."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.connection = self.broker.connect(max_workers=1)
        self.host = self.broker._runtime.host
        self.states: list[Any] = []
        self.channel = self._channel()
        self.other = self._channel()
        for name, arguments in (("q", {}), ("limited", {"x-max-length": 3}), ("dead", {})):
            self.channel.queue_declare(name, arguments=arguments)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        self.channel.queue_declare("dying", arguments=dead)

    def _channel(self) -> Any:
        channel = self.connection.channel()
        self.states.append(channel._state)
        return channel

    def fill(self, queue: str, number: int = 3) -> None:
        for _ in range(number):
            self.other.basic_publish("", queue, b"body")

    def take(self, queue: str, number: int = 3) -> list[int]:
        self.fill(queue, number)
        return [self.channel.basic_get(queue)[0].delivery_tag for _ in range(number)]

    def empty(self) -> None:
        """Remove every message. A channel that a call has left open is reopened, so that nothing is held."""
        for channel in (self.channel, self.other):
            if channel.is_open:
                channel.close()
        self.states.clear()
        self.channel, self.other = self._channel(), self._channel()
        for name in ("q", "limited", "dead", "dying"):
            self.channel.queue_purge(name)


def _publish(world: World) -> Callable[[], object]:
    return lambda: world.channel.basic_publish("", "q", b"body")


def _publish_to_a_full_queue(world: World) -> Callable[[], object]:
    world.fill("limited")
    return lambda: world.channel.basic_publish("", "limited", b"body")


def _publish_to_a_consumer(world: World) -> Callable[[], object]:
    world.other.basic_consume("q", lambda *_: None, auto_ack=True)
    return lambda: world.channel.basic_publish("", "q", b"body")


def _get(world: World) -> Callable[[], object]:
    world.fill("q")
    return lambda: world.channel.basic_get("q")


def _consume(world: World) -> Callable[[], object]:
    world.fill("q")
    world.channel.basic_qos(prefetch_count=2)
    return lambda: world.channel.basic_consume("q", lambda *_: None)


def _cancel(world: World) -> Callable[[], object]:
    world.fill("q")
    tag = world.channel.basic_consume("q", lambda *_: None)
    return lambda: world.channel.basic_cancel(tag)


def _ack(world: World) -> Callable[[], object]:
    tags = world.take("q")
    return lambda: world.channel.basic_ack(tags[0])


def _ack_with_a_consumer(world: World) -> Callable[[], object]:
    world.channel.basic_qos(prefetch_count=1)
    got = threading.Event()
    world.channel.basic_consume("q", lambda *_: got.set())
    world.fill("q")
    assert got.wait(60)
    return lambda: world.channel.basic_ack(0, multiple=True)


def _nack(world: World) -> Callable[[], object]:
    tags = world.take("q")
    return lambda: world.channel.basic_nack(tags[-1], multiple=True)


def _reject(world: World) -> Callable[[], object]:
    tags = world.take("dying")
    return lambda: world.channel.basic_reject(tags[1], requeue=False)


def _purge(world: World) -> Callable[[], object]:
    world.fill("q")
    return lambda: world.channel.queue_purge("q")


def _close(world: World) -> Callable[[], object]:
    world.take("q")
    world.channel.basic_consume("q", lambda *_: None, auto_ack=True)
    return lambda: world.channel.close()


def _commit(world: World) -> Callable[[], object]:
    tags = world.take("q")
    world.channel.tx_select()
    world.channel.basic_publish("", "q", b"body")
    world.channel.basic_ack(tags[0])
    world.channel.basic_reject(tags[1])
    return lambda: world.channel.tx_commit()


def _rollback(world: World) -> Callable[[], object]:
    tags = world.take("q")
    world.channel.tx_select()
    world.channel.basic_ack(tags[0])
    return lambda: world.channel.tx_rollback()


def _recover(world: World) -> Callable[[], object]:
    world.take("q")
    return lambda: world.channel.basic_recover(requeue=True)


def _declare_and_bind(world: World) -> Callable[[], object]:
    def call() -> None:
        world.channel.exchange_declare("x", "topic")
        world.channel.queue_bind("q", "x", "a.#")
        world.channel.queue_unbind("q", "x", "a.#")
        world.channel.exchange_delete("x")

    return call


CALLS = [
    *(_publish, _publish_to_a_full_queue, _publish_to_a_consumer, _get, _consume, _cancel, _ack, _ack_with_a_consumer),
    *(_nack, _reject, _purge, _close, _commit, _rollback, _recover, _declare_and_bind),
]

Prepared: TypeAlias = Callable[[World], Callable[[], object]]

# How many messages may be there before a call, or after it: where it takes effect whole, or not at all.
TOTALS = {
    "publish": {0, 1}, "publish_to_a_full_queue": {3}, "publish_to_a_consumer": {0, 1}, "get": {3}, "consume": {3},
    "cancel": {3}, "ack": {3, 2}, "ack_with_a_consumer": {3, 2}, "nack": {3}, "reject": {3}, "purge": {3, 0},
    "close": {0, 1, 2, 3}, "commit": {3}, "rollback": {3}, "recover": {3}, "declare_and_bind": {0},
}  # fmt: skip


def _check(world: World, call: Callable[..., Any]) -> None:
    with world.broker._runtime:  # whichever thread is in a section leaves it
        states = [state for state in world.states if not state.gone]
        total = audit(world.host, states)
    expected = TOTALS[call.__name__[1:]]
    assert total in expected, f"{call.__name__}: {total} messages, expected one of {expected}"
    assert not world.broker._runtime.locked()
    done = threading.Event()
    thread = threading.Thread(target=lambda: (world.other.queue_declare("q", passive=True), done.set()), daemon=True)
    thread.start()
    assert done.wait(60), "the call of another thread does not return"
    thread.join()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.broker.close()


@needs_a_timer
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__[1:])
def test_a_signal_handler_that_raises_at_any_moment(world: World, call: Prepared) -> None:
    def after() -> None:
        _check(world, call)
        world.empty()

    interrupt(lambda: call(world), after, count(200, 10_000))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__[1:])
def test_an_exception_at_each_line_of_a_call(world: World, call: Prepared) -> None:
    """Lines of manytail's interpreted code: there a signal handler may raise."""
    for number in itertools.count(1):
        operation = call(world)
        left = number

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if event == "line" and frame.f_code.co_filename.startswith(PACKAGE):
                left -= 1
                if left == 0:
                    sys.settrace(None)
                    raise Interrupted
            return trace

        try:
            sys.settrace(trace)
            operation()
        except Interrupted:
            assert left == 0
        finally:
            sys.settrace(None)
        _check(world, call)
        world.empty()
        if left > 0:  # the call has fewer lines
            return
