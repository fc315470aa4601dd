"""manytail.queue takes the place of queue, and its exceptions are the standard library's."""

import logging.handlers
import queue as standard
from typing import assert_type

from manytail import queue

jobs: queue.Queue[str] = queue.Queue(maxsize=10)
jobs.put("a", timeout=1)
assert_type(jobs.get(), str)
assert_type(jobs.get_nowait(), str)
assert_type(jobs.full(), bool)
with jobs.mutex:
    jobs.not_empty.notify()
latest: queue.LifoQueue[int] = queue.LifoQueue()
assert_type(latest.get(block=False), int)
smallest: queue.PriorityQueue[tuple[int, str]] = queue.PriorityQueue()
assert_type(smallest.get(), tuple[int, str])
simple: queue.SimpleQueue[bytes] = queue.SimpleQueue()
assert_type(simple.get(timeout=0.5), bytes)
records: queue.Queue[object] = queue.Queue()
logging.handlers.QueueHandler(records)

jobs.put(1)  # error: arg-type, reportArgumentType
smallest.put("a")  # error: arg-type, reportArgumentType
queue.Queue("10")  # error: arg-type, reportArgumentType
queue.SimpleQueue(10)  # error: call-arg, reportCallIssue
jobs.aget()  # error: attr-defined, reportAttributeAccessIssue

try:
    jobs.get_nowait()
except queue.Empty as error:
    same: standard.Empty = error
try:
    jobs.put_nowait("a")
except (queue.Full, queue.ShutDown) as error:
    print(error)
