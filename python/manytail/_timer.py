"""Two daemon threads that serve all entry queues of the process: the timer thread and the dead-letter thread.

There is at most one thread of each kind. A request starts the thread if it does not run. The thread ends when no
requests are left. A request is put into a SimpleQueue, whose put is reentrant: a finalizer or a signal handler may make
a request.

A thread serves a request and then forgets it: at every moment the request is in a SimpleQueue, an attribute or the
heap. So neither a fork nor an exception in the thread loses a request. After either, one may be served twice. An
exception (a MemoryError, for instance) ends the thread and is reported, and the next request starts the thread again.
In the child of a fork the thread is gone, or it is the thread that forked, and it ends soon. There begin_again() keeps
the requests that are left, and restart() starts a thread for them. A request is lost only if begin_again() itself finds
no memory.

The timer thread expires entries, and makes held ones available, when they are due. Every queue depends on it, so it
runs no user code but this: the hook that reports a problem, methods of an event loop that it wakes, and finalizers that
a garbage collection or the end of a queue starts. A listener's task is submitted in a new thread, or here if no thread
can be started (_consumers.pyx).

The dead-letter thread runs the user code of expiry: the callables that receive expired items, in order, and the
finalizers of those items. It also drops a queue to which nothing but the timer thread refers. User code that blocks
here delays only other dead letters.

_entries.pyx makes one of each, and says what is done for a queue and where errors are reported.
"""

from __future__ import annotations

import heapq
import sys
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from manytail._lifecycle import start_daemon
from manytail._sync import Event, now_ns

_Call = Callable[..., Any]
LONGEST = 1e9  # seconds of a sleep, so that its end is a time that 64 bits hold


class ServiceThread:
    """A daemon thread that runs while there are requests. A subclass reads and serves them in work(), and calls start()
    after putting one."""

    def __init__(self, serve: _Call, report: _Call) -> None:
        # Timer: serve(queue) does what is due there. DeadLetterThread: serve(queue) does one thing, and returns whether
        # there may be more.
        self.serve = serve
        self.report = report  # called with (exception, self)
        self.begin()

    def work(self) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        self.requests: SimpleQueue[Any] = SimpleQueue()
        # A list of one item. Whoever pops the item starts the thread. The thread puts it back when it ends.
        self.start_tokens = ["to run"]

    def start(self) -> None:
        """Start the thread unless it runs. Call it after putting a request."""
        try:
            self.start_tokens.pop()
        except IndexError:
            return  # it runs
        # Not threading.Thread: its start() waits, and a signal handler that raises during that would lead to two
        # threads.
        try:
            start_daemon(self.run)
        except BaseException:
            self.start_tokens.append("to run")
            raise

    def run(self) -> None:
        tokens = self.start_tokens
        try:
            while True:
                self.work()
                if self.is_replaced(tokens) or self.try_to_end():
                    return
        except BaseException as problem:  # for instance no memory: the next request starts the thread again
            tokens.append("to run")
            self.report(problem, self)

    def is_replaced(self, tokens: list[str]) -> bool:
        """Whether begin_again() ran since start_tokens was `tokens`. Then user code that this thread ran has forked,
        this is the child, and this thread must end."""
        return self.start_tokens is not tokens

    def try_to_end(self) -> bool:
        """Give the token back. False: a request came in between, and this thread has taken the token again."""
        self.start_tokens.append("to run")
        if self.requests.empty():
            return True
        try:  # a request came in between: go on, unless its sender has the token
            self.start_tokens.pop()
        except IndexError:
            return True
        return False

    def take_out_requests(self) -> list[Any]:
        """In the child of a fork: take out all requests that are not served to the end."""
        left = []
        while not self.requests.empty():
            left.append(self.requests.get_nowait())
        return left

    def begin_again(self) -> None:
        """In the child of a fork: forget the parent's thread, and keep the requests for restart()."""
        left = self.take_out_requests()
        self.begin()
        for request in left:
            self.requests.put(request)

    def restart(self) -> None:
        """Start the thread if requests are left. If that fails, the next request starts it."""
        if not self.requests.empty():
            try:
                self.start()
            except BaseException as problem:
                self.report(problem, self)


class DeadLetterThread(ServiceThread):
    """Requests are queues that have dead letters or expired items for this thread."""

    def begin(self) -> None:
        ServiceThread.begin(self)
        self.current: object = None  # the queue that is being served

    def request(self, queue: object) -> None:
        self.requests.put(queue)
        self.start()

    def work(self) -> None:
        tokens = self.start_tokens
        while self.current is not None or not self.requests.empty():
            if self.current is None:
                self.current = self.requests.get_nowait()
            more = True
            while more:
                more = self.serve(self.current)
                if self.is_replaced(tokens):
                    return
            self.current = None

    def take_out_requests(self) -> list[Any]:
        return ServiceThread.take_out_requests(self) + ([] if self.current is None else [self.current])


