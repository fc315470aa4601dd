"""MultiQueue and IndexMultiQueue: the types of keys and items pass through."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, assert_type

import numpy
import numpy.typing

from manytail import IndexMultiQueue, MultiQueue, MultiQueueStats, SubQueue, get_include

queue: MultiQueue[str, bytes] = MultiQueue()
urgent = queue.add("urgent", priority=-1, maxsize=10, weight=2, enabled=False)
assert_type(urgent, SubQueue[str, bytes])
assert_type(queue.setdefault("bulk"), SubQueue[str, bytes])
assert_type(queue.remove("bulk"), SubQueue[str, bytes])
assert_type(queue["urgent"], SubQueue[str, bytes])
assert_type(queue.subqueues, Mapping[str, SubQueue[str, bytes]])
assert_type(queue.get(), bytes)
assert_type(queue.get(timeout=1), bytes)
assert_type(queue.get_nowait(), bytes)
assert_type(queue.peek(), bytes)
assert_type(queue.get_with_key(False), tuple[str, bytes])
assert_type(queue.get_many(10), list[bytes])
assert_type(queue.get_many(10, timeout=1, linger=0.05), list[bytes])
assert_type(queue.join(1.0), bool)
assert_type(queue.stats(), MultiQueueStats)
assert_type(queue.stats().qsize, int)
assert_type(queue.is_shutdown, bool)
assert_type(get_include(), str)

queue.add(b"urgent")  # error: arg-type, reportArgumentType
queue.add("urgent", 1)  # error: call-arg, reportCallIssue
queue.add("urgent", priority="high")  # error: arg-type, reportArgumentType
queue.add("urgent", size=10)  # error: call-arg, reportCallIssue
queue.get_many(10, True, 1, 0.05)  # error: call-arg, reportCallIssue
queue.get_many(10, linger=None)  # error: arg-type, reportArgumentType
queue.get(timeout="1")  # error: arg-type, reportArgumentType
queue.put(b"")  # error: attr-defined, reportAttributeAccessIssue
queue["urgent"] = urgent  # error: index, reportIndexIssue
queue.subqueues["urgent"] = urgent  # error: index, reportIndexIssue
len(queue)  # error: arg-type, reportArgumentType

urgent.put(b"")
urgent.put(b"", block=False)
urgent.put_front(b"", timeout=1.5)
assert_type(urgent.put_many([b""]), int)
assert_type(urgent.key, str)
assert_type(urgent.remaining(), int | None)
assert_type(urgent.size, int)
assert_type(iter(urgent), Iterator[bytes])
assert_type(urgent.discard(b""), bool)
urgent.priority, urgent.weight, urgent.maxsize, urgent.enabled = 1, 2, 3, True

urgent.put("text")  # error: arg-type, reportArgumentType
urgent.put_many(["text"])  # error: list-item, reportArgumentType
urgent.key = "other"  # error: misc, reportAttributeAccessIssue
urgent.priority = "high"  # error: assignment, reportAttributeAccessIssue
urgent.get()  # error: attr-defined, reportAttributeAccessIssue

assert_type(queue.add("sized", maxsize=1_000_000, sizer=len), SubQueue[str, bytes])
assert_type(queue.setdefault("sized", sizer=lambda item: item[0]), SubQueue[str, bytes])
queue.add("sized", sizer=1)  # error: arg-type, reportArgumentType
queue.add("sized", sizer=str.upper)  # error: arg-type, reportArgumentType
urgent.size = 0  # error: misc, reportAttributeAccessIssue


def longest(ready: Sequence[SubQueue[str, bytes]]) -> SubQueue[str, bytes]:
    return max(ready, key=lambda subqueue: subqueue.qsize())


def first(ready: Sequence[SubQueue[str, bytes]]) -> bytes:
    return next(iter(ready[0]))


def chosen(selection: Literal["weighted", "oldest"]) -> MultiQueue[str, bytes]:
    return MultiQueue(selection=selection)


chosen_by_length = MultiQueue(selection=longest)
assert_type(chosen_by_length, MultiQueue[str, bytes])
by_name: MultiQueue[str, bytes] = MultiQueue(selection="fair")  # error: arg-type, reportArgumentType
by_item: MultiQueue[str, bytes] = MultiQueue(selection=first)  # error: arg-type, reportArgumentType
unhashable: MultiQueue[list[int], bytes]  # error: type-var, reportInvalidTypeArguments


class Jobs(MultiQueue[int, str]):
    """A subclass keeps the types."""

    def take(self) -> str:
        return self.get()


assert_type(Jobs().add(7).key, int)

rows: IndexMultiQueue[str] = IndexMultiQueue()
Array = numpy.typing.NDArray[numpy.int64]
assert_type(rows.get(), int)
assert_type(rows.get_with_key(), tuple[str, int])
assert_type(rows.get_many(100), Array)
assert_type(rows.get_many(100, linger=0.05), Array)
assert_type(rows.get_many_into(numpy.empty(10, numpy.int64)), int)
rows.add("table").put_many(numpy.arange(10))
rows.add("more").put_many(range(10))
rows.add("text").put("7")  # error: arg-type, reportArgumentType
rows.get_many_into([0] * 10)  # error: arg-type, reportArgumentType


async def coroutines() -> None:
    assert_type(await queue.aget(), bytes)
    assert_type(await queue.aget_with_key(), tuple[str, bytes])
    assert_type(await queue.aget_many(10), list[bytes])
    assert_type(await queue.aget_many(10, linger=0.05), list[bytes])
    assert_type(await rows.aget(), int)
    await urgent.aput(b"")
    await urgent.aput("text")  # error: arg-type, reportArgumentType
    await queue.ajoin()
