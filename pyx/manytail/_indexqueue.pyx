"""IndexMultiQueue: a MultiQueue of 64-bit integers.

Its sub-queues are the SubQueues of _multiqueue.pyx, raw. What is special is here: gets that fill arrays and buffers,
and that leave the interpreter while many integers move.
"""
cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.ref cimport PyObject
from libc.stdlib cimport free, malloc

from manytail._cpython cimport Py_INCREF_raw, mt_let_go_of_gil_first, mt_owned_item
from manytail._int64 cimport int64_at, open_int64
from manytail._mq_forks cimport *
from manytail._mq_batch cimport *
from manytail._multiqueue cimport Batch, DETACH_FROM, MultiQueue, many_argument, refuse


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


cdef int64_t take_strided(queue *q, Py_buffer *view) except -1:
    cdef int64_t n = view.shape[0], i
    cdef uintptr_t *items = <uintptr_t *>malloc(n * 8 + 1)
    if items == NULL:
        forward_items(q, True)      # this call may have been woken for them and does not take them
        raise MemoryError
    n = take_raw(q, items, n, False)
    for i in range(n):
        int64_at(view, i)[0] = <int64_t>items[i]
    free(items)
    return n


cdef void copy_batch(Batch batch, Py_buffer *view) noexcept:
    cdef int64_t i
    for i in range(batch.b.n):
        int64_at(view, i)[0] = <int64_t>batch.b.items[i].item


# ------------------------------------------------------------------------------------------------------ the queue class
cdef object numpy_array(int64_t n):
    try:
        import numpy
    except ImportError:
        raise ImportError("get_many and get_many_with_keys of IndexMultiQueue return numpy arrays: "
                          "pip install 'numpy>=2', or use get_many_into with a buffer of your own") from None
    return numpy.empty(n, "int64")