class QueueReference(weakref.ref[Any]):
    """A weak reference to a queue, with the queue's id, and whether the queue is gone. Read `gone` instead of calling
    the reference: a call may make the last reference to the queue."""

    __slots__ = ("gone", "queue_id")
    gone: bool
    queue_id: int


_Request = tuple[int, int, QueueReference]


class Timer(ServiceThread):
    """Requests are (when, id of the reference, QueueReference): serve that queue at that time (ns of the monotonic
    clock), or earlier. The id keeps the heap from comparing references, which have no order. (0, 0, QueueReference)
    says that the queue is gone.

    Only the earliest request of a queue is valid: whoever serves the queue makes the next one. Others are stale."""

    def __init__(self, serve: _Call, report: _Call, hand_over: _Call) -> None:
        ServiceThread.__init__(self, serve, report)
        self.hand_over = hand_over  # called with a queue to which nothing else seems to refer

    def begin(self) -> None:
        ServiceThread.begin(self)
        self.event = Event()  # what the thread sleeps on
        self.earliest: dict[int, _Request] = {}  # id of a queue -> its valid request
        self.heap: list[_Request] = []  # the valid requests, and stale ones
        self.unread: _Request | None = None  # the request that read_all() moves from `requests` to the heap

    def arm(self, when: int, queue: object) -> None:
        """Serve the queue at that time, or earlier."""
        reference = QueueReference(queue, self.forget)
        reference.gone = False
        reference.queue_id = id(queue)
        self.requests.put((when, id(reference), reference))
        self.wake()

    def forget(self, reference: QueueReference) -> None:
        """A queue is gone: let the thread drop its request, and end if there are no others."""
        reference.gone = True
        self.requests.put((0, 0, reference))
        self.wake()

    def wake(self) -> None:
        self.event.set()
        self.start()

    def work(self) -> None:
        tokens = self.start_tokens
        while True:
            self.read_all()
            self.drop_stale()
            self.serve_due()
            if self.is_replaced(tokens) or not self.earliest:
                return
            # Not SimpleQueue.get(timeout=...): if it retries and the rest of the time is negative, CPython 3.11.7 takes
            # that for "no timeout", and sleeps for ever.
            self.event.wait(min(max(self.heap[0][0] - now_ns(), 0) / 1e9, LONGEST))
            self.event.clear()  # before it reads the requests: whoever sets it then has put one that it reads

    def read_all(self) -> None:
        """Read the requests, beginning with the one that a MemoryError kept from being read."""
        while self.unread is not None or not self.requests.empty():
            request = self.unread = self.unread or self.requests.get_nowait()
            self.read(request)
            self.unread = None

    def read(self, request: _Request) -> None:
        """Keep the earliest request of a queue. Its id may be that of a queue which is gone."""
        queue_id = request[2].queue_id
        known = self.earliest.get(queue_id)
        if known is not None and known[2].gone:
            del self.earliest[queue_id]
            known = None
        if not request[2].gone and (known is None or request[0] < known[0]):
            heapq.heappush(self.heap, request)
            self.earliest[queue_id] = request

    def is_stale(self, request: _Request) -> bool:
        return self.earliest.get(request[2].queue_id) is not request

    def drop_stale(self) -> None:
        """Keep the heap small: a queue may be armed for an earlier time again and again."""
        if len(self.heap) > 2 * len(self.earliest):
            self.heap = [request for request in self.heap if not self.is_stale(request)]
            heapq.heapify(self.heap)

    def serve_due(self) -> None:
        """Serve what is due. A request leaves the heap after it is served."""
        heap, earliest, now = self.heap, self.earliest, now_ns()
        while heap and (heap[0][0] <= now or self.is_stale(heap[0])):
            if not self.is_stale(heap[0]):
                self.serve_one(heap[0][2])
                if self.heap is not heap:  # serve_one() forked, this is the child: begin_again() made a new heap
                    return
                del earliest[heap[0][2].queue_id]
            heapq.heappop(heap)

    def serve_one(self, reference: QueueReference) -> None:
        queue = [reference()]  # a list: one reference to the queue, whichever way this is compiled
        if queue[0] is None:
            return
        self.serve(queue[0])
        if sys.getrefcount(queue[0]) > 2:
            return
        try:
            # Freeing the queue runs the finalizers of its items: in the dead-letter thread, unless that drops its
            # reference before this one does.
            self.hand_over(queue[0])
        except BaseException as problem:
            self.report(problem, self)

    def take_out_requests(self) -> list[Any]:
        unread = [] if self.unread is None else [self.unread]
        requests = self.heap + unread + ServiceThread.take_out_requests(self)
        return [request for request in requests if not request[2].gone]
