# The MultiQueue (_mq.pxd) for the nogil API. Private. Its users are _nogil.pyx and the native drivers.
#
# Callers are detached; items are pointers or integers; timeouts as in python/manytail/_nogil.pxd, which documents the
# calls. A removed sub-queue is freed with its queue: woken putters may be about to read it.
from manytail._mq_clear cimport *
from manytail._mq_life cimport *
from manytail._mq_put cimport *


cdef inline void destroy_queue(queue *q, item_drop drop, void *arg) noexcept nogil:
    if q == NULL:
        return
    while q.all_first != NULL:
        remove_subqueue(q, q.all_first, drop, arg)
    while q.removed != NULL:
        s = q.removed
        drop_left_chunks(q, s)
        free_subqueue(s, False)
    drop_queue(q, False)


cdef inline subqueue *add_subqueue(queue *q, int priority, int64_t maxsize, int weight) noexcept nogil:
    if weight < 1:
        return NULL
    s = new_subqueue(q, priority, maxsize, <uint32_t>weight, True)
    if s == NULL:
        return NULL
    if attach_subqueue(q, s, False) != MT_OK:
        free_subqueue(s, False)
        return NULL
    return s


cdef inline int remove_subqueue(queue *q, subqueue *s, item_drop drop, void *arg) noexcept nogil:
    if s == NULL or s.mq != q or not detach_subqueue(q, s, False):
        return MT_BADARG
    drop_items(q, s, drop, arg, False)
    return MT_OK        # not freed until the queue is destroyed: woken putters may be about to read it


cdef inline int put_within(subqueue *s, uintptr_t item, int64_t timeout_ns) noexcept nogil:
    return put_until(s.mq, s, item, NULL, False, deadline_in(timeout_ns), False)


cdef inline int put_run_within(subqueue *s, const uintptr_t *items, int64_t n, int64_t timeout_ns,
                               int64_t *count) noexcept nogil:
    cdef int64_t put = 0
    cdef int r = MT_BADARG
    if n >= 0 and (n == 0 or items != NULL):
        r = put_run_until(s.mq, s, items, NULL, n, False, False, deadline_in(timeout_ns), &put, False)
    if count != NULL:
        count[0] = put
    return r


cdef inline int get_or_wait(queue *q, uintptr_t *items, int64_t n, subqueue **taken_from, int64_t timeout_ns,
                            int64_t *count) noexcept nogil:
    """Wait for an item. taken_from != NULL: take one, *taken_from is its sub-queue. Else take up to n, without waiting
    for more."""
    cdef wait_point p
    cdef int64_t deadline = deadline_in(timeout_ns)
    cdef wait_node *to_post = NULL
    cdef int r
    items_point(&p, q, False)
    while True:
        lock_take(q, False)
        if taken_from != NULL:
            count[0] = head_get(q, items, taken_from, False, &to_post) == MT_OK
        else:
            count[0] = head_get_many(q, items, n, False, &to_post)
        unlock_take_and_post(q, to_post)
        to_post = NULL
        r = MT_OK if count[0] else MT_EMPTY
        if not again(&p, 1, &r, deadline):
            return r


cdef inline int get_within(queue *q, uintptr_t *item, subqueue **taken_from, int64_t timeout_ns) noexcept nogil:
    cdef subqueue *s = NULL
    cdef int64_t count = 0
    cdef int r = get_or_wait(q, item, 1, &s, timeout_ns, &count)
    if taken_from != NULL:
        taken_from[0] = s
    return r


cdef inline int get_many_within(queue *q, uintptr_t *items, int64_t n, int64_t timeout_ns,
                                int64_t *count) noexcept nogil:
    count[0] = 0
    if n < 0 or (n > 0 and items == NULL):
        return MT_BADARG
    return MT_OK if n == 0 else get_or_wait(q, items, n, NULL, timeout_ns, count)
