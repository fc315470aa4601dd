"""Two daemon threads for all entry queues of the process, never more than one of each: the timer, and the thread of
dead letters.

Each starts when it is needed, ends when there is nothing to do, and is started again in the child of a fork if there
is. Whoever puts, in whatever thread, finalizer or signal handler, only puts a request into a SimpleQueue, which may be
done anywhere.

The timer expires and un-holds what is due in queues. Every queue depends on it, so it runs no code of the user's. The
thread of dead letters runs what the timer's thread must not run: the callables that get what expired, in order, and the
finalizers of expired items. One of them that waits delays the others, but never time.

_entries.pyx makes one of each, and says what they do with a queue and to whom they report what goes wrong.
"""
cimport cython
from libc.stdint cimport int64_t

from manytail._c cimport (
    MT_INTERRUPTED, MT_OK, PyThread_acquire_lock_timed, PyThread_allocate_lock, PyThread_free_lock,
    PyThread_release_lock, mt_atomic_u32, mt_now_ns, mt_xchg_seq_cst_u32,
)
from manytail._runtime cimport raise_pending
from manytail._waiting cimport park

import heapq
import itertools
import weakref
from _thread import start_new_thread
from queue import SimpleQueue


@cython.final
cdef class TimerEvent:
    """What the timer sleeps on: any number of set() end one wait. Not SimpleQueue.get with a timeout: if the time is
    over at the moment when that turns it into a shorter one, CPython (3.11.7) takes what is left, less than nothing,
    for "no timeout" and sleeps for ever."""
    cdef void *sem                  # taken: there was no set() since the last wait
    cdef mt_atomic_u32 posted       # a post that nobody has consumed yet

    def __cinit__(self):
        self.sem = PyThread_allocate_lock()
        if self.sem == NULL:
            raise MemoryError
        PyThread_acquire_lock_timed(self.sem, 0, 0)

    def __dealloc__(self):
        if self.sem != NULL:
            PyThread_acquire_lock_timed(self.sem, 0, 0)     # free or taken: a lock is not destroyed while it is taken
            PyThread_release_lock(self.sem)
            PyThread_free_lock(self.sem)

    def set(self):
        """After the request was put."""
        # pairs with: itself in wait(), which looks for requests afterwards: it sees ours, or this sees that it has to
        # post once more
        if not mt_xchg_seq_cst_u32(&self.posted, 1):
            PyThread_release_lock(self.sem)

    def wait(self, int64_t when):
        """Until set(), or until then (ns of the monotonic clock)."""
        cdef int r = park(self.sem, when, True)
        if r == MT_OK:
            mt_xchg_seq_cst_u32(&self.posted, 0)      # pairs with: itself in set()
        elif r == MT_INTERRUPTED:
            raise_pending()


class ServiceThread:
    """A daemon thread that starts with the first request; work() reads them. If it returns, the thread ends until the
    next request."""

    def __init__(self, serve, report):
        self.serve = serve              # what is done for a queue
        self.report = report            # called with (problem, this, name)
        self.begin()

    def begin(self):
        self.requests = SimpleQueue()
        self.start_token = ["to run"]   # whoever pops it starts the thread; the thread puts it back when it ends

    def start(self):
        """After a request was put."""
        try:
            self.start_token.pop()
        except IndexError:
            return                      # it runs
        # Not threading.Thread: its start() waits, and a signal handler that raises there leaves two of them.
        try:
            start_new_thread(self.run, ())
        except BaseException:
            self.start_token.append("to run")
            raise

    def run(self):
        try:
            while True:
                self.work()
                if self.may_end():
                    return
        except BaseException as problem:    # no memory: the next request starts it again
            self.start_token.append("to run")
            self.report(problem, self, type(self).__name__)

    def may_end(self):
        self.start_token.append("to run")
        if self.requests.empty():
            return True
        try:                            # a request came in between, and its sender may have found no token
            self.start_token.pop()
        except IndexError:
            return True
        return False

    def left_requests(self):
        """In the child of a fork, where the thread is gone: its requests, once."""
        requests = self.requests
        left = []
        while not requests.empty():
            left.append(requests.get_nowait())
        return left


class DeadLetterThread(ServiceThread):
    """Requests are queues that have left something to this thread."""

    def begin(self):
        ServiceThread.begin(self)
        self.current = None             # the queue that the thread is at

    def request(self, queue):
        self.requests.put(queue)
        self.start()

    def work(self):
        while not self.requests.empty():
            self.current = self.requests.get_nowait()
            self.serve(self.current)
            self.current = None

    def after_fork(self):
        left = self.left_requests()
        if self.current is not None:
            left.append(self.current)
        self.begin()
        for queue in left:
            self.request(queue)


class Timer(ServiceThread):
    """Requests are (when, queue): look at that queue at that time (ns of the monotonic clock)."""

    def begin(self):
        ServiceThread.begin(self)
        self.event = TimerEvent()
        self.heap = []
        self.count = itertools.count()

    def watch(self, when, queue):
        self.requests.put((when, next(self.count), weakref.ref(queue, self.forget)))
        self.wake()

    def forget(self, _):
        """A queue is gone: its requests need not be waited for."""
        self.requests.put(None)
        self.wake()

    def wake(self):
        self.event.set()
        self.start()

    def work(self):
        while True:
            while not self.requests.empty():
                self.read(self.requests.get_nowait())
            self.look()
            if not self.heap:
                return
            self.event.wait(self.heap[0][0])

    def read(self, request):
        if request is None:
            self.heap = [one for one in self.heap if one[2]() is not None]
            heapq.heapify(self.heap)
        elif request[2]() is not None:
            heapq.heappush(self.heap, request)

    def look(self):
        now = mt_now_ns()
        while self.heap and self.heap[0][0] <= now:
            it = heapq.heappop(self.heap)[2]()
            if it is not None:
                self.serve(it)
            del it

    def after_fork(self):
        """What it had to watch is still to be watched."""
        left = self.heap + [request for request in self.left_requests() if request is not None]
        self.begin()
        for request in left:
            self.requests.put(request)
        if left:
            self.start()
