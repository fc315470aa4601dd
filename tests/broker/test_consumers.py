"""Consumers: tags, priorities, exclusive and single active ones, cancellation from both ends."""

from typing import Any

import pytest

from broker.sides import Side, ack, server_versions


def test_cancelling_what_is_not_there_is_nothing(side: Side, channel: Any, queue: str) -> None:
    assert list(channel.basic_cancel("nobody")) == []
    recorder = side.consume(channel, queue)
    channel.queue_delete(queue)
    side.settle()
    assert list(channel.basic_cancel(recorder.tag)) == []
    assert channel.is_open


def test_the_highest_priority_first(side: Side, channel: Any, queue: str) -> None:
    recorders = {priority: side.consume(channel, queue, arguments={"x-priority": priority}) for priority in (-1, 1)}
    recorders[0] = side.consume(channel, queue)
    for priority in (1, 0, -1):
        side.publish(channel, queue, 1, 2)
        assert [len(recorders[each].bodies) for each in (1, 0, -1)] == [
            2 if each >= priority else 0 for each in (1, 0, -1)
        ]
        channel.basic_cancel(recorders[priority].tag)


def test_lower_ones_get_what_higher_ones_cannot_take(side: Side, channel: Any, queue: str) -> None:
    channel.basic_qos(prefetch_count=1)
    low, high = side.consume(channel, queue), side.consume(channel, queue, arguments={"x-priority": 5})
    side.publish(channel, queue, *range(3))
    assert (high.bodies, low.bodies) == ([b"0"], [b"1"])
    channel.basic_ack(high.tags[0])
    assert high.bodies == [b"0", b"2"]


def test_equal_ones_take_turns(side: Side, channel: Any, queue: str) -> None:
    recorders = [side.consume(channel, queue) for _ in range(3)]
    side.publish(channel, queue, *range(6))
    assert [recorder.bodies for recorder in recorders] == [[b"0", b"3"], [b"1", b"4"], [b"2", b"5"]]


def test_deleting_the_queue_cancels_and_the_cancel_callback_may_make_calls(side: Side, channel: Any) -> None:
    queue, other = side.queue(channel), side.unique()
    told: list[Any] = []

    def on_cancel(frame: Any) -> None:
        side.queue(channel, other)
        told.append((frame.method.consumer_tag, channel.queue_declare(other, passive=True).method.queue))

    channel.add_on_cancel_callback(on_cancel)
    recorder = side.consume(channel, queue)
    channel.queue_delete(queue)
    side.settle()
    assert told == [(recorder.tag, other)]
    assert channel.consumer_tags == []


def test_consumers_are_counted(side: Side, channel: Any, queue: str) -> None:
    assert side.consumers(channel, queue) == 0
    recorder = side.consume(channel, queue)
    assert channel.flow(True) is True  # which changes nothing
    assert side.consumers(channel, queue) == 1
    channel.basic_cancel(recorder.tag)
    assert side.consumers(channel, queue) == 0


def test_two_consumers_of_one_tag(side: Side, channel: Any, queue: str) -> None:
    channel.basic_consume(queue, ack, consumer_tag="mine")
    with pytest.raises(side.exceptions.DuplicateConsumerTag):
        channel.basic_consume(queue, ack, consumer_tag="mine")
    assert channel.is_open


def test_an_exclusive_consumer_is_alone(side: Side, channel: Any, queue: str) -> None:
    other = side.channel()
    side.publish(channel, queue, *range(3))
    channel.basic_qos(prefetch_count=1)
    recorder = side.consume(channel, queue, exclusive=True)
    side.settle()
    assert other.basic_get(queue, True)[2] == b"1"
    assert side.code(lambda ch: ch.basic_consume(queue, ack), other) == 403
    channel.basic_cancel(recorder.tag)
    third = side.channel()
    side.consume(third, queue)
    assert side.code(lambda ch: ch.basic_consume(queue, ack, exclusive=True)) == 403


def test_a_single_active_consumer_is_followed_by_the_oldest(side: Side, channel: Any) -> None:
    queue = side.queue(channel, arguments={"x-single-active-consumer": True})
    channel.basic_qos(prefetch_count=1)
    first, second, third = (side.consume(channel, queue) for _ in range(3))
    side.publish(channel, queue, *range(4))
    assert [len(each.bodies) for each in (first, second, third)] == [1, 0, 0]
    assert side.code(lambda ch: ch.basic_consume(queue, ack, exclusive=True)) == 403
    channel.basic_cancel(first.tag)
    side.consume(channel, queue)  # a server chooses the next active consumer when one is added
    assert [each.bodies for each in (first, second, third)] == [[b"0"], [b"1"], []]


