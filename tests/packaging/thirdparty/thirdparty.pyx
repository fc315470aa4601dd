# cython: language_level=3, freethreading_compatible=True
"""Uses every function of `cimport manytail` without the GIL; nothing of manytail is called as Python."""

from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc

cimport manytail
from manytail cimport (
    MT_BADARG, MT_EMPTY, MT_FULL, MT_NOMEM, MT_OK, MT_SHUTDOWN, MT_TIMEOUT, mt_multiqueue, mt_subqueue,
)


cdef void add_up(uintptr_t item, void *total) noexcept nogil:
    (<int64_t *> total)[0] += <int64_t> item


cdef class Pipe:
    """A multi-queue of integers with two tails; its methods run detached from the interpreter."""

    cdef mt_multiqueue *queue
    cdef mt_subqueue *urgent
    cdef mt_subqueue *usual
    cdef int64_t dropped

    def __cinit__(self, int64_t maxsize=0):
        self.queue = manytail.mt_multiqueue_new()
        if self.queue == NULL:
            raise MemoryError
        self.urgent = manytail.mt_multiqueue_add(self.queue, 0, 0, 1)
        self.usual = manytail.mt_multiqueue_add(self.queue, 1, maxsize, 1)
        if self.urgent == NULL or self.usual == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.queue != NULL:
            manytail.mt_multiqueue_destroy(self.queue, NULL, NULL)

    def put(self, uintptr_t item, bint urgent=False, int64_t timeout_ns=0):
        cdef int code
        with nogil:
            code = manytail.mt_subqueue_put(self.urgent if urgent else self.usual, item, timeout_ns)
        return code

    def put_many(self, uintptr_t first, int64_t n, int64_t timeout_ns=-1):
        """The code, and how many of first, first + 1, ... went in."""
        cdef int64_t i, count = -1
        cdef int code
        cdef uintptr_t *items = <uintptr_t *> malloc(max(n, 1) * sizeof(uintptr_t))
        if items == NULL:
            raise MemoryError
        with nogil:
            for i in range(n):
                items[i] = first + <uintptr_t> i
            code = manytail.mt_subqueue_put_many(self.usual, items, n, timeout_ns, &count)
            free(items)
        return code, count

    def get(self, int64_t timeout_ns=0):
        """The code, the item, and whether it came from the urgent tail."""
        cdef uintptr_t item = 0
        cdef mt_subqueue *tail = NULL
        cdef int code
        with nogil:
            code = manytail.mt_multiqueue_get(self.queue, &item, &tail, timeout_ns)
        return code, item, tail == self.urgent

    def get_many(self, int64_t n, int64_t timeout_ns=-1):
        cdef int64_t i, count = 0
        cdef int code
        cdef uintptr_t *items = <uintptr_t *> malloc(n * sizeof(uintptr_t))
        if items == NULL:
            raise MemoryError
        try:
            with nogil:
                code = manytail.mt_multiqueue_get_many(self.queue, items, n, timeout_ns, &count)
            return code, [items[i] for i in range(count)]
        finally:
            free(items)

    def feed(self, int64_t n):
        """Put 1..n one by one, waiting for room; the whole loop is nogil."""
        cdef int64_t i
        cdef int code = MT_OK
        with nogil:
            for i in range(1, n + 1):
                code = manytail.mt_subqueue_put(self.usual, <uintptr_t> i, -1)
                if code != MT_OK:
                    break
        return code

    def drain(self):
        """Take until shut down: how many, whether in order, their sum; the whole loop is nogil."""
        cdef uintptr_t item = 0, last = 0
        cdef mt_subqueue *tail = NULL
        cdef int64_t count = 0, total = 0
        cdef bint ordered = True
        cdef int code
        with nogil:
            while True:
                code = manytail.mt_multiqueue_get(self.queue, &item, &tail, -1)
                if code != MT_OK:
                    break
                ordered = ordered and item > last
                last = item
                count += 1
                total += <int64_t> item
        return code, count, ordered, total

    def enable_usual(self, bint enabled):
        with nogil:
            manytail.mt_subqueue_enable(self.usual, enabled)

    def remove_usual(self):
        """The code, and the sum of what was handed to drop."""
        cdef int code
        self.dropped = 0
        with nogil:
            code = manytail.mt_multiqueue_remove(self.queue, self.usual, add_up, &self.dropped)
        return code, self.dropped

    def destroy(self):
        """The sum of what was left."""
        self.dropped = 0
        with nogil:
            manytail.mt_multiqueue_destroy(self.queue, add_up, &self.dropped)
        self.queue = NULL
        return self.dropped

    def qsize(self):
        cdef int64_t n
        with nogil:
            n = manytail.mt_multiqueue_qsize(self.queue)
        return n

    def shutdown(self, bint immediate=False):
        with nogil:
            manytail.mt_multiqueue_shutdown(self.queue, immediate)


CODES = {
    "OK": MT_OK, "EMPTY": MT_EMPTY, "FULL": MT_FULL, "SHUTDOWN": MT_SHUTDOWN, "TIMEOUT": MT_TIMEOUT, "NOMEM": MT_NOMEM, "BADARG": MT_BADARG,
}
