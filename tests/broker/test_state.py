"""The pure state without a thread: the test passes the times of operations and checks the effects they leave."""

import threading
from typing import Any

import pytest

from manytail.broker._protocol import BindingArguments, QueueArguments, ReplyError, message_of
from manytail.broker._routing import ExchangeRequest
from manytail.broker._state import CANCELLED, ChannelState, Consumer, Queue, RoundRobin, VirtualHost, close_channels
from manytail.broker.spec import BasicProperties


class World:
    """A virtual host whose effects run at once: deliveries are recorded, timers are numbers."""

    def __init__(self) -> None:
        self.host = VirtualHost(self.set_timer)
        self.now = 100.0
        self.timers: dict[str, float] = {}
        self.delivered: list[tuple[str, int, bool, Any]] = []
        self.cancelled: list[str] = []
        self.returned: list[Any] = []

    def set_timer(self, effect: Any) -> None:
        (queue,) = effect
        self.timers.pop(queue.name, None)
        if queue.due is not None:
            self.timers[queue.name] = queue.due

    def channel(self, connection: object = "connection") -> ChannelState:
        return ChannelState(self.host, connection, lambda effect: self.returned.append(effect[2].body))

    def queue(self, channel: ChannelState, name: str = "q", **arguments: Any) -> Queue:
        asked = QueueArguments(name, {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()})
        channel.declare_queue(name, False, False, asked.quorum, False, False, asked, self.now)
        self.end()
        return self.host.queues[name]

    def publish(
        self,
        channel: ChannelState,
        *bodies: Any,
        exchange: str = "",
        key: str = "q",
        mandatory: bool = False,
        **properties: Any,
    ) -> str:
        outcome = ""
        for body in bodies:
            message, error = message_of(body, BasicProperties(**properties) if properties else None, exchange, key)
            outcome = channel.publish(message, mandatory, error, self.now)
            self.end()
        return outcome

    def consume(self, channel: ChannelState, tag: str, queue: str = "q", **options: Any) -> Consumer:
        consumer = Consumer(tag, self.deliver, **options)
        channel.consume(queue, consumer, None, self.now)
        self.end()
        return consumer

    def deliver(self, effect: Any) -> None:
        if effect[1] == CANCELLED:
            self.cancelled.append(effect[0].tag)
        else:
            consumer, tag, redelivered, message, _ = effect
            self.delivered.append((consumer.tag, tag, redelivered, message.body))

    def settle(self, channel: ChannelState, how: str, tag: int, multiple: bool = False) -> None:
        channel.settle(how, tag, multiple, self.now)
        self.end()

    def end(self) -> None:
        """The end of a section."""
        self.host.publish_dead_letters(self.now, 1_000_000_000)
        while self.host.effects:
            effect = self.host.effects.popleft()
            effect[0].target(effect)

    def pass_time(self, seconds: float) -> None:
        """Run the timers that are due, in order, each at its time."""
        end = self.now + seconds
        while self.timers and min(self.timers.values()) <= end:
            name = min(self.timers, key=lambda each: self.timers[each])
            self.now = self.timers.pop(name)
            self.host.queues[name].tick(self.now)
            self.end()
        self.now = end

    def take_delivered(self) -> list[tuple[str, int, bool, Any]]:
        taken, self.delivered = self.delivered, []
        return taken


@pytest.fixture
def world() -> World:
    return World()


def test_the_state_needs_no_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    channel = world.channel()
    world.queue(channel, message_ttl=10, expires=20)
    world.publish(channel, 1)
    world.consume(channel, "a")
    assert started == []
    assert world.delivered == [("a", 1, False, 1)]


