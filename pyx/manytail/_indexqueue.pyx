"""IndexMultiQueue: a MultiQueue of 64-bit integers.

Its sub-queues are the SubQueues of _multiqueue.pyx, raw. What is special is here: gets that fill arrays and buffers,
and that leave the interpreter while many integers move.
"""
cimport cython
from cpython.buffer cimport PyBuffer_Release

from manytail._cpython cimport mt_let_go_of_gil_first
from manytail._int64 cimport open_int64
from manytail._mq_forks cimport *
from manytail._mq_get cimport *
from manytail._multiqueue cimport DETACH_FROM, MultiQueue, many_argument, new_get_many

from manytail.errors import Empty


# ----------------------------------------------------------------------------------------------------------- bulk moves
cdef int64_t take_raw(queue *q, uintptr_t *items, int64_t n, bint all_or_none) noexcept:
    """Take up to n integers without waiting."""
    cdef int64_t got
    cdef wait_node *to_post = NULL
    if n >= DETACH_FROM and enter_bulk(q):
        with nogil:
            got = take_raw_now(q, items, n, all_or_none, False, &to_post)
            mt_let_go_of_gil_first()
        leave_bulk(q)
    else:
        got = take_raw_now(q, items, n, all_or_none, True, &to_post)
    post(to_post)
    return got


cdef int64_t take_raw_now(queue *q, uintptr_t *items, int64_t n, bint all_or_none, bint attached,
                          wait_node **to_post) noexcept nogil:
    cdef int64_t got = 0
    lock_take(q, attached)
    if not all_or_none or head_qsize(q, n) == n:
        got = head_get_many(q, items, n, attached, to_post)
    unlock_take(q)
    return got


cdef int copy_ints(list items, Py_buffer *view) except -1:
    """Of 64 bits each, so that it does not fail."""
    cdef int64_t i
    for i in range(len(items)):
        (<int64_t *>view.buf)[i] = items[i]
    return 0


# ------------------------------------------------------------------------------------------------------ the queue class
cdef object numpy_array(int64_t n):
    try:
        import numpy
    except ImportError:
        raise ImportError("get_many of IndexMultiQueue returns a numpy array: "
                          "pip install 'numpy>=2', or use get_many_into with a buffer of your own") from None
    return numpy.empty(n, "int64")


@cython.binding(False)
@cython.embedsignature.format("clinic")
cdef class IndexMultiQueue(MultiQueue):
    """A MultiQueue for 64-bit integers, such as row numbers, offsets and ids. It stores no Python objects, and bulk
    calls run without the GIL, so that several threads can move arrays in parallel.

    It has all methods of MultiQueue. put_many of its sub-queues also accepts contiguous int64 buffers, such as numpy
    arrays and memoryviews. Raises OverflowError for an int of more than 64 bits, and TypeError for any other item. It
    uses the same algorithm and locking as MultiQueue (see there for the source).

    >>> q = IndexMultiQueue()
    >>> q.add("rows").put_many(range(5))
    5
    >>> q.get_many(3).tolist(), q.get()
    ([0, 1, 2], 3)
    """

    def __cinit__(self, *args, **options):
        self.raw = True
        self.q.gil_locked = False       # bulk calls hold its locks without the GIL

    def get_many(self, max_items, block=True, timeout=None, *, linger=0.0):
        """Return a numpy array (int64) of up to max_items integers. Waits for the first one, then takes all that are
        available. linger works as in MultiQueue.get_many."""
        cdef int64_t n = many_argument(max_items), longer = linger_from(linger)
        return self.many(n, deadline_from(block, timeout) if n > 0 else ONCE, longer)

    cdef object many(self, int64_t n, int64_t deadline, int64_t linger):
        cdef int64_t slots
        if n <= 0:
            return numpy_array(0)
        if self.choose is not None or (linger and deadline != ONCE):
            return self.result_of(new_get_many(self, n, deadline, linger).run())
        while True:
            out = self.array(self.wait_available(n, deadline))
            if self.fill(out, True, &slots):    # all of it: to make a shorter array could fail after the integers left
                return out

    def get_many_into(self, out, block=True, timeout=None, *, linger=0.0):
        """Fill a writable contiguous int64 buffer from its start and return the number of integers. Waits for the first
        one, then takes all that are available. For a buffer of length 0 it returns 0 at once. linger works as in
        MultiQueue.get_many; the buffer stays exported while it waits."""
        cdef int64_t got, slots, deadline = deadline_from(block, timeout), longer = linger_from(linger)
        if self.choose is not None or (longer and deadline != ONCE):
            return self.gather_into(out, deadline, longer)
        while True:
            got = self.fill(out, False, &slots)
            if got or slots == 0:
                return got
            self.wait_available(1, deadline)

    cdef object result_of(self, list items):
        cdef Py_buffer view
        try:
            out = numpy_array(len(items))
            open_int64(out, &view, True)
        except BaseException as error:
            note_items(error, items)
            raise
        copy_ints(items, &view)
        PyBuffer_Release(&view)
        return out

    cdef int64_t gather_into(self, object out, int64_t deadline, int64_t linger) except -1:
        cdef Py_buffer view
        cdef list taken = []
        open_int64(out, &view, True)
        try:
            if view.shape[0]:
                taken = new_get_many(self, view.shape[0], deadline, linger).run()
                copy_ints(taken, &view)
        finally:
            PyBuffer_Release(&view)
        return len(taken)

    cdef int64_t wait_available(self, int64_t n, int64_t deadline) except -1:
        """Wait for the first item. Returns how many are there, at most n."""
        cdef int64_t there = qsize_of(self.q, n, True)
        while there == 0:
            if not self.wait_for_items(deadline):
                raise Empty
            there = qsize_of(self.q, n, True)
        return there

    cdef object array(self, int64_t n):
        try:
            return numpy_array(n)
        except BaseException:
            forward_items(self.q, True)     # another getter takes what this one may have been woken for
            raise

    cdef int64_t fill(self, object out, bint all_or_none, int64_t *slots) except -1:
        """Take what is there into a buffer, which has *slots slots. Returns how many. all_or_none: if fewer integers
        are there, take none."""
        cdef Py_buffer view
        cdef int64_t got = 0
        try:
            open_int64(out, &view, True)
        except BaseException:
            forward_items(self.q, True)     # as in array(): the buffer may have been released during the wait
            raise
        slots[0] = view.shape[0]
        try:
            got = take_raw(self.q, <uintptr_t *>view.buf, view.shape[0], all_or_none)
        finally:
            PyBuffer_Release(&view)
        return got