def test_the_active_consumers_channel_dies(side: Side) -> None:
    one, two = side.channel(), side.channel()
    queue = side.queue(one, arguments={"x-single-active-consumer": True})
    side.publish(one, queue, *range(3))
    first, second = side.consume(one, queue), side.consume(two, queue)
    assert (first.bodies, second.bodies) == ([b"0", b"1", b"2"], [])
    one.close()
    assert second.bodies == [b"0", b"1", b"2"]
    assert second.redelivered == [True] * 3


@pytest.mark.parametrize("method", ["ack", "nack", "reject"])
def test_settling_what_a_deleted_queue_delivered_to_its_single_active_consumer(side: Side, method: str) -> None:
    other, channel = side.channel(), side.channel()
    queue = side.queue(other, durable=True, arguments={"x-queue-type": "quorum", "x-single-active-consumer": True})
    healthy = side.queue(other)
    channel.basic_qos(prefetch_count=1)
    side.consume(channel, queue)
    recorder = side.consume(channel, healthy)
    side.publish(other, queue, 1)
    side.publish(other, healthy, 2, 3)
    other.queue_delete(queue)
    side.settle()
    if method == "ack":
        channel.basic_ack(recorder.tags[0], multiple=True)
    else:
        getattr(channel, f"basic_{method}")(1)
        channel.basic_ack(recorder.tags[0])
    assert recorder.bodies == [b"2", b"3"]


@server_versions(since="4.0")
def test_the_active_consumer_of_a_quorum_queue_holds_what_it_has_not_committed(side: Side, channel: Any) -> None:
    """One of higher priority takes over once the active one holds nothing."""
    other = side.channel()
    queue = side.queue(other, durable=True, arguments={"x-queue-type": "quorum", "x-single-active-consumer": True})
    channel.tx_select()
    low = side.consume(channel, queue, then=ack)
    side.publish(other, queue, 1, 2)
    high = side.consume(other, queue, arguments={"x-priority": 5})
    side.publish(other, queue, 3)
    assert (len(low.bodies) >= 2, high.bodies) == (True, [])
    channel.tx_commit()
    side.publish(other, queue, 4)
    assert high.bodies[-1:] == [b"4"]


def test_messages_that_no_callback_has_seen_go_back_on_cancel(side: Side, channel: Any, queue: str) -> None:
    """pika runs one callback at a time; our lane skips the deliveries that are left in it."""
    side.publish(channel, queue, *range(5))
    recorder = side.consume(channel, queue, then=lambda ch, method, *_: ch.basic_cancel(method.consumer_tag))
    assert recorder.bodies == [b"0"]
    assert side.count(channel, queue) == 4


def test_auto_acked_messages_that_no_callback_has_seen_are_returned_by_cancel(
    side: Side, channel: Any, queue: str
) -> None:
    side.publish(channel, queue, *range(5))
    returned: list[bytes] = []

    def first(ch: Any, method: Any, properties: Any, body: bytes) -> None:
        returned.extend(rest for _, _, rest in ch.basic_cancel(method.consumer_tag))

    recorder = side.consume(channel, queue, then=first, auto_ack=True)
    assert recorder.bodies + returned == [b"0", b"1", b"2", b"3", b"4"]
    assert side.count(channel, queue) == 0


def test_quorum_gets_and_global_limits(side: Side, channel: Any) -> None:
    queue = side.queue(channel, durable=True, arguments={"x-queue-type": "quorum", "x-single-active-consumer": True})
    assert side.code(lambda ch: ch.basic_get(queue)) == 405
    limited = side.channel()
    limited.basic_qos(prefetch_count=1, global_qos=True)
    assert side.code(lambda ch: ch.basic_consume(queue, ack), limited) == 540


def test_cancelling_a_generator_requeues_what_it_has_not_yielded(side: Side, channel: Any, queue: str) -> None:
    side.publish(channel, queue, 0, 1, 2)
    method, _, _ = next(channel.consume(queue))
    channel.cancel()
    assert side.count(channel, queue) == 2
    channel.basic_ack(method.delivery_tag)
    assert side.drain(channel, queue) == [b"1", b"2"]
