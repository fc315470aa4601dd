"""Two daemon threads that serve all entry queues of the process: the timer thread and the dead-letter thread.

There is at most one thread of each kind. A request starts it unless it runs, and it ends when it has nothing to do. A
request is put into a SimpleQueue, whose put is reentrant: a finalizer or a signal handler may make one.

A thread serves a request and then forgets it: at every moment the request is in a SimpleQueue, an attribute or the
heap. So neither a fork nor a MemoryError in the thread loses a request; after either, one may be served twice. The
child of a fork has no such thread: begin_again() keeps the requests that are left, and restart() starts a thread for
them. A MemoryError ends the thread, and the next request starts it again. (Lost is what begin_again() itself cannot
keep for memory.)

The timer thread expires entries, and makes held ones available, when they are due. Every queue depends on it, so it
runs no user code but what reports a problem (sys.unraisablehook). A listener that it wakes submits its task in a thread
of its own (_consumers.pyx).

The dead-letter thread runs the user code of expiry: the callables that receive expired items, in order, and the
finalizers of those items. It also drops a queue to which nothing but the timer thread refers. User code that blocks
here delays only other dead letters.

_entries.pyx makes one of each, and says what is done for a queue and where errors are reported.
"""
cimport cython
from libc.stdint cimport int64_t

from manytail._c cimport (
    MT_OK, PyThread_acquire_lock_timed, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock,
    mt_atomic_u32, mt_now_ns, mt_xchg_seq_cst_u32,
)
from manytail._lifecycle cimport raise_if_failed
from manytail._waiting cimport park

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(object)

import heapq
import weakref
from _thread import start_new_thread
from queue import SimpleQueue


@cython.final
cdef class TimerEvent:
    """What the timer thread sleeps on: any number of set() end one wait.

    SimpleQueue.get(timeout=...) cannot be used. When it retries with the remaining time and that is negative, CPython
    3.11.7 takes it for "no timeout" and sleeps for ever."""
    cdef void *sem                  # taken: no set() since the last wait
    cdef mt_atomic_u32 posted       # 1: there is a post that no wait has consumed

    def __cinit__(self):
        self.sem = PyThread_allocate_lock()
        if self.sem == NULL:
            raise MemoryError
        PyThread_acquire_lock_timed(self.sem, 0, 0)

    def __dealloc__(self):
        if self.sem != NULL:
            PyThread_acquire_lock_timed(self.sem, 0, 0)     # a PyThread lock must be free when it is destroyed
            PyThread_release_lock(self.sem)
            PyThread_free_lock(self.sem)

    def set(self):
        """Wake the timer thread. Call it after putting the request."""
        # pairs with: itself in wait(), after which the thread reads the requests. If that misses our request, then the
        # exchange in wait() came first, so that this one returns 0 and posts.
        if not mt_xchg_seq_cst_u32(&self.posted, 1):
            PyThread_release_lock(self.sem)

    def wait(self, int64_t when):
        """Sleep until set(), or until `when` (ns of the monotonic clock)."""
        cdef int r = park(self.sem, when, True)
        if r == MT_OK:
            mt_xchg_seq_cst_u32(&self.posted, 0)      # pairs with: itself in set()
        raise_if_failed(r)


class ServiceThread:
    """A daemon thread that runs while there are requests. A subclass reads and serves them in work(), and calls start()
    after putting one."""

    def __init__(self, serve, report):
        # Called with a queue: do what is due there. For the dead-letter thread: do one thing, and return whether there
        # may be more.
        self.serve = serve
        self.report = report            # called with (exception, self)
        self.begin()

    def begin(self):
        self.requests = SimpleQueue()
        self.start_token = ["to run"]   # whoever pops it starts the thread, which puts it back when it ends

    def start(self):
        """Start the thread unless it runs. Call it after putting a request."""
        try:
            self.start_token.pop()
        except IndexError:
            return                      # it runs
        # Not threading.Thread: its start() waits, and a signal handler that raises during that would lead to two
        # threads.
        try:
            start_new_thread(self.run, ())
        except BaseException:
            self.start_token.append("to run")
            raise

    def run(self):
        token = self.start_token
        try:
            while True:
                self.work()
                if self.is_replaced(token) or self.may_end():
                    return
        except BaseException as problem:    # for instance no memory: the next request starts the thread again
            token.append("to run")
            self.report(problem, self)

    def is_replaced(self, token):
        """Whether user code that this thread ran has forked, and this is the child, where another thread serves the
        requests. token: start_token before the user code."""
        return self.start_token is not token

    def may_end(self):
        self.start_token.append("to run")
        if self.requests.empty():
            return True
        try:                            # a request came in between: go on, unless its sender has the token
            self.start_token.pop()
        except IndexError:
            return True
        return False

    def left_requests(self):
        """In the child of a fork: all requests that are not served to the end."""
        left = []
        while not self.requests.empty():
            left.append(self.requests.get_nowait())
        return left

    def begin_again(self):
        """In the child of a fork, where the thread is gone: keep the requests for restart()."""
        left = self.left_requests()
        self.begin()
        for request in left:
            self.requests.put(request)

    def restart(self):
        """Start the thread if requests are left. If that fails, the next request starts it."""
        if not self.requests.empty():
            try:
                self.start()
            except BaseException as problem:
                self.report(problem, self)


