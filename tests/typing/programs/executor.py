"""KeyedExecutor and Lane."""

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import assert_type

from manytail.executor import KeyedExecutor, Lane


def add(left: int, right: int = 0) -> float:
    return left + right


executor = KeyedExecutor(4, per_key=1, max_pending=100)
any_executor: Executor = executor
assert_type(executor.submit(add, 1, right=2), Future[float])
assert_type(executor.submit(add, 1).result(), float)
lane = executor.lane("customer 7", priority=1, weight=2, max_pending=10, max_running=1)
assert_type(lane, Lane)
assert_type(lane.submit(add, 1), Future[float])
assert_type(executor.map(add, [1, 2], order="completion", buffersize=10), Iterator[float])
assert_type(lane.map(add, [1, 2]), Iterator[float])
lane.priority, lane.weight, lane.max_running = 1, 2, 3
with executor as entered:
    assert_type(entered, KeyedExecutor)

executor.submit(add, "1")  # error: arg-type, reportArgumentType
executor.submit(add)  # error: call-arg, reportCallIssue
lane.submit(add, 1, wrong=2)  # error: call-arg, reportCallIssue
lane.submit(add, "1")  # error: arg-type, reportArgumentType
executor.lane("key", running=1)  # error: call-arg, reportCallIssue
executor.lane([])  # error: arg-type, reportArgumentType
executor.map(add, [1], order="key")  # error: arg-type, reportArgumentType
KeyedExecutor(workers=4)  # error: call-arg, reportCallIssue
lane.weight = "heavy"  # error: assignment, reportAttributeAccessIssue