def test_times_to_live_end_at_their_time_and_become_dead_letters(world: World) -> None:
    channel = world.channel()
    world.queue(channel, "dead")
    world.queue(channel, message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.publish(channel, 1, expiration="5000")
    world.publish(channel, 2, expiration="500")
    assert world.timers == {"q": 101.0}  # that of the head; expiry is checked only there
    world.pass_time(0.999)
    assert world.host.queues["q"].ready == 2
    world.pass_time(0.001)
    assert (world.host.queues["q"].ready, world.host.queues["dead"].ready, world.timers) == (0, 2, {})
    _, _, message, _, _ = channel.get("dead", True, world.now) or pytest.fail("nothing")
    assert [
        (death["reason"], death["count"], death["original-expiration"]) for death in message.headers["x-death"]
    ] == [("expired", 1, "5000")]


def test_a_queue_that_is_used_moves_a_number_and_sets_no_timer(world: World) -> None:
    channel = world.channel()
    queue = world.queue(channel, expires=10_000)
    for _ in range(640):
        world.pass_time(1 / 128)
        channel.get("q", True, world.now)
        assert len(world.host.effects) == 0
    assert world.timers == {"q": 110.0}
    world.pass_time(5.0)
    assert (queue.deleted, world.timers) == (False, {"q": 115.0})
    world.consume(channel, "a")
    world.pass_time(60.0)
    assert (queue.deleted, world.timers) == (False, {})
    channel.cancel("a", world.now)
    world.end()
    world.pass_time(10.0)
    assert (queue.deleted, world.timers, world.host.queues) == (True, {}, {})


def test_a_deleted_queue_drops_its_timer_and_cancels_its_consumers(world: World) -> None:
    channel = world.channel()
    world.queue(channel, message_ttl=1000)
    world.consume(channel, "a", auto_ack=False)
    world.publish(channel, 1)
    channel.qos(0, 1, True, world.now)
    world.publish(channel, 2)
    assert world.timers == {"q": 101.0}
    assert channel.delete_queue("q", False, False) == 1
    world.end()
    assert (world.timers, world.cancelled, world.delivered) == ({}, ["a"], [("a", 1, False, 1)])
    world.settle(channel, "requeue", 1)  # its queue is deleted
    assert channel.unacked == {}


def test_an_early_tick_does_no_harm(world: World) -> None:
    channel = world.channel()
    queue = world.queue(channel, message_ttl=1000)
    world.publish(channel, 1)
    queue.tick(world.now)
    world.end()
    assert (queue.ready, world.timers) == (1, {"q": 101.0})


def test_what_ends_is_dropped_by_the_caller(world: World) -> None:
    """The caller drops it: freeing its body may run user code."""
    channel = world.channel()
    world.queue(channel, max_length=1)
    world.publish(channel, "dropped", "purged")
    channel.purge("q")
    world.publish(channel, "rejected")
    channel.get("q", False, world.now)
    world.settle(channel, "reject", 1)
    dropped = [delivery.message.body for delivery in world.host.dropped]  # type: ignore[attr-defined]
    assert dropped == ["dropped", "purged", "rejected"]


def test_a_refusal_changes_nothing(world: World) -> None:
    channel = world.channel()
    world.queue(channel)
    world.publish(channel, 1)
    channel.get("q", False, world.now)
    for code, operation in (
        (404, lambda: channel.queue("none")),
        (406, lambda: channel.settle("ack", 9, True, world.now)),
        (406, lambda: channel.tx_commit(world.now)),
        (403, lambda: channel.host.exchanges.delete("amq.direct", False)),
        (404, lambda: channel.bind_queue("q", "none", "", BindingArguments.of(None))),
        (405, lambda: world.channel("other").queue("mine")),
        (503, lambda: channel.declare_exchange(ExchangeRequest("x", "none", False, False, False, None), False)),
        (540, lambda: channel.recover(False, world.now)),
    ):
        asked = QueueArguments("mine", None)
        channel.declare_queue("mine", False, False, False, True, False, asked, world.now)
        with pytest.raises(ReplyError) as raised:
            operation()
        assert raised.value.code == code
    assert (sorted(channel.unacked), len(world.host.effects), sorted(world.host.queues)) == ([1], 0, ["mine", "q"])


def test_round_robin_is_by_priority_and_leaves_parked_ones_alone() -> None:
    class At:
        at_limit = False

    consumers = [
        Consumer(tag, print, priority=priority) for tag, priority in (("low", -1), ("a", 0), ("b", 0), ("high", 1))
    ]
    ring = RoundRobin()
    for consumer in consumers:
        consumer.channel = At()  # type: ignore[assignment]
        ring.add(consumer)
    taken = [ring.next() for _ in range(2)]
    consumers[3].credit = 0
    taken += [ring.next() for _ in range(3)]
    consumers[1].credit = consumers[2].credit = 0
    taken.append(ring.next())
    consumers[3].credit = 1
    taken.append(ring.next())  # it is parked until it is added again
    ring.add(consumers[3])
    taken.append(ring.next())
    assert [consumer and consumer.tag for consumer in taken] == ["high", "high", "a", "b", "a", "low", "low", "high"]


def test_dead_letters_between_queues_end() -> None:
    """Two queues that send each other their expired messages: the cycle is detected, and the section ends."""
    world = World()
    channel = world.channel()
    world.queue(channel, "a", message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="b")
    world.queue(channel, "b", message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="a")
    world.publish(channel, 1, key="a")
    world.pass_time(10)
    assert [queue.ready for queue in world.host.queues.values()] == [0, 0]
    assert world.timers == {}


def test_channels_that_close_together_pass_nothing_to_one_another(world: World) -> None:
    """Each would count as a return, and x-delivery-limit would end the message."""
    channels = [world.channel() for _ in range(4)]
    world.queue(channels[0], queue_type="quorum", delivery_limit=2)
    for number, channel in enumerate(channels):
        channel.qos(0, 1, False, world.now)
        world.consume(channel, f"c{number}")
    world.publish(channels[0], "m")
    close_channels(channels, world.now)
    world.end()
    assert [tag for tag, *_ in world.delivered] == ["c0"]
    assert world.host.queues["q"].ready == 1
