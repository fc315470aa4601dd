"""EntryQueue and its relatives: the item's type passes through, options are checked by name and value."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, assert_type

from manytail import (
    Consumer,
    DeadReason,
    Entry,
    EntryQueue,
    EntryState,
    LastValueQueue,
    PriorityEntryQueue,
    QueueStats,
    SortedEntryQueue,
    Subscription,
)

dead: EntryQueue[str] = EntryQueue("dead")
queue: EntryQueue[str] = EntryQueue("work", maxsize=10, overflow="reject", ttl=1.5, dead_letter=dead, groups="shared")
entry = queue.put("a", headers={"colour": "red"}, priority=9, delay=1, group=("g", 1))
assert_type(entry, Entry[str])
assert_type(queue.put("a", immediate=True), Entry[str] | None)
assert_type(queue.put_many(["a"], priority=9), int)
assert_type(queue.browse(), Iterator[Entry[str]])
assert_type(queue.stats(), QueueStats)
assert_type(queue.stats().oldest_age, float | None)

EntryQueue("q", overflow="drop")  # error: arg-type, reportArgumentType
EntryQueue("q", groups="all")  # error: arg-type, reportArgumentType
EntryQueue("q", 10)  # error: call-arg, reportCallIssue
numbers: EntryQueue[int] = EntryQueue(dead_letter=dead)  # error: arg-type, reportAssignmentType
queue.put(1)  # error: call-overload, reportArgumentType
queue.put("a", prio=1)  # error: call-overload, reportCallIssue
queue.put_many(["a"], prio=1)  # error: call-arg, reportCallIssue
queue.put_many(["a"], immediate=True)  # error: call-arg, reportCallIssue

assert_type(entry.queue, EntryQueue[str])
assert_type(entry.item, str)
assert_type(entry.headers, Mapping[str, Any])
assert_type(entry.state, EntryState)
assert_type(entry.group, Hashable | None)
assert_type(entry.expires_at, float | None)
assert_type(entry.ack(), bool)
assert_type(entry.release(delay=0.5), bool)
entry.release(0.5)  # error: call-arg, reportCallIssue
entry.priority = 3  # error: misc, reportAttributeAccessIssue
entry.headers["colour"] = "blue"  # error: index, reportIndexIssue

subscription = queue.subscribe(prefetch=5, selector=lambda entry: entry.item > "a", start="newest")
assert_type(subscription, Subscription[str])
assert_type(subscription.get(timeout=1), Entry[str])
assert_type(subscription.get_many(5), list[Entry[str]])
assert_type(subscription.get_many(5, linger=0.05), list[Entry[str]])
assert_type(subscription.ack_up_to(entry), int)
assert_type(subscription.interest, Literal["interested", "notified", "not_interested", "non_acquiring", "closed"])
subscription.prefetch = 7
with subscription as entered:
    assert_type(entered, Subscription[str])
for each in subscription:
    assert_type(each, Entry[str])
queue.subscribe(selector="colour = 'red'")
queue.subscribe(start="last")  # error: arg-type, reportArgumentType
queue.subscribe(selector=lambda entry: entry.item + 1)  # error: operator, reportOperatorIssue

consumer: Consumer[str] = Consumer(prefetch=5)
assert_type(consumer.subscribe(queue, selector="a = 1"), Subscription[str])
assert_type(consumer.get(), Entry[str])
assert_type(consumer.get_many(5, linger=0.05), list[Entry[str]])
consumer.get_many(5, linger="1")  # error: arg-type, reportArgumentType
consumer.subscribe(queue, prefetch=1)  # error: call-arg, reportCallIssue
consumer.subscribe(numbers)  # error: arg-type, reportArgumentType


def handle(entry: Entry[str]) -> None:
    entry.ack()


def handle_number(entry: Entry[int]) -> None:
    entry.ack()


with ThreadPoolExecutor() as executor:
    consumer.listen(handle, executor=executor)
    consumer.listen(handle_number, executor=executor)  # error: arg-type, reportArgumentType
    consumer.listen(handle, executor=print)  # error: arg-type, reportArgumentType


def bury(entry: Entry[str], reason: DeadReason) -> None:
    assert_type(entry.item, str)
    print(reason.value.upper())


buried: Callable[[Entry[str], DeadReason], None] = bury
assert_type(EntryQueue(dead_letter=bury), EntryQueue[str])
levels: PriorityEntryQueue[str] = PriorityEntryQueue("levels", levels=4, mapping="direct", maxsize=10, dead_letter=dead)
assert_type(levels.put("a"), Entry[str])
assert_type(levels.levels, int)
PriorityEntryQueue("levels", mapping="amqp")  # error: arg-type, reportArgumentType
PriorityEntryQueue("levels", maxsise=10)  # error: call-arg, reportCallIssue


def length(item: str) -> int:
    return len(item)


assert_type(SortedEntryQueue("sorted", key=length, ttl=60.0), SortedEntryQueue[str])
assert_type(LastValueQueue("last", key=length).subscribe().get().item, str)
SortedEntryQueue("sorted")  # error: call-arg, reportCallIssue
SortedEntryQueue("sorted", key=length, ttl="60")  # error: arg-type, reportArgumentType


async def coroutines() -> None:
    assert_type(await queue.aput("a", priority=9), Entry[str])
    assert_type(await queue.aput("a", immediate=True), Entry[str] | None)
    await queue.aput("a", prio=9)  # error: call-overload, reportCallIssue
    assert_type(await subscription.aget(), Entry[str])
    assert_type(await consumer.aget(), Entry[str])
    async for each in subscription:
        assert_type(each, Entry[str])
    async for each in consumer:
        assert_type(each, Entry[str])