class DeadLetterThread(ServiceThread):
    """Requests are queues that have dead letters or expired items for this thread."""

    def begin(self):
        ServiceThread.begin(self)
        self.current = None             # the queue that is being served

    def request(self, queue):
        self.requests.put(queue)
        self.start()

    def work(self):
        token = self.start_token
        while self.current is not None or not self.requests.empty():
            if self.current is None:
                self.current = self.requests.get_nowait()
            more = True
            while more:
                more = self.serve(self.current)
                if self.is_replaced(token):
                    return
            self.current = None

    def left_requests(self):
        return ServiceThread.left_requests(self) + ([] if self.current is None else [self.current])


class QueueReference(weakref.ref):
    """A weak reference to a queue, with the queue's id, and whether the queue is gone. Nobody calls it to see that: the
    result may become the last reference to the queue."""
    __slots__ = ("gone", "number")


class Timer(ServiceThread):
    """Requests are (when, id of the reference, QueueReference): serve that queue at that time (ns of the monotonic
    clock), or earlier. The id keeps the heap from comparing references, which have no order.

    Only the earliest request of a queue counts: whoever serves the queue makes the next one. Others are stale."""

    def __init__(self, serve, report, release):
        ServiceThread.__init__(self, serve, report)
        self.release = release          # called with a queue to which perhaps nothing else refers

    def begin(self):
        ServiceThread.begin(self)
        self.event = TimerEvent()
        self.earliest = {}              # id of a queue -> its request that counts
        self.heap = []                  # these requests, and stale ones
        self.unread = None              # a request that is neither in requests nor, perhaps, in the heap

    def arm(self, when, queue):
        """Serve the queue at that time, or earlier."""
        reference = QueueReference(queue, self.forget)
        reference.gone = False
        reference.number = id(queue)
        self.requests.put((when, id(reference), reference))
        self.wake()

    def forget(self, reference):
        """A queue is gone: let the thread drop its request, and end if there are no others."""
        reference.gone = True
        self.requests.put((0, 0, reference))
        self.wake()

    def wake(self):
        self.event.set()
        self.start()

    def work(self):
        token = self.start_token
        while True:
            self.read_all()
            self.drop_stale()
            self.serve_due()
            if self.is_replaced(token) or not self.earliest:
                return
            self.event.wait(self.heap[0][0])

    def read_all(self):
        """Read the requests, beginning with the one that a MemoryError kept from being read."""
        while self.unread is not None or not self.requests.empty():
            if self.unread is None:
                self.unread = self.requests.get_nowait()
            self.read(self.unread)
            self.unread = None

    def read(self, request):
        number = request[2].number
        known = self.earliest.get(number)
        if known is not None and known[2].gone:
            del self.earliest[number]
            known = None
        if not request[2].gone and (known is None or request[0] < known[0]):
            heapq.heappush(self.heap, request)
            self.earliest[number] = request

    def is_stale(self, request):
        return self.earliest.get(request[2].number) is not request

    def drop_stale(self):
        """Keep the heap small: a queue may be armed for an earlier time again and again."""
        if len(self.heap) > 2 * len(self.earliest):
            self.heap = [request for request in self.heap if not self.is_stale(request)]
            heapq.heapify(self.heap)

    def serve_due(self):
        """Serve what is due. A request leaves the heap after it is served."""
        heap, earliest, now = self.heap, self.earliest, mt_now_ns()
        while heap and (heap[0][0] <= now or self.is_stale(heap[0])):
            if not self.is_stale(heap[0]):
                self.serve_one(heap[0][2])
                if self.heap is not heap:       # a fork in there, and this is the child: see is_replaced()
                    return
                del earliest[heap[0][2].number]
            heapq.heappop(heap)

    def serve_one(self, reference):
        it = reference()
        if it is None:
            return
        self.serve(it)
        if Py_REFCNT(it) > 1:
            return
        try:
            self.release(it)        # freeing the queue runs the finalizers of its items
        except BaseException as problem:
            self.report(problem, self)

    def left_requests(self):
        unread = [] if self.unread is None else [self.unread]
        requests = self.heap + unread + ServiceThread.left_requests(self)
        return [request for request in requests if not request[2].gone]
