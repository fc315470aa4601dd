"""PubSubQueue and Subscriber."""

from typing import assert_type

from manytail import Lagged, PubSubQueue, PubSubStats, Subscriber

queue: PubSubQueue[float] = PubSubQueue(maxsize=10, slow="drop_oldest")
assert_type(queue.publish(1.5), int)
assert_type(queue.publish_many([1.5, 2]), int)
assert_type(queue.stats(), PubSubStats)
subscriber = queue.subscribe(start="oldest")
assert_type(subscriber, Subscriber[float])
assert_type(queue.subscribe(start=17), Subscriber[float])
assert_type(subscriber.get(), float)
assert_type(subscriber.get_many(3, timeout=0.5), list[float])
assert_type(subscriber.get_many(3, linger=0.05), list[float])
assert_type(subscriber.lag, int)
for number in subscriber:
    assert_type(number, float)
with subscriber as entered:
    assert_type(entered, Subscriber[float])
queue.maxsize = 20

PubSubQueue(slow="wait")  # error: arg-type, reportArgumentType
PubSubQueue(10)  # error: call-arg, reportCallIssue
queue.publish("text")  # error: arg-type, reportArgumentType
queue.publish_many([1, "text"])  # error: list-item, reportArgumentType
queue.subscribe(start="first")  # error: arg-type, reportArgumentType
subscriber.get_many(3, linger="1")  # error: arg-type, reportArgumentType
subscriber.lag = 0  # error: misc, reportAttributeAccessIssue

try:
    subscriber.get(False)
except Lagged as error:
    assert_type(error.missed, int)


async def coroutines() -> None:
    assert_type(await queue.apublish(1.5), int)
    assert_type(await subscriber.aget(), float)
    async for number in subscriber:
        assert_type(number, float)
