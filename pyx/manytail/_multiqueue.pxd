# What the modules beside _multiqueue use of it: the queue, its sub-queues, and gets that linger. Private.
cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uintptr_t

from manytail._int64 cimport Int64s
from manytail._mq cimport queue, subqueue
from manytail._root cimport Root
from manytail._waiting cimport GetMany

cdef enum:
    DETACH_FROM = 5000      # raw items; two threads that detach for fewer get in each other's way (measured, 3.11)


cdef class MultiQueue(Root):
    cdef queue *q
    cdef bint raw
    cdef object choose          # a selection callable, or None
    cdef dict subs              # key -> SubQueue, of those that are attached
    cdef object __weakref__
    cdef SubQueue attach(self, key, priority, maxsize, weight, enabled, sizer)
    cdef int get_slow(self, int64_t deadline, bint with_key, bint tried, PyObject **found) except -1
    cdef object take(self, bint with_key)
    cdef tuple pair(self)
    cdef tuple ready_subqueues(self)
    cdef SubQueue ask(self)
    cdef int take_chosen(self, uintptr_t *item, PyObject **key) except -1
    cdef int take_integer(self, uintptr_t *item, PyObject **key) except -1
    cdef object many(self, int64_t n, int64_t deadline, int64_t linger)
    cdef list take_many(self, list out, int64_t n)
    cdef list take_each(self, list out, int64_t n)
    cdef object result_of(self, list items)
    cdef bint wait_for_items(self, int64_t deadline) except -1
    cdef object until_items(self, int64_t deadline)
    cdef bint drop_all(self) except -1


@cython.final
cdef class SubQueue(Root):
    cdef subqueue *s
    cdef bint raw
    cdef bint direct            # an item is put as it is: neither raw nor with a size
    cdef object sizer           # or None
    cdef object __weakref__
    cdef int64_t drop_all(self) noexcept
    cdef bint put_slow(self, object item, int64_t deadline, bint front) except -1
    cdef bint put_of_size(self, object item, int64_t size, int64_t deadline, bint front) except -1
    cdef int64_t size_of(self, object item) except -1
    cdef int refuse_put(self, int status, int64_t size) except -1
    cdef int put_raw(self, Int64s run, int64_t deadline, int64_t *count) except -1
    cdef int put_sequence(self, object items, int64_t deadline, int64_t *count) except -1
    cdef int put_sized_sequence(self, object items, int64_t deadline, int64_t *count) except -1
    cdef int64_t count(self) noexcept


cdef GetMany new_get_many(MultiQueue mq, int64_t n, int64_t deadline, int64_t linger)


cdef int64_t priority_argument(object value) except? -7
cdef uint32_t locked_value(queue *q, uint32_t *field) noexcept nogil
cdef int64_t locked_value_i64(queue *q, int64_t *field) noexcept nogil
cdef uint32_t weight_argument(object value, str what) except 0
cdef int refuse(int status, subqueue *s) except -1
cdef int64_t many_argument(object max_items) except? -7
