"""mt_multiqueue_* and mt_entryqueue_*: the queues for Cython and C, without Python objects.

python/manytail/_nogil.pxd documents the calls, _mq_nogil.pxd and _eq_nogil.pxd have the code. Locks are taken with the
GIL too, and an item is a number without a reference count. Nothing in here is for Python.
"""
from libc.stdint cimport INT64_MAX, int64_t, uintptr_t

cimport manytail._mq_changes as changes
cimport manytail._mq_nogil as mq
from manytail._c cimport MT_OK, PyThread_get_thread_ident
from manytail._entry cimport entry
from manytail._eq cimport ACKED, REJECTED, acquired_entry, eq_registry
from manytail._eq_life cimport forget_other_threads
from manytail._eq_nogil cimport (
    count_of, destroy_nogil_queue, finish, forget, get_within, new_nogil_queue, nogil_queue, nogil_subscription,
    put_many_until, put_until, release, shut_nogil_queue, subscribe, unsubscribe,
)
from manytail._lifecycle cimport at_fork
from manytail._waiting cimport deadline_in


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


# ----------------------------------------------------------------------------------------------------------- EntryQueue
cdef eq_registry registry


cdef mt_entryqueue *mt_entryqueue_new(int levels, int64_t maxsize) noexcept nogil:
    return <mt_entryqueue *>new_nogil_queue(&registry, levels, maxsize)


cdef void mt_entryqueue_destroy(mt_entryqueue *queue, mt_drop drop, void *arg) noexcept nogil:
    destroy_nogil_queue(<nogil_queue *>queue, drop, arg)


cdef int mt_entryqueue_put(mt_entryqueue *queue, uintptr_t item, int priority, int64_t timeout_ns) noexcept nogil:
    return put_until(<nogil_queue *>queue, item, priority, deadline_in(timeout_ns))


cdef int mt_entryqueue_put_many(mt_entryqueue *queue, const uintptr_t *items, int64_t n, int priority,
                                int64_t timeout_ns, int64_t *count) noexcept nogil:
    return put_many_until(<nogil_queue *>queue, items, n, priority, deadline_in(timeout_ns), count)


cdef mt_entrysub *mt_entryqueue_subscribe(mt_entryqueue *queue, bint browse, int64_t credit) noexcept nogil:
    return <mt_entrysub *>subscribe(<nogil_queue *>queue, browse, credit)


cdef int mt_entryqueue_unsubscribe(mt_entrysub *subscription) noexcept nogil:
    return unsubscribe(<nogil_subscription *>subscription)


cdef int mt_entryqueue_get(mt_entrysub *subscription, mt_delivery *out, int64_t timeout_ns) noexcept nogil:
    cdef acquired_entry t
    cdef int r = get_within(<nogil_subscription *>subscription, &t, timeout_ns)
    if r == MT_OK:
        out.item = <uintptr_t>t.item
        out.seq = t.e.seq
        out.queue = <mt_entryqueue *>(<nogil_subscription *>subscription).of
        out.entry = <void *>t.e
        out.delivery = t.delivery
    return r


cdef inline acquired_entry moved_out(mt_delivery *it) noexcept nogil:
    """Move a delivery out of the caller's struct, so that it can be ended only once."""
    cdef acquired_entry t
    t.e = <entry *>it.entry
    t.item = t.extra = NULL
    t.delivery = it.delivery
    it.entry = NULL
    return t


cdef int mt_entryqueue_ack(mt_delivery *it) noexcept nogil:
    cdef acquired_entry t = moved_out(it)
    return finish(<nogil_queue *>it.queue, &t, ACKED)


cdef int mt_entryqueue_reject(mt_delivery *it) noexcept nogil:
    cdef acquired_entry t = moved_out(it)
    return finish(<nogil_queue *>it.queue, &t, REJECTED)


cdef int mt_entryqueue_release(mt_delivery *it) noexcept nogil:
    cdef acquired_entry t = moved_out(it)
    return release(<nogil_queue *>it.queue, &t)


cdef void mt_entryqueue_forget(mt_delivery *it) noexcept nogil:
    cdef acquired_entry t = moved_out(it)
    forget(&t)


cdef int64_t mt_entryqueue_qsize(mt_entryqueue *queue) noexcept nogil:
    return count_of(<nogil_queue *>queue, False)


cdef int64_t mt_entryqueue_depth(mt_entryqueue *queue) noexcept nogil:
    return count_of(<nogil_queue *>queue, True)


cdef void mt_entryqueue_shutdown(mt_entryqueue *queue, bint immediate) noexcept nogil:
    shut_nogil_queue(<nogil_queue *>queue, immediate)


# ----------------------------------------------------------------------------------------------------------------- fork
def _after_fork_in_child():
    forget_other_threads(&registry, PyThread_get_thread_ident())


at_fork(_after_fork_in_child)
