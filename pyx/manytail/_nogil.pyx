"""mt_multiqueue_*: the MultiQueue for Cython and C, without Python objects.

python/manytail/_nogil.pxd documents the calls, _mq_nogil.pxd has the code. Locks are taken with the GIL too, and an
item is a number without a reference count. Nothing in here is for Python.
"""
from libc.stdint cimport INT64_MAX, int64_t, uintptr_t

cimport manytail._mq_changes as changes
cimport manytail._mq_nogil as mq


# ----------------------------------------------------------------------------------------------------------- MultiQueue
cdef mt_multiqueue *mt_multiqueue_new() noexcept nogil:
    return <mt_multiqueue *>mq.new_queue(False, False)


cdef void mt_multiqueue_destroy(mt_multiqueue *q, mt_drop drop, void *arg) noexcept nogil:
    mq.destroy_queue(<mq.queue *>q, drop, arg)


cdef mt_subqueue *mt_multiqueue_add(mt_multiqueue *q, int priority, int64_t maxsize, int weight) noexcept nogil:
    return <mt_subqueue *>mq.add_subqueue(<mq.queue *>q, priority, maxsize, weight)


cdef int mt_multiqueue_remove(mt_multiqueue *q, mt_subqueue *s, mt_drop drop, void *arg) noexcept nogil:
    return mq.remove_subqueue(<mq.queue *>q, <mq.subqueue *>s, drop, arg)


cdef int mt_subqueue_put(mt_subqueue *s, uintptr_t item, int64_t timeout_ns) noexcept nogil:
    return mq.put_within(<mq.subqueue *>s, item, timeout_ns)


cdef int mt_subqueue_put_many(mt_subqueue *s, const uintptr_t *items, int64_t n, int64_t timeout_ns,
                              int64_t *count) noexcept nogil:
    return mq.put_run_within(<mq.subqueue *>s, items, n, timeout_ns, count)


cdef void mt_subqueue_enable(mt_subqueue *s, bint enabled) noexcept nogil:
    changes.enable_subqueue((<mq.subqueue *>s).mq, <mq.subqueue *>s, enabled, False)


cdef int mt_multiqueue_get(mt_multiqueue *q, uintptr_t *item, mt_subqueue **taken_from,
                           int64_t timeout_ns) noexcept nogil:
    return mq.get_within(<mq.queue *>q, item, <mq.subqueue **>taken_from, timeout_ns)


cdef int mt_multiqueue_get_many(mt_multiqueue *q, uintptr_t *items, int64_t n, int64_t timeout_ns,
                                int64_t *count) noexcept nogil:
    return mq.get_many_within(<mq.queue *>q, items, n, timeout_ns, count)


cdef int64_t mt_multiqueue_qsize(mt_multiqueue *q) noexcept nogil:
    return mq.qsize_of(<mq.queue *>q, INT64_MAX, False)


cdef void mt_multiqueue_shutdown(mt_multiqueue *q, bint immediate) noexcept nogil:
    changes.shut_queue(<mq.queue *>q, immediate, False)
