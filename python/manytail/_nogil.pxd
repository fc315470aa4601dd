# The nogil structures for Cython and C authors; `cimport manytail` re-exports this file, docs/nogil.md explains it.
# Items are uintptr_t and belong to the caller. Timeouts are nanoseconds: negative waits for ever, 0 tries once.
from libc.stdint cimport int64_t, uintptr_t


cdef extern from "manytail/multiqueue.h" nogil:
    enum: MT_OK, MT_EMPTY, MT_FULL, MT_SHUTDOWN, MT_TIMEOUT, MT_NOMEM, MT_BADARG
    ctypedef struct mt_multiqueue:
        pass
    ctypedef struct mt_subqueue:
        pass

ctypedef void (*mt_drop)(uintptr_t item, void* arg) noexcept nogil

# ----------------------------------------------------------------------------------------------------------- MultiQueue
# A round-robin queue; NULL: no memory.
cdef mt_multiqueue* mt_multiqueue_new() noexcept nogil
# No call may run on it or on its sub-queues, or come later. Items that are left go to `drop` (may be NULL) one by one.
cdef void mt_multiqueue_destroy(mt_multiqueue*, mt_drop drop, void* arg) noexcept nogil
# maxsize <= 0: no limit. NULL: weight < 1, no memory, or the queue is shut down.
cdef mt_subqueue* mt_multiqueue_add(mt_multiqueue*, int priority, int64_t maxsize, int weight) noexcept nogil
# MT_OK, or MT_BADARG: not a sub-queue of that queue. Blocked and later puts return MT_SHUTDOWN; the pointer stays valid
# until destroy.
cdef int mt_multiqueue_remove(mt_multiqueue*, mt_subqueue*, mt_drop drop, void* arg) noexcept nogil
# MT_OK, MT_FULL (timeout 0), MT_TIMEOUT, MT_SHUTDOWN, MT_NOMEM.
cdef int mt_subqueue_put(mt_subqueue*, uintptr_t item, int64_t timeout_ns) noexcept nogil
# As many as fit are linked as one chain, then it waits for free slots. *count (may be NULL): how many went in, whatever
# is returned. MT_BADARG: n < 0, or items is NULL and n > 0.
cdef int mt_subqueue_put_many(mt_subqueue*, const uintptr_t* items, int64_t n, int64_t timeout_ns,
                              int64_t* count) noexcept nogil
cdef void mt_subqueue_enable(mt_subqueue*, bint enabled) noexcept nogil
# MT_OK, MT_EMPTY (timeout 0), MT_TIMEOUT, MT_SHUTDOWN, MT_NOMEM (no semaphore to wait on). *taken_from: the
# sub-queue of the item; `taken_from` may be NULL.
cdef int mt_multiqueue_get(mt_multiqueue*, uintptr_t* item, mt_subqueue** taken_from, int64_t timeout_ns) noexcept nogil
# Waits for the first item, then takes what is there, at most n. *count: how many. n = 0: MT_OK. MT_BADARG: n < 0, or
# items is NULL and n > 0.
cdef int mt_multiqueue_get_many(mt_multiqueue*, uintptr_t* items, int64_t n, int64_t timeout_ns,
                                int64_t* count) noexcept nogil
cdef int64_t mt_multiqueue_qsize(mt_multiqueue*) noexcept nogil
cdef void mt_multiqueue_shutdown(mt_multiqueue*, bint immediate) noexcept nogil