@cython.binding(False)
@cython.embedsignature.format("clinic")
cdef class IndexMultiQueue(MultiQueue):
    """A MultiQueue for 64-bit integers, such as row numbers, offsets and ids. It stores no Python objects, and bulk
    calls run without the GIL, so that several threads can move arrays in parallel.

    It has all methods of MultiQueue. put_many of its sub-queues also accepts int64 buffers (numpy arrays, memoryviews)
    and Arrow Int64 arrays without nulls. Raises OverflowError for an int of more than 64 bits, and TypeError for any
    other item. It uses the same algorithm and locking as MultiQueue (see there for the source).

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
            return self.result_of(self.batch_of(n, deadline, linger))
        while True:
            out = self.array(self.wait_available(n, deadline))
            if self.fill(out, True, &slots):    # all of it: to make a shorter array could fail after the integers left
                return out

    def get_many_into(self, out, block=True, timeout=None, *, linger=0.0):
        """Fill a writable int64 buffer from its start and return the number of integers. Waits for the first one, then
        takes all that are available. For a buffer of length 0 it returns 0 at once. linger works as in
        MultiQueue.get_many; the buffer stays exported while it waits."""
        cdef int64_t got, slots, deadline = deadline_from(block, timeout), longer = linger_from(linger)
        if self.choose is not None or (longer and deadline != ONCE):
            return self.batch_into(out, deadline, longer)
        while True:
            got = self.fill(out, False, &slots)
            if got or slots == 0:
                return got
            self.wait_available(1, deadline)

    def get_many_with_keys(self, max_items, block=True, timeout=None, *, linger=0.0):
        """Return a list of (key, numpy array): up to max_items integers in the order of get, one pair for each run of
        integers from the same sub-queue. Waits for the first one. linger works as in MultiQueue.get_many."""
        cdef int64_t n = many_argument(max_items), deadline, longer = linger_from(linger)
        cdef list runs = []
        if n <= 0:
            return runs
        deadline = deadline_from(block, timeout)
        if self.choose is not None or self.q.selection == MT_OLDEST or (longer and deadline != ONCE):
            return self.runs_of(self.batch_of(n, deadline, longer))
        while not runs:
            runs = self.take_runs(self.wait_available(n, deadline))
        return runs

    cdef object array_of(self, Batch batch):
        """Copy the integers of a batch, which keeps them."""
        cdef object out = numpy_array(batch.b.n)
        cdef Py_buffer view
        open_int64(out, &view, True)
        copy_batch(batch, &view)
        PyBuffer_Release(&view)
        return out

    cdef object result_of(self, Batch batch):
        try:
            out = self.array_of(batch)
        except BaseException:
            batch.give_all_back()
            raise
        end_batch(&batch.b)
        return out

    cdef list runs_of(self, Batch batch):
        cdef list runs = []
        cdef int64_t begin = 0, end = 1
        cdef subqueue *s
        try:
            out = self.array_of(batch)
            while begin < batch.b.n:
                s = batch.b.items[begin].s
                while end < batch.b.n and batch.b.items[end].s == s:
                    end += 1
                runs.append((<object>s.key, out[begin:end]))
                begin = end
        except BaseException:
            batch.give_all_back()
            raise
        end_batch(&batch.b)
        return runs

    cdef int64_t batch_into(self, object out, int64_t deadline, int64_t linger) except -1:
        cdef Py_buffer view
        cdef Batch batch
        cdef int64_t got = 0
        open_int64(out, &view, True)
        try:
            if view.shape[0]:
                batch = self.batch_of(view.shape[0], deadline, linger)
                got = batch.b.n
                copy_batch(batch, &view)
                end_batch(&batch.b)
        finally:
            PyBuffer_Release(&view)
        return got

    cdef int64_t wait_available(self, int64_t n, int64_t deadline) except -1:
        """Wait for the first item. Returns how many are there, at most n."""
        cdef wait_point p
        cdef int64_t there
        cdef int r
        items_point(&p, self.q, True)
        while True:
            there = qsize_of(self.q, n, True)
            if there:
                return there
            r = MT_EMPTY
            if not again(&p, 1, &r, deadline):
                refuse(r, NULL)

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
            if view.strides[0] == 8:
                got = take_raw(self.q, <uintptr_t *>view.buf, view.shape[0], all_or_none)
            else:
                got = take_strided(self.q, &view)
        finally:
            PyBuffer_Release(&view)
        return got

    cdef list take_runs(self, int64_t n):
        """Take up to n integers without waiting, as (key, array) runs. The pair of a run is made first, and the run is
        taken only if it is still as long: after that nothing can fail."""
        cdef list runs = []
        cdef Py_ssize_t taken = 0
        cdef Py_buffer view
        cdef int64_t k
        while n > 0:
            k = n
            try:
                key = self.next_run(&k)
                if k == 0:
                    break
                out = numpy_array(k)
                runs.append((key, out))
                open_int64(out, &view, True)
            except BaseException:
                if taken:
                    break           # return what was taken
                forward_items(self.q, True)     # another getter takes what this one may have been woken for
                raise
            if self.take_run(<PyObject *>key, <uintptr_t *>view.buf, k):
                n -= k
                taken += 1
            else:
                runs.pop()
            PyBuffer_Release(&view)
        while len(runs) > taken:
            runs.pop()
        return runs

    cdef object next_run(self, int64_t *n):
        """The key of the sub-queue that the next gets take from, at most *n. *n becomes how many they are."""
        cdef PyObject *key = NULL
        cdef subqueue *s
        lock_take(self.q, True)
        s = head_next(self.q, True)
        if s != NULL:
            n[0] = min(head_count(s), run_length(self.q, s, n[0]))
            key = <PyObject *>s.key
            Py_INCREF_raw(key)
        else:
            n[0] = 0
        unlock_take(self.q)
        return mt_owned_item(<uintptr_t>key) if key != NULL else None

    cdef bint take_run(self, PyObject *key, uintptr_t *items, int64_t n) noexcept:
        """Take n integers, if the next n gets take them from the sub-queue of that key."""
        cdef wait_node *to_post = NULL
        cdef subqueue *s
        cdef int64_t k, got = 0
        lock_take(self.q, True)
        s = head_next(self.q, True)
        if s != NULL and s.key == key and head_count(s) >= n and run_length(self.q, s, n) == n:
            while got < n:
                k = head_pop_run(self.q, s, items + got, n - got)
                got += k
                self.q.taken_total += k
                head_popped_and_served(self.q, s, k, True, &to_post)
            head_propagate(self.q, &to_post)
        unlock_take_and_post(self.q, to_post)
        return got == n
